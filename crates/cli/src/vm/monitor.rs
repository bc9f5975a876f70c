//! The way to a monitor: a socket on which it is awaited, a path at which it listens, or a descriptor that is
//! connected already.

use super::sender::{Sender, send_end};
use crate::args::Vm;
use crate::failure::Failure;
use crate::log;
use crate::option_values::MonitorSocket;
use crate::resume::descriptor::Keep;
use crate::resume::state::{SavedListener, SavedMonitor};
use crate::socket_file::{SocketFile, connected};
use brodo_netns::process;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{
    RecvFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect, connect_unspec, getpeername,
    recv, recvfrom,
};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Buffers of packet sockets, in bytes, as far as the kernel allows: a frame longer than the buffer could not
/// be sent at all.
const BUFFER: usize = 4 << 20;
/// Pause between attempts to connect to a monitor that does not listen.
const RETRY: Duration = Duration::from_millis(500);

/// The way to a monitor.
#[derive(Debug)]
pub(crate) struct Monitor {
    way: Way,
    one_off: bool,
    /// The only connection has been passed on.
    spent: AtomicBool,
}

#[derive(Debug)]
enum Way {
    /// The monitor connects.
    Listening { socket: OwnedFd, file: SocketFile },
    /// The monitor sends datagrams; its address is that of the first. None once it was seen to be gone.
    Datagrams { socket: OwnedFd, file: SocketFile, sender: Mutex<Option<Sender>> },
    /// The monitor listens.
    Connecting { path: PathBuf, kind: SocketType },
    /// Connected already; none after it has been passed on.
    Connected(Mutex<Option<OwnedFd>>),
}

impl Monitor {
    /// Opens what the options name.
    ///
    /// # Errors
    /// The path cannot be bound, or the descriptor is not there.
    pub(super) fn open(options: &Vm) -> Result<Self, Failure> {
        let (place, kind) = options.monitor();
        let way = match place {
            MonitorSocket::Descriptor(number) => {
                let socket = process::inherited(*number).map_err(|_| {
                    Failure::Usage(format!("fd:{number} is not a descriptor brodo was started with"))
                })?;
                prepare(&socket, kind);
                Way::Connected(Mutex::new(Some(socket)))
            }
            MonitorSocket::Path(path) if options.connect => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                Way::Connecting { path, kind }
            }
            MonitorSocket::Path(path) => {
                let bound = SocketFile::bind(path, kind);
                let failed = format!("wait for the virtual machine at {}: bind", path.display());
                let (socket, file) = bound.map_err(Failure::io(failed))?;
                Way::waiting(socket, file, kind)
            }
            MonitorSocket::Passt { .. } => {
                let bound = first_free(MonitorSocket::passt_paths(), kind);
                let failed = "wait for the virtual machine at a path of passt's: bind";
                let (socket, file) = bound.map_err(Failure::io(failed))?;
                Way::waiting(socket, file, kind)
            }
        };
        let monitor = Self { way, one_off: options.one_off, spent: AtomicBool::new(false) };
        if let Some(path) = monitor.path().map(Path::display) {
            match place {
                // passt's words, by which its callers find the path that it has chosen.
                MonitorSocket::Passt { quiet: false } => {
                    log::always(&format!("UNIX domain socket bound at {path}"), &[]);
                }
                _ => log::info("waiting for the virtual machine", &[("socket", path.to_string().into())]),
            }
        }
        Ok(monitor)
    }

    /// One connection, and none after it.
    #[cfg(test)]
    pub(super) fn connected(socket: OwnedFd) -> Self {
        let way = Way::Connected(Mutex::new(Some(socket)));
        Self { way, one_off: true, spent: AtomicBool::new(false) }
    }

    /// The way that another program of this process has opened.
    ///
    /// # Errors
    /// A descriptor is missing.
    pub(super) fn resume(options: &Vm, saved: &SavedMonitor) -> io::Result<Self> {
        let (place, kind) = options.monitor();
        let way = match (place, &saved.socket) {
            (
                MonitorSocket::Path(_) | MonitorSocket::Passt { .. },
                Some(SavedListener { socket, file: Some(file) }),
            ) => Way::waiting(socket.take()?, file.clone().into(), kind),
            (MonitorSocket::Path(path), None) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                Way::Connecting { path, kind }
            }
            (MonitorSocket::Descriptor(_), saved) => {
                let socket = saved.as_ref().map(|saved| saved.socket.take()).transpose()?;
                Way::Connected(Mutex::new(socket))
            }
            _ => return Err(ErrorKind::InvalidData.into()),
        };
        Ok(Self { way, one_off: options.one_off, spent: AtomicBool::new(saved.spent) })
    }

    /// Its descriptor and file in a state for another program.
    pub(super) fn save<'a>(&'a self, kept: &mut Keep<'a>) -> Option<SavedListener> {
        match &self.way {
            Way::Listening { socket, file } | Way::Datagrams { socket, file, .. } => {
                Some(SavedListener { socket: kept.note(socket.as_fd()), file: Some(file.save()) })
            }
            Way::Connecting { .. } | Way::Connected(_) => None,
        }
    }

    /// Whether no further connection will come.
    pub(super) fn is_spent(&self) -> bool {
        self.spent.load(Ordering::Acquire)
    }

    /// The socket's file.
    fn file(&self) -> Option<&SocketFile> {
        match &self.way {
            Way::Listening { file, .. } | Way::Datagrams { file, .. } => Some(file),
            Way::Connecting { .. } | Way::Connected(_) => None,
        }
    }

    /// Its path, if brodo has bound one.
    pub(super) fn path(&self) -> Option<&Path> {
        self.file().map(SocketFile::path)
    }

    /// Removes the socket's path.
    pub(super) fn remove_file(&self) {
        self.file().into_iter().for_each(SocketFile::remove);
    }

    /// Waits for the next connection; `None` if there will be none. A monitor of datagrams that is still
    /// there is the next one as well: the engine before has ended, and a guest that waits for brodo sends
    /// nothing by which it would be found again. Not after one that had the same name: by a refusal the
    /// kernel has parted the socket from it.
    pub(super) fn next(&self) -> Option<OwnedFd> {
        if let Way::Datagrams { socket, sender, .. } = &self.way
            && let Some(sender) = &*sender.lock().unwrap_or_else(PoisonError::into_inner)
            && !sender.is_gone()
            && getpeername(socket).is_ok()
        {
            return socket.try_clone().ok();
        }
        if self.is_spent() {
            return None;
        }
        let next = match &self.way {
            Way::Listening { socket, .. } => accept(socket),
            Way::Datagrams { socket, sender, .. } => {
                let connection = first_sender(socket);
                *sender.lock().unwrap_or_else(PoisonError::into_inner) = Sender::of(socket);
                connection
            }
            Way::Connecting { path, kind } => Some(connection_to(path, *kind)),
            Way::Connected(socket) => socket.lock().unwrap_or_else(PoisonError::into_inner).take(),
        };
        let last = self.one_off || matches!(self.way, Way::Connected(_));
        self.spent.store(last || next.is_none(), Ordering::Release);
        next
    }

    /// Whether there is a connection whose end no event reports, so that it has to be looked for.
    pub(super) fn ends_unseen(&self) -> bool {
        let Way::Datagrams { sender, .. } = &self.way else { return false };
        sender.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Looks for the end of such a connection, which the engine is then notified of.
    pub(super) fn look(&self) {
        let Way::Datagrams { socket, file, sender } = &self.way else { return };
        let mut sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
        if sender.take_if(|sender| sender.is_gone()).is_some() {
            // All may send from here on.
            let _ = connect_unspec(socket);
            send_end(file.path());
        }
    }
}

