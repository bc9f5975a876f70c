//! The guest's transmit queue as its kernel describes it: its length in frames, and its drops.
//!
//! A route socket of the guest's namespace, made there and passed to brodo with the TAP, answers both for as
//! long as the interface exists. It also subscribes to changes of links: the guest may change the interface's
//! `txqueuelen` while brodo serves it. A notification only triggers a query; its content is not used.
//!
//! System calls: socket, bind, getsockname, ioctl SIOCGIFINDEX, sendto, recvfrom (rtnetlink).

use crate::netlink::refusal;
use crate::source::{Source, Turn};
use brodo_core::time::Instant;
use brodo_link::poller::Poller;
use brodo_link::{EventFlags, GuestLink};
use netlink_packet_core::{
    NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::LinkMessage;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Longest message read, in bytes; the kernel's about a TAP have 1 to 2 KiB.
const MESSAGE_MAX: usize = 16 << 10;
/// Bytes of `struct ifinfomsg`, which attributes follow.
const LINK_HEADER_LEN: usize = 16;
/// Offset of `tx_dropped` in `struct rtnl_link_stats64`, in bytes.
const TX_DROPPED_AT: usize = 7 * 8;

/// State of the transmit queue reported by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct QueueState {
    frames: u32,
    dropped: u64,
}

/// Watch of the transmit queue of one interface; each queue of an interface with several has a ring of this
/// length.
#[derive(Debug)]
pub struct TxQueueLenWatch {
    socket: OwnedFd,
    index: u32,
    port: u32,
    sequence: AtomicU32,
    /// Length as of the last query.
    frames: AtomicU32,
    dropped: AtomicU64,
}

impl TxQueueLenWatch {
    /// The socket for a watch, in the caller's network namespace.
    pub fn socket() -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // NETLINK_ROUTE is number zero, which is what no number means.
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, libc::RTMGRP_LINK as u32))?;
        Ok(socket)
    }

    /// Watches the interface called `name` in the namespace that `socket` was made in.
    ///
    /// # Errors
    /// The interface does not exist.
    pub fn new(socket: OwnedFd, name: &str) -> Result<Self, Errno> {
        let index = rustix::net::netdevice::name_to_index(&socket, name)?;
        let port = SocketAddrNetlink::try_from(rustix::net::getsockname(&socket)?)?.pid();
        let (sequence, frames, dropped) = Default::default();
        Ok(Self { socket, index, port, sequence, frames, dropped })
    }

    /// Readable when a query may be worth while.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Length of each queue's ring in frames, as last read; `None` before the first read.
    pub fn frames(&self) -> Option<u32> {
        Some(self.frames.load(Ordering::Relaxed)).filter(|&frames| frames > 0)
    }

    /// Frames sent by the guest that brodo never saw, from the creation of the interface to the last query:
    /// they found a ring full, or the interface without a reader.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Queries length and drops; earlier notifications are covered by that. An interface that is gone keeps
    /// its last values. Only one thread may query at a time, or they take each other's answers.
    pub fn look(&self) {
        if let Ok(state) = self.ask() {
            self.frames.store(state.frames, Ordering::Relaxed);
            self.dropped.store(state.dropped, Ordering::Relaxed);
        }
    }

    fn ask(&self) -> Result<QueueState, Errno> {
        let mut buffer = vec![0; MESSAGE_MAX];
        self.forget_notifications(&mut buffer)?;
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        self.send(sequence)?;
        loop {
            // The kernel answers within `send`, so an empty socket means no answer.
            let length = self.receive(&mut buffer)?;
            let message = NetlinkBuffer::new_checked(&buffer[..length]).map_err(|_| Errno::BADMSG)?;
            // A notification bears the numbers of the request that made the change.
            if (message.sequence_number(), message.port_number()) == (sequence, self.port) {
                return match i32::from(message.message_type()) {
                    kind if kind == i32::from(libc::RTM_NEWLINK) => parse(message.payload()),
                    libc::NLMSG_ERROR => Err(refusal(message.payload())),
                    _ => Err(Errno::BADMSG),
                };
            }
        }
    }

    fn forget_notifications(&self, buffer: &mut [u8]) -> Result<(), Errno> {
        loop {
            match self.receive(buffer) {
                // Lost notifications matter as little as received ones.
                Ok(_) | Err(Errno::NOBUFS) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        loop {
            match rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::empty()) {
                Err(Errno::INTR) => {}
                other => return other.map(|(length, _)| length),
            }
        }
    }

    fn send(&self, sequence: u32) -> Result<(), Errno> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST;
        header.sequence_number = sequence;
        let mut link = LinkMessage::default();
        link.header.index = self.index;
        let mut message =
            NetlinkMessage::new(header, NetlinkPayload::from(RouteNetlinkMessage::GetLink(link)));
        message.finalize();
        let mut request = vec![0; message.buffer_len()];
        message.serialize(&mut request);
        rustix::net::send(&self.socket, &request, SendFlags::empty()).map(drop)
    }
}

/// The two attributes in use of a link message. The others are ignored: kernels add to them.
fn parse(payload: &[u8]) -> Result<QueueState, Errno> {
    let attributes = payload.get(LINK_HEADER_LEN..).ok_or(Errno::BADMSG)?;
    let (mut frames, mut dropped) = (None, None);
    for attribute in NlasIterator::new(attributes) {
        let attribute = attribute.map_err(|_| Errno::BADMSG)?;
        let value = attribute.value();
        match attribute.kind() {
            libc::IFLA_TXQLEN => frames = value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes)),
            libc::IFLA_STATS64 => {
                let found = value.get(TX_DROPPED_AT..).and_then(<[u8]>::first_chunk);
                dropped = found.map(|bytes| u64::from_ne_bytes(*bytes));
            }
            _ => {}
        }
    }
    frames.zip(dropped).map(|(frames, dropped)| QueueState { frames, dropped }).ok_or(Errno::BADMSG)
}

/// Subscription of a worker to a watch: its stack gets the length of the queue, if the link drops frames that
/// find it full.
pub(crate) struct TxQueueLenFollower {
    watch: Arc<TxQueueLenWatch>,
    /// Whether this worker makes the queries, for all workers.
    is_poller: bool,
    /// Length last given to the stack.
    frames: Option<u32>,
}

impl TxQueueLenFollower {
    pub(crate) fn new(watch: Arc<TxQueueLenWatch>, is_poller: bool) -> Self {
        Self { watch, is_poller, frames: None }
    }
}

impl TxQueueLenFollower {
    /// Queries the queue, if that is this worker's task.
    pub(crate) fn look(&self) {
        if self.is_poller {
            self.watch.look();
        }
    }
}

impl<L: GuestLink> Source<L> for TxQueueLenFollower {
    fn register(&mut self, poller: Poller<'_>) -> io::Result<()> {
        if self.is_poller {
            poller.add(self.watch.descriptor(), 0, EventFlags::IN)?;
            self.watch.look();
        }
        Ok(())
    }

    fn ready(&mut self, _: u32, _: EventFlags, _: Instant) {
        self.watch.look();
    }

    /// Change of the length, perhaps seen by another worker.
    fn turn(&mut self, turn: &mut Turn<'_, L>) -> bool {
        let frames = if turn.guest_link().has_lossy_ring() { self.watch.frames() } else { None };
        if frames != self.frames {
            self.frames = frames;
            turn.stack.set_tx_queue_len(frames);
        }
        false
    }
}

#[cfg(test)]
mod tests;
