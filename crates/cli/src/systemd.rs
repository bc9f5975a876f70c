//! Readiness for a service manager: the sd_notify protocol of systemd.
//!
//! A manager that starts brodo with `Type=notify` names a socket in `NOTIFY_SOCKET` and waits there for
//! `READY=1`, so that units ordered after brodo find the interface up. `STATUS` is the line that `systemctl
//! status` shows. `STOPPING=1` comes before the end, which may take as long as a capture or a flow log needs
//! to be written.
//!
//! The variable stays in the environment of a command of `brodo run`: the manager decides by `NotifyAccess`
//! whether messages of other processes than brodo count. A brodo in the background sends none: the
//! manager that its caller talks to, podman for example, waits for the caller's readiness ([`silence`]).

use crate::log;
use brodo_net::fd_passing;
use brodo_netns::process;
use brodo_sandbox::Bond;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::net::SendFlags;
use sd_notify::NotifyState;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of the first descriptor that a manager passes (`SD_LISTEN_FDS_START`).
const FIRST: i32 = 3;

static SILENT: AtomicBool = AtomicBool::new(false);

/// Sends no message from now on.
pub(crate) fn silence() {
    SILENT.store(true, Ordering::Relaxed);
}

/// The interface is up; `status` is one line for people.
pub(crate) fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The end has begun.
pub(crate) fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// Number of descriptors that the manager keeps for this service ([`crate::store`]); 0 if it keeps none.
pub(crate) fn store_size() -> usize {
    let size = || std::env::var("FDSTORE").ok()?.parse().ok();
    if std::env::var_os("NOTIFY_SOCKET").is_some() { size().unwrap_or(0) } else { 0 }
}

/// Bond of the processes that brodo makes: they may outlive it where the manager keeps the other ends of
/// their conversations.
pub(crate) fn bond() -> Bond {
    if store_size() > 0 && !SILENT.load(Ordering::Relaxed) { Bond::Conversation } else { Bond::Life }
}

/// Has the manager keep a copy of a descriptor under a name.
///
/// # Errors
/// The manager's socket is gone, or full.
pub(crate) fn keep(name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    // Whether the other end is closed is the next brodo's to find out: the engine's exit status lies there.
    let text = format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0\n");
    fd_passing::send(&socket()?, text.as_bytes(), &[descriptor], SendFlags::empty())?;
    Ok(())
}

/// Has the manager close all that it keeps under a name.
///
/// # Errors
/// As [`keep`].
pub(crate) fn discard(name: &str) -> io::Result<()> {
    let text = format!("FDSTOREREMOVE=1\nFDNAME={name}\n");
    fd_passing::send(&socket()?, text.as_bytes(), &[], SendFlags::empty())?;
    Ok(())
}

/// A socket to the manager's.
fn socket() -> io::Result<OwnedFd> {
    let path = std::env::var_os("NOTIFY_SOCKET").ok_or(io::ErrorKind::NotFound)?;
    let socket = UnixDatagram::unbound()?;
    match path.as_bytes().strip_prefix(b"@") {
        Some(name) => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
        None => socket.connect(path)?,
    }
    Ok(socket.into())
}

/// Descriptors that the manager has started this program with, and their names.
pub(crate) fn kept() -> Vec<(String, OwnedFd)> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    if variable("LISTEN_PID").parse() != Ok(std::process::id()) {
        return Vec::new();
    }
    let (count, names) = (variable("LISTEN_FDS").parse().unwrap_or(0), variable("LISTEN_FDNAMES"));
    let numbers = (FIRST..).take(count).zip(names.split(':'));
    // The manager leaves them open across the execve for this program.
    numbers.filter_map(|(number, name)| Some((name.to_owned(), process::inherited(number).ok()?))).collect()
}

/// A message; nothing without a manager.
fn send(states: &[NotifyState<'_>]) {
    if SILENT.load(Ordering::Relaxed) {
        return;
    }
    if let Err(error) = sd_notify::notify(states) {
        log::info("the service manager cannot be notified", &[("error", error.to_string().into())]);
    }
}
