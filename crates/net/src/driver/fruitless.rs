//! Rests after fruitless turns: a guest harasses its network, and other programs want the processor.
//!
//! *Fruitless* is a turn to which the link alone led and in which nothing has moved: a kick of a ring in
//! which nothing is new, a message of a monitor that sets the same device up over and over, chains in a ring
//! that hold no frame, of which no event need report; and one whose frames were all dropped and none
//! answered. A guest can make any number of these, each for less than it costs here. After [`RUN`] of them in
//! a row, none longer than [`GAP`] after the one before, the worker rests before it looks again, for twice as
//! long each time, up to [`REST_MAX`] and the timer slack. Traffic of any kind ends that, so a guest that
//! only sends much, or is set up with all its rings, never meets it; one that harasses waits for its own
//! other traffic.
//!
//! System call: futex.

use crate::captured_link::Moved;
use brodo_core::time::{Duration, Instant};

/// Fruitless turns in a row without a rest: more than the messages by which a machine of eight queue pairs is
/// set up.
const RUN: u32 = 256;
/// Longest time between two of them.
const GAP: Duration = Duration::from_millis(10);
/// Least and longest rest.
const REST_MIN: Duration = Duration::from_micros(16);
const REST_MAX: Duration = Duration::from_millis(1);
/// Doublings from the one to the other.
const DOUBLINGS: u32 = 6;

/// Fruitless turns of a worker.
#[derive(Debug)]
pub(super) struct Fruitless {
    /// In a row, up to those of the longest rest, and the time of the last one.
    run: u32,
    last: Instant,
    /// Whether a frame of the guest's in this turn was not dropped.
    passed: bool,
}

impl Default for Fruitless {
    fn default() -> Self {
        Self { run: 0, last: Instant::ZERO, passed: false }
    }
}

impl Fruitless {
    /// Notes that frames of the guest's were taken: how many of this worker's flows, none if all are other
    /// workers', and how many were dropped meanwhile.
    pub(super) fn took(&mut self, frames: u64, dropped: u64) {
        self.passed |= dropped < frames.max(1);
    }

    /// Notes the turn at `now`. `by_link`: the link alone led to it.
    pub(super) fn turned(&mut self, now: Instant, by_link: bool, moved: Moved) {
        let frames_alone = Moved { from_guest: true, ..Moved::default() };
        let passed = std::mem::take(&mut self.passed);
        if moved == frames_alone {
            self.note(now, !passed);
        } else if moved != Moved::default() {
            self.run = 0;
        } else if by_link {
            self.note(now, true);
        }
    }

    fn note(&mut self, now: Instant, fruitless: bool) {
        let before = if now - self.last <= GAP { self.run } else { 0 };
        self.run = if fruitless { (before + 1).min(RUN + DOUBLINGS) } else { 0 };
        self.last = now;
    }

    /// The rest that is due.
    pub(super) fn rest(&self) -> Option<Duration> {
        let doublings = self.run.checked_sub(RUN)?;
        Some((REST_MIN * (1 << doublings)).min(REST_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Moved = Moved { from_guest: false, to_guest: false, from_host: false, joined: false };
    const FRAMES: Moved = Moved { from_guest: true, ..NOTHING };

    const NOW: Instant = Instant::from_ns(7_000_000_000);

    #[test]
    fn a_long_run_without_traffic_leads_to_rests_and_traffic_ends_them() {
        let mut fruitless = Fruitless::default();
        for _ in 0..RUN - 1 {
            fruitless.turned(NOW, true, NOTHING);
            // Timer, or another source.
            fruitless.turned(NOW, false, NOTHING);
        }
        assert_eq!(fruitless.rest(), None);
        let mut rests = Vec::new();
        for _ in 0..9 {
            fruitless.turned(NOW, true, NOTHING);
            rests.extend(fruitless.rest().map(|rest| rest.as_micros()));
        }
        assert_eq!(rests, [16, 32, 64, 128, 256, 512, 1000, 1000, 1000]);
        fruitless.turned(NOW + GAP * 2, true, NOTHING);
        assert_eq!(fruitless.rest(), None, "not in a row");
        (0..RUN).for_each(|_| fruitless.turned(NOW + GAP * 3, true, NOTHING));
        assert!(fruitless.rest().is_some());
        fruitless.turned(NOW + GAP * 3, true, Moved { to_guest: true, ..NOTHING });
        assert_eq!(fruitless.rest(), None);
    }

    #[test]
    fn frames_that_are_all_dropped_are_no_traffic() {
        let mut fruitless = Fruitless::default();
        let mut turn = |frames: u64, dropped: u64| {
            fruitless.took(frames, dropped);
            fruitless.took(1, 1);
            fruitless.turned(NOW, true, FRAMES);
            fruitless.rest().is_some()
        };
        (1..RUN).for_each(|_| assert!(!turn(3, 3)));
        assert!(turn(3, 3) && turn(1, 1));
        assert!(!turn(3, 2), "one has left");
        assert!(!turn(0, 0), "another worker's");
        assert!(!turn(3, 3));
    }
}
