//! TCP toward the guest: one [`Connection`] per flow, bridged to one host socket.
//!
//! # Theory of operation
//!
//! A connection is two halves seen from the guest side. The [`receiver::Receiver`] takes bytes from the guest
//! and hands them to the host socket; the [`sender::Sender`] takes bytes from the host socket and sends them
//! to the guest. Each half is a type with private fields and a small enum of states; the state of RFC 9293 is
//! derived from both by the [`closer::Closer`], which keeps the order of their FINs.
//!
//! * *Opening.* A SYN of the guest's starts a connect of the host socket; only when that has succeeded does
//!   the guest get its SYN-ACK, so that a refused, unreachable or silent destination looks to the guest as it
//!   would on the host: a reset, an ICMP error, or nothing. A SYN that comes again meanwhile changes nothing.
//!   A connection that the host has accepted for the guest begins with a SYN of ours ([`active_open`]).
//! * *Data.* See the two halves. Acknowledgements are one flag per flow, sent at the end of a batch
//!   ([`Connection::acknowledge_now`]), and left to the host's answer where one is sure to come
//!   ([`crate::tcp::delayed_ack`]); segments out of order are acknowledged at once, one by one, so that the
//!   guest sees duplicates.
//! * *Closing.* The guest's FIN becomes a shutdown of the host socket when all bytes before it have been
//!   written. The host's end of stream becomes a FIN when all bytes before it have been sent. The socket is
//!   closed when both have happened; if our FIN was first the connection waits in TIME-WAIT without socket or
//!   memory.
//! * *Failing.* A reset from the guest resets the host's peer. An error of the host socket resets the guest,
//!   after the bytes that had arrived before it. Out-of-window resets, SYNs and acknowledgements get at most
//!   a rate-limited challenge ACK (RFC 5961).
//!
//! A connection connects the halves with the frame, the host socket and the timer: `open` and `active_open`
//! begin it, `arrival` takes segments, `output` sends, `timeout` expires, `tune` traces.
//!
//! The receiver has a `window` (advertised window and its updates), `reassembly`, a `delayed_ack` with
//! `prompt_peers`; the sender a `host_stream`, a `scoreboard`, `rack` and `recovery`; each half a limit
//! (`autosize`, by `rtt`) and a `limiting_factor`. All but `recovery` are types of [`crate::tcp`], which know
//! neither the context nor the connection.

mod active_open;
mod arrival;
mod closer;
pub(crate) mod dns_stream;
mod gated;
mod open;
mod output;
pub(crate) mod promotion;
mod receiver;
pub(crate) mod recovered;
pub(crate) mod reset;
mod sender;
pub(crate) mod snapshot;
mod timeout;
mod tune;

use crate::context::{Cx, Platform, Shared};
use crate::flow::end::EndCause;
use crate::flow::info::{FlowInfo, FlowState, Initiator, Traffic};
use crate::flow::state::State;
use crate::flow::table::Keyed;
use crate::flow::{EvictionClass, EvictionRank, FlowId, FlowKey};
use crate::flow_kind::{Buffers, FlowKind};
use crate::host::{Close, Connect, Host, HostError, Readiness, SocketId};
use crate::policy::{Checks, DOWN, Held, Named, UP};
use crate::schedule::Turn;
use crate::tcp::info::TcpInfo;
use crate::time::{Duration, Instant};
use crate::upstream::Upstream;
use crate::wire::tcp::Seq;
use closer::{Closer, Settled};
use dns_stream::DnsStream;
use promotion::Promotion;
use receiver::{Receiver, ReceiverState};
use sender::{Sender, SenderState};
use std::sync::Arc;
use timeout::KeepAlive;

/// Silence after which an established connection may be evicted from a full table. RFC 5382 (REQ-5) wants two
/// hours where there is room; programs that know of forgetful middle boxes send keep-alives at least this
/// often.
const DORMANT_AFTER: Duration = Duration::from_secs(300);

