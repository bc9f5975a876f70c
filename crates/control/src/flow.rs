//! Flows: ends, traffic, duration, limiting factors.
//!
//! *From the guest* and *to the guest* are the directions of data; *direction* is the one in which the flow
//! was opened. Sizes are payload, without headers and retransmissions.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// A flow of an instance, the same for its life and never used again. Written `WORKER:SLOT.GENERATION`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct FlowRef {
    /// The worker it belongs to, from 0.
    pub worker: u32,
    /// Its slot there.
    pub index: u32,
    /// Number of earlier flows of the slot.
    pub generation: u32,
}

impl fmt::Display for FlowRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}.{}", self.worker, self.index, self.generation)
    }
}

impl FromStr for FlowRef {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let parse = || {
            let (worker, rest) = word.split_once(':')?;
            let (index, generation) = rest.split_once('.')?;
            Some(Self {
                worker: worker.parse().ok()?,
                index: index.parse().ok()?,
                generation: generation.parse().ok()?,
            })
        };
        parse().ok_or_else(|| "expected the id of a flow, such as 0:12.3".to_owned())
    }
}

impl From<FlowRef> for String {
    fn from(flow: FlowRef) -> Self {
        flow.to_string()
    }
}

impl TryFrom<String> for FlowRef {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        word.parse()
    }
}

/// Shows types by the names that they have in messages.
macro_rules! display_by_name {
    ($($type:ty),+) => {
        $(impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        })+
    };
}
display_by_name!(Protocol, FlowDirection, Carrier);

/// Protocol of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Protocol {
    /// TCP connection.
    Tcp,
    /// UDP conversation.
    Udp,
    /// Ping; the ports are its identifier.
    Echo,
    /// A protocol unknown to this version.
    #[serde(other)]
    Other,
}

impl Protocol {
    /// Name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Echo => "echo",
            Self::Other => "other",
        }
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "tcp" => Ok(Self::Tcp),
            "udp" => Ok(Self::Udp),
            "echo" | "icmp" | "ping" => Ok(Self::Echo),
            _ => Err("expected tcp, udp or echo".to_owned()),
        }
    }
}

/// The direction in which a flow was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowDirection {
    /// By the guest.
    Outbound,
    /// By a peer at a published port.
    Inbound,
}

impl FlowDirection {
    /// Name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Outbound => "outbound",
            Self::Inbound => "inbound",
        }
    }
}

/// The mechanism that moves a flow's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Carrier {
    /// The guest's link and brodo's TCP/IP.
    #[default]
    Stack,
    /// Two sockets joined by splice(2), past the link.
    Splice,
    /// Datagrams copied between two sockets, past the link.
    Relay,
    /// A kernel socket in the place of brodo's TCP, past the link.
    Kernel,
    /// A carrier unknown to this version.
    #[serde(other)]
    Other,
}

impl Carrier {
    /// Name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stack => "stack",
            Self::Splice => "splice",
            Self::Relay => "relay",
            Self::Kernel => "kernel",
            Self::Other => "other",
        }
    }
}

impl FromStr for Carrier {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let known = [Self::Stack, Self::Splice, Self::Relay, Self::Kernel];
        let known = known.into_iter().find(|known| known.name() == word);
        known.ok_or_else(|| "expected stack, splice, relay or kernel".to_owned())
    }
}

/// Traffic of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes of payload.
    pub bytes: u64,
    /// Datagrams, or segments with payload; of TCP a run of segments that crossed the guest's link as one
    /// counts as one.
    pub packets: u64,
}

