//! Acknowledgements that arrive at the sender, and loss recovery.
//!
//! A link that pushes back loses nothing, but a guest may be far away (a VPN, a wireless hop) or drop what it
//! gets. With a guest that understands SACK, RACK ([`crate::tcp::rack`]) tells which ranges are lost about
//! one round trip after they were sent, and only those are sent again. When the end of a flight is lost
//! nothing follows that could show it, so its last segment is sent once more after two round trips (tail loss
//! probe, RFC 8985, section 7). With a guest without SACK three duplicate acknowledgements resend the first
//! segment, and partial acknowledgements the next hole (RFC 6582). When all else fails the retransmission
//! timer (RFC 6298) resends the first segment, and each acknowledgement of it twice as much.
//!
//! The guest may be a router with a narrower link behind it. Its report of that lowers the MSS, and what was
//! too long is sent again in shorter segments ([`Sender::path_narrowed`]).
//!
//! A loss halves the limit L once per recovery. A guest that was only late (its kernel was off the processor
//! for longer than a time-out, say) reports all that was sent again as duplicates (RFC 2883); then L is
//! restored, as Linux does with its congestion window. A guest that reports duplicates falsely wins back its
//! own limit. There is no congestion window beside L: the path is one link with a known queue, and L is what
//! may be in it.

use super::{Piece, Sender, SenderState, Timer};
use crate::context::Shared;
use crate::memory::chunk::{Cursor, Pool, SLICES_MAX};
use crate::snapshot::saved::saved_struct;
use crate::snapshot::v1::{RecoveryV1, UndoV1};
use crate::tcp::rack::RoundTrips;
use crate::tcp::scoreboard::Range;
use crate::time::{Duration, Instant};
use crate::trace::Resend;
use crate::wire::tcp::{SackBlock, SackBlocks, Seq, SeqRange, TcpHeader};
use core::num::NonZeroU32;
use std::io::IoSlice;

/// Duplicate acknowledgements that mean a loss (RFC 5681, 3.2).
pub(in crate::connection) const DUP_ACKS: u8 = 3;
/// Shortest wait before a tail loss probe. On a link of 50 us two round trips are less than the time for
/// which a busy guest may be off its processor; and Linux holds its acknowledgement back for 40 ms and a
/// tick, however much has arrived, while its program does not read. A probe that was not needed is a segment
/// sent twice.
const PROBE_WAIT_MIN: Duration = Duration::from_millis(60);
/// Shortest wait for a retransmission while the link has no credit, perhaps for hours: ten thousand
/// connections would have as many timers expire several times a second.
const STALLED_WAIT: Duration = Duration::from_secs(1);

/// State to restore after a spurious recovery.
#[derive(Debug, Clone, Copy)]
pub(super) struct Undo {
    /// Limit before, bytes.
    limit: NonZeroU32,
    /// Retransmitted bytes that the guest has not reported as duplicates.
    resent: u32,
}

/// A loss under repair.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recovery {
    /// Recovery point: SND.NXT when it began, with whose acknowledgement it ends.
    until: Seq,
    /// Evidence of the loss.
    why: Resend,
    /// Most sequence space in flight: after a time-out nothing is known of the path, and it grows with what
    /// is acknowledged. Otherwise `u32::MAX`.
    burst: u32,
}

saved_struct!(Recovery as RecoveryV1 { until, why, burst });
saved_struct!(Undo as UndoV1 { limit, resent });

