//! Candidate for promotion: a connection that moves much, for long enough that a promotion pays.
//!
//! Short flows must not pay for it. So the rule looks at a connection's own sums, which it keeps anyway, once
//! per turn or batch of frames: one comparison until [`BulkBounds::bytes`] have moved, and then a division
//! every [`BulkBounds::period`]. The state of the rule stands on the heap, of bulk flows only.

use crate::time::{Duration, Instant};

/// Setbacks after which the wait grows no more: by default to a little over an hour.
const SETBACKS_MAX: u8 = 14;

/// Carrier of bulk flows on the guest's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bulk {
    /// The link, as of all flows.
    #[default]
    Tap,
    /// A kernel socket, where the driver can make one.
    Kernel,
}

/// Bounds of promotion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BulkBounds {
    /// Bytes that a connection has moved, both ways together, before it is a candidate (default 4 MiB: the
    /// cost of a promotion is that of some 2 MiB).
    pub bytes: u64,
    /// Least rate of a candidate, bytes per second (default 32 MiB/s).
    pub rate: u64,
    /// Time over which the rate is measured (default 100 ms).
    pub period: Duration,
    /// Longest time in which a connection is made quiet (default 20 ms).
    pub quiet_max: Duration,
    /// Longest time in which a kernel socket receives nothing of the guest (default 50 ms).
    pub trial: Duration,
    /// Time before the next attempt after a first setback, doubled by each further one (default 250 ms).
    pub wait: Duration,
    /// Most flows away at a time, of one worker (default 64: a splice has two pipes, and a user's pipes have
    /// 64 MiB together).
    pub flows_max: usize,
    /// Time in which a flow that is away has moved nothing, before another one may have its place (default
    /// 1 s).
    pub idle_min: Duration,
}

impl Default for BulkBounds {
    fn default() -> Self {
        Self {
            bytes: 4 << 20,
            rate: 32 << 20,
            period: Duration::from_millis(100),
            quiet_max: Duration::from_millis(20),
            trial: Duration::from_millis(50),
            wait: Duration::from_millis(250),
            flows_max: 64,
            idle_min: Duration::from_secs(1),
        }
    }
}

/// Measurement of one connection.
#[derive(Debug)]
pub(crate) struct Candidate {
    /// Begin of the period, and what had moved by then.
    measured_at: Instant,
    moved: u64,
    /// Time of the next attempt, at the earliest; `None` if there is none.
    not_before: Option<Instant>,
    setbacks: u8,
}

impl Candidate {
    /// Measurement from `now` on, when `moved` bytes have moved.
    pub(crate) fn new(now: Instant, moved: u64) -> Self {
        Self { measured_at: now, moved, not_before: Some(now), setbacks: 0 }
    }

    /// Whether an attempt is due at `now`: at the end of each period, by what has moved in it.
    pub(crate) fn is_due(&mut self, bounds: &BulkBounds, now: Instant, moved: u64) -> bool {
        let time = now - self.measured_at;
        if time < bounds.period {
            return false;
        }
        let bytes = moved.saturating_sub(self.moved);
        (self.measured_at, self.moved) = (now, moved);
        let is_fast = u128::from(bytes) * 1_000_000_000 >= u128::from(bounds.rate) * time.as_nanos();
        is_fast && self.not_before.is_some_and(|at| at <= now)
    }

    /// Setback: the next attempt waits.
    pub(crate) fn set_back(&mut self, bounds: &BulkBounds, now: Instant) {
        self.not_before = self.not_before.map(|_| now + bounds.wait * (1 << self.setbacks));
        self.setbacks = (self.setbacks + 1).min(SETBACKS_MAX);
    }

    /// Success: the next setback waits as long as the first.
    pub(crate) fn forget_setbacks(&mut self) {
        self.setbacks = 0;
    }

    /// Refusal for good.
    pub(crate) fn give_up(&mut self) {
        self.not_before = None;
    }
}

#[cfg(test)]
mod tests;
