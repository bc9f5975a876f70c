//! The sending half of the guest: ranges in flight, loss detection, and the next transmission.
//!
//! The scoreboard has, for every range sent, its time and state: outstanding, selectively acknowledged or
//! lost. Loss is found as Linux finds it: by time (RACK, RFC 8985), with a probe of the tail when no
//! acknowledgement comes (TLP), and by the retransmission timer (RFC 6298, at least 200 ms). A recovery is
//! paced by proportional rate reduction (RFC 6937). New data is bounded by the peer's window, the congestion
//! window, and the bytes of the send buffer.

use super::congestion::{Algorithm, Congestion};
use super::rtt::RoundTrip;
use brodo_core::time::{Duration, Instant};
use std::collections::VecDeque;

/// Bounds of the retransmission time-out.
const RTO_MIN: Duration = Duration::from_millis(200);
const RTO_MAX: Duration = Duration::from_secs(120);
/// The least time before the tail is probed (two ticks of a kernel at 1000 Hz).
const PROBE_MIN: Duration = Duration::from_millis(2);

/// State of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Outstanding,
    Sacked,
    Lost,
}

/// A stretch of the stream that was sent in one frame, or a part of it.
#[derive(Debug, Clone, Copy)]
struct Sent {
    start: u64,
    end: u64,
    at: Instant,
    fate: Fate,
    retransmitted: bool,
}

impl Sent {
    const fn len(&self) -> u64 {
        self.end - self.start
    }
}

/// A recovery under way.
#[derive(Debug, Clone, Copy)]
struct Recovery {
    /// End of the recovery: the acknowledgement of this offset.
    until: u64,
    /// Begun by the retransmission timer: slow start from one segment.
    by_timer: bool,
    /// Bytes in flight when it began; delivered and sent since.
    prior: u64,
    delivered: u64,
    out: u64,
}

/// Bytes to send, as offsets of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outgoing {
    pub(super) start: u64,
    pub(super) end: u64,
}

/// The sending half.
#[derive(Debug)]
pub(super) struct Sender {
    una: u64,
    nxt: u64,
    /// End of the application's data; `u64::MAX` if unlimited.
    written: u64,
    /// Right edge of the peer's window.
    edge: u64,
    mss: u64,
    burst: u64,
    buffer: u64,
    sent: VecDeque<Sent>,
    /// Bytes outstanding: sent, neither acknowledged nor lost.
    pipe: u64,
    sacked: u64,
    lost: u64,
    congestion: Congestion,
    rtt: RoundTrip,
    /// The latest sent of what was delivered, and how long that took.
    rack: Option<(Instant, u64, Duration)>,
    rack_at: Option<Instant>,
    recovery: Option<Recovery>,
    /// Start of the retransmission timer.
    timer_from: Instant,
    backoff: u32,
    /// The tail was probed and nothing has been acknowledged since.
    probed: bool,
    /// End of the last segment shorter than the MSS.
    small: u64,
    retransmitted: u64,
}

impl Sender {
    pub(super) fn new(mss: u16, burst: u16, buffer: u64, algorithm: Algorithm) -> Self {
        Self {
            una: 0,
            nxt: 0,
            written: 0,
            edge: 0,
            mss: mss.into(),
            burst: u64::from(mss) * u64::from(burst),
            buffer,
            sent: VecDeque::new(),
            pipe: 0,
            sacked: 0,
            lost: 0,
            congestion: Congestion::new(algorithm),
            rtt: RoundTrip::default(),
            rack: None,
            rack_at: None,
            recovery: None,
            timer_from: Instant::ZERO,
            backoff: 0,
            probed: false,
            small: 0,
            retransmitted: 0,
        }
    }

    /// The application has `bytes` more to send.
    pub(super) fn write(&mut self, bytes: u64) {
        self.written = self.written.saturating_add(bytes);
    }

    pub(super) const fn una(&self) -> u64 {
        self.una
    }

    pub(super) const fn nxt(&self) -> u64 {
        self.nxt
    }

