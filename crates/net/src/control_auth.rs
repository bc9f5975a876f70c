//! Authorization of control clients: the credentials of the peer of a Unix socket.
//!
//! Authorized are root, and the same user in the same user namespace or in the initial one. The user id alone
//! is not enough: the command that `brodo run` starts has the same one, as the kernel shows it to us, and may
//! reach the socket's file; but it lives in a user namespace of its own, together with its descendants.
//!
//! The initial user namespace: a brodo that rootless podman has started lives in podman's user namespace, its
//! user outside of it. The namespaces of processes there cannot be looked up from inside, unlike those of
//! our own and of all below it, which are the guests'. A process whose namespace cannot be looked up is
//! therefore above or beside us, and above if every id is mapped to itself there (`user_namespaces(7)`): a
//! user without privileges can make no such namespace.
//!
//! Capabilities given up (`--sandbox`): a process of our own namespace that still has them cannot be looked
//! up either (ptrace(2), access mode checking). Such is podman, as it asks for ports at slirp4netns' API
//! socket. Its map reads as ours does, and no other namespace's can: the ids at the far end are shown as our
//! parent knows them for our own namespace, as we know them for any other. Unless ours maps a user to the
//! same number: then both ways to show it agree, and the map proves nothing.
//!
//! *Races.* A process id may be reused before it is looked up in /proc, so the process is pinned by a
//! descriptor meanwhile: the one that belongs to the socket (SO_PEERPIDFD, since Linux 6.5), or one opened by
//! its number and then found to be alive still.
//!
//! System calls: getsockopt SO_PEERCRED and SO_PEERPIDFD, pidfd_open, stat of /proc/PID/ns/user, read of
//! /proc/PID/uid_map, poll.

use crate::sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::stat;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
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
    /// The same user in a PID namespace that is neither ours nor below it: it cannot be looked up in /proc.
    PidNamespace,
    /// The process has ended, and waits for no answer.
    Ended,
    /// Undeterminable, with the call that failed.
    Unknown(&'static str, io::Error),
}

impl fmt::Display for Unauthorized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "user {uid} may not control this brodo"),
            Self::Namespace => f.write_str("a process in another user namespace may not control this brodo"),
            Self::PidNamespace => f.write_str(
                "a process outside of brodo's PID namespace cannot be identified: enter the namespace first, as \
                 by `nsenter --pid`",
            ),
            Self::Ended => f.write_str("the client has ended"),
            Self::Unknown(call, error) => write!(f, "the client cannot be identified: {call}: {error}"),
        }
    }
}

/// The process at the other end of a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlPeer {
    /// Its process id; `None` outside of our PID namespace and of all below it.
    pub process: Option<Pid>,
    /// Its user id.
    pub uid: u32,
}

impl ControlPeer {
    /// The process at the other end of `socket` when it was connected.
    ///
    /// # Errors
    /// It is no socket.
    pub fn of(socket: impl AsFd) -> Result<Self, Errno> {
        let (process, uid) = sys::peer_credentials(socket.as_fd())?;
        Ok(Self { process: Pid::from_raw(process), uid })
    }
}

