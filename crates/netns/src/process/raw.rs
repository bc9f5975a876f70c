//! The system calls of process and namespace set-up that have no safe wrapper in rustix.
//!
//! Signal masks, signalfd, unshare, one ioctl, process groups, and descriptors given by number. Each function
//! is safe to call: the requirements of the system call are checked or established here.

use rustix::fd::{BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::{Errno, FdFlags};
use rustix::process::{Pid, Signal};
use rustix::thread::UnshareFlags;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Moves the calling process into fresh namespaces.
pub(crate) fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    let memory = UnshareFlags::FILES | UnshareFlags::FS;
    debug_assert!(!flags.intersects(memory), "namespaces only");
    // SAFETY: rustix marks this unsafe because un-sharing a descriptor table invalidates descriptors of other
    // threads; that flag is removed.
    unsafe { rustix::thread::unshare_unsafe(flags - memory) }
}

/// Sets the host name of the caller's UTS namespace.
pub(crate) fn set_host_name(name: &str) -> Result<(), Errno> {
    // SAFETY: pointer and length are those of the name.
    if unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) } == 0 {
        Ok(())
    } else {
        Err(last_error())
    }
}

fn signal_set(signals: &[Signal]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set it is pointed to, and cannot fail with a valid pointer.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised by the call above.
    let mut set = unsafe { set.assume_init() };
    for signal in signals {
        // SAFETY: the set is initialised and the number is that of a signal.
        unsafe { libc::sigaddset(&raw mut set, signal.as_raw()) };
    }
    set
}

/// Blocks `signals` for the process and returns a non-blocking descriptor that yields them.
///
/// SIGCHLD gets its default disposition: a process started with it ignored would never learn the end of its
/// children.
pub(crate) fn block_into_descriptor(signals: &[Signal]) -> Result<OwnedFd, Errno> {
    let set = signal_set(signals);
    // SAFETY: installs no handler, only a default disposition.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    // SAFETY: the set is initialised and outlives the call; the old mask is not asked for.
    if unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } != 0 {
        return Err(last_error());
    }
    // SAFETY: the set is initialised and outlives the call.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) };
    if fd < 0 {
        return Err(last_error());
    }
    // SAFETY: a fresh descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Blocks one signal for the calling thread and those it starts.
pub(crate) fn block(signal: Signal) -> Result<(), Errno> {
    let set = signal_set(&[signal]);
    // SAFETY: the set is initialised and outlives the call; the old mask is not asked for.
    if unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } == 0 {
        Ok(())
    } else {
        Err(last_error())
    }
}

/// Does what SIGTSTP does to a process that has it not blocked: stops this one until SIGCONT, unless the
/// signal is ignored or the process group is orphaned (POSIX.1-2017, 2.4.3).
pub(crate) fn suspend_self() -> Result<(), Errno> {
    let set = signal_set(&[Signal::TSTP]);
    // SAFETY: the set is initialised and outlives the call; the old mask is not asked for. No handler of this
    // signal is ever installed.
    if unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) } != 0 {
        return Err(last_error());
    }
    // SAFETY: a number alone is given. It is sent to the calling thread, which takes it before it goes on.
    let sent = if unsafe { libc::raise(libc::SIGTSTP) } == 0 { Ok(()) } else { Err(last_error()) };
    block(Signal::TSTP)?;
    sent
}

/// Blocks every signal that can be blocked.
pub(crate) fn block_all() -> Result<(), Errno> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the set it is pointed to, and cannot fail with a valid pointer.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    // SAFETY: the set is initialised and outlives the call; the old mask is not asked for.
    if unsafe { libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut()) } == 0 {
        Ok(())
    } else {
        Err(last_error())
    }
}

/// Closes every descriptor of this process but those `kept`, which become number 3 and the next ones; the
/// standard three lead nowhere.
///
/// For a forked child that ends in [`brodo_sandbox::end_with`]: its other inherited [`OwnedFd`]s are never
/// dropped.
pub(crate) fn close_all_but<const N: usize>(kept: [OwnedFd; N]) -> Result<[OwnedFd; N], Errno> {
    const FIRST: RawFd = 3;
    let end = FIRST + N as RawFd;
    // Out of the way of the numbers that they are to have.
    let mut copies = [-1; N];
    for (copy, descriptor) in copies.iter_mut().zip(kept) {
        *copy = rustix::io::fcntl_dupfd_cloexec(descriptor, end)?.into_raw_fd();
    }
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
    // Numbers may be closed without regard to their owners, which the parent has made and which are never
    // dropped here.
    for number in 0..FIRST {
        match &null {
            // SAFETY: both are numbers of descriptors, and dup2 has no other effect than on the second.
            Ok(null) => unsafe { libc::dup2(null.as_raw_fd(), number) },
            // SAFETY: closes a number.
            Err(_) => unsafe { libc::close(number) },
        };
    }
    std::mem::forget(null);
    for (copy, number) in copies.into_iter().zip(FIRST..) {
        // SAFETY: takes descriptor numbers and flags only, no memory of this process.
        if unsafe { libc::dup3(copy, number, libc::O_CLOEXEC) } < 0 {
            return Err(last_error());
        }
    }
    // SAFETY: closes numbers, as said above; there is no wrapper in every C library.
    if unsafe { libc::syscall(libc::SYS_close_range, end, libc::c_uint::MAX, 0) } != 0 {
        // Before Linux 5.9. Collected first: the directory is one of them.
        let open =
            std::fs::read_dir("/proc/self/fd").map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        let numbers: Vec<RawFd> =
            open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
        for number in numbers.into_iter().filter(|&number| number >= end) {
            // SAFETY: closes a number; the kernel refuses one that is closed already.
            unsafe { libc::close(number) };
        }
    }
    // SAFETY: open, as dup3 has said, and without another owner now.
    Ok(std::array::from_fn(|index| unsafe { OwnedFd::from_raw_fd(FIRST + index as RawFd) }))
}

