//! The least round trip against its definition, and the time-out.

use super::{LinkRtt, WINDOW};
use crate::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);

fn at(ms: u64) -> Instant {
    Instant::from_ms(ms)
}

#[test]
fn the_minimum_is_that_of_ten_seconds() {
    let mut rtt = LinkRtt::default();
    assert_eq!(rtt.min(), None);
    rtt.sample(at(0), 20 * MS);
    rtt.sample(at(1000), 10 * MS);
    for second in 2..=10 {
        rtt.sample(at(second * 1000), 30 * MS);
        assert_eq!(rtt.min(), Some(10 * MS), "after {second} s");
    }
    rtt.sample(at(10_500), 25 * MS);
    rtt.sample(at(11_001), 40 * MS);
    assert_eq!(rtt.min(), Some(25 * MS));
    rtt.sample(at(12_000), 5 * MS);
    assert_eq!(rtt.min(), Some(5 * MS));
}

/// For all samples, the filter is never below the true minimum of the window, nor more than that of its last
/// quarter.
#[test]
fn the_minimum_is_within_the_windows_own() {
    let mut state = 1_u64;
    let mut rtt = LinkRtt::default();
    let mut all = Vec::new();
    for i in 0..5000_u64 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let sample = MS * (1 + (state >> 40) as u32 % 1000);
        let now = at(i * 37);
        rtt.sample(now, sample);
        all.push((now, sample));
        let least = |window: Duration| all.iter().filter(|(t, _)| now - *t <= window).map(|s| s.1).min();
        let min = rtt.min();
        assert!(min >= least(WINDOW) && min <= least(WINDOW / 4), "sample {i}, seed 1");
    }
}

#[test]
fn a_sample_from_a_loaded_link_lowers_the_minimum_and_never_raises_it() {
    let mut rtt = LinkRtt::default();
    rtt.sample(at(0), 10 * MS);
    for ms in (0..60_000).step_by(10) {
        rtt.loaded(at(ms));
        rtt.sample(at(ms), 20 * MS);
    }
    assert_eq!(rtt.min(), Some(10 * MS));
    rtt.sample(at(60_000), 9 * MS);
    assert_eq!(rtt.min(), Some(9 * MS));
    // An idle link again: now the longer path counts.
    rtt.sample(at(70_100), 20 * MS);
    assert_eq!(rtt.min(), Some(20 * MS));
}

#[test]
fn the_time_out_is_bounded_backs_off_and_resets() {
    let mut rtt = LinkRtt::default();
    assert_eq!(rtt.rto(0), Duration::from_secs(1));
    rtt.sample(at(0), MS);
    assert_eq!(rtt.rto(0), Duration::from_millis(221));
    assert_eq!(rtt.rto(1), Duration::from_millis(442));
    assert_eq!(rtt.rto(200), Duration::from_secs(60));
    assert!(rtt.repeat_after(0) >= MS && rtt.repeat_after(0) < 5 * MS);
}
