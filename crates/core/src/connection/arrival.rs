//! Processing of a segment from the guest, in the order of RFC 9293, section 3.10.7.4: sequence number, RST,
//! SYN, ACK, payload, FIN.

use super::open::mss_of_mtu;
use super::receiver::ReceiverState;
use super::sender::{DUP_ACKS, SenderState};
use super::{Connection, State, reset};
use crate::context::{Cx, Platform};
use crate::counters::DropReason;
use crate::flow::end::EndCause;
use crate::host::{Close, Host};
use crate::link::Piece;
use crate::time::Duration;
use crate::wire::tcp::{SackBlock, Seq, TcpFlags, TcpHeader};

/// Least time between two challenge ACKs of a connection (RFC 5961, section 7, leaves the number open).
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(10);

impl Connection {
    /// Whether a SYN may take over this flow's key: the connection waits only for stray segments and the SYN
    /// is newer than all of them (RFC 9293, 3.10.7.4, TIME-WAIT), or nothing but the guest's earlier SYN ever
    /// existed. Bytes that the host socket has not taken yet keep a connection in place.
    pub(crate) fn may_be_replaced_by(&self, segment: &TcpHeader) -> bool {
        if !segment.flags.contains(TcpFlags::SYN) || segment.flags.intersects(TcpFlags::ACK | TcpFlags::RST) {
            return false;
        }
        let last = self.rx.nxt() - 1;
        match self.state() {
            _ if self.tx.is_lost() => true,
            State::TimeWait => self.rx.state() == ReceiverState::Finished && segment.seq.gt(last),
            State::SynReceived => self.tx.is_connecting() && segment.seq != last,
            _ => false,
        }
    }

    /// Handles one segment.
    pub(crate) fn segment<P: Platform>(&mut self, cx: &mut Cx<'_, P>, segment: &TcpHeader, payload: &[u8]) {
        if self.is_away() {
            return self.segment_while_away(cx, segment);
        }
        if self.tx.is_lost() {
            return self.segment_for_lost(cx, segment, payload.len());
        }
        self.keep_alive.record_arrival(cx.now);
        match self.tx.state() {
            SenderState::Connecting => return self.segment_while_connecting(cx, segment),
            SenderState::SynSent => return self.segment_in_syn_sent(cx, segment),
            SenderState::SynAckSent
                if segment.flags.contains(TcpFlags::SYN) && segment.seq == self.rx.nxt() - 1 =>
            {
                self.tx.forget_timing();
                return self.send_syn_ack(cx);
            }
            _ => {}
        }
        if self.rx.ack().is_waiting() {
            self.list_ack(cx.shared);
        }
        let fin = segment.flags.contains(TcpFlags::FIN);
        if !self.is_acceptable(segment, payload.len() as u32 + u32::from(fin)) {
            return self.unacceptable(cx, segment, payload, fin);
        }
        if segment.flags.contains(TcpFlags::RST) {
            return self.reset_by_guest(cx, segment);
        }
        if segment.flags.contains(TcpFlags::SYN) {
            return self.challenge(cx);
        }
        if !segment.flags.contains(TcpFlags::ACK) {
            return cx.shared.counters.drop(DropReason::UnacceptableSegment);
        }
        if !self.acknowledgement(cx, segment, !payload.is_empty() || fin) {
            return;
        }
        if !payload.is_empty() || fin {
            self.payload(cx, segment.seq, payload, fin);
        }
        self.follow_up(cx);
    }

    /// Handles several segments at once that carry nothing but payload from `seq` on, each beginning where
    /// the one before ends; `last` is the header of the last, whose acknowledgement and window are the
    /// newest. False if they cannot go straight to the host socket: then nothing was done, and they are to be
    /// handled one by one.
    pub(crate) fn segments<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        last: &TcpHeader,
        seq: Seq,
        payload: &[Piece<'_>],
    ) -> bool {
        let len: usize = payload.iter().map(Piece::len).sum();
        let synchronised = !self.tx.is_connecting() && !self.tx.is_shaking_hands() && !self.is_away();
        let in_window = seq == self.rx.nxt() && len <= self.rx.window() as usize;
        // A lost connection is no longer broken, and takes nothing either.
        let takes = !self.broken && !self.tx.is_lost() && self.rx.is_streaming();
        if !synchronised || !in_window || !takes {
            return false;
        }
        self.keep_alive.record_arrival(cx.now);
        if self.rx.ack().is_waiting() {
            self.list_ack(cx.shared);
        }
        if !self.acknowledgement(cx, last, true) {
            return true;
        }
        match self.rx.stream(cx, self.id, self.socket, payload) {
            Ok(()) => {
                self.segments_taken = self.segments_taken.saturating_add(payload.len() as u32);
                self.tune_receiver(cx);
                self.owe_ack(cx.shared, payload.len() as u8, len);
            }
            Err(error) => self.host_failed(cx.shared, error),
        }
        self.follow_up(cx);
        true
    }

