//! libFuzzer program for [`brodo_fuzz::dhcpv6`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| brodo_fuzz::dhcpv6(data));
