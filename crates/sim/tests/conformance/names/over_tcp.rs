//! DNS over TCP under a policy: questions end here and are judged one by one, however they are cut into
//! segments. Numbers are those of the bypass attempts in the guide's page on policies.

use super::gates::Gated;
use super::under_policy::{ALLOWED, Ruled, policy, under, unreadable};
use super::*;
use brodo_core::policy::Deny;
use std::net::Ipv4Addr;

const PKG: &str = "pkg.example.com";

/// A message behind its length.
pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u16).to_be_bytes()[..], message].concat()
}

/// The messages of a stream.
fn messages(mut stream: &[u8]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    while let [high, low, rest @ ..] = stream {
        let (message, rest) = rest.split_at(usize::from(u16::from_be_bytes([*high, *low])));
        out.push(message.to_vec());
        stream = rest;
    }
    out
}

/// Steps of these tests.
pub(super) trait OverTcp {
    /// A connection to the DNS address, after the handshake.
    fn connects_to_dns(&mut self, port: u16);
    /// The guest sends these questions in one segment.
    fn asks_over_tcp(&mut self, questions: &[&[u8]]);
    /// Messages to the guest since the last look.
    fn answers(&mut self) -> Vec<Vec<u8>>;
    /// Messages to the resolver since the last look.
    fn resolver_gets(&mut self) -> Vec<Vec<u8>>;
    /// The resolver sends these bytes.
    fn resolver_says(&mut self, bytes: &[u8]);
}

impl OverTcp for Script {
    fn connects_to_dns(&mut self, port: u16) {
        let (from, to) = (SocketAddr::new(self.addresses().0, port), dns(self));
        self.connection_to(from, to);
        self.establish();
        assert_eq!(self.host_connected_to(), resolvers()[0]);
    }

    fn asks_over_tcp(&mut self, questions: &[&[u8]]) {
        let stream: Vec<u8> = questions.iter().flat_map(|question| framed(question)).collect();
        self.sends(&stream);
    }

    fn answers(&mut self) -> Vec<Vec<u8>> {
        let stream = self.take_payload();
        self.guest("ACK");
        messages(&stream)
    }

    fn resolver_gets(&mut self) -> Vec<Vec<u8>> {
        messages(&self.peer_gets())
    }

    fn resolver_says(&mut self, bytes: &[u8]) {
        let socket = self.socket();
        self.driver.host.peer_send(socket, bytes);
        self.poll();
    }
}

fn served() -> Script {
    Script::new(under(policy(&["tcp://pkg.example.com:443", "tcp://*.zone.example:443"], &[])))
}

/// | 7 | the same over TCP: in single bytes, pipelined, half a length and silence | as over UDP; closed
/// after ten seconds |
#[test]
fn attempt_7_questions_over_tcp_are_judged_as_those_over_udp() {
    let mut t = served();
    t.connects_to_dns(5000);
    let (evil, good) = (question(7, "evil.example", A), edns(question(8, "PKG.example.com", A), 4096));
    let txt = question(9, PKG, 16);
    t.asks_over_tcp(&[&evil, &good, &txt]);
    let got = t.answers();
    assert_eq!(got.len(), 2, "the refusals come at once");
    assert_eq!((got[0][..2].to_vec(), got[0][3] & 15), (evil[..2].to_vec(), NXDOMAIN));
    assert_eq!((got[1][..2].to_vec(), got[1][3] & 15, got[1][7]), (txt[..2].to_vec(), 0, 0));
    // The question that leaves is brodo's own: lower case, no identifier and no option of the guest's.
    let asked = t.resolver_gets();
    assert_eq!(asked.len(), 1);
    assert_eq!(canonical(&asked[0])[..], canonical(&edns(question(0, PKG, A), 4096))[..]);
    assert_ne!(asked[0][..2], good[..2]);
    // Answers come in pieces, and pin their addresses.
    let reply = framed(&in_answer_to(&asked[0], &answer(&question(0, PKG, A), 0, &[(600, &ALLOWED)])));
    for byte in reply {
        t.resolver_says(&[byte]);
    }
    let got = t.answers();
    assert_eq!((got.len(), got[0][..2].to_vec(), got[0][7]), (1, good[..2].to_vec(), 1));
    assert_eq!(got[0][12..29], good[12..29], "the guest's own letters");
    assert!(t.connects(6000, "203.0.113.5:443"));
    let refused = ["policy question", "policy question-type"].map(|reason| (reason.to_owned(), 1));
    assert_eq!(t.refused(), refused);
}

