//! Scripts: one line per segment, verbs for the host's side, time that advances only by verbs.
//!
//! ```no_run
//! use brodo_sim::script::Script;
//!
//! let mut t = Script::v4();
//! t.guest("SYN win=65535 mss=1460 wscale=7");
//! t.expect_nothing();
//! t.host_connected();
//! t.expect("SYN|ACK seq=0 ack=1");
//! t.guest("ACK data=1000");
//! t.expect("ACK ack=1001");
//! t.host_received(1000);
//! t.host_sends(500);
//! t.expect("ACK|PSH seq=1 data=500");
//! ```
//!
//! The notation is that of [`crate::notation`]. A verb makes one turn of the driver and queues the stack's
//! frames; `expect` takes the oldest. Defaults of a line from the guest without `seq`, `ack` or `win` are
//! those of a correct guest: the next byte, everything received in order, its current window. Payload is a
//! function of the stream offset, and every byte is compared on arrival.
//!
//! A failed script prints all frames and calls so far, in the same notation, with the virtual time in
//! milliseconds.

use crate::driver::SimDriver;
use crate::host::{ConnectPlan, UNLIMITED};
use crate::link::{SentFrame, to_stack};
use crate::notation::{ICMP, Kind, Line, Number};
use crate::observer::{after, later};
use crate::packet::{self, IcmpMessage, Macs, ParsedFrame, TcpSegment, UdpDatagram, flags};
use crate::rng::{Pattern, Rng};
use audit::ScriptAudit;
use brodo_core::config::Config;
use brodo_core::host::{Close, HostError, IcmpCause, IcmpReport, IpHeaderFields, SocketId};
use brodo_core::link::{Gso, LinkCaps, RxChecksum, RxMeta};
use brodo_core::time::{Duration, Instant};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The peer of scripts over IPv4.
pub const REMOTE_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));
/// The peer of scripts over IPv6.
pub const REMOTE_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7));

/// Turns without progress of time after which a script counts as stuck.
const STUCK: usize = 10_000;

/// Bytes of a frame that an ICMP error can be compared with: Ethernet, IPv6, and eight of layer 4.
const HEAD: usize = 14 + 40 + 8;

/// Set-up of a script.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The stack's configuration; MTU 1500 unless changed.
    pub config: Config,
    /// Capabilities of the link; none by default.
    pub caps: LinkCaps,
    /// IPv6 instead of IPv4.
    pub v6: bool,
    /// Seed of keys, sequence numbers and payload.
    pub seed: u64,
    /// The guest's initial sequence number; from the seed unless given.
    pub guest_isn: Option<u32>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            config: Config { mtu: 1500, ..Config::default() },
            caps: LinkCaps::default(),
            v6: false,
            seed: 1,
            guest_isn: None,
        }
    }
}

/// One conversation of the guest: a TCP connection, or the ports of UDP.
struct Flow {
    guest: SocketAddr,
    remote: SocketAddr,
    guest_isn: u32,
    stack_isn: Option<u32>,
    /// Shift of the guest's window field, from its SYN.
    guest_scale: u8,
    /// Shift of the stack's window field, from its SYN|ACK.
    stack_scale: u8,
    /// Absolute; one after everything the guest has sent without a gap.
    guest_next: u32,
    /// Absolute; one after the last byte that the guest has received in order.
    received: u32,
    /// Relative; the highest acknowledgement of the stack's.
    acknowledged: u32,
    window: u32,
    socket: Option<SocketId>,
    /// An inbound connection.
    inbound: bool,
    up: u64,
    down: u64,
    up_datagrams: u64,
    down_datagrams: u64,
    checked_datagrams: u64,
}

/// A frame the stack sent, not yet expected.
struct Seen {
    at: Instant,
    line: Line,
    packet: ParsedFrame,
    /// DF bit and identification, of IPv4.
    ident: Option<(bool, u16)>,
}

