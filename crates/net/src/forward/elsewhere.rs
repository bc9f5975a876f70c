//! Spliced connections that their destination refuses: the other family is tried.
//!
//! `localhost` stands for 127.0.0.1 and ::1. A forward listens at both, and has accepted its client before it
//! is known whether the server listens at both too; many listen at one (Flask at 127.0.0.1, Vite at ::1). The
//! client has no reason to try its other address then, so brodo does. The refused attempt is a flow that has
//! ended, and the next is another one, whose peer is the loopback of its family: both ends of a flow have the
//! same.
//!
//! Each connection goes elsewhere once, and only by a forward without addresses, which listens in both
//! families: never to a place that the forward does not lead to.

use super::{ForwardDirection, Forwards, LocalPeers, PendingSplice, auto, is_scoped};
use crate::sockets::Sockets;
use crate::splice::Unjoined;
use brodo_core::flow::info::{FlowInfo, Initiator};
use brodo_core::stack::{Io, Platform, Stack};
use std::net::{IpAddr, SocketAddr};

impl Forwards {
    /// Tries the connections that were given back since the last turn in the other family; `ended` has their
    /// flows.
    pub(super) fn go_elsewhere<P: Platform<Host = Sockets>>(
        &mut self,
        ended: &[FlowInfo],
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) {
        for Unjoined { flow, forward, accepted } in self.splices.take_refused() {
            let Some(FlowInfo { key, initiator, .. }) = ended.iter().find(|ended| ended.flow == flow) else {
                self.splices.reset_unjoined(accepted);
                continue;
            };
            let [guest, remote]: [SocketAddr; 2] = [key.guest.into(), key.remote.into()];
            let (peer, to) = match initiator {
                Initiator::Guest => (guest, remote),
                Initiator::Peer => (remote, guest),
            };
            let refused = PendingSplice { accepted, peer, to, elsewhere: Some(forward) };
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
        let PendingSplice { accepted, peer, to, elsewhere } = refused;
        let ipv6 = !to.is_ipv6();
        if !self.may_go_elsewhere(elsewhere) {
            return self.splices.reset_unjoined(accepted);
        }
        let peer = SocketAddr::new(auto::loopback(ipv6), peer.port());
        let direction = match initiator {
            Initiator::Guest => ForwardDirection::Out,
            Initiator::Peer => ForwardDirection::In,
        };
        let to = SocketAddr::new(self.usual_address(direction, ipv6, stack), to.port());
        let pending = PendingSplice { accepted, peer, to, elsewhere: None };
        match initiator {
            Initiator::Guest => self.join_host(pending, stack, io),
            Initiator::Peer => self.join_guest(pending, stack, io),
        }
    }

    /// Whether a forward, if it is one, listens wherever the guest has addresses of both families.
    pub(super) fn may_go_elsewhere(&self, forward: Option<u32>) -> bool {
        let entry = self.entries.iter().find(|entry| Some(entry.id) == forward);
        let is_free = entry.is_some_and(|entry| entry.forward.spec.address.is_none());
        is_free && self.guest.addresses.iter().all(Option::is_some)
    }

    /// Address on the other side for peers that are on a forward's own loopback.
    pub(super) fn usual_address(&self, direction: ForwardDirection, ipv6: bool, stack: &Stack) -> IpAddr {
        let usual = match (direction, self.guest.local_peers) {
            (ForwardDirection::In, LocalPeers::Address | LocalPeers::Link) => stack.guest_address(ipv6),
            _ => None,
        };
        usual.filter(|&address| !is_scoped(address)).unwrap_or(auto::loopback(ipv6))
    }
}
