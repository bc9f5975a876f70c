//! How a connection begins: the guest's SYN, the host's connect, the SYN-ACK, and how a failed connect looks.

use super::autosize::Limit;
use super::receiver::Receiver;
use super::sender::{PeerOptions, Sender, SenderState};
use super::{Connection, NOT_CONNECTED, reset};
use crate::counters::DropReason;
use crate::env::Env;
use crate::flow::end::EndCause;
use crate::flow::{FlowId, FlowKey};
use crate::host::IcmpCause;
use crate::host::{Connect, Host, HostError};
use crate::link::Link;
use crate::schedule::Turn;
use crate::stack::Io;
use crate::trace::Direction;
use crate::transmit::{emit_ip, ip_header_len};
use crate::wire::tcp::{Seq, TcpFlags, TcpHeader, TcpOptions};
use crate::wire::{TCP, ipv6::Ipv6Header};
use std::net::SocketAddr;

/// Payload sizes below this are not honoured: Linux's floor (tcp_min_snd_mss).
const MSS_MIN: u16 = 48;
/// What a guest that names no MSS takes (RFC 9293, 3.7.1).
const MSS_DEFAULT_V4: u16 = 536;
const MSS_DEFAULT_V6: u16 = 1220;

/// The largest payload of a segment on a link of `mtu`, without options.
pub(super) fn mss_of_mtu(key: &FlowKey, mtu: u16) -> u16 {
    mtu - (ip_header_len(key.guest.ip()) + TcpHeader::LEN) as u16
}

/// How far above the last connection's numbers the next one between the same ends begins: as Linux in TIME-WAIT.
const ISS_DISTANCE: u32 = 65_537;

/// The smallest scale with which a 16-bit field can announce `max` bytes.
fn scale_for(max: u32) -> u8 {
    (0..14).find(|s| 65_535 << s >= max).unwrap_or(14)
}

impl Connection {
    /// A connection for a guest's SYN; starts to connect the host socket to `to`. Its sequence numbers are above
    /// `iss_after`, where an earlier connection between the same ends has just ended (RFC 9293, 3.10.7.4).
    pub(crate) fn open<L: Link, H: Host>(
        env: &mut Env,
        io: &mut Io<'_, L, H>,
        id: FlowId,
        (key, to): (FlowKey, SocketAddr),
        syn: &TcpHeader,
        iss_after: Option<Seq>,
    ) -> Self {
        let default = if key.guest.is_ipv4() { MSS_DEFAULT_V4 } else { MSS_DEFAULT_V6 };
        let mss = syn.options.mss.unwrap_or(default).max(MSS_MIN).min(mss_of_mtu(&key, env.config.mtu));
        let peer = PeerOptions { mss, scale: syn.options.window_scale, sack: syn.options.sack_permitted };
        let (scale, cap) = match peer.scale {
            Some(_) => (scale_for(env.config.tcp_rx.max), 65_535 << 14),
            None => (0, 65_535),
        };
        let limit =
            |direction, bounds, cap| Limit::new(direction, env.config.tcp_tuning, bounds, cap, io.now);
        let rx_limit = limit(Direction::Receive, env.config.tcp_rx, cap);
        let rx_mss = mss_of_mtu(&key, env.config.mtu);
        let habit = env.habits.of(&key.remote);
        let mut rx = Receiver::new(syn.seq, scale, rx_limit, rx_mss, habit, io.now);
        rx.sack = syn.options.sack_permitted;
        let iss = match (env.isn.isn(&key, io.now), iss_after) {
            (iss, Some(after)) if !iss.gt(after) => after + ISS_DISTANCE,
            (iss, _) => iss,
        };
        let mut tx = Sender::new(iss, peer, limit(Direction::Send, env.config.tcp_tx, u32::MAX), io.now);
        tx.open_window(syn);
        let mut connection = Self {
            key,
            id,
            socket: None,
            rx,
            tx,
            opened_at: io.now,
            heard_at: io.now,
            challenged_at: None,
            time_wait_until: None,
            probes: 0,
            broken: false,
            turn: Turn::default(),
            ended: false,
            cause: EndCause::default(),
            connect_us: NOT_CONNECTED,
            segments: [0; 2],
        };
        env.counters.tcp_opened += 1;
        match io.host.tcp_connect(id, to) {
            Ok((socket, progress)) => {
                connection.socket = Some(socket);
                if progress == Connect::Done {
                    connection.connected(env, io);
                }
            }
            Err(error) => connection.connect_failed(env, io, error),
        }
        connection
    }

