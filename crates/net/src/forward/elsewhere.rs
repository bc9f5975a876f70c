//! Spliced connections that their destination refuses: the other family is tried.
//!
//! `localhost` stands for 127.0.0.1 and ::1. A forward listens at both, and has accepted its client before it
//! is known whether the server listens at both too; many listen at one (Flask at 127.0.0.1, Vite at ::1). The
//! client has no reason to try its other address then, so brodo does. The refused attempt is a flow that has
//! ended, and the next is another one.
//!
//! Each connection goes elsewhere once, and only by a forward that listens in both families and names no
//! destination: never to a place that the forward does not lead to.
//!
//! System calls: getsockname.

use super::{Body, ForwardDirection, Forwards, PendingSplice};
use crate::sockets::Sockets;
use brodo_core::flow::info::{FlowInfo, Initiator};
use brodo_core::stack::{Io, Platform, Stack};
use rustix::fd::OwnedFd;
use std::net::SocketAddr;

impl Forwards {
    /// Tries the connections that were given back since the last turn in the other family; `ended` has their
    /// flows.
    pub(super) fn go_elsewhere<P: Platform<Host = Sockets>>(
        &mut self,
        ended: &[FlowInfo],
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) {
        for (flow, accepted) in self.splices.take_refused() {
            let Some(FlowInfo { key, initiator, .. }) = ended.iter().find(|ended| ended.flow == flow) else {
                self.reject(accepted);
                continue;
            };
            let [guest, remote]: [SocketAddr; 2] = [key.guest.into(), key.remote.into()];
            let (peer, to) = match initiator {
                Initiator::Guest => (guest, remote),
                Initiator::Peer => (remote, guest),
            };
            let refused = PendingSplice { accepted, peer, to, goes_elsewhere: true };
            self.join_elsewhere(refused, *initiator, stack, io);
        }
    }

    /// Connects an accepted connection in the other family, or resets it.
    pub(super) fn join_elsewhere<P: Platform<Host = Sockets>>(
        &mut self,
        refused: PendingSplice,
        initiator: Initiator,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) {
        let Some(to) = self.elsewhere(&refused.accepted, initiator, stack) else {
            return self.reject(refused.accepted);
        };
        let pending = PendingSplice { to, goes_elsewhere: false, ..refused };
        match initiator {
            Initiator::Guest => self.join_host(pending, stack, io),
            Initiator::Peer => self.join_guest(pending, stack, io),
        }
    }

    /// Destination of an accepted connection by the forward's listener in the other family.
    fn elsewhere(&self, accepted: &OwnedFd, initiator: Initiator, stack: &Stack) -> Option<SocketAddr> {
        let at = SocketAddr::try_from(rustix::net::getsockname(accepted).ok()?).ok()?;
        let direction = match initiator {
            Initiator::Guest => ForwardDirection::Out,
            Initiator::Peer => ForwardDirection::In,
        };
        let listening = |ipv6: bool| {
            self.listeners.iter().filter(move |listener| {
                let (address, port) = listener.at;
                let is_near = address.is_unspecified() || address.is_loopback();
                let is_there = is_near && address.is_ipv6() == ipv6 && port == at.port();
                let is_stream = matches!(listener.body, Body::Stream(_));
                is_there && is_stream && listener.direction == direction && listener.to_address.is_none()
            })
        };
        let own = listening(at.is_ipv6()).next()?.entry;
        let other = listening(!at.is_ipv6()).find(|listener| listener.entry == own)?;
        Some(self.destination_of_near(other, stack))
    }
}