    /// Bytes sent and not acknowledged.
    pub(super) const fn in_flight(&self) -> u64 {
        self.nxt - self.una
    }

    /// The congestion window in bytes.
    pub(super) fn cwnd(&self) -> u64 {
        self.congestion.window() * self.mss
    }

    pub(super) const fn retransmitted(&self) -> u64 {
        self.retransmitted
    }

    /// The handshake took this long; the peer takes segments of `mss` and offers `window`.
    pub(super) fn open(&mut self, handshake: Duration, mss: u16, window: u64) {
        self.rtt.sample(handshake);
        self.burst = self.burst / self.mss * u64::from(mss);
        self.mss = mss.into();
        self.edge = window;
    }

    /// Takes an acknowledgement, the window beside it, and SACK blocks.
    pub(super) fn acknowledge(&mut self, now: Instant, ack: u64, window: u64, blocks: &[(u64, u64)]) {
        assert!(ack <= self.nxt, "the stack acknowledges {ack} of {} bytes sent", self.nxt);
        if ack < self.una {
            return;
        }
        self.edge = self.edge.max(ack + window);
        let (flight, advanced) = (self.pipe, ack > self.una);
        let mut delivered = self.advance(now, ack);
        for &(start, end) in blocks {
            if start >= self.una && end <= self.nxt {
                delivered += self.sack(now, start, end);
            }
        }
        if advanced {
            (self.backoff, self.probed, self.timer_from) = (0, false, now);
        }
        if self.recovery.is_some_and(|r| ack >= r.until) {
            let by_timer = self.recovery.take().is_some_and(|r| r.by_timer);
            if !by_timer {
                self.congestion.set(self.congestion.ssthresh());
            }
        }
        self.detect(now);
        self.grow(now, flight, delivered);
    }

    /// The congestion window after `delivered` bytes arrived of `flight` that were on their way.
    fn grow(&mut self, now: Instant, flight: u64, delivered: u64) {
        if let Some(r) = self.recovery.as_mut().filter(|r| !r.by_timer) {
            r.delivered += delivered;
            let target = (self.congestion.ssthresh() * self.mss as f64) as u64;
            let more = if self.pipe > target {
                (r.delivered * target).div_ceil(r.prior.max(1)).saturating_sub(r.out)
            } else {
                let limit = r.delivered.saturating_sub(r.out).max(delivered) + self.mss;
                limit.min(target - self.pipe)
            };
            let more = if r.out == 0 { more.max(self.mss) } else { more };
            return self.congestion.set((self.pipe + more) as f64 / self.mss as f64);
        }
        // As tcp_is_cwnd_limited: an unused window is no evidence.
        let used = if self.congestion.in_slow_start() { 2 * flight } else { flight + self.burst };
        if delivered > 0 && used > self.cwnd() {
            let acked = delivered as f64 / self.mss as f64;
            self.congestion.acknowledged(now, acked, self.rtt.srtt());
        }
    }

    /// Cumulative acknowledgement of `ack`; returns the bytes newly known to have arrived.
    fn advance(&mut self, now: Instant, ack: u64) -> u64 {
        let mut delivered = 0;
        let mut first: Option<Sent> = None;
        while self.sent.front().is_some_and(|s| s.start < ack) {
            self.cut_at(0, ack);
            let Some(s) = self.sent.pop_front() else { break };
            match s.fate {
                Fate::Outstanding => self.pipe -= s.len(),
                Fate::Lost => self.lost -= s.len(),
                Fate::Sacked => self.sacked -= s.len(),
            }
            if s.fate != Fate::Sacked {
                delivered += s.len();
                self.arrived(now, &s);
                if !s.retransmitted {
                    first = first.or(Some(s));
                }
            }
        }
        if let Some(s) = first {
            self.rtt.sample(now - s.at);
        }
        self.una = ack;
        delivered
    }

