//! UDP and ICMP echo flows: one connected host socket for each conversation of the guest.
//!
//! *Guest to host.* Datagrams go to the host socket of their flow unchanged, super-datagrams (USO) and runs
//! of equal datagrams (`stack/gro.rs`) as one segmented send. Datagrams that find no room in the socket wait
//! in a bounded queue ([`backlog`]) and leave when the socket reports room.
//!
//! *Host to guest.* Datagrams are read several at a time, only while the link has credit, and go to the guest
//! in super-datagrams if the link takes them ([`crate::inbox`]). As long as the link has no credit datagrams
//! stay in the kernel, which drops the newest when its buffer is full, as it would for a program that does
//! not read, and reports their number.
//!
//! DSCP and ECN travel both ways; time to live, one hop less, and "do not fragment" travel from the guest, so
//! that the guest's measurements of the path (traceroute, path MTU) hold ([`crate::host::IpHeaderFields`]).
//!
//! *Groups.* A flow to a multicast group or a broadcast address has a socket that is connected to none
//! ([`Host::group_open`]). Each answer goes to the guest as from its sender, unless the policy keeps that
//! host from published ports. An answer makes no flow; a datagram of the guest's to that host does, and has
//! its own admission.
//!
//! A flow that the policy opened for a name that QUIC is to say begins behind a gate ([`gated`]).
//!
//! No retransmission. A flow ends when it has been silent for its time-out, which is shorter before the first
//! reply. Queries to the DNS address belong to [`crate::dns`]. ICMP errors of the host socket are passed on
//! for their flow; an ICMP port unreachable of the guest closes its flow, so that the host's kernel reports
//! the same to the peer.

pub(crate) mod backlog;
pub(crate) mod codel;
mod gated;

use crate::context::{Cx, Platform, Shared};
use crate::counters::DropReason;
use crate::destination;
use crate::flow::end::EndCause;
use crate::flow::info::{FlowInfo, FlowState, Initiator, Traffic};
use crate::flow::table::Keyed;
use crate::flow::{EvictionClass, EvictionRank, FlowId, FlowKey, Protocol};
use crate::flow_kind::{Buffers, FlowKind};
use crate::gate::quic::QuicGate;
use crate::host::{Close, Host, HostError, IcmpCause, IpHeaderFields, Readiness, SocketId};
use crate::icmp;
use crate::inbox::BATCH;
use crate::journal::{DatagramState, Journal};
use crate::memory::chunk::Pool;
use crate::policy::{Checks, DOWN, Held, Named, UP};
use crate::schedule::Turn;
use crate::services::icmp_error::{QUOTE_LEN_MAX, quote};
use crate::snapshot::saved::{Invalid, Saved, valid};
use crate::snapshot::v1::DatagramV1;
use crate::time::{Duration, Instant};
use backlog::Backlog;
use std::io::IoSlice;
use std::sync::Arc;

/// Most receives for one flow in one turn, and most bytes. A receive asks for no more datagrams than fit in
/// the rest of the bytes, by the length of the longest so far; an excess is a debt of the flow to the
/// schedule.
const RECEIVES_MAX: usize = 16;
const BYTES_MAX: usize = 128 << 10;
/// Datagrams asked for at first: more than most answers have, so that one call also shows that there are no
/// more.
const WANT_MIN: u8 = 8;
/// Most ICMP errors passed on for one event.
const ERRORS_MAX: usize = 4;
/// Most ICMP errors dropped after those: more than a socket's queue holds.
const ERRORS_DROPPED_MAX: usize = 1024;
/// Silence after which a conversation of datagrams is probably over.
const DORMANT_AFTER: Duration = Duration::from_secs(30);

/// One conversation in datagrams.
#[derive(Debug)]
pub(crate) struct DatagramFlow {
    key: FlowKey,
    id: FlowId,
    socket: Option<SocketId>,
    /// Begun by a peer, through a published port.
    inbound: bool,
    /// Whether the side that did not begin the flow has sent.
    answered: bool,
    opened_at: Instant,
    used_at: Instant,
    from_guest: Traffic,
    to_guest: Traffic,
    /// Number of datagrams that the next receive asks for, and length of the longest of the last one, in
    /// bytes.
    want: u8,
    longest: u32,
    backlog: Backlog,
    readable: bool,
    turn: Turn,
    /// Gate that reads the guest's datagrams before they leave.
    gate: Option<Box<QuicGate>>,
    /// Directions in which a rate holds it back.
    held: Held,
    ended: bool,
    /// Cause of the end if the flow ends before a reply.
    pub(crate) cause: EndCause,
}

