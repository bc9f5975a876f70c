//! libFuzzer program for [`brodo_fuzz::ipv6`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| brodo_fuzz::ipv6(data));
