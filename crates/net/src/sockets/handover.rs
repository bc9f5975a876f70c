//! Sockets of flows in a hand-over: what brodo knows of a socket besides its descriptor.
//!
//! A restored socket reports its readiness anew, edge-triggered as any newly registered descriptor; room to
//! write where it was reported before, because only such a stream can wait for it. No option is set: those
//! that were are the socket's own, in whichever process.

use super::datagram::{self, Datagram};
use super::published::{Published, Shared};
use super::{Delays, Open, REGISTERED_AT_ONCE, SocketId, Sockets};
use crate::fd_passing::{self, DESCRIPTORS_MAX};
use crate::handover::v1::{OwnSocketV1, PublishedV1, SocketV1};
use crate::handover::{EarlyHeader, Handover, Passed, PassedFrom};
use crate::stream_events::STREAM_EVENTS;
use brodo_core::flow::FlowId;
use brodo_core::stack::SocketKind;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, sockopt};
use std::num::NonZeroU32;
use std::sync::{Arc, Weak};

impl Delays {
    const fn save(self) -> u8 {
        match self {
            Self::NotYet => 0,
            Self::FromNowOn => 1,
            Self::Never => 2,
        }
    }

    /// Of more writes than one TCP_NODELAY is not known to be set, unless the number says so.
    const fn restore(writes: u8) -> Self {
        match writes {
            0 => Self::NotYet,
            2 => Self::Never,
            _ => Self::FromNowOn,
        }
    }
}

