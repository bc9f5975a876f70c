//! The path between guest and stack: small nodes in a row, each with one fault or one limit.
//!
//! A node takes a frame at its time of arrival and gives its departures: one, none or several. [`Path`] keeps
//! the frames under way in order of time (equal times in order of arrival), so nodes compose freely and a run
//! depends on nothing but its seed.

use crate::rng::Rng;
use brodo_core::time::{Duration, Instant};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// A frame leaving a node, and when.
pub type Departure = (Instant, Vec<u8>);

/// One node of a path. Frames enter in order of time.
pub trait Node {
    /// Takes a frame that arrives at `at`; pushes the departing frames, none if it is lost.
    fn pass(&mut self, at: Instant, frame: Vec<u8>, out: &mut Vec<Departure>);
}

/// A constant delay.
#[derive(Debug, Clone)]
pub struct Delay(pub Duration);

impl Node for Delay {
    fn pass(&mut self, at: Instant, frame: Vec<u8>, out: &mut Vec<Departure>) {
        out.push((at + self.0, frame));
    }
}

/// A transmitter of limited rate behind a tail-drop queue.
#[derive(Debug, Clone)]
pub struct Bottleneck {
    bits_per_s: u64,
    frames_max: usize,
    /// Time at which each frame in the queue will have been sent.
    leaving: VecDeque<Instant>,
    dropped: u64,
}

impl Bottleneck {
    /// A bottleneck of this rate whose queue holds `frames_max` frames, the one being sent included.
    pub fn new(bits_per_s: u64, frames_max: usize) -> Self {
        Self { bits_per_s, frames_max, leaving: VecDeque::new(), dropped: 0 }
    }

    /// Frames dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl Node for Bottleneck {
    fn pass(&mut self, at: Instant, frame: Vec<u8>, out: &mut Vec<Departure>) {
        while self.leaving.front().is_some_and(|&sent| sent <= at) {
            self.leaving.pop_front();
        }
        if self.leaving.len() >= self.frames_max {
            self.dropped += 1;
            return;
        }
        let start = self.leaving.back().copied().unwrap_or(at);
        let takes_ns = frame.len() as u64 * 8 * 1_000_000_000 / self.bits_per_s;
        let end = start + Duration::from_nanos(takes_ns);
        self.leaving.push_back(end);
        out.push((end, frame));
    }
}

/// Frames are lost with a probability.
#[derive(Debug, Clone)]
pub struct Loss {
    /// Probability in thousandths.
    pub per_mille: u32,
    /// Source of the draws.
    pub rng: Rng,
}

impl Node for Loss {
    fn pass(&mut self, at: Instant, frame: Vec<u8>, out: &mut Vec<Departure>) {
        if !self.rng.chance(self.per_mille) {
            out.push((at, frame));
        }
    }
}

/// Frames arrive twice with a probability.
#[derive(Debug, Clone)]
pub struct Duplicate {
    /// Probability in thousandths.
    pub per_mille: u32,
    /// Source of the draws.
    pub rng: Rng,
}

impl Node for Duplicate {
    fn pass(&mut self, at: Instant, frame: Vec<u8>, out: &mut Vec<Departure>) {
        if self.rng.chance(self.per_mille) {
            out.push((at, frame.clone()));
        }
        out.push((at, frame));
    }
}

/// Frames are held back with a probability, so that later ones overtake them.
#[derive(Debug, Clone)]
pub struct Reorder {
    /// Probability in thousandths.
    pub per_mille: u32,
    /// The longest that a frame is held back.
    pub by_max: Duration,
    /// Source of the draws.
    pub rng: Rng,
}

impl Node for Reorder {
    fn pass(&mut self, at: Instant, frame: Vec<u8>, out: &mut Vec<Departure>) {
        let late = self.rng.chance(self.per_mille);
        let by = if late { self.rng.below(self.by_max.as_nanos() as u64 + 1) } else { 0 };
        out.push((at + Duration::from_nanos(by), frame));
    }
}

/// One bit of the IP packet is flipped with a probability; checksums must find it. ARP, which has none, is
/// spared.
#[derive(Debug, Clone)]
pub struct Corrupt {
    /// Probability in thousandths.
    pub per_mille: u32,
    /// Source of the draws.
    pub rng: Rng,
}

impl Node for Corrupt {
    fn pass(&mut self, at: Instant, mut frame: Vec<u8>, out: &mut Vec<Departure>) {
        let arp = frame.get(12..14) == Some(&[0x08, 0x06]);
        if frame.len() > 14 && !arp && self.rng.chance(self.per_mille) {
            let bit = 14 * 8 + self.rng.below((frame.len() as u64 - 14) * 8) as usize;
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        out.push((at, frame));
    }
}

/// IP packets above a size are lost without an ICMP error (a black hole).
#[derive(Debug, Clone)]
pub struct Mtu(pub usize);

impl Node for Mtu {
    fn pass(&mut self, at: Instant, frame: Vec<u8>, out: &mut Vec<Departure>) {
        if frame.len() <= 14 + self.0 {
            out.push((at, frame));
        }
    }
}

/// A frame on its way: when it arrives at which node, and a number that keeps equal times in order.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UnderWay {
    at: Instant,
    order: u64,
    node: usize,
    frame: Vec<u8>,
}

/// Nodes in a row, in one direction.
#[derive(Default)]
pub struct Path {
    nodes: Vec<Box<dyn Node>>,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    order: u64,
}

impl Path {
    /// A path through these nodes; none at all is a wire without delay.
    pub fn new(nodes: Vec<Box<dyn Node>>) -> Self {
        Self { nodes, ..Self::default() }
    }

    /// A frame enters at `now`.
    pub fn push(&mut self, now: Instant, frame: Vec<u8>) {
        self.enter(now, 0, frame);
    }

    /// Time of the next event on the path.
    pub fn next(&self) -> Option<Instant> {
        self.under_way.peek().map(|Reverse(u)| u.at)
    }

    /// Frames under way.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// The next frame that has left the path by `now`.
    pub fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        while self.under_way.peek().is_some_and(|Reverse(u)| u.at <= now) {
            let Reverse(u) = self.under_way.pop()?;
            let Some(node) = self.nodes.get_mut(u.node) else {
                return Some(u.frame);
            };
            node.pass(u.at, u.frame, &mut out);
            for (at, frame) in out.drain(..) {
                self.enter(at, u.node + 1, frame);
            }
        }
        None
    }

    fn enter(&mut self, at: Instant, node: usize, frame: Vec<u8>) {
        self.under_way.push(Reverse(UnderWay { at, order: self.order, node, frame }));
        self.order += 1;
    }
}

#[cfg(test)]
mod tests;
