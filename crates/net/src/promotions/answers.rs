//! Answers of the agent: a socket is made, frozen, thawed, or refused.

use super::{Promoted, Promotions, RECALL_INTERVAL, Stage};
use crate::promotion::client::Outcome;
use crate::promotion::read_out::{ReadOut, is_readable, read_out};
use crate::promotion::{self, Refused};
use crate::sockets::Sockets;
use crate::splice::Taken;
use brodo_core::carried::CarriedProgress;
use brodo_core::flow::FlowId;
use brodo_core::flow::end::EndCause;
use brodo_core::flow::info::{Initiator, Traffic};
use brodo_core::promotion::{Fins, PromotionOutcome, Refusal, Returned, TcpSeed};
use brodo_core::stack::{Io, Platform, Stack};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::net::sockopt;
use std::time::Duration;

/// State and bytes of a flow that comes back.
struct Rest {
    initiator: Initiator,
    seed: TcpSeed,
    /// For the guest, which has not acknowledged them.
    to_guest: Vec<u8>,
    /// For the host's socket.
    to_host: Vec<u8>,
    fins: Fins,
    /// Those for the guest that were in the pipe, and are in no report yet.
    unreported: u64,
}

impl Rest {
    /// Bytes of a socket and of the pipes, in their order.
    fn of(initiator: Initiator, taken: Taken, read_out: ReadOut) -> Self {
        let (from_guest, from_host) = match initiator {
            Initiator::Guest => (taken.from_initiator, taken.from_responder),
            Initiator::Peer => (taken.from_responder, taken.from_initiator),
        };
        let unreported = from_host.len() as u64;
        Self {
            initiator,
            seed: read_out.seed,
            to_guest: [read_out.to_guest, from_host].concat(),
            to_host: [from_guest, read_out.from_guest].concat(),
            fins: read_out.fins,
            unreported,
        }
    }
}

