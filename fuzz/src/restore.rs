//! Snapshots: any bytes as records, a stack from them, and a conversation with that stack.
//!
//! The bytes are restored as they are; with a frame made right (first and last record, keys), without
//! which nothing at all would be restored; and as edits of a snapshot of everything, which leave its
//! records as they lie. A stack that comes of it gets segments and datagrams for each of its flows, events
//! of sockets, and time, on a host that answers in every way that a host may. Nothing of that may panic,
//! exceed the budget, or send a frame beyond the MTU; and at last the stack is saved and restored again,
//! which must give the same snapshot.

use brodo_core::config::Config;
use brodo_core::flow::info::{Carrier, FlowInfo};
use brodo_core::flow::{FlowId, Protocol};
use brodo_core::host::{
    Close, Connect, Host, HostError, IcmpReport, IpHeaderFields, Readiness, Received, SocketId,
};
use brodo_core::link::{Gso, Link, LinkCaps, NoCredit, RxMeta, TxFrame};
use brodo_core::memory::budget::Budget;
use brodo_core::snapshot::{Record, Records, RestoreError, Tag};
use brodo_core::stack::{Adopt, Io, Omitted, Platform, Restored, Settings, SocketKind, Stack};
use brodo_core::time::Instant;
use brodo_core::trace::Observer;
use brodo_sim::link::to_stack;
use brodo_sim::packet::{self, ParsedFrame, TcpSegment, UdpDatagram, flags};
use brodo_sim::rng::Rng;
use brodo_sim::samples;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

/// Time of the restoring, after that of every seed.
const NOW: Instant = Instant::from_ms(60_000);
/// Flows of a restored stack that are spoken to.
const FLOWS_MAX: usize = 6;
/// Deadlines that pass, one after another.
const DEADLINES: usize = 12;
/// Frames in a turn after which the link has no credit for once.
const CREDIT: usize = 40;

/// Configuration of the restored stack: that of the seeds.
pub fn config() -> Config {
    Config { mtu: 1500, memory: 4 << 20, max_flows: 64, dns_cache: 8 << 10, ..Config::default() }
}

/// Most edits of one input: more would leave nothing that is valid.
const EDITS_MAX: u8 = 6;

/// Checks the bytes as they are, with their frame made right, and as edits.
pub fn run(data: &[u8]) {
    converse(data);
    converse(&framed(data));
    converse(&edited(data));
}

/// Snapshot of all samples, one after another.
fn everything() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let mut script = samples::script(config());
        for (_, play) in samples::SAMPLES {
            play(&mut script);
        }
        samples::snapshot(&script).bytes
    })
}

/// The snapshot of everything with edits: their number, then for each four bytes: record, place in it, kind,
/// value.
fn edited(data: &[u8]) -> Vec<u8> {
    let mut records: Vec<(u16, Vec<u8>)> =
        Records::new(everything()).map(|record| (record.tag, record.bytes.to_vec())).collect();
    let Some((&count, edits)) = data.split_first() else { return Vec::new() };
    for edit in edits.chunks_exact(4).take(1 + usize::from(count % EDITS_MAX)) {
        let &[record, place, kind, value] = edit else { break };
        let count = records.len();
        let (_, bytes) = &mut records[usize::from(record) % count];
        if bytes.is_empty() {
            continue;
        }
        // Long records have their payload at the end.
        let at = usize::from(place) * (1 + bytes.len() / 400) % bytes.len();
        match kind % 8 {
            0..4 => bytes[at] = value,
            4 => bytes[at] ^= 1 << (value % 8),
            5 => bytes.insert(at, value),
            6 => _ = bytes.remove(at),
            // The largest number of 32 bits.
            _ => _ = bytes.splice(at..=at, [0xff, 0xff, 0xff, 0xff, 0x0f]),
        }
    }
    let mut out = Vec::new();
    for (tag, bytes) in &records {
        Record { tag: *tag, version: 1, bytes }.write(&mut out);
    }
    framed(&out)
}

