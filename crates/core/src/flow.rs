//! Flows: their table, their descriptions, the records of their ends, and the order of their eviction.
//!
//! Flow keys and ids, which every layer uses, are in [`crate::key`].

pub mod end;
pub mod info;
pub(crate) mod quota;
pub mod state;
pub mod table;

pub(crate) use crate::key::{Addresses, Ends};
pub use crate::key::{Endpoint, FlowId, FlowKey, Protocol};
use crate::time::Duration;

/// Usefulness of a flow when the table is full, the most useful first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EvictionClass {
    /// Both sides have spoken, and may any time.
    InUse,
    /// The same, but both have been silent for long.
    Dormant,
    /// Nothing has come back yet.
    Unanswered,
    /// A question that was answered, a connection that is over.
    Spent,
}

/// Flows among which a victim is sought without a look at the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EvictionGroup {
    /// Begun by the guest, and in no other group.
    Guest,
    /// UDP begun by the guest: each holds a port of the host.
    GuestUdp,
    /// Begun by a peer, by a published port.
    Peer,
}

impl EvictionClass {
    /// The list of the flow table for flows of this class and group.
    pub(crate) fn list(self, group: EvictionGroup) -> usize {
        table::GROUPS * self as usize + group as usize
    }
}

/// How little is lost if a flow goes to make room: by what it is good for, then by how long it has been idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EvictionRank(pub(crate) EvictionClass, pub(crate) Duration);

impl EvictionRank {
    /// Whether the flow has done what it was for.
    pub(crate) fn is_over(self) -> bool {
        self.0 == EvictionClass::Spent
    }
}
