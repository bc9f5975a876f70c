//! A guest behind a wide-area path: bulk transfers in virtual time, fast enough for 10 Gbit/s.
//!
//! ```text
//!  linux_guest -> Tun (bounded queue) -> Line (rate, delay) -> stack -> BulkHost (host sockets)
//!        ^                                                       |
//!        +------------------------- Line <-----------------------+
//! ```
//!
//! [`crate::world::World`] is for short transfers with faults, [`Wan`] for long ones with figures: frames are
//! not copied more often than in a kernel, checksums are taken as valid, payload is generated ([`Payload`]).
//! The [`crate::observer`] still holds every segment to its rules.
//!
//! The machine that runs the stack is infinitely fast: a turn takes no time, and happens whenever a frame has
//! arrived. Frames that arrive at the same instant are one batch, as in a driver.

pub mod bulk_host;
pub mod line;
pub mod record;
pub mod tun;

use crate::driver::keys;
use crate::events::EventLog;
use crate::linux_guest::{Connection, Content, Options, wire};
use crate::observer::{Observer, Seen};
use crate::packet::flags::{FIN, PSH};
use crate::payload::Payload;
use crate::rng::{Pattern, Rng};
use crate::script::REMOTE_V4;
use brodo_core::config::Config;
use brodo_core::link::{Gso, Link, LinkCaps, NoCredit, RxChecksum, RxFrame, RxMeta, TxFrame};
use brodo_core::stack::{Io, Platform, Stack};
use brodo_core::tcp::info::TcpInfo;
use brodo_core::time::{Duration, Instant};
use bulk_host::BulkHost;
use line::{Frame, Line};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use tun::Tun;

/// Most frames in a batch, as the driver has it.
const BATCH: usize = 64;
/// Turns at one instant before a run counts as stuck.
const STUCK: u32 = 1_000_000;
/// Ethernet overhead of a frame on the wire: preamble, check sequence and gap, bytes.
const ETHERNET: usize = 8 + 4 + 12;
/// The guest's first port, and the port of every server.
const FIRST_PORT: u16 = 20_000;
const SERVER_PORT: u16 = 5001;

/// The path between guest and stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    /// Round-trip time, without queueing or transmission.
    pub rtt: Duration,
    /// Each way, bits per second of Ethernet, its overhead included; `None` for no limit.
    pub bits_per_s: Option<u64>,
    /// Queue of the guest's TUN device: its length in frames, and its treatment of frames beyond that. `None`
    /// for a queue without bound.
    pub tun: Option<(usize, tun::WhenFull)>,
}

/// The stack's end of the link: cuts super-frames as an adapter would, and puts them on the wire.
struct WanLink {
    line: Line,
    now: Instant,
    /// Most segments that the guest gets as one (GRO).
    burst: usize,
    observer: Observer,
}

impl Link for WanLink {
    fn caps(&self) -> LinkCaps {
        LinkCaps { checksum: true, tso: true, uso: false, packet_max: None }
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), NoCredit> {
        let mut bytes = Vec::with_capacity(frame.len());
        bytes.extend_from_slice(frame.headers);
        frame.payload.iter().for_each(|piece| bytes.extend_from_slice(piece));
        let headers = frame.headers.len();
        let (size, cut_at) = match frame.gso {
            Gso::Tcp4(size) => (usize::from(size), Some(size)),
            _ => (usize::MAX, None),
        };
        let most = size.saturating_mul(self.burst);
        if bytes.len() - headers <= most {
            self.transmit(bytes, headers, cut_at);
            return Ok(());
        }
        let pieces = (bytes.len() - headers).div_ceil(most);
        for (i, piece) in bytes[headers..].chunks(most).enumerate() {
            let mut part = [&bytes[..headers], piece].concat();
            renumber(&mut part, (i * most) as u32, i + 1 == pieces);
            self.transmit(part, headers, cut_at);
        }
        Ok(())
    }
}

/// Makes a copy of a super-frame's headers fit the part that begins at `offset` of its payload.
fn renumber(frame: &mut [u8], offset: u32, last: bool) {
    let ip_len = frame.len() as u16 - 14;
    frame[16..18].copy_from_slice(&ip_len.to_be_bytes());
    let seq = u32::from_be_bytes([frame[38], frame[39], frame[40], frame[41]]).wrapping_add(offset);
    frame[38..42].copy_from_slice(&seq.to_be_bytes());
    if !last {
        frame[47] &= !(FIN | PSH);
    }
}