    /// Report of a router in the guest that the segment at `seq` is too big for a link of `mtu` bytes.
    pub(crate) fn too_big<P: Platform>(&mut self, cx: &mut Cx<'_, P>, seq: Seq, mtu: u16) {
        // The segments of a connection that is away are a kernel socket's.
        if !self.is_away() && self.tx.path_narrowed(cx.shared, cx.now, seq, mss_of_mtu(&self.key, mtu)) {
            self.list_or_watch(cx);
        }
    }

    /// Follow-up of a segment: lists the flow for service, or watches a closed window.
    fn follow_up<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.settle(cx);
        if self.is_dns() {
            self.list_ready(cx.shared);
        }
        self.list_or_watch(cx);
    }

    /// Segment before the SYN-ACK. Nothing was sent yet, so only the guest's own SYN, again, and its reset
    /// make sense.
    fn segment_while_connecting<P: Platform>(&mut self, cx: &mut Cx<'_, P>, segment: &TcpHeader) {
        if segment.flags.contains(TcpFlags::RST) {
            if segment.seq == self.rx.nxt() {
                self.end(cx, EndCause::ResetByGuest);
            }
        } else if segment.flags.contains(TcpFlags::ACK) {
            reset::answer(cx, &self.key, segment, 0);
        }
    }

    /// Acceptability test (RFC 9293, table 6), with Linux's two extensions: a segment without payload may
    /// stand at the very edge, where a guest that has filled the window is, and payload at a closed window
    /// still has its acknowledgement read.
    fn is_acceptable(&self, segment: &TcpHeader, len: u32) -> bool {
        let nxt = self.rx.nxt();
        if !segment.seq.le(nxt + self.rx.window()) {
            return false;
        }
        if len == 0 { segment.seq.ge(nxt) } else { (segment.seq + len).gt(nxt) }
    }

    /// Unacceptable segment: it is acknowledged, and dropped (RFC 9293, 3.10.7.4, first check).
    fn unacceptable<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        segment: &TcpHeader,
        payload: &[u8],
        fin: bool,
    ) {
        cx.shared.counters.drop(DropReason::OutOfWindow);
        if segment.flags.contains(TcpFlags::RST) {
            return;
        }
        // A keep-alive has a byte of garbage with some guests (RFC 9293, 3.8.4).
        let is_probe = segment.seq == self.rx.nxt() - 1
            && payload.len() <= 1
            && !fin
            && !segment.flags.contains(TcpFlags::SYN);
        if is_probe && let Some(socket) = self.socket {
            cx.host.tcp_keep_alive(socket);
        }
        if payload.is_empty() && !fin {
            // A keep-alive or window probe, or an attempt to draw acknowledgements.
            return self.challenge(cx);
        }
        cx.shared.counters.tcp_duplicate_bytes += payload.len() as u64;
        let end = segment.seq + payload.len() as u32;
        if end.le(self.rx.nxt()) && !payload.is_empty() {
            self.rx.note_duplicate(SackBlock { left: segment.seq, right: end });
        }
        self.closer.restart_time_wait(cx.now + cx.shared.config.timeouts.time_wait);
        self.list_ack(cx.shared);
    }

    /// Reset in the window (RFC 5961, 3.2): exactly at RCV.NXT it counts, elsewhere it is challenged.
    fn reset_by_guest<P: Platform>(&mut self, cx: &mut Cx<'_, P>, segment: &TcpHeader) {
        if segment.seq != self.rx.nxt() {
            return self.challenge(cx);
        }
        if self.closer.time_wait_until().is_none() {
            self.cause = EndCause::ResetByGuest;
        }
        if self.rx.is_open() {
            self.close_socket(cx, Close::Reset);
            self.ended = true;
        } else {
            // Everything the guest had to say was acknowledged, so it may count on its delivery: a guest that
            // has forgotten the connection answers every late segment with a reset. The host's kernel itself
            // resets a peer that still sends.
            self.tx.abandon(cx.shared);
            self.closer.abandoned();
            self.settle(cx);
        }
    }

    /// Challenge ACK (RFC 5961), rate-limited: an acknowledgement of where we are.
    fn challenge<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if self.challenged_at.is_some_and(|at| cx.now - at < CHALLENGE_INTERVAL) {
            return;
        }
        self.challenged_at = Some(cx.now);
        cx.shared.counters.tcp_challenge_acks += 1;
        self.send_ack(cx);
    }

    /// Takes the acknowledgement and window. False if the segment is to be used no further.
    fn acknowledgement<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        segment: &TcpHeader,
        has_payload: bool,
    ) -> bool {
        if self.tx.state() == SenderState::SynAckSent {
            if !self.tx.is_syn_acked_by(segment.ack) {
                reset::answer(cx, &self.key, segment, 0);
                return false;
            }
        } else if !self.tx.is_ack_acceptable(segment.ack) {
            self.challenge(cx);
            return false;
        }
        if segment.ack.gt(self.tx.una()) {
            let wnd = u32::from(segment.window) << self.tx.peer_scale().unwrap_or(0);
            cx.shared.journal.acknowledged(self.id, segment.ack, wnd);
        }
        let was_shaking_hands = self.tx.is_shaking_hands();
        self.tx.acknowledge(cx.shared, cx.now, segment, has_payload);
        if was_shaking_hands && self.rx.is_shut() {
            // Want of memory has shut the window of the SYN-ACK.
            self.update_window(cx.shared, cx.now);
        }
        true
    }

    fn payload<P: Platform>(&mut self, cx: &mut Cx<'_, P>, mut seq: Seq, mut payload: &[u8], mut fin: bool) {
        if !self.rx.is_open() || self.broken {
            // After the guest's FIN nothing new can come; on a broken connection nothing is wanted.
            return self.list_ack(cx.shared);
        }
        let old = (self.rx.nxt() - seq).clamp(0, payload.len() as i32) as usize;
        if old > 0 {
            cx.shared.counters.tcp_duplicate_bytes += old as u64;
            self.rx.note_duplicate(SackBlock { left: seq, right: seq + old as u32 });
        }
        payload = &payload[old..];
        seq += old as u32;
        let room = (self.rx.nxt() + self.rx.window() - seq).max(0) as usize;
        if payload.len() > room {
            payload = &payload[..room];
            fin = false;
        }
        if fin {
            self.rx.finish_at(seq + payload.len() as u32);
        }
        self.segments_taken = self.segments_taken.saturating_add(u32::from(!payload.is_empty()));
        let first_gap = !self.rx.has_gaps();
        let end = seq + payload.len() as u32 + u32::from(fin);
        let in_order = payload.is_empty() || {
            match self.rx.accept(cx, self.id, self.socket, seq, payload) {
                Ok(in_order) => {
                    self.tune_receiver(cx);
                    in_order
                }
                Err(error) => return self.host_failed(cx.shared, error),
            }
        };
        if self.rx.take_fin(cx.shared) {
            self.rx.end_gate(cx.shared, false);
            if self.rx.refusal().is_none()
                && let Err(error) = self.rx.flush(cx, self.id, self.socket)
            {
                self.host_failed(cx.shared, error);
            }
        }
        self.look_at_gate(cx);
        if !in_order {
            // RFC 5681, 4.2: "a TCP receiver SHOULD send an immediate ACK when a segment arrives out of
            // order", here the first time three of them, because perhaps nothing follows it. On a link of one
            // hop a gap is a loss and not reordering.
            for _ in 0..if first_gap { DUP_ACKS } else { 1 } {
                self.send_ack(cx);
            }
        } else if first_gap && old == 0 && self.rx.nxt() == end {
            self.owe_ack(cx.shared, 1, payload.len());
        } else {
            self.list_ack(cx.shared);
        }
    }
}
