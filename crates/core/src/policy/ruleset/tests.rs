//! The truth tables of questions and openings, row by row, and the cost of many rules.

use super::*;
use std::net::Ipv4Addr;

fn rules(allow: &[&str], deny: &[&str]) -> PolicyRules {
    let allow = allow.iter().map(|text| Rule::parse(text, Effect::Allow).expect(text).into());
    let deny = deny.iter().map(|text| Rule::parse(text, Effect::Deny).expect(text));
    PolicyRules { allow: allow.collect(), deny: deny.collect(), ..PolicyRules::default() }
}

fn compiled(allow: &[&str], deny: &[&str]) -> Ruleset {
    Ruleset::new(rules(allow, deny)).expect("few rules")
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn matches(set: &Ruleset, name: &str) -> Matches {
    set.matches(&DomainName::parse(name.as_bytes()).expect("a name"))
}

/// Verdict on a flow `tcp://ADDRESS:PORT`, `udp://` or `ping://`, whose address DNS gave for `names`.
fn opening(set: &Ruleset, flow: &str, names: &[&str]) -> Opening {
    let (scheme, rest) = flow.split_once("://").expect("a scheme");
    let protocol = match scheme {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        _ => Protocol::Echo,
    };
    let remote: SocketAddr = rest.parse().unwrap_or_else(|_| SocketAddr::new(ip(rest), 7));
    let host = [ip("203.0.113.77")];
    let names: Vec<Matches> = names.iter().map(|name| matches(set, name)).collect();
    without_rule(set.opening(
        &NewFlow { protocol, guest: GUEST, remote, to: remote, host: &host, dns_tls: false, alias: None },
        &names.iter(),
    ))
}

/// The same without the rule that allows it.
fn without_rule(opening: Opening) -> Opening {
    if let Opening::Open(_) = opening { OPEN } else { opening }
}

const GUEST: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 2, 15)), 40_000);
const OPEN: Opening = Opening::Open(None);

const NONE: Checks = Checks { tls: false, http: false, quic: false, private: false, observed: false };
const TLS: Opening = Opening::Gate(Checks { tls: true, ..NONE });
const HTTP: Opening = Opening::Gate(Checks { http: true, ..NONE });
const QUIC: Opening = Opening::Gate(Checks { quic: true, ..NONE });
const PRIVATE: Opening = Opening::Refuse(Ground::Private);
const DEFAULT: Opening = Opening::Refuse(Ground::Default);
const NOT_GIVEN: Opening = Opening::Refuse(Ground::NotGivenByDns);

const fn denied(rule: RuleNumber) -> Opening {
    Opening::Refuse(Ground::Deny(rule))
}

#[test]
fn openings_follow_the_table() {
    let set = compiled(
        &[
            "pkg.example.com",
            "http://mirror.example.net",
            "tcp://github.com:22",
            "quic://*.example.org",
            "ping://up.example",
            "udp://stun.example:3478",
            "10.20.0.0/16:5432",
            "192.0.2.0/24",
            "host:631",
            "tcp://198.51.100.0/24:1-100",
        ],
        &["192.0.2.128/25:25", "0.0.0.0/0:6667", "tcp://10.20.3.0/24:5432"],
    );
    let open = OPEN;
    for (flow, names, verdict) in [
        // Row 2: denied by address, even where an allow rule fits, and in every form of the address.
        ("tcp://192.0.2.200:25", &[][..], denied(0)),
        ("tcp://10.20.3.4:5432", &[], denied(2)),
        ("udp://192.0.2.5:6667", &[], denied(1)),
        ("tcp://[64:ff9b::c000:2c8]:25", &[], denied(0)),
        // Row 3: private without a rule that lifts it, by any of its names.
        ("tcp://10.1.0.1:443", &["pkg.example.com"], PRIVATE),
        ("tcp://203.0.113.77:443", &["pkg.example.com"], PRIVATE),
        ("tcp://[64:ff9b::a01:1]:443", &["pkg.example.com"], PRIVATE),
        ("tcp://10.20.0.1:5433", &[], PRIVATE),
        ("udp://[fd00::1]:53", &[], PRIVATE),
        // Row 4: allowed by address, which lifts private exactly there.
        ("tcp://10.20.0.1:5432", &[], open),
        ("tcp://203.0.113.77:631", &[], open),
        ("ping://192.0.2.1", &[], open),
        ("udp://192.0.2.1:9", &[], open),
        ("tcp://198.51.100.1:100", &[], open),
        ("udp://198.51.100.1:100", &[], DEFAULT),
        ("tcp://198.51.100.1:101", &[], DEFAULT),
        // Row 5: a name with a rule that asks for nothing more.
        ("tcp://203.0.113.5:22", &["github.com"], open),
        ("ping://203.0.113.5", &["up.example"], open),
        ("udp://203.0.113.5:3478", &["stun.example"], open),
        ("tcp://203.0.113.5:22", &["other.example", "github.com"], open),
        // Row 6: a name that the guest is to name itself.
        ("tcp://203.0.113.5:443", &["pkg.example.com"], TLS),
        ("tcp://203.0.113.5:80", &["mirror.example.net"], HTTP),
        ("udp://203.0.113.5:443", &["a.example.org"], QUIC),
        // Row 7: no rule fits.
        ("tcp://203.0.113.5:443", &[], NOT_GIVEN),
        ("tcp://203.0.113.5:443", &["github.com"], NOT_GIVEN),
        ("tcp://203.0.113.5:22", &["pkg.example.com"], NOT_GIVEN),
        ("tcp://203.0.113.5:8443", &["pkg.example.com"], DEFAULT),
        ("udp://203.0.113.5:443", &["example.org"], NOT_GIVEN),
        ("udp://8.8.8.8:53", &[], DEFAULT),
        ("ping://203.0.113.5", &["github.com"], NOT_GIVEN),
    ] {
        assert_eq!(opening(&set, flow, names), verdict, "{flow} {names:?}");
    }
}