    /// The host socket is connected: the guest gets its SYN-ACK.
    pub(super) fn connected<L: Link, H: Host>(&mut self, env: &mut Env, io: &mut Io<'_, L, H>) {
        self.tx.state = SenderState::SynSent;
        let took = (io.now - self.opened_at).as_micros();
        self.connect_us = u32::try_from(took).unwrap_or(NOT_CONNECTED);
        self.rx.writable = true;
        self.send_syn_ack(env, io);
    }

    /// Sends the SYN-ACK, for the first time or again.
    pub(super) fn send_syn_ack<L: Link, H: Host>(&mut self, env: &mut Env, io: &mut Io<'_, L, H>) {
        let options = TcpOptions {
            mss: Some(mss_of_mtu(&self.key, env.config.mtu)),
            window_scale: self.tx.peer_scales.then_some(self.rx.scale),
            sack_permitted: self.tx.sack,
            ..TcpOptions::default()
        };
        let header = TcpHeader {
            seq: self.tx.una,
            window: self.rx.offer_unscaled(self.receive_share(env)),
            options,
            ..self.header(TcpFlags::SYN | TcpFlags::ACK)
        };
        if self.send(&mut env.outlet, &mut env.counters, io.link, &header, &[]).is_err() {
            self.list_ready(env);
            return;
        }
        if self.tx.nxt == self.tx.una {
            self.tx.sent(env, io.now, 1);
        }
    }

    /// The host could not connect: what the guest is told is what its own kernel would have met.
    pub(super) fn connect_failed<L: Link, H: Host>(
        &mut self,
        env: &mut Env,
        io: &mut Io<'_, L, H>,
        error: HostError,
    ) {
        self.ended = true;
        // Whatever the host calls a reset here: it did not take the connection.
        self.cause = match EndCause::of(error) {
            EndCause::ResetByHost => EndCause::Refused,
            cause => cause,
        };
        let cause = match error {
            // The guest's own SYN timer runs out at about the same time. Out of sockets: its next SYN may succeed.
            HostError::TimedOut | HostError::WouldBlock => return,
            HostError::Exhausted => return env.counters.drop(DropReason::HostExhausted),
            HostError::NetUnreachable | HostError::Unsupported => IcmpCause::NetUnreachable,
            HostError::HostUnreachable => IcmpCause::HostUnreachable,
            HostError::Prohibited => IcmpCause::Prohibited,
            HostError::Refused | HostError::Reset | HostError::TooBig(_) | HostError::Other(_) => {
                return reset::refuse(env, io.link, &self.key, self.rx.nxt);
            }
        };
        self.send_unreachable(env, io, cause);
    }

    /// An ICMP error that quotes the SYN.
    fn send_unreachable<L: Link, H: Host>(&mut self, env: &mut Env, io: &mut Io<'_, L, H>, cause: IcmpCause) {
        let mut syn = [0; Ipv6Header::LEN + TcpHeader::LEN];
        let (guest, remote) = (self.key.guest, self.key.remote);
        let ip = emit_ip(&mut syn, (guest.ip(), remote.ip()), TCP, 0, TcpHeader::LEN);
        let header = TcpHeader {
            src_port: guest.port(),
            dst_port: remote.port(),
            seq: self.rx.nxt - 1,
            ack: Seq(0),
            flags: TcpFlags::SYN,
            window: 0,
            urgent: 0,
            options: TcpOptions::default(),
        };
        header.emit(&mut syn[ip..]);
        crate::icmp::send_error(env, io.link, cause, None, &syn[..ip + TcpHeader::LEN]);
    }
}
