//! UDP and ICMP echo flows: one connected host socket for each conversation of the guest.
//!
//! A guest's datagram goes to the host socket of its flow as it is, super-datagrams (USO) as one segmented send. What
//! comes back, coalesced where the kernel could, goes to the guest in one super-datagram if the link takes them. As
//! long as the link has no credit datagrams stay in the kernel, which drops the newest when its buffer is full, as it
//! would for a program that does not read.
//!
//! Nothing is retransmitted or stored here. A flow ends when it has been silent for its time-out: shorter while
//! nothing has come back, shortest for DNS. A DNS flow that ends without an answer moves the worker on to the host's
//! next resolver. ICMP errors that the host socket receives are passed on for the right flow; when the guest itself
//! says that nobody listens any more, the flow is closed, so that the host's kernel says the same to the peer.

use crate::counters::DropReason;
use crate::env::Env;
use crate::flow::{FlowId, FlowKey, Protocol};
use crate::host::{Close, Host, HostError, IcmpCause, Readiness, Received, SocketId};
use crate::icmp;
use crate::link::Link;
use crate::schedule::Turn;
use crate::services::icmp_error::{QUOTE_LEN_MAX, quote};
use crate::stack::Io;
use crate::time::{Duration, Instant};
use crate::transmit::{self, ip_header_len};
use crate::wire::udp::UdpHeader;

/// Most receives for one flow before the next gets its turn.
const RECEIVES_MAX: usize = 16;
/// ICMP errors passed on for one event.
const ERRORS_MAX: usize = 4;

/// One conversation in datagrams.
#[derive(Debug)]
pub(crate) struct DatagramFlow {
    key: FlowKey,
    id: FlowId,
    socket: Option<SocketId>,
    /// Goes to one of the host's resolvers.
    dns: bool,
    /// Something came back.
    answered: bool,
    used_at: Instant,
    readable: bool,
    turn: Turn,
    ended: bool,
}

impl DatagramFlow {
    /// A flow over a socket that has just been opened.
    pub(crate) fn new(id: FlowId, key: FlowKey, socket: SocketId, dns: bool, now: Instant) -> Self {
        let socket = Some(socket);
        let turn = Turn::default();
        Self { key, id, socket, dns, answered: false, used_at: now, readable: false, turn, ended: false }
    }

