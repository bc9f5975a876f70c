//! Commands: requests of other threads to a worker, as data.
//!
//! A worker carries commands out between two turns of its loop: no lock is held while it works, and nothing
//! of it is reached by other threads. A [`Command`] is plain data with a place for its reply, so it can be
//! logged, counted and refused; at most [`COMMANDS_MAX`] wait for a worker. Each must be brief, for frames
//! wait meanwhile: a long list of flows is made by several commands.
//!
//! A reply is dropped if its receiver has gone; the receiver learns if there will be none ([`NoReply`]).

use crate::capture::Capture;
use crate::forward::{Forward, ForwardCounters, ForwardError, Listed};
use brodo_core::counters::Counters;
use brodo_core::flow::info::FlowDetail;
use brodo_core::flow::{FlowId, Protocol};
use brodo_core::time::Instant;
use brodo_core::trace::Event;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Most commands that wait for one worker; more are refused.
pub const COMMANDS_MAX: usize = 64;

/// Requests to a worker.
#[derive(Debug)]
pub enum Command {
    /// Its counters and what it holds.
    Report {
        /// For the answer.
        reply: ReplyTo<WorkerReport>,
    },
    /// Open flows, some at a time.
    Flows {
        /// Slot of the first flow to look at.
        from: u32,
        /// Flows to look at.
        most: usize,
        /// Flows to leave out.
        filter: FlowFilter,
        /// Whether to ask the host's kernel for the round trip of each connection, at the price of a system
        /// call.
        round_trips: bool,
        /// For the answer.
        reply: ReplyTo<FlowPage>,
    },
    /// One flow, if it is still open.
    Flow {
        /// The flow.
        id: FlowId,
        /// For the answer.
        reply: ReplyTo<Option<FlowReport>>,
    },
    /// Records flows that begin and flows that end from now on, or does so no more.
    Record {
        /// Records flows that begin.
        openings: bool,
        /// Records flows that end.
        ends: bool,
        /// Given when it is done.
        reply: ReplyTo<()>,
    },
    /// Captures frames from now on, in place of a capture that is under way.
    StartCapture {
        /// A handle of the capture.
        capture: Capture,
        /// Given when it is done.
        reply: ReplyTo<()>,
    },
    /// Captures no more frames.
    StopCapture {
        /// Given when it is done.
        reply: ReplyTo<()>,
    },
    /// Asks the guest's kernel for the length of the transmit queue and what it has dropped. The first
    /// worker's.
    ReadTxQueue {
        /// Given when it is done.
        reply: ReplyTo<()>,
    },
    /// The forwards in force. The first worker's, as those below.
    ListForwards {
        /// Most sockets that are named of each.
        sockets_max: usize,
        /// For the answer.
        reply: ReplyTo<Result<Vec<ForwardReport>, ForwardRefusal>>,
    },
    /// Puts a forward in force. One that is in force already stays as it is.
    AddForward {
        /// The forward.
        forward: Forward,
        /// Most sockets that are named of it.
        sockets_max: usize,
        /// For the answer.
        reply: ReplyTo<Result<ForwardReport, ForwardRefusal>>,
    },
    /// Takes a forward out of force; gives what it was.
    RemoveForward {
        /// Its id.
        id: u32,
        /// Most sockets that are named of it.
        sockets_max: usize,
        /// For the answer.
        reply: ReplyTo<Result<ForwardReport, ForwardRefusal>>,
    },
}

/// Flows that are wanted: flows that match all given fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowFilter {
    /// Of this protocol.
    pub protocol: Option<Protocol>,
    /// With this address at either end.
    pub address: Option<IpAddr>,
    /// With this port at either end.
    pub port: Option<u16>,
}

impl FlowFilter {
    /// Whether a flow is wanted.
    pub fn lets_through(&self, detail: &FlowDetail) -> bool {
        let key = &detail.info.key;
        let ends = [key.guest, key.remote];
        self.protocol.is_none_or(|protocol| key.protocol == protocol)
            && self.address.is_none_or(|address| ends.iter().any(|end| end.ip() == address))
            && self.port.is_none_or(|port| ends.iter().any(|end| end.port() == port))
    }
}

