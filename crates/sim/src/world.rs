//! A whole world in virtual time: a smoltcp guest, a path with faults, the stack, host sockets, and programs on both
//! ends of every connection.
//!
//! A [`Conversation`] says what one connection does: how much flows each way, how fast each program reads, how large
//! the buffers are, who closes first. Both programs generate and compare payload byte for byte; the observer holds
//! the stack to its rules meanwhile. [`World::run`] ends when every conversation has ended as planned and the stack
//! has nothing left, or fails at a limit of virtual time.
//!
//! The trace of a run is a hash over every frame and its time, so that two runs can be compared byte for byte.

use crate::guest::Guest;
use crate::host::ConnectPlan;
use crate::machine::Machine;
use crate::net::Path;
use crate::notation::Line;
use crate::packet::{self, Packet};
use crate::rng::{Pattern, Rng};
use brodo_core::config::Config;
use brodo_core::host::{Close, HostError, SocketId};
use brodo_core::link::{LinkCaps, RxMeta};
use brodo_core::time::{Duration, Instant};
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{RecvError, State};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

/// How often programs that read or write slowly get their turn.
const TICK: Duration = Duration::from_millis(1);
/// Turns at one instant before a run counts as stuck.
const STUCK: u32 = 200_000;

/// Frames shown when a run fails.
const RECENT: usize = 60;

/// How a conversation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Each side closes its direction when it has sent everything.
    Each,
    /// The guest closes when it has sent everything, the peer after it has read the end of stream.
    GuestFirst,
    /// The peer closes when it has sent everything, the guest after it has read the end of stream.
    HostFirst,
    /// The guest resets once half of what it sends has been written.
    GuestResets,
    /// The peer resets once it has read half of what the guest sends.
    HostResets,
    /// The peer refuses the connection.
    Refused,
}

/// What one connection does.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// When the guest connects.
    pub start: Instant,
    /// Over IPv6.
    pub v6: bool,
    /// How long the host's connect takes; zero for one that is done at once.
    pub connect_after: Duration,
    /// Bytes from guest to peer.
    pub up: u64,
    /// Bytes from peer to guest.
    pub down: u64,
    /// Bytes per millisecond that the guest's program reads; `None` for as fast as they come.
    pub guest_reads: Option<u64>,
    /// Bytes per millisecond that the peer reads.
    pub peer_reads: Option<u64>,
    /// The guest's receive and send buffer, bytes each.
    pub guest_buffer: usize,
    /// The host socket's receive and send buffer, bytes each.
    pub host_buffer: usize,
    /// How it ends.
    pub ending: Ending,
}

impl Default for Conversation {
    /// Nothing is sent; each side closes at once; buffers of 64 KiB.
    fn default() -> Self {
        Self {
            start: Instant::from_ms(1),
            v6: false,
            connect_after: Duration::ZERO,
            up: 0,
            down: 0,
            guest_reads: None,
            peer_reads: None,
            guest_buffer: 64 << 10,
            host_buffer: 64 << 10,
            ending: Ending::Each,
        }
    }
}

/// One direction as its reader sees it.
#[derive(Debug, Default)]
struct Reading {
    bytes: u64,
    end: bool,
    credit: u64,
}

impl Reading {
    /// Allows what the rate gives in one tick; bytes that may be read now.
    fn allow(&mut self, rate: Option<u64>, ticks: u64) -> usize {
        match rate {
            None => usize::MAX,
            Some(rate) => {
                self.credit = (self.credit + rate * ticks).min(rate * 100);
                self.credit as usize
            }
        }
    }

    fn took(&mut self, n: usize, pattern: Pattern, data: &[u8], who: &str) {
        if let Some(at) = pattern.mismatch(self.bytes, data) {
            panic!("{who} read a wrong byte at {at} of the stream");
        }
        self.bytes += n as u64;
        self.credit = self.credit.saturating_sub(n as u64);
    }
}

struct Running {
    plan: Conversation,
    index: usize,
    handle: Option<SocketHandle>,
    socket: Option<SocketId>,
    guest_sent: u64,
    guest_closed: bool,
    guest_read: Reading,
    peer_sent: u64,
    peer_closed: bool,
    peer_read: Reading,
    /// A reset was sent by either program.
    broken: bool,
    done_at: Option<Instant>,
}

