//! Round-trip time of the guest link, and the retransmission time-out made of it (RFC 6298).
//!
//! All connections of a link share one path of one hop, so they share one estimate: every handshake and every timed
//! segment of any of them is a sample. Retransmitted segments are never timed (Karn): the sender forgets its timed
//! segment when it retransmits.

use crate::time::Duration;

/// Bounds of the time-out. The lower one is Linux's: a guest may delay its acknowledgement by 40 ms and be
/// descheduled for longer.
const RTO_MIN: Duration = Duration::from_millis(200);
const RTO_MAX: Duration = Duration::from_secs(60);
/// Before the first sample (RFC 6298, 2.1).
const RTO_INITIAL: Duration = Duration::from_secs(1);

/// Smoothed round-trip time of a link.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LinkRtt {
    /// Smoothed time and mean deviation; `None` before the first sample.
    estimate: Option<(Duration, Duration)>,
}

impl LinkRtt {
    /// Takes one sample (RFC 6298, 2.2 and 2.3).
    pub(crate) fn sample(&mut self, rtt: Duration) {
        self.estimate = Some(match self.estimate {
            None => (rtt, rtt / 2),
            Some((srtt, var)) => ((srtt * 7 + rtt) / 8, (var * 3 + srtt.abs_diff(rtt)) / 4),
        });
    }

    /// The smoothed time, if there was a sample.
    pub(crate) fn srtt(&self) -> Option<Duration> {
        self.estimate.map(|(srtt, _)| srtt)
    }

    /// The least round-trip time of late, if there was a sample.
    pub(crate) fn min(&self) -> Option<Duration> {
        self.srtt()
    }

    /// The time-out after `backoff` expiries in a row (RFC 6298, 5.5).
    pub(crate) fn rto(&self, backoff: u8) -> Duration {
        let base = self.estimate.map_or(RTO_INITIAL, |(srtt, var)| (srtt + var * 4).clamp(RTO_MIN, RTO_MAX));
        (base * (1 << backoff.min(10))).min(RTO_MAX)
    }
}
