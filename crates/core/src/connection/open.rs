//! Passive open: the guest's SYN, the host's connect, the SYN-ACK, and the guest's view of a failed connect.

use super::closer::Closer;
use super::promotion::Promotion;
use super::receiver::{Receiver, Receiving};
use super::sender::{PeerOptions, Sender};
use super::timeout::KeepAlive;
use super::{Connection, NOT_CONNECTED, reset};
use crate::context::{Cx, Platform, Shared};
use crate::counters::DropReason;
use crate::egress::headers::{Ip, ip_header_len};
use crate::flow::Addresses;
use crate::flow::end::EndCause;
use crate::flow::{FlowId, FlowKey};
use crate::gate::{Gate, Subject};
use crate::host::IcmpCause;
use crate::host::{Close, Connect, Host, HostError};
use crate::schedule::Turn;
use crate::tcp::autosize::Limit;
use crate::time::Instant;
use crate::trace::Direction;
use crate::upstream::{Dial, Upstream};
use crate::wire::tcp::{Seq, TcpFlags, TcpHeader, TcpOptions};
use crate::wire::{TCP, ipv6::Ipv6Header};

/// Least MSS that is honoured: Linux's floor (tcp_min_snd_mss).
const MSS_MIN: u16 = 48;
/// MSS of a guest that names none (RFC 9293, 3.7.1).
const MSS_DEFAULT_V4: u16 = 536;
const MSS_DEFAULT_V6: u16 = 1220;

/// The largest payload of a segment on a link of `mtu`, without options.
pub(super) fn mss_of_mtu(key: &FlowKey, mtu: u16) -> u16 {
    mtu - (ip_header_len(key.guest.ip()) + TcpHeader::LEN) as u16
}

/// Distance of an initial sequence number from the last one used between the same ends: as Linux in
/// TIME-WAIT.
const ISS_DISTANCE: u32 = 65_537;

/// The smallest scale with which a 16-bit field can announce `max` bytes.
fn scale_for(max: u32) -> u8 {
    (0..14).find(|s| 65_535 << s >= max).unwrap_or(14)
}

/// Options of a guest's SYN, as far as they are honoured where packets have at most `mtu` bytes.
pub(super) fn peer_options(key: &FlowKey, options: &TcpOptions, mtu: u16) -> PeerOptions {
    let default = if key.guest.is_ipv4() { MSS_DEFAULT_V4 } else { MSS_DEFAULT_V6 };
    let mss = options.mss.unwrap_or(default).max(MSS_MIN).min(mss_of_mtu(key, mtu));
    PeerOptions { mss, scale: options.window_scale, sack: options.sack_permitted }
}

/// Our initial sequence number: above `after`, the last one that an earlier connection between the same ends
/// has used.
pub(super) fn iss(shared: &Shared, key: &FlowKey, now: Instant, after: Option<Seq>) -> Seq {
    match (shared.tcp.isn.isn(key, now), after) {
        (iss, Some(after)) if !iss.gt(after) => after + ISS_DISTANCE,
        (iss, _) => iss,
    }
}

/// Our window scale and the receive limit, for a guest that does or does not scale windows.
pub(super) fn receiving(shared: &Shared, scales: bool, now: Instant) -> Receiving {
    let (scale, cap) = if scales { (scale_for(shared.config.tcp_rx.max), 65_535 << 14) } else { (0, 65_535) };
    let limit = Limit::new(Direction::Receive, shared.config.tcp_tuning, shared.config.tcp_rx, cap, now);
    Receiving { scale, limit }
}

impl Connection {
    /// A connection whose first sequence numbers are `irs` of the guest's and `iss` of ours.
    pub(super) fn new(
        shared: &Shared,
        now: Instant,
        id: FlowId,
        key: FlowKey,
        irs: Seq,
        iss: Seq,
        peer: PeerOptions,
    ) -> Self {
        let receiving = receiving(shared, peer.scale.is_some(), now);
        let mss_max = mss_of_mtu(&key, shared.config.mtu);
        let promptness = shared.tcp.prompt_peers.of(&key.remote);
        let mut rx = Receiver::new(irs, receiving, peer.mss, mss_max, promptness, now);
        rx.permit_sack(peer.sack);
        let tx_limit =
            Limit::new(Direction::Send, shared.config.tcp_tuning, shared.config.tcp_tx, u32::MAX, now);
        Self {
            key,
            id,
            socket: None,
            rx,
            tx: Sender::new(iss, peer, tx_limit, now),
            closer: Closer::default(),
            keep_alive: KeepAlive::new(now),
            opened_at: now,
            challenged_at: None,
            broken: false,
            timeouts_before: 0,
            turn: Turn::default(),
            inbound: false,
            upstream: Upstream::Destination,
            is_waiting_for_gate: false,
            is_limited: false,
            dns: None,
            ended: false,
            cause: EndCause::default(),
            connect_us: NOT_CONNECTED,
            segments_taken: 0,
            segments_sent: 0,
            promotion: Promotion::default(),
        }
    }