#[test]
fn both_gates_may_stand_at_one_port() {
    let set = compiled(&["https://a.example:8080", "http://b.example:8080"], &[]);
    let both = Opening::Gate(Checks { tls: true, http: true, ..NONE });
    assert_eq!(opening(&set, "tcp://203.0.113.5:8080", &["a.example", "b.example"]), both);
    assert_eq!(opening(&set, "tcp://203.0.113.5:8080", &["b.example"]), HTTP);
}

#[test]
fn an_opening_names_its_rule() {
    let set = compiled(&["tcp://github.com:22", "192.0.2.0/24"], &[]);
    let names = [matches(&set, "github.com")];
    let by = |to: &str, names: &[Matches]| {
        let remote = to.parse().expect("an address");
        set.opening(
            &NewFlow {
                protocol: Protocol::Tcp,
                guest: GUEST,
                remote,
                to: remote,
                host: &[],
                dns_tls: false,
                alias: None,
            },
            &names.iter(),
        )
    };
    assert_eq!(by("203.0.113.5:22", &names), Opening::Open(Some(0)));
    assert_eq!(by("192.0.2.5:22", &names), Opening::Open(Some(1)));
    let open = PolicyRules { default: Effect::Allow, ..PolicyRules::default() };
    let set = Ruleset::new(open).expect("no rules");
    let remote = "192.0.2.5:22".parse().expect("an address");
    let flow = NewFlow {
        protocol: Protocol::Tcp,
        guest: GUEST,
        remote,
        to: remote,
        host: &[],
        dns_tls: false,
        alias: None,
    };
    assert_eq!(set.opening(&flow, &[].iter()), Opening::Open(None));
}

#[test]
fn a_denied_name_takes_nothing_from_its_neighbours() {
    let set = compiled(
        &["*.example.com", "tcp://*.example.com:22", "tcp://*.example.com:443"],
        &["evil.example.com", "https://gist.example.com", "tcp://deep.example.com:1-1000"],
    );
    let at = |port: u16, names: &[&str]| opening(&set, &format!("tcp://203.0.113.5:{port}"), names);
    assert_eq!(at(22, &["evil.example.com"]), NOT_GIVEN);
    assert_eq!(at(22, &["evil.example.com", "good.example.com"]), OPEN);
    assert_eq!(at(22, &["gist.example.com"]), OPEN);
    assert_eq!(at(22, &["deep.example.com"]), NOT_GIVEN);
    // A rule that lets any TCP pass is held back by one about the TLS in it.
    assert_eq!(at(443, &["gist.example.com"]), NOT_GIVEN);
    assert_eq!(at(443, &["other.example.com"]), OPEN);
}

#[test]
fn a_name_with_private_lifts_it() {
    let mut source = rules(&["internal.example", "other.example"], &[]);
    source.allow[0].private = true;
    let set = Ruleset::new(source).expect("few rules");
    let gate = Opening::Gate(Checks { tls: true, private: true, ..NONE });
    assert_eq!(opening(&set, "tcp://10.0.0.1:443", &["internal.example"]), gate);
    assert_eq!(opening(&set, "tcp://10.0.0.1:443", &["other.example"]), PRIVATE);
    assert_eq!(opening(&set, "tcp://10.0.0.1:8443", &["internal.example"]), PRIVATE);
}