#[test]
fn attempt_7_unreadable_questions_are_refused_over_tcp() {
    let mut t = served();
    t.connects_to_dns(5000);
    for (what, q) in unreadable() {
        t.asks_over_tcp(&[&q]);
        let got = t.answers();
        assert_eq!(got.len(), 1, "{what}");
        assert_eq!((got[0][..2].to_vec(), got[0][3] & 15), (q[..2].to_vec(), 1), "{what}");
    }
    assert_eq!(t.resolver_gets(), [] as [Vec<u8>; 0]);
}

#[test]
fn attempt_7_single_bytes_are_put_together_and_the_cache_answers_too() {
    let mut t = served();
    t.resolves(&question(1, PKG, A), &[(600, &ALLOWED)]);
    t.connects_to_dns(5001);
    for byte in framed(&question(2, PKG, A)) {
        t.sends(&[byte]);
    }
    let got = t.answers();
    assert_eq!((got.len(), got[0][1], got[0][7]), (1, 2, 1));
    assert_eq!(t.resolver_gets(), [] as [Vec<u8>; 0]);
}

#[test]
fn attempt_7_half_a_message_and_silence_end_after_ten_seconds() {
    for first in [&framed(&question(2, PKG, A))[..5], &[0]] {
        let mut t = served();
        t.connects_to_dns(5000);
        t.sends(first);
        t.advance_ms(9_000);
        assert!(t.take_all().iter().all(|line| !line.to_string().contains("FIN")));
        t.advance_ms(1_100);
        assert!(t.take_all().iter().any(|line| line.to_string().contains("FIN")));
        assert_eq!(t.resolver_gets(), [] as [Vec<u8>; 0], "no byte of it has left");
        t.host_closed(Some(Close::Graceful));
    }
}

#[test]
fn malformed_and_long_messages_end_or_are_answered() {
    let mut t = served();
    t.connects_to_dns(5000);
    let mut two = question(1, "a.test", A);
    two[5] = 2;
    t.asks_over_tcp(&[&two]);
    assert_eq!(t.answers()[0][3] & 15, 1, "FORMERR");
    assert_eq!(t.dropped(DropReason::MalformedDns), 1);
    t.sends(&[0xff, 0xff, 0, 0]);
    assert!(t.take_all().iter().any(|line| line.to_string().contains("FIN")));
    t.host_closed(Some(Close::Graceful));
}

#[test]
fn the_guests_fin_waits_for_its_answers() {
    let mut t = served();
    t.connects_to_dns(5000);
    t.asks_over_tcp(&[&question(3, PKG, A)]);
    t.guest("FIN|ACK");
    t.take_all();
    t.host_closed(None);
    let asked = t.resolver_gets();
    t.resolver_says(&framed(&in_answer_to(&asked[0], &answer(&question(0, PKG, A), 0, &many(200)))));
    let lines: Vec<String> = t.take_all().iter().map(ToString::to_string).collect();
    assert!(lines.iter().any(|line| line.contains("FIN")), "{lines:?}");
    t.host_closed(Some(Close::Graceful));
    t.guest("ACK");
    t.expect_all_gone();
}

#[test]
fn a_resolver_that_ends_its_stream_leaves_no_question_unanswered() {
    let mut t = served();
    t.connects_to_dns(5000);
    t.asks_over_tcp(&[&question(3, PKG, A), &question(4, "a.zone.example", A)]);
    let socket = t.socket();
    t.driver.host.peer_fin(socket);
    t.poll();
    let got = t.answers();
    assert_eq!(got.iter().map(|answer| answer[3] & 15).collect::<Vec<_>>(), [SERVFAIL, SERVFAIL]);
    t.host_closed(Some(Close::Graceful));
}

#[test]
fn forged_and_foreign_answers_are_dropped() {
    let mut t = served();
    t.connects_to_dns(5000);
    t.asks_over_tcp(&[&question(3, PKG, A)]);
    let asked = t.resolver_gets();
    let good = in_answer_to(&asked[0], &answer(&question(0, PKG, A), 0, &[(600, &ALLOWED)]));
    let mut other_id = good.clone();
    other_id[1] ^= 1;
    let other_name =
        in_answer_to(&question(0, "evil.example", A), &answer(&question(0, "evil.example", A), 0, &[]));
    t.resolver_says(&[framed(&other_id), framed(&other_name), framed(&[1, 2]), framed(&[])].concat());
    assert_eq!(t.answers(), [] as [Vec<u8>; 0]);
    assert_eq!(t.dropped(DropReason::DnsUnsolicited), 4);
    t.resolver_says(&framed(&good));
    assert_eq!(t.answers().len(), 1);
}