impl DatagramFlow {
    /// A flow over a socket that has just been opened.
    pub(crate) fn new(id: FlowId, key: FlowKey, socket: SocketId, now: Instant) -> Self {
        Self {
            key,
            id,
            socket: Some(socket),
            inbound: false,
            answered: false,
            opened_at: now,
            used_at: now,
            from_guest: Traffic::default(),
            to_guest: Traffic::default(),
            want: WANT_MIN,
            longest: 1,
            backlog: Backlog::default(),
            readable: false,
            turn: Turn::default(),
            gate: None,
            held: [false; 2],
            ended: false,
            cause: EndCause::TimedOut,
        }
    }

    /// A flow begun by a datagram to a published port.
    pub(crate) fn inbound(id: FlowId, key: FlowKey, socket: SocketId, now: Instant) -> Self {
        Self { inbound: true, ..Self::new(id, key, socket, now) }
    }

    /// A flow over a socket that has outlived a crash, which began at `opened_at`.
    pub(crate) fn recover(
        id: FlowId,
        key: FlowKey,
        socket: SocketId,
        opened_at: Instant,
        state: &DatagramState,
        now: Instant,
    ) -> Self {
        let DatagramState { socket: own, answered, from_guest, to_guest } = *state;
        let inbound = own.is_none();
        Self { inbound, answered, opened_at, from_guest, to_guest, ..Self::new(id, key, socket, now) }
    }

    /// Writes its record. One behind a gate has none, because it would go on without it.
    pub(crate) fn write_journal(&self, journal: &Journal) {
        let Some(socket) = self.socket.filter(|_| !self.is_gated()) else { return };
        let Self { answered, from_guest, to_guest, .. } = *self;
        let socket = (!self.inbound).then_some(socket.0);
        let state = DatagramState { socket, answered, from_guest, to_guest };
        journal.datagrams(self.id, &self.key, self.opened_at, &state);
    }

    /// Host socket of a flow begun by a datagram to a published port.
    pub(crate) fn published_socket(&self) -> Option<SocketId> {
        self.socket.filter(|_| self.inbound)
    }

    /// Accounts for datagrams toward the guest received outside of this flow (on the published port's
    /// socket): their number and bytes.
    pub(crate) fn record_received(&mut self, now: Instant, datagrams: usize, bytes: usize) {
        self.to_guest.add(datagrams, bytes);
        self.used_at = now;
        self.answered |= !self.inbound;
    }