impl Sender {
    /// Takes an acceptable acknowledgement with the window beside it.
    pub(in crate::connection) fn acknowledge(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        segment: &TcpHeader,
        has_payload: bool,
    ) {
        debug_assert!(self.is_ack_acceptable(segment.ack), "only what was sent is acknowledged");
        let (ack, wnd_before, was_closed) = (segment.ack, self.wnd, self.is_closed_to_first());
        let advances = ack.gt(self.una);
        self.take_window(segment);
        if advances {
            let sent = if ack.gt(self.nxt) { self.nxt } else { ack };
            if sent.gt(self.una) {
                self.advance(shared, now, sent);
            }
            if ack.gt(sent) {
                self.skip_acknowledged(shared, now, ack);
            }
        }
        self.confirm(ack);
        let duplicate = self.sack
            && !segment.options.sack.is_empty()
            && self.take_sack(shared, now, ack, &segment.options.sack);
        let repeated = !advances && !has_payload && self.wnd == wnd_before;
        self.answer_to_probe(ack, duplicate, repeated);
        if self.sack {
            self.detect(shared, now);
        } else if advances {
            self.dup_acks = 0;
            if let Some(Recovery { until, why: Resend::Duplicates, .. }) = self.recovery
                && ack.lt(until)
            {
                let before = (until - self.una).max(0) as u32;
                self.board.mark_first_lost(before.min(self.mss.into()));
            }
            if self.board.lost() > 0 {
                // Marked beyond the recovery point by a window that has opened again, or a narrower path.
                self.recover(shared, now, Resend::Duplicates, u32::MAX);
            }
        } else if ack == self.una && repeated && self.una != self.nxt {
            self.duplicate_ack(shared, now);
        }
        if was_closed && !advances && self.backoff > 0 && !self.is_closed_to_first() {
            self.window_reopened(shared, now);
        }
        if self.una == self.nxt && self.usable() > 0 {
            // Nothing to send again and no closed window to probe.
            self.timer = None;
            self.backoff = 0;
        }
        self.check();
    }

    /// Whether the guest has taken back the window of the first segment in flight ("shrinking the window",
    /// RFC 9293, 3.8.6): Linux 6.6 and later offer nothing while they lack memory, and drop what arrives.
    fn is_closed_to_first(&self) -> bool {
        self.board.first().is_some_and(|range| self.wnd < range.len.min(self.mss.into()))
    }

    /// Window that opens again for what was sent again in vain: that is due now, and not when the time-out
    /// ends that has doubled up to a minute. One segment, as after a time-out; the limit has been halved by
    /// that.
    fn window_reopened(&mut self, shared: &Shared, now: Instant) {
        self.backoff = 0;
        self.timed = None;
        self.board.mark_first_lost(self.mss.into());
        if self.recovery.is_none() {
            let (until, burst) = (self.nxt, self.mss.into());
            self.recovery = Some(Recovery { until, why: Resend::Timeout, burst });
        }
        self.start_retransmission_timer(shared, now);
    }

    /// SND.UNA moves to `ack`.
    fn advance(&mut self, shared: &mut Shared, now: Instant, ack: Seq) {
        let mut bytes = (ack - self.una) as u32;
        let acknowledged = bytes;
        // SYN and FIN take a sequence number each, and no byte.
        if self.state == SenderState::SynAckSent {
            bytes -= 1;
            self.enter(SenderState::Open);
        }
        if self.state == SenderState::FinSent && ack == self.nxt {
            bytes -= 1;
            self.enter(SenderState::Finished);
        }
        shared.memory.pool.consume(&mut self.queue, bytes);
        self.bytes += u64::from(bytes);
        self.tx_limit.note(now, self.bytes as u32);
        self.una = ack;
        if self.nxt == ack {
            self.cursor = Cursor::FRONT;
        }
        if self.recovery.is_some_and(|r| ack.ge(r.until)) {
            // Before anything looks for losses: one that the same acknowledgement shows begins the next
            // recovery.
            self.recovery = None;
            self.rack.recovered();
        }
        if let Some((seq, at)) = self.timed
            && ack.ge(seq)
        {
            if !self.is_timer_late(now, shared.tcp.rtt.rto(self.backoff)) {
                shared.tcp.rtt.sample(now, now - at);
            }
            self.timed = None;
        }
        let min_rtt = shared.tcp.rtt.min().unwrap_or_default();
        let Self { board, rack, .. } = self;
        board.acknowledge(ack, |range| rack.delivered(now, range, min_rtt));
        board.give_list(&mut shared.tcp.lists);
        if let Some(recovery) = &mut self.recovery {
            recovery.burst = recovery.burst.saturating_add(acknowledged);
        }
        // As in Linux, and unlike RFC 6298 (5.7) to the letter: any new acknowledgement ends the back-off.
        self.backoff = 0;
        self.timer = self.waiting(shared, now);
    }

    /// Whether the timer should have run out `rto` ago: this process was stopped or frozen (SIGSTOP, the
    /// freezer of control groups), and frames are handled before timers. The acknowledgement has waited here,
    /// so its time says nothing about the path.
    fn is_timer_late(&self, now: Instant, rto: Duration) -> bool {
        self.timer.is_some_and(|(at, _)| now > at + rto)
    }

