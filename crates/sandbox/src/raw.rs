//! System calls of forks and of confinement that have no safe wrapper in rustix. Each function is safe to
//! call.

use rustix::process::Pid;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

/// Exit status of a child that panics; its parent sees an end without a message.
const PANICKED: i32 = 125;

/// Longest time for which a thread that was joined may be one of the process, on a busy machine.
const LEAVING_MAX: Duration = Duration::from_millis(500);

/// prctl(2), since Linux 6.3; not in libc yet.
const PR_SET_MDWE: libc::c_int = 65;
const PR_MDWE_REFUSE_EXEC_GAIN: libc::c_ulong = 1;

/// Side of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forked {
    /// The new process; it must end in [`end_with`].
    Child,
    /// The parent, with the process id of the child.
    Parent(Pid),
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Refuses a fork beside other threads: the child would hold locks whose owners it lacks. A thread that was
/// joined is one of the process for a moment more: the kernel wakes the joining thread first, and takes the
/// other out of its list then. That moment is waited for.
///
/// # Errors
/// `EBUSY` if the process has more than one thread.
fn only_thread() -> io::Result<()> {
    let mut begin = None;
    // SAFETY: takes flags only. With this one alone unshare(2) has no effect but to fail in a process of
    // several threads; unlike /proc it is there in an empty root.
    while unsafe { libc::unshare(libc::CLONE_THREAD) } != 0 {
        // Not read before there was another thread: a confined process without one may not ask for the time.
        if begin.get_or_insert_with(Instant::now).elapsed() >= LEAVING_MAX {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        thread::yield_now();
    }
    Ok(())
}

/// Forks the process.
///
/// # Errors
/// `EBUSY` if the process has more than one thread. Any error of fork(2).
pub fn fork() -> io::Result<Forked> {
    only_thread()?;
    // SAFETY: fork has no safe wrapper. This is the only thread, so the child's copy of memory is consistent
    // and it may go on as an ordinary process.
    match check(unsafe { libc::fork() }.into())? {
        0 => Ok(Forked::Child),
        pid => pid_of(pid).map(Forked::Parent),
    }
}

/// Forks into the namespaces of `flags` (`CLONE_NEW*`), as a child of the parent with `CLONE_PARENT`. The
/// child ends with the result of `body` ([`end_with`]).
///
/// # Errors
/// `EBUSY` if the process has more than one thread. Any error of clone(2).
pub fn fork_into(flags: libc::c_int, body: impl FnOnce() -> i32) -> io::Result<Pid> {
    debug_assert_eq!(flags & !(NAMESPACES | libc::CLONE_PARENT), 0, "namespaces only");
    fork_with(flags, body)
}

/// Forks a child that shares this process's table of descriptors; as [`fork_into`] otherwise.
pub(crate) fn fork_sharing_descriptors(body: impl FnOnce() -> i32) -> io::Result<Pid> {
    fork_with(libc::CLONE_FILES, body)
}

fn fork_with(flags: libc::c_int, body: impl FnOnce() -> i32) -> io::Result<Pid> {
    only_thread()?;
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // SAFETY: clone(2) without CLONE_VM and with a null stack is fork(2), with namespaces or one table of
    // descriptors. This is the only thread, so that the child's copy of memory is consistent; it ends in
    // `_exit` below. With a shared table the parent is in waitid(2) until then, and uses no descriptor.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })?;
    match pid {
        0 => end_with(body),
        pid => pid_of(pid),
    }
}

fn pid_of(number: libc::c_long) -> io::Result<Pid> {
    Pid::from_raw(number as i32).ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))
}

/// Runs `body` and ends the process with its result, past the exit handlers and output buffers that it shares
/// with its parent.
pub fn end_with(body: impl FnOnce() -> i32) -> ! {
    let status = catch_unwind(AssertUnwindSafe(body)).unwrap_or(PANICKED);
    // SAFETY: `_exit` takes any value and does not return.
    unsafe { libc::_exit(status) }
}