    /// Sends the guest's datagrams: each slice of `data` holds one, or with `segment` several of that size,
    /// of which the very last may be shorter. `fields` are those of their IP headers; `packet` gives the
    /// IP packet of the nth, for an ICMP error to quote.
    pub(crate) fn send<'p, P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        data: &mut [IoSlice<'_>],
        segment: Option<u16>,
        fields: IpHeaderFields,
        packet: impl Fn(usize) -> &'p [u8],
    ) {
        self.used_at = cx.now;
        self.answered |= self.inbound;
        let Some(socket) = self.socket else { return };
        let left: usize = data.iter().map(|slice| slice.len()).sum();
        if self.held[UP] || !self.may_ping(cx, left) {
            return cx.shared.counters.drop(DropReason::RuleRate);
        }
        self.from_guest.add(left.div_ceil(datagram_size(left, segment)).max(1), left);
        if self.is_gated() {
            return self.send_gated(cx, socket, data, segment, fields, packet);
        }
        self.transmit(cx, socket, data, segment, fields, packet);
    }

    /// Whether the policy lets a message of so many bytes leave, if it is an echo request.
    fn may_ping<P: Platform>(&self, cx: &Cx<'_, P>, len: usize) -> bool {
        let policy = cx.shared.config.rules.shared.as_ref().filter(|_| self.key.protocol == Protocol::Echo);
        policy.is_none_or(|policy| policy.may_ping(cx.now, &self.key, len))
    }

    /// Sends datagrams of the guest's through the host socket, or queues them.
    fn transmit<'p, P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        socket: SocketId,
        mut data: &mut [IoSlice<'_>],
        segment: Option<u16>,
        fields: IpHeaderFields,
        packet: impl Fn(usize) -> &'p [u8],
    ) {
        let mut left: usize = data.iter().map(|slice| slice.len()).sum();
        let size = datagram_size(left, segment);
        let (mut index, mut reported) = (0, false);
        while self.backlog.is_empty() {
            let gone = match cx.host.datagram_send(socket, data, segment.filter(|_| left > size), fields) {
                Ok(taken) => taken,
                Err(HostError::WouldBlock) => break,
                // Pending ICMP error of an earlier datagram: the socket reports it instead of sending this
                // one.
                Err(error) if !reported && !matches!(error, HostError::TooBig(_) | HostError::Exhausted) => {
                    self.report_errors(cx);
                    reported = true;
                    continue;
                }
                // Dropped by the host's network; sent again, some might arrive twice.
                Err(HostError::Exhausted) => {
                    (0..left.div_ceil(size).max(1))
                        .for_each(|_| cx.shared.counters.drop(DropReason::HostSocketFull));
                    return;
                }
                Err(error) => {
                    refused(cx, error, packet(index));
                    size.min(left)
                }
            };
            if gone >= left {
                return;
            }
            left -= gone;
            index += gone.div_ceil(size);
            IoSlice::advance_slices(&mut data, gone);
        }
        for slice in data {
            for datagram in slice.chunks(size) {
                self.backlog.push(cx.shared, cx.now, datagram, fields);
            }
            if slice.is_empty() && left == 0 {
                self.backlog.push(cx.shared, cx.now, &[], fields);
            }
        }
    }

    /// Sends queued datagrams as far as the host socket has room.
    fn send_held<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let Some(socket) = self.socket else { return };
        let mut reported = false;
        while let Err(error) = self.backlog.send(cx.shared, cx.host, socket, cx.now) {
            match error {
                HostError::WouldBlock => return,
                HostError::TooBig(_) | HostError::Exhausted => {}
                _ if !reported => {
                    self.report_errors(cx);
                    reported = true;
                    continue;
                }
                _ => {}
            }
            let mut packet = [0; QUOTE_LEN_MAX];
            let len = quote(&self.key, None, &mut packet).unwrap_or(0);
            refused(cx, error, &packet[..len]);
            if !self.backlog.drop_first(cx.shared) {
                return;
            }
        }
    }

    fn list_ready(&mut self, shared: &mut Shared) {
        shared.ready.list(self.id, &mut self.turn);
    }

    /// Passes on the first ICMP errors of the socket, and drops the others: those that stay would be taken
    /// for the cause of a later event.
    fn report_errors<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let Some(socket) = self.socket else { return };
        for _ in 0..ERRORS_MAX {
            let Some(report) = cx.host.datagram_error(socket) else { return };
            if !self.answered {
                self.cause = match report.cause {
                    IcmpCause::PortUnreachable => EndCause::Refused,
                    _ => EndCause::Unreachable,
                };
            }
            let mut packet = [0; QUOTE_LEN_MAX];
            let Some(len) = quote(&self.key, report.sequence, &mut packet) else { return };
            // Source of the error: an address of brodo's own hides the real one (a resolver, the host's
            // loopback), so the address the guest asked stands for it. A guest's kernel would drop a packet
            // from 127.0.0.1, or from its own address, as a martian: errors that the host itself reports,
            // such as a neighbour's that does not answer, come from the router in a copy of its network.
            let (asked, config) = (self.key.remote.ip(), &cx.shared.config);
            let reported = report.from.filter(|&from| !config.is_guests(from));
            let from = if config.is_ours(asked) { Some(asked) } else { reported };
            icmp::send_error(cx, report.cause, from, &packet[..len]);
        }
        for _ in 0..ERRORS_DROPPED_MAX {
            if cx.host.datagram_error(socket).is_none() {
                return;
            }
            cx.shared.counters.drop(DropReason::IcmpErrorRate);
        }
    }

    fn timeout(&self, shared: &Shared) -> Duration {
        let timeouts = &shared.config.timeouts;
        match (self.key.protocol, self.answered) {
            (Protocol::Echo, _) => timeouts.echo,
            (_, true) => timeouts.udp_stream,
            (_, false) => timeouts.udp_single,
        }
    }
}

impl Keyed for DatagramFlow {
    fn key(&self) -> &FlowKey {
        &self.key
    }
}

impl FlowKind for DatagramFlow {
    fn initiator(&self) -> Initiator {
        if self.inbound { Initiator::Peer } else { Initiator::Guest }
    }

    fn socket(&self) -> Option<SocketId> {
        self.socket
    }

    fn info(&self, _: &Shared, now: Instant) -> FlowInfo {
        FlowInfo {
            state: if self.answered { FlowState::Active } else { FlowState::Unanswered },
            age: now - self.opened_at,
            from_guest: self.from_guest,
            to_guest: self.to_guest,
            ..FlowInfo::blank(self.id, self.key, self.initiator())
        }
    }

