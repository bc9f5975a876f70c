//! Version 1 of a TCP connection's record, part by part as the live types.

use super::{PromptnessV1, QueueV1, TurnV1};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TcpV1<'a> {
    #[serde(borrow)]
    pub(crate) rx: ReceiverV1<'a>,
    #[serde(borrow)]
    pub(crate) tx: SenderV1<'a>,
    pub(crate) closer: CloserV1,
    pub(crate) keep_alive: KeepAliveV1,
    pub(crate) opened_at: u64,
    pub(crate) challenged_at: Option<u64>,
    pub(crate) broken: bool,
    pub(crate) turn: TurnV1,
    pub(crate) upstream: UpstreamV1,
    pub(crate) inbound: bool,
    pub(crate) cause: u8,
    pub(crate) connect_us: u32,
    pub(crate) segments_taken: u32,
    pub(crate) segments_sent: u32,
}

/// A connection that waits for its guest to confirm something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UnconfirmedTcpV1<'a> {
    pub(crate) unconfirmed: UnconfirmedV1,
    #[serde(borrow)]
    pub(crate) tcp: TcpV1<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UnconfirmedV1 {
    pub(crate) acknowledged: u32,
    pub(crate) behind: bool,
    pub(crate) lost: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CloserV1 {
    pub(crate) passive: bool,
    pub(crate) time_wait_until: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeepAliveV1 {
    pub(crate) arrived_at: u64,
    pub(crate) probes: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum UpstreamV1 {
    Destination,
    Resolvers { current: u8, failed: u8 },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReceiverV1<'a> {
    pub(crate) state: u8,
    pub(crate) window: WindowV1,
    pub(crate) updater: UpdaterV1,
    pub(crate) rx_limit: LimitV1,
    pub(crate) data_at: u64,
    #[serde(borrow)]
    pub(crate) queue: QueueV1<'a>,
    #[serde(borrow)]
    pub(crate) gaps: Vec<ReassembledV1<'a>>,
    pub(crate) fin: Option<u32>,
    pub(crate) writable: bool,
    pub(crate) memory_listed: bool,
    pub(crate) ack: DelayedAckV1,
    pub(crate) sack: bool,
    pub(crate) duplicate: Option<(u32, u32)>,
    pub(crate) tx_share: ShareV1,
    pub(crate) clock: LimitingClockV1,
    pub(crate) bytes: u64,
    pub(crate) reserved: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WindowV1 {
    pub(crate) nxt: u32,
    pub(crate) edge: u32,
    pub(crate) last_ack: u32,
    pub(crate) mss: u16,
    pub(crate) scale: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UpdaterV1 {
    pub(crate) at: Option<u64>,
    pub(crate) repeats: u8,
}

/// Range ahead of a gap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReassembledV1<'a> {
    pub(crate) start: u32,
    #[serde(borrow)]
    pub(crate) bytes: QueueV1<'a>,
    pub(crate) touched: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DelayedAckV1 {
    pub(crate) promptness: PromptnessV1,
    pub(crate) segments: u8,
    pub(crate) waiting: bool,
    pub(crate) late: bool,
    pub(crate) listed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShareV1 {
    pub(crate) frames: u16,
    pub(crate) period: u16,
    pub(crate) mean: u16,
    pub(crate) deviation: u16,
    pub(crate) payload_min: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LimitingClockV1 {
    pub(crate) current: u8,
    pub(crate) since: u64,
    pub(crate) units: [u32; 7],
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SenderV1<'a> {
    pub(crate) state: u8,
    pub(crate) una: u32,
    pub(crate) nxt: u32,
    pub(crate) wnd: u32,
    pub(crate) wnd_max: u32,
    pub(crate) wl1: u32,
    pub(crate) wl2: u32,
    pub(crate) scale: u8,
    pub(crate) peer_scales: bool,
    pub(crate) mss: u16,
    pub(crate) tx_limit: LimitV1,
    pub(crate) memory_cap: u32,
    #[serde(borrow)]
    pub(crate) queue: QueueV1<'a>,
    pub(crate) stream: HostStreamV1,
    pub(crate) short_of_memory: bool,
    pub(crate) memory_listed: bool,
    pub(crate) timed: Option<(u32, u64)>,
    /// Deadline and purpose.
    pub(crate) timer: Option<(u64, u8)>,
    pub(crate) backoff: u8,
    pub(crate) board: Vec<RangeV1>,
    pub(crate) rack: RackV1,
    pub(crate) sack: bool,
    pub(crate) dup_acks: u8,
    pub(crate) recovery: Option<RecoveryV1>,
    pub(crate) undo: Option<UndoV1>,
    pub(crate) tail_probe: Option<u32>,
    pub(crate) clock: LimitingClockV1,
    pub(crate) bytes: u64,
    pub(crate) retransmissions: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostStreamV1 {
    pub(crate) readable: bool,
    pub(crate) peer_closed: bool,
    pub(crate) urgent: bool,
    pub(crate) error: bool,
    pub(crate) ended: bool,
}

/// Range in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RangeV1 {
    pub(crate) start: u32,
    pub(crate) len: u32,
    pub(crate) at: u64,
    pub(crate) fate: u8,
    pub(crate) resent: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RackV1 {
    pub(crate) newest: Option<SentV1>,
    pub(crate) rtt_ns: u32,
    pub(crate) fack: Option<u32>,
    pub(crate) reordering: bool,
    pub(crate) widened: u8,
    pub(crate) persist: u8,
    pub(crate) widened_until: Option<u32>,
}

/// Transmission of a range that ends at `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SentV1 {
    pub(crate) at: u64,
    pub(crate) end: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecoveryV1 {
    pub(crate) until: u32,
    pub(crate) why: u8,
    pub(crate) burst: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UndoV1 {
    pub(crate) limit: u32,
    pub(crate) resent: u32,
}

/// Automatic limit of one direction; the direction is that of the half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LimitV1 {
    pub(crate) tuning: TuningV1,
    pub(crate) initial: u32,
    pub(crate) max: u32,
    pub(crate) now: u32,
    pub(crate) meter: MeterV1,
    pub(crate) look_at: u64,
    pub(crate) hit: bool,
    pub(crate) blocked: bool,
    pub(crate) blocked_since: Option<u64>,
    pub(crate) used_at: u64,
    pub(crate) probe: ProbeV1,
    pub(crate) fall: FallV1,
    pub(crate) lost_from: Option<u32>,
    pub(crate) grows: u32,
    pub(crate) shrinks: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TuningV1 {
    Rtt,
    Step(u32),
    Pressure,
    Fixed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MeterV1 {
    pub(crate) marked_at: [u64; 3],
    pub(crate) last_at: u64,
    pub(crate) marked: [u32; 3],
    pub(crate) last: u32,
    pub(crate) turn: u32,
    pub(crate) burst: u32,
    pub(crate) round: Option<(u32, bool)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProbeV1 {
    pub(crate) misses: u8,
    pub(crate) since: (u64, u32),
    pub(crate) best: u32,
    pub(crate) not_before: u64,
    pub(crate) failures: u8,
    pub(crate) trial: Option<u32>,
    pub(crate) down: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FallV1 {
    pub(crate) since: u64,
    pub(crate) need: u32,
    pub(crate) silence_ms: u16,
    pub(crate) reached: bool,
}
