//! A worker in a hand-over: settled, saved, and made of its records.
//!
//! *Settle*: what the others left with it is taken, released carriers are closed, records go to their
//! observer, a capture is written out. From then on nothing changes until the worker is thawed.
//!
//! *First turn* of a restored worker ([`FirstTurn`]): only then may anything be reset, because until then the
//! old network may be thawed ([`crate::handover`]).

use super::Worker;
use crate::capture::Capture;
use crate::clock::Clock;
use crate::forward::{Forwards, Slots};
use crate::handover::records::{self, WorkerRecords, is_count};
use crate::handover::v1::{LinkV1, PairV1, RelayV1, SocketV1, SocketsV1, WorkerV1};
use crate::handover::{Expected, Handover, Incoming, Tag};
use crate::sockets::Sockets;
use crate::splice::reset;
use brodo_core::flow::FlowId;
use brodo_core::flow::info::Carrier;
use brodo_core::host::SocketId;
use brodo_core::stack::{Adopt, Lost, SocketKind};
use brodo_link::{GuestLink, SavedLink};
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;

/// Tasks of a restored worker before its first turn.
#[derive(Default)]
pub(crate) struct FirstTurn {
    /// Flows that could not be restored.
    pub(crate) lost: Vec<Lost>,
    /// Descriptors that no flow has claimed.
    pub(crate) unclaimed: Vec<OwnedFd>,
}

impl<L: GuestLink> Worker<L> {
    /// Has the promoted flows come back before a hand-over; true when those that can have.
    pub(super) fn bring_back(&mut self) -> bool {
        let back = self.with_sources(|sources, turn| {
            let (stack, mut io) = turn.stack();
            sources.promotions.as_mut().is_none_or(|promotions| promotions.bring_back(stack, &mut io))
        });
        self.busy |= self.sockets.has_requests();
        back
    }

    /// Finishes what was begun. All other workers are parked.
    pub(crate) fn settle(&mut self) {
        self.waiter.now = self.waiter.clock.now();
        self.port.now = self.waiter.now;
        if let Some(first) = self.first_turn.take() {
            self.begin(*first);
        }
        for frame in self.handle.take_resteered() {
            let (stack, mut io) = self.stack_io();
            frame.deliver(stack, &mut io);
            self.handle.pass_on(&mut self.stack);
        }
        self.flush_link();
        self.with_sources(|sources, turn| {
            if let Some(forwards) = &mut sources.forwards {
                let (stack, mut io) = turn.stack();
                forwards.close_released(stack, &mut io);
            }
            if let Some(promotions) = &mut sources.promotions {
                promotions.park(turn.stack, turn.sockets);
            }
        });
        if let Some(listener) = self.listener.as_mut().filter(|_| self.stack.has_records()) {
            listener(&mut self.stack);
        }
        if let Some(capture) = &mut self.port.capture {
            capture.flush();
        }
        // After a thaw it looks at everything once.
        (self.busy, self.intake.readable) = (true, true);
    }

    /// Saves a settled worker.
    pub(crate) fn save<'a>(&'a self, into: &mut Handover<'a>) {
        let (activity, resteered) = (self.waiter.activity.named(), self.handle.resteered().named());
        let worker = WorkerV1 {
            ping_reported: self.ping_reported,
            udp_ports_reported: self.udp_ports_reported,
            host_addresses: self.sources.host_network.as_ref().map(|of| of.addresses().to_vec()),
            counters: activity.chain(resteered).chain(self.losses().named()).collect(),
            captured: self.port.capture.as_ref().map_or((0, 0), Capture::counts),
        };
        into.record(Tag::Worker, &worker);
        if let Some(SavedLink { bytes, descriptors }) = self.port.link.save() {
            let descriptors = descriptors.into_iter().map(|fd| into.descriptor(fd)).collect();
            into.record(Tag::Link, &LinkV1 { descriptors, bytes: &bytes });
        }
        let mut sockets = SocketsV1 { sockets: Vec::with_capacity(self.sockets.open()) };
        let (mut bytes, begun) = into.begin_stack(self.stack.flows());
        let index_of = |_, socket: SocketId| {
            // The stack names only open sockets.
            let saved = self.sockets.save(socket, into, Forwards::listener_of);
            saved.map_or(u32::MAX, |saved| {
                sockets.sockets.push(saved);
                sockets.sockets.len() as u32 - 1
            })
        };
        self.stack.save(self.waiter.now, index_of, |record| record.write(&mut bytes));
        into.end_stack(bytes, begun);
        into.record(Tag::Sockets, &sockets);
        if let Some(forwards) = &self.sources.forwards {
            forwards.save(into);
        }
    }

    /// Takes over what a worker has besides its flows, and what remains to be done.
    pub(crate) fn take_over(&mut self, saved: &WorkerV1<'_>, first: FirstTurn) {
        self.begin_with(first);
        let WorkerV1 { ping_reported, udp_ports_reported, host_addresses, counters, captured } = saved;
        (self.ping_reported, self.udp_ports_reported) = (*ping_reported, *udp_ports_reported);
        if let (Some(network), Some(addresses)) = (&mut self.sources.host_network, host_addresses) {
            network.compare(addresses);
            self.sockets.assume_addresses(addresses.as_slice().into());
        }
        for (name, value) in records::counters(counters) {
            self.waiter.activity.set(name, value);
            self.handle.set_resteered(name, value);
            self.losses_before.set(name, value);
        }
        let (frames, bytes) = *captured;
        let counts = is_count(frames) && is_count(bytes) && self.handle.is_first();
        if let Some(capture) = self.port.capture.as_mut().filter(|_| counts) {
            capture.set_counts(frames, bytes);
        }
    }

    /// Does this in the first turn.
    pub(crate) fn begin_with(&mut self, first: FirstTurn) {
        self.first_turn = Some(Box::new(first));
    }

    /// Closes descriptors with a reset in the first turn.
    pub(crate) fn close_first(&mut self, unclaimed: Vec<OwnedFd>) {
        if let Some(first) = &mut self.first_turn {
            first.unclaimed = unclaimed;
        }
    }

    /// Clock of all times.
    pub(crate) fn clock(&self) -> Clock {
        self.waiter.clock
    }

    /// Resets flows that could not be restored, as far as the link takes resets.
    pub(super) fn reset_lost(&mut self) {
        let mut lost = std::mem::take(&mut self.lost);
        let (stack, mut io) = self.stack_io();
        stack.reset_lost(&mut io, &mut lost);
        self.lost = lost;
    }

    /// Before the first turn of a restored worker.
    pub(super) fn begin(&mut self, FirstTurn { lost, unclaimed }: FirstTurn) {
        unclaimed.into_iter().for_each(reset);
        self.lost = lost;
        self.stack.link_writable();
        self.reset_lost();
        self.with_sources(|sources, turn| {
            if let Some(forwards) = &mut sources.forwards {
                let (stack, mut io) = turn.stack();
                forwards.join_pending(stack, &mut io);
                forwards.begin_accepted(stack, &mut io);
            }
        });
    }
}

