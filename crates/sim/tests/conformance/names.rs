//! DNS: queries to the DNS address, answering and silent resolvers, the cache, host entries, and changes of
//! the network.

use brodo_core::counters::DropReason;
use brodo_core::host::{Close, HostError, IcmpCause, IcmpReport, SocketId};
use brodo_core::link::RxMeta;
use brodo_core::stack::{Io, Stack};
use brodo_core::time::Duration;
use brodo_core::wire::dns::encode_name;
use brodo_core::wire::dns::message::{A, AAAA, PTR};
use brodo_sim::driver::Simulated;
use brodo_sim::host::{Call, ConnectPlan};
use brodo_sim::link::to_stack;
use brodo_sim::packet;
use brodo_sim::script::{Script, Setup};
use std::net::{IpAddr, SocketAddr};

mod answers;
mod asking;
mod denied_names;
mod fair_share;
mod forgery;
mod gates;
mod host_entries;
mod http_gate;
mod limits;
mod observing;
mod over_tcp;
mod over_tcp_unruled;
mod policy_changes;
mod policy_hand_over;
mod quic_gate;
mod remaining_attempts;
mod resolver_connections;
mod telling;
mod under_policy;
mod without_edns;

const SYN: &str = "SYN win=65535 mss=1460";
const SERVFAIL: u8 = 2;
const NXDOMAIN: u8 = 3;
const REFUSED: u8 = 5;

fn resolvers() -> [SocketAddr; 3] {
    ["192.0.2.53:53", "127.0.0.53:5353", "[2001:db8::53]:53"].map(|text| text.parse().expect("an address"))
}

/// With so many resolvers.
fn setup(count: usize) -> Setup {
    let mut setup = Setup::default();
    setup.config.resolvers = resolvers()[..count].to_vec();
    setup
}

fn dns(t: &Script) -> SocketAddr {
    let config = &t.setup().config;
    let address = if t.is_v6() {
        IpAddr::from(config.v6.expect("configured").dns.expect("DNS"))
    } else {
        config.v4.expect("configured").dns.expect("DNS").into()
    };
    SocketAddr::new(address, 53)
}

/// A question with recursion desired.
fn question(id: u16, name: &str, kind: u16) -> Vec<u8> {
    let mut out = id.to_be_bytes().to_vec();
    out.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    let mut wire = [0; 255];
    let len = encode_name(name, &mut wire).expect("a name");
    out.extend(&wire[..len]);
    out.extend(kind.to_be_bytes());
    out.extend([0, 1]);
    out
}

/// A question with an OPT record for so many bytes.
fn edns(mut question: Vec<u8>, size: u16) -> Vec<u8> {
    question[11] = 1;
    question.extend([0, 0, 41]);
    question.extend(size.to_be_bytes());
    question.extend([0; 6]);
    question
}

/// The answer to a question without OPT record: code, and the TTL and data of each record.
fn answer(question: &[u8], rcode: u8, records: &[(u32, &[u8])]) -> Vec<u8> {
    let mut out = question.to_vec();
    (out[2], out[3], out[7]) = (out[2] | 0x80, 0x80 | rcode, records.len() as u8);
    let kind = question[question.len() - 3];
    for (ttl, data) in records {
        out.extend([0xc0, 12, 0, kind, 0, 1]);
        out.extend(ttl.to_be_bytes());
        out.extend((data.len() as u16).to_be_bytes());
        out.extend(*data);
    }
    out
}

/// A message without what brodo draws for each query: identifier zero, and the question's letters in lower
/// case. Bytes behind the question stay.
fn canonical(message: &[u8]) -> Vec<u8> {
    let mut out = message.to_vec();
    out[..2].fill(0);
    let name = out.iter().skip(12).position(|&length| length == 0).map_or(out.len(), |end| 12 + end);
    out[12..name].make_ascii_lowercase();
    out
}

/// A response to `query` with its identifier and letters, which otherwise is `message`, a response to the
/// same question.
fn in_answer_to(query: &[u8], message: &[u8]) -> Vec<u8> {
    let mut out = message.to_vec();
    out[..2].copy_from_slice(&query[..2]);
    let question = 12..query.len().min(question_end(query));
    out[question.clone()].copy_from_slice(&query[question]);
    out
}

