//! The floor: destinations that no guest reaches by default, except by an address mapped on purpose. Rules of
//! clouds and links can be left out for a guest that is to have the host's own reach
//! ([`super::Rules::link_local`]); the host's loopback cannot.
//!
//! Metadata services of clouds hand out credentials of the host to any program that can reach them, by
//! address alone. Most are in 169.254.0.0/16; the others have unique local addresses (RFC 4193) or public
//! ones and are listed here.

use super::embedded::embedded_ipv4;
use crate::cidr::Cidr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The rules of the floor, in the order of their counts.
pub(super) const NAMES: [&str; 3] = ["floor host-loopback", "floor link-local", "floor cloud-metadata"];

const fn v4(a: u8, b: u8, c: u8, d: u8) -> Cidr {
    Cidr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), 32).unwrap()
}

const fn v4_net(a: u8, b: u8, prefix_len: u8) -> Cidr {
    Cidr::new(IpAddr::V4(Ipv4Addr::new(a, b, 0, 0)), prefix_len).unwrap()
}

const fn v6(address: Ipv6Addr, prefix_len: u8) -> Cidr {
    Cidr::new(IpAddr::V6(address), prefix_len).unwrap()
}

/// Metadata and credential services outside the link-local ranges.
const METADATA: [Cidr; 9] = [
    // Alibaba Cloud, "Instance metadata" of its ECS guide; the IPv6 address is that of cloud-init's issue
    // 6892.
    v4(100, 100, 100, 200),
    v6(Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200), 128),
    // Microsoft Azure, "What is IP address 168.63.129.16?": the WireServer, which gives the VM agent its
    // certificates.
    v4(168, 63, 129, 16),
    // Oracle Cloud, "Retrieve Predefined Instance Metadata"; the IPv6 address is that of scripts for its
    // nodes, not of a page of Oracle's.
    v4(192, 0, 0, 192),
    v6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe), 128),
    // AWS: ::254 in "Retrieve instance metadata" of the EC2 guide, ::23 in "Set up the Amazon EKS Pod
    // Identity Agent"; its other services beside them are as local to the instance as 169.254.0.0/16.
    v6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0), 32),
    // Google Cloud: the metadata server of instances that have only IPv6, by lists of third parties; no page
    // of Google's was found.
    v6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), 128),
    // Scaleway and Akamai, as cloud-init's reference of its data sources has them.
    v6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42), 128),
    v6(Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1), 128),
];

/// OpenStack, "Metadata service" of the Nova guide: a service at a link-local address of IPv6.
const METADATA_LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe);

/// Index in [`NAMES`] of the rule that forbids `address`, itself or its embedded IPv4 address. With
/// `link_local` only the first rule is in force.
pub(super) fn forbids(address: IpAddr, link_local: bool) -> Option<usize> {
    let in_force = |address| rule(address).filter(|&rule| rule == 0 || !link_local);
    in_force(address).or_else(|| embedded_ipv4(address).find_map(|inner| in_force(inner.into())))
}

/// The rule that forbids every address of `network`, if there is one.
pub(super) fn covering(network: Cidr) -> Option<&'static str> {
    let (address, prefix_len) = (network.address(), network.prefix_len());
    let own = [
        (v4_net(127, 0, 8), 0),
        (v6(Ipv6Addr::LOCALHOST, 128), 0),
        (v4_net(169, 254, 16), 1),
        (v6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10), 1),
    ];
    let metadata = METADATA.iter().map(|&service| (service, 2));
    let mut all = own.into_iter().chain(metadata);
    let covers = |of: Cidr| of.prefix_len() <= prefix_len && of.contains(address);
    let whole = all.find(|&(of, _)| covers(of)).map(|(_, rule)| rule);
    let host = || forbids(address, false).filter(|_| network == Cidr::of_host(address));
    whole.or_else(host).map(|rule| NAMES[rule])
}

/// Index of the rule that forbids a flow begun by a datagram from `address` to a published port. Exempt are
/// programs on the host's loopback and IPv6 neighbours: the guest sees them under an address that stands for
/// them.
pub(super) fn forbids_peer(address: IpAddr, link_local: bool) -> Option<usize> {
    match address {
        IpAddr::V6(METADATA_LINK_LOCAL) => forbids(address, link_local),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => None,
        _ if address.is_loopback() => None,
        _ => forbids(address, link_local),
    }
}

fn rule(address: IpAddr) -> Option<usize> {
    let link_local = match address {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    if address.is_loopback() {
        Some(0)
    } else if link_local {
        Some(1)
    } else {
        METADATA.iter().any(|service| service.contains(address)).then_some(2)
    }
}
