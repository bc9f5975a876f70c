//! Journal: a record of each flow in memory that outlives the process, for the recovery from a crash.
//!
//! # Theory of operation
//!
//! When a process crashes its sockets live on in the table of descriptors that it shares with another
//! process, and the kernel's counters tell exactly how many bytes went through each of them. A connection
//! can go on with no more than that and a few numbers: which flow has which socket, where its sequence
//! numbers began, which window the guest was offered. The driver gives the stack memory that outlives the
//! process ([`Stack::set_journal`]); the stack keeps a record of [`SLOT_WORDS`] words in it for each flow,
//! and [`Stack::recover`] makes a stack from the records and the kernel's counters.
//!
//! *One rule makes it exact:* what the guest or the host may rely on is in the record before they hear of it.
//!
//! | word | written |
//! |---|---|
//! | acknowledgement and right edge of the window | before each segment to the guest |
//! | SND.UNA and window of the guest, states of both halves, socket | after each access to the flow |
//! | that there is no socket any more | before it is closed |
//! | sockets and pipes of carried flows ([`carried`]) | before they are used, and before they are closed |
//! | kernel socket and pipes of promoted flows ([`promoted`]) | the same |
//! | SND.UNA and window of the guest | also before acknowledged bytes are given up |
//! | end of the guest's stream | before the host socket is shut down for writing |
//! | ends of both streams so far | after each access to the flow |
//! | key | once, when the handshake is over |
//! | counts of packets | after each access to the flow |
//! | addresses of the guest, MAC and IP, in a slot of its own | when they are learned |
//!
//! With R and W, the bytes ever read from and written to the host socket, which the kernel counts (so that
//! not even a crash within a system call is in doubt):
//!
//! * to the host: the socket has the first W bytes of the guest's stream. Those behind them, as far as they
//!   were acknowledged to the guest, are in payload memory ([`crate::memory::payload`]) and are written next;
//! * to the guest: the first R bytes of the host's stream were read. Those from SND.UNA on are in payload
//!   memory and are sent, perhaps again: which of them the guest has already is not recorded, it drops them
//!   and acknowledges what it has, up to all of them.
//!
//! If one of these bytes is not there, the flow is reset. So it goes on with exactly the bytes of both
//! streams, or is reset; it never has a hole.
//!
//! *Both streams at their ends*: the host socket is given up before the guest has all bytes, and the kernel's
//! counters with it. Then the ends in the record are final, and stand for W and R.
//!
//! *A crash in the middle of a write.* A word is written whole or not at all. The first word says that there
//! is a record, and is written after all others and cleared before them; each of the others holds by itself,
//! in whichever order the last of them were written. Stores keep their order: all are releases, and the
//! reader starts after the writer's end, which the kernel reports.
//!
//! *Cost*: a store for each segment to the guest and eight for each access to a flow, all to two lines of the
//! cache; six more for a flow that begins. Without memory nothing is stored.
//!
//! *Left out*: DNS queries (the guest asks again).
//!
//! *Trust.* A process that was taken over may have written anything. Every value is checked where it is used
//! ([`Stack::recover`]), as in [`crate::snapshot`].
//!
//! [`Stack::set_journal`]: crate::stack::Stack::set_journal
//! [`Stack::recover`]: crate::stack::Stack::recover

pub mod carried;
pub mod promoted;

use crate::flow::info::Traffic;
use crate::key::{Endpoint, FlowId, FlowKey, Protocol};
use crate::tcp::window::Advertised;
use crate::time::Instant;
use crate::wire::ethernet::MacAddr;
use crate::wire::tcp::Seq;
use carried::{CarriedRecord, CarriedState, PeerRecord};
use promoted::PromotedRecord;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a record.
pub const SLOT_WORDS: usize = 16;

/// Memory of one record.
pub type Slot = [AtomicU64; SLOT_WORDS];

