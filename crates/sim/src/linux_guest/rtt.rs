//! The guest's estimate of the round trip (RFC 6298), and its minimum.

use brodo_core::time::Duration;

/// Before the first sample (RFC 6298, 2.1).
const RTO_INITIAL: Duration = Duration::from_secs(1);

/// Smoothed round trip, its deviation, and the least.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RoundTrip {
    smoothed: Option<(Duration, Duration)>,
    min: Option<Duration>,
}

impl RoundTrip {
    /// Takes a sample (RFC 6298, 2.2 and 2.3).
    pub(super) fn sample(&mut self, rtt: Duration) {
        self.min = Some(self.min.map_or(rtt, |min| min.min(rtt)));
        self.smoothed = Some(match self.smoothed {
            None => (rtt, rtt / 2),
            Some((srtt, var)) => ((srtt * 7 + rtt) / 8, (var * 3 + srtt.abs_diff(rtt)) / 4),
        });
    }

    /// The smoothed round trip; zero before the first sample.
    pub(super) fn srtt(&self) -> Duration {
        self.smoothed.map_or(Duration::ZERO, |(srtt, _)| srtt)
    }

    /// The least round trip; zero before the first sample.
    pub(super) fn min(&self) -> Duration {
        self.min.unwrap_or(Duration::ZERO)
    }

    /// The retransmission time-out. As on Linux the deviation counts for at least `floor`.
    pub(super) fn rto(&self, floor: Duration) -> Duration {
        self.smoothed.map_or(RTO_INITIAL, |(srtt, var)| srtt + (var * 4).max(floor))
    }
}
