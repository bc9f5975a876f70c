//! Flows: their table, their descriptions, the records of their ends, and the order of their eviction.
//!
//! Flow keys and ids, which every layer uses, are in [`crate::key`].

pub mod end;
pub mod info;
mod key_hash;
pub mod owners;
pub(crate) mod quota;
pub mod state;
pub mod table;

pub(crate) use crate::key::{Addresses, Ends};
pub use crate::key::{Endpoint, FlowId, FlowKey, Protocol};
use crate::time::Duration;

/// Eviction class: rank by which a full table chooses the flow to replace, the one to keep longest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EvictionClass {
    /// Traffic in both directions, and recent.
    InUse,
    /// Traffic in both directions, but none for long.
    Dormant,
    /// No answer yet.
    Unanswered,
    /// Over: an answered query or ping, a closed connection.
    Spent,
}

/// Group of flows with lists of its own, so that a victim is found among them alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EvictionGroup {
    /// Outbound, and in no other group.
    Guest,
    /// Outbound UDP: each holds a port of the host.
    GuestUdp,
    /// Inbound, by a published port.
    Peer,
}

impl EvictionClass {
    /// The list of the flow table for flows of this class and group.
    pub(crate) fn list(self, group: EvictionGroup) -> usize {
        table::GROUPS * self as usize + group as usize
    }
}

/// Rank of a flow for eviction from a full table: its class, then its idle time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EvictionRank(pub(crate) EvictionClass, pub(crate) Duration);

impl EvictionRank {
    /// Whether the flow has served its purpose.
    pub(crate) fn is_over(self) -> bool {
        self.0 == EvictionClass::Spent
    }
}