    /// Selective acknowledgements (RFC 2018). True if one reports a duplicate (RFC 2883, section 4).
    fn take_sack(&mut self, shared: &mut Shared, now: Instant, ack: Seq, blocks: &SackBlocks) -> bool {
        let all = blocks.as_slice();
        let first = all[0];
        let duplicate = first.left.lt(ack) || all.get(1).is_some_and(|second| second.contains(first));
        if duplicate {
            shared.counters.tcp_duplicates_reported += 1;
            self.rack.duplicate(self.una, self.nxt);
            self.undo_recovery((first.right - first.left).max(0) as u32);
        }
        let min_rtt = shared.tcp.rtt.min().unwrap_or_default();
        let Self { board, rack, .. } = self;
        // From the lowest on: RACK takes what comes below the highest that has arrived for reordering.
        for &SackBlock { left, right } in blocks.ascending(self.una).as_slice() {
            if left.ge(self.una) && left.lt(right) && right.le(self.nxt) {
                board.sack(left, right, |range| rack.delivered(now, range, min_rtt));
            }
        }
        duplicate
    }

    /// Duplicate of `len` bytes, reported by the guest. If that was all that a recovery has sent again, it
    /// was spurious.
    fn undo_recovery(&mut self, len: u32) {
        let Some(undo) = self.undo.as_mut().filter(|undo| undo.resent > 0) else { return };
        undo.resent = undo.resent.saturating_sub(len);
        if undo.resent > 0 {
            return;
        }
        self.tx_limit.restore(undo.limit.get());
        self.undo = None;
        if let Some(recovery) = &mut self.recovery {
            recovery.burst = u32::MAX;
        }
    }

    /// Answer to a tail loss probe (RFC 8985, 7.4.2): if it repaired a loss, the limit falls. A guest that
    /// does not report duplicates repeats its acknowledgement.
    fn answer_to_probe(&mut self, ack: Seq, duplicate: bool, repeated: bool) {
        let Some(probe) = self.tail_probe.filter(|&probe| ack.ge(probe)) else { return };
        if duplicate || (repeated && ack == probe) {
            self.tail_probe = None;
        } else if ack.gt(probe) {
            self.tail_probe = None;
            self.tx_limit.halve();
        }
    }

    /// Loss detection by RACK.
    fn detect(&mut self, shared: &mut Shared, now: Instant) {
        let Self { board, recovery, tail_probe, .. } = &self;
        if board.sacked() == 0 && board.lost() == 0 && recovery.is_none() && tail_probe.is_none() {
            return;
        }
        let rtt = &shared.tcp.rtt;
        let rtts =
            RoundTrips { min: rtt.min().unwrap_or_default(), smoothed: rtt.srtt().unwrap_or_default() };
        let recovering = self.recovery.is_some();
        let wait = self.rack.detect(now, &mut self.board, self.mss.into(), recovering, rtts);
        if self.board.lost() > 0 {
            self.recover(shared, now, Resend::Rack, u32::MAX);
        }
        // A guest that was silent for minutes makes for a round trip of minutes: not beyond what is waited
        // for already.
        if let Some(wait) = wait
            && self.timer.is_none_or(|(at, _)| now + wait < at)
        {
            self.timer = Some((now + wait, Timer::Reorder));
        }
    }

    /// Duplicate acknowledgement of a guest without SACK.
    fn duplicate_ack(&mut self, shared: &mut Shared, now: Instant) {
        self.dup_acks = self.dup_acks.saturating_add(1);
        if self.dup_acks == DUP_ACKS && self.recovery.is_none() {
            self.board.mark_first_lost(self.mss.into());
            self.recover(shared, now, Resend::Duplicates, u32::MAX);
        }
    }

