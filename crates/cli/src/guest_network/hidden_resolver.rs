//! Resolvers of the host that the address for its loopback hides from the guest (`--dns-at-loopback`).
//!
//! A guest with the host's network often has the host's resolv.conf too, or the router's address as its
//! resolver, as home routers have it by DHCP. Where the router's address stands for the host's loopback
//! (`--map-host-loopback gateway`), port 53 there would be a port of the host's loopback, mostly a closed
//! one: the mapping hides the resolver. A resolver on the host's loopback, such as 127.0.0.53, is hidden by
//! its nature: the guest reaches it by the mapped address alone, if it serves all of 127.0.0.0/8 at all.
//!
//! In both cases the DNS ports of the mapped address, 53 and 853, are those of brodo's DNS server, which asks
//! the host's resolvers; all other ports lead to the loopback as before. The address is not offered by DHCP
//! and stands in no resolv.conf that brodo writes: it is for guests that have it from elsewhere. A resolver
//! with another address is not hidden, so the DNS ports are the loopback's then, of which a service may be
//! wanted.
//!
//! Each family decides for itself, as pasta does (get_dns() in its conf.c), and once: by the resolv.conf at
//! the start, of which the guest has its address. An upgrade keeps the decision. The resolvers that are asked
//! change with the file, as for the other addresses of the DNS server.

use super::{Family, Network, bits};
use std::net::{IpAddr, SocketAddr};

impl Network {
    /// The network in which the DNS server also answers at the address for the host's loopback, if that hides
    /// one of `resolvers`, which are those of the host's resolv.conf.
    pub(crate) fn with_hidden_resolver(self, resolvers: &[SocketAddr]) -> Self {
        let is_hidden = |resolver: IpAddr| {
            Family::of(resolver) == self.family
                && (resolver.is_loopback() || self.host_loopback == Some(bits(resolver)))
        };
        let dns_at_loopback = self.host_loopback.is_some() && resolvers.iter().any(|it| is_hidden(it.ip()));
        Self { dns_at_loopback, ..self }
    }
}

#[cfg(test)]
mod tests;
