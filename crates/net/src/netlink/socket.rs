//! A netlink socket: opened or adopted, numbered requests, their answers, dumps, notifications.
//!
//! *Answers.* The kernel answers within the call that sends the request, so on a non-blocking socket a
//! missing answer is an error at once. A message is an answer if it bears the number of the last request and
//! the socket's own port: messages of other numbers belong to an abandoned answer, and a notification bears
//! number and port of the request that made the change. One thread at a time may send requests, or two take
//! each other's answers.
//!
//! *Dumps.* The kernel sends a list in pieces, and marks one that has changed between two of them
//! (NLM_F_DUMP_INTR), from which entries may be missing. Such a dump is repeated.
//!
//! System calls: socket, bind, getsockname, sendto, recvfrom.

use netlink_packet_core::{
    NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::sync::atomic::{AtomicU32, Ordering};

/// Room for one message, or one piece of a dump, in bytes: the kernel fills up to 32 KiB for a reader that
/// has it.
const MESSAGE_MAX: usize = 32 << 10;
/// Most dumps of a list that changes all the time, before the last one is taken as it is. Later changes are
/// noticed in other ways: by a notification, or the next dump.
pub(super) const DUMPS_MAX: usize = 8;

/// A netlink socket. It acts in the network namespace that it was made in.
#[derive(Debug)]
pub(crate) struct NetlinkSocket {
    pub(super) fd: OwnedFd,
    /// Its address, `nl_pid`, which the kernel chooses when it is bound or sends; 0 before that.
    pub(super) port: AtomicU32,
    /// Number of the last request.
    pub(super) sequence: AtomicU32,
}

impl NetlinkSocket {
    /// A blocking route socket in the caller's network namespace, for requests.
    pub(crate) fn route() -> Result<Self, Errno> {
        Ok(Self::adopt(open(SocketFlags::CLOEXEC)?))
    }

    /// A non-blocking route socket in the caller's network namespace that is notified of changes in `groups`
    /// (`RTMGRP_*`).
    pub(crate) fn subscribed(groups: i32) -> Result<Self, Errno> {
        let fd = open(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, groups as u32))?;
        Ok(Self::adopt(fd))
    }

    /// Takes a netlink socket of any protocol, which has sent no request yet. It is not bound here: a
    /// confined process may not bind.
    pub(crate) fn adopt(fd: OwnedFd) -> Self {
        Self { fd, port: AtomicU32::new(0), sequence: AtomicU32::new(0) }
    }

    /// The descriptor: readable when there are notifications.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The descriptor alone, to be adopted in another process.
    pub(crate) fn into_descriptor(self) -> OwnedFd {
        self.fd
    }

    /// Index of the interface called `name` in the socket's namespace.
    ///
    /// # Errors
    /// [`Errno::NODEV`]: there is none.
    pub(crate) fn index_of(&self, name: &str) -> Result<u32, Errno> {
        rustix::net::netdevice::name_to_index(&self.fd, name)
    }

    /// Sends a route request and reads the one message that answers it. `parse` gets its kind and payload.
    ///
    /// # Errors
    /// The kernel's refusal, or that of `parse`.
    pub(crate) fn query<T>(
        &self,
        body: RouteNetlinkMessage,
        parse: impl Fn(u16, &[u8]) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.exchange(body, 0, |kind, payload| match i32::from(kind) {
            libc::NLMSG_ERROR => Err(refusal(payload)),
            _ => parse(kind, payload),
        })
    }

    /// Sends a route request with these flags, NLM_F_ACK among them, and reads the acknowledgement.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn request(&self, body: RouteNetlinkMessage, flags: u16) -> Result<(), Errno> {
        self.exchange(body, flags, |kind, payload| match i32::from(kind) {
            // An acknowledgement is an error message with code zero.
            libc::NLMSG_ERROR if payload.first_chunk() == Some(&[0; 4]) => Ok(()),
            libc::NLMSG_ERROR => Err(refusal(payload)),
            _ => Err(Errno::BADMSG),
        })
    }

    /// Sends a route request and gives what `parse` makes of the first message of the answer.
    fn exchange<T>(
        &self,
        body: RouteNetlinkMessage,
        flags: u16,
        parse: impl Fn(u16, &[u8]) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let sequence = self.send(|sequence| serialized(body, flags, sequence))?;
        let (mut buffer, mut answer) = (vec![0; MESSAGE_MAX], None);
        loop {
            for message in messages(self.receive(&mut buffer)?) {
                if answer.is_none() && self.answers(&message, sequence) {
                    answer = Some(parse(message.message_type(), message.payload()));
                }
            }
            if let Some(answer) = answer {
                return answer;
            }
        }
    }

    /// Requests a dump and collects the items that `parse` makes of its messages, by kind and payload, at
    /// most `max`. `request` is serialised for each number. A list that changed meanwhile is requested again,
    /// [`DUMPS_MAX`] times at most.
    ///
    /// # Errors
    /// The kernel's refusal; [`Errno::BADMSG`] for a malformed answer; on a non-blocking socket
    /// [`Errno::AGAIN`] for a missing one.
    pub(crate) fn dump<T>(
        &self,
        request: impl Fn(u32) -> Vec<u8>,
        max: usize,
        mut parse: impl FnMut(u16, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Errno> {
        let (mut found, mut buffer) = (Vec::new(), vec![0; MESSAGE_MAX]);
        for _ in 0..DUMPS_MAX {
            let sequence = self.send(&request)?;
            found.clear();
            let changed = self.receive_dump(sequence, &mut buffer, |kind, payload| {
                if found.len() < max {
                    found.extend(parse(kind, payload));
                }
            })?;
            if !changed {
                break;
            }
        }
        Ok(found)
    }

    /// Reads one dump to its end; true if the list has changed meanwhile.
    fn receive_dump(
        &self,
        sequence: u32,
        buffer: &mut [u8],
        mut each: impl FnMut(u16, &[u8]),
    ) -> Result<bool, Errno> {
        let mut interrupted = false;
        loop {
            let bytes = self.receive(buffer)?;
            if bytes.is_empty() {
                return Err(Errno::BADMSG);
            }
            for message in messages(bytes).filter(|message| self.answers(message, sequence)) {
                interrupted |= message.flags() & NLM_F_DUMP_INTR != 0;
                match i32::from(message.message_type()) {
                    libc::NLMSG_DONE => return Ok(interrupted),
                    libc::NLMSG_ERROR => return Err(refusal(message.payload())),
                    _ => each(message.message_type(), message.payload()),
                }
            }
        }
    }

    fn answers(&self, message: &NetlinkBuffer<&[u8]>, sequence: u32) -> bool {
        (message.sequence_number(), message.port_number()) == (sequence, self.port.load(Ordering::Relaxed))
    }

    /// Reads what has arrived, without end on a blocking socket: one datagram of notifications or answers.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: nothing has. [`Errno::NOBUFS`]: notifications were lost.
    pub(crate) fn receive<'b>(&self, buffer: &'b mut [u8]) -> Result<&'b [u8], Errno> {
        let (_, length) = retry_on_intr(|| rustix::net::recv(&self.fd, &mut *buffer, RecvFlags::empty()))?;
        Ok(&buffer[..length.min(buffer.len())])
    }

    /// Sends the request made for the next number; the number.
    fn send(&self, request: impl FnOnce(u32) -> Vec<u8>) -> Result<u32, Errno> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        rustix::net::send(&self.fd, &request(sequence), SendFlags::empty())?;
        if self.port.load(Ordering::Relaxed) == 0 {
            let own = SocketAddrNetlink::try_from(rustix::net::getsockname(&self.fd)?)?;
            self.port.store(own.pid(), Ordering::Relaxed);
        }
        Ok(sequence)
    }
}

/// A route socket.
fn open(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    // NETLINK_ROUTE is number zero, which is what no number means.
    rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)
}

/// The messages in what was received, up to the first malformed one.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkBuffer<&[u8]>> {
    std::iter::from_fn(move || {
        let message = NetlinkBuffer::new_checked(bytes).ok()?;
        bytes = bytes.get((message.length() as usize).next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// A request with these flags and this number, in wire format.
pub(super) fn serialized(body: RouteNetlinkMessage, flags: u16, sequence: u32) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    header.sequence_number = sequence;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(body));
    message.finalize();
    let mut request = vec![0; message.buffer_len()];
    message.serialize(&mut request);
    request
}

/// The kernel's refusal: a negative errno at the start of the payload.
pub(super) fn refusal(payload: &[u8]) -> Errno {
    let code = payload.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    if code < 0 { Errno::from_raw_os_error(-code) } else { Errno::BADMSG }
}

#[cfg(test)]
mod tests;
