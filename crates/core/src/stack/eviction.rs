//! Eviction from a full flow table: the choice of the flow that a new one replaces.
//!
//! *An outbound flow* replaces one that is over, else the inbound flow of the lowest eviction class, else
//! such an outbound one. An evicted inbound conversation in datagrams loses nothing: its peer's next datagram
//! opens it anew, and answers leave from the same published port. An evicted outbound one gets another source
//! port on the host, and later datagrams of its peer to the old port are lost.
//!
//! *An inbound flow* replaces only inbound flows, or one that is over; it is subject to the shares of
//! [`crate::flow::quota`] first. Beyond the share of its peer it may replace that peer's own flows.
//!
//! *UDP flows of the guest* hold an ephemeral port of the host each, of which there are some ten thousands
//! for all programs of the host. So they have a bound of their own, below that of the table: a flow beyond it
//! replaces the one of the lowest eviction class among them.

use super::{DropReason, Flow, Io, Platform, Stack};
use crate::flow::end::EndCause;
use crate::flow::info::Initiator;
use crate::flow::quota::peer_of;
use crate::flow::table::Keyed;
use crate::flow::{EvictionGroup, EvictionRank};
use crate::flow_kind::FlowKind;
use crate::time::Instant;
use std::net::IpAddr;

/// Flows examined in each list for one of a certain peer. A peer at its bound has an eighth of the table, so
/// the oldest flows include one of its own, or the others have been idle for longer.
const PEER_SEARCH: usize = 64;

impl Stack {
    /// Whether there is room for one more outbound flow, if need be by an eviction.
    pub(super) fn make_room<P: Platform>(&mut self, io: &mut Io<'_, P>, now: Instant) -> bool {
        self.flows.len() < self.shared.config.max_flows
            || self.evict(io, now, 1, |flow, rank| Some((rank.is_over(), flow.initiator(), rank)))
    }

    /// Makes room for one more UDP flow of the guest's within [`crate::config::Config::max_udp_flows`].
    pub(super) fn make_room_for_udp<P: Platform>(&mut self, io: &mut Io<'_, P>, now: Instant) {
        let of_the_guest = |flow: &Flow| flow.eviction_group() == EvictionGroup::GuestUdp;
        if self.guest_udp >= self.shared.config.max_udp_flows
            && self.evict(io, now, 1, |flow, rank| of_the_guest(flow).then_some(rank))
        {
            self.shared.counters.udp_flows_evicted += 1;
        }
    }

    /// Makes room for one more flow that `peer` begins.
    ///
    /// # Errors
    /// The bound that it would exceed.
    pub(super) fn make_room_inbound<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        peer: IpAddr,
        now: Instant,
    ) -> Result<(), DropReason> {
        let inbound = |flow: &Flow| flow.initiator() == Initiator::Peer;
        let its_own = |flow: &Flow| inbound(flow) && peer_of(flow.key().remote.ip()) == peer_of(peer);
        if self.inbound.is_spent_by(peer)
            && !self.evict(io, now, PEER_SEARCH, |flow, rank| its_own(flow).then_some(rank))
        {
            return Err(DropReason::FlowsPerPeer);
        }
        if self.inbound.is_spent() && !self.evict(io, now, 1, |flow, rank| inbound(flow).then_some(rank)) {
            return Err(DropReason::InboundFlows);
        }
        let may_go = |flow: &Flow, rank: EvictionRank| inbound(flow) || rank.is_over();
        if self.flows.len() >= self.shared.config.max_flows
            && !self.evict(io, now, 1, |flow, rank| may_go(flow, rank).then_some(rank))
        {
            return Err(DropReason::FlowTableFull);
        }
        Ok(())
    }

    /// Evicts the flow of the highest `order` among the `depth` of each list that were used longest ago.
    /// False if there is none.
    fn evict<P: Platform, R: Ord>(
        &mut self,
        io: &mut Io<'_, P>,
        now: Instant,
        depth: usize,
        order: impl Fn(&Flow, EvictionRank) -> Option<R>,
    ) -> bool {
        let victim = self.flows.victim(now, depth, |flow, idle| order(flow, flow.eviction_rank(idle)?));
        let Some(victim) = victim else { return false };
        if let Some(flow) = self.flows.get_mut(victim) {
            flow.ends_by(EndCause::Evicted);
        }
        self.remove(io, victim);
        self.shared.counters.flows_evicted += 1;
        true
    }
}
