//! Commands: requests of other threads to a worker, as data.
//!
//! A worker executes commands between two turns of its loop: no lock is held while it works, and other
//! threads never touch its state. A [`Command`] is plain data with a place for its reply, so it can be
//! logged, counted and refused; at most [`COMMANDS_MAX`] are queued for a worker. Each must be brief, for
//! frames wait meanwhile: a long list of flows is made by several commands.
//!
//! A reply is dropped if its receiver has gone; the receiver learns of a missing one ([`NoReply`]).

use crate::capture::Capture;
use crate::forward::{Forward, ForwardCounters, ForwardError, Listed};
use crate::handover::{Passed, PassedFrom};
use crate::resteer::ResteerCounters;
use crate::tuning_log::TuningDecision;
use brodo_core::config::Bulk;
use brodo_core::counters::Counters;
use brodo_core::flow::info::Carrier;
use brodo_core::flow::{FlowId, Protocol};
use brodo_core::metric::Metric;
use brodo_core::stack::FlowDetail;
use brodo_core::time::Instant;
use brodo_link::LinkLosses;
use rustix::fd::OwnedFd;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Most commands queued for one worker; more are refused.
pub const COMMANDS_MAX: usize = 64;

/// A request to a worker.
#[derive(Debug)]
pub enum Command {
    /// Reads counters and state of the worker.
    Report {
        /// Receiver of the report.
        reply: ReplyTo<WorkerReport>,
    },
    /// Lists open flows, a part of them at a time.
    Flows {
        /// Slot of the first flow to examine.
        from: u32,
        /// Number of flows to examine.
        most: usize,
        /// Flows to list.
        filter: FlowFilter,
        /// Whether to read the round trip of each connection from the host's kernel, at the price of a system
        /// call.
        round_trips: bool,
        /// Receiver of the list.
        reply: ReplyTo<FlowPage>,
    },
    /// Describes one flow, if it is still open.
    Flow {
        /// The flow.
        id: FlowId,
        /// Receiver of the description.
        reply: ReplyTo<Option<FlowReport>>,
    },
    /// Judges open flows by the policy in force, a part of them at a time, and ends those that it refuses.
    Review {
        /// Slot of the first flow to judge.
        from: u32,
        /// Number of flows to judge.
        most: usize,
        /// Receiver of the slot to go on from, if there are more.
        reply: ReplyTo<Option<u32>>,
    },
    /// Starts or stops the records of flows that begin and end.
    Record {
        /// Whether to record flows that begin.
        openings: bool,
        /// Whether to record flows that end.
        ends: bool,
        /// Receiver of the confirmation.
        reply: ReplyTo<()>,
    },
    /// Starts a capture, which replaces a present one.
    StartCapture {
        /// A handle of the capture.
        capture: Capture,
        /// Receiver of the confirmation.
        reply: ReplyTo<()>,
    },
    /// Stops the capture.
    StopCapture {
        /// Receiver of the confirmation.
        reply: ReplyTo<()>,
    },
    /// Sets the carrier of bulk flows.
    SetBulk {
        /// The carrier.
        bulk: Bulk,
        /// Receiver of the confirmation: false if the worker cannot promote.
        reply: ReplyTo<bool>,
    },
    /// Passes streams to another process in advance of a hand-over ([`crate::handover`]), one message of them
    /// at a time.
    PassStreams {
        /// Stream socket to that process.
        to: Arc<OwnedFd>,
        /// The part of them.
        place: PassedFrom,
        /// Receiver of the outcome.
        reply: ReplyTo<io::Result<Passed>>,
    },
    /// Reads length and drops of the transmit queue from the guest's kernel. For the first worker.
    ReadTxQueue {
        /// Receiver of the confirmation.
        reply: ReplyTo<()>,
    },
    /// Lists the forwards in force. For the first worker, as those below.
    ListForwards {
        /// Most sockets listed of each.
        sockets_max: usize,
        /// Receiver of the list.
        reply: ReplyTo<Result<Vec<ForwardReport>, ForwardRefusal>>,
    },
    /// Puts a forward in force, unless it is already.
    AddForward {
        /// The forward.
        forward: Forward,
        /// Most sockets listed of it.
        sockets_max: usize,
        /// Receiver of its description.
        reply: ReplyTo<Result<ForwardReport, ForwardRefusal>>,
    },
    /// Removes a forward.
    RemoveForward {
        /// Its id.
        id: u32,
        /// Most sockets listed of it.
        sockets_max: usize,
        /// Receiver of its last description.
        reply: ReplyTo<Result<ForwardReport, ForwardRefusal>>,
    },
}

/// Filter for flows: all given fields must match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowFilter {
    /// Protocol of the flow.
    pub protocol: Option<Protocol>,
    /// Carrier of the payload.
    pub carrier: Option<Carrier>,
    /// Address at either end.
    pub address: Option<IpAddr>,
    /// Port at either end.
    pub port: Option<u16>,
}

impl FlowFilter {
    /// Whether a flow matches.
    pub fn lets_through(&self, detail: &FlowDetail) -> bool {
        let key = &detail.info.key;
        let ends = [key.guest, key.remote];
        self.protocol.is_none_or(|protocol| key.protocol == protocol)
            && self.carrier.is_none_or(|carrier| detail.info.carrier == carrier)
            && self.address.is_none_or(|address| ends.iter().any(|end| end.ip() == address))
            && self.port.is_none_or(|port| ends.iter().any(|end| end.port() == port))
    }
}

