//! Recovery of a stack from the journal of one that has crashed ([`crate::journal`]).
//!
//! As with a snapshot a new stack takes over one flow after another; what stands in no record begins as in a
//! new stack: keys, caches, counters, orders. A flow whose streams cannot go on without a hole is lost: its
//! connection stays until the guest is known to have been reset, the driver resets the descriptor.

use super::super::{EvictionGroup, Protocol};
use super::restore::{Rebuild, Restored, Settings};
use super::{Adopt, Flow, FlowId, FlowKey, Keys, Lost, SocketKind, Stack};
use crate::carried::{CarriedFlow, Resumed};
use crate::connection::promotion::recovered::KeptFlow;
use crate::connection::{Connection, recovered};
use crate::datagram::DatagramFlow;
use crate::flow::info::Initiator;
use crate::host::SocketId;
use crate::journal::carried::{CarriedRecord, CarriedState, PeerRecord};
use crate::journal::promoted::{CarriedOn, PromotedRecord};
use crate::journal::{DatagramState, Progress, Record, RecordKind, Remains, TcpState};
use crate::snapshot::saved::{Invalid, valid};
use crate::time::Instant;

/// The driver's sockets, as a recovered stack claims them by the numbers that they had.
pub trait Recover: Adopt {
    /// Progress of the stream with this number, which the driver had `accepted` or else connected; `None` if
    /// there is none, or its kernel has given it up: then the flow is lost. The process before has `read` at
    /// least so many bytes from it, modulo 2^32: if the peer has sent no more, none waits to be read.
    fn progress(&mut self, index: u32, accepted: bool, read: u32) -> Option<Progress>;

    /// Takes the stream of a connection. One that is `quiet` waits for its peers alone, and room for more
    /// bytes need not be reported: ten thousand such reports would hold up the others.
    fn stream(&mut self, flow: FlowId, index: u32, quiet: bool) -> Option<SocketId>;

    /// Goes on with what carries a flow; `None` if a descriptor is missing or bytes are, then the flow is
    /// lost.
    fn carried(&mut self, flow: FlowId, record: &CarriedRecord) -> Option<Resumed>;

    /// Takes the kernel socket and the pipes of a promoted flow with this key, begun by `initiator`; `None`
    /// if one of them is missing, then the flow is lost. A flow that the stack does not go on with after all
    /// is unknown to [`Stack::promoted_flow`].
    fn promoted(
        &mut self,
        flow: FlowId,
        key: &FlowKey,
        initiator: Initiator,
        record: &PromotedRecord,
    ) -> Option<CarriedOn>;

    /// Socket of a flow by a published port; `None` if that is published no more, then the flow is lost.
    fn published(&mut self, flow: FlowId, record: &PeerRecord) -> Option<SocketId>;
}

impl Stack {
    /// A stack that goes on with the flows in `remains`, as far as their streams are whole; `now` is a time
    /// of the same clock, `adopt` has the sockets. All else is as in a new stack with these `keys`.
    pub fn recover(
        settings: Settings,
        keys: Keys,
        now: Instant,
        remains: &Remains,
        adopt: &mut impl Recover,
    ) -> Restored {
        let Settings { config, caps, budget, worker, host_addresses, payload, room } = settings;
        let mut stack = Self::sharing(config, keys, caps, budget, worker);
        stack.set_host_addresses(host_addresses);
        if let Some(payload) = payload {
            stack.shared.memory.pool.inherit(payload);
        }
        stack.shared.tx.guest_mac = remains.guest_mac.unwrap_or(stack.shared.tx.guest_mac);
        for seen in &remains.guest_addresses {
            stack.set_seen(*seen);
        }
        let mut rebuild = Rebuild::new(stack, now, adopt);
        rebuild.use_room(room);
        rebuild.make_room(remains.records.len());
        for record in &remains.records {
            rebuild.recover_flow(record);
        }
        let mut restored = rebuild.finish();
        restored.stack.shared.memory.pool.drop_inherited();
        restored
    }
}

