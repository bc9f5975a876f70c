//! Networks of both families: borders, the whole address space, host bits.

use super::*;

fn cidr(address: &str, prefix_len: u8) -> Cidr {
    Cidr::new(address.parse().unwrap(), prefix_len).unwrap()
}

#[test]
fn masks_at_both_ends() {
    assert_eq!([mask_v4(0), mask_v4(24), mask_v4(32)], [0, 0xffff_ff00, u32::MAX]);
    assert_eq!([mask_v6(0), mask_v6(64), mask_v6(128)], [0, !0 << 64, u128::MAX]);
}

#[test]
fn a_network_contains_its_range_and_no_more() {
    let net = cidr("192.0.2.77", 26);
    assert_eq!(net.to_string(), "192.0.2.64/26");
    for (ip, inside) in [
        ("192.0.2.63", false),
        ("192.0.2.64", true),
        ("192.0.2.127", true),
        ("192.0.2.128", false),
        ("2001:db8::1", false),
    ] {
        assert_eq!(net.contains(ip.parse().unwrap()), inside, "{ip}");
    }
    assert!(cidr("0.0.0.0", 0).contains("255.255.255.255".parse().unwrap()));
    assert!(!cidr("0.0.0.0", 0).contains("::".parse().unwrap()));
    assert!(cidr("2001:db8::", 32).contains("2001:db8:ffff::1".parse().unwrap()));
    let host = "2001:db8::1".parse().unwrap();
    assert!(Cidr::of_host(host).contains(host));
}

#[test]
fn a_prefix_longer_than_the_address_is_none() {
    assert_eq!(Cidr::new("10.0.0.0".parse().unwrap(), 33), None);
    assert_eq!(Cidr::new("::".parse().unwrap(), 129), None);
}