/// That there is a record, its kind and states, and the generation of its flow; 0 if there is none.
const HEAD: usize = 0;
/// Acknowledgement and right edge as last advertised.
const ADVERTISED: usize = 1;
/// SND.UNA and window of the guest.
const ACKNOWLEDGED: usize = 2;
/// Socket, MSS, window scales.
const SOCKET: usize = 3;
/// First sequence numbers of both streams, ours and the guest's.
const BEGIN: usize = 4;
/// Both ends: two words for each address, one for both ports.
const GUEST: usize = 5;
const REMOTE: usize = 7;
/// Generation of the flow that the words belong to, and both ports.
const PORTS: usize = 9;
const OPENED_AT: usize = 10;
/// Bytes from the guest and to it of a conversation in datagrams; of a connection the duration of its connect
/// and the number of retransmissions. Packets of both directions.
const BYTES: usize = 11;
const CONNECT: usize = 11;
const PACKETS: usize = 13;
/// Ends of both streams so far: behind the last byte that was read of ours, and RCV.NXT.
const ENDS: usize = 12;

/// In the last slot, whose first word is always 0: the guest's MAC address, behind a 1 if it is known.
const GUEST_MAC: usize = 1;
/// In the same slot: the position of the link in a stream of frames, which is the link's own.
const LINK_POSITION: usize = 2;
/// In the same slot: the number of slots that ever had a record, so that no other has to be read.
const USED: usize = 3;

/// In the same slot: the addresses that a guest which configures itself has used last; IPv4 behind a 1, IPv6
/// in two words; 0 if there is none.
const SEEN_V4: usize = 4;
const SEEN_V6: usize = 5;

/// Bits of the first word: kind and states, then flags, then the generation.
const KIND_BITS: u64 = 0b11;
const TX_SHIFT: u32 = 2;
const RX_SHIFT: u32 = 5;
const STATE_BITS: u64 = 0b111;
const GENERATION_SHIFT: u32 = 32;
const SACK: u64 = 1 << 8;
const INBOUND: u64 = 1 << 9;
const BROKEN: u64 = 1 << 10;
const PASSIVE: u64 = 1 << 11;
const ANSWERED: u64 = 1 << 12;
const IPV6: u64 = 1 << 13;
const CARRIED: u64 = 1 << 14;
const PUBLISHED: u64 = 1 << 15;
const READ_ALL: u64 = 1 << 16;
const AWAY: u64 = 1 << 17;

/// Number of a window scale that was not offered.
const NO_SCALE: u8 = u8::MAX;

/// The word for the position of a link, in the slots of its worker's journal.
pub fn link_position(slots: &'static [Slot]) -> Option<&'static AtomicU64> {
    slots.last()?.get(LINK_POSITION)
}

/// Progress of a host socket as its kernel counts it: over its whole life, in all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes written to it.
    pub written: u64,
    /// Bytes read from it.
    pub read: u64,
    /// Shut down for writing.
    pub shut: bool,
    /// FIN of the peer received, perhaps behind bytes that were not read.
    pub peer_closed: bool,
}

/// State of a connection that changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TcpState {
    /// Saved forms of both halves' states.
    pub(crate) tx: u8,
    pub(crate) rx: u8,
    /// Up to now.
    pub(crate) advertised: Advertised,
    pub(crate) una: Seq,
    pub(crate) wnd: u32,
    pub(crate) socket: Option<u32>,
    pub(crate) mss: u16,
    /// Window scale of the guest, if it has offered one, and ours.
    pub(crate) peer_scale: Option<u8>,
    pub(crate) scale: u8,
    pub(crate) sack: bool,
    pub(crate) inbound: bool,
    pub(crate) broken: bool,
    pub(crate) passive: bool,
    /// First sequence numbers of the streams: ours and the guest's.
    pub(crate) tx_begin: Seq,
    pub(crate) rx_begin: Seq,
    /// Segments from the guest, and to it.
    pub(crate) segments: (u32, u32),
    pub(crate) retransmissions: u32,
    /// Duration of the connect, in microseconds.
    pub(crate) connect_us: u32,
    /// The end of the host's stream was read.
    pub(crate) read_all: bool,
    /// A kernel socket has the flow, or is to have it; the rest is the state with which it left.
    pub(crate) away: bool,
    /// Behind the last byte of our stream that was read.
    pub(crate) tx_end: Seq,
    /// RCV.NXT of the guest's stream.
    pub(crate) rx_nxt: Seq,
}

impl TcpState {
    /// Bytes read from the host socket, modulo 2^32, when the record was written last.
    pub(crate) fn bytes_read(&self) -> u32 {
        (self.tx_end - self.tx_begin) as u32
    }