/// Counters and state of a worker.
#[derive(Debug, Clone, Default)]
pub struct WorkerReport {
    /// Counters of the stack.
    pub counters: Counters,
    /// Activity of the loop.
    pub activity: Activity,
    /// Open flows.
    pub flows: usize,
    /// Memory for payload, of all workers.
    pub memory: MemoryReport,
    /// Resolvers that are asked.
    pub resolvers: Vec<SocketAddr>,
    /// Rules and the flows that each has refused.
    pub rules: Vec<(String, u64)>,
    /// Forwarded ports, of the worker that has them.
    pub forwards: Option<ForwardsReport>,
}

/// Activity of a worker's loop since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Activity {
    /// Turns of the loop, each with one wait.
    pub turns: u64,
    /// Waits that slept: there was nothing left to do, and nothing came while it was looked for.
    pub sleeps: u64,
    /// Looks for work that were made instead of sleeping (`busy_poll`).
    pub polls: u64,
    /// Waits that such looks have ended.
    pub polled: u64,
}

/// Memory for payload, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryReport {
    /// Held by payload.
    pub used: usize,
    /// Reserved by windows that were offered to the guest.
    pub reserved: usize,
    /// The bound.
    pub budget: usize,
}

/// Forwarded ports as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ForwardsReport {
    /// Forwards in force.
    pub entries: usize,
    /// Sockets that listen for them.
    pub listeners: usize,
    /// Counters of the forwards.
    pub counters: ForwardCounters,
}

/// Some of the open flows.
#[derive(Debug, Clone, Default)]
pub struct FlowPage {
    /// The requested flows.
    pub flows: Vec<FlowReport>,
    /// The last that was looked at, if there may be more.
    pub last: Option<FlowId>,
}

/// One flow.
#[derive(Debug, Clone)]
pub struct FlowReport {
    /// All that the stack knows of it.
    pub detail: FlowDetail,
    /// The round trip to the peer as the host's kernel estimates it.
    pub round_trip: Option<Duration>,
    /// The last changes of its limits, the oldest first, if one flow was asked for.
    pub tuning: Vec<(Instant, Event)>,
    /// The time at which this was so.
    pub at: Instant,
}

/// A forward in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardReport {
    /// Its id, what was asked for, and the number of its sockets.
    pub listed: Listed,
    /// Where it listens, as far as a bounded list goes.
    pub listening: Vec<SocketAddr>,
}

/// Why a command about forwards was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForwardRefusal {
    /// This worker forwards no ports.
    NoForwards,
    /// There is no forward with this id.
    NotFound(u32),
    /// It cannot be put in force.
    Failed(ForwardError),
}

/// Where the reply to a command goes.
pub struct ReplyTo<T>(SyncSender<T>);

impl<T> fmt::Debug for ReplyTo<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplyTo")
    }
}

impl<T> ReplyTo<T> {
    /// A place for a reply, and the wait for it.
    pub fn new() -> (Self, Pending<T>) {
        let (to, from) = sync_channel(1);
        (Self(to), Pending(from))
    }

    /// Gives the reply.
    pub(crate) fn send(self, reply: T) {
        // Without a receiver it is not wanted any more.
        let _ = self.0.try_send(reply);
    }
}

/// A reply that will come.
#[derive(Debug)]
pub struct Pending<T>(Receiver<T>);

impl<T> Pending<T> {
    /// Waits for the reply, for so long.
    ///
    /// # Errors
    /// There will be none, or not in time.
    pub fn wait(self, patience: Duration) -> Result<T, NoReply> {
        self.0.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => NoReply::Late,
            RecvTimeoutError::Disconnected => NoReply::Dropped,
        })
    }
}

/// Why a command has no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoReply {
    /// The worker stands still: its machine is suspended, its link's driver hangs. It will carry the command
    /// out when it goes on.
    Late,
    /// The command was refused, or the worker has ended.
    Dropped,
}
