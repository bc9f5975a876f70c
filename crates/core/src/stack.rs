//! The stack: what a driver (epoll, simulator) calls, and the dispatch from frames to protocols.
//!
//! One loop turn of a driver:
//!
//! 1. wait for descriptors until [`Stack::next_deadline`] (not at all if the last [`Stack::serve`] said there
//!    is more to do), then read the clock once;
//! 2. take a bounded batch of guest frames: [`Stack::frames`];
//! 3. [`Stack::expire`]: after the frames, or a time-out would come before an answer that is already there;
//! 4. [`Stack::socket_event`] for each ready socket, then [`Stack::serve`];
//! 5. [`Stack::flush`]: acknowledgements, once per flow and batch;
//! 6. read the link again before sleeping, because what was sent may have been answered already.

use crate::config::Config;
use crate::connection::{Connection, reset};
use crate::context::{Cx, Shared};
use crate::counters::{Counters, DropReason};
use crate::datagram::DatagramFlow;
use crate::destination;
use crate::flow::end::{EndCause, Recorder};
use crate::flow::quota::InboundQuota;
use crate::flow::table::{FlowTable, Keyed};
use crate::flow::{Endpoint, EvictionClass, EvictionGroup, FlowId, FlowKey, Protocol};
use crate::flow_kind::{Buffers, FlowKind};
use crate::fragments::Fragments;
use crate::host::{HostError, IcmpCause, Readiness};
use crate::icmp;
use crate::inbox::Inbox;
use crate::ingress::{self, Frame};
use crate::journal::{Journal, Remains, Slot};
use crate::link::{Gso, LinkCaps, RxFrame, RxMeta};
use crate::memory::budget::{Budget, Need};
use crate::memory::parked::listed_max;
use crate::memory::payload::PayloadMemory;
use crate::policy::Policy;
use crate::schedule::Listed;
use crate::services;
use crate::tcp::info::TcpInfo;
use crate::time::Instant;
use crate::wire::ethernet::EthernetHeader;
use crate::wire::icmpv4::{Echo, Icmpv4Message};
use crate::wire::icmpv6::Icmpv6Message;
use crate::wire::ipv6::Ipv6Header;
use crate::wire::tcp::{TcpFlags, TcpHeader};
use crate::wire::{ICMP, ICMPV6, TCP, UDP};
use dispatch::Flow;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

mod admission;
mod carried;
mod dispatch;
mod eviction;
mod gro;
mod guest_reset;
mod inbound;
mod input;
mod limits;
mod names;
mod promotion;
mod records;
mod resteer;
mod review;
mod snapshot;

pub use crate::config::Keys;
pub use crate::context::{Io, Platform};
pub use crate::inbox::Arrived;
pub use crate::tx_queue::TxQueueUsage;
pub use carried::{CarriedProgress, Opening, Released};
pub use promotion::{Bulk, PromotionOutcome, ReturnReason, Returned};
pub use records::FlowDetail;
pub use snapshot::{Adopt, Lost, Omitted, Recover, Restored, Room, Settings, SocketKind};

/// Bytes to the guest after which a round ends, with those that had no turn first in the next: frames from
/// the guest, its acknowledgements among them, do not wait until a thousand bulk transfers have had theirs.
const ROUND_BYTES: u64 = 256 << 10;
/// Room for any packet that brodo itself answers with.
const SCRATCH: usize = 64 << 10;

/// The network stack of one worker.
pub struct Stack {
    /// Its number among those that share a budget.
    worker: u32,
    shared: Shared,
    flows: FlowTable<Flow>,
    buffers: Buffers,
    policy: Policy,
    /// The part of the flow table for what begins on the host's side.
    inbound: InboundQuota,
    /// Flows of [`EvictionGroup::GuestUdp`].
    guest_udp: usize,
    /// Reassembly of the guest's fragments.
    fragments: Fragments,
    /// Time of the next router advertisement: a guest that has solicited one depends on them.
    advertise_at: Option<Instant>,
    /// Search names that router advertisements withdraw, the last ones first.
    withdrawn: Vec<String>,
    /// Addresses that a guest which configures itself has used last, IPv4 and IPv6.
    seen: [Option<IpAddr>; 2],
    /// Records of flows that have begun and ended, for observers.
    recorder: Recorder,
    /// Keys claimed for frames that have not been handled yet ([`Stack::steer`]).
    claimed: Vec<FlowKey>,
    /// Frames for other workers.
    passed: Vec<(u32, Vec<u8>)>,
}

