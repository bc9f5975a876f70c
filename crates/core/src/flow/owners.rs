//! Owners of flows: the worker that has the flow of a key, where frames of one flow may come to any of them.
//!
//! A virtual machine chooses the queue of a frame by the processor that its thread runs on, so a flow moves
//! between queues and thus between workers. The flow itself stays with the worker that has opened it. That
//! one claims its key here; another worker that gets a frame of it learns the owner and passes the frame on.
//!
//! Claims are exclusive, so two workers never open the same flow. A worker claims the key of a frame that may
//! open a flow before it looks at the rest of the frame, and gives the key up if no flow came of it.
//!
//! The guest's MAC address is shared beside them: the frame that teaches it comes to one worker, and another
//! one may be the first to send. Further facts are in [`AcrossWorkers`].
//!
//! Cost: a lock of one part in 64 for each flow that begins or ends, and for each frame that does not belong
//! to a flow of the worker that gets it; none for a frame that does. The guest chooses the keys, so they are
//! hashed with a secret.

use super::FlowKey;
use super::key_hash;
use crate::across_workers::AcrossWorkers;
use crate::wire::ethernet::MacAddr;
use hashbrown::HashTable;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Parts with a lock of their own.
const PARTS: usize = 64;

/// A claim: the key and the worker that has claimed it.
#[derive(Clone, Copy)]
struct Claim {
    key: FlowKey,
    worker: u32,
}

/// The owners of all workers' flows.
pub struct FlowOwners {
    secret: [u8; 16],
    parts: Box<[Mutex<HashTable<Claim>>]>,
    /// Behind a 1, if it was learned.
    guest_mac: AtomicU64,
    /// Addresses that the guest has used last, IPv4 and IPv6.
    guest_addresses: Mutex<[Option<IpAddr>; 2]>,
    /// Further facts that all workers share.
    across: Arc<AcrossWorkers>,
}

impl fmt::Debug for FlowOwners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowOwners").finish_non_exhaustive()
    }
}

impl FlowOwners {
    /// No flow has an owner yet. Keys are hashed with `secret`.
    pub fn new(secret: [u8; 16]) -> Self {
        let parts = std::iter::repeat_with(Mutex::default).take(PARTS).collect();
        Self {
            secret,
            parts,
            guest_mac: AtomicU64::new(0),
            guest_addresses: Mutex::default(),
            across: Arc::default(),
        }
    }

    /// The facts that all workers share, with those of a worker that has had its own.
    pub(crate) fn share(&self, own: &AcrossWorkers) -> Arc<AcrossWorkers> {
        self.across.join(own);
        self.across.clone()
    }

    /// Notes the guest's MAC address, as learned by a worker.
    pub fn set_guest_mac(&self, mac: MacAddr) {
        self.guest_mac.store(mac.to_word(), Ordering::Relaxed);
    }

    /// The guest's MAC address, if any worker has learned it.
    pub fn guest_mac(&self) -> Option<MacAddr> {
        MacAddr::from_word(self.guest_mac.load(Ordering::Relaxed))
    }

    /// Notes the address that the guest has used last, as seen by a worker.
    pub fn set_guest_address(&self, address: IpAddr) {
        let mut addresses = self.guest_addresses.lock().unwrap_or_else(PoisonError::into_inner);
        addresses[usize::from(address.is_ipv6())] = Some(address);
    }

    /// The address of a family that the guest has used last, if any worker has seen one.
    pub fn guest_address(&self, ipv6: bool) -> Option<IpAddr> {
        self.guest_addresses.lock().unwrap_or_else(PoisonError::into_inner)[usize::from(ipv6)]
    }

    fn hash(&self, key: &FlowKey) -> u64 {
        key_hash::hash(&self.secret, key)
    }

    /// The part of a hash; the table of a part uses the upper bits too, but not those alone.
    fn part(&self, hash: u64) -> MutexGuard<'_, HashTable<Claim>> {
        self.parts[(hash >> 32) as usize % PARTS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The owner of the flow with this key.
    pub fn owner(&self, key: &FlowKey) -> Option<u32> {
        let hash = self.hash(key);
        self.part(hash).find(hash, |claim| claim.key == *key).map(|claim| claim.worker)
    }

    /// Claims a key for `worker`, unless it is claimed already; its owner afterwards.
    pub fn claim(&self, key: &FlowKey, worker: u32) -> u32 {
        let hash = self.hash(key);
        let same = |claim: &Claim| claim.key == *key;
        let mut part = self.part(hash);
        part.entry(hash, same, |claim| self.hash(&claim.key))
            .or_insert(Claim { key: *key, worker })
            .get()
            .worker
    }

    /// Gives up a claim of `worker`; that of another one stays.
    pub fn release(&self, key: &FlowKey, worker: u32) {
        let hash = self.hash(key);
        let own = |claim: &Claim| claim.key == *key && claim.worker == worker;
        if let Ok(entry) = self.part(hash).find_entry(hash, own) {
            entry.remove();
        }
    }

    /// Claims in force.
    pub fn claims(&self) -> usize {
        let count =
            |part: &Mutex<HashTable<Claim>>| part.lock().unwrap_or_else(PoisonError::into_inner).len();
        self.parts.iter().map(count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{Endpoint, Protocol};
    use std::net::Ipv4Addr;

    fn key(port: u16) -> FlowKey {
        let end = |port| Endpoint::new(Ipv4Addr::new(10, 0, 2, 15).into(), port);
        FlowKey { protocol: Protocol::Udp, guest: end(port), remote: end(53) }
    }

    #[test]
    fn a_key_has_one_owner_until_it_is_released_by_it() {
        let owners = FlowOwners::new([7; 16]);
        for port in 0..1000 {
            assert_eq!(owners.owner(&key(port)), None);
            assert_eq!(owners.claim(&key(port), u32::from(port % 3)), u32::from(port % 3));
            assert_eq!(owners.claim(&key(port), 9), u32::from(port % 3), "the first one has it");
        }
        assert_eq!(owners.claims(), 1000);
        for port in 0..1000 {
            owners.release(&key(port), 9);
            assert_eq!(owners.owner(&key(port)), Some(u32::from(port % 3)), "not its own");
            owners.release(&key(port), u32::from(port % 3));
            assert_eq!(owners.owner(&key(port)), None);
        }
        assert_eq!(owners.claims(), 0);
    }
}
