//! The state itself: what a warden knows that cannot be derived from the options.

use super::descriptor::Descriptor;
use crate::conversation::message::{Names, Recorded};
use crate::dialect::Dialect;
use crate::learnt_policy::learner::SavedLearner;
use crate::own_process::CpuTime;
use crate::policy_fail::SavedUnlisted;
use crate::policy_file::PolicySource;
use crate::policy_in_force::PolicyInForce;
use crate::upgrades::History;
use brodo_control::event::Level;
use brodo_control::method::{AddForward, BulkCarrier};
use brodo_net::clock::{Clock, Origin};
use brodo_net::netlink::template::Template;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;

/// Format that this version writes, and the only one that it reads.
pub(crate) const FORMAT: u32 = 1;

/// State of a warden.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) format: u32,
    pub(crate) origin: SavedOrigin,
    pub(crate) clock: SavedClock,
    pub(crate) guest: SavedGuest,
    pub(crate) interface: SavedInterface,
    pub(crate) engine: SavedEngine,
    pub(crate) desired: SavedDesired,
    pub(crate) broker: Option<SavedBroker>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) promotion: Option<SavedPromotion>,
    pub(crate) metrics: Option<SavedListener>,
    pub(crate) control: Option<SavedListener>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) forward_sockets: Vec<SavedForwardSocket>,
    pub(crate) log_level: Level,
    /// Absolute path of the log's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) log_file: Option<PathBuf>,
    /// Refusals for `--policy-fail`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unlisted: Option<SavedUnlisted>,
    /// The policy of `--learn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) learner: Option<SavedLearner>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) logs: Option<SavedLogs>,
    #[serde(default, skip_serializing_if = "SavedPipes::is_none")]
    pub(crate) pipes: SavedPipes,
    pub(crate) upgrades: History,
}

/// Logs that are pipes.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedPipes {
    pub(crate) log_file: Option<Descriptor>,
    pub(crate) flow_log: Option<Descriptor>,
    pub(crate) audit: Option<Descriptor>,
}

impl SavedPipes {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Records that the logs do not have.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct SavedLogs {
    /// Of the flow log, and of the audit log: those that no line says yet.
    pub(crate) flows_missing: u64,
    pub(crate) audit_missing: u64,
    /// All that are missing in the audit log.
    pub(crate) audit_lost: u64,
}

/// Origin of the settings.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SavedOrigin {
    /// The command line, with the options of the configuration file.
    pub(crate) words: Vec<OsString>,
    /// Working directory at the start, of which paths in the command line are relative: that of a brodo in
    /// the background is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) directory: Option<PathBuf>,
    /// Whether the host had IPv6.
    pub(crate) ipv6: bool,
    /// resolv.conf as it was.
    pub(crate) names: Names,
    /// Policy files as they were: a guest may have written to them since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) policy: Vec<PolicySource>,
    /// The host's network as it was, if the guest's is a copy of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) template: Option<Template>,
}

/// Zero of the clock.
#[expect(clippy::struct_field_names, reason = "the unit stands last")]
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct SavedClock {
    start_ns: u64,
    unix_ns: u64,
    suspended_ns: u64,
}

/// Guest, as the command of brodo that serves it knows it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SavedGuest {
    /// `brodo run`.
    Command { pid: i32, handoff: Descriptor, signals: Descriptor },
    /// `brodo attach` to a process.
    Process {
        process: Descriptor,
        signals: Descriptor,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit: Option<Descriptor>,
    },
    /// `brodo attach` to a path.
    Path {
        path: PathBuf,
        device: u64,
        inode: u64,
        timer: Descriptor,
        #[serde(default)]
        deletions: Option<Descriptor>,
        signals: Descriptor,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit: Option<Descriptor>,
    },
    /// `brodo attach` to a TAP alone.
    Tap {
        signals: Descriptor,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit: Option<Descriptor>,
    },
    /// `brodo vm`.
    Monitor(SavedMonitor),
}

