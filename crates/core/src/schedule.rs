//! Which flow is served next: deficit round robin with sparse flows first, after RFC 8290 (FQ-CoDel, 4.1).
//!
//! A flow that has something to do is listed. Each has a credit in bytes that what it sends to the guest
//! takes from. A flow that has used its credit up, or has more to send when its turn ends, waits with others
//! of its kind and gets [`TURN`] when its next turn comes. Bytes of its last frame beyond its credit are a
//! deficit. So flows that always have more to send move equally many bytes, however large their frames are:
//! they differ by at most a turn and a super-segment.
//!
//! Any other flow is *sparse*: it sends less than its share, or the link has interrupted its turn. It comes
//! before all that have used theirs up, so the answer to a small request waits for one turn at most and not
//! for one of every bulk transfer. The priority pays for itself: a flow that sends a [`QUANTUM`] in this way
//! has its next turn among the others. In each round sparse flows only go first; the others have their turns
//! after them, so neither many sparse flows nor one that pretends to be sparse can hold back a bulk transfer
//! for longer than a round.

use crate::flow::FlowId;
use crate::memory::chunk::{FILL_CHUNKS, LARGE};
use std::collections::VecDeque;

/// Bytes that a flow may send before those that wait: one super-segment.
pub(crate) const QUANTUM: i32 = LARGE as i32;

/// Bytes that a flow may send when its turn comes: as much as one read from its socket gives, because fewer
/// and longer reads cost less, and more would not stay in the cache until it is written.
pub(crate) const TURN: i32 = (FILL_CHUNKS * LARGE) as i32;

/// A flow's place in the schedule.
#[derive(Debug)]
pub(crate) struct Turn {
    credit: i32,
    listed: bool,
    /// Waits among those that are not sparse.
    waits: bool,
}

impl Default for Turn {
    /// A new flow is sparse.
    fn default() -> Self {
        Self { credit: QUANTUM, listed: false, waits: false }
    }
}

impl Turn {
    /// The flow has its turn and is no longer listed: how many bytes it may send. One that is `alone` need
    /// not have waited for its turn.
    pub(crate) fn begin(&mut self, alone: bool) -> u32 {
        self.listed = false;
        if alone {
            self.credit = TURN;
        } else if self.waits {
            self.credit = self.credit.min(0) + TURN;
        }
        self.credit.max(0).unsigned_abs()
    }

    /// Whether more may be sent in this turn.
    pub(crate) const fn goes_on(&self) -> bool {
        self.credit > 0
    }

    /// `bytes` were sent. Bytes beyond the credit are a deficit, carried over as many turns as needed.
    pub(crate) fn spend(&mut self, bytes: u32) {
        self.credit = self.credit.saturating_sub_unsigned(bytes);
    }

    /// The turn is over before the credit was used up, because there is nothing more to send or it has bounds
    /// of its own.
    pub(crate) fn end(&mut self) {
        self.credit = self.credit.min(QUANTUM);
    }
}

/// The flows that have something to do, each listed at most once.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    sparse: VecDeque<FlowId>,
    bulk: VecDeque<FlowId>,
}

impl Schedule {
    /// Lists a flow that has something to do, unless it is listed.
    pub(crate) fn list(&mut self, id: FlowId, turn: &mut Turn) {
        self.list_as(id, turn, turn.credit <= 0);
    }

    /// Lists a flow that has more to do at the end of its turn.
    pub(crate) fn list_again(&mut self, id: FlowId, turn: &mut Turn) {
        self.list_as(id, turn, true);
    }

    fn list_as(&mut self, id: FlowId, turn: &mut Turn, waits: bool) {
        if std::mem::replace(&mut turn.listed, true) {
            return;
        }
        turn.waits = waits;
        if waits { self.bulk.push_back(id) } else { self.sparse.push_back(id) }
    }

    /// Sparse flows and others that are listed now.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.sparse.len(), self.bulk.len())
    }

    /// Whether no flow is listed.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == (0, 0)
    }

    /// Takes the sparse flow that was listed first.
    pub(crate) fn next_sparse(&mut self) -> Option<FlowId> {
        self.sparse.pop_front()
    }

    /// Takes the flow that waits longest of those that are not sparse.
    pub(crate) fn next_bulk(&mut self) -> Option<FlowId> {
        self.bulk.pop_front()
    }

    /// Flows for which there is room without an allocation.
    pub(crate) fn capacity(&self) -> usize {
        self.sparse.capacity() + self.bulk.capacity()
    }
}

#[cfg(test)]
mod tests;
