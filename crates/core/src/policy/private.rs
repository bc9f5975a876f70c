//! Private destinations: networks that are no part of the public Internet, and the host's own addresses.
//!
//! A policy refuses them unless a rule lifts that (`private`), because a name of the guest's own choosing may
//! lead there (DNS rebinding), and because services inside a network seldom ask for a password. Without a
//! policy they are destinations like any other.

use super::embedded::embedded_ipv4;
use crate::cidr::Cidr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const fn v4(a: u8, b: u8, c: u8, prefix_len: u8) -> Cidr {
    Cidr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, 0)), prefix_len).unwrap()
}

/// Networks of the IANA special-purpose registries (RFC 6890) that hosts of a site have.
const NETWORKS: [Cidr; 10] = [
    // RFC 1918.
    v4(10, 0, 0, 8),
    v4(172, 16, 0, 12),
    v4(192, 168, 0, 16),
    // RFC 6598, between a carrier and its customers; also overlay networks.
    v4(100, 64, 0, 10),
    // RFC 6890, 2.1.
    v4(192, 0, 0, 24),
    // RFC 2544, benchmarks.
    v4(198, 18, 0, 15),
    // RFC 4193, unique local addresses.
    Cidr::new(IpAddr::V6(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0)), 7).unwrap(),
    // Multicast groups (RFC 1112, RFC 4291) and the broadcast address: all hosts of the site.
    v4(224, 0, 0, 4),
    Cidr::new(IpAddr::V4(Ipv4Addr::BROADCAST), 32).unwrap(),
    Cidr::new(IpAddr::V6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0)), 8).unwrap(),
];

/// Whether `address`, or an IPv4 address embedded in it, is in a private network (RFC 6890). The host's own
/// addresses, which rules take for private too, are unknown here.
pub fn is_private(address: IpAddr) -> bool {
    readings(address, &[]).next().is_some()
}

/// The readings of `address`, itself and embedded IPv4, that are private. `host` has the host's addresses,
/// sorted.
pub(super) fn readings(address: IpAddr, host: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let is_private = move |ip: &IpAddr| {
        NETWORKS.iter().any(|network| network.contains(*ip)) || host.binary_search(ip).is_ok()
    };
    std::iter::once(address).chain(embedded_ipv4(address).map(IpAddr::from)).filter(is_private)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_networks_and_the_hosts_addresses() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let mut host = [ip("203.0.113.7"), ip("2001:db8::7")];
        host.sort();
        let private = |text| readings(ip(text), &host).next().is_some();
        for text in [
            "10.0.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.127.0.1",
            "192.0.0.9",
            "198.19.0.1",
            "fd00::1",
            "fc00::1",
            "239.255.255.250",
            "255.255.255.255",
            "ff02::fb",
            "203.0.113.7",
            "2001:db8::7",
            "64:ff9b::10.0.0.1",
            "2002:a00:1::",
            "64:ff9b::203.0.113.7",
        ] {
            assert!(private(text), "{text}");
        }
        for text in
            ["172.32.0.1", "100.128.0.1", "192.0.1.1", "203.0.113.8", "2001:db8::8", "64:ff9b::192.0.2.1"]
        {
            assert!(!private(text), "{text}");
        }
    }
}
