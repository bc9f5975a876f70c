//! The command: start in its namespace, forwarded signals, exit status.
//!
//! A command under brodo behaves as it would without: it shares brodo's terminal, process group, environment,
//! working directory and every descriptor brodo inherited. Terminal signals (Ctrl-C, Ctrl-\, Ctrl-Z, a
//! window's change of size) go from the kernel to the whole process group, hence to the command itself; brodo
//! ignores them. Signals of another process to brodo alone are forwarded, but for SIGUSR2, which asks brodo
//! to replace itself. The sender reported by signalfd distinguishes the two.
//!
//! When the command stops (Ctrl-Z), brodo stops too, so that the shell that waits for brodo gets its prompt
//! back; when brodo is continued it continues the command.
//!
//! No handler runs: signals are blocked and read from a descriptor, in the loop that serves the network. The
//! command starts with none blocked and with the dispositions that brodo was started with, so that `nohup
//! brodo run` works (SIGPIPE, which the standard library ignores, it also sets back before execve).
//!
//! System calls: fork, execve, signalfd, waitpid, kill, prctl, seccomp.

pub(crate) mod raw;

pub use raw::inherited;

use crate::handoff::{Handoff, Message};
use crate::setup::{SetupError, Step};
use brodo_sandbox::{Confinement, SystemCall};
use raw::Received;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Signals read by signalfd. SIGTTIN and SIGTTOU are not among them: they stop brodo when it writes to a
/// terminal that is not its own, as they should.
const HANDLED: [Signal; 10] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::TSTP,
    Signal::CONT,
    Signal::CHILD,
];

/// Signals that end a process without a handler.
const ENDING: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];

/// Signals as a descriptor; while it exists they have no other effect.
///
/// SIGUSR2 asks brodo for an upgrade in place and is kept until [`Signals::take_upgrade`].
#[derive(Debug)]
pub struct Signals {
    descriptor: OwnedFd,
    upgrade: Cell<bool>,
}

/// File size limit (`ulimit -f`): a write beyond it fails with `EFBIG` instead of ending brodo and its
/// command by SIGXFSZ.
///
/// The signal is blocked rather than ignored, so the command gets it as if brodo were not there: it starts
/// with no signal blocked and with inherited dispositions. To be called before there are threads, which
/// inherit it.
///
/// # Errors
/// Errors of sigprocmask; none is known on Linux.
pub fn block_file_size_signal() -> Result<(), SetupError> {
    raw::block(Signal::XFSZ).map_err(|errno| SetupError::new(Step::Signals, errno, ""))
}

/// Closes every descriptor that this program was started with, but the standard three and those in `kept`: a
/// caller that reads a pipe to its end waits for all copies of it.
///
/// # Errors
/// /proc cannot be read.
pub fn close_inherited(kept: &[RawFd]) -> Result<(), SetupError> {
    let path = "/proc/self/fd";
    let fail = |error: std::io::Error| SetupError::from_io(Step::CloseInherited, &error, path);
    let names =
        fs::read_dir(path).map_err(fail)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    // Collected first: the directory is one of them.
    let numbers: Vec<RawFd> = names.filter_map(|name| name.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| !kept.contains(number)) {
        drop(inherited(number));
    }
    Ok(())
}

impl Signals {
    /// Blocks the signals of a session. To be called before any step that a signal should not interrupt.
    pub fn block() -> Result<Self, SetupError> {
        raw::block_into_descriptor(&HANDLED)
            .map(Self::resume)
            .map_err(|errno| SetupError::new(Step::Signals, errno, ""))
    }

    /// Signals of a descriptor that an earlier program of this process has made; it has left them blocked.
    pub fn resume(descriptor: OwnedFd) -> Self {
        Self { descriptor, upgrade: Cell::new(false) }
    }

    /// Whether an upgrade was asked for since the last call.
    pub fn take_upgrade(&self) -> bool {
        self.upgrade.take()
    }

    /// The next pending signal.
    fn next(&self) -> Result<Option<Received>, SetupError> {
        loop {
            let next = raw::next_signal(self.descriptor.as_fd());
            let next = next.map_err(|errno| SetupError::new(Step::Signals, errno, ""))?;
            if next.as_ref().is_none_or(|received| received.signal != Signal::USR2) {
                return Ok(next);
            }
            self.upgrade.set(true);
        }
    }