impl Promotions {
    /// Takes all answers that have come.
    pub(super) fn take_answers<P: Platform<Host = Sockets>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) {
        while let Some(answered) = self.agent.receive() {
            let id = FlowId::from_bits(answered.number);
            match answered.outcome {
                Outcome::Made(made) => self.made(stack, io, id, made),
                Outcome::Started(started) => self.started(stack, io, id, started),
                Outcome::Frozen(frozen) => self.frozen(stack, io, id, frozen),
                Outcome::Thawed(thawed) => self.thawed(stack, io, id, thawed),
                Outcome::Diverted { queue, dropped } => {
                    if self.datagrams.diverted(io.now, self.epoll.as_fd(), queue, dropped) {
                        stack.count_diversion();
                    }
                }
                Outcome::Rejoined { dropped } => self.datagrams.rejoined(io.now, dropped),
            }
        }
        if self.agent.is_gone() && !self.gone {
            self.lose_agent(stack, io);
        }
    }

    fn made<P: Platform<Host = Sockets>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
        id: FlowId,
        made: Result<OwnedFd, Refused>,
    ) {
        if let Ok(kernel) = &made {
            // Every stream takes it.
            let _ = sockopt::set_socket_linger(kernel, Some(Duration::ZERO));
        }
        match (made, self.flows.get_mut(&id)) {
            (Ok(kernel), Some(flow)) => {
                self.journal.promoted(id, kernel.as_raw_fd().cast_unsigned());
                let asked = self.agent.start(id.to_bits(), kernel.as_fd());
                (flow.kernel, flow.stage) = (Some(kernel), Stage::Starting);
                if asked.is_err() {
                    self.refuse(stack, io, id, Refusal::Broker);
                }
            }
            // The flow has ended meanwhile.
            (Ok(kernel), None) => self.agent.release(kernel),
            (Err(refused), _) => self.refuse(stack, io, id, reason(refused)),
        }
    }

    /// Forgets a flow of which nothing was started: the stack goes on with it.
    fn refuse<P: Platform<Host = Sockets>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
        id: FlowId,
        refusal: Refusal,
    ) {
        self.journal.promotion_over(id);
        self.discard(id);
        stack.promotion(io, id, PromotionOutcome::Refused(refusal));
    }

    fn started<P: Platform<Host = Sockets>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
        id: FlowId,
        started: Result<(), Refused>,
    ) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        match started {
            Ok(()) => {
                self.journal.promoted_unsettled(id, false);
                flow.stage = Stage::Steered;
                self.link_since.get_or_insert(io.now);
            }
            Err(refused) => self.refuse(stack, io, id, reason(refused)),
        }
    }

    fn frozen<P: Platform<Host = Sockets>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
        id: FlowId,
        frozen: Result<(), Refused>,
    ) {
        // The guest may have sent more before the freeze, and other flows may have taken memory.
        let has_room = self.has_room(stack, id);
        let Some(Promoted { seed, kernel: Some(kernel), .. }) = self.flows.get(&id) else { return };
        // One that was not frozen is whole, and not steered: as it is thawed it goes on too.
        let may_return = has_room && frozen.is_ok();
        let out = if may_return { read_out(kernel.as_fd(), seed).ok() } else { None };
        if let Some(out) = out {
            self.give_back(stack, io, id, out);
        } else {
            self.thaw(stack, io, id);
        }
    }

    /// Lets a flow go on that is not to be read out: at once, or when the agent's channel has room.
    pub(super) fn thaw<P: Platform<Host = Sockets>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
        id: FlowId,
    ) {
        let Some(Promoted { kernel: Some(kernel), stage, .. }) = self.flows.get_mut(&id) else { return };
        if self.agent.thaw(id.to_bits(), kernel.as_fd()).is_ok() {
            *stage = Stage::Thawing;
        } else if self.agent.is_gone() {
            self.break_off(stack, io, id);
        } else {
            *stage = Stage::Frozen;
            stack.count_thaw_put_off();
            self.ask_at.get_or_insert(io.now + RECALL_INTERVAL);
        }
    }

    /// Gives a flow back to the stack that was read out.
    fn give_back<P: Platform<Host = Sockets>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
        id: FlowId,
        out: ReadOut,
    ) {
        self.report_segments(stack, io, id);
        let Some(Promoted { kernel, pair, initiator, socket, .. }) = self.flows.remove(&id) else { return };
        let none = || Some(Taken { from_initiator: Vec::new(), from_responder: Vec::new() });
        let taken = pair.map_or_else(none, |pair| {
            self.splices.with(pair, |splices, epoll| splices.take(epoll, pair.number, id))
        });
        io.host.set_events(socket, true);
        let rest = taken.map(|taken| Rest::of(initiator, taken, out));
        let is_back = rest.as_ref().is_some_and(|rest| pass_back(stack, io, id, rest));
        if rest.is_none() {
            stack.close_carried(io, id, EndCause::NoResources);
        }
        // Only now has the stack's record all of the flow.
        self.journal.promotion_over(id);
        match kernel {
            Some(kernel) if is_back => self.agent.release(kernel),
            Some(kernel) => self.agent.release_frozen(id.to_bits(), kernel),
            None => {}
        }
    }

    fn thawed<P: Platform<Host = Sockets>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
        id: FlowId,
        thawed: Result<(), Refused>,
    ) {
        let Some(flow) = self.flows.get(&id) else { return };
        match thawed {
            Ok(()) => {
                self.journal.promoted_unsettled(id, false);
                if flow.kernel.as_ref().is_some_and(|kernel| is_readable(kernel.as_fd())) {
                    self.recall_at.get_or_insert(io.now + RECALL_INTERVAL);
                }
                // The stack has it carried again.
                stack.recall_refused(io, id);
            }
            Err(_) => self.break_off(stack, io, id),
        }
    }
}

/// Gives the stack all that it needs to go on with a flow. False if that has ended by it, by a quota that the
/// last bytes have used up.
fn pass_back<P: Platform<Host = Sockets>>(
    stack: &mut Stack,
    io: &mut Io<'_, P>,
    id: FlowId,
    rest: &Rest,
) -> bool {
    let &Rest { initiator, ref seed, ref to_guest, ref to_host, fins, unreported } = rest;
    let down = Traffic { bytes: unreported, packets: 0 };
    let progress = match initiator {
        Initiator::Guest => CarriedProgress { from_responder: down, ..CarriedProgress::default() },
        Initiator::Peer => CarriedProgress { from_initiator: down, ..CarriedProgress::default() },
    };
    stack.carried_progress(io, id, &progress);
    stack.returned(io, id, &Returned { seed, fins, to_guest, to_host })
}

/// The reason of a refusal in the stack's terms.
fn reason(refused: Refused) -> Refusal {
    match refused.stage {
        promotion::Stage::Steering => Refusal::Steering,
        promotion::Stage::Number => Refusal::Resources,
        promotion::Stage::Request | promotion::Stage::Socket | promotion::Stage::Repair => Refusal::Socket,
    }
}
