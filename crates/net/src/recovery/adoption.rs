//! The sockets of one worker, as its stack claims them by the numbers in the journal.

use super::Inherited;
use crate::forward::Forwards;
use crate::handover::Expected;
use crate::handover::v1::OwnSocketV1;
use crate::inherited::progress;
use crate::promotions::RecoveredPromotion;
use crate::sockets::Sockets;
use crate::sys;
use brodo_core::carried::Resumed;
use brodo_core::flow::info::{Carrier, Initiator};
use brodo_core::flow::{FlowId, FlowKey};
use brodo_core::host::SocketId;
use brodo_core::journal::Progress;
use brodo_core::journal::carried::{CarriedRecord, PeerRecord};
use brodo_core::journal::promoted::{CarriedOn, PromotedRecord};
use brodo_core::stack::{Adopt, Recover, SocketKind};
use rustix::fd::AsFd;
use rustix::net::sockopt;

/// State beside a descriptor for datagrams: none is known, so all options are set again.
const UNKNOWN: OwnSocketV1 = OwnSocketV1 {
    descriptor: 0,
    reports_room: false,
    writes: 1,
    tos: 0,
    ttl: None,
    dont_fragment: None,
    segment_max: u16::MAX,
    overflows: 0,
};

/// Sockets that the flows of one worker claim.
pub(crate) struct Recovering<'a> {
    pub(crate) sockets: &'a mut Sockets,
    /// Of the first worker.
    pub(crate) forwards: Option<&'a mut Forwards>,
    pub(crate) inherited: &'a mut Inherited,
    /// Promoted flows, for a worker that has an agent.
    pub(crate) promoted: Option<&'a mut Vec<RecoveredPromotion>>,
    /// Number of the stream whose progress was read last, which need not be asked for its type again.
    pub(crate) examined: Option<u32>,
}

impl Adopt for Recovering<'_> {
    fn socket(&mut self, flow: FlowId, index: u32, kind: SocketKind) -> Option<SocketId> {
        let expected = match kind {
            SocketKind::Connecting | SocketKind::Stream => return self.stream(flow, index, false),
            SocketKind::Udp(_) | SocketKind::Group(..) => Expected::Udp,
            SocketKind::Echo => Expected::Echo,
            SocketKind::PublishedUdp => return None,
        };
        let fd = self.inherited.take_socket(index, expected)?;
        // The stack sets it only when it changes, and begins with none.
        let _ = sys::set_socket_option(fd.as_fd(), libc::SOL_IP, libc::IP_TOS, 0);
        let _ = sys::set_socket_option(fd.as_fd(), libc::SOL_IPV6, libc::IPV6_TCLASS, 0);
        let restored = self.sockets.restore_datagram(flow, fd, kind, &UNKNOWN);
        restored.map_err(|fd| self.inherited.put_back(index, fd)).ok()
    }

    fn carrier(&mut self, _: FlowId, _: Carrier, _: u32) -> Option<u32> {
        None
    }
}

impl Recover for Recovering<'_> {
    fn progress(&mut self, index: u32, accepted: bool, read: u32) -> Option<Progress> {
        let progress = progress::of(self.inherited.get(index)?, accepted, read)?;
        self.examined = Some(index);
        Some(progress)
    }

    fn stream(&mut self, flow: FlowId, index: u32, quiet: bool) -> Option<SocketId> {
        let is_examined = self.examined.take() == Some(index);
        let expected = if is_examined { Expected::Examined } else { Expected::Stream };
        let fd = self.inherited.take_socket(index, expected)?;
        let recovered = self.sockets.recover_stream(flow, fd, quiet);
        recovered.map_err(|fd| self.inherited.put_back(index, fd)).ok()
    }

    fn carried(&mut self, flow: FlowId, record: &CarriedRecord) -> Option<Resumed> {
        let forwards = self.forwards.as_deref_mut()?;
        match record {
            CarriedRecord::Splice(splice) => forwards.resume_splice(flow, splice, self.inherited),
            CarriedRecord::Relay(relay) => forwards.resume_relay(flow, relay, self.inherited),
        }
    }

    fn promoted(
        &mut self,
        flow: FlowId,
        key: &FlowKey,
        initiator: Initiator,
        record: &PromotedRecord,
    ) -> Option<CarriedOn> {
        let promoted = self.promoted.as_deref_mut()?;
        let recovered = RecoveredPromotion::take(flow, key, initiator, record, self.inherited)?;
        let carried = recovered.carried();
        promoted.push(recovered);
        // A copy of its descriptor, which no record names, was closed after this was set ([`Inherited`]).
        if let Some(host) = self.examined.and_then(|number| self.inherited.get(number)) {
            let _ = sockopt::set_socket_linger(host, None);
        }
        Some(carried)
    }

    fn published(&mut self, flow: FlowId, record: &PeerRecord) -> Option<SocketId> {
        let (_, port, event) = self.forwards.as_ref()?.port_of(record)?;
        Some(self.sockets.recover_published(flow, port, event, record))
    }
}
