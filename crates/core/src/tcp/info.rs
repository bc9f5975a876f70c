//! Connection information: the answer to "why is this connection slow?".

use super::limiting_factor::LimitingFactors;
use crate::flow::FlowId;
use crate::flow::state::State;
use crate::time::Duration;
use std::net::SocketAddr;

/// One direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HalfInfo {
    /// Limiting factor, now and with times so far.
    pub limiting: LimitingFactors,
    /// Automatic limit now, bytes: the largest window offered (from the guest), or most bytes in flight
    /// (toward it).
    pub limit: u32,
    /// Number of times the limit grew.
    pub grows: u32,
    /// Number of times the limit shrank.
    pub shrinks: u32,
    /// Window offered now, bytes: ours to the guest, or the guest's to us.
    pub window: u32,
    /// Payload held in memory, bytes.
    pub held: u32,
    /// Payload moved so far, bytes: taken from the guest in order, or acknowledged by it.
    pub bytes: u64,
}

/// One connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpInfo {
    /// Its handle.
    pub flow: FlowId,
    /// The guest's end.
    pub guest: SocketAddr,
    /// The other end as the guest names it.
    pub remote: SocketAddr,
    /// Its state (RFC 9293).
    pub state: State,
    /// Time since the guest's SYN.
    pub age: Duration,
    /// Smoothed round-trip time of the guest link, if measured.
    pub srtt: Option<Duration>,
    /// The least round-trip time of the guest link of late, if measured.
    pub min_rtt: Option<Duration>,
    /// Payload per segment toward the guest, bytes.
    pub mss: u16,
    /// From the guest.
    pub rx: HalfInfo,
    /// Toward the guest.
    pub tx: HalfInfo,
    /// Sent to the guest and not acknowledged, bytes.
    pub in_flight: u32,
    /// Segments sent to the guest again.
    pub retransmissions: u32,
}
