//! The one match over the kinds of flow.
//!
//! A flow is a TCP connection, a conversation in datagrams or echoes, the DNS questions of one guest port, or
//! a conversation that another carrier than the stack moves. The stack knows them as [`Flow`], whose methods
//! are those of [`FlowKind`]; only code about one kind (an arriving segment, a question) names it. The
//! dispatch is a match, so that everything is inlined and nothing is boxed.

use crate::carried::CarriedFlow;
use crate::connection::Connection;
use crate::context::{Cx, Platform, Shared};
use crate::datagram::DatagramFlow;
use crate::dns_service::flow::DnsFlow;
use crate::flow::end::EndCause;
use crate::flow::info::{FlowInfo, Initiator};
use crate::flow::table::Keyed;
use crate::flow::{EvictionClass, EvictionGroup, EvictionRank, FlowKey, Protocol};
use crate::flow_kind::{Buffers, FlowKind};
use crate::host::{Readiness, SocketId};
use crate::journal::Journal;
use crate::policy::{Checks, Held, Named};
use crate::time::{Duration, Instant};
use std::sync::Arc;

/// A flow of any kind.
#[allow(clippy::large_enum_variant, reason = "flows live in a slab; a box for each would be an allocation")]
pub(crate) enum Flow {
    Tcp(Connection),
    Datagram(DatagramFlow),
    Dns(DnsFlow),
    Carried(CarriedFlow),
}

/// A call of the same method of each kind.
macro_rules! dispatch {
    ($flow:expr, $kind:ident => $call:expr) => {
        match $flow {
            Flow::Tcp($kind) => $call,
            Flow::Datagram($kind) => $call,
            Flow::Dns($kind) => $call,
            Flow::Carried($kind) => $call,
        }
    };
}

impl Keyed for Flow {
    fn key(&self) -> &FlowKey {
        dispatch!(self, flow => Keyed::key(flow))
    }
}

impl Flow {
    /// The group of lists in which the table keeps it.
    pub(crate) fn eviction_group(&self) -> EvictionGroup {
        match self {
            flow if flow.initiator() == Initiator::Peer => EvictionGroup::Peer,
            Self::Datagram(_) | Self::Carried(_) if self.key().protocol == Protocol::Udp => {
                EvictionGroup::GuestUdp
            }
            _ => EvictionGroup::Guest,
        }
    }

    /// The reason of its end, as far as it is known.
    pub(crate) fn cause(&self) -> EndCause {
        dispatch!(self, flow => flow.cause)
    }

    /// Whether it has no saved form, because a gate has refused it or brodo itself serves it.
    pub(crate) fn ends_with_handover(&self) -> bool {
        match self {
            Self::Tcp(connection) => connection.ends_with_handover(),
            Self::Dns(_) => true,
            Self::Datagram(_) | Self::Carried(_) => false,
        }
    }

    /// Whether a hand-over leaves out its gate, which only looks on.
    pub(crate) fn is_observed(&self) -> bool {
        matches!(self, Self::Tcp(connection) if connection.is_observed())
    }

    /// Writes its record, if its kind has one ([`crate::journal`]).
    pub(crate) fn write_journal(&self, journal: &Journal) {
        match self {
            Self::Tcp(connection) => connection.write_journal(journal),
            Self::Datagram(flow) => flow.write_journal(journal),
            Self::Carried(carried) => carried.write_journal(journal),
            Self::Dns(_) => {}
        }
    }

    /// Notes the reason of its end, before it is removed.
    pub(crate) fn ends_by(&mut self, cause: EndCause) {
        dispatch!(self, flow => flow.cause = cause);
    }
}

impl FlowKind for Flow {
    fn initiator(&self) -> Initiator {
        dispatch!(self, flow => FlowKind::initiator(flow))
    }

    fn socket(&self) -> Option<SocketId> {
        dispatch!(self, flow => FlowKind::socket(flow))
    }

    fn info(&self, shared: &Shared, now: Instant) -> FlowInfo {
        dispatch!(self, flow => FlowKind::info(flow, shared, now))
    }

    fn allocated(&self) -> usize {
        dispatch!(self, flow => FlowKind::allocated(flow))
    }

    fn eviction_class(&self) -> EvictionClass {
        dispatch!(self, flow => FlowKind::eviction_class(flow))
    }

    fn eviction_rank(&self, idle: Duration) -> Option<EvictionRank> {
        dispatch!(self, flow => FlowKind::eviction_rank(flow, idle))
    }

    fn has_ended(&self) -> bool {
        dispatch!(self, flow => FlowKind::has_ended(flow))
    }

    fn refused_by(&self) -> Option<&Arc<str>> {
        dispatch!(self, flow => flow.refused_by())
    }

    fn named(&self) -> Option<&Named> {
        dispatch!(self, flow => flow.named())
    }

    fn checks_at_gate(&self) -> Option<Checks> {
        dispatch!(self, flow => flow.checks_at_gate())
    }

    fn moved(&self) -> [u64; 2] {
        dispatch!(self, flow => flow.moved())
    }

    fn limit(&mut self, window_max: u32) {
        dispatch!(self, flow => flow.limit(window_max));
    }

    fn unlimit(&mut self) {
        dispatch!(self, flow => flow.unlimit());
    }

    fn hold_back<P: Platform>(&mut self, cx: &mut Cx<'_, P>, held: Held) {
        dispatch!(self, flow => FlowKind::hold_back(flow, cx, held));
    }

    fn revoke<P: Platform>(&mut self, cx: &mut Cx<'_, P>, cause: EndCause) {
        dispatch!(self, flow => FlowKind::revoke(flow, cx, cause));
    }

    fn socket_event<P: Platform>(&mut self, cx: &mut Cx<'_, P>, ready: Readiness) {
        dispatch!(self, flow => FlowKind::socket_event(flow, cx, ready));
    }

    fn serve<P: Platform>(&mut self, cx: &mut Cx<'_, P>, buffers: &mut Buffers) {
        dispatch!(self, flow => FlowKind::serve(flow, cx, buffers));
    }

    fn expire<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        dispatch!(self, flow => FlowKind::expire(flow, cx));
    }

    fn guest_reset<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        dispatch!(self, flow => FlowKind::guest_reset(flow, cx));
    }

    fn network_changed<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        dispatch!(self, flow => FlowKind::network_changed(flow, cx));
    }

    fn reschedule(&mut self, shared: &mut Shared) {
        dispatch!(self, flow => FlowKind::reschedule(flow, shared));
    }

    fn dispose<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        dispatch!(self, flow => FlowKind::dispose(flow, cx));
    }
}
