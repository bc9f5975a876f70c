//! A conversation with a stack that was made of bytes: a snapshot, or a journal.
//!
//! The stack gets segments and datagrams for each of its flows, events of sockets, and time, on a host that
//! answers in every way that a host may. Nothing of that may panic, exceed the budget, or send a frame beyond
//! the MTU.

use brodo_core::config::Config;
use brodo_core::flow::info::{Carrier, FlowInfo};
use brodo_core::flow::{FlowId, Protocol};
use brodo_core::host::{
    Close, Connect, Host, HostError, IcmpReport, IpHeaderFields, Readiness, Received, SocketId,
};
use brodo_core::link::{Gso, Link, LinkCaps, NoCredit, RxMeta, TxFrame};
use brodo_core::memory::budget::Budget;
use brodo_core::memory::payload::PayloadMemory;
use brodo_core::policy::{AllowRule, Effect, PolicyRules, Rule, Ruleset, SharedPolicy};
use brodo_core::stack::{Adopt, Io, Lost, Platform, Settings, SocketKind, Stack};
use brodo_core::time::Instant;
use brodo_core::trace::Observer;
use brodo_sim::link::to_stack;
use brodo_sim::packet::{self, ParsedFrame, TcpSegment, UdpDatagram, flags};
use brodo_sim::rng::Rng;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Time of the restoring, after that of every seed.
pub(crate) const NOW: Instant = Instant::from_ms(60_000);
/// Flows of a restored stack that are spoken to.
const FLOWS_MAX: usize = 6;
/// Deadlines that pass, one after another.
const DEADLINES: usize = 12;
/// Frames in a turn after which the link has no credit for once.
const CREDIT: usize = 40;

/// Configuration of the stack: that of the seeds.
pub fn config() -> Config {
    Config {
        mtu: 1500,
        memory: 4 << 20,
        max_flows: 64,
        dns_cache: 8 << 10,
        multicast: true,
        ..Config::default()
    }
}

/// The same under a policy with rules for one name, which refuses everything else or not.
pub fn under_policy(default: Effect) -> Config {
    let allow = ["http://gate.example.org", "https://gate.example.org", "quic://gate.example.org"];
    let allow = allow.map(|text| AllowRule::from(Rule::parse(text, Effect::Allow).expect("a rule")));
    let rules = PolicyRules { default, allow: allow.into(), ..PolicyRules::default() };
    let rules = Ruleset::new(rules).expect("few rules");
    let mut config = config();
    config.rules.shared = Some(Arc::new(SharedPolicy::new(rules, &[], [7; 16])));
    config
}

/// Settings of the stack with this configuration, and memory that outlives a process if there is some.
pub(crate) fn settings(config: Config, payload: Option<PayloadMemory>) -> Settings {
    let budget = Arc::new(Budget::new(config.memory));
    Settings {
        config,
        caps: LinkCaps::default(),
        budget,
        worker: 0,
        host_addresses: Arc::default(),
        payload,
        room: None,
    }
}

/// A conversation with such a stack.
pub(crate) struct Play {
    pub(crate) stack: Stack,
    pub(crate) now: Instant,
    link: AnyLink,
    pub(crate) host: AnyHost,
}

impl Play {
    pub(crate) fn new(stack: Stack, seed: u64) -> Self {
        Self { stack, now: NOW, link: AnyLink::default(), host: AnyHost::new(seed) }
    }

    /// Resets what was lost, speaks to some flows, and lets time pass.
    pub(crate) fn converse(&mut self, lost: &[Lost]) {
        let mut lost = lost.to_vec();
        self.call(|stack, io| stack.reset_lost(io, &mut lost));
        self.turn(&[]);
        for info in self.flows() {
            self.talk(&info);
        }
        for step in 0..DEADLINES {
            let Some(at) = self.stack.next_deadline() else { break };
            self.now = self.now.max(at);
            self.turn(&[]);
            if step % 4 == 3 {
                self.flows().iter().for_each(|info| self.talk(info));
            }
        }
    }

