//! Destination of a new flow: translation from an address on the link to one on the host.
//!
//! Most addresses are unchanged. Translated are brodo's own: the DNS address stands for the host's resolver,
//! the loopback address (if configured) for the host's loopback, the host's address (if configured) for the
//! host's own one that the guest has too, and the gateway offers nothing but routing. One address may stand
//! for several: the DNS ports go first. So the loopback's address is a DNS address too where it hides the
//! host's resolver ([`Ipv4Net::dns_at_loopback`]). In a copy of the host's network all other ports of the DNS
//! address and the gateway's address lead to the hosts that have them. Permission is another question: see
//! [`crate::policy`].
//!
//! The reverse, how the guest sees a peer, is here too ([`seen_as`]).
//!
//! *Groups.* UDP goes, if that is configured, to multicast groups and broadcast addresses as from a program
//! on the host: to its default interface, with the guest's time to live. So discovery (SSDP, DNS-SD,
//! wake-on-LAN) works from the guest; it hears the answers, which come from single hosts, but joins no group.

use crate::cidr;
use crate::config::{Config, Ipv4Net, Ipv6Net};
use crate::counters::DropReason;
use crate::dns;
use crate::dns::PORT_TLS;
use crate::flow::{Endpoint, Protocol};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Destination of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Destination {
    /// This address, if the policy allows it.
    Host(SocketAddr),
    /// This upstream resolver, as DNS over TCP or UDP.
    Resolver(SocketAddr),
    /// Refused: an address of brodo's own without a service.
    Refused,
}

/// Destination of a flow of `protocol` to `remote`; `resolver` is the index of the preferred one among the
/// host's resolvers.
///
/// # Errors
/// [`DropReason::BadDestination`] for an address that no host can have.
pub(crate) fn resolve(
    config: &Config,
    resolver: Option<usize>,
    protocol: Protocol,
    remote: SocketAddr,
) -> Result<Destination, DropReason> {
    let ip = remote.ip();
    let chosen = || resolver.and_then(|resolver| config.resolvers.get(resolver)).copied();
    if is_dns(config, remote.into()) {
        return Ok(chosen().map_or(Destination::Refused, Destination::Resolver));
    }
    if is_dns_tls(config, remote) {
        let at = |resolver: SocketAddr| Destination::Host(SocketAddr::new(resolver.ip(), PORT_TLS));
        return Ok(chosen().map_or(Destination::Refused, at));
    }
    if let Some(mapped) = mapped(config, ip) {
        return Ok(Destination::Host(SocketAddr::new(mapped, remote.port())));
    }
    if config.is_ours(ip) && (config.host_link.is_none() || is_made_up(config, ip)) {
        return Ok(Destination::Refused);
    }
    let group = protocol == Protocol::Udp && is_group(config, ip);
    if !(group || is_possible(config, ip)) {
        return Err(DropReason::BadDestination);
    }
    Ok(Destination::Host(scoped(config, remote)))
}

/// Whether the router's address is brodo's invention although the network is a copy.
fn is_made_up(config: &Config, ip: IpAddr) -> bool {
    let IpAddr::V6(ip) = ip else { return false };
    config.v6.is_some_and(|n| ip == n.gateway_link_local && ip != n.gateway)
}

/// A link-local destination or a group on the host's interface; any other as it is.
pub(crate) fn scoped(config: &Config, remote: SocketAddr) -> SocketAddr {
    match (remote, config.host_link) {
        (SocketAddr::V6(v6), Some(link)) if v6.ip().is_unicast_link_local() || v6.ip().is_multicast() => {
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, link.scope_id).into()
        }
        _ => remote,
    }
}

/// Whether `to` is an address and the port of the DNS service.
pub(crate) fn is_dns(config: &Config, to: Endpoint) -> bool {
    to.port() == dns::PORT && is_dns_address(config, to.ip())
}

/// Whether `to` is a DNS address and the port of DNS over TLS and QUIC, which leads to the resolver's.
pub(crate) fn is_dns_tls(config: &Config, to: SocketAddr) -> bool {
    to.port() == PORT_TLS && is_dns_address(config, to.ip())
}

fn is_dns_address(config: &Config, ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => config.v4.is_some_and(|n| n.dns_addresses().contains(&Some(ip))),
        IpAddr::V6(ip) => config.v6.is_some_and(|n| n.dns_addresses().contains(&Some(ip))),
    }
}

/// Whether `ip` stands for an address of the host's.
pub(crate) fn is_mapped(config: &Config, ip: IpAddr) -> bool {
    mapped(config, ip).is_some()
}

/// Destination by which rules and limits judge a flow to `remote`: for the router's link-local address, if
/// the router stands for the host's loopback, its other one.
pub(crate) fn judged_as(config: &Config, remote: SocketAddr) -> SocketAddr {
    match (remote.ip(), config.v6) {
        (IpAddr::V6(ip), Some(n)) if is_other_way(&n, ip) => SocketAddr::new(n.gateway.into(), remote.port()),
        _ => remote,
    }
}

