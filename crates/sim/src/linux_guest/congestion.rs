//! Congestion control of the guest: CUBIC (RFC 9438) or Reno (RFC 5681), in segments and fractions of them.
//!
//! CUBIC is what Linux guests use by default. HyStart is left out: it ends slow start when the round trip
//! grows, and on these paths it would only hide the burst that a queue has to absorb. Only additions,
//! multiplications and divisions of 64-bit floats are used, which are the same on every machine.

use brodo_core::time::{Duration, Instant};

/// The initial window in segments (RFC 6928).
const INITIAL: f64 = 10.0;
/// CUBIC's constants: its growth per second cubed, and its multiplicative decrease.
const C: f64 = 0.4;
const BETA: f64 = 0.7;

/// Congestion control rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 5681.
    Reno,
}

/// CUBIC's view since the last loss.
#[derive(Debug, Clone, Copy)]
struct Epoch {
    since: Instant,
    /// CUBIC's K: seconds until the window is back at its size before the loss.
    k: f64,
    origin: f64,
    /// Reno's window at this time, a lower bound.
    reno: f64,
}

/// The congestion window.
#[derive(Debug)]
pub(super) struct Congestion {
    algorithm: Algorithm,
    cwnd: f64,
    ssthresh: f64,
    /// The window at the last loss.
    w_max: f64,
    epoch: Option<Epoch>,
}

impl Congestion {
    pub(super) fn new(algorithm: Algorithm) -> Self {
        Self { algorithm, cwnd: INITIAL, ssthresh: f64::INFINITY, w_max: 0.0, epoch: None }
    }

    /// Segments that may be in flight.
    pub(super) fn window(&self) -> u64 {
        (self.cwnd as u64).max(1)
    }

    pub(super) fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// The window after a recovery.
    pub(super) fn ssthresh(&self) -> f64 {
        self.ssthresh
    }

    /// `acked` segments arrived while the window was in use.
    pub(super) fn acknowledged(&mut self, now: Instant, acked: f64, srtt: Duration) {
        let mut left = acked;
        if self.in_slow_start() {
            let grown = (self.cwnd + left).min(self.ssthresh);
            left -= grown - self.cwnd;
            self.cwnd = grown;
        }
        if left <= 0.0 {
            return;
        }
        match self.algorithm {
            Algorithm::Reno => self.cwnd += left / self.cwnd,
            Algorithm::Cubic => self.cubic(now, left, srtt),
        }
    }

    fn cubic(&mut self, now: Instant, acked: f64, srtt: Duration) {
        let cwnd = self.cwnd;
        let w_max = self.w_max.max(cwnd);
        let epoch = self.epoch.get_or_insert_with(|| Epoch {
            since: now,
            k: cube_root((w_max - cwnd) / C),
            origin: w_max,
            reno: cwnd,
        });
        let t = (now - epoch.since + srtt).as_nanos() as f64 / 1e9 - epoch.k;
        let target = (epoch.origin + C * t * t * t).clamp(cwnd, 1.5 * cwnd);
        let alpha = if epoch.reno < epoch.origin { 3.0 * (1.0 - BETA) / (1.0 + BETA) } else { 1.0 };
        epoch.reno += alpha * acked / cwnd;
        self.cwnd = (cwnd + (target - cwnd) / cwnd * acked).max(epoch.reno);
    }

    /// The first loss of this round trip.
    pub(super) fn lost(&mut self) {
        let (w_max, left) = match self.algorithm {
            // Fast convergence: a flow that is losing ground yields some more of it.
            Algorithm::Cubic if self.cwnd < self.w_max => (self.cwnd * (1.0 + BETA) / 2.0, BETA),
            Algorithm::Cubic => (self.cwnd, BETA),
            Algorithm::Reno => (self.cwnd, 0.5),
        };
        self.w_max = w_max;
        self.ssthresh = (self.cwnd * left).max(2.0);
        self.epoch = None;
    }

    /// Sets the window, in a recovery.
    pub(super) fn set(&mut self, segments: f64) {
        self.cwnd = segments.max(1.0);
    }
}

/// The cube root of a number that is not negative, by Newton's method.
fn cube_root(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    let mut y = if x > 1.0 { x } else { 1.0 };
    for _ in 0..200 {
        let next = (2.0 * y + x / (y * y)) / 3.0;
        if next >= y {
            break;
        }
        y = next;
    }
    y
}

#[cfg(test)]
mod tests {
    //! Windows against the formulas of the RFCs.

    use super::*;

    #[test]
    fn cube_roots() {
        for x in [0.001, 0.5, 1.0, 8.0, 27.0, 4600.0] {
            let y = cube_root(x);
            assert!((y * y * y - x).abs() < 1e-9 * x.max(1.0), "{y}^3 is not {x}");
        }
    }

    #[test]
    fn cubic_is_back_at_the_old_window_after_k() {
        let rtt = Duration::from_millis(100);
        let mut c = Congestion::new(Algorithm::Cubic);
        c.set(1000.0);
        c.lost();
        c.set(c.ssthresh());
        assert!((c.cwnd - 700.0).abs() < 1e-9);
        let k = cube_root(300.0 / C);
        let rounds = (k / 0.1) as u64;
        for i in 0..rounds {
            c.acknowledged(Instant::from_ms(i * 100), c.cwnd, rtt);
        }
        assert!((980.0..1005.0).contains(&c.cwnd), "{} segments after {k} s", c.cwnd);
    }

    #[test]
    fn reno_grows_by_one_segment_per_round_trip() {
        let mut c = Congestion::new(Algorithm::Reno);
        c.set(100.0);
        c.lost();
        c.set(c.ssthresh());
        for _ in 0..10 {
            c.acknowledged(Instant::ZERO, c.cwnd, Duration::ZERO);
        }
        assert!((c.cwnd - 60.0).abs() < 0.5, "{}", c.cwnd);
    }
}