impl Stack {
    /// A stack for one guest link with the given capabilities, alone with its memory.
    pub fn new(config: Config, keys: Keys, caps: LinkCaps) -> Self {
        let budget = Arc::new(Budget::new(config.memory));
        Self::sharing(config, keys, caps, budget, 0)
    }

    /// A stack that shares `budget`, which takes the place of [`Config::memory`], with others. `worker` is
    /// its number among them, less than [`crate::memory::budget::WORKERS_MAX`]; see [`Stack::take_wakes`].
    pub fn sharing(config: Config, keys: Keys, caps: LinkCaps, budget: Arc<Budget>, worker: u32) -> Self {
        let mut policy = Policy::new(&config.rules);
        policy.set_router(destination::ways_to_loopback(&config));
        Self {
            worker,
            policy,
            inbound: InboundQuota::new(config.max_flows),
            guest_udp: 0,
            shared: Shared::new(config, caps, &keys, budget, worker),
            flows: FlowTable::new(keys.table),
            buffers: Buffers {
                inbox: Inbox::default(),
                scratch: vec![0; SCRATCH].into_boxed_slice(),
                read: Vec::new(),
            },
            fragments: Fragments::default(),
            advertise_at: None,
            withdrawn: Vec::new(),
            seen: [None; 2],
            recorder: Recorder::new(),
            claimed: Vec::new(),
            passed: Vec::new(),
        }
    }

    /// Capabilities of the link from now on. Frames are built for them when they are sent, so none that is
    /// under way is affected.
    pub fn set_caps(&mut self, caps: LinkCaps) {
        self.shared.tx.caps = caps;
    }

