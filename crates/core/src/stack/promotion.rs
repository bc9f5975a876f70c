//! Promotion at the stack's border: the driver's answers, and its own wishes ([`crate::promotion`]).
//!
//! A flow that is gone, or does not wait for an answer, ignores it; a driver that has made something for it
//! meanwhile finds it among the released ([`Stack::take_released`]).

use super::{Flow, FlowId, Io, Platform, Stack};
use crate::connection::Connection;
use crate::context::Cx;
use crate::host::SocketId;
use crate::memory::chunk::Pool;
use crate::promotion::TcpSeed;

pub use crate::promotion::{Bulk, PromotionOutcome, ReturnReason, Returned};

/// Free memory without which no flow is taken back for the sake of another one, bytes: what a kernel socket
/// (`tcp_rmem`, `tcp_wmem`) and two pipes hold needs memory here, and without it the flow would be reset.
const RETURN_ROOM: usize = 16 << 20;

impl Stack {
    /// The driver's answer to [`crate::host::Host::promote`], and then the news that the socket has received
    /// a segment of the guest's. False if the flow does not wait for it.
    pub fn promotion<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        flow: FlowId,
        outcome: PromotionOutcome,
    ) -> bool {
        let answered =
            self.with_connection(io, flow, |connection, cx| connection.promotion_answered(cx, outcome));
        answered == Some(true)
    }

    /// Takes a promoted flow back ([`crate::host::Host::recall`]). One that is about to be promoted is taken
    /// back once it is.
    pub fn recall<P: Platform>(&mut self, io: &mut Io<'_, P>, flow: FlowId, reason: ReturnReason) {
        self.with_connection(io, flow, |connection, cx| connection.recall(cx, reason));
    }

    /// Sets the carrier of bulk flows from now on. With [`Bulk::Tap`] all promoted flows are taken back for
    /// this reason; so does a driver before it hands the stack over.
    pub fn set_bulk<P: Platform>(&mut self, io: &mut Io<'_, P>, bulk: Bulk, reason: ReturnReason) {
        self.shared.config.bulk = bulk;
        if bulk == Bulk::Kernel {
            return;
        }
        self.recall_all(io, reason, |connection| connection.is_away() || connection.is_quieting());
    }

    /// Takes all flows back that have come under limits of a policy and are still with the kernel, because an
    /// earlier attempt was refused.
    pub fn recall_limited<P: Platform>(&mut self, io: &mut Io<'_, P>) {
        self.recall_all(io, ReturnReason::Settings, Connection::is_away_under_limits);
    }

    fn recall_all<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        reason: ReturnReason,
        is_concerned: impl Fn(&Connection) -> bool,
    ) {
        let is_concerned = |(_, flow): &(FlowId, &Flow)| match flow {
            Flow::Tcp(connection) => is_concerned(connection),
            _ => false,
        };
        let ids: Vec<FlowId> = self.flows.iter().filter(is_concerned).map(|(id, _)| id).collect();
        for id in ids {
            self.recall(io, id, reason);
        }
    }

    /// Takes the flow back that has moved nothing for longest, and for long enough, because another one is to
    /// have its place. All flows are looked at, so it is done seldom.
    pub(super) fn free_place<P: Platform>(&mut self, io: &mut Io<'_, P>) {
        let bounds = self.shared.config.bulk_bounds;
        if io.now - self.shared.tcp.place_sought_at < bounds.period {
            return;
        }
        (self.shared.tcp.place_sought_at, self.shared.tcp.place_wanted) = (io.now, false);
        let idle = |(id, flow): (FlowId, &Flow)| match flow {
            Flow::Tcp(connection) => connection.idle_since().map(|since| (since, id)),
            _ => None,
        };
        let longest = self.flows.iter().filter_map(idle).min_by_key(|(since, _)| *since);
        let has_memory = self.shared.memory.pool.budget().available() >= RETURN_ROOM;
        if let Some((since, id)) = longest
            && io.now - since >= bounds.idle_min
            && has_memory
        {
            self.recall(io, id, ReturnReason::Idle);
        }
    }

    /// Whether memory suffices for a flow that comes back with so many bytes for the guest and for the host's
    /// socket. With less it would be reset, so that a driver leaves it with the kernel
    /// ([`Stack::recall_refused`]) and asks again. Another worker may take the memory meanwhile.
    pub fn has_room_for_return(&self, to_guest: usize, to_host: usize) -> bool {
        let wanted = Pool::memory_for(to_guest).saturating_add(Pool::memory_for(to_host));
        wanted <= self.shared.memory.pool.budget().available()
    }

    /// A recalled flow is back: its kernel socket is closed without a word to the guest, and segments are no
    /// longer steered to it. Progress must be complete before: every byte reported from the guest was written
    /// to the host's socket, and every byte taken from that was reported. False if the flow has ended
    /// meanwhile: the guest knows nothing of it.
    pub fn returned<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        flow: FlowId,
        returned: &Returned<'_>,
    ) -> bool {
        self.with_connection(io, flow, |connection, cx| connection.returned(cx, returned)).is_some()
    }

    /// A recalled flow cannot come back, because both streams have ended meanwhile, not every byte can be
    /// read, or memory does not suffice: the kernel keeps it.
    pub fn recall_refused<P: Platform>(&mut self, io: &mut Io<'_, P>, flow: FlowId) {
        self.with_connection(io, flow, Connection::recall_refused);
    }

    /// A flow that a kernel socket has: its socket on the host's side, and the seed of the other.
    pub fn promoted_flow(&self, flow: FlowId) -> Option<(SocketId, TcpSeed)> {
        match self.flows.get(flow)? {
            Flow::Tcp(connection) => connection.promoted_with(),
            _ => None,
        }
    }

    /// Flows that a kernel socket has, or is to have.
    pub fn promoted(&self) -> usize {
        self.shared.tcp.away
    }

    /// Counts a flow that is frozen, and cannot be thawed for now.
    pub fn count_thaw_put_off(&mut self) {
        self.shared.counters.promotions_thaws_put_off += 1;
    }

    /// Counts a queue of their own for the guest's datagrams.
    pub fn count_diversion(&mut self) {
        self.shared.counters.diversions += 1;
    }

    /// Lets `access` change a connection, by an event that is no use of it.
    fn with_connection<P: Platform, R>(
        &mut self,
        io: &mut Io<'_, P>,
        id: FlowId,
        access: impl FnOnce(&mut Connection, &mut Cx<'_, P>) -> R,
    ) -> Option<R> {
        self.recorder.now = io.now;
        let result = self.notify_flow(io, id, |flow, cx, _| match flow {
            Flow::Tcp(connection) => Some(access(connection, cx)),
            _ => None,
        });
        result.flatten()
    }
}
