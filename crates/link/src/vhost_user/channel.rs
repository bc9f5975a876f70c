//! The socket of a monitor: whole messages in, replies out, without waiting.
//!
//! A message is read in two steps, its header with room for descriptors and then its payload, never across
//! the border to the next, whose descriptors would be lost. A message that comes in parts is kept until it is
//! whole. A reply that the socket does not take at once ends the connection: a monitor that does not read
//! replies to its own requests does not follow the protocol.
//!
//! System calls: recvmsg, recvfrom, sendto, shutdown.

use super::message::{HEADER_LEN, Header, PAYLOAD_MAX, TABLE_MAX};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, Shutdown, recv, recvmsg, send, shutdown,
};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;

const CONTROL_LEN: usize = rustix::cmsg_space!(ScmRights(TABLE_MAX));

/// Cause of a connection's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// The monitor has closed it, or an error of the socket.
    Closed,
    /// A message that vhost-user does not have, or that cannot be met where no answer would tell so.
    BadMessage,
}

/// A message as received.
#[derive(Debug)]
pub(super) struct Message<'a> {
    pub(super) header: Header,
    pub(super) payload: &'a [u8],
    /// In the sender's order.
    pub(super) descriptors: Vec<OwnedFd>,
}

/// A connection to a monitor.
#[derive(Debug)]
pub(super) struct Channel {
    socket: OwnedFd,
    /// The message under way.
    buffer: Box<[u8; HEADER_LEN + PAYLOAD_MAX]>,
    filled: usize,
    descriptors: Vec<OwnedFd>,
}

impl Channel {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, buffer: Box::new([0; HEADER_LEN + PAYLOAD_MAX]), filled: 0, descriptors: Vec::new() }
    }

    /// The socket, unless a message is under way in it.
    pub(super) fn between_messages(&self) -> Option<&OwnedFd> {
        (self.filled == 0).then_some(&self.socket)
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Ends the connection for all who have a copy of the socket.
    pub(super) fn shut_down(&self) {
        // An error: it has ended already.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// The next whole message; `None` if it has not come.
    pub(super) fn receive(&mut self) -> Result<Option<Message<'_>>, Lost> {
        if self.filled < HEADER_LEN && !self.fill(HEADER_LEN)? {
            return Ok(None);
        }
        let header = self.buffer.first_chunk().and_then(Header::read).ok_or(Lost::BadMessage)?;
        let len = HEADER_LEN + header.size;
        if self.filled < len && !self.fill(len)? {
            return Ok(None);
        }
        self.filled = 0;
        let descriptors = std::mem::take(&mut self.descriptors);
        Ok(Some(Message { header, payload: &self.buffer[HEADER_LEN..len], descriptors }))
    }

    /// Reads up to the length `len` of the message under way; false if not all of it is there.
    fn fill(&mut self, len: usize) -> Result<bool, Lost> {
        while self.filled < len {
            let received = if self.filled == 0 { self.read_first(len) } else { self.read_more(len) };
            match received {
                Ok(0) => return Err(Lost::Closed),
                Ok(count) => self.filled += count,
                Err(Errno::AGAIN) => return Ok(false),
                Err(_) => return Err(Lost::Closed),
            }
        }
        Ok(true)
    }

    /// The first bytes, with the descriptors.
    fn read_first(&mut self, len: usize) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); CONTROL_LEN];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let room = &mut [IoSliceMut::new(&mut self.buffer[..len])];
        let received = retry_on_intr(|| recvmsg(&self.socket, room, &mut control, flags))?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                // The alignment of the buffer leaves room for one or two more.
                self.descriptors.extend(rights.take(TABLE_MAX));
            }
        }
        Ok(received.bytes)
    }

    fn read_more(&mut self, len: usize) -> Result<usize, Errno> {
        let room = &mut self.buffer[self.filled..len];
        retry_on_intr(|| recv(&self.socket, &mut *room, RecvFlags::DONTWAIT)).map(|(count, _)| count)
    }

    /// Sends a reply.
    pub(super) fn reply(&self, message: &[u8]) -> Result<(), Lost> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match retry_on_intr(|| send(&self.socket, message, flags)) {
            Ok(len) if len == message.len() => Ok(()),
            _ => Err(Lost::Closed),
        }
    }
}