impl Sockets {
    /// Saves the socket of a flow; `listener_of` gives the listener whose events carry some data.
    pub(crate) fn save<'a>(
        &'a self,
        socket: SocketId,
        into: &mut Handover<'a>,
        listener_of: impl Fn(u64) -> Option<u32>,
    ) -> Option<SocketV1> {
        if let Some(entry) = self.shared(socket) {
            let Shared { port, event, flow, peer, source } = entry.shared();
            let port = port.upgrade();
            return Some(SocketV1::Published(PublishedV1 {
                listener: port.as_ref().and_then(|_| listener_of(*event)),
                peer: (*peer).into(),
                source: source.map(Into::into),
                waits: port.is_some_and(|port| port.is_awaited_by(*flow)),
            }));
        }
        let Open { fd, flow: _, reports_room, delays, datagram, passed, mapped: _, group: _, may_linger: _ } =
            self.by_fd.get(socket.0 as usize)?.as_ref()?;
        let Datagram { v6: _, ping: _, tos, ttl, dont_fragment, segment_max, overflows, young: _ } =
            *datagram;
        Some(SocketV1::Own(OwnSocketV1 {
            descriptor: passed
                .and_then(|number| into.passed(number.get()))
                .unwrap_or_else(|| into.descriptor(fd.as_fd())),
            reports_room: *reports_room,
            writes: delays.save(),
            tos,
            ttl,
            dont_fragment,
            segment_max,
            overflows,
        }))
    }

    /// Passes descriptors to another process in advance of a hand-over, in one message: those from the number
    /// `from` on that are `wanted`, as many as a message takes, behind their count, the number of the worker
    /// and the ids of their flows ([`EarlyHeader`]). The first becomes the stream number `first`,
    /// and each is known by its number until it is closed, or passed again.
    ///
    /// # Errors
    /// `AGAIN`, `TOOMANYREFS`: too many are on their way; nothing was passed. The receiver has ended.
    pub(crate) fn pass_streams(
        &mut self,
        to: BorrowedFd<'_>,
        place: PassedFrom,
        wanted: impl Fn(FlowId) -> bool,
    ) -> rustix::io::Result<Passed> {
        let PassedFrom { worker, from, first } = place;
        let open = self.by_fd.iter().enumerate().skip(from);
        let open = open.filter_map(|(at, open)| Some((at, open.as_ref().filter(|open| wanted(open.flow))?)));
        let some: Vec<_> = open.take(DESCRIPTORS_MAX).collect();
        let count = some.len() as u16;
        if count > 0 {
            let mut bytes = EarlyHeader { count, worker }.to_bytes().to_vec();
            bytes.extend(some.iter().flat_map(|(_, open)| open.flow.to_bits().to_le_bytes()));
            let descriptors: Vec<_> = some.iter().map(|(_, open)| open.fd.as_fd()).collect();
            let sent = fd_passing::send(to, &bytes, &descriptors, SendFlags::DONTWAIT)?;
            // The kernel takes so short a message whole or not at all.
            if sent != bytes.len() {
                return Err(Errno::PIPE);
            }
        }
        let numbers: Vec<usize> = some.iter().map(|(at, _)| *at).collect();
        let end = numbers.last().filter(|_| numbers.len() == DESCRIPTORS_MAX);
        let end = end.map_or(self.by_fd.len(), |at| at + 1);
        for open in self.by_fd.iter_mut().take(end).skip(from).flatten() {
            open.passed = None;
        }
        for (number, at) in (first + 1..).zip(numbers) {
            if let Some(open) = &mut self.by_fd[at] {
                open.passed = NonZeroU32::new(number);
            }
        }
        Ok(Passed { count: count.into(), next: (end < self.by_fd.len()).then_some(end) })
    }

    /// Takes a stream of a flow, for which it may be `registered` already.
    ///
    /// # Errors
    /// The descriptor again, which epoll does not take.
    pub(crate) fn restore_stream(
        &mut self,
        flow: FlowId,
        fd: OwnedFd,
        saved: &OwnSocketV1,
        registered: bool,
    ) -> Result<SocketId, OwnedFd> {
        let socket = if registered && !saved.reports_room {
            self.insert(flow, fd, STREAM_EVENTS)
        } else if registered {
            let data = EventData::new_u64(flow.to_bits());
            let events = STREAM_EVENTS | EventFlags::OUT;
            if epoll::modify(&self.epoll, &fd, data, events | EventFlags::ET).is_err() {
                return Err(fd);
            }
            self.insert(flow, fd, events)
        } else {
            self.restore_own(flow, fd, STREAM_EVENTS, saved)?
        };
        if let Ok(open) = self.get_mut(socket) {
            open.delays = Delays::restore(saved.writes);
        }
        Ok(socket)
    }

    /// Takes a stream of a process that has crashed, which may linger when it is closed. One at rest is
    /// registered by and by ([`Self::register_some`]).
    ///
    /// # Errors
    /// The descriptor again, which epoll does not take.
    pub(crate) fn recover_stream(
        &mut self,
        flow: FlowId,
        fd: OwnedFd,
        at_rest: bool,
    ) -> Result<SocketId, OwnedFd> {
        let events = if at_rest { STREAM_EVENTS } else { STREAM_EVENTS | EventFlags::OUT };
        if !at_rest && self.register(flow, &fd, events).is_err() {
            return Err(fd);
        }
        let socket = self.insert(flow, fd, events);
        if at_rest {
            self.unregistered.push((socket, flow));
        }
        if let Ok(open) = self.get_mut(socket) {
            (open.delays, open.may_linger) = (Delays::FromNowOn, true);
        }
        Ok(socket)
    }

    /// Registers some of the streams that wait for it; true if more do. An event until then is reported once
    /// they are: ten thousand registrations take 12 ms, in which no guest with work to do should wait.
    pub(crate) fn register_some(&mut self) -> bool {
        for _ in 0..REGISTERED_AT_ONCE {
            let Some(&(socket, flow)) = self.unregistered.last() else { break };
            let open = self.by_fd.get(socket.0 as usize).and_then(Option::as_ref);
            let open = open.filter(|open| open.flow == flow);
            // It may have been closed meanwhile, or registered for room.
            let registered = open.map_or(Ok(()), |open| self.register(flow, &open.fd, STREAM_EVENTS));
            if !matches!(registered, Ok(()) | Err(Errno::EXIST)) {
                // No memory: again in the next turn, whenever that is.
                return false;
            }
            self.unregistered.pop();
        }
        if self.unregistered.is_empty() {
            self.unregistered = Vec::new();
        }
        !self.unregistered.is_empty()
    }

    /// Takes a UDP or ping socket of a flow.
    ///
    /// # Errors
    /// The descriptor again, which epoll does not take.
    pub(crate) fn restore_datagram(
        &mut self,
        flow: FlowId,
        fd: OwnedFd,
        kind: SocketKind,
        saved: &OwnSocketV1,
    ) -> Result<SocketId, OwnedFd> {
        let OwnSocketV1 { tos, ttl, dont_fragment, segment_max, overflows, .. } = *saved;
        let v6 = sockopt::socket_domain(&fd) == Ok(AddressFamily::INET6);
        let (ping, group) = (kind == SocketKind::Echo, kind.group());
        let mapped = kind.guest().and_then(|guest| self.adopt_mapped(fd.as_fd(), guest, group));
        let socket = self.restore_own(flow, fd, datagram::EVENTS, saved)?;
        if let Ok(open) = self.get_mut(socket) {
            open.mapped = mapped.map(Box::new);
            open.group = group.map(Box::new);
            open.datagram = Datagram { v6, ping, tos, ttl, dont_fragment, segment_max, overflows, young: 0 };
        }
        Ok(socket)
    }

    fn restore_own(
        &mut self,
        flow: FlowId,
        fd: OwnedFd,
        events: EventFlags,
        saved: &OwnSocketV1,
    ) -> Result<SocketId, OwnedFd> {
        let room = if saved.reports_room { EventFlags::OUT } else { EventFlags::empty() };
        if self.register(flow, &fd, events | room).is_err() {
            return Err(fd);
        }
        Ok(self.insert(flow, fd, events | room))
    }

    /// Takes the place of a flow at a published port, with the data of the port's events; none if it is
    /// published no more.
    pub(crate) fn restore_published(
        &mut self,
        flow: FlowId,
        port: Option<(&Arc<Published>, EventData)>,
        saved: &PublishedV1,
    ) -> Option<SocketId> {
        if let Some((port, event)) = port.filter(|_| saved.waits) {
            port.wait_for_room(self.epoll.as_fd(), event.u64(), flow).ok()?;
        }
        let (weak, event) =
            port.map_or((Weak::new(), 0), |(port, event)| (Arc::downgrade(port), event.u64()));
        let (peer, source) = (saved.peer.into(), saved.source.map(Into::into));
        Some(self.keep_shared(Shared { port: weak, event, flow, peer, source }))
    }
}
