//! The conversation between brodo and the child that sets up a namespace: five messages over a socket pair.
//!
//! ```text
//! child                                   brodo
//! unshare                 -- Unshared -->
//!                         <-- Go --       maps ids
//! interface, mounts       -- Ready + descriptors  -->
//!                         <-- Go --       serves the TAP
//! execve (closes the pair)
//! at any point            -- Failed(step, errno, subject) --> ends
//! ```
//!
//! The socket keeps the borders of messages; either side's death ends the other's wait.

use crate::setup::{SetupError, Step};
use brodo_net::fd_passing::{self, DESCRIPTORS_MAX};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};

/// One message.
#[derive(Debug)]
pub(crate) enum Message {
    /// The child is in fresh namespaces and has no ids there yet.
    Unshared,
    /// Set-up done; descriptors of the guest's TAP queues and of the socket to watch it.
    Ready(Vec<OwnedFd>),
    /// The other side may go on.
    Go,
    /// The child gave up.
    Failed(SetupError),
}

impl Message {
    /// First and only byte of [`Message::Go`].
    pub(crate) const GO: u8 = 3;
}

const UNSHARED: u8 = 1;
const READY: u8 = 2;
const GO: u8 = Message::GO;
const FAILED: u8 = 4;

/// Longest message, in bytes: a path and some words.
const MESSAGE_MAX: usize = 8192;

/// One end of the socket pair.
#[derive(Debug)]
pub(crate) struct Handoff(OwnedFd);

impl Handoff {
    /// Both ends.
    pub(crate) fn pair() -> Result<(Self, Self), SetupError> {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map(|(ours, theirs)| (Self(ours), Self(theirs)))
            .map_err(|errno| SetupError::new(Step::Channel, errno, ""))
    }

    /// The descriptor, for another kind of conversation.
    pub(crate) fn into_descriptor(self) -> OwnedFd {
        self.0
    }

    /// Sends one message.
    pub(crate) fn send(&self, message: &Message) -> Result<(), SetupError> {
        let (tag, body, descriptors) = match message {
            Message::Unshared => (UNSHARED, Vec::new(), [].as_slice()),
            Message::Ready(descriptors) => (READY, Vec::new(), descriptors.as_slice()),
            Message::Go => (GO, Vec::new(), [].as_slice()),
            Message::Failed(error) => (FAILED, error.encode(), [].as_slice()),
        };
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut bytes = vec![tag];
        bytes.extend_from_slice(&body[..body.len().min(MESSAGE_MAX - 1)]);
        fd_passing::send(&self.0, &bytes, &descriptors, SendFlags::empty())
            .map(drop)
            .map_err(|errno| SetupError::new(Step::Handoff, errno, ""))
    }

    /// Waits for the next message; `None` once the other side has closed its end, or died.
    pub(crate) fn receive(&self) -> Result<Option<Message>, SetupError> {
        let fail = |errno| SetupError::new(Step::Handoff, errno, "");
        let mut bytes = [0; MESSAGE_MAX];
        let received = match fd_passing::receive(&self.0, &mut bytes, DESCRIPTORS_MAX, RecvFlags::empty()) {
            Err(Errno::CONNRESET) => return Ok(None),
            other => other.map_err(fail)?,
        };
        let Some((&tag, body)) = bytes[..received.length].split_first() else { return Ok(None) };
        let message = match (tag, received.descriptors) {
            (UNSHARED, _) => Some(Message::Unshared),
            (READY, descriptors) if !descriptors.is_empty() => Some(Message::Ready(descriptors)),
            (GO, _) => Some(Message::Go),
            (FAILED, _) => SetupError::decode(body).map(Message::Failed),
            _ => None,
        };
        message.map(Some).ok_or_else(|| fail(Errno::BADMSG))
    }

    /// As [`Handoff::receive`], for a side that depends on the answer: a failure reported by the other side
    /// and its silent end are errors.
    pub(crate) fn expect(&self) -> Result<Message, SetupError> {
        match self.receive()? {
            Some(Message::Failed(error)) => Err(error),
            Some(message) => Ok(message),
            None => Err(SetupError::new(Step::ChildEnded, Errno::PIPE, "")),
        }
    }
}

impl From<OwnedFd> for Handoff {
    /// The end of a socket pair of [`Handoff::pair`].
    fn from(end: OwnedFd) -> Self {
        Self(end)
    }
}

impl AsFd for Handoff {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests;
