//! Sockets of flows in a hand-over: what brodo knows of a socket besides its descriptor.
//!
//! A restored socket reports its readiness anew, edge-triggered as any newly registered descriptor; room to
//! write where it was reported before, because only such a stream can wait for it. No option is set: those
//! that were are the socket's own, in whichever process.

use super::datagram::{self, Datagram};
use super::published::{Published, Shared};
use super::{Delays, Open, STREAM_EVENTS, SocketId, Sockets};
use crate::handover::Handover;
use crate::handover::v1::{OwnSocketV1, PublishedV1, SocketV1};
use brodo_core::flow::FlowId;
use rustix::event::epoll::{EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, sockopt};
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
        let Open { fd, flow: _, reports_room, delays, datagram } =
            self.by_fd.get(socket.0 as usize)?.as_ref()?;
        let Datagram { v6: _, ping: _, tos, ttl, dont_fragment, segment_max, overflows } = *datagram;
        Some(SocketV1::Own(OwnSocketV1 {
            descriptor: into.descriptor(fd.as_fd()),
            reports_room: *reports_room,
            writes: delays.save(),
            tos,
            ttl,
            dont_fragment,
            segment_max,
            overflows,
        }))
    }

    /// Takes a stream of a flow.
    ///
    /// # Errors
    /// The descriptor again, which epoll does not take.
    pub(crate) fn restore_stream(
        &mut self,
        flow: FlowId,
        fd: OwnedFd,
        saved: &OwnSocketV1,
    ) -> Result<SocketId, OwnedFd> {
        let socket = self.restore_own(flow, fd, STREAM_EVENTS, saved)?;
        if let Ok(open) = self.get_mut(socket) {
            open.delays = Delays::restore(saved.writes);
        }
        Ok(socket)
    }

    /// Takes a UDP or ping socket of a flow.
    ///
    /// # Errors
    /// The descriptor again, which epoll does not take.
    pub(crate) fn restore_datagram(
        &mut self,
        flow: FlowId,
        fd: OwnedFd,
        ping: bool,
        saved: &OwnSocketV1,
    ) -> Result<SocketId, OwnedFd> {
        let OwnSocketV1 { tos, ttl, dont_fragment, segment_max, overflows, .. } = *saved;
        let v6 = sockopt::socket_domain(&fd) == Ok(AddressFamily::INET6);
        let socket = self.restore_own(flow, fd, datagram::EVENTS, saved)?;
        if let Ok(open) = self.get_mut(socket) {
            open.datagram = Datagram { v6, ping, tos, ttl, dont_fragment, segment_max, overflows };
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
