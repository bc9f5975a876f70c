//! Datagrams of published ports, and those that pass between loopbacks.
//!
//! *Published.* A batch is read into one arena and handed to the stack, which begins a flow for each new peer
//! and gives it a socket that sends through the port that was asked last ([`crate::sockets::Published`]).
//! While the stack takes nothing (the link has no credit), datagrams that were read stay in the arena and the
//! others in the kernel: the port is not read until then.
//!
//! *Relayed.* A peer on one side's loopback gets a socket on the other side that is connected to the
//! destination: the loopback over there, or the guest's address ([`super::LocalPeers`]). Its answers go back
//! through the port, from the address that the peer has asked last. Each is a flow of the flow table, which
//! bounds their number and ends idle ones.
//!
//! Datagrams are read by recvmmsg and several of one size at a time (`UDP_GRO`), and leave as they were read
//! (`UDP_SEGMENT`).

use super::turn::{ends_for, key};
use super::{Body, ForwardDirection, Forwards, Topic, listen};
use crate::slab::Slab;
use crate::socket_broker::Kind;
use crate::sockets::{Published, Sharing, Sockets, address_error, describe};
use crate::sys;
use crate::sys::addressed::{Source, recv_addressed, sent_to};
use brodo_core::carried::CarriedProgress;
use brodo_core::flow::info::{Carrier, Initiator, Traffic};
use brodo_core::flow::{Endpoint, FlowId, FlowKey, Protocol};
use brodo_core::host::{HostError, IpHeaderFields, Received};
use brodo_core::journal::carried::{DriverJournal, PeerRecord};
use brodo_core::stack::{Arrived, Io, Opening, Platform, Stack};
use rustix::event::epoll::{self, EventFlags};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;

/// Most datagrams, or runs of them, of one batch.
const BATCH: usize = 32;
/// Room for any datagram, and not a multiple of a power of two, so that the beginnings do not compete for the
/// same lines of the cache.
const STRIDE: usize = (64 << 10) + 1472;

/// One datagram in an arena.
#[derive(Debug, Clone, Copy, Default)]
struct Read {
    received: Received,
    from: Option<SocketAddr>,
    to: Option<Source>,
}

/// One batch.
struct Arena {
    buffers: Box<[u8]>,
    reads: [Read; BATCH],
    /// The listener that it is of.
    slot: u32,
    count: usize,
    /// The first that is not done with.
    next: usize,
}

/// The buffers of an arena, one for each datagram of a batch.
fn slices(buffers: &mut [u8]) -> [IoSliceMut<'_>; BATCH] {
    let mut buffers = buffers.chunks_exact_mut(STRIDE);
    std::array::from_fn(|_| IoSliceMut::new(buffers.next().unwrap_or_default()))
}

impl Default for Arena {
    fn default() -> Self {
        // Zeroed memory of this size comes from the kernel page by page, when it is used.
        let buffers = vec![0; BATCH * STRIDE].into_boxed_slice();
        Self { buffers, reads: [Read::default(); BATCH], slot: 0, count: 0, next: 0 }
    }
}

impl Arena {
    fn is_empty(&self) -> bool {
        self.next == self.count
    }

    /// Forgets what is not done with; how many datagrams, or runs of them, that were.
    fn discard(&mut self) -> u64 {
        let left = self.count - self.next;
        self.next = self.count;
        left as u64
    }

    fn payload(&self, index: usize) -> &[u8] {
        &self.buffers[index * STRIDE..][..self.reads[index].received.len]
    }