/// A flow that is open.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// Time of its begin, as in [`FlowEnd::time`]; of the event that says so alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// Its handle.
    pub id: FlowRef,
    /// Its protocol.
    pub protocol: Protocol,
    /// Direction in which it was opened.
    pub direction: FlowDirection,
    /// The mechanism that moves its payload.
    #[serde(default)]
    pub carrier: Carrier,
    /// The guest's end.
    pub guest: SocketAddr,
    /// The other end as the guest names it.
    pub remote: SocketAddr,
    /// The name by which the guest learnt that address, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// For TCP the state of RFC 9293 in lower case with hyphens ("syn-received", "established", ...); else
    /// "unanswered" or "active".
    pub state: String,
    /// Microseconds since it began.
    pub age_us: u64,
    /// Microseconds since the last packet in either direction.
    pub idle_us: u64,
    /// Traffic from the guest.
    pub from_guest: Traffic,
    /// Traffic to the guest (TCP: acknowledged).
    pub to_guest: Traffic,
    /// The guest link's round trip, smoothed, in microseconds; TCP only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<u64>,
    /// The round trip to the other end as the host's kernel estimates it, in microseconds; TCP only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_rtt_us: Option<u64>,
    /// State of TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<Tcp>,
}

/// State of a TCP connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tcp {
    /// Payload per segment toward the guest, in bytes.
    pub mss: u16,
    /// Segments retransmitted to the guest.
    pub retransmissions: u32,
    /// From guest to host.
    pub from_guest: Half,
    /// From host to guest.
    pub to_guest: Half,
}

/// One direction of a connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Half {
    /// The automatic limit now, in bytes: the largest window offered, or most bytes in flight.
    pub limit: u32,
    /// Maximum of the limit, in bytes.
    pub limit_max: u32,
    /// The window offered now, in bytes: ours to the guest, or the guest's to us.
    pub window: u32,
    /// Sent and not acknowledged, in bytes; toward the guest only.
    pub in_flight: u32,
    /// Payload held in memory, in bytes.
    pub held: u32,
    /// The present limiting factor: "application", "guest-window", "our-limit", "host-socket", "link",
    /// "memory" or "loss".
    pub limited_by: String,
    /// Time of each limiting factor in microseconds, above zero.
    pub limited_us: BTreeMap<String, u64>,
    /// Increases of the limit.
    pub grows: u32,
    /// Decreases of the limit.
    pub shrinks: u32,
}

/// One decision about a limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TuningStep {
    /// Microseconds before the reply.
    pub ago_us: u64,
    /// Direction: from the guest, else to the guest.
    pub from_guest: bool,
    /// The limit before, in bytes.
    pub from: u32,
    /// The limit after, in bytes.
    pub to: u32,
    /// Cause, in the words of the trace probes.
    pub cause: String,
    /// Bytes that moved in a round trip.
    pub per_rtt: u32,
    /// Length of that round trip, in microseconds.
    pub rtt_us: u32,
}

/// A flow that has ended: an event, and a line of the flow log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowEnd {
    /// Time of the end, in UTC (RFC 3339), with microseconds.
    pub time: String,
    /// Its handle; none for a denied flow, which was never opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<FlowRef>,
    /// Its protocol.
    pub protocol: Protocol,
    /// Direction in which it was opened.
    pub direction: FlowDirection,
    /// The mechanism that moves its payload.
    #[serde(default)]
    pub carrier: Carrier,
    /// The guest's end.
    pub guest: SocketAddr,
    /// The other end as the guest named it.
    pub remote: SocketAddr,
    /// The name by which the guest learnt that address, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Duration in microseconds.
    pub duration_us: u64,
    /// Traffic from the guest.
    pub from_guest: Traffic,
    /// Traffic to the guest.
    pub to_guest: Traffic,
    /// The guest link's round trip, smoothed, in microseconds; TCP only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<u64>,
    /// The time that the host's connection to the other end took to open, in microseconds: about one round
    /// trip; TCP only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_rtt_us: Option<u64>,
    /// Segments retransmitted to the guest; TCP only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retransmissions: Option<u32>,
    /// Cause: "finished", "reset-by-guest", "reset-by-host", "timed-out", "refused", "unreachable",
    /// "evicted", "denied", "policy-changed", "quota", "network-changed", "no-resources", "shut-down".
    pub cause: String,
    /// The rule that denied it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

#[cfg(test)]
mod tests;