/// A running script.
pub struct Script {
    /// The stack, link and host, for operations without a verb.
    pub driver: SimDriver,
    setup: Setup,
    rng: Rng,
    now: Instant,
    flows: Vec<Flow>,
    current: usize,
    seen: VecDeque<Seen>,
    /// The headers of every frame of the guest's, for the ICMP errors that quote them.
    heads: Vec<Vec<u8>>,
    calls_traced: usize,
    opened: usize,
    trace: Vec<String>,
    audit: ScriptAudit,
}

/// Setting up.
impl Script {
    /// A script over IPv4 with the default set-up.
    pub fn v4() -> Self {
        Self::new(Setup::default())
    }

    /// A script over IPv6 with the default set-up.
    pub fn v6() -> Self {
        Self::new(Setup { v6: true, ..Setup::default() })
    }

    /// A script. Connects are pending until [`Script::host_connected`] unless planned otherwise.
    pub fn new(setup: Setup) -> Self {
        let mut driver = SimDriver::new(setup.config.clone(), setup.caps, setup.seed);
        driver.host.set_default_connect(ConnectPlan::Pending);
        let mut script = Self {
            driver,
            rng: Rng::new(setup.seed ^ 0x5c21_9700),
            audit: ScriptAudit::of(&setup.config),
            setup,
            now: Instant::from_ms(1000),
            flows: Vec::new(),
            current: 0,
            seen: VecDeque::new(),
            heads: Vec::new(),
            calls_traced: 0,
            opened: 0,
            trace: Vec::new(),
        };
        script.connection(40_000, 80);
        script.turn(&[]);
        script
    }

    /// Runs `body` over IPv4 and IPv6, with and without checksum offload.
    pub fn each(body: impl Fn(&mut Self)) {
        Self::each_with(&Setup::default(), body);
    }

    /// Runs `body` with a set-up over IPv4 and IPv6, with and without checksum offload.
    pub fn each_with(setup: &Setup, body: impl Fn(&mut Self)) {
        for v6 in [false, true] {
            for checksum in [false, true] {
                let caps = LinkCaps { checksum, ..setup.caps };
                let mut script = Self::new(Setup { caps, v6, ..setup.clone() });
                body(&mut script);
            }
        }
    }

    /// Goes on with another connection, from `guest` port to `remote` port. Gives its index for
    /// [`Script::select`].
    pub fn connection(&mut self, guest: u16, remote: u16) -> usize {
        let (guest_ip, remote_ip) = self.addresses();
        self.connection_to(SocketAddr::new(guest_ip, guest), SocketAddr::new(remote_ip, remote))
    }

    /// Goes on with another connection, between any two addresses.
    pub fn connection_to(&mut self, guest: SocketAddr, remote: SocketAddr) -> usize {
        let isn = self.setup.guest_isn.unwrap_or(self.rng.next() as u32);
        self.flows.push(Flow {
            guest,
            remote,
            guest_isn: isn,
            stack_isn: None,
            guest_scale: 0,
            stack_scale: 0,
            guest_next: isn,
            received: 0,
            acknowledged: 0,
            window: 65_535,
            socket: None,
            inbound: false,
            up: 0,
            down: 0,
            up_datagrams: 0,
            down_datagrams: 0,
            checked_datagrams: 0,
        });
        self.current = self.flows.len() - 1;
        self.current
    }

    /// The current connection's index.
    pub fn flow_index(&self) -> usize {
        self.current
    }

    /// Puts the current connection, the newest, in the place of an earlier one, which is dropped.
    pub fn replace(&mut self, earlier: usize) {
        let newest = self.flows.pop().expect("there is a current connection");
        self.flows[earlier] = newest;
        self.current = earlier;
    }

    /// The guest's next sequence and acknowledgement numbers, relative to each side's SYN.
    pub fn guest_progress(&self) -> (u32, u32) {
        let f = self.flow();
        (f.guest_next.wrapping_sub(f.guest_isn), f.received.wrapping_sub(f.stack_isn.unwrap_or(0)))
    }

