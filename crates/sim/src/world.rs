//! Complete simulation in virtual time: a smoltcp guest, a path with faults, the stack, host sockets, and
//! programs on both ends of every connection.
//!
//! A [`Conversation`] is the plan of one connection: bytes each way, the pace of each reader, the size of
//! buffers, the side that closes first. Both programs generate and compare payload byte for byte; the
//! observer holds the stack to its rules meanwhile. [`World::run`] ends when every conversation has ended as
//! planned and the stack has nothing left, or fails at a limit of virtual time.
//!
//! The trace of a run is a hash over every frame and its time, so that two runs can be compared byte for
//! byte.

mod conversation;
mod peer_socket;

pub use conversation::{Behind, Conversation, Ending, Pace};

use crate::driver::SimDriver;
use crate::guest::Guest;
use crate::host::ConnectPlan;
use crate::kernel_socket::KernelSocket;
use crate::net::Path;
use crate::notation::Line;
use crate::packet::{self, ParsedFrame};
use crate::rng::{Pattern, Rng};
use brodo_core::config::Config;
use brodo_core::host::{Close, HostError, SocketId};
use brodo_core::link::{LinkCaps, RxMeta};
use brodo_core::time::{Duration, Instant};
use peer_socket::PeerSocket;
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{RecvError, State};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

/// Interval between the turns of programs that read or write slowly.
const TICK: Duration = Duration::from_millis(1);
/// Turns at one instant before a run counts as stuck.
const STUCK: u32 = 200_000;
/// Bytes that a program writes or reads at a time.
const PIECE: usize = 64 << 10;
/// Frames shown when a run fails.
const RECENT: usize = 60;

/// CPU time of the simulated machine's work. The defaults give 80 us for a connect-request-response and 35 us
/// for a request-response, the measured CPU time of brodo's process for each, system time included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// One turn of the loop: waiting for events, reading the clock.
    pub turn: Duration,
    /// One frame read from or written to the guest's link.
    pub frame: Duration,
    /// One call on a host socket.
    pub call: Duration,
}

impl Default for Cost {
    fn default() -> Self {
        Self {
            turn: Duration::from_micros(3),
            frame: Duration::from_micros(4),
            call: Duration::from_micros(5),
        }
    }
}

/// One direction, from its reader's view.
#[derive(Debug, Default)]
struct Reading {
    bytes: u64,
    end: bool,
    credit: u64,
    credited: Instant,
    /// Time of the program's next read.
    wakes: Instant,
}

impl Reading {
    /// Bytes that may be read now: the allowance of `rate`, accumulated for 100 ms at most.
    fn allow(&mut self, now: Instant, rate: Option<u64>) -> usize {
        if now < self.wakes {
            return 0;
        }
        let Some(rate) = rate else { return usize::MAX };
        let ms = (now - self.credited).as_millis() as u64;
        self.credited = self.credited + Duration::from_millis(ms);
        self.credit = (self.credit + rate * ms).min(rate * 100);
        self.credit as usize
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
    handle: Option<SocketHandle>,
    socket: Option<SocketId>,
    /// Time of the stack's connect on the host.
    connecting_since: Instant,
    peer: Option<PeerSocket>,
    guest_sent: u64,
    guest_closed: bool,
    guest_read: Reading,
    /// Time of the guest's last request, and the number of answers read. The first request counts from the
    /// connect.
    asked: Instant,
    answered: u64,
    peer_sent: u64,
    peer_closed: bool,
    peer_read: Reading,
    /// A reset was sent by either program, or by the stack after a crash.
    broken: bool,
    done_at: Option<Instant>,
}

impl Running {
    fn new(plan: Conversation) -> Self {
        Self {
            handle: None,
            socket: None,
            connecting_since: plan.start,
            peer: None,
            guest_sent: 0,
            guest_closed: false,
            guest_read: Reading::default(),
            asked: plan.start,
            answered: 0,
            peer_sent: 0,
            peer_closed: false,
            peer_read: Reading::default(),
            broken: false,
            done_at: None,
            plan,
        }
    }

    /// Upper bound of the bytes sent by the guest so far.
    fn guest_may_send(&self, now: Instant) -> u64 {
        match self.plan.pace {
            Pace::Requests { request, every, .. } => {
                let next = self.answered > 0 && now - self.asked < every;
                let asked = self.answered + u64::from(!next);
                self.plan.up.min((asked * request).max(self.guest_sent))
            }
            _ => self.plan.burst(now - self.plan.start, self.plan.up),
        }
    }

