//! Questions under a policy, and the flows that their answers allow. Numbers are those of the bypass attempts
//! in the guide's page on policies.

use super::*;
use brodo_core::flow::Protocol;
use brodo_core::policy::{
    AllowRule, Audited, Decision, Effect, FlowRate, PolicyRules, Rule, Ruleset, Ruling, SharedPolicy, Stage,
};
use brodo_core::wire::dns::message::{Records, SOA};
use brodo_core::wire::dns::{Header, Question};
use std::sync::Arc;

const TXT: u16 = 16;
const HTTPS: u16 = 65;
const ANY: u16 = 255;
const AXFR: u16 = 252;
const NULL: u16 = 10;
const FORMERR: u8 = 1;
/// Documentation address (RFC 5737) of an allowed name, and its IPv6 counterpart.
pub(super) const ALLOWED: [u8; 4] = [203, 0, 113, 5];
const ALLOWED_V6: &str = "2001:db8:1::5";

pub(super) fn policy(allow: &[&str], deny: &[&str]) -> PolicyRules {
    let allow = allow.iter().map(|text| AllowRule::from(Rule::parse(text, Effect::Allow).expect("a rule")));
    let deny = deny.iter().map(|text| Rule::parse(text, Effect::Deny).expect("a rule"));
    PolicyRules { allow: allow.collect(), deny: deny.collect(), ..PolicyRules::default() }
}

/// A guest under these rules, with one resolver.
pub(super) fn under(rules: PolicyRules) -> Setup {
    let mut setup = setup(1);
    let rules = Ruleset::new(rules).expect("few rules");
    setup.config.rules.shared = Some(Arc::new(SharedPolicy::new(rules, &setup.config.host_names, [7; 16])));
    setup
}

/// Steps of these tests.
pub(super) trait Ruled {
    /// The guest asks, and the answer that it gets at once; none if a resolver is asked.
    fn asks(&mut self, question: &[u8]) -> Option<Vec<u8>>;
    /// The guest asks, and the resolver answers with these records; the answer that the guest gets.
    fn resolves(&mut self, question: &[u8], records: &[(u32, &[u8])]) -> Vec<u8>;
    /// Whether the guest's SYN to this address is taken; it gets a reset at once otherwise.
    fn connects(&mut self, port: u16, to: &str) -> bool;
    fn refused(&self) -> Vec<(String, u64)>;
}

impl Ruled for Script {
    fn asks(&mut self, question: &[u8]) -> Option<Vec<u8>> {
        let open = self.driver.host.open_sockets();
        self.ask(5000, question);
        (self.driver.host.open_sockets() == open).then(|| self.expect_datagram().data)
    }

    fn resolves(&mut self, question: &[u8], records: &[(u32, &[u8])]) -> Vec<u8> {
        self.ask(5000, question);
        self.says(resolvers()[0], &answer(question, 0, records));
        self.expect_datagram().data
    }

    fn connects(&mut self, port: u16, to: &str) -> bool {
        let from = SocketAddr::new(self.addresses().0, port);
        self.connection_to(from, to.parse().expect("an address"));
        let open = self.driver.host.open_sockets();
        self.guest(SYN);
        if self.driver.host.open_sockets() == open {
            // The floor refuses by the reset alone.
            let last = self.take_all().pop().map(|line| line.to_string());
            assert!(last.is_some_and(|line| line.starts_with("RST|ACK")), "no reset");
            return false;
        }
        self.take_all();
        true
    }

    fn refused(&self) -> Vec<(String, u64)> {
        let rules = self.driver.stack.rules().filter(|(_, count)| *count > 0);
        rules.map(|(text, count)| (text.to_owned(), count)).collect()
    }
}

