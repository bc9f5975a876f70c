//! The queue of a TUN device: a number of frames of any length, and a reader that must first be woken.
//!
//! # Limit of the reader
//!
//! A guest's TCP sends from within the processing of an acknowledgement: everything that one acknowledgement
//! allows is in the queue before any other process runs. The reader is such a process. It is woken by the
//! first frame and has its turn a moment later ([`WAKE`]); then it takes everything there is. So it is not
//! the reader's throughput that bounds the queue (at 120 ms these flows need some 200 Mbit/s of the several
//! Gbit/s it could read), but the longest burst that is sent between two of its turns.
//!
//! Bursts do not disperse. Frames read together travel together, arrive together, and are acknowledged by one
//! acknowledgement, because brodo acknowledges once for each batch; that one acknowledgement releases the
//! next burst, twice as long in slow start. A window therefore crosses the path as a few bursts, in the end
//! as one, and a tail-drop queue of Q frames carries about Q frames in a round trip: `Q * MSS / RTT`. The
//! measured rate lies some 10 to 15 per cent below, which are the troughs of CUBIC, and is the same with 5 us
//! and 500 us for the wake.
//!
//! With stop and wake the same queue, once full, stops the guest's queueing discipline instead; the frames
//! stay where they are until the reader has had its turn.
//!
//! A queue of known length drops its tail as well, but never has to: the TX queue budget keeps the advertised
//! windows within its room.

use super::line::Frame;
use brodo_core::time::{Duration, Instant};
use std::collections::VecDeque;

/// Delay from the first frame in an empty queue to the reader's turn.
const WAKE: Duration = Duration::from_micros(50);

/// Treatment of a frame that finds the queue full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WhenFull {
    /// It is dropped, as every kernel before Linux 7.3 does.
    Drop,
    /// It is dropped, but brodo knows how many frames the queue holds.
    DropKnown,
    /// It waits in the guest's queueing discipline.
    Stop,
}

/// The device.
#[derive(Debug)]
pub struct Tun {
    frames_max: usize,
    when_full: WhenFull,
    queue: VecDeque<Frame>,
    /// Frames held back in the guest.
    waiting: VecDeque<Frame>,
    reader_at: Option<Instant>,
    dropped: u64,
    longest: usize,
}

impl Tun {
    /// A device whose queue holds so many frames.
    pub fn new(frames_max: usize, when_full: WhenFull) -> Self {
        Self {
            frames_max,
            when_full,
            queue: VecDeque::new(),
            waiting: VecDeque::new(),
            reader_at: None,
            dropped: 0,
            longest: 0,
        }
    }

    /// Frames dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The most frames that were in the queue at once.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// The guest sends a frame.
    pub fn push(&mut self, now: Instant, frame: Frame) {
        if self.queue.len() < self.frames_max && self.waiting.is_empty() {
            self.enqueue(now, frame);
        } else if self.when_full == WhenFull::Stop {
            self.waiting.push_back(frame);
        } else {
            self.dropped += 1;
        }
    }

    fn enqueue(&mut self, now: Instant, frame: Frame) {
        self.queue.push_back(frame);
        self.longest = self.longest.max(self.queue.len());
        self.reader_at = self.reader_at.or(Some(now + WAKE));
    }

    /// Time of the reader's next turn.
    pub fn next(&self) -> Option<Instant> {
        self.reader_at
    }

    /// The reader's turn, if it has come: takes what is in the queue, and wakes a guest that was stopped.
    pub fn read(&mut self, now: Instant) -> VecDeque<Frame> {
        if self.reader_at.is_none_or(|at| at > now) {
            return VecDeque::new();
        }
        self.reader_at = None;
        let taken = std::mem::take(&mut self.queue);
        while self.queue.len() < self.frames_max
            && let Some(frame) = self.waiting.pop_front()
        {
            self.enqueue(now, frame);
        }
        taken
    }
}