#[test]
fn a_translated_address_is_neither_private_nor_free() {
    let set = compiled(&["10.0.2.2:8080"], &["127.0.0.1:22"]);
    let flow = |port| NewFlow {
        protocol: Protocol::Tcp,
        guest: GUEST,
        remote: SocketAddr::new(ip("10.0.2.2"), port),
        to: SocketAddr::new(ip("127.0.0.1"), port),
        host: &[],
        dns_tls: false,
        alias: None,
    };
    let opening = |port| without_rule(set.opening(&flow(port), &[].iter()));
    assert_eq!(opening(8080), OPEN);
    assert_eq!(opening(8081), DEFAULT);
    assert_eq!(opening(22), denied(0));
    // A rule about public addresses is none about the host's.
    let mut source = rules(&["0.0.0.0/0:443", "10.0.2.2:8080"], &[]);
    source.allow[0].private = false;
    let set = Ruleset::new(source).expect("few rules");
    let opening = |port| without_rule(set.opening(&flow(port), &[].iter()));
    assert_eq!([opening(443), opening(8080)], [DEFAULT, OPEN]);
}

/// The router's other address.
#[test]
fn a_rule_about_an_alias_denies() {
    let set = compiled(&["10.0.2.2:8080"], &["[fe80::2]:8080"]);
    let (remote, to) = ("10.0.2.2:8080".parse().unwrap(), "127.0.0.1:8080".parse().unwrap());
    let flow = |alias| NewFlow {
        protocol: Protocol::Tcp,
        guest: GUEST,
        remote,
        to,
        host: &[],
        dns_tls: false,
        alias,
    };
    assert_eq!(without_rule(set.opening(&flow(None), &[].iter())), OPEN);
    assert_eq!(set.opening(&flow(Some("[fe80::2]:8080".parse().unwrap())), &[].iter()), denied(0));
}

#[test]
fn dns_over_tls_at_the_dns_address_is_a_flow_to_the_resolver() {
    let opening = |allow: &[&str], deny: &[&str], resolver: &str| {
        let set = compiled(allow, deny);
        let at = |address| SocketAddr::new(ip(address), 853);
        let (remote, to) = (at("10.0.2.3"), at(resolver));
        let flow = NewFlow {
            protocol: Protocol::Tcp,
            guest: GUEST,
            remote,
            to,
            host: &[],
            dns_tls: true,
            alias: None,
        };
        // A name of the guest's own choosing that leads to the DNS address.
        let name = set.matches(&DomainName::parse(b"a.example").expect("a name"));
        without_rule(set.opening(&flow, &std::slice::from_ref(&name).iter()))
    };
    assert_eq!(opening(&["10.0.0.0/8"], &[], "8.8.8.8"), DEFAULT);
    assert_eq!(opening(&["tcp://a.example:853", "tls://a.example:853"], &[], "8.8.8.8"), NOT_GIVEN);
    assert_eq!(opening(&["8.8.8.8:853"], &[], "8.8.8.8"), OPEN);
    assert_eq!(opening(&["8.8.8.8:853"], &["10.0.2.3"], "8.8.8.8"), denied(0));
    assert_eq!(opening(&["8.8.8.8:853"], &[], "192.168.1.1"), PRIVATE);
    assert_eq!(opening(&["192.168.1.1"], &[], "192.168.1.1"), OPEN);
    assert_eq!(opening(&[], &[], "127.0.0.53"), PRIVATE);
}

#[test]
fn default_allow_refuses_only_what_is_denied_or_private() {
    let open = PolicyRules { default: Effect::Allow, ..rules(&[], &["evil.example", "192.0.2.0/24"]) };
    let set = Ruleset::new(open.clone()).expect("few rules");
    assert_eq!(opening(&set, "tcp://203.0.113.5:443", &[]), OPEN);
    assert_eq!(opening(&set, "tcp://192.0.2.5:443", &[]), denied(1));
    assert_eq!(opening(&set, "tcp://10.0.0.5:443", &[]), PRIVATE);
    let set = Ruleset::new(PolicyRules { private: Effect::Allow, ..open }).expect("few rules");
    assert_eq!(opening(&set, "tcp://10.0.0.5:443", &[]), OPEN);
}

