//! A connection in the journal, and one recovered from its record and the kernel's counters.
//!
//! The rules by which a connection goes on or is reset are those of [`crate::journal`]. Payload that was on
//! its way is taken from the chunks of the process before; limits, round trips and the scoreboard begin anew,
//! as with a connection that has been silent.

use super::closer::Closer;
use super::open::mss_of_mtu;
use super::receiver::ReceiverState;
use super::reset::ResetNumbers;
use super::sender::{PeerOptions, SenderState};
use super::{Connection, reset};
use crate::context::{Cx, Platform, Shared};
use crate::flow::end::EndCause;
use crate::flow::state::State;
use crate::host::{Close, SocketId};
use crate::journal::{Journal, Progress, Record, TcpState};
use crate::snapshot::saved::{Invalid, Saved, valid};
use crate::snapshot::v1::CloserV1;
use crate::time::Instant;
use crate::wire::tcp::{Seq, TcpFlags, TcpHeader};

impl Connection {
    /// Writes its record, or ends it: before the handshake is over, and once nothing can be lost any more, a
    /// connection has none. One behind a gate is to be reset, because it would go on without the gate.
    pub(crate) fn write_journal(&self, journal: &Journal) {
        if !journal.is_on() {
            return;
        }
        let away = self.is_away();
        let has_record = !self.ended
            && !matches!(self.tx.state(), SenderState::Connecting | SenderState::SynSent)
            && (away || !matches!(self.state(), State::TimeWait | State::Closed));
        if !has_record {
            return journal.end(self.id);
        }
        // The sequence numbers stand still while the counts of bytes go on.
        let [from_guest, to_guest] = self.moved_away();
        let state = TcpState {
            tx: self.tx.state().save(),
            rx: self.rx.state().save(),
            advertised: self.rx.last_advertised(),
            una: self.tx.confirmed(),
            wnd: self.tx.wnd(),
            socket: self.socket.map(|socket| socket.0),
            mss: self.tx.mss(),
            peer_scale: self.tx.peer_scale(),
            scale: self.rx.scale(),
            sack: self.tx.peer_permits_sack(),
            inbound: self.inbound,
            broken: self.broken || self.is_gated() || self.tx.is_lost(),
            passive: self.closer.is_passive(),
            tx_begin: self.tx.begin() + to_guest,
            rx_begin: self.rx.begin_of_stream() + from_guest,
            segments: (self.segments_taken, self.segments_sent),
            retransmissions: self.tx.retransmissions(),
            connect_us: self.connect_us,
            read_all: self.tx.has_read_all(),
            away,
            tx_end: self.tx.end_of_stream(),
            rx_nxt: self.rx.nxt(),
        };
        journal.tcp(self.id, &self.key, self.opened_at, &state);
    }

    /// Connection of a record whose streams cannot go on: lost, without a socket ([`Connection::lose`]).
    ///
    /// # Errors
    /// [`Invalid`] if the guest cannot have taken it for open: its next segment meets a reset.
    pub(crate) fn recover_lost(
        shared: &mut Shared,
        now: Instant,
        &Record { id, key, opened_at, .. }: &Record,
        state: &TcpState,
    ) -> Result<Self, Invalid> {
        let tx = SenderState::restore(state.tx)?;
        valid(!matches!(tx, SenderState::Connecting | SenderState::SynSent))?;
        let peer = PeerOptions { mss: mss_of_mtu(&key, shared.config.mtu), scale: None, sack: false };
        let mut connection = Self::new(shared, now, id, key, state.advertised.ack - 1, state.una - 1, peer);
        connection.opened_at = opened_at;
        connection.count_from(state);
        connection.inbound = state.inbound;
        connection.cause = EndCause::NoResources;
        connection.tx.lose(shared, now, state.una);
        Ok(connection)
    }

    /// Goes on counting where the record was written.
    fn count_from(&mut self, state: &TcpState) {
        (self.segments_taken, self.segments_sent) = state.segments;
        self.tx.add_retransmissions(state.retransmissions);
        self.connect_us = state.connect_us;
    }

