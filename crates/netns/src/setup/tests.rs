//! The parts of set-up that need no namespace: names of interfaces and link-local addresses.

use super::*;

#[test]
fn the_link_local_address_is_made_from_the_mac_address() {
    assert_eq!(
        link_local([0x52, 0x55, 10, 0, 2, 15]),
        "fe80::5055:aff:fe00:20f".parse::<Ipv6Addr>().unwrap()
    );
}

#[test]
fn interface_names_are_those_the_kernel_takes() {
    for good in ["eth0", "e", "a-name_15.bytes", "tap0", "веt"] {
        assert_eq!(is_interface_name(good), good.is_ascii(), "{good}");
    }
    for bad in
        ["", "sixteen-bytes-xx", "a/b", "a b", "a:b", "eth%d", "lo", "all", "default", ".", "..", "a\n"]
    {
        assert!(!is_interface_name(bad), "{bad}");
    }
}
