//! Promotion in virtual time: the driver's part, with [`KernelEnd`] as the kernel's socket.
//!
//! Segments of a promoted flow are steered to its kernel socket before the stack sees them, and that
//! socket's segments stand among the stack's, so that the observer's rules hold across every hand-over
//! between the two: no sequence number that was not sent, no edge that moves left.
//!
//! *After a crash* the kernel's sockets are still there. A splice of theirs is the kernel's, and holds no
//! bytes: a piece is in one of the sockets at every point of a crash.
//!
//! *At random* ([`Promotions::at_random`]) everything about a promotion is drawn from a seed: which flows may
//! be promoted now, refusals, the turns that making a socket and bringing a flow back take, recalls, and
//! steering that is lost while the socket stands. *Forced* ([`Promotions::force`]) one promotion begins at a
//! given point and nothing is left to chance; its return may be forced at another. *By hand* a script answers
//! each wish of the stack's itself ([`crate::host::promotions`]).

mod chance;

use crate::crash_point;
use crate::host::SimHost;
use crate::host::promotions::Request;
use crate::kernel_end::KernelEnd;
use crate::packet::{TcpSegment, flags};
use crate::rng::Rng;
use brodo_core::carried::CarriedProgress;
use brodo_core::flow::FlowId;
use brodo_core::flow::end::EndCause;
use brodo_core::flow::info::{Carrier, Initiator, Traffic};
use brodo_core::host::{Host, HostError, SocketId};
use brodo_core::journal::carried::DriverJournal;
use brodo_core::journal::promoted::CarriedOn;
use brodo_core::promotion::{PromotionOutcome, Refusal, ReturnReason, Returned, TcpSeed};
use brodo_core::stack::{Io, Platform, Stack};
use brodo_core::time::{Duration, Instant};
use chance::Chance;
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;

/// Most bytes of one read or write of a splice.
const PIECE: usize = 16 << 10;
/// Time between two steps of the agent that makes sockets.
const STEP: Duration = Duration::from_micros(300);
/// Time in which a closed socket answers the guest's repetitions.
const TIME_WAIT: Duration = Duration::from_secs(60);

/// A flow on its way to a kernel socket, or with one.
#[derive(Debug)]
struct Promoted {
    socket: SocketId,
    seed: TcpSeed,
    inbound: bool,
    /// The socket, once it is made.
    end: Option<KernelEnd>,
    /// Steps until the next thing that is awaited: the socket, or the return.
    steps: u64,
    received: bool,
    carried: bool,
    recalled: bool,
    /// As in the journal.
    unsettled: bool,
    /// Segments go to the stack though the socket stands.
    astray: bool,
    /// FIN passed to the guest, and to the host.
    host_finished: bool,
    guest_finished: bool,
    /// The host's socket has failed, and its error was taken.
    host_failed: bool,
}

/// Counts of what has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Done {
    /// Sockets made.
    pub made: u64,
    /// Flows given back.
    pub returned: u64,
    /// Flows that ended with the kernel.
    pub ended: u64,
}

/// Cause of a return that is forced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forced {
    /// The driver's wish.
    Recall,
    /// Segments of the guest's come to the stack though the socket stands.
    Astray,
}

/// Events of flows that are away; a gap is the time between a seed and the answer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Met {
    /// Flags of the guest's segments in gaps.
    pub flags: u8,
    /// Seeds with the guest's window closed.
    pub guest_windows_closed: u64,
    /// Steps with the kernel socket's window closed.
    pub windows_closed: u64,
    /// Gaps at whose end the peer had ended its stream.
    pub peer_ends: u64,
    /// Gaps at whose end the peer had reset the connection.
    pub peer_resets: u64,
}

/// The driver's part of promotion.
#[derive(Debug, Default)]
pub struct Promotions {
    chance: Option<Chance>,
    /// Steps of flows that are away until the return that is forced.
    forced: Option<(u64, Forced)>,
    met: Met,
    flows: BTreeMap<FlowId, Promoted>,
    /// Sockets whose flow is over, and until when they answer.
    closed: Vec<(Instant, KernelEnd)>,
    done: Done,
    now: Instant,
    /// The driver's part of the stack's journal.
    pub(crate) journal: DriverJournal,
}

impl Promotions {
    /// Whether there is any.
    pub(crate) fn is_on(&self) -> bool {
        self.chance.is_some()
    }

    /// All that can happen, drawn from a seed. The configuration of the stack has to allow promotion.
    pub fn at_random(&mut self, host: &mut SimHost, seed: u64) {
        let mut rng = Rng::new(seed ^ 0x00b0_1d5e);
        host.promotions().allow_at_random(rng.fork());
        self.chance = Some(Chance::new(rng));
    }

