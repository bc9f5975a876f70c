//! The guest's transmit queue as its kernel describes it: its length in frames, and its drops.
//!
//! A route socket of the guest's namespace, made there and passed to brodo with the TAP, answers both for as
//! long as the interface exists. It also subscribes to changes of links: the guest may change the interface's
//! `txqueuelen` while brodo serves it. A notification only triggers a query; its content is not used.
//!
//! System calls: socket, bind, getsockname, ioctl SIOCGIFINDEX, sendto, recvfrom (rtnetlink).

use crate::netlink::queue_state::QueueState;
use crate::netlink::socket::NetlinkSocket;
use crate::source::{Source, Turn};
use brodo_core::time::Instant;
use brodo_link::poller::Poller;
use brodo_link::{EventFlags, GuestLink};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Room for a notification, of which nothing is read, in bytes.
const NOTIFICATION_MAX: usize = 512;

/// Watch of the transmit queue of one interface; each queue of an interface with several has a ring of this
/// length.
#[derive(Debug)]
pub struct TxQueueLenWatch {
    /// Socket and index of the interface, unless its length was only said.
    interface: Option<(NetlinkSocket, u32)>,
    /// Length as of the last query.
    frames: AtomicU32,
    dropped: AtomicU64,
}

impl TxQueueLenWatch {
    /// The socket for a watch, in the caller's network namespace.
    pub fn socket() -> Result<OwnedFd, Errno> {
        Ok(NetlinkSocket::subscribed(libc::RTMGRP_LINK)?.into_descriptor())
    }

    /// Watches the interface called `name` in the namespace that `socket` was made in.
    ///
    /// # Errors
    /// The interface does not exist.
    pub fn new(socket: OwnedFd, name: &str) -> Result<Self, Errno> {
        let socket = NetlinkSocket::adopt(socket);
        let index = socket.index_of(name)?;
        let (frames, dropped) = Default::default();
        Ok(Self { interface: Some((socket, index)), frames, dropped })
    }

    /// An interface of a namespace that cannot be asked, with rings of so many frames.
    pub fn of_length(frames: u32) -> Self {
        Self { interface: None, frames: frames.into(), dropped: AtomicU64::default() }
    }

    /// Readable when a query may be worth while; none if there are no queries.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.interface.as_ref().map(|(socket, _)| socket.descriptor())
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
        let (socket, index) = self.interface.as_ref().ok_or(Errno::NODEV)?;
        forget_notifications(socket)?;
        QueueState::of(socket, *index)
    }
}

fn forget_notifications(socket: &NetlinkSocket) -> Result<(), Errno> {
    let mut buffer = [0; NOTIFICATION_MAX];
    loop {
        match socket.receive(&mut buffer) {
            // Lost notifications matter as little as received ones.
            Ok(_) | Err(Errno::NOBUFS) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
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
        if let Some(descriptor) = self.watch.descriptor().filter(|_| self.is_poller) {
            poller.add(descriptor, 0, EventFlags::IN)?;
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
