//! Save of a stack: record after record, in the order that [`crate::snapshot`] describes.
//!
//! Restoring is in [`restore`], and in [`recover`] that from a journal.

mod recover;
mod restore;

use super::{EvictionClass, Flow, FlowId, FlowKey, Io, Keys, Platform, Stack};
use crate::config::Config;
use crate::connection::reset::{self, ResetNumbers};
use crate::destination;
use crate::flow::info::Carrier;
use crate::flow::table::Keyed;
use crate::flow_kind::FlowKind;
use crate::host::SocketId;
use crate::policy::Named;
use crate::snapshot::saved::Saved;
use crate::snapshot::v1::{
    BeginV1, Bytes, ChargedFromV1, CountersV1, EndV1, FlowV1, GatedDatagramsV1, GatedTcpV1, GuestAddressesV1,
    KeysV1, LinkV1, NamedServerV1, ParkedV1, PathMtuV1, PinsV1, ScheduleV1, StackV1, TcpSharedV1,
    UnconfirmedTcpV1,
};
use crate::snapshot::v2::NamedServerV2;
use crate::snapshot::{Record, Tag, Writer};
use crate::time::Instant;
use crate::wire::tcp::TcpFlags;
use std::net::SocketAddr;

pub use recover::Recover;
pub use restore::{Restored, Room, Settings};

/// First bytes of every snapshot.
const MAGIC: [u8; 5] = *b"brodo";

/// State that a save leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Omitted {
    /// Flows of pending DNS queries. Their sockets are not among the descriptors; the guest asks again.
    pub dns_flows: usize,
    /// Flows that a kernel socket has, or is to have, with their sockets. The driver recalls them before it
    /// saves ([`Stack::set_bulk`]).
    pub promoted: usize,
    /// Connections that end with their sockets, because a gate has refused them or the DNS service reads
    /// them, of which the numbers for a reset are saved, and those that go on without a gate which only
    /// looks on.
    pub gated: usize,
    /// Packets of which not all fragments have arrived. The guest sends them again.
    pub fragments: usize,
    /// Records of ended and opened flows, and released carriers, which the driver takes before it saves.
    pub untaken: usize,
}

/// Kind of a host socket, which its descriptor must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketKind {
    /// Stream whose connect is under way: a writable or error event is awaited.
    Connecting,
    /// Connected stream.
    Stream,
    /// UDP socket of the flow's own, for this address and port of the guest's.
    Udp(SocketAddr),
    /// UDP socket of the flow's own, for this address and port of the guest's, that sends to this group and
    /// is connected to nothing.
    Group(SocketAddr, SocketAddr),
    /// Sends from a published port, which is shared with others.
    PublishedUdp,
    /// ICMP echo socket.
    Echo,
}

impl SocketKind {
    /// The kind of the UDP socket of a flow's own.
    fn of_udp(config: &Config, key: &FlowKey) -> Self {
        let guest = key.guest.into();
        if destination::is_group(config, key.remote.ip()) {
            Self::Group(guest, destination::scoped(config, key.remote.into()))
        } else {
            Self::Udp(guest)
        }
    }

    /// The address and port of the guest's whose port on the host it has.
    pub fn guest(self) -> Option<SocketAddr> {
        if let Self::Udp(guest) | Self::Group(guest, _) = self { Some(guest) } else { None }
    }

    /// The group that it sends to.
    pub fn group(self) -> Option<SocketAddr> {
        if let Self::Group(_, group) = self { Some(group) } else { None }
    }
}

/// The driver's sockets and carriers, as a restored stack claims them.
pub trait Adopt {
    /// Socket of the flow for the descriptor at `index`, registered for the flow's events: from now on its
    /// readiness is reported, also that which was reported before. `None` if there is no such descriptor
    /// or it is of another kind; then the flow is lost. No index is claimed twice.
    fn socket(&mut self, flow: FlowId, index: u32, kind: SocketKind) -> Option<SocketId>;

    /// The carrier's present number for the flow that it knew by `number`. `None` if it does not carry it
    /// any more, or if another flow has claimed it, which is for the carrier to notice; then the flow is
    /// lost.
    fn carrier(&mut self, flow: FlowId, carrier: Carrier, number: u32) -> Option<u32>;
}

/// A flow that could not be restored. The driver closes its descriptor with a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// Id that it had.
    pub flow: FlowId,
    /// Protocol and both ends.
    pub key: FlowKey,
    /// Index of its descriptor.
    pub socket: Option<u32>,
    /// SND.NXT and RCV.NXT of a connection.
    reset: Option<ResetNumbers>,
}

