//! DNS over TCP without a policy: it ends in brodo too, and the rate of questions holds for it.

use super::gates::Gated;
use super::over_tcp::{OverTcp, framed};
use super::under_policy::Ruled;
use super::*;
use brodo_core::policy::FlowRate;

const AXFR: u16 = 252;
const NOTIMP: u8 = 4;

/// Nothing but whole questions reaches a resolver, which may be on the host's loopback.
#[test]
fn a_resolver_gets_whole_questions_and_no_other_bytes() {
    let mut t = Script::new(setup(2));
    t.connects_to_dns(5000);
    let message = edns(question(7, "Some.Test", A), 4096);
    let stream = framed(&message);
    for byte in &stream[..stream.len() - 1] {
        t.sends(&[*byte]);
    }
    assert_eq!(t.peer_gets(), [] as [u8; 0], "half a question stays");
    t.sends(&stream[stream.len() - 1..]);
    let asked = t.resolver_gets();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0][2..], message[2..], "as the guest wrote it, under an identifier of brodo's");
    let reply = answer(&question(0, "Some.Test", A), 0, &[(600, &[203, 0, 113, 9])]);
    t.resolver_says(&framed(&in_answer_to(&asked[0], &reply)));
    let got = t.answers();
    assert_eq!((got.len(), got[0][..2].to_vec(), got[0][7]), (1, message[..2].to_vec(), 1));
    // FORMERR is brodo's own answer; a length beyond the bound ends the connection.
    t.sends(&framed(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"));
    assert_eq!(t.answers()[0][3] & 15, 1, "FORMERR");
    t.sends(&[0xff, 0xff, 0, 0]);
    assert_eq!(t.resolver_gets(), [] as [Vec<u8>; 0]);
    t.host_closed(Some(Close::Graceful));
}

/// The answer to a question over TCP serves the next one, over UDP as well.
#[test]
fn the_cache_and_host_entries_answer_over_tcp() {
    let mut setup = setup(1);
    setup.config.host_names = vec![("db.lan".to_owned(), IpAddr::from([192, 0, 2, 77]))];
    let mut t = Script::new(setup);
    t.connects_to_dns(5000);
    t.asks_over_tcp(&[&question(1, "db.lan", A)]);
    assert_eq!((t.answers()[0][7], t.resolver_gets().len()), (1, 0), "a host entry");
    t.asks_over_tcp(&[&question(2, "a.test", A)]);
    let asked = t.resolver_gets().remove(0);
    let reply = answer(&question(0, "a.test", A), 0, &[(600, &[203, 0, 113, 9])]);
    t.resolver_says(&framed(&in_answer_to(&asked, &reply)));
    assert_eq!(t.answers().len(), 1);
    t.asks_over_tcp(&[&question(3, "A.test", A)]);
    assert_eq!((t.answers()[0][7], t.resolver_gets().len()), (1, 0), "from the cache");
    let (q, asked) = (question(4, "a.test", A), t.asked());
    t.ask(4000, &q);
    assert_eq!(t.asked(), asked);
    assert_eq!(t.expect_datagram().data[7], 1);
}

/// RFC 5936: a transfer is many messages; its server is asked itself.
#[test]
fn zone_transfers_are_not_implemented() {
    let mut t = Script::new(setup(1));
    t.connects_to_dns(5000);
    let q = question(7, "zone.test", AXFR);
    t.asks_over_tcp(&[&q]);
    let got = t.answers();
    assert_eq!((got[0][..2].to_vec(), got[0][3] & 15), (q[..2].to_vec(), NOTIMP));
    assert_eq!(t.resolver_gets(), [] as [Vec<u8>; 0]);
}

#[test]
fn connections_are_bounded_without_a_policy_too() {
    let mut t = Script::new(setup(1));
    for port in 0..64 {
        t.connects_to_dns(5000 + port);
    }
    let to = dns(&t);
    t.connection_to(SocketAddr::new(t.addresses().0, 5064), to);
    t.guest(SYN);
    t.expect("RST|ACK ack=1");
    assert_eq!(t.dropped(DropReason::DnsOverload), 1);
}

/// `--max-questions`: answers of the cache do not count, and UDP and TCP have one rate.
#[test]
fn questions_beyond_the_rate_get_servfail() {
    let mut setup = setup(1);
    setup.config.rules.questions = FlowRate { per_second: 10, burst: 3 };
    let mut t = Script::new(setup);
    // A successor begins with a full burst.
    t.driver.handovers.switch_off();
    t.resolves(&question(1, "a.test", A), &[(600, &[203, 0, 113, 9])]);
    for id in 2..10 {
        let q = question(id, "a.test", A);
        t.ask(4000, &q);
        t.expect_answer(&q, 0);
    }
    let asked = t.asked().len();
    for (n, name) in ["b.test", "c.test"].iter().enumerate() {
        t.ask(4000 + n as u16, &question(20, name, A));
    }
    assert_eq!(t.asked().len(), asked + 2);
    let q = question(21, "d.test", A);
    t.ask(4002, &q);
    t.expect_answer(&q, SERVFAIL);
    assert_eq!(t.dropped(DropReason::QuestionRate), 1);
    t.connects_to_dns(5000);
    t.asks_over_tcp(&[&question(22, "e.test", A)]);
    assert_eq!((t.answers()[0][3] & 15, t.resolver_gets().len()), (SERVFAIL, 0));
    t.advance_ms(100);
    t.asks_over_tcp(&[&question(23, "e.test", A), &question(24, "f.test", A)]);
    assert_eq!((t.answers()[0][3] & 15, t.resolver_gets().len()), (SERVFAIL, 1));
    assert_eq!(t.dropped(DropReason::QuestionRate), 3);
}
