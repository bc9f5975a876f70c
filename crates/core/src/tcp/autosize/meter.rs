//! Meter: bytes that move in one round trip, from a running total.
//!
//! A [`Meter`] keeps three marks of time and total, at least a third of an interval apart, and tells what has
//! moved since the newest that is an interval old. An interval is a round trip, at least 500 us (below that a
//! batch of frames is most of what is seen) and at most a second; the result is always per round trip. (A
//! flow that its window holds back sends a window in one go and then waits for the rest of the round trip:
//! with 100 ms where the round trip is 300, X comes out three times too large.) A pause of more than two
//! intervals ends a measurement where it began, so that a short burst is measured as what it was.
//!
//! After a limit has grown the next measurement begins anew and lasts until a window of the new size has
//! moved ([`Meter::begin_round`]). Bytes of the first round trip were still sent under the old limit: a fixed
//! grid would see growth only in every second interval, and a flow of 17 ms and 1 Gbit/s would need 0.2 s
//! instead of 0.13 s.
//!
//! The *burst* is the most that moved between two calls, that is in one turn of the driver. It stands for
//! what the round trip cannot tell: while we are busy with a batch the guest waits, and while the guest
//! collects acknowledgements we do. In time that is a gap of burst / rate; as bytes it needs no second clock.
//! It counts up to half a MiB, about what one turn handles: beyond, a burst is large because the limit is,
//! and the two would raise each other. Only a burst after a long silence counts in full, as a reason to try a
//! larger limit: a Linux guest holds its acknowledgement back for 40 ms while its program does not read, and
//! then that, and not the round trip, may be the time for which the limit must last.

use crate::snapshot::saved::saved_struct;
use crate::snapshot::v1::MeterV1;
use crate::time::{Duration, Instant};
use core::num::NonZeroU32;

/// Bounds of a measurement's interval.
const INTERVAL_MIN: Duration = Duration::from_micros(500);
const INTERVAL_MAX: Duration = Duration::from_secs(1);
const MARKS: usize = 3;
/// Maximum that counts of a burst, bytes.
const BURST_MAX: u32 = 512 << 10;
/// Silence after which a burst counts in full.
const SILENCE: Duration = Duration::from_millis(30);

/// Result of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Measure {
    /// Bytes per round trip.
    pub(super) rate: u32,
    /// Most bytes in one turn.
    pub(super) burst: u32,
    /// First round after the limit has about doubled.
    pub(super) doubled: bool,
}

impl Measure {
    /// Bytes that a round trip of the path and the gaps of both ends take (X).
    pub(super) fn per_rtt(&self) -> u32 {
        self.rate.saturating_add(self.burst)
    }

    /// X without the excess of a burst after a silence over any other.
    pub(super) fn per_rtt_at_once(&self) -> u32 {
        self.rate.saturating_add(self.burst.min(BURST_MAX))
    }
}

/// Marks of time and total. They stand apart so that no room is lost between them: ten thousand idle
/// connections have two meters each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meter {
    /// Newest first.
    marked_at: [Instant; MARKS],
    last_at: Instant,
    marked: [u32; MARKS],
    last: u32,
    /// Bytes moved in the turn of `last`, and the maximum of any turn.
    turn: u32,
    burst: u32,
    /// First round after growth: the bytes that it brings, and whether the limit has about doubled.
    round: Option<(NonZeroU32, bool)>,
}

saved_struct!(Meter as MeterV1 { marked_at, last_at, marked, last, turn, burst, round });

/// Interval of measurements for a round trip.
pub(super) fn interval(rtt: Duration) -> Duration {
    rtt.clamp(INTERVAL_MIN, INTERVAL_MAX)
}

