//! libFuzzer program for [`brodo_fuzz::ethernet`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| brodo_fuzz::ethernet(data));
