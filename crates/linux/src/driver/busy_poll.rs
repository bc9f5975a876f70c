//! Whether to look for work a little longer before sleeping (`--busy-poll`).
//!
//! To be woken takes longer than what most requests need, and on a virtual machine several times as long: the processor has
//! to be got out of its halt. A worker that keeps looking finds the next frame or answer at once, and pays with a processor
//! that nobody else can use meanwhile. So it looks only while that is likely to succeed: while what it waited for came, on
//! the average of late, sooner than the bound. One long pause is enough to stop it, a few short ones start it again. An
//! idle worker sleeps.
//!
//! Nor does it look where there is always something at once ([`STREAM`]): a stream of datagrams waits for nobody's answer,
//! and a processor that is not given up is missed by the program that receives them.

use brodo_core::time::{Duration, Instant};
use std::num::NonZero;

/// A pause counts in the average as at most this many times the bound, so that the memory of a long one fades.
const PAUSE_MAX: u32 = 8;

/// The bound that suits most machines.
const BOUND: Duration = Duration::from_micros(50);

/// How long so many workers should look for work where nobody has said: not at all where each would take a processor that nobody
/// else has then. A quota of processor time (cgroup) counts as fewer processors.
pub fn default_bound(workers: u32) -> Duration {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    if processors > workers as usize { BOUND } else { Duration::ZERO }
}

/// Pauses that are shorter than this on the average, about what two looks take, are gaps in a stream.
const STREAM: Duration = Duration::from_micros(2);

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
        Self { bound, pause: STREAM }
    }

    /// There is nothing to do at `now`: until when to look again before sleeping, if at all.
    pub(super) fn until(&self, now: Instant) -> Option<Instant> {
        (STREAM..self.bound).contains(&self.pause).then(|| now + self.bound)
    }

    /// There was something to do again after `pause`, whether it was slept or not.
    pub(super) fn resumed(&mut self, pause: Duration) {
        self.pause = (self.pause * 7 + pause.min(self.bound * PAUSE_MAX)) / 8;
    }
}

#[cfg(test)]
mod tests;
