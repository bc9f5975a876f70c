//! Flow keys, ids and ends: the identity of a flow, as every layer uses it.
//!
//! A [`FlowKey`] is the five-tuple as the guest sees it. A [`FlowId`] is an index with a generation: an event
//! that arrives for a flow that has gone matches none, even if its slot is in use again.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// A slot and the generation of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId {
    /// Slot index.
    pub index: u32,
    /// Number of times the slot was reused.
    pub generation: u32,
}

impl FlowId {
    /// As one word, for a descriptor's event data.
    pub const fn to_bits(self) -> u64 {
        ((self.generation as u64) << 32) | self.index as u64
    }

    /// The inverse of [`FlowId::to_bits`].
    pub const fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// Kind of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP connection.
    Tcp,
    /// UDP conversation.
    Udp,
    /// ICMP echo; both ports hold the identifier.
    Echo,
}

impl Protocol {
    /// Its word in rules and decisions of a policy.
    pub const fn rule_word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Echo => "ping",
        }
    }
}

/// An address and a port. Takes 20 bytes where [`SocketAddr`] takes 32: on the guest's link no address has a
/// scope.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    ip: IpAddr,
    port: u16,
}

impl Endpoint {
    /// This port of this address.
    pub const fn new(ip: IpAddr, port: u16) -> Self {
        Self { ip, port }
    }

    /// The address.
    pub const fn ip(&self) -> IpAddr {
        self.ip
    }

    /// The port.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Whether the address is one of IPv6.
    pub const fn is_ipv6(&self) -> bool {
        self.ip.is_ipv6()
    }

    /// Whether the address is one of IPv4.
    pub const fn is_ipv4(&self) -> bool {
        self.ip.is_ipv4()
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self::new(address.ip(), address.port())
    }
}

impl From<Endpoint> for SocketAddr {
    fn from(end: Endpoint) -> Self {
        Self::new(end.ip, end.port)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::from(*self).fmt(f)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// IP addresses of a packet, both of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
}

impl Addresses {
    /// Addresses of either family.
    pub(crate) fn new(src: impl Into<IpAddr>, dst: impl Into<IpAddr>) -> Self {
        Self { src: src.into(), dst: dst.into() }
    }
}

/// Both ends of a datagram or segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) src: Endpoint,
    pub(crate) dst: Endpoint,
}

impl Ends {
    /// The IP addresses of the ends.
    pub(crate) const fn addresses(self) -> Addresses {
        Addresses { src: self.src.ip(), dst: self.dst.ip() }
    }
}

/// The five-tuple of a flow as the guest sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Protocol of the packets.
    pub protocol: Protocol,
    /// The guest's address and port.
    pub guest: Endpoint,
    /// The remote address and port, before any translation.
    pub remote: Endpoint,
}

impl FlowKey {
    /// The ends of a packet toward the guest.
    pub(crate) const fn to_guest(self) -> Ends {
        Ends { src: self.remote, dst: self.guest }
    }
}
