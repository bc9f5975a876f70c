//! Trace events of a connection: every tuning decision, window update, retransmission, and every change of
//! its limiting factor.
//!
//! Events go to an [`Observer`], which does nothing unless it implements [`Observer::trace`]: on Linux they
//! become static probes that cost a skipped branch without a tracer, the simulator records them for its
//! tables and pictures. Events are plain values; nothing in the stack depends on an observer.

use crate::flow::FlowId;
use crate::tcp::limiting_factor::LimitingFactor;
pub use crate::tcp::{Cause, Direction};

/// Cause of a retransmission.
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

/// One event.
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
    /// A window advertised in a segment without data.
    WindowUpdate {
        /// The connection.
        flow: FlowId,
        /// Bytes the guest may send.
        window: u32,
        /// Repeated: the same opening was advertised before and the guest has not moved.
        repeated: bool,
    },
    /// A retransmitted segment.
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
    /// A change of the limiting factor.
    LimitingFactor {
        /// The connection.
        flow: FlowId,
        /// Its direction.
        direction: Direction,
        /// Previous limiting factor.
        from: LimitingFactor,
        /// New limiting factor.
        to: LimitingFactor,
        /// Duration of the previous one, microseconds.
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
