//! Connections to a monitor, one after another: their sources, and the requests of a link.
//!
//! A link requests its first connection in its first turn, and a further one when one is lost, so that a
//! monitor that reconnects (QEMU's `reconnect-ms=`) finds its flows as they were; only the link was down. A
//! second monitor waits in the queue of the listening socket until the first is gone.
//!
//! *After a crash* the link of the next process can go on with the connection, if the source has kept it with
//! the state in which the link has left it. A link whose state changes with every frame has none to keep. The
//! source keeps the state until the link has it forgotten or puts another one in its place: a process that
//! crashes soon leaves the connection to the one after it.

#[cfg(test)]
pub(crate) mod outliving;

use crate::poller::Poller;
use crate::{EventFlags, SavedLink};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::retry_on_intr;
use rustix::net::{SocketFlags, accept_with};
use std::io;

/// Source of the connections of a link to a virtual machine. None of its calls waits, but for a keeper of
/// states that is slower than the link.
pub trait Connections: Send {
    /// Descriptor that becomes readable when a requested connection may have come. It is watched
    /// edge-triggered.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Requests a connection: the first one, or the next after a loss.
    fn request(&mut self);

    /// The requested connection, if it has come.
    fn take(&mut self) -> Arrival;

    /// Whether the source has nothing kept, since [`Connections::descriptor`] has become readable while there
    /// was a connection.
    fn wants_state(&mut self) -> bool {
        false
    }

    /// Keeps the state of a link with its connection ([`crate::GuestLink::save`]), in the place of an earlier
    /// one, for the link of a process that takes this one's place after a crash. By default nothing is kept.
    fn keep(&mut self, state: &SavedLink<'_>) {
        let _ = state;
    }

    /// Forgets what is kept, before the state changes; false if that is impossible, so that the connection
    /// has to end.
    fn forget(&mut self) -> bool {
        true
    }
}

/// A connection in the state of another process's link, of which neither bytes nor descriptors are trusted.
#[derive(Debug)]
pub struct KeptLink {
    /// The bytes of [`SavedLink`].
    pub bytes: Vec<u8>,
    /// Its descriptors.
    pub descriptors: Vec<OwnedFd>,
}

/// Result of [`Connections::take`].
#[derive(Debug)]
pub enum Arrival {
    /// The connected socket.
    Connected(OwnedFd),
    /// A connection that another process has left; it stays kept.
    Kept(KeptLink),
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
    /// The source keeps the state of the connection.
    kept: bool,
    /// It may have lost it.
    asked: bool,
}

/// A connection that has come.
pub(crate) enum Arrived {
    New(OwnedFd),
    Kept(KeptLink),
}

impl Requests {
    pub(crate) fn new(source: Box<dyn Connections>) -> Self {
        Self { source, requested: false, arrived: false, ended: false, kept: false, asked: false }
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
        (self.arrived, self.asked) = (true, true);
    }

    /// For a link without a connection: requests one, and gives the one that has come.
    pub(crate) fn next(&mut self) -> Option<Arrived> {
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
        let arrived = match self.source.take() {
            Arrival::Connected(socket) => Arrived::New(socket),
            Arrival::Kept(kept) => Arrived::Kept(kept),
            Arrival::Pending => return None,
            Arrival::Ended => {
                self.ended = true;
                return None;
            }
        };
        (self.requested, self.kept) = (false, matches!(arrived, Arrived::Kept(_)));
        Some(arrived)
    }

    /// For a link with a connection: whether its state is not kept by the source.
    pub(crate) fn wants_state(&mut self) -> bool {
        self.kept &= !(std::mem::take(&mut self.asked) && self.source.wants_state());
        !self.kept
    }

    /// Has the source keep the state of the connection.
    pub(crate) fn keep(&mut self, state: &SavedLink<'_>) {
        self.source.keep(state);
        self.kept = true;
    }

    /// Has the source forget the state, which is to change; false if the connection has to end.
    pub(crate) fn forget(&mut self) -> bool {
        self.kept = false;
        self.source.forget()
    }

    /// Whether no further connection will come.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }
}
