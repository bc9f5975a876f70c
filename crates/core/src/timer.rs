//! Timer wheel: one coarse, hierarchical wheel for all flows.
//!
//! Four levels of 64 slots: 1 ms, 64 ms, 4.1 s and 262 s per slot, 4.6 hours in all; later deadlines are
//! clamped and armed again when they fire. A flow keeps its own exact deadlines and has at most one entry
//! here, linked into a slot's list through the flow's index: arming, moving and cancelling are O(1) and
//! allocate nothing. When a deadline moves *later* the entry stays and simply fires early, and the flow arms
//! it again; that makes "restart the retransmission timer" on every acknowledgement free. By the flow's own
//! clock nothing is early, because the flow compares, and nothing is later than one tick plus the driver's
//! sleep.

use crate::flow::FlowId;
use crate::time::{Duration, Instant};

const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 4;
/// Index of the list of due entries, which [`Wheel::pop`] takes.
const DUE: usize = LEVELS * SLOTS;
const TICK_NS: u64 = 1_000_000;
const NONE: u32 = u32::MAX;

/// Length of a tick, to which deadlines are rounded up.
pub const TICK: Duration = Duration::from_nanos(TICK_NS);

/// A flow's entry: linked if `list` is not `NONE`.
#[derive(Debug, Clone, Copy)]
struct Node {
    tick: u64,
    generation: u32,
    list: u32,
    previous: u32,
    next: u32,
}

const UNLINKED: Node = Node { tick: 0, generation: 0, list: NONE, previous: NONE, next: NONE };

/// The wheel.
#[derive(Debug)]
pub struct Wheel {
    /// Every entry at a tick up to and including this one has been moved to the due list.
    now: u64,
    nodes: Vec<Node>,
    heads: [u32; DUE + 1],
    occupied: [u64; LEVELS],
}

impl Default for Wheel {
    fn default() -> Self {
        Self { now: 0, nodes: Vec::new(), heads: [NONE; DUE + 1], occupied: [0; LEVELS] }
    }
}

impl Wheel {
    /// Bytes allocated by the entries.
    pub fn allocated(&self) -> usize {
        self.nodes.len() * size_of::<Node>()
    }

    /// Arms the entry of `flow` for the first tick not before `at` (always in the future). An earlier entry
    /// stays.
    pub fn arm(&mut self, flow: FlowId, at: Instant) {
        let span = (1u64 << (SLOT_BITS * LEVELS as u32)) - SLOTS as u64;
        let tick = at.as_ns().div_ceil(TICK_NS).clamp(self.now + 1, self.now + span);
        let index = flow.index as usize;
        if index >= self.nodes.len() {
            self.nodes.resize(index + 1, UNLINKED);
        }
        let node = self.nodes[index];
        if node.list != NONE {
            if node.tick <= tick && node.generation == flow.generation {
                return;
            }
            self.unlink(flow.index);
        }
        self.nodes[index] = Node { tick, generation: flow.generation, ..UNLINKED };
        self.place(flow.index);
    }

    /// Removes the entry of `flow`, before the flow's end.
    pub fn cancel(&mut self, flow: FlowId) {
        if self.nodes.get(flow.index as usize).is_some_and(|n| n.list != NONE) {
            self.unlink(flow.index);
        }
    }

    /// Moves the wheel to `now`; due entries are then taken with [`Wheel::pop`].
    pub fn advance(&mut self, now: Instant) {
        let target = now.as_ns() / TICK_NS;
        while self.now < target {
            // Jump over empty stretches: nothing can fire before the next occupied slot of some level.
            let next = self.next_tick().unwrap_or(target);
            self.now = next.clamp(self.now + 1, target);
            for level in (0..LEVELS).rev() {
                let shift = SLOT_BITS * level as u32;
                if self.now.trailing_zeros() >= shift {
                    self.empty(level, (self.now >> shift) as usize % SLOTS);
                }
            }
        }
    }

    /// One flow whose entry is due, if any.
    pub fn pop(&mut self) -> Option<FlowId> {
        let index = self.heads[DUE];
        if index == NONE {
            return None;
        }
        debug_assert!(self.nodes[index as usize].tick <= self.now, "an entry is due at its tick, not before");
        self.unlink(index);
        Some(FlowId { index, generation: self.nodes[index as usize].generation })
    }

    /// Time of the next [`Wheel::advance`]. May be early (an upper level must be redistributed), is never
    /// late.
    pub fn next(&self) -> Option<Instant> {
        if self.heads[DUE] != NONE {
            return Some(Instant::from_ns(self.now * TICK_NS));
        }
        self.next_tick().map(|t| Instant::from_ns(t * TICK_NS))
    }

    fn next_tick(&self) -> Option<u64> {
        (0..LEVELS)
            .filter_map(|level| {
                let position = self.now >> (SLOT_BITS * level as u32);
                let current = (position % SLOTS as u64) as u32;
                // Slots ahead of the current one, nearest first; the current slot itself means a full turn.
                let ahead = self.occupied[level].rotate_right(current + 1);
                let slots = position + 1 + u64::from(ahead.trailing_zeros());
                (ahead != 0).then(|| slots << (SLOT_BITS * level as u32))
            })
            .min()
    }

    /// Links a node with its tick set into the list where it now belongs.
    fn place(&mut self, index: u32) {
        let tick = self.nodes[index as usize].tick;
        if tick <= self.now {
            return self.link(DUE, index);
        }
        let level = (tick ^ self.now).ilog2() / SLOT_BITS;
        let level = (level as usize).min(LEVELS - 1);
        let slot = (tick >> (SLOT_BITS * level as u32)) as usize % SLOTS;
        self.occupied[level] |= 1 << slot;
        self.link(level * SLOTS + slot, index);
    }

    /// Redistributes the entries of a slot: one level down, or to the due list.
    fn empty(&mut self, level: usize, slot: usize) {
        self.occupied[level] &= !(1 << slot);
        let mut index = std::mem::replace(&mut self.heads[level * SLOTS + slot], NONE);
        while index != NONE {
            let next = self.nodes[index as usize].next;
            self.place(index);
            index = next;
        }
    }

    fn link(&mut self, list: usize, index: u32) {
        let head = std::mem::replace(&mut self.heads[list], index);
        let node = &mut self.nodes[index as usize];
        (node.list, node.previous, node.next) = (list as u32, NONE, head);
        if head != NONE {
            self.nodes[head as usize].previous = index;
        }
    }

    fn unlink(&mut self, index: u32) {
        let Node { list, previous, next, .. } = self.nodes[index as usize];
        debug_assert!(list != NONE, "an entry is unlinked once");
        match previous {
            NONE => self.heads[list as usize] = next,
            previous => self.nodes[previous as usize].next = next,
        }
        if next != NONE {
            self.nodes[next as usize].previous = previous;
        }
        if self.heads[list as usize] == NONE && (list as usize) < DUE {
            self.occupied[list as usize / SLOTS] &= !(1 << (list as usize % SLOTS));
        }
        self.nodes[index as usize].list = NONE;
    }
}

mod snapshot;
#[cfg(test)]
mod tests;
