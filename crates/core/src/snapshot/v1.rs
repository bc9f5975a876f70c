//! Version 1 of all records: structs that are never changed, because snapshots with them exist.
//!
//! Units as in the live types: times in nanoseconds since the driver's zero, spans in nanoseconds, sequence
//! numbers absolute. Enums are numbers.

pub(crate) mod flow;
pub(crate) mod gate;
pub(crate) mod shared;
pub(crate) mod tcp;

pub(crate) use flow::{
    BacklogV1, CarriedV1, CoDelV1, DatagramV1, FlowIdV1, FlowKeyV1, FlowV1, NamedServerV1, TrafficV1, TurnV1,
};
pub(crate) use gate::{
    AttemptV1, ChecksV1, GateReaderV1, GateV1, GatedDatagramsV1, GatedTcpV1, HeldV1, QuicGateV1, SaidV1,
};
pub(crate) use shared::{
    BeginV1, CachedV1, ChargedFromV1, CountersV1, DecisionsV1, DnsCacheV1, DnsV1, EndV1, FragmentProgressV1,
    GuestAddressesV1, InboxV1, KeysV1, LearntV1, LinkV1, ParkedFlowsV1, ParkedV1, PathMtuV1, PinV1, PinsV1,
    PolicyTotalsV1, PolicyV1, PreferenceV1, PromptPeerV1, PromptnessV1, ReceivedV1, RttV1, RuleTotalV1,
    ScheduleV1, StackV1, TableV1, TcpSharedV1, TimersV1, TxQueueV1, UsageV1, WildcardsV1, WindowedMinV1,
};
pub(crate) use tcp::{
    CloserV1, DelayedAckV1, FallV1, HostStreamV1, KeepAliveV1, LimitV1, LimitingClockV1, MeterV1, ProbeV1,
    RackV1, RangeV1, ReassembledV1, ReceiverV1, RecoveryV1, SenderV1, SentV1, ShareV1, TcpV1, TuningV1,
    UnconfirmedTcpV1, UnconfirmedV1, UndoV1, UpdaterV1, UpstreamV1, WindowV1,
};

use serde::{Deserialize, Serialize, Serializer};

/// Bytes, encoded at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Bytes<'a>(#[serde(borrow)] pub(crate) &'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// A queue of payload, chunk by chunk: where one chunk ends decides how much memory is used and where
/// segments are cut.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QueueV1<'a> {
    #[serde(borrow)]
    pub(crate) chunks: Vec<ChunkV1<'a>>,
}

impl QueueV1<'_> {
    /// Bytes in the queue.
    pub(crate) fn len(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.bytes.0.len()).sum()
    }
}

/// One chunk of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChunkV1<'a> {
    /// Capacity, bytes.
    pub(crate) room: u32,
    /// Consumed bytes before the content.
    pub(crate) start: u32,
    #[serde(borrow)]
    pub(crate) bytes: Bytes<'a>,
}
