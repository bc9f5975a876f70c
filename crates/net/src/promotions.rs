//! Promotion in the driver: kernel sockets for bulk flows, made by the agent, spliced, and given back.
//!
//! The stack decides ([`brodo_core::promotion`]); this source does what it asks for, one state per flow:
//!
//! ```text
//!              made          started       the link read empty    a segment received
//!  promote --> Making --> Starting --> Steered ---------> Trial -----------> Carried
//!                 |          |                              |   recall          | recall
//!                 +----------+ refused                      v                   v
//!                 +--> back                              Freezing <-------------+
//!                                                           |   \ not frozen, cannot be read out
//!                                        read out: back <---+    +--> Thawing --> Carried
//! ```
//!
//! * *Making, Starting.* The agent makes the socket, and once it is in the journal steers the guest's
//!   segments to it. Segments sent before that may still lie on the link: they are read, and so dropped,
//!   before the stack learns that the socket exists; one that comes later tells the stack that the steering
//!   has failed.
//! * *Trial.* A segment without data, such as the answer to the probe, is no event of a socket. So TCP_INFO
//!   is read, every [`LOOK_INTERVAL`].
//! * *Carried.* Both sockets are spliced by a thread beside the worker ([`crate::splice`]), as further
//!   descriptors: the originals stay with [`Sockets`] and here. Events of the host's socket would wake the
//!   worker for nothing, so it is registered for none, and for all of them again at the return.
//! * *Freezing.* The splice is paused first, then the agent ends the steering and freezes the socket. Its
//!   state and queues are read, the pipes emptied, and all of it goes to the stack. A socket of which both
//!   streams have ended, or whose queue has an urgent mark, cannot be read out: it is thawed, and stays. So
//!   is one that the agent cannot freeze. While a stream is open it is asked for again, every
//!   [`RECALL_INTERVAL`], as one for which the agent's channel has no room. Without room for the thaw it
//!   stands still (*Frozen*), and that is asked for again as often.
//! * *Memory.* A kernel socket and two pipes hold megabytes of the kernel's, and at the return the stack's. A
//!   flow for which that does not suffice stays, and is asked for again as well; most are seen before they
//!   are frozen.
//!
//! *The end of a flow.* The agent gets the socket, and keeps it steered until its last segment is
//! acknowledged. One that is frozen is closed silently. Every other end is a reset: a kernel socket has
//! SO_LINGER 0 until both streams have ended, so that a crash of this process ends no stream as if it were
//! complete.
//!
//! *Without the agent* (it was killed) carried flows go on, for a socket needs it only to be made and frozen.
//! No further flow is promoted. One that must come back and cannot is reset when it was asked for
//! [`REFUSALS_MAX`] times.
//!
//! *Crash.* Kernel sockets and pipes are in the journal ([`brodo_core::journal::promoted`]), and the next
//! process goes on with them ([`recovered`]).
//!
//! *Hand-over.* Before a worker parks, all its flows are asked back ([`Promotions::bring_back`]). Flows
//! that cannot come are lost by the hand-over: while the worker is parked the host's sockets are set to be
//! reset too.
//!
//! System calls: fcntl F_DUPFD_CLOEXEC, getsockopt TCP_INFO, setsockopt SO_LINGER, `epoll_ctl`; those of
//! [`crate::promotion::client`], [`crate::promotion::read_out`] and [`crate::splice`].

mod answers;
mod datagrams;
mod recovered;
mod requests;