impl WanLink {
    fn transmit(&mut self, bytes: Vec<u8>, headers: usize, cut_at: Option<u16>) {
        let (segment, payload) = wire::read(&bytes).expect("the stack sends TCP over IPv4");
        let payload = payload.len();
        let segments = cut_at.map_or(1, |size| payload.div_ceil(size.into()));
        // The observer checks each segment of a super-frame by itself, as it would cross a wire.
        let size = cut_at.map_or(usize::MAX, usize::from);
        for at in (0..payload.max(1)).step_by(size.min(payload.max(1))) {
            let one =
                crate::packet::TcpSegment { seq: segment.seq.wrapping_add(at as u32), ..segment.clone() };
            let len = (payload - at).min(size) as u32;
            if let Err(rule) = self.observer.to_guest(Seen::apart(&one, len)) {
                panic!("at {:?} the stack sent a segment that is wrong: {rule}\n{one:?}", self.now);
            }
        }
        let wire_len = payload + segments.max(1) * (headers + ETHERNET);
        self.line.push(self.now, Frame { bytes, wire_len, cut_at });
    }
}

/// The platform of a stack at the end of a long path.
enum LongPath {}

impl Platform for LongPath {
    type Link = WanLink;
    type Host = BulkHost;
    type Observer = EventLog;
}

/// The world of one run.
pub struct Wan {
    stack: Stack,
    link: WanLink,
    /// Host sockets.
    pub host: BulkHost,
    /// Trace events of the stack.
    pub events: EventLog,
    tun: Option<Tun>,
    up: Line,
    /// The guest's connections, in order of opening.
    pub connections: Vec<Connection>,
    config: Config,
    content: Content,
    now: Instant,
    batch: Vec<Frame>,
    rng: Rng,
    /// Frames both ways.
    frames: u64,
}

impl Wan {
    /// A stack of this configuration at the end of this path; super-frames hold at most `burst` segments.
    pub fn new(config: &Config, path: Path, burst: u16, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let keys = keys(&mut rng);
        let content =
            Content { up: Rc::new(Payload::new(Pattern(seed))), down: Rc::new(Payload::new(Pattern(!seed))) };
        let link = WanLink {
            line: Line::new(path.bits_per_s, path.rtt / 2),
            now: Instant::ZERO,
            burst: burst.into(),
            observer: Observer::default(),
        };
        let mut stack = Stack::new(config.clone(), keys, link.caps());
        if let Some((frames, tun::WhenFull::DropKnown)) = path.tun {
            stack.set_tx_queue_len(u32::try_from(frames).ok());
        }
        Self {
            stack,
            link,
            host: BulkHost::new(content.clone()),
            events: EventLog::default(),
            tun: path.tun.map(|(frames, when_full)| Tun::new(frames, when_full)),
            up: Line::new(path.bits_per_s, path.rtt / 2),
            connections: Vec::new(),
            config: config.clone(),
            content,
            now: Instant::ZERO,
            batch: Vec::new(),
            rng,
            frames: 0,
        }
    }

    /// Opens a connection of the guest now; its index.
    pub fn connect(&mut self, options: Options) -> usize {
        let index = self.connections.len();
        let guest: IpAddr = self.config.v4.expect("IPv4 is on").guest.into();
        let local = SocketAddr::new(guest, FIRST_PORT + index as u16);
        let remote = Self::server(index);
        let iss = self.rng.next() as u32;
        let mut connection =
            Connection::new(options, local, remote, self.config.mac.0, iss, self.content.clone());
        let mut out = Vec::new();
        connection.connect(self.now, &mut out);
        self.connections.push(connection);
        self.send_up(out);
        index
    }