/// Counters and state of a worker.
#[derive(Debug, Clone, Default)]
pub struct WorkerReport {
    /// Counters of the stack.
    pub counters: Counters,
    /// Counters of link, re-steering and forwards.
    pub edges: EdgeCounters,
    /// Activity of the loop.
    pub activity: Activity,
    /// Open flows.
    pub flows: usize,
    /// Payload memory of all workers.
    pub memory: MemoryReport,
    /// Upstream resolvers.
    pub resolvers: Vec<SocketAddr>,
    /// Every rule, in the order in which they are asked: the same for all workers.
    pub rules: Vec<RuleReport>,
    /// Flows behind gates of the policy.
    pub gates: u32,
    /// Forwarded ports, of the worker that owns them.
    pub forwards: Option<ForwardsReport>,
    /// Promotion, if the worker is capable of it.
    pub promotion: Option<PromotionReport>,
}

/// Promotion of bulk flows at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromotionReport {
    /// Carrier of bulk flows as set.
    pub bulk: Bulk,
    /// Flows that a kernel socket has.
    pub flows: usize,
    /// The agent has ended: no further flow is promoted.
    pub agent_gone: bool,
}

/// A rule of the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleReport {
    /// Its text, as given.
    pub rule: String,
    /// Flows refused by it.
    pub refused: u64,
}

/// Counters of a worker around its stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EdgeCounters {
    /// Frames that the worker's queue of the link has lost.
    pub link: LinkLosses,
    /// Frames re-steered to the worker of their flow, by all workers: the first worker alone reports them.
    pub resteered: ResteerCounters,
    /// Forwarded ports, of the worker that owns them.
    pub forwards: ForwardCounters,
}

impl EdgeCounters {
    /// Adds the counters of another worker.
    pub fn add(&mut self, other: &Self) {
        self.link.add(&other.link);
        self.resteered.add(&other.resteered);
        self.forwards.add(&other.forwards);
    }

    /// Every counter with its description.
    pub fn described(&self) -> impl Iterator<Item = (Metric, u64)> + use<> {
        self.link.described().chain(self.resteered.described()).chain(self.forwards.described())
    }

    /// Every counter's name and value.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        self.described().map(|(metric, value)| (metric.name, value))
    }
}

brodo_core::counters! {
    /// Activity of a worker's loop since its start.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Activity named "worker_" {
        /// Turns of a worker's loop, each with one wait.
        turns,
        /// Waits that slept: no work was left, and none came during busy polling.
        sleeps,
        /// Busy polls made instead of sleeping (`busy_poll`).
        polls,
        /// Waits that busy polling has ended.
        polled,
        /// Rests after many turns in a row to which events led and in which nothing moved.
        rests,
    }
}

/// Payload memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryReport {
    /// In use by payload.
    pub used: usize,
    /// Reserved by windows advertised to the guest.
    pub reserved: usize,
    /// The budget.
    pub budget: usize,
}

/// Forwarded ports as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ForwardsReport {
    /// Forwards in force.
    pub entries: usize,
    /// Listening sockets of the forwards.
    pub listeners: usize,
}

/// A part of the open flows.
#[derive(Debug, Clone, Default)]
pub struct FlowPage {
    /// The requested flows.
    pub flows: Vec<FlowReport>,
    /// The last flow examined, if there may be more.
    pub last: Option<FlowId>,
}

/// One flow.
#[derive(Debug, Clone)]
pub struct FlowReport {
    /// Description by the stack.
    pub detail: FlowDetail,
    /// Round trip to the peer as the host's kernel estimates it.
    pub round_trip: Option<Duration>,
    /// Last changes of its limits, the oldest first, if a single flow was requested.
    pub tuning: Vec<TuningDecision>,
    /// Time of this report.
    pub at: Instant,
}

/// A forward in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardReport {
    /// Id, specification, and number of sockets.
    pub listed: Listed,
    /// Listening addresses, up to a bound.
    pub listening: Vec<SocketAddr>,
}

/// Refusal of a command about forwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForwardRefusal {
    /// This worker has no forwards.
    NoForwards,
    /// No forward has this id.
    NotFound(u32),
    /// The forward cannot be put in force.
    Failed(ForwardError),
}

/// Destination of the reply to a command.
pub struct ReplyTo<T>(SyncSender<T>);

impl<T> fmt::Debug for ReplyTo<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplyTo")
    }
}

impl<T> ReplyTo<T> {
    /// A destination for a reply, and the wait for it.
    pub fn new() -> (Self, Pending<T>) {
        let (to, from) = sync_channel(1);
        (Self(to), Pending(from))
    }

    /// Sends the reply.
    pub(crate) fn send(self, reply: T) {
        // Without a receiver the reply is no longer wanted.
        let _ = self.0.try_send(reply);
    }
}

/// A reply yet to come.
#[derive(Debug)]
pub struct Pending<T>(Receiver<T>);

impl<T> Pending<T> {
    /// Waits for the reply, at most for `patience`.
    ///
    /// # Errors
    /// No reply will come, or not in time.
    pub fn wait(self, patience: Duration) -> Result<T, NoReply> {
        self.0.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => NoReply::Late,
            RecvTimeoutError::Disconnected => NoReply::Dropped,
        })
    }
}

/// Reason of a missing reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoReply {
    /// The worker stands still: its machine is suspended, its link's driver hangs. It will execute the
    /// command when it goes on.
    Late,
    /// The command was refused, or the worker has ended.
    Dropped,
}