    /// Progress of a host socket that was given up, because both streams were over.
    pub(crate) fn final_progress(&self) -> Progress {
        let bytes = |begin: Seq, end: Seq| u64::from((end - begin) as u32);
        Progress {
            written: bytes(self.rx_begin, self.rx_nxt - 1),
            read: bytes(self.tx_begin, self.tx_end),
            shut: true,
            peer_closed: true,
        }
    }
}

/// State of a conversation in datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DatagramState {
    /// Its socket, unless it is a published port's.
    pub(crate) socket: Option<u32>,
    pub(crate) answered: bool,
    pub(crate) from_guest: Traffic,
    pub(crate) to_guest: Traffic,
}

/// The journal of one stack.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    slots: &'static [Slot],
    /// The last slot, for what concerns no flow.
    link: Option<&'static Slot>,
}

impl Journal {
    /// A journal in this memory, which has a slot for each flow and one more.
    pub(crate) const fn new(slots: &'static [Slot]) -> Self {
        match slots.split_last() {
            Some((link, slots)) => Self { slots, link: Some(link) },
            None => Self { slots, link: None },
        }
    }

    /// The guest's MAC address, as learned.
    pub(crate) fn guest_mac(&self, mac: MacAddr) {
        if let Some(link) = self.link {
            put(link, GUEST_MAC, mac.to_word());
        }
    }

    /// An address that a guest which configures itself has used last.
    pub(crate) fn guest_address(&self, ip: IpAddr) {
        match (self.link, ip) {
            (Some(link), IpAddr::V4(v4)) => put(link, SEEN_V4, 1 << 32 | u64::from(v4.to_bits())),
            (Some(link), IpAddr::V6(v6)) => {
                let bits = v6.to_bits();
                put(link, SEEN_V6, bits as u64);
                put(link, SEEN_V6 + 1, (bits >> 64) as u64);
            }
            (None, _) => {}
        }
    }

    /// Whether there is one.
    pub(crate) const fn is_on(&self) -> bool {
        !self.slots.is_empty()
    }

