//! DNS state shared by all queries of a worker: cache, host entries, learnt names, resolver preference,
//! pending queries and their bounds.
//!
//! Nothing here sees the context of a call, the link or a socket, so the context may own it. The service that
//! answers and forwards queries is [`crate::dns_service`].

pub(crate) mod askers;
mod cache;
mod entropy;
mod hosts;
mod learnt;
mod preference;
pub(crate) mod question;
#[cfg(test)]
mod sample;
mod snapshot;

use crate::config::Config;
use crate::flow::FlowId;
use crate::policy::RefusedQuestion;
use crate::rate::Bucket;
use crate::time::{Duration, Instant};
use crate::wire::dns::message::{KEY_LEN_MAX, Query};
use askers::{Askers, Ticket};
use cache::Cache;
use entropy::QueryEntropy;
use hosts::Hosts;
use learnt::Learnt;
use preference::Preference;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Port of DNS.
pub(crate) const PORT: u16 = 53;
/// Port of DNS over TLS or QUIC (RFC 7858, RFC 9250).
pub(crate) const PORT_TLS: u16 = 853;
/// Most pending queries, those of each asker counted.
pub(crate) const WAITING_MAX: usize = 1024;
/// Most connections to the DNS address that the service ends, of one worker.
pub(crate) const STREAMS_MAX: u32 = 64;
/// Most bytes of all pending queries.
pub(crate) const HELD_MAX: usize = 1 << 20;

/// State shared by all DNS queries of a worker.
#[derive(Debug)]
pub(crate) struct Dns {
    pub(crate) preference: Preference,
    pub(crate) cache: Cache,
    pub(crate) hosts: Hosts,
    pub(crate) learnt: Learnt,
    /// Epoch, incremented whenever pending queries must be sent anew because resolvers or network have
    /// changed.
    pub(crate) epoch: u32,
    pub(crate) entropy: QueryEntropy,
    /// The askers of all pending questions.
    pub(crate) askers: Askers,
    /// Flow that keeps each query that may be joined, by the query's key.
    pub(crate) in_flight: BTreeMap<Box<[u8]>, FlowId>,
    /// Bytes of all pending queries.
    pub(crate) held: usize,
    /// Number of sockets to resolvers.
    pub(crate) sockets: usize,
    /// Connections to the DNS address that the service ends.
    pub(crate) streams: u32,
    /// Replies to the question of a connection that is being served, each behind its length.
    pub(crate) replies: Vec<u8>,
    /// Questions of connections that were refused and are not counted yet.
    pub(crate) refused: Vec<RefusedQuestion>,
    /// No question leaves, because deny rules leave the guest no destination: by names it would still reach
    /// the owner of a zone.
    pub(crate) is_closed: bool,
    /// Questions that may go to resolvers without a policy.
    pub(crate) rate: Bucket,
    /// Time for which the machine was suspended, in all.
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
            streams: 0,
            replies: Vec::new(),
            refused: Vec::new(),
            rate: config.rules.bucket(config.rules.questions),
            is_closed: config.rules.deny_everything(config.v4.is_some(), config.v6.is_some()),
            suspended: Duration::ZERO,
        }
    }

    /// Change of resolvers or of the route to them: state learned by and about them is discarded.
    pub(crate) fn network_changed(&mut self) {
        self.cache.flush();
        self.preference = Preference::default();
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// The flow in which an equal query is pending.
    pub(crate) fn flow_asking(&self, query: &Query<'_>) -> Option<FlowId> {
        let mut key = [0; KEY_LEN_MAX];
        let len = query.key(&mut key);
        query.is_ordinary().then(|| self.in_flight.get(&key[..len]).copied())?
    }

    /// Whether a further query of `bytes` bytes exceeds a bound.
    pub(crate) fn is_full(&self, bytes: usize) -> bool {
        self.askers.len() >= WAITING_MAX || (self.held + bytes > HELD_MAX && self.askers.len() > 0)
    }

    /// The query that yields if there is no room, and the flow that keeps it.
    pub(crate) fn first_to_go(&self) -> Option<(Ticket, FlowId)> {
        self.askers.first_to_go()
    }

    /// Sets the time for which the machine was suspended, in all.
    pub(crate) fn set_suspended(&mut self, total: Duration) {
        self.suspended = total;
    }

    /// Clock of record expiry: it goes on while the machine is suspended, as it does for their zone (RFC
    /// 1035, 3.2.1).
    pub(crate) fn record_time(&self, now: Instant) -> Instant {
        now + self.suspended
    }

    /// Epoch of the present set of resolvers.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Name by which the guest learnt an address.
    pub(crate) fn name_of(&self, address: IpAddr) -> Option<&str> {
        self.learnt.name_of(address)
    }

    /// Bytes allocated by cache and learnt names.
    pub(crate) fn allocated(&self) -> usize {
        self.cache.allocated() + self.learnt.allocated()
    }
}