/// Questions that cannot be read, with what is wrong with each.
pub(super) fn unreadable() -> Vec<(&'static str, Vec<u8>)> {
    let whole = || question(0x0101, "pkg.example.com", A);
    let counted = |count| {
        let mut message = whole();
        message[5] = count;
        message
    };
    // The name's bytes replaced; type and class follow.
    let named = |name: &[u8]| [&whole()[..12], name, &[0, 1, 0, 1]].concat();
    let long = [&[64][..], &[b'a'; 64], b"\x07example\x03net\0"].concat();
    let two = [&counted(2)[..], b"\x03pkg\x07example\x03com\0\0\x01\0\x01"].concat();
    vec![
        ("two questions", two),
        ("two by number, one there", counted(2)),
        ("none", counted(0)),
        ("none by number, and nothing there", counted(0)[..12].to_vec()),
        ("a pointer into the header, to an empty name", named(&[0xc0, 4])),
        ("a label and a pointer into the header", named(b"\x03pkg\xc0\x04")),
        ("a pointer to itself", named(&[0xc0, 12])),
        ("a pointer forward", named(&[0xc0, 14])),
        ("a label of 64 bytes", named(&long)),
        ("a label of 128", named(&[&[128][..], &[b'a'; 128], &[0]].concat())),
    ]
}

/// Response code, and number of answers.
pub(super) fn outcome(message: &[u8]) -> (u8, u16) {
    let header = Header::parse(message).expect("a message");
    assert!(header.is_response() && !header.is_truncated());
    (header.rcode(), header.answers)
}

/// | 1, 2 | a question for a name that no rule names, data in its labels, a name below an allowed one |
/// NXDOMAIN with the reason; nothing leaves |
#[test]
fn attempt_1_and_2_a_name_that_no_rule_names_does_not_exist() {
    Script::each_with(&under(policy(&["tcp://pkg.example.com:443"], &[])), |t| {
        for name in ["evil.example", "data.pkg.example.com", "c2VjcmV0.evil.example", "example.com"] {
            let q = edns(question(1, name, A), 1232);
            let got = t.asks(&q).expect("an answer at once");
            assert_eq!(outcome(&got), (NXDOMAIN, 0));
            // The reason for people, and the time for which it holds.
            let text = format!("brodo: no rule names {name} (question)");
            assert!(got.windows(text.len()).any(|window| window == text.as_bytes()), "{name}");
            let header = Header::parse(&got).expect("a message");
            let end = Question::parse(&got).expect("a question").end;
            let soa = Records::new(&got, &header, end).next().expect("a record").expect("readable");
            assert_eq!((soa.kind, soa.negative_ttl()), (SOA, Some(5)));
            assert!(Records::new(&got, &header, end).all(|record| record.is_ok()));
        }
        // Without an OPT record there is none in the answer.
        let got = t.asks(&question(2, "evil.example", A)).expect("an answer at once");
        assert_eq!(Header::parse(&got).expect("a message").additionals, 0);
        assert_eq!(t.refused(), [("policy question".to_owned(), 5)]);
        assert_eq!(t.dropped(DropReason::Denied), 5);
        t.expect_all_gone();
    });
}

/// | 3 | 300 names in an hour below a wildcard | 256 are asked |
#[test]
fn attempt_3_names_below_a_wildcard_are_bounded_by_the_hour() {
    let mut t = Script::new(under(policy(&["tcp://*.example.com:443"], &[])));
    for n in 0..300u16 {
        let q = question(n, &format!("n{n}.example.com"), A);
        t.ask(5000, &q);
        if n < 256 {
            t.says(resolvers()[0], &answer(&q, NXDOMAIN, &[]));
        }
        t.expect_answer(&q, NXDOMAIN);
        t.advance_ms(20);
    }
    assert_eq!(t.refused(), [("policy names-per-wildcard".to_owned(), 44)]);
    // Nor do further rules begin a new hour.
    let further = Ruleset::new(policy(&["a.example", "tcp://*.example.com:443"], &[])).expect("few rules");
    t.setup().config.rules.shared.clone().expect("a policy").set(t.now(), further, false);
    t.asks(&question(1, "n300.example.com", A)).expect("an answer at once");
    assert_eq!(t.refused(), [("policy names-per-wildcard".to_owned(), 45)]);
    t.advance_ms(3_600_000);
    let q = question(1, "later.example.com", A);
    t.ask(5000, &q);
    t.says(resolvers()[0], &answer(&q, 0, &[(60, &ALLOWED)]));
    t.expect_answer(&q, 0);
}

