//! The stack: what a driver (epoll, simulator) calls, and the dispatch from frames to protocols.
//!
//! One loop turn of a driver:
//!
//! 1. wait for descriptors until [`Stack::next_deadline`] (not at all if the last [`Stack::serve`] said there is
//!    more to do), then read the clock once;
//! 2. take a bounded batch of guest frames: [`Stack::frames`];
//! 3. [`Stack::expire`]: after the frames, or a time-out would come before an answer that is already there;
//! 4. [`Stack::socket_event`] for each ready socket, then [`Stack::serve`];
//! 5. [`Stack::flush`]: acknowledgements, once per flow and batch;
//! 6. read the link again before sleeping, because what was sent may have been answered already.

use crate::budget::{Budget, Need};
use crate::config::Config;
use crate::counters::{Counters, DropReason};
use crate::datagram::DatagramFlow;
use crate::datagram::inbox::Inbox;
use crate::dns::flow::DnsFlow;
use crate::env::Env;
use crate::flow::end::{EndCause, Recorder};
use crate::flow::table::{FlowTable, Keyed};
use crate::flow::{Endpoint, FlowId, FlowKey, Protocol, Usefulness};
use crate::fragments::Fragments;
use crate::host::{Host, HostError, IcmpCause, Readiness};
use crate::icmp;
use crate::link::{Gso, Link, LinkCaps, RxChecksum, RxFrame, RxMeta};
use crate::policy::Policy;
use crate::services;
use crate::tcp::info::TcpInfo;
use crate::tcp::{Connection, reset};
use crate::time::Instant;
use crate::wire::ethernet::{EtherType, EthernetHeader};
use crate::wire::icmpv4::{Echo, Icmpv4Message};
use crate::wire::icmpv6::Icmpv6Message;
use crate::wire::ipv4::Ipv4Header;
use crate::wire::ipv6::Ipv6Header;
use crate::wire::tcp::{TcpFlags, TcpHeader};
use crate::wire::udp::UdpHeader;
use crate::wire::{ICMP, ICMPV6, TCP, UDP, checksum};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

mod admission;
mod bulk;
mod foreign;
mod inbound;
mod input;
mod names;
mod observe;

pub use foreign::Foreign;
pub use inbound::Arrived;

/// Bytes to the guest after which a round ends, with those that had no turn first in the next: frames from the guest, its
/// acknowledgements among them, do not wait until a thousand bulk transfers have had theirs.
const ROUND_BYTES: u64 = 256 << 10;
/// Room for any packet that brodo itself answers with.
const SCRATCH: usize = 64 << 10;

/// What the stack may touch during one call: the time, the guest link, the host's sockets.
pub struct Io<'a, L, H> {
    /// The time of this loop turn.
    pub now: Instant,
    /// Toward the guest.
    pub link: &'a mut L,
    /// Toward the host.
    pub host: &'a mut H,
}

/// Entropy, given once.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    /// Key of the flow table's hash.
    pub table: [u8; 16],
    /// Key of TCP initial sequence numbers (RFC 6528).
    pub isn: [u8; 16],
}

#[allow(clippy::large_enum_variant, reason = "flows live in a slab; a box for each would be an allocation")]
enum Flow {
    Tcp(Connection),
    Datagram(DatagramFlow),
    Dns(DnsFlow),
}

impl Keyed for Flow {
    fn key(&self) -> &FlowKey {
        match self {
            Self::Tcp(connection) => &connection.key,
            Self::Datagram(flow) => flow.key(),
            Self::Dns(flow) => flow.key(),
        }
    }
}

impl Flow {
    fn usefulness(&self) -> Usefulness {
        match self {
            Self::Tcp(connection) => connection.usefulness(),
            Self::Datagram(flow) => flow.usefulness(),
            Self::Dns(_) => Usefulness::Unanswered,
        }
    }

    fn has_ended(&self) -> bool {
        match self {
            Self::Tcp(connection) => connection.has_ended(),
            Self::Datagram(flow) => flow.has_ended(),
            Self::Dns(flow) => flow.has_ended(),
        }
    }
}

/// The network stack of one worker.
pub struct Stack {
    /// Its number among those that share a budget.
    worker: u32,
    env: Env,
    flows: FlowTable<Flow>,
    scratch: Box<[u8]>,
    /// Datagrams on their way to the guest.
    inbox: Inbox,
    policy: Policy,
    /// What the guest has sent in pieces.
    fragments: Fragments,
    /// When the next router advertisement is due: once a guest has asked for one, it depends on them.
    advertise_at: Option<Instant>,
    /// Flows that have begun and ended, for those who want to know.
    recorder: Recorder,
}

