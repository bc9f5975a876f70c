//! libFuzzer program for [`brodo_fuzz::dhcpv4`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| brodo_fuzz::dhcpv4(data));
