//! Hand-over of a running network to another process: its state as bytes, and its descriptors.
//!
//! # Theory of operation
//!
//! Connections, forwards, splices, relays, UDP flows, DNS state and counters go on in the other process as if
//! nothing had happened: the kernel's sockets stay what they are, and no party of a connection sees more than
//! a pause. The stack's part is [`brodo_core::snapshot`]; this is the driver's: which descriptor belongs to
//! which flow, and the state that brodo keeps beside each of them.
//!
//! *Calls, in order.* In the old process, with workers on threads of brodo's own:
//!
//! 1. [`Handle::freeze`](crate::Handle::freeze) on any thread. Each worker finishes its turn and parks. Its
//!    thread stays, because a confined process can start none.
//! 2. Once all are parked, `on_frozen` of [`Network::run_after`](crate::Network::run_after) is called on the
//!    first worker's thread. [`Frozen::save`](crate::Frozen::save) there gives the [`Handover`]: bytes, and
//!    descriptors in an order that matters. The callback passes them on and waits for the verdict, within a
//!    bound of its own.
//! 3. `ControlFlow::Continue` thaws: all workers go on as if nothing had been, for no frame, byte or event
//!    was taken meanwhile. `ControlFlow::Break` ends the run without a further turn; then the process exits.
//!    Nothing on that way shuts a socket down or resets one, so the other process's copies live on.
//!
//! In the new process, with the same links in the same order:
//!
//! 1. [`Builder::restore`](crate::Builder::restore) with a [`Takeover`] in place of `build`, before the
//!    process confines itself. It opens what a new network opens, and changes nothing about the sockets that
//!    were handed over, so that the old network may still be thawed.
//! 2. [`Network::run_after`](crate::Network::run_after); `on_started` reports that it is ready, and returns
//!    when the old network is committed. Only the first turn after that acts: it resets lost flows, closes
//!    descriptors that no flow has claimed, and reads.
//!
//! With a loop of the caller's, "frozen" is between two turns: [`Network::save`](crate::Network::save).
//!
//! *In advance.* Thousands of sockets take their time, so streams may be passed while the old network serves
//! ([`Command::PassStreams`](crate::command::Command::PassStreams), [`EarlyStreams`]); with the state come
//! only those that were opened since. One that the old network closes meanwhile ends when the new one, which
//! has a copy, has restored its flows. A shutdown is not delayed by a copy, a reset is.
//!
//! *All workers at once.* They share a memory budget and leave frames with each other, so all are parked
//! before any is saved. The first worker then takes the frames that were left with it, capture files are
//! written out, and records of ended flows go to their observer.
//!
//! *Format.* Records as in a snapshot ([`Record`]), with tags of their own: [`Tag::Begin`], then for each
//!  worker [`Tag::Worker`] and what belongs to it, then [`Tag::End`]. The structs of [`v1`] are frozen.
//!  Records of unknown tag or version are skipped; without the record of a socket its flow is reset alone.
//!
//! *Time.* Deadlines are absolute, so the new network has the clock of the old one ([`Takeover::clock`]).
//!
//! *Settings* are the caller's, as for a new network: options, rules, links with their credit and TX queue,
//! broker, host network, capture file. The number of workers must be the same, because the kernel steers a
//! flow's frames to one queue.
//!
//! *Trust.* After a crash bytes and descriptors may come from a compromised process. Each descriptor is
//! asked for its type before a flow gets it ([`Incoming`]), each is given away once, and every number is
//! checked or harmless; the worst outcome is the reset of a flow.
//!
//! *Left out*: what the stack leaves out, idle pipes, sockets in store, and the last changes of limits (for a
//! report on one flow).
//!
//! System calls of a save: none but the capture's write and what memory takes; sendmsg in advance of it. Of a
//! restore: getsockopt `SO_TYPE`, `SO_PROTOCOL`, `SO_ACCEPTCONN`, `SO_DOMAIN`, `SO_LINGER`, ioctl `FIONBIO`,
//! `FIONREAD`, fstat, fcntl `F_GETFL`, epoll_ctl.

mod early;
mod expected;
mod incoming;
pub(crate) mod records;
pub(crate) mod v1;

pub use early::{EarlyHeader, EarlyStreams, Passed, PassedFrom};
pub(crate) use expected::Expected;
pub(crate) use incoming::Incoming;

use crate::clock::Clock;
use brodo_core::snapshot::{Record, RestoreError};
use serde::Serialize;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// First bytes of every hand-over.
pub(crate) const MAGIC: [u8; 9] = *b"brodo-net";

/// Bytes of an idle connection's records, for the room that is made at once.
const FLOW_SIZE: usize = 320;

