//! State that all DNS questions of a worker share: cache, host entries, learnt names, resolver preference, bounds.

use super::cache::Cache;
use super::hosts::Hosts;
use super::learnt::Learnt;
use super::preference::Preference;
use crate::config::Config;
use std::net::IpAddr;

/// State that all DNS questions of a worker share.
#[derive(Debug)]
pub(crate) struct Dns {
    pub(crate) preference: Preference,
    pub(super) cache: Cache,
    pub(super) hosts: Hosts,
    pub(super) learnt: Learnt,
    /// Grows whenever questions that wait must be asked anew, because the resolvers are others or the network is.
    pub(super) epoch: u32,
    /// Bytes of all questions that wait.
    pub(super) held: usize,
    /// Sockets to resolvers.
    pub(super) sockets: usize,
}

impl Dns {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            preference: Preference::default(),
            cache: Cache::new(config.dns_cache),
            hosts: Hosts::new(config),
            learnt: Learnt::default(),
            epoch: 0,
            held: 0,
            sockets: 0,
        }
    }

    /// The resolvers are others, or are to be reached another way: what was known by and of them holds no longer.
    pub(crate) fn network_changed(&mut self) {
        self.cache.flush();
        self.preference = Preference::default();
        self.epoch = self.epoch.wrapping_add(1);
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