use crate::capture::{Capture, Scope};
use crate::command::PromotionReport;
use crate::promotion::client::PromotionAgent;
use crate::sockets::Sockets;
use crate::source::{Source, Turn};
use crate::splice::{SpliceReport, SpliceThreads, Spliced, Splices};
use crate::tcp_info::TcpInfo;
use brodo_core::carried::{CarriedProgress, Released};
use brodo_core::config::Bulk;
use brodo_core::flow::FlowId;
use brodo_core::flow::end::EndCause;
use brodo_core::flow::info::{Carrier, Initiator, Traffic};
use brodo_core::host::SocketId;
use brodo_core::journal::carried::DriverJournal;
use brodo_core::promotion::{PromotionOutcome, Refusal, ReturnReason, TcpSeed};
use brodo_core::stack::{Io, Platform, Stack};
use brodo_core::time::{Duration, Instant};
use brodo_link::poller::Poller;
use brodo_link::{EventFlags, GuestLink};
use datagrams::Datagrams;
pub(crate) use datagrams::DivertedQueue;
pub(crate) use recovered::RecoveredPromotion;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::sockopt;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration as SystemDuration;

/// Interval between two looks at sockets that have received nothing.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// Longest wait for the link to be read empty, which a guest that never stops sending would keep from it.
/// Segments that come later are taken for those of a failed steering, at the price of a return.
const LINK_MAX: Duration = Duration::from_millis(20);
/// Longest wait for flows to come back before a hand-over.
const BRING_BACK_MAX: Duration = Duration::from_millis(500);
/// Recalls that fail without the agent, after which a flow is reset.
const REFUSALS_MAX: u8 = 4;
/// Wait before flows are asked back again of which one could not be taken.
const RECALL_INTERVAL: Duration = Duration::from_millis(50);
/// Key of the agent's channel.
const AGENT: u32 = 0;
/// Key of the splices' reports.
const SPLICES: u32 = 1;
/// Key of the queue of datagrams.
const DATAGRAMS: u32 = 2;

/// State of a promoted flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The agent makes its socket.
    Making,
    /// The agent starts it.
    Starting,
    /// Its segments are steered; those sent before may lie on the link.
    Steered,
    /// The socket has received nothing yet.
    Trial,
    /// Spliced, or about to be.
    Carried,
    /// The agent freezes the socket.
    Freezing,
    /// It is to be thawed, for which the agent's channel has no room.
    Frozen,
    /// The agent thaws it.
    Thawing,
}

/// A promoted flow.
#[derive(Debug)]
struct Promoted {
    seed: TcpSeed,
    /// The host's socket.
    socket: SocketId,
    initiator: Initiator,
    /// The kernel socket, once it is made.
    kernel: Option<OwnedFd>,
    /// Its splice.
    pair: Option<Spliced>,
    stage: Stage,
    /// The present capture has asked for it.
    captured: bool,
    /// Recalls that have failed without the agent.
    refused: u8,
    /// There was no pipe for it, or no descriptor: it is to come back.
    lacks_pipe: bool,
    /// Segments that the stack knows of.
    reported: Segments,
}

/// Segments that a kernel socket has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Segments {
    /// With data, from the guest and to it.
    pub(crate) from_guest: u32,
    pub(crate) to_guest: u32,
    /// Sent again.
    pub(crate) retransmissions: u32,
}

impl Segments {
    fn of(info: &TcpInfo) -> Self {
        Self {
            from_guest: info.data_segments_received,
            to_guest: info.data_segments_sent,
            retransmissions: info.retransmissions,
        }
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            from_guest: self.from_guest.wrapping_sub(earlier.from_guest),
            to_guest: self.to_guest.wrapping_sub(earlier.to_guest),
            retransmissions: self.retransmissions.wrapping_sub(earlier.retransmissions),
        }
    }
}

/// The kernel socket's view of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KernelsView {
    /// Segments that the stack does not know of yet.
    pub(crate) segments: Segments,
    /// Smoothed round-trip time in microseconds; 0 before there is one.
    pub(crate) rtt_us: u32,
}

