//! Forwards in a hand-over: entries with their ids, listening sockets with all that waits in them, splices,
//! relays, and what waits for the broker or for the stack.
//!
//! A listening socket goes along, so that no port is bound anew and no connection in its backlog is lost.
//! Its slot, and the numbers of splices and relays, may be others afterwards. Pauses for want of descriptors
//! end; `auto` is scanned at once.

use super::datagrams::{Relay, Unread};
use super::listeners::{Body, Listener};
use super::{
    ENTRIES_MAX, Entry, Forward, ForwardDirection, Forwards, NOTICES_MAX, PENDING_MAX, PendingSplice, Topic,
    Transport,
};
use crate::handover::records::counters;
use crate::handover::v1::{EntryV1, ForwardsV1, ListenerV1, PairV1, PendingV1, RelayV1, RelaysV1, UnreadV1};
use crate::handover::{Expected, Handover, Incoming, Tag};
use crate::sockets::Published;
use brodo_core::flow::FlowId;
use brodo_core::time::Instant;
use brodo_link::poller::Token;
use rustix::event::epoll::EventData;
use rustix::fd::AsFd;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bound of a restored number of forwards so far, which goes on growing.
const LAST_ID_MAX: u32 = 1 << 31;

/// Slots that listeners had, and those they have now.
pub(crate) type Slots = BTreeMap<u32, u32>;

impl Forwards {
    /// Saves entries, listeners, splices and relays, a record for each.
    pub(crate) fn save<'a>(&'a self, into: &mut Handover<'a>) {
        debug_assert!(self.closed.is_empty(), "closed relays are reported before");
        let specs: Vec<String> = self.entries.iter().map(|entry| entry.forward.spec.to_string()).collect();
        let entries = self.entries.iter().zip(&specs).map(|(entry, spec)| EntryV1 {
            id: entry.id,
            out: entry.forward.direction == ForwardDirection::Out,
            udp: entry.forward.transport == Transport::Udp,
            spec,
            failed: entry.failed.iter().copied().collect(),
        });
        let listeners = self.listeners.numbered().map(|(slot, listener)| save_listener(slot, listener, into));
        let listeners = listeners.collect();
        let pending = self.pending.iter().map(|PendingSplice { accepted, peer, to, .. }| PendingV1 {
            descriptor: into.descriptor(accepted.as_fd()),
            peer: (*peer).into(),
            to: (*to).into(),
        });
        let record = ForwardsV1 {
            last_id: self.last_id,
            entries: entries.collect(),
            listeners,
            pending: pending.collect(),
            unread: self.datagrams.unread().map(save_unread).collect(),
            notices: self.notices.iter().map(String::as_str).collect(),
            counters: self.counters().named().collect(),
        };
        into.record(Tag::Forwards, &record);
        let splices = self.splices.save(into);
        into.record(Tag::Splices, &splices);
        let relays = self.datagrams.relays().map(|(number, relay)| save_relay(number, relay, into));
        let relays = RelaysV1 { relays: relays.collect() };
        into.record(Tag::Relays, &relays);
    }

    /// The listener whose events carry this data.
    pub(crate) fn listener_of(event: u64) -> Option<u32> {
        let Token::Source { key, .. } = Token::read(event) else { return None };
        Topic::read(key).filter(|(topic, _)| *topic == Topic::Listener).map(|(_, slot)| slot)
    }

    /// Puts the forwards of a hand-over in force, before any other; the new slots of their listeners.
    pub(crate) fn restore(&mut self, saved: &ForwardsV1<'_>, incoming: &mut Incoming) -> Slots {
        self.last_id = saved.last_id.min(LAST_ID_MAX);
        for entry in saved.entries.iter().take(ENTRIES_MAX) {
            self.restore_entry(entry);
        }
        let mut slots = Slots::new();
        for listener in &saved.listeners {
            if let Some(slot) = self.restore_listener(listener, incoming) {
                slots.insert(listener.slot, slot);
            }
        }
        for &PendingV1 { descriptor, peer, to } in saved.pending.iter().take(PENDING_MAX) {
            if let Some(accepted) = incoming.take(descriptor, Expected::Stream) {
                let (peer, to) = (peer.into(), to.into());
                self.pending.push_back(PendingSplice { accepted, peer, to, elsewhere: None });
            }
        }
        let unread = saved.unread.iter().filter_map(|it| Some((*slots.get(&it.listener)?, it)));
        let unread: Vec<_> = unread.map(|(slot, it)| restore_unread(slot, it)).collect();
        if let Some(slot) = self.datagrams.restore_unread(&unread) {
            self.hold_until_taken(slot);
        }
        for notice in saved.notices.iter().take(NOTICES_MAX) {
            self.notice((*notice).to_owned());
        }
        for (name, value) in counters(&saved.counters) {
            self.set_counter(name, value);
        }
        slots
    }

    /// Sets a counter by its name.
    pub(crate) fn set_counter(&mut self, name: &str, value: u64) {
        self.counters.set(name, value);
        self.splices.set_counter(name, value);
    }

    /// Takes a forward, if it is possible beside the others and with the guest's present addresses.
    fn restore_entry(&mut self, saved: &EntryV1<'_>) {
        let Ok(spec) = saved.spec.parse() else { return };
        let direction = if saved.out { ForwardDirection::Out } else { ForwardDirection::In };
        let transport = if saved.udp { Transport::Udp } else { Transport::Tcp };
        let forward = Forward { direction, transport, spec };
        let is_new = self.entries.iter().all(|it| it.id != saved.id && it.forward != forward);
        if !is_new || saved.id > self.last_id || self.check(&forward).is_err() {
            return;
        }
        if forward.spec.is_auto() {
            self.scan_at = Some(Instant::ZERO);
        }
        self.entries.push(Entry { id: saved.id, forward, failed: saved.failed.iter().copied().collect() });
    }

    /// Takes a listening socket of a restored forward; its slot.
    fn restore_listener(&mut self, saved: &ListenerV1, incoming: &mut Incoming) -> Option<u32> {
        let ListenerV1 { entry, at, to_address, to_port, descriptor, overflows, segment_max, .. } = *saved;
        let forward = &self.entries.iter().find(|it| it.id == entry)?.forward;
        let direction = forward.direction;
        if self.listeners.room() == 0 {
            return None;
        }
        let body = match forward.transport {
            Transport::Tcp => Body::Stream(incoming.take(descriptor, Expected::Listener)?),
            Transport::Udp => {
                Body::Datagrams(Published::restored(incoming.take(descriptor, Expected::Udp)?, segment_max))
            }
        };
        let mut listener = Listener::at(entry, direction, at, body, to_address, to_port);
        listener.overflows = overflows;
        self.listeners.insert(listener).ok()
    }

    /// The socket of a published port, and the data of its events.
    pub(crate) fn published(&self, slot: u32) -> Option<(&Arc<Published>, EventData)> {
        let Body::Datagrams(port) = &self.listeners.get(slot)?.body else { return None };
        Some((port, Topic::Listener.data(slot)))
    }

    /// Takes a spliced connection; its number.
    pub(crate) fn restore_splice(&mut self, saved: &PairV1, incoming: &mut Incoming) -> Option<u32> {
        self.splices.restore(self.epoll.as_fd(), saved, incoming, |number| Topic::Splice.data(number))
    }

    /// Takes a relayed conversation; its number.
    pub(crate) fn restore_relay(
        &mut self,
        saved: &RelayV1,
        slots: &Slots,
        incoming: &mut Incoming,
    ) -> Option<u32> {
        let slot = *slots.get(&saved.listener)?;
        let RelayV1 { flow: (index, generation), peer, source, descriptor, .. } = *saved;
        let flow = FlowId { index, generation };
        let (peer, source) = (peer.into(), source.map(Into::into));
        self.published(slot)?;
        self.datagrams.restore_relay(
            &self.epoll,
            Relay { flow, slot, peer, source, fd: incoming.take(descriptor, Expected::Udp)? },
        )
    }
}