    /// Goes on with an earlier connection.
    pub fn select(&mut self, flow: usize) {
        self.current = flow;
    }

    /// Goes on with a new connection between the same ports, whose ISN is `ahead` of what the old one has
    /// sent.
    pub fn reopen(&mut self, ahead: u32) {
        let (guest, remote, next) = (self.flow().guest, self.flow().remote, self.flow().guest_next);
        self.connection_to(guest, remote);
        let isn = next.wrapping_add(ahead);
        (self.flow_mut().guest_isn, self.flow_mut().guest_next) = (isn, isn);
    }

    /// Handshake: the guest with a window of 65,535 bytes, MSS 1460, window scale 7 and SACK, the host at
    /// once.
    pub fn establish(&mut self) {
        self.establish_with("win=65535 mss=1460 wscale=7 sackok");
    }

    /// Handshake with these fields in the SYN.
    pub fn establish_with(&mut self, fields: &str) {
        self.driver.host.plan_connect(ConnectPlan::Done);
        self.guest(&format!("SYN {fields}"));
        self.expect("SYN|ACK seq=0 ack=1");
        self.guest("ACK");
        self.expect_nothing();
    }

    /// The guest's address and the peer's.
    pub fn addresses(&self) -> (IpAddr, IpAddr) {
        let config = &self.setup.config;
        if self.setup.v6 {
            (config.v6.expect("IPv6 is configured").guest.into(), REMOTE_V6)
        } else {
            (config.v4.expect("IPv4 is configured").guest.into(), REMOTE_V4)
        }
    }

    /// The largest payload of a TCP segment without options on this link, bytes.
    pub fn mss(&self) -> usize {
        usize::from(self.setup.config.mtu) - if self.setup.v6 { 60 } else { 40 }
    }

    /// The set-up of the script.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Whether the script runs over IPv6.
    pub fn is_v6(&self) -> bool {
        self.setup.v6
    }

    /// The guest's end and the peer's of the current conversation.
    pub fn endpoints(&self) -> (SocketAddr, SocketAddr) {
        (self.flow().guest, self.flow().remote)
    }

    fn flow(&self) -> &Flow {
        &self.flows[self.current]
    }

    fn flow_mut(&mut self) -> &mut Flow {
        &mut self.flows[self.current]
    }

    /// The guest's stream of the current connection.
    fn up_pattern(&self) -> Pattern {
        Pattern(self.setup.seed ^ 0xaaaa ^ u64::from(self.flow().guest.port()))
    }

    fn down_pattern(&self, flow: usize) -> Pattern {
        Pattern(self.setup.seed ^ 0x5555 ^ u64::from(self.flows[flow].guest.port()))
    }
}

/// The guest.
impl Script {
    /// The guest sends the packet of the line.
    pub fn guest(&mut self, text: &str) {
        let (meta, frame) = self.build(text);
        self.turn(&[(meta, frame)]);
    }

    /// The guest sends several packets that the driver takes in one batch.
    pub fn guest_batch(&mut self, lines: &[&str]) {
        let frames: Vec<_> = lines.iter().map(|l| self.build(l)).collect();
        self.turn(&frames);
    }

    /// The guest sends a frame byte for byte.
    pub fn guest_raw(&mut self, frame: &[u8]) {
        self.note("guest >", &format!("raw frame of {} bytes", frame.len()));
        self.heads.push(frame[..frame.len().min(HEAD)].to_vec());
        self.turn(&[(RxMeta::default(), frame.to_vec())]);
    }

    /// The guest sends frames byte for byte, in one batch.
    pub fn guest_raw_batch(&mut self, frames: &[Vec<u8>]) {
        self.note("guest >", &format!("{} raw frames", frames.len()));
        self.turn(&frames.iter().map(|frame| (RxMeta::default(), frame.clone())).collect::<Vec<_>>());
    }

