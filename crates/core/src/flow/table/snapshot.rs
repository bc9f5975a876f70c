//! The flow table in a snapshot: generations of the slots, the order of free ones, the order of use.
//!
//! Flows are placed into their slots one by one, each under the id that it had, because host sockets and
//! observers know it by that; then the orders are restored. All of this record is about order: without it a
//! table is as good, and flows stand in their lists as if they were used now.

use super::{FlowTable, Keyed, LISTS, ListLinks, NONE, Slot, hash, millis};
use crate::flow::{FlowId, FlowKey};
use crate::snapshot::v1::TableV1;
use crate::time::Instant;

/// Memory for a table, whose pages are in use already: the first touch of each takes the kernel's time, 7 ms
/// for ten thousand flows, which a guest would wait for.
pub(crate) struct Room<F> {
    slots: Vec<Slot<F>>,
    links: Vec<ListLinks>,
}

impl<F> Room<F> {
    /// Of so many flows.
    pub(crate) fn of(flows: usize) -> Self {
        let (mut slots, mut links) = (Vec::with_capacity(flows), Vec::with_capacity(flows));
        slots.resize_with(flows, Slot::vacant);
        links.resize_with(flows, ListLinks::none);
        slots.clear();
        links.clear();
        Self { slots, links }
    }
}

impl<F> Slot<F> {
    /// Without a flow, and not yet free.
    const fn vacant() -> Self {
        Self { generation: 0, flow: None }
    }
}

impl ListLinks {
    /// Of a slot in no list.
    const fn none() -> Self {
        Self { used_ms: 0, before: NONE, behind: NONE, list: 0 }
    }
}

impl<F: Keyed> FlowTable<F> {
    /// Uses this memory, if there is no flow yet.
    pub(crate) fn use_room(&mut self, room: Room<F>) {
        if self.slots.is_empty() {
            (self.slots, self.links) = (room.slots, room.links);
        }
    }

    /// Saved form, without the flows.
    pub(crate) fn save(&self) -> TableV1 {
        let Self { slots, links, lists, free, index: _, secret: _, owners: _ } = self;
        let list = |ends| self.oldest(ends).map(|slot| (slot, links[slot as usize].used_ms)).collect();
        TableV1 {
            generations: slots.iter().map(|slot| slot.generation).collect(),
            free: free.clone(),
            lists: lists.iter().map(list).collect(),
        }
    }

    /// Key of the hash.
    pub(crate) const fn secret(&self) -> [u8; 16] {
        self.secret
    }

    /// Id of the flow in a slot.
    pub(crate) fn id_at(&self, index: u32) -> Option<FlowId> {
        let slot = self.slots.get(index as usize).filter(|slot| slot.flow.is_some())?;
        Some(FlowId { index, generation: slot.generation })
    }

    /// Whether a restored flow may have this id, and this key if it is to be found by it.
    pub(crate) fn has_place(&self, id: FlowId, key: Option<&FlowKey>) -> bool {
        self.slots.get(id.index as usize).is_none_or(|slot| slot.flow.is_none())
            && key.is_none_or(|key| self.find(key).is_none())
    }

    /// Puts a flow into its slot, which must be free ([`FlowTable::has_place`]). Orders follow by
    /// [`FlowTable::restore_order`].
    pub(crate) fn place(&mut self, id: FlowId, indexed: bool, flow: F) {
        debug_assert!(self.has_place(id, indexed.then(|| flow.key())), "a slot holds one flow");
        self.grow(id.index as usize + 1);
        let own = hash(&self.secret, flow.key());
        self.slots[id.index as usize] = Slot { generation: id.generation, flow: Some(flow) };
        if indexed {
            let Self { slots, index, secret, .. } = self;
            let hash_of =
                |&slot: &u32| slots[slot as usize].flow.as_ref().map_or(0, |flow| hash(secret, flow.key()));
            index.insert_unique(own, id.index, hash_of);
        }
    }

    /// Restores the order of free slots and of use, so far as `saved` has one; `list_of` gives the list of
    /// any other flow. At most `slots_max` slots are made.
    pub(crate) fn restore_order(
        &mut self,
        now: Instant,
        slots_max: usize,
        saved: Option<&TableV1>,
        list_of: impl Fn(&F) -> usize,
    ) {
        let empty = TableV1 { generations: Vec::new(), free: Vec::new(), lists: Vec::new() };
        let TableV1 { generations, free, lists } = saved.unwrap_or(&empty);
        self.grow(generations.len().min(slots_max));
        for (slot, generation) in self.slots.iter_mut().zip(generations) {
            if slot.flow.is_none() {
                slot.generation = *generation;
            }
        }
        let mut known: Vec<bool> = self.slots.iter().map(|slot| slot.flow.is_some()).collect();
        let mut is_new =
            |slot: u32| known.get_mut(slot as usize).is_some_and(|k| !std::mem::replace(k, true));
        self.free.extend(free.iter().copied().filter(|&slot| is_new(slot)));
        for slot in 0..self.slots.len() as u32 {
            if is_new(slot) {
                // A flow that was left out: its id is over.
                let generation = &mut self.slots[slot as usize].generation;
                *generation = generation.wrapping_add(1);
                self.free.push(slot);
            }
        }
        let mut linked: Vec<bool> = self.slots.iter().map(|slot| slot.flow.is_none()).collect();
        for (list, order) in lists.iter().take(LISTS).enumerate() {
            for &(slot, used_ms) in order {
                if linked.get_mut(slot as usize).is_some_and(|l| !std::mem::replace(l, true)) {
                    self.link_used(slot, list, used_ms);
                }
            }
        }
        for slot in (0..self.slots.len()).filter(|&slot| !linked[slot]) {
            let list = self.slots[slot].flow.as_ref().map_or(0, &list_of);
            self.link_used(slot as u32, list, millis(now));
        }
    }

    /// Makes room for so many flows at once: a table that grows step by step while it is restored is copied
    /// several times over, and each copy takes new pages.
    pub(crate) fn make_room(&mut self, flows: usize) {
        self.slots.reserve_exact(flows.saturating_sub(self.slots.len()));
        self.links.reserve_exact(flows.saturating_sub(self.links.len()));
        let Self { slots, index, secret, .. } = self;
        let hash_of =
            |&slot: &u32| slots[slot as usize].flow.as_ref().map_or(0, |flow| hash(secret, flow.key()));
        index.reserve(flows.saturating_sub(index.len()), hash_of);
    }

    /// Makes slots, without flow and not yet free, until there are `len`.
    fn grow(&mut self, len: usize) {
        while self.slots.len() < len {
            self.slots.push(Slot::vacant());
            self.links.push(ListLinks::none());
        }
    }
}
