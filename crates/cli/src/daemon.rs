//! Daemon: a service in the background, whose readiness is the end of the command that started it.
//!
//! The process forks before it makes anything. The child does all the work, with the caller's standard error
//! for its failures; the parent waits on a socket pair. Once the network is up and every port is bound, the
//! child lets go of its terminal, its working directory and standard descriptors and says so, and the parent
//! writes the PID file. Only then the child announces its readiness by other ways (`--ready-fd`), and the
//! parent ends with status 0. A child that ends earlier has said why, and its exit status is the parent's.
//!
//! A caller that reads brodo's standard error to its end gets that end with the parent's: inherited
//! descriptors are closed at the start, and the other processes of brodo close theirs (keeper, engine, socket
//! broker).

use crate::args::NetworkOptions;
use crate::failure::Failure;
use crate::pid_file::PidFile;
use brodo_netns::process::close_inherited;
use brodo_sandbox::Forked;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::RawFd;

/// Exit status of a child that was killed before it was ready.
const STATUS_KILLED: u8 = 125;

/// A process after the fork.
pub(crate) enum Begun {
    /// The parent, with its exit status.
    Parent {
        /// 0 once the child serves.
        status: u8,
    },
    /// The child, which goes on.
    Child(Daemon),
}

/// The process in the background until it is ready.
#[derive(Debug)]
pub(crate) struct Daemon {
    parent: OwnedFd,
    /// Opened while there is a /dev.
    null: File,
}

impl Daemon {
    /// Forks, with descriptors `kept` beside those of the options. The parent returns when the child is ready
    /// or has ended.
    ///
    /// # Errors
    /// The PID file cannot be written, or no process can be made.
    pub(crate) fn begin(options: &NetworkOptions, kept: &[RawFd]) -> Result<Begun, Failure> {
        let kept: Vec<_> =
            kept.iter().copied().chain(options.ready_fd.as_ref().map(|ready| ready.number)).collect();
        close_inherited(&kept)?;
        let pid_file = options.pid_file.as_deref().map(PidFile::open).transpose()?;
        let failed = |call| Failure::io(format!("go on in the background: {call}"));
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(|errno| failed("socketpair")(errno.into()))?;
        match brodo_sandbox::fork().map_err(failed("fork"))? {
            Forked::Parent(child) => {
                drop(theirs);
                let status = wait(&ours, child)?;
                if status == 0 {
                    pid_file.map_or(Ok(()), |pid_file| pid_file.write(child.as_raw_pid()))?;
                    // Errors: the child has ended since it was ready.
                    let _ = notify(&ours).and_then(|()| receive(&ours));
                }
                Ok(Begun::Parent { status })
            }
            Forked::Child => {
                drop(ours);
                if let Some(pid_file) = pid_file {
                    pid_file.leave();
                }
                // Not a group's leader: a child never is.
                rustix::process::setsid().map_err(|errno| failed("setsid")(errno.into()))?;
                let null = File::options().read(true).write(true).open("/dev/null");
                let null = null.map_err(failed("open /dev/null"))?;
                Ok(Begun::Child(Self { parent: theirs, null }))
            }
        }
    }

    /// Lets go of what is the caller's, and has the parent write the PID file.
    ///
    /// # Errors
    /// /dev/null cannot take their place, or the parent has ended: it was killed, or the file cannot be
    /// written.
    pub(crate) fn ready(&self) -> Result<(), Failure> {
        let failed = |call| Failure::io(format!("go on in the background: {call}"));
        let null = &self.null;
        rustix::process::chdir("/").map_err(|errno| failed("chdir /")(errno.into()))?;
        let moved = dup2_stdin(null).and_then(|()| dup2_stdout(null)).and_then(|()| dup2_stderr(null));
        moved.map_err(|errno| failed("dup2")(errno.into()))?;
        // Without the parent nothing would know of this process.
        notify(&self.parent).map_err(|errno| failed("send")(errno.into()))?;
        match receive(&self.parent) {
            Ok(true) => Ok(()),
            Ok(false) => Err(failed("recv")(ErrorKind::UnexpectedEof.into())),
            Err(errno) => Err(failed("recv")(errno.into())),
        }
    }

    /// Ends the parent, which has written the file.
    pub(crate) fn announced(self) {
        // One that was killed meanwhile is of no use any more.
        let _ = notify(&self.parent);
    }
}

/// Sends the other process a byte.
fn notify(other: &OwnedFd) -> Result<(), Errno> {
    send(other, &[1], SendFlags::NOSIGNAL).map(drop)
}

/// Waits for a byte of the other process's; false if that has ended.
fn receive(other: &OwnedFd) -> Result<bool, Errno> {
    let mut byte = [0];
    let received = rustix::io::retry_on_intr(|| recv(other, &mut byte[..], RecvFlags::empty()));
    received.map(|(_, length)| length > 0)
}

/// Waits until the child is ready: 0; or for its exit status.
fn wait(child: &OwnedFd, pid: Pid) -> Result<u8, Failure> {
    let failed =
        |call| move |errno: Errno| Failure::Io(format!("go on in the background: {call}"), errno.into());
    if receive(child).map_err(failed("recv"))? {
        return Ok(0);
    }
    let status = rustix::io::retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
    let status = status.map_err(failed("waitpid"))?.and_then(|(_, status)| status.exit_status());
    Ok(status.and_then(|status| u8::try_from(status).ok()).unwrap_or(STATUS_KILLED))
}