/// | 4 | TXT, NULL, ANY, AXFR, HTTPS, SVCB; UPDATE; class CH | NODATA; NOTIMP; REFUSED |
#[test]
fn attempt_4_other_types_operations_and_classes_stay_here() {
    Script::each_with(&under(policy(&["tcp://pkg.example.com:443"], &[])), |t| {
        for kind in [TXT, NULL, ANY, AXFR, HTTPS, 64] {
            let got = t.asks(&question(1, "pkg.example.com", kind)).expect("an answer at once");
            assert_eq!(outcome(&got), (0, 0), "{kind}");
        }
        let mut update = question(1, "pkg.example.com", A);
        update[2] = 5 << 3;
        assert_eq!(t.asks(&update).expect("an answer")[3] & 15, 4, "not implemented");
        let mut chaos = question(1, "pkg.example.com", TXT);
        *chaos.last_mut().expect("a class") = 3;
        assert_eq!(t.asks(&chaos).expect("an answer")[3] & 15, REFUSED);
        t.expect_all_gone();
        // Service bindings are asked for beside each address, and are no decision.
        let refused = [("policy question-type".to_owned(), 4), ("policy question-form".to_owned(), 2)];
        assert_eq!(t.refused(), refused);
    });
}

/// | 5 | EDNS options, cookie, client subnet, letter case, identifier as channel | the resolver's packet
/// has none of them |
#[test]
fn attempt_5_nothing_of_the_guests_message_but_name_and_type_leaves() {
    let mut t = Script::new(under(policy(&["tcp://pkg.example.com:443"], &[])));
    let mut q = question(0xbeef, "pKg.eXaMpLe.CoM", A);
    q[3] |= 0x20;
    q[11] = 1;
    // An OPT record with a client subnet, a cookie, and 1 KiB of another option.
    let option =
        |code: u16, data: &[u8]| [&code.to_be_bytes()[..], &(data.len() as u16).to_be_bytes(), data].concat();
    let options = [option(8, &[0xaa; 8]), option(10, &[0xbb; 16]), option(65_001, &[0xcc; 1024])].concat();
    q.extend([0, 0, 41, 0x10, 0, 0, 0, 0x80, 0]);
    q.extend((options.len() as u16).to_be_bytes());
    q.extend(&options);
    t.ask(5000, &q);
    let mut expected = canonical(&question(0, "pkg.example.com", A));
    expected[11] = 1;
    expected.extend([0, 0, 41, 0x10, 0, 0, 0, 0x80, 0, 0, 0]);
    assert_eq!(t.gets(resolvers()[0]), [expected]);
    // The guest gets its own letters and identifier, and an OPT record without options.
    let plain = question(0xbeef, "pKg.eXaMpLe.CoM", A);
    t.says(resolvers()[0], &answer(&plain, 0, &[(60, &ALLOWED)]));
    let got = t.expect_datagram().data;
    assert_eq!((&got[..2], &got[12..plain.len()]), (&plain[..2], &plain[12..]));
    assert_eq!(outcome(&got), (0, 1));
    assert_eq!(got[got.len() - 11..], [0, 0, 41, 4, 208, 0, 0, 0x80, 0, 0, 0]);
}

/// | 6 | two questions, none, compression in the question, a label of 64 bytes | FORMERR; nothing leaves |
#[test]
fn attempt_6_unreadable_questions_are_refused() {
    Script::each_with(&under(policy(&["tcp://pkg.example.com:443", "tcp://*.example.net:443"], &[])), |t| {
        for (what, q) in unreadable() {
            t.ask(5000, &q);
            let got = t.expect_datagram().data;
            assert_eq!((got[..2].to_vec(), got[3] & 15), (q[..2].to_vec(), FORMERR), "{what}");
            t.expect_nothing();
            t.expect_all_gone();
        }
        // A label of 63 bytes is one that is judged.
        let longest = format!("{}.example.net", "a".repeat(63));
        assert_eq!(t.asks(&question(1, &longest, A)), None, "a resolver is asked");
    });
}