    /// The server that the connection of this index goes to.
    pub fn server(index: usize) -> SocketAddr {
        SocketAddr::new(REMOTE_V4, SERVER_PORT + index as u16)
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Frames both ways.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Segments retransmitted by the stack.
    pub fn retransmitted(&self) -> u64 {
        self.link.observer.retransmitted()
    }

    /// The guest's TUN device, if it has a bounded queue.
    pub fn tun(&self) -> Option<&Tun> {
        self.tun.as_ref()
    }

    /// The stack.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The stack's information on the connection of this index.
    pub fn info(&self, index: usize) -> Option<TcpInfo> {
        let local = self.connections[index].local();
        self.stack.tcp_infos(self.now).find(|info| info.guest == local)
    }

    /// Advances to `until`, with all events before it.
    ///
    /// # Panics
    /// If the stack breaks a rule, delivers a wrong byte, or is stuck at one instant.
    pub fn run_until(&mut self, until: Instant) {
        let mut still = 0;
        self.now = self.now.max(Instant::ZERO);
        while let Some(at) = self.next().filter(|&at| at <= until) {
            still = if at > self.now { 0 } else { still + 1 };
            assert!(still < STUCK, "{STUCK} turns at {:?}", self.now);
            self.now = at.max(self.now);
            self.step();
        }
        self.now = until;
        self.host.advance(until);
    }

    /// Time of the next event.
    fn next(&self) -> Option<Instant> {
        let ready = self.host.has_events().then_some(self.now);
        let guest = self.connections.iter().filter_map(Connection::next_deadline).min();
        let tun = self.tun.as_ref().and_then(Tun::next);
        [
            ready,
            self.up.next(),
            self.link.line.next(),
            self.stack.next_deadline(),
            self.host.next(),
            guest,
            tun,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn step(&mut self) {
        self.link.now = self.now;
        self.host.advance(self.now);
        if let Some(tun) = &mut self.tun {
            for frame in tun.read(self.now) {
                self.up.push(self.now, frame);
            }
        }
        while self.batch.len() < BATCH
            && let Some(frame) = self.up.pop(self.now)
        {
            self.batch.push(frame);
        }
        let due = self.stack.next_deadline().is_some_and(|at| at <= self.now);
        if due || !self.batch.is_empty() || self.host.has_events() {
            self.turn();
        }
        while let Some(frame) = self.link.line.pop(self.now) {
            self.frames += 1;
            let (segment, payload) = wire::read(&frame.bytes).expect("checked when sent");
            let index = usize::from(segment.dst.port() - FIRST_PORT);
            self.connections[index].receive(self.now, &segment, &frame.bytes[payload]);
            let mut out = Vec::new();
            self.connections[index].poll(self.now, &mut out);
            self.send_up(out);
        }
        for i in 0..self.connections.len() {
            if self.connections[i].next_deadline().is_some_and(|at| at <= self.now) {
                self.poll(i);
            }
        }
    }

    /// Lets a connection send as far as its windows allow; called after its application has written or read.
    pub fn poll(&mut self, index: usize) {
        let mut out = Vec::new();
        self.connections[index].poll(self.now, &mut out);
        self.send_up(out);
    }

    /// One turn of the loop that runs the stack.
    fn turn(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        self.frames += batch.len() as u64;
        let mut frames = Vec::with_capacity(batch.len());
        self.link.observer.begin_batch();
        for frame in &batch {
            if let Some((segment, payload)) = wire::read(&frame.bytes) {
                self.link.observer.from_guest(Seen::apart(&segment, payload.len() as u32));
            }
            let gso = frame.cut_at.map_or(Gso::None, Gso::Tcp4);
            let meta = RxMeta { checksum: RxChecksum::Valid, gso };
            frames.push(RxFrame { meta, ..RxFrame::whole(&frame.bytes) });
        }
        self.events.now = self.now;
        let mut io: Io<'_, LongPath> =
            Io { now: self.now, link: &mut self.link, host: &mut self.host, observer: &mut self.events };
        self.stack.frames(&mut io, &frames);
        self.stack.expire(&mut io);
        loop {
            // All arrivals up to now have been read.
            self.stack.link_drained(self.now);
            for (flow, ready) in io.host.take_events() {
                self.stack.socket_event(&mut io, flow, ready);
            }
            let more = self.stack.serve(&mut io);
            self.stack.flush(&mut io);
            if !more && !io.host.has_events() {
                break;
            }
        }
    }

    /// Frames leave the guest.
    fn send_up(&mut self, frames: Vec<Vec<u8>>) {
        for bytes in frames {
            let (segment, payload) = wire::read(&bytes).expect("the guest sends TCP");
            let index = usize::from(segment.src.port() - FIRST_PORT);
            let mss = self.connections[index].mss();
            let payload = payload.len();
            let cut_at = (payload > usize::from(mss)).then_some(mss);
            let headers = bytes.len() - payload;
            let wire_len = payload + payload.div_ceil(mss.into()).max(1) * (headers + ETHERNET);
            let frame = Frame { bytes, wire_len, cut_at };
            match &mut self.tun {
                Some(tun) => tun.push(self.now, frame),
                None => self.up.push(self.now, frame),
            }
        }
    }
}

#[cfg(test)]
mod tests;
