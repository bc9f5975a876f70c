//! Keeper: a process that outlives the one at work, with the same table of descriptors.
//!
//! `clone(CLONE_FILES)` without `CLONE_VM` gives two processes one table of descriptors and separate memory.
//! The keeper makes the process at work so and sleeps in waitpid; when that process ends, of whatever cause
//! (a system call that is not allowed, an abort, SIGKILL), every descriptor is still open under its number.
//! It must be the parent, and number 1 of the PID namespace: the end of number 1 ends the whole namespace.
//! Where there is none, a death signal ends the child with the keeper.
//!
//! Trust: the process at work may have been taken over, and can close and replace the keeper's descriptors,
//! but not its memory.

use crate::{descriptors, raw};
use rustix::fd::BorrowedFd;
use rustix::process::{
    Signal, WaitOptions, WaitStatus, getpid, getppid, set_parent_process_death_signal, waitpid,
};
use std::io;

/// Runs `body` in a child process that shares the descriptors of this one and dies with it, waits for its
/// end, and closes every descriptor but `kept` and the first three.
///
/// # Errors
/// The process has several threads (`EBUSY`), or cannot fork.
pub fn keep(kept: &[BorrowedFd<'_>], body: impl FnOnce() -> i32) -> io::Result<WaitStatus> {
    let keeper = getpid();
    let guarded = || {
        // The keeper may have ended in between.
        let asked = set_parent_process_death_signal(Some(Signal::KILL));
        if asked.is_ok() && getppid() == Some(keeper) { body() } else { 1 }
    };
    let pid = raw::fork_sharing_descriptors(guarded)?;
    let ended = rustix::io::retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()))?;
    descriptors::close_others(kept)?;
    ended.map(|(_, status)| status).ok_or_else(|| io::ErrorKind::NotFound.into())
}
