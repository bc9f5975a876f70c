//! Stage `user`: an ordinary user where the parent is root.
//!
//! A process of user 0, without any capability, still owns root's files and may signal root's processes. It
//! becomes the user `nobody` before it makes its user namespace, which is that user's then.

use crate::raw;
use crate::stage::{Stage, Stages};
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
