//! Restoring of a stack from a snapshot, whose bytes are not trusted.
//!
//! A new stack takes over one record after another. State shared by all flows is taken as it is, or left
//! as new; a flow is taken whole, with the quotas of a new one but without admission, or is lost. Orders
//! come last. Flows about which an order says nothing are put into it as if something had just happened to
//! them: a turn too many is harmless, a missing one would leave them hanging.

use super::super::{EvictionGroup, Flow, FlowId, FlowKey, Protocol, Stack};
use super::{Adopt, Keys, Lost, MAGIC, SocketKind};
use crate::carried::CarriedFlow;
use crate::config::Config;
use crate::connection::Connection;
use crate::connection::snapshot::Identity;
use crate::datagram::DatagramFlow;
use crate::destination;
use crate::flow::info::{Carrier, Initiator};
use crate::flow::table;
use crate::flow_kind::FlowKind;
use crate::host::SocketId;
use crate::icmp;
use crate::link::LinkCaps;
use crate::memory::budget::{Budget, Need};
use crate::memory::payload::PayloadMemory;
use crate::policy::{Class, DomainName, Named};
use crate::snapshot::saved::{Invalid, Saved, is_count, valid};
use crate::snapshot::v1::{
    BeginV1, CarriedV1, ChargedFromV1, CountersV1, DatagramV1, DnsCacheV1, DnsV1, EndV1, FlowIdV1, FlowV1,
    GateV1, GatedDatagramsV1, GatedTcpV1, GuestAddressesV1, InboxV1, KeysV1, LearntV1, LinkV1, NamedServerV1,
    ParkedV1, PathMtuV1, PinsV1, PolicyTotalsV1, PolicyV1, QuicGateV1, ScheduleV1, StackV1, TableV1,
    TcpSharedV1, TcpV1, TimersV1, UnconfirmedTcpV1, UnconfirmedV1, UsageV1,
};
use crate::snapshot::v2::NamedServerV2;
use crate::snapshot::{Record, Records, RestoreError, Tag};
use crate::tcp::prompt_peers::PromptPeers;
use crate::tcp::rtt::LinkRtt;
use crate::time::Instant;
use crate::tx_queue::TxQueueBudget;
use crate::wire::ethernet::MacAddr;
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Settings of a restored stack, which no snapshot can change.
#[derive(Debug)]
pub struct Settings {
    /// Configuration, with the resolvers and search names of now.
    pub config: Config,
    /// Capabilities of the guest link.
    pub caps: LinkCaps,
    /// Budget of the payload memory, new and shared with the other workers.
    pub budget: Arc<Budget>,
    /// Number among the workers, as in [`Stack::sharing`].
    pub worker: u32,
    /// The host's own addresses, as for [`Stack::set_host_addresses`]: rules for the host that limit flows
    /// are about them.
    pub host_addresses: Arc<[IpAddr]>,
    /// Payload memory that outlives the process ([`Stack::use_payload_memory`]).
    pub payload: Option<PayloadMemory>,
    /// Memory for the flows, if some was made ready.
    pub room: Option<Room>,
}

/// Memory for flows, made ready before the flows are there, while the guest does not wait.
pub struct Room(table::Room<Flow>);

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").finish_non_exhaustive()
    }
}

impl Room {
    /// Of so many flows: some 1.2 KiB for each.
    pub fn of(flows: usize) -> Self {
        Self(table::Room::of(flows))
    }
}

/// A restored stack.
pub struct Restored {
    /// The stack. The driver makes a turn.
    pub stack: Stack,
    /// Flows that could not be restored, to be reset ([`Stack::reset_lost`]).
    pub lost: Vec<Lost>,
    /// Records that were not used: of unknown tags or versions, or without valid content.
    pub unused: usize,
}

