//! TX queue budget: the advertised windows of all connections, counted in frames of the guest's transmit
//! queue.
//!
//! Between the guest's kernel and brodo lies a transmit queue of a number of *frames* (`txqueuelen`), of any
//! size. A frame that finds it full is lost, without an error to its sender. Windows are counted in bytes,
//! and 4 MiB are 64 frames or 2,900. So every advertised window also takes a *share* of the queue: the window
//! divided by the payload per frame of this connection, rounded up. A window is advanced only as far as the
//! shares of all connections together stay within four fifths of the queue. The last fifth is for frames
//! without a window: acknowledgements, datagrams, neighbour discovery.
//!
//! *Acknowledgements* arrive while data is sent, on a TAP inside the same call. So the number of data frames
//! sent before the link has been read empty is at most half of the frames outside of all shares, which leaves
//! room for an acknowledgement and a window update for each.
//!
//! *Payload per frame* is measured for each connection: an average that moves by an eighth per frame, less
//! half of how far frames are from it on average, as round-trip times are smoothed (RFC 6298). So a guest
//! whose frames vary, or have begun to shrink, is not trusted with a window that fits only if all are as
//! large as most. It begins with one segment: super-segments are assumed only after one has been seen. Its
//! lower bound is [`PAYLOAD_MIN`]: a request-response program sends one byte per frame, and never many
//! frames.
//!
//! *Sharing*: a connection may take the frames that the others leave, less a quarter of that. A single one
//! gets three quarters of all, n settle at 3/(3n + 1) each, as with the memory budget
//! ([`crate::memory::chunk`]), and a newcomer finds room. A share counts from the segment that advertised the
//! window until the next such segment, and expires when the guest has sent nothing for one to two
//! [`PERIOD`]s: ten thousand idle connections must not slow down the busy one. A guest that resumes after
//! such a pause begins with a small congestion window, and its first segment makes the share count again.
//!
//! *Progress*: a window of one frame is always allowed, even without a share of the queue, plus one segment
//! when less than a segment of it is left; so the bound is exceeded by at most two frames for each
//! connection. Where the guest may use GSO and the queue has room for two frames, half a frame (or one
//! segment) more is allowed, because a window below one super-segment would never let the guest show that it
//! uses GSO. A window whose edge stays is rounded up to the unit of window fields, which may be a frame more
//! too. An advertised window is never withdrawn (RFC 9293, 3.8.6): when frames carry less than before,
//! the share grows and the right edge stays until it has been used up.
//!
//! A link with back pressure, which stops its guest when the queue is full, needs no budget and has no bound
//! here.

use crate::link::NoCredit;
use crate::snapshot::saved::{Invalid, Saved, saved_struct, valid};
use crate::snapshot::v1::{ShareV1, TxQueueV1};
use crate::time::{Duration, Instant};

/// Least payload assumed per frame, in bytes, unless a segment is smaller: a segment on Ethernet. Otherwise
/// the rest of a window that is no whole number of segments would make the next window smaller.
const PAYLOAD_MIN: u16 = 1460;
/// Payload per frame, in bytes, from which a guest is known to send super-segments.
const PAYLOAD_LEARNT: u32 = 32 << 10;
/// Divisor of the part that a connection leaves of the frames it might share.
const LEAVE: u32 = 4;
/// Lifetime of a share: one not renewed in this period or the one before expires. Longer than the shortest
/// retransmission timeout of guests (200 ms), after which they restart with a small congestion window.
const PERIOD: Duration = Duration::from_millis(250);

/// Use of the TX queue by windows, in frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxQueueUsage {
    /// Frames that the shares of all connections together may cover.
    pub bound: u32,
    /// Frames that they cover.
    pub allotted: u32,
}

/// Share of one connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TxQueueShare {
    /// Frames that its window may bring.
    frames: u16,
    /// Period in which the share was renewed last.
    period: u16,
    /// Payload of a frame, measured: mean and mean deviation, bytes.
    mean: u16,
    deviation: u16,
    /// Lower bound of the payload per frame.
    payload_min: u16,
}

impl TxQueueShare {
    /// No share yet, of a connection with segments of `mss` bytes.
    pub(crate) fn new(mss: u16) -> Self {
        Self { frames: 0, period: 0, mean: mss, deviation: 0, payload_min: mss.min(PAYLOAD_MIN) }
    }

    /// Estimated payload per frame, bytes.
    fn payload(self) -> u32 {
        self.mean.saturating_sub(self.deviation / 2).max(self.payload_min).into()
    }

    /// Measures a frame with this number of bytes of payload.
    pub(crate) fn measure(&mut self, bytes: usize) {
        let error = bytes.min(usize::from(u16::MAX)) as i32 - i32::from(self.mean);
        let deviation = i32::from(self.deviation);
        self.mean = (i32::from(self.mean) + error / 8) as u16;
        self.deviation = (deviation + (error.abs() - deviation) / 4) as u16;
    }

    /// Frames that a window of so many bytes may bring. The rest is one too, however short: Linux holds it
    /// back only behind another short one that is not acknowledged (Minshall's variant of Nagle's algorithm,
    /// tcp_minshall_check()).
    fn frames_of(self, window: u32) -> u16 {
        u16::try_from(window.div_ceil(self.payload())).unwrap_or(u16::MAX)
    }
}

