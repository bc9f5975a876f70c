//! libFuzzer program for [`brodo_fuzz::icmp_error`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| brodo_fuzz::icmp_error(data));