#[test]
fn a_denied_name_is_refused_where_all_else_is_allowed() {
    let open = |allow: &[&str], deny: &[&str]| {
        let rules = rules(allow, deny);
        Ruleset::new(PolicyRules { default: Effect::Allow, private: Effect::Allow, ..rules })
            .expect("few rules")
    };
    // A gate tells the name from others at its address.
    let set = open(&[], &["https://evil.example", "http://*.evil.example", "quic://evil.example"]);
    assert_eq!(opening(&set, "tcp://203.0.113.5:443", &["evil.example"]), TLS);
    assert_eq!(opening(&set, "tcp://203.0.113.5:80", &["a.evil.example"]), HTTP);
    assert_eq!(opening(&set, "udp://203.0.113.5:443", &["evil.example"]), QUIC);
    for (flow, names) in [
        ("tcp://203.0.113.5:443", &["a.evil.example"][..]),
        ("tcp://203.0.113.5:80", &["evil.example"]),
        ("tcp://203.0.113.5:443", &[]),
    ] {
        assert_eq!(opening(&set, flow, names), OPEN, "{flow} {names:?}");
    }
    // By its address alone: as long as DNS has given it for no other name.
    let set =
        open(&["http://a.example"], &["tcp://evil.example:22", "ping://evil.example", "https://b.example"]);
    assert_eq!(opening(&set, "tcp://203.0.113.5:22", &["evil.example"]), denied(0));
    assert_eq!(opening(&set, "ping://203.0.113.5", &["evil.example"]), denied(1));
    assert_eq!(opening(&set, "tcp://203.0.113.5:22", &["evil.example", "a.example"]), OPEN);
    assert_eq!(opening(&set, "tcp://203.0.113.5:443", &["a.example", "b.example"]), TLS);
    assert_eq!(opening(&set, "udp://203.0.113.5:22", &["evil.example"]), OPEN);
}

#[test]
fn a_network_rule_may_leave_out_what_is_private() {
    let mut source = rules(&["0.0.0.0/0:443", "192.168.0.0/16:443", "host:443"], &[]);
    (source.allow[0].private, source.allow[2].private) = (false, false);
    let set = Ruleset::new(source).expect("few rules");
    assert_eq!(opening(&set, "tcp://203.0.113.5:443", &[]), OPEN);
    assert_eq!(opening(&set, "tcp://10.0.0.1:443", &[]), PRIVATE);
    assert_eq!(opening(&set, "tcp://[64:ff9b::a00:1]:443", &[]), PRIVATE);
    assert_eq!(opening(&set, "tcp://203.0.113.77:443", &[]), PRIVATE, "an address of the host's");
    assert_eq!(opening(&set, "tcp://192.168.1.1:443", &[]), OPEN);
    for (to, rule) in [("203.0.113.5:443", 0), ("192.168.1.1:443", 1)] {
        let remote = to.parse().expect("an address");
        let flow = NewFlow {
            protocol: Protocol::Tcp,
            guest: GUEST,
            remote,
            to: remote,
            host: &[],
            dns_tls: false,
            alias: None,
        };
        assert_eq!(set.opening(&flow, &[].iter()), Opening::Open(Some(rule)), "{to}");
    }
    // Questions and pings about them need a rule too.
    let reverse = |address| set.question(None, PTR, Some(ip(address)), false);
    assert_eq!(reverse("203.0.113.5"), Answer::Ask);
    assert_eq!(reverse("10.0.0.1"), Answer::NxDomain(Ground::Default));
    let mut source = rules(&["0.0.0.0/0"], &[]);
    source.allow[0].private = false;
    let set = Ruleset::new(source).expect("few rules");
    assert_eq!([set.allows_ping(ip("203.0.113.5")), set.allows_ping(ip("10.0.0.1"))], [true, false]);
}

#[test]
fn names_match_by_label() {
    let set = compiled(&["*.example.com", "exact.example"], &[]);
    let rule = |name| matches(&set, name).rule;
    for name in ["a.example.com", "a.b.example.com", "xn--a.example.com"] {
        assert_eq!((rule(name), matches(&set, name).by_wildcard), (Some(0), true), "{name}");
    }
    assert_eq!((rule("exact.example"), matches(&set, "exact.example").by_wildcard), (Some(1), false));
    for name in ["example.com", "xexample.com", "com", "a.exact.example", "example.com.evil.example"] {
        assert_eq!(rule(name), None, "{name}");
    }
}

