//! Host entries on links whose packets are too short for an answer: no invalid frame leaves, and no panic.

use super::*;

/// On a link whose packets are shorter than the longest question and its answer.
#[test]
fn host_entries_that_fit_no_packet_are_not_answered() {
    let mut setup = setup(1);
    setup.config.mtu = 88;
    let entry = |name: &str, ip: &str| (name.to_owned(), ip.parse().expect("an address"));
    let long = format!("{}.lan", "a".repeat(60));
    setup.config.host_names = vec![entry(&long, "192.0.2.7"), entry("db.lan", "2001:db8::7")];
    let mut t = Script::new(setup);
    let address = format!("{}.ip6.arpa", "7.0.0.0.".to_owned() + &"0.".repeat(20) + "8.b.d.0.1.0.0.2");
    for (name, kind) in [(&long, A), (&address, PTR)] {
        t.ask(5000, &question(7, name, kind));
        t.take_all();
    }
    let counters = t.driver.stack.counters();
    assert_eq!((counters.dns_host_entries, counters.dns_unanswered), (2, 2));
}
