//! Connections to a monitor, one after another: their sources, and the requests of a link.
//!
//! A link requests its first connection in its first turn, and a further one when one is lost, so that a
//! monitor that reconnects (QEMU's `reconnect-ms=`) finds its flows as they were; only the link was down. A
//! second monitor waits in the queue of the listening socket until the first is gone.

use crate::EventFlags;
use crate::poller::Poller;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::retry_on_intr;
use rustix::net::{SocketFlags, accept_with};
use std::io;

/// Source of the connections of a link to a virtual machine. None of its calls waits.
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

/// Requests of a link to its source, one at a time.
pub(crate) struct Requests {
    source: Box<dyn Connections>,
    /// A connection was requested and has not come yet.
    requested: bool,
    /// It may have come.
    arrived: bool,
    /// The source has no further connection.
    ended: bool,
}

impl Requests {
    pub(crate) fn new(source: Box<dyn Connections>) -> Self {
        Self { source, requested: false, arrived: false, ended: false }
    }

    /// Registers the source's descriptor under `key`.
    pub(crate) fn register(&self, poller: Poller<'_>, key: u32) -> io::Result<()> {
        if let Some(descriptor) = self.source.descriptor() {
            poller.add(descriptor, key, EventFlags::IN | EventFlags::ET)?;
        }
        Ok(())
    }

    /// Event of the source's descriptor.
    pub(crate) fn ready(&mut self) {
        self.arrived = true;
    }

    /// For a link without a connection: requests one, and gives the one that has come.
    pub(crate) fn next(&mut self) -> Option<OwnedFd> {
        if self.ended {
            return None;
        }
        if !std::mem::replace(&mut self.requested, true) {
            self.source.request();
            self.arrived = true;
        }
        if !std::mem::take(&mut self.arrived) {
            return None;
        }
        match self.source.take() {
            Arrival::Connected(socket) => {
                self.requested = false;
                Some(socket)
            }
            Arrival::Pending => None,
            Arrival::Ended => {
                self.ended = true;
                None
            }
        }
    }

    /// Whether no further connection will come.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }
}
