//! Opened and ended flows, recorded for subscribers.
//!
//! Recording is off until an observer subscribes, and then costs a branch per flow
//! ([`crate::stack::Stack::record_ends`], [`crate::stack::Stack::record_openings`]). Records wait in bounded
//! queues until the driver takes them, after each turn; records that find a queue full are counted instead.
//!
//! Flows that were never opened, because a rule denied them or the host could not, end at once: they have an
//! end and no handle. The cause of an end is noted in the flow itself when it becomes clear ([`EndCause`],
//! one byte).

use super::info::FlowInfo;
use crate::host::HostError;
use crate::snapshot::saved::saved_enum;
use crate::time::Instant;
use std::sync::Arc;

/// Ends, and openings, that wait to be taken: as many as are likely in one turn, among them time-outs of
/// flows that were all opened in the same instant.
const QUEUE_MAX: usize = 16 << 10;

/// Cause of a flow's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum EndCause {
    /// Both sides were done; of datagrams: answered, then silent for its time-out.
    #[default]
    Finished,
    /// The guest reset it, or reported port unreachable.
    ResetByGuest,
    /// The host's peer reset it.
    ResetByHost,
    /// No answer came, from the guest or from the peer.
    TimedOut,
    /// The peer refused the connection, or reported port unreachable.
    Refused,
    /// No route to the peer, or a firewall prohibits it.
    Unreachable,
    /// Replaced in a full table.
    Evicted,
    /// A rule of brodo's denies it.
    Denied,
    /// A policy that was changed while it was open denies it.
    PolicyChanged,
    /// The quota of the rule that allows it is used up, its greatest age reached, or it is one flow too many
    /// under limits that were changed.
    Quota,
    /// The host's network is another than that it was opened in.
    NetworkChanged,
    /// The host was out of sockets or ports, or the table full of flows that are in use.
    NoResources,
    /// brodo has ended.
    ShutDown,
}

impl EndCause {
    /// Every one.
    pub const ALL: [Self; 13] = [
        Self::Finished,
        Self::ResetByGuest,
        Self::ResetByHost,
        Self::TimedOut,
        Self::Refused,
        Self::Unreachable,
        Self::Evicted,
        Self::Denied,
        Self::PolicyChanged,
        Self::Quota,
        Self::NetworkChanged,
        Self::NoResources,
        Self::ShutDown,
    ];

    /// The cause for a host socket's error.
    pub fn of(error: HostError) -> Self {
        match error {
            HostError::WouldBlock | HostError::TimedOut => Self::TimedOut,
            HostError::Refused => Self::Refused,
            HostError::NetUnreachable
            | HostError::HostUnreachable
            | HostError::Prohibited
            | HostError::Unsupported => Self::Unreachable,
            HostError::Exhausted => Self::NoResources,
            HostError::Reset | HostError::TooBig(_) | HostError::Other(_) => Self::ResetByHost,
        }
    }

    /// The name shown to people and written to messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::ResetByGuest => "reset-by-guest",
            Self::ResetByHost => "reset-by-host",
            Self::TimedOut => "timed-out",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Evicted => "evicted",
            Self::Denied => "denied",
            Self::PolicyChanged => "policy-changed",
            Self::Quota => "quota",
            Self::NetworkChanged => "network-changed",
            Self::NoResources => "no-resources",
            Self::ShutDown => "shut-down",
        }
    }
}

saved_enum!(EndCause {
    Finished = 0, ResetByGuest = 1, ResetByHost = 2, TimedOut = 3, Refused = 4, Unreachable = 5, Evicted = 6,
    Denied = 7, NetworkChanged = 8, NoResources = 9, ShutDown = 10,
    PolicyChanged = 11, Quota = 12,
});

/// A flow that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowEnd {
    /// Time of the end.
    pub at: Instant,
    /// Information on the flow. The handle is meaningless for a flow that was never opened.
    pub info: FlowInfo,
    /// Whether it was opened.
    pub opened: bool,
    /// Cause of its end.
    pub cause: EndCause,
    /// The name by which the guest learnt the remote address.
    pub name: Option<Box<str>>,
    /// The rule that denied it, as its author wrote it.
    pub rule: Option<Arc<str>>,
}

/// Numbers of records that a full queue has lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LostRecords {
    /// Flows that began.
    pub openings: u64,
    /// Flows that ended.
    pub ends: u64,
}

impl LostRecords {
    /// Adds `more`.
    pub fn add(&mut self, more: Self) {
        self.openings = self.openings.saturating_add(more.openings);
        self.ends = self.ends.saturating_add(more.ends);
    }
}

/// A queue that is filled only while it has a subscriber.
#[derive(Debug)]
struct Queue<T> {
    on: bool,
    waiting: Vec<T>,
}

impl<T> Queue<T> {
    const fn off() -> Self {
        Self { on: false, waiting: Vec::new() }
    }

    fn switch(&mut self, on: bool) {
        self.on = on;
        if !on {
            self.waiting = Vec::new();
        }
    }
}

/// Records of one worker.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// The time of this turn.
    pub(crate) now: Instant,
    ends: Queue<FlowEnd>,
    openings: Queue<FlowInfo>,
    lost: LostRecords,
}

impl Recorder {
    /// Records nothing.
    pub(crate) const fn new() -> Self {
        let lost = LostRecords { openings: 0, ends: 0 };
        Self { now: Instant::ZERO, ends: Queue::off(), openings: Queue::off(), lost }
    }

    pub(crate) fn records_ends(&self) -> bool {
        self.ends.on
    }

    pub(crate) fn records_openings(&self) -> bool {
        self.openings.on
    }

    pub(crate) fn record_ends(&mut self, on: bool) {
        self.ends.switch(on);
    }

    pub(crate) fn record_openings(&mut self, on: bool) {
        self.openings.switch(on);
    }

    /// Keeps an end.
    pub(crate) fn ended(&mut self, end: FlowEnd) {
        if self.ends.waiting.len() < QUEUE_MAX {
            self.ends.waiting.push(end);
        } else {
            self.lost.ends += 1;
        }
    }

    /// Keeps an opening.
    pub(crate) fn opened(&mut self, info: FlowInfo) {
        if self.openings.waiting.len() < QUEUE_MAX {
            self.openings.waiting.push(info);
        } else {
            self.lost.openings += 1;
        }
    }

    /// Records that wait to be taken.
    pub(crate) fn waiting(&self) -> usize {
        self.ends.waiting.len() + self.openings.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.waiting.is_empty()
            && self.openings.waiting.is_empty()
            && self.lost == LostRecords::default()
    }

    pub(crate) fn take_ends(&mut self) -> Vec<FlowEnd> {
        std::mem::take(&mut self.ends.waiting)
    }

    pub(crate) fn take_openings(&mut self) -> Vec<FlowInfo> {
        std::mem::take(&mut self.openings.waiting)
    }

    pub(crate) fn take_lost(&mut self) -> LostRecords {
        std::mem::take(&mut self.lost)
    }
}