    /// Report of a router in the guest that the segment at `seq` is too big: segments have at most `mss`
    /// bytes of payload from now on, and the longer ones in flight are lost, which says nothing about
    /// congestion (RFC 1191, section 6.4). False if nothing changes: a report about nothing in flight is late
    /// or forged (RFC 5927, section 7.2).
    pub(in crate::connection) fn path_narrowed(
        &mut self,
        shared: &Shared,
        now: Instant,
        seq: Seq,
        mss: u16,
    ) -> bool {
        let in_flight = seq.ge(self.una) && seq.lt(self.nxt);
        if !in_flight || mss >= self.mss || self.is_shaking_hands() || self.is_in_doubt() {
            return false;
        }
        self.mss = mss;
        // A range that is no longer was one segment that fits.
        self.board.mark_lost(|range| range.len > mss.into());
        if self.board.lost() > 0 && self.recovery.is_none() {
            self.timed = None;
            self.undo = None;
            self.recovery = Some(Recovery { until: self.nxt, why: Resend::Rack, burst: u32::MAX });
            self.start_retransmission_timer(shared, now);
        }
        self.check();
        true
    }

    /// Begins a recovery, unless one is under way.
    fn recover(&mut self, shared: &mut Shared, now: Instant, why: Resend, burst: u32) {
        debug_assert!(self.in_flight() > 0, "only what is in flight can be lost");
        // Karn: retransmitted segments are not timed.
        self.timed = None;
        if self.recovery.is_none() {
            self.undo = NonZeroU32::new(self.tx_limit.get()).map(|limit| Undo { limit, resent: 0 });
            self.tx_limit.halve();
            shared.counters.tcp_recoveries += 1;
        }
        if self.recovery.is_none() || why == Resend::Timeout {
            self.recovery = Some(Recovery { until: self.nxt, why, burst });
            self.start_retransmission_timer(shared, now);
        }
    }

    /// Expiry of the retransmission timer: the first segment is lost, and every range sent long enough ago.
    pub(in crate::connection) fn timed_out(&mut self, shared: &mut Shared, now: Instant) {
        self.backoff = self.backoff.saturating_add(1);
        self.dup_acks = 0;
        shared.counters.tcp_timeouts += 1;
        if self.board.first().is_some_and(Range::is_sacked) || self.backoff > 1 {
            self.board.renege();
        }
        self.rack.timed_out(now, &mut self.board, shared.tcp.rtt.srtt().unwrap_or_default());
        self.recover(shared, now, Resend::Timeout, self.mss.into());
    }

    /// End of the reordering window.
    pub(in crate::connection) fn reorder_wait_over(&mut self, shared: &mut Shared, now: Instant) {
        self.start_retransmission_timer(shared, now);
        self.detect(shared, now);
    }

    /// Range that a tail loss probe retransmits.
    pub(in crate::connection) fn probe_tail(
        &mut self,
        shared: &mut Shared,
        now: Instant,
    ) -> Option<SeqRange> {
        self.start_retransmission_timer(shared, now);
        self.board.tail(self.mss.into())
    }

    /// Transmission of a tail loss probe.
    pub(in crate::connection) fn tail_probed(&mut self, shared: &mut Shared) {
        self.timed = None;
        // A later D-SACK may be for this segment.
        self.undo = None;
        self.tail_probe = Some(self.nxt);
        shared.counters.tcp_tail_probes += 1;
    }

    /// Evidence of the loss that is being repaired, if one is.
    pub(in crate::connection) fn resend_reason(&self) -> Option<Resend> {
        self.recovery.map(|recovery| recovery.why)
    }

    /// Next lost range that may be sent again now, of at most `max`.
    pub(in crate::connection) fn next_resend(&self, max: u32) -> Option<SeqRange> {
        let range = self.board.next_lost()?;
        let mss = u32::from(self.mss);
        let pipe = self.in_flight() - self.board.sacked() - self.board.lost();
        let cap = self.recovery.map_or(u32::MAX, |r| r.burst).min(self.flight_max()).max(mss);
        let window = (self.una + self.wnd - range.start).max(0) as u32;
        // The first segment is sent even with others in flight: that is the purpose of a time-out (RFC 6298,
        // 5.4). It also tells whether a window that has closed meanwhile is open again.
        let least = if range.start == self.una { mss } else { 0 };
        let len = range.len.min(cap.saturating_sub(pipe).max(least)).min(window.max(least)).min(max);
        (len > 0 && (len >= mss.min(range.len) || pipe == 0)).then_some(SeqRange { start: range.start, len })
    }

