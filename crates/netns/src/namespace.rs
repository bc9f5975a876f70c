//! Namespaces: a fresh one for a command, or an existing one; either way an interface in it that brodo
//! serves.
//!
//! brodo itself never leaves the host's namespaces, because its sockets must be the host's. Set-up inside is
//! the work of a forked child: it enters the namespaces, makes the TAP, configures it and passes its
//! descriptors back. For [`fresh`] the child then becomes the command; for [`attach`] it ends.
//!
//! An ordinary user lacks the rights on the host that this needs: the fresh user namespace gives the child
//! all rights over the network and mount namespaces that belong to it, and none over anything else.
//!
//! System calls: socketpair, clone, unshare or setns, mount, sethostname; those of [`crate::setup`],
//! [`id_map`] and [`crate::process`].

mod id_map;
mod target;

pub use id_map::Identity;
pub use target::{FileIdentity, Target, TargetEnd, Watch};

use crate::handoff::{Handoff, Message};
use crate::process::{self, Child, Signals, raw};
use crate::setup::{self, Interface, SetupError, Step, resolv_conf};
use brodo_link::tap::Wanted;
use brodo_net::txqueuelen::TxQueueLenWatch;
use brodo_sandbox::Forked;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::process::{Pid, WaitOptions};
use rustix::thread::UnshareFlags;
use std::ffi::OsString;

/// Interface to create in a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Its properties.
    pub interface: Interface,
    /// Offloads to request.
    pub offload: Wanted,
    /// Number of queues, one for each worker.
    pub queues: u32,
}

/// Descriptors of a created interface.
#[derive(Debug)]
pub struct Made {
    /// The queues of the TAP.
    pub taps: Vec<OwnedFd>,
    /// Socket of a [`TxQueueLenWatch`].
    pub watch: OwnedFd,
}

impl Made {
    /// Creates and configures the interface in the caller's namespace; returns the descriptors for
    /// [`Made::from_descriptors`].
    fn descriptors(plan: &Plan) -> Result<Vec<OwnedFd>, SetupError> {
        let mut descriptors = setup::create_tap(&plan.interface.name, plan.offload, plan.queues)?;
        setup::configure(&plan.interface)?;
        let watch =
            TxQueueLenWatch::socket().map_err(|errno| SetupError::new(Step::OpenNetlink, errno, ""))?;
        descriptors.push(watch);
        Ok(descriptors)
    }

    fn from_descriptors(mut taps: Vec<OwnedFd>) -> Result<Self, SetupError> {
        let watch = taps.pop().ok_or_else(out_of_turn)?;
        Ok(Self { taps, watch })
    }
}

/// A command and the namespaces made for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Program, looked up in PATH, and its arguments.
    pub command: Vec<OsString>,
    /// User and group ids of the command.
    pub identity: Identity,
    /// Content of its /etc/resolv.conf, if that is not to be the host's.
    pub resolv_conf: Option<String>,
    /// Further namespaces of its own.
    pub isolation: Option<Isolation>,
}

/// IPC and UTS namespaces of a command's own, and perhaps a PID namespace, of which it is the first process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Isolation {
    /// Whether it has a PID namespace, with a /proc that shows no others.
    pub processes: bool,
    /// Its host name, if that is not to be the host's.
    pub host_name: Option<String>,
}

impl Session {
    /// Whether the command is the first process of a PID namespace.
    fn has_processes(&self) -> bool {
        self.isolation.as_ref().is_some_and(|isolation| isolation.processes)
    }

    /// The namespaces that the child makes once it runs.
    fn namespaces(&self) -> UnshareFlags {
        let mut flags = UnshareFlags::NEWNET | UnshareFlags::NEWNS;
        if self.isolation.is_some() {
            flags |= UnshareFlags::NEWIPC | UnshareFlags::NEWUTS;
        }
        if self.has_processes() { flags } else { flags | UnshareFlags::NEWUSER }
    }
}

/// Makes fresh namespaces, and a child in them that makes the interface of `plan` and is then ready to become
/// the command. Returns while it makes the interface ([`interface_of`]), for work that needs the namespaces
/// alone: the set-up is a third of a start.
///
/// # Errors
/// The step that the kernel refused.
pub fn fresh(plan: &Plan, session: &Session, signals: Signals) -> Result<Child, SetupError> {
    let brodo = rustix::process::getpid();
    // A PID namespace begins with its first process, and belongs to the user namespace made with it.
    let child = |handoff: &Handoff| become_command(plan, session, handoff, brodo);
    let (pid, handoff) = if session.has_processes() {
        fork_into(libc::CLONE_NEWUSER | libc::CLONE_NEWPID, child)?
    } else {
        fork(child)?
    };
    let child = Child::new(pid, handoff, signals);
    let Message::Unshared = child.handoff().expect()? else { return Err(out_of_turn()) };
    id_map::write(child.pid(), session.identity)?;
    child.handoff().send(&Message::Go)?;
    Ok(child)
}

/// Waits for the interface of a child of [`fresh`], which then waits for [`Child::start`]. To be called once.
///
/// # Errors
/// The step that the kernel refused to the child.
pub fn interface_of(child: &Child) -> Result<Made, SetupError> {
    let Message::Ready(made) = child.handoff().expect()? else { return Err(out_of_turn()) };
    Made::from_descriptors(made)
}