    fn slot(&self, id: FlowId) -> Option<&'static Slot> {
        self.slots.get(id.index as usize)
    }

    /// Acknowledgement and right edge of a segment that is about to be sent.
    #[inline]
    pub(crate) fn advertise(&self, id: FlowId, ack: Seq, edge: Seq) {
        if let Some(slot) = self.slot(id) {
            put(slot, ADVERTISED, pair(ack.0, edge.0));
        }
    }

    /// SND.UNA and window of the guest, before what it has acknowledged is given up.
    pub(crate) fn acknowledged(&self, id: FlowId, una: Seq, wnd: u32) {
        if let Some(slot) = self.slot(id) {
            put(slot, ACKNOWLEDGED, pair(una.0, wnd));
        }
    }

    /// End of the guest's stream: all of it is written, and the host socket is about to be shut down. `rx` is
    /// the saved form of that state.
    pub(crate) fn finished(&self, id: FlowId, rx: u8, nxt: Seq) {
        let Some(slot) = self.slot(id) else { return };
        let (tx_end, _) = halves(get(slot, ENDS));
        put(slot, ENDS, pair(tx_end, nxt.0));
        let head = get(slot, HEAD);
        if head & KIND_BITS != 0 {
            put(slot, HEAD, head & !(STATE_BITS << RX_SHIFT) | u64::from(rx) << RX_SHIFT);
        }
    }

    /// Begins the record of a flow, if it has none: what never changes of it. Whether it had none.
    fn begin(&self, slot: &Slot, id: FlowId, key: &FlowKey, opened_at: Instant) -> bool {
        if get(slot, HEAD) >> GENERATION_SHIFT == u64::from(id.generation) && get(slot, HEAD) & KIND_BITS != 0
        {
            return false;
        }
        put(slot, HEAD, 0);
        if let Some(link) = self.link.filter(|link| get(link, USED) <= id.index.into()) {
            put(link, USED, u64::from(id.index) + 1);
        }
        for (at, end) in [(GUEST, key.guest), (REMOTE, key.remote)] {
            let bits = match end.ip() {
                IpAddr::V4(v4) => u128::from(v4.to_bits()),
                IpAddr::V6(v6) => v6.to_bits(),
            };
            put(slot, at, bits as u64);
            put(slot, at + 1, (bits >> 64) as u64);
        }
        let ports = u32::from(key.guest.port()) << 16 | u32::from(key.remote.port());
        put(slot, PORTS, pair(id.generation, ports));
        put(slot, OPENED_AT, opened_at.as_ns());
        true
    }

    /// Writes the record of a connection.
    pub(crate) fn tcp(&self, id: FlowId, key: &FlowKey, opened_at: Instant, state: &TcpState) {
        let Some(slot) = self.slot(id) else { return };
        // One that is away already goes on with the driver's words of an earlier process.
        if self.begin(slot, id, key, opened_at) && !state.away {
            promoted::begin(slot);
        }
        let TcpState { tx, rx, advertised, una, wnd, socket, mss, peer_scale, scale, .. } = *state;
        let TcpState { tx_begin, rx_begin, .. } = *state;
        put(slot, ADVERTISED, pair(advertised.ack.0, advertised.edge.0));
        put(slot, ACKNOWLEDGED, pair(una.0, wnd));
        let scales = u16::from_le_bytes([peer_scale.unwrap_or(NO_SCALE), scale]);
        put(slot, SOCKET, pair(number_of(socket), u32::from(mss) | u32::from(scales) << 16));
        put(slot, BEGIN, pair(tx_begin.0, rx_begin.0));
        put(slot, CONNECT, pair(state.connect_us, state.retransmissions));
        put(slot, PACKETS, pair(state.segments.0, state.segments.1));
        put(slot, ENDS, pair(state.tx_end.0, state.rx_nxt.0));
        let mut head = u64::from(tx) << TX_SHIFT | u64::from(rx) << RX_SHIFT | family(key);
        let flags = [
            (SACK, state.sack),
            (INBOUND, state.inbound),
            (BROKEN, state.broken),
            (PASSIVE, state.passive),
            (READ_ALL, state.read_all),
            (AWAY, state.away),
        ];
        for (flag, is) in flags {
            head |= if is { flag } else { 0 };
        }
        put(slot, HEAD, head | kind(key.protocol) | u64::from(id.generation) << GENERATION_SHIFT);
    }

    /// Writes the record of a conversation in datagrams. One without a socket of its own is a published
    /// port's, of which the driver writes the rest.
    pub(crate) fn datagrams(&self, id: FlowId, key: &FlowKey, opened_at: Instant, state: &DatagramState) {
        let Some(slot) = self.slot(id) else { return };
        self.begin(slot, id, key, opened_at);
        let published = match state.socket {
            Some(socket) => {
                put(slot, SOCKET, pair(number_of(Some(socket)), 0));
                0
            }
            None => PUBLISHED,
        };
        put_traffic(slot, state.from_guest, state.to_guest);
        let head = family(key) | published | if state.answered { ANSWERED } else { 0 };
        put(slot, HEAD, head | kind(key.protocol) | u64::from(id.generation) << GENERATION_SHIFT);
    }

    /// Ends the record of a flow, before its socket is closed.
    pub(crate) fn end(&self, id: FlowId) {
        if let Some(slot) = self.slot(id) {
            put(slot, HEAD, 0);
        }
    }

    /// Ends the record of a flow, unless another flow has one in its place.
    pub(crate) fn end_of(&self, id: FlowId) {
        let has = |slot: &&Slot| get(slot, HEAD) >> GENERATION_SHIFT == u64::from(id.generation);
        if let Some(slot) = self.slot(id).filter(|slot| has(slot)) {
            put(slot, HEAD, 0);
        }
    }

    /// The flow has no socket any more; said before it is closed, because its number is given away again.
    pub(crate) fn forget_socket(&self, id: FlowId) {
        if let Some(slot) = self.slot(id) {
            put(slot, SOCKET, get(slot, SOCKET) & u64::from(u32::MAX));
        }
    }
}

fn put(slot: &Slot, at: usize, word: u64) {
    // A release, so that no later one overtakes it in the compiler or the processor.
    slot[at].store(word, Ordering::Release);
}

fn get(slot: &Slot, at: usize) -> u64 {
    slot[at].load(Ordering::Acquire)
}

/// Writes the traffic of both directions; packets beyond 2^32 - 1 are not counted.
fn put_traffic(slot: &Slot, from_guest: Traffic, to_guest: Traffic) {
    let packets = |traffic: Traffic| u32::try_from(traffic.packets).unwrap_or(u32::MAX);
    put(slot, BYTES, from_guest.bytes);
    put(slot, BYTES + 1, to_guest.bytes);
    put(slot, PACKETS, pair(packets(from_guest), packets(to_guest)));
}

