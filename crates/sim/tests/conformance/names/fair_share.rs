//! Fair shares of pending queries: a program with a thousand open ones does not block DNS for others.

use super::*;

/// Another program's query is sent and answered, however many one program leaves open.
#[test]
fn a_program_with_a_thousand_open_questions_stops_no_names_for_others() {
    let resolver = resolvers()[0];
    for ports in [1, 1024] {
        let mut t = Script::new(setup(1));
        for n in 0..1100 {
            t.ask(20_000 + n % ports, &question(n, &format!("{n}.nowhere.test"), A));
        }
        assert_eq!(t.dropped(DropReason::DnsOverload), 76);
        for n in 0..76u16 {
            let refused = t.expect_datagram().data;
            assert_eq!((&refused[..2], refused[3] & 15), (&n.to_be_bytes()[..], SERVFAIL), "the oldest");
        }
        t.expect_nothing();
        assert_eq!(t.driver.host.open_sockets(), usize::from(ports));
        let q = question(7, "a.test", A);
        t.ask(5000, &q);
        t.take_all();
        // Its socket is the last that was opened.
        let socket = t.driver.host.all().last().expect("a socket");
        let query = t.driver.host.sent_datagrams(socket).last().expect("a query").to_vec();
        assert_eq!(canonical(&query), canonical(&q));
        // Many more of the program that has most leave it alone.
        for n in 2000..(if ports == 1 { 4000 } else { 2100 }) {
            t.ask(20_000 + n % ports, &question(n, &format!("{n}.nowhere.test"), A));
        }
        t.take_all();
        let right = in_answer_to(&query, &answer(&q, 0, &[(0, &[1; 4])]));
        t.driver.host.peer_datagram(socket, &right, None);
        t.poll();
        t.expect_answer(&q, 0);
        t.advance_ms(5_010);
        t.take_all();
        t.expect_all_gone();
        assert_eq!(t.driver.host.peer(socket), resolver);
    }
}

#[test]
fn further_resolvers_are_asked_as_long_as_there_are_sockets() {
    let mut t = Script::new(setup(3));
    for n in 0..1024 {
        t.ask(20_000 + n, &question(n, &format!("{n}.nowhere.test"), A));
    }
    assert_eq!(t.driver.host.open_sockets(), 1024);
    t.advance_ms(1_500);
    assert_eq!(t.driver.host.open_sockets(), 1024, "none beside the first of each port");
    t.advance_ms(5_000);
    assert_eq!(t.take_all().len(), 1024);
    t.expect_all_gone();
}