/// | 8, 9 | resolvers of the guest's own by UDP, TCP, TLS and QUIC; DNS over HTTPS by name and by address |
/// refused `default`; NXDOMAIN, and refused `not-given-by-dns` |
#[test]
fn attempt_8_and_9_resolvers_of_the_guests_own_are_refused() {
    Script::each_with(&under(policy(&["pkg.example.com"], &[])), |t| {
        let resolver = if t.is_v6() { "[2001:4860:4860::8888]" } else { "8.8.8.8" };
        assert_eq!(outcome(&t.asks(&question(1, "dns.google", A)).expect("an answer at once")).0, NXDOMAIN);
        assert_eq!(t.refused(), [("policy question".to_owned(), 1)]);
        for port in [443, 53, 853] {
            assert!(!t.connects(6000, &format!("{resolver}:{port}")), "{port}");
        }
        for port in [53, 853] {
            t.guest_udp(format!("{resolver}:{port}").parse().expect("an address"), &question(1, "a.test", A));
            t.expect("ICMP prohibited");
        }
        let counts = [("policy question", 1), ("policy not-given-by-dns", 1), ("policy default", 4)];
        assert_eq!(t.refused(), counts.map(|(text, count)| (text.to_owned(), count)));
        t.expect_all_gone();
    });
}

/// The DNS address stands for a resolver at the port of DNS over TLS and QUIC, where no question is judged.
#[test]
fn attempt_8_encrypted_questions_to_the_dns_address_are_flows_to_the_resolver() {
    for (allow, reaches) in [("10.0.0.0/8", false), ("192.0.2.53:853", true)] {
        let mut t = Script::new(under(policy(&["pkg.example.com", allow], &[])));
        let to = SocketAddr::new(dns(&t).ip(), 853);
        assert_eq!(t.connects(6000, &to.to_string()), reaches, "{allow}");
        t.connection_to(SocketAddr::new(t.addresses().0, 6001), to);
        t.guest_udp(to, &[7; 100]);
        if !reaches {
            t.expect("ICMP prohibited");
            assert_eq!(t.refused(), [("policy default".to_owned(), 2)]);
        }
        t.call(|stack, io| _ = stack.review(io, 0, 256));
        assert_eq!(t.driver.stack.flows(), 2 * usize::from(reaches));
    }
}

/// | 10 | PTR of addresses with data in them | NXDOMAIN unless allowed or given |
#[test]
fn attempt_10_reverse_names_are_asked_for_known_addresses_only() {
    let mut t = Script::new(under(policy(&["tcp://pkg.example.com:443", "192.0.2.0/24"], &[])));
    let reverse = |name: &str| question(1, name, PTR);
    assert_eq!(outcome(&t.asks(&reverse("5.113.0.203.in-addr.arpa")).expect("an answer")).0, NXDOMAIN);
    let data = "1.2.3.4.5.6.7.8.9.a.b.c.d.e.f.0.1.2.3.4.5.6.7.8.9.a.b.c.d.e.f.0.ip6.arpa";
    assert_eq!(outcome(&t.asks(&reverse(data)).expect("an answer")).0, NXDOMAIN);
    for zeros in ["9.2.000.192.in-addr.arpa", "9.02.0.192.in-addr.arpa"] {
        assert_eq!(outcome(&t.asks(&reverse(zeros)).expect("an answer")).0, NXDOMAIN, "{zeros}");
    }
    assert_eq!(t.asks(&reverse("9.2.0.192.in-addr.arpa")), None, "allowed by address");
    t.advance_ms(6000);
    t.take_all();
    t.resolves(&question(2, "pkg.example.com", A), &[(60, &ALLOWED)]);
    assert_eq!(t.asks(&reverse("5.113.0.203.in-addr.arpa")), None, "pinned");
    let mut t = Script::new(under(policy(&["5.113.0.203.in-addr.arpa"], &[])));
    assert_eq!(t.asks(&reverse("5.113.0.203.in-addr.arpa")), None, "allowed by this name");
}