    fn allocated(&self) -> usize {
        0
    }

    fn eviction_class(&self) -> EvictionClass {
        let one_question = self.key.protocol == Protocol::Echo;
        match self.answered {
            true if one_question => EvictionClass::Spent,
            true => EvictionClass::InUse,
            false => EvictionClass::Unanswered,
        }
    }

    fn eviction_rank(&self, idle: Duration) -> Option<EvictionRank> {
        let eviction_class = match self.eviction_class() {
            EvictionClass::InUse if idle >= DORMANT_AFTER => EvictionClass::Dormant,
            other => other,
        };
        Some(EvictionRank(eviction_class, idle))
    }

    fn has_ended(&self) -> bool {
        self.ended
    }

    fn refused_by(&self) -> Option<&Arc<str>> {
        self.gate.as_ref()?.refusal()
    }

    fn named(&self) -> Option<&Named> {
        self.gate.as_ref()?.named()
    }

    fn checks_at_gate(&self) -> Option<Checks> {
        self.gate.as_ref().filter(|gate| gate.is_closed()).map(|gate| gate.checks())
    }

    fn moved(&self) -> [u64; 2] {
        [self.from_guest.bytes, self.to_guest.bytes]
    }

    /// Datagrams from the guest are dropped while they are held back, those to it wait in the host socket.
    fn hold_back<P: Platform>(&mut self, cx: &mut Cx<'_, P>, held: Held) {
        let goes_on = self.held[DOWN] && !held[DOWN];
        self.held = held;
        if goes_on && self.readable {
            self.list_ready(cx.shared);
        }
    }

    fn revoke<P: Platform>(&mut self, _: &mut Cx<'_, P>, cause: EndCause) {
        (self.cause, self.ended) = (cause, true);
    }

    fn socket_event<P: Platform>(&mut self, cx: &mut Cx<'_, P>, ready: Readiness) {
        if ready.error {
            self.report_errors(cx);
        }
        if ready.writable && !self.backlog.is_empty() {
            self.send_held(cx);
        }
        self.readable |= ready.readable;
        if self.readable {
            self.list_ready(cx.shared);
        }
    }

    /// Passes received datagrams on to the guest, within bounds; lists the flow again if there may be more.
    /// The inbox is empty.
    fn serve<P: Platform>(&mut self, cx: &mut Cx<'_, P>, buffers: &mut Buffers) {
        let inbox = &mut buffers.inbox;
        self.turn.begin(false);
        let Some(socket) = self.socket.filter(|_| !self.held[DOWN]) else { return };
        let is_group = destination::is_group(&cx.shared.config, self.key.remote.ip());
        let mut bytes = 0;
        for _ in 0..RECEIVES_MAX {
            if !self.readable || cx.shared.tx.stalled || !self.turn.goes_on() {
                break;
            }
            let fit = (BYTES_MAX.saturating_sub(bytes) / self.longest as usize).max(1);
            // Answers to a group come from several hosts, and a batch has one sender.
            let want = if is_group { 1 } else { usize::from(self.want).min(fit) };
            match inbox.receive(cx.host, self.key, socket, want) {
                Ok(batch) => {
                    self.used_at = cx.now;
                    self.answered = true;
                    self.to_guest.add(batch.datagrams, batch.bytes);
                    self.readable = batch.count == want;
                    self.longest = batch.longest.max(1) as u32;
                    self.want = if self.readable {
                        (self.want * 2).min(BATCH as u8)
                    } else {
                        (self.want / 2).max(WANT_MIN)
                    };
                    bytes += batch.bytes;
                    self.turn.spend(batch.bytes.max(1) as u32);
                    cx.shared.counters.udp_host_overflows += batch.lost;
                    // The stack passes it on, one in a turn.
                    if is_group {
                        break;
                    }
                    if inbox.deliver(cx).is_err() {
                        break;
                    }
                }
                Err(HostError::WouldBlock) => self.readable = false,
                // Pending ICMP error instead of a datagram; the datagrams behind it come next.
                Err(_) => self.report_errors(cx),
            }
        }
        self.turn.end();
        if self.readable && !self.held[DOWN] {
            self.list_ready(cx.shared);
        }
    }

