//! Order of resolvers, demotion after failures, and rehabilitation.

use super::*;

#[test]
fn a_failed_resolver_is_last_for_a_minute() {
    let at = |seconds: u64| Instant::from_ms(seconds * 1000);
    let order = |preference: &Preference, now, count| {
        let (mut tried, mut order) = (0, Vec::new());
        while let Some(next) = preference.next(now, count, tried) {
            tried |= 1 << next;
            order.push(next);
        }
        order
    };
    let mut preference = Preference::default();
    assert_eq!(order(&preference, at(0), 3), [0, 1, 2]);
    preference.failed(0, at(1));
    assert_eq!(order(&preference, at(1), 3), [1, 2, 0]);
    preference.failed(1, at(5));
    assert_eq!(order(&preference, at(6), 3), [2, 0, 1]);
    assert_eq!(order(&preference, at(61), 3), [0, 2, 1]);
    preference.answered(1);
    assert_eq!(order(&preference, at(61), 3), [0, 1, 2]);
    assert_eq!(order(&preference, at(0), 0), [0usize; 0]);
    // Two slow answers have no effect, the third has. After that one is enough, until the resolver has
    // answered.
    for now in [100, 101] {
        preference.outrun(1, at(now));
        assert_eq!(order(&preference, at(now), 2), [0, 1]);
    }
    preference.outrun(0, at(102));
    preference.outrun(0, at(103));
    preference.answered(0);
    preference.outrun(0, at(104));
    assert_eq!(order(&preference, at(104), 2), [0, 1]);
    preference.outrun(0, at(105));
    preference.outrun(0, at(106));
    assert_eq!(order(&preference, at(106), 2), [1, 0]);
    assert_eq!(order(&preference, at(200), 2), [0, 1]);
    preference.outrun(0, at(201));
    assert_eq!(order(&preference, at(201), 2), [1, 0]);
    // Connections have an order of their own.
    preference.answered(1);
    preference.connect_failed(0, at(300));
    assert_eq!(order(&preference, at(301), 2), [0, 1]);
    assert_eq!(preference.next_to_connect(at(301), 2, 0), Some(1));
    assert_eq!(preference.next_to_connect(at(301), 2, 2), Some(0));
    preference.failed(1, at(302));
    assert_eq!(preference.next_to_connect(at(303), 2, 0), Some(0));
    assert_eq!(preference.next_to_connect(at(361), 2, 0), Some(0));
    // More than are used, and numbers out of range.
    preference.failed(99, at(1));
    assert_eq!(order(&preference, at(99), 99).len(), RESOLVERS_MAX);
}
