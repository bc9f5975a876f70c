//! The decision in virtual time.

use super::BusyPoll;
use brodo_core::time::{Duration, Instant};

const US: fn(u64) -> Duration = Duration::from_micros;

#[test]
fn off_it_never_looks() {
    let mut poll = BusyPoll::new(Duration::ZERO);
    assert_eq!(poll.until(Instant::ZERO), None);
    poll.resumed(US(1));
    assert_eq!(poll.until(Instant::ZERO), None);
}

#[test]
fn it_looks_while_pauses_are_short() {
    let mut poll = BusyPoll::new(US(50));
    for _ in 0..1000 {
        assert_eq!(poll.until(Instant::from_ms(7)), Some(Instant::from_ms(7) + US(50)));
        poll.resumed(US(30));
    }
}

/// Pauses longer than the bound cannot be bridged: after the first it sleeps at once.
#[test]
fn it_sleeps_when_pauses_are_long() {
    let mut poll = BusyPoll::new(US(50));
    poll.resumed(Duration::from_secs(10));
    for _ in 0..100 {
        assert_eq!(poll.until(Instant::ZERO), None);
        poll.resumed(US(60));
    }
}

#[test]
fn it_sleeps_where_there_is_always_something_at_once() {
    let mut poll = BusyPoll::new(US(50));
    for _ in 0..100 {
        poll.resumed(US(1));
        assert_eq!(poll.until(Instant::ZERO), None);
    }
    // A stream that has ended is no reason not to look for what comes then.
    poll.resumed(US(20));
    assert!(poll.until(Instant::ZERO).is_some());
}

#[test]
fn after_any_pause_it_soon_looks_again() {
    let mut poll = BusyPoll::new(US(50));
    for _ in 0..50 {
        poll.resumed(Duration::from_secs(3600));
    }
    let mut short = 0;
    while poll.until(Instant::ZERO).is_none() {
        poll.resumed(US(20));
        short += 1;
    }
    assert!((1..=25).contains(&short), "{short} short pauses");
}
