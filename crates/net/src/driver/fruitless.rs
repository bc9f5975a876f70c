//! Rests after fruitless turns: a guest harasses its network, and other programs want the processor.
//!
//! *Fruitless* is a turn to which events of the link alone led and in which nothing has moved: a kick of a
//! ring in which nothing is new, a message of a monitor that sets the same device up over and over; and one
//! whose frames were all dropped and none answered. A guest can make any number of these, each for less than
//! it costs here. After [`RUN`] of them in a row, none longer than [`GAP`] after the one before, the worker
//! rests before it looks again, for twice as long each time, up to [`REST_MAX`] and the timer slack. Traffic
//! of any kind ends that, so a guest that only sends much, or is set up with all its rings, never meets it;
//! one that harasses waits for its own other traffic.
//!
//! System call: futex.

use crate::captured_link::Moved;
use brodo_core::counters::Counters;
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
    /// Frames of the guest, and all drops, as of the last turn in which such frames alone have moved.
    frames: u64,
    drops: u64,
}

impl Default for Fruitless {
    fn default() -> Self {
        Self { run: 0, last: Instant::ZERO, frames: 0, drops: 0 }
    }
}

impl Fruitless {
    /// Notes the turn at `now`. `by_link`: events of the link alone led to it.
    pub(super) fn turned(&mut self, now: Instant, by_link: bool, moved: Moved, counters: &Counters) {
        let frames_alone = Moved { from_guest: true, ..Moved::default() };
        if moved == frames_alone {
            let (frames, drops) = (counters.rx_frames, counters.drops().map(|(_, count)| count).sum());
            // Drops of before, of whatever kind, count for the first such turn.
            let dropped = drops - self.drops >= frames - self.frames;
            (self.frames, self.drops) = (frames, drops);
            self.note(now, dropped);
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
    use brodo_core::counters::DropReason;

    const NOTHING: Moved = Moved { from_guest: false, to_guest: false, from_host: false, joined: false };
    const FRAMES: Moved = Moved { from_guest: true, ..NOTHING };

    const NOW: Instant = Instant::from_ns(7_000_000_000);

    #[test]
    fn a_long_run_without_traffic_leads_to_rests_and_traffic_ends_them() {
        let (mut fruitless, counters) = (Fruitless::default(), Counters::default());
        for _ in 0..RUN - 1 {
            fruitless.turned(NOW, true, NOTHING, &counters);
            // Timer, or another source.
            fruitless.turned(NOW, false, NOTHING, &counters);
        }
        assert_eq!(fruitless.rest(), None);
        let mut rests = Vec::new();
        for _ in 0..9 {
            fruitless.turned(NOW, true, NOTHING, &counters);
            rests.extend(fruitless.rest().map(|rest| rest.as_micros()));
        }
        assert_eq!(rests, [16, 32, 64, 128, 256, 512, 1000, 1000, 1000]);
        fruitless.turned(NOW + GAP * 2, true, NOTHING, &counters);
        assert_eq!(fruitless.rest(), None, "not in a row");
        (0..RUN).for_each(|_| fruitless.turned(NOW + GAP * 3, true, NOTHING, &counters));
        assert!(fruitless.rest().is_some());
        fruitless.turned(NOW + GAP * 3, true, Moved { to_guest: true, ..NOTHING }, &counters);
        assert_eq!(fruitless.rest(), None);
    }

    #[test]
    fn frames_that_are_all_dropped_are_no_traffic() {
        let (mut fruitless, mut counters) = (Fruitless::default(), Counters::default());
        let mut turn = |frames: u64, dropped: u64| {
            counters.rx_frames += frames;
            (0..dropped).for_each(|_| counters.drop(DropReason::UnknownProtocol));
            fruitless.turned(NOW, true, FRAMES, &counters);
            fruitless.rest().is_some()
        };
        (1..RUN).for_each(|_| assert!(!turn(3, 3)));
        assert!(turn(3, 3) && turn(1, 1));
        assert!(!turn(3, 2), "one has left");
        assert!(!turn(3, 3));
    }
}
