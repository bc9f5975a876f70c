//! Promoted flows after a crash: kernel socket and pipes by their numbers in the journal, joined with the
//! host socket again.
//!
//! The stack has checked by then that every byte is in one of the sockets or in a pipe. A socket that may be
//! frozen, or not started, is frozen (again) and read out: the flow comes back, or stays if it cannot.

use super::{Promoted, Promotions, Segments, Stage};
use crate::connect::reset;
use crate::inherited::Inherited;
use crate::inherited::progress::EndProgress;
use crate::promotion::Ends;
use crate::promotion::client::is_between;
use crate::sockets::Sockets;
use crate::splice::{Filled, Rejoined, event_data, filled_pipes};
use crate::tcp_info::TcpInfo;
use brodo_core::flow::info::Initiator;
use brodo_core::flow::{FlowId, FlowKey};
use brodo_core::journal::promoted::{CarriedOn, PromotedRecord};
use brodo_core::stack::Stack;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::sockopt;
use std::time::Duration;

/// A promoted flow of a process that has crashed.
#[derive(Debug)]
pub(crate) struct RecoveredPromotion {
    flow: FlowId,
    initiator: Initiator,
    kernel: OwnedFd,
    /// Segments that it has counted: the flow's record has them too, but for those of the last milliseconds.
    counted: Segments,
    progress: EndProgress,
    /// The initiator's direction first.
    pipes: [Option<Filled>; 2],
    unsettled: bool,
}

impl RecoveredPromotion {
    /// Takes what a record names; `None` if something is missing or another than it should be.
    pub(crate) fn take(
        flow: FlowId,
        key: &FlowKey,
        initiator: Initiator,
        record: &PromotedRecord,
        inherited: &mut Inherited,
    ) -> Option<Self> {
        let ends = Ends { guest: key.guest.into(), remote: key.remote.into() };
        let kernel = inherited.get(record.kernel).filter(|kernel| is_between(*kernel, &ends))?;
        // By TCP_REPAIR its handshake has no place in the kernel's counts, as that of an accepted one.
        let progress = EndProgress::of(kernel, true)?;
        let counted = TcpInfo::of(kernel).map(|info| Segments::of(&info)).ok()?;
        let pipes = filled_pipes(&record.pipes, inherited)?;
        let kernel = inherited.take_any(record.kernel)?;
        Some(Self { flow, initiator, kernel, counted, progress, pipes, unsettled: record.unsettled })
    }

    /// Counts of the kernel's.
    pub(crate) fn carried(&self) -> CarriedOn {
        let EndProgress { written, read, shut, peer_closed, connecting: _ } = self.progress;
        let [initiator, responder] =
            self.pipes.each_ref().map(|pipe| pipe.as_ref().map_or(0, Filled::bytes) as u64);
        let held = match self.initiator {
            Initiator::Guest => [initiator, responder],
            Initiator::Peer => [responder, initiator],
        };
        CarriedOn { read, written, held, guest_closed: peer_closed, shut }
    }
}

impl Promotions {
    /// Goes on with the flows that the stack has recovered; the others are reset.
    pub(crate) fn go_on(&mut self, stack: &Stack, sockets: &Sockets, recovered: Vec<RecoveredPromotion>) {
        for promotion in recovered {
            self.go_on_with(stack, sockets, promotion);
        }
    }

    fn go_on_with(&mut self, stack: &Stack, sockets: &Sockets, recovered: RecoveredPromotion) {
        let RecoveredPromotion { flow: id, initiator, kernel, counted, progress, pipes, unsettled } =
            recovered;
        let Some((socket, seed)) = stack.promoted_flow(id) else { return reset(kernel) };
        let host = sockets.descriptor(socket);
        // Every stream takes it.
        let _ = sockopt::set_socket_linger(&kernel, Some(Duration::ZERO));
        // Without an agent it goes on until it must come back.
        let _ = self.agent.adopt(kernel.as_fd());
        let host_progress = host.and_then(|host| EndProgress::of(host, initiator == Initiator::Peer));
        let copies = kernel.try_clone().ok().zip(sockets.share_stream(socket).ok());
        let stage = if unsettled { Stage::Freezing } else { Stage::Carried };
        let mut is_whole = false;
        let mut pair = None;
        if let Some(((kernel, host), host_progress)) = copies.zip(host_progress) {
            let (ends, progress) = match initiator {
                Initiator::Guest => ([kernel, host], [progress, host_progress]),
                Initiator::Peer => ([host, kernel], [host_progress, progress]),
            };
            let rejoined = Rejoined { flow: id, initiator, ends, pipes, progress };
            pair = self
                .splices
                .join(|splices, epoll| splices.rejoin_promoted(epoll, rejoined, unsettled, event_data));
            is_whole = pair.is_some();
        }
        if is_whole {
            sockets.set_events(socket, false);
            is_whole = !unsettled || self.agent.freeze(id.to_bits(), kernel.as_fd()).is_ok();
        }
        if !is_whole {
            self.broken.push(id);
        }
        let promoted = Promoted {
            seed,
            socket,
            initiator,
            kernel: Some(kernel),
            pair,
            stage,
            captured: false,
            refused: 0,
            lacks_pipe: false,
            reported: counted,
        };
        self.flows.insert(id, promoted);
    }
}

#[cfg(test)]
mod tests;
