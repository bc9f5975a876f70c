//! A connection in a snapshot: both halves, their order of FINs, timers and counts.

use super::Connection;
use super::closer::Closer;
use super::open::mss_of_mtu;
use super::promotion::Promotion;
use super::receiver::{Receiver, ReceiverState};
use super::reset::ResetNumbers;
use super::sender::{Sender, SenderState};
use super::timeout::KeepAlive;
use crate::context::Shared;
use crate::flow::end::EndCause;
use crate::flow::{FlowId, FlowKey, Protocol};
use crate::host::SocketId;
use crate::memory::budget::Need;
use crate::memory::chunk::Pool;
use crate::policy::Named;
use crate::schedule::Turn;
use crate::snapshot::saved::{Invalid, Saved, valid};
use crate::snapshot::v1::{TcpV1, UnconfirmedV1};
use crate::time::Instant;
use crate::upstream::Upstream;

/// Identity of a flow to be restored: what its record does not repeat.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    pub(crate) id: FlowId,
    pub(crate) key: FlowKey,
    pub(crate) socket: Option<SocketId>,
}

impl Connection {
    /// Saved form, with slices of the pool's memory.
    pub(crate) fn save<'p>(&self, pool: &'p Pool) -> TcpV1<'p> {
        let Self { key: _, id: _, socket: _, rx, tx, closer, keep_alive, opened_at, challenged_at, .. } =
            self;
        let Self { broken, turn, upstream, inbound, ended, cause, connect_us, .. } = self;
        // A connection that is being made quiet is idle when it is restored; one that is away is not saved.
        // A gate has its own saved form, in one record with this. After a hand-over all time-outs of a rest
        // count.
        let Self {
            segments_taken,
            segments_sent,
            promotion: _,
            is_waiting_for_gate: _,
            timeouts_before: _,
            ..
        } = self;
        debug_assert!(!ended, "a connection that is over is removed at once");
        TcpV1 {
            rx: rx.save(pool),
            tx: tx.save(pool),
            closer: closer.save(),
            keep_alive: keep_alive.save(),
            opened_at: opened_at.save(),
            challenged_at: challenged_at.save(),
            broken: *broken,
            turn: turn.save(),
            upstream: upstream.save(),
            inbound: *inbound,
            cause: cause.save(),
            connect_us: *connect_us,
            segments_taken: *segments_taken,
            segments_sent: *segments_sent,
        }
    }

    /// SND.NXT and RCV.NXT: the numbers of a reset.
    pub(crate) fn reset_numbers(&self) -> ResetNumbers {
        ResetNumbers { seq: self.tx.reset_at(), ack: self.rx.nxt() }
    }

    /// Sets the server that the guest had named at a gate.
    pub(crate) fn restore_named(&mut self, named: Named) {
        self.rx.restore_named(named);
    }

    /// Saved form of the wait for the guest, if it has to confirm something first.
    pub(crate) fn save_doubt(&self) -> Option<UnconfirmedV1> {
        self.tx.save_doubt()
    }

    /// Connection of a saved form.
    ///
    /// # Errors
    /// [`Invalid`] if it contradicts itself, or memory does not suffice: then it holds none.
    pub(crate) fn restore(
        shared: &mut Shared,
        now: Instant,
        identity: &Identity,
        saved: &TcpV1<'_>,
        doubt: Option<UnconfirmedV1>,
    ) -> Result<Self, Invalid> {
        let &Identity { id, key, socket } = identity;
        valid(key.protocol == Protocol::Tcp)?;
        let mss_max = mss_of_mtu(&key, shared.config.mtu);
        let mut closer = Closer::restore(saved.closer)?;
        // No later than a TIME-WAIT that begins now.
        closer.bound_time_wait(now + shared.config.timeouts.time_wait);
        let mut connection = Self {
            key,
            id,
            socket,
            rx: Receiver::restore(&saved.rx, mss_max)?,
            tx: Sender::restore(&saved.tx, mss_max)?,
            closer,
            keep_alive: KeepAlive::restore(saved.keep_alive)?,
            opened_at: Instant::restore(saved.opened_at)?,
            challenged_at: Saved::restore(saved.challenged_at)?,
            broken: saved.broken,
            timeouts_before: 0,
            turn: Turn::restore(saved.turn)?,
            upstream: Upstream::restore(saved.upstream)?,
            inbound: saved.inbound,
            is_waiting_for_gate: false,
            is_limited: false,
            dns: None,
            ended: false,
            cause: EndCause::restore(saved.cause)?,
            connect_us: saved.connect_us,
            segments_taken: saved.segments_taken,
            segments_sent: saved.segments_sent,
            promotion: Promotion::default(),
        };
        if let Some(doubt) = doubt {
            connection.tx.restore_doubt(doubt)?;
        }
        let held = saved.rx.queue.len() + saved.rx.gaps.len();
        let is_lost = connection.tx.is_lost() && socket.is_none() && held == 0;
        valid(is_lost || connection.is_state_consistent(held == 0))?;
        let pool = &mut shared.memory.pool;
        let payload = connection.tx.restore_payload(pool, id, &saved.tx);
        if payload.and_then(|()| connection.rx.restore_payload(pool, id, &saved.rx)).is_err() {
            connection.release(shared);
            return Err(Invalid);
        }
        Ok(connection)
    }

    /// Whether both halves, the order of their FINs and the socket agree; `unheld` if nothing of the
    /// guest's is held.
    pub(super) fn is_state_consistent(&self, unheld: bool) -> bool {
        let (rx, tx) = (self.rx.state(), self.tx.state());
        let fin_sent = matches!(tx, SenderState::FinSent | SenderState::Finished);
        let both_over = rx == ReceiverState::Finished && tx == SenderState::Finished;
        let needs_socket = rx != ReceiverState::Finished || !self.tx.has_read_all();
        let opening = matches!(tx, SenderState::Connecting | SenderState::SynSent | SenderState::SynAckSent);
        // Nothing is taken from a guest before it has acknowledged our SYN.
        let nothing_taken = rx == ReceiverState::Open && unheld && self.rx.bytes() == 0;
        (!opening || nothing_taken)
            && (fin_sent || !self.closer.is_passive())
            && (both_over || self.closer.time_wait_until().is_none())
            && !(both_over && self.closer.is_passive())
            && (self.socket.is_some() || !needs_socket)
    }

    /// Invariants between two events.
    pub(crate) fn check(&self) {
        self.tx.check();
    }

    /// Whether the host socket is not connected yet.
    pub(crate) fn is_connecting(&self) -> bool {
        self.tx.is_connecting()
    }

    /// Whether an acknowledgement is due at the end of the turn.
    pub(crate) fn owes_ack(&self) -> bool {
        self.rx.ack().is_listed()
    }

    /// Takes the socket that the driver has for it.
    pub(crate) fn adopt_socket(&mut self, socket: SocketId) {
        self.socket = Some(socket);
    }

    /// Gives back the memory of a connection that is not restored after all.
    pub(crate) fn release(&mut self, shared: &mut Shared) {
        self.promotion.forget(shared);
        self.rx.clear(shared);
        self.tx.clear(shared);
    }

    /// Listed among the flows parked for memory.
    pub(crate) fn restore_parked(&mut self, need: Need) {
        match need {
            Need::Read => self.tx.restore_listed(),
            Need::Window => self.rx.restore_listed(),
        }
    }

    /// The flow's state in the schedule.
    pub(crate) fn turn_mut(&mut self) -> &mut Turn {
        &mut self.turn
    }
}