    /// Payload of a retransmission of `range`, or as much of it as slices have room for.
    pub(in crate::connection) fn resend<'p>(
        &self,
        pool: &'p Pool,
        range: SeqRange,
        slices: &mut [IoSlice<'p>; SLICES_MAX],
    ) -> Piece {
        let SeqRange { start: seq, len } = range;
        debug_assert!(seq.ge(self.una) && (seq + len).le(self.nxt), "only what is in flight is sent again");
        let offset = ((seq - self.una) as u32).min(self.queue.len());
        let data = len.min(self.queue.len() - offset);
        let cursor = pool.seek(&self.queue, offset);
        let (count, bytes, after) = pool.slices(&self.queue, cursor, data, slices);
        // Sequence space beyond the data is the FIN.
        let fin = bytes == data && data < len;
        Piece { seq, slices: count, bytes, fin, push: false, after }
    }

    /// Retransmission of a piece.
    pub(in crate::connection) fn resent(&mut self, shared: &mut Shared, now: Instant, piece: &Piece) {
        let len = piece.len();
        self.board.resent(piece.seq, len, now);
        if let Some(undo) = self.undo.as_mut().filter(|_| self.recovery.is_some()) {
            undo.resent = undo.resent.saturating_add(len);
        }
        self.retransmissions += 1;
        shared.counters.tcp_retransmissions += 1;
        if self.timer.is_none() {
            self.start_retransmission_timer(shared, now);
        }
        self.check();
    }

    /// Starts the retransmission timer, and ends any other.
    pub(super) fn start_retransmission_timer(&mut self, shared: &Shared, now: Instant) {
        self.timer = Some((now + shared.tcp.rtt.rto(self.backoff), Timer::Retransmit));
    }

    /// Expiry of the timer while nothing can be sent. The time until the acknowledgement is then that of the
    /// link's pause, and not a round trip (Karn). The first such expiry is late by one time-out at most.
    pub(in crate::connection) fn wait_for_link(&mut self, shared: &Shared, now: Instant) {
        let is_first = self.timed.take().is_some();
        let wait = shared.tcp.rtt.rto(self.backoff);
        let wait = if is_first { wait } else { wait.max(STALLED_WAIT) };
        self.timer = Some((now + wait, Timer::Retransmit));
    }

    /// Timer after something new was sent.
    pub(super) fn wait_after_sending(&mut self, shared: &Shared, now: Instant) {
        match self.timer {
            None | Some((_, Timer::Window)) => self.timer = self.waiting(shared, now),
            Some((_, Timer::Retransmit | Timer::TailProbe)) if self.may_probe_tail() => {
                // Further segments postpone the probe (RFC 8985, 7.2), but not beyond the time-out of the
                // first.
                let at = now + self.probe_wait(shared);
                let oldest = self.board.first().map_or(now, |range| range.at);
                if at < oldest + shared.tcp.rtt.rto(self.backoff) {
                    self.timer = Some((at, Timer::TailProbe));
                }
            }
            Some((_, Timer::Retransmit | Timer::TailProbe | Timer::Reorder)) => {}
        }
    }

    /// Timer of what is in flight, from `now` on.
    fn waiting(&self, shared: &Shared, now: Instant) -> Option<(Instant, Timer)> {
        if self.una == self.nxt {
            return None;
        }
        let (rto, probe) = (shared.tcp.rtt.rto(self.backoff), self.probe_wait(shared));
        Some(if self.may_probe_tail() && probe < rto {
            (now + probe, Timer::TailProbe)
        } else {
            (now + rto, Timer::Retransmit)
        })
    }

    /// Wait for an acknowledgement before the tail is probed.
    fn probe_wait(&self, shared: &Shared) -> Duration {
        let rto = shared.tcp.rtt.rto(self.backoff);
        shared.tcp.rtt.srtt().map_or(rto, |srtt| srtt * 2).max(PROBE_WAIT_MIN)
    }

    /// Whether a tail loss probe is of use (RFC 8985, 7.2). Less than two segments a guest may acknowledge
    /// late, and then the retransmission timer is not much slower.
    fn may_probe_tail(&self) -> bool {
        self.sack
            && self.recovery.is_none()
            && self.board.sacked() == 0
            && self.backoff == 0
            && !self.is_shaking_hands()
            && self.in_flight() >= 2 * u32::from(self.mss)
            && self.tail_probe.is_none_or(|probe| self.una.ge(probe))
    }
}
