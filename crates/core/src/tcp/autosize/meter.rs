//! How many bytes move in one round trip, from a running total.
//!
//! A [`Meter`] keeps four marks of time and total, at least a quarter of an interval apart, and tells what has moved since
//! the newest that is an interval old. An interval is a round trip, at least 500 us (below that a batch of frames is most of what is seen) and at most
//! a second; the result is always per round trip. (A flow that its window holds back sends a window in one go and then waits
//! for the rest of the round trip: with 100 ms where the round trip is 300, X comes out three times too large.) A pause of more than two intervals ends a measurement where it began,
//! so that a short burst is measured as what it was.
//!
//! After a limit has grown the next measurement begins anew and lasts until a window of the new size has moved
//! ([`Meter::begin_round`]). What moves in the first round trip was still sent under the old limit: a fixed grid would
//! see growth only in every second interval, and a flow of 17 ms and 1 Gbit/s would need 0.2 s instead of 0.13 s.
//!
//! The *burst* is the most that moved between two calls, that is in one turn of the driver. It stands for what the round
//! trip cannot tell: while we are busy with a batch the guest waits, and while the guest collects acknowledgements we
//! do. In time that is a gap of burst / rate; as bytes it needs no second clock.

use crate::time::{Duration, Instant};

const INTERVAL_MIN: Duration = Duration::from_micros(500);
const INTERVAL_MAX: Duration = Duration::from_secs(1);
const MARKS: usize = 4;

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Measure {
    /// Bytes per round trip.
    pub(super) rate: u32,
    /// Most bytes in one turn.
    pub(super) burst: u32,
    /// It covers the first round after the limit has about doubled.
    pub(super) doubled: bool,
}

impl Measure {
    /// Bytes that a round trip of the path and the gaps of both ends take (X).
    pub(super) fn per_rtt(&self) -> u32 {
        self.rate.saturating_add(self.burst)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Meter {
    /// Newest first.
    marks: [(Instant, u32); MARKS],
    last: (Instant, u32),
    /// What has moved in the turn of `last`, and the most in any.
    turn: u32,
    burst: u32,
    /// Bytes that the first round after growth brings, and when it counts as over without them.
    round: Option<(u32, Instant)>,
    doubled: bool,
}

/// How often a flow of this round trip is looked at.
pub(super) fn interval(rtt: Duration) -> Duration {
    rtt.clamp(INTERVAL_MIN, INTERVAL_MAX)
}

/// Bytes per round trip if `bytes` have moved in `time`.
pub(super) fn per_round_trip(bytes: u32, time: Duration, rtt: Duration) -> u32 {
    // 32 bits of bytes and 32 of nanoseconds: the product fits.
    let rtt_ns = u64::from(u32::try_from(rtt.as_nanos()).unwrap_or(u32::MAX));
    u32::try_from(u64::from(bytes) * rtt_ns / (time.as_nanos() as u64).max(1)).unwrap_or(u32::MAX)
}

impl Meter {
    pub(super) fn new(now: Instant) -> Self {
        Self { marks: [(now, 0); MARKS], last: (now, 0), turn: 0, burst: 0, round: None, doubled: false }
    }

    /// When something last moved, and the total then.
    pub(super) fn last(&self) -> (Instant, u32) {
        self.last
    }

    /// Notes that `total` bytes have moved by `now`; wraps.
    pub(super) fn note(&mut self, now: Instant, total: u32) {
        let moved = total.wrapping_sub(self.last.1);
        self.turn = if now == self.last.0 { self.turn.saturating_add(moved) } else { moved };
        self.burst = self.burst.max(self.turn);
        self.last = (now, total);
    }

    /// Notes the same, and measures if there is enough to measure.
    pub(super) fn measure(&mut self, now: Instant, total: u32, rtt: Duration) -> Option<Measure> {
        let interval = interval(rtt);
        if now - self.last.0 > interval * 2 {
            let whole = self.since(self.marks[MARKS - 1], rtt, interval);
            let moved = total.wrapping_sub(self.last.1);
            *self = Self { marks: [(now, total); MARKS], last: (now, total), burst: moved, ..Self::new(now) };
            return Some(whole);
        }
        self.note(now, total);
        let from = self.marks.into_iter().find(|&(at, _)| now - at >= interval);
        let is_round_over =
            |(bytes, until), (_, from): (_, u32)| total.wrapping_sub(from) >= bytes || now >= until;
        let from = from.filter(|&from| self.round.is_none_or(|round| is_round_over(round, from)));
        let measure = from.map(|from| self.since(from, rtt, interval));
        if self.round.is_none() || measure.is_some() {
            self.marks.copy_within(..MARKS - 1, 1);
            self.marks[0] = (now, total);
        }
        if measure.is_some() {
            (self.burst, self.round) = (0, None);
        }
        measure
    }

    fn since(&self, (began, from): (Instant, u32), rtt: Duration, interval: Duration) -> Measure {
        let rate = per_round_trip(self.last.1.wrapping_sub(from), (self.last.0 - began).max(interval), rtt);
        Measure { rate, burst: self.burst, doubled: self.doubled && self.round.is_some() }
    }

    /// The limit has grown: measures from now on, until a window of the new size has moved.
    pub(super) fn begin_round(&mut self, from: u32, limit: u32, rtt: Duration) {
        self.marks = [self.last; MARKS];
        (self.burst, self.doubled) = (0, limit - from >= from / 4 * 3);
        // Whole segments may not fill it.
        self.round = Some((limit - limit / 16, self.last.0 + interval(rtt) * 2));
    }

    /// When [`Meter::measure`] is worth calling next.
    pub(super) fn next(&self, rtt: Duration) -> Instant {
        match self.round {
            Some(_) => self.marks[0].0 + interval(rtt),
            None => self.last.0 + interval(rtt) / 4,
        }
    }
}