/// Traffic of both directions: from the guest, and to it.
fn traffic(slot: &Slot) -> (Traffic, Traffic) {
    let (from, to) = halves(get(slot, PACKETS));
    let of = |bytes, packets: u32| Traffic { bytes, packets: packets.into() };
    (of(get(slot, BYTES), from), of(get(slot, BYTES + 1), to))
}

const fn pair(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

const fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// Number of a socket in a record: one more, and 0 for none.
fn number_of(socket: Option<u32>) -> u32 {
    socket.map_or(0, |socket| socket.wrapping_add(1))
}

const fn kind(protocol: Protocol) -> u64 {
    match protocol {
        Protocol::Tcp => 1,
        Protocol::Udp => 2,
        Protocol::Echo => 3,
    }
}

fn family(key: &FlowKey) -> u64 {
    if key.guest.is_ipv6() { IPV6 } else { 0 }
}

/// Record of a flow as it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) id: FlowId,
    pub(crate) key: FlowKey,
    pub(crate) opened_at: Instant,
    pub(crate) kind: RecordKind,
}

impl Record {
    /// The socket of a flow that has one of its own.
    pub(crate) fn socket(&self) -> Option<u32> {
        match &self.kind {
            RecordKind::Tcp(state) | RecordKind::Promoted(state, _) => state.socket,
            RecordKind::Datagrams(state) => state.socket,
            RecordKind::Published(..) | RecordKind::Carried(..) => None,
        }
    }
}

/// The rest of a record, by protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordKind {
    Tcp(TcpState),
    /// Its kernel socket was started.
    Promoted(TcpState, PromotedRecord),
    Datagrams(DatagramState),
    /// By the socket of a published port.
    Published(DatagramState, PeerRecord),
    /// By the driver.
    Carried(CarriedState, CarriedRecord),
}

/// Copies of the records that a process has left behind.
#[derive(Debug, Default)]
pub struct Remains {
    pub(crate) records: Vec<Record>,
    /// The guest's MAC address, if it was learned: flows that go on without it would send into the void.
    pub(crate) guest_mac: Option<MacAddr>,
    /// Addresses of a guest that configures itself.
    pub(crate) guest_addresses: Vec<IpAddr>,
}

impl Remains {
    /// Copies the records in this memory, which no process writes any more. They stay there until the next
    /// stack has its own in their place ([`Stack::set_journal`], [`Stack::forget_lost`]): should its process
    /// crash before that, the one after it begins with the same.
    ///
    /// [`Stack::set_journal`]: crate::stack::Stack::set_journal
    /// [`Stack::forget_lost`]: crate::stack::Stack::forget_lost
    pub fn read(slots: &[Slot]) -> Self {
        let mut records = Vec::with_capacity(used(slots).iter().filter(|slot| get(slot, HEAD) != 0).count());
        records.extend(used(slots).iter().zip(0..).filter_map(|(slot, index)| read(slot, index)));
        let guest_mac = slots.last().and_then(|link| MacAddr::from_word(get(link, GUEST_MAC)));
        let guest_addresses = slots.last().map(seen).unwrap_or_default();
        Self { records, guest_mac: guest_mac.filter(|mac| !mac.is_multicast()), guest_addresses }
    }

    /// The same for a process that goes on with none of them: clears the memory.
    pub fn take(slots: &[Slot]) -> Self {
        let remains = Self::read(slots);
        for slot in used(slots) {
            put(slot, HEAD, 0);
        }
        for word in [GUEST_MAC, SEEN_V4, SEEN_V6, SEEN_V6 + 1] {
            slots.iter().last().inspect(|link| put(link, word, 0));
        }
        remains
    }

    /// Numbers of the descriptors that the flows had.
    pub fn descriptors(&self) -> impl Iterator<Item = u32> {
        let carried = self.records.iter().filter_map(|record| match &record.kind {
            RecordKind::Carried(_, carried) => Some(carried.descriptors()),
            _ => None,
        });
        let promoted = self.records.iter().filter_map(|record| match &record.kind {
            RecordKind::Promoted(_, promoted) => Some(promoted.descriptors()),
            _ => None,
        });
        let sockets = self.records.iter().filter_map(Record::socket);
        sockets.chain(carried.flatten()).chain(promoted.flatten())
    }

    /// Number of flows.
    pub fn flows(&self) -> usize {
        self.records.len()
    }
}

