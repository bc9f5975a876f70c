//! The kinds of flow behind one trait, dispatched in one place.
//!
//! A flow is a TCP connection, a conversation in datagrams or echoes, or the DNS questions of one guest
//! port. The stack knows them as [`Flow`], whose methods are those of [`FlowKind`]; only code about one
//! kind (an arriving segment, a question) names it. The dispatch is a match, so that everything is
//! inlined and nothing is boxed.

use crate::context::{Cx, Platform, Shared};
use crate::datagram::DatagramFlow;
use crate::datagram::inbox::Inbox;
use crate::dns::flow::DnsFlow;
use crate::flow::end::EndCause;
use crate::flow::info::{FlowInfo, Initiator};
use crate::flow::table::Keyed;
use crate::flow::{EvictionClass, EvictionGroup, EvictionRank, FlowKey, Protocol};
use crate::host::{Readiness, SocketId};
use crate::tcp::Connection;
use crate::time::{Duration, Instant};

/// Buffers of a worker that flows use while they are served.
pub(crate) struct Buffers {
    /// Datagrams on their way to the guest.
    pub(crate) inbox: Inbox,
    /// Room for any packet.
    pub(crate) scratch: Box<[u8]>,
}

/// Methods of every kind of flow.
pub(crate) trait FlowKind: Keyed {
    /// The side that began it.
    fn initiator(&self) -> Initiator;

    /// Its socket on the host, if it has exactly one.
    fn socket(&self) -> Option<SocketId>;

    /// Its record at `now`, without its idle time.
    fn info(&self, shared: &Shared, now: Instant) -> FlowInfo;

    /// Bytes that it takes beside itself and its payload.
    fn allocated(&self) -> usize;

    /// The list of the table in which it stands.
    fn eviction_class(&self) -> EvictionClass;

    /// Its rank among candidates for eviction after `idle`; `None` if it must not be evicted.
    fn eviction_rank(&self, idle: Duration) -> Option<EvictionRank>;

    /// Whether it is over and is to be removed.
    fn has_ended(&self) -> bool;

    /// The reason of its end, so far as it is known.
    fn cause(&self) -> EndCause;

    /// Notes the reason of its end, before it is removed.
    fn ends_by(&mut self, cause: EndCause);