    /// Upper bound of the bytes sent by the peer so far.
    fn peer_may_send(&self, now: Instant) -> u64 {
        match self.plan.pace {
            Pace::Requests { request, response, .. } => {
                self.plan.down.min(self.peer_read.bytes / request * response)
            }
            _ => self.plan.burst(now - self.connecting_since, self.plan.down),
        }
    }

    /// Whether the next byte that the guest sends begins a question that is not its first.
    fn asks_again(&self) -> bool {
        matches!(self.plan.pace, Pace::Requests { request, .. }
            if self.answered > 0 && self.guest_sent == self.answered * request)
    }

    /// Whether a program has work that is due by time.
    fn waits_for_a_tick(&self, now: Instant) -> bool {
        let sleeps = |rate: Option<u64>, dwells: Duration| rate.is_some() || !dwells.is_zero();
        (self.handle.is_none() && self.plan.start <= now)
            || self.plan.pace != Pace::Bulk
            || (sleeps(self.plan.guest_reads, self.plan.guest_dwells) && self.guest_read.wakes <= now)
            || (sleeps(self.plan.peer_reads, self.plan.peer_dwells) && self.peer_read.wakes <= now)
            // smoltcp's own timers may have ended the connection.
            || now.as_ns().is_multiple_of(10 * TICK.as_nanos() as u64)
    }

    /// Whether the programs have read all that they were to, of a connection that is over: the host's socket
    /// was closed so, and the guest's has something unread or not.
    fn is_delivered(&self, closed: Close, unread: bool) -> bool {
        let Self { plan, guest_read, peer_read, .. } = self;
        let (up, down) = (plan.ending != Ending::HostLeaves, plan.ending != Ending::GuestLeaves);
        if (up && !peer_read.end) || (down && up && !guest_read.end) || (down && unread) {
            return false;
        }
        assert!(!up || peer_read.bytes == plan.up, "{} bytes up of {plan:?}", peer_read.bytes);
        assert!(!down || guest_read.bytes == plan.down, "{} bytes down of {plan:?}", guest_read.bytes);
        assert!(!up || closed == Close::Graceful, "how {plan:?} was closed");
        true
    }

    /// A reset by the stack is allowed after a crash, but no end of a stream in the midst of it.
    fn check_reset(&self) {
        let Self { plan, guest_read, guest_sent, peer_sent, peer_closed, guest_closed, .. } = self;
        assert!(!guest_read.end || (*peer_closed && guest_read.bytes == *peer_sent), "a hole in {plan:?}");
        assert!(self.peer_read.bytes <= *guest_sent, "{plan:?}: {guest_closed}");
    }

    /// Time of the next event behind the host socket.
    fn next(&self) -> Option<Instant> {
        match &self.peer {
            Some(peer) => peer.next(),
            None if self.broken || self.peer_closed => None,
            None => self.socket.map(|_| self.connecting_since + self.plan.connect_takes()),
        }
    }

    /// The time an answer took, if the guest has just read the last byte of one.
    fn answer(&mut self, now: Instant) -> Option<Duration> {
        let Pace::Requests { response, .. } = self.plan.pace else { return None };
        let answered = self.guest_read.bytes / response;
        (answered > self.answered).then(|| {
            self.answered = answered;
            now - self.asked
        })
    }
}

/// The answer to one question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Index of the conversation, in the order in which they were added or repeated.
    pub conversation: usize,
    /// Time at which its last byte was read.
    pub at: Instant,
    /// Time since the request was sent; for the first since the connect.
    pub took: Duration,
}

