//! Forwards after a crash: splices, relays and flows of published ports go on, and connections that were
//! only accepted begin.
//!
//! A forward is put in force anew, with the socket that listened for it before if that is still there
//! ([`crate::recovery`]). A flow finds its listener by the inode of that socket, which another one does not
//! have as long as this one is open.
//!
//! *Connections without a flow* have been accepted, and neither was anything read from them nor written: as
//! if they waited in the backlog still. Each belongs to the listener at its own address, and is sent on its
//! way in the first turn.

use super::datagrams::Relay;
use super::listeners::{Body, Listener};
use super::{ForwardDirection, Forwards, PENDING_MAX, Topic};
use crate::handover::Expected;
use crate::inherited::{Inherited, host_namespace};
use crate::sockets::{Published, Sockets};
use crate::splice::reset;
use crate::sys;
use crate::sys::addressed::Source;
use brodo_core::carried::Resumed;
use brodo_core::flow::FlowId;
use brodo_core::journal::carried::{DriverJournal, PeerRecord, SpliceRecord};
use brodo_core::stack::{Io, Platform, Stack};
use rustix::event::epoll::EventData;
use rustix::fd::{AsFd, OwnedFd};
use std::net::SocketAddr;
use std::sync::Arc;

/// A connection that was accepted by a process that has crashed.
pub(super) struct Accepted {
    slot: u32,
    socket: OwnedFd,
    peer: SocketAddr,
}

impl Forwards {
    /// Writes what belongs to carried flows to a journal, and what will.
    pub(crate) fn set_journal(&mut self, journal: DriverJournal) {
        self.splices.set_journal(journal);
        let listeners = &self.listeners;
        self.datagrams.set_journal(journal, |slot| Some(published_in(listeners.get(slot)?)?.inode()));
    }

    /// Goes on with a splice.
    pub(crate) fn resume_splice(
        &mut self,
        flow: FlowId,
        record: &SpliceRecord,
        inherited: &mut Inherited,
    ) -> Option<Resumed> {
        self.splices.recover(self.epoll.as_fd(), flow, record, inherited, |number| Topic::Splice.data(number))
    }

    /// Goes on with a relay.
    pub(crate) fn resume_relay(
        &mut self,
        flow: FlowId,
        record: &PeerRecord,
        inherited: &mut Inherited,
    ) -> Option<Resumed> {
        let (slot, ..) = self.port_of(record)?;
        let fd = inherited.take_socket(record.socket?, Expected::Udp)?;
        let relay = Relay { flow, slot, peer: record.peer, source: record.source.map(Source::of), fd };
        let number = self.datagrams.restore_relay(&self.epoll, relay)?;
        Some(Resumed { number, moved: None })
    }

    /// The published port of a record: its slot, its socket, and the data of its events.
    pub(crate) fn port_of(&self, record: &PeerRecord) -> Option<(u32, &Arc<Published>, EventData)> {
        self.listeners.numbered().find_map(|(slot, listener)| {
            let port = published_in(listener).filter(|port| port.inode() == record.listener)?;
            (listener.at.0.is_ipv6() == record.peer.is_ipv6()).then_some((
                slot,
                port,
                Topic::Listener.data(slot),
            ))
        })
    }

    /// Takes connections that were accepted. One of no listener here is reset.
    pub(crate) fn take_accepted(&mut self, sockets: Vec<OwnedFd>) {
        let host = if sockets.is_empty() { None } else { host_namespace() };
        for socket in sockets {
            let found = host.filter(|_| self.accepted_before.len() < PENDING_MAX);
            match found.and_then(|host| self.listener_of_accepted(&socket, host)) {
                Some((slot, peer)) => self.accepted_before.push(Accepted { slot, socket, peer }),
                None => reset(socket),
            }
        }
    }

    /// The listener that has accepted a connection, and its peer.
    fn listener_of_accepted(&self, socket: &OwnedFd, host: u64) -> Option<(u32, SocketAddr)> {
        let at: SocketAddr = rustix::net::getsockname(socket).ok()?.try_into().ok()?;
        let peer = rustix::net::getpeername(socket).ok()??.try_into().ok()?;
        let direction = if sys::namespace_of(socket.as_fd()).ok()? == host {
            ForwardDirection::In
        } else {
            ForwardDirection::Out
        };
        let fits = |listener: &Listener| {
            let (address, port) = listener.at;
            let is_any = address.is_unspecified() && address.is_ipv6() == at.is_ipv6();
            matches!(listener.body, Body::Stream(_))
                && listener.direction == direction
                && port == at.port()
                && (is_any || address == at.ip())
        };
        let slot = self.listeners.numbered().find(|(_, listener)| fits(listener)).map(|(slot, _)| slot)?;
        Some((slot, peer))
    }

    /// Sends connections on their way that were accepted before a crash.
    pub(crate) fn begin_accepted<P: Platform<Host = Sockets>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) {
        for Accepted { slot, socket, peer } in std::mem::take(&mut self.accepted_before) {
            self.accepted(slot, socket, peer, stack, io);
        }
    }
}

fn published_in(listener: &Listener) -> Option<&Arc<Published>> {
    if let Body::Datagrams(port) = &listener.body { Some(port) } else { None }
}
