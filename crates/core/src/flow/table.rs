//! The flow table: a slab with generations and an index by five-tuple.
//!
//! The guest chooses the keys, so the index uses SipHash-1-3 with a key of this instance: it cannot aim for
//! collisions. The index is only ever looked up, never iterated, so nothing depends on its order.
//!
//! So that the flow of the lowest eviction class is found at once in a full table, flows stand in a few lists
//! by class and by group (which side has begun them, and whether they hold a port of the host), each in the
//! order in which its flows were used last ([`FlowTable::touch`]). Of each only the first few are candidates.

use super::key_hash::hash;
use super::owners::FlowOwners;
use super::{FlowId, FlowKey};
use crate::time::{Duration, Instant};
use hashbrown::HashTable;
use std::sync::Arc;

/// An entry of the table, which holds its key, so that the index need not repeat it.
pub trait Keyed {
    /// The key, the same for ever.
    fn key(&self) -> &FlowKey;
}

#[derive(Debug)]
struct Slot<F> {
    generation: u32,
    flow: Option<F>,
}

/// Groups of flows, of [`super::EvictionGroup`].
pub(super) const GROUPS: usize = 3;
/// Lists: one for each eviction class and group.
const LISTS: usize = 4 * GROUPS;
const NONE: u32 = u32::MAX;

/// Neighbours of a slot in the list it stands in.
#[derive(Debug, Clone, Copy)]
struct ListLinks {
    /// Time of its last use, in milliseconds modulo 2^32: 49 days, and keep-alive lets no flow be silent for
    /// that long.
    used_ms: u32,
    before: u32,
    behind: u32,
    list: u8,
}

/// A time in milliseconds modulo 2^32.
fn millis(time: Instant) -> u32 {
    (time.as_ns() / 1_000_000) as u32
}

/// The ends of a list: the flow that was used longest ago, and last.
#[derive(Debug, Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
}

/// Flows by id and by key.
#[derive(Debug)]
pub struct FlowTable<F> {
    slots: Vec<Slot<F>>,
    /// For each slot; of a free one it means nothing.
    links: Vec<ListLinks>,
    lists: [Ends; LISTS],
    free: Vec<u32>,
    /// Slots by the hash of the key of the flow in them.
    index: HashTable<u32>,
    secret: [u8; 16],
    /// Where keys of this table are claimed, and for which worker.
    owners: Option<(Arc<FlowOwners>, u32)>,
}

impl<F: Keyed> FlowTable<F> {
    /// An empty table that hashes with `key`.
    pub fn new(key: [u8; 16]) -> Self {
        Self {
            slots: Vec::new(),
            links: Vec::new(),
            lists: [Ends { first: NONE, last: NONE }; LISTS],
            free: Vec::new(),
            index: HashTable::new(),
            secret: key,
            owners: None,
        }
    }

    /// Claims the keys of the flows that [`FlowTable::find`] finds, present and future, for `worker`.
    pub fn claim_keys(&mut self, owners: Arc<FlowOwners>, worker: u32) {
        for &slot in &self.index {
            if let Some(key) = self.key_at(slot) {
                owners.claim(key, worker);
            }
        }
        self.owners = Some((owners, worker));
    }

    /// Owners of flows, and the worker whose table this is, if keys are claimed.
    pub fn owners(&self) -> Option<(&FlowOwners, u32)> {
        self.owners.as_ref().map(|(owners, worker)| (&**owners, *worker))
    }

    /// Flows in the table.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the table takes. Room behind the last slot, kept for growth, is not counted: no page of it
    /// was touched.
    pub fn allocated(&self) -> usize {
        self.slots.len() * (size_of::<Slot<F>>() + size_of::<ListLinks>())
            + self.free.capacity() * size_of::<u32>()
            + self.index.allocation_size()
    }

    /// The flow with this key.
    pub fn find(&self, key: &FlowKey) -> Option<FlowId> {
        let is_it = |&index: &u32| self.key_at(index) == Some(key);
        let &index = self.index.find(hash(&self.secret, key), is_it)?;
        Some(FlowId { index, generation: self.slots[index as usize].generation })
    }

    fn key_at(&self, index: u32) -> Option<&FlowKey> {
        self.slots[index as usize].flow.as_ref().map(Keyed::key)
    }

    /// The id that the next flow inserted will have, so that its socket can be opened in its name first.
    pub fn reserve(&mut self) -> FlowId {
        if self.free.is_empty() {
            self.slots.push(Slot { generation: 0, flow: None });
            self.links.push(ListLinks { used_ms: 0, before: NONE, behind: NONE, list: 0 });
            self.free.push(self.slots.len() as u32 - 1);
        }
        let index = self.free[self.free.len() - 1];
        FlowId { index, generation: self.slots[index as usize].generation }
    }

    /// Adds a flow, made by `make` from its id, to the end of `list`. Its key must be free.
    pub fn insert(&mut self, list: usize, now: Instant, make: impl FnOnce(FlowId) -> F) -> FlowId {
        let id = self.insert_unindexed(list, now, make);
        debug_assert!(self.key_at(id.index).and_then(|key| self.find(key)).is_none(), "the key was in use");
        let Self { slots, index, secret, .. } = self;
        let hash_of = |flow: &Option<F>| flow.as_ref().map_or(0, |flow| hash(secret, flow.key()));
        let own = hash_of(&slots[id.index as usize].flow);
        index.insert_unique(own, id.index, |&slot| hash_of(&slots[slot as usize].flow));
        if let (Some((owners, worker)), Some(key)) = (self.owners(), self.key_at(id.index)) {
            owners.claim(key, worker);
        }
        id
    }

