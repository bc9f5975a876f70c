//! Every method: its name, its parameters and its result.
//!
//! Parameters that are not known are errors, so that a misspelt one is not silently ignored; results may grow.

use crate::event::{Level, Topic};
use crate::flow::{Flow, FlowRef, Protocol, TuningStep};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Parameters, which know the method they belong to.
pub trait Method: Serialize + DeserializeOwned {
    /// The name in messages.
    const NAME: &'static str;
    /// What comes back.
    type Result: Serialize + DeserializeOwned;
}

macro_rules! methods {
    ($($params:ident, $name:literal => $result:ty;)+) => {
        $(impl Method for $params {
            const NAME: &'static str = $name;
            type Result = $result;
        })+

        /// The names of all methods.
        pub const NAMES: &[&str] = &[$($name),+];
    };
}

methods! {
    GetHello, "hello" => Hello;
    GetStatus, "status" => Status;
    GetCounters, "counters" => Counters;
    GetFlows, "flows" => FlowPage;
    GetFlow, "flow" => FlowDetail;
    ListForwards, "forward.list" => Forwards;
    AddForward, "forward.add" => Forward;
    RemoveForward, "forward.remove" => Forward;
    StartCapture, "capture.start" => CaptureStatus;
    StopCapture, "capture.stop" => CaptureStatus;
    SetLogLevel, "log.level" => LogLevel;
    Subscribe, "subscribe" => Subscribed;
}

/// Asks who this is; a good first request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetHello {
    /// The protocol that the client speaks. If the server does not speak it, the reply is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u32>,
}

/// Who answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// "brodo".
    pub program: String,
    /// Its version.
    pub version: String,
    /// The protocol, [`crate::rpc::PROTOCOL`].
    pub protocol: u32,
    /// Its process.
    pub pid: u32,
    /// What may be called.
    pub methods: Vec<String>,
}

/// Asks how it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetStatus {}

/// How an instance is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its process.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// The protocol of this socket.
    pub protocol: u32,
    /// Seconds since it started to serve.
    pub uptime_s: u64,
    /// What it does: "run" or "attach".
    pub command: String,
    /// For what: the command line that runs, or the namespace.
    pub target: String,
    /// The interface in the guest.
    pub interface: String,
    /// Largest IP packet on the link, in bytes.
    pub mtu: u16,
    /// The guest's network of each family it has.
    pub networks: Vec<GuestNetwork>,
    /// The resolvers that are asked.
    pub resolvers: Vec<SocketAddr>,
    /// Threads that share the work.
    pub workers: u32,
    /// Memory for payload.
    pub memory: Memory,
    /// Flows that are open.
    pub flows: u64,
    /// How many may be.
    pub flows_max: u64,
    /// Processor time of the whole process, in user mode, in microseconds.
    pub cpu_user_us: u64,
    /// The same in the kernel.
    pub cpu_system_us: u64,
    /// Resident memory of the whole process, in bytes.
    pub rss_bytes: u64,
    /// The capture that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capture: Option<CaptureStatus>,
    /// What is told on standard error.
    pub log_level: Level,
}

/// The guest's network of one family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestNetwork {
    /// The guest's address.
    pub address: IpAddr,
    /// The length of its prefix.
    pub prefix_len: u8,
    /// The router.
    pub gateway: IpAddr,
    /// The DNS server.
    pub dns: IpAddr,
    /// The address that stands for the host's loopback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_loopback: Option<IpAddr>,
}

/// Memory for the payload of all flows, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Memory {
    /// In use.
    pub used: u64,
    /// What guests may still send into windows, as far as it counts.
    pub promised: u64,
    /// All there is.
    pub budget: u64,
}

/// Asks what was counted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetCounters {}

/// What was counted since the start, by all workers together.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Every counter by name, zero or not.
    pub counters: BTreeMap<String, u64>,
    /// Drops by reason, without those that never came.
    pub drops: BTreeMap<String, u64>,
    /// Refusals by the text of the rule.
    pub rules: BTreeMap<String, u64>,
}

/// Asks for flows, a page at a time, in no particular order that means anything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetFlows {
    /// [`FlowPage::next`] of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<FlowRef>,
    /// Most flows in the page: 1 to [`PAGE_MAX`], which is also what holds if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Only those of this protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Only those of which one end has this address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Only those of which one end has this port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// Most flows in a page.
pub const PAGE_MAX: u32 = 1000;

/// Some flows. Between pages flows come and go: each that is there all the time is told of exactly once.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FlowPage {
    /// Those of this page; with a filter there may be none although more follow.
    pub flows: Vec<Flow>,
    /// What to ask for the rest with; none if this was the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<FlowRef>,
}

/// Asks for one flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetFlow {
    /// Which.
    pub id: FlowRef,
}

/// One flow and what became of its limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowDetail {
    /// The flow.
    pub flow: Flow,
    /// Decisions about its limits, the oldest first, as far as the worker remembers: it keeps the last thousand of all its flows.
    pub history: Vec<TuningStep>,
}

/// Whose port is listened on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The host's, for the guest to answer: `-t` and `-u`.
    Host,
    /// The guest's loopback's, for the host to answer: `-T` and `-U`.
    Guest,
}

/// Ports that are forwarded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forward {
    /// Its number, the same for its life.
    pub id: u64,
    /// Where it is listened.
    pub side: Side,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// What it was made of, in the syntax of the options.
    pub spec: String,
    /// Sockets that listen for it now.
    pub sockets: u64,
    /// What the first of them listen on.
    pub listening: Vec<SocketAddr>,
}

/// Asks which ports are forwarded.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListForwards {}

/// All of them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Forwards {
    /// In order of their number.
    pub forwards: Vec<Forward>,
}

/// Forwards more ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddForward {
    /// Where to listen.
    pub side: Side,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// What, in the syntax of the options.
    pub spec: String,
}

/// Forwards ports no more; connections that are open stay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveForward {
    /// Which.
    pub id: u64,
}

/// Begins a capture. One can be under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartCapture {
    /// The file to make or replace: an absolute path, opened by brodo with its rights.
    pub file: PathBuf,
    /// Which frames; without it all. See the documentation for its words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
}

/// Ends the capture.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopCapture {}

/// A capture, under way or just ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureStatus {
    /// Its file.
    pub file: PathBuf,
    /// Which frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Frames written so far.
    pub frames: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// Asks what is told on standard error, or changes it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetLogLevel {
    /// The least grave that is to be told; without it nothing changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
}

/// What is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLevel {
    /// The least grave that is.
    pub level: Level,
}

/// Asks to be told of what happens from now on, instead of what was asked before; of nothing if the list is empty.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subscribe {
    /// Of what.
    pub events: Vec<Topic>,
}

/// What will be told of.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Subscribed {
    /// The same, in order.
    pub events: Vec<Topic>,
}