    /// Notes the readiness of its host socket.
    fn socket_event<P: Platform>(&mut self, cx: &mut Cx<'_, P>, ready: Readiness);

    /// Has its turn, within the bounds of [`crate::schedule`].
    fn serve<P: Platform>(&mut self, cx: &mut Cx<'_, P>, buffers: &mut Buffers);

    /// Acts on its timer, which may have fired early.
    fn expire<P: Platform>(&mut self, cx: &mut Cx<'_, P>);

    /// Acts on a change of the host's network.
    fn network_changed<P: Platform>(&mut self, cx: &mut Cx<'_, P>);

    /// Brings its timer and its account of memory up to date, after every access.
    fn reschedule(&mut self, shared: &mut Shared);

    /// Gives back sockets and memory, before removal, and counts its end.
    fn dispose<P: Platform>(&mut self, cx: &mut Cx<'_, P>);
}

/// A flow of any kind.
#[allow(clippy::large_enum_variant, reason = "flows live in a slab; a box for each would be an allocation")]
pub(crate) enum Flow {
    Tcp(Connection),
    Datagram(DatagramFlow),
    Dns(DnsFlow),
}

/// The one match over the kinds of flow.
macro_rules! dispatch {
    ($flow:expr, $kind:ident => $call:expr) => {
        match $flow {
            Flow::Tcp($kind) => $call,
            Flow::Datagram($kind) => $call,
            Flow::Dns($kind) => $call,
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
            Self::Datagram(flow) if flow.key().protocol == Protocol::Udp => EvictionGroup::GuestUdp,
            _ => EvictionGroup::Guest,
        }
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

    fn cause(&self) -> EndCause {
        dispatch!(self, flow => FlowKind::cause(flow))
    }

    fn ends_by(&mut self, cause: EndCause) {
        dispatch!(self, flow => FlowKind::ends_by(flow, cause));
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

impl Keyed for Connection {
    fn key(&self) -> &FlowKey {
        &self.key
    }
}

impl FlowKind for Connection {
    fn initiator(&self) -> Initiator {
        self.initiator()
    }

    fn socket(&self) -> Option<SocketId> {
        self.socket()
    }

    fn info(&self, shared: &Shared, now: Instant) -> FlowInfo {
        self.flow_info(shared, now)
    }

    fn allocated(&self) -> usize {
        self.allocated()
    }

    fn eviction_class(&self) -> EvictionClass {
        self.eviction_class()
    }

    fn eviction_rank(&self, idle: Duration) -> Option<EvictionRank> {
        self.eviction_rank(idle)
    }

    fn has_ended(&self) -> bool {
        self.has_ended()
    }

    fn cause(&self) -> EndCause {
        self.cause
    }

    fn ends_by(&mut self, cause: EndCause) {
        self.cause = cause;
    }

    fn socket_event<P: Platform>(&mut self, cx: &mut Cx<'_, P>, ready: Readiness) {
        self.socket_event(cx, ready);
    }

    fn serve<P: Platform>(&mut self, cx: &mut Cx<'_, P>, _: &mut Buffers) {
        self.serve(cx);
    }

    fn expire<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.expire(cx);
    }

    fn network_changed<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.network_changed(cx);
    }

    fn reschedule(&mut self, shared: &mut Shared) {
        self.reserve_window(shared);
        self.arm(shared);
    }

    fn dispose<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.dispose(cx);
        cx.shared.counters.tcp_closed += 1;
    }
}

impl Keyed for DatagramFlow {
    fn key(&self) -> &FlowKey {
        self.key()
    }
}

impl FlowKind for DatagramFlow {
    fn initiator(&self) -> Initiator {
        self.initiator()
    }

    fn socket(&self) -> Option<SocketId> {
        self.socket()
    }

    fn info(&self, _: &Shared, now: Instant) -> FlowInfo {
        self.info(now)
    }

    fn allocated(&self) -> usize {
        0
    }

    fn eviction_class(&self) -> EvictionClass {
        self.eviction_class()
    }

    fn eviction_rank(&self, idle: Duration) -> Option<EvictionRank> {
        Some(self.eviction_rank(idle))
    }

    fn has_ended(&self) -> bool {
        self.has_ended()
    }

    fn cause(&self) -> EndCause {
        self.cause
    }

    fn ends_by(&mut self, cause: EndCause) {
        self.cause = cause;
    }

    fn socket_event<P: Platform>(&mut self, cx: &mut Cx<'_, P>, ready: Readiness) {
        self.socket_event(cx, ready);
    }

    fn serve<P: Platform>(&mut self, cx: &mut Cx<'_, P>, buffers: &mut Buffers) {
        self.serve(cx, &mut buffers.inbox);
    }

    fn expire<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.expire(cx.shared, cx.now);
    }

    fn network_changed<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.network_changed(cx.host);
    }

    fn reschedule(&mut self, shared: &mut Shared) {
        self.arm(shared);
    }

    fn dispose<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.dispose(cx);
        cx.shared.counters.datagram_closed += 1;
    }
}

impl Keyed for DnsFlow {
    fn key(&self) -> &FlowKey {
        self.key()
    }
}

impl FlowKind for DnsFlow {
    fn initiator(&self) -> Initiator {
        Initiator::Guest
    }

    fn socket(&self) -> Option<SocketId> {
        None
    }

    fn info(&self, _: &Shared, now: Instant) -> FlowInfo {
        self.info(now)
    }

    fn allocated(&self) -> usize {
        self.allocated()
    }

    fn eviction_class(&self) -> EvictionClass {
        EvictionClass::Unanswered
    }

    fn eviction_rank(&self, idle: Duration) -> Option<EvictionRank> {
        Some(Self::eviction_rank(idle))
    }

    fn has_ended(&self) -> bool {
        self.has_ended()
    }

    fn cause(&self) -> EndCause {
        self.cause
    }

    fn ends_by(&mut self, cause: EndCause) {
        self.cause = cause;
    }

    fn socket_event<P: Platform>(&mut self, cx: &mut Cx<'_, P>, ready: Readiness) {
        self.socket_event(cx.shared, ready);
    }

    fn serve<P: Platform>(&mut self, cx: &mut Cx<'_, P>, buffers: &mut Buffers) {
        self.serve(cx, &mut buffers.scratch);
    }

    fn expire<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.expire(cx);
    }

    /// Questions follow the set of resolvers ([`crate::dns::state::Dns::epoch`]), not an address of the
    /// host's.
    fn network_changed<P: Platform>(&mut self, _: &mut Cx<'_, P>) {}

    fn reschedule(&mut self, shared: &mut Shared) {
        self.arm(shared);
    }

    fn dispose<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.dispose(cx);
    }
}