/// The router's address by which flows are judged, and its other one, if there are two ways to the host's
/// loopback. Rules of the user's may name either.
pub(crate) fn ways_to_loopback(config: &Config) -> Option<[IpAddr; 2]> {
    let n =
        config.v6.filter(|n| n.gateway != n.gateway_link_local && is_other_way(n, n.gateway_link_local))?;
    Some([n.gateway.into(), n.gateway_link_local.into()])
}

/// Whether `ip` is the router's other address, which the guest's routes may name, and the router stands for
/// the host's loopback.
fn is_other_way(n: &Ipv6Net, ip: Ipv6Addr) -> bool {
    n.host_loopback == Some(n.gateway) && n.gateway_link_local == ip
}

/// The address of the host's that `ip` stands for.
fn mapped(config: &Config, ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => match config.v4? {
            n if n.host_loopback == Some(ip) => Some(Ipv4Addr::LOCALHOST.into()),
            n if n.host_address == Some(ip) => Some(n.guest.into()),
            _ => None,
        },
        IpAddr::V6(ip) => match config.v6? {
            n if n.loopback_addresses().contains(&Some(ip)) => Some(Ipv6Addr::LOCALHOST.into()),
            n if n.host_address == Some(ip) => Some(n.guest.into()),
            _ => None,
        },
    }
}

/// Whether a single host can have this address. Packets to the guest's own never reach the link.
fn is_possible(config: &Config, ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let own = config.is_guests(ip.into());
            // 0/8 and 240/4 with the broadcast address: not a host's (RFC 1122, 3.2.1.3; RFC 6890).
            let reserved = ip.octets()[0] == 0 || ip.octets()[0] >= 240;
            !(own || reserved || ip.is_multicast())
        }
        IpAddr::V6(ip) => {
            let own = config.is_guests(ip.into());
            // IPv4-compatible ::/96 with the unspecified address, and IPv4-mapped ::ffff:0:0/96.
            let embedded = ip.segments()[..5] == [0; 5] && !ip.is_loopback();
            !(own || embedded || ip.is_multicast())
        }
    }
}

/// Whether the guest's datagrams to `ip` leave for several hosts: a multicast group of more than the host
/// (RFC 4291, 2.7), or a broadcast address, of a copied network its directed one too. False for all if
/// groups are not configured.
pub(crate) fn is_group(config: &Config, ip: IpAddr) -> bool {
    const LINK_LOCAL_SCOPE: u16 = 2;
    if !config.multicast {
        return false;
    }
    match ip {
        IpAddr::V4(ip) => {
            let directed = |n: Ipv4Net| {
                n.prefix_len < 31 && ip.to_bits() == n.guest.to_bits() | !cidr::mask_v4(n.prefix_len)
            };
            let of_copy = || config.host_link.is_some() && config.v4.is_some_and(directed);
            ip.is_multicast() || ip.is_broadcast() || of_copy()
        }
        IpAddr::V6(ip) => ip.is_multicast() && ip.segments()[0] & 0xf >= LINK_LOCAL_SCOPE,
    }
}

/// Translated address of a peer, as the guest sees it: its own, unless what the guest would answer could
/// not come back to brodo. Then the address stands for it that stands for the host's loopback, or the
/// router's; for an address of the host's that is also the guest's the one that stands for that. `None` if
/// the guest does not speak the peer's family.
///
/// Answers come back from everywhere but loopback and brodo's own addresses; in a network of its own also
/// not from the guest's prefix and from link-local addresses.
pub(crate) fn seen_as(config: &Config, peer: SocketAddr) -> Option<Endpoint> {
    let ip = peer.ip().to_canonical();
    let (host_loopback, host_address): (IpAddr, Option<IpAddr>) = match ip {
        IpAddr::V4(_) => {
            let n = config.v4?;
            (n.host_loopback.unwrap_or(n.gateway).into(), n.host_address.map(Into::into))
        }
        IpAddr::V6(_) => {
            let n = config.v6?;
            (n.host_loopback.unwrap_or(n.gateway).into(), n.host_address.map(Into::into))
        }
    };
    let local = ip.is_loopback() || ip.is_unspecified() || config.ends_at_brodo(ip);
    let seen = if config.is_guests(ip) {
        host_address.unwrap_or(host_loopback)
    } else if local || (config.host_link.is_none() && is_on_link(config, ip)) {
        host_loopback
    } else {
        ip
    };
    Some(Endpoint::new(seen, peer.port()))
}

/// Whether `ip` is a neighbour in a copied network, to which the guest sends without a router.
pub(crate) fn is_direct(config: &Config, ip: IpAddr) -> bool {
    config.host_link.is_some() && is_on_link(config, ip)
}

/// Whether the guest would look for `ip` on its link instead of sending to the router.
fn is_on_link(config: &Config, ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let in_prefix =
                |n: Ipv4Net| (ip.to_bits() ^ n.guest.to_bits()) & cidr::mask_v4(n.prefix_len) == 0;
            ip.is_link_local() || config.v4.is_some_and(in_prefix)
        }
        IpAddr::V6(ip) => {
            let in_prefix =
                |n: Ipv6Net| (ip.to_bits() ^ n.guest.to_bits()) & cidr::mask_v6(n.prefix_len) == 0;
            ip.is_unicast_link_local() || config.v6.is_some_and(in_prefix)
        }
    }
}

#[cfg(test)]
mod tests;
