//! State of a sender that waits for an acknowledgement or repairs a loss ([`super::recovery`] has the rules).

use crate::trace::Resend;
use crate::wire::tcp::Seq;
use core::num::NonZeroU32;

/// Purpose of the sender's timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timer {
    /// An acknowledgement; without it the first segment is sent again (RFC 6298).
    Retransmit,
    /// An acknowledgement; without it the last segment is sent again (RFC 8985, section 7).
    TailProbe,
    /// Reordering window: a segment still missing at its end is lost (RFC 8985, 6.2).
    Reorder,
    /// A window that is closed; it is probed (RFC 9293, 3.8.6.1).
    Window,
}

/// State to restore after a spurious recovery.
#[derive(Debug, Clone, Copy)]
pub(super) struct Undo {
    /// The limit before, bytes.
    pub(super) limit: NonZeroU32,
    /// Bytes sent again that the guest has not reported as duplicates.
    pub(super) resent: u32,
}

/// A loss under repair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recovery {
    /// It has ended when this is acknowledged: SND.NXT when it began.
    pub(super) until: Seq,
    /// How the loss was seen.
    pub(crate) why: Resend,
    /// Most sequence space in flight: after a time-out nothing is known of the path, and it grows with what
    /// is acknowledged. Otherwise `u32::MAX`.
    pub(super) burst: u32,
}
