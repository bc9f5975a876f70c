//! Version 1 of the records of flows behind a gate. The gate is in the flow's own record, so that no reader
//! can take the flow without it.

use super::{Bytes, DatagramV1, TcpV1};
use serde::{Deserialize, Serialize};

/// TCP connection behind a gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GatedTcpV1<'a> {
    #[serde(borrow)]
    pub(crate) gate: GateV1<'a>,
    pub(crate) tcp: TcpV1<'a>,
}

/// Flow of datagrams behind a gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GatedDatagramsV1<'a> {
    #[serde(borrow)]
    pub(crate) gate: QuicGateV1<'a>,
    pub(crate) datagrams: DatagramV1<'a>,
}

/// Ways in which the server may be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChecksV1 {
    pub(crate) tls: bool,
    pub(crate) http: bool,
    pub(crate) quic: bool,
    pub(crate) private: bool,
    pub(crate) observed: bool,
}

/// The name that was judged last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SaidV1<'a> {
    /// Way in which it was said.
    pub(crate) class: u8,
    /// It is the outer name of an encrypted ClientHello.
    pub(crate) encrypted: bool,
    #[serde(borrow)]
    pub(crate) name: Bytes<'a>,
}

/// Gate of a connection, as it was when it released a byte last: bytes behind that one are in the
/// connection's queue, and are read again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GateV1<'a> {
    pub(crate) checks: ChecksV1,
    /// Time at which it refuses, while it is closed.
    pub(crate) deadline: Option<u64>,
    /// Bytes at the front of the queue that may leave.
    pub(crate) released: u32,
    #[serde(borrow)]
    pub(crate) named: Option<SaidV1<'a>>,
    pub(crate) reader: GateReaderV1,
}

/// Place of a gate in the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GateReaderV1 {
    /// Nothing was released.
    Closed,
    /// In TLS: early data that may still come, alerts that may, and bytes left of the present record.
    Tls { early_left: u32, alerts_left: u8, left: u16 },
    /// In HTTP: number of the place, and bytes left of a body or chunk.
    Http { place: u8, left: u64 },
}

/// Gate of a flow of datagrams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QuicGateV1<'a> {
    pub(crate) checks: ChecksV1,
    /// Time at which it refuses, while it holds datagrams.
    pub(crate) deadline: Option<u64>,
    #[serde(borrow)]
    pub(crate) named: Option<SaidV1<'a>>,
    /// Name of the first attempt, and whether it is an outer one.
    pub(crate) name: Option<(Bytes<'a>, bool)>,
    pub(crate) attempts: Vec<AttemptV1<'a>>,
    pub(crate) held: Vec<HeldV1<'a>>,
    /// A refusal that is not enforced was noted.
    pub(crate) noted: bool,
}

/// A connection that the guest has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AttemptV1<'a> {
    /// Version as on the wire.
    pub(crate) version: u32,
    /// Connection ID of the first Initial, which gives the keys.
    #[serde(borrow)]
    pub(crate) destination: Bytes<'a>,
    /// Handshake messages, each byte at its place, and whether it has come.
    pub(crate) bytes: Bytes<'a>,
    pub(crate) has_come: Vec<bool>,
    /// Bytes of messages that were judged.
    pub(crate) judged: u32,
}

/// A datagram that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldV1<'a> {
    pub(crate) tos: u8,
    /// Time to live, 0 for none.
    pub(crate) ttl: u8,
    pub(crate) dont_fragment: bool,
    #[serde(borrow)]
    pub(crate) payload: Bytes<'a>,
}
