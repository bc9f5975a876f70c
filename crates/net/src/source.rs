//! Sources: the parts of a worker's loop that have descriptors and deadlines of their own.
//!
//! A source registers its descriptors, notes their events, names the time at which it must have a turn
//! without one, and does its work in its turn. The loop knows no more of it. One event or turn of a source
//! costs an indirect call; frames and the sockets of flows, of which there are many, take none: they are the
//! loop's own.
//!
//! A new source is one file that implements [`Source`], a variant of [`SourceId`], and the field of the
//! worker's sources that the compiler then asks for.

use crate::captured_link::CapturedLink;
use crate::platform::{Linux, Tracer};
use crate::sockets::Sockets;
use brodo_core::stack::{Io, Stack};
use brodo_core::time::Instant;
use brodo_link::poller::Poller;
use brodo_link::{EventFlags, GuestLink};
use std::io;
use std::os::fd::BorrowedFd;

/// A part of the loop with descriptors and deadlines of its own.
pub(crate) trait Source<L: GuestLink> {
    /// Registers its descriptors, each under a key of its own.
    ///
    /// # Errors
    /// epoll_ctl failed.
    fn register(&mut self, poller: Poller<'_>) -> io::Result<()>;

    /// Notes an event of the descriptor registered under `key`. Its effects follow in the next turn.
    fn ready(&mut self, key: u32, events: EventFlags, now: Instant);

    /// Time of its next turn without an event.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Its part of a turn of the loop; true if more work is ready.
    fn turn(&mut self, turn: &mut Turn<'_, L>) -> bool;
}

/// Environment of a source in its turn.
pub(crate) struct Turn<'a, L> {
    pub(crate) now: Instant,
    pub(crate) stack: &'a mut Stack,
    pub(crate) link: &'a mut CapturedLink<L>,
    pub(crate) sockets: &'a mut Sockets,
    pub(crate) tracer: &'a mut Tracer,
    /// Workers to wake after the turn, one bit each.
    pub(crate) wakes: u64,
    /// The link was read until it was empty, in this turn.
    pub(crate) link_read: bool,
    /// Datagrams fill the guest's transmit queue, which drops what finds it full.
    pub(crate) flooded: bool,
    /// The worker is to park ([`crate::handover`]).
    pub(crate) freezing: bool,
}

impl<L: GuestLink> Turn<'_, L> {
    /// The stack, and the context of its methods.
    pub(crate) fn stack(&mut self) -> (&mut Stack, Io<'_, Linux<CapturedLink<L>>>) {
        (self.stack, Io { now: self.now, link: self.link, host: self.sockets, observer: self.tracer })
    }

    /// The link to the guest.
    pub(crate) fn guest_link(&self) -> &L {
        &self.link.link
    }

    /// Notes traffic of spliced connections, for busy polling.
    pub(crate) fn note_joined(&mut self) {
        self.link.moved.joined = true;
    }
}

/// Name of a source in event data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SourceId {
    Link,
    Waker,
    TxQueueLen,
    HostNetwork,
    Forwards,
    Promotions,
    Extra,
}

impl SourceId {
    /// All sources, in the order of their numbers.
    pub(crate) const ALL: [Self; 7] = [
        Self::Link,
        Self::Waker,
        Self::TxQueueLen,
        Self::HostNetwork,
        Self::Forwards,
        Self::Promotions,
        Self::Extra,
    ];

    /// The source with this number.
    pub(crate) fn read(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// The loop's epoll instance for this source's descriptors.
    pub(crate) fn poller(self, epoll: BorrowedFd<'_>) -> Poller<'_> {
        Poller::new(epoll, self as u32)
    }
}
