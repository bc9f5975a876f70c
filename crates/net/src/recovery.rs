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
//! *Splices and relays* go on by the same descriptors (`splice/recovered.rs`, `forward/recovered.rs`).
//!
//! *Left out*: DNS state, promoted flows, counters. Sockets of flows that cannot go on are closed, streams
//! with a reset, so that no peer takes the end for an orderly one.
//!
//! *Trust.* All that is found comes from a process that may have been taken over. Numbers lead to no
//! descriptor that this process owns; each is asked for its type; the kernel's counters cannot be forged; the
//! records are checked by the stack. The worst outcome is the reset of a flow, or a flow that lies to the
//! guest as the process itself could.
//!
//! System calls for each flow: getsockopt `TCP_INFO` twice, ioctl `SIOCOUTQ`, `FIONREAD`, then those of a
//! hand-over ([`crate::handover`]).
//!
//! [`Builder::journal`]: crate::Builder::journal
//! [`Builder::recover`]: crate::Builder::recover

mod adoption;
mod listeners;

pub use crate::inherited::Inherited;
pub(crate) use adoption::Recovering;
pub use listeners::ReusedListeners;

use crate::sys;
use brodo_core::journal::{Remains, Slot};
use rustix::fd::BorrowedFd;
use std::io;

/// Most flows with a record: more memory is not mapped.
const FLOWS_MAX: usize = 1 << 20;

/// Memory of the journals of all workers, which outlives the process.
#[derive(Debug, Clone, Copy)]
pub struct JournalMemory {
    slots: &'static [Slot],
}

impl JournalMemory {
    /// Size of the memory file for so many flows of a network with this number of workers, bytes.
    pub fn size(flows: usize, workers: usize) -> u64 {
        // The flow table of each worker has one slot more than flows.
        let slots = flows.min(FLOWS_MAX).saturating_add(workers.saturating_mul(2));
        (slots as u64).saturating_mul(size_of::<Slot>() as u64)
    }

    /// Maps a memory file of that size, which is sealed against shrinking.
    ///
    /// # Errors
    /// It could be shrunk, or cannot be mapped.
    pub fn map(memory: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self { slots: sys::inherited::map_slots(memory)? })
    }

    /// Slots of one of `workers`.
    pub(crate) fn of(self, worker: usize, workers: usize) -> &'static [Slot] {
        let each = self.slots.len() / workers.max(1);
        self.slots.get(worker * each..(worker + 1) * each).unwrap_or_default()
    }

    /// Takes the records that the process before has left, for each of its workers, and clears the memory.
    pub fn remains(self, workers: usize) -> Vec<Remains> {
        (0..workers).map(|worker| Remains::take(self.of(worker, workers))).collect()
    }
}

#[cfg(test)]
mod tests;