    fn call(&mut self, f: impl FnOnce(&mut Stack, &mut Io<'_, AnyPlatform>)) {
        let Self { stack, now, link, host } = self;
        f(stack, &mut Io { now: *now, link, host, observer: &mut Silent });
    }

    /// Some flows.
    fn flows(&self) -> Vec<FlowInfo> {
        self.stack.flow_details(0, self.now).map(|detail| detail.info).take(FLOWS_MAX).collect()
    }

    /// One turn with frames of the guest. It ends, whatever the host says.
    fn turn(&mut self, frames: &[Vec<u8>]) {
        self.link.sent.clear();
        for frame in frames {
            self.call(|stack, io| stack.frame(io, RxMeta::default(), frame));
        }
        self.call(Stack::expire);
        for _ in 0..4 {
            self.stack.link_writable();
            self.call(|stack, io| _ = stack.serve(io));
            self.call(Stack::flush);
        }
        self.stack.link_drained(self.now);
        self.stack.take_released();
        assert!(self.stack.memory_used() <= self.stack.memory_budget(), "memory beyond the budget");
    }

    /// Segments or datagrams for a flow, and every event of its socket.
    fn talk(&mut self, info: &FlowInfo) {
        let (guest, remote): (SocketAddr, SocketAddr) = (info.key.guest.into(), info.key.remote.into());
        let all = Readiness { readable: true, writable: true, read_closed: false, urgent: true, error: true };
        self.call(|stack, io| stack.socket_event(io, info.flow, all));
        if guest.is_ipv4() != remote.is_ipv4() || info.carrier != Carrier::Stack {
            return self.turn(&[]);
        }
        if info.key.protocol != Protocol::Tcp {
            let datagram = UdpDatagram { src: guest, dst: remote, data: vec![7; 900] };
            let macs = to_stack(config().mac.0);
            return self.turn(&[datagram.to_frame(macs), datagram.to_frame(macs)]);
        }
        // The answer to nonsense tells where both sides are.
        let segment = |seq, ack, bits, len| TcpSegment {
            flags: bits,
            seq,
            ack,
            window: 4000,
            data: vec![0; len],
            ..TcpSegment::new(guest, remote)
        };
        let macs = to_stack(config().mac.0);
        self.turn(&[segment(0, 0, flags::ACK, 0).to_frame(macs)]);
        let Some((seq, ack)) = self.link.last_numbers(guest, remote) else { return };
        let frames = [
            segment(ack, seq, flags::ACK, 500),
            segment(ack.wrapping_add(1000), seq, flags::ACK, 500),
            segment(ack.wrapping_add(500), seq.wrapping_sub(10), flags::ACK, 500),
            TcpSegment { sack: vec![(seq.wrapping_sub(20), seq)], ..segment(ack, seq, flags::ACK, 0) },
            segment(ack.wrapping_add(1500), seq.wrapping_add(1), flags::ACK | flags::FIN, 1),
            segment(ack, seq, flags::SYN, 0),
        ];
        self.turn(&frames.map(|frame| frame.to_frame(macs)));
    }
}

enum AnyPlatform {}

impl Platform for AnyPlatform {
    type Link = AnyLink;
    type Host = AnyHost;
    type Observer = Silent;
}

struct Silent;

impl Observer for Silent {}

/// A link that keeps frames, and has no credit now and then.
#[derive(Default)]
struct AnyLink {
    sent: Vec<Vec<u8>>,
}

impl AnyLink {
    /// Sequence and acknowledgement number of the last segment to the guest of a connection.
    fn last_numbers(&self, guest: SocketAddr, remote: SocketAddr) -> Option<(u32, u32)> {
        self.sent.iter().rev().find_map(|frame| match packet::parse(frame) {
            Ok(ParsedFrame::Tcp(s)) if (s.src, s.dst) == (remote, guest) => {
                Some((s.seq.wrapping_add(s.seq_len()), s.ack))
            }
            _ => None,
        })
    }
}

impl Link for AnyLink {
    fn caps(&self) -> LinkCaps {
        LinkCaps::default()
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), NoCredit> {
        if self.sent.len() % CREDIT == CREDIT - 1 {
            self.sent.push(Vec::new());
            return Err(NoCredit);
        }
        assert!(frame.len() <= 14 + usize::from(config().mtu), "a frame of {} bytes", frame.len());
        assert!(frame.gso == Gso::None && frame.partial.is_none(), "offloads that the link has not");
        let payload = frame.payload.iter().flat_map(|slice| slice.iter().copied());
        self.sent.push(frame.headers.iter().copied().chain(payload).collect());
        Ok(())
    }
}

/// A host whose sockets answer in every way, drawn from a seed.
pub(crate) struct AnyHost {
    rng: Rng,
    opened: u32,
}

impl AnyHost {
    pub(crate) fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed), opened: 1 << 20 }
    }

    fn open(&mut self) -> Result<SocketId, HostError> {
        self.opened += 1;
        if self.rng.chance(100) { Err(HostError::Exhausted) } else { Ok(SocketId(self.opened)) }
    }

    fn error(&mut self) -> HostError {
        self.rng.pick(&[HostError::Reset, HostError::TimedOut, HostError::Refused, HostError::TooBig(1280)])
    }

    /// Bytes taken or given of so many.
    fn some(&mut self, of: usize) -> Result<usize, HostError> {
        match self.rng.below(12) {
            0..5 => Ok(of),
            5..8 => Ok(self.rng.range(1, of.max(1) as u64) as usize),
            8..11 => Err(HostError::WouldBlock),
            _ => Err(self.error()),
        }
    }
}