/// Bytes per round trip if `bytes` have moved in `time`.
pub(super) fn per_round_trip(bytes: u32, time: Duration, rtt: Duration) -> u32 {
    // 32 bits of bytes and 32 of nanoseconds: the product fits.
    let rtt_ns = u64::from(u32::try_from(rtt.as_nanos()).unwrap_or(u32::MAX));
    u32::try_from(u64::from(bytes) * rtt_ns / (time.as_nanos() as u64).max(1)).unwrap_or(u32::MAX)
}

/// Counted part of a burst of `burst` bytes after a silence.
fn counted(burst: u32, silence: Duration) -> u32 {
    if silence >= SILENCE { burst } else { burst.min(BURST_MAX) }
}

impl Meter {
    pub(super) fn new(now: Instant) -> Self {
        Self::from(now, 0)
    }

    /// Nothing measured yet at `now`, with `total` bytes moved.
    pub(super) fn from(now: Instant, total: u32) -> Self {
        Self {
            marked_at: [now; MARKS],
            last_at: now,
            marked: [total; MARKS],
            last: total,
            turn: 0,
            burst: 0,
            round: None,
        }
    }

    /// Last movement, and the total then.
    pub(super) fn last(&self) -> (Instant, u32) {
        (self.last_at, self.last)
    }

    /// Notes that `total` bytes have moved by `now`; wraps.
    pub(super) fn note(&mut self, now: Instant, total: u32) {
        let moved = total.wrapping_sub(self.last);
        self.turn = if now == self.last_at { self.turn.saturating_add(moved) } else { moved };
        self.burst = self.burst.max(counted(self.turn, now - self.last_at));
        (self.last_at, self.last) = (now, total);
    }

    /// Notes the same, and measures if there is enough to measure.
    pub(super) fn measure(&mut self, now: Instant, total: u32, rtt: Duration) -> Option<Measure> {
        let interval = interval(rtt);
        if now - self.last_at > interval * 2 {
            let whole = self.since(MARKS - 1, rtt, interval);
            let burst = counted(total.wrapping_sub(self.last), now - self.last_at);
            *self = Self { burst, ..Self::from(now, total) };
            return Some(whole);
        }
        self.note(now, total);
        let is_round_over = |bytes: NonZeroU32, mark: usize| {
            total.wrapping_sub(self.marked[mark]) >= bytes.get() || now - self.marked_at[mark] >= interval * 2
        };
        let mark = (0..MARKS)
            .find(|&mark| now - self.marked_at[mark] >= interval)
            .filter(|&mark| self.round.is_none_or(|(bytes, _)| is_round_over(bytes, mark)));
        let measure = mark.map(|mark| self.since(mark, rtt, interval));
        if self.round.is_none() || measure.is_some() {
            self.marked_at.copy_within(..MARKS - 1, 1);
            self.marked.copy_within(..MARKS - 1, 1);
            (self.marked_at[0], self.marked[0]) = (now, total);
        }
        if measure.is_some() {
            (self.burst, self.round) = (0, None);
        }
        measure
    }

    fn since(&self, mark: usize, rtt: Duration, interval: Duration) -> Measure {
        let time = (self.last_at - self.marked_at[mark]).max(interval);
        let rate = per_round_trip(self.last.wrapping_sub(self.marked[mark]), time, rtt);
        Measure { rate, burst: self.burst, doubled: self.round.is_some_and(|(_, doubled)| doubled) }
    }

    /// Growth of the limit: measures from now on, until a window of the new size has moved.
    pub(super) fn begin_round(&mut self, from: u32, limit: u32) {
        *self = Self {
            // Whole segments may not fill it.
            round: NonZeroU32::new(limit - limit / 16).map(|bytes| (bytes, limit - from >= from / 4 * 3)),
            ..Self::from(self.last_at, self.last)
        };
    }

    /// Time at which [`Meter::measure`] is worth calling next.
    pub(super) fn next(&self, rtt: Duration) -> Instant {
        match self.round {
            Some(_) => self.marked_at[0] + interval(rtt),
            None => self.last_at + interval(rtt) / 3,
        }
    }
}
