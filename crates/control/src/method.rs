//! Methods: name, parameters and result of each.
//!
//! Unknown parameters are errors, so that a misspelt one is not ignored; results may gain fields.

use crate::event::{Level, Topic};
use crate::flow::{Carrier, Flow, FlowRef, Protocol, TuningStep};
use crate::policy::{
    AddRule, AskedPolicy, ExplainPolicy, Learned, LearnedPolicy, Lockdown, Policy, Questions, Refusals,
    RefuseAsked, RemoveRule, SealPolicy, SetPolicy, ShowPolicy,
};
use crate::rpc::{self, Error, MESSAGE_MAX, Request, code};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Parameters of a method, tied to its name and its result.
pub trait Method: Serialize + DeserializeOwned {
    /// The name in messages.
    const NAME: &'static str;
    /// Result of the method.
    type Result: Serialize + DeserializeOwned;
}

/// The reply to a request, made by `does` of its parameters, as a line; none if the request has no id. A
/// result for which a message has no room ([`MESSAGE_MAX`]) becomes an error ([`code::FAILED`]).
pub fn reply<M: Method>(
    request: Request,
    does: impl FnOnce(M) -> Result<M::Result, Error>,
) -> Option<Vec<u8>> {
    let id = request.id.clone();
    let done = request.params::<M>().and_then(does);
    let id = id?;
    let line = done.map(|result| rpc::result(&id, &result)).and_then(|line| match line.len() {
        bytes if bytes > MESSAGE_MAX => {
            let why = format!("the reply has {bytes} bytes, and a message has at most {MESSAGE_MAX}");
            Err(Error::new(code::FAILED, why))
        }
        _ => Ok(line),
    });
    Some(line.unwrap_or_else(|error| rpc::error(Some(&id), &error)))
}

/// Ties parameters to the name and the result of their method; with a constant in front also lists the names.
#[macro_export]
macro_rules! methods {
    (
        $(#[$meta:meta])* $visibility:vis const $names:ident;
        $($params:ident, $name:literal => $result:ty;)+
    ) => {
        $crate::methods! { $($params, $name => $result;)+ }

        $(#[$meta])*
        $visibility const $names: &[&str] = &[$($name),+];
    };
    ($($params:ident, $name:literal => $result:ty;)+) => {
        $(impl $crate::method::Method for $params {
            const NAME: &'static str = $name;
            type Result = $result;
        })+
    };
}

methods! {
    /// The names of all methods.
    pub const NAMES;
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
    SetBulk, "bulk" => Bulk;
    SetLogLevel, "log.level" => LogLevel;
    ShowPolicy, "policy.show" => Policy;
    SetPolicy, "policy.set" => Policy;
    AddRule, "policy.add" => Policy;
    RemoveRule, "policy.remove" => Policy;
    SealPolicy, "policy.seal" => Policy;
    Lockdown, "policy.lockdown" => Policy;
    ExplainPolicy, "policy.explain" => Refusals;
    AskedPolicy, "policy.asked" => Questions;
    RefuseAsked, "policy.refuse" => Questions;
    LearnedPolicy, "policy.learned" => Learned;
    Subscribe, "subscribe" => Subscribed;
    Upgrade, "upgrade" => Upgraded;
}

/// Identification of the server; a good first request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetHello {
    /// The protocol that the client speaks. If the server does not speak it, the reply is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u32>,
}

/// Identification of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Name of the program: "brodo".
    pub program: String,
    /// Its version.
    pub version: String,
    /// The protocol, [`crate::rpc::PROTOCOL`].
    pub protocol: u32,
    /// Its process.
    pub pid: u32,
    /// Its methods.
    pub methods: Vec<String>,
}

/// Status of the instance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetStatus {}