impl Way {
    fn waiting(socket: OwnedFd, file: SocketFile, kind: SocketType) -> Self {
        if kind == SocketType::DGRAM {
            prepare(&socket, kind);
            // Another program of this process may have connected it.
            let sender = Mutex::new(Sender::of(&socket));
            Self::Datagrams { socket, file, sender }
        } else {
            Self::Listening { socket, file }
        }
    }
}

/// A socket at the first of these paths that neither another process nor another user has.
fn first_free(paths: impl Iterator<Item = PathBuf>, kind: SocketType) -> io::Result<(OwnedFd, SocketFile)> {
    let is_taken = |error: &io::Error| {
        matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AlreadyExists | ErrorKind::PermissionDenied)
    };
    let mut bound = Err(ErrorKind::AddrInUse.into());
    for path in paths {
        bound = SocketFile::bind(&path, kind);
        if !bound.as_ref().is_err_and(is_taken) {
            break;
        }
    }
    bound
}

/// Larger buffers for a socket of packets.
fn prepare(socket: &OwnedFd, kind: SocketType) {
    if kind != SocketType::STREAM {
        // Less than asked for will do as well.
        let _ = set_socket_send_buffer_size(socket, BUFFER);
        let _ = set_socket_recv_buffer_size(socket, BUFFER);
    }
}

/// Waits until a socket is readable; false if it is broken.
fn wait(socket: &OwnedFd) -> bool {
    retry_on_intr(|| poll(&mut [PollFd::new(socket, PollFlags::IN)], None)).is_ok()
}

/// The next connection to a listening socket.
fn accept(socket: &OwnedFd) -> Option<OwnedFd> {
    while wait(socket) {
        match retry_on_intr(|| accept_with(socket, SocketFlags::CLOEXEC)) {
            Ok(connection) => {
                prepare(&connection, SocketType::SEQPACKET);
                return Some(connection);
            }
            // Closed again, or descriptors are short for a time.
            Err(Errno::AGAIN | Errno::CONNABORTED) => {}
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => thread::sleep(RETRY),
            Err(_) => return None,
        }
    }
    None
}

/// A copy of a socket for datagrams, connected to the sender of the first one. The engine has no path to
/// connect it by, but connect(2) acts on all copies.
fn first_sender(socket: &OwnedFd) -> Option<OwnedFd> {
    // From the machine before, which is gone.
    let _ = connect_unspec(socket);
    while wait(socket) {
        let Ok((.., sender)) = recvfrom(socket, &mut [0; 0][..], RecvFlags::PEEK | RecvFlags::DONTWAIT)
        else {
            continue;
        };
        let sender = sender.and_then(|sender| SocketAddrUnix::try_from(sender).ok());
        if sender.is_some_and(|sender| connect(socket, &sender).is_ok()) {
            return socket.try_clone().ok();
        }
        // A sender without a name cannot be answered, one that is gone need not be.
        let _ = recv(socket, &mut [0; 0][..], RecvFlags::DONTWAIT);
    }
    None
}

/// A connection to a monitor that listens, now or later.
fn connection_to(path: &Path, kind: SocketType) -> OwnedFd {
    loop {
        if let Ok(connection) = connected(path, kind) {
            prepare(&connection, kind);
            return connection;
        }
        thread::sleep(RETRY);
    }
}

#[cfg(test)]
mod tests;
