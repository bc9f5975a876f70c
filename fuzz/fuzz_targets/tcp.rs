//! libFuzzer program for [`brodo_fuzz::tcp`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| brodo_fuzz::tcp(data));
