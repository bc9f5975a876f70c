//! Recovery of a network from a crash: the flows of a process that has ended without a word.
//!
//! # Theory of operation
//!
//! A process that shares its table of descriptors with a keeper leaves every socket open when it crashes. The
//! next process is a child of the keeper, with the same table, and finds them under their numbers. In memory
//! that both map lies the journal of the stacks ([`brodo_core::journal`]), with a record of each flow;
//! the kernel's own counters tell how far the bytes of each stream have come
//! ([`brodo_core::journal::Progress`]). From these [`Builder::recover`] makes a network that goes on: each
//! connection with exactly the bytes of both streams, or reset.
//!
//! *Calls, in order.* In every process, [`JournalMemory::map`] and [`Builder::journal`]. In one that comes
//! after another, before anything else is opened, [`JournalMemory::remains`] and [`Inherited::take`]; the
//! caller closes all descriptors but its own and [`Inherited::descriptors`]. Then [`Builder::recover`] in
//! place of `build`, or, to begin without the flows, nothing: dropping [`Inherited`] resets them.
//!
//! *Listening sockets* are found by their address and used again ([`ReusedListeners::of`]), so that no
//! connection in their backlog and no datagram in their buffer is lost. A connection that was accepted, and
//! not touched, is accepted once more.
//!
//! *Splices, relays and promoted flows* go on by the same descriptors (`splice/recovered.rs`,
//! `forward/recovered.rs`, `promotions/recovered.rs`).
//!
//! *Totals* of all flows stand in the same memory (`driver/totals.rs`), and go on also where no flow does.
//!
//! *Left out*: DNS state. Sockets of flows that cannot go on are closed, streams
//! with a reset, so that no peer takes the end for an orderly one.
//!
//! *Trust.* All that is found comes from a process that may have been taken over. Numbers lead to no
//! descriptor that this process owns; each is asked for its type; the kernel's counters cannot be forged; the
//! records are checked by the stack. The worst outcome is the reset of a flow, or a flow that lies to the
//! guest as the process itself could.
//!
//! System calls for each flow: fcntl `F_GETFL` and getsockopt `TCP_INFO`; epoll_ctl once the others are
//! served ([`Sockets::register_some`](crate::sockets::Sockets)). One that is not at rest takes ioctl
//! `SIOCOUTQ` and `FIONREAD` and a second `TCP_INFO`; a UDP flow those of a hand-over ([`crate::handover`]).
//!
//! [`Builder::journal`]: crate::Builder::journal
//! [`Builder::recover`]: crate::Builder::recover

mod adoption;
mod listeners;

pub use crate::inherited::Inherited;
pub(crate) use adoption::Recovering;
pub use listeners::ReusedListeners;

use crate::sys::inherited::{Mapped, Parts, map};
use brodo_core::journal::{self, Remains, Slot};
use brodo_core::memory::payload::{PayloadLayout, PayloadMemory};
use rustix::fd::BorrowedFd;
use std::io;
use std::sync::atomic::AtomicU64;

/// Most flows with a record: more memory is not mapped.
const FLOWS_MAX: usize = 1 << 20;
/// Slots for the totals of each worker: a page.
const TOTALS_SLOTS: usize = 32;

/// Dimensions of a network's journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalSize {
    /// Flows, of all workers.
    pub flows: usize,
    /// Number of workers.
    pub workers: usize,
    /// Budget of the payload memory ([`Config::memory`](brodo_core::config::Config)), bytes.
    pub memory: usize,
}

impl JournalSize {
    fn parts(self) -> Parts {
        let payload = PayloadLayout::of(self.memory);
        // The flow table of each worker has one slot more than flows.
        let slots = self.flows.min(FLOWS_MAX).saturating_add(self.workers.saturating_mul(2 + TOTALS_SLOTS));
        Parts {
            slots,
            records: payload.records().saturating_mul(self.workers),
            bytes: payload.bytes().saturating_mul(self.workers),
        }
    }

    /// Size of the memory file, bytes: mostly of pages that are never used, and take no memory.
    pub fn bytes(self) -> u64 {
        self.parts().place_of_bytes().map_or(u64::MAX, |place| place.end as u64)
    }
}

/// Memory of the journals of all workers, which outlives the process, with the payload on its way.
#[derive(Debug)]
pub struct JournalMemory {
    slots: &'static [Slot],
    payload: Vec<Option<PayloadMemory>>,
}

impl JournalMemory {
    /// Maps a memory file of this size, which is sealed against shrinking. To be called once in a process.
    ///
    /// # Errors
    /// It could be shrunk, is smaller, or cannot be mapped.
    pub fn map(memory: BorrowedFd<'_>, size: JournalSize) -> io::Result<Self> {
        let Mapped { slots, mut records, mut bytes } = map(memory, size.parts())?;
        let layout = PayloadLayout::of(size.memory);
        let mut payload = Vec::with_capacity(size.workers);
        for _ in 0..size.workers {
            let (own, others) = records.split_at(layout.records());
            let (own_bytes, other_bytes) = bytes.split_at_mut(layout.bytes());
            payload.push(PayloadMemory::new(layout, own_bytes, own));
            (records, bytes) = (others, other_bytes);
        }
        Ok(Self { slots, payload })
    }

    /// Slots of one of the workers.
    pub(crate) fn of(&self, worker: usize) -> &'static [Slot] {
        let workers = self.payload.len();
        let each = (self.slots.len() / workers.max(1)).saturating_sub(TOTALS_SLOTS);
        let its = if worker < workers { worker * each..(worker + 1) * each } else { 0..0 };
        self.slots.get(its).unwrap_or_default()
    }

    /// Slots for the totals of one of the workers, which no recovery clears.
    pub(crate) fn totals_of(&self, worker: usize) -> &'static [Slot] {
        let behind = self.payload.len().saturating_sub(worker) * TOTALS_SLOTS;
        let from = self.slots.len().saturating_sub(behind);
        self.slots.get(from..from + TOTALS_SLOTS).unwrap_or_default()
    }

    /// The word in which the link of the first worker has its position in a stream of frames.
    pub fn link_position(&self) -> Option<&'static AtomicU64> {
        journal::link_position(self.of(0))
    }

    /// Takes the payload memory of one of the workers.
    pub(crate) fn take_payload(&mut self, worker: usize) -> Option<PayloadMemory> {
        self.payload.get_mut(worker).and_then(Option::take)
    }

    /// Copies of the records that the process before has left, for each of its workers.
    pub fn remains(&self) -> Vec<Remains> {
        (0..self.payload.len()).map(|worker| Remains::read(self.of(worker))).collect()
    }

    /// Clears the records, for a process that goes on with none of them.
    pub fn clear(&self) {
        for worker in 0..self.payload.len() {
            Remains::take(self.of(worker));
        }
    }
}

#[cfg(test)]
mod tests;