/// One TCP connection.
#[derive(Debug)]
pub(crate) struct Connection {
    key: FlowKey,
    id: FlowId,
    socket: Option<SocketId>,
    rx: Receiver,
    tx: Sender,
    closer: Closer,
    keep_alive: KeepAlive,
    opened_at: Instant,
    /// Last challenge ACK.
    challenged_at: Option<Instant>,
    /// Failure of the host socket: its remaining bytes go to the guest, then a reset.
    broken: bool,
    /// Time-outs in a row from before that failure, of the sender's timer.
    timeouts_before: u8,
    turn: Turn,
    /// Candidates left to dial if the host socket cannot be connected.
    upstream: Upstream,
    /// Inbound: begun on the host's side.
    inbound: bool,
    /// Nothing is read from the host socket until a gate is open.
    is_waiting_for_gate: bool,
    /// Under limits of the rule that allows it.
    is_limited: bool,
    /// Of brodo's own DNS service.
    dns: Option<Box<DnsStream>>,
    /// Over: to be removed from the table.
    ended: bool,
    /// Reason of the end, as far as it is known.
    pub(crate) cause: EndCause,
    /// Duration of the host's connect, microseconds; [`NOT_CONNECTED`] until it is done.
    connect_us: u32,
    /// Segments with payload taken from the guest, and sent to it. They stay at the largest number.
    segments_taken: u32,
    segments_sent: u32,
    promotion: Promotion,
}

/// Longer than any connect: an hour and more.
const NOT_CONNECTED: u32 = u32::MAX;

impl Connection {
    /// State of RFC 9293, derived from both halves.
    pub(crate) fn state(&self) -> State {
        if self.ended {
            return State::Closed;
        }
        self.state_away().unwrap_or_else(|| self.closer.state(self.rx.state(), self.tx.state()))
    }

    /// Its details at `now`.
    pub(crate) fn tcp_info(&self, shared: &Shared, now: Instant) -> TcpInfo {
        TcpInfo {
            flow: self.id,
            guest: self.key.guest.into(),
            remote: self.key.remote.into(),
            state: self.state(),
            age: now - self.opened_at,
            srtt: shared.tcp.rtt.srtt(),
            min_rtt: shared.tcp.rtt.min(),
            mss: self.tx.mss(),
            rx: self.rx.info(&shared.tcp.rtt, now),
            tx: self.tx.info(now),
            in_flight: self.tx.in_flight(),
            retransmissions: self.tx.retransmissions(),
        }
    }

    /// The last sequence number sent, plus one.
    pub(crate) fn sequence_used(&self) -> Seq {
        self.tx.nxt()
    }

