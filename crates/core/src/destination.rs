//! Destination of a new flow: translation from an address on the link to one on the host.
//!
//! Most addresses are unchanged. Translated are brodo's own: the DNS address stands for the host's resolver,
//! the loopback address (if configured) for the host's loopback, and the gateway offers nothing but routing.
//! Permission is another question: see [`crate::policy`].

use crate::config::Config;
use crate::counters::DropReason;
use crate::dns;
use crate::flow::Endpoint;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

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

/// Destination of a flow to `remote`; `resolver` is the index of the preferred one among the host's
/// resolvers.
///
/// # Errors
/// [`DropReason::BadDestination`] for an address that no host can have.
pub(crate) fn resolve(
    config: &Config,
    resolver: Option<usize>,
    remote: SocketAddr,
) -> Result<Destination, DropReason> {
    let ip = remote.ip();
    if is_dns(config, remote.into()) {
        let chosen = resolver.and_then(|resolver| config.resolvers.get(resolver));
        return Ok(chosen.map_or(Destination::Refused, |&r| Destination::Resolver(r)));
    }
    if let Some(loopback) = mapped_loopback(config, ip) {
        return Ok(Destination::Host(SocketAddr::new(loopback, remote.port())));
    }
    if config.is_ours(ip) {
        return Ok(Destination::Refused);
    }
    if !is_possible(config, ip) {
        return Err(DropReason::BadDestination);
    }
    Ok(Destination::Host(remote))
}

/// Whether `to` is the DNS service's address and port.
pub(crate) fn is_dns(config: &Config, to: Endpoint) -> bool {
    let address = match to.ip() {
        IpAddr::V4(ip) => config.v4.is_some_and(|n| n.dns == ip),
        IpAddr::V6(ip) => config.v6.is_some_and(|n| n.dns == ip),
    };
    address && to.port() == dns::PORT
}

fn mapped_loopback(config: &Config, ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => {
            config.v4.filter(|n| n.host_loopback == Some(ip)).map(|_| Ipv4Addr::LOCALHOST.into())
        }
        IpAddr::V6(ip) => {
            config.v6.filter(|n| n.host_loopback == Some(ip)).map(|_| Ipv6Addr::LOCALHOST.into())
        }
    }
}

/// Whether a single host can have this address. Packets to the guest's own never reach the link.
fn is_possible(config: &Config, ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let own = config.v4.is_some_and(|n| n.guest == ip);
            // 0/8 and 240/4 with the broadcast address: not a host's (RFC 1122, 3.2.1.3; RFC 6890).
            let reserved = ip.octets()[0] == 0 || ip.octets()[0] >= 240;
            !(own || reserved || ip.is_multicast())
        }
        IpAddr::V6(ip) => {
            let own = config.v6.is_some_and(|n| n.guest == ip);
            // IPv4-compatible ::/96 with the unspecified address, and IPv4-mapped ::ffff:0:0/96.
            let embedded = ip.segments()[..5] == [0; 5] && !ip.is_loopback();
            !(own || embedded || ip.is_multicast())
        }
    }
}

#[cfg(test)]
mod tests;