    /// Takes all pending signals; true if one of them asks brodo itself to end. One that brodo was started to
    /// ignore (nohup(1), a job of a shell without job control) does not, but for SIGTERM: a blocked signal is
    /// queued whatever its disposition.
    ///
    /// # Errors
    /// The descriptor cannot be read.
    pub fn asked_to_end(&self) -> Result<bool, SetupError> {
        let mut end = false;
        while let Some(Received { signal, .. }) = self.next()? {
            match signal {
                Signal::HUP | Signal::INT | Signal::QUIT => end |= !is_ignored(signal),
                Signal::TERM => end = true,
                // Blocked, so brodo has to stop by its own hand; not where no shell could continue it.
                Signal::TSTP => suspend_self()?,
                _ => {}
            }
        }
        Ok(end)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The process in the namespace: first our own code that sets it up, then the command.
///
/// Dropped before its end it is killed: without brodo its network is dead.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    handoff: Handoff,
    signals: Signals,
    ended: bool,
    /// The last signal in whose place the command was sent SIGKILL.
    replaced: Option<Signal>,
}

impl Child {
    /// A child that an earlier program of this process has started, by the descriptors of
    /// [`Child::descriptors`].
    pub fn resume(pid: Pid, handoff: OwnedFd, signals: Signals) -> Self {
        Self::new(pid, Handoff::from(handoff), signals)
    }

    /// The conversation with the child, and the signals.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.handoff.as_fd(), self.signals.as_fd()]
    }

    /// The signals.
    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    /// A handle for `pid`, a child at the other end of `handoff`.
    pub(crate) fn new(pid: Pid, handoff: Handoff, signals: Signals) -> Self {
        Self { pid, handoff, signals, ended: false, replaced: None }
    }

    /// Process id of the child.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The conversation with the child, until execve.
    pub(crate) fn handoff(&self) -> &Handoff {
        &self.handoff
    }

    /// Lets the command start. Its start is reported by [`Child::handle`]: a wait for it here would delay
    /// signals, and the child may be stopped at any time.
    pub fn start(&self) -> Result<(), SetupError> {
        self.handoff.send(&Message::Go)
    }

    /// Acts on pending signals; the command's exit status once it has ended: its own, or 128 and the number
    /// of the signal that killed it, or that would have but for its PID namespace. Failure to start it is an
    /// error.
    pub fn handle(&mut self) -> Result<Option<u8>, SetupError> {
        while let Some(received) = self.signals.next()? {
            if received.signal == Signal::CHILD {
                if let Some(status) = self.wait()? {
                    return Ok(Some(status));
                }
            } else if self.would_be_lost(received.signal) {
                self.replaced = Some(received.signal);
                let _ = rustix::process::kill_process(self.pid, Signal::KILL);
            } else if self.is_to_forward(received) {
                // Race with its end: then the signal has no receiver.
                let _ = rustix::process::kill_process(self.pid, received.signal);
            }
        }
        Ok(None)
    }

    /// Whether a signal would end the command, but for its being the first process of a PID namespace, on
    /// which signals without a handler have no effect.
    fn would_be_lost(&self, signal: Signal) -> bool {
        if !ENDING.contains(&signal) {
            return false;
        }
        let number = self.pid.as_raw_nonzero();
        let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/pid")).ok();
        let status = || fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
        // That of a program which may only be executed cannot be read.
        let other = namespace(&number.to_string()).is_some_and(|of| Some(of) != namespace("self"));
        other && is_lost(&status(), signal)
    }

    /// Whether the command has not received it already. The kernel signals the group, and the command may
    /// have left it. A terminal's hang-up goes to the session's leader alone, which brodo may be.
    fn is_to_forward(&self, received: Received) -> bool {
        let shares_group = || {
            let own = raw::process_group(rustix::process::getpid());
            own.is_ok() && raw::process_group(self.pid) == own
        };
        !received.from_kernel || received.signal == Signal::HUP || !shares_group()
    }

    /// Status of the command, without waiting.
    fn wait(&mut self) -> Result<Option<u8>, SetupError> {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        while let Some((_, status)) = rustix::process::waitpid(Some(self.pid), options)
            .map_err(|errno| SetupError::new(Step::Wait, errno, ""))?
        {
            if let Some(code) = exit_status(status, self.replaced) {
                self.ended = true;
                // Failure of the child before execve, if there is a message; execve has closed its end
                // otherwise.
                return match self.handoff.receive()? {
                    Some(Message::Failed(error)) => Err(error),
                    _ => Ok(Some(code)),
                };
            }
            // A stop signal to a process without a terminal concerns that process alone.
            if status.stopped() && has_terminal() {
                stop_self()?;
            }
        }
        Ok(None)
    }
}

