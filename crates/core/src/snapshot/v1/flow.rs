//! Version 1 of the records of flows: identity, datagrams, carried flows. Those of TCP are in `tcp`.

use super::{Bytes, QueueV1};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FlowIdV1 {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FlowKeyV1 {
    pub(crate) protocol: u8,
    pub(crate) guest: (IpAddr, u16),
    pub(crate) remote: (IpAddr, u16),
}

/// Identity of a flow: what a reset of it takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FlowV1 {
    pub(crate) id: FlowIdV1,
    pub(crate) key: FlowKeyV1,
    /// Index of its descriptor.
    pub(crate) socket: Option<u32>,
    /// SND.NXT and RCV.NXT of a connection of the stack's.
    pub(crate) reset: Option<(u32, u32)>,
}

/// Server that a flow has named at a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamedServerV1<'a> {
    pub(crate) flow: FlowIdV1,
    /// Way in which it did.
    pub(crate) class: u8,
    #[serde(borrow)]
    pub(crate) name: Bytes<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TurnV1 {
    pub(crate) credit: i32,
    pub(crate) waits: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TrafficV1 {
    pub(crate) bytes: u64,
    pub(crate) packets: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DatagramV1<'a> {
    pub(crate) inbound: bool,
    pub(crate) answered: bool,
    pub(crate) opened_at: u64,
    pub(crate) used_at: u64,
    pub(crate) from_guest: TrafficV1,
    pub(crate) to_guest: TrafficV1,
    pub(crate) want: u8,
    pub(crate) longest: u32,
    #[serde(borrow)]
    pub(crate) backlog: BacklogV1<'a>,
    pub(crate) readable: bool,
    pub(crate) turn: TurnV1,
    pub(crate) cause: u8,
}

/// Queued datagrams. In the queue each has 16 bytes before it: length (4 bytes), TOS, TTL (0 for none),
/// "do not fragment", one unused byte, time of arrival (8 bytes), little-endian.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BacklogV1<'a> {
    #[serde(borrow)]
    pub(crate) records: QueueV1<'a>,
    pub(crate) codel: CoDelV1,
    /// TOS of the first datagram, once its sending was decided.
    pub(crate) head: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CoDelV1 {
    pub(crate) above_until: Option<u64>,
    pub(crate) next: Option<u64>,
    pub(crate) last_next: u64,
    pub(crate) count: u32,
    pub(crate) last_count: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CarriedV1 {
    pub(crate) number: u32,
    pub(crate) initiator: u8,
    pub(crate) carrier: u8,
    pub(crate) opened_at: u64,
    pub(crate) used_at: u64,
    pub(crate) answered: bool,
    pub(crate) connect: Option<u64>,
    pub(crate) from_initiator: TrafficV1,
    pub(crate) from_responder: TrafficV1,
    pub(crate) initiator_finished: bool,
    pub(crate) responder_finished: bool,
    pub(crate) cause: u8,
}
