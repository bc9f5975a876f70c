//! Messages between warden and engine, besides those of the control socket.
//!
//! Requests are those of the control protocol ([`brodo_control::method`]) as far as the engine answers them,
//! and the methods below. Records go the other way, unasked. Both are lines of JSON: the warden takes each
//! for hostile, reads it into these types with a bound on its length, and passes on only what it has read.

use brodo_control::event::Event;
use brodo_control::method::{BulkCarrier, Memory};
use brodo_control::policy::LimitedRules;
use brodo_net::resolv::ResolvConf;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

/// Line of the engine to the warden.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Record {
    /// The engine waits for the state of the one before it.
    Awaiting,
    /// The engine is sealed, and begins to serve; with the state of another one, at [`Go`].
    Ready(Ready),
    /// A flow or a notice, as clients of the control socket get it.
    Event(Box<Event>),
    /// Flows are missing because there were too many: so many that began, and that ended.
    Lost { openings: u64, ends: u64 },
    /// resolv.conf is due to be checked.
    CheckNames,
    /// An error has ended the capture, perhaps within a block: the next engine does not go on with it.
    CaptureEnded,
    /// All open flows were judged by the policy of this generation, after the start or a change.
    Reviewed { generation: u64 },
    /// The engine has a fault, and will end.
    Fault(String),
    /// The engine ends in order.
    Ended(Ended),
}

impl Record {
    /// The record that a line of an engine's is; `None` if it is none, or an event that the warden alone has.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        let record = serde_json::from_slice(line).ok()?;
        if let Self::Event(event) = &record {
            match **event {
                Event::FlowOpened { .. }
                | Event::FlowEnded { .. }
                | Event::Decision { .. }
                | Event::DecisionsLost { .. }
                | Event::Notice { .. } => {}
                Event::PolicyChanged { .. } | Event::Lost { .. } => return None,
            }
        }
        Some(record)
    }
}

/// First record of an engine.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Ready {
    /// Most open flows, of all workers.
    pub(crate) flows_max: u64,
    /// Names of the stages of confinement that are not in force, and why.
    pub(crate) gaps: Vec<(String, String)>,
    /// Flows of the engine before that go on.
    #[serde(default)]
    pub(crate) flows: u64,
    /// Flows of the engine before that cannot go on, and will be reset.
    #[serde(default)]
    pub(crate) flows_lost: u64,
}

/// Last record of an engine.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Ended {
    /// The failure, as a sentence; none if the guest's interface is gone or the end was asked for.
    pub(crate) failure: Option<String>,
    /// The counters, of an engine that has served.
    pub(crate) report: Option<crate::report::Report>,
}

/// Method `engine.status`: state of all workers.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct GetEngineStatus {}

/// State of all workers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EngineStatus {
    pub(crate) workers: u32,
    pub(crate) flows: u64,
    pub(crate) memory: Memory,
    pub(crate) resolvers: Vec<SocketAddr>,
    /// Carrier of bulk flows, of workers that can promote.
    #[serde(default)]
    pub(crate) bulk: Option<EngineBulk>,
    /// Frames and bytes of the capture under way.
    pub(crate) capture: Option<Captured>,
}

/// Promotion by all workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EngineBulk {
    pub(crate) carrier: BulkCarrier,
    /// Flows that a kernel socket has.
    pub(crate) promoted: u64,
    /// The agent has ended.
    pub(crate) agent_gone: bool,
}

/// Method `engine.bulk`: sets the carrier of bulk flows.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Bulked {
    pub(crate) carrier: BulkCarrier,
}

/// Method `engine.policy`: enforces the policy in the file in memory that comes with the request.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Enforced {
    /// Whether open flows are to be judged again.
    pub(crate) review: bool,
}

/// Method `engine.policy_usage`: limits of the rules in force, with what is used of them.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct GetPolicyUsage {}

/// Result of [`GetPolicyUsage`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PolicyUsage {
    pub(crate) limits: Vec<LimitedRules>,
}

/// Amount of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Captured {
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
}

/// Method `engine.record`: events to record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Recorded {
    /// Flows that begin.
    pub(crate) openings: bool,
    /// Flows that end.
    pub(crate) ends: bool,
}

/// Method `engine.capture`: frames into the file whose descriptor comes with the request.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Capturing {
    pub(crate) filter: Option<String>,
}

/// Method `engine.capture_stop`: ends the capture.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct StopCapturing {}

/// Method `engine.metrics`: all metrics of the workers in Prometheus' text format.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct GetMetrics {}

/// Metrics as text.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Metrics {
    pub(crate) text: String,
}

/// Method `engine.names`: content of resolv.conf.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Names {
    pub(crate) resolvers: Vec<SocketAddr>,
    pub(crate) search: Vec<String>,
}

/// Method `engine.stop`: ends the engine.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Stop {}

/// Method `engine.pass_streams`: passes the sockets of connections to the socket that comes with the request,
/// while it serves.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct PassStreams {}

/// Longest time for which the guest waits in an upgrade: the warden gives the new engine up after it, and the
/// frozen one goes on by itself if the warden decides nothing.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Method `engine.freeze`: carries no frame any more, and gives its state to the socket that comes with the
/// request.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Freeze {}

/// Method `engine.thaw`: goes on as if it had not been frozen.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Thaw {}

/// Method `engine.retire`: the other engine goes on; this one, still frozen, never will.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Retire {}

/// Method `engine.go`: begins to serve with the state of another engine, which has retired.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Go {}

/// The result of a method without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Done {}

brodo_control::methods! {
    GetEngineStatus, "engine.status" => EngineStatus;
    Recorded, "engine.record" => Done;
    Capturing, "engine.capture" => Done;
    StopCapturing, "engine.capture_stop" => Captured;
    Bulked, "engine.bulk" => Done;
    Enforced, "engine.policy" => Done;
    GetPolicyUsage, "engine.policy_usage" => PolicyUsage;
    GetMetrics, "engine.metrics" => Metrics;
    Names, "engine.names" => Done;
    Stop, "engine.stop" => Done;
    PassStreams, "engine.pass_streams" => Done;
    Freeze, "engine.freeze" => Done;
    Thaw, "engine.thaw" => Done;
    Retire, "engine.retire" => Done;
    Go, "engine.go" => Done;
}

impl From<ResolvConf> for Names {
    fn from(ResolvConf { resolvers, search }: ResolvConf) -> Self {
        Self { resolvers, search }
    }
}

impl From<Names> for ResolvConf {
    fn from(Names { resolvers, search }: Names) -> Self {
        Self { resolvers, search }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brodo_control::policy::{ChangeStage, PolicyChange};

    #[test]
    fn events_that_are_the_warden_s_own_are_no_records_of_an_engine() {
        let parsed = |event| {
            let line = serde_json::to_vec(&Record::Event(Box::new(event))).expect("JSON");
            Record::parse(&line).is_some()
        };
        assert!(parsed(Event::DecisionsLost { count: 1 }));
        assert!(!parsed(Event::Lost { count: 1 }));
        let change = PolicyChange {
            time: String::new(),
            generation: 2,
            stage: ChangeStage::Policy,
            change: "replaced".to_owned(),
            before: String::new(),
            after: String::new(),
            pid: Some(1),
            uid: Some(0),
        };
        assert!(!parsed(Event::PolicyChanged { change }));
        assert!(Record::parse(b"no JSON").is_none());
    }
}