/// Status of an instance.
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
    /// Its command: "run", "attach" or "vm".
    pub command: String,
    /// Its target: the command line that runs, the namespace, or the socket of a virtual machine's monitor.
    pub target: String,
    /// The interface in the guest.
    pub interface: String,
    /// Largest IP packet on the link, in bytes.
    pub mtu: u16,
    /// The guest's network of each family it has.
    pub networks: Vec<GuestNetwork>,
    /// The upstream resolvers.
    pub resolvers: Vec<SocketAddr>,
    /// Worker threads.
    pub workers: u32,
    /// Memory for payload.
    pub memory: Memory,
    /// Flows that are open.
    pub flows: u64,
    /// Most flows at a time.
    pub flows_max: u64,
    /// Processor time of all processes, in user mode, in microseconds.
    pub cpu_user_us: u64,
    /// Processor time in the kernel, in microseconds.
    pub cpu_system_us: u64,
    /// Resident memory of all processes, in bytes; file pages, which they share, once.
    pub rss_bytes: u64,
    /// The current capture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capture: Option<CaptureStatus>,
    /// `full` (and more words with `--confine log`), `partial (...)` with the stages of confinement that are
    /// not in force, and why, or `off`.
    #[serde(default)]
    pub confinement: String,
    /// Carrier of bulk flows.
    #[serde(default)]
    pub bulk: Bulk,
    /// Engines that have crashed; another one was started each time.
    #[serde(default)]
    pub crashes: u32,
    /// Upgrades in place, once there was one or an attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrades: Option<Upgrades>,
    /// Level of the log on standard error.
    pub log_level: Level,
}

/// Upgrades in place of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Upgrades {
    /// Completed ones.
    pub count: u32,
    /// The last completed one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastUpgrade>,
    /// The last attempt, if it has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailedUpgrade>,
}

/// A completed upgrade.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LastUpgrade {
    /// Its time, as in [`crate::flow::FlowEnd::time`].
    pub time: String,
    /// Time for which no frame was carried, in microseconds.
    pub pause_us: u64,
    /// Flows that could not go on, and were reset.
    pub flows_lost: u64,
}

/// A failed attempt.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FailedUpgrade {
    /// Its time, as in [`crate::flow::FlowEnd::time`].
    pub time: String,
    /// The reason, a sentence.
    pub reason: String,
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
    /// The DNS server, if brodo is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<IpAddr>,
    /// The address that stands for the host's loopback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_loopback: Option<IpAddr>,
}

/// Memory for the payload of all flows, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Memory {
    /// In use.
    pub used: u64,
    /// Committed to advertised windows.
    pub reserved: u64,
    /// The budget.
    pub budget: u64,
}

/// Counters of the instance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetCounters {}

/// Counters since the start, summed over all workers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Every counter by name, zero or not.
    pub counters: BTreeMap<String, u64>,
    /// Drops by reason, above zero.
    pub drops: BTreeMap<String, u64>,
    /// Refusals by the text of the rule.
    pub rules: BTreeMap<String, u64>,
}

/// Flows, a page at a time, in no particular order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetFlows {
    /// [`FlowPage::next`] of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<FlowRef>,
    /// Most flows in the page: 1 to [`PAGE_MAX`], which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Only flows of this protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Only flows whose payload this carrier moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<Carrier>,
    /// Only flows with this address at either end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Only flows with this port at either end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// Most flows in a page.
pub const PAGE_MAX: u32 = 1000;

/// A page of flows. Flows open and end between pages; a flow that is open all the time is on exactly one
/// page.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FlowPage {
    /// The flows; with a filter the page may be empty although more follow.
    pub flows: Vec<Flow>,
    /// Cursor for the next page; none after the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<FlowRef>,
}

/// One flow in detail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetFlow {
    /// The flow.
    pub id: FlowRef,
}

/// One flow and the history of its limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowDetail {
    /// The flow.
    pub flow: Flow,
    /// Decisions about its limits, the oldest first; each worker keeps the last thousand of all its flows.
    pub history: Vec<TuningStep>,
}

/// The side that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The host; connections lead to the guest: `-t` and `-u`.
    Host,
    /// The guest's loopback; connections lead to the host: `-T` and `-U`.
    Guest,
}

