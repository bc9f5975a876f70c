//! Version 1 of all records: structs that are never changed, because hand-overs with them exist.
//!
//! Descriptors are indices in the list that goes with the bytes. Times are nanoseconds of CLOCK_MONOTONIC,
//! but for one. Flows are slot and generation.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::num::NonZeroU8;

/// First record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BeginV1 {
    pub(crate) magic: [u8; 9],
    pub(crate) workers: u32,
    pub(crate) clock: ClockV1,
}

/// Zero of the driver's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClockV1 {
    pub(crate) start: u64,
    /// CLOCK_REALTIME at zero, for a capture's dates.
    pub(crate) unix: u64,
    /// Time for which the machine had been suspended at zero.
    pub(crate) suspended: u64,
}

/// Last record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndV1 {
    /// Records before this one.
    pub(crate) records: u32,
}

/// State of a worker besides its flows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkerV1<'a> {
    /// Notices that are given once, and were.
    pub(crate) ping_reported: bool,
    pub(crate) udp_ports_reported: bool,
    /// The host's addresses, sorted, if they are followed.
    pub(crate) host_addresses: Option<Vec<IpAddr>>,
    /// Counters by name, of the loop and of re-steered frames.
    #[serde(borrow)]
    pub(crate) counters: Vec<(&'a str, u64)>,
    /// Frames and their bytes written to the capture's file.
    pub(crate) captured: (u64, u64),
}

/// State of a worker's link, in the link's own form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LinkV1<'a> {
    pub(crate) descriptors: Vec<u32>,
    pub(crate) bytes: &'a [u8],
}

/// Sockets of flows. The number of a socket in the stack's records is its place here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SocketsV1 {
    pub(crate) sockets: Vec<SocketV1>,
}

/// Socket of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SocketV1 {
    /// The flow's own.
    Own(OwnSocketV1),
    /// A published port's.
    Published(PublishedV1),
}

/// Socket of one flow alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnSocketV1 {
    pub(crate) descriptor: u32,
    /// Whether room to write is reported.
    pub(crate) reports_room: bool,
    /// Writes of a stream so far: 0 none, 1 one, 2 several, and TCP_NODELAY is set.
    pub(crate) writes: u8,
    /// Options of a datagram socket as last set.
    pub(crate) tos: u8,
    pub(crate) ttl: Option<NonZeroU8>,
    pub(crate) dont_fragment: Option<bool>,
    /// Largest segments with which UDP_SEGMENT may work, bytes.
    pub(crate) segment_max: u16,
    /// Datagrams dropped by the kernel, as last reported by it.
    pub(crate) overflows: u32,
}

/// Place of a flow at a published port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PublishedV1 {
    /// Slot of the listener; none once the port is published no more.
    pub(crate) listener: Option<u32>,
    pub(crate) peer: AddressV1,
    pub(crate) source: Option<SourceV1>,
    /// The flow waits for room in the socket.
    pub(crate) waits: bool,
}

/// Address and port, with the scope of a link-local one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AddressV1 {
    pub(crate) ip: IpAddr,
    pub(crate) port: u16,
    pub(crate) scope: u32,
}

/// Local address of datagrams, and their interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SourceV1 {
    pub(crate) address: IpAddr,
    pub(crate) interface: u32,
}

/// Forwards in force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ForwardsV1<'a> {
    pub(crate) last_id: u32,
    #[serde(borrow)]
    pub(crate) entries: Vec<EntryV1<'a>>,
    pub(crate) listeners: Vec<ListenerV1>,
    pub(crate) pending: Vec<PendingV1>,
    pub(crate) unread: Vec<UnreadV1<'a>>,
    pub(crate) notices: Vec<&'a str>,
    /// Counters by name, of forwards and splices.
    pub(crate) counters: Vec<(&'a str, u64)>,
}

/// One forward.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EntryV1<'a> {
    pub(crate) id: u32,
    /// Whether it leads from the guest's loopback to the host's.
    pub(crate) out: bool,
    pub(crate) udp: bool,
    /// In the grammar of the options.
    pub(crate) spec: &'a str,
    /// Places of `auto` that could not be bound.
    pub(crate) failed: Vec<(IpAddr, u16)>,
}

/// One listening socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListenerV1 {
    pub(crate) slot: u32,
    pub(crate) entry: u32,
    pub(crate) at: (IpAddr, u16),
    pub(crate) to_address: Option<IpAddr>,
    pub(crate) to_port: u16,
    pub(crate) descriptor: u32,
    pub(crate) overflows: u32,
    pub(crate) segment_max: u16,
}

/// An accepted connection that waits for a socket of the guest's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PendingV1 {
    pub(crate) descriptor: u32,
    pub(crate) peer: AddressV1,
    pub(crate) to: AddressV1,
}

/// A datagram, or several of one size, read from a published port and not yet taken by the stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UnreadV1<'a> {
    pub(crate) listener: u32,
    pub(crate) from: Option<AddressV1>,
    pub(crate) to: Option<SourceV1>,
    pub(crate) payload: &'a [u8],
    pub(crate) segment: Option<u16>,
    pub(crate) tos: u8,
    pub(crate) lost: u32,
}

/// Connections carried by splices.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SplicesV1 {
    pub(crate) pairs: Vec<PairV1>,
}

/// Two joined sockets; the initiator's is first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PairV1 {
    /// Number by which the flow knows it.
    pub(crate) number: u32,
    pub(crate) flow: (u32, u32),
    pub(crate) initiator_is_guest: bool,
    pub(crate) ends: [SpliceEndV1; 2],
    pub(crate) ways: [WayV1; 2],
    /// The second socket is not connected yet.
    pub(crate) connecting: bool,
    /// The flow does not know yet that it is connected.
    pub(crate) unreported: bool,
}

/// One socket of a pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SpliceEndV1 {
    pub(crate) descriptor: u32,
    pub(crate) urgent: bool,
    pub(crate) failed: bool,
}

/// One direction of a pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WayV1 {
    /// Descriptors of the pipe, read and write end, if it holds bytes.
    pub(crate) pipe: Option<(u32, u32)>,
    /// Bytes in it.
    pub(crate) held: u64,
    pub(crate) ended: bool,
    pub(crate) fin_sent: bool,
}

/// Conversations carried by relays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RelaysV1 {
    pub(crate) relays: Vec<RelayV1>,
}

/// A peer and its socket on the other side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RelayV1 {
    pub(crate) number: u32,
    pub(crate) flow: (u32, u32),
    /// Slot of the listener that the peer sends to.
    pub(crate) listener: u32,
    pub(crate) peer: AddressV1,
    pub(crate) source: Option<SourceV1>,
    pub(crate) descriptor: u32,
}
