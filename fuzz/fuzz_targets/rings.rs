//! libFuzzer program for the body [`brodo_fuzz::rings`], which says what it checks; built by `fuzz/run`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| brodo_fuzz::rings::run(data));
