//! The link as arithmetic: arrival time or loss of each segment.
//!
//! A segment waits until those before it have been sent, takes its wire bytes at the link's rate, and arrives
//! one delay later. The waiting segments are the queue; at a full queue a segment is dropped (tail drop) or
//! left with its sender. No packet is kept and no clock read here, so tests are exact.

use super::segments::Segments;
use crate::probe::mix;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

/// Longest piece that is passed on at once, bytes. A packet is passed on when its last byte has been sent;
/// pieces keep a slow link from delivering in bursts.
const PIECE_NS_MAX: u64 = 1_000_000;

/// Capacity of a link's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// Bytes on the wire.
    Bytes(u64),
    /// Segments of any length.
    Packets(u32),
}

impl FromStr for Queue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a length of a queue: 500p for packets, 2000000 for bytes");
        match text.strip_suffix('p') {
            Some(packets) => packets.parse().map(Self::Packets).map_err(|_| wrong()),
            None => text.parse().map(Self::Bytes).map_err(|_| wrong()),
        }
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Packets(packets) => write!(f, "{packets}p"),
        }
    }
}

/// Treatment of a packet that finds the queue full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overflow {
    /// It is lost.
    #[default]
    Drop,
    /// It waits in front of the queue, in the sender's device, and is not lost.
    Wait,
}

/// One direction of a path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Path {
    /// One-way delay, without queueing and serialisation.
    pub delay: Duration,
    /// Wire bits per second, if there is a bound; framing of Ethernet counts.
    pub rate_bit: Option<u64>,
    /// Capacity of the queue; a link without a rate has none.
    pub queue: Queue,
    /// Treatment of packets beyond the queue's limit.
    pub overflow: Overflow,
    /// Probability that a segment is lost, 0 to 1.
    pub loss: f64,
    /// Seed of the losses.
    pub seed: u64,
}

/// Sent segments of one packet that stay together, and when they arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) range: Range<u32>,
    pub(super) due_ns: u64,
}

/// Fate of a packet's segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Losses {
    /// Dropped at the full queue.
    pub(super) dropped: u32,
    /// Lost at random.
    pub(super) lost: u32,
}

/// The state of a link.
#[derive(Debug)]
pub(super) struct Shaper {
    path: Path,
    /// Time at which everything accepted so far has been sent.
    free_ns: u64,
    /// Segments whose sending has not ended: when each piece will have been sent, and of how many it is.
    waiting: VecDeque<(u64, u32)>,
    /// The sum over `waiting`.
    waiting_segments: u32,
    drawn: u64,
}

impl Shaper {
    pub(super) fn new(path: Path) -> Self {
        Self { path, free_ns: 0, waiting: VecDeque::new(), waiting_segments: 0, drawn: 0 }
    }

    /// Passes a packet of `segments` over the link: the pieces that arrive go to `pieces`, first to last.
    pub(super) fn pass(&mut self, now_ns: u64, segments: &Segments, pieces: &mut Vec<Piece>) -> Losses {
        pieces.clear();
        self.forget_sent(now_ns);
        let accepted = match self.path.overflow {
            Overflow::Drop => self.room(now_ns, segments),
            Overflow::Wait => segments.count(),
        };
        let mut losses = Losses { dropped: segments.count() - accepted, lost: 0 };
        let mut start = 0;
        for segment in 0..accepted {
            let lost = self.draw_loss();
            let next = segment + 1;
            if lost && start < segment {
                pieces.push(self.send(now_ns, segments, start..segment));
            } else if !lost && (next == accepted || self.is_long(segments, &(start..next + 1))) {
                pieces.push(self.send(now_ns, segments, start..next));
                start = next;
            }
            if lost {
                // A lost segment takes its time on the link like any other.
                self.send(now_ns, segments, segment..next);
                losses.lost += 1;
                start = next;
            }
        }
        losses
    }

    /// Time until which a packet that arrives now waits in front of the queue; `None` if there is room.
    pub(super) fn full_until_ns(&mut self, now_ns: u64) -> Option<u64> {
        if self.path.overflow == Overflow::Drop {
            return None;
        }
        self.forget_sent(now_ns);
        match (self.path.queue, self.path.rate_bit) {
            (Queue::Packets(limit), _) if self.waiting_segments >= limit => {
                self.waiting.front().map(|(sent_ns, _)| *sent_ns)
            }
            (Queue::Bytes(limit), Some(rate)) if self.backlog_bytes(now_ns, rate) >= limit => {
                Some(self.free_ns - sending_ns(limit, rate))
            }
            _ => None,
        }
    }

    /// Number of a packet's segments that the queue takes.
    fn room(&self, now_ns: u64, segments: &Segments) -> u32 {
        let count = segments.count();
        let Some(rate) = self.path.rate_bit else { return count };
        match self.path.queue {
            Queue::Packets(limit) => count.min(limit.saturating_sub(self.waiting_segments)),
            Queue::Bytes(limit) => {
                let room = limit.saturating_sub(self.backlog_bytes(now_ns, rate));
                let fits = |count: &u32| segments.wire_bytes(&(0..*count)) <= room;
                (1..=count).rev().find(fits).unwrap_or(0)
            }
        }
    }

    /// Bytes on the wire of the waiting segments.
    fn backlog_bytes(&self, now_ns: u64, rate_bit: u64) -> u64 {
        let backlog_ns = u128::from(self.free_ns.saturating_sub(now_ns));
        (backlog_ns * u128::from(rate_bit) / 8_000_000_000) as u64
    }

    fn forget_sent(&mut self, now_ns: u64) {
        while let Some((sent_ns, count)) = self.waiting.front().copied().filter(|(at, _)| *at <= now_ns) {
            debug_assert!(sent_ns <= self.free_ns, "in order");
            self.waiting_segments -= count;
            self.waiting.pop_front();
        }
    }

    fn is_long(&self, segments: &Segments, range: &Range<u32>) -> bool {
        self.path.rate_bit.is_some_and(|rate| sending_ns(segments.wire_bytes(range), rate) > PIECE_NS_MAX)
    }

    fn send(&mut self, now_ns: u64, segments: &Segments, range: Range<u32>) -> Piece {
        if let Some(rate) = self.path.rate_bit {
            let sent_ns = self.free_ns.max(now_ns) + sending_ns(segments.wire_bytes(&range), rate);
            self.free_ns = sent_ns;
            let count = range.end - range.start;
            self.waiting.push_back((sent_ns, count));
            self.waiting_segments += count;
        } else {
            self.free_ns = now_ns;
        }
        Piece { range, due_ns: self.free_ns + self.path.delay.as_nanos() as u64 }
    }

    fn draw_loss(&mut self) -> bool {
        if self.path.loss <= 0.0 {
            return false;
        }
        self.drawn += 1;
        let draw = mix(self.path.seed ^ mix(self.drawn));
        (draw >> 11) as f64 / (1_u64 << 53) as f64 <= self.path.loss
    }
}

/// Serialisation time of `bytes` at this rate, in nanoseconds.
fn sending_ns(bytes: u64, rate_bit: u64) -> u64 {
    (u128::from(bytes) * 8_000_000_000 / u128::from(rate_bit.max(1))) as u64
}

#[cfg(test)]
mod tests;