    /// The frame of a line, for tests that corrupt it before they send it raw. It is recorded as sent by the
    /// guest.
    pub fn frame(&mut self, text: &str) -> Vec<u8> {
        self.build(text).1
    }

    /// The window the guest offers from now on, in bytes.
    pub fn guest_window(&mut self, bytes: u32) {
        self.flow_mut().window = bytes;
    }

    fn build(&mut self, text: &str) -> (RxMeta, Vec<u8>) {
        let line = Line::parse(text).unwrap_or_else(|e| panic!("not understood: {e}"));
        self.note("guest >", &line.to_string());
        let macs = to_stack(self.setup.config.mac.0);
        let mut meta = RxMeta::default();
        let mut frame = match &line.kind {
            Kind::Tcp(bits) => {
                if let Some(size) = line.value("gso") {
                    let size = size as u16;
                    meta.gso = if self.setup.v6 { Gso::Tcp6(size) } else { Gso::Tcp4(size) };
                    meta.checksum = RxChecksum::Valid;
                }
                self.build_tcp(*bits, &line).to_frame(macs)
            }
            Kind::Udp => {
                if let Some(size) = line.value("gso") {
                    meta = RxMeta { checksum: RxChecksum::Valid, gso: Gso::Udp(size as u16) };
                }
                self.build_udp(&line).to_frame(macs)
            }
            Kind::Icmp(name) => self.build_echo(name, &line).to_frame(macs),
            Kind::Arp => panic!("ARP is sent as a raw frame"),
        };
        if let Some(tos) = line.value("tos") {
            packet::set_tos(&mut frame, tos as u8);
        }
        if let Some(ttl) = line.value("ttl") {
            packet::set_ttl(&mut frame, ttl as u8);
        }
        if let Some(df) = line.value("df") {
            packet::set_dont_fragment(&mut frame, df != 0);
        }
        self.heads.push(frame[..frame.len().min(HEAD)].to_vec());
        (meta, frame)
    }

    fn build_tcp(&mut self, bits: u8, line: &Line) -> TcpSegment {
        let pattern = self.up_pattern();
        let f = self.flow_mut();
        let syn = bits & flags::SYN != 0;
        let at = |base: u32, value: i64| base.wrapping_add(value as u32);
        let default_seq = if syn { f.guest_isn } else { f.guest_next };
        let seq = line.value("seq").map_or(default_seq, |v| at(f.guest_isn, v));
        let ack = match line.value("ack") {
            Some(v) => at(f.stack_isn.unwrap_or(0), v),
            None if bits & flags::ACK != 0 => f.received,
            None => 0,
        };
        if syn && (bits & flags::ACK == 0 || f.inbound) {
            f.guest_scale = line.value("wscale").unwrap_or(0) as u8;
        }
        if let Some(bytes) = line.value("win") {
            f.window = bytes as u32;
        }
        let shift = if syn { 0 } else { f.guest_scale };
        let window = line.value("rawwin").unwrap_or(i64::from((f.window >> shift).min(65_535)));
        let len = line.value("data").unwrap_or(0) as usize;
        // The stream's place wraps as sequence numbers do, so that also a segment from before its begin
        // agrees with the others where they overlap.
        let place = seq.wrapping_sub(f.guest_isn).wrapping_sub(u32::from(!syn));
        let data = (0..len as u32).map(|i| pattern.byte(place.wrapping_add(i).into())).collect();
        let segment = TcpSegment {
            flags: bits,
            seq,
            ack,
            window: window as u16,
            urgent: line.value("urg").unwrap_or(0) as u16,
            mss: line.value("mss").map(|v| v as u16),
            wscale: line.value("wscale").map(|v| v as u8),
            sack_ok: line.sack_ok == Some(true),
            sack: (line.sack.iter().flatten())
                .map(|&(l, r)| (at(f.stack_isn.unwrap_or(0), l), at(f.stack_isn.unwrap_or(0), r)))
                .collect(),
            timestamps: line.value("tsval").map(|v| (v as u32, line.value("tsecr").unwrap_or(0) as u32)),
            data,
            ..TcpSegment::new(f.guest, f.remote)
        };
        if bits & flags::RST == 0 && !after(seq, f.guest_next) {
            f.guest_next = later(f.guest_next, seq.wrapping_add(segment.seq_len()));
        }
        segment
    }

