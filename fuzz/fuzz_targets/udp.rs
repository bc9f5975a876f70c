//! libFuzzer program for [`brodo_fuzz::udp`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| brodo_fuzz::udp(data));