    fn expire<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if self.gate_deadline().is_some_and(|at| at <= cx.now) {
            return self.gate_timed_out();
        }
        if cx.now - self.used_at < self.timeout(cx.shared) {
            return;
        }
        if self.answered {
            self.cause = EndCause::Finished;
        }
        self.ended = true;
    }

    /// Change of the host's network: if the socket's address is gone the flow closes, and the guest's next
    /// datagram begins a new one.
    fn network_changed<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if self.socket.is_some_and(|socket| cx.host.is_stranded(socket)) {
            self.cause = EndCause::NetworkChanged;
            self.ended = true;
        }
    }

    fn reschedule(&mut self, shared: &mut Shared) {
        let silent_at = self.used_at + self.timeout(shared);
        shared.timers.arm(self.id, self.gate_deadline().map_or(silent_at, |at| at.min(silent_at)));
        self.write_journal(&shared.journal);
    }

    fn dispose<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.backlog.clear(cx.shared);
        self.drop_gate(cx.shared);
        if let Some(socket) = self.socket.take() {
            cx.host.close(socket, Close::Graceful);
        }
        cx.shared.counters.datagram_closed += 1;
    }
}

/// Bytes of each datagram in `len` bytes, but of the last: one datagram, or several of `segment` bytes. At
/// least 1.
fn datagram_size(len: usize, segment: Option<u16>) -> usize {
    segment.map_or(len, |segment| len.min(segment.into())).max(1)
}

/// Refusal of the host to send the datagram in `packet`: reported to the guest if ICMP has a code for it.
fn refused<P: Platform>(cx: &mut Cx<'_, P>, error: HostError, packet: &[u8]) {
    match icmp::cause_of(error) {
        Some(cause) => icmp::send_error(cx, cause, None, packet),
        None if error == HostError::Exhausted => cx.shared.counters.drop(DropReason::HostSocketFull),
        None => cx.shared.counters.drop(DropReason::HostSendFailed),
    }
}
/// For a snapshot.
impl DatagramFlow {
    /// Saved form, with slices of the pool's memory.
    pub(crate) fn save<'p>(&self, pool: &'p Pool) -> DatagramV1<'p> {
        let Self { key: _, id: _, socket: _, inbound, answered, opened_at, used_at, from_guest, .. } = self;
        let Self { to_guest, want, longest, backlog, readable, turn, ended, cause, gate: _, .. } = self;
        debug_assert!(!ended, "a flow that is over is removed at once");
        DatagramV1 {
            inbound: *inbound,
            answered: *answered,
            opened_at: opened_at.save(),
            used_at: used_at.save(),
            from_guest: from_guest.save(),
            to_guest: to_guest.save(),
            want: *want,
            longest: *longest,
            backlog: backlog.save(pool),
            readable: *readable,
            turn: turn.save(),
            cause: cause.save(),
        }
    }

    /// Flow of a saved form.
    ///
    /// # Errors
    /// [`Invalid`] if it contradicts itself, or memory does not suffice: then it holds none.
    pub(crate) fn restore(
        shared: &mut Shared,
        id: FlowId,
        key: FlowKey,
        socket: SocketId,
        saved: &DatagramV1<'_>,
    ) -> Result<Self, Invalid> {
        valid(key.protocol == Protocol::Udp || (key.protocol == Protocol::Echo && !saved.inbound))?;
        valid((1..=BATCH as u8).contains(&saved.want) && saved.longest > 0)?;
        Ok(Self {
            key,
            id,
            socket: Some(socket),
            inbound: saved.inbound,
            answered: saved.answered,
            opened_at: Instant::restore(saved.opened_at)?,
            used_at: Instant::restore(saved.used_at)?,
            from_guest: Traffic::restore(saved.from_guest)?,
            to_guest: Traffic::restore(saved.to_guest)?,
            want: saved.want,
            longest: saved.longest,
            readable: saved.readable,
            turn: Turn::restore(saved.turn)?,
            gate: None,
            held: [false; 2],
            ended: false,
            cause: EndCause::restore(saved.cause)?,
            // Last: the others hold no memory.
            backlog: Backlog::restore(shared, &saved.backlog)?,
        })
    }

    /// Takes the socket that the driver has for it.
    pub(crate) fn adopt_socket(&mut self, socket: SocketId) {
        self.socket = Some(socket);
    }

    /// Gives back the memory of a flow that is not restored after all.
    pub(crate) fn release(&mut self, shared: &mut Shared) {
        self.backlog.clear(shared);
        self.drop_gate(shared);
    }

    /// The flow's state in the schedule.
    pub(crate) fn turn_mut(&mut self) -> &mut Turn {
        &mut self.turn
    }
}
