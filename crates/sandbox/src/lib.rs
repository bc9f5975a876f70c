//! Confinement of a process that parses hostile bytes, in named stages.
//!
//! A process that reads the frames of an untrusted guest is assumed to be taken over one day. Its remaining
//! reach is decided here: each [`Stage`] takes one kind away, works without the others, and is tested without
//! the others (`tests/villain`), so that a kernel or a policy that lacks one still has the rest.
//!
//! ```text
//! parent, one thread                 child
//! ------------------                 -----
//! opens all that the child needs
//! spawn()  -- clone ---------------> user, namespaces (user, PID, mount, IPC, UTS, cgroup; not network)
//!                                    enter(): descriptors, root, dumps, executable memory, privileges,
//!                                             Landlock, capabilities
//!                                    keep() -- clone --> starts its threads
//!                                                        seal(): limits, system calls
//! ```
//!
//! *Order.* The mounts of `root` come before Landlock, which forbids them, and before the capabilities of the
//! new user namespace are dropped. Threads come before `limits` (RLIMIT_NPROC 0 forbids them) and before
//! `system calls`, which has no clone.
//!
//! *Keeper.* The child of [`spawn()`] makes the process at work by [`Keeper::keep`], and only waits for its
//! end: it can start another one from the same state of memory.
//!
//! *User namespace, and not only dropped capabilities.* The kernel gives a process every capability in a user
//! namespace that its effective user owns and whose parent it is in (`cap_capable` in security/commoncap.c),
//! dropped or not: a process that has made its guest's namespaces can reconfigure them for ever. Inside a
//! user namespace of its own it is no ancestor of theirs. No user is mapped into it; for the rest of the
//! system the process keeps its user's number, so its sockets are that user's.
//!
//! *Failures.* A stage that this kernel or its policy refuses is skipped and stands in the [`Report`] with
//! its reason; the caller decides whether that is an error.

mod capabilities;
mod confinement;
mod descriptors;
mod dumps;
mod keeper;
mod landlocked;
mod limits;
mod narrow;
mod program;
mod raw;
mod report;
mod root;
mod spawn;
mod stage;
mod system_calls;
mod user;
mod words;

pub use confinement::Confinement;
pub use keeper::Keeper;
pub use landlocked::TcpBind;
pub use limits::Limits;
pub use narrow::narrow;
pub use program::release_program_pages;
pub use raw::{Forked, end_with, fork, fork_into, release_free_memory, replace};
pub use report::{Gap, Report};
pub use spawn::{Bond, Confined, Parent, spawn};
pub use stage::{Stage, Stages};
pub use system_calls::list::{SOCKET_TYPE, listed};
pub use system_calls::{Alternative, Argument, OnViolation, SystemCall};
pub use user::{become_user, other_user};
pub use words::forget_words;

use rustix::fd::BorrowedFd;
use std::io;

/// Stages between the clone and the start of threads; `kept` are the descriptors that stay open, beside the
/// first three, which lead nowhere afterwards, and `bind` what TCP sockets may still be bound to.
///
/// # Errors
/// None: a stage that fails is noted in `report`.
pub fn enter(stages: Stages, kept: &[BorrowedFd<'_>], bind: TcpBind, report: &mut Report) {
    raw::use_one_heap();
    let steps: [(Stage, &dyn Fn() -> io::Result<()>); 7] = [
        (Stage::Descriptors, &|| descriptors::close_all_but(kept)),
        (Stage::Root, &root::empty),
        (Stage::Dumps, &dumps::forbid_and_forget),
        (Stage::ExecutableMemory, &raw::forbid_executable_memory),
        (Stage::Privileges, &|| Ok(rustix::thread::set_no_new_privs(true)?)),
        (Stage::Landlock, &|| landlocked::forbid_all(bind)),
        (Stage::Capabilities, &capabilities::drop_all),
    ];
    for (stage, step) in steps {
        report.run(stages, stage, step);
    }
}

/// Stages after the start of threads. Limits hold for the process; the list of system calls for all of its
/// threads, and a thread may add a narrower one later.
pub fn seal(
    stages: Stages,
    limits: &Limits,
    calls: &[SystemCall],
    on_violation: OnViolation,
    report: &mut Report,
) {
    report.run(stages, Stage::Limits, || limits.set());
    allow_only(stages, calls, on_violation, report);
}

/// The last stage alone, for a process that makes others: they inherit the list, and can narrow it.
pub fn allow_only(stages: Stages, calls: &[SystemCall], on_violation: OnViolation, report: &mut Report) {
    raw::default_faults();
    report.run(stages, Stage::SystemCalls, || system_calls::allow_only(calls, on_violation));
}
