//! Standing queue: frames of bulk transfers that wait on the link while requests of sparse flows wait behind
//! them.
//!
//! The link toward us is one queue, first in, first out, and bulk flows fill it with whatever their windows
//! allow. A trace of a request of one byte beside four uploads (two processors, MTU 1500, 12 Gbit/s): 3.0 of
//! its 4.2 ms were spent in that queue, 1.0 ms in waiting for the end of the turn that was under way when its
//! answer came. A queue that never drains is of no use to the flows that fill it (CoDel, RFC 8289, section
//! 3), and yet small windows are not free: with every wake-up of a sender moving less, one upload alone loses
//! a fifth of its speed. So both are bounded only while *sparse* flows use the link:
//!
//! * a receive limit does not grow while the queue stands, and falls by an eighth per [`FALL`];
//! * a turn of the driver moves at most [`TURN_BYTES`] each way instead of [`TURN_BYTES_MAX`]
//!   ([`turn_bytes`]), a turn of a flow in it sends no more either, and the link is not read a second time
//!   after that much.
//!
//! Each of these alone gains little: shorter turns read a queue that stands all the same, and smaller windows
//! fill turns of half a MiB in which events wait. Together they take a request beside four uploads from 15 to
//! 7 times its time without load, for a tenth of the uploads' speed meanwhile (guide, Buffer sizing).
//!
//! *Stands*: frames have come for [`STANDING`] without the link having been read empty once.
//!
//! *Sparse*: data of at most [`SPARSE_BYTES`] between two silences of its flow of [`SPARSE_SILENCE`]. One
//! arrival proves nothing, every transfer begins so. It takes [`SPARSE_MIN`] of them, none later than
//! [`SPARSE_MEMORY`] after the one before: a person who types needs two seconds for that, a program that
//! asks and waits for answers a few milliseconds.
//!
//! [`turn_bytes`]: StandingQueue::turn_bytes

use crate::time::{Duration, Instant};

/// Time without an empty link after which the queue stands: two turns of [`TURN_BYTES`] each way, and the
/// pause in which a guest's sender is woken up.
const STANDING: Duration = Duration::from_micros(300);
/// Interval at which the limits of bulk flows fall while the queue stands.
pub(crate) const FALL: Duration = Duration::from_millis(5);
/// Most bytes of a sparse flow between two silences.
pub(crate) const SPARSE_BYTES: u32 = 2048;
/// Least length of a silence.
pub(crate) const SPARSE_SILENCE: Duration = Duration::from_micros(500);
/// Number of such arrivals that prove a sparse flow, and the longest time between two of them.
const SPARSE_MIN: u8 = 8;
const SPARSE_MEMORY: Duration = Duration::from_millis(300);
/// Bytes moved one way after which a turn looks for events again: with sparse flows and without.
pub(crate) const TURN_BYTES: usize = 128 << 10;
pub(crate) const TURN_BYTES_MAX: usize = 512 << 10;

/// State of one worker's link.
#[derive(Debug, Default)]
pub(crate) struct StandingQueue {
    /// First frame since the link was last read empty.
    since: Option<Instant>,
    /// Last time at which the link was read empty.
    drained_at: Option<Instant>,
    /// Last arrival of sparse data, and the number of those that followed each other.
    sparse_at: Instant,
    sparse: u8,
}

impl StandingQueue {
    /// Arrival of frames.
    pub(crate) fn frames(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// The link was read until it had nothing more.
    pub(crate) fn drained(&mut self, now: Instant) {
        self.since = None;
        self.drained_at = Some(now);
    }

    /// Whether the link was read empty at `at` or later: what was sent on it before has come.
    pub(crate) fn was_drained_since(&self, at: Instant) -> bool {
        self.drained_at.is_some_and(|drained_at| drained_at >= at)
    }

    /// Arrival of a sparse flow's data.
    pub(crate) fn sparse(&mut self, now: Instant) {
        let follows = now - self.sparse_at <= SPARSE_MEMORY;
        self.sparse = if follows { self.sparse.saturating_add(1) } else { 1 };
        self.sparse_at = now;
    }

    /// Whether sparse flows use the link.
    pub(crate) fn has_sparse(&self, now: Instant) -> bool {
        self.sparse >= SPARSE_MIN && now - self.sparse_at <= SPARSE_MEMORY
    }

    /// Whether a sparse flow's data would wait behind a standing queue.
    pub(crate) fn delays(&self, now: Instant) -> bool {
        self.has_sparse(now) && self.since.is_some_and(|since| now - since >= STANDING)
    }

    /// Bytes moved one way after which a turn looks for events again.
    pub(crate) fn turn_bytes(&self, now: Instant) -> usize {
        if self.has_sparse(now) { TURN_BYTES } else { TURN_BYTES_MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Sparse data every two milliseconds until `at`.
    fn typed(queue: &mut StandingQueue, from: u64, count: u64) -> Instant {
        let times = (0..count).map(|n| Instant::from_ns((from + 2 * n) * 1_000_000));
        times.inspect(|&at| queue.sparse(at)).last().expect("one arrival")
    }

    #[test]
    fn a_queue_delays_when_it_stands_while_sparse_data_arrives() {
        let mut queue = StandingQueue::default();
        let now = typed(&mut queue, 1000, 8);
        assert!(queue.has_sparse(now) && !queue.delays(now));
        queue.frames(now);
        assert!(!queue.delays(now + STANDING / 2));
        queue.frames(now + STANDING);
        assert!(queue.delays(now + STANDING));
        queue.drained(now + STANDING);
        queue.frames(now + STANDING);
        assert!(!queue.delays(now + STANDING));
    }

    #[test]
    fn a_queue_without_sparse_data_delays_no_flow() {
        let mut queue = StandingQueue::default();
        let start = Instant::from_ns(1_000_000_000);
        for n in 0..1000 {
            let now = start + MS * n;
            queue.frames(now);
            // A request after every half second.
            if n % 500 == 0 {
                queue.sparse(now);
            }
            assert!(!queue.delays(now) && queue.turn_bytes(now) == TURN_BYTES_MAX);
        }
    }

    #[test]
    fn sparse_flows_are_forgotten() {
        let mut queue = StandingQueue::default();
        assert!(!queue.has_sparse(Instant::ZERO));
        let last = typed(&mut queue, 1000, 300);
        assert_eq!(queue.turn_bytes(last + SPARSE_MEMORY), TURN_BYTES);
        assert_eq!(queue.turn_bytes(last + SPARSE_MEMORY + MS), TURN_BYTES_MAX);
        // And need as many arrivals as before.
        let again = typed(&mut queue, 5000, 7);
        assert!(!queue.has_sparse(again));
    }
}
