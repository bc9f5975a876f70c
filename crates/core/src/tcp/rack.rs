//! RACK: detection of lost segments by the times at which they were sent (RFC 8985, section 6).
//!
//! A range is lost when something sent later has arrived and a round trip and a little more have passed since
//! it was sent. The little more, the reordering window, is nothing until the guest has been seen to get
//! segments out of order, so that on a link of one hop a loss is known as soon as what follows it is
//! acknowledged. Reordering opens it to a quarter of the least round trip, and every round trip in which the
//! guest reports duplicates (RFC 2883) by a quarter more.

use super::scoreboard::{Range, Scoreboard};
use crate::time::{Duration, Instant};
use crate::wire::tcp::Seq;

/// Selectively acknowledged segments that mean a loss even where reordering is known (RFC 8985, 6.2, step 4:
/// DupThresh).
const DUP_THRESH: u32 = 3;
/// Recoveries without duplicates after which the reordering window is as at the beginning.
const PERSIST: u8 = 16;
/// Maximum of the reordering window, in quarters of a round trip; the smoothed round trip bounds it besides.
const QUARTERS_MAX: u8 = 20;

/// RACK's memory of one connection.
#[derive(Debug, Default)]
pub(super) struct Rack {
    /// Most recently sent range that was delivered: its send time and its end (RACK.xmit_ts, RACK.end_seq).
    newest: Option<(Instant, Seq)>,
    /// Round trip of `newest` (RACK.rtt).
    rtt_ns: u64,
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
    pub(super) fn delivered(&mut self, now: Instant, range: &Range, min_rtt: Duration) {
        let rtt = now - range.at;
        if range.resent && rtt < min_rtt {
            // The acknowledgement is for the first transmission.
            return;
        }
        self.rtt_ns = rtt.as_nanos() as u64;
        let sent = (range.at, range.end());
        if self.newest.is_none_or(|newest| after(sent, newest)) {
            self.newest = Some(sent);
        }
        match self.fack {
            Some(fack) if range.end().le(fack) => self.reordering |= !range.resent && range.end().lt(fack),
            _ => self.fack = Some(range.end()),
        }
    }

    /// Duplicate reported by the guest; `nxt` is SND.NXT. Widens the reordering window once per round trip.
    pub(super) fn duplicate(&mut self, una: Seq, nxt: Seq) {
        if self.widened_until.is_some_and(|until| una.lt(until)) {
            return;
        }
        self.widened_until = Some(nxt);
        self.widened = (self.widened + 1).min(QUARTERS_MAX);
        self.persist = PERSIST;
    }

    /// End of a recovery.
    pub(super) fn recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.widened = 0;
        }
    }

    /// Reordering window (step 4).
    fn window(&self, board: &Scoreboard, mss: u32, recovering: bool, rtts: (Duration, Duration)) -> Duration {
        let (min_rtt, srtt) = rtts;
        if !self.reordering && (recovering || board.sacked() >= DUP_THRESH * mss) {
            return Duration::ZERO;
        }
        (min_rtt / 4 * (1 + u32::from(self.widened))).min(srtt)
    }

    /// Marks lost segments as such (step 5), and gives how long to wait until more may be. `rtts` are
    /// the link's least and smoothed round trip.
    pub(super) fn detect(
        &self,
        now: Instant,
        board: &mut Scoreboard,
        mss: u32,
        recovering: bool,
        rtts: (Duration, Duration),
    ) -> Option<Duration> {
        let newest = self.newest?;
        let patience = Duration::from_nanos(self.rtt_ns) + self.window(board, mss, recovering, rtts);
        let mut wait = None;
        board.mark_lost(|range| {
            if !after(newest, (range.at, range.end())) {
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
    pub(super) fn timed_out(&self, now: Instant, board: &mut Scoreboard, srtt: Duration) {
        let first = board.first().map(|range| range.start);
        let patience = Duration::from_nanos(self.rtt_ns).max(srtt);
        board.mark_lost(|range| Some(range.start) == first || now - range.at >= patience);
    }
}

/// Whether `a` was sent after `b`.
fn after(a: (Instant, Seq), b: (Instant, Seq)) -> bool {
    a.0 > b.0 || (a.0 == b.0 && a.1.gt(b.1))
}