/// The sockets and carriers of one worker, as its stack claims them.
pub(crate) struct Adoption<'a> {
    worker: u32,
    sockets: &'a mut Sockets,
    forwards: Option<&'a mut Forwards>,
    slots: Slots,
    table: Vec<Option<SocketV1>>,
    pairs: BTreeMap<u32, PairV1>,
    relays: BTreeMap<u32, RelayV1>,
    incoming: &'a mut Incoming,
}

impl<'a> Adoption<'a> {
    /// Takes the forwards, and has the rest ready.
    pub(crate) fn new(
        worker: u32,
        sockets: &'a mut Sockets,
        mut forwards: Option<&'a mut Forwards>,
        records: &mut WorkerRecords<'_>,
        incoming: &'a mut Incoming,
    ) -> Self {
        let mut slots = Slots::new();
        if let (Some(forwards), Some(saved)) = (&mut forwards, &records.forwards) {
            slots = forwards.restore(saved, incoming);
        }
        let table = std::mem::take(&mut records.sockets.sockets).into_iter().map(Some).collect();
        let pairs = std::mem::take(&mut records.splices.pairs).into_iter();
        let relays = std::mem::take(&mut records.relays.relays).into_iter();
        Self {
            worker,
            sockets,
            forwards,
            slots,
            table,
            pairs: pairs.map(|pair| (pair.number, pair)).collect(),
            relays: relays.map(|relay| (relay.number, relay)).collect(),
            incoming,
        }
    }
}

impl Adopt for Adoption<'_> {
    fn socket(&mut self, flow: FlowId, index: u32, kind: SocketKind) -> Option<SocketId> {
        let saved = self.table.get_mut(index as usize)?.take()?;
        let own = match (&saved, kind) {
            (SocketV1::Published(saved), SocketKind::PublishedUdp) => {
                let slot = saved.listener.and_then(|listener| self.slots.get(&listener));
                let port = slot.and_then(|slot| self.forwards.as_ref()?.published(*slot));
                return self.sockets.restore_published(flow, port, saved);
            }
            (SocketV1::Own(own), _) => own,
            (SocketV1::Published(_), _) => return None,
        };
        let expected = match kind {
            SocketKind::Connecting | SocketKind::Stream => Expected::Stream,
            SocketKind::Udp(_) | SocketKind::Group(..) => Expected::Udp,
            SocketKind::Echo => Expected::Echo,
            SocketKind::PublishedUdp => return None,
        };
        let registered = self.incoming.is_registered(own.descriptor, self.worker, flow);
        let fd = self.incoming.take(own.descriptor, expected)?;
        let restored = match expected {
            Expected::Stream | Expected::Examined | Expected::Listener => {
                self.sockets.restore_stream(flow, fd, own, registered)
            }
            Expected::Udp | Expected::Echo => self.sockets.restore_datagram(flow, fd, kind, own),
        };
        restored.map_err(|fd| self.incoming.put_back(fd)).ok()
    }

    fn carrier(&mut self, flow: FlowId, carrier: Carrier, number: u32) -> Option<u32> {
        let is_its = |(index, generation)| flow == FlowId { index, generation };
        let forwards = self.forwards.as_deref_mut()?;
        match carrier {
            Carrier::Splice => {
                let pair = self.pairs.remove(&number).filter(|pair| is_its(pair.flow))?;
                forwards.restore_splice(&pair, self.incoming)
            }
            Carrier::Relay => {
                let relay = self.relays.remove(&number).filter(|relay| is_its(relay.flow))?;
                forwards.restore_relay(&relay, &self.slots, self.incoming)
            }
            Carrier::Stack | Carrier::Kernel => None,
        }
    }
}