#[test]
fn questions_follow_the_order() {
    const TXT: u16 = 16;
    const HTTPS: u16 = 65;
    const ANY: u16 = 255;
    let set = compiled(&["*.example.com", "192.0.2.0/24"], &["evil.example.com", "https://gist.example.com"]);
    let ask = |set: &Ruleset, name: &str, qtype| set.question(Some(&matches(set, name)), qtype, None, false);
    let default = Answer::NxDomain(Ground::Default);
    for (name, qtype, verdict) in [
        // Q3 before Q4 before Q5.
        ("evil.example.com", A, Answer::NxDomain(Ground::Deny(0))),
        ("evil.example.com", HTTPS, Answer::NxDomain(Ground::Deny(0))),
        ("gist.example.com", A, Answer::Ask),
        ("a.example.com", AAAA, Answer::Ask),
        ("a.example.com", CNAME, Answer::Ask),
        ("a.example.com", SRV, Answer::Ask),
        ("a.example.com", HTTPS, Answer::NoData),
        ("a.example.com", TXT, Answer::NoData),
        ("a.example.com", ANY, Answer::NoData),
        ("other.example", HTTPS, Answer::NoData),
        ("other.example", A, default),
        ("example.com", A, default),
    ] {
        assert_eq!(ask(&set, name, qtype), verdict, "{name} {qtype}");
    }
    // A name that no rule can have, and addresses.
    assert_eq!(set.question(None, A, None, false), default);
    let reverse = |address, pinned| set.question(None, PTR, Some(ip(address)), pinned);
    assert_eq!(reverse("192.0.2.9", false), Answer::Ask);
    assert_eq!(reverse("198.51.100.9", false), default);
    assert_eq!(reverse("198.51.100.9", true), Answer::Ask);
    // A reverse name that a rule names, but not by a rule about every name.
    let reverse = |allow: &str| {
        let set = compiled(&[allow], &[]);
        let name = matches(&set, "5.113.0.203.in-addr.arpa");
        set.question(Some(&name), PTR, Some(ip("203.0.113.5")), false)
    };
    assert_eq!(reverse("5.113.0.203.in-addr.arpa"), Answer::Ask);
    assert_eq!(reverse("*.0.203.in-addr.arpa"), Answer::Ask);
    assert_eq!(reverse("6.113.0.203.in-addr.arpa"), default);
    assert_eq!(reverse("https://*"), default);
    let open = PolicyRules { default: Effect::Allow, ..rules(&[], &["evil.example"]) };
    let set = Ruleset::new(open).expect("few rules");
    assert_eq!(ask(&set, "any.example", TXT), Answer::Ask);
    assert_eq!(ask(&set, "any.example", HTTPS), Answer::NoData);
    assert_eq!(ask(&set, "evil.example", A), Answer::NxDomain(Ground::Deny(0)));
}

#[test]
fn rules_are_bounded() {
    let many = |count: usize| {
        let allow =
            (0..count).map(|n| Rule::parse(&format!("n{n}.example"), Effect::Allow).expect("a rule").into());
        Ruleset::new(PolicyRules { allow: allow.collect(), ..PolicyRules::default() })
    };
    assert!(many(RULES_MAX).is_ok());
    assert_eq!(many(RULES_MAX + 1), Err(TooManyRules(RULES_MAX + 1)));
}

/// Both tables agree with a walk over all rules, for rules that overlap in every way.
#[test]
fn pseudorandom_rules_agree_with_a_walk_over_all() {
    let mut state = 11u32;
    let mut next = |bound: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % bound
    };
    for _ in 0..50 {
        let texts: Vec<String> = (0..20)
            .map(|_| {
                let length = next(12) + 20;
                let network =
                    Ipv4Addr::from_bits(0xc633_0000 | next(1 << 12)).to_bits() & !0u32 << (32 - length);
                let first = next(20) + 1;
                format!("{}/{length}:{first}-{}", Ipv4Addr::from_bits(network), first + next(10))
            })
            .collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let set = compiled(&[], &texts);
        for _ in 0..200 {
            let (ip, port) = (Ipv4Addr::from_bits(0xc633_0000 | next(1 << 12)), next(32) as u16);
            let walk = set.source.deny.iter().position(|rule| match rule.target {
                RuleTarget::Network(network) => {
                    network.contains(ip.into()) && rule.ports.is_some_and(|ports| ports.contains(port))
                }
                _ => false,
            });
            let found = set.denied.find(ip.into(), Class::Tcp, port, &[]);
            assert_eq!(found, walk.map(|at| at as u32), "{ip}:{port}");
        }
    }
}
