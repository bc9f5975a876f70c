//! Published UDP ports: one socket with many peers, each of which is a flow of the stack.
//!
//! Forwards read the datagrams of the port and pass them to the stack ([`crate::forward`]). Answers of a flow
//! leave through the same socket, to the flow's peer and from the address that the peer had used; so to the
//! stack each such flow has a socket of its own, which is only an entry here. It never receives.
//!
//! Reply address: each datagram of a peer sets the local address and port of its entry. A peer that uses
//! several addresses of the host, or several ports forwarded to one of the guest's, is answered from the last
//! one used.
//!
//! When the host has lost that address, answers leave from the one that takes its place, as a program's
//! would, and still from the port: a flow of the guest's own would have another.
//!
//! A port that is no longer published takes its socket along: sends of its flows then fail, until their peers
//! use a published port.

use super::errors::{address_error, host_error};
use super::{HostError, SocketId, Sockets};
use crate::sys::addressed::{Source, send_addressed};
use brodo_core::flow::FlowId;
use brodo_core::host::{IpHeaderFields, SEGMENTS_MAX};
use brodo_core::journal::carried::{DriverJournal, PeerRecord};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Mark of the ids of entries, which no descriptor's number has.
const SHARED: u32 = 1 << 31;

/// The socket of a published port.
#[derive(Debug)]
pub struct Published {
    fd: OwnedFd,
    /// By which a journal names it.
    inode: u32,
    /// Largest segments with which UDP_SEGMENT may work, bytes.
    segment_max: AtomicU16,
    /// Flows that found it full.
    waiting: Mutex<Vec<FlowId>>,
}

impl Published {
    /// For a bound socket.
    pub fn new(fd: OwnedFd) -> Arc<Self> {
        Self::restored(fd, u16::MAX)
    }

    /// The socket.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Inode of the socket.
    pub(crate) fn inode(&self) -> u32 {
        self.inode
    }

    /// For a socket of another process that has learnt the largest segments that work, bytes.
    pub(crate) fn restored(fd: OwnedFd, segment_max: u16) -> Arc<Self> {
        // Fails for no descriptor that is open.
        let inode = rustix::fs::fstat(&fd).map_or(0, |stat| stat.st_ino as u32);
        let segment_max = AtomicU16::new(segment_max);
        Arc::new(Self { fd, inode, segment_max, waiting: Mutex::default() })
    }

    /// Largest segments with which it is thought to work, bytes.
    pub(crate) fn segment_max(&self) -> u16 {
        self.segment_max.load(Ordering::Relaxed)
    }

    /// Takes the flows that wait for room, to notify them.
    pub fn take_waiting(&self) -> Vec<FlowId> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a flow waits for room.
    pub fn is_awaited(&self) -> bool {
        !self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(super) fn is_awaited_by(&self, flow: FlowId) -> bool {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).contains(&flow)
    }

    /// Notifies `flow` when there is room, or at once if there is some. `event` is the data under which the
    /// socket is registered.
    pub(super) fn wait_for_room(
        &self,
        epoll: BorrowedFd<'_>,
        event: u64,
        flow: FlowId,
    ) -> Result<(), HostError> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.is_empty() {
            let interest = EventFlags::IN | EventFlags::OUT;
            epoll::modify(epoll, &self.fd, EventData::new_u64(event), interest).map_err(host_error)?;
        }
        if !waiting.contains(&flow) {
            waiting.push(flow);
        }
        Ok(())
    }

    /// Sends one datagram, or several of `segment` bytes; returns the number of bytes taken.
    pub(crate) fn send(
        &self,
        data: &[IoSlice<'_>],
        to: SocketAddr,
        from: Option<Source>,
        segment: Option<u16>,
        fields: IpHeaderFields,
    ) -> Result<usize, Errno> {
        let fd = self.fd.as_fd();
        let len: usize = data.iter().map(|slice| slice.len()).sum();
        let size = segment.map(usize::from).filter(|&size| size > 0 && len > size);
        let Some(size) = size else { return send_addressed(fd, data, to, from, None, fields) };
        let segmented =
            size <= usize::from(self.segment_max.load(Ordering::Relaxed)) && len <= size * SEGMENTS_MAX;
        if segmented {
            match send_addressed(fd, data, to, from, Some(size as u16), fields) {
                // Perhaps the route or its device does not support segmentation: singly then.
                Err(Errno::INVAL | Errno::IO | Errno::MSGSIZE) => {}
                other => return other,
            }
        }
        let bytes: Vec<u8> = data.iter().flat_map(|slice| slice.iter().copied()).collect();
        let mut sent = 0;
        for datagram in bytes.chunks(size) {
            match send_addressed(fd, &[IoSlice::new(datagram)], to, from, None, fields) {
                Ok(count) => sent += count,
                Err(errno) if sent == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        if segmented {
            // The segments were the reason. A datagram that fails either way is about this peer and not the
            // port: an address that the host has no more.
            self.segment_max.store(size as u16 - 1, Ordering::Relaxed);
        }
        Ok(sent)
    }
}

/// A flow that sends through a published port.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) port: Weak<Published>,
    /// Data of the port's own events.
    pub(super) event: u64,
    pub(super) flow: FlowId,
    pub(super) peer: SocketAddr,
    pub(super) source: Option<Source>,
}

impl Shared {
    /// Its record in a journal; none once the port is published no more.
    fn record(&self) -> Option<PeerRecord> {
        let source = self.source.map(|source| source.address);
        let listener = self.port.upgrade()?.inode();
        Some(PeerRecord { socket: None, listener, peer: self.peer, source })
    }
}

/// Socket and source by which a flow sends through a published port.
#[derive(Clone, Copy)]
pub(crate) struct Sharing<'a> {
    /// The flow.
    pub(crate) flow: FlowId,
    /// The port.
    pub(crate) port: &'a Arc<Published>,
    /// Data under which the port's socket is registered.
    pub(crate) event: EventData,
    /// Destination of its datagrams.
    pub(crate) peer: SocketAddr,
    /// Source of its datagrams; the kernel's choice without one.
    pub(crate) source: Option<Source>,
}