/// The world.
pub struct World {
    /// The machine that runs the stack.
    pub machine: Machine,
    /// From the guest to the stack.
    pub up: Path,
    /// From the stack to the guest.
    pub down: Path,
    /// Frames that the link takes per turn; `None` for any number. Then it has credit again after a tick.
    pub credit_per_tick: Option<usize>,
    config: Config,
    seed: u64,
    guest: Guest,
    now: Instant,
    next_tick: Instant,
    conversations: Vec<Running>,
    trace: u64,
    frames: u64,
    /// The last frames, for a failure's report.
    recent: VecDeque<String>,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the last frames, sequence numbers absolute:");
            self.recent.iter().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// What a run showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// When the last conversation had ended, both ways.
    pub ended: Instant,
    /// Segments that the stack sent although it had sent all of them before.
    pub retransmitted: u64,
    /// Frames both ways.
    pub frames: u64,
    /// Hash of every frame and its time.
    pub trace: u64,
}

impl World {
    /// A world whose guest and stack are joined by these paths.
    pub fn new(config: Config, caps: LinkCaps, seed: u64, up: Path, down: Path) -> Self {
        let mut rng = Rng::new(seed);
        let mut machine = Machine::new(config.clone(), caps, rng.next());
        machine.host.set_record(false);
        machine.host.set_default_connect(ConnectPlan::Pending);
        Self {
            machine,
            up,
            down,
            credit_per_tick: None,
            guest: Guest::new(&config, rng.next()),
            config,
            seed,
            now: Instant::ZERO,
            next_tick: Instant::ZERO,
            conversations: Vec::new(),
            trace: 0xcbf2_9ce4_8422_2325,
            frames: 0,
            recent: VecDeque::new(),
        }
    }

    /// Adds a conversation.
    pub fn add(&mut self, plan: Conversation) {
        let index = self.conversations.len();
        self.conversations.push(Running {
            plan,
            index,
            handle: None,
            socket: None,
            guest_sent: 0,
            guest_closed: false,
            guest_read: Reading::default(),
            peer_sent: 0,
            peer_closed: false,
            peer_read: Reading::default(),
            broken: false,
            done_at: None,
        });
    }

    /// Runs until everything has ended and nothing is left.
    ///
    /// # Panics
    /// If that is not so at `limit`, or if anything was delivered wrongly.
    pub fn run(&mut self, limit: Instant) -> Report {
        let mut still = 0;
        while !self.is_over() {
            let before = self.now;
            self.step();
            still = if self.now == before { still + 1 } else { 0 };
            assert!(still < STUCK, "{STUCK} turns at {:?}", self.now);
            assert!(self.now <= limit, "not over at {limit:?}:\n{}", self.unfinished());
        }
        let ended = self.conversations.iter().filter_map(|c| c.done_at).max();
        Report {
            ended: ended.unwrap_or(self.now),
            retransmitted: self.machine.observer.retransmitted(),
            frames: self.frames,
            trace: self.trace,
        }
    }

    fn is_over(&self) -> bool {
        self.conversations.iter().all(|c| c.done_at.is_some())
            && self.machine.host.open_sockets() == 0
            && self.machine.stack.flows() == 0
            && self.machine.stack.memory_used() == 0
    }

    fn unfinished(&mut self) -> String {
        let mut text = format!(
            "{} sockets, {} flows, {} bytes of memory; {:?}\n",
            self.machine.host.open_sockets(),
            self.machine.stack.flows(),
            self.machine.stack.memory_used(),
            self.machine.stack.counters().drops().collect::<Vec<_>>(),
        );
        for c in self.conversations.iter().filter(|c| c.done_at.is_none()) {
            let state = c.handle.map(|h| self.guest.tcp(h).state());
            let _ = writeln!(
                text,
                "{:?}\n  guest {state:?}: sent {}, read {} ({}); peer of {:?}: sent {}, read {} ({})",
                c.plan,
                c.guest_sent,
                c.guest_read.bytes,
                c.guest_read.end,
                c.socket,
                c.peer_sent,
                c.peer_read.bytes,
                c.peer_read.end,
            );
        }
        text
    }

