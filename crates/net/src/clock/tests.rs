//! The clock runs forward from zero, and its dates are those of the wall clock.

use super::{Clock, Origin};
use brodo_core::time::Instant;
use std::time::{SystemTime, UNIX_EPOCH};

#[test]
fn starts_near_zero_and_does_not_go_back() {
    let clock = Clock::start();
    let mut last = Instant::ZERO;
    for _ in 0..1000 {
        let now = clock.now();
        assert!(now >= last);
        last = now;
    }
    assert!(last < Instant::from_ms(3_600_000));
}

/// Without a suspend the clocks exist and agree; a suspend cannot be tested here.
#[test]
fn without_a_suspend_none_is_counted() {
    let clock = Clock::start();
    let counted = (0..1000).map(|_| clock.suspended()).min();
    assert!(counted < Some(brodo_core::time::Duration::from_secs(1)), "{counted:?}");
}

/// As after a suspend, or with a wall clock that was set.
#[test]
fn dates_follow_the_wall_clock() {
    let hour = 3_600_000_000_000;
    let clock = Clock::start();
    for unix_ns in [clock.origin().unix_ns - hour, clock.origin().unix_ns + hour] {
        let other = Clock::at(Origin { unix_ns, ..clock.origin() });
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
        let ours = other.date_ns(other.now());
        assert!(wall.abs_diff(ours) < hour / 2, "{wall} {ours}");
        let earlier = other.date_ns(Instant::ZERO);
        assert!(ours.abs_diff(earlier) < hour / 2 && earlier < ours, "{earlier} {ours}");
    }
}

#[test]
fn a_clock_with_the_zero_of_another_goes_on_with_it() {
    let clock = Clock::start();
    let again = Clock::at(clock.origin());
    let (before, now, after) = (clock.now(), again.now(), clock.now());
    assert!(before <= now && now <= after);
    assert_eq!(clock.origin(), again.origin());
    let future = Clock::at(Origin { start_ns: u64::MAX, ..clock.origin() });
    assert!(future.now() < Instant::from_ms(3_600_000));
}