/// Executes the program at `path` in the place of this one, with these arguments and this environment, and
/// with the signals blocked now. Returns only if that fails, and then nothing has changed.
///
/// [`std::os::unix::process::CommandExt::exec`] unblocks all signals before it, so that one that waits to be
/// read from a descriptor would end the process.
///
/// # Errors
/// Any error of execve(2); `EINVAL` for a word with a zero byte.
pub fn replace(path: &OsStr, arguments: &[OsString], environment: &[(OsString, OsString)]) -> io::Error {
    let text = |bytes: Vec<u8>| CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL));
    let variable = |(name, value): &(OsString, OsString)| [name.as_bytes(), value.as_bytes()].join(&b'=');
    let texts = || -> io::Result<(CString, Vec<CString>, Vec<CString>)> {
        let arguments =
            arguments.iter().map(|word| text(word.as_bytes().to_vec())).collect::<Result<_, _>>()?;
        let environment = environment.iter().map(|pair| text(variable(pair))).collect::<Result<_, _>>()?;
        Ok((text(path.as_bytes().to_vec())?, arguments, environment))
    };
    let (path, arguments, environment) = match texts() {
        Ok(texts) => texts,
        Err(error) => return error,
    };
    let ends = |list: &[CString]| -> Vec<*const libc::c_char> {
        list.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (arguments, environment) = (ends(&arguments), ends(&environment));
    // SAFETY: texts that end in a zero byte and lists that end in a null pointer, all alive until the return.
    unsafe { libc::execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// The namespaces of an engine: all but network and time.
pub(crate) const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Moves the process, of one thread, into namespaces of its own; the PID namespace only for its children.
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    debug_assert_eq!(flags & !NAMESPACES, 0, "namespaces only");
    // SAFETY: takes flags only, and none that touches memory or descriptors.
    check(unsafe { libc::unshare(flags) }.into()).map(drop)
}

/// Sets user and group of all kinds, without further groups.
pub(crate) fn set_user(user: u32, group: u32) -> io::Result<()> {
    // SAFETY: an empty list is not read.
    check(unsafe { libc::setgroups(0, std::ptr::null()) }.into())?;
    // SAFETY: takes numbers only.
    check(unsafe { libc::setresgid(group, group, group) }.into())?;
    // SAFETY: takes numbers only.
    check(unsafe { libc::setresuid(user, user, user) }.into()).map(drop)
}

/// Closes the descriptors `first..=last`, of whatever owner: for a process that knows by name all that it
/// uses.
pub(crate) fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: takes numbers only. An owner of a closed number in this process is a copy of its parent's and
    // is never dropped, because the process ends by `_exit`.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// Overwrites these places of arguments and environment ([`crate::forget_words`]) with zeros. The environment
/// has the variables `kept` then, and no other.
///
/// # Errors
/// `EBUSY` if the process has more than one thread: another one may read the environment.
pub(crate) fn overwrite_words(places: &[Range<usize>], kept: &[(&str, OsString)]) -> io::Result<()> {
    only_thread()?;
    // SAFETY: this is the only thread, so the C library's list of variables is used by nothing else. It has
    // no pointer to the places afterwards.
    check(unsafe { libc::clearenv() }.into())?;
    for place in places {
        let bytes = std::ptr::with_exposed_provenance_mut::<u8>(place.start);
        // SAFETY: the kernel has put the words there, in writable memory of the stack above all frames. The
        // standard library copies a word before it returns it, so there are no references; the C library has
        // pointers to arguments, which are empty texts from now on.
        unsafe { bytes.write_bytes(0, place.len()) };
    }
    for (name, value) in kept {
        // SAFETY: this is the only thread.
        unsafe { std::env::set_var(name, value) };
    }
    Ok(())
}

/// Has glibc's allocator serve all threads from one heap, which grows and shrinks by brk(2).
///
/// It gives each thread a heap of its own otherwise, and before it returns memory of such a heap it reads
/// /proc/sys/vm/overcommit_memory (`check_may_shrink_heap` in malloc-sysdep.h); before it makes a third one
/// it reads the number of processors from /sys. A list of system calls without openat(2) ends the process
/// then. Threads rarely wait for each other: each has a cache of small blocks in front of the heap.
pub(crate) fn use_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number of the allocator's, under its lock.
    let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Gives memory that was freed back to the system, so that no process forked from now on has a copy of it.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: works on the allocator's own free lists, under its lock.
    let _ = unsafe { libc::malloc_trim(0) };
}

/// Calls `wanted` with the addresses of each segment of the program and its libraries that is never written
/// to, code and constants, and unmaps the pages of those for which it says so. They are mapped again one by
/// one as they are used.
pub(crate) fn release_segments(mut wanted: impl FnMut(Range<usize>) -> bool) {
    let mut wanted: &mut dyn FnMut(Range<usize>) -> bool = &mut wanted;
    // SAFETY: the callback has the type that is called, and gets what it takes the data for, which lives for
    // the call.
    unsafe { libc::dl_iterate_phdr(Some(release_of_object), (&raw mut wanted).cast()) };
}

/// Segments of one object. Those with relocations are writable, also where the loader has taken that right
/// away from a part of them.
unsafe extern "C" fn release_of_object(
    object: *mut libc::dl_phdr_info,
    _: libc::size_t,
    wanted: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the loader's own description, valid for the call.
    let object = unsafe { &*object };
    // SAFETY: it has so many headers.
    let segments = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    // SAFETY: the data of `release_segments`, used by nothing else for the call.
    let wanted = unsafe { &mut *wanted.cast::<&mut dyn FnMut(Range<usize>) -> bool>() };
    let base = object.dlpi_addr as usize;
    // SAFETY: reads the vector that the kernel has given the program.
    if base == unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize {
        // The kernel's own object (vdso) is in no file.
        return 0;
    }
    let page = rustix::param::page_size();
    let unwritten = segments
        .iter()
        .filter(|segment| segment.p_type == libc::PT_LOAD && segment.p_flags & libc::PF_W == 0);
    for segment in unwritten {
        let start = (base + segment.p_vaddr as usize) & !(page - 1);
        let end = (base + (segment.p_vaddr + segment.p_memsz) as usize).next_multiple_of(page);
        if wanted(start..end) {
            // SAFETY: a private mapping of a file that this process has written nothing to: all that is
            // dropped is read again from the file. An error (locked memory) leaves it as it is.
            let _ = unsafe { libc::madvise(start as *mut _, end - start, libc::MADV_DONTNEED) };
        }
    }
    0
}

/// Lets faults of memory end the process by their own signal: the standard library's handler, which looks for
/// overflows of stacks, makes system calls that a list has no place for.
pub(crate) fn default_faults() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: installs no handler, only the default disposition.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Forbids memory that becomes executable.
pub(crate) fn forbid_executable_memory() -> io::Result<()> {
    // SAFETY: takes numbers only; the unused arguments must be 0.
    check(unsafe { libc::prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) }.into()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_does_not_fork() {
        // A test runs in a thread of its own, beside the main one.
        assert_eq!(fork().unwrap_err().raw_os_error(), Some(libc::EBUSY));
        assert_eq!(fork_into(0, || 0).unwrap_err().raw_os_error(), Some(libc::EBUSY));
    }
}