    fn unread(&self, index: usize) -> Unread<'_> {
        let Read { received: Received { len: _, segment, tos, lost, from: _ }, from, to } = self.reads[index];
        Unread { slot: self.slot, from, to, payload: self.payload(index), segment, tos, lost }
    }

    /// Appends a datagram read by another process, if there is room and it is of the same port.
    fn put_back(&mut self, datagram: &Unread<'_>) {
        let Unread { slot, from, to, payload, segment, tos, lost } = *datagram;
        let fits = self.count < BATCH && payload.len() <= STRIDE && (self.count == 0 || self.slot == slot);
        if fits {
            self.buffers[self.count * STRIDE..][..payload.len()].copy_from_slice(payload);
            let received = Received { len: payload.len(), segment, tos, lost, from: None };
            self.reads[self.count] = Read { received, from, to };
            (self.slot, self.count) = (slot, self.count + 1);
        }
    }

    /// Reads a batch from a port.
    fn read(&mut self, slot: u32, port: &Published, overflows: &mut u32) -> Result<(), Errno> {
        let Self { buffers, reads, .. } = self;
        (self.slot, self.count, self.next) = (slot, 0, 0);
        let mut into = slices(buffers);
        self.count = recv_addressed(port.descriptor(), &mut into, |i, len, from, control| {
            reads[i] = Read { received: describe(len, control, overflows), from, to: sent_to(control) };
        })?;
        Ok(())
    }
}

/// A peer and its socket on the other side.
pub(super) struct Relay {
    pub(super) flow: FlowId,
    pub(super) slot: u32,
    pub(super) peer: SocketAddr,
    /// The address that it has asked last.
    pub(super) source: Option<Source>,
    pub(super) fd: OwnedFd,
}

impl Relay {
    /// Its record, with the inode of the listening socket.
    fn record(&self, listener: u32) -> PeerRecord {
        let source = self.source.map(|source| source.address);
        let socket = Some(self.fd.as_raw_fd().cast_unsigned());
        PeerRecord { socket, listener, peer: self.peer, source }
    }
}

/// A datagram, or several of one size, that was read from a published port and not taken by the stack yet.
#[derive(Clone, Copy)]
pub(super) struct Unread<'a> {
    /// The listener.
    pub(super) slot: u32,
    pub(super) from: Option<SocketAddr>,
    pub(super) to: Option<Source>,
    pub(super) payload: &'a [u8],
    pub(super) segment: Option<u16>,
    pub(super) tos: u8,
    pub(super) lost: u32,
}

/// Traffic that a datagram is, or several that the kernel has coalesced.
fn traffic(received: &Received) -> Traffic {
    let datagrams = received.segment.map_or(1, |size| received.len.div_ceil(usize::from(size.max(1))).max(1));
    Traffic { bytes: received.len as u64, packets: datagrams as u64 }
}

/// Datagrams between ports and their destinations: held ones, and relays.
#[derive(Default)]
pub(super) struct Datagrams {
    published: Option<Arena>,
    relayed: Option<Arena>,
    /// Ports that are not read until the stack takes datagrams.
    held: Vec<u32>,
    relays: Slab<Relay>,
    journal: DriverJournal,
    /// By listener and peer.
    index: HashMap<(u32, SocketAddr), u32>,
}

impl Datagrams {
    /// Gives away numbers of relays that were freed in this turn.
    pub(super) fn reuse_numbers(&mut self) {
        self.relays.reuse_freed();
    }

    /// Closes the relay of a flow that was ended, if the number is still its own.
    pub(super) fn close(&mut self, epoll: &OwnedFd, number: u32, flow: FlowId) {
        if self.relays.get(number).is_some_and(|relay| relay.flow == flow) {
            self.end(epoll, number);
        }
    }

    /// Whether ports wait for the stack to take datagrams.
    pub(super) fn holds_ports(&self) -> bool {
        !self.held.is_empty()
    }

    /// Ends all relays of listeners that are closed, and discards what was read from such a one and waits for
    /// the link: its slot may be another listener's by the time the link has credit. Flows of the relays are
    /// added to `closed`. Gives the number of datagrams discarded.
    pub(super) fn retain_listeners(
        &mut self,
        epoll: &OwnedFd,
        is_there: impl Fn(u32) -> bool,
        closed: &mut Vec<FlowId>,
    ) -> u64 {
        for number in self.relays.slots_where(|relay| !is_there(relay.slot)) {
            closed.extend(self.end(epoll, number));
        }
        self.held.retain(|&slot| is_there(slot));
        let orphaned = self.published.as_mut().filter(|arena| !is_there(arena.slot));
        orphaned.map_or(0, Arena::discard)
    }