/// The promoted flows of one worker.
pub(crate) struct Promotions {
    agent: PromotionAgent,
    /// The agent has answered, or ended.
    answered: bool,
    /// It has ended, and that is dealt with.
    gone: bool,
    epoll: OwnedFd,
    splices: SpliceThreads,
    /// Their reports of a turn.
    reports: Vec<SpliceReport>,
    journal: DriverJournal,
    flows: BTreeMap<FlowId, Promoted>,
    /// Flows of a process before that cannot go on after all.
    broken: Vec<FlowId>,
    /// Carrier of bulk flows as set, whatever holds during a hand-over.
    bulk: Bulk,
    /// The stack is to learn of it.
    changed: bool,
    /// Hand-over under way: the end of the wait for flows.
    hand_over: Option<Instant>,
    /// For the next look at sockets on trial.
    look_at: Option<Instant>,
    /// Begin of the wait for the link.
    link_since: Option<Instant>,
    /// A flow could not be read out though it has an open stream, memory was short, or the agent could not be
    /// asked: the time to ask again.
    recall_at: Option<Instant>,
    /// The agent's channel had no room for a thaw or a release: the time to ask again.
    ask_at: Option<Instant>,
    notice: Option<String>,
    datagrams: Datagrams,
}

impl Promotions {
    /// None yet, at most `max` at a time, moved by so many threads. The loop's epoll instance is that of
    /// `sockets`.
    ///
    /// # Errors
    /// No descriptor is left, or no thread can be started.
    pub(crate) fn new(
        agent: PromotionAgent,
        sockets: &mut Sockets,
        max: usize,
        bulk: Bulk,
        threads: usize,
    ) -> io::Result<Self> {
        sockets.requests().allow();
        let journal = sockets.journal();
        let splices = (0..threads).map(|_| {
            let mut splices = Splices::sharing(max, threads);
            splices.set_journal(journal.of_promoted());
            splices
        });
        Ok(Self {
            agent,
            answered: false,
            gone: false,
            epoll: sockets.epoll().try_clone_to_owned()?,
            splices: SpliceThreads::start(splices)?,
            reports: Vec::new(),
            journal,
            flows: BTreeMap::new(),
            broken: Vec::new(),
            bulk,
            changed: false,
            hand_over: None,
            look_at: None,
            link_since: None,
            recall_at: None,
            ask_at: None,
            notice: None,
            datagrams: Datagrams::new(),
        })
    }

    /// Whether the link must be read until it is empty.
    pub(crate) fn awaits_link(&self) -> bool {
        self.flows.values().any(|flow| flow.stage == Stage::Steered)
    }

    /// A message for the user.
    pub(crate) fn take_notice(&mut self) -> Option<String> {
        self.notice.take()
    }

    /// Closes the pipes that no direction has.
    pub(crate) fn give_up_idle_pipes(&self) {
        self.splices.give_up_idle_pipes();
    }

    /// Sets the carrier of bulk flows, from the next turn on.
    pub(crate) fn set_bulk(&mut self, bulk: Bulk) {
        (self.bulk, self.changed) = (bulk, true);
    }

    /// The queue of datagrams, while they have one.
    pub(crate) fn datagram_queue(&mut self) -> Option<&mut DivertedQueue> {
        self.datagrams.queue()
    }

    /// Datagrams that their queue has dropped since the last call.
    pub(crate) fn take_diverted_dropped(&mut self) -> u64 {
        self.datagrams.take_dropped()
    }

    /// State for a report.
    pub(crate) fn report(&self, stack: &Stack) -> PromotionReport {
        PromotionReport { bulk: self.bulk, flows: stack.promoted(), agent_gone: self.gone }
    }

    fn tcp_info(&self, flow: FlowId) -> Option<TcpInfo> {
        TcpInfo::of(self.flows.get(&flow)?.kernel.as_ref()?.as_fd()).ok()
    }

    /// The kernel socket's view of a flow.
    pub(crate) fn kernels_view(&self, flow: FlowId) -> Option<KernelsView> {
        let (info, reported) = (self.tcp_info(flow)?, self.flows.get(&flow)?.reported);
        Some(KernelsView { segments: Segments::of(&info).since(reported), rtt_us: info.rtt_us })
    }

