//! The law of RFC 8289 in virtual time.

use super::*;

const BYTES: u32 = 100_000;

fn at(ms: u64) -> Instant {
    Instant::from_ms(1000 + ms)
}

/// Times of drops, of one datagram each millisecond that has waited for `waited_ms`.
fn drops(codel: &mut CoDel, from_ms: u64, to_ms: u64, waited_ms: u64) -> Vec<u64> {
    let waited = Duration::from_millis(waited_ms);
    (from_ms..to_ms).filter(|&ms| codel.must_drop(at(ms), waited, BYTES)).collect()
}

#[test]
fn a_short_wait_is_let_be() {
    let mut codel = CoDel::default();
    assert_eq!(drops(&mut codel, 0, 10_000, 4), []);
}

#[test]
fn a_burst_shorter_than_an_interval_is_let_be() {
    let mut codel = CoDel::default();
    for start in (0..1000).step_by(100) {
        assert_eq!(drops(&mut codel, start, start + 99, 50), []);
        assert_eq!(drops(&mut codel, start + 99, start + 100, 1), [], "short for a moment");
    }
}

#[test]
fn a_standing_queue_is_thinned_faster_and_faster() {
    let mut codel = CoDel::default();
    // After an interval, then 100/sqrt(n) ms apart: 100, 70.7, 57.7, 50, 44.7.
    assert_eq!(drops(&mut codel, 0, 450, 6), [100, 200, 271, 329, 379, 424]);
    assert!(codel.is_dropping());
    assert_eq!(drops(&mut codel, 450, 500, 4), []);
    assert!(!codel.is_dropping());
}

#[test]
fn a_new_spell_soon_after_begins_where_the_last_ended() {
    let mut codel = CoDel::default();
    assert_eq!(drops(&mut codel, 0, 450, 6).len(), 6);
    assert_eq!(drops(&mut codel, 450, 460, 1), []);
    let soon = drops(&mut codel, 460, 700, 6);
    assert_eq!(soon[..3], [560, 605, 646], "a first drop after an interval, then as for the fifth");
    let mut late = CoDel::default();
    assert_eq!(drops(&mut late, 0, 450, 6).len(), 6);
    assert_eq!(drops(&mut late, 450, 3000, 1), []);
    assert_eq!(drops(&mut late, 3000, 3250, 6), [3100, 3200], "long after, from the beginning");
}

#[test]
fn a_queue_of_one_packet_is_let_be_and_an_empty_one_forgets() {
    let mut codel = CoDel::default();
    let long = Duration::from_secs(1);
    assert!((0..1000).all(|ms| !codel.must_drop(at(ms), long, 1500)));
    assert_eq!(drops(&mut codel, 1000, 1090, 50), []);
    codel.emptied();
    assert_eq!(drops(&mut codel, 1090, 1189, 50), []);
    assert_eq!(drops(&mut codel, 1189, 1191, 50), [1190]);
    codel.emptied();
    assert!(!codel.is_dropping());
}

#[test]
fn those_behind_the_head_count_for_the_wait() {
    let mut codel = CoDel::default();
    assert!(!codel.must_drop(at(0), Duration::from_millis(50), BYTES));
    assert!(!codel.observe(at(0), Duration::from_millis(1), BYTES), "the last of a run had hardly waited");
    assert_eq!(drops(&mut codel, 50, 149, 50), []);
}
