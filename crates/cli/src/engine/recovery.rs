//! Flows of an engine that has crashed, for the next one.
//!
//! The keeper makes the memory of the journal once, before the first engine; each engine maps it and writes a
//! record of each of its flows ([`brodo_net::recovery`]). An engine that comes after another begins by taking
//! what that has left: the descriptors by the numbers in the records, and the sockets that listen. All others
//! it closes, streams with a reset.

use brodo_core::journal::Remains;
use brodo_net::recovery::{Inherited, JournalMemory, JournalSize};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use std::io;

/// Finds of an engine at its start.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Memory for its own journals.
    pub(super) memory: Option<JournalMemory>,
    /// Flows to go on with, of each worker.
    pub(super) remains: Vec<Remains>,
    pub(super) inherited: Inherited,
}

/// Memory for the journals of all engines of a keeper, whose size none of them can change.
///
/// # Errors
/// memfd_create, ftruncate or fcntl failed.
pub(super) fn journal(size: JournalSize) -> io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create(c"brodo-journal", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&memory, size.bytes())?;
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(memory)
}

impl Found {
    /// In the first engine: memory, and nothing in it.
    pub(super) fn none(journal: Option<&OwnedFd>, size: JournalSize) -> Self {
        let memory = journal.and_then(|memory| JournalMemory::map(memory.as_fd(), size).ok());
        Self { memory, ..Self::default() }
    }

    /// In any other, before it opens anything: the flows if it is to `recover` them, and the sockets. `own`
    /// are all descriptors of this engine.
    pub(super) fn of(
        journal: Option<&OwnedFd>,
        size: JournalSize,
        recover: bool,
        own: &[BorrowedFd<'_>],
    ) -> Self {
        let memory = Self::none(journal, size).memory;
        let remains = match &memory {
            Some(memory) if recover => memory.remains(),
            Some(memory) => {
                memory.clear();
                Vec::new()
            }
            None => Vec::new(),
        };
        let inherited = Inherited::take(remains.iter().flat_map(Remains::descriptors), own);
        Self { memory, remains, inherited }
    }
}