    /// One promotion, at the point with this number: a point is each question of the stack whether a flow may
    /// be promoted now. Socket and return take so many steps of the agent each.
    pub fn force(&mut self, host: &mut SimHost, point: u64, steps: u64) {
        host.promotions().allow_once(point);
        self.chance = Some(Chance::none(steps));
    }

    /// A return at the point with this number: a point is each step of a flow that is away.
    pub fn force_return(&mut self, point: u64, cause: Forced) {
        self.forced = Some((point, cause));
    }

    /// Whether the point of the return that is forced has not come yet.
    pub fn awaits_return(&self) -> bool {
        self.forced.is_some()
    }

    /// Events so far.
    pub fn met(&self) -> Met {
        self.met
    }

    /// Counts of a flow's kernel socket after a crash; `None` without a kernel socket.
    pub(crate) fn carried(&self, flow: FlowId) -> Option<CarriedOn> {
        Some(self.flows.get(&flow)?.end.as_ref()?.carried())
    }

    /// After a crash goes on with the flows that the stack has recovered; the others are reset.
    pub(crate) fn recovered(&mut self, stack: &Stack, host: &mut SimHost) {
        host.promotions().take();
        for (id, mut flow) in std::mem::take(&mut self.flows) {
            let Some(mut end) = flow.end.take() else { continue };
            let Some((socket, seed)) = stack.promoted_flow(id) else {
                // One that is frozen is closed without a word.
                if !flow.unsettled {
                    end.abort();
                    self.closed.push((self.now + TIME_WAIT, end));
                }
                continue;
            };
            (flow.socket, flow.seed) = (socket, seed);
            (flow.received, flow.carried, flow.recalled) = (true, !flow.unsettled, flow.unsettled);
            flow.steps = u64::from(flow.unsettled);
            flow.host_finished = end.carried().shut;
            flow.guest_finished = host.progress(socket).is_some_and(|progress| progress.shut);
            flow.end = Some(end);
            self.flows.insert(id, flow);
        }
    }

    /// Counts so far.
    pub fn done(&self) -> Done {
        self.done
    }

