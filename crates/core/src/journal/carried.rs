//! The driver's part of the records: sockets and pipes of flows that it carries, peers of published ports.
//!
//! The stack writes a flow's key and the first word of its record, the driver which descriptors belong to it:
//! both before it uses them and before it closes them, because numbers are given away again. So a record with
//! a first word has the driver's words, or the flow has none any more.
//!
//! | word | splice | relay, published port |
//! |---|---|---|
//! | 1, 2 | pipe of each direction: read end, write end | address that the peer has asked |
//! | 3 | accepted socket, socket toward the destination | socket of a relay; port of the peer, families |
//! | 4 | | inode of the listening socket; scope of the peer's address |
//! | 14, 15 | | address of the peer |
//!
//! Those of promoted flows are in [`super::promoted`].
//!
//! *Exactness of a splice.* No count of bytes stands here. The kernel counts those read from one socket,
//! those in the pipe and those written to the other; the first is the sum of the others, or the splice is
//! reset.
//!
//! A flow's end may reach the driver after its slot has another flow: the words belong to the generation that
//! stands beside them, and only that changes them.

use super::{
    ACKNOWLEDGED, ADVERTISED, ANSWERED, BEGIN, CARRIED, CONNECT, GENERATION_SHIFT, HEAD, INBOUND, Journal,
    PORTS, SOCKET, Slot, family, get, halves, kind, number_of, pair, put, put_traffic, traffic,
};
use crate::flow::info::{Initiator, Traffic};
use crate::key::{FlowId, FlowKey, Protocol};
use crate::time::{Duration, Instant};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Address of the peer, two words.
const PEER: usize = 14;
/// First words of both pipes.
const PIPES: [usize; 2] = [ADVERTISED, ACKNOWLEDGED];

/// Bits of the third word behind the peer's port: whether the peer has asked an address that is known, and
/// families.
const HAS_SOURCE: u32 = 1 << 16;
const SOURCE_IPV6: u32 = 1 << 17;
const PEER_IPV6: u32 = 1 << 18;

/// Access of the driver to its words. Without memory nothing is stored.
#[derive(Debug, Clone, Copy, Default)]
pub struct DriverJournal {
    slots: &'static [Slot],
    /// Pipes are those of promoted flows.
    promoted: bool,
}

/// Descriptors of a splice, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpliceRecord {
    /// The side that has begun the connection.
    pub initiator: Initiator,
    /// The accepted socket, and the one toward the destination.
    pub sockets: [u32; 2],
    /// Read end and write end of the pipe of each direction, the accepted socket's first.
    pub pipes: [Option<(u32, u32)>; 2],
}

/// Peer of a listening socket, and its socket on the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerRecord {
    /// Socket of a relay.
    pub socket: Option<u32>,
    /// Inode of the listening socket.
    pub listener: u32,
    /// Address of the peer.
    pub peer: SocketAddr,
    /// The address that it has asked last.
    pub source: Option<IpAddr>,
}

/// The driver's part of a carried flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CarriedRecord {
    /// A connection.
    Splice(SpliceRecord),
    /// A conversation in datagrams.
    Relay(PeerRecord),
}

impl CarriedRecord {
    /// Numbers of its descriptors.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = u32> + use<> {
        let (sockets, pipes) = match *self {
            Self::Splice(SpliceRecord { sockets, pipes, .. }) => (sockets.map(Some), pipes),
            Self::Relay(PeerRecord { socket, .. }) => ([socket, None], [None; 2]),
        };
        let pipes = pipes.into_iter().flatten().flat_map(|(from, to)| [from, to]);
        sockets.into_iter().flatten().chain(pipes)
    }
}

/// The stack's part of a carried flow's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CarriedState {
    pub(crate) initiator: Initiator,
    pub(crate) answered: bool,
    /// Duration of a splice's connect.
    pub(crate) connect: Option<Duration>,
    /// Of a relay: the kernel counts a splice's.
    pub(crate) from_initiator: Traffic,
    pub(crate) from_responder: Traffic,
}

impl CarriedState {
    /// Both parts of the record in a slot, whose first word is `head`.
    pub(super) fn read(slot: &Slot, protocol: Protocol, head: u64) -> Option<(Self, CarriedRecord)> {
        let initiator = if head & INBOUND == 0 { Initiator::Guest } else { Initiator::Peer };
        let answered = head & ANSWERED != 0;
        let none = Self {
            initiator,
            answered,
            connect: None,
            from_initiator: Traffic::default(),
            from_responder: Traffic::default(),
        };
        match protocol {
            Protocol::Tcp => {
                let connect_us = halves(get(slot, CONNECT)).0;
                let connect = answered.then(|| Duration::from_micros(connect_us.into()));
                Some((Self { connect, ..none }, CarriedRecord::Splice(SpliceRecord::read(slot, initiator)?)))
            }
            Protocol::Udp => {
                let (from_initiator, from_responder) = traffic(slot);
                let state = Self { from_initiator, from_responder, ..none };
                Some((state, CarriedRecord::Relay(PeerRecord::read(slot))))
            }
            Protocol::Echo => None,
        }
    }
}

impl SpliceRecord {
    fn read(slot: &Slot, initiator: Initiator) -> Option<Self> {
        let (accepted, toward) = halves(get(slot, SOCKET));
        let pipes = PIPES.map(|at| {
            let (from, to) = halves(get(slot, at));
            from.checked_sub(1).zip(to.checked_sub(1))
        });
        Some(Self { initiator, sockets: [accepted.checked_sub(1)?, toward.checked_sub(1)?], pipes })
    }
}

