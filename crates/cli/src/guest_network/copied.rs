//! A copy of the host's network ([`Template`]): the guest has the addresses, routes and router of the host.
//!
//! Addresses given for a family replace the host's of that family, a router replaces its routes.
//!
//! In a family of which the host has no address, it still has its loopback to offer, and published ports: the
//! guest gets a link-local address and a router of brodo's own there, 169.254.2.1/16 (RFC 3927) and
//! fe80::2/64 (RFC 4291). Programs prefer the other family for destinations beyond the link, because a
//! link-local source matches none of those in scope (RFC 6724, section 5, rule 2).

use super::{Family, Given, Network, Prefix, Services, bits, check_gateway, check_guest, check_service};
use crate::option_values::{Cidr, HostLoopback, MaybeAddress};
use brodo_net::netlink::template::{InterfaceAddress, Route, Template};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Router of IPv4 if the host has none.
const ROUTER_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 2, 2));
/// Router of IPv6 if the host has none.
const ROUTER_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));
/// DNS server, outside of all networks that a host may be in: link-local for IPv4, and a unique local address
/// (RFC 4193) of a prefix of brodo's own.
pub(crate) const DNS_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 1, 1));
pub(crate) const DNS_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd62, 0x726f, 0x646f, 0, 0, 0, 0, 3));

/// The address of a guest whose host has none of the family; another one if the given router has it.
fn local(ipv6: bool, gateway: Option<IpAddr>) -> Cidr {
    let address = |number: u8| -> IpAddr {
        if ipv6 {
            Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1 + u16::from(number)).into()
        } else {
            Ipv4Addr::new(169, 254, 2, number).into()
        }
    };
    let number = if gateway == Some(address(1)) { 3 } else { 1 };
    Cidr { address: address(number), prefix_len: if ipv6 { 64 } else { 16 } }
}

/// The network of a family. The error is a sentence that names the option.
pub(crate) fn network(family: Family, template: &Template, given: &Given) -> Result<Network, String> {
    let ipv6 = family == Family::V6;
    let cidr = |InterfaceAddress { address, prefix_len }| Cidr { address, prefix_len };
    for &given in &given.guest {
        // Lines of pasta's callers name the network's own address: that of podman-run(1), -a 10.0.2.0 -n 24.
        check_guest(given, Prefix::broadcast)?;
    }
    let mut guest = given.guest.clone();
    if guest.is_empty() {
        guest = template.addresses_of(ipv6).map(cidr).collect();
    }
    let is_local = guest.is_empty();
    if is_local {
        guest.push(local(ipv6, given.gateway));
    }
    let first = guest[0];
    let own_router = if ipv6 { ROUTER_V6 } else { ROUTER_V4 };
    // Routes of an interface without an address of the family lead nowhere.
    let template_routes: Vec<_> = template.routes_of(ipv6).filter(|_| !is_local).collect();
    let (gateway, routes) = match given.gateway {
        Some(gateway) => {
            check_gateway(Prefix::of(first), gateway, &guest)?;
            (gateway, vec![Route::default_via(gateway)])
        }
        None if template_routes.is_empty() => (own_router, vec![Route::default_via(own_router)]),
        None => (template.gateway(ipv6).unwrap_or(own_router), template_routes),
    };
    let mut given = Given { guest, ..given.clone() };
    // Without an address of the host's the router is brodo's own, also beside a given address.
    let is_absent = template.addresses_of(ipv6).next().is_none();
    let has_router = given.gateway.is_some() || template.gateway(ipv6).is_some() || is_absent;
    if !has_router {
        // `gateway` is the address of a router of the network's, and there is none, as with pasta.
        given.host_loopback = given.host_loopback.filter(|it| *it != HostLoopback::Gateway);
    }
    let dns = match given.dns {
        None => Some(bits(if ipv6 { DNS_V6 } else { DNS_V4 })),
        Some(MaybeAddress::None) => None,
        Some(MaybeAddress::Address(dns)) => Some(check_service("--dns", dns, &given.guest)?),
    };
    let services = Services::new(&given, bits(gateway))?;
    Ok(Network {
        family,
        guest: bits(first.address),
        prefix_len: first.prefix_len,
        more: given.guest[1..].to_vec(),
        gateway: bits(gateway),
        dns,
        host_loopback: services.host_loopback,
        dns_at_loopback: false,
        host_address: services.host_address,
        routes,
    })
}

#[cfg(test)]
mod tests;
