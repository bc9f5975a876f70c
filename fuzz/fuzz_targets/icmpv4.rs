//! libFuzzer program for [`brodo_fuzz::icmpv4`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| brodo_fuzz::icmpv4(data));