#[test]
fn connections_and_pending_questions_are_bounded() {
    let mut t = served();
    t.connects_to_dns(5000);
    let first = t.flow_index();
    for port in 1..64 {
        t.connects_to_dns(5000 + port);
    }
    let to = dns(&t).to_string();
    assert!(!t.connects(5064, &to));
    assert_eq!(t.refused(), [("policy dns-over-tcp".to_owned(), 1)]);
    t.select(first);
    let names: Vec<Vec<u8>> = (0..40).map(|n| question(n, &format!("n{n}.zone.example"), A)).collect();
    for name in &names {
        t.asks_over_tcp(&[name]);
    }
    assert_eq!(t.resolver_gets().len(), 16);
    t.guest("RST");
    t.take_all();
    assert!(t.connects(5065, &to), "one has made room");
}

/// Connections that have ended make room for others, however they ended.
#[test]
fn connections_one_after_another_are_not_bounded() {
    let mut t = served();
    for round in 0..100 {
        t.connects_to_dns(5000 + round);
        t.asks_over_tcp(&[&question(3, "a.other.example", A)]);
        t.guest("FIN|ACK");
        t.take_all();
        t.guest("ACK");
        t.expect_all_gone();
    }
}

#[test]
fn a_long_answer_over_udp_says_that_tcp_has_all_of_it() {
    let mut t = served();
    let q = question(1, PKG, A);
    t.ask(4000, &q);
    t.says(resolvers()[0], &answer(&q, 0, &many(100)));
    let got = t.expect_datagram().data;
    assert_eq!((got[2] & 2, got[7]), (2, 29), "truncated, with the records that fit");
    t.connects_to_dns(5000);
    t.asks_over_tcp(&[&q]);
    assert_eq!((t.answers()[0][2] & 2, t.resolver_gets().len()), (0, 0), "from the cache, whole");
}

/// RFC 6891, section 7: the same question without an OPT record, also after a header alone.
#[test]
fn a_resolver_without_edns_is_asked_without_over_tcp() {
    for is_bare in [false, true] {
        let mut t = served();
        t.connects_to_dns(5000);
        let q = question(7, PKG, A);
        t.asks_over_tcp(&[&q]);
        let asked = t.resolver_gets().remove(0);
        assert_eq!(canonical(&asked), canonical(&edns(question(0, PKG, A), 4096)));
        let mut refusal = in_answer_to(&asked, &answer(&question(0, PKG, A), 1, &[]));
        if is_bare {
            refusal.truncate(12);
            refusal[4..].fill(0);
        }
        t.resolver_says(&framed(&refusal));
        assert_eq!(t.answers(), [] as [Vec<u8>; 0]);
        let asked = t.resolver_gets().remove(0);
        assert_eq!(canonical(&asked), canonical(&question(0, PKG, A)));
        let reply = in_answer_to(&asked, &answer(&question(0, PKG, A), 0, &[(600, &ALLOWED)]));
        t.resolver_says(&framed(&reply));
        let got = t.answers();
        assert_eq!((got.len(), got[0][..2].to_vec(), got[0][7]), (1, q[..2].to_vec(), 1));
        // The answer is in the cache, and the next question is asked without at once.
        t.asks_over_tcp(&[&question(8, PKG, A)]);
        assert_eq!((t.answers().len(), t.resolver_gets().len()), (1, 0));
        t.asks_over_tcp(&[&question(9, PKG, AAAA)]);
        let asked = t.resolver_gets().remove(0);
        assert_eq!(canonical(&asked), canonical(&question(0, PKG, AAAA)));
    }
}

/// Deny rules without a policy: a name is a way out, too, over UDP and TCP.
#[test]
fn no_question_leaves_if_every_destination_is_denied() {
    let rule =
        |address: &str, bits| Deny::new(address.parse().expect("an address"), bits, None).expect("a rule");
    let whole = [rule("0.0.0.0", 0), rule("::", 0)];
    for (deny, is_closed) in [(whole.to_vec(), true), (vec![whole[0], rule("::", 1)], false)] {
        let mut setup = setup(1);
        setup.config.rules.deny = deny;
        setup.config.host_names = vec![(PKG.to_owned(), Ipv4Addr::from(ALLOWED).into())];
        let mut t = Script::new(setup);
        let q = question(7, "secret.evil.example", A);
        t.ask(4000, &q);
        assert_eq!(t.asked().len(), usize::from(!is_closed));
        if is_closed {
            t.expect_answer(&q, NXDOMAIN);
        }
        t.connects_to_dns(5000);
        t.asks_over_tcp(&[&question(8, "secret.evil.example", A)]);
        assert_eq!(t.resolver_gets().len(), usize::from(!is_closed));
        let got = t.answers();
        assert_eq!(got.len(), usize::from(is_closed));
        let denied = t.driver.stack.counters().dropped(DropReason::Denied);
        assert_eq!(denied, if is_closed { 2 } else { 0 });
        if is_closed {
            assert_eq!(got[0][3] & 15, NXDOMAIN);
            t.asks_over_tcp(&[&question(9, PKG, A)]);
            assert_eq!(t.answers()[0][7], 1, "a host entry");
        }
    }
}