    /// Everything that happens at the next instant at which something happens.
    fn step(&mut self) {
        let times = [
            self.up.next(),
            self.down.next(),
            self.machine.next_deadline(),
            self.guest.next_deadline(self.now),
            Some(self.next_tick),
        ];
        self.now = times.into_iter().flatten().min().map_or(self.now, |at| at.max(self.now));
        let mut ticks = 0;
        if self.next_tick <= self.now {
            self.next_tick = self.now + TICK;
            ticks = 1;
            if self.credit_per_tick.is_some() {
                self.machine.link.set_credit(self.credit_per_tick);
            }
        }
        let mut frames = Vec::new();
        while let Some(frame) = self.up.pop(self.now) {
            self.note(">", &frame);
            frames.push((RxMeta::default(), frame));
        }
        for sent in self.machine.turn(self.now, &frames) {
            for piece in sent.cut() {
                self.note("<", &piece);
                self.down.push(self.now, piece);
            }
        }
        self.find_sockets();
        while let Some(frame) = self.down.pop(self.now) {
            self.guest.receive(frame);
        }
        // Twice, so that what the programs do after they heard something is sent at once.
        for round in 0..2 {
            for frame in self.guest.poll(self.now) {
                self.up.push(self.now, frame);
            }
            for i in 0..self.conversations.len() {
                self.guest_program(i, if round == 0 { ticks } else { 0 });
                self.peer_program(i, if round == 0 { ticks } else { 0 });
            }
        }
        self.finish();
    }