impl Stack {
    /// A stack for one guest link with the given capabilities, alone with its memory.
    pub fn new(config: Config, keys: Keys, caps: LinkCaps) -> Self {
        let budget = Arc::new(Budget::new(config.memory));
        Self::sharing(config, keys, caps, budget, 0)
    }

    /// A stack that shares `budget`, which takes the place of [`Config::memory`], with others. `worker` is its number
    /// among them, less than [`crate::budget::WORKERS_MAX`]; see [`Stack::take_wakes`].
    pub fn sharing(config: Config, keys: Keys, caps: LinkCaps, budget: Arc<Budget>, worker: u32) -> Self {
        Self {
            worker,
            policy: Policy::new(&config.rules),
            env: Env::new(config, caps, keys.isn, budget, worker),
            flows: FlowTable::new(keys.table),
            scratch: vec![0; SCRATCH].into_boxed_slice(),
            inbox: Inbox::default(),
            fragments: Fragments::default(),
            advertise_at: None,
            recorder: Recorder::new(),
        }
    }

    /// Handles frames from the guest, in order. Segments of one bulk transfer that stand together are written to the
    /// host socket together, so a driver does well to hand in what it has.
    pub fn frames<L: Link, H: Host>(&mut self, io: &mut Io<'_, L, H>, mut frames: &[RxFrame<'_>]) {
        self.recorder.now = io.now;
        while let Some(first) = frames.first() {
            let together = self.bulk(io, frames);
            if together == 0 {
                self.frame(io, first.meta, first.bytes);
            }
            frames = &frames[together.max(1)..];
        }
    }

    /// Handles one frame from the guest.
    pub fn frame<L: Link, H: Host>(&mut self, io: &mut Io<'_, L, H>, meta: RxMeta, frame: &[u8]) {
        self.recorder.now = io.now;
        self.env.counters.rx_frames += 1;
        self.env.counters.rx_bytes += frame.len() as u64;
        if let Err(reason) = self.dispatch(io, meta, frame) {
            self.env.counters.drop(reason);
        }
    }

    /// Notes what a host socket is ready for; most work is done by [`Stack::serve`]. Events for flows that are gone
    /// are ignored.
    pub fn socket_event<L: Link, H: Host>(&mut self, io: &mut Io<'_, L, H>, flow: FlowId, ready: Readiness) {
        self.recorder.now = io.now;
        match self.flows.get_mut(flow) {
            Some(Flow::Tcp(connection)) => connection.socket_event(&mut self.env, io, ready),
            Some(Flow::Datagram(datagrams)) => datagrams.socket_event(&mut self.env, io, ready),
            Some(Flow::Dns(questions)) => questions.socket_event(&mut self.env, ready),
            None => return,
        }
        self.after(io.host, flow);
    }

    /// The link has credit again after [`crate::link::NoCredit`]. [`Stack::serve`] and [`Stack::flush`] go on.
    pub fn link_writable(&mut self) {
        self.env.outlet.stalled = false;
    }

    /// The link's ring toward us holds so many frames, and loses those that find it full: windows are offered so that together
    /// they fit. `None`, as at the start: it loses none. It may change while flows are open; what was promised stands.
    pub fn set_ring(&mut self, frames: Option<u32>) {
        self.env.outlet.slots.set_ring(frames);
    }

    /// Frames of the link's ring that windows may claim, and how many they do; `None` if that is not bounded.
    pub fn use_of_ring(&self) -> Option<(u32, u32)> {
        self.env.outlet.slots.use_of_ring()
    }

    /// The link was read until it had nothing more.
    pub fn link_drained(&mut self) {
        self.env.outlet.slots.drained();
    }

    /// Whether [`Stack::serve`] does nothing until [`Stack::link_drained`]: what answers to more frames might find the link's
    /// ring full ([`Stack::set_ring`]).
    pub fn awaits_drain(&self) -> bool {
        self.env.outlet.slots.sendable() == 0
    }

    /// Whether the stack waits for [`Stack::link_writable`].
    pub fn is_stalled(&self) -> bool {
        self.env.outlet.stalled
    }

    /// One round over the flows that have something to do: all sparse ones, then others until [`ROUND_BYTES`] were
    /// sent (see [`crate::schedule`]). True if there is more to do at once.
    pub fn serve<L: Link, H: Host>(&mut self, io: &mut Io<'_, L, H>) -> bool {
        self.recorder.now = io.now;
        if !self.inbox.is_empty() && self.inbox.deliver(&mut self.env, io.link).is_err() {
            return false;
        }
        let (sparse, bulk) = self.env.schedule.len();
        for _ in 0..sparse {
            if self.env.outlet.stalled || self.awaits_drain() {
                break;
            }
            if let Some(id) = self.env.schedule.next_sparse() {
                self.serve_flow(io, id);
            }
        }
        let end = self.env.counters.tx_bytes + ROUND_BYTES;
        for _ in 0..bulk {
            if self.env.outlet.stalled || self.awaits_drain() || self.env.counters.tx_bytes >= end {
                break;
            }
            if let Some(id) = self.env.schedule.next_bulk() {
                self.serve_flow(io, id);
            }
        }
        let more = self.wake(io);
        (more || !self.env.schedule.is_empty()) && !self.env.outlet.stalled
    }

    fn serve_flow<L: Link, H: Host>(&mut self, io: &mut Io<'_, L, H>, id: FlowId) {
        match self.flows.get_mut(id) {
            Some(Flow::Tcp(connection)) => connection.serve(&mut self.env, io),
            Some(Flow::Datagram(flow)) => flow.serve(&mut self.env, io, &mut self.inbox),
            Some(Flow::Dns(flow)) => flow.serve(&mut self.env, io, &mut self.scratch),
            None => return,
        }
        self.used(id, io.now);
        self.after(io.host, id);
    }

    /// Lets flows that wait for memory look again after some was given back. True if more of them may.
    fn wake<L: Link, H: Host>(&mut self, io: &mut Io<'_, L, H>) -> bool {
        let mut more = false;
        for need in Need::ALL {
            for _ in 0..self.env.waiting(need).wakeable() {
                let Some(id) = self.env.waiting(need).pop() else { break };
                if let Some(Flow::Tcp(connection)) = self.flows.get_mut(id) {
                    connection.memory_freed(&mut self.env, io.now, need);
                    self.after(io.host, id);
                }
            }
            more |= self.env.waiting(need).rest();
        }
        more
    }

    /// The other workers that have to turn because memory was given back since the last call, one bit each.
    pub fn take_wakes(&mut self) -> u64 {
        self.env.pool.take_wakes() & !(1 << self.worker)
    }

    /// Sends the acknowledgements and window updates that have become due in this turn.
    pub fn flush<L: Link, H: Host>(&mut self, io: &mut Io<'_, L, H>) {
        let mut due = std::mem::take(&mut self.env.ack_due);
        let mut done = 0;
        for &id in &due {
            if let Some(Flow::Tcp(connection)) = self.flows.get_mut(id)
                && connection.acknowledge_now(&mut self.env, io).is_err()
            {
                break;
            }
            done += 1;
        }
        // What the link had no credit for stays listed.
        due.drain(..done);
        due.append(&mut self.env.ack_due);
        self.env.ack_due = due;
    }

    /// Expires timers.
    pub fn expire<L: Link, H: Host>(&mut self, io: &mut Io<'_, L, H>) {
        self.recorder.now = io.now;
        self.env.outlet.slots.advance(io.now);
        for need in Need::ALL {
            let flows = &self.flows;
            let waiting = self.env.waiting(need);
            waiting.prune(flows.len(), |id| flows.get(id).is_some());
            waiting.watch(io.now);
        }
        self.env.wheel.advance(io.now);
        while let Some(id) = self.env.wheel.pop() {
            match self.flows.get_mut(id) {
                Some(Flow::Tcp(connection)) => connection.expire(&mut self.env, io),
                Some(Flow::Datagram(flow)) => flow.expire(&mut self.env, io.now),
                Some(Flow::Dns(flow)) => flow.expire(&mut self.env, io),
                None => continue,
            }
            self.after(io.host, id);
        }
        self.expire_fragments(io);
        if self.advertise_at.is_some_and(|at| at <= io.now) {
            self.advertise_at = Some(io.now + services::ndp::ADVERTISE_EVERY);
            if let Some(len) = services::ndp::advertise(&self.env.config, None, &mut self.scratch) {
                icmp::send(&mut self.env, io.link, &self.scratch[..len]);
            }
        }
    }

    /// When [`Stack::expire`] must be called next, if at all.
    pub fn next_deadline(&self) -> Option<Instant> {
        let watch = [self.env.reads.watch_at(), self.env.windows.watch_at()];
        watch
            .into_iter()
            .chain([self.env.wheel.next(), self.advertise_at, self.fragments.next_deadline()])
            .flatten()
            .min()
    }

    /// The host's resolvers.
    pub fn resolvers(&self) -> &[SocketAddr] {
        &self.env.config.resolvers
    }

    /// What was counted since the start.
    pub fn counters(&self) -> &Counters {
        &self.env.counters
    }

    /// The text of every rule about new flows and how many it has refused: the floor, the deny rules in their order, the
    /// limits.
    pub fn rules(&self) -> impl Iterator<Item = (&str, u64)> {
        self.policy.counts()
    }

    /// What is known of every TCP connection at `now`.
    pub fn tcp_infos(&self, now: Instant) -> impl Iterator<Item = TcpInfo> {
        self.flows.iter().filter_map(move |(_, flow)| match flow {
            Flow::Tcp(connection) => Some(connection.info(&self.env, now)),
            Flow::Datagram(_) | Flow::Dns(_) => None,
        })
    }

    /// Flows open now.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Bytes of payload memory in use now, by all who share the budget.
    pub fn memory_used(&self) -> usize {
        self.env.pool.budget().used()
    }

    /// Bytes of payload memory that there may be, for all who share the budget.
    pub fn memory_budget(&self) -> usize {
        self.env.pool.budget().total()
    }

    /// Bytes that guests may still send into windows, as far as they count, by all who share the budget.
    pub fn memory_promised(&self) -> usize {
        self.env.pool.budget().promised()
    }

    /// Bytes that the state of all flows takes: their table, timers and lists. Payload is not among it.
    pub fn state_allocated(&self) -> usize {
        let lists = self.env.schedule.capacity() + self.env.ack_due.capacity();
        let beside: usize = self
            .flows
            .iter()
            .map(|(_, flow)| match flow {
                Flow::Tcp(connection) => connection.allocated(),
                Flow::Datagram(_) => 0,
                Flow::Dns(flow) => flow.allocated(),
            })
            .sum();
        let waiting = self.env.reads.allocated() + self.env.windows.allocated();
        let waiting = waiting + self.env.dns.allocated() + self.fragments.allocated();
        self.flows.allocated() + self.env.wheel.allocated() + waiting + lists * size_of::<FlowId>() + beside
    }

    /// After anything that may have changed a flow: removes it if it has ended, else sees to its timer.
    fn after<H: Host>(&mut self, host: &mut H, id: FlowId) {
        match self.flows.get_mut(id) {
            None => {}
            Some(flow) if flow.has_ended() => self.remove(host, id),
            Some(Flow::Tcp(connection)) => {
                connection.count_promise(&mut self.env);
                connection.arm(&mut self.env);
            }
            Some(Flow::Datagram(flow)) => flow.arm(&mut self.env),
            Some(Flow::Dns(flow)) => flow.arm(&mut self.env),
        }
    }

    fn remove<H: Host>(&mut self, host: &mut H, id: FlowId) {
        self.env.wheel.cancel(id);
        self.note_end(id);
        let removed = self.flows.remove(id);
        if let Some(flow) = &removed {
            self.policy.closed(flow.key().remote.ip(), id);
        }
        match removed {
            Some(Flow::Tcp(mut connection)) => {
                connection.dispose(&mut self.env, host);
                self.env.counters.tcp_closed += 1;
            }
            Some(Flow::Datagram(mut flow)) => {
                flow.dispose(&mut self.env, host);
                self.env.counters.datagram_closed += 1;
            }
            Some(Flow::Dns(mut flow)) => flow.dispose(&mut self.env, host),
            None => {}
        }
    }

    /// Notes that a flow has been used, and what it is good for by now.
    fn used(&mut self, id: FlowId, now: Instant) {
        let Some(flow) = self.flows.get(id) else { return };
        self.flows.touch(id, flow.usefulness() as usize, now);
    }

    /// Whether there is room for one more flow, if need be made by evicting the least useful.
    fn make_room<H: Host>(&mut self, host: &mut H, now: Instant) -> bool {
        if self.flows.len() < self.env.config.max_flows {
            return true;
        }
        let victim = self.flows.victim(now, |flow, idle| match flow {
            Flow::Tcp(connection) => connection.eviction_rank(idle),
            Flow::Datagram(flow) => Some(flow.eviction_rank(idle)),
            Flow::Dns(_) => Some(DnsFlow::eviction_rank(idle)),
        });
        let Some(victim) = victim else { return false };
        if let Some(flow) = self.flows.get_mut(victim) {
            flow.ends_by(EndCause::Evicted);
        }
        self.remove(host, victim);
        self.env.counters.flows_evicted += 1;
        true
    }
}