/// Whether an id is one of an entry here.
pub(super) fn is_shared(socket: SocketId) -> bool {
    socket.0 & SHARED != 0
}

/// Slot of the entry of an id.
fn slot(socket: SocketId) -> u32 {
    socket.0 & !SHARED
}

impl Sockets {
    /// A socket for a flow that sends through a published port: `socket`, if the flow already has that one.
    ///
    /// # Errors
    /// Room in the port cannot be waited for.
    pub(crate) fn share(
        &mut self,
        socket: Option<SocketId>,
        sharing: Sharing<'_>,
    ) -> Result<SocketId, HostError> {
        let Sharing { flow, port, event, peer, source } = sharing;
        let shared = Shared { port: Arc::downgrade(port), event: event.u64(), flow, peer, source };
        if let Some(socket) = socket
            && let Some(entry) = self.shared.get_mut(slot(socket))
        {
            let before = std::mem::replace(entry, shared);
            let is_same = entry.peer == peer && entry.source == source && before.source == source;
            if !(is_same && std::ptr::eq(before.port.as_ptr(), Arc::as_ptr(port)))
                && let Some(record) = entry.record()
            {
                self.journal.change_peer(flow, &record);
            }
            // If the flow waits for room in another port, it must wait for this one instead. A port that is
            // gone does not notify.
            if !std::ptr::eq(before.port.as_ptr(), Arc::as_ptr(port))
                && before.port.upgrade().is_none_or(|before| before.is_awaited_by(flow))
            {
                port.wait_for_room(self.epoll.as_fd(), event.u64(), flow)?;
            }
            return Ok(socket);
        }
        Ok(self.keep_shared(shared))
    }

    /// Writes the peers of all entries to a journal, and of those to come.
    pub(crate) fn set_journal(&mut self, journal: DriverJournal) {
        self.journal = journal;
        for shared in self.shared.iter() {
            if let Some(record) = shared.record() {
                journal.peer(shared.flow, &record);
            }
        }
    }

    /// Takes the place of a flow at a published port after a crash.
    pub(crate) fn recover_published(
        &mut self,
        flow: FlowId,
        port: &Arc<Published>,
        event: EventData,
        record: &PeerRecord,
    ) -> SocketId {
        let &PeerRecord { peer, source, .. } = record;
        let source = source.map(Source::of);
        self.keep_shared(Shared { port: Arc::downgrade(port), event: event.u64(), flow, peer, source })
    }

    /// Keeps an entry; its id.
    pub(super) fn keep_shared(&mut self, shared: Shared) -> SocketId {
        if let Some(record) = shared.record() {
            self.journal.peer(shared.flow, &record);
        }
        SocketId(self.shared.insert(shared) | SHARED)
    }

    /// The entry behind an id.
    pub(super) fn shared(&self, socket: SocketId) -> Option<SharedSend<'_>> {
        let shared = is_shared(socket).then(|| self.shared.get(slot(socket)))??;
        Some(SharedSend { epoll: self.epoll.as_fd(), shared })
    }

    /// Peer of an entry.
    pub(super) fn shared_peer(&self, socket: SocketId) -> Option<SocketAddr> {
        self.shared(socket).map(|entry| entry.shared.peer)
    }

    /// Forgets the source address of entries for which `is_lost` holds: the kernel then chooses one.
    pub(super) fn forget_sources(&mut self, is_lost: impl Fn(IpAddr) -> bool) {
        for shared in self.shared.iter_mut() {
            let source = shared.source.filter(|source| !is_lost(source.address));
            if std::mem::replace(&mut shared.source, source) != source
                && let Some(record) = shared.record()
            {
                self.journal.change_peer(shared.flow, &record);
            }
        }
    }

    /// Removes an entry. No event names its slot, so another may have it at once.
    pub(super) fn leave(&mut self, socket: SocketId) {
        self.shared.remove(slot(socket));
        self.shared.reuse_freed();
    }
}

/// An entry in use.
pub(super) struct SharedSend<'a> {
    epoll: BorrowedFd<'a>,
    shared: &'a Shared,
}

impl<'a> SharedSend<'a> {
    /// The entry.
    pub(super) fn shared(&self) -> &'a Shared {
        self.shared
    }

    pub(super) fn send(
        &self,
        data: &[IoSlice<'_>],
        segment: Option<u16>,
        fields: IpHeaderFields,
    ) -> Result<usize, HostError> {
        let Shared { port, event, flow, peer, source } = self.shared;
        let Some(port) = port.upgrade() else { return Err(HostError::Prohibited) };
        let len: usize = data.iter().map(|slice| slice.len()).sum();
        let sent = port.send(data, *peer, *source, segment, fields);
        if sent == Err(Errno::AGAIN) || sent.is_ok_and(|taken| taken < len) {
            port.wait_for_room(self.epoll, *event, *flow)?;
        }
        sent.map_err(address_error)
    }
}
