//! RACK: detection of lost segments by the times at which they were sent (RFC 8985, section 6).
//!
//! A range is lost when something sent later has arrived and a round trip and a little more have passed since
//! it was sent. The little more, the reordering window, is nothing until the guest has been seen to get
//! segments out of order, so that on a link of one hop a loss is known as soon as what follows it is
//! acknowledged. Reordering opens it to a quarter of the least round trip, and every round trip in which the
//! guest reports duplicates (RFC 2883) by a quarter more.

use super::scoreboard::{Range, Scoreboard};
use crate::snapshot::saved::saved_struct;
use crate::snapshot::v1::{RackV1, SentV1};
use crate::time::{Duration, Instant};
use crate::wire::tcp::Seq;

/// Selectively acknowledged segments that mean a loss even where reordering is known (RFC 8985, 6.2, step 4:
/// DupThresh).
const DUP_THRESH: u32 = 3;
/// Recoveries without duplicates after which the reordering window is as at the beginning.
const PERSIST: u8 = 16;
/// Maximum of the reordering window, in quarters of a round trip; the smoothed round trip bounds it besides.
const QUARTERS_MAX: u8 = 20;

/// Round trips of the guest link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundTrips {
    pub(crate) min: Duration,
    pub(crate) smoothed: Duration,
}

/// A transmission: its time, and the end of its range.
#[derive(Debug, Clone, Copy)]
struct Sent {
    at: Instant,
    end: Seq,
}

impl Sent {
    /// The last transmission of a range.
    fn of(range: &Range) -> Self {
        Self { at: range.at, end: range.end() }
    }

    /// Whether it was sent after `other`.
    fn is_after(self, other: Self) -> bool {
        self.at > other.at || (self.at == other.at && self.end.gt(other.end))
    }
}

/// RACK's memory of one connection.
#[derive(Debug, Default)]
pub(crate) struct Rack {
    /// Most recently sent range that was delivered: its send time and its end (RACK.xmit_ts, RACK.end_seq).
    newest: Option<Sent>,
    /// Round trip of `newest` (RACK.rtt), at most 4.2 s.
    rtt_ns: u32,
    /// Highest sequence number that has arrived (RACK.fack).
    fack: Option<Seq>,
    /// Reordering seen (RACK.reordering_seen).
    reordering: bool,
    /// Quarters of a round trip in the reordering window beyond the first.
    widened: u8,
    /// Recoveries for which the widening stays (RACK.reo_wnd_persist).
    persist: u8,
    /// No further widening until this is acknowledged.
    widened_until: Option<Seq>,
}

impl Rack {
    /// Delivery of a range that was not known to have arrived (steps 2 and 3).
    pub(crate) fn delivered(&mut self, now: Instant, range: &Range, min_rtt: Duration) {
        let rtt = now - range.at;
        if range.resent && rtt < min_rtt {
            // The acknowledgement is for the first transmission.
            return;
        }
        self.rtt_ns = u32::try_from(rtt.as_nanos()).unwrap_or(u32::MAX);
        let sent = Sent::of(range);
        if self.newest.is_none_or(|newest| sent.is_after(newest)) {
            self.newest = Some(sent);
        }
        match self.fack {
            Some(fack) if range.end().le(fack) => self.reordering |= !range.resent && range.end().lt(fack),
            _ => self.fack = Some(range.end()),
        }
    }

    /// Duplicate reported by the guest; `nxt` is SND.NXT. Widens the reordering window once per round trip.
    pub(crate) fn duplicate(&mut self, una: Seq, nxt: Seq) {
        if self.widened_until.is_some_and(|until| una.lt(until)) {
            return;
        }
        self.widened_until = Some(nxt);
        self.widened = (self.widened + 1).min(QUARTERS_MAX);
        self.persist = PERSIST;
    }

    /// End of a recovery.
    pub(crate) fn recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.widened = 0;
        }
    }

    /// Reordering window (step 4).
    fn window(&self, board: &Scoreboard, mss: u32, recovering: bool, rtts: RoundTrips) -> Duration {
        if !self.reordering && (recovering || board.sacked() >= DUP_THRESH * mss) {
            return Duration::ZERO;
        }
        (rtts.min / 4 * (1 + u32::from(self.widened))).min(rtts.smoothed)
    }

    /// Marks lost segments as such (step 5), and gives how long to wait until more may be.
    pub(crate) fn detect(
        &self,
        now: Instant,
        board: &mut Scoreboard,
        mss: u32,
        recovering: bool,
        rtts: RoundTrips,
    ) -> Option<Duration> {
        let newest = self.newest?;
        let patience = Duration::from_nanos(self.rtt_ns.into()) + self.window(board, mss, recovering, rtts);
        let mut wait = None;
        board.mark_lost(|range| {
            if !newest.is_after(Sent::of(range)) {
                return false;
            }
            let age = now - range.at;
            let left = patience.saturating_sub(age);
            if !left.is_zero() {
                wait = wait.max(Some(left));
            }
            left.is_zero()
        });
        wait
    }

    /// Expiry of the retransmission timer: the first range is lost, and every one that is old enough (6.3).
    pub(crate) fn timed_out(&self, now: Instant, board: &mut Scoreboard, srtt: Duration) {
        let first = board.first().map(|range| range.start);
        let patience = Duration::from_nanos(self.rtt_ns.into()).max(srtt);
        board.mark_lost(|range| Some(range.start) == first || now - range.at >= patience);
    }
}

saved_struct!(Sent as SentV1 { at, end });
saved_struct!(Rack as RackV1 {
    newest, rtt_ns, fack, reordering, widened, persist, widened_until,
} if |rack| rack.widened <= QUARTERS_MAX);
