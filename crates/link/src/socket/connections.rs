//! Sources of connections to a monitor, one after another.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::retry_on_intr;
use rustix::net::{SocketFlags, accept_with};

/// Source of the connections of a [`SocketLink`](super::SocketLink). None of its calls waits.
pub trait Connections: Send {
    /// Descriptor that becomes readable when a requested connection may have come. It is watched
    /// edge-triggered.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Requests a connection: the first one, or the next after a loss.
    fn request(&mut self);

    /// The requested connection, if it has come.
    fn take(&mut self) -> Arrival;
}

/// Result of [`Connections::take`].
#[derive(Debug)]
pub enum Arrival {
    /// The connected socket.
    Connected(OwnedFd),
    /// None yet: the descriptor will be readable.
    Pending,
    /// None will come any more.
    Ended,
}

/// One socket that is connected already; with its end the guest is gone.
#[derive(Debug)]
pub struct Once(Option<OwnedFd>);

impl Once {
    /// For this socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self(Some(socket))
    }
}

impl Connections for Once {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn request(&mut self) {}

    fn take(&mut self) -> Arrival {
        self.0.take().map_or(Arrival::Ended, Arrival::Connected)
    }
}

/// A listening socket, whose connections are served one at a time. It does not block.
#[derive(Debug)]
pub struct Listening(OwnedFd);

impl Listening {
    /// For this socket, which listens and has `O_NONBLOCK`.
    pub fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl Connections for Listening {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }

    fn request(&mut self) {}

    fn take(&mut self) -> Arrival {
        // An error: there is none yet, or it was closed again.
        let accepted = retry_on_intr(|| accept_with(&self.0, SocketFlags::CLOEXEC));
        accepted.map_or(Arrival::Pending, Arrival::Connected)
    }
}