    fn check_connect<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let Some(socket) = self.socket else { return };
        match cx.host.tcp_connected(socket) {
            Ok(Connect::Pending) => {}
            Ok(Connect::Done) => self.connected(cx),
            Err(error) => self.connect_failed(cx, error),
        }
    }

    /// Looks for an error behind the end of the host's stream, which no read meets: a peer's reset after its
    /// FIN.
    pub(super) fn check_error<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if !self.broken
            && let Some(socket) = self.socket
            && self.tx.take_error_behind_end()
            && let Some(error) = cx.host.tcp_error(socket)
        {
            self.host_failed(cx.shared, error);
        }
    }

    /// Whether an accepted connection between the same ends may take this flow's key. The host's kernel has
    /// forgotten the earlier connection then, or soon has: its peer has reset it, perhaps in this very turn,
    /// or both of the host's directions are over and only the guest's last acknowledgements are awaited.
    /// Bytes from before the reset go to the guest first, as far as its window allows, and then a reset: it
    /// would not take a SYN in the midst of a connection.
    pub(crate) fn makes_way_for_inbound<P: Platform>(&mut self, cx: &mut Cx<'_, P>) -> bool {
        if self.is_away() {
            return self.has_failed_away(cx);
        }
        if self.state() == State::TimeWait {
            return true;
        }
        match self.socket {
            _ if self.tx.is_connecting() => return false,
            _ if self.broken => {}
            Some(socket) => match cx.host.tcp_error(socket) {
                Some(error) => self.host_failed(cx.shared, error),
                None => return false,
            },
            None if self.tx.unsent() > 0 => return false,
            None => {}
        }
        self.take_turn(cx);
        if !self.ended {
            self.reset_guest(cx);
        }
        true
    }

    /// Writes what waits for the host socket; sends the guest a window update if that is due then.
    fn flush_to_host<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.tune_blocked_receiver(cx);
        if let Err(error) = self.rx.flush(cx, self.id, self.socket) {
            self.host_failed(cx.shared, error);
        }
        self.note_receiving_limit(cx);
        self.update_window(cx.shared, cx.now);
        self.settle(cx);
    }

    /// Failure of the host socket: on a write, or behind the end of its stream. Bytes received before are
    /// still passed on, by `serve`.
    fn host_failed(&mut self, shared: &mut Shared, error: HostError) {
        self.begin_rest();
        if self.rx.is_gate_closed() {
            // Nothing of the host's passes a closed gate.
            self.tx.conclude(shared, &[]);
        }
        self.cause = EndCause::of(error);
        // The guest's bytes have no taker any more, and their memory may be what the others need.
        self.rx.clear(shared);
        self.tx.read_rest();
        self.list_ready(shared);
    }

    /// The host socket has failed: what came before is the rest, and has its own time ([`timeout`]).
    fn begin_rest(&mut self) {
        if !self.broken {
            // So many more can be counted in any case.
            let before = self.tx.backoff().min(u8::MAX - timeout::REST_TIMEOUTS_MAX);
            (self.broken, self.timeouts_before) = (true, before);
        }
    }

    /// Lists the flow for service in this turn.
    pub(super) fn list_ready(&mut self, shared: &mut Shared) {
        shared.ready.list(self.id, &mut self.turn);
    }

    /// Acts on the state reached: gives up the socket when both of its directions are over, enters TIME-WAIT,
    /// ends.
    pub(super) fn settle<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let is_over = self.rx.state() == ReceiverState::Finished && self.tx.has_read_all();
        if is_over && self.socket.is_some() {
            // The kernel's counters go with the socket: the ends of both streams are in the record before.
            self.write_journal(&cx.shared.journal);
            self.close_socket(cx, Close::Graceful);
        }
        let until = cx.now + cx.shared.config.timeouts.time_wait;
        match self.closer.settle(self.rx.state(), self.tx.state(), until) {
            Settled::Pending => {}
            Settled::TimeWait => debug_assert!(self.tx.deadline().is_none(), "nothing is in flight"),
            Settled::Done => self.ended = true,
        }
    }

    /// Ends the connection; resets the host's peer if it is still there.
    pub(super) fn end<P: Platform>(&mut self, cx: &mut Cx<'_, P>, cause: EndCause) {
        self.close_socket(cx, Close::Reset);
        self.cause = cause;
        self.ended = true;
    }

    pub(super) fn close_socket<P: Platform>(&mut self, cx: &mut Cx<'_, P>, how: Close) {
        if let Some(socket) = self.socket.take() {
            cx.shared.journal.forget_socket(self.id);
            cx.host.close(socket, how);
        }
    }
}

impl Keyed for Connection {
    fn key(&self) -> &FlowKey {
        &self.key
    }
}

impl FlowKind for Connection {
    fn initiator(&self) -> Initiator {
        if self.inbound { Initiator::Peer } else { Initiator::Guest }
    }

    fn socket(&self) -> Option<SocketId> {
        self.socket
    }

    fn info(&self, shared: &Shared, now: Instant) -> FlowInfo {
        let connect = (self.connect_us != NOT_CONNECTED).then_some(self.connect_us);
        FlowInfo {
            flow: self.id,
            key: self.key,
            initiator: self.initiator(),
            carrier: self.carrier(),
            state: FlowState::Tcp(self.state()),
            age: now - self.opened_at,
            idle: Duration::ZERO,
            from_guest: Traffic { bytes: self.rx.bytes(), packets: self.segments_taken.into() },
            to_guest: Traffic { bytes: self.tx.bytes(), packets: self.segments_sent.into() },
            rtt: shared.tcp.rtt.srtt(),
            connect: connect.map(|us| Duration::from_micros(us.into())),
            retransmissions: self.tx.retransmissions(),
        }
    }

    fn allocated(&self) -> usize {
        self.rx.allocated() + self.tx.allocated() + self.promotion.allocated()
    }

    fn eviction_class(&self) -> EvictionClass {
        match self.state() {
            _ if self.tx.is_lost() => EvictionClass::Spent,
            State::TimeWait | State::Closed => EvictionClass::Spent,
            State::SynSent | State::SynReceived => EvictionClass::Unanswered,
            _ => EvictionClass::InUse,
        }
    }

