//! Shares of the flow table: what is left to the guest, and how much one peer outside may take of the rest.
//!
//! A published port lets any peer outside begin flows. Without shares idle connections from outside would
//! fill the table until the guest's own connects were refused. So a part of the table is the guest's own, and
//! of the rest one peer takes only a part. An IPv6 peer is a network of 64 bits, which is what a single host
//! is given (RFC 4291, 2.5.1). The host's loopback is no single peer but all programs of the host: one peer's
//! part does not bound it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

/// Divisor of the table for the part that is the guest's own.
const GUEST_PART: usize = 4;
/// Divisor of the table for the largest part of one outside peer.
const PEER_PART: usize = 8;

/// Flows that began on the host's side, in all and by peer. State is bounded by the flow table: every peer
/// counted has a flow.
#[derive(Debug)]
pub(crate) struct InboundQuota {
    flows: usize,
    flows_max: usize,
    by_peer: BTreeMap<IpAddr, usize>,
    peer_max: usize,
}

impl InboundQuota {
    /// The shares of a table of so many flows. Both are at least one flow.
    pub(crate) fn new(table: usize) -> Self {
        Self {
            flows: 0,
            flows_max: (table - table / GUEST_PART).max(1),
            by_peer: BTreeMap::new(),
            peer_max: (table / PEER_PART).max(1),
        }
    }

    /// Flows that began on the host's side.
    pub(crate) fn flows(&self) -> usize {
        self.flows
    }

    /// Whether as many flows began on the host's side as may have.
    pub(crate) fn is_spent(&self) -> bool {
        self.flows >= self.flows_max
    }

    /// Whether this peer has begun as many flows as one may.
    pub(crate) fn is_spent_by(&self, peer: IpAddr) -> bool {
        let spent = |&flows: &usize| flows >= self.peer_max;
        !peer.is_loopback() && self.by_peer.get(&peer_of(peer)).is_some_and(spent)
    }

    /// A flow of this peer's is in the table.
    pub(crate) fn opened(&mut self, peer: IpAddr) {
        self.flows += 1;
        *self.by_peer.entry(peer_of(peer)).or_default() += 1;
        debug_assert!(self.flows <= self.flows_max, "admitted beyond the share");
    }

    /// A flow of this peer's has left the table.
    pub(crate) fn closed(&mut self, peer: IpAddr) {
        let peer = peer_of(peer);
        let Some(flows) = self.by_peer.get_mut(&peer) else {
            debug_assert!(false, "a flow ends that was not counted");
            return;
        };
        *flows -= 1;
        if *flows == 0 {
            self.by_peer.remove(&peer);
        }
        self.flows -= 1;
        debug_assert!(self.flows >= self.by_peer.len(), "every peer that is counted has a flow");
    }
}

/// The peer that an address belongs to: itself, or for IPv6 its network.
pub(crate) fn peer_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
    }
}