/// The world.
pub struct World {
    /// The stack under test with its simulated link and host.
    pub driver: SimDriver,
    /// From the guest to the stack.
    pub up: Path,
    /// From the stack to the guest.
    pub down: Path,
    /// Frames that the link accepts per turn, `None` for any number; it has credit again after a tick.
    pub credit_per_tick: Option<usize>,
    /// CPU time of the simulated machine's work; `None` for none.
    pub cost: Option<Cost>,
    busy_until: Instant,
    config: Config,
    seed: u64,
    guest: Guest,
    now: Instant,
    next_tick: Instant,
    conversations: Vec<Running>,
    /// Open conversations, by index.
    active: Vec<usize>,
    /// Conversations with an event in this step: only their programs are called.
    touched: BTreeSet<usize>,
    /// Conversations begun in this step.
    begun: BTreeSet<usize>,
    by_guest_port: BTreeMap<u16, usize>,
    by_socket: BTreeMap<u32, usize>,
    /// Host sockets that have been given to a conversation.
    sockets_seen: u32,
    answers: Vec<Answer>,
    trace: u64,
    frames: u64,
    /// The last frames, for a failure's report.
    recent: VecDeque<(Instant, &'static str, Vec<u8>)>,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the last frames, sequence numbers absolute:");
            for (at, direction, frame) in &self.recent {
                eprintln!("{:12.3}  guest {direction} {}", at.as_ns() as f64 / 1e6, shown(frame));
            }
        }
    }
}

/// A frame in a few words.
fn shown(frame: &[u8]) -> String {
    match packet::parse(frame) {
        Ok(ParsedFrame::Tcp(s)) => format!(
            "{} -> {} {} seq={} ack={} rawwin={} data={}",
            s.src.port(),
            s.dst.port(),
            Line::of_flags(s.flags),
            s.seq,
            s.ack,
            s.window,
            s.data.len()
        ),
        Ok(ParsedFrame::Udp(d)) => format!("UDP {} -> {} data={}", d.src, d.dst, d.data.len()),
        Ok(ParsedFrame::Icmp(m)) => format!("ICMP {}/{} {} -> {}", m.kind, m.code, m.src, m.dst),
        Ok(ParsedFrame::Arp(_)) => "ARP".to_owned(),
        Err(why) => why,
    }
}