    pub(crate) fn key(&self) -> &FlowKey {
        &self.key
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// How little is lost if this flow goes to make room: the longer silent the less.
    pub(crate) fn eviction_rank(&self, now: Instant) -> u64 {
        let idle_ns = (now - self.used_at).as_nanos() as u64;
        if self.answered { idle_ns / 4 } else { idle_ns }
    }

    /// Sends the guest's datagram; `packet` is its IP packet, for an ICMP error to quote.
    pub(crate) fn send<L: Link, H: Host>(
        &mut self,
        env: &mut Env,
        io: &mut Io<'_, L, H>,
        payload: &[u8],
        segment: Option<u16>,
        packet: &[u8],
    ) {
        self.used_at = io.now;
        let Some(socket) = self.socket else { return };
        let mut result = io.host.datagram_send(socket, payload, segment);
        if !matches!(result, Ok(()) | Err(HostError::WouldBlock | HostError::TooBig(_))) {
            // The socket may be reporting an ICMP error for an earlier datagram instead of sending this one.
            self.report_errors(env, io);
            result = io.host.datagram_send(socket, payload, segment);
        }
        match result {
            Ok(()) => {}
            Err(HostError::WouldBlock | HostError::Exhausted) => {
                env.counters.drop(DropReason::HostSocketFull);
            }
            Err(error) => match icmp::cause_of(error) {
                Some(cause) => icmp::send_error(env, io.link, cause, None, packet),
                None => env.counters.drop(DropReason::HostSendFailed),
            },
        }
    }

    /// Notes a host socket event.
    pub(crate) fn socket_event<L: Link, H: Host>(
        &mut self,
        env: &mut Env,
        io: &mut Io<'_, L, H>,
        ready: Readiness,
    ) {
        if ready.error {
            self.report_errors(env, io);
        }
        self.readable |= ready.readable;
        if self.readable {
            self.list_ready(env);
        }
    }

    fn list_ready(&mut self, env: &mut Env) {
        env.schedule.list(self.id, &mut self.turn);
    }

    /// Passes on what has arrived, within bounds; lists the flow again if there may be more.
    pub(crate) fn serve<L: Link, H: Host>(
        &mut self,
        env: &mut Env,
        io: &mut Io<'_, L, H>,
        scratch: &mut [u8],
    ) {
        self.turn.begin(false, 1);
        let Some(socket) = self.socket else { return };
        for _ in 0..RECEIVES_MAX {
            if !self.readable || env.outlet.stalled || !self.turn.goes_on() {
                break;
            }
            match io.host.datagram_recv(socket, scratch) {
                Ok(received) => {
                    self.used_at = io.now;
                    self.answered = true;
                    self.turn.spend(received.len as u32);
                    self.deliver(env, io, received, scratch);
                }
                Err(HostError::WouldBlock) => self.readable = false,
                // Not a datagram but news of an ICMP error; the datagrams behind it come next.
                Err(_) => self.report_errors(env, io),
            }
        }
        if self.readable {
            self.list_ready(env);
        }
    }

    fn deliver<L: Link, H: Host>(
        &mut self,
        env: &mut Env,
        io: &mut Io<'_, L, H>,
        received: Received,
        scratch: &mut [u8],
    ) {
        let data = &mut scratch[..received.len];
        match self.key.protocol {
            Protocol::Echo => icmp::reply(env, io.link, &self.key, data),
            _ => self.deliver_udp(env, io, data, received.segment),
        }
    }

    fn deliver_udp<L: Link, H: Host>(
        &self,
        env: &mut Env,
        io: &mut Io<'_, L, H>,
        data: &[u8],
        segment: Option<u16>,
    ) {
        let (src, dst) = (self.key.remote, self.key.guest);
        let max = usize::from(env.config.mtu) - ip_header_len(dst.ip()) - UdpHeader::LEN;
        let size = segment.map_or(data.len(), usize::from).max(1);
        if size > max {
            return env.counters.drop(DropReason::DatagramTooBig);
        }
        // A super-datagram is one frame if the link cuts it, else one frame for each datagram.
        let frame = if env.outlet.caps.uso { data.len().max(1) } else { size };
        let ends = (src.ip(), src.port());
        let mut rest = data;
        loop {
            let (now, later) = rest.split_at(rest.len().min(frame));
            let to = (dst.ip(), dst.port());
            let sent = transmit::udp(&mut env.outlet, &mut env.counters, io.link, ends, to, now, segment);
            if sent.is_err() {
                return env.counters.drop(DropReason::LinkFull);
            }
            if later.is_empty() {
                return;
            }
            rest = later;
        }
    }

    /// Passes on the ICMP errors that the socket has received.
    fn report_errors<L: Link, H: Host>(&mut self, env: &mut Env, io: &mut Io<'_, L, H>) {
        let Some(socket) = self.socket else { return };
        for _ in 0..ERRORS_MAX {
            let Some(report) = io.host.datagram_error(socket) else { return };
            if self.dns && report.cause != IcmpCause::TimeExceeded {
                env.resolver = env.resolver.wrapping_add(1);
            }
            let mut packet = [0; QUOTE_LEN_MAX];
            let Some(len) = quote(&self.key, &mut packet) else { return };
            // Whoever is behind an address of ours (a resolver, the host's loopback) stays hidden: the address the
            // guest asked says it. A guest's kernel would drop what comes from 127.0.0.1 as a martian.
            let asked = self.key.remote.ip();
            let from = if env.config.is_ours(asked) { Some(asked) } else { report.from };
            icmp::send_error(env, io.link, report.cause, from, &packet[..len]);
        }
    }

    fn timeout(&self, env: &Env) -> Duration {
        let timeouts = &env.config.timeouts;
        match (self.key.protocol, self.dns, self.answered) {
            (Protocol::Echo, ..) => timeouts.echo,
            (_, true, _) => timeouts.dns,
            (_, false, true) => timeouts.udp_stream,
            (_, false, false) => timeouts.udp_single,
        }
    }

    /// Makes sure that the wheel fires when the flow may have become silent.
    pub(crate) fn arm(&self, env: &mut Env) {
        env.wheel.arm(self.id, self.used_at + self.timeout(env));
    }

    /// The wheel fired, perhaps early.
    pub(crate) fn expire(&mut self, env: &mut Env, now: Instant) {
        if now - self.used_at < self.timeout(env) {
            return;
        }
        if self.dns && !self.answered {
            env.resolver = env.resolver.wrapping_add(1);
        }
        self.ended = true;
    }

    /// Gives back the socket, before removal.
    pub(crate) fn dispose<H: Host>(&mut self, host: &mut H) {
        if let Some(socket) = self.socket.take() {
            host.close(socket, Close::Graceful);
        }
    }
}