/// The way to the monitor of a virtual machine.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedMonitor {
    /// Socket on which it is awaited.
    pub(crate) socket: Option<SavedListener>,
    /// Whether no further connection will come.
    pub(crate) spent: bool,
    /// The warden's end of the channel by which connections go to the engine.
    pub(crate) channel: Descriptor,
    pub(crate) signals: Descriptor,
    /// The descriptor of `--exit-fd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exit: Option<Descriptor>,
}

/// Descriptors of the way to the guest: of its interface, or a channel.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedInterface {
    /// Queues of the TAP.
    pub(crate) taps: Vec<Descriptor>,
    /// Route socket of the guest's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) watch: Option<Descriptor>,
    /// The engine's end of the channel by which connections to a monitor come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) channel: Option<Descriptor>,
    /// Inodes of the sockets that `auto` leaves out.
    pub(crate) own_sockets: Vec<u32>,
}

/// A socket with lines, and the beginning of a line that has come already.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedLines {
    pub(crate) socket: Descriptor,
    pub(crate) pending: Vec<u8>,
}

/// The engine that serves, and its keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedEngine {
    pub(crate) keeper: Descriptor,
    pub(crate) pid: i32,
    /// Handle of the keeper's process, for one that is not its parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) process: Option<Descriptor>,
    pub(crate) requests: SavedLines,
    pub(crate) last_id: i64,
    pub(crate) records: SavedLines,
    pub(crate) listen: Descriptor,
    pub(crate) crashes: u32,
    /// Processor time of keepers and engines before that the warden has not waited for.
    #[serde(default, skip_serializing_if = "CpuTime::is_zero")]
    pub(crate) cpu_past: CpuTime,
    pub(crate) names: Names,
    pub(crate) flows_max: u64,
    pub(crate) confinement: String,
}

/// State that the user has asked for.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct SavedDesired {
    pub(crate) forwards: Vec<AddForward>,
    pub(crate) record: Recorded,
    pub(crate) capture: Option<SavedCapture>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bulk: Option<BulkCarrier>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<PolicyInForce>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unreviewed: bool,
}

/// The capture under way.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedCapture {
    pub(crate) path: PathBuf,
    pub(crate) filter: Option<String>,
    pub(crate) file: Descriptor,
}

/// The socket broker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedBroker {
    pub(crate) pid: i32,
    pub(crate) channel: Descriptor,
}

/// Promotion of bulk flows.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedPromotion {
    /// The agent.
    pub(crate) agent: Option<SavedAgent>,
    /// The reason why there is none, if one was asked for.
    pub(crate) unavailable: Option<String>,
}

/// The promotion agent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedAgent {
    pub(crate) pid: i32,
    pub(crate) channel: Descriptor,
}

/// A listening socket, and its file if it has one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedListener {
    pub(crate) socket: Descriptor,
    pub(crate) file: Option<SavedFile>,
}

/// A socket on which another program changes forwards.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedForwardSocket {
    pub(crate) dialect: Dialect,
    pub(crate) listener: SavedListener,
}

/// File of a listening socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedFile {
    pub(crate) path: PathBuf,
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl State {
    /// A state from its bytes.
    ///
    /// # Errors
    /// It is none, or has another format: a sentence.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let strange = |error: serde_json::Error| format!("the state of the other brodo is strange: {error}");
        let Format { format } = serde_json::from_slice(bytes).map_err(strange)?;
        if format != FORMAT {
            return Err(format!("the state of the other brodo has format {format}, this one reads {FORMAT}"));
        }
        serde_json::from_slice(bytes).map_err(strange)
    }
}

impl From<Clock> for SavedClock {
    fn from(clock: Clock) -> Self {
        let Origin { start_ns, unix_ns, suspended_ns } = clock.origin();
        Self { start_ns, unix_ns, suspended_ns }
    }
}

impl From<SavedClock> for Clock {
    fn from(SavedClock { start_ns, unix_ns, suspended_ns }: SavedClock) -> Self {
        Self::at(Origin { start_ns, unix_ns, suspended_ns })
    }
}