    fn build_udp(&mut self, line: &Line) -> UdpDatagram {
        let pattern = self.up_pattern();
        let f = self.flow_mut();
        let len = line.value("data").unwrap_or(0) as usize;
        let data = pattern.bytes(f.up_datagrams << 20, len);
        f.up_datagrams += 1;
        let (mut src, mut dst) = (f.guest, f.remote);
        src.set_port(line.value("sport").map_or(src.port(), |p| p as u16));
        dst.set_port(line.value("dport").map_or(dst.port(), |p| p as u16));
        UdpDatagram { src, dst, data }
    }

    fn build_echo(&mut self, name: &str, line: &Line) -> IcmpMessage {
        let pattern = self.up_pattern();
        let f = self.flow();
        let names = ICMP.iter().find(|(n, ..)| *n == name).expect("the parser knows only these");
        let (kind, code) = if self.setup.v6 { names.2 } else { names.1 };
        let id = line.value("id").unwrap_or(7) as u32;
        let seq = line.value("seq").unwrap_or(1) as u32;
        IcmpMessage {
            src: f.guest.ip(),
            dst: f.remote.ip(),
            kind,
            code,
            word: id << 16 | seq & 0xffff,
            body: pattern.bytes(0, line.value("data").unwrap_or(0) as usize),
        }
    }
}

/// Frames to the guest.
impl Script {
    /// The next frame to the guest matches the line.
    pub fn expect(&mut self, text: &str) {
        let want = Line::parse(text).unwrap_or_else(|e| panic!("not understood: {e}"));
        match self.seen.pop_front() {
            Some(s) if want.fits(&s.line) => {}
            Some(s) => panic!("\n  expected: {want}\n  seen:     {}", s.line),
            None => panic!("\n  expected: {want}\n  seen:     nothing"),
        }
    }

    /// A rule has denied the SYN: over IPv6 an error of ICMPv6 comes before the reset.
    pub fn expect_denied(&mut self) {
        if self.endpoints().1.is_ipv6() {
            self.expect("ICMP prohibited");
        }
        self.expect("RST|ACK ack=1");
    }

    /// No further frame to the guest.
    pub fn expect_nothing(&mut self) {
        if let Some(s) = self.seen.front() {
            panic!("\n  expected: nothing\n  seen:     {}", s.line);
        }
    }

    /// Time passes until something is sent, at most `limit_ms`; it matches the line. Returns the time it
    /// took, in microseconds.
    pub fn expect_within_ms(&mut self, limit_ms: u64, text: &str) -> u64 {
        let start = self.now;
        let limit = start + Duration::from_millis(limit_ms);
        while self.seen.is_empty() && self.step(limit) {}
        let at = self.seen.front().map_or(self.now, |s| s.at);
        self.expect(text);
        (at - start).as_micros() as u64
    }

    /// All frames sent and not yet expected, as lines.
    pub fn take_all(&mut self) -> Vec<Line> {
        self.seen.drain(..).map(|s| s.line).collect()
    }

    /// Payload of all TCP segments to the guest since the last look, in the order in which they were sent.
    pub fn take_payload(&mut self) -> Vec<u8> {
        let payload = |seen: Seen| match seen.packet {
            ParsedFrame::Tcp(segment) => segment.data,
            _ => Vec::new(),
        };
        self.seen.drain(..).flat_map(payload).collect()
    }

