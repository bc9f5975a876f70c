//! Requests of the stack: a socket from a seed, to splice, to take a flow back.

use super::{Promoted, Promotions, Segments, Stage};
use crate::promotion::read_out::held;
use crate::promotion::requests::Request;
use crate::sockets::Sockets;
use crate::splice;
use brodo_core::flow::FlowId;
use brodo_core::flow::info::Initiator;
use brodo_core::host::SocketId;
use brodo_core::promotion::{PromotionOutcome, Refusal, TcpSeed};
use brodo_core::stack::{Io, Platform, Stack};
use rustix::fd::AsFd;

impl Promotions {
    /// Takes the requests of the stack.
    pub(super) fn take_requests<P: Platform<Host = Sockets>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) {
        for request in io.host.requests().take() {
            match request {
                Request::Promote { flow, socket, seed } => {
                    if let Err(refusal) = self.make(stack, io, flow, socket, *seed) {
                        stack.promotion(io, flow, PromotionOutcome::Refused(refusal));
                    }
                }
                Request::Carry(flow) => self.carry(io.host, flow),
                Request::Recall(flow) => self.recall(stack, io, flow),
            }
        }
    }

    /// Asks the agent for a socket.
    fn make<P: Platform<Host = Sockets>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
        id: FlowId,
        socket: SocketId,
        seed: TcpSeed,
    ) -> Result<(), Refusal> {
        // The flow may have ended since.
        let detail = stack.flow_detail(id, io.now).ok_or(Refusal::Unsupported)?;
        if !self.splices.has_room() {
            return Err(Refusal::Resources);
        }
        self.agent.make(id.to_bits(), &seed).map_err(|_| Refusal::Broker)?;
        let promoted = Promoted {
            seed,
            socket,
            initiator: detail.info.initiator,
            kernel: None,
            pair: None,
            stage: Stage::Making,
            captured: false,
            refused: 0,
            lacks_pipe: false,
            reported: Segments::default(),
        };
        self.flows.insert(id, promoted);
        Ok(())
    }

    /// Begins to splice, or goes on with it.
    fn carry(&mut self, sockets: &Sockets, id: FlowId) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        flow.stage = Stage::Carried;
        match flow.pair {
            Some(pair) => self.splices.with(pair, |splices, _| splices.pause(pair.number, id, false)),
            None => {
                if !self.join(sockets, id)
                    && let Some(flow) = self.flows.get_mut(&id)
                {
                    flow.lacks_pipe = true;
                }
            }
        }
    }

    /// Joins the two sockets of a flow; false for lack of resources.
    fn join(&mut self, sockets: &Sockets, id: FlowId) -> bool {
        let Some(flow) = self.flows.get_mut(&id) else { return true };
        let kernel = flow.kernel.as_ref().and_then(|kernel| kernel.try_clone().ok());
        let (Some(kernel), Ok(host)) = (kernel, sockets.share_stream(flow.socket)) else { return false };
        let ends = match flow.initiator {
            Initiator::Guest => [kernel, host],
            Initiator::Peer => [host, kernel],
        };
        let initiator = flow.initiator;
        flow.pair = self
            .splices
            .join(|splices, epoll| splices.join_promoted(epoll, id, initiator, ends, splice::event_data));
        if flow.pair.is_some() {
            sockets.set_events(flow.socket, false);
        }
        flow.pair.is_some()
    }

    /// Whether the stack has memory for all that a flow brings back. Its splice is at rest.
    pub(super) fn has_room(&self, stack: &Stack, id: FlowId) -> bool {
        let Some(Promoted { kernel: Some(kernel), pair, initiator, .. }) = self.flows.get(&id) else {
            return true;
        };
        // A socket that does not say it cannot be read out either.
        let Ok([unacknowledged, unread]) = held(kernel.as_fd()) else { return true };
        let in_pipes =
            pair.map_or([0; 2], |pair| self.splices.with(pair, |splices, _| splices.held(pair.number, id)));
        let [from_guest, from_host] = match initiator {
            Initiator::Guest => in_pipes,
            Initiator::Peer => [in_pipes[1], in_pipes[0]],
        };
        stack.has_room_for_return(unacknowledged + from_host, unread + from_guest)
    }

    /// Begins to take a flow back.
    fn recall<P: Platform<Host = Sockets>>(&mut self, stack: &mut Stack, io: &mut Io<'_, P>, id: FlowId) {
        if let Some(pair) = self.flows.get(&id).and_then(|flow| flow.pair) {
            self.splices.with(pair, |splices, _| splices.pause(pair.number, id, true));
            // It may have ended meanwhile.
            self.collect(stack, io);
        }
        let has_room = self.has_room(stack, id);
        let Some(flow) = self.flows.get_mut(&id) else { return };
        let Some(kernel) = &flow.kernel else { return };
        // Without room a freeze would cost the guest's segments meanwhile.
        if has_room {
            self.journal.promoted_unsettled(id, true);
            if self.agent.freeze(id.to_bits(), kernel.as_fd()).is_ok() {
                flow.stage = Stage::Freezing;
                return;
            }
            self.journal.promoted_unsettled(id, false);
        }
        if has_room && self.agent.is_gone() {
            flow.refused += 1;
            if flow.refused >= super::REFUSALS_MAX {
                return self.break_off(stack, io, id);
            }
        } else {
            self.recall_at.get_or_insert(io.now + super::RECALL_INTERVAL);
        }
        // It goes on when the stack asks for that.
        stack.recall_refused(io, id);
    }
}