    /// Selective acknowledgement from `start` to `end`; returns the bytes newly known to have arrived.
    fn sack(&mut self, now: Instant, start: u64, end: u64) -> u64 {
        let mut delivered = 0;
        let mut i = self.sent.partition_point(|s| s.end <= start);
        self.cut_at(i, start);
        if self.sent.get(i).is_some_and(|s| s.start < start) {
            i += 1;
        }
        while self.sent.get(i).is_some_and(|s| s.start < end) {
            self.cut_at(i, end);
            let s = self.sent[i];
            match s.fate {
                Fate::Outstanding => self.pipe -= s.len(),
                Fate::Lost => self.lost -= s.len(),
                Fate::Sacked => {}
            }
            if s.fate != Fate::Sacked {
                self.sent[i].fate = Fate::Sacked;
                self.sacked += s.len();
                delivered += s.len();
                self.arrived(now, &s);
            }
            i += 1;
        }
        delivered
    }

    /// Makes the `i`th stretch end at `offset`, if that lies inside it.
    fn cut_at(&mut self, i: usize, offset: u64) {
        let Some(s) = self.sent.get_mut(i).filter(|s| s.start < offset && offset < s.end) else { return };
        let rest = Sent { start: offset, ..*s };
        s.end = offset;
        self.sent.insert(i + 1, rest);
    }

    /// RACK (RFC 8985, 6.2, steps 1 and 2): the latest sent of what has arrived.
    fn arrived(&mut self, now: Instant, s: &Sent) {
        let took = now - s.at;
        if s.retransmitted && took < self.rtt.min() {
            // An acknowledgement of the first transmission.
            return;
        }
        if self.rack.is_none_or(|(at, end, _)| (s.at, s.end) > (at, end)) {
            self.rack = Some((s.at, s.end, took));
        }
    }

    /// RACK, step 5: a range sent long enough before a delivered one is lost.
    fn detect(&mut self, now: Instant) {
        self.rack_at = None;
        let Some((rack_at, rack_end, rack_rtt)) = self.rack else { return };
        if self.sacked == 0 && self.recovery.is_none() {
            return;
        }
        let certain = self.recovery.is_some() || self.sacked >= 3 * self.mss;
        let patience = if certain { Duration::ZERO } else { self.rtt.min() / 4 };
        let before = self.lost;
        for s in self.sent.iter_mut().filter(|s| s.fate == Fate::Outstanding) {
            if (s.at, s.end) >= (rack_at, rack_end) {
                continue;
            }
            let due = s.at + rack_rtt + patience;
            if due <= now {
                s.fate = Fate::Lost;
                self.pipe -= s.len();
                self.lost += s.len();
            } else {
                self.rack_at = self.rack_at.max(Some(due));
            }
        }
        if self.lost > before && self.recovery.is_none() {
            let prior = self.cwnd();
            self.congestion.lost();
            self.recovery = Some(Recovery { until: self.nxt, by_timer: false, prior, delivered: 0, out: 0 });
        }
    }

    /// The next transmission, if one is allowed; it counts as sent at `now`.
    pub(super) fn next(&mut self, now: Instant) -> Option<Outgoing> {
        let room = self.cwnd().saturating_sub(self.pipe);
        let out = if self.lost > 0 { self.resend(now, room) } else { self.fresh(now, room) };
        if let (Some(out), Some(r)) = (out, &mut self.recovery) {
            r.out += out.end - out.start;
        }
        out
    }

    fn resend(&mut self, now: Instant, room: u64) -> Option<Outgoing> {
        if room < self.mss && self.pipe > 0 {
            return None;
        }
        let i = self.sent.iter().position(|s| s.fate == Fate::Lost)?;
        let most = (room / self.mss * self.mss).clamp(self.mss, self.burst);
        self.cut_at(i, self.sent[i].start + most);
        let s = &mut self.sent[i];
        (s.fate, s.retransmitted, s.at) = (Fate::Outstanding, true, now);
        self.lost -= s.len();
        self.pipe += s.len();
        self.retransmitted += s.len().div_ceil(self.mss);
        Some(Outgoing { start: s.start, end: s.end })
    }