impl Stack {
    /// Saves the stack as it is between two calls. `index_of` gives the index of a socket's descriptor in
    /// the list that goes with the snapshot; `write` gets one record after another. Nothing is changed:
    /// the stack may go on, if the hand-over fails.
    pub fn save(
        &self,
        now: Instant,
        mut index_of: impl FnMut(FlowId, SocketId) -> u32,
        mut write: impl FnMut(Record<'_>),
    ) -> Omitted {
        let mut records = 0;
        let mut count = |record: Record<'_>| {
            records += 1;
            write(record);
        };
        let mut writer = Writer::new(&mut count);
        writer.v1(Tag::Begin, &BeginV1 { magic: MAGIC, saved_at: now.save() });
        self.save_shared(&mut writer, now);
        let (mut dns_flows, mut gated) = (0, 0);
        for (id, flow) in self.flows.iter() {
            dns_flows += usize::from(matches!(flow, Flow::Dns(_)));
            let ends = !matches!(flow, Flow::Dns(_)) && flow.ends_with_handover();
            gated += usize::from(ends || flow.is_observed());
            self.save_flow(&mut writer, id, flow, &mut index_of);
        }
        self.save_orders(&mut writer);
        drop(writer);
        let end = EndV1 { records };
        Writer::new(&mut write).v1(Tag::End, &end);
        let untaken = self.recorder.waiting() + self.shared.released.len();
        Omitted {
            dns_flows,
            promoted: self.promoted(),
            gated,
            fragments: self.fragments.incomplete(),
            untaken,
        }
    }

    /// Resets the guest's side of connections that could not be restored, and takes them off the list. Those
    /// left have found no credit, to be tried again: the link may be down, and a guest that only receives
    /// has no next segment that would meet a reset.
    pub fn reset_lost<P: Platform>(&mut self, io: &mut Io<'_, P>, lost: &mut Vec<Lost>) {
        let sent = lost.iter().take_while(|Lost { key, reset, .. }| {
            let Some(numbers) = *reset else { return true };
            let flags = TcpFlags::RST | TcpFlags::ACK;
            reset::try_send(&mut io.cx(&mut self.shared), key, numbers, flags).is_ok()
        });
        let sent = sent.count();
        lost.drain(..sent);
    }

    /// State that belongs to no flow.
    fn save_shared(&self, writer: &mut Writer<'_>, now: Instant) {
        let shared = &self.shared;
        let (dns, dns_drawn) = shared.dns.draws();
        let (table, isn) = (self.flows.secret(), shared.tcp.isn.0);
        writer.v1(Tag::Keys, &KeysV1 { table, isn, dns, dns_drawn });
        writer.v1(
            Tag::Counters,
            &CountersV1 {
                counters: shared.counters.named().filter(|(_, count)| *count > 0).collect(),
                drops: shared.counters.drops().map(|(reason, count)| (reason.name(), count)).collect(),
            },
        );
        writer.v1(Tag::Policy, &self.policy.save());
        if let Some(pins) = self.saved_pins(now) {
            writer.v1(Tag::Pins, &pins);
        }
        let ending = self.flows.iter().filter(|(_, flow)| flow.ends_with_handover()).map(|(id, _)| id);
        if let Some(usage) = self.policy.save_usage(self.worker == 0, ending) {
            writer.v1(Tag::Usage, &usage);
        }
        let charged_from = self.policy.limited.charged_from();
        let flows: Vec<_> = charged_from.map(|(id, bytes)| (id.save(), bytes)).collect();
        if !flows.is_empty() {
            writer.v1(Tag::ChargedFrom, &ChargedFromV1 { flows });
        }
        if let Some(totals) = self.policy.save_totals().filter(|_| self.worker == 0) {
            writer.v1(Tag::PolicyTotals, &totals);
        }
        if let Some(names) = self.policy.save_wildcards(now).filter(|_| self.worker == 0) {
            writer.v1(Tag::Wildcards, &names);
        }
        let tx = &shared.tx;
        let (ident, stalled, queue) = (tx.across.ident(), tx.stalled, tx.queue.save());
        writer.v1(Tag::Link, &LinkV1 { guest_mac: tx.guest_mac.0, ident, stalled, queue });
        if let Some((mtu, until)) = tx.across.path_mtu_until() {
            writer.v1(Tag::PathMtu, &PathMtuV1 { mtu, until: until.save() });
        }
        if self.seen != [None; 2] {
            let [v4, v6] = self.seen;
            writer.v1(Tag::GuestAddresses, &GuestAddressesV1 { v4, v6 });
        }
        let (rtt, prompt_peers) = (shared.tcp.rtt.save(), shared.tcp.prompt_peers.save());
        writer.v1(Tag::Tcp, &TcpSharedV1 { rtt, prompt_peers });
        writer.v1(Tag::Resolvers, &shared.dns.save_resolvers());
        writer.v1(Tag::DnsCache, &shared.dns.save_cache());
        writer.v1(Tag::LearntNames, &shared.dns.save_learnt());
        if let Some(batch) = self.buffers.inbox.save() {
            writer.v1(Tag::Inbox, &batch);
        }
        writer.v1(
            Tag::Stack,
            &StackV1 {
                icmp_errors_full_at: shared.icmp_errors.full_at().save(),
                advertise_at: self.advertise_at.save(),
                records_ends: self.recorder.records_ends(),
                records_openings: self.recorder.records_openings(),
                wakes: shared.memory.pool.wakes(),
            },
        );
        writer.v1(Tag::Table, &self.flows.save());
    }