/// A stack in the making.
pub(super) struct Rebuild<'a, A> {
    pub(super) stack: Stack,
    pub(super) now: Instant,
    pub(super) adopt: &'a mut A,
    /// Descriptors that were claimed.
    pub(super) claimed: BTreeSet<u32>,
    flows: usize,
    pub(super) lost: Vec<Lost>,
    unused: usize,
    table: Option<TableV1>,
    timers: Option<TimersV1>,
    schedule: Option<ScheduleV1>,
    parked: Option<ParkedV1>,
    charged_from: Vec<(FlowIdV1, [u64; 2])>,
}

impl Stack {
    /// A stack that goes on where the saved one was. `bytes` are the records that [`Stack::save`] has
    /// given, each as [`Record::write`] writes it; `now` is a time of the same clock; `adopt` has the
    /// sockets.
    ///
    /// # Errors
    /// [`RestoreError`] if there is nothing to begin with; then no socket was claimed.
    pub fn restore(
        settings: Settings,
        now: Instant,
        bytes: &[u8],
        adopt: &mut impl Adopt,
    ) -> Result<Restored, RestoreError> {
        let records: Vec<Record<'_>> = Records::new(bytes).collect();
        let keys = check_frame(&records, now)?;
        let Settings { config, caps, budget, worker, host_addresses, payload, room } = settings;
        let secrets = Keys { table: keys.table, isn: keys.isn, dns: keys.dns };
        let mut stack = Self::sharing(config, secrets, caps, budget, worker);
        stack.set_host_addresses(host_addresses);
        if let Some(payload) = payload {
            stack.use_payload_memory(payload);
        }
        let drawn = stack.shared.dns.restore_drawn(keys.dns_drawn);
        drawn.map_err(|Invalid| RestoreError::NoKeys)?;
        let mut rebuild = Rebuild::new(stack, now, adopt);
        rebuild.use_room(room);
        let flows = records.iter().filter(|record| record.is(Tag::Flow)).count();
        rebuild.make_room(flows);
        rebuild.take_records(&records);
        Ok(rebuild.finish())
    }

    /// Sums over all flows agree with what was counted.
    fn check_restored(&self) {
        let inbound = |(_, flow): &(FlowId, &Flow)| flow.eviction_group() == EvictionGroup::Peer;
        debug_assert_eq!(self.flows.iter().filter(inbound).count(), self.inbound.flows(), "inbound flows");
        debug_assert!(self.flows.len() <= self.shared.config.max_flows, "more flows than the table may have");
        debug_assert!(self.memory_used() <= self.memory_budget(), "more memory than the budget has");
        for (_, flow) in self.flows.iter() {
            if let Flow::Tcp(connection) = flow {
                connection.check();
            }
        }
    }
}