fn save_listener<'a>(slot: u32, listener: &'a Listener, into: &mut Handover<'a>) -> ListenerV1 {
    ListenerV1 {
        slot,
        entry: listener.entry,
        at: listener.at,
        to_address: listener.to_address,
        to_port: listener.to_port,
        descriptor: into.descriptor(listener.body.descriptor()),
        overflows: listener.overflows,
        segment_max: match &listener.body {
            Body::Stream(_) => u16::MAX,
            Body::Datagrams(port) => port.segment_max(),
        },
    }
}

fn save_unread(unread: Unread<'_>) -> UnreadV1<'_> {
    let Unread { slot, from, to, payload, segment, tos, lost } = unread;
    UnreadV1 {
        listener: slot,
        from: from.map(Into::into),
        to: to.map(Into::into),
        payload,
        segment,
        tos,
        lost,
    }
}

fn restore_unread<'a>(slot: u32, saved: &UnreadV1<'a>) -> Unread<'a> {
    let UnreadV1 { listener: _, from, to, payload, segment, tos, lost } = *saved;
    let segment = segment.filter(|&size| size > 0);
    Unread { slot, from: from.map(Into::into), to: to.map(Into::into), payload, segment, tos, lost }
}

fn save_relay<'a>(number: u32, relay: &'a Relay, into: &mut Handover<'a>) -> RelayV1 {
    let Relay { flow, slot, peer, source, fd } = relay;
    RelayV1 {
        number,
        flow: (flow.index, flow.generation),
        listener: *slot,
        peer: (*peer).into(),
        source: source.map(Into::into),
        descriptor: into.descriptor(fd.as_fd()),
    }
}
