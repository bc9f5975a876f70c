//! State that all DNS questions of a worker share: cache, host entries, learnt names, resolver preference,
//! bounds.

use super::askers::{Askers, Ticket};
use super::cache::Cache;
use super::entropy::QueryEntropy;
use super::hosts::Hosts;
use super::learnt::Learnt;
use super::preference::Preference;
use crate::config::Config;
use crate::flow::FlowId;
use crate::time::{Duration, Instant};
use crate::wire::dns::message::{KEY_LEN_MAX, Query};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Questions that wait, each asker's counted.
pub(super) const WAITING_MAX: usize = 1024;
/// Bytes of all questions that wait.
pub(super) const HELD_MAX: usize = 1 << 20;

/// State that all DNS questions of a worker share.
#[derive(Debug)]
pub(crate) struct Dns {
    pub(crate) preference: Preference,
    pub(super) cache: Cache,
    pub(super) hosts: Hosts,
    pub(super) learnt: Learnt,
    /// Grows whenever questions that wait must be asked anew, because the resolvers are others or the network
    /// is.
    pub(super) epoch: u32,
    pub(super) entropy: QueryEntropy,
    /// The askers of all pending questions.
    pub(super) askers: Askers,
    /// The flow that has each question that may be joined, by the question's key.
    pub(super) in_flight: BTreeMap<Box<[u8]>, FlowId>,
    /// Bytes of all questions that wait.
    pub(super) held: usize,
    /// Sockets to resolvers.
    pub(super) sockets: usize,
    /// How long the machine has been suspended, in all.
    suspended: Duration,
}

impl Dns {
    pub(crate) fn new(config: &Config, key: [u8; 16]) -> Self {
        Self {
            preference: Preference::default(),
            cache: Cache::new(config.dns_cache),
            hosts: Hosts::new(config),
            learnt: Learnt::default(),
            epoch: 0,
            entropy: QueryEntropy::new(key),
            askers: Askers::default(),
            in_flight: BTreeMap::new(),
            held: 0,
            sockets: 0,
            suspended: Duration::ZERO,
        }
    }

    /// The resolvers are others, or are to be reached another way: state learned by and about them is
    /// discarded.
    pub(crate) fn network_changed(&mut self) {
        self.cache.flush();
        self.preference = Preference::default();
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// The flow in which an equal question waits.
    pub(crate) fn flow_asking(&self, query: &Query<'_>) -> Option<FlowId> {
        let mut key = [0; KEY_LEN_MAX];
        let len = query.key(&mut key);
        query.is_ordinary().then(|| self.in_flight.get(&key[..len]).copied())?
    }

    /// Whether no question of so many bytes can wait beside those that do.
    pub(crate) fn is_full(&self, bytes: usize) -> bool {
        self.askers.len() >= WAITING_MAX || (self.held + bytes > HELD_MAX && self.askers.len() > 0)
    }

    /// The question that gives way if there is no room, and the flow that has it.
    pub(crate) fn first_to_go(&self) -> Option<(Ticket, FlowId)> {
        self.askers.first_to_go()
    }

    /// The machine has been suspended for so long, in all.
    pub(crate) fn set_suspended(&mut self, total: Duration) {
        self.suspended = total;
    }

    /// The time by which records expire: it goes on while the machine is suspended, as it does for their zone
    /// (RFC 1035, 3.2.1).
    pub(super) fn record_time(&self, now: Instant) -> Instant {
        now + self.suspended
    }

    /// Which set of resolvers there is now.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The name by which the guest learnt an address.
    pub(crate) fn name_of(&self, address: IpAddr) -> Option<&str> {
        self.learnt.name_of(address)
    }

    /// Bytes that cache and learnt names take.
    pub(crate) fn allocated(&self) -> usize {
        self.cache.allocated() + self.learnt.allocated()
    }
}
