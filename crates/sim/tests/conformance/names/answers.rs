//! Answers of resolvers that lead an allowed name astray: other owners, long chains, the floor, private
//! networks. Numbers are those of the bypass attempts in the guide's page on policies.

use super::over_tcp::OverTcp;
use super::under_policy::{ALLOWED, Ruled, outcome, policy, under};
use super::*;
use brodo_core::config::Config;
use brodo_core::policy::{AllowRule, Effect, PolicyRules, Rule, Ruleset, SharedPolicy};
use brodo_core::wire::dns::Header;
use brodo_core::wire::dns::message::{CNAME, Records, SOA, Section};
use std::net::Ipv6Addr;
use std::sync::Arc;

const NAME: &str = "pkg.example.com";
const NSEC: u16 = 47;
const RRSIG: u16 = 46;
/// Allows [`NAME`] at this port.
const RULE: &str = "tcp://pkg.example.com:443";

fn served() -> Script {
    Script::new(under(policy(&[RULE], &[])))
}

fn pins(t: &Script) -> usize {
    t.setup().config.rules.shared.as_ref().expect("a policy").pins()
}

fn wire(name: &str) -> Vec<u8> {
    let mut wire = [0; 255];
    let len = encode_name(name, &mut wire).expect("a name");
    wire[..len].to_vec()
}

/// Adds a record to the section whose count ends at this byte of the header.
fn add(message: &mut Vec<u8>, section: usize, owner: &str, kind: u16, data: &[u8]) {
    message.extend(wire(owner));
    message.extend(kind.to_be_bytes());
    message.extend([0, 1, 0, 0, 0, 60]);
    message.extend((data.len() as u16).to_be_bytes());
    message.extend(data);
    message[section] += 1;
}

/// A response to the question with these aliases, each of the one before, and an address of the last.
fn chain(q: &[u8], aliases: usize, address: [u8; 4]) -> Vec<u8> {
    let mut message = answer(q, 0, &[]);
    let mut owner = NAME.to_owned();
    for n in 1..=aliases {
        let alias = format!("a{n}.example.net");
        add(&mut message, 7, &owner, CNAME, &wire(&alias));
        owner = alias;
    }
    add(&mut message, 7, &owner, A, &address);
    message
}

/// A response with so many addresses, 203.0.113.0 and those behind it, and of so many by its header.
fn addresses(q: &[u8], count: u32, said: u16) -> Vec<u8> {
    let all: Vec<[u8; 4]> = (0..count).map(|n| (0xcb00_7100 + n).to_be_bytes()).collect();
    let records: Vec<(u32, &[u8])> = all.iter().map(|address| (60, &address[..])).collect();
    let mut message = answer(q, 0, &records);
    message[6..8].copy_from_slice(&said.to_be_bytes());
    message
}

/// | 12 | answers with records of another owner, in the authority and additional sections | only the chain
/// of the question is pinned |
#[test]
fn attempt_12_only_the_chain_of_the_question_is_pinned() {
    let mut t = served();
    let q = question(1, NAME, A);
    let mut message = answer(&q, 0, &[]);
    add(&mut message, 7, NAME, CNAME, &wire("cdn.example.net"));
    add(&mut message, 7, "cdn.example.net", A, &ALLOWED);
    add(&mut message, 7, "evil.example", A, &[203, 0, 113, 66]);
    add(&mut message, 9, NAME, A, &[203, 0, 113, 67]);
    add(&mut message, 11, NAME, A, &[203, 0, 113, 68]);
    t.ask(5000, &q);
    t.says(resolvers()[0], &message);
    let got = t.expect_datagram().data;
    assert_eq!(outcome(&got), (0, 3), "the answer section alone");
    assert_eq!(got[8..12], [0; 4]);
    assert!(t.connects(6000, "203.0.113.5:443"));
    for (n, last) in (0..).zip([66, 67, 68]) {
        assert!(!t.connects(6001 + n, &format!("203.0.113.{last}:443")));
    }
    assert_eq!(pins(&t), 1);
}

/// A question with the DO bit (RFC 3225).
fn dnssec(id: u16) -> Vec<u8> {
    let mut q = edns(question(id, NAME, A), 1232);
    let flags = q.len() - 4;
    q[flags] = 0x80;
    q
}