    /// Handles frames from the guest, in order. Segments of one bulk transfer that stand together are written
    /// to the host socket together, so a driver does well to hand in what it has.
    pub fn frames<P: Platform>(&mut self, io: &mut Io<'_, P>, mut frames: &[RxFrame<'_>]) {
        self.recorder.now = io.now;
        self.shared.standing_queue.frames(io.now);
        // The frame that ended a run, decoded already.
        let mut next = None;
        while let Some(first) = frames.first() {
            let decoded = match next.take() {
                Some(decoded) => decoded,
                None => ingress::decode(&self.shared.config, first),
            };
            let mut together = 0;
            if let Ok(Frame::Packet(packet)) = &decoded {
                together = self.gro(io, packet, frames, &mut next);
            }
            match together {
                0 if first.unread.len > 0 => self.read_frame(io, first),
                0 => self.decoded(io, first.len(), decoded),
                _ => {}
            }
            frames = &frames[together.max(1)..];
        }
        self.release_unopened();
    }

    /// Handles a frame whose end is unread, by reading it.
    fn read_frame<P: Platform>(&mut self, io: &mut Io<'_, P>, frame: &RxFrame<'_>) {
        let mut buffer = std::mem::take(&mut self.buffers.read);
        if buffer.len() < frame.len() {
            buffer.resize(frame.len(), 0);
        }
        let len = frame.read_whole(io.link, &mut buffer);
        let whole = RxFrame { meta: frame.meta, ..RxFrame::whole(&buffer[..len]) };
        self.decoded(io, len, ingress::decode(&self.shared.config, &whole));
        self.buffers.read = buffer;
    }

    /// Handles one frame from the guest.
    pub fn frame<P: Platform>(&mut self, io: &mut Io<'_, P>, meta: RxMeta, frame: &[u8]) {
        self.recorder.now = io.now;
        let decoded = ingress::decode(&self.shared.config, &RxFrame { meta, ..RxFrame::whole(frame) });
        self.decoded(io, frame.len(), decoded);
        self.release_unopened();
    }

    /// Handles a frame that another worker has put together from the guest's fragments
    /// ([`Stack::take_passed`]): on its way on it may be fragmented as they were.
    pub fn passed_frame<P: Platform>(&mut self, io: &mut Io<'_, P>, frame: &[u8]) {
        self.recorder.now = io.now;
        let mut decoded = ingress::decode(&self.shared.config, &RxFrame::whole(frame));
        if let Ok(Frame::Packet(packet)) = &mut decoded {
            packet.reassembled = true;
        }
        self.decoded(io, frame.len(), decoded);
        self.release_unopened();
    }

    /// Handles a frame of `len` bytes.
    fn decoded<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        len: usize,
        decoded: Result<Frame<'_>, DropReason>,
    ) {
        self.shared.counters.rx_frames += 1;
        self.shared.counters.rx_bytes += len as u64;
        if let Err(reason) = decoded.and_then(|frame| self.dispatch(io, frame)) {
            self.shared.counters.drop(reason);
        }
    }

    /// Notes what a host socket is ready for; most work is done by [`Stack::serve`]. Events for flows that
    /// are gone are ignored.
    pub fn socket_event<P: Platform>(&mut self, io: &mut Io<'_, P>, flow: FlowId, ready: Readiness) {
        self.recorder.now = io.now;
        self.notify_flow(io, flow, |flow, cx, _| flow.socket_event(cx, ready));
    }

    /// The link has credit again after [`crate::link::NoCredit`]. [`Stack::serve`] and [`Stack::flush`] go
    /// on.
    pub fn link_writable(&mut self) {
        self.shared.tx.stalled = false;
    }

    /// The link's ring toward us holds so many frames, and loses those that find it full: windows are offered
    /// so that together they fit. `None`, as at the start: it loses none. It may change while flows are open;
    /// advertised windows stand.
    pub fn set_tx_queue_len(&mut self, frames: Option<u32>) {
        self.shared.tx.queue.set_len(frames);
    }

    /// Use of the TX queue by windows; `None` without a bound.
    pub fn tx_queue_usage(&self) -> Option<TxQueueUsage> {
        self.shared.tx.queue.tx_queue_usage()
    }

    /// The link was read, at `now`, until it had nothing more.
    pub fn link_drained(&mut self, now: Instant) {
        self.shared.tx.queue.drained();
        self.shared.standing_queue.drained(now);
    }

    /// Whether sparse flows use the link, whose requests should not wait for the end of a long turn.
    pub fn has_sparse(&self, now: Instant) -> bool {
        self.shared.standing_queue.has_sparse(now)
    }

    /// Bytes moved one way after which a driver's turn should look for events again: fewer while answers for
    /// sparse flows would wait for its end.
    pub fn turn_bytes(&self, now: Instant) -> usize {
        self.shared.standing_queue.turn_bytes(now)
    }

    /// Whether [`Stack::serve`] does nothing until [`Stack::link_drained`]: what answers to more frames might
    /// find the link's ring full ([`Stack::set_tx_queue_len`]).
    pub fn awaits_drain(&self) -> bool {
        self.shared.tx.queue.sendable() == 0
    }

    /// Whether the stack waits for [`Stack::link_writable`].
    pub fn is_stalled(&self) -> bool {
        self.shared.tx.stalled
    }

    /// One round over the flows that have something to do: all sparse ones, then others until [`ROUND_BYTES`]
    /// were sent (see [`crate::schedule`]). True if there is more to do at once.
    pub fn serve<P: Platform>(&mut self, io: &mut Io<'_, P>) -> bool {
        self.recorder.now = io.now;
        if !self.buffers.inbox.is_empty() && self.buffers.inbox.deliver(&mut io.cx(&mut self.shared)).is_err()
        {
            return false;
        }
        let Listed { sparse, bulk } = self.shared.ready.listed();
        for _ in 0..sparse {
            if self.shared.tx.stalled || self.awaits_drain() {
                break;
            }
            if let Some(id) = self.shared.ready.next_sparse() {
                self.serve_flow(io, id);
            }
        }
        let end = self.shared.counters.tx_bytes + ROUND_BYTES;
        for _ in 0..bulk {
            if self.shared.tx.stalled || self.awaits_drain() || self.shared.counters.tx_bytes >= end {
                break;
            }
            if let Some(id) = self.shared.ready.next_bulk() {
                self.serve_flow(io, id);
            }
        }
        if self.shared.tcp.place_wanted {
            self.free_place(io);
        }
        let more = self.wake(io);
        (more || !self.shared.ready.is_empty()) && !self.shared.tx.stalled
    }

    fn serve_flow<P: Platform>(&mut self, io: &mut Io<'_, P>, id: FlowId) {
        self.use_flow(io, id, FlowKind::serve);
        self.pass_answer(io);
    }

    /// Lets flows that wait for memory look again after some was given back. True if more of them may.
    fn wake<P: Platform>(&mut self, io: &mut Io<'_, P>) -> bool {
        let mut more = false;
        for need in Need::ALL {
            for _ in 0..self.shared.memory.parked(need).wakeable() {
                let Some(id) = self.shared.memory.parked(need).pop() else { break };
                self.notify_flow(io, id, |flow, cx, _| {
                    if let Flow::Tcp(connection) = flow {
                        connection.memory_freed(cx.shared, cx.now, need);
                    }
                });
            }
            more |= self.shared.memory.parked(need).rest();
        }
        more
    }

    /// Memory that outlives the process, for a record of each flow ([`crate::journal`]): as many slots as
    /// flows may be open, and two more. Flows that are there get their records now.
    pub fn set_journal(&mut self, slots: &'static [Slot]) {
        self.shared.journal = Journal::new(slots);
        self.shared.journal.guest_mac(self.shared.tx.guest_mac);
        for seen in self.seen.into_iter().flatten() {
            self.shared.journal.guest_address(seen);
        }
        for (id, flow) in self.flows.iter() {
            // In the place of a record of the process before, if there is one.
            self.shared.journal.end(id);
            flow.write_journal(&self.shared.journal);
        }
    }

    /// Ends the records of flows in `remains` that this stack does not go on with.
    pub fn forget_lost(&mut self, remains: &Remains) {
        for record in remains.records.iter().filter(|record| self.flows.get(record.id).is_none()) {
            self.shared.journal.end_of(record.id);
        }
    }

    /// Payload memory that outlives the process, for all chunks from now on: a stack with a journal keeps the
    /// bytes on their way in it. To be called before the first flow.
    pub fn use_payload_memory(&mut self, memory: PayloadMemory) {
        self.shared.memory.pool.use_memory(memory);
    }

    /// Payload memory of a stack that is no longer used, for one that recovers its flows in the same process.
    pub fn take_payload_memory(&mut self) -> Option<PayloadMemory> {
        self.shared.memory.pool.take_memory()
    }

    /// Whether payload memory is kept for reuse while no payload is held.
    pub fn has_spare_memory(&self) -> bool {
        self.shared.memory.pool.has_spare()
    }

    /// Keeps none for reuse: it becomes unused, as [`Stack::has_unused_memory`] has it.
    pub fn give_up_spare_memory(&mut self) {
        self.shared.memory.pool.give_up_spare();
    }

    /// Whether [`Stack::take_unused_memory`] has something to do.
    pub fn has_unused_memory(&self) -> bool {
        self.shared.memory.pool.has_unused()
    }

    /// Hands out the pages of payload memory that have become unused, to be given back to the system. Their
    /// content does not matter any more.
    pub fn take_unused_memory(&mut self, give: impl FnMut(&mut [u8])) {
        self.shared.memory.pool.take_unused(give);
    }

    /// Sets a counter by its name, to go on with that of another process.
    pub fn set_counter(&mut self, name: &str, value: u64) {
        self.shared.counters.set(name, value);
    }

    /// Sets the number of drops for a reason.
    pub fn set_dropped(&mut self, reason: DropReason, drops: u64) {
        self.shared.counters.set_dropped(reason.name(), drops);
    }

    /// Refusals of each rule, with a number by which the same program knows its text again; of the first
    /// worker before them totals of the policy that all share, alike: they are few, and the memory that
    /// outlives a crash need not have room for a long list of rules.
    pub fn refusals(&self) -> impl Iterator<Item = (u64, u64)> {
        let totals = if self.worker == 0 { self.policy.shared_totals() } else { Vec::new() };
        let rules = self.policy.counts().map(|(text, count)| (crate::policy::digest(text), count));
        totals.into_iter().chain(rules)
    }

    /// Goes on with refusals of [`Stack::refusals`]. A rule that is not there yet does when it refuses.
    pub fn set_refusals(&mut self, refusals: impl IntoIterator<Item = (u64, u64)>) {
        let before = refusals.into_iter().collect();
        if self.worker == 0 {
            self.policy.add_shared_totals(&before);
        }
        self.policy.go_on_counting(before);
    }

    /// The other workers that have to turn because memory was given back since the last call, one bit each.
    pub fn take_wakes(&mut self) -> u64 {
        self.shared.memory.pool.take_wakes() & !(1 << self.worker)
    }

    /// Sends the acknowledgements and window updates that have become due in this turn.
    pub fn flush<P: Platform>(&mut self, io: &mut Io<'_, P>) {
        let mut due = std::mem::take(&mut self.shared.tcp.ack_due);
        let mut done = 0;
        for &id in &due {
            if let Some(Flow::Tcp(connection)) = self.flows.get_mut(id)
                && connection.acknowledge_now(&mut io.cx(&mut self.shared)).is_err()
            {
                break;
            }
            done += 1;
        }
        // Connections whose acknowledgement found no credit stay listed.
        due.drain(..done);
        due.append(&mut self.shared.tcp.ack_due);
        self.shared.tcp.ack_due = due;
    }

    /// Removes flows that are gone from the lists of those to be served and to be acknowledged.
    fn forget_gone(&mut self) {
        let Self { flows, shared, .. } = self;
        shared.ready.prune(flows.len(), |id| flows.get(id).is_some());
        if shared.tcp.ack_due.len() > listed_max(flows.len()) {
            shared.tcp.ack_due.retain(|&id| flows.get(id).is_some());
        }
    }

    /// Expires timers.
    pub fn expire<P: Platform>(&mut self, io: &mut Io<'_, P>) {
        self.recorder.now = io.now;
        self.adopt_guest_mac();
        self.shared.tx.queue.advance(io.now);
        for need in Need::ALL {
            let flows = &self.flows;
            let waiting = self.shared.memory.parked(need);
            waiting.prune(flows.len(), |id| flows.get(id).is_some());
            waiting.watch(io.now);
        }
        self.forget_gone();
        self.shared.timers.advance(io.now);
        while let Some(id) = self.shared.timers.pop() {
            self.notify_flow(io, id, |flow, cx, _| flow.expire(cx));
        }
        self.expire_limits(io);
        self.expire_fragments(io);
        if self.advertise_at.is_some_and(|at| at <= io.now) {
            self.advertise_at = Some(io.now + services::ndp::ADVERTISE_EVERY);
            let (config, scratch) = (&self.shared.config, &mut self.buffers.scratch);
            if let Some(len) = services::ndp::advertise(config, &self.withdrawn, scratch) {
                icmp::send(&mut io.cx(&mut self.shared), &self.buffers.scratch[..len]);
            }
        }
    }

    /// Deadline of the next [`Stack::expire`]; `None` without timers.
    pub fn next_deadline(&self) -> Option<Instant> {
        let watch = [self.shared.memory.reads.watch_at(), self.shared.memory.windows.watch_at()];
        watch
            .into_iter()
            .chain([self.shared.timers.next(), self.advertise_at, self.fragments.next_deadline()])
            .chain([self.policy.limited.next_due()])
            .flatten()
            .min()
    }

    /// The configuration now in force: as given, with resolvers and search names as set since.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The host's resolvers.
    pub fn resolvers(&self) -> &[SocketAddr] {
        &self.shared.config.resolvers
    }

    /// Counters since the start.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// The text of every rule about new flows and how many it has refused: the floor, the deny rules in their
    /// order, the limits.
    pub fn rules(&self) -> impl Iterator<Item = (&str, u64)> {
        self.policy.counts()
    }

    /// Flows behind gates: connections that wait for their server's name, and flows of QUIC.
    pub fn gates(&self) -> u32 {
        self.shared.closed_gates + self.shared.quic_gates
    }

    /// State of every TCP connection at `now`.
    pub fn tcp_infos(&self, now: Instant) -> impl Iterator<Item = TcpInfo> {
        self.flows.iter().filter_map(move |(_, flow)| match flow {
            Flow::Tcp(connection) => Some(connection.tcp_info(&self.shared, now)),
            _ => None,
        })
    }

    /// Flows open now.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Bytes of payload memory in use now, by all workers of the budget.
    pub fn memory_used(&self) -> usize {
        self.shared.memory.pool.budget().used()
    }

    /// Bytes of payload memory of the whole budget, for all its workers.
    pub fn memory_budget(&self) -> usize {
        self.shared.memory.pool.budget().total()
    }

    /// Windows reserved ([`Budget::reserved`]), of all stacks that share the budget, bytes.
    pub fn memory_reserved(&self) -> usize {
        self.shared.memory.pool.budget().reserved()
    }

    /// Bytes that the state of all flows takes: their table, timers and lists. Payload is not among it.
    pub fn state_allocated(&self) -> usize {
        let lists = self.shared.ready.capacity() + self.shared.tcp.ack_due.capacity();
        let beside: usize = self.flows.iter().map(|(_, flow)| flow.allocated()).sum();
        let waiting = self.shared.memory.reads.allocated() + self.shared.memory.windows.allocated();
        let waiting = waiting + self.shared.dns.allocated() + self.fragments.allocated();
        self.flows.allocated()
            + self.shared.timers.allocated()
            + waiting
            + lists * size_of::<FlowId>()
            + beside
    }

    /// Lets `access` use a flow, if it is still there: the table notes the use, and the rest is as with
    /// [`Stack::notify_flow`].
    fn use_flow<P: Platform, R>(
        &mut self,
        io: &mut Io<'_, P>,
        id: FlowId,
        access: impl FnOnce(&mut Flow, &mut Cx<'_, P>, &mut Buffers) -> R,
    ) -> Option<R> {
        self.access_flow::<P, R, true>(io, id, access)
    }

    /// Lets `access` change a flow, if it is still there, by an event that is no use of it. Afterwards the
    /// flow is removed if it has ended, else its timer is set anew.
    fn notify_flow<P: Platform, R>(
        &mut self,
        io: &mut Io<'_, P>,
        id: FlowId,
        access: impl FnOnce(&mut Flow, &mut Cx<'_, P>, &mut Buffers) -> R,
    ) -> Option<R> {
        self.access_flow::<P, R, false>(io, id, access)
    }

    /// The one access to a flow; `USE` is known to the compiler, so it costs no branch.
    fn access_flow<P: Platform, R, const USE: bool>(
        &mut self,
        io: &mut Io<'_, P>,
        id: FlowId,
        access: impl FnOnce(&mut Flow, &mut Cx<'_, P>, &mut Buffers) -> R,
    ) -> Option<R> {
        let flow = self.flows.get_mut(id)?;
        let result = access(flow, &mut io.cx(&mut self.shared), &mut self.buffers);
        if USE {
            let list = flow.eviction_class().list(flow.eviction_group());
            self.flows.touch(id, list, io.now);
        }
        if self.policy.is_limiting() {
            self.charge(io, id);
        }
        self.settle(io, id);
        Some(result)
    }

    /// After every access and after insertion: removes a flow that has ended, else sets its timer. Before, a
    /// connection that is being made quiet may have become so.
    fn settle<P: Platform>(&mut self, io: &mut Io<'_, P>, id: FlowId) {
        if let Some(Flow::Tcp(connection)) = self.flows.get_mut(id)
            && connection.is_quieting()
        {
            connection.seed_if_quiet(&mut io.cx(&mut self.shared));
        }
        for refused in self.shared.dns.refused.drain(..) {
            self.policy.question_refused(io.now, &refused);
        }
        match self.flows.get_mut(id) {
            None => {}
            Some(flow) if flow.has_ended() => self.remove(io, id),
            Some(flow) => flow.reschedule(&mut self.shared),
        }
    }

    /// Counts a flow that was inserted, and records it: after every insertion.
    fn count_opened(&mut self, id: FlowId) {
        self.count_in_share(id);
        self.note_opened(id);
    }

    /// Counts a flow of the guest's under its destination, which [`Stack::remove`] undoes.
    fn hold_destination(&mut self, now: Instant, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        let remote = destination::judged_as(&self.shared.config, flow.key().remote.into());
        self.policy.opened(now, remote.ip(), id);
    }

    /// Counts a flow in its share of the table, which [`Stack::remove`] undoes.
    fn count_in_share(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        match flow.eviction_group() {
            EvictionGroup::Peer => self.inbound.opened(flow.key().remote.ip()),
            EvictionGroup::GuestUdp => self.guest_udp += 1,
            EvictionGroup::Guest => {}
        }
        debug_assert!(self.guest_udp <= self.shared.config.max_udp_flows.max(1), "admitted beyond the bound");
    }

    fn remove<P: Platform>(&mut self, io: &mut Io<'_, P>, id: FlowId) {
        self.shared.timers.cancel(id);
        // Before the flow's socket is closed, whose number is then given away again.
        self.shared.journal.end(id);
        self.note_end(id);
        let removed = self.flows.remove(id);
        if let Some(flow) = &removed {
            let remote = flow.key().remote.ip();
            self.account(io.now, flow);
            let judged = destination::judged_as(&self.shared.config, flow.key().remote.into());
            self.policy.closed(io.now, judged.ip(), id);
            if let Some(text) = flow.refused_by() {
                self.policy.refused_at_gate(io.now, text, flow.key(), flow.named());
            }
            match flow.eviction_group() {
                EvictionGroup::Peer => self.inbound.closed(remote),
                EvictionGroup::GuestUdp => self.guest_udp -= 1,
                EvictionGroup::Guest => {}
            }
        }
        if let Some(mut flow) = removed {
            flow.dispose(&mut io.cx(&mut self.shared));
        }
        debug_assert!(self.flows.get(id).is_none(), "a flow that was removed is gone");
    }
}