/// A forward.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forward {
    /// Its number, the same for its life.
    pub id: u64,
    /// The side that listens.
    pub side: Side,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Its specification, in the syntax of the options.
    pub spec: String,
    /// Listening sockets.
    pub sockets: u64,
    /// Addresses of the first of these sockets.
    pub listening: Vec<SocketAddr>,
}

/// Lists forwards.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListForwards {}

/// All forwards.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Forwards {
    /// In order of their numbers.
    pub forwards: Vec<Forward>,
}

/// Adds a forward.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddForward {
    /// The side that listens.
    pub side: Side,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The specification, in the syntax of the options.
    pub spec: String,
}

/// Removes a forward; open connections stay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveForward {
    /// Its number.
    pub id: u64,
}

/// Starts a capture, of which there is at most one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartCapture {
    /// The file to make or replace: an absolute path, opened by brodo with its rights.
    pub file: PathBuf,
    /// Filter of frames, in the syntax of `brodo capture`; without it all frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
}

/// Ends the capture.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopCapture {}

/// A capture, current or just ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureStatus {
    /// Its file.
    pub file: PathBuf,
    /// Its filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Frames written so far.
    pub frames: u64,
    /// Bytes of these frames.
    pub bytes: u64,
}

/// Replaces the program and its engine in place. The reply comes when another engine serves, or when the
/// attempt has failed and the present one goes on. After success the server closes all connections: the
/// program that takes its place listens at the same path.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upgrade {
    /// The program, an absolute path; without it the one at the path of the present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<PathBuf>,
}

/// A completed upgrade.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Upgraded {
    /// Version of the program that goes on.
    pub version: String,
    /// Time for which no frame was carried, in microseconds.
    pub pause_us: u64,
    /// Flows that could not go on, and were reset.
    pub flows_lost: u64,
}

/// Mechanism that carries bulk flows between guest and brodo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BulkCarrier {
    /// A kernel socket beside the guest's interface.
    Kernel,
    /// The guest's interface, as of all other flows.
    #[default]
    Tap,
}

impl BulkCarrier {
    /// The name in messages and options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Tap => "tap",
        }
    }
}

/// Reads or sets the carrier of bulk flows. With `tap` flows that a kernel socket has come back.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetBulk {
    /// The new carrier; without it nothing changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<BulkCarrier>,
}

/// Carrier of bulk flows.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Bulk {
    /// As set.
    pub carrier: BulkCarrier,
    /// Flows that a kernel socket has now.
    #[serde(default)]
    pub promoted: u64,
    /// The reason why no flow gets a kernel socket, if that was asked for: a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

/// Reads or sets the level of the log on standard error.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetLogLevel {
    /// The new level; without it nothing changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
}

/// Level of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLevel {
    /// The least severe level that is logged.
    pub level: Level,
}

/// Subscribes to events from now on, in place of an earlier subscription; an empty list ends it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subscribe {
    /// Topics of the subscription.
    pub events: Vec<Topic>,
}

/// The subscription.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Subscribed {
    /// The topics, in order.
    pub events: Vec<Topic>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_without_room_in_a_message_is_an_error_of_the_method() {
        let replied = |bytes| {
            let request = br#"{"jsonrpc":"2.0","id":1,"method":"policy_learned"}"#;
            let request = Request::parse(request).expect("a request");
            reply(request, |_: LearnedPolicy| Ok(Learned { text: "x".repeat(bytes) })).expect("it has an id")
        };
        let envelope = replied(0).len();
        assert_eq!(replied(MESSAGE_MAX - envelope).len(), MESSAGE_MAX);
        let line = replied(MESSAGE_MAX - envelope + 1);
        assert!(line.len() < 1000, "{} bytes", line.len());
        let message: rpc::Message = serde_json::from_slice(&line).expect("a message");
        assert_eq!(message.error.expect("an error").code, code::FAILED);
    }
}
