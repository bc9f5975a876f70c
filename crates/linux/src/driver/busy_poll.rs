//! Whether to look for work a little longer before sleeping (`--busy-poll`).
//!
//! To be woken takes longer than what most requests need, and on a virtual machine several times as long: the processor has
//! to be got out of its halt. A worker that keeps looking finds the next frame or answer at once, and pays with a processor
//! that nobody else can use meanwhile. So it looks only while that is likely to succeed: while what it waited for came, on
//! the average of late, sooner than the bound. One long pause is enough to stop it, a few short ones start it again. An
//! idle worker sleeps.

use brodo_core::time::{Duration, Instant};

/// A pause counts in the average as at most this many times the bound, so that the memory of a long one fades.
const PAUSE_MAX: u32 = 8;

/// The bound and the memory of pauses.
#[derive(Debug)]
pub(super) struct BusyPoll {
    /// Longest time to look for work; zero is never.
    bound: Duration,
    /// Smoothed time between having nothing to do and having something: an eighth of the newest.
    pause: Duration,
}

impl BusyPoll {
    /// Looks for work for at most `bound` at a time.
    pub(super) fn new(bound: Duration) -> Self {
        Self { bound, pause: Duration::ZERO }
    }

    /// There is nothing to do at `now`: until when to look again before sleeping, if at all.
    pub(super) fn until(&self, now: Instant) -> Option<Instant> {
        (self.pause < self.bound).then(|| now + self.bound)
    }

    /// There was something to do again after `pause`, whether it was slept or not.
    pub(super) fn resumed(&mut self, pause: Duration) {
        self.pause = (self.pause * 7 + pause.min(self.bound * PAUSE_MAX)) / 8;
    }
}

#[cfg(test)]
mod tests;
