//! Authorization of control clients: the credentials of the peer of a Unix socket.
//!
//! Authorized are root, and the same user in the same user namespace. The user id alone is not enough: the
//! command that `brodo run` starts has the same one, as the kernel shows it to us, and may reach the socket's
//! file; but it lives in a user namespace of its own, together with its descendants. A process id may be
//! reused before it is looked up in /proc, so the process is pinned by a descriptor meanwhile: the one that
//! belongs to the socket (SO_PEERPIDFD, since Linux 6.5), or one opened by its number and then found to be
//! alive still.
//!
//! System calls: getsockopt SO_PEERCRED and SO_PEERPIDFD, pidfd_open, stat of /proc/PID/ns/user, poll.

use crate::sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::stat;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, geteuid, pidfd_open};
use std::fmt;
use std::io;
use std::os::fd::AsFd;

/// Reason for a refusal.
#[derive(Debug)]
pub enum Unauthorized {
    /// Another user.
    User(u32),
    /// The same user in another user namespace: the guest.
    Namespace,
    /// Undeterminable, with the call that failed.
    Unknown(&'static str, io::Error),
}

impl fmt::Display for Unauthorized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "user {uid} may not control this brodo"),
            Self::Namespace => f.write_str("a process in another user namespace may not control this brodo"),
            Self::Unknown(call, error) => write!(f, "the client cannot be identified: {call}: {error}"),
        }
    }
}

/// Checks the process at the other end of `socket`.
///
/// # Errors
/// It may not control this process.
pub fn check(socket: impl AsFd) -> Result<(), Unauthorized> {
    let unknown = |call| move |errno: rustix::io::Errno| Unauthorized::Unknown(call, errno.into());
    let peer = socket_peercred(&socket).map_err(unknown("getsockopt SO_PEERCRED"))?;
    let own = geteuid();
    // Root of our own user namespace. A guest's root appears as its user outside.
    if peer.uid.is_root() && !own.is_root() {
        return Ok(());
    }
    if peer.uid != own {
        return Err(Unauthorized::User(peer.uid.as_raw()));
    }
    let process = match sys::peer_pidfd(socket.as_fd()) {
        Ok(process) => process,
        Err(rustix::io::Errno::NOPROTOOPT) => {
            pidfd_open(peer.pid, PidfdFlags::empty()).map_err(unknown("pidfd_open"))?
        }
        Err(errno) => return Err(Unauthorized::Unknown("getsockopt SO_PEERPIDFD", errno.into())),
    };
    let of = |process: &str| {
        let found = stat(format!("/proc/{process}/ns/user")).map_err(unknown("stat /proc/PID/ns/user"))?;
        Ok((found.st_dev, found.st_ino))
    };
    let theirs = of(&peer.pid.as_raw_nonzero().to_string())?;
    // A descriptor of a process becomes readable at its end: then the number may have been another's.
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&now)).map_err(unknown("poll"))?;
    if ended > 0 {
        return Err(Unauthorized::Unknown("poll", io::Error::other("the process has ended")));
    }
    if theirs == of("self")? { Ok(()) } else { Err(Unauthorized::Namespace) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn we_may_control_ourselves() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        check(&one).expect("this process is the same user in the same namespace");
    }
}
