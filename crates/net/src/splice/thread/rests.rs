//! Interrupt moderation: rests of a thread between turns, in which more arrives for the next one.
//!
//! A thread that looks again as soon as it has moved something finds a segment or two, and each look costs a
//! wake-up, calls, and an acknowledgement of its own. Fast flows come in pieces of hundreds of KiB if it
//! waits for [`REST`] first, as a network card waits before it interrupts: a quarter of the processor time
//! per GiB is saved (the guide, chapter "Benchmarks", experiments), and other programs have the processor.
//!
//! *Only fast flows.* A rest is a delay, of no consequence for a stream whose buffers hold more than comes
//! meanwhile. It harms one that waits for an answer, or whose window or buffer is small: that moves no more
//! than that per rest. Both show in the same way, by little that is there after a rest. So the bytes of turns
//! after rests are averaged, and below [`WORTH`] no rest follows for [`PAUSE`]: the loss is a few in each.
//!
//! | flow | after a rest | rests |
//! |---|---|---|
//! | 30 Gbit/s | 750 KB | always |
//! | 10 Gbit/s | 250 KB | some in each pause |
//! | messages of 100 KB, each after the answer to the one before | 100 KB at most | some in each pause |
//! | messages below [`BEGIN`] | | none |
//!
//! There is none beside sparse flows, where turns are short ([`super::TurnBytes`]).

use std::time::{Duration, Instant};

/// Length of a rest. The default timer slack of Linux, 50 us, comes on top.
pub(super) const REST: Duration = Duration::from_micros(200);
/// Least bytes of a turn behind which there may be a rest.
const BEGIN: u64 = 64 << 10;
/// Bytes of a turn behind which there is none: more waits already.
const PLENTY: u64 = 1 << 20;
/// Least bytes after rests, on the average, for which more of them follow.
const WORTH: u64 = 384 << 10;
/// Average that is assumed at first, and after a pause: two or three rests decide.
const ASSUMED: u64 = 512 << 10;
/// Time without rests after those that were not worth it.
const PAUSE: Duration = Duration::from_millis(50);

/// State of a thread's rests.
#[derive(Debug)]
pub(super) struct Rests {
    /// The turn that follows comes after a rest.
    rested: bool,
    /// Average of the turns after rests, in bytes: a quarter of the newest.
    gained: u64,
    /// No rest before this.
    not_before: Option<Instant>,
}

impl Default for Rests {
    fn default() -> Self {
        Self { rested: false, gained: ASSUMED, not_before: None }
    }
}

impl Rests {
    /// Whether a rest may follow the next turn.
    pub(super) fn may_follow(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|time| time <= now)
    }

    /// Notes a turn that has moved so many bytes; true if a rest is to follow.
    pub(super) fn after(&mut self, moved: u64, now: Instant) -> bool {
        if std::mem::take(&mut self.rested) {
            self.gained = (self.gained * 3 + moved.min(PLENTY)) / 4;
            if self.gained < WORTH {
                (self.gained, self.not_before) = (ASSUMED, Some(now + PAUSE));
            }
        }
        self.rested = (BEGIN..PLENTY).contains(&moved) && self.may_follow(now);
        self.rested
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of rests within a second of a flow that has moved `moved` of so many microseconds since the
    /// last turn.
    fn rests_in_a_second(moved: impl Fn(u64) -> u64) -> u64 {
        let (start, mut time_us, mut rests, mut since) = (Instant::now(), 0, 0, 20);
        let mut state = Rests::default();
        while time_us < 1_000_000 {
            let rest = state.after(moved(since), start + Duration::from_micros(time_us));
            rests += u64::from(rest);
            since = if rest { 250 } else { 20 };
            time_us += since;
        }
        rests
    }

    #[test]
    fn a_fast_flow_has_a_rest_after_each_turn() {
        assert_eq!(rests_in_a_second(|since_us| since_us * 3750), 4000, "30 Gbit/s");
    }

    #[test]
    fn a_turn_in_which_nothing_came_ends_no_rests() {
        let (now, mut state) = (Instant::now(), Rests::default());
        for _ in 0..100 {
            for _ in 0..6 {
                assert!(state.after(700 << 10, now));
            }
            assert!(!state.after(0, now), "the thread sleeps until something comes");
        }
    }

    #[test]
    fn slow_flows_small_windows_and_messages_lose_little_by_rests() {
        let slow = rests_in_a_second(|since_us| since_us * 1000);
        assert_eq!(slow, 0, "8 Gbit/s in small pieces");
        for windowful in [100 << 10, 200 << 10, 300 << 10] {
            let rests = rests_in_a_second(|_| windowful);
            assert!((20..=80).contains(&rests), "{windowful}: {rests} rests");
        }
        assert_eq!(rests_in_a_second(|_| BEGIN - 1), 0);
    }

    #[test]
    fn a_thread_that_has_more_to_move_does_not_rest() {
        assert_eq!(rests_in_a_second(|_| PLENTY), 0);
    }

    #[test]
    fn a_pause_begins_with_the_average_of_the_beginning() {
        let (now, mut state) = (Instant::now(), Rests::default());
        while state.after(BEGIN, now) {}
        assert!(!state.after(BEGIN, now + PAUSE / 2));
        assert!(state.after(BEGIN, now + PAUSE));
        assert!(state.after(PLENTY - 1, now + PAUSE));
    }
}