/// Kinds of the records in the authority section.
fn authorities(message: &[u8]) -> Vec<u16> {
    let header = Header::parse(message).expect("a message");
    let end = question_end(message);
    let records = Records::new(message, &header, end).map(|record| record.expect("readable"));
    records.filter(|record| record.section == Section::Authority).map(|record| record.kind).collect()
}

/// Adds records to a message.
type AddRecords<'a> = &'a dyn Fn(&mut Vec<u8>);

#[test]
fn the_authority_section_is_kept_where_its_records_are_proofs() {
    let mut t = served();
    let alias = |message: &mut Vec<u8>| add(message, 7, NAME, CNAME, &wire("cdn.example.net"));
    let address = |message: &mut Vec<u8>| add(message, 7, NAME, A, &ALLOWED);
    let proof = |message: &mut Vec<u8>| {
        add(message, 9, "example.com", NSEC, &[0; 8]);
        add(message, 9, "example.com", RRSIG, &[0; 20]);
    };
    let soa = |message: &mut Vec<u8>| add(message, 9, "example.net", SOA, &[0; 22]);
    let stray = |message: &mut Vec<u8>| add(message, 9, "evil.example", A, &[203, 0, 113, 66]);
    let plain = |id| question(id, NAME, A);
    let cases: [(Vec<u8>, &[AddRecords<'_>], &[u16]); 7] = [
        // An alias of nothing: how long that holds.
        (plain(1), &[&alias, &soa, &stray], &[SOA]),
        (plain(2), &[&soa, &stray, &soa], &[SOA]),
        // An answer: nothing without DO, and the proof that no better name exists with it.
        (plain(3), &[&address, &proof], &[]),
        (plain(4), &[&address, &stray, &proof], &[]),
        (dnssec(5), &[&address, &proof, &stray], &[NSEC, RRSIG]),
        (dnssec(6), &[&address, &stray, &proof], &[]),
        (dnssec(7), &[&alias, &soa, &proof], &[SOA, NSEC, RRSIG]),
    ];
    for (q, steps, expected) in cases {
        let mut message = answer(&question(0, NAME, A), 0, &[]);
        for add_records in steps {
            add_records(&mut message);
        }
        t.ask(5000, &q);
        t.says(resolvers()[0], &message);
        let got = t.expect_datagram().data;
        assert_eq!(authorities(&got), expected, "{q:?}");
        // The cached answer expires.
        t.advance_ms(301_000);
    }
    assert!(!t.connects(6000, "203.0.113.66:443"));
}

/// | 13 | a circle of aliases, a chain of 20, 4,093 addresses in one answer, 4,096 by its header | bounded:
/// 8 aliases are followed, 64 addresses pinned |
#[test]
fn attempt_13_chains_and_long_answers_are_bounded() {
    for (aliases, is_pinned) in [(1, true), (8, true), (9, false), (20, false)] {
        let mut t = served();
        let q = edns(question(1, NAME, A), 4096);
        t.ask(5000, &q);
        t.says(resolvers()[0], &chain(&question(1, NAME, A), aliases, ALLOWED));
        assert_eq!(outcome(&t.expect_datagram().data), (0, aliases as u16 + 1));
        assert_eq!(pins(&t), usize::from(is_pinned), "{aliases} aliases");
        assert_eq!(t.connects(6000, "203.0.113.5:443"), is_pinned, "{aliases} aliases");
    }
    // A circle, with and without an address in it, and an alias of itself.
    for circle in [&[NAME, "a.example.net", "b.example.net"][..], &[NAME]] {
        for (address, expected) in [(None, 0), (Some(ALLOWED), 1)] {
            let mut t = served();
            let q = question(1, NAME, A);
            let mut message = answer(&q, 0, &[]);
            for (owner, alias) in circle.iter().zip(circle.iter().cycle().skip(1)) {
                add(&mut message, 7, owner, CNAME, &wire(alias));
            }
            if let Some(address) = address {
                add(&mut message, 7, circle[circle.len() - 1], A, &address);
            }
            t.ask(5000, &q);
            t.says(resolvers()[0], &message);
            t.expect_datagram();
            assert_eq!(pins(&t), expected, "{circle:?}");
        }
    }
}

/// As many addresses as a message has room for are 4,093 of IPv4.
#[test]
fn attempt_13_of_thousands_of_addresses_64_are_pinned() {
    for (count, said) in [(200, 200), (4093, 4093), (4093, 4096), (4093, u16::MAX)] {
        let mut t = served();
        t.connects_to_dns(5000);
        t.asks_over_tcp(&[&question(1, NAME, A)]);
        let asked = t.resolver_gets();
        let reply = in_answer_to(&asked[0], &addresses(&question(1, NAME, A), count, said));
        let framed = [&(reply.len() as u16).to_be_bytes()[..], &reply].concat();
        for piece in framed.chunks(1400) {
            t.resolver_says(piece);
        }
        let mut stream = Vec::new();
        loop {
            let more = t.take_payload();
            t.guest("ACK");
            if more.is_empty() {
                break;
            }
            stream.extend(more);
        }
        let is_whole = u32::from(said) == count;
        assert_eq!(pins(&t), if is_whole { 64 } else { 0 }, "{said}");
        // Its length, and the message: cut short, it is no answer.
        let expected = if is_whole { (0, count as u16) } else { (SERVFAIL, 0) };
        assert_eq!(outcome(&stream[2..]), expected, "{said}");
        assert_eq!(t.connects(6000, "203.0.113.63:443"), is_whole);
        assert!(!t.connects(6001, "203.0.113.64:443"));
        assert!(!t.connects(6002, "203.0.128.252:443"));
    }
}

/// | 14 | an allowed name answered with 127.0.0.1, ::1, 169.254.169.254, 0.0.0.0 | refused by the floor;
/// 0.0.0.0 is no destination |
#[test]
fn attempt_14_allowed_names_that_lead_to_the_floor() {
    let mut t = served();
    let floor: [&[u8]; 3] = [&[127, 0, 0, 1], &[169, 254, 169, 254], &[0; 4]];
    let got = t.resolves(&question(1, NAME, A), &floor.map(|address| (0, address)));
    assert_eq!(outcome(&got), (0, 3), "the answer passes, so that the refusal has a reason");
    assert_eq!(outcome(&t.resolves(&question(2, NAME, AAAA), &[(0, &Ipv6Addr::LOCALHOST.octets())])), (0, 1));
    for to in ["127.0.0.1:443", "169.254.169.254:443"] {
        assert!(!t.connects(6000, to), "{to}");
    }
    t.is_no_destination("0.0.0.0:443");
    t.is_no_destination("255.255.255.255:443");
    let counts = [("floor host-loopback", 1), ("floor link-local", 1)];
    assert_eq!(t.refused(), counts.map(|(text, count)| (text.to_owned(), count)));
}

/// | 16 | an allowed name answered with 64:ff9b::a9fe:a9fe, 2002:7f00:1::, a Teredo address of either, and
/// ::ffff:127.0.0.1 | refused by the floor; the last is no destination |
#[test]
fn attempt_14_and_16_addresses_in_addresses() {
    let mut t = Script::new(Setup { v6: true, ..under(policy(&[RULE], &[])) });
    let addresses = [
        ("::1", "floor host-loopback"),
        ("fe80::1", "floor link-local"),
        ("64:ff9b::a9fe:a9fe", "floor link-local"),
        ("64:ff9b::7f00:1", "floor host-loopback"),
        ("64:ff9b:1::a9fe:a9fe", "floor link-local"),
        ("2002:7f00:1::", "floor host-loopback"),
        ("2002:a9fe:a9fe::1", "floor link-local"),
        // Teredo: its server is 127.0.0.1; its client, with inverted bits, 169.254.169.254.
        ("2001:0:7f00:1::", "floor host-loopback"),
        ("2001:0:cb00:7105::5601:5601", "floor link-local"),
    ];
    let parsed = |text: &str| text.parse::<Ipv6Addr>().expect("an address").octets();
    let octets: Vec<_> = addresses.iter().map(|(text, _)| parsed(text)).collect();
    let mut records: Vec<(u32, &[u8])> = octets.iter().map(|octets| (600, &octets[..])).collect();
    let (mapped, any) = (parsed("::ffff:127.0.0.1"), [0; 16]);
    records.extend([(600, &mapped[..]), (600, &any[..])]);
    t.resolves(&question(1, NAME, AAAA), &records);
    for (text, rule) in addresses {
        let before = count_of(&t, rule);
        assert!(!t.connects(6000, &format!("[{text}]:443")), "{text}");
        assert_eq!(count_of(&t, rule), before + 1, "{text}");
    }
    t.is_no_destination("[::ffff:127.0.0.1]:443");
    t.is_no_destination("[::ffff:169.254.169.254]:443");
    t.is_no_destination("[::]:443");
    assert_eq!(t.driver.host.open_sockets(), 0);
}

/// | 15 | an allowed name with a TTL of 0, public, then in a private network (rebinding) | refused
/// `private`; the first stays |
#[test]
fn attempt_15_a_name_that_is_bound_anew() {
    let mut t = served();
    t.resolves(&question(2, NAME, A), &[(0, &ALLOWED)]);
    assert!(t.connects(6002, "203.0.113.5:443"));
    t.advance_ms(1000);
    let got = t.resolves(&question(3, NAME, A), &[(0, &[10, 0, 0, 1])]);
    assert_eq!(outcome(&got), (0, 1), "the answer passes, so that the refusal has a reason");
    assert!(!t.connects(6003, "10.0.0.1:443"));
    assert_eq!(t.refused(), [("policy private".to_owned(), 1)]);
    assert!(t.connects(6004, "203.0.113.5:443"));
}

/// | 47 | the host's own addresses, a bridge of containers, 100.64.0.0/10, by address and by an allowed name;
/// `host.brodo.internal`; an allowed name that leads to the mapped loopback | refused `private`; the name
/// does not exist without a mapped loopback, and the address needs a rule with one; refused
/// `not-given-by-dns` |
#[test]
fn attempt_47_the_host_and_networks_around_it() {
    let own = ["192.0.2.7", "203.0.113.9", "2001:db8::7"].map(|ip| ip.parse::<IpAddr>().expect("an address"));
    let private_v4 = [
        "192.0.2.7",
        "203.0.113.9",
        "192.168.1.10",
        "172.17.0.1",
        "10.88.0.1",
        "100.64.0.1",
        "100.127.255.254",
    ];
    let private_v6 = ["2001:db8::7", "fd00::1", "64:ff9b::c0a8:10a", "64:ff9b::c000:207", "2002:ac11:1::1"];
    for v6 in [false, true] {
        let mut t = Script::new(Setup { v6, ..under(policy(&[RULE], &[])) });
        t.call(|stack, _| stack.set_host_addresses(own.into()));
        let mut refused = 0;
        for ip in if v6 { &private_v6[..] } else { &private_v4[..] } {
            let ip: IpAddr = ip.parse().expect("an address");
            let to = SocketAddr::new(ip, 443).to_string();
            // By address, and once DNS has given it for an allowed name.
            assert!(!t.connects(6000, &to), "{to}");
            let (kind, octets) = match ip {
                IpAddr::V4(ip) => (A, ip.octets().to_vec()),
                IpAddr::V6(ip) => (AAAA, ip.octets().to_vec()),
            };
            t.resolves(&question(1, NAME, kind), &[(0, &octets)]);
            assert!(!t.connects(6001, &to), "{to}");
            refused += 2;
            assert_eq!(t.refused(), [("policy private".to_owned(), refused)], "{to}");
            t.advance_ms(1000);
        }
        let got = t.asks(&question(1, "host.brodo.internal", A)).expect("an answer at once");
        assert_eq!(outcome(&got), (NXDOMAIN, 0));
        t.expect_all_gone();
    }
}

#[test]
fn attempt_47_host_entries_and_the_mapped_loopback_need_a_rule() {
    let rule = Rule::parse("tcp://db.test:5432", Effect::Allow).expect("a rule");
    let allow = vec![AllowRule { private: true, ..AllowRule::from(rule) }];
    let mut setup = setup(1);
    setup.config.host_names = vec![("db.test".to_owned(), "10.9.9.9".parse().expect("an address"))];
    setup.config.v4.as_mut().expect("IPv4").host_loopback = Some("10.0.2.4".parse().expect("an address"));
    let rules = Ruleset::new(PolicyRules { allow, ..PolicyRules::default() }).expect("few rules");
    setup.config.rules.shared = Some(Arc::new(SharedPolicy::new(rules, &setup.config.host_names, [7; 16])));
    let mut t = Script::new(setup);
    let got = t.asks(&question(1, "db.test", A)).expect("an answer at once");
    assert_eq!(outcome(&got), (0, 1));
    assert!(t.connects(6000, "10.9.9.9:5432") && !t.connects(6001, "10.9.9.9:22"));
    let got = t.asks(&question(1, "host.brodo.internal", A)).expect("an answer at once");
    assert_eq!(outcome(&got), (0, 1), "the address is no secret");
    assert!(!t.connects(6002, "10.0.2.4:5432"));
}

#[test]
fn attempt_47_mapped_addresses_are_given_for_host_entries_alone() {
    type Map = fn(&mut Config, IpAddr);
    let maps: [(&str, Map); 3] = [
        ("10.0.2.4", |config, ip| {
            let IpAddr::V4(ip) = ip else { return };
            config.v4.as_mut().expect("IPv4").host_loopback = Some(ip);
        }),
        ("10.0.2.5", |config, ip| {
            let IpAddr::V4(ip) = ip else { return };
            config.v4.as_mut().expect("IPv4").host_address = Some(ip);
        }),
        ("fd00::4", |config, ip| {
            let IpAddr::V6(ip) = ip else { return };
            config.v6.as_mut().expect("IPv6").host_loopback = Some(ip);
        }),
    ];
    for (mapped, map) in maps {
        let mapped: IpAddr = mapped.parse().expect("an address");
        let to = SocketAddr::new(mapped, 443).to_string();
        let (kind, octets) = match mapped {
            IpAddr::V4(ip) => (A, ip.octets().to_vec()),
            IpAddr::V6(ip) => (AAAA, ip.octets().to_vec()),
        };
        let rules = policy(&[RULE, "tcp://db.test:443", "tcp://host.brodo.internal:443"], &[]);
        let mut setup = Setup { v6: mapped.is_ipv6(), ..under(rules) };
        setup.config.host_names = vec![("db.test".to_owned(), mapped)];
        map(&mut setup.config, mapped);
        let mut t = Script::new(setup.clone());
        let got = t.resolves(&question(1, NAME, kind), &[(60, &octets)]);
        assert_eq!(outcome(&got), (0, 1), "the answer passes, so that the refusal has a reason");
        assert!(!t.connects(6000, &to), "{to}");
        assert_eq!(t.refused(), [("policy not-given-by-dns".to_owned(), 1)], "{to}");
        t.asks(&question(2, "db.test", kind)).expect("an answer at once");
        assert!(t.connects(6001, &to), "{to}");
        let is_loopback = setup.config.v4.is_none_or(|net| net.host_address.is_none());
        if is_loopback {
            let mut t =
                Script::new(Setup { config: Config { host_names: Vec::new(), ..setup.config }, ..setup });
            t.asks(&question(3, "host.brodo.internal", kind)).expect("an answer at once");
            assert!(t.connects(6002, &to), "{to}");
        }
    }
}

fn count_of(t: &Script, rule: &str) -> u64 {
    t.refused().iter().find(|(text, _)| text == rule).map_or(0, |(_, count)| *count)
}

/// Steps of these tests.
trait Astray {
    /// The guest's SYN to this address is dropped as one to no destination.
    fn is_no_destination(&mut self, to: &str);
}

impl Astray for Script {
    fn is_no_destination(&mut self, to: &str) {
        let dropped = self.dropped(DropReason::BadDestination);
        let open = self.driver.host.open_sockets();
        let from = SocketAddr::new(self.addresses().0, 6100);
        self.connection_to(from, to.parse().expect("an address"));
        self.guest(SYN);
        self.take_all();
        assert_eq!(self.driver.host.open_sockets(), open, "{to}");
        assert_eq!(self.dropped(DropReason::BadDestination), dropped + 1, "{to}");
    }
}
