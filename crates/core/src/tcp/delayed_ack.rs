//! Delayed ACK: an acknowledgement waits for an answer of the host's that can carry it.
//!
//! A request that fits one segment is usually answered by the host at once, and every segment of ours
//! acknowledges. An acknowledgement of its own before the answer is then a frame for nothing, and a write to
//! a TAP runs the guest's TCP on our time. So it may wait (RFC 9293, 3.8.6.3: for less than 500 ms, and never
//! beyond a second full segment). Ours waits for [`WAIT`] at most, and only where all of this holds:
//!
//! * One segment smaller than the MSS, or a FIN, has come since our last segment. The next segment ends the
//!   wait. Acknowledged at once: a segment that is full, out of order, fills a gap, comes near the edge of
//!   the window, or waits for the host socket.
//! * An answer can come: the host has not ended its stream.
//! * The destination answers promptly ([`super::prompt_peers`]).
//!
//! The guest never notices but by its round-trip time, which then includes the host's: with one segment in
//! flight Linux waits for at least 200 ms before it sends anything again.

use super::prompt_peers::Promptness;
use crate::time::Duration;

/// How long an acknowledgement waits: longer than a program on the host takes to answer, even if it has to
/// wait for a processor, and a tenth of Linux's delay. The timer wheel may add a millisecond, the driver a
/// few.
pub(crate) const WAIT: Duration = Duration::from_millis(4);
/// Segments of the guest's since the last answer, and whether their acknowledgement waits.
#[derive(Debug)]
pub(crate) struct DelayedAck {
    pub(super) promptness: Promptness,
    /// Segments since the last answer, up to 255.
    pub(super) segments: u8,
    /// The first of them is not acknowledged yet.
    pub(super) waiting: bool,
    /// It was acknowledged by itself after a wait.
    pub(super) late: bool,
}

impl DelayedAck {
    pub(crate) fn new(promptness: Promptness) -> Self {
        Self { promptness, segments: 0, waiting: false, late: false }
    }

    pub(super) fn segments_arrived(&mut self, segments: u8) {
        self.segments = self.segments.saturating_add(segments);
        if std::mem::take(&mut self.late) {
            self.promptness.record_harm();
        }
    }

    /// Whether an acknowledgement waits.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// Something was sent, and acknowledges.
    pub(super) fn acknowledged(&mut self) {
        self.waiting = false;
    }
}
