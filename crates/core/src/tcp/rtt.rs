//! Round-trip time of the guest link: the retransmission time-out (RFC 6298) and the least time of late, by
//! which the automatic buffers measure.
//!
//! All connections of a link share one path of one hop, so they share one estimate: every handshake and every
//! timed segment of any of them is a sample. Retransmitted segments are never timed (Karn): the sender
//! forgets its timed segment when it retransmits.
//!
//! The minimum is that of the last ten seconds, with one exception. A flow that its limit holds back keeps up
//! to twice the path's capacity in flight, half of it in a queue on the link, so its own segments see a round
//! trip twice as long. Were such samples to replace an old minimum, every ten seconds would double the round
//! trip, thereby the limit, and thereby the queue (`tests::a_queue_of_our_own_does_not_feed_itself` has the
//! figures). So a sample from a loaded link may lower the minimum and never raise it; a path that has really
//! become longer while every second was busy is found by the probes of [`super::autosize`].

use crate::snapshot::saved::saved_struct;
use crate::snapshot::v1::{RttV1, WindowedMinV1};
use crate::time::{Duration, Instant};

/// Least margin of the time-out above a round trip. A guest may delay its acknowledgement by 200
/// ms, a tick of its timer, and the time until it gets a processor; and on a link whose round trip never
/// varies the deviation leaves no room for that. Linux has 200 ms.
const MARGIN_MIN: Duration = Duration::from_millis(220);
/// Maximum of the time-out (RFC 6298, 2.5: "at least 60 seconds").
const RTO_MAX: Duration = Duration::from_secs(60);
/// Time-out before the first sample (RFC 6298, 2.1).
const RTO_INITIAL: Duration = Duration::from_secs(1);
/// Age at which a minimum no longer counts.
const WINDOW: Duration = Duration::from_secs(10);
/// Round-trip time for buffer tuning before the first sample.
const UNKNOWN: Duration = Duration::from_micros(500);
/// Resolution of samples: a guest may answer within the turn of the segment.
const RESOLUTION: Duration = Duration::from_micros(20);
/// Least wait before a repetition: a tick of the timer wheel.
const REPEAT_MIN: Duration = Duration::from_millis(1);

/// Round-trip time of a link.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LinkRtt {
    /// Smoothed time and mean deviation; `None` before the first sample.
    estimate: Option<(Duration, Duration)>,
    least: WindowedMin,
    /// Last time at which a limit held a flow back.
    loaded_at: Option<Instant>,
}

impl LinkRtt {
    /// Sample (RFC 6298, 2.2 and 2.3) of a segment acknowledged at `now`.
    pub(crate) fn sample(&mut self, now: Instant, rtt: Duration) {
        let (srtt, var) = match self.estimate {
            None => (rtt, rtt / 2),
            Some((srtt, var)) => ((srtt * 7 + rtt) / 8, (var * 3 + srtt.abs_diff(rtt)) / 4),
        };
        self.estimate = Some((srtt, var));
        // A segment sent within a round trip of the load still met its queue.
        let loaded = self.loaded_at.is_some_and(|at| now - at <= rtt + srtt * 2);
        if !loaded || self.least.get().is_none_or(|least| rtt < least) {
            self.least.sample(now, rtt);
        }
    }

    /// Load at `now`: a limit holds a flow back, so there may be a queue on the link.
    pub(crate) fn loaded(&mut self, now: Instant) {
        self.loaded_at = Some(now);
    }

    /// Smoothed round-trip time (SRTT), if there was a sample.
    pub(crate) fn srtt(&self) -> Option<Duration> {
        self.estimate.map(|(srtt, _)| srtt)
    }

    /// Least round-trip time of late, if there was a sample.
    pub(crate) fn min(&self) -> Option<Duration> {
        self.least.get()
    }

    /// Round trip by which buffers are measured (R*): the minimum, and not below the resolution of a clock
    /// that is read once per turn.
    pub(crate) fn round_trip(&self) -> Duration {
        self.min().unwrap_or(UNKNOWN).max(RESOLUTION)
    }

    /// Retransmission time-out (RTO) after `backoff` expiries in a row (RFC 6298, 5.5).
    pub(crate) fn rto(&self, backoff: u8) -> Duration {
        let base = self.estimate.map_or(RTO_INITIAL, |(srtt, var)| srtt + (var * 4).max(MARGIN_MIN));
        (base * (1 << backoff.min(10))).min(RTO_MAX)
    }

    /// Wait for the answer to a segment that costs little to repeat, after `repeats` repetitions.
    pub(crate) fn repeat_after(&self, repeats: u8) -> Duration {
        let base = self.estimate.map_or(RTO_INITIAL, |(srtt, var)| (srtt + var * 4).max(REPEAT_MIN));
        (base * (1 << repeats.min(10))).min(RTO_MAX)
    }
}

/// Windowed minimum: the least sample of the last [`WINDOW`], from three of them: the best, the best after
/// it, and the best after that (Kathleen Nichols' filter).
#[derive(Debug, Clone, Copy, Default)]
struct WindowedMin {
    best: [(Instant, Duration); 3],
    any: bool,
}

impl WindowedMin {
    fn get(&self) -> Option<Duration> {
        self.any.then_some(self.best[0].1)
    }

    fn sample(&mut self, now: Instant, rtt: Duration) {
        let new = (now, rtt);
        if !self.any || rtt <= self.best[0].1 || now - self.best[2].0 > WINDOW {
            (self.best, self.any) = ([new; 3], true);
            return;
        }
        if rtt <= self.best[1].1 {
            (self.best[1], self.best[2]) = (new, new);
        } else if rtt <= self.best[2].1 {
            self.best[2] = new;
        }
        self.age(now, new);
    }

    /// Ageing: lets the best go when it is too old; keeps the others spread over the window, so that there is
    /// one to follow it.
    fn age(&mut self, now: Instant, new: (Instant, Duration)) {
        if now - self.best[0].0 > WINDOW {
            self.best = [self.best[1], self.best[2], new];
            if now - self.best[0].0 > WINDOW {
                self.best = [self.best[1], new, new];
            }
        } else if self.best[1].0 == self.best[0].0 && now - self.best[1].0 > WINDOW / 4 {
            (self.best[1], self.best[2]) = (new, new);
        } else if self.best[2].0 == self.best[1].0 && now - self.best[2].0 > WINDOW / 2 {
            self.best[2] = new;
        }
    }
}

saved_struct!(LinkRtt as RttV1 { estimate, least, loaded_at });
saved_struct!(WindowedMin as WindowedMinV1 { best, any });

#[cfg(test)]
mod tests;
