//! The turn of the forwards: accept, join, call the stack, and pause.

use super::{
    ACCEPTS, Body, ForwardDirection, Forwards, Listener, LocalPeers, NAT_PORT_TRIES, PAUSE, PENDING_MAX,
    PendingSplice, SCAN, Topic,
};
use crate::socket_broker::Kind;
use crate::sockets::{Sockets, host_error};
use crate::source::{Source, Turn};
use crate::splice::{self, Joining, TurnBytes, reset};
use brodo_core::carried::CarriedProgress;
use brodo_core::counters::DropReason;
use brodo_core::flow::end::EndCause;
use brodo_core::flow::info::{Carrier, Initiator};
use brodo_core::flow::{Endpoint, FlowKey, Protocol};
use brodo_core::host::{HostError, Readiness};
use brodo_core::stack::{Io, Opening, Platform, Released, Stack};
use brodo_core::time::Instant;
use brodo_link::GuestLink;
use brodo_link::poller::Poller;
use rustix::event::epoll::{self, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::io;
use std::net::SocketAddr;

/// Carriers that are forwards' own.
const CARRIERS: [Carrier; 2] = [Carrier::Splice, Carrier::Relay];

impl<L: GuestLink> Source<L> for Forwards {
    /// Its descriptors are registered one by one as forwards are added, with the instance that it was made
    /// for.
    fn register(&mut self, _: Poller<'_>) -> io::Result<()> {
        Ok(())
    }

    fn ready(&mut self, key: u32, events: EventFlags, _: Instant) {
        self.note(key, events);
    }

    fn deadline(&self) -> Option<Instant> {
        [self.resume_at, self.scan_at].into_iter().flatten().min()
    }

    fn turn(&mut self, turn: &mut Turn<'_, L>) -> bool {
        if std::mem::take(&mut self.joined) {
            turn.note_joined();
        }
        let (stack, mut io) = turn.stack();
        self.follow_events(stack, &mut io)
    }
}

impl Forwards {
    /// Notes an event.
    pub(super) fn note(&mut self, key: u32, events: EventFlags) {
        if let Some((Topic::Splice, number)) = Topic::read(key) {
            self.splices.event(number, events);
            self.joined = true;
        } else {
            self.events.push((key, events));
        }
    }

    /// Handles the events since the last turn; true if there is more to do at once.
    pub(super) fn follow_events<P: Platform<Host = Sockets>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) -> bool {
        let now = io.now;
        if self.resume_at.is_some_and(|at| at <= now) {
            self.resume_at = None;
            for slot in std::mem::take(&mut self.paused) {
                self.listeners.hold(slot, false);
            }
        }
        self.go_on_with_datagrams(stack, io);
        let mut events = std::mem::take(&mut self.events);
        for (key, flags) in events.drain(..) {
            match Topic::read(key) {
                Some((Topic::Listener, slot)) => self.listener_event(slot, flags, stack, io),
                Some((Topic::Relay, number)) => self.relay_event(number, stack, io),
                Some((Topic::SocketBroker, _)) => self.broker_event(stack, io),
                Some((Topic::Splice, _)) | None => {}
            }
        }
        self.events = events;
        if self.scan_at.is_some_and(|at| at <= now) {
            self.scan();
            self.scan_at = Some(now + SCAN);
        }
        self.datagrams.reuse_numbers();
        self.close_released(stack, io);
        let max = TurnBytes::beside(stack.has_sparse(now));
        let mut refused = Vec::new();
        let turned = self.splices.turn(self.epoll.as_fd(), max, |report| {
            if report.progress != CarriedProgress::default() {
                stack.carried_progress(io, report.flow, &report.progress);
            }
            if let Some(cause) = report.end {
                if matches!(cause, EndCause::Refused | EndCause::Unreachable) {
                    refused.extend(stack.flow_detail(report.flow, now).map(|flow| flow.info));
                }
                stack.close_carried(io, report.flow, cause);
            }
        });
        self.go_elsewhere(&refused, stack, io);
        self.listeners.reuse_slots();
        // Datagrams that wait for those of an ordinary flow wait for no event of their own.
        turned.busy || (self.datagrams.holds_ports() && !stack.is_stalled() && !stack.awaits_drain())
    }

    /// Closes the sockets of flows that the stack has ended, and ends the flows of relays that are closed.
    pub(crate) fn close_released<P: Platform<Host = Sockets>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) {
        for flow in self.closed.drain(..) {
            stack.close_carried(io, flow, EndCause::Finished);
        }
        for Released { flow, carrier, number } in stack.take_released_of(&CARRIERS) {
            match carrier {
                Carrier::Splice => self.splices.abort(self.epoll.as_fd(), number, flow),
                Carrier::Relay => self.datagrams.close(&self.epoll, number, flow),
                Carrier::Stack | Carrier::Kernel => {}
            }
        }
    }

    fn listener_event<P: Platform<Host = Sockets>>(
        &mut self,
        slot: u32,
        flags: EventFlags,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) {
        let Some(listener) = self.listeners.get(slot) else { return };
        match &listener.body {
            Body::Stream(_) => self.accept(slot, stack, io),
            Body::Datagrams(port) => {
                if flags.contains(EventFlags::OUT) {
                    for flow in port.take_waiting() {
                        let ready = Readiness { writable: true, ..Readiness::default() };
                        stack.socket_event(io, flow, ready);
                    }
                    self.listeners.ask_for_events(slot);
                }
                if flags.intersects(EventFlags::IN | EventFlags::ERR) {
                    self.read_port(slot, stack, io);
                }
            }
        }
    }

    fn accept<P: Platform<Host = Sockets>>(&mut self, slot: u32, stack: &mut Stack, io: &mut Io<'_, P>) {
        for _ in 0..ACCEPTS {
            let Some(Listener { body: Body::Stream(fd), .. }) = self.listeners.get(slot) else {
                return;
            };
            match rustix::net::acceptfrom_with(fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok((accepted, peer)) => {
                    self.counters.accepted += 1;
                    match peer.and_then(|peer| SocketAddr::try_from(peer).ok()) {
                        Some(peer) => self.accepted(slot, accepted, peer, stack, io),
                        None => reset(accepted),
                    }
                }
                Err(Errno::AGAIN) => return,
                // The peer has gone meanwhile.
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => {}
                // The socket does not listen any more: another process has destroyed it (`ss -K`). It would
                // be reported without end.
                Err(Errno::INVAL) => {
                    let place = self.listeners.get(slot).map(|listener| listener.at);
                    self.listeners.close(slot);
                    self.end_orphans();
                    if let Some((address, port)) = place {
                        let at = SocketAddr::new(address, port);
                        self.notice(format!("the listening socket at {at} was destroyed by another process"));
                    }
                    return;
                }
                // No descriptor or no memory: it would be reported again at once.
                Err(_) => {
                    self.counters.pauses += 1;
                    self.listeners.hold(slot, true);
                    self.paused.push(slot);
                    self.resume_at = self.resume_at.or(Some(io.now + PAUSE));
                    return;
                }
            }
        }
    }

    /// Sends an accepted connection on its way.
    pub(super) fn accepted<P: Platform<Host = Sockets>>(
        &mut self,
        slot: u32,
        accepted: OwnedFd,
        peer: SocketAddr,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) {
        let Some(listener) = self.listeners.get(slot) else { return reset(accepted) };
        let (ipv6, to_port) = (listener.at.0.is_ipv6(), listener.to_port);
        let to = self.destination_of_near(listener, stack);
        let elsewhere = listener.to_address.is_none().then_some(listener.entry);
        let pending = |accepted| PendingSplice { accepted, peer, to, elsewhere };
        match listener.direction {
            ForwardDirection::Out => {
                let pending = pending(accepted);
                self.join_host(pending, stack, io);
            }
            ForwardDirection::In if self.is_spliced(peer, listener) => {
                let pending = pending(accepted);
                self.join_guest(pending, stack, io);
            }
            ForwardDirection::In if to.ip().is_loopback() && listener.to_address.is_some() => {
                self.reject(accepted);
            }
            ForwardDirection::In => {
                let guest = listener.to_address.or_else(|| stack.guest_address(ipv6));
                match (guest, stack.translate_source(peer)) {
                    (Some(guest), Some(remote)) => {
                        let guest = Endpoint::new(guest, to_port);
                        let key = FlowKey { protocol: Protocol::Tcp, guest, remote };
                        self.call(accepted, peer, key, stack, io);
                    }
                    _ => self.reject(accepted),
                }
            }
        }
    }

    /// Destination of a listener's peers that are on its own side's loopback.
    pub(super) fn destination_of_near(&self, listener: &Listener, stack: &Stack) -> SocketAddr {
        let usual = || self.usual_address(listener.direction, listener.at.0.is_ipv6(), stack);
        SocketAddr::new(listener.to_address.unwrap_or_else(usual), listener.to_port)
    }

    /// Whether a peer of a published port gets to the guest by a socket in the guest's namespace.
    pub(super) fn is_spliced(&self, peer: SocketAddr, listener: &Listener) -> bool {
        let to_loopback = listener.to_address.is_some_and(|to| to.is_loopback());
        let is_stream = matches!(listener.body, Body::Stream(_));
        let splices_near = match self.guest.local_peers {
            LocalPeers::Loopback | LocalPeers::Address => true,
            LocalPeers::Mixed => is_stream,
            LocalPeers::Link => false,
        };
        let near = splices_near && peer.ip().to_canonical().is_loopback();
        (to_loopback || near) && self.broker.is_some()
    }

    /// Has the stack call the guest.
    fn call<P: Platform<Host = Sockets>>(
        &mut self,
        accepted: OwnedFd,
        peer: SocketAddr,
        key: FlowKey,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) {
        let mut accepted = Some(accepted);
        for remote in ends_for(peer, key.remote) {
            let result = stack.inbound_tcp(io, FlowKey { remote, ..key }, |sockets, flow| {
                let accepted = accepted.take().ok_or(HostError::Exhausted)?;
                sockets.adopt(flow, accepted)
            });
            // Of peers that look the same two may have one port.
            if result != Err(DropReason::EndsInUse) {
                break;
            }
        }
        if let Some(accepted) = accepted {
            self.reject(accepted);
        }
    }

    pub(super) fn reject(&mut self, accepted: OwnedFd) {
        self.counters.rejected += 1;
        reset(accepted);
    }

    /// Joins an accepted connection with a socket that is to be connected, as a flow of the flow table.
    fn join<P: Platform<Host = Sockets>>(
        &mut self,
        pending: PendingSplice,
        socket: OwnedFd,
        initiator: Initiator,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) {
        let Self { splices, epoll, .. } = self;
        let PendingSplice { accepted, peer, to, elsewhere } = pending;
        let (guest, remote) = if initiator == Initiator::Guest { (peer, to) } else { (to, peer) };
        let opening = splice_between(guest, remote, initiator);
        let (mut accepted, mut is_unreachable) = (Some(accepted), false);
        // A refusal is counted by the stack.
        let _ = stack.open_carried(io, opening, |flow| {
            let connected = splice::connect(&socket, to);
            is_unreachable = connected.is_err();
            let connect = connected.map_err(host_error)?;
            let accepted = accepted.take().ok_or(HostError::Exhausted)?;
            let event = |number| Topic::Splice.data(number);
            let joining = Joining { flow, initiator, accepted, toward: socket, connect, elsewhere };
            splices.join(epoll.as_fd(), joining, event)
        });
        match accepted {
            Some(accepted) if is_unreachable && self.may_go_elsewhere(elsewhere) => {
                let refused = PendingSplice { accepted, peer, to, elsewhere };
                self.join_elsewhere(refused, initiator, stack, io);
            }
            Some(accepted) => self.reject(accepted),
            None => {}
        }
    }

    /// Connects a socket of the host's.
    pub(super) fn join_host<P: Platform<Host = Sockets>>(
        &mut self,
        pending: PendingSplice,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) {
        match Kind::of(true, pending.to.is_ipv6()).open() {
            Ok(socket) => self.join(pending, socket, Initiator::Guest, stack, io),
            Err(_) => self.reject(pending.accepted),
        }
    }

    /// Connects a socket of the guest's namespace, once the broker has opened it.
    pub(super) fn join_guest<P: Platform<Host = Sockets>>(
        &mut self,
        pending: PendingSplice,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) {
        let Some(broker) = &mut self.broker else { return self.reject(pending.accepted) };
        match broker.take(Kind::of(true, pending.to.is_ipv6())) {
            Ok(socket) => self.join(pending, socket, Initiator::Peer, stack, io),
            Err(Errno::AGAIN) if self.pending.len() < PENDING_MAX => self.pending.push_back(pending),
            Err(_) => self.reject(pending.accepted),
        }
    }

    fn broker_event<P: Platform<Host = Sockets>>(&mut self, stack: &mut Stack, io: &mut Io<'_, P>) {
        let Some(broker) = &mut self.broker else { return };
        broker.receive();
        if broker.is_gone() {
            // Once: it would be reported for ever.
            let _ = epoll::delete(&self.epoll, broker.descriptor());
            self.notice("the socket broker has ended: the guest's loopback is no longer reachable".into());
        }
        self.join_pending(stack, io);
    }

    /// Tries the connections that wait for a socket of the guest's namespace again.
    pub(crate) fn join_pending<P: Platform<Host = Sockets>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) {
        for _ in 0..self.pending.len() {
            let Some(pending) = self.pending.pop_front() else { break };
            self.join_guest(pending, stack, io);
        }
    }
}

/// A spliced connection between two sockets, begun by this side.
fn splice_between(guest: SocketAddr, remote: SocketAddr, initiator: Initiator) -> Opening {
    Opening { key: key(Protocol::Tcp, guest, remote), initiator, carrier: Carrier::Splice }
}

/// Ends by which the guest may see a peer: as translated, and if that is an address that several peers share,
/// by [`NAT_PORT_TRIES`] further ports.
pub(super) fn ends_for(peer: SocketAddr, seen: Endpoint) -> impl Iterator<Item = Endpoint> {
    let further = if peer.ip().to_canonical() == seen.ip() { 0 } else { NAT_PORT_TRIES };
    let ports = std::iter::successors(Some(seen.port()), |port| Some(port.checked_add(1).unwrap_or(1024)));
    ports.take(1 + usize::from(further)).map(move |port| Endpoint::new(seen.ip(), port))
}

/// The key of a flow between two sockets, by the addresses that they have.
pub(super) fn key(protocol: Protocol, guest: SocketAddr, remote: SocketAddr) -> FlowKey {
    let end = |at: SocketAddr| Endpoint::new(at.ip().to_canonical(), at.port());
    FlowKey { protocol, guest: end(guest), remote: end(remote) }
}
