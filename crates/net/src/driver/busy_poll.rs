//! Busy polling before a sleep (`--busy-poll`).
//!
//! A wake-up takes longer than the work of most requests, and on a virtual machine several times as long: the
//! processor has to be got out of its halt. A worker that polls finds the next frame or answer at once, and
//! pays with a processor that is unavailable to others meanwhile. So it polls only while success is likely:
//! while answers came, on the average of late, sooner than the bound. One long pause is enough to stop it, a
//! few short ones start it again. An idle worker sleeps.
//!
//! It polls only for answers ([`Moved::answers`]). Between the datagrams of a stream no side waits for
//! another, and the program that receives them lacks the polling processor: a sixth of a flood was lost by
//! that.

use crate::captured_link::Moved;
use crate::processors::processors;
use brodo_core::time::{Duration, Instant};

/// Weight of a long pause in the average: at most this many times the bound, so that it fades.
const PAUSE_MAX: u32 = 8;

/// Default bound, which suits most machines.
const BOUND: Duration = Duration::from_micros(50);

/// Default busy-poll time for a number of workers: zero on a single processor, or on fewer than there are
/// workers, where the answering program may need the polling processor.
pub fn busy_poll_default(workers: u32) -> Duration {
    if processors() >= (workers as usize).max(2) { BOUND } else { Duration::ZERO }
}

/// The bound, and the average pause.
#[derive(Debug)]
pub(super) struct BusyPoll {
    /// Longest busy polling; zero is never.
    bound: Duration,
    /// Smoothed time from the end of work to the next answer: an eighth of the newest.
    pause: Duration,
    /// The pause before this turn, if there was one.
    paused: Option<Duration>,
    /// Traffic of the previous turn.
    before: Moved,
}

impl BusyPoll {
    /// Busy polling for at most `bound` at a time.
    pub(super) fn new(bound: Duration) -> Self {
        Self { bound, pause: Duration::ZERO, paused: None, before: Moved::default() }
    }

    /// End of busy polling that starts at `now`, if it should be done at all.
    pub(super) fn until(&self, now: Instant) -> Option<Instant> {
        (self.pause < self.bound).then(|| now + self.bound)
    }

    /// Notes the end of a pause, slept or not.
    pub(super) fn resumed(&mut self, pause: Duration) {
        self.paused = Some(pause);
    }

    /// Notes the traffic of the turn after a pause. A pause that no answer has ended counts as twice the
    /// bound at least, so that brodo does not poll for answers in traffic without them.
    pub(super) fn turned(&mut self, moved: Moved) {
        if let Some(pause) = self.paused.take() {
            let pause = if moved.answers(self.before) { pause } else { pause.max(self.bound * 2) };
            self.pause = (self.pause * 7 + pause.min(self.bound * PAUSE_MAX)) / 8;
        }
        self.before = moved;
    }
}

#[cfg(test)]
mod tests;