impl PeerRecord {
    /// The record in a slot.
    pub(super) fn read(slot: &Slot) -> Self {
        let (socket, fields) = halves(get(slot, SOCKET));
        let (listener, scope) = halves(get(slot, BEGIN));
        let is = |flag: u32| fields & flag != 0;
        let peer = match address(slot, PEER, is(PEER_IPV6)) {
            IpAddr::V6(ip) => SocketAddrV6::new(ip, fields as u16, 0, scope).into(),
            ip @ IpAddr::V4(_) => SocketAddr::new(ip, fields as u16),
        };
        let source = is(HAS_SOURCE).then(|| address(slot, ADVERTISED, is(SOURCE_IPV6)));
        Self { socket: socket.checked_sub(1), listener, peer, source }
    }

    fn write(&self, slot: &Slot) {
        let &PeerRecord { socket, listener, peer, source } = self;
        let mut fields = u32::from(peer.port());
        if let Some(source) = source {
            put_address(slot, ADVERTISED, source);
            fields |= HAS_SOURCE | if source.is_ipv6() { SOURCE_IPV6 } else { 0 };
        }
        let scope = if let SocketAddr::V6(v6) = peer { v6.scope_id() } else { 0 };
        put_address(slot, PEER, peer.ip());
        fields |= if peer.is_ipv6() { PEER_IPV6 } else { 0 };
        put(slot, BEGIN, pair(listener, scope));
        put(slot, SOCKET, pair(number_of(socket), fields));
    }
}

fn put_address(slot: &Slot, at: usize, address: IpAddr) {
    let bits = match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    put(slot, at, bits as u64);
    put(slot, at + 1, (bits >> 64) as u64);
}

fn address(slot: &Slot, at: usize, ipv6: bool) -> IpAddr {
    let bits = u128::from(get(slot, at)) | u128::from(get(slot, at + 1)) << 64;
    if ipv6 { Ipv6Addr::from_bits(bits).into() } else { IpAddr::V4((bits as u32).into()) }
}

impl DriverJournal {
    /// In the memory of a stack's journal ([`Stack::set_journal`](crate::stack::Stack::set_journal)).
    pub const fn new(slots: &'static [Slot]) -> Self {
        match slots.split_last() {
            Some((_, slots)) => Self { slots, promoted: false },
            None => Self { slots, promoted: false },
        }
    }

    /// The same for the pipes of promoted flows.
    #[must_use]
    pub const fn of_promoted(self) -> Self {
        Self { promoted: true, ..self }
    }

    /// The slot of a flow that has not been given to another since.
    pub(super) fn slot_of(self, flow: FlowId) -> Option<&'static Slot> {
        let slot = self.slots.get(flow.index as usize)?;
        (halves(get(slot, PORTS)).0 == flow.generation).then_some(slot)
    }

    /// The slot of a flow that begins, of which the stack has written nothing yet, or that has words already.
    fn begin(self, flow: FlowId) -> Option<&'static Slot> {
        let slot = self.slots.get(flow.index as usize)?;
        if halves(get(slot, PORTS)).0 != flow.generation {
            put(slot, PORTS, pair(flow.generation, 0));
        }
        Some(slot)
    }

    /// Two sockets are to be spliced, without pipes.
    pub fn splice(self, flow: FlowId, sockets: [u32; 2]) {
        let Some(slot) = self.begin(flow) else { return };
        for at in PIPES {
            put(slot, at, 0);
        }
        let [accepted, toward] = sockets.map(|socket| number_of(Some(socket)));
        put(slot, SOCKET, pair(accepted, toward));
    }

    /// A direction of a splice is to use a pipe, or none any more.
    pub fn pipe(self, flow: FlowId, direction: usize, ends: Option<(u32, u32)>) {
        if self.promoted {
            return self.promoted_pipe(flow, direction, ends);
        }
        let (Some(slot), Some(&at)) = (self.slot_of(flow), PIPES.get(direction)) else { return };
        put(slot, at, ends.map_or(0, |(from, to)| pair(number_of(Some(from)), number_of(Some(to)))));
    }

    /// A flow begins with this peer.
    pub fn peer(self, flow: FlowId, record: &PeerRecord) {
        if let Some(slot) = self.begin(flow) {
            record.write(slot);
        }
    }

    /// The peer of a flow has asked another address, or another listening socket.
    pub fn change_peer(self, flow: FlowId, record: &PeerRecord) {
        if let Some(slot) = self.slot_of(flow) {
            record.write(slot);
        }
    }

    /// The sockets and pipes of a flow are to be closed.
    pub fn forget(self, flow: FlowId) {
        if let Some(slot) = self.slot_of(flow) {
            put(slot, SOCKET, 0);
        }
    }
}

impl Journal {
    /// Writes the record of a flow that the driver carries, but for the driver's part of it.
    pub(crate) fn carried(&self, id: FlowId, key: &FlowKey, opened_at: Instant, state: &CarriedState) {
        let Some(slot) = self.slot(id) else { return };
        self.begin(slot, id, key, opened_at);
        let &CarriedState { initiator, answered, connect, from_initiator, from_responder } = state;
        match key.protocol {
            Protocol::Tcp => {
                let connect_us = connect.map_or(0, |connect| connect.as_micros().min(u32::MAX.into()) as u32);
                put(slot, CONNECT, pair(connect_us, 0));
            }
            Protocol::Udp | Protocol::Echo => put_traffic(slot, from_initiator, from_responder),
        }
        let mut head = family(key) | CARRIED | if answered { ANSWERED } else { 0 };
        head |= if initiator == Initiator::Peer { INBOUND } else { 0 };
        put(slot, HEAD, head | kind(key.protocol) | u64::from(id.generation) << GENERATION_SHIFT);
    }
}