#[test]
fn a_long_answer_keeps_the_records_that_fit() {
    let mut t = Script::new(under(policy(&["tcp://pkg.example.com:443"], &[])));
    let q = question(1, "pkg.example.com", A);
    let addresses: Vec<[u8; 4]> = (0..100).map(|n| [198, 51, 100, n]).collect();
    let records: Vec<(u32, &[u8])> = addresses.iter().map(|address| (60, &address[..])).collect();
    let got = t.resolves(&q, &records);
    // 512 bytes without an OPT record: 33 bytes of header and question, 16 for each address.
    let header = Header::parse(&got).expect("a message");
    assert!(header.is_truncated(), "TCP has the others");
    assert_eq!((header.answers, got.len()), (29, 33 + 29 * 16));
    assert!(t.connects(6000, "198.51.100.28:443"));
    assert!(!t.connects(6001, "198.51.100.29:443"), "it was not given");
}

/// | 18 | a pin older than its time with a flow open | holds, and five minutes longer |
#[test]
fn attempt_18_a_pin_lives_as_long_as_a_flow_uses_it() {
    let mut t = Script::new(under(policy(&["tcp://pkg.example.com:443"], &[])));
    t.resolves(&question(1, "pkg.example.com", A), &[(1, &ALLOWED)]);
    let open = |t: &mut Script, port: u16| {
        let from = SocketAddr::new(t.addresses().0, port);
        let flow = t.connection_to(from, "203.0.113.5:443".parse().expect("an address"));
        t.establish();
        flow
    };
    let first = open(&mut t, 6000);
    t.advance_ms(3_601_000);
    let second = open(&mut t, 6001);
    for flow in [first, second] {
        t.select(flow);
        t.guest("RST|ACK");
    }
    t.expect_all_gone();
    t.advance_ms(299_000);
    let third = open(&mut t, 6002);
    t.select(third);
    t.guest("RST|ACK");
    t.advance_ms(301_000);
    assert!(!t.connects(6003, "203.0.113.5:443"));
    t.resolves(&question(2, "pkg.example.com", A), &[(1, &ALLOWED)]);
    assert!(t.connects(6004, "203.0.113.5:443"));
}

#[test]
fn a_flow_that_an_address_rule_allows_does_not_bring_a_pin_back() {
    let mut t = Script::new(under(policy(&["tcp://pkg.example.com:22", "203.0.113.0/24:80"], &[])));
    t.resolves(&question(1, "pkg.example.com", A), &[(1, &ALLOWED)]);
    t.advance_ms(3_599_000);
    assert!(t.connects(6000, "203.0.113.5:22"), "an hour is not over");
    t.guest("RST|ACK");
    t.advance_ms(301_000);
    assert!(t.connects(6001, "203.0.113.5:80"));
    assert!(!t.connects(6002, "203.0.113.5:22"));
    assert_eq!(t.refused(), [("policy not-given-by-dns".to_owned(), 1)]);
}

/// | 19, 44 | a fixed address without a question, another port or protocol | refused |
#[test]
fn attempt_19_and_44_a_fixed_address_another_port_or_protocol_is_refused() {
    let mut t = Script::new(under(policy(&["tcp://pkg.example.com:443", "tcp://git.example:22"], &[])));
    assert!(!t.connects(6000, "203.0.113.5:443"), "before the question");
    t.resolves(&question(1, "pkg.example.com", A), &[(60, &ALLOWED)]);
    assert!(t.connects(6001, "203.0.113.5:443"));
    assert!(!t.connects(6002, "203.0.113.5:22") && !t.connects(6003, "203.0.113.5:80"));
    t.guest_udp("203.0.113.5:443".parse().expect("an address"), b"QUIC");
    t.expect("ICMP prohibited");
    assert!(!t.connects(6004, "203.0.113.6:443"));
    let counts = [("policy default", 2), ("policy not-given-by-dns", 3)];
    let mut refused = t.refused();
    refused.sort();
    assert_eq!(refused, counts.map(|(text, count)| (text.to_owned(), count)));
}

