//! Trace events of a connection: every tuning decision, window update, retransmission, and every change
//! of its limiting factor.
//!
//! Events go to an [`Observer`], which does nothing unless it implements [`Observer::trace`]: on Linux they
//! become static probes that cost a skipped branch without a tracer, the simulator records them for its
//! tables and pictures. Events are plain values; nothing in the stack depends on an observer.

use crate::flow::FlowId;
use crate::tcp::limited::LimitedBy;

/// Which of a connection's two directions is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Guest to host: the receive window W.
    Receive,
    /// Host to guest: the send limit L.
    Send,
}

/// Why a limit changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The limit was what held the flow back.
    Hit,
    /// The limit was what held the flow back, and measured bytes do not explain it: a careful step.
    Probe,
    /// A careful step gained nothing.
    ProbeFailed,
    /// More than is needed.
    Unused,
    /// The host socket takes bytes more slowly than they come.
    Blocked,
    /// No use for a second.
    Idle,
    /// Something was lost.
    Loss,
    /// A spurious loss: the segment had arrived.
    Undone,
}

/// Why a segment was sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Resend {
    /// RACK: segments sent later have arrived (RFC 8985).
    Rack,
    /// A tail loss probe (RFC 8985, section 7).
    TailProbe,
    /// The retransmission timer expired (RFC 6298).
    Timeout,
    /// Duplicate acknowledgements of a guest without SACK (RFC 5681, RFC 6582).
    Duplicates,
}

/// One thing that happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A limit changed.
    Tuned {
        /// The connection.
        flow: FlowId,
        /// Its direction.
        direction: Direction,
        /// The limit before, bytes.
        from: u32,
        /// The limit now, bytes.
        to: u32,
        /// Cause of the change.
        cause: Cause,
        /// Bytes that moved in one round trip of the link, as measured (X).
        per_rtt: u32,
        /// The round trip used, microseconds.
        rtt_us: u32,
    },
    /// A window was announced in a segment that carries nothing else.
    WindowUpdate {
        /// The connection.
        flow: FlowId,
        /// Bytes the guest may send.
        window: u32,
        /// The same opening was announced before and the guest has not moved.
        repeated: bool,
    },
    /// A segment was sent again.
    Retransmission {
        /// The connection.
        flow: FlowId,
        /// Its sequence number.
        seq: u32,
        /// Its length in bytes.
        len: u32,
        /// Cause of the retransmission.
        why: Resend,
    },
    /// Something else holds the connection back from now on.
    Limited {
        /// The connection.
        flow: FlowId,
        /// Its direction.
        direction: Direction,
        /// Previous limiting factor.
        from: LimitedBy,
        /// New limiting factor.
        to: LimitedBy,
        /// How long the former did, microseconds.
        after_us: u64,
    },
}

/// Receiver of trace events.
pub trait Observer {
    /// Takes one event. Does nothing unless overridden.
    #[inline]
    fn trace(&mut self, event: &Event) {
        let _ = event;
    }
}

/// The observer that ignores every event.
impl Observer for () {}