    /// Time of the next step, if one is due by time.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let steps = self.flows.values().any(|flow| flow.steps > 0).then_some(self.now + STEP);
        let ends = self.flows.values().filter_map(|flow| flow.end.as_ref()?.deadline()).min();
        [steps, ends].into_iter().flatten().min()
    }

    /// Takes a segment that is steered to a kernel socket; false if it is for the stack.
    pub(crate) fn take(&mut self, segment: &TcpSegment) -> bool {
        let ends = (segment.src, segment.dst);
        if self.flows.values().any(|flow| flow.end.is_none() && flow.ends() == ends) {
            self.met.flags |= segment.flags;
        }
        let steered = self.flows.values_mut().filter(|flow| !flow.astray);
        let mut open = steered.filter_map(|flow| flow.end.as_mut()).filter(|end| end.ends() == ends);
        if let Some(end) = open.next() {
            end.receive(segment);
            return true;
        }
        if segment.has(flags::SYN) {
            self.closed.retain(|(_, end)| end.ends() != ends);
        }
        let mut closed = self.closed.iter_mut().filter(|(_, end)| end.ends() == ends && !end.is_reset());
        closed.next().map(|(_, end)| end.receive(segment)).is_some()
    }

    /// One step at `now`. Segments for the guest go to `out`. True if something has moved, so that another
    /// step may do more.
    pub(crate) fn step<P: Platform<Host = SimHost>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
        out: &mut Vec<TcpSegment>,
    ) -> bool {
        // Not taken out: a crash unwinds from here.
        let Some(mut chance) = self.chance.as_mut().map(Chance::fork) else { return false };
        let waited = io.now > self.now;
        self.now = io.now;
        let mut moved = self.take_requests(stack, io, &mut chance);
        for id in self.flows.keys().copied().collect::<Vec<_>>() {
            moved |= self.step_flow(stack, io, &mut chance, id, waited);
        }
        moved |= self.take_released(stack);
        let open = self.flows.values_mut().filter_map(|flow| flow.end.as_mut());
        for end in open.chain(self.closed.iter_mut().map(|(_, end)| end)) {
            end.transmit(io.now);
            out.append(&mut end.take());
        }
        self.closed.retain(|(until, _)| *until > io.now);
        moved
    }

    fn take_requests<P: Platform<Host = SimHost>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
        chance: &mut Chance,
    ) -> bool {
        let requests = io.host.promotions().take();
        let moved = !requests.is_empty();
        for request in requests {
            match request {
                Request::Promote { flow, socket, seed } => {
                    let detail = stack.flow_detail(flow, io.now).expect("the flow is open");
                    let inbound = detail.info.initiator == Initiator::Peer;
                    let steps = chance.steps();
                    self.met.guest_windows_closed += u64::from(seed.fields().snd_wnd == 0);
                    self.flows.insert(flow, Promoted::new(socket, *seed, inbound, steps));
                }
                Request::Carry(flow) => {
                    let flow = self.flows.get_mut(&flow).expect("a flow in its trial");
                    (flow.carried, flow.recalled) = (true, false);
                }
                Request::Recall(id) => {
                    let flow = self.flows.get_mut(&id).expect("a promoted flow");
                    (flow.recalled, flow.steps) = (true, chance.steps());
                    flow.unsettled = true;
                    self.journal.promoted_unsettled(id, true);
                }
            }
        }
        moved
    }

    /// Flows that the stack has ended: their sockets reset the guest.
    fn take_released(&mut self, stack: &mut Stack) -> bool {
        let released = stack.take_released();
        let kernel = released.iter().filter(|released| released.carrier == Carrier::Kernel);
        for released in kernel {
            if let Some(mut end) = self.flows.remove(&released.flow).and_then(|flow| flow.end) {
                end.abort();
                self.closed.push((self.now + TIME_WAIT, end));
            }
        }
        !released.is_empty()
    }

    fn step_flow<P: Platform<Host = SimHost>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
        chance: &mut Chance,
        id: FlowId,
        waited: bool,
    ) -> bool {
        if self.force_back(stack, io, id) {
            return true;
        }
        let Some(flow) = self.flows.get_mut(&id) else { return false };
        if flow.steps > 0 && waited {
            flow.steps -= 1;
            if flow.steps > 0 {
                return false;
            }
            return self.awaited(stack, io, chance, id);
        }
        let Some(end) = &flow.end else { return false };
        self.met.windows_closed += u64::from(end.window() == 0);
        // One that cannot come back would be lost by it.
        flow.astray &= !end.has_ended();
        if end.is_reset() && !end.has_guest_fin() {
            stack.close_carried(io, id, EndCause::ResetByGuest);
            self.flows.remove(&id);
            self.done.ended += 1;
            return true;
        }
        if !flow.received && end.has_received() {
            flow.received = true;
            stack.promotion(io, id, PromotionOutcome::Confirmed);
            return true;
        }
        let moved = flow.carried && flow.splice(stack, io, id);
        if let Some(cause) = flow.over(io.host) {
            stack.close_carried(io, id, cause);
            let mut end = self.flows.remove(&id).and_then(|flow| flow.end);
            if cause != EndCause::Finished {
                end.iter_mut().for_each(KernelEnd::abort);
            }
            self.closed.extend(end.map(|end| (io.now + TIME_WAIT, end)));
            self.done.ended += 1;
            return true;
        }
        if waited && flow.carried && !flow.recalled {
            flow.astray |= chance.goes_astray();
            if chance.recalls() {
                stack.recall(io, id, ReturnReason::Steering);
                return true;
            }
        }
        moved
    }

    /// Forces the return, if its point has come.
    fn force_back<P: Platform>(&mut self, stack: &mut Stack, io: &mut Io<'_, P>, id: FlowId) -> bool {
        let (Some((left, cause)), Some(flow)) = (&mut self.forced, self.flows.get_mut(&id)) else {
            return false;
        };
        if *left > 0 {
            *left -= 1;
            return false;
        }
        match cause {
            Forced::Recall => stack.recall(io, id, ReturnReason::Steering),
            Forced::Astray => flow.astray = true,
        }
        self.forced = None;
        true
    }

    /// The end of what was awaited: a socket is made or refused, or a flow comes back.
    fn awaited<P: Platform<Host = SimHost>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
        chance: &mut Chance,
        id: FlowId,
    ) -> bool {
        let Some(flow) = self.flows.get_mut(&id) else { return false };
        if flow.end.is_none() {
            self.met.peer_ends += u64::from(io.host.has_peer_fin(flow.socket));
            self.met.peer_resets += u64::from(io.host.has_failed(flow.socket));
            if chance.refuses() {
                self.flows.remove(&id);
                stack.promotion(io, id, PromotionOutcome::Refused(Refusal::Socket));
                return true;
            }
            self.journal.promoted(id, id.index);
            self.journal.promoted_unsettled(id, false);
            flow.end = Some(KernelEnd::new(&flow.seed));
            // The steering may have failed from the beginning.
            flow.astray |= chance.is_astray_at_once();
            self.done.made += 1;
            stack.promotion(io, id, PromotionOutcome::Made);
            return true;
        }
        if !flow.recalled {
            return false;
        }
        if flow.end.as_ref().is_some_and(KernelEnd::has_ended) {
            (flow.astray, flow.unsettled) = (false, false);
            self.journal.promoted_unsettled(id, false);
            stack.recall_refused(io, id);
            return true;
        }
        // The socket stays until the stack has all of it.
        let Some(end) = flow.end.clone() else { return false };
        let (seed, fins, to_guest, to_host) = end.give_back();
        stack.returned(io, id, &Returned { seed: &seed, fins, to_guest: &to_guest, to_host: &to_host });
        self.journal.promotion_over(id);
        self.flows.remove(&id);
        self.done.returned += 1;
        true
    }
}