    /// Datagrams that were read from a published port and not taken yet.
    pub(super) fn unread(&self) -> impl Iterator<Item = Unread<'_>> {
        self.published.iter().flat_map(|arena| (arena.next..arena.count).map(|index| arena.unread(index)))
    }

    /// Takes unread datagrams of one port, as many as a batch has; the port, if there are any.
    pub(super) fn restore_unread(&mut self, unread: &[Unread<'_>]) -> Option<u32> {
        let mut arena = Arena::default();
        for datagram in unread {
            arena.put_back(datagram);
        }
        let slot = arena.slot;
        if arena.is_empty() {
            return None;
        }
        self.published = Some(arena);
        Some(slot)
    }

    /// Writes all relays to a journal, and those to come; `inode_of` gives the inode of a listener's socket.
    pub(super) fn set_journal(&mut self, journal: DriverJournal, inode_of: impl Fn(u32) -> Option<u32>) {
        self.journal = journal;
        for relay in self.relays.iter() {
            if let Some(inode) = inode_of(relay.slot) {
                journal.peer(relay.flow, &relay.record(inode));
            }
        }
    }

    /// All relays with their numbers.
    pub(super) fn relays(&self) -> impl Iterator<Item = (u32, &Relay)> {
        let numbers = self.relays.slots_where(|_| true).into_iter();
        numbers.filter_map(|number| Some((number, self.relays.get(number)?)))
    }

    /// Registers and keeps a relay of another process, if its peer has no other; its number.
    pub(super) fn restore_relay(&mut self, epoll: &OwnedFd, relay: Relay) -> Option<u32> {
        let is_new = !self.index.contains_key(&(relay.slot, relay.peer));
        is_new.then(|| self.open(epoll, relay).ok())?
    }

    /// Registers and keeps a relay; its number.
    fn open(&mut self, epoll: &OwnedFd, relay: Relay) -> Result<u32, HostError> {
        let event = Topic::Relay.data(self.relays.next_slot());
        epoll::add(epoll, &relay.fd, event, EventFlags::IN).map_err(|_| HostError::Exhausted)?;
        let by = (relay.slot, relay.peer);
        let number = self.relays.insert(relay);
        self.index.insert(by, number);
        Ok(number)
    }

    /// Closes a relay; its flow.
    fn end(&mut self, epoll: &OwnedFd, number: u32) -> Option<FlowId> {
        let relay = self.relays.remove(number)?;
        // Its number is given away again.
        self.journal.forget(relay.flow);
        let _ = epoll::delete(epoll, &relay.fd);
        self.index.remove(&(relay.slot, relay.peer));
        Some(relay.flow)
    }
}

/// The flow of a peer's datagrams: the peer's translated address with its own port, or with another port if a
/// peer of the same translated address has that one. The flow table shows which peer has which port; a peer
/// keeps its port as long as its flow lives. `None` if all ports tried are other peers'.
fn stand_in(stack: &Stack, sockets: &Sockets, guest: Endpoint, peer: SocketAddr) -> Option<FlowKey> {
    let mut free = None;
    for remote in ends_for(peer, stack.translate_source(peer)?) {
        let key = FlowKey { protocol: Protocol::Udp, guest, remote };
        match stack.datagram_socket(&key) {
            Some(socket) if sockets.sends_to(socket, peer) => return Some(key),
            Some(_) => {}
            None => free = free.or(Some(key)),
        }
    }
    free
}

