//! Stage `dumps`: memory that no other process reads.
//!
//! A process that is not dumpable leaves no core, and its files in /proc belong to root: other processes of
//! the same user can neither trace it nor read its memory (ptrace(2), `__ptrace_may_access`).

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::io;

/// Makes the process not dumpable.
pub(crate) fn forbid() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}