    fn fresh(&mut self, now: Instant, room: u64) -> Option<Outgoing> {
        let written = self.written.min(self.una + self.buffer);
        let may = written.min(self.edge).saturating_sub(self.nxt);
        let room = if self.pipe == 0 { room.max(self.mss) } else { room };
        let mut len = may.min(room).min(self.burst);
        if len >= self.mss {
            len -= len % self.mss;
        } else if len < may || self.small > self.una || len == 0 {
            // Not a part of a segment where the congestion window ends, nor a second short one (Nagle, as
            // Minshall).
            return None;
        } else {
            self.small = self.nxt + len;
        }
        if self.sent.is_empty() {
            self.timer_from = now;
        }
        let (start, end) = (self.nxt, self.nxt + len);
        self.sent.push_back(Sent { start, end, at: now, fate: Fate::Outstanding, retransmitted: false });
        self.pipe += len;
        self.nxt = end;
        Some(Outgoing { start, end })
    }

    /// Whether the peer's window alone keeps bytes back while nothing is in flight.
    fn is_shut(&self) -> bool {
        self.sent.is_empty() && self.written > self.nxt && self.edge <= self.nxt
    }

    /// Deadline of the retransmission, probe or persist timer.
    fn timer(&self) -> Option<Instant> {
        let rto = (self.rtt.rto(RTO_MIN) * (1 << self.backoff.min(10))).min(RTO_MAX);
        if self.sent.is_empty() && !self.is_shut() {
            return None;
        }
        let tail_waits = !self.sent.is_empty() && !self.probed && self.recovery.is_none() && self.sacked == 0;
        if tail_waits && self.backoff == 0 {
            let last = self.sent.back().map_or(self.timer_from, |s| s.at).max(self.timer_from);
            return Some((last + (self.rtt.srtt() * 2).max(PROBE_MIN)).min(self.timer_from + rto));
        }
        Some(self.timer_from + rto)
    }

    /// Deadline of [`Sender::expire`].
    pub(super) fn deadline(&self) -> Option<Instant> {
        [self.rack_at, self.timer()].into_iter().flatten().min()
    }

    /// Expires timers. Returns the probe to send: bytes, or an empty range as a window probe.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Outgoing> {
        if self.rack_at.is_some_and(|at| at <= now) {
            self.detect(now);
        }
        if self.timer().is_none_or(|at| at > now) {
            return None;
        }
        if self.is_shut() {
            (self.backoff, self.timer_from) = (self.backoff + 1, now);
            // The byte before the next expected one, so that the peer answers (tcp_xmit_probe_skb).
            let before = self.nxt.wrapping_sub(1);
            return Some(Outgoing { start: before, end: before });
        }
        if !self.probed && self.recovery.is_none() && self.sacked == 0 && self.backoff == 0 {
            (self.probed, self.timer_from) = (true, now);
            return self.fresh(now, self.mss).or_else(|| self.resend_tail(now));
        }
        self.give_up_on_all(now);
        None
    }

    /// A tail loss probe (RFC 8985, 7.3): retransmission of the last segment.
    fn resend_tail(&mut self, now: Instant) -> Option<Outgoing> {
        let last = self.sent.len().checked_sub(1)?;
        let from = self.sent[last].end.saturating_sub(self.mss);
        self.cut_at(last, from);
        let s = self.sent.back_mut()?;
        (s.at, s.retransmitted) = (now, true);
        self.retransmitted += 1;
        Some(Outgoing { start: s.start, end: s.end })
    }

    /// Retransmission time-out: every range that is not selectively acknowledged is lost.
    fn give_up_on_all(&mut self, now: Instant) {
        for s in self.sent.iter_mut().filter(|s| s.fate == Fate::Outstanding) {
            s.fate = Fate::Lost;
            self.lost += s.len();
        }
        self.pipe = 0;
        if self.recovery.is_none_or(|r| !r.by_timer) {
            self.congestion.lost();
        }
        self.congestion.set(1.0);
        self.recovery = Some(Recovery { until: self.nxt, by_timer: true, prior: 0, delivered: 0, out: 0 });
        (self.backoff, self.timer_from, self.rack_at) = (self.backoff + 1, now, None);
    }
}