    /// Payload bytes that the guest has received in order on this connection.
    pub fn received_in_order(&self) -> u32 {
        let f = self.flow();
        f.stack_isn.map_or(0, |isn| f.received.wrapping_sub(isn).wrapping_sub(1))
    }

    /// The stack's initial sequence number on this connection, once it has answered.
    pub fn stack_isn(&self) -> Option<u32> {
        self.flow().stack_isn
    }

    /// Sequence space of the guest's that the stack has acknowledged: its SYN, bytes, FIN.
    pub fn acknowledged(&self) -> u32 {
        self.flow().acknowledged
    }

    /// Right edge of the window that the stack offers, relative to the guest's SYN.
    pub fn offered_edge(&self) -> u32 {
        let (guest, remote) = self.endpoints();
        let edge = self.driver.observer.offered_edge(guest, remote).expect("connected");
        edge.wrapping_sub(self.flow().guest_isn)
    }
}

/// Verbs for time.
impl Script {
    /// Time passes; the stack's timers fire when they are due.
    pub fn advance_ms(&mut self, ms: u64) {
        let limit = self.now + Duration::from_millis(ms);
        while self.step(limit) {}
    }

    /// Time passes while the process is stopped: no timer fires before the next turn, which handles frames
    /// first.
    pub fn stop_for_ms(&mut self, ms: u64) {
        self.now = self.now + Duration::from_millis(ms);
    }

    /// The time now.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Moves to the next timer, or to `limit` if none is due before. False when `limit` is reached.
    fn step(&mut self, limit: Instant) -> bool {
        for _ in 0..STUCK {
            match self.driver.next_deadline() {
                Some(at) if at <= limit => {
                    let moved = at > self.now;
                    self.now = self.now.max(at);
                    self.turn(&[]);
                    if moved || !self.seen.is_empty() {
                        return true;
                    }
                }
                _ => {
                    self.now = limit;
                    return false;
                }
            }
        }
        panic!("a deadline that is due stays due: {:?}", self.driver.next_deadline());
    }

    /// One turn without input.
    pub fn poll(&mut self) {
        self.turn(&[]);
    }

    /// Credit of the link in frames; `None` for unlimited. A stack that waits for credit gets the writable
    /// edge.
    pub fn link_credit(&mut self, frames: Option<usize>) {
        self.note("link", &frames.map_or("unlimited".to_owned(), |n| format!("credit for {n}")));
        self.driver.link.set_credit(frames);
        self.turn(&[]);
    }

    fn turn(&mut self, frames: &[(RxMeta, Vec<u8>)]) {
        let sent = self.driver.turn(self.now, frames);
        self.see_all(&sent);
    }

    /// Records the frames and calls of a turn.
    pub fn see_all(&mut self, sent: &[SentFrame]) {
        for &(socket, call) in &self.driver.host.calls()[self.calls_traced..] {
            let at = self.now.as_ns() as f64 / 1e6;
            self.trace.push(format!("{at:12.3}        host     #{} {call:?}", socket.0));
        }
        self.calls_traced = self.driver.host.calls().len();
        let sockets = self.driver.host.all().count();
        if sockets > self.opened {
            self.opened = sockets;
            let socket = self.driver.host.last();
            let tcp = socket.is_some_and(|s| self.driver.host.is_tcp(s));
            let f = self.flow_mut();
            f.socket = socket;
            if tcp {
                (f.up, f.down) = (0, 0);
            }
        }
        for frame in sent {
            self.see(frame);
        }
    }

    fn see(&mut self, frame: &SentFrame) {
        let packet = packet::parse(&frame.bytes).expect("the link has checked it");
        let line = match &packet {
            ParsedFrame::Tcp(s) => self.see_tcp(s, frame.gso),
            ParsedFrame::Udp(d) => self.see_udp(d, frame),
            ParsedFrame::Icmp(m) => self.see_icmp(m),
            ParsedFrame::Arp(_) => {
                Line { kind: Kind::Arp, fields: Vec::new(), sack: None, sack_ok: None, psh: None }
            }
        };
        self.note("guest <", &line.to_string());
        // Router advertisements come by themselves.
        if !matches!(&packet, ParsedFrame::Icmp(m) if m.src.is_ipv6() && m.kind == 134) {
            let ident = packet::ident(&frame.bytes);
            self.seen.push_back(Seen { at: self.now, line, packet, ident });
        }
    }