/// Addresses in the last slot.
fn seen(link: &Slot) -> Vec<IpAddr> {
    let v4 = Some(get(link, SEEN_V4)).filter(|word| *word != 0).map(|word| IpAddr::V4((word as u32).into()));
    let bits = u128::from(get(link, SEEN_V6)) | u128::from(get(link, SEEN_V6 + 1)) << 64;
    v4.into_iter().chain((bits != 0).then(|| IpAddr::V6(bits.into()))).collect()
}

/// The slots that ever had a record. The number is not trusted.
fn used(slots: &[Slot]) -> &[Slot] {
    let Some((link, slots)) = slots.split_last() else { return &[] };
    let used = usize::try_from(get(link, USED)).unwrap_or(usize::MAX);
    &slots[..used.min(slots.len())]
}

/// The record in a slot, if there is one.
fn read(slot: &Slot, index: u32) -> Option<Record> {
    let head = get(slot, HEAD);
    let protocol = match head & KIND_BITS {
        1 => Protocol::Tcp,
        2 => Protocol::Udp,
        3 => Protocol::Echo,
        _ => return None,
    };
    let has = |flag: u64| head & flag != 0;
    let (_, ports) = halves(get(slot, PORTS));
    let end = |at: usize, port: u32| {
        let bits = u128::from(get(slot, at)) | u128::from(get(slot, at + 1)) << 64;
        let ip = if has(IPV6) { IpAddr::V6(bits.into()) } else { IpAddr::V4((bits as u32).into()) };
        Endpoint::new(ip, port as u16)
    };
    let key = FlowKey { protocol, guest: end(GUEST, ports >> 16), remote: end(REMOTE, ports) };
    let (socket, fields) = halves(get(slot, SOCKET));
    let kind = match protocol {
        _ if has(CARRIED) => {
            let (state, carried) = CarriedState::read(slot, protocol, head)?;
            RecordKind::Carried(state, carried)
        }
        Protocol::Tcp => {
            let (una, wnd) = halves(get(slot, ACKNOWLEDGED));
            let (ack, edge) = halves(get(slot, ADVERTISED));
            let (tx_end, rx_nxt) = halves(get(slot, ENDS));
            let (tx_begin, rx_begin) = halves(get(slot, BEGIN));
            let (connect_us, retransmissions) = halves(get(slot, CONNECT));
            let [peer_scale, scale] = ((fields >> 16) as u16).to_le_bytes();
            let state = TcpState {
                tx: (head >> TX_SHIFT & STATE_BITS) as u8,
                rx: (head >> RX_SHIFT & STATE_BITS) as u8,
                advertised: Advertised { ack: Seq(ack), edge: Seq(edge) },
                una: Seq(una),
                wnd,
                socket: socket.checked_sub(1),
                mss: fields as u16,
                peer_scale: Some(peer_scale).filter(|&scale| scale != NO_SCALE),
                scale,
                sack: has(SACK),
                inbound: has(INBOUND),
                broken: has(BROKEN),
                passive: has(PASSIVE),
                tx_begin: Seq(tx_begin),
                rx_begin: Seq(rx_begin),
                segments: halves(get(slot, PACKETS)),
                retransmissions,
                connect_us,
                read_all: has(READ_ALL),
                away: has(AWAY),
                tx_end: Seq(tx_end),
                rx_nxt: Seq(rx_nxt),
            };
            let promoted = if state.away { PromotedRecord::read(slot) } else { None };
            promoted.map_or(RecordKind::Tcp(state), |promoted| RecordKind::Promoted(state, promoted))
        }
        Protocol::Udp | Protocol::Echo => {
            let (from_guest, to_guest) = traffic(slot);
            let socket = socket.checked_sub(1).filter(|_| !has(PUBLISHED));
            let state = DatagramState { socket, answered: has(ANSWERED), from_guest, to_guest };
            match protocol {
                Protocol::Udp if has(PUBLISHED) => RecordKind::Published(state, PeerRecord::read(slot)),
                _ => RecordKind::Datagrams(state),
            }
        }
    };
    Some(Record {
        id: FlowId { index, generation: (head >> GENERATION_SHIFT) as u32 },
        key,
        opened_at: Instant::from_ns(get(slot, OPENED_AT)),
        kind,
    })
}

#[cfg(test)]
mod tests;