/// Checks the process at the other end of `socket`.
///
/// # Errors
/// It may not control this process.
pub fn check(socket: impl AsFd) -> Result<(), Unauthorized> {
    let unknown = |call| {
        move |errno| match errno {
            Errno::SRCH => Unauthorized::Ended,
            errno => Unauthorized::Unknown(call, errno.into()),
        }
    };
    let peer = ControlPeer::of(&socket).map_err(unknown("getsockopt SO_PEERCRED"))?;
    let own = geteuid();
    // Root of our own user namespace. A guest's root appears as its user outside.
    if peer.uid == 0 && !own.is_root() {
        return Ok(());
    }
    if peer.uid != own.as_raw() {
        return Err(Unauthorized::User(peer.uid));
    }
    let id = peer.process.ok_or(Unauthorized::PidNamespace)?;
    let process = match sys::peer_pidfd(socket.as_fd()) {
        Ok(process) => process,
        Err(Errno::NOPROTOOPT) => pidfd_open(id, PidfdFlags::empty()).map_err(unknown("pidfd_open"))?,
        Err(errno) => return Err(unknown("getsockopt SO_PEERPIDFD")(errno)),
    };
    let of = |process: &str| stat(format!("/proc/{process}/ns/user")).map(|it| (it.st_dev, it.st_ino));
    let number = id.as_raw_nonzero().to_string();
    let theirs = of(&number);
    let is_trusted = theirs == Err(Errno::ACCESS) && (maps_every_id(&number) || has_own_map(&number));
    // A descriptor of a process becomes readable at its end: then the number may have been another's.
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&now)).map_err(unknown("poll"))?;
    if ended > 0 {
        return Err(Unauthorized::Ended);
    }
    let ours = of("self").map_err(unknown("stat /proc/self/ns/user"))?;
    match theirs {
        Ok(theirs) if theirs == ours => Ok(()),
        Err(_) if is_trusted => Ok(()),
        Ok(_) | Err(Errno::ACCESS) => Err(Unauthorized::Namespace),
        Err(errno) => Err(unknown("stat /proc/PID/ns/user")(errno)),
    }
}

/// Whether a process is in a user namespace in which every user id is mapped by one line, as in the initial
/// one. The ids at the other end cannot be seen from inside another namespace.
fn maps_every_id(process: &str) -> bool {
    is_whole(&map_of(process))
}

fn map_of(process: &str) -> String {
    std::fs::read_to_string(format!("/proc/{process}/uid_map")).unwrap_or_default()
}

/// Whether a process is in our own user namespace, as its map of ids shows.
fn has_own_map(process: &str) -> bool {
    let own = map_of("self");
    changes_ids(&own) && map_of(process) == own
}

/// Whether a map's ids have other numbers outside.
fn changes_ids(map: &str) -> bool {
    let mut fields = map.lines().map(str::split_whitespace);
    map.lines().count() > 0 && fields.all(|mut line| line.next() != line.next())
}

/// Whether a map (`user_namespaces(7)`) has all ids in one line.
fn is_whole(map: &str) -> bool {
    let mut fields = map.split_whitespace();
    (fields.next(), fields.nth(1), fields.next()) == (Some("0"), Some("4294967295"), None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::Command;

    #[test]
    fn maps_of_the_initial_namespace_are_whole() {
        assert!(is_whole("         0          0 4294967295\n"));
        assert!(is_whole("         0 4294967295 4294967295\n"), "as seen from inside another");
        for map in
            ["", "0 1000 1\n", "0 1000 1\n1 100000 65536\n", "0 0 4294967295\n0 0 1\n", "1 0 4294967295"]
        {
            assert!(!is_whole(map), "{map}");
        }
    }

    #[test]
    fn maps_that_show_their_namespace_change_every_id() {
        assert!(changes_ids("         0       1000          1\n"));
        assert!(changes_ids("0 1000 1\n1 100000 65536\n"));
        for map in ["", "1000 1000 1\n", "0 0 4294967295\n", "0 1000 1\n5 5 1\n"] {
            assert!(!changes_ids(map), "{map}");
        }
    }

    #[test]
    fn a_client_that_has_ended_is_known_as_that() {
        let folder = std::env::temp_dir().join(format!("brodo-control-auth-{}", std::process::id()));
        let listener = UnixListener::bind(&folder).expect("a socket");
        // The child connects, sends nothing and ends.
        let connect = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])";
        let ended = Command::new("python3").args(["-c", connect]).arg(&folder).status();
        std::fs::remove_file(&folder).expect("the socket");
        assert!(ended.expect("python3").success());
        let (stream, _) = listener.accept().expect("the client's connection");
        assert!(matches!(check(&stream), Err(Unauthorized::Ended)));
    }

    #[test]
    fn we_may_control_ourselves() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        check(&one).expect("this process is the same user in the same namespace");
    }
}
