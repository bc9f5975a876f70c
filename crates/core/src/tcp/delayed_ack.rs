//! Delayed ACK: an acknowledgement waits for an answer of the host's that can carry it.
//!
//! A request that fits one segment is usually answered by the host at once, and every segment of ours
//! acknowledges. An acknowledgement of its own before the answer is then a frame for nothing, and a write to
//! a TAP runs the guest's TCP on our time. So it may wait (RFC 9293, 3.8.6.3: "the delay MUST be less than
//! 0.5 seconds", and never beyond a second full segment). Ours waits for [`WAIT`] at most, and only where all
//! of this holds:
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
use crate::snapshot::saved::saved_struct;
use crate::snapshot::v1::DelayedAckV1;
use crate::time::{Duration, Instant};

/// Longest delay of an acknowledgement: more than a program on the host takes to answer, even if it has to
/// wait for a processor, and a tenth of Linux's delay. The timer wheel may add a millisecond, the driver a
/// few.
pub(crate) const WAIT: Duration = Duration::from_millis(4);

/// Acknowledgement owed to the guest: due at the end of the batch, or delayed.
#[derive(Debug)]
pub(crate) struct DelayedAck {
    promptness: Promptness,
    /// Segments of the guest's since the last answer, up to 255.
    segments: u8,
    /// Delay running: the acknowledgement of the first of them.
    waiting: bool,
    /// Delay expired: the first of them was acknowledged without an answer.
    late: bool,
    /// Listed in `TcpShared::ack_due`, to be sent at the end of the batch.
    listed: bool,
}

impl DelayedAck {
    /// Nothing owed yet; `promptness` is the record of the destination.
    pub(crate) fn new(promptness: Promptness) -> Self {
        Self { promptness, segments: 0, waiting: false, late: false, listed: false }
    }

    /// Arrival of `segments` in order.
    pub(crate) fn segments_arrived(&mut self, segments: u8) {
        self.segments = self.segments.saturating_add(segments);
        if std::mem::take(&mut self.late) {
            self.promptness.record_harm();
        }
    }

    /// Whether the delay is allowed so far as the segments and the destination go.
    pub(crate) fn may_wait(&self) -> bool {
        self.segments == 1 && self.promptness.is_prompt() && !self.listed
    }

    /// Start of the delay.
    pub(crate) fn wait(&mut self) {
        debug_assert!(
            self.segments == 1 && !self.listed,
            "only a single segment's acknowledgement is delayed"
        );
        self.waiting = true;
    }

    /// Whether the delay runs.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// End of the delay, if it runs, for a segment that came at `arrived_at`.
    pub(crate) fn deadline(&self, arrived_at: Instant) -> Option<Instant> {
        self.waiting.then(|| arrived_at + WAIT)
    }

    /// Expiry of the delay without an answer. Gives the record of the destination.
    pub(crate) fn expired(&mut self) -> Promptness {
        debug_assert!(self.waiting, "only a running delay expires");
        (self.waiting, self.late) = (false, true);
        self.promptness.record_late();
        self.promptness
    }

    /// Answer of the host's, data or the end of its stream, sent `delay` after the last segment. Gives
    /// whether it was prompt, and the record of the destination; `None` if there was no request.
    pub(crate) fn answered(&mut self, delay: Duration) -> Option<(bool, Promptness)> {
        if self.segments == 0 {
            return None;
        }
        let prompt = self.segments == 1 && !self.late && delay <= WAIT;
        if prompt {
            self.promptness.record_prompt();
        } else {
            self.promptness.record_late();
        }
        (self.segments, self.late) = (0, false);
        Some((prompt, self.promptness))
    }

    /// Listing for the end of the batch; false if it is listed already.
    pub(crate) fn list(&mut self) -> bool {
        !std::mem::replace(&mut self.listed, true)
    }

    /// Whether the acknowledgement is due at the end of the batch.
    pub(crate) fn is_listed(&self) -> bool {
        self.listed
    }

    /// Transmission of a segment, all of which acknowledge; `sack_owed` if SACK blocks still wait for a
    /// segment that has room for them.
    pub(crate) fn sent(&mut self, sack_owed: bool) {
        self.waiting = false;
        self.listed &= sack_owed;
    }
}
saved_struct!(DelayedAck as DelayedAckV1 { promptness, segments, waiting, late, listed });