/// The records of `data` between a first and a last record that are right, and with keys.
fn framed(data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut count = 2u32;
    let put = |out: &mut Vec<u8>, tag: Tag, bytes: &[u8]| {
        Record { tag: tag as u16, version: 1, bytes }.write(out);
    };
    put(&mut out, Tag::Begin, b"brodo\0");
    put(&mut out, Tag::Keys, &[0; 49]);
    for record in Records::new(data) {
        if ![Tag::Begin, Tag::Keys, Tag::End].iter().any(|&tag| record.tag == tag as u16) {
            record.write(&mut out);
            count += 1;
        }
    }
    // A varint of postcard's: seven bits in each byte.
    let mut end = Vec::new();
    while count >= 0x80 {
        end.push(count as u8 | 0x80);
        count >>= 7;
    }
    end.push(count as u8);
    put(&mut out, Tag::End, &end);
    out
}

/// Restores a stack and talks to it.
fn converse(data: &[u8]) {
    let restored = restore(data, NOW, &mut AnyHost::new(data.len() as u64));
    let Ok(Restored { stack, lost, .. }) = restored else { return };
    let mut play = Play::new(stack, data.len() as u64);
    play.call(|stack, io| stack.reset_lost(io, &lost));
    play.turn(&[]);
    for info in play.flows() {
        play.talk(&info);
    }
    for step in 0..DEADLINES {
        let Some(at) = play.stack.next_deadline() else { break };
        play.now = play.now.max(at);
        play.turn(&[]);
        if step % 4 == 3 {
            play.flows().iter().for_each(|info| play.talk(info));
        }
    }
    play.check_again();
}

fn restore(data: &[u8], now: Instant, host: &mut AnyHost) -> Result<Restored, RestoreError> {
    let config = config();
    let budget = Arc::new(Budget::new(config.memory));
    let settings = Settings { config, caps: LinkCaps::default(), budget, worker: 0 };
    Stack::restore(settings, now, data, host)
}

/// A conversation with a restored stack.
struct Play {
    stack: Stack,
    now: Instant,
    link: AnyLink,
    host: AnyHost,
}

impl Play {
    fn new(stack: Stack, seed: u64) -> Self {
        Self { stack, now: NOW, link: AnyLink::default(), host: AnyHost::new(seed) }
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
        self.stack.link_drained();
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

    /// A second snapshot is restored without loss, and a third is equal to it.
    fn check_again(&mut self) {
        let (bytes, omitted) = save(&self.stack, self.now);
        if omitted != Omitted::default() {
            return;
        }
        let again = restore(&bytes, self.now, &mut self.host).expect("a snapshot of a restored stack");
        assert_eq!((again.lost.len(), again.unused), (0, 0), "lost of a restored stack: {:?}", again.lost);
        assert!(save(&again.stack, self.now).0 == bytes, "a snapshot changes by being restored");
    }
}

/// A snapshot with a new index for each socket.
fn save(stack: &Stack, now: Instant) -> (Vec<u8>, Omitted) {
    let (mut bytes, mut sockets) = (Vec::new(), 0);
    let index_of = |_, _| {
        sockets += 1;
        sockets
    };
    let omitted = stack.save(now, index_of, |record| record.write(&mut bytes));
    (bytes, omitted)
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
struct AnyHost {
    rng: Rng,
    opened: u32,
}

impl AnyHost {
    fn new(seed: u64) -> Self {
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

    fn udp_open(&mut self, _: FlowId, _: SocketAddr) -> Result<SocketId, HostError> {
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
            *one = Received { len: self.rng.range(8, 3000) as usize, ..Received::default() };
        }
        Ok(count)
    }

    fn datagram_error(&mut self, _: SocketId) -> Option<IcmpReport> {
        None
    }

    fn close(&mut self, _: SocketId, _: Close) {}
}