/// Where the question of a message ends whose name is not compressed.
fn question_end(message: &[u8]) -> usize {
    let mut at = 12;
    while message[at] != 0 {
        at += 1 + usize::from(message[at]);
    }
    at + 5
}

/// So many addresses.
fn many(count: usize) -> Vec<(u32, &'static [u8])> {
    vec![(60, &[1; 4]); count]
}

/// Steps shared by the tests of this file.
trait Asking {
    /// The guest asks from this port.
    fn ask(&mut self, port: u16, question: &[u8]);
    /// The sockets that are open, each with the resolver it asks.
    fn asked(&self) -> Vec<SocketAddr>;
    /// The open socket to this resolver.
    fn socket_to(&self, resolver: SocketAddr) -> SocketId;
    /// Queries received by a resolver over the open socket, as sent, oldest first.
    fn queries(&mut self, resolver: SocketAddr) -> Vec<Vec<u8>>;
    /// These queries without brodo's random ID and letter case.
    fn gets(&mut self, resolver: SocketAddr) -> Vec<Vec<u8>>;
    /// A resolver sends these bytes.
    fn says_raw(&mut self, resolver: SocketAddr, message: &[u8]);
    /// A resolver answers its last query of this question, in the query's letters and under its identifier.
    fn says(&mut self, resolver: SocketAddr, message: &[u8]);
    /// Asserts that the guest gets an answer with this code to that question.
    fn expect_answer(&mut self, question: &[u8], rcode: u8);
    /// A call to the stack between two turns.
    fn call(&mut self, call: impl FnOnce(&mut Stack, &mut Io<'_, Simulated>));
    fn dropped(&self, reason: DropReason) -> u64;
}

impl Asking for Script {
    fn ask(&mut self, port: u16, question: &[u8]) {
        let to = dns(self);
        let guest = SocketAddr::new(self.addresses().0, port);
        self.connection_to(guest, to);
        self.guest_udp(to, question);
    }

    fn asked(&self) -> Vec<SocketAddr> {
        let host = &self.driver.host;
        host.all().filter(|&socket| host.closed(socket).is_none()).map(|socket| host.peer(socket)).collect()
    }

    fn socket_to(&self, resolver: SocketAddr) -> SocketId {
        let host = &self.driver.host;
        let open = |&socket: &SocketId| host.closed(socket).is_none() && host.peer(socket) == resolver;
        host.all().find(open).expect("a socket to this resolver")
    }

    fn queries(&mut self, resolver: SocketAddr) -> Vec<Vec<u8>> {
        let socket = self.socket_to(resolver);
        self.driver.host.sent_datagrams(socket).map(<[u8]>::to_vec).collect()
    }

    fn gets(&mut self, resolver: SocketAddr) -> Vec<Vec<u8>> {
        self.queries(resolver).iter().map(|query| canonical(query)).collect()
    }

    fn says_raw(&mut self, resolver: SocketAddr, message: &[u8]) {
        let socket = self.socket_to(resolver);
        self.driver.host.peer_datagram(socket, message, None);
        self.poll();
    }

    fn says(&mut self, resolver: SocketAddr, message: &[u8]) {
        let question = |message: &[u8]| canonical(message)[12..question_end(message)].to_vec();
        let queries = self.queries(resolver);
        let asked = queries.iter().rev().find(|query| question(query) == question(message));
        let message = in_answer_to(asked.expect("the resolver was asked this"), message);
        self.says_raw(resolver, &message);
    }

    fn expect_answer(&mut self, question: &[u8], rcode: u8) {
        let got = self.expect_datagram();
        assert_eq!(got.src, dns(self));
        assert_eq!(got.data[..2], question[..2], "the identifier");
        assert_eq!((got.data[2] & 0x80, got.data[3] & 15), (0x80, rcode));
        assert_eq!(got.data[12..question.len()], question[12..], "the question");
    }

    fn call(&mut self, call: impl FnOnce(&mut Stack, &mut Io<'_, Simulated>)) {
        self.driver.io(call);
        self.poll();
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.driver.stack.counters().dropped(reason)
    }
}

#[test]
fn a_question_goes_to_the_first_resolver_and_its_answer_comes_from_ours() {
    Script::each_with(&setup(2), |t| {
        let q = edns(question(7, "name.test", A), 1232);
        t.ask(5000, &q);
        assert_eq!(t.asked(), [resolvers()[0]]);
        assert_eq!(t.gets(resolvers()[0]), [canonical(&q)], "with all that the guest has sent");
        // Not from the guest's port, which others may know.
        assert_eq!(t.host_calls(|call| *call == Call::UdpOpen(None, resolvers()[0])), 1);
        let mut reply = q.clone();
        (reply[2], reply[3]) = (0x81, 0x80);
        t.says(resolvers()[0], &reply);
        let got = t.expect_datagram();
        assert_eq!((got.src, got.data), (dns(t), reply));
        t.expect_nothing();
        t.expect_all_gone();
        assert_eq!(t.driver.stack.counters().dns_retries, 0);
    });
}

#[test]
fn two_questions_of_one_port_share_a_socket_and_each_has_its_answer() {
    Script::each_with(&setup(1), |t| {
        let (a, aaaa) = (question(1, "name.test", A), question(2, "name.test", AAAA));
        t.ask(5000, &a);
        t.ask(5000, &aaaa);
        assert_eq!(t.asked(), [resolvers()[0]]);
        assert_eq!(t.gets(resolvers()[0]), [canonical(&a), canonical(&aaaa)]);
        t.says(resolvers()[0], &answer(&aaaa, 0, &[(60, &[1; 16])]));
        t.expect_answer(&aaaa, 0);
        assert_eq!(t.asked().len(), 1);
        t.says(resolvers()[0], &answer(&a, NXDOMAIN, &[]));
        t.expect_answer(&a, NXDOMAIN);
        t.expect_all_gone();
    });
}

/// A program that has ended refuses its answer; another, which has asked the same, still gets it.
#[test]
fn a_closed_port_takes_no_questions_of_others_along() {
    Script::each_with(&setup(1), |t| {
        let (a, aaaa) = (question(1, "name.test", A), question(2, "name.test", AAAA));
        t.ask(5000, &a);
        t.ask(5000, &aaaa);
        t.ask(5001, &aaaa);
        t.says(resolvers()[0], &answer(&a, 0, &[(0, &[1; 4])]));
        let got = t.expect_datagram();
        t.guest_refuses_datagram(&got);
        t.says(resolvers()[0], &answer(&aaaa, 0, &[(0, &[1; 16])]));
        let ports = [t.expect_datagram().dst.port(), t.expect_datagram().dst.port()];
        assert!(ports.contains(&5001), "{ports:?}");
        t.expect_all_gone();
    });
}

#[test]
fn a_silent_resolver_is_helped_by_the_next_and_then_asked_last() {
    Script::each_with(&setup(2), |t| {
        let [first, second, _] = resolvers();
        // Once or twice may be the fault of the name; three times in a row is silence.
        for id in 1..=3 {
            let q = question(id, "a.test", A);
            t.ask(5000, &q);
            t.advance_ms(990);
            assert_eq!(t.asked(), [first]);
            t.advance_ms(20);
            assert_eq!(t.asked(), [first, second]);
            assert_eq!(t.gets(second), [canonical(&q)]);
            t.says(second, &answer(&q, 0, &[(0, &[1; 4])]));
            t.expect_answer(&q, 0);
            t.expect_all_gone();
        }
        // The next question goes to the one that has answered.
        let q = question(8, "b.test", A);
        t.ask(5000, &q);
        assert_eq!(t.asked(), [second]);
        t.says(second, &answer(&q, 0, &[(0, &[1; 4])]));
        t.expect_answer(&q, 0);
        // After a minute one question probes whether the first answers again.
        t.advance_ms(60_000);
        let q = question(9, "c.test", A);
        t.ask(5000, &q);
        assert_eq!(t.asked(), [first]);
    });
}

#[test]
fn the_first_may_still_answer_after_the_next_was_asked() {
    Script::each_with(&setup(2), |t| {
        let [first, ..] = resolvers();
        let q = question(7, "a.test", A);
        t.ask(5000, &q);
        t.advance_ms(1500);
        t.says(first, &answer(&q, 0, &[(0, &[1; 4])]));
        t.expect_answer(&q, 0);
        t.expect_all_gone();
        t.ask(5001, &q);
        assert_eq!(t.asked(), [first], "and remains the first");
    });
}

#[test]
fn silent_resolvers_end_in_servfail() {
    for count in 1..=3 {
        Script::each_with(&setup(count), |t| {
            let q = edns(question(7, "a.test", A), 4096);
            t.ask(5000, &q);
            t.advance_ms(4_980);
            assert_eq!(t.asked(), resolvers()[..count]);
            let asked: usize = resolvers()[..count].iter().map(|&resolver| t.gets(resolver).len()).sum();
            assert!((3..=6).contains(&asked), "{asked} times asked");
            t.expect_nothing();
            t.advance_ms(30);
            let got = t.expect_datagram();
            assert_eq!((got.data[3] & 15, got.data[11]), (SERVFAIL, 1), "with an OPT record as the question");
            t.expect_all_gone();
            assert_eq!(t.driver.stack.counters().dns_unanswered, 1);
        });
    }
}

#[test]
fn a_refusal_hands_over_at_once_and_is_passed_on_if_nobody_knows_better() {
    Script::each_with(&setup(3), |t| {
        let [first, second, third] = resolvers();
        let q = question(7, "a.test", A);
        t.ask(5000, &q);
        t.says(first, &answer(&q, REFUSED, &[]));
        assert_eq!(t.asked(), [second]);
        t.says(second, &answer(&q, SERVFAIL, &[]));
        assert_eq!(t.asked(), [third]);
        t.says(third, &answer(&q, 0, &[(0, &[1; 4])]));
        t.expect_answer(&q, 0);
        t.expect_all_gone();
        t.ask(5000, &q);
        for resolver in resolvers() {
            assert_eq!(t.asked(), [resolver], "an answer with a failure code is no failure of the resolver");
            t.expect_nothing();
            t.says(resolver, &answer(&q, REFUSED, &[]));
        }
        t.expect_answer(&q, REFUSED);
        t.expect_all_gone();
    });
}

#[test]
fn a_resolver_that_is_silent_where_another_fails_remains_the_first() {
    Script::each_with(&setup(2), |t| {
        let [first, second, _] = resolvers();
        // Once or twice may be the fault of the name; three times in a row is silence.
        for id in 1..=3 {
            let q = question(id, "slow.test", A);
            t.ask(5000, &q);
            assert_eq!(t.asked(), [first]);
            t.advance_ms(1_010);
            t.says(second, &answer(&q, SERVFAIL, &[]));
            t.advance_ms(5_000);
            t.expect_answer(&q, SERVFAIL);
            t.expect_all_gone();
        }
        t.ask(5000, &question(8, "b.test", A));
        assert_eq!(t.asked(), [second]);
    });
}

#[test]
fn a_resolver_that_cannot_be_reached_hands_over_at_once() {
    Script::each_with(&setup(2), |t| {
        let [first, second, _] = resolvers();
        let q = question(7, "a.test", A);
        t.ask(5000, &q);
        let socket = t.socket_to(first);
        t.driver
            .host
            .peer_icmp(socket, IcmpReport { cause: IcmpCause::PortUnreachable, from: None, sequence: None });
        t.poll();
        t.expect_nothing();
        assert_eq!(t.asked(), [second]);
        t.says(second, &answer(&q, 0, &[(0, &[1; 4])]));
        t.expect_answer(&q, 0);
        // No route: the other one, and if that has none either, the guest gets SERVFAIL at once.
        t.driver.host.refuse_next_open(HostError::NetUnreachable);
        t.ask(5001, &q);
        assert_eq!(t.asked(), [first]);
        t.says(first, &answer(&q, 0, &[(0, &[1; 4])]));
        t.expect_answer(&q, 0);
        for _ in 0..2 {
            t.driver.host.refuse_next_open(HostError::NetUnreachable);
        }
        t.ask(5002, &q);
        t.expect_answer(&q, SERVFAIL);
        t.expect_all_gone();
    });
}

#[test]
fn an_error_that_the_next_question_meets_is_not_waited_for() {
    Script::each_with(&setup(2), |t| {
        let [first, second, _] = resolvers();
        let questions = [question(7, "a.test", A), question(8, "b.test", A)];
        t.ask(5000, &questions[0]);
        let socket = t.socket_to(first);
        t.driver
            .host
            .peer_icmp(socket, IcmpReport { cause: IcmpCause::HostUnreachable, from: None, sequence: None });
        // Its event comes after the guest's next query.
        t.ask(5000, &questions[1]);
        t.advance_ms(2);
        assert_eq!(t.asked(), [second]);
        let mut got = t.gets(second);
        got.sort();
        assert_eq!(got, questions.each_ref().map(|q| canonical(q)));
        for q in &questions {
            t.says(second, &answer(q, 0, &[(0, &[1; 4])]));
            t.expect_answer(q, 0);
        }
        t.expect_all_gone();
    });
}

#[test]
fn an_error_on_the_way_is_none_of_the_resolvers() {
    Script::each_with(&setup(2), |t| {
        let [first, ..] = resolvers();
        let q = question(7, "a.test", A);
        t.ask(5000, &q);
        let socket = t.socket_to(first);
        let report = IcmpReport { cause: IcmpCause::TimeExceeded, from: None, sequence: None };
        t.driver.host.peer_icmp(socket, report);
        t.ask(5000, &question(8, "b.test", A));
        assert_eq!((t.asked(), t.gets(first).len()), (vec![first], 2));
        t.driver.host.peer_icmp(socket, report);
        t.says(first, &answer(&q, 0, &[(0, &[1; 4])]));
        t.expect_answer(&q, 0);
    });
}

#[test]
fn new_search_names_are_advertised() {
    let mut t = Script::v6();
    let mac = t.setup().config.mac.0;
    let to: IpAddr = "ff02::2".parse().expect("an address");
    let from: IpAddr = "fe80::1234".parse().expect("an address");
    let solicit = packet::ip_frame(to_stack(mac), from, to, 58, vec![133, 0, 0, 0, 0, 0, 0, 0]);
    let now = t.now();
    assert_eq!(t.driver.turn(now, &[(RxMeta::default(), solicit)]).len(), 1);
    t.driver.stack.set_search(vec!["new.lan".to_owned()]);
    let sent = t.driver.turn(now, &[]);
    let has_new_domain = |bytes: &[u8]| bytes.windows(9).any(|window| window == b"\x03new\x03lan\0");
    assert!(sent.len() == 1 && sent[0].cut().iter().any(|frame| has_new_domain(frame)), "{sent:?}");
    // Names that are no more are withdrawn by a lifetime of 0 (RFC 8106, 5.2).
    let withdraws = |name: &[u8], frame: &[u8]| {
        let option = [&[31, 3, 0, 0, 0, 0, 0, 0][..], name].concat();
        frame.windows(option.len()).any(|window| window == option)
    };
    t.driver.handovers.switch_off();
    t.driver.stack.set_search(vec!["other.lan".to_owned()]);
    let sent = t.driver.turn(now, &[]);
    assert!(sent[0].cut().iter().any(|frame| withdraws(b"\x03new\x03lan\0", frame)), "{sent:?}");
    t.driver.stack.set_search(vec!["NEW.lan".to_owned()]);
    let sent = t.driver.turn(now, &[]);
    assert!(!sent[0].cut().iter().any(|frame| withdraws(b"\x03new\x03lan\0", frame)), "{sent:?}");
    assert!(sent[0].cut().iter().any(|frame| withdraws(b"\x05other\x03lan\0", frame)), "{sent:?}");
}

#[test]
fn without_resolvers_queries_are_refused_at_once() {
    Script::each(|t| {
        let q = question(7, "a.test", A);
        t.ask(5000, &q);
        t.expect_answer(&q, SERVFAIL);
        t.guest(SYN);
        t.expect("RST|ACK ack=1");
        t.expect_all_gone();
    });
}

#[test]
fn only_an_answer_to_the_question_counts() {
    Script::each_with(&setup(1), |t| {
        let [resolver, ..] = resolvers();
        let q = question(7, "a.test", A);
        t.ask(5000, &q);
        let query = t.queries(resolver)[0].clone();
        let right = in_answer_to(&query, &answer(&q, 0, &[(0, &[1; 4])]));
        let named = |name: &str, kind, data: &'static [u8]| {
            [&query[..2], &answer(&question(7, name, kind), 0, &[(0, data)])[2..]].concat()
        };
        let (other_name, other_type) = (named("b.test", A, &[1; 4]), named("a.test", AAAA, &[1; 16]));
        let mut other_id = right.clone();
        other_id[1] ^= 1;
        let messages: [&[u8]; 6] = [&other_name, &other_type, &other_id, &query, b"", &right[..11]];
        for wrong in messages {
            t.says_raw(resolver, wrong);
        }
        t.expect_nothing();
        // An empty message is no answer.
        assert_eq!(t.dropped(DropReason::DnsUnsolicited), 5);
        t.says_raw(resolver, &right);
        t.expect_answer(&q, 0);
        t.expect_all_gone();
    });
}

#[test]
fn records_expire_while_the_machine_is_suspended() {
    Script::each_with(&setup(1), |t| {
        let resolver = resolvers()[0];
        let q = question(7, "a.test", A);
        t.ask(5000, &q);
        t.says(resolver, &answer(&q, 0, &[(3600, &[1; 4])]));
        t.expect_answer(&q, 0);
        t.driver.stack.set_suspended(Duration::from_secs(1800));
        t.ask(5000, &q);
        let got = t.expect_datagram().data;
        assert_eq!(got[got.len() - 10..got.len() - 6], 1800u32.to_be_bytes(), "half of its time is over");
        t.driver.stack.set_suspended(Duration::from_secs(3600));
        t.ask(5000, &q);
        assert_eq!(t.asked(), [resolver], "asked again");
    });
}

#[test]
fn what_is_no_question_is_refused_or_dropped() {
    Script::each_with(&setup(1), |t| {
        let q = question(7, "a.test", A);
        let (mut two, mut response) = (q.clone(), q.clone());
        two[5] = 2;
        response[2] |= 0x80;
        t.ask(5000, &two);
        assert_eq!(t.expect_datagram().data[3] & 15, 1);
        for hopeless in [&response[..], &q[..11], b""] {
            t.ask(5000, hopeless);
            t.expect_nothing();
        }
        assert!(!t.has_socket());
        assert_eq!(t.dropped(DropReason::MalformedDns), 4);
        t.expect_all_gone();
    });
}

#[test]
fn a_guest_that_asks_again_is_not_asked_for_twice() {
    Script::each_with(&setup(2), |t| {
        let [first, second, _] = resolvers();
        let q = question(7, "a.test", A);
        t.ask(5000, &q);
        t.ask(5000, &q);
        assert_eq!(t.asked(), [first, second], "it is less patient than we are");
        t.says(second, &answer(&q, 0, &[(0, &[1; 4])]));
        t.expect_answer(&q, 0);
        t.expect_nothing();
        t.expect_all_gone();
    });
}

#[test]
fn an_answer_is_given_again_while_it_holds() {
    Script::each_with(&setup(1), |t| {
        let [resolver, ..] = resolvers();
        let q = question(7, "a.test", A);
        t.ask(5000, &q);
        t.says(resolver, &answer(&q, 0, &[(60, &[192, 0, 2, 1])]));
        t.expect_answer(&q, 0);
        t.advance_ms(10_500);
        let other = question(9, "A.Test", A);
        t.ask(6000, &other);
        let got = t.expect_datagram();
        assert_eq!(got.data[..2], [0, 9]);
        assert_eq!(got.data[12..other.len()], other[12..]);
        assert_eq!(got.data[got.data.len() - 10..], [0, 0, 0, 50, 0, 4, 192, 0, 2, 1]);
        t.expect_all_gone();
        assert_eq!(t.driver.stack.counters().dns_cached, 1);
        // Another kind of question is another question.
        t.ask(6000, &edns(q.clone(), 1232));
        assert_eq!(t.asked(), [resolver]);
        t.advance_ms(6_000);
        t.take_all();
        t.advance_ms(45_000);
        t.ask(6001, &q);
        assert_eq!(t.asked(), [resolver], "it holds no longer");
    });
}

#[test]
fn failures_are_not_given_again() {
    Script::each_with(&setup(1), |t| {
        let [resolver, ..] = resolvers();
        let q = question(7, "a.test", A);
        let mut cut = answer(&q, 0, &[(60, &[1; 4])]);
        cut[2] |= 2;
        for reply in [answer(&q, SERVFAIL, &[]), answer(&q, NXDOMAIN, &[]), cut] {
            t.ask(5000, &q);
            assert_eq!(t.asked(), [resolver]);
            t.says(resolver, &reply);
            assert_eq!(t.expect_datagram().data, reply);
        }
        assert_eq!(t.driver.stack.counters().dns_cached, 0);
    });
    let mut off = setup(1);
    off.config.dns_cache = 0;
    Script::each_with(&off, |t| {
        let q = question(7, "a.test", A);
        for _ in 0..2 {
            t.ask(5000, &q);
            t.says(resolvers()[0], &answer(&q, 0, &[(60, &[1; 4])]));
            t.expect_answer(&q, 0);
        }
    });
}

#[test]
fn an_answer_longer_than_the_guest_takes_is_cut_so_that_it_comes_over_tcp() {
    Script::each_with(&setup(1), |t| {
        let q = question(7, "a.test", A);
        let long = answer(&q, 0, &many(40));
        t.ask(5000, &q);
        t.says(resolvers()[0], &long);
        let got = t.expect_datagram().data;
        assert_eq!((got.len(), got[2] & 2, got[7]), (q.len(), 2, 0), "TC, and nothing but the question");
        // From the cache too; and a larger EDNS size gets a longer answer.
        t.ask(5000, &q);
        assert_eq!(t.expect_datagram().data[2] & 2, 2);
        let roomy = edns(question(8, "a.test", A), 1400);
        t.ask(5000, &roomy);
        let mut long = answer(&question(8, "a.test", A), 0, &many(40));
        long[11] = 1;
        long.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        t.says(resolvers()[0], &long);
        assert_eq!(t.expect_datagram().data, long);
        // More than the link carries in one packet.
        let huge = edns(question(9, "b.test", A), 65_000);
        t.ask(5000, &huge);
        t.says(resolvers()[0], &answer(&question(9, "b.test", A), 0, &many(200)));
        let got = t.expect_datagram().data;
        assert_eq!((got[2] & 2, got[11]), (2, 1));
        assert_eq!(t.driver.stack.counters().dns_truncated, 3);
        t.expect_all_gone();
    });
}

#[test]
fn without_credit_an_answer_is_not_lost() {
    Script::each_with(&setup(1), |t| {
        let questions = [question(7, "a.test", A), question(8, "b.test", A)];
        for q in &questions {
            t.ask(5000, q);
        }
        t.link_credit(Some(0));
        let socket = t.socket_to(resolvers()[0]);
        for (q, query) in questions.iter().zip(t.queries(resolvers()[0])) {
            let reply = in_answer_to(&query, &answer(q, 0, &[(0, &[1; 4])]));
            t.driver.host.peer_datagram_unnoticed(socket, &reply, None, 0);
        }
        t.driver.host.peer_datagrams_noticed(socket);
        t.poll();
        t.expect_nothing();
        t.link_credit(None);
        for q in &questions {
            t.expect_answer(q, 0);
        }
        t.expect_all_gone();
    });
}

#[test]
fn host_entries_are_answered_here() {
    let mut setup = setup(1);
    let entry = |name: &str, ip: &str| (name.to_owned(), ip.parse().expect("an address"));
    setup.config.host_names = vec![entry("db.lan", "192.0.2.7"), entry("db.lan", "2001:db8::7")];
    setup.config.v4.as_mut().expect("IPv4").host_loopback = Some("10.0.2.4".parse().expect("an address"));
    Script::each_with(&setup, |t| {
        let tails: [(&str, u16, &[u8]); 4] = [
            ("DB.lan", A, &[0, 0, 0, 10, 0, 4, 192, 0, 2, 7]),
            ("db.lan", AAAA, &[0, 7]),
            ("host.brodo.internal", A, &[10, 0, 2, 4]),
            ("7.2.0.192.in-addr.arpa", PTR, b"\x02db\x03lan\0"),
        ];
        for (name, kind, tail) in tails {
            let q = question(7, name, kind);
            t.ask(5000, &q);
            let got = t.expect_datagram().data;
            assert!(got.ends_with(tail) && got[7] == 1, "{name}: {got:02x?}");
        }
        let mail = question(7, "db.lan", 15);
        t.ask(5000, &mail);
        t.expect_answer(&mail, 0);
        t.expect_all_gone();
        assert_eq!(t.driver.stack.counters().dns_host_entries, 5);
    });
}

#[test]
fn the_names_of_addresses_are_learnt_from_answers() {
    Script::each_with(&setup(1), |t| {
        let q = question(7, "www.test", A);
        t.ask(5000, &q);
        t.says(resolvers()[0], &answer(&q, 0, &[(60, &[192, 0, 2, 1]), (60, &[192, 0, 2, 2])]));
        t.expect_answer(&q, 0);
        let name = |ip: &str| t.driver.stack.name_of(ip.parse().expect("an address"));
        assert_eq!(
            ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(name),
            [Some("www.test"), Some("www.test"), None]
        );
    });
}

#[test]
fn another_resolver_gets_what_the_last_one_has_not_answered() {
    Script::each_with(&setup(1), |t| {
        let [first, second, _] = resolvers();
        let (known, q) = (question(1, "known.test", A), question(7, "a.test", A));
        t.ask(5000, &known);
        t.says(first, &answer(&known, 0, &[(600, &[1; 4])]));
        t.expect_answer(&known, 0);
        t.ask(5000, &q);
        t.call(|stack, _| stack.set_resolvers(vec![second]));
        assert_eq!(t.asked(), [second]);
        assert_eq!(t.gets(second), [canonical(&q)]);
        t.says(second, &answer(&q, 0, &[(0, &[1; 4])]));
        t.expect_answer(&q, 0);
        t.ask(5000, &known);
        assert_eq!(t.asked(), [second], "answers of the former resolver are flushed");
        t.call(|stack, _| stack.set_resolvers(Vec::new()));
        t.expect_answer(&known, SERVFAIL);
        t.expect_all_gone();
    });
}

#[test]
fn when_an_address_of_the_host_goes_its_connections_end_and_datagrams_begin_anew() {
    Script::each_with(&setup(1), |t| {
        let q = question(7, "a.test", A);
        let lost = t.connection(3000, 80);
        t.establish();
        let lost_socket = t.socket();
        let kept = t.connection(3001, 80);
        t.establish();
        t.connection(3002, 4433);
        t.guest("UDP data=10");
        let datagrams = t.socket();
        t.ask(5000, &q);
        t.driver.host.strand(lost_socket);
        t.driver.host.strand(datagrams);
        t.call(Stack::network_changed);
        t.select(lost);
        t.expect("RST|ACK");
        t.expect_nothing();
        assert_eq!(t.driver.host.closed(lost_socket), Some(Close::Reset));
        assert!(t.driver.host.closed(datagrams).is_some());
        assert_eq!(t.gets(resolvers()[0]), [canonical(&q)], "asked again, from another socket");
        t.select(kept);
        t.guest("ACK data=10");
        t.expect("ACK ack=11");
        t.connection(3002, 4433);
        t.guest("UDP data=20");
        t.host_got_datagram(20);
        assert_ne!(t.socket(), datagrams);
    });
}

#[test]
fn a_connect_from_an_address_that_is_gone_is_not_waited_for() {
    Script::each(|t| {
        t.connection(3000, 80);
        t.driver.host.plan_connect(ConnectPlan::Pending);
        t.guest(SYN);
        let socket = t.socket();
        t.driver.host.strand(socket);
        t.call(Stack::network_changed);
        t.expect("ICMP net-unreachable");
        t.expect_all_gone();
    });
}