/// The shares of all connections.
#[derive(Debug, Default)]
pub(crate) struct TxQueueBudget {
    /// Length of the TX queue in frames, if there is a bound, and the number of them that shares may cover.
    frames: Option<u32>,
    bound: u32,
    /// Frames of data sent since the link was found empty.
    sent: u32,
    /// Frames of shares renewed in this period, and of those renewed only in the one before.
    allotted: [u32; 2],
    period: u16,
    period_ends: Instant,
}

impl TxQueueBudget {
    /// Sets the length of the TX queue in frames; `None` if it loses none.
    pub(crate) fn set_len(&mut self, frames: Option<u32>) {
        self.frames = frames;
        self.bound = (u64::from(frames.unwrap_or(0)) * 4 / 5).max(1) as u32;
        if frames.is_none() {
            self.allotted = [0; 2];
        }
    }

    /// Present use, if there is a bound.
    pub(crate) fn tx_queue_usage(&self) -> Option<TxQueueUsage> {
        self.frames.map(|_| TxQueueUsage { bound: self.bound, allotted: self.allotted() })
    }

    /// Frames of all shares.
    const fn allotted(&self) -> u32 {
        self.allotted[0] + self.allotted[1]
    }

    /// Frames of data that may be sent before the link is read.
    pub(crate) fn sendable(&self) -> u32 {
        let Some(frames) = self.frames else { return u32::MAX };
        (frames.saturating_sub(self.allotted()) / 2).max(1).saturating_sub(self.sent)
    }

    /// Reserves a slot for the acknowledgement of a frame of data about to be sent.
    pub(crate) fn reserve_ack_slot(&mut self) -> Result<(), NoCredit> {
        if self.sendable() == 0 {
            return Err(NoCredit);
        }
        self.sent = self.sent.saturating_add(1);
        let within = self.frames.is_none_or(|frames| self.sent <= (frames / 2).max(1));
        debug_assert!(within, "frames of data leave no room for their acknowledgements");
        Ok(())
    }

    /// Notes that the link was read until it was empty.
    pub(crate) fn drained(&mut self) {
        self.sent = 0;
    }

    /// Ends the period if its time is over; call as time passes. A period ends at most once per call, so that
    /// a pause of ours, in which no share could be renewed, does not expire frames still in the queue.
    pub(crate) fn advance(&mut self, now: Instant) {
        if now >= self.period_ends {
            self.period = self.period.wrapping_add(1);
            self.allotted = [0, self.allotted[0]];
            self.period_ends = now + PERIOD;
        }
    }

    /// Largest window, in bytes, that the share may grow to; `u32::MAX` without a bound. `tso`: the guest may
    /// send super-segments of segments of `mss` bytes.
    pub(crate) fn window_max(&self, share: TxQueueShare, tso: bool, mss: u16) -> u32 {
        let Some(frames) = self.frames else { return u32::MAX };
        let others = self.allotted() - self.counted(share).map_or(0, |(_, frames)| frames);
        let left = self.bound.saturating_sub(others);
        let payload = share.payload();
        let may_grow = tso && others + 2 <= frames && payload < PAYLOAD_LEARNT;
        let more = if may_grow { (payload / 2).max(mss.into()) } else { 0 };
        (left - left.div_ceil(LEAVE)).saturating_mul(payload).max(payload + more)
    }

    /// Renews a share for an advertised window of `window` bytes.
    pub(crate) fn renew(&mut self, share: &mut TxQueueShare, window: u32) {
        if self.frames.is_none() {
            return;
        }
        if let Some((age, frames)) = self.counted(*share) {
            self.allotted[age] -= frames;
        }
        (share.frames, share.period) = (share.frames_of(window), self.period);
        self.allotted[0] += u32::from(share.frames);
    }

    /// Period in which a share is counted, and its frames.
    fn counted(&self, share: TxQueueShare) -> Option<(usize, u32)> {
        let age = usize::from(self.period.wrapping_sub(share.period));
        // A share as old as the counter is wide looks new; the error is corrected within two periods.
        let frames = u32::from(share.frames).min(*self.allotted.get(age)?);
        Some((age, frames))
    }
}

saved_struct!(TxQueueShare as ShareV1 { frames, period, mean, deviation, payload_min } if |share| {
    share.payload_min > 0
});

impl Saved<TxQueueV1> for TxQueueBudget {
    fn save(&self) -> TxQueueV1 {
        let Self { frames, bound: _, sent, allotted, period, period_ends } = self;
        let period_ends = period_ends.save();
        TxQueueV1 { frames: *frames, sent: *sent, allotted: *allotted, period: *period, period_ends }
    }

    fn restore(saved: TxQueueV1) -> Result<Self, Invalid> {
        let TxQueueV1 { frames, sent, allotted, period, period_ends } = saved;
        valid(allotted.iter().all(|&frames| frames < 1 << 30))?;
        let mut queue = Self::default();
        queue.set_len(frames);
        Ok(Self { sent, allotted, period, period_ends: Instant::restore(period_ends)?, ..queue })
    }
}

#[cfg(test)]
mod tests;