    /// Adds a flow that [`FlowTable::find`] does not find; its key may be another's too.
    pub fn insert_unindexed(&mut self, list: usize, now: Instant, make: impl FnOnce(FlowId) -> F) -> FlowId {
        let id = self.reserve();
        self.free.pop();
        self.slots[id.index as usize].flow = Some(make(id));
        self.link(id.index, list, now);
        id
    }

    /// Notes that a flow is used at `now`, and that it belongs into `list`.
    pub fn touch(&mut self, id: FlowId, list: usize, now: Instant) {
        if self.get(id).is_none() {
            return;
        }
        let links = &mut self.links[id.index as usize];
        if usize::from(links.list) == list && links.behind == NONE {
            links.used_ms = millis(now);
            return;
        }
        self.unlink(id.index);
        self.link(id.index, list, now);
    }

    /// Puts a slot at the end of a list.
    fn link(&mut self, slot: u32, list: usize, now: Instant) {
        self.link_used(slot, list, millis(now));
    }

    /// The same with the time of its last use in milliseconds.
    fn link_used(&mut self, slot: u32, list: usize, used_ms: u32) {
        let before = self.lists[list].last;
        self.links[slot as usize] = ListLinks { used_ms, before, behind: NONE, list: list as u8 };
        match before {
            NONE => self.lists[list].first = slot,
            before => self.links[before as usize].behind = slot,
        }
        self.lists[list].last = slot;
    }

    /// Takes a slot out of its list.
    fn unlink(&mut self, slot: u32) {
        let ListLinks { before, behind, list, .. } = self.links[slot as usize];
        let ends = &mut self.lists[usize::from(list)];
        match before {
            NONE => ends.first = behind,
            before => self.links[before as usize].behind = behind,
        }
        match behind {
            NONE => ends.last = before,
            behind => self.links[behind as usize].before = before,
        }
    }

    /// Removes a flow; its id finds nothing from now on.
    pub fn remove(&mut self, id: FlowId) -> Option<F> {
        let slot = self.slots.get_mut(id.index as usize).filter(|s| s.generation == id.generation)?;
        let flow = slot.flow.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index);
        self.unlink(id.index);
        if let Ok(entry) = self.index.find_entry(hash(&self.secret, flow.key()), |&index| index == id.index) {
            entry.remove();
            if let Some((owners, worker)) = self.owners() {
                owners.release(flow.key(), worker);
            }
        }
        Some(flow)
    }

    /// The flow with this id, if it is still there.
    pub fn get(&self, id: FlowId) -> Option<&F> {
        self.slots.get(id.index as usize).filter(|s| s.generation == id.generation)?.flow.as_ref()
    }

    /// The flow with this id, if it is still there.
    pub fn get_mut(&mut self, id: FlowId) -> Option<&mut F> {
        self.slots.get_mut(id.index as usize).filter(|s| s.generation == id.generation)?.flow.as_mut()
    }

    /// The best victim by `rank` (larger is less useful; `None` is never evicted), which is given a flow and
    /// how long it has been idle at `now`. Of each list only the `depth` flows are candidates that were used
    /// longest ago.
    pub fn victim<R: Ord>(
        &self,
        now: Instant,
        depth: usize,
        rank: impl Fn(&F, Duration) -> Option<R>,
    ) -> Option<FlowId> {
        let candidates = self.lists.iter().flat_map(|ends| self.oldest(ends).take(depth));
        let ranked = candidates.filter_map(|slot| {
            let Slot { flow, generation } = &self.slots[slot as usize];
            let idle_ms = millis(now).wrapping_sub(self.links[slot as usize].used_ms);
            let rank = rank(flow.as_ref()?, Duration::from_millis(idle_ms.into()))?;
            Some((rank, FlowId { index: slot, generation: *generation }))
        });
        ranked.max_by(|(a, _), (b, _)| a.cmp(b)).map(|(_, id)| id)
    }

    /// The slots of a list, the one that was used longest ago first.
    fn oldest(&self, ends: &Ends) -> impl Iterator<Item = u32> {
        let some = |slot: u32| (slot != NONE).then_some(slot);
        std::iter::successors(some(ends.first), move |&slot| some(self.links[slot as usize].behind))
    }

    /// Every flow, in slot order.
    pub fn iter(&self) -> impl Iterator<Item = (FlowId, &F)> {
        self.iter_from(0)
    }

    /// Every flow from a slot on, in slot order.
    pub fn iter_from(&self, slot: u32) -> impl Iterator<Item = (FlowId, &F)> {
        self.slots.iter().enumerate().skip(slot as usize).filter_map(|(i, s)| {
            s.flow.as_ref().map(|f| (FlowId { index: i as u32, generation: s.generation }, f))
        })
    }

    /// Time since a flow was last used, at `now`, to a millisecond; zero without such a flow.
    pub fn idle(&self, id: FlowId, now: Instant) -> Duration {
        match self.get(id) {
            Some(_) => {
                let idle_ms = millis(now).wrapping_sub(self.links[id.index as usize].used_ms);
                Duration::from_millis(idle_ms.into())
            }
            None => Duration::ZERO,
        }
    }
}

mod snapshot;

pub(crate) use snapshot::Room;

#[cfg(test)]
mod tests;