    /// Before a hand-over: asks all flows back. True when those that can be had are back, or none came in
    /// time.
    pub(crate) fn bring_back<P: Platform<Host = Sockets>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
    ) -> bool {
        let until = *self.hand_over.get_or_insert_with(|| {
            stack.set_bulk(io, Bulk::Tap, ReturnReason::HandOver);
            io.now + BRING_BACK_MAX
        });
        let stays = |flow: &Promoted| matches!(flow.stage, Stage::Trial | Stage::Carried);
        let settled = io.host.requests().is_empty() && self.recall_at.is_none();
        let settled = settled && self.flows.values().all(stays);
        settled || until <= io.now
    }

    /// While the worker is parked: has what is left of the flows end with a reset, unless the worker goes on.
    pub(crate) fn park(&mut self, stack: &mut Stack, sockets: &Sockets) {
        self.end_released(stack);
        self.set_linger(sockets, Some(SystemDuration::ZERO));
    }

    /// Sets the end of the host's sockets.
    fn set_linger(&self, sockets: &Sockets, linger: Option<SystemDuration>) {
        for socket in self.flows.values().filter_map(|flow| sockets.descriptor(flow.socket)) {
            // Every stream takes it.
            let _ = sockopt::set_socket_linger(socket, linger);
        }
    }

    /// Applies the carrier that is set, and ends a hand-over that was not made.
    fn apply<P: Platform<Host = Sockets>>(&mut self, stack: &mut Stack, io: &mut Io<'_, P>, freezing: bool) {
        if !freezing && self.hand_over.take().is_some() {
            self.set_linger(io.host, None);
            self.changed = true;
        }
        if self.hand_over.is_none() && std::mem::take(&mut self.changed) {
            stack.set_bulk(io, self.bulk, ReturnReason::Settings);
        }
    }

    /// One turn; true if more work is ready.
    fn follow<P: Platform<Host = Sockets>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
        turned: &Turned,
    ) -> bool {
        self.recall_again(stack, io);
        self.apply(stack, io, turned.freezing);
        self.end_released(stack);
        for id in std::mem::take(&mut self.broken) {
            self.break_off(stack, io, id);
        }
        if turned.link_read || self.link_since.is_some_and(|since| io.now - since >= LINK_MAX) {
            self.enter_trials(stack, io);
        }
        if std::mem::take(&mut self.answered) {
            self.take_answers(stack, io);
        }
        self.ask_again(stack, io);
        self.look(stack, io);
        self.follow_capture(stack, io, turned.capture.as_ref());
        self.take_requests(stack, io);
        self.collect(stack, io);
        self.splices.set_has_sparse(stack.has_sparse(io.now));
        if self.agent.has_unsent() {
            self.ask_at.get_or_insert(io.now + RECALL_INTERVAL);
        }
        self.awaits_link() || !io.host.requests().is_empty() || stack.has_released()
    }

    /// Ends what belongs to flows that the stack has ended.
    fn end_released(&mut self, stack: &mut Stack) {
        for Released { flow, .. } in stack.take_released_of(&[Carrier::Kernel]) {
            self.discard(flow);
        }
    }

    /// Resets the guest's side of a flow, if there is any, and forgets it.
    fn discard(&mut self, id: FlowId) {
        let Some(flow) = self.flows.remove(&id) else { return };
        if let Some(pair) = flow.pair {
            self.splices.with(pair, |splices, epoll| splices.abort(epoll, pair.number, id));
        }
        match flow.kernel {
            Some(kernel) if matches!(flow.stage, Stage::Freezing | Stage::Frozen) => {
                self.agent.release_frozen(id.to_bits(), kernel);
            }
            Some(kernel) => self.agent.release(kernel),
            None => {}
        }
    }

    /// Asks the agent again for what its channel had no room for.
    fn ask_again<P: Platform<Host = Sockets>>(&mut self, stack: &mut Stack, io: &mut Io<'_, P>) {
        if self.ask_at.is_none_or(|at| at > io.now) {
            return;
        }
        self.ask_at = None;
        self.agent.send_releases();
        for id in self.in_stage(Stage::Frozen) {
            self.thaw(stack, io, id);
        }
    }

    /// Resets both sides of a flow.
    fn break_off<P: Platform>(&mut self, stack: &mut Stack, io: &mut Io<'_, P>, id: FlowId) {
        stack.close_carried(io, id, EndCause::NoResources);
        self.discard(id);
    }

    /// The link was read empty: what comes by it from now on was sent after the steering.
    fn enter_trials<P: Platform<Host = Sockets>>(&mut self, stack: &mut Stack, io: &mut Io<'_, P>) {
        for id in self.in_stage(Stage::Steered) {
            self.enter(id, Stage::Trial);
            stack.promotion(io, id, PromotionOutcome::Made);
            self.look_at = Some(io.now);
        }
        self.link_since = None;
    }

    /// Looks whether sockets on trial have received something.
    fn look<P: Platform<Host = Sockets>>(&mut self, stack: &mut Stack, io: &mut Io<'_, P>) {
        if self.look_at.is_none_or(|at| at > io.now) {
            return;
        }
        self.look_at = None;
        for id in self.in_stage(Stage::Trial) {
            if self.tcp_info(id).is_some_and(|info| info.segments_received > 0) {
                self.enter(id, Stage::Carried);
                stack.promotion(io, id, PromotionOutcome::Confirmed);
            } else {
                self.look_at = Some(io.now + LOOK_INTERVAL);
            }
        }
    }

    /// Asks all flows back again that are still wanted, after one could not be taken.
    fn recall_again<P: Platform<Host = Sockets>>(&mut self, stack: &mut Stack, io: &mut Io<'_, P>) {
        if self.recall_at.is_none_or(|at| at > io.now) {
            return;
        }
        self.recall_at = None;
        if self.hand_over.is_some() {
            stack.set_bulk(io, Bulk::Tap, ReturnReason::HandOver);
        }
        stack.recall_limited(io);
        self.recall_without_pipe(stack, io);
        // The carrier that is set and the capture ask for theirs in this turn.
        self.changed = true;
        self.flows.values_mut().for_each(|flow| flow.captured = false);
    }

    /// Asks the flows back for which there was no pipe.
    fn recall_without_pipe<P: Platform<Host = Sockets>>(&mut self, stack: &mut Stack, io: &mut Io<'_, P>) {
        for (&id, flow) in &mut self.flows {
            if std::mem::take(&mut flow.lacks_pipe) {
                stack.recall(io, id, ReturnReason::Resources);
            }
        }
    }

    /// Asks the flows back that a capture is to see, once for each capture.
    fn follow_capture<P: Platform<Host = Sockets>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
        capture: Option<&Scope>,
    ) {
        io.host.requests().set_capture(capture.cloned());
        let mut wanted = Vec::new();
        for (&id, flow) in &mut self.flows {
            let fields = flow.seed.fields();
            let is_in = capture.is_some_and(|scope| scope.includes(fields.guest, fields.remote));
            if is_in && !flow.captured {
                wanted.push(id);
            }
            flow.captured = is_in;
        }
        for id in wanted {
            stack.recall(io, id, ReturnReason::Capture);
        }
    }

    /// Passes on the progress of the splices.
    pub(crate) fn collect<P: Platform<Host = Sockets>>(&mut self, stack: &mut Stack, io: &mut Io<'_, P>) {
        let mut ended = Vec::new();
        let mut reports = std::mem::take(&mut self.reports);
        self.splices.collect(&mut reports);
        for &SpliceReport { flow, progress, end, lacks_pipe } in &reports {
            if progress != CarriedProgress::default() {
                self.report_segments(stack, io, flow);
                stack.carried_progress(io, flow, &progress);
            }
            if lacks_pipe && let Some(promoted) = self.flows.get_mut(&flow) {
                promoted.lacks_pipe = true;
            }
            ended.extend(end.map(|cause| (flow, cause)));
        }
        self.reports = reports;
        // One that could not come back lacks its pipe again at once.
        if self.recall_at.is_none() {
            self.recall_without_pipe(stack, io);
        }
        for (id, cause) in ended {
            self.report_segments(stack, io, id);
            let kernel = self.flows.remove(&id).and_then(|flow| flow.kernel);
            // Its number leaves the journal before it is given away again.
            stack.close_carried(io, id, cause);
            if let Some(kernel) = kernel {
                if cause == EndCause::Finished {
                    let _ = sockopt::set_socket_linger(&kernel, None);
                }
                self.agent.release(kernel);
            }
        }
    }

    /// Reports the segments that the kernel socket has counted since the last report: with each progress,
    /// because a flow that the stack ends is asked for no more.
    fn report_segments<P: Platform<Host = Sockets>>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, P>,
        id: FlowId,
    ) {
        let Some(info) = self.tcp_info(id) else { return };
        let Some(flow) = self.flows.get_mut(&id) else { return };
        let counted = Segments::of(&info);
        let Segments { from_guest, to_guest, retransmissions } = counted.since(flow.reported);
        flow.reported = counted;
        let packets = |packets: u32| Traffic { bytes: 0, packets: packets.into() };
        let (up, down) = (packets(from_guest), packets(to_guest));
        let (from_initiator, from_responder) = match flow.initiator {
            Initiator::Guest => (up, down),
            Initiator::Peer => (down, up),
        };
        let progress =
            CarriedProgress { from_initiator, from_responder, retransmissions, ..CarriedProgress::default() };
        stack.carried_progress(io, id, &progress);
    }

    /// The agent has ended: what it was asked for will not come.
    fn lose_agent<P: Platform<Host = Sockets>>(&mut self, stack: &mut Stack, io: &mut Io<'_, P>) {
        self.gone = true;
        io.host.requests().refuse(Refusal::Broker);
        let _ = rustix::event::epoll::delete(&self.epoll, self.agent.descriptor());
        self.notice = Some("the promotion agent has ended: bulk flows stay with the interface".to_owned());
        for id in self.in_stage(Stage::Making) {
            self.flows.remove(&id);
            stack.promotion(io, id, PromotionOutcome::Refused(Refusal::Broker));
        }
        // Started or not, frozen or not, they cannot go on.
        for stage in [Stage::Starting, Stage::Freezing, Stage::Frozen, Stage::Thawing] {
            for id in self.in_stage(stage) {
                self.break_off(stack, io, id);
            }
        }
    }

    fn in_stage(&self, stage: Stage) -> Vec<FlowId> {
        self.flows.iter().filter(|(_, flow)| flow.stage == stage).map(|(&id, _)| id).collect()
    }

    fn enter(&mut self, id: FlowId, stage: Stage) {
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.stage = stage;
        }
    }
}

