//! The stack: what a driver (epoll, simulator) calls, and the dispatch from frames to protocols.
//!
//! One loop turn of a driver:
//!
//! 1. wait for descriptors until [`Stack::next_deadline`] (not at all if the last [`Stack::serve`] said there is
//!    more to do), then read the clock once;
//! 2. [`Stack::expire`];
//! 3. take a bounded batch of guest frames: [`Stack::frame`] for each;
//! 4. [`Stack::socket_event`] for each ready socket, then [`Stack::serve`];
//! 5. [`Stack::flush`]: acknowledgements, once per flow and batch;
//! 6. read the link again before sleeping, because what was sent may have been answered already.

use crate::config::Config;
use crate::counters::Counters;
use crate::flow::FlowId;
use crate::host::{Host, Readiness};
use crate::link::{Link, LinkCaps, RxMeta};
use crate::time::Instant;
use std::net::SocketAddr;

/// What the stack may touch during one call: the time, the guest link, the host's sockets.
pub struct Io<'a, L, H> {
    /// The time of this loop turn.
    pub now: Instant,
    /// Toward the guest.
    pub link: &'a mut L,
    /// Toward the host.
    pub host: &'a mut H,
}

/// Entropy, given once.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    /// Key of the flow table's hash.
    pub table: [u8; 16],
    /// Key of TCP initial sequence numbers (RFC 6528).
    pub isn: [u8; 16],
}

/// The network stack of one worker.
pub struct Stack {
    config: Config,
    counters: Counters,
}

impl Stack {
    /// A stack for one guest link with the given capabilities.
    pub fn new(config: Config, keys: Keys, caps: LinkCaps) -> Self {
        let _ = (keys, caps);
        Self { config, counters: Counters::default() }
    }

    /// Handles one frame from the guest.
    pub fn frame<L: Link, H: Host>(&mut self, io: &mut Io<'_, L, H>, meta: RxMeta, frame: &[u8]) {
        let _ = (io, meta, frame);
    }

    /// Notes what a host socket is ready for; the work is done by [`Stack::serve`]. Events for flows that are gone
    /// are ignored.
    pub fn socket_event<L: Link, H: Host>(&mut self, io: &mut Io<'_, L, H>, flow: FlowId, ready: Readiness) {
        let _ = (io, flow, ready);
    }

    /// The link has credit again after [`crate::link::NoCredit`].
    pub fn link_writable(&mut self) {}

    /// One round over the flows that have something to do, each at most one super-segment. True if there is more to
    /// do at once.
    pub fn serve<L: Link, H: Host>(&mut self, io: &mut Io<'_, L, H>) -> bool {
        let _ = io;
        false
    }

    /// Sends the acknowledgements and window updates that have become due in this turn.
    pub fn flush<L: Link, H: Host>(&mut self, io: &mut Io<'_, L, H>) {
        let _ = io;
    }

    /// Expires timers.
    pub fn expire<L: Link, H: Host>(&mut self, io: &mut Io<'_, L, H>) {
        let _ = io;
    }

    /// When [`Stack::expire`] must be called next, if at all.
    pub fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Replaces the host's resolvers.
    pub fn set_resolvers(&mut self, resolvers: Vec<SocketAddr>) {
        self.config.resolvers = resolvers;
    }

    /// What was counted since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Flows open now.
    pub fn flows(&self) -> usize {
        0
    }

    /// Bytes of payload memory in use now.
    pub fn memory_used(&self) -> usize {
        0
    }
}