/// Result of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Time at which the last conversation had ended, both ways.
    pub ended: Instant,
    /// Retransmissions of the stack.
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
        let mut driver = SimDriver::new(config.clone(), caps, rng.next());
        driver.host.set_record(false);
        driver.host.set_default_connect(ConnectPlan::Pending);
        Self {
            driver,
            up,
            down,
            credit_per_tick: None,
            cost: None,
            busy_until: Instant::ZERO,
            guest: Guest::new(&config, rng.next()),
            config,
            seed,
            now: Instant::ZERO,
            next_tick: Instant::ZERO,
            conversations: Vec::new(),
            active: Vec::new(),
            touched: BTreeSet::new(),
            begun: BTreeSet::new(),
            by_guest_port: BTreeMap::new(),
            by_socket: BTreeMap::new(),
            sockets_seen: 0,
            answers: Vec::new(),
            trace: 0xcbf2_9ce4_8422_2325,
            frames: 0,
            recent: VecDeque::new(),
        }
    }

    /// Adds a conversation; gives its index.
    pub fn add(&mut self, plan: Conversation) -> usize {
        let index = self.conversations.len();
        self.active.push(index);
        self.begun.insert(index);
        self.by_guest_port.insert(Self::guest_port(index), index);
        self.conversations.push(Running::new(plan));
        index
    }

    /// The answers so far, in order of time.
    pub fn answers(&self) -> &[Answer] {
        &self.answers
    }

    /// Time at which a conversation had ended, both ways.
    pub fn ended(&self, conversation: usize) -> Option<Instant> {
        self.conversations[conversation].done_at
    }

    /// Bytes that a conversation's peer and guest have read.
    pub fn delivered(&self, conversation: usize) -> (u64, u64) {
        let c = &self.conversations[conversation];
        (c.peer_read.bytes, c.guest_read.bytes)
    }

    /// The kernels behind a conversation's host socket, while it is open and has such.
    pub fn kernel(&self, conversation: usize) -> Option<&KernelSocket> {
        self.conversations[conversation].peer.as_ref()?.kernel()
    }

    /// The time now.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Advances to the next event, by at most a millisecond.
    pub fn advance(&mut self) {
        self.step();
    }

    /// Runs until `end`; conversations may still be open then.
    pub fn run_until(&mut self, end: Instant) {
        while self.next_event() <= end {
            self.step();
        }
    }

    /// Runs until all conversations have ended and the stack has no state left.
    ///
    /// # Panics
    /// If conversations are open at `limit`, or a wrong byte was delivered.
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
            retransmitted: self.driver.observer.retransmitted(),
            frames: self.frames,
            trace: self.trace,
        }
    }

    fn is_over(&self) -> bool {
        self.active.is_empty()
            && self.driver.host.open_sockets() == 0
            && self.driver.stack.flows() == 0
            && self.driver.stack.memory_used() + self.driver.stack.memory_reserved() == 0
    }

    fn unfinished(&mut self) -> String {
        let mut text = format!(
            "{} sockets, {} flows, {} bytes of memory; {:?}\n",
            self.driver.host.open_sockets(),
            self.driver.stack.flows(),
            self.driver.stack.memory_used() + self.driver.stack.memory_reserved(),
            self.driver.stack.counters().drops().collect::<Vec<_>>(),
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

    /// Time of the next event.
    fn next_event(&mut self) -> Instant {
        let work = [
            self.up.next(),
            self.driver.next_deadline(),
            self.driver.host.has_events().then_some(self.now),
            (self.busy_until > self.now).then_some(self.busy_until),
        ];
        let begun = (!self.begun.is_empty()).then_some(self.now);
        let turn = work.into_iter().flatten().min().map(|at| at.max(self.busy_until));
        let peers = self.active.iter().filter_map(|&i| self.conversations[i].next()).min();
        let others =
            [self.down.next(), self.guest.next_deadline(self.now), peers, begun, Some(self.next_tick)];
        others.into_iter().chain([turn]).flatten().min().map_or(self.now, |at| at.max(self.now))
    }

    /// Processes all events of the next instant that has one.
    fn step(&mut self) {
        self.now = self.next_event();
        let mut tick = false;
        if self.next_tick <= self.now {
            self.next_tick = self.now + TICK;
            tick = true;
            if self.credit_per_tick.is_some() {
                self.driver.link.set_credit(self.credit_per_tick);
            }
        }
        for &i in &self.active {
            let c = &mut self.conversations[i];
            if (tick && c.waits_for_a_tick(self.now)) || c.next().is_some_and(|at| at <= self.now) {
                self.touched.insert(i);
            }
            if let Some(peer) = &mut c.peer {
                peer.advance(&mut self.driver.host, self.now);
            }
        }
        if self.busy_until <= self.now {
            self.turn();
        }
        self.find_sockets();
        while let Some(frame) = self.down.pop(self.now) {
            let to = packet::destination_port(&frame).and_then(|port| self.by_guest_port.get(&port));
            self.touched.extend(to);
            self.guest.receive(frame);
        }
        // Twice, so that the programs' reactions to an event are sent at once.
        for _ in 0..2 {
            for frame in self.guest.poll(self.now) {
                self.up.push(self.now, frame);
            }
            self.touched.append(&mut self.begun);
            for i in self.touched.clone() {
                self.guest_program(i);
                self.peer_program(i);
            }
        }
        self.finish();
    }

    /// One turn of the driver, and its CPU time.
    fn turn(&mut self) {
        let calls = self.driver.host.calls_made();
        let mut frames = Vec::new();
        while let Some(frame) = self.up.pop(self.now) {
            self.note(">", &frame);
            frames.push((RxMeta::default(), frame));
        }
        let sent = self.driver.turn(self.now, &frames);
        let calls = self.driver.host.calls_made() - calls;
        if let Some(cost) = self.cost {
            let moved = (frames.len() + sent.len()) as u32;
            let work = cost.frame * moved + cost.call * calls as u32;
            if !work.is_zero() {
                self.busy_until = self.now + cost.turn + work;
            }
        }
        for sent in sent {
            for piece in sent.cut() {
                self.note("<", &piece);
                self.down.push(self.now.max(self.busy_until), piece);
            }
        }
        let called: Vec<_> = self.driver.host.take_called().collect();
        for i in called.iter().filter_map(|socket| self.by_socket.get(&socket.0)) {
            self.touched.insert(*i);
            if let Some(peer) = &mut self.conversations[*i].peer {
                peer.settle(&mut self.driver.host, self.now);
            }
        }
    }

    fn note(&mut self, direction: &'static str, frame: &[u8]) {
        self.frames += 1;
        for &byte in self.now.as_ns().to_le_bytes().iter().chain(frame) {
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((self.now, direction, frame.to_vec()));
    }

    fn remote(plan: &Conversation, index: usize) -> SocketAddr {
        let ip: IpAddr = if plan.v6 { crate::script::REMOTE_V6 } else { crate::script::REMOTE_V4 };
        SocketAddr::new(ip, Self::remote_port(index))
    }

    /// Conversations are known by their ports; 60,000 of them at a time.
    fn remote_port(index: usize) -> u16 {
        1000 + (index % 60_000) as u16
    }

    fn guest_port(index: usize) -> u16 {
        20_000 + (index % 40_000) as u16
    }

    fn pattern(&self, index: usize, up: bool) -> Pattern {
        Pattern(self.seed ^ (index as u64) << 8 ^ u64::from(up))
    }

    /// Joins new host sockets to their conversations, by the port each connects to.
    fn find_sockets(&mut self) {
        let host = &mut self.driver.host;
        for socket in host.opened_after(self.sockets_seen) {
            let port = host.peer(socket).port();
            let waiting = self
                .active
                .iter()
                .find(|&&i| self.conversations[i].socket.is_none() && Self::remote_port(i) == port);
            if let Some(&i) = waiting {
                self.conversations[i].socket = Some(socket);
                self.conversations[i].connecting_since = self.now;
                self.by_socket.insert(socket.0, i);
                self.touched.insert(i);
            }
        }
        self.sockets_seen = host.opened();
    }

    fn guest_program(&mut self, index: usize) {
        let (up, down) = (self.pattern(index, true), self.pattern(index, false));
        let remote = Self::remote(&self.conversations[index].plan, index);
        let c = &mut self.conversations[index];
        let Some(handle) = c.handle else {
            if c.plan.start <= self.now {
                let buffer = c.plan.guest_buffer;
                c.handle = Some(self.guest.connect(remote, Self::guest_port(index), buffer, buffer));
            }
            return;
        };
        let socket = self.guest.tcp(handle);
        let may_send = c.guest_may_send(self.now);
        while c.guest_sent < may_send && socket.can_send() {
            if c.asks_again() {
                c.asked = self.now;
            }
            let room = socket.send_capacity() - socket.send_queue();
            let len = (may_send - c.guest_sent).min(room.min(PIECE) as u64) as usize;
            let data = up.bytes(c.guest_sent, len);
            c.guest_sent += socket.send_slice(&data).expect("it can send") as u64;
        }
        let mut may = c.guest_read.allow(self.now, c.plan.guest_reads);
        while may > 0 && socket.can_recv() {
            let read = |data: &mut [u8]| {
                let part = may.min(data.len());
                c.guest_read.took(part, down, &data[..part], "the guest");
                (part, part)
            };
            may = may.saturating_sub(socket.recv(read).expect("it can receive"));
            c.guest_read.wakes = self.now + c.plan.guest_dwells;
        }
        if let Some(took) = c.answer(self.now) {
            self.answers.push(Answer { conversation: index, at: self.now, took });
        }
        c.guest_read.end |= socket.recv(|_| (0, ())) == Err(RecvError::Finished);
        if c.plan.ending == Ending::GuestLeaves && socket.state() == State::FinWait2 {
            socket.abort();
        }
        if !c.guest_closed && socket.may_send() {
            self.guest_close(index, handle);
        }
    }

    /// Closes the guest's direction if the plan says so now.
    fn guest_close(&mut self, index: usize, handle: SocketHandle) {
        let c = &mut self.conversations[index];
        let socket = self.guest.tcp(handle);
        let answered = !matches!(c.plan.pace, Pace::Requests { .. }) || c.guest_read.bytes == c.plan.down;
        let all = c.guest_sent == c.plan.up && answered;
        match c.plan.ending {
            Ending::GuestResets if c.guest_sent * 2 >= c.plan.up => {
                socket.abort();
                (c.guest_closed, c.broken) = (true, true);
            }
            Ending::Each | Ending::GuestFirst | Ending::GuestLeaves if all => {
                socket.close();
                c.guest_closed = true;
            }
            Ending::HostFirst | Ending::HostLeaves if all && c.guest_read.end => {
                socket.close();
                c.guest_closed = true;
            }
            _ => {}
        }
        if c.guest_closed && c.plan.repetitions > 0 {
            let next =
                Conversation { start: self.now, repetitions: c.plan.repetitions - 1, ..c.plan.clone() };
            self.add(next);
        }
    }

    fn peer_program(&mut self, index: usize) {
        let (up, down) = (self.pattern(index, true), self.pattern(index, false));
        let host = &mut self.driver.host;
        let c = &mut self.conversations[index];
        let Some(socket) = c.socket else { return };
        if host.is_connecting(socket) {
            if c.connecting_since + c.plan.connect_takes() <= self.now {
                let refused = c.plan.ending == Ending::Refused;
                host.finish_connect(socket, if refused { Err(HostError::Refused) } else { Ok(()) });
                (c.peer_closed, c.broken) = (refused, refused);
                c.peer = (!refused).then(|| PeerSocket::new(host, socket, c.plan.behind));
            }
            return;
        }
        let may_send = c.peer_may_send(self.now);
        if let Some(peer) = &mut c.peer {
            let may = c.peer_read.allow(self.now, c.plan.peer_reads);
            let data = if may > 0 { peer.read(host, self.now, may) } else { Vec::new() };
            if !data.is_empty() {
                c.peer_read.wakes = self.now + c.plan.peer_dwells;
                c.peer_read.took(data.len(), up, &data, "the peer");
            }
            c.peer_read.end |= peer.sees_end(host);
        }
        let closed = host.closed(socket);
        c.peer_read.end |= closed == Some(Close::Reset);
        if c.plan.ending == Ending::HostLeaves && closed.is_none() && host.has_peer_fin(socket) {
            host.peer_error(socket, HostError::Reset);
            c.peer = None;
        }
        let Some(peer) = c.peer.as_mut().filter(|_| !c.peer_closed && closed.is_none()) else { return };
        while c.peer_sent < may_send && peer.room(host) > 0 {
            let len = (may_send - c.peer_sent).min(peer.room(host) as u64).min(PIECE as u64) as usize;
            peer.write(host, self.now, &down.bytes(c.peer_sent, len));
            c.peer_sent += len as u64;
        }
        let all = c.peer_sent == c.plan.down;
        let close = match c.plan.ending {
            Ending::Each | Ending::HostFirst | Ending::HostLeaves => all,
            Ending::GuestFirst => all && c.peer_read.end,
            Ending::HostResets if c.peer_read.bytes * 2 >= c.plan.up => {
                host.peer_error(socket, HostError::Reset);
                (c.peer_closed, c.broken) = (true, true);
                c.peer = None;
                return;
            }
            _ => false,
        };
        if close {
            peer.close(host, self.now);
            c.peer_closed = true;
        }
    }

    /// Notes conversations that have ended, and checks that they ended as planned.
    fn finish(&mut self) {
        for i in std::mem::take(&mut self.touched) {
            if self.has_ended(i) {
                self.active.retain(|&other| other != i);
            }
        }
    }

    /// Whether a conversation has ended as planned, both ways; gives up what it held.
    fn has_ended(&mut self, index: usize) -> bool {
        let c = &mut self.conversations[index];
        let (Some(handle), None) = (c.handle, c.done_at) else { return false };
        let (state, unread) = (self.guest.tcp(handle).state(), self.guest.tcp(handle).can_recv());
        let Some(socket) = c.socket else {
            // Reset before the host has connected again.
            let over = self.driver.crashes.is_some() && state == State::Closed;
            c.done_at = over.then_some(self.now);
            return over;
        };
        let guest_gone = matches!(state, State::Closed | State::TimeWait);
        let closed = self.driver.host.closed(socket);
        if self.driver.crashes.is_some() && state == State::SynSent && closed == Some(Close::Reset) {
            // The guest sends its SYN again, and the host connects again.
            (c.socket, c.peer, c.peer_sent, c.peer_closed) = (None, None, 0, false);
            c.peer_read = Reading::default();
            self.by_socket.remove(&socket.0);
            return false;
        }
        let Some(closed) = closed.filter(|_| guest_gone) else { return false };
        let was_reset = closed == Close::Reset || (state == State::Closed && !c.guest_read.end);
        if self.driver.crashes.is_some() && was_reset {
            c.check_reset();
            c.broken = true;
        }
        if self.driver.crashes.is_none() && c.plan.ending == Ending::GuestResets {
            assert_eq!(closed, Close::Reset, "the peer of {:?}", c.plan);
        }
        if !c.broken && !c.is_delivered(closed, unread) {
            return false;
        }
        c.done_at = Some(self.now);
        c.peer = None;
        self.driver.host.forget(socket);
        self.by_socket.remove(&socket.0);
        self.by_guest_port.remove(&Self::guest_port(index));
        // A guest in a loop would keep tens of thousands in TIME-WAIT.
        if state == State::Closed || c.plan.repetitions > 0 {
            self.guest.forget(handle);
        }
        true
    }

    /// The configuration of the stack.
    pub fn config(&self) -> &Config {
        &self.config
    }
}