impl Forwards {
    /// Hands over datagrams that have waited for the stack, and reads the ports again. The stack's own share
    /// goes first: once it has no more to serve there may be no other turn for long.
    pub(super) fn go_on_with_datagrams<P: Platform<Host = Sockets>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) {
        if self.datagrams.held.is_empty() || !stack.deliver_datagrams(io) {
            return;
        }
        self.deliver(stack, io);
        if self.datagrams.published.as_ref().is_none_or(Arena::is_empty) {
            for slot in std::mem::take(&mut self.datagrams.held) {
                self.listeners.hold(slot, false);
            }
        }
    }

    /// A port has something to read.
    pub(super) fn read_port<P: Platform<Host = Sockets>>(
        &mut self,
        slot: u32,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) {
        let Some(listener) = self.listeners.get_mut(slot) else { return };
        let Body::Datagrams(port) = &listener.body else { return };
        if listener.direction == ForwardDirection::Out
            || listener.to_address.is_some_and(|to| to.is_loopback())
        {
            return self.relay(slot, stack, io);
        }
        let arena = self.datagrams.published.get_or_insert_default();
        if !arena.is_empty() || !stack.takes_datagrams() {
            return self.hold_until_taken(slot);
        }
        // An error is an earlier datagram's, and the next event brings what is behind it.
        if arena.read(slot, port, &mut listener.overflows).is_ok() {
            self.deliver(stack, io);
            if self.datagrams.published.as_ref().is_some_and(|arena| !arena.is_empty()) {
                self.hold_until_taken(slot);
            }
        }
    }

    /// Suspends reads of a port until the stack takes datagrams. It may be one already: a flow that waits for
    /// room in it has had its events switched on.
    pub(super) fn hold_until_taken(&mut self, slot: u32) {
        if let Some(listener) = self.listeners.get(slot)
            && !listener.held
        {
            self.datagrams.held.push(slot);
        }
        self.listeners.hold(slot, true);
    }

    /// Hands the datagrams read to the stack, as far as it takes them.
    fn deliver<P: Platform<Host = Sockets>>(&mut self, stack: &mut Stack, io: &mut Io<'_, P>) {
        let Some(mut arena) = self.datagrams.published.take() else { return };
        while !arena.is_empty() {
            let (slot, Read { received, from, to }) = (arena.slot, arena.reads[arena.next]);
            let listener = self.listeners.get(slot);
            let Some((listener, Body::Datagrams(port))) = listener.map(|it| (it, &it.body)) else {
                self.counters.lost += arena.discard();
                break;
            };
            if from.is_some_and(|peer| self.is_spliced(peer, listener)) {
                self.relay_one(&arena, arena.next, stack, io);
                self.counters.lost += u64::from(received.lost);
                arena.next += 1;
                continue;
            }
            let address = listener.to_address.or_else(|| stack.guest_address(listener.at.0.is_ipv6()));
            let guest = address.map(|address| Endpoint::new(address, listener.to_port));
            let key = from.zip(guest).and_then(|(peer, guest)| stand_in(stack, io.host, guest, peer));
            if let (Some(peer), Some(key)) = (from, key) {
                let Received { segment, tos, .. } = received;
                let arrived = Arrived { peer, payload: arena.payload(arena.next), segment, tos };
                let source = to.map(|asked| Source::of(asked.address));
                let event = Topic::Listener.data(slot);
                let taken = stack.inbound_datagram(io, key, &arrived, |sockets, flow, socket| {
                    sockets.share(socket, Sharing { flow, port, event, peer, source })
                });
                if taken.is_err() {
                    break;
                }
                self.counters.datagrams += 1;
            } else {
                self.counters.lost += 1;
            }
            self.counters.lost += u64::from(received.lost);
            arena.next += 1;
        }
        self.datagrams.published = Some(arena);
    }

    /// Passes datagrams of one loopback's peers on to the other side.
    fn relay<P: Platform<Host = Sockets>>(&mut self, slot: u32, stack: &mut Stack, io: &mut Io<'_, P>) {
        let Some(listener) = self.listeners.get_mut(slot) else { return };
        let Body::Datagrams(port) = &listener.body else { return };
        let mut arena = self.datagrams.relayed.take().unwrap_or_default();
        if arena.read(slot, port, &mut listener.overflows).is_ok() {
            for index in 0..arena.count {
                self.relay_one(&arena, index, stack, io);
            }
        }
        arena.next = arena.count;
        self.datagrams.relayed = Some(arena);
    }

    /// Passes one datagram of an arena on by its peer's relay.
    fn relay_one<P: Platform<Host = Sockets>>(
        &mut self,
        arena: &Arena,
        index: usize,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) {
        let read = arena.reads[index];
        let payload = [IoSlice::new(arena.payload(index))];
        let Some(number) = read.from.and_then(|peer| self.relay_of(arena.slot, peer, stack, io)) else {
            self.counters.lost += 1;
            return;
        };
        let Some(relay) = self.datagrams.relays.get_mut(number) else { return };
        let source = read.to.map(|asked| Source::of(asked.address));
        if std::mem::replace(&mut relay.source, source) != source
            && let Some(Body::Datagrams(port)) = self.listeners.get(arena.slot).map(|listener| &listener.body)
        {
            self.datagrams.journal.change_peer(relay.flow, &relay.record(port.inode()));
        }
        let progress = CarriedProgress { from_initiator: traffic(&read.received), ..Default::default() };
        stack.carried_progress(io, relay.flow, &progress);
        let segment = read.received.segment.filter(|&size| read.received.len > usize::from(size));
        let send = || sys::send_datagrams(relay.fd.as_fd(), &payload, segment);
        // An error may be an earlier datagram's; reading clears it.
        match send().or_else(|errno| if errno == Errno::AGAIN { Err(errno) } else { send() }) {
            Ok(_) => self.counters.relayed += 1,
            Err(_) => self.counters.lost += 1,
        }
    }

    /// The relay of a peer, which is made if there is none.
    fn relay_of<P: Platform<Host = Sockets>>(
        &mut self,
        slot: u32,
        peer: SocketAddr,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) -> Option<u32> {
        if let Some(&number) = self.datagrams.index.get(&(slot, peer)) {
            return Some(number);
        }
        let listener = self.listeners.get(slot)?;
        let Body::Datagrams(port) = &listener.body else { return None };
        let inode = port.inode();
        let to = self.destination_of_near(listener, stack);
        let kind = Kind::of(false, to.is_ipv6());
        let (fd, initiator, key) = match listener.direction {
            ForwardDirection::Out => (kind.open().ok()?, Initiator::Guest, key(Protocol::Udp, peer, to)),
            // Lost if the broker is just opening some; a peer that wants an answer asks again.
            ForwardDirection::In => {
                (self.broker.as_mut()?.take(kind).ok()?, Initiator::Peer, key(Protocol::Udp, to, peer))
            }
        };
        let opening = Opening { key, initiator, carrier: Carrier::Relay };
        let Self { datagrams, epoll, .. } = self;
        let opened = stack.open_carried(io, opening, |flow| {
            listen::datagram_options(&fd, to.is_ipv6());
            rustix::net::connect(&fd, &to).map_err(address_error)?;
            let relay = Relay { flow, slot, peer, source: None, fd };
            datagrams.journal.peer(flow, &relay.record(inode));
            datagrams.open(epoll, relay)
        });
        // A refusal is counted by the stack.
        opened.ok().and_then(|_| self.datagrams.index.get(&(slot, peer)).copied())
    }

    /// Passes a relay's received datagrams back to its peer.
    pub(super) fn relay_event<P: Platform<Host = Sockets>>(
        &mut self,
        number: u32,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) {
        let Self { listeners, datagrams, counters, .. } = self;
        let Some(relay) = datagrams.relays.get_mut(number) else { return };
        let listener = listeners.get(relay.slot);
        let Some(Body::Datagrams(port)) = listener.map(|listener| &listener.body) else { return };
        let port: &Arc<Published> = port;
        let arena = datagrams.relayed.get_or_insert_default();
        let Arena { buffers, reads, .. } = arena;
        let mut into = slices(buffers);
        let mut overflows = 0;
        let read = sys::recv_datagrams(relay.fd.as_fd(), &mut into, |i, len, control| {
            reads[i].received = describe(len, control, &mut overflows);
        });
        // A port unreachable cannot be passed on; reading the error clears it.
        let Ok(count) = read else { return };
        let mut progress = CarriedProgress::default();
        arena.reads[..count].iter().for_each(|read| progress.from_responder += traffic(&read.received));
        stack.carried_progress(io, relay.flow, &progress);
        for index in 0..count {
            let Received { segment, tos, .. } = arena.reads[index].received;
            let payload = [IoSlice::new(arena.payload(index))];
            match port.send(
                &payload,
                relay.peer,
                relay.source,
                segment,
                IpHeaderFields { tos, ..IpHeaderFields::default() },
            ) {
                Ok(_) => counters.relayed += 1,
                Err(_) => counters.lost += 1,
            }
        }
    }
}

#[cfg(test)]
mod tests;
