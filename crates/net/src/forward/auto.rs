//! `auto`: the ports to listen on, derived from the listeners of the other side.
//!
//! A pure function from the sockets of one side to the places to listen at on the other. A listener on all
//! addresses of the guest is published on all addresses, and a listener on its loopback on the host's
//! loopback alone; so no service is exposed more widely than before. A listener on the guest's own address
//! alone is published on all addresses too, because brodo forwards to that one. Other addresses (of a bridge
//! in the guest, link-local ones, multicast groups) are out of brodo's reach, so listeners bound to them are
//! ignored. In the other direction only listeners reachable by the host's loopback are offered on the
//! guest's.
//!
//! brodo's own listeners do not count: otherwise both directions would follow each other for ever. For UDP
//! nothing on an ephemeral port does: such sockets belong to clients.

use super::{ForwardDirection, Guest, Transport};
use crate::sock_diag::Listener;
use brodo_core::port_range::PortRange;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses and ports to listen at, and the address of the guest's that they lead to, if it listens on that
/// alone.
pub(super) type Places = BTreeMap<(IpAddr, u16), Option<IpAddr>>;

/// Selection of listeners to follow.
pub(super) struct Rule<'a> {
    pub(super) direction: ForwardDirection,
    pub(super) transport: Transport,
    /// Address to listen on, if the specification has one.
    pub(super) address: Option<IpAddr>,
    /// The only ports to follow, if the specification has some.
    pub(super) among: Option<&'a [PortRange]>,
    pub(super) excluded: &'a [PortRange],
    pub(super) ephemeral: PortRange,
    /// The guest's addresses.
    pub(super) guest: &'a Guest,
}

/// The places to listen at because of `found`; `own` are the inodes of brodo's sockets, `taken` ports that
/// are forwarded anyway.
pub(super) fn places(
    rule: &Rule<'_>,
    found: &[Listener],
    own: &BTreeSet<u32>,
    taken: impl Fn(u16) -> bool,
) -> Places {
    let mut places = Places::new();
    for listener in found {
        let port = listener.port;
        let client = rule.transport == Transport::Udp && rule.ephemeral.contains(port);
        let has = |ranges: &[PortRange]| ranges.iter().any(|range| range.contains(port));
        let left_out = has(rule.excluded) || rule.among.is_some_and(|among| !has(among));
        if own.contains(&listener.inode) || client || left_out || taken(port) {
            continue;
        }
        let address = listener.address.to_canonical();
        let guests = rule.direction == ForwardDirection::In && rule.guest.has(address);
        // No connection would go anywhere else, such as to another loopback address than the usual one (a
        // stub resolver's).
        if !(guests || address.is_unspecified() || address == loopback(address.is_ipv6())) {
            continue;
        }
        let both = address == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && !listener.only_v6;
        for ipv6 in [false, true] {
            if rule.guest.addresses[usize::from(ipv6)].is_none() || !(both || address.is_ipv6() == ipv6) {
                continue;
            }
            let wide = rule.direction == ForwardDirection::In && !address.is_loopback();
            let at = match rule.address {
                Some(address) if address.is_ipv6() == ipv6 => address,
                Some(_) => continue,
                None if wide => unspecified(ipv6),
                None => loopback(ipv6),
            };
            let target = places.entry((at, port)).or_insert(guests.then_some(address));
            if !guests {
                *target = None;
            }
        }
    }
    // A wildcard listener covers the loopback too.
    let wide = places.keys().filter(|(at, _)| at.is_unspecified());
    let wide: BTreeSet<_> = wide.map(|&(at, port)| (at.is_ipv6(), port)).collect();
    places.retain(|(at, port), _| at.is_unspecified() || !wide.contains(&(at.is_ipv6(), *port)));
    places
}

/// The loopback address of a family.
pub(super) fn loopback(ipv6: bool) -> IpAddr {
    if ipv6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() }
}

/// All addresses of a family.
pub(super) fn unspecified(ipv6: bool) -> IpAddr {
    if ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

#[cfg(test)]
mod tests;