/// Checks the first and the last record, and gives the keys.
fn check_frame(records: &[Record<'_>], now: Instant) -> Result<KeysV1, RestoreError> {
    let first = records.first().filter(|first| first.is(Tag::Begin)).ok_or(RestoreError::NotASnapshot)?;
    if first.version != 1 {
        return Err(RestoreError::UnknownVersion(first.version));
    }
    let begin: BeginV1 = first.v1().ok_or(RestoreError::NotASnapshot)?;
    if begin.magic != MAGIC {
        return Err(RestoreError::NotASnapshot);
    }
    let end: Option<EndV1> = records.last().filter(|last| last.is(Tag::End)).and_then(Record::v1);
    if end.is_none_or(|end| end.records as usize + 1 != records.len()) {
        return Err(RestoreError::Truncated);
    }
    if Instant::from_ns(begin.saved_at) > now {
        return Err(RestoreError::ClockBehind);
    }
    records.iter().find(|record| record.is(Tag::Keys)).and_then(Record::v1).ok_or(RestoreError::NoKeys)
}

impl<'a, A: Adopt> Rebuild<'a, A> {
    /// Nothing restored yet.
    pub(super) fn new(stack: Stack, now: Instant, adopt: &'a mut A) -> Self {
        Self {
            stack,
            now,
            adopt,
            claimed: BTreeSet::new(),
            flows: 0,
            lost: Vec::new(),
            unused: 0,
            table: None,
            timers: None,
            schedule: None,
            parked: None,
            charged_from: Vec::new(),
        }
    }

    /// Uses the memory that was made ready.
    pub(super) fn use_room(&mut self, room: Option<Room>) {
        if let Some(Room(room)) = room {
            self.stack.flows.use_room(room);
        }
    }

    /// Makes room in the table for so many flows, as far as it may have them.
    pub(super) fn make_room(&mut self, flows: usize) {
        let flows = flows.min(self.slots_max());
        self.stack.flows.make_room(flows);
    }

    /// The stack with the orders of its flows.
    pub(super) fn finish(mut self) -> Restored {
        self.take_orders();
        let Self { mut stack, lost, unused, now, charged_from, .. } = self;
        stack.count_restored(now, charged_from);
        stack.check_restored();
        Restored { stack, lost, unused }
    }

    /// Takes every record but the first and the last.
    fn take_records(&mut self, records: &[Record<'_>]) {
        let mut at = records.iter().peekable();
        while let Some(record) = at.next() {
            let taken = if record.is(Tag::Flow) {
                let body = at.next_if(|next| is_flow_body(next));
                self.take_flow(record, body)
            } else {
                self.take_shared(record)
            };
            self.unused += usize::from(taken.is_err());
        }
    }

    /// Takes a record that belongs to no flow.
    fn take_shared(&mut self, record: &Record<'_>) -> Result<(), Invalid> {
        let (now, stack) = (self.now, &mut self.stack);
        match record {
            // Read before.
            _ if [Tag::Begin, Tag::Keys, Tag::End].iter().any(|&tag| record.is(tag)) => {}
            _ if record.is(Tag::Counters) => take_counters(stack, &record.v1().ok_or(Invalid)?),
            _ if record.is(Tag::Policy) => {
                stack.policy.restore(now, &record.v1::<PolicyV1<'_>>().ok_or(Invalid)?);
            }
            _ if record.is(Tag::Pins) => {
                let (config, hosts) = (&stack.shared.config, &stack.shared.dns.hosts);
                let wanted = |name: &DomainName, address| {
                    !destination::is_mapped(config, address) || hosts.has_text(name.as_str())
                };
                stack.policy.restore_pins(now, &record.v1::<PinsV1>().ok_or(Invalid)?, wanted);
            }
            _ if record.is(Tag::Usage) => {
                stack.policy.restore_usage(&record.v1::<UsageV1>().ok_or(Invalid)?);
            }
            _ if record.is(Tag::ChargedFrom) => {
                let ChargedFromV1 { flows } = record.v1().ok_or(Invalid)?;
                self.charged_from.extend(flows.into_iter().take(self.slots_max()));
            }
            _ if record.is(Tag::Wildcards) => {
                stack.policy.restore_wildcards(now, record.v1().ok_or(Invalid)?);
            }
            _ if record.is(Tag::PolicyTotals) => {
                stack.policy.restore_totals(&record.v1::<PolicyTotalsV1>().ok_or(Invalid)?);
            }
            _ if record.is(Tag::NamedServer) => {
                let saved = record.v2().or_else(|| record.v1::<NamedServerV1<'_>>().map(Into::into));
                take_named(stack, &saved.ok_or(Invalid)?)?;
            }
            _ if record.is(Tag::PathMtu) => {
                let PathMtuV1 { mtu, until } = record.v1().ok_or(Invalid)?;
                valid(mtu >= icmp::PATH_MTU_MIN_V6)?;
                stack.shared.tx.across.set_path_mtu(mtu, Instant::restore(until)?);
            }
            _ if record.is(Tag::Link) => take_link(stack, record.v1().ok_or(Invalid)?)?,
            _ if record.is(Tag::GuestAddresses) => {
                let GuestAddressesV1 { v4, v6 } = record.v1().ok_or(Invalid)?;
                for seen in [v4, v6].into_iter().flatten() {
                    stack.set_seen(seen);
                }
            }
            _ if record.is(Tag::Tcp) => {
                let TcpSharedV1 { rtt, prompt_peers } = record.v1().ok_or(Invalid)?;
                stack.shared.tcp.rtt = LinkRtt::restore(rtt)?;
                stack.shared.tcp.prompt_peers = PromptPeers::restore(prompt_peers)?;
            }
            _ if record.is(Tag::Resolvers) => {
                stack.shared.dns.restore_resolvers(record.v1::<DnsV1>().ok_or(Invalid)?)?;
            }
            _ if record.is(Tag::DnsCache) => {
                stack.shared.dns.restore_cache(&record.v1::<DnsCacheV1<'_>>().ok_or(Invalid)?);
            }
            _ if record.is(Tag::LearntNames) => {
                stack.shared.dns.restore_learnt(&record.v1::<LearntV1<'_>>().ok_or(Invalid)?);
            }
            _ if record.is(Tag::Inbox) && stack.buffers.inbox.is_empty() => {
                stack.buffers.inbox.restore(&record.v1::<InboxV1<'_>>().ok_or(Invalid)?)?;
            }
            _ if record.is(Tag::Stack) => take_stack(stack, now, &record.v1().ok_or(Invalid)?),
            _ if record.is(Tag::Table) => self.table = Some(record.v1().ok_or(Invalid)?),
            _ if record.is(Tag::Timers) => self.timers = Some(record.v1().ok_or(Invalid)?),
            _ if record.is(Tag::Schedule) => self.schedule = Some(record.v1().ok_or(Invalid)?),
            _ if record.is(Tag::Parked) => self.parked = Some(record.v1().ok_or(Invalid)?),
            _ => return Err(Invalid),
        }
        Ok(())
    }

    /// Takes a flow, or notes it as lost: as it was saved, if it has no record of its kind.
    fn take_flow(&mut self, record: &Record<'_>, body: Option<&Record<'_>>) -> Result<(), Invalid> {
        let FlowV1 { id, key, socket, reset } = record.v1().ok_or(Invalid)?;
        let (id, key) = (FlowId::restore(id)?, FlowKey::restore(key)?);
        let restored = body.map(|body| self.insert_flow(id, key, socket, body));
        if restored != Some(Ok(())) && self.lost.len() < self.slots_max() {
            self.lost.push(Lost { flow: id, key, socket, reset: Saved::restore(reset)? });
        }
        restored.unwrap_or(Ok(()))
    }

    /// Slots that the flow table may have: one beyond the flows is reserved for the next.
    pub(super) fn slots_max(&self) -> usize {
        self.stack.shared.config.max_flows.saturating_add(1)
    }

    /// Restores a flow and puts it into the table.
    fn insert_flow(
        &mut self,
        id: FlowId,
        key: FlowKey,
        socket: Option<u32>,
        body: &Record<'_>,
    ) -> Result<(), Invalid> {
        let indexed = !body.is(Tag::CarriedFlow);
        self.check_place(id, &key, indexed)?;
        let flow = match body {
            _ if body.is(Tag::TcpFlow) => {
                self.tcp(id, key, socket, &body.v1().ok_or(Invalid)?, Standing::Plain)?
            }
            _ if body.is(Tag::UnconfirmedFlow) => {
                let UnconfirmedTcpV1 { unconfirmed, tcp } = body.v1().ok_or(Invalid)?;
                self.tcp(id, key, socket, &tcp, Standing::Unconfirmed(unconfirmed))?
            }
            _ if body.is(Tag::GatedTcpFlow) => {
                let GatedTcpV1 { gate, tcp } = body.v1().ok_or(Invalid)?;
                self.tcp(id, key, socket, &tcp, Standing::Gated(&gate))?
            }
            _ if body.is(Tag::DatagramFlow) => {
                self.datagrams(id, key, socket, &body.v1().ok_or(Invalid)?, None)?
            }
            _ if body.is(Tag::GatedDatagramFlow) => {
                let GatedDatagramsV1 { gate, datagrams } = body.v1().ok_or(Invalid)?;
                self.datagrams(id, key, socket, &datagrams, Some(&gate))?
            }
            _ if body.is(Tag::CarriedFlow) => self.carried(id, key, &body.v1().ok_or(Invalid)?)?,
            _ => return Err(Invalid),
        };
        self.place(id, indexed, flow);
        Ok(())
    }

    /// Checks that there is a place for a flow with this id and key, which is `indexed` by its key or not.
    pub(super) fn check_place(&self, id: FlowId, key: &FlowKey, indexed: bool) -> Result<(), Invalid> {
        valid((id.index as usize) < self.slots_max() && self.flows < self.stack.shared.config.max_flows)?;
        valid(self.stack.flows.has_place(id, indexed.then_some(key)))?;
        valid(!indexed || self.stack.is_guest(key.guest.ip()))
    }

    /// Puts a flow into its place, and counts it.
    pub(super) fn place(&mut self, id: FlowId, indexed: bool, flow: Flow) {
        let initiator = flow.initiator();
        self.stack.flows.place(id, indexed, flow);
        self.flows += 1;
        self.stack.count_in_share(id);
        if initiator == Initiator::Guest {
            // Pins that are past their time have waited for their flows.
            self.stack.hold_destination(Instant::ZERO, id);
        }
    }

    /// Checks the share of the table that a flow of this group would have.
    pub(super) fn check_share(&self, key: &FlowKey, group: EvictionGroup) -> Result<(), Invalid> {
        let stack = &self.stack;
        valid(match group {
            EvictionGroup::Guest => true,
            EvictionGroup::GuestUdp => stack.guest_udp < stack.shared.config.max_udp_flows.max(1),
            EvictionGroup::Peer => !stack.inbound.is_spent() && !stack.inbound.is_spent_by(key.remote.ip()),
        })
    }

    /// The driver's socket for a descriptor.
    pub(super) fn socket(&mut self, flow: FlowId, index: u32, kind: SocketKind) -> Result<SocketId, Invalid> {
        valid(self.claimed.insert(index))?;
        self.adopt.socket(flow, index, kind).ok_or(Invalid)
    }

    fn tcp(
        &mut self,
        id: FlowId,
        key: FlowKey,
        socket: Option<u32>,
        saved: &TcpV1<'_>,
        standing: Standing<'_>,
    ) -> Result<Flow, Invalid> {
        let group = if saved.inbound { EvictionGroup::Peer } else { EvictionGroup::Guest };
        self.check_share(&key, group)?;
        let identity = Identity { id, key, socket: socket.map(SocketId) };
        let (now, shared) = (self.now, &mut self.stack.shared);
        let unconfirmed =
            if let Standing::Unconfirmed(unconfirmed) = standing { Some(unconfirmed) } else { None };
        let mut connection = Connection::restore(shared, now, &identity, saved, unconfirmed)?;
        if let Standing::Gated(gate) = standing
            && connection.restore_gate(shared, now, gate).is_err()
        {
            connection.release(shared);
            return Err(Invalid);
        }
        if let Some(index) = socket {
            let kind = if connection.is_connecting() { SocketKind::Connecting } else { SocketKind::Stream };
            let Ok(socket) = self.socket(id, index, kind) else {
                connection.release(&mut self.stack.shared);
                return Err(Invalid);
            };
            connection.adopt_socket(socket);
        }
        Ok(Flow::Tcp(connection))
    }

    fn datagrams(
        &mut self,
        id: FlowId,
        key: FlowKey,
        socket: Option<u32>,
        saved: &DatagramV1<'_>,
        gate: Option<&QuicGateV1<'_>>,
    ) -> Result<Flow, Invalid> {
        let (kind, group) = match (key.protocol, saved.inbound) {
            (Protocol::Echo, _) => (SocketKind::Echo, EvictionGroup::Guest),
            (_, false) => (SocketKind::of_udp(&self.stack.shared.config, &key), EvictionGroup::GuestUdp),
            (_, true) => (SocketKind::PublishedUdp, EvictionGroup::Peer),
        };
        self.check_share(&key, group)?;
        let index = socket.ok_or(Invalid)?;
        let (now, shared) = (self.now, &mut self.stack.shared);
        let mut flow = DatagramFlow::restore(shared, id, key, SocketId(index), saved)?;
        let gated = gate.map_or(Ok(()), |gate| flow.restore_gate(shared, now, gate));
        let socket = gated.and_then(|()| self.socket(id, index, kind));
        let Ok(socket) = socket else {
            flow.release(&mut self.stack.shared);
            return Err(Invalid);
        };
        flow.adopt_socket(socket);
        Ok(Flow::Datagram(flow))
    }

    fn carried(&mut self, id: FlowId, key: FlowKey, saved: &CarriedV1) -> Result<Flow, Invalid> {
        let flow = Flow::Carried(CarriedFlow::restore(id, key, saved.number, saved)?);
        self.check_share(&key, flow.eviction_group())?;
        let number = self.adopt.carrier(id, Carrier::restore(saved.carrier)?, saved.number);
        Ok(Flow::Carried(CarriedFlow::restore(id, key, number.ok_or(Invalid)?, saved)?))
    }

    /// Restores the orders in which flows stand.
    fn take_orders(&mut self) {
        let (now, slots_max) = (self.now, self.slots_max());
        let list_of = |flow: &Flow| flow.eviction_class().list(flow.eviction_group());
        self.stack.flows.restore_order(now, slots_max, self.table.as_ref(), list_of);
        self.take_parked();
        self.take_schedule();
        self.take_timers();
    }

    fn take_timers(&mut self) {
        let Stack { flows, shared, .. } = &mut self.stack;
        let start =
            TimersV1 { now: self.now.as_ns() / crate::timer::TICK.as_nanos() as u64, entries: Vec::new() };
        let saved = self.timers.as_ref().unwrap_or(&start);
        shared.timers.restore(self.now, saved, |index| flows.id_at(index));
        let unarmed = flows.iter().map(|(id, _)| id).filter(|id| !shared.timers.is_armed(id.index));
        for id in unarmed.collect::<Vec<FlowId>>() {
            if let Some(flow) = flows.get_mut(id) {
                flow.reschedule(shared);
            }
        }
    }

    fn take_schedule(&mut self) {
        let Stack { flows, shared, .. } = &mut self.stack;
        let all = || flows.iter().map(|(id, _)| id.save()).collect::<Vec<FlowIdV1>>();
        let saved = self.schedule.take();
        let ScheduleV1 { sparse, bulk, ack_due } =
            saved.unwrap_or_else(|| ScheduleV1 { sparse: all(), bulk: Vec::new(), ack_due: Vec::new() });
        // A flow that is gone may still be listed, and counts: it is skipped when its turn comes.
        let listed_max = shared.config.max_flows.saturating_add(1).saturating_mul(4);
        for (list, waits) in [(sparse, false), (bulk, true)] {
            for FlowIdV1 { index, generation } in list.into_iter().take(listed_max) {
                let id = FlowId { index, generation };
                match flows.get_mut(id) {
                    Some(Flow::Tcp(connection)) => {
                        shared.ready.restore(id, Some(connection.turn_mut()), waits);
                    }
                    Some(Flow::Datagram(flow)) => shared.ready.restore(id, Some(flow.turn_mut()), waits),
                    Some(Flow::Dns(_) | Flow::Carried(_)) => {}
                    None => shared.ready.restore(id, None, waits),
                }
            }
        }
        let mut listed = BTreeSet::new();
        for FlowIdV1 { index, generation } in ack_due.into_iter().take(listed_max) {
            listed.insert(FlowId { index, generation });
            shared.tcp.ack_due.push(FlowId { index, generation });
        }
        let owes = |(id, flow): (FlowId, &Flow)| match flow {
            Flow::Tcp(connection) if connection.owes_ack() && !listed.contains(&id) => Some(id),
            _ => None,
        };
        shared.tcp.ack_due.extend(flows.iter().filter_map(owes));
    }

    /// Flows parked for memory. Without their list all look for memory again.
    fn take_parked(&mut self) {
        let Stack { flows, shared, .. } = &mut self.stack;
        let ids: Vec<FlowId> = flows.iter().map(|(id, _)| id).collect();
        let Some(ParkedV1 { reads, windows }) = &self.parked else {
            for id in ids {
                if let Some(Flow::Tcp(connection)) = flows.get_mut(id) {
                    for need in Need::ALL {
                        connection.memory_freed(shared, self.now, need);
                    }
                }
            }
            return;
        };
        for (need, saved) in [(Need::Read, reads), (Need::Window, windows)] {
            shared.memory.parked(need).restore(ids.len(), saved);
            for id in shared.memory.parked(need).flows() {
                if let Some(Flow::Tcp(connection)) = flows.get_mut(id) {
                    connection.restore_parked(need);
                }
            }
        }
    }
}

/// Condition of a connection beside its record.
#[derive(Debug, Clone, Copy)]
enum Standing<'a> {
    Plain,
    /// The guest has to confirm something first.
    Unconfirmed(UnconfirmedV1),
    /// It is behind a gate.
    Gated(&'a GateV1<'a>),
}

/// Whether a record is that of a flow's kind, known or not, and not the next flow or something shared.
fn is_flow_body(record: &Record<'_>) -> bool {
    let others = [
        Tag::Begin,
        Tag::Keys,
        Tag::Counters,
        Tag::Policy,
        Tag::Link,
        Tag::Tcp,
        Tag::Resolvers,
        Tag::DnsCache,
        Tag::LearntNames,
        Tag::Inbox,
        Tag::Stack,
        Tag::Table,
        Tag::Flow,
        Tag::Timers,
        Tag::Schedule,
        Tag::Parked,
        Tag::End,
        Tag::Pins,
        Tag::NamedServer,
        Tag::Usage,
        Tag::GuestAddresses,
        Tag::PolicyTotals,
        Tag::ChargedFrom,
        Tag::Wildcards,
        Tag::PathMtu,
    ];
    !others.iter().any(|&tag| record.is(tag))
}

fn take_counters(stack: &mut Stack, saved: &CountersV1<'_>) {
    for (name, count) in saved.counters.iter().filter(|(_, count)| is_count(*count)) {
        stack.shared.counters.set(name, *count);
    }
    for (name, count) in saved.drops.iter().filter(|(_, count)| is_count(*count)) {
        stack.shared.counters.set_dropped(name, *count);
    }
}

fn take_link(stack: &mut Stack, saved: LinkV1) -> Result<(), Invalid> {
    let LinkV1 { guest_mac, ident, stalled, queue } = saved;
    let queue = TxQueueBudget::restore(queue)?;
    let tx = &mut stack.shared.tx;
    (tx.guest_mac, tx.stalled, tx.queue) = (MacAddr(guest_mac), stalled, queue);
    tx.across.skip_idents(ident);
    Ok(())
}

/// Takes the server that a connection has named. Of a flow that is lost there is none to name it.
fn take_named(stack: &mut Stack, saved: &NamedServerV2<'_>) -> Result<(), Invalid> {
    let NamedServerV2 { named: saved, encrypted } = *saved;
    let named = Named { class: Class::restore(saved.class)?, name: saved.name.0.into(), encrypted };
    match stack.flows.get_mut(FlowId::restore(saved.flow)?) {
        Some(Flow::Tcp(connection)) => connection.restore_named(named),
        Some(_) => return Err(Invalid),
        None => {}
    }
    Ok(())
}

fn take_stack(stack: &mut Stack, now: Instant, saved: &StackV1) {
    let StackV1 { icmp_errors_full_at, advertise_at, records_ends, records_openings, wakes } = *saved;
    stack.shared.icmp_errors.restore(now, Instant::from_ns(icmp_errors_full_at));
    stack.advertise_at = advertise_at.map(Instant::from_ns);
    stack.recorder.record_ends(records_ends);
    stack.recorder.record_openings(records_openings);
    stack.shared.memory.pool.add_wakes(wakes);
}