    fn find(&self, guest: SocketAddr, remote: SocketAddr) -> Option<usize> {
        self.flows.iter().rposition(|f| (f.guest, f.remote) == (guest, remote))
    }

    fn see_tcp(&mut self, s: &TcpSegment, gso: Gso) -> Line {
        let index = self.find(s.dst, s.src).unwrap_or_else(|| panic!("for a connection never begun: {s:?}"));
        let pattern = self.down_pattern(index);
        let by_dns_service = s.src.port() == 53 && self.setup.config.dns_addresses().contains(&s.src.ip());
        let f = &mut self.flows[index];
        let syn = s.has(flags::SYN);
        if syn && f.stack_isn != Some(s.seq) {
            f.stack_isn = Some(s.seq);
            f.received = s.seq;
            f.stack_scale = s.wscale.unwrap_or(0);
            if s.wscale.is_none() && !f.inbound {
                f.guest_scale = 0;
            }
        }
        let isn = f.stack_isn.unwrap_or(0);
        let offset = s.seq.wrapping_sub(isn).wrapping_sub(u32::from(!syn));
        if !by_dns_service
            && !host::is_said_by_gate(&s.data)
            && let Some(at) = pattern.mismatch(offset.into(), &s.data)
        {
            panic!("wrong payload from byte {at} of the stream, in a segment at {offset}");
        }
        let end = s.seq.wrapping_add(s.seq_len());
        if s.has(flags::ACK) {
            f.acknowledged = s.ack.wrapping_sub(f.guest_isn);
        }
        if !s.has(flags::RST) && !after(s.seq, f.received) {
            f.received = later(f.received, end);
        }
        let rel = |value: u32, base: u32| Number::Is(i64::from(value.wrapping_sub(base) as i32));
        let shift = if syn { 0 } else { f.stack_scale };
        let mut fields = vec![("seq", rel(s.seq, isn))];
        if s.has(flags::ACK) {
            fields.push(("ack", rel(s.ack, f.guest_isn)));
        }
        fields.push(("win", Number::Is(i64::from(s.window) << shift)));
        let options = [
            ("mss", s.mss.map(i64::from)),
            ("wscale", s.wscale.map(i64::from)),
            ("tsval", s.timestamps.map(|t| t.0.into())),
            ("tsecr", s.timestamps.map(|t| t.1.into())),
            ("urg", s.has(flags::URG).then_some(s.urgent.into())),
            ("data", (!s.data.is_empty()).then_some(s.data.len() as i64)),
            ("gso", gso_size(gso)),
        ];
        fields.extend(options.into_iter().filter_map(|(name, v)| Some((name, Number::Is(v?)))));
        let block = |&(l, r): &(u32, u32)| {
            let rel = |v: u32| i64::from(v.wrapping_sub(f.guest_isn) as i32);
            (rel(l), rel(r))
        };
        Line {
            kind: Kind::Tcp(s.flags),
            fields: fields.into_iter().map(|(n, v)| (n.to_owned(), v)).collect(),
            sack: (!s.sack.is_empty()).then(|| s.sack.iter().map(block).collect()),
            sack_ok: s.sack_ok.then_some(true),
            psh: Some(s.has(flags::PSH)),
        }
    }

