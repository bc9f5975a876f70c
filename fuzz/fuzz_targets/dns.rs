//! libFuzzer program for [`brodo_fuzz::dns`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| brodo_fuzz::dns(data));
