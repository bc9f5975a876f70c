//! Stage `user`: an ordinary user where the parent is root.
//!
//! A process of user 0, without any capability, still owns root's files and may signal root's processes. It
//! becomes the user `nobody` before it makes its user namespace, which is that user's then.

use crate::stage::{Stage, Stages};
use crate::{capabilities, raw};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_keep_capabilities};
use std::io;

/// The user and group that no file and no other process should belong to.
const NOBODY: u32 = 65534;

/// Whether this process belongs to root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The user of a process that this one starts with these stages, if it is another.
pub fn other_user(stages: Stages) -> Option<u32> {
    (stages.contains(Stage::User) && is_root()).then_some(NOBODY)
}

/// Becomes an ordinary user, with no further group.
pub(crate) fn become_nobody() -> io::Result<()> {
    raw::set_user(NOBODY, NOBODY)
}

/// Leaves the process, of one thread, to another user, with two of root's capabilities: to bind privileged
/// ports, and to signal other users' processes: the end of its children takes that (see [`crate::narrow()`]).
///
/// # Errors
/// The process is not root's, or a number is not mapped in its user namespace.
pub fn become_user(user: u32, group: u32) -> io::Result<()> {
    set_keep_capabilities(true)?;
    raw::set_user(user, group)?;
    // The change has emptied the effective set, which the bounding set's change takes.
    let held = rustix::thread::capabilities(None)?;
    set_capabilities(None, CapabilitySets { effective: held.permitted, ..held })?;
    capabilities::keep(CapabilitySet::NET_BIND_SERVICE | CapabilitySet::KILL)
}
