//! The rule: rate over a period, setbacks, refusal for good.

use super::{BulkBounds, Candidate, SETBACKS_MAX};
use crate::time::{Duration, Instant};

fn at(ms: u64) -> Instant {
    Instant::from_ms(ms)
}

const MIB: u64 = 1 << 20;

#[test]
fn a_candidate_is_fast_over_a_whole_period() {
    let bounds = BulkBounds::default();
    let mut candidate = Candidate::new(at(0), 4 * MIB);
    assert!(!candidate.is_due(&bounds, at(99), 400 * MIB), "before the end of the period");
    assert!(candidate.is_due(&bounds, at(100), 400 * MIB));
    assert!(!candidate.is_due(&bounds, at(200), 403 * MIB), "30 MiB/s");
    assert!(candidate.is_due(&bounds, at(300), 403 * MIB + 32 * MIB / 10 + 1), "32 MiB/s");
    assert!(!candidate.is_due(&bounds, at(400), 403 * MIB), "a sum that falls is none");
}

#[test]
fn a_burst_after_a_pause_counts_with_the_pause() {
    let bounds = BulkBounds::default();
    let mut candidate = Candidate::new(at(0), 0);
    assert!(!candidate.is_due(&bounds, at(1000), 10 * MIB), "10 MiB/s");
    assert!(candidate.is_due(&bounds, at(1100), 20 * MIB));
}

#[test]
fn each_setback_doubles_the_wait() {
    let bounds = BulkBounds { rate: 0, period: Duration::ZERO, ..BulkBounds::default() };
    let mut candidate = Candidate::new(at(0), 0);
    let (mut now, mut wait) = (at(0), bounds.wait);
    for _ in 0..SETBACKS_MAX {
        assert!(candidate.is_due(&bounds, now, 0));
        candidate.set_back(&bounds, now);
        assert!(!candidate.is_due(&bounds, now + wait * 9 / 10, 0));
        now = now + wait;
        wait *= 2;
    }
    for _ in 0..3 {
        candidate.set_back(&bounds, now);
        assert!(!candidate.is_due(&bounds, now + wait * 9 / 10, 0));
        now = now + wait;
        assert!(candidate.is_due(&bounds, now, 0), "the wait grows no more");
    }
    candidate.forget_setbacks();
    candidate.set_back(&bounds, now);
    assert!(candidate.is_due(&bounds, now + bounds.wait, 0), "as long as the first");
}

#[test]
fn a_refusal_for_good_stands() {
    let bounds = BulkBounds { rate: 0, period: Duration::ZERO, ..BulkBounds::default() };
    let mut candidate = Candidate::new(at(0), 0);
    candidate.give_up();
    candidate.set_back(&bounds, at(0));
    assert!(!candidate.is_due(&bounds, at(1 << 40), u64::MAX));
}
