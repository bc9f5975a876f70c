//! libFuzzer program for [`brodo_fuzz::ndp`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| brodo_fuzz::ndp(data));
