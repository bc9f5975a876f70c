//! One direction of a path: a transmitter of limited rate, then a delay. Frames leave in the order in which
//! they came.
//!
//! The transmitter charges bytes on the wire: a super-frame costs the headers of every segment cut from it,
//! and each segment the overhead of Ethernet. Its queue has no bound; bounded queues are in [`super::tun`].

use brodo_core::time::{Duration, Instant};
use std::collections::VecDeque;

/// A frame under way and how long it is on the wire.
#[derive(Debug, Clone)]
pub struct Frame {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Bytes on the wire, with all headers of every segment.
    pub wire_len: usize,
    /// Payload of its segments, bytes, if it is a super-frame.
    pub cut_at: Option<u16>,
}

/// A wire.
#[derive(Debug)]
pub struct Line {
    bits_per_s: Option<u64>,
    delay: Duration,
    /// Time at which the transmitter has sent everything, in picoseconds: a frame at 10 Gbit/s ends between
    /// nanoseconds.
    free_at_ps: u128,
    under_way: VecDeque<(Instant, Frame)>,
}

impl Line {
    /// A wire of this rate (`None` for no limit) and delay.
    pub fn new(bits_per_s: Option<u64>, delay: Duration) -> Self {
        Self { bits_per_s, delay, free_at_ps: 0, under_way: VecDeque::new() }
    }

    /// A frame enters at `now`.
    pub fn push(&mut self, now: Instant, frame: Frame) {
        let start = self.free_at_ps.max(u128::from(now.as_ns()) * 1000);
        let takes =
            self.bits_per_s.map_or(0, |rate| frame.wire_len as u128 * 8_000_000_000_000 / u128::from(rate));
        self.free_at_ps = start + takes;
        let sent = Instant::from_ns((self.free_at_ps / 1000) as u64);
        self.under_way.push_back((sent + self.delay, frame));
    }

    /// Time at which the next frame leaves.
    pub fn next(&self) -> Option<Instant> {
        self.under_way.front().map(|&(at, _)| at)
    }

    /// The next frame that has left by `now`.
    pub fn pop(&mut self, now: Instant) -> Option<Frame> {
        self.under_way.pop_front_if(|(at, _)| *at <= now).map(|(_, frame)| frame)
    }
}
