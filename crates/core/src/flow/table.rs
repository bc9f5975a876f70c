//! The flow table: a slab with generations and an index by five-tuple.
//!
//! The guest chooses the keys, so the index uses SipHash-1-3 with a key of this instance: it cannot aim for
//! collisions. The index is only ever looked up, never iterated, so nothing depends on its order.

use super::{FlowId, FlowKey, Protocol};
use hashbrown::HashTable;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};

/// What is kept in the table knows its key, so that the index need not repeat it.
pub trait Keyed {
    /// The key, the same for ever.
    fn key(&self) -> &FlowKey;
}

/// A key as the bytes that are hashed: one write into the hasher instead of a dozen.
fn packed(key: &FlowKey) -> [u8; 38] {
    let mut bytes = [0; 38];
    let put = |bytes: &mut [u8; 38], at: usize, address: &SocketAddr| {
        match address.ip() {
            IpAddr::V4(ip) => bytes[at..at + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes[at..at + 16].copy_from_slice(&ip.octets()),
        }
        bytes[at + 16..at + 18].copy_from_slice(&address.port().to_ne_bytes());
    };
    put(&mut bytes, 0, &key.guest);
    put(&mut bytes, 18, &key.remote);
    bytes[36] = match key.protocol {
        Protocol::Tcp => 0,
        Protocol::Udp => 1,
        Protocol::Echo => 2,
    };
    bytes[37] = u8::from(key.guest.is_ipv6());
    bytes
}

fn hash(secret: &[u8; 16], key: &FlowKey) -> u64 {
    let mut hasher = SipHasher13::new_with_key(secret);
    hasher.write(&packed(key));
    hasher.finish()
}

#[derive(Debug)]
struct Slot<F> {
    generation: u32,
    flow: Option<F>,
}

/// Flows by id and by key.
#[derive(Debug)]
pub struct FlowTable<F> {
    slots: Vec<Slot<F>>,
    free: Vec<u32>,
    /// Slots by the hash of the key of what is in them.
    index: HashTable<u32>,
    secret: [u8; 16],
    sweep: usize,
}

impl<F: Keyed> FlowTable<F> {
    /// An empty table that hashes with `key`.
    pub fn new(key: [u8; 16]) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), index: HashTable::new(), secret: key, sweep: 0 }
    }

    /// Flows in the table.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Bytes that the table takes. Room behind the last slot, kept for growth, is not counted: no page of it was touched.
    pub fn allocated(&self) -> usize {
        self.slots.len() * size_of::<Slot<F>>()
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
            self.free.push(self.slots.len() as u32 - 1);
        }
        let index = self.free[self.free.len() - 1];
        FlowId { index, generation: self.slots[index as usize].generation }
    }

    /// Adds a flow, made by `make` from its id. Its key must be free.
    pub fn insert(&mut self, make: impl FnOnce(FlowId) -> F) -> FlowId {
        let id = self.reserve();
        self.free.pop();
        let flow = make(id);
        debug_assert!(self.find(flow.key()).is_none(), "the key was in use");
        let Self { slots, index, secret, .. } = self;
        let hash_of = |flow: &Option<F>| flow.as_ref().map_or(0, |flow| hash(secret, flow.key()));
        slots[id.index as usize].flow = Some(flow);
        let own = hash_of(&slots[id.index as usize].flow);
        index.insert_unique(own, id.index, |&slot| hash_of(&slots[slot as usize].flow));
        id
    }

    /// Removes a flow; its id finds nothing from now on.
    pub fn remove(&mut self, id: FlowId) -> Option<F> {
        let slot = self.slots.get_mut(id.index as usize).filter(|s| s.generation == id.generation)?;
        let flow = slot.flow.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index);
        if let Ok(entry) = self.index.find_entry(hash(&self.secret, flow.key()), |&index| index == id.index) {
            entry.remove();
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

    /// The best victim among the next `look` slots, by `rank` (larger is less useful; `None` is never evicted).
    /// Successive calls look at successive slots, so that the cost of one new flow at a full table is bounded.
    pub fn victim(&mut self, look: usize, rank: impl Fn(&F) -> Option<u64>) -> Option<FlowId> {
        let mut best: Option<(u64, FlowId)> = None;
        for _ in 0..look.min(self.slots.len()) {
            self.sweep = (self.sweep + 1) % self.slots.len();
            let slot = &self.slots[self.sweep];
            if let Some(rank) = slot.flow.as_ref().and_then(&rank)
                && best.is_none_or(|(r, _)| rank > r)
            {
                best = Some((rank, FlowId { index: self.sweep as u32, generation: slot.generation }));
            }
        }
        best.map(|(_, id)| id)
    }

    /// Every flow, in slot order.
    pub fn iter(&self) -> impl Iterator<Item = (FlowId, &F)> {
        self.slots.iter().enumerate().filter_map(|(i, s)| {
            s.flow.as_ref().map(|f| (FlowId { index: i as u32, generation: s.generation }, f))
        })
    }
}

#[cfg(test)]
mod tests;