    /// An established connection is evicted only after minutes of silence: most likely the guest no longer
    /// has it.
    fn eviction_rank(&self, idle: Duration) -> Option<EvictionRank> {
        match self.eviction_class() {
            EvictionClass::InUse if idle < DORMANT_AFTER => None,
            EvictionClass::InUse => Some(EvictionRank(EvictionClass::Dormant, idle)),
            other => Some(EvictionRank(other, idle)),
        }
    }

    fn has_ended(&self) -> bool {
        self.ended
    }

    fn refused_by(&self) -> Option<&Arc<str>> {
        self.rx.refusal()
    }

    fn named(&self) -> Option<&Named> {
        self.rx.named()
    }

    fn checks_at_gate(&self) -> Option<Checks> {
        self.rx.checks_at_gate()
    }

    fn moved(&self) -> [u64; 2] {
        [self.rx.bytes(), self.tx.bytes()]
    }

    fn limit(&mut self, window_max: u32) {
        self.is_limited = true;
        self.rx.cap_window(window_max);
    }

    fn unlimit(&mut self) {
        self.is_limited = false;
        self.rx.cap_window(u32::MAX);
    }

    /// The guest's window is advanced no further, and nothing more is read from the host.
    fn hold_back<P: Platform>(&mut self, cx: &mut Cx<'_, P>, held: Held) {
        self.rx.hold_back(held[UP]);
        self.tx.hold_back(held[DOWN]);
        self.update_window(cx.shared, cx.now);
        self.list_or_watch(cx);
    }

    fn revoke<P: Platform>(&mut self, cx: &mut Cx<'_, P>, cause: EndCause) {
        self.cause = cause;
        if self.is_away() {
            self.end_away(cx, cause);
        } else {
            self.reset_guest(cx);
        }
    }

    /// Handles what cannot wait; the rest is done by [`Connection::take_turn`].
    fn socket_event<P: Platform>(&mut self, cx: &mut Cx<'_, P>, ready: Readiness) {
        if self.is_away() {
            return self.socket_event_while_away(ready);
        }
        if self.tx.is_connecting() {
            if ready.writable || ready.error {
                self.check_connect(cx);
            }
            if self.tx.is_connecting() || self.ended {
                return;
            }
        }
        self.tx.socket_event(ready);
        if let Some(dns) = &mut self.dns {
            dns.socket_event(ready);
            return self.list_ready(cx.shared);
        }
        if self.tx.state() == SenderState::SynSent {
            return;
        }
        if ready.writable || ready.error {
            self.rx.socket_writable();
            self.flush_to_host(cx);
        }
        if ready.error && self.is_waiting_for_gate {
            self.check_error_at_gate(cx);
        }
        self.check_error(cx);
        self.list_or_watch(cx);
    }

    fn serve<P: Platform>(&mut self, cx: &mut Cx<'_, P>, _: &mut Buffers) {
        if self.is_away() {
            return self.turn.skip();
        }
        self.take_turn(cx);
    }

    fn expire<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if self.is_away() {
            return self.away_timer(cx);
        }
        self.timers_fired(cx);
    }

    fn guest_reset<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.doubt_guest(cx);
    }

    /// A connection from an address that is gone would hang until it times out.
    fn network_changed<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if !self.socket.is_some_and(|socket| cx.host.is_stranded(socket)) {
            return;
        }
        if self.is_away() {
            self.end_away(cx, EndCause::NetworkChanged);
        } else if self.tx.is_connecting() {
            self.connect_failed(cx, HostError::NetUnreachable);
        } else {
            self.reset_guest(cx);
        }
        self.cause = EndCause::NetworkChanged;
    }

    fn reschedule(&mut self, shared: &mut Shared) {
        if !self.is_away() && !self.broken {
            self.rx.reserve_window(&mut shared.memory.pool);
        }
        self.arm(shared);
        self.write_journal(&shared.journal);
    }

    fn dispose<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.rx.clear(cx.shared);
        self.tx.clear(cx.shared);
        self.close_socket(cx, Close::Reset);
        cx.shared.dns.streams -= u32::from(self.is_dns());
        self.release_carrier(cx.shared);
        cx.shared.counters.tcp_closed += 1;
    }
}
