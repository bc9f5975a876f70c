//! libFuzzer program for the body [`brodo_fuzz::same_server::run`], which lists its checks; built by
//! `fuzz/run`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| brodo_fuzz::same_server::run(data));
