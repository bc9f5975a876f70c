//! libFuzzer program for [`brodo_fuzz::arp`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| brodo_fuzz::arp(data));