impl AsFd for Child {
    /// Readable when [`Child::handle`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.ended {
            let _ = rustix::process::kill_process(self.pid, Signal::KILL);
            let _ = rustix::process::waitpid(Some(self.pid), WaitOptions::empty());
        }
    }
}

/// Whether the first process of a PID namespace, with this `/proc/PID/status`, neither handles nor ignores a
/// signal, nor blocks it: the kernel delivers one that is blocked, and tini and others wait for theirs so.
fn is_lost(status: &str, signal: Signal) -> bool {
    let masks = ["SigIgn:", "SigCgt:", "SigBlk:"].map(|key| mask(status, key));
    masks.iter().all(|mask| mask.is_some_and(|mask| mask & bit(signal) == 0))
}

/// Whether this process was started to ignore a signal: no disposition changes but that of SIGCHLD.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    mask(&status, "SigIgn:").is_some_and(|mask| mask & bit(signal) != 0)
}

/// The bit of a signal in the masks of `/proc/PID/status`.
fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

/// A mask of `/proc/PID/status` (`proc_pid_status(5)`).
fn mask(status: &str, key: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix(key))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

/// Exit status as a shell reports it, with the signal that SIGKILL has `replaced`; `None` if the process has
/// not ended.
fn exit_status(status: WaitStatus, replaced: Option<Signal>) -> Option<u8> {
    let replaced = |signal| replaced.filter(|_| signal == Signal::KILL.as_raw()).map(Signal::as_raw);
    let signal = || status.terminating_signal().map(|signal| 128 + replaced(signal).unwrap_or(signal));
    status.exit_status().or_else(signal).map(|status| status as u8)
}

/// Stops this process until SIGCONT as SIGTSTP does: not in an orphaned process group.
fn suspend_self() -> Result<(), SetupError> {
    raw::suspend_self().map_err(|errno| SetupError::new(Step::Signals, errno, ""))
}

/// Stops this process until SIGCONT.
fn stop_self() -> Result<(), SetupError> {
    rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)
        .map_err(|errno| SetupError::new(Step::Signals, errno, ""))
}

fn has_terminal() -> bool {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open("/dev/tty", flags, rustix::fs::Mode::empty()).is_ok()
}

/// In the child: requests SIGKILL at the end of brodo, in whatever way. `parent` is brodo's process id; it
/// may have ended before the request.
pub(crate) fn die_with_parent(parent: Pid) -> Result<(), SetupError> {
    let fail = |errno| SetupError::new(Step::DeathSignal, errno, "");
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(fail)?;
    // A parent outside of this process's PID namespace has no number here.
    let found = rustix::process::getppid();
    if found.is_none_or(|found| found == parent) { Ok(()) } else { Err(fail(Errno::SRCH)) }
}

/// In a child: allows these system calls and no other, as far as that is wanted.
pub(crate) fn allow_only(confinement: Confinement, calls: &[SystemCall]) -> Result<(), Errno> {
    let refused = |error| Errno::from_io_error(&error).unwrap_or(Errno::OPNOTSUPP);
    confinement.allow_only(calls).map_err(refused)
}

/// In a child that is to be confined: overwrites brodo's arguments and environment.
pub(crate) fn forget_words() -> Result<(), Errno> {
    brodo_sandbox::forget_words().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOENT))
}

/// In the child: becomes the command, of which the first word is looked up in PATH. `-/FILE` is the program
/// /FILE as a login shell, with that word as its name, as login(1) starts one. Returns only if that fails.
pub(crate) fn execute(command: &[OsString]) -> SetupError {
    let Some((name, arguments)) = command.split_first() else {
        return SetupError::new(Step::Execute, Errno::NOENT, "");
    };
    let program = name.as_bytes().strip_prefix(b"-").filter(|path| path.starts_with(b"/"));
    let program = program.map_or(name.as_os_str(), OsStr::from_bytes);
    // Signals pending since brodo blocked them are delivered here, and may end the process before it is the
    // command.
    if let Err(errno) = raw::unblock_all() {
        return SetupError::new(Step::Signals, errno, "");
    }
    let error = Command::new(program).arg0(name).args(arguments).exec();
    let mut error = SetupError::from_io(Step::Execute, &error, program.to_string_lossy());
    // The search reports a directory of PATH without search permission as if the program were in it.
    if error.errno == Errno::ACCESS && !is_found(program) {
        error.errno = Errno::NOENT;
    }
    error
}

/// Whether a program's name leads to a file, by itself or by way of PATH.
fn is_found(program: &OsStr) -> bool {
    if program.as_bytes().contains(&b'/') {
        return true;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}

#[cfg(test)]
mod tests;
