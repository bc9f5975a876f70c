//! The timer wheel in a snapshot: each entry's tick, in the order of the lists.
//!
//! The list of an entry follows from its tick and the wheel's present one; what must be kept is the order
//! within a list, because flows that are due at one tick act in it.

use super::{DUE, LEVELS, NONE, Node, SLOT_BITS, SLOTS, TICK_NS, UNLINKED, Wheel};
use crate::flow::FlowId;
use crate::snapshot::v1::TimersV1;
use crate::time::Instant;

impl Wheel {
    /// Saved form.
    pub(crate) fn save(&self) -> TimersV1 {
        let Self { now, nodes, heads, occupied: _ } = self;
        debug_assert_eq!(heads[DUE], NONE, "due entries are taken in the turn in which they are due");
        let next = |&index: &u32| Some(nodes[index as usize].next).filter(|&next| next != NONE);
        let list = |&head: &u32| std::iter::successors(Some(head).filter(|&head| head != NONE), next);
        let entries = heads.iter().flat_map(list).map(|index| (index, nodes[index as usize].tick));
        TimersV1 { now: *now, entries: entries.collect() }
    }

    /// Takes the entries of a saved form; `flow_at` gives the flow in a slot. Entries of no flow, and such as
    /// no wheel at `now` can have, are left out.
    pub(crate) fn restore(
        &mut self,
        now: Instant,
        saved: &TimersV1,
        flow_at: impl Fn(u32) -> Option<FlowId>,
    ) {
        self.now = saved.now.min(now.as_ns() / TICK_NS);
        let span = (1 << (SLOT_BITS * LEVELS as u32)) - SLOTS as u64;
        // Lists are linked at their heads, so the last comes first.
        for &(index, tick) in saved.entries.iter().rev() {
            let Some(FlowId { generation, .. }) = flow_at(index) else { continue };
            if tick <= self.now || tick > self.now + span || self.is_armed(index) {
                continue;
            }
            if index as usize >= self.nodes.len() {
                self.nodes.resize(index as usize + 1, UNLINKED);
            }
            self.nodes[index as usize] = Node { tick, generation, ..UNLINKED };
            self.place(index);
        }
    }

    /// Whether the flow in a slot has an entry.
    pub(crate) fn is_armed(&self, index: u32) -> bool {
        self.nodes.get(index as usize).is_some_and(|node| node.list != NONE)
    }
}