impl Adopt for AnyHost {
    fn socket(&mut self, _: FlowId, index: u32, _: SocketKind) -> Option<SocketId> {
        (index < 1 << 20).then_some(SocketId(index))
    }

    fn carrier(&mut self, _: FlowId, _: Carrier, number: u32) -> Option<u32> {
        Some(number)
    }
}

impl Host for AnyHost {
    fn tcp_connect(&mut self, _: FlowId, _: SocketAddr) -> Result<(SocketId, Connect), HostError> {
        Ok((self.open()?, self.rng.pick(&[Connect::Done, Connect::Pending])))
    }

    fn tcp_connected(&mut self, _: SocketId) -> Result<Connect, HostError> {
        if self.rng.chance(100) { Err(self.error()) } else { Ok(Connect::Done) }
    }

    fn tcp_send(&mut self, _: SocketId, data: &[IoSlice<'_>]) -> Result<usize, HostError> {
        self.some(data.iter().map(|slice| slice.len()).sum())
    }

    fn tcp_recv(&mut self, _: SocketId, into: &mut [IoSliceMut<'_>]) -> Result<usize, HostError> {
        if self.rng.chance(30) {
            return Ok(0);
        }
        self.some(into.iter().map(|slice| slice.len()).sum::<usize>().min(5000))
    }

    fn tcp_error(&mut self, _: SocketId) -> Option<HostError> {
        self.rng.chance(300).then(|| self.error())
    }

    fn tcp_shutdown(&mut self, _: SocketId) -> Result<(), HostError> {
        if self.rng.chance(100) { Err(self.error()) } else { Ok(()) }
    }

    fn tcp_keep_alive(&mut self, _: SocketId) {}

    fn udp_open(&mut self, _: FlowId, _: Option<SocketAddr>, _: SocketAddr) -> Result<SocketId, HostError> {
        self.open()
    }

    fn group_open(&mut self, _: FlowId, _: SocketAddr, _: SocketAddr) -> Result<SocketId, HostError> {
        self.open()
    }

    fn ping_open(&mut self, _: FlowId, _: IpAddr) -> Result<SocketId, HostError> {
        self.open()
    }

    fn datagram_send(
        &mut self,
        _: SocketId,
        data: &[IoSlice<'_>],
        segment: Option<u16>,
        _: IpHeaderFields,
    ) -> Result<usize, HostError> {
        let all: usize = data.iter().map(|slice| slice.len()).sum();
        match self.some(1) {
            // One of several.
            Ok(_) if self.rng.chance(200) => Ok(segment.map_or(all, usize::from).min(all)),
            Ok(_) => Ok(all),
            Err(error) => Err(error),
        }
    }

    fn datagram_recv(
        &mut self,
        _: SocketId,
        into: &mut [IoSliceMut<'_>],
        received: &mut [Received],
    ) -> Result<usize, HostError> {
        let count = self.some(into.len())?;
        for one in &mut received[..count] {
            let from = self.rng.chance(500).then(|| SocketAddr::from(([192, 0, 2, 1], 7)));
            *one = Received { len: self.rng.range(8, 3000) as usize, from, ..Received::default() };
        }
        Ok(count)
    }

    fn datagram_error(&mut self, _: SocketId) -> Option<IcmpReport> {
        None
    }

    fn close(&mut self, _: SocketId, _: Close) {}
}