    /// Pins of the shared policy, if there are any that this worker saves.
    fn saved_pins(&self, now: Instant) -> Option<PinsV1> {
        self.policy.save_pins(now, self.worker == 0).filter(|saved| !saved.pins.is_empty())
    }

    /// One flow: its identity and the record of its kind, in which is the gate if there is one. Without the
    /// latter it is lost, and its guest reset.
    fn save_flow(
        &self,
        writer: &mut Writer<'_>,
        id: FlowId,
        flow: &Flow,
        index_of: &mut impl FnMut(FlowId, SocketId) -> u32,
    ) {
        let pool = &self.shared.memory.pool;
        let reset = match flow {
            _ if flow.ends_with_handover() => return Self::save_ending(writer, id, flow),
            Flow::Tcp(connection) if connection.is_away() => return,
            Flow::Tcp(connection) => Some(connection.reset_numbers()),
            Flow::Datagram(_) | Flow::Carried(_) | Flow::Dns(_) => None,
        };
        let socket = flow.socket().map(|socket| index_of(id, socket));
        writer.v1(Tag::Flow, &FlowV1 { id: id.save(), key: flow.key().save(), socket, reset: reset.save() });
        match flow {
            Flow::Tcp(connection) => {
                let tcp = connection.save(pool);
                match (connection.save_doubt(), connection.save_gate()) {
                    (_, Some(gate)) => {
                        return writer.v1(Tag::GatedTcpFlow, &GatedTcpV1 { gate, tcp });
                    }
                    (Some(unconfirmed), None) => {
                        writer.v1(Tag::UnconfirmedFlow, &UnconfirmedTcpV1 { unconfirmed, tcp });
                    }
                    (None, None) => writer.v1(Tag::TcpFlow, &tcp),
                }
            }
            Flow::Datagram(flow) => {
                let datagrams = flow.save(pool);
                if let Some(gate) = flow.save_gate() {
                    return writer.v1(Tag::GatedDatagramFlow, &GatedDatagramsV1 { gate, datagrams });
                }
                writer.v1(Tag::DatagramFlow, &datagrams);
            }
            Flow::Carried(carried) => writer.v1(Tag::CarriedFlow, &carried.save()),
            Flow::Dns(_) => {}
        }
        if let Some(Named { class, name, encrypted }) = flow.named() {
            let named = NamedServerV1 { flow: id.save(), class: class.save(), name: Bytes(name) };
            if *encrypted {
                writer.v2(Tag::NamedServer, &NamedServerV2 { named, encrypted: true });
            } else {
                writer.v1(Tag::NamedServer, &named);
            }
        }
    }

    /// A flow that ends: what a reset of it takes, if the guest has a connection.
    fn save_ending(writer: &mut Writer<'_>, id: FlowId, flow: &Flow) {
        if let Flow::Tcp(connection) = flow
            && !connection.is_connecting()
            && flow.eviction_class() != EvictionClass::Spent
        {
            let reset = Some(connection.reset_numbers()).save();
            let key = flow.key().save();
            writer.v1(Tag::Flow, &FlowV1 { id: id.save(), key, socket: None, reset });
        }
    }

    /// Flows that are being made quiet, and would do nothing until the next event. Restored they are idle,
    /// and read again.
    fn unlisted_quieting(&self) -> impl Iterator<Item = FlowId> {
        let quieting = self.flows.iter().filter_map(|(id, flow)| match flow {
            Flow::Tcp(connection) if connection.is_quieting() => Some(id),
            _ => None,
        });
        let ready = &self.shared.ready;
        quieting.filter(|id| !ready.sparse().chain(ready.bulk()).any(|listed| listed == *id))
    }

    /// Orders in which flows stand.
    fn save_orders(&self, writer: &mut Writer<'_>) {
        let shared = &self.shared;
        writer.v1(Tag::Timers, &shared.timers.save());
        let saved = |id: FlowId| id.save();
        writer.v1(
            Tag::Schedule,
            &ScheduleV1 {
                sparse: shared.ready.sparse().chain(self.unlisted_quieting()).map(saved).collect(),
                bulk: shared.ready.bulk().map(saved).collect(),
                ack_due: shared.tcp.ack_due.iter().map(Saved::save).collect(),
            },
        );
        let memory = &shared.memory;
        let (reads, windows) = (memory.reads.save(), memory.windows.save());
        writer.v1(Tag::Parked, &ParkedV1 { reads, windows });
    }
}