    /// Leaves nothing of the connection but its key, until the guest is known to have taken a reset. It has
    /// acknowledged all before `una`.
    pub(super) fn lose<P: Platform>(&mut self, cx: &mut Cx<'_, P>, una: Seq) {
        self.close_socket(cx, Close::Reset);
        (self.broken, self.is_waiting_for_gate) = (false, false);
        self.rx.clear(cx.shared);
        self.tx.lose(cx.shared, cx.now, una);
    }

    /// Segment for a connection that is lost: the guest's own number makes a reset that it takes. It is
    /// over once the guest itself has none any more; else a segment that was under way may have had an older
    /// number. A guest that only waits has no other segment than its answer to a probe, so a reset without
    /// credit is owed.
    pub(super) fn segment_for_lost<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        segment: &TcpHeader,
        payload_len: usize,
    ) {
        let is_answered = reset::answer(cx, &self.key, segment, payload_len);
        if !is_answered && segment.flags.contains(TcpFlags::ACK) {
            self.tx.owe_reset(segment.ack);
            self.list_ready(cx.shared);
        }
        self.ended |= segment.flags.contains(TcpFlags::RST);
    }

    /// Progress of a connection of whose streams only the guest's end is missing, and whose host socket was
    /// given up therefore; `None` if it needs one.
    pub(crate) fn progress_without_socket(state: &TcpState) -> Option<Progress> {
        let is_over = state.read_all && ReceiverState::restore(state.rx) == Ok(ReceiverState::Finished);
        is_over.then(|| state.final_progress())
    }

    /// Connection of a record, with the bytes that its socket has carried; without a socket if both streams
    /// of the host were over.
    ///
    /// # Errors
    /// [`Invalid`] if bytes of a stream are gone, or the record contradicts itself: the flow is to be reset.
    /// Then it holds no memory.
    pub(crate) fn recover(
        shared: &mut Shared,
        now: Instant,
        &Record { id, key, opened_at, .. }: &Record,
        socket: Option<SocketId>,
        state: &TcpState,
        progress: Progress,
    ) -> Result<Self, Invalid> {
        let scaled = |scale: Option<u8>| scale.is_none_or(|scale| scale <= 14);
        valid(!state.broken && scaled(state.peer_scale) && scaled(Some(state.scale)))?;
        valid(state.mss > 0 && state.mss <= mss_of_mtu(&key, shared.config.mtu))?;
        let peer = PeerOptions { mss: state.mss, scale: state.peer_scale, sack: state.sack };
        let (irs, iss) = (state.rx_begin - 1, state.tx_begin - 1);
        let mut connection = Self::new(shared, now, id, key, irs, iss, peer);
        connection.socket = socket;
        connection.opened_at = opened_at;
        connection.inbound = state.inbound;
        connection.count_from(state);
        if connection.recover_halves(shared, now, state, progress).is_err() {
            connection.release(shared);
            return Err(Invalid);
        }
        if connection.rx.is_acknowledgement_behind() {
            connection.rx.ack_mut().list();
        }
        Ok(connection)
    }

    /// Whether it is open, and nothing is on its way in either direction.
    pub(crate) fn is_quiet(&self) -> bool {
        let nothing_held = self.rx.held() == 0 && self.tx.queued() == 0 && self.tx.in_flight() == 0;
        self.rx.is_open() && self.tx.is_open() && nothing_held
    }

    fn recover_halves(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        state: &TcpState,
        progress: Progress,
    ) -> Result<(), Invalid> {
        let pool = &mut shared.memory.pool;
        self.rx.recover_from(pool, self.id, state, progress)?;
        self.tx.recover_from(shared, now, self.id, state, progress)?;
        // A FIN that was sent before, and is to be sent again, is the first of this connection.
        let fin_sent = matches!(self.tx.state(), SenderState::FinSent | SenderState::Finished);
        let passive = state.passive && fin_sent;
        self.closer = Closer::restore(CloserV1 { passive, time_wait_until: None })?;
        valid(self.is_state_consistent(self.rx.held() == 0))
    }
}

/// Numbers of a reset of a flow that is not recovered: the guest accepts it, or asks and is answered.
pub(crate) fn reset_numbers(state: &TcpState) -> ResetNumbers {
    ResetNumbers { seq: state.una, ack: state.advertised.ack }
}

#[cfg(test)]
mod tests;