/// Kind of a record. Numbers are never given twice, and none is a tag of the stack's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Tag {
    /// First record: that it is a hand-over, its clock, the number of workers.
    Begin = 0x100,
    /// Begin of a worker's records.
    Worker = 0x101,
    /// Sockets of the worker's flows.
    Sockets = 0x102,
    /// Forwards in force, and what waits at them.
    Forwards = 0x103,
    /// Connections carried by splices.
    Splices = 0x104,
    /// Conversations carried by relays.
    Relays = 0x105,
    /// Snapshot of the worker's stack, itself a sequence of records.
    Stack = 0x106,
    /// Last record.
    End = 0x107,
    /// The worker's link, if it has something to go on with.
    Link = 0x108,
}

/// A frozen network: its state as bytes, and the descriptors that go with them, in this order.
#[derive(Debug, Default)]
pub struct Handover<'a> {
    /// The state.
    pub bytes: Vec<u8>,
    /// The descriptors. They stay open, and their sockets unused, while the network is frozen.
    pub descriptors: Vec<BorrowedFd<'a>>,
    /// Streams passed in advance, whose numbers come before those of the descriptors.
    passed: u32,
    /// Number of records.
    records: u32,
}

impl<'a> Handover<'a> {
    /// One before which so many streams were passed in advance.
    pub(crate) fn after(passed: u32) -> Self {
        Self { passed, ..Self::default() }
    }

    /// Adds a descriptor; its index.
    pub(crate) fn descriptor(&mut self, descriptor: BorrowedFd<'a>) -> u32 {
        self.descriptors.push(descriptor);
        self.passed + self.descriptors.len() as u32 - 1
    }

    /// Index of the stream that was passed in advance with this number, from 1; none if it was not for this
    /// hand-over.
    pub(crate) fn passed(&self, number: u32) -> Option<u32> {
        (number <= self.passed).then(|| number - 1)
    }

    /// Adds a record.
    pub(crate) fn record<T: Serialize>(&mut self, tag: Tag, content: &T) {
        Record::append_v1(&mut self.bytes, tag as u16, content);
        self.records += 1;
    }

    /// Begins the records of a stack with so many flows: the bytes to which they are appended, for
    /// [`Handover::end_stack`]. They are taken out, so that descriptors can be added meanwhile.
    pub(crate) fn begin_stack(&mut self, flows: usize) -> (Vec<u8>, usize) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.reserve(flows.saturating_mul(FLOW_SIZE));
        self.descriptors.reserve(flows);
        let begun = Record::begin_v1(&mut bytes, Tag::Stack as u16);
        (bytes, begun)
    }

    /// Ends the records of a stack.
    pub(crate) fn end_stack(&mut self, mut bytes: Vec<u8>, begun: usize) {
        Record::end_v1(&mut bytes, begun);
        self.bytes = bytes;
        self.records += 1;
    }

    /// Adds the last record.
    pub(crate) fn end(&mut self) {
        let records = self.records;
        self.record(Tag::End, &v1::EndV1 { records });
    }

    /// The same for a network in this process, with duplicates of the descriptors, if none was passed in
    /// advance.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn duplicate(&self) -> io::Result<Takeover> {
        let descriptors = self.descriptors.iter().map(BorrowedFd::try_clone_to_owned);
        let descriptors = descriptors.collect::<io::Result<_>>()?;
        Ok(Takeover { bytes: self.bytes.clone(), descriptors, early: EarlyStreams::default() })
    }
}

/// The state of another process's network, for [`Builder::restore`](crate::Builder::restore).
#[derive(Debug, Default)]
pub struct Takeover {
    /// Content of [`Handover::bytes`].
    pub bytes: Vec<u8>,
    /// [`Handover::descriptors`], in the same order.
    pub descriptors: Vec<OwnedFd>,
    /// Streams that came before.
    pub early: EarlyStreams,
}

impl Takeover {
    /// Clock of the network, which the restored one goes on with; `None` if the bytes are none of a
    /// hand-over.
    pub fn clock(&self) -> Option<Clock> {
        records::clock(&self.bytes)
    }
}

/// Reason why nothing of a hand-over can be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreFailure {
    /// The bytes do not begin as a hand-over does.
    NotAHandover,
    /// A hand-over of a later version, this one.
    UnknownVersion(u16),
    /// The last record, or a worker's stack, is missing.
    Truncated,
    /// Another number of workers than there are links.
    Workers {
        /// Workers of the old network.
        saved: usize,
        /// Links of this one.
        links: usize,
    },
    /// The clock of the old network begins later than now.
    ClockAhead,
    /// A worker's stack cannot be restored.
    Stack(RestoreError),
}

impl fmt::Display for RestoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAHandover => f.write_str("not the state of a network"),
            Self::UnknownVersion(version) => write!(f, "state of a network in unknown version {version}"),
            Self::Truncated => f.write_str("the state of the network was not finished"),
            Self::Workers { saved, links } => {
                write!(f, "state of {saved} workers, but there are {links} links")
            }
            Self::ClockAhead => f.write_str("the state of the network has the clock of another machine"),
            Self::Stack(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RestoreFailure {}

#[cfg(test)]
mod tests;
