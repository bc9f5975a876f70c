//! Keeper: a process that outlives the one at work, with the same table of descriptors.
//!
//! `clone(CLONE_FILES)` without `CLONE_VM` gives two processes one table of descriptors and separate memory.
//! The keeper makes the process at work so and sleeps in waitid; when that process ends, of whatever cause
//! (a system call that is not allowed, an abort, SIGKILL), every descriptor is still open under its number.
//! It must be the parent, and number 1 of the PID namespace: the end of number 1 ends the whole namespace.
//! Where there is none, a death signal ends the child with the keeper.
//!
//! *Size of the table.* The kernel doubles a table that is full, and where processes share it, waits each
//! time for all processors to have let go of the old one (synchronize_rcu): 2 to 16 ms in which the process
//! at work stands still. So it gets room for [`ROOM`] descriptors while it is not shared yet.
//!
//! *A process that has ended is reaped only when the next one has begun*: the kernel takes its entries in
//! /proc out of the directory cache meanwhile, and where an observer has listed them, 10,000 descriptors take
//! 10 ms in which no process would serve.
//!
//! Trust: the process at work may have been taken over, and can close and replace the keeper's descriptors,
//! but not its memory.

use crate::{raw, release_program_pages};
use rustix::process::{
    Pid, Resource, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, getpid, getppid, getrlimit,
    set_parent_process_death_signal, waitid, waitpid,
};
use std::io;

/// Descriptors that the shared table has room for from the start: 130 KiB of the kernel's memory.
const ROOM: u64 = 16_384;

/// The processes at work of one keeper, one after the other.
#[derive(Debug, Default)]
pub struct Keeper {
    /// The process that was started last, which is reaped once the next one has begun.
    last: Option<Pid>,
}

impl Keeper {
    /// Runs `body` in a child process that shares the descriptors of this one and dies with it, and waits for
    /// its end. All that it had open stays open.
    ///
    /// # Errors
    /// The process has several threads (`EBUSY`), or cannot fork.
    pub fn keep(&mut self, body: impl FnOnce() -> i32) -> io::Result<WaitIdStatus> {
        make_room();
        let keeper = getpid();
        let guarded = || {
            // The keeper may have ended in between.
            let asked = set_parent_process_death_signal(Some(Signal::KILL));
            if asked.is_ok() && getppid() == Some(keeper) { body() } else { 1 }
        };
        let pid = raw::fork_sharing_descriptors(guarded)?;
        if let Some(before) = self.last.replace(pid) {
            let _ = waitpid(Some(before), WaitOptions::empty());
        }
        release_program_pages();
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let ended = rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), options))?;
        ended.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Has the kernel make the table large enough, by a descriptor with the last number.
fn make_room() {
    let most = getrlimit(Resource::Nofile).current.map_or(ROOM, |limit| limit.min(ROOM));
    let last = i32::try_from(most).unwrap_or(i32::MAX) - 1;
    // Without it the table grows as it is needed.
    let _ = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), last.max(3));
}
