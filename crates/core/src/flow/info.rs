//! Description of a flow, whatever its protocol.
//!
//! [`FlowInfo`] is small: it is also the record of an ended flow ([`super::end`]). It is made on request;
//! flows keep only state that cannot be derived.

use super::state::State;
use super::{FlowId, FlowKey};
use crate::snapshot::saved::{saved_enum, saved_struct};
use crate::snapshot::v1::TrafficV1;
use crate::time::Duration;
use std::ops::AddAssign;

/// The side that has begun a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Initiator {
    /// The guest.
    Guest,
    /// A peer on the host's side, by a published port.
    Peer,
}

/// The mechanism that moves a flow's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Carrier {
    /// Frames of the link on one side, a host socket on the other, and the stack between.
    Stack,
    /// Two sockets joined by splice(2).
    Splice,
    /// Datagrams copied between two sockets.
    Relay,
    /// A kernel socket that has taken the stack's place toward the guest, joined to the host's by splice(2).
    Kernel,
}

impl Carrier {
    /// All carriers.
    pub const ALL: [Self; 4] = [Self::Stack, Self::Splice, Self::Relay, Self::Kernel];

    /// The name shown to people and written to messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stack => "stack",
            Self::Splice => "splice",
            Self::Relay => "relay",
            Self::Kernel => "kernel",
        }
    }
}

/// A flow that is to begin: its ends, its initiator, its carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// Both ends, as the guest's side names them.
    pub key: FlowKey,
    /// The side that begins it.
    pub initiator: Initiator,
    /// The mechanism that will move its payload.
    pub carrier: Carrier,
}

/// A flow that the guest begins by a packet.
impl From<FlowKey> for Opening {
    fn from(key: FlowKey) -> Self {
        Self { key, initiator: Initiator::Guest, carrier: Carrier::Stack }
    }
}

/// A flow of a carrier other than the stack that the stack has ended (eviction, time-out): the carrier's
/// sockets are to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    /// Id that the flow had.
    pub flow: FlowId,
    /// Its carrier.
    pub carrier: Carrier,
    /// The carrier's number for it, as given when it was opened; 0 of a kernel socket.
    pub number: u32,
}

/// State of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FlowState {
    /// A TCP connection's.
    Tcp(State),
    /// Datagrams of which none has come back yet.
    Unanswered,
    /// Datagrams both ways.
    Active,
}

impl FlowState {
    /// The name shown to people and written to messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp(State::SynSent) => "syn-sent",
            Self::Tcp(State::SynReceived) => "syn-received",
            Self::Tcp(State::Established) => "established",
            Self::Tcp(State::FinWait1) => "fin-wait-1",
            Self::Tcp(State::FinWait2) => "fin-wait-2",
            Self::Tcp(State::CloseWait) => "close-wait",
            Self::Tcp(State::Closing) => "closing",
            Self::Tcp(State::LastAck) => "last-ack",
            Self::Tcp(State::TimeWait) => "time-wait",
            Self::Tcp(State::Closed) => "closed",
            Self::Unanswered => "unanswered",
            Self::Active => "active",
        }
    }
}

/// Traffic of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes of payload; of TCP those taken in order or acknowledged, of an echo the whole ICMP message.
    pub bytes: u64,
    /// Datagrams, or TCP segments with payload as they crossed the link: a run that crossed as one counts as
    /// one, one that was sent again once more. Of TCP it stays at 2^32 - 1, and of a splice at 0.
    pub packets: u64,
}

impl Traffic {
    /// So many more datagrams, with so many bytes together.
    pub(crate) fn add(&mut self, packets: usize, bytes: usize) {
        self.packets = self.packets.wrapping_add(packets as u64);
        self.bytes = self.bytes.wrapping_add(bytes as u64);
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, more: Self) {
        self.bytes = self.bytes.wrapping_add(more.bytes);
        self.packets = self.packets.wrapping_add(more.packets);
    }
}

saved_enum!(Initiator { Guest = 0, Peer = 1 });
saved_enum!(Carrier { Stack = 0, Splice = 1, Relay = 2, Kernel = 3 });
saved_struct!(Traffic as TrafficV1 { bytes, packets });

/// Description of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowInfo {
    /// Its handle.
    pub flow: FlowId,
    /// Protocol and both ends.
    pub key: FlowKey,
    /// The side that began it.
    pub initiator: Initiator,
    /// The mechanism that moves its payload.
    pub carrier: Carrier,
    /// State of the flow.
    pub state: FlowState,
    /// Time since it began.
    pub age: Duration,
    /// Time since it was last used, to a millisecond.
    pub idle: Duration,
    /// Traffic from the guest.
    pub from_guest: Traffic,
    /// Traffic to the guest.
    pub to_guest: Traffic,
    /// Smoothed round-trip time of the guest link, if it is TCP and that was measured.
    pub rtt: Option<Duration>,
    /// Time that the host's connection took to open, of TCP once it is open: about one round trip to the
    /// peer.
    pub connect: Option<Duration>,
    /// Segments sent to the guest again.
    pub retransmissions: u32,
}

impl FlowInfo {
    /// Information on a flow of which only the key and the initiator are known.
    pub(crate) fn blank(flow: FlowId, key: FlowKey, initiator: Initiator) -> Self {
        Self {
            flow,
            key,
            initiator,
            carrier: Carrier::Stack,
            state: FlowState::Unanswered,
            age: Duration::ZERO,
            idle: Duration::ZERO,
            from_guest: Traffic::default(),
            to_guest: Traffic::default(),
            rtt: None,
            connect: None,
            retransmissions: 0,
        }
    }
}
