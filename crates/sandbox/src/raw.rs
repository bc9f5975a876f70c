//! System calls of confinement that have no safe wrapper in rustix. Each function is safe to call.

use rustix::process::Pid;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Exit status of a child that panics.
const PANICKED: i32 = 125;

/// prctl(2), since Linux 6.3; not in libc yet.
const PR_SET_MDWE: libc::c_int = 65;
const PR_MDWE_REFUSE_EXEC_GAIN: libc::c_ulong = 1;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Forks into the namespaces of `flags` (`CLONE_NEW*`). The child ends with the result of `body`, past exit
/// handlers and output buffers, which are its parent's too.
///
/// # Errors
/// `EBUSY` if the process has more than one thread: the child would hold locks whose owners it lacks. Any
/// error of clone(2).
pub(crate) fn fork_into(flags: libc::c_int, body: impl FnOnce() -> i32) -> io::Result<Pid> {
    debug_assert_eq!(flags & !NAMESPACES, 0, "namespaces only");
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // SAFETY: clone(2) without CLONE_VM and with a null stack is fork(2) with namespaces. This is the only
    // thread, so that the child's copy of memory is consistent; it ends in `_exit` below.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })?;
    if pid == 0 {
        let status = catch_unwind(AssertUnwindSafe(body)).unwrap_or(PANICKED);
        // SAFETY: `_exit` takes any value and does not return.
        unsafe { libc::_exit(status) }
    }
    Pid::from_raw(pid as i32).ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))
}

/// The namespaces of an engine: all but network and time.
pub(crate) const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Closes the descriptors `first..=last`, of whatever owner: for a process that knows by name all that it
/// uses.
pub(crate) fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: takes numbers only. An owner of a closed number in this process is a copy of its parent's and
    // is never dropped, because the process ends by `_exit`.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// Forbids memory that becomes executable.
pub(crate) fn forbid_executable_memory() -> io::Result<()> {
    // SAFETY: takes numbers only; the unused arguments must be 0.
    check(unsafe { libc::prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) }.into()).map(drop)
}