impl Promoted {
    fn new(socket: SocketId, seed: TcpSeed, inbound: bool, steps: u64) -> Self {
        Self {
            socket,
            seed,
            inbound,
            end: None,
            steps,
            received: false,
            carried: false,
            recalled: false,
            unsettled: false,
            astray: false,
            host_finished: false,
            guest_finished: false,
            host_failed: false,
        }
    }

    /// The guest's end and the remote one.
    fn ends(&self) -> (SocketAddr, SocketAddr) {
        (self.seed.fields().guest, self.seed.fields().remote)
    }

    /// Cause of the end, once it has come. A reset behind a FIN is none before all that was acknowledged is
    /// passed on: the guest's before the end of its stream is, the host's before the guest has acknowledged
    /// the end.
    fn over(&self, host: &SimHost) -> Option<EndCause> {
        let end = self.end.as_ref()?;
        let is_cut_off = !host.has_peer_fin(self.socket) || end.is_reset();
        if self.host_failed && (is_cut_off || end.is_fin_acknowledged()) {
            return Some(EndCause::ResetByHost);
        }
        let is_passed_on = end.is_reset() && self.guest_finished;
        (end.is_over() || is_passed_on).then_some(EndCause::Finished)
    }

    /// Moves bytes and ends of streams both ways, and reports them.
    fn splice<P: Platform<Host = SimHost>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
        id: FlowId,
    ) -> bool {
        let was = (self.host_finished, self.guest_finished);
        crash_point::point();
        let up = crash_point::none_in(|| self.write_to_host(io.host));
        crash_point::point();
        let down = crash_point::none_in(|| self.read_from_host(io.host));
        crash_point::point();
        let traffic = |bytes: usize| Traffic { bytes: bytes as u64, packets: 0 };
        let [host, guest] = [self.host_finished, self.guest_finished];
        let (from_initiator, from_responder, ends) = if self.inbound {
            (traffic(down), traffic(up), [host, guest])
        } else {
            (traffic(up), traffic(down), [guest, host])
        };
        let [initiator_finished, responder_finished] = ends;
        let progress = CarriedProgress {
            connected: true,
            initiator_finished,
            responder_finished,
            from_initiator,
            from_responder,
            retransmissions: 0,
            until: Default::default(),
        };
        let changed = up + down > 0 || was != (self.host_finished, self.guest_finished);
        if changed {
            stack.carried_progress(io, id, &progress);
        }
        changed
    }

    /// Writes what the guest has sent; gives the bytes.
    fn write_to_host(&mut self, host: &mut SimHost) -> usize {
        let Some(end) = &mut self.end else { return 0 };
        let mut taken = 0;
        while !self.host_failed && !end.unread().is_empty() {
            let piece: Vec<u8> = end.unread().iter().take(PIECE).copied().collect();
            match host.tcp_send(self.socket, &[IoSlice::new(&piece)]) {
                Ok(n) => {
                    end.read(n);
                    taken += n;
                }
                Err(HostError::WouldBlock) => break,
                Err(_) => self.host_failed = true,
            }
        }
        if end.is_at_end() && !self.guest_finished && !self.host_failed {
            self.guest_finished = true;
            self.host_failed = host.tcp_shutdown(self.socket).is_err();
        }
        taken
    }

    /// Reads what the peer has sent; gives the bytes.
    fn read_from_host(&mut self, host: &mut SimHost) -> usize {
        let Some(end) = &mut self.end else { return 0 };
        let mut taken = 0;
        while end.room() > 0 && !self.host_finished {
            let mut piece = vec![0; end.room().min(PIECE)];
            match host.tcp_recv(self.socket, &mut [IoSliceMut::new(&mut piece)]) {
                // The error was taken: no end of the stream.
                Ok(0) if self.host_failed && !host.has_peer_fin(self.socket) => break,
                Ok(0) => {
                    end.shut_down();
                    self.host_finished = true;
                }
                Ok(n) => {
                    end.write(&piece[..n]);
                    taken += n;
                }
                Err(HostError::WouldBlock) => break,
                Err(_) => {
                    self.host_failed = true;
                    break;
                }
            }
        }
        taken
    }
}