/// The child of [`fresh`]: everything up to execve, which replaces this program.
fn become_command(plan: &Plan, session: &Session, handoff: &Handoff, brodo: Pid) -> Result<(), SetupError> {
    raw::unshare(session.namespaces()).map_err(|errno| SetupError::new(Step::Unshare, errno, ""))?;
    handoff.send(&Message::Unshared)?;
    wait_for_go(handoff)?;
    // Not earlier: the kernel forgets it when a process changes its credentials.
    process::die_with_parent(brodo)?;
    resolv_conf::separate_mounts()?;
    if let Some(isolation) = &session.isolation {
        isolate(isolation)?;
    }
    let made = Made::descriptors(plan)?;
    let groups = id_map::own_groups();
    setup::allow_ping(groups.min, groups.max);
    if let Some(text) = &session.resolv_conf {
        resolv_conf::install(text)?;
    }
    handoff.send(&Message::Ready(made))?;
    wait_for_go(handoff)?;
    Err(process::execute(&session.command))
}

/// The parts of an isolation that are set from inside.
fn isolate(Isolation { processes, host_name }: &Isolation) -> Result<(), SetupError> {
    if *processes {
        // Where parts of the host's /proc are covered, as in most containers, no other is allowed: the
        // command keeps that one, which shows processes that it cannot signal.
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let _ = rustix::mount::mount("proc", "/proc", "proc", flags, None);
    }
    host_name.as_deref().map_or(Ok(()), |name| {
        raw::set_host_name(name).map_err(|errno| SetupError::new(Step::HostName, errno, name))
    })
}

/// Makes the interface of `plan` in the target's network namespace. The target's mounts are unchanged.
pub fn attach(plan: &Plan, target: &Target) -> Result<Made, SetupError> {
    let (pid, handoff) = fork(|handoff| {
        target.enter()?;
        handoff.send(&Message::Ready(Made::descriptors(plan)?))
    })?;
    let answer = handoff.expect();
    let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
    match answer? {
        Message::Ready(made) => Made::from_descriptors(made),
        _ => Err(out_of_turn()),
    }
}

/// Leaves the removal of the interface to the end of its namespace, to be called when the command has ended.
///
/// Closing a TAP removes its interface and waits until no processor can still be looking at it; a command
/// that does nothing then takes 30 ms instead of 10. A namespace's end removes it in the background.
/// Processes left in the namespace, such as a daemon started by the command, keep an interface without
/// carrier.
pub fn leave_interface(tap: impl AsFd) {
    // A failure only costs time.
    let _ = raw::set_persistent(tap.as_fd(), true);
}

/// The channel to a child of [`fork`] that goes on serving it, once the child has said that it is ready; its
/// failure otherwise.
pub(crate) fn served_channel(pid: Pid, handoff: Handoff) -> Result<OwnedFd, SetupError> {
    match handoff.expect() {
        Ok(_) => Ok(handoff.into_descriptor()),
        Err(error) => {
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
            Err(error)
        }
    }
}

/// Forks a child that runs `body`, reports its failure and ends; returns its process id and our end of the
/// conversation.
pub(crate) fn fork(
    body: impl FnOnce(&Handoff) -> Result<(), SetupError>,
) -> Result<(Pid, Handoff), SetupError> {
    let (ours, theirs) = Handoff::pair()?;
    match brodo_sandbox::fork().map_err(refused(Step::Fork))? {
        Forked::Parent(pid) => {
            drop(theirs);
            Ok((pid, ours))
        }
        Forked::Child => {
            // A copy of brodo's end would keep the child from noticing that brodo is gone.
            drop(ours);
            brodo_sandbox::end_with(|| report(body, &theirs))
        }
    }
}

/// [`fork`] into the fresh namespaces of `flags` (`CLONE_NEW*`).
fn fork_into(
    flags: libc::c_int,
    body: impl FnOnce(&Handoff) -> Result<(), SetupError>,
) -> Result<(Pid, Handoff), SetupError> {
    let (ours, theirs) = Handoff::pair()?;
    let mut ours = Some(ours);
    let child = || {
        ours = None;
        report(body, &theirs)
    };
    let pid = brodo_sandbox::fork_into(flags, child).map_err(refused(Step::Unshare))?;
    // Only the child has dropped it.
    ours.map(|ours| (pid, ours)).ok_or_else(out_of_turn)
}

/// In a child: runs `body` and reports its failure; the exit status.
fn report(body: impl FnOnce(&Handoff) -> Result<(), SetupError>, channel: &Handoff) -> i32 {
    match body(channel) {
        Ok(()) => 0,
        Err(error) => {
            let status = error.exit_status();
            // If brodo is gone the message has no receiver.
            let _ = channel.send(&Message::Failed(error));
            status.into()
        }
    }
}

/// The error of a process that could not be made.
fn refused(step: Step) -> impl FnOnce(std::io::Error) -> SetupError {
    move |error| SetupError::new(step, Errno::from_io_error(&error).unwrap_or(Errno::IO), "")
}

fn wait_for_go(handoff: &Handoff) -> Result<(), SetupError> {
    match handoff.expect()? {
        Message::Go => Ok(()),
        _ => Err(out_of_turn()),
    }
}

/// An unexpected message.
fn out_of_turn() -> SetupError {
    SetupError::new(Step::Handoff, Errno::PROTO, "")
}
