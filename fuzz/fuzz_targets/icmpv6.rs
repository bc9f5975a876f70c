//! libFuzzer program for [`brodo_fuzz::icmpv6`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| brodo_fuzz::icmpv6(data));