#[test]
fn an_answer_of_ipv6_addresses_is_pinned_as_well() {
    let mut t = Script::new(Setup { v6: true, ..under(policy(&["tcp://pkg.example.com:443"], &[])) });
    let address: std::net::Ipv6Addr = ALLOWED_V6.parse().expect("an address");
    assert!(!t.connects(6000, &format!("[{ALLOWED_V6}]:443")));
    t.resolves(&question(1, "pkg.example.com", AAAA), &[(60, &address.octets())]);
    assert!(t.connects(6001, &format!("[{ALLOWED_V6}]:443")));
}

#[test]
fn a_cached_answer_is_pinned_again() {
    let mut t = Script::new(under(policy(&["tcp://pkg.example.com:443"], &[])));
    let q = |id| question(id, "pkg.example.com", A);
    t.resolves(&q(1), &[(600, &ALLOWED)]);
    t.advance_ms(500_000);
    t.ask(5000, &q(2));
    t.expect_answer(&q(2), 0);
    assert_eq!(t.driver.stack.counters().dns_cached, 1);
    // An hour after the first answer, and less than an hour after the second.
    t.advance_ms(3_200_000);
    assert!(t.connects(6000, "203.0.113.5:443"));
}

#[test]
fn names_that_lead_programs_elsewhere_do_not_exist() {
    let rules =
        PolicyRules { default: Effect::Allow, private: Effect::Allow, ..policy(&[], &["evil.example"]) };
    let mut t = Script::new(under(rules));
    for name in ["use-application-dns.net", "_dns.resolver.arpa", "evil.example"] {
        assert_eq!(outcome(&t.asks(&question(1, name, A)).expect("an answer")).0, NXDOMAIN, "{name}");
    }
    // No rule could let the first two pass, so they are no decisions.
    assert_eq!(t.refused(), [("deny evil.example".to_owned(), 1)]);
    // All else is as without a policy.
    t.resolves(&question(2, "other.example", TXT), &[]);
    assert!(t.connects(6000, "203.0.113.99:443") && t.connects(6001, "10.0.0.9:22"));
}

#[test]
fn names_that_lead_programs_elsewhere_are_refused_by_a_rule_if_there_is_one() {
    let mut t = Script::new(under(PolicyRules { asks: true, ..policy(&[], &["use-application-dns.net"]) }));
    for name in ["use-application-dns.net", "_dns.resolver.arpa"] {
        assert_eq!(outcome(&t.asks(&question(1, name, A)).expect("an answer")).0, NXDOMAIN, "{name}");
    }
    assert_eq!(t.refused(), [("deny use-application-dns.net".to_owned(), 1)]);
}

#[test]
fn questions_that_leave_have_a_rate() {
    let mut t = Script::new(under(policy(&["tcp://*.example.com:443"], &[])));
    for n in 0..510u16 {
        t.ask(
            5000,
            &question(
                n,
                &format!("n{}.example.com", n % 200),
                if n < 200 {
                    A
                } else if n < 400 {
                    AAAA
                } else {
                    15
                },
            ),
        );
    }
    let got = t.take_all().len();
    assert_eq!(got, 10, "SERVFAIL at once");
    assert_eq!(t.refused(), [("policy question-rate".to_owned(), 10)]);
    // One decision for each question.
    let decisions = t.take_decisions().decisions;
    let count = |ruling| {
        let of = decisions.iter().filter(|audited| audited.decision.ruling == ruling);
        of.map(|audited| audited.count).sum::<u64>()
    };
    assert_eq!((count(Ruling::Allowed), count(Ruling::Denied)), (500, 10));
}

