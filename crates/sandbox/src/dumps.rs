//! Stage `dumps`: memory that no other process reads, and without the words of the program's start.
//!
//! A process that is not dumpable leaves no core, and its files in /proc belong to root: other processes of
//! the same user can neither trace it nor read its memory (ptrace(2), `__ptrace_may_access`).

use crate::words;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::io;

/// Makes the process not dumpable, and overwrites arguments and environment.
pub(crate) fn forbid_and_forget() -> io::Result<()> {
    let forgotten = words::forget_words();
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    forgotten
}
