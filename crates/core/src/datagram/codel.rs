//! CoDel (RFC 8289): detection of a standing queue of datagrams, and its drops.
//!
//! A queue that empties now and then absorbs bursts and is left alone. One in which every datagram has waited
//! longer than [`TARGET`] for a whole [`INTERVAL`] only adds delay: its head is dropped, and while that does
//! not help, further heads at intervals that shrink with the square root of their number. With ECN the caller
//! marks instead of dropping, which is the same to this law.
//!
//! The law decides once for each datagram that comes to the head ([`CoDel::must_drop`]). Time is an argument.

use crate::snapshot::saved::{is_small_count, saved_struct};
use crate::snapshot::v1::CoDelV1;
use crate::time::{Duration, Instant};

/// Delay that is acceptable for ever (RFC 8289, 4.4).
pub(crate) const TARGET: Duration = Duration::from_millis(5);
/// Time above the target before the first drop (RFC 8289, 4.3).
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);
/// Queue of this many bytes or less, one packet of an ordinary link: no drops.
const BYTES_MIN: u32 = 1514;
/// Intervals after a spell of dropping within which a new one continues where it ended.
const MEMORY: u32 = 16;

/// The state of one queue.
#[derive(Debug, Default)]
pub(crate) struct CoDel {
    /// End of the interval for which the delay, above the target now, must last before a drop.
    above_until: Option<Instant>,
    /// Time of the next drop, while dropping.
    next: Option<Instant>,
    /// Time of the next drop that the last spell did not reach.
    last_next: Instant,
    /// Datagrams dropped in this spell, and in the last one when this began.
    count: u32,
    last_count: u32,
}

impl CoDel {
    /// Whether the datagram at the head, which has waited for `waited`, must be dropped (or marked) now.
    /// `bytes` is the length of the queue with it.
    pub(crate) fn must_drop(&mut self, now: Instant, waited: Duration, bytes: u32) -> bool {
        let standing = self.observe(now, waited, bytes);
        match self.next {
            Some(_) if !standing => {
                self.next = None;
                false
            }
            Some(next) if now >= next => {
                self.count += 1;
                self.schedule(next);
                true
            }
            None if standing => {
                let before = self.count - self.last_count;
                let recent = now.since(self.last_next) < INTERVAL * MEMORY;
                self.count = if before > 1 && recent { before } else { 1 };
                self.last_count = self.count;
                self.schedule(now);
                true
            }
            Some(_) | None => false,
        }
    }

    /// Notes that the queue is empty.
    pub(crate) fn emptied(&mut self) {
        self.above_until = None;
        self.next = None;
    }

    /// Whether it is dropping: then each datagram needs a decision of its own.
    pub(crate) fn is_dropping(&self) -> bool {
        self.next.is_some()
    }

    /// Notes a datagram that leaves at `now` without a decision of its own: one behind a head that was let
    /// pass at the same time while nothing was being dropped. Returns whether the queue is a standing one.
    pub(crate) fn observe(&mut self, now: Instant, waited: Duration, bytes: u32) -> bool {
        if waited < TARGET || bytes <= BYTES_MIN {
            self.above_until = None;
            return false;
        }
        now >= *self.above_until.get_or_insert(now + INTERVAL)
    }

    /// The control law: the next drop comes an interval over the square root of the count later.
    fn schedule(&mut self, from: Instant) {
        let ns = INTERVAL.as_nanos() as f64 / f64::from(self.count).sqrt();
        let next = from + Duration::from_nanos(ns as u64);
        self.next = Some(next);
        self.last_next = next;
    }
}

saved_struct!(CoDel as CoDelV1 { above_until, next, last_next, count, last_count } if |codel| {
    codel.last_count <= codel.count && is_small_count(codel.count)
});

#[cfg(test)]
mod tests;
