//! Version 1 of the records that belong to no flow: frame, keys, counters, services, orders.

use super::{Bytes, FlowIdV1, FlowKeyV1};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BeginV1 {
    /// The word `brodo`.
    pub(crate) magic: [u8; 5],
    pub(crate) saved_at: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndV1 {
    /// Records before this one.
    pub(crate) records: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeysV1 {
    pub(crate) table: [u8; 16],
    pub(crate) isn: [u8; 16],
    pub(crate) dns: [u8; 16],
    /// Numbers drawn under the last of them.
    pub(crate) dns_drawn: u64,
}

/// Counters above zero, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CountersV1<'a> {
    #[serde(borrow)]
    pub(crate) counters: Vec<(&'a str, u64)>,
    #[serde(borrow)]
    pub(crate) drops: Vec<(&'a str, u64)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PolicyV1<'a> {
    /// Refusals of each rule that has any, by its text.
    #[serde(borrow)]
    pub(crate) refusals: Vec<(&'a str, u64)>,
    /// Time at which the bucket of new flows is full.
    pub(crate) new_flows_full_at: Option<u64>,
}

/// Addresses that a guest which configures itself has used last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GuestAddressesV1 {
    pub(crate) v4: Option<IpAddr>,
    pub(crate) v6: Option<IpAddr>,
}

/// Pins of the shared policy: all of them from the first worker, those that its flows hold from the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PinsV1 {
    pub(crate) pins: Vec<PinV1>,
}

/// Bytes used of the limits of a shared policy, from the first worker by flows that are over, and from each
/// by those that end with the hand-over; all are added. Other open flows are counted anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UsageV1 {
    /// Texts of the rules that share limits, and the bytes from the guest and to it.
    pub(crate) used: Vec<(Vec<String>, [u64; 2])>,
}

/// Bytes from the guest and to it from which on open flows are charged for their limits; of flows that are
/// not named, from the first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChargedFromV1 {
    pub(crate) flows: Vec<(FlowIdV1, [u64; 2])>,
}

/// Least MTU reported of paths over IPv6 within the guest, in bytes, and when it is forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PathMtuV1 {
    pub(crate) mtu: u16,
    pub(crate) until: u64,
}

/// New names below wildcards of a shared policy, from the first worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WildcardsV1 {
    /// Text of the rule, begin of its period, names asked in it.
    pub(crate) rules: Vec<(String, u64, u32)>,
}

/// Totals of a shared policy for metrics, from the first worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PolicyTotalsV1 {
    pub(crate) decisions: Vec<DecisionsV1>,
    pub(crate) rules: Vec<RuleTotalV1>,
    /// Time for which gates were closed before they opened.
    pub(crate) gate_time: u64,
    pub(crate) pins_evicted: u64,
}

/// Number of decisions of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DecisionsV1 {
    pub(crate) stage: u8,
    pub(crate) ruling: u8,
    pub(crate) by: String,
    pub(crate) count: u64,
}

/// Flows of a rule that have ended, and their bytes from the guest and to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RuleTotalV1 {
    pub(crate) rule: String,
    pub(crate) flows: u64,
    pub(crate) bytes: [u64; 2],
}

/// An address that was given for a name, and the end of its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PinV1 {
    pub(crate) name: String,
    pub(crate) address: IpAddr,
    pub(crate) until: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LinkV1 {
    pub(crate) guest_mac: [u8; 6],
    pub(crate) ident: u32,
    pub(crate) stalled: bool,
    pub(crate) queue: TxQueueV1,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TxQueueV1 {
    pub(crate) frames: Option<u32>,
    pub(crate) sent: u32,
    pub(crate) allotted: [u32; 2],
    pub(crate) period: u16,
    pub(crate) period_ends: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TcpSharedV1 {
    pub(crate) rtt: RttV1,
    pub(crate) prompt_peers: Vec<PromptPeerV1>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RttV1 {
    pub(crate) estimate: Option<(u64, u64)>,
    pub(crate) least: WindowedMinV1,
    pub(crate) loaded_at: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WindowedMinV1 {
    pub(crate) best: [(u64, u64); 3],
    pub(crate) any: bool,
}

/// Record of one destination, by the hash of its address and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PromptPeerV1 {
    pub(crate) mark: u32,
    pub(crate) promptness: PromptnessV1,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PromptnessV1 {
    pub(crate) streak: u8,
    pub(crate) need: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DnsV1 {
    pub(crate) preference: PreferenceV1,
    pub(crate) epoch: u32,
    pub(crate) suspended: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PreferenceV1 {
    pub(crate) failed_at: [Option<u64>; 8],
    pub(crate) outrun: [u8; 8],
    pub(crate) folded_at: [Option<u64>; 8],
}

/// Cached answers, the least recently used first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DnsCacheV1<'a> {
    #[serde(borrow)]
    pub(crate) entries: Vec<CachedV1<'a>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CachedV1<'a> {
    #[serde(borrow)]
    pub(crate) key: Bytes<'a>,
    #[serde(borrow)]
    pub(crate) message: Bytes<'a>,
    pub(crate) since: u64,
}

/// Learnt names, in the order in which they were learnt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LearntV1<'a> {
    #[serde(borrow)]
    pub(crate) names: Vec<(IpAddr, &'a str)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InboxV1<'a> {
    pub(crate) key: FlowKeyV1,
    #[serde(borrow)]
    pub(crate) received: Vec<ReceivedV1<'a>>,
    /// Bytes of the first that were sent.
    pub(crate) offset: u32,
    pub(crate) progress: FragmentProgressV1,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReceivedV1<'a> {
    #[serde(borrow)]
    pub(crate) bytes: Bytes<'a>,
    pub(crate) segment: Option<u16>,
    pub(crate) tos: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FragmentProgressV1 {
    pub(crate) ident: Option<u32>,
    pub(crate) sent: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StackV1 {
    pub(crate) icmp_errors_full_at: u64,
    pub(crate) advertise_at: Option<u64>,
    pub(crate) records_ends: bool,
    pub(crate) records_openings: bool,
    /// Workers to wake, one bit each.
    pub(crate) wakes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TableV1 {
    /// Generation of each slot.
    pub(crate) generations: Vec<u32>,
    /// Free slots; the last is used first.
    pub(crate) free: Vec<u32>,
    /// Lists of the order of use: slot, and time of the last use in milliseconds modulo 2^32.
    pub(crate) lists: Vec<Vec<(u32, u32)>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TimersV1 {
    /// Tick up to which all entries have fired.
    pub(crate) now: u64,
    /// Slot of the flow, and tick: list after list, each in its order.
    pub(crate) entries: Vec<(u32, u64)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ScheduleV1 {
    pub(crate) sparse: Vec<FlowIdV1>,
    pub(crate) bulk: Vec<FlowIdV1>,
    pub(crate) ack_due: Vec<FlowIdV1>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ParkedV1 {
    pub(crate) reads: ParkedFlowsV1,
    pub(crate) windows: ParkedFlowsV1,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ParkedFlowsV1 {
    pub(crate) flows: Vec<FlowIdV1>,
    pub(crate) due: u32,
    pub(crate) watch_at: Option<u64>,
    pub(crate) suspected: bool,
    pub(crate) convicted: bool,
    /// Whether the worker is marked as parked.
    pub(crate) stopped: bool,
}