    /// A connection for a guest's SYN; starts to connect the host socket as `dial` says, behind a gate for
    /// `subject`. Its sequence numbers are above `iss_after`, where an earlier connection between the same
    /// ends has just ended (RFC 9293, 3.10.7.4).
    pub(crate) fn open<P: Platform>(
        cx: &mut Cx<'_, P>,
        id: FlowId,
        key: FlowKey,
        dial: Dial,
        subject: Option<Subject>,
        syn: &TcpHeader,
        iss_after: Option<Seq>,
    ) -> Self {
        let peer = peer_options(&key, &syn.options, cx.shared.packet_max());
        let iss = iss(cx.shared, &key, cx.now, iss_after);
        let mut connection = Self::new(cx.shared, cx.now, id, key, syn.seq, iss, peer);
        connection.tx.open_window(syn);
        connection.upstream = dial.upstream;
        if dial.upstream != Upstream::Destination {
            connection.serve_dns(cx);
        }
        if let Some(subject) = subject {
            connection.rx.set_gate(cx.shared, Gate::new(subject));
            connection.wait_for_gate();
        }
        cx.shared.counters.tcp_opened += 1;
        match cx.host.tcp_connect(id, dial.to) {
            Ok((socket, progress)) => {
                connection.socket = Some(socket);
                if progress == Connect::Done {
                    connection.connected(cx);
                }
            }
            Err(error) => connection.connect_failed(cx, error),
        }
        connection
    }

    /// The host socket is connected: the guest gets its SYN-ACK.
    pub(super) fn connected<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.tx.connected();
        let took = (cx.now - self.opened_at).as_micros();
        self.connect_us = u32::try_from(took).unwrap_or(NOT_CONNECTED);
        self.rx.socket_writable();
        // From its SYN-ACK on the guest takes the connection for open.
        self.write_journal(&cx.shared.journal);
        self.rx.begin_gate(cx.now);
        self.send_syn_ack(cx);
    }

    /// The options of our SYN.
    pub(super) fn syn_options(&self, shared: &Shared, scales: bool, sack_permitted: bool) -> TcpOptions {
        TcpOptions {
            mss: Some(mss_of_mtu(&self.key, shared.config.mtu)),
            window_scale: scales.then_some(self.rx.scale()),
            sack_permitted,
            ..TcpOptions::default()
        }
    }

    /// Sends the SYN-ACK, for the first time or again.
    pub(super) fn send_syn_ack<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let options = self.syn_options(cx.shared, self.tx.peer_scales(), self.tx.peer_permits_sack());
        let header = TcpHeader {
            seq: self.tx.una(),
            window: self.rx.offer_unscaled(cx.shared),
            options,
            ..self.header(TcpFlags::SYN | TcpFlags::ACK)
        };
        if self.send(&mut cx.egress(), &header, &[]).is_err() {
            self.list_ready(cx.shared);
            return;
        }
        self.tx.sent_syn(cx.shared, cx.now);
    }

    /// Failure of the host's connect: the guest gets what its own kernel would have met.
    pub(super) fn connect_failed<P: Platform>(&mut self, cx: &mut Cx<'_, P>, error: HostError) {
        if self.dial_next(cx, error) {
            return;
        }
        self.ended = true;
        // A reset during the connect is a refusal: the destination did not take the connection.
        self.cause = match EndCause::of(error) {
            EndCause::ResetByHost => EndCause::Refused,
            cause => cause,
        };
        let cause = match error {
            // The guest's own SYN timer runs out at about the same time. Out of sockets: its next SYN may
            // succeed.
            HostError::TimedOut | HostError::WouldBlock => return,
            HostError::Exhausted => return cx.shared.counters.drop(DropReason::HostExhausted),
            HostError::NetUnreachable | HostError::Unsupported => IcmpCause::NetUnreachable,
            HostError::HostUnreachable => IcmpCause::HostUnreachable,
            HostError::Prohibited => IcmpCause::Prohibited,
            HostError::Refused | HostError::Reset | HostError::TooBig(_) | HostError::Other(_) => {
                return reset::refuse(cx, &self.key, self.rx.nxt());
            }
        };
        self.send_unreachable(cx, cause);
    }

    /// Time at which the next candidate upstream is dialled, if the present one is silent.
    pub(super) fn connect_deadline(&self, shared: &Shared) -> Option<Instant> {
        let is_connecting = self.socket.is_some() && self.tx.is_connecting();
        is_connecting.then(|| self.upstream.deadline(shared, self.opened_at))?
    }

    /// Dials the next candidates upstream after a connect has failed. False if none takes the connection.
    fn dial_next<P: Platform>(&mut self, cx: &mut Cx<'_, P>, mut error: HostError) -> bool {
        while let Some(to) = self.upstream.next(cx.shared, error, cx.now) {
            self.close_socket(cx, Close::Graceful);
            match cx.host.tcp_connect(self.id, to) {
                Ok((socket, progress)) => {
                    self.socket = Some(socket);
                    if progress == Connect::Done {
                        self.connected(cx);
                    }
                    return true;
                }
                Err(next) => error = next,
            }
        }
        false
    }

    /// Sends an ICMP error that quotes the SYN.
    fn send_unreachable<P: Platform>(&mut self, cx: &mut Cx<'_, P>, cause: IcmpCause) {
        let mut syn = [0; Ipv6Header::LEN + TcpHeader::LEN];
        let (guest, remote) = (self.key.guest, self.key.remote);
        let addresses = Addresses::new(guest.ip(), remote.ip());
        let ip = Ip::new(addresses, TCP).emit(TcpHeader::LEN, &mut syn);
        let header = TcpHeader {
            src_port: guest.port(),
            dst_port: remote.port(),
            seq: self.rx.nxt() - 1,
            ack: Seq(0),
            flags: TcpFlags::SYN,
            window: 0,
            urgent: 0,
            options: TcpOptions::default(),
        };
        header.emit(&mut syn[ip..]);
        crate::icmp::send_error(cx, cause, None, &syn[..ip + TcpHeader::LEN]);
    }
}