impl<A: Recover> Rebuild<'_, A> {
    /// Takes a flow, or notes it as lost.
    fn recover_flow(&mut self, record: &Record) {
        if self.recover_one(record).is_ok() || self.lost.len() >= self.slots_max() {
            return;
        }
        self.stack.shared.counters.promotions_broken +=
            u64::from(matches!(record.kind, RecordKind::Promoted(..)));
        let reset = match &record.kind {
            RecordKind::Tcp(state) | RecordKind::Promoted(state, _)
                if self.place_lost(record, state).is_ok() =>
            {
                None
            }
            RecordKind::Tcp(state) | RecordKind::Promoted(state, _) => Some(recovered::reset_numbers(state)),
            RecordKind::Datagrams(_) | RecordKind::Published(..) | RecordKind::Carried(..) => None,
        };
        self.lost.push(Lost { flow: record.id, key: record.key, socket: record.socket(), reset });
    }

    /// Puts a connection that cannot go on into its place.
    fn place_lost(&mut self, record: &Record, state: &TcpState) -> Result<(), Invalid> {
        self.check_record(record, true)?;
        self.check_share(&record.key, group_of(state))?;
        let (now, shared) = (self.now, &mut self.stack.shared);
        let lost = Connection::recover_lost(shared, now, record, state)?;
        self.place(record.id, true, Flow::Tcp(lost));
        Ok(())
    }

    /// Checks what records of all kinds have: the place in the table, and the time.
    fn check_record(&self, record: &Record, indexed: bool) -> Result<(), Invalid> {
        self.check_place(record.id, &record.key, indexed)?;
        valid(record.opened_at <= self.now)
    }

    fn recover_one(&mut self, record: &Record) -> Result<(), Invalid> {
        let indexed = !matches!(record.kind, RecordKind::Carried(..));
        self.check_record(record, indexed)?;
        let flow = match &record.kind {
            RecordKind::Tcp(state) => self.recover_tcp(record, state)?,
            RecordKind::Promoted(state, promoted) => self.recover_promoted(record, state, promoted)?,
            RecordKind::Datagrams(state) => self.recover_datagrams(record, state)?,
            RecordKind::Published(state, peer) => self.recover_published(record, state, peer)?,
            RecordKind::Carried(state, carried) => self.recover_carried(record, state, carried)?,
        };
        self.place(record.id, indexed, flow);
        Ok(())
    }

    fn recover_tcp(&mut self, record: &Record, state: &TcpState) -> Result<Flow, Invalid> {
        self.check_share(&record.key, group_of(state))?;
        let mut alive =
            |number| Some((number, self.adopt.progress(number, state.inbound, state.bytes_read())?));
        let alive = state.socket.and_then(&mut alive);
        let (socket, progress) = match alive {
            Some((number, progress)) => (Some(number), progress),
            None => (None, Connection::progress_without_socket(state).ok_or(Invalid)?),
        };
        let (now, shared) = (self.now, &mut self.stack.shared);
        let mut connection = Connection::recover(shared, now, record, socket.map(SocketId), state, progress)?;
        if let Some(number) = socket {
            let quiet = connection.is_quiet();
            let claimed = self.claimed.insert(number);
            let taken = claimed.then(|| self.adopt.stream(record.id, number, quiet)).flatten();
            let Some(socket) = taken else {
                connection.release(&mut self.stack.shared);
                return Err(Invalid);
            };
            connection.adopt_socket(socket);
        }
        Ok(Flow::Tcp(connection))
    }

    fn recover_promoted(
        &mut self,
        record: &Record,
        state: &TcpState,
        promoted: &PromotedRecord,
    ) -> Result<Flow, Invalid> {
        self.check_share(&record.key, group_of(state))?;
        let number = state.socket.ok_or(Invalid)?;
        let progress = self.adopt.progress(number, state.inbound, state.bytes_read()).ok_or(Invalid)?;
        let initiator = if state.inbound { Initiator::Peer } else { Initiator::Guest };
        let carried = self.adopt.promoted(record.id, &record.key, initiator, promoted).ok_or(Invalid)?;
        let (now, shared) = (self.now, &mut self.stack.shared);
        let kept = KeptFlow { state, unsettled: promoted.unsettled, progress, carried };
        let mut connection = Connection::recover_away(shared, now, record, &kept)?;
        let Ok(socket) = self.socket(record.id, number, SocketKind::Stream) else {
            connection.release(&mut self.stack.shared);
            return Err(Invalid);
        };
        connection.adopt_socket(socket);
        Ok(Flow::Tcp(connection))
    }

    fn recover_datagrams(&mut self, record: &Record, state: &DatagramState) -> Result<Flow, Invalid> {
        let &Record { id, key, opened_at, .. } = record;
        let (kind, group) = match key.protocol {
            Protocol::Echo => (SocketKind::Echo, EvictionGroup::Guest),
            _ => (SocketKind::of_udp(&self.stack.shared.config, &key), EvictionGroup::GuestUdp),
        };
        self.check_share(&key, group)?;
        let socket = self.socket(id, state.socket.ok_or(Invalid)?, kind)?;
        Ok(Flow::Datagram(DatagramFlow::recover(id, key, socket, opened_at, state, self.now)))
    }

    fn recover_published(
        &mut self,
        record: &Record,
        state: &DatagramState,
        peer: &PeerRecord,
    ) -> Result<Flow, Invalid> {
        let &Record { id, key, opened_at, .. } = record;
        self.check_share(&key, EvictionGroup::Peer)?;
        let socket = self.adopt.published(id, peer).ok_or(Invalid)?;
        Ok(Flow::Datagram(DatagramFlow::recover(id, key, socket, opened_at, state, self.now)))
    }

    fn recover_carried(
        &mut self,
        record: &Record,
        state: &CarriedState,
        carried: &CarriedRecord,
    ) -> Result<Flow, Invalid> {
        let &Record { id, key, opened_at, .. } = record;
        let group = match (state.initiator, key.protocol) {
            (Initiator::Peer, _) => EvictionGroup::Peer,
            (Initiator::Guest, Protocol::Udp) => EvictionGroup::GuestUdp,
            (Initiator::Guest, _) => EvictionGroup::Guest,
        };
        self.check_share(&key, group)?;
        let resumed = self.adopt.carried(id, carried).ok_or(Invalid)?;
        Ok(Flow::Carried(CarriedFlow::recover(id, key, opened_at, state, &resumed, self.now)))
    }
}

/// Share of the table that a connection counts in.
fn group_of(state: &TcpState) -> EvictionGroup {
    if state.inbound { EvictionGroup::Peer } else { EvictionGroup::Guest }
}