#[test]
fn new_rules_hold_at_once_and_keep_the_pins_of_their_names() {
    let setup = under(policy(&["tcp://pkg.example.com:443", "tcp://old.example:443"], &[]));
    let shared = setup.config.rules.shared.clone().expect("a policy");
    let mut t = Script::new(setup);
    t.resolves(&question(1, "pkg.example.com", A), &[(60, &ALLOWED)]);
    t.resolves(&question(2, "old.example", A), &[(60, &[203, 0, 113, 6])]);
    let rules = policy(&["tcp://*.example.com:1-1000"], &["0.0.0.0/0:25"]);
    shared.set(t.now(), Ruleset::new(rules).expect("few rules"), false);
    assert!(t.connects(6000, "203.0.113.5:22") && !t.connects(6001, "203.0.113.6:443"));
    assert!(!t.connects(6002, "203.0.113.5:25"));
    assert_eq!(outcome(&t.asks(&question(3, "old.example", A)).expect("an answer at once")).0, NXDOMAIN);
    assert!(t.refused().contains(&("deny 0.0.0.0/0:25".to_owned(), 1)));
}

#[test]
fn both_workers_know_the_answers_that_one_of_them_gave() {
    let setup = under(policy(&["tcp://pkg.example.com:443"], &[]));
    let (mut first, mut second) = (Script::new(setup.clone()), Script::new(setup));
    first.resolves(&question(1, "pkg.example.com", A), &[(60, &ALLOWED)]);
    assert!(second.connects(6000, "203.0.113.5:443"));
}

/// A flow that the rules allow and a limit refuses is one refusal in the audit log and the metrics, and no
/// permission. So is one to the DNS address.
#[test]
fn a_flow_that_a_limit_refuses_was_not_allowed() {
    type Limit = fn(&mut Setup);
    let limits: [(Limit, &str); 3] = [
        (|setup| setup.config.rules.flows_per_destination = Some(1), "max-flows-per-destination 1"),
        (
            |setup| setup.config.rules.new_flows = Some(FlowRate { per_second: 1, burst: 1 }),
            "max-new-flows 1/s",
        ),
        (|setup| setup.config.max_flows = 1, "max-flows"),
    ];
    let to = "198.51.100.7:80";
    for (limit, reason) in limits {
        let mut setup = under(policy(&["198.51.100.0/24"], &[]));
        limit(&mut setup);
        let shared = setup.config.rules.shared.clone().expect("a policy");
        let mut t = Script::new(setup);
        t.connection_to(SocketAddr::new(t.addresses().0, 6000), to.parse().expect("an address"));
        t.establish();
        assert!(!t.connects(6001, to));
        let trail = t.take_decisions().decisions.into_iter();
        let decided: Vec<_> = trail.map(|Audited { decision, .. }| decision).collect();
        let on_flow = |ruling, reason: &str| Decision {
            remote: Some(to.parse().expect("an address")),
            name: None,
            protocol: Some(Protocol::Tcp),
            stage: Stage::Open,
            ruling,
            reason: reason.into(),
        };
        let allowed = on_flow(Ruling::Allowed, "allow 198.51.100.0/24");
        assert_eq!(decided, [allowed, on_flow(Ruling::Denied, reason)], "{reason}");
        let tally: Vec<_> = shared.tally().into_iter().map(|of| (of.ruling, of.by, of.count)).collect();
        assert_eq!(tally, [(Ruling::Allowed, "allow", 1), (Ruling::Denied, "limit", 1)]);
        assert_eq!(shared.last_refusals(1).len(), 1, "a refused program may ask for the reason");
        if reason == "max-flows" {
            let dns = dns(&t).to_string();
            assert!(!t.connects(6002, &dns));
            assert_eq!(shared.last_refusals(2).len(), 2);
        }
    }
}