/// Blocks no signal at all, as a program expects to be started.
pub(crate) fn unblock_all() -> Result<(), Errno> {
    let none = signal_set(&[]);
    // SAFETY: the set is initialised and outlives the call; the old mask is not asked for. Every signal that
    // is delivered now has its default disposition or is ignored: no handler runs.
    if unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) } == 0 {
        Ok(())
    } else {
        Err(last_error())
    }
}

/// The process group of a process; 0 if its leader is outside of the caller's PID namespace, as where `docker
/// run` or `unshare --pid` began it. rustix takes the number for one that is never 0.
pub(crate) fn process_group(process: Pid) -> Result<libc::pid_t, Errno> {
    // SAFETY: numbers alone are given and returned.
    let group = unsafe { libc::getpgid(process.as_raw_pid()) };
    if group < 0 { Err(last_error()) } else { Ok(group) }
}

/// One signal read from a signalfd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Received {
    /// The signal.
    pub(crate) signal: Signal,
    /// Whether the kernel sent it, as for keys typed at a terminal, and not a process.
    pub(crate) from_kernel: bool,
}

/// Takes the next signal from a signalfd; `None` if there is none at present.
pub(crate) fn next_signal(signalfd: BorrowedFd<'_>) -> Result<Option<Received>, Errno> {
    const SIZE: usize = size_of::<libc::signalfd_siginfo>();
    let mut bytes = [0u8; SIZE];
    match rustix::io::read(signalfd, &mut bytes) {
        Ok(SIZE) => {}
        Err(Errno::AGAIN) => return Ok(None),
        Err(errno) => return Err(errno),
        Ok(_) => return Err(Errno::IO),
    }
    let number = field(&bytes, std::mem::offset_of!(libc::signalfd_siginfo, ssi_signo));
    let code = field(&bytes, std::mem::offset_of!(libc::signalfd_siginfo, ssi_code));
    let signal = Signal::from_named_raw(number).ok_or(Errno::IO)?;
    Ok(Some(Received { signal, from_kernel: code == libc::SI_KERNEL }))
}

/// The 32-bit field at `offset`.
fn field(bytes: &[u8], offset: usize) -> i32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[offset..offset + 4]);
    i32::from_ne_bytes(value)
}

/// The user namespace that owns the namespace `namespace` refers to; `EPERM` if it is not one of the
/// caller's.
pub(crate) fn owner_of(namespace: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    /// `NS_GET_USERNS` of linux/nsfs.h, `_IO(0xb7, 1)`.
    const NS_GET_USERNS: libc::Ioctl = 0xb701;
    // SAFETY: the request takes no argument and answers with a fresh descriptor.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS) };
    if fd < 0 {
        return Err(last_error());
    }
    // SAFETY: a fresh descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets whether the TAP's interface outlives its last descriptor.
pub(crate) fn set_persistent(tap: BorrowedFd<'_>, persistent: bool) -> Result<(), Errno> {
    // SAFETY: the request takes its argument by value, and changes nothing but the interface.
    let result =
        unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETPERSIST, libc::c_ulong::from(persistent)) };
    if result < 0 { Err(last_error()) } else { Ok(()) }
}

/// Takes an inherited descriptor by its number, and marks it close-on-exec.
///
/// `EBADF` if there is none, or if it is not inherited: descriptors opened by this process are close-on-exec,
/// inherited ones are not. Hence no descriptor gets two owners here.
pub fn inherited(number: RawFd) -> Result<OwnedFd, Errno> {
    if number <= 2 {
        return Err(Errno::BADF);
    }
    // SAFETY: the number is not -1, and asking for flags does nothing but fail if it is no descriptor.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    if rustix::io::fcntl_getfd(borrowed)?.contains(FdFlags::CLOEXEC) {
        return Err(Errno::BADF);
    }
    rustix::io::fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    // SAFETY: open, and without an owner in this process as shown above; it is marked now, so that it is not
    // taken again.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