    fn note(&mut self, direction: &str, frame: &[u8]) {
        self.frames += 1;
        for &byte in self.now.as_ns().to_le_bytes().iter().chain(frame) {
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        let at = self.now.as_ns() as f64 / 1e6;
        let what = match packet::parse(frame) {
            Ok(Packet::Tcp(s)) => format!(
                "{} -> {} {} seq={} ack={} rawwin={} data={}",
                s.src.port(),
                s.dst.port(),
                Line::of_flags(s.flags),
                s.seq,
                s.ack,
                s.window,
                s.data.len()
            ),
            Ok(Packet::Udp(d)) => format!("UDP {} -> {} data={}", d.src, d.dst, d.data.len()),
            Ok(Packet::Icmp(m)) => format!("ICMP {}/{} {} -> {}", m.kind, m.code, m.src, m.dst),
            Ok(Packet::Arp(_)) => "ARP".to_owned(),
            Err(why) => why,
        };
        self.recent.push_back(format!("{at:12.3}  guest {direction} {what}"));
    }

    fn remote(plan: &Conversation, index: usize) -> SocketAddr {
        let ip: IpAddr = if plan.v6 { crate::script::REMOTE_V6 } else { crate::script::REMOTE_V4 };
        SocketAddr::new(ip, 1000 + index as u16)
    }

    fn pattern(&self, index: usize, up: bool) -> Pattern {
        Pattern(self.seed ^ (index as u64) << 8 ^ u64::from(up))
    }

    /// Joins new host sockets to their conversations, by the port each connects to.
    fn find_sockets(&mut self) {
        let host = &mut self.machine.host;
        for c in self.conversations.iter_mut().filter(|c| c.socket.is_none() && c.handle.is_some()) {
            let port = 1000 + c.index as u16;
            c.socket = host.all().find(|&s| host.peer(s).port() == port);
            if let Some(socket) = c.socket {
                host.set_space(socket, c.plan.host_buffer);
            }
        }
    }

    fn guest_program(&mut self, index: usize, ticks: u64) {
        let (up, down) = (self.pattern(index, true), self.pattern(index, false));
        let remote = Self::remote(&self.conversations[index].plan, index);
        let c = &mut self.conversations[index];
        let Some(handle) = c.handle else {
            if c.plan.start <= self.now {
                let port = 20_000 + index as u16;
                c.handle = Some(self.guest.connect(remote, port, c.plan.guest_buffer, c.plan.guest_buffer));
            }
            return;
        };
        let socket = self.guest.tcp(handle);
        while c.guest_sent < c.plan.up && socket.can_send() {
            let len = (c.plan.up - c.guest_sent).min(16 << 10) as usize;
            let data = up.bytes(c.guest_sent, len);
            c.guest_sent += socket.send_slice(&data).expect("it can send") as u64;
        }
        let mut may = c.guest_read.allow(c.plan.guest_reads, ticks);
        let mut buffer = [0; 16 << 10];
        while may > 0 && socket.can_recv() {
            let part = may.min(buffer.len());
            let n = socket.recv_slice(&mut buffer[..part]).expect("it can receive");
            c.guest_read.took(n, down, &buffer[..n], "the guest");
            may = may.saturating_sub(n);
        }
        c.guest_read.end |= socket.recv(|_| (0, ())) == Err(RecvError::Finished);
        if c.guest_closed || !socket.may_send() {
            return;
        }
        let all = c.guest_sent == c.plan.up;
        match c.plan.ending {
            Ending::GuestResets if c.guest_sent * 2 >= c.plan.up => {
                socket.abort();
                (c.guest_closed, c.broken) = (true, true);
            }
            Ending::Each | Ending::GuestFirst if all => {
                socket.close();
                c.guest_closed = true;
            }
            Ending::HostFirst if all && c.guest_read.end => {
                socket.close();
                c.guest_closed = true;
            }
            _ => {}
        }
    }

    fn peer_program(&mut self, index: usize, ticks: u64) {
        let (up, down) = (self.pattern(index, true), self.pattern(index, false));
        let host = &mut self.machine.host;
        let c = &mut self.conversations[index];
        let Some(socket) = c.socket else { return };
        if host.is_connecting(socket) {
            if c.plan.start + c.plan.connect_after <= self.now {
                let refused = c.plan.ending == Ending::Refused;
                host.finish_connect(socket, if refused { Err(HostError::Refused) } else { Ok(()) });
                (c.peer_closed, c.broken) = (refused, refused);
            }
            return;
        }
        let may = c.peer_read.allow(c.plan.peer_reads, ticks);
        let data = host.peer_take(socket, may);
        c.peer_read.took(data.len(), up, &data, "the peer");
        if host.closed(socket).is_none() {
            host.give_space(socket, data.len());
        }
        c.peer_read.end |= host.peer_sees_fin(socket) || host.closed(socket) == Some(Close::Reset);
        if c.peer_closed || host.closed(socket).is_some() {
            return;
        }
        while c.peer_sent < c.plan.down && host.waiting(socket) < c.plan.host_buffer {
            let room = c.plan.host_buffer - host.waiting(socket);
            let len = (c.plan.down - c.peer_sent).min(room as u64).min(16 << 10) as usize;
            host.peer_send(socket, &down.bytes(c.peer_sent, len));
            c.peer_sent += len as u64;
        }
        let all = c.peer_sent == c.plan.down;
        let close = match c.plan.ending {
            Ending::Each | Ending::HostFirst => all,
            Ending::GuestFirst => all && c.peer_read.end,
            Ending::HostResets if c.peer_read.bytes * 2 >= c.plan.up => {
                host.peer_error(socket, HostError::Reset);
                (c.peer_closed, c.broken) = (true, true);
                false
            }
            _ => false,
        };
        if close {
            host.peer_fin(socket);
            c.peer_closed = true;
        }
    }

    /// Notes conversations that have ended, and checks that they ended as planned.
    fn finish(&mut self) {
        for i in 0..self.conversations.len() {
            let c = &mut self.conversations[i];
            let Some(handle) = c.handle.filter(|_| c.done_at.is_none()) else { continue };
            let state = self.guest.tcp(handle).state();
            let guest_gone = matches!(state, State::Closed | State::TimeWait);
            let closed = c.socket.map(|s| self.machine.host.closed(s));
            if !guest_gone || !matches!(closed, Some(Some(_))) {
                continue;
            }
            if c.broken {
                c.done_at = Some(self.now);
            } else if c.guest_read.end && c.peer_read.end {
                let got = (c.peer_read.bytes, c.guest_read.bytes);
                assert_eq!(got, (c.plan.up, c.plan.down), "bytes delivered of {:?}", c.plan);
                assert_eq!(closed, Some(Some(Close::Graceful)), "how {:?} was closed", c.plan);
                c.done_at = Some(self.now);
            }
        }
    }

    /// The configuration of the stack.
    pub fn config(&self) -> &Config {
        &self.config
    }
}
