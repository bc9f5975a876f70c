//! Stages `user` and `namespaces`: a child process of an ordinary user in namespaces of its own.

use crate::raw::{self, NAMESPACES};
use crate::{Report, Stage, Stages, program, user, words};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus};
use rustix::process::{pidfd_open, pidfd_send_signal, set_parent_process_death_signal, waitpid};
use std::io;
use std::time::Duration;

/// The process that a child of [`spawn`] belongs to, waits for it, and takes it along when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parent {
    /// The caller.
    Caller,
    /// The caller's own parent (`CLONE_PARENT`): the caller makes the child for it and ends.
    OfCaller,
}

impl Parent {
    const fn flag(self) -> libc::c_int {
        match self {
            Self::Caller => 0,
            Self::OfCaller => libc::CLONE_PARENT,
        }
    }
}

/// Bond between a child of [`spawn`] and its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bond {
    /// The kernel kills it with its parent's thread.
    Life,
    /// It may outlive its parent, and ends when their conversation does: a service manager has a copy of the
    /// parent's end.
    Conversation,
}

/// A confined child, or one of an earlier process.
#[derive(Debug)]
pub struct Confined {
    pid: Pid,
    /// A handle of one that is no child of this process.
    orphan: Option<OwnedFd>,
}

impl Confined {
    /// The child with this process number, made by an earlier program of this process or by a child.
    ///
    /// # Errors
    /// `ECHILD`: it is no child of this process. `NotFound`: it has ended.
    pub fn adopt(pid: i32) -> io::Result<Self> {
        let pid = Some(pid).filter(|&pid| pid > 0).and_then(Pid::from_raw).ok_or(Errno::CHILD)?;
        match rustix::io::retry_on_intr(|| waitpid(Some(pid), WaitOptions::NOHANG))? {
            None => Ok(Self { pid, orphan: None }),
            Some(_) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// One that an earlier process has made ([`Bond::Conversation`]), by its number and a handle of it
    /// ([`Confined::handle`]).
    ///
    /// # Errors
    /// `NotFound`: it has ended.
    pub fn of_another(pid: i32, handle: OwnedFd) -> io::Result<Self> {
        let pid = Some(pid).filter(|&pid| pid > 0).and_then(Pid::from_raw).ok_or(Errno::INVAL)?;
        if poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&Timespec::default()))? > 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Self { pid, orphan: Some(handle) })
    }

    /// A handle of the process (pidfd), which no reuse of its number leads astray.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn handle(&self) -> io::Result<OwnedFd> {
        match &self.orphan {
            Some(handle) => handle.try_clone(),
            None => Ok(pidfd_open(self.pid, PidfdFlags::empty())?),
        }
    }

    /// Its process number, as the caller sees it.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether this process may end it. Root may not without CAP_KILL, if it belongs to another user.
    pub fn may_kill(&self) -> bool {
        rustix::process::test_kill_process(self.pid) != Err(Errno::PERM)
    }

    fn kill(&self) -> Result<(), Errno> {
        match &self.orphan {
            Some(handle) => pidfd_send_signal(handle, Signal::KILL),
            None => rustix::process::kill_process(self.pid, Signal::KILL),
        }
    }

    /// Ends it, and with it all processes of its PID namespace, and waits for that. One that this process may
    /// not end is waited for no longer than `patience`: the caller has asked it to end, and if it does not,
    /// the kernel ends it together with this process. Its end, if that is known.
    pub fn end(self, patience: Duration) -> Option<WaitStatus> {
        // It has ended already, or its end is near: both are what is wanted.
        let refused = self.kill() == Err(Errno::PERM);
        if refused || self.orphan.is_some() {
            let ended = self.handle().ok()?;
            let patience = Timespec::try_from(patience).ok()?;
            if poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&patience)) != Ok(1) {
                return None;
            }
        }
        if self.orphan.is_some() { None } else { self.wait().ok() }
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// It was waited for already.
    pub fn wait(self) -> io::Result<WaitStatus> {
        let ended = rustix::io::retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty()))?;
        ended.map(|(_, status)| status).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Runs `body` in a child process, as an ordinary user and in new namespaces if `stages` has them; its result
/// is the exit status.
///
/// With [`Bond::Life`] the child dies with its parent's thread (SIGKILL): the caller's, or the one that has
/// made the caller. A program that this thread executes in place keeps it. In a PID namespace the child is
/// number 1: its end ends all processes that it has made. Stages that the system refuses stand in the report
/// with the error.
///
/// # Errors
/// The process has several threads (`EBUSY`), or cannot fork.
pub fn spawn(
    stages: Stages,
    parent: Parent,
    bond: Bond,
    body: impl FnOnce(Report) -> i32,
) -> io::Result<Confined> {
    let made = |pid| Confined { pid, orphan: None };
    // The child cannot see /proc later.
    program::is_unchanged();
    words::places();
    let mut body = Some(body);
    let mut run = |report: Report| {
        // Not earlier: the kernel forgets it when a process changes its credentials. The caller's end before
        // this is noticed by the child at the end of their conversation.
        let signal = Some(Signal::KILL).filter(|_| bond == Bond::Life);
        let guarded = set_parent_process_death_signal(signal);
        match (guarded, body.take()) {
            (Ok(()), Some(body)) => body(report),
            _ => 1,
        }
    };
    let mut report = Report::default();
    if stages.contains(Stage::User) && user::is_root() {
        // Root needs no user namespace for a PID namespace, and makes the others as the user that it becomes.
        let in_pid_namespace = stages.contains(Stage::Namespaces);
        let others = || {
            report.run(stages, Stage::User, user::become_nobody);
            report.run(stages, Stage::Namespaces, || raw::unshare(NAMESPACES & !libc::CLONE_NEWPID));
            run(report)
        };
        let flags = if in_pid_namespace { libc::CLONE_NEWPID } else { 0 };
        return raw::fork_into(flags | parent.flag(), others).map(made);
    }
    report.run(stages, Stage::User, || Ok(()));
    if stages.contains(Stage::Namespaces) {
        match raw::fork_into(NAMESPACES | parent.flag(), || run(report.clone())) {
            Ok(pid) => return Ok(made(pid)),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Err(error),
            Err(error) => report.add(Stage::Namespaces, &error.to_string()),
        }
    } else {
        report.add(Stage::Namespaces, "off");
    }
    raw::fork_into(parent.flag(), || run(report)).map(made)
}