/// Events around the source in a turn.
struct Turned {
    /// The link was read until it was empty.
    link_read: bool,
    /// The worker is to park.
    freezing: bool,
    /// The flows that a capture sees.
    capture: Option<Scope>,
}

impl<L: GuestLink> Source<L> for Promotions {
    fn register(&mut self, poller: Poller<'_>) -> io::Result<()> {
        poller.add(self.splices.news(), SPLICES, EventFlags::IN | EventFlags::ET)?;
        Ok(poller.add(self.agent.descriptor(), AGENT, EventFlags::IN)?)
    }

    /// Reports are collected in every turn.
    fn ready(&mut self, key: u32, _: EventFlags, _: Instant) {
        self.answered |= key == AGENT;
        if key == DATAGRAMS {
            self.datagrams.ready();
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let of_datagrams = self.datagrams.deadline();
        let own = [self.look_at, self.hand_over, self.recall_at, self.ask_at];
        own.into_iter().chain([of_datagrams]).flatten().min()
    }

    fn turn(&mut self, turn: &mut Turn<'_, L>) -> bool {
        let capture = turn.link.capture.as_ref().map(Capture::scope);
        let turned = Turned { link_read: turn.link_read, freezing: turn.freezing, capture };
        self.datagrams.turn(turn.now, turn.flooded, &mut self.agent, self.epoll.as_fd());
        let (stack, mut io) = turn.stack();
        self.follow(stack, &mut io, &turned)
    }
}
