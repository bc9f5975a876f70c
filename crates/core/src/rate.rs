//! Rate limit: a token bucket as one point in time, at which it will be full again.
//!
//! The generic cell rate algorithm (ITU-T I.371): each token taken moves that point one interval into the
//! future, and none is left when it lies a whole bucket ahead. Nothing has to be refilled, and no rounding
//! adds up.

use crate::time::{Duration, Instant};

/// A token bucket: a burst of tokens, and one more each interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    interval: Duration,
    /// Time in which an empty bucket becomes full.
    depth: Duration,
    full_at: Instant,
}

impl Bucket {
    /// A full bucket of `burst` tokens (one at least), of which one returns each `interval`.
    pub fn new(interval: Duration, burst: u32) -> Self {
        Self { interval, depth: interval.saturating_mul(burst.max(1)), full_at: Instant::ZERO }
    }

    /// Takes a token if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.max(now) + self.interval;
        let allowed = full_at - now <= self.depth;
        if allowed {
            self.full_at = full_at;
        }
        allowed
    }
}

/// For a snapshot.
impl Bucket {
    /// Time at which it is full.
    pub(crate) const fn full_at(&self) -> Instant {
        self.full_at
    }

    /// A bucket that is full at `full_at`, and empty at `now` at worst.
    pub(crate) fn restore(&mut self, now: Instant, full_at: Instant) {
        self.full_at = full_at.min(now + self.depth);
    }
}

#[cfg(test)]
mod tests;
