//! Scheduler of ready flows: deficit round robin with sparse flows first, after RFC 8290 (FQ-CoDel, 4.1).
//!
//! Each ready flow has a credit in bytes, spent by sending to the guest. A flow that has used its credit up,
//! or has more to send when its turn ends, joins the bulk list and gets [`TURN`] when its next turn comes.
//! Bytes of its last frame beyond its credit are a deficit. So flows that always have more to send move
//! equally many bytes, however large their frames are: they differ by at most a turn and a super-segment.
//!
//! Any other flow is *sparse*: it sends less than its share, or the link has interrupted its turn. Sparse
//! flows come before the bulk list, so the answer to a small request waits for one turn at most and not for
//! one of every bulk transfer. The priority pays for itself: a flow that sends a [`QUANTUM`] in this way has
//! its next turn in the bulk list. In each round sparse flows only go first; the others have their turns
//! after them, so neither many sparse flows nor one that pretends to be sparse can hold back a bulk transfer
//! for longer than a round.

use crate::flow::FlowId;
use crate::memory::chunk::{FILL_CHUNKS, LARGE};
use crate::memory::parked::listed_max;
use crate::snapshot::saved::{Invalid, Saved, valid};
use crate::snapshot::v1::TurnV1;
use std::collections::VecDeque;

/// Bytes that a sparse flow may send before the bulk list: one super-segment.
pub(crate) const QUANTUM: i32 = LARGE as i32;

/// Bytes that a flow may send in its turn: as much as one read from its socket gives, because fewer and
/// longer reads cost less, and more would not stay in the cache until it is written.
pub(crate) const TURN: i32 = (FILL_CHUNKS * LARGE) as i32;

/// State of one flow in the schedule.
#[derive(Debug)]
pub(crate) struct Turn {
    credit: i32,
    listed: bool,
    /// Listed in the bulk list.
    waits: bool,
}

impl Default for Turn {
    /// A new flow is sparse.
    fn default() -> Self {
        Self { credit: QUANTUM, listed: false, waits: false }
    }
}

impl Turn {
    /// Begins the turn of a flow, which is no longer listed; returns the number of bytes it may send. A flow
    /// that is `alone` gets a whole turn at once.
    pub(crate) fn begin(&mut self, alone: bool) -> u32 {
        self.listed = false;
        if alone {
            self.credit = TURN;
        } else if self.waits {
            self.credit = self.credit.min(0) + TURN;
        }
        self.credit.max(0).unsigned_abs()
    }

    /// Turn of a flow that has nothing to do, and is no longer listed.
    pub(crate) fn skip(&mut self) {
        self.listed = false;
    }

    /// Whether more may be sent in this turn.
    pub(crate) const fn goes_on(&self) -> bool {
        self.credit > 0
    }

    /// Spends `bytes` that were sent. Bytes beyond the credit are a deficit, carried over as many turns as
    /// needed.
    pub(crate) fn spend(&mut self, bytes: u32) {
        self.credit = self.credit.saturating_sub_unsigned(bytes);
    }

    /// Ends a turn with credit left, because there is nothing more to send or the flow has bounds of its own.
    pub(crate) fn end(&mut self) {
        self.credit = self.credit.min(QUANTUM);
    }
}

/// Whether a flow is listed is known by the lists.
impl Saved<TurnV1> for Turn {
    fn save(&self) -> TurnV1 {
        let Self { credit, listed: _, waits } = *self;
        TurnV1 { credit, waits }
    }

    fn restore(TurnV1 { credit, waits }: TurnV1) -> Result<Self, Invalid> {
        valid(credit <= TURN)?;
        Ok(Self { credit, listed: false, waits })
    }
}

/// Numbers of flows in a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) sparse: usize,
    pub(crate) bulk: usize,
}

/// The ready flows, each listed at most once.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    sparse: VecDeque<FlowId>,
    bulk: VecDeque<FlowId>,
}

impl Schedule {
    /// Lists a ready flow, unless it is listed.
    pub(crate) fn list(&mut self, id: FlowId, turn: &mut Turn) {
        self.list_as(id, turn, turn.credit <= 0);
    }

    /// Lists a flow that is still ready at the end of its turn.
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

    /// Numbers of flows listed.
    pub(crate) fn listed(&self) -> Listed {
        Listed { sparse: self.sparse.len(), bulk: self.bulk.len() }
    }

    /// Whether no flow is listed.
    pub(crate) fn is_empty(&self) -> bool {
        self.sparse.is_empty() && self.bulk.is_empty()
    }

    /// Takes the first sparse flow.
    pub(crate) fn next_sparse(&mut self) -> Option<FlowId> {
        self.sparse.pop_front()
    }

    /// Takes the first bulk flow.
    pub(crate) fn next_bulk(&mut self) -> Option<FlowId> {
        self.bulk.pop_front()
    }

    /// Removes flows that are gone if they are many: a link without credit serves none, while a guest opens
    /// and resets one after another. `flows` is the number of open flows, `exists` knows them.
    pub(crate) fn prune(&mut self, flows: usize, exists: impl Fn(FlowId) -> bool) {
        for list in [&mut self.sparse, &mut self.bulk] {
            if list.len() > listed_max(flows) {
                list.retain(|&id| exists(id));
            }
        }
    }

    /// Capacity in flows, for the account of memory.
    pub(crate) fn capacity(&self) -> usize {
        self.sparse.capacity() + self.bulk.capacity()
    }
}

/// For a snapshot.
impl Schedule {
    /// Sparse flows in order.
    pub(crate) fn sparse(&self) -> impl Iterator<Item = FlowId> {
        self.sparse.iter().copied()
    }

    /// Bulk flows in order.
    pub(crate) fn bulk(&self) -> impl Iterator<Item = FlowId> {
        self.bulk.iter().copied()
    }

    /// Lists a restored flow behind the others, in the bulk list if it `waits`. One without a turn is gone.
    pub(crate) fn restore(&mut self, id: FlowId, turn: Option<&mut Turn>, waits: bool) {
        if turn.is_some_and(|turn| std::mem::replace(&mut turn.listed, true)) {
            return;
        }
        if waits { self.bulk.push_back(id) } else { self.sparse.push_back(id) }
    }
}

#[cfg(test)]
mod tests;
