//! Promotion of bulk flows: a TCP connection whose guest-facing end becomes a socket of the kernel's.
//!
//! A byte that crosses the link is copied four times. A connection that proves to be bulk is therefore handed
//! to a kernel socket with the same sequence numbers (the driver makes it, by TCP_REPAIR), which splice(2)
//! joins to the host's socket. The flow stays where it is in the flow table, under its id, and its connection
//! keeps the host's socket; it only stops speaking to the guest until the flow returns. All decisions are
//! made here, without I/O; the driver's part are four methods of [`crate::host::Host`] and the answers to
//! them ([`crate::stack::Stack::promotion`] and its neighbours).
//!
//! ```text
//!          a candidate         quiet, seed given          made           confirmed
//!  Idle ---------------> Quieting ------------> Seeded ----------> Trial ----------> Carried
//!   ^                       |                      |                 |                  |
//!   |   not quiet in time,  |              refused |    a segment at |      a segment   |
//!   |   loss, FIN           |                      |    the link,    |   at the link,   |
//!   +<----------------------+<---------------------+    nothing      |    capture, ...  |
//!   |                                                   received     v                  v
//!   +<---------------------------------------------------------- Returning <-----------+
//!         sequence numbers, unacknowledged and unread bytes
//! ```
//!
//! * *Idle.* A connection that has moved [`BulkBounds::bytes`], and of late [`BulkBounds::rate`], is a
//!   candidate ([`candidate`]), unless something was retransmitted or waits beyond a gap.
//! * *Quieting.* Nothing more is read from the host's socket, and the advertised window stays where it is:
//!   its edge never moves left, so the guest may use it up. When all that was sent is acknowledged, all that
//!   has come is written to the host, and the guest has used the window up or was silent, on a link that
//!   was read empty since, the sequence space stands still. If that takes longer than
//!   [`BulkBounds::quiet_max`], it is given up.
//! * *Seeded.* The driver has the [`TcpSeed`] and makes the socket. From here to the return the flow is
//!   *away*: the stack sends nothing for it, reads and writes nothing, and drops what comes for it from the
//!   link (the guest sends it again), but for a reset, which is never sent again and ends the flow.
//! * *Trial.* The socket exists, and the guest's segments are steered to it. Nothing is spliced before the
//!   driver has seen it receive one. If that takes longer than [`BulkBounds::trial`], or a segment comes by
//!   the link after all, the flow is taken back: nothing was lost yet.
//! * *Carried.* The driver splices and reports progress. A segment at the link takes the flow back.
//! * *Returning.* The driver undoes the steering, reads the socket's state and queues, closes it silently,
//!   and gives all to the connection, which goes on. That state was read from a kernel that the guest
//!   has talked to, so it is checked: identity, ranges, and that every byte is accounted for. If a check
//!   fails or memory does not suffice, both sides are reset. Never is a stream continued with a hole.
//!
//! *Places.* No more than [`BulkBounds::flows_max`] flows are away. A candidate beyond them has the flow
//! taken back that has moved nothing for longest, if that is [`BulkBounds::idle_min`].
//!
//! *Ends of streams.* A flow comes back with one stream ended, too: its numbers are those without any FIN,
//! and which FIN there is stands beside them ([`Fins`]). With both ended it stays with the kernel to its end.
//! It never leaves with one ended.
//!
//! Each setback (given up, refused, returned because the kernel socket did not serve) doubles the time before
//! the next attempt. A return for a reason outside of the kernel socket (capture, hand-over, settings,
//! another flow's need of the place) forgets them.
//!
//! *Hand-over.* A snapshot holds no flow that is away: the driver recalls them first
//! ([`crate::stack::Stack::set_bulk`]), and those that it does not wait for are left out, with their sockets.
//! A connection that is being made quiet is idle when it is restored.

pub(crate) mod candidate;
mod seed;

pub use candidate::{Bulk, BulkBounds};
pub use seed::{InvalidSeed, SeedFields, TcpSeed, WindowScales};

/// Reason for which a driver refuses a promotion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The driver cannot promote this flow, now or later: it is not asked again.
    Unsupported,
    /// A capture wants to see its segments.
    Captured,
    /// The process that makes such sockets is gone, or does not answer.
    Broker,
    /// The guest's segments cannot be steered.
    Steering,
    /// The kernel refused to make the socket.
    Socket,
    /// Descriptors, pipes or memory are used up.
    Resources,
}

/// Reason for which a promoted flow is taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReturnReason {
    /// A segment of the flow came by the link.
    Stray,
    /// The kernel socket received nothing in its trial.
    Silent,
    /// A capture began that wants to see its segments.
    Capture,
    /// The guest's segments are no longer steered to the socket.
    Steering,
    /// The process that makes such sockets is gone.
    Broker,
    /// The stack is about to be handed over.
    HandOver,
    /// Promotion was switched off, or the flow has come under limits of a policy.
    Settings,
    /// Descriptors or pipes are used up.
    Resources,
    /// It has moved nothing for [`BulkBounds::idle_min`], and another flow is to have its place.
    Idle,
}

/// A driver's answer to a promotion that it has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromotionOutcome {
    /// Nothing was made, and nothing was sent to the guest.
    Refused(Refusal),
    /// The socket exists, the guest's segments are steered to it, and the link was read until it was empty
    /// after that.
    Made,
    /// The socket has received a segment of the guest's.
    Confirmed,
}

/// Our FIN at a kernel socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OurFin {
    /// The host's stream has not ended, or its end has not come so far.
    #[default]
    None,
    /// Waits behind bytes that the guest's window has no room for.
    Unsent,
    /// Not acknowledged.
    Sent,
    /// Acknowledged, and so is every byte before it.
    Acknowledged,
}

/// Ends of the two streams at a kernel socket, of which one at most has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fins {
    /// The guest's has arrived, behind all that is unread.
    pub guest: bool,
    /// Ours, behind all that is unacknowledged.
    pub ours: OurFin,
}

/// State of a flow that comes back, read from its kernel socket.
#[derive(Debug, Clone, Copy)]
pub struct Returned<'a> {
    /// Its sequence numbers and windows, as if there were no FIN.
    pub seed: &'a TcpSeed,
    /// Its FINs.
    pub fins: Fins,
    /// Bytes from SND.UNA on: sent and not acknowledged, not yet sent, and taken from the host's socket but
    /// not yet given to the kernel socket.
    pub to_guest: &'a [u8],
    /// Bytes before RCV.NXT that the host's socket has not got yet.
    pub to_host: &'a [u8],
}