    fn see_udp(&mut self, d: &UdpDatagram, frame: &SentFrame) -> Line {
        if let Some(index) = self.find(d.dst, d.src) {
            let pattern = self.down_pattern(index);
            let f = &mut self.flows[index];
            if f.down_datagrams > f.checked_datagrams {
                let offset = f.checked_datagrams << 20;
                f.checked_datagrams += 1;
                assert_eq!(pattern.mismatch(offset, &d.data), None, "wrong payload in a datagram");
            }
        }
        let mut fields = vec![
            ("sport".to_owned(), Number::Is(d.src.port().into())),
            ("dport".to_owned(), Number::Is(d.dst.port().into())),
            ("data".to_owned(), Number::Is(d.data.len() as i64)),
            ("tos".to_owned(), Number::Is(packet::tos(&frame.bytes).into())),
        ];
        fields.extend(gso_size(frame.gso).map(|n| ("gso".to_owned(), Number::Is(n))));
        Line { kind: Kind::Udp, fields, sack: None, sack_ok: None, psh: None }
    }

    fn see_icmp(&self, m: &IcmpMessage) -> Line {
        let v4 = m.src.is_ipv4();
        let known = ICMP.iter().find(|(_, four, six)| (if v4 { *four } else { *six }) == (m.kind, m.code));
        let name = known.map_or(format!("{}/{}", m.kind, m.code), |(name, ..)| (*name).to_owned());
        let mut fields = Vec::new();
        let mut field = |name: &str, n: i64| fields.push((name.to_owned(), Number::Is(n)));
        match name.as_str() {
            "echo-request" | "echo-reply" => {
                field("id", i64::from(m.word >> 16));
                field("seq", i64::from(m.word & 0xffff));
                field("data", m.body.len() as i64);
            }
            "too-big" => field("mtu", i64::from(if v4 { m.word & 0xffff } else { m.word })),
            _ => {}
        }
        if known.is_some() && !name.starts_with("echo") {
            let quoted = self.heads.iter().any(|head| quotes(&m.body, head));
            assert!(quoted, "the error does not quote what was sent");
        }
        Line { kind: Kind::Icmp(name), fields, sack: None, sack_ok: None, psh: None }
    }

    fn note(&mut self, who: &str, what: &str) {
        let at = self.now.as_ns() as f64 / 1e6;
        let port = self.flow().guest.port();
        self.trace.push(format!("{at:12.3}  {port:5} {who:8} {what}"));
    }
}

/// Whether an ICMP error's body names the packet in `frame`: protocol, addresses, and the identity of the
/// flow: ports (TCP's sequence number too), or an echo's type, code and identifier. An error for something
/// sent long ago cannot know its length or checksum.
fn quotes(body: &[u8], frame: &[u8]) -> bool {
    let (protocol, addresses, l4) =
        if frame.get(14).is_some_and(|b| b >> 4 == 4) { (9, 12..20, 20) } else { (6, 8..40, 40) };
    let [first, second] = match frame.get(14 + protocol) {
        Some(6) => [l4..l4 + 4, l4 + 4..l4 + 8],
        Some(17) => [l4..l4 + 2, l4 + 2..l4 + 4],
        _ => [l4..l4 + 2, l4 + 4..l4 + 6],
    };
    [protocol..protocol + 1, addresses, first, second].into_iter().all(|r| {
        let sent = frame.get(14 + r.start..14 + r.end);
        sent.is_some() && body.get(r) == sent
    })
}

fn gso_size(gso: Gso) -> Option<i64> {
    match gso {
        Gso::None => None,
        Gso::Tcp4(n) | Gso::Tcp6(n) | Gso::Udp(n) => Some(n.into()),
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let family = if self.setup.v6 { "IPv6" } else { "IPv4" };
            eprintln!(
                "script over {family}, {:?}, seed {} (BRODO_SIM_SEED repeats it where seeds are drawn)",
                self.setup.caps, self.setup.seed
            );
            self.trace.iter().for_each(|line| eprintln!("{line}"));
        } else {
            self.check_audit();
        }
    }
}

mod audit;
mod content;
mod datagrams;
mod host;
mod load;

#[cfg(test)]
mod tests;
