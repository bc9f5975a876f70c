//! Decisions to poll or to sleep, in virtual time.

use super::{BusyPoll, Moved};
use brodo_core::time::{Duration, Instant};

const US: fn(u64) -> Duration = Duration::from_micros;

/// A pause that an answer ends.
fn resumed(poll: &mut BusyPoll, pause: Duration) {
    poll.resumed(pause);
    poll.turned(Moved { from_guest: true, to_guest: true, ..Moved::default() });
}

#[test]
fn off_it_never_looks() {
    let mut poll = BusyPoll::new(Duration::ZERO);
    assert_eq!(poll.until(Instant::ZERO), None);
    resumed(&mut poll, US(1));
    assert_eq!(poll.until(Instant::ZERO), None);
}

#[test]
fn it_looks_while_pauses_are_short() {
    let mut poll = BusyPoll::new(US(50));
    for _ in 0..1000 {
        assert_eq!(poll.until(Instant::from_ms(7)), Some(Instant::from_ms(7) + US(50)));
        resumed(&mut poll, US(30));
    }
}

/// Pauses longer than the bound cannot be bridged: after the first it sleeps at once.
#[test]
fn it_sleeps_when_pauses_are_long() {
    let mut poll = BusyPoll::new(US(50));
    resumed(&mut poll, Duration::from_secs(10));
    for _ in 0..100 {
        assert_eq!(poll.until(Instant::ZERO), None);
        resumed(&mut poll, US(60));
    }
}

/// A request goes to the host, its answer to the guest; of a stream everything goes one way.
#[test]
fn it_looks_for_answers_only() {
    let request = Moved { from_guest: true, ..Moved::default() };
    let answer = Moved { from_host: true, to_guest: true, ..Moved::default() };
    let handshake = Moved { from_guest: true, to_guest: true, ..Moved::default() };
    for (turns, looks) in [
        (&[request, answer][..], true),
        (&[handshake], true),
        (&[handshake, request, answer], true),
        (&[Moved { joined: true, ..Moved::default() }], true),
        (&[request], false),
        (&[answer], false),
        (&[Moved::default()], false),
    ] {
        let mut poll = BusyPoll::new(US(50));
        for &moved in turns.iter().cycle().take(100) {
            poll.resumed(US(10));
            poll.turned(moved);
        }
        assert_eq!(poll.until(Instant::ZERO).is_some(), looks, "{turns:?}");
    }
}

#[test]
fn after_any_pause_it_soon_looks_again() {
    let mut poll = BusyPoll::new(US(50));
    for _ in 0..50 {
        resumed(&mut poll, Duration::from_secs(3600));
    }
    let mut short = 0;
    while poll.until(Instant::ZERO).is_none() {
        resumed(&mut poll, US(20));
        short += 1;
    }
    assert!((1..=25).contains(&short), "{short} short pauses");
}
