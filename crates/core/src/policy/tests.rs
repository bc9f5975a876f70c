//! Rules and limits: refusals, their order, and their counts.

use super::*;

impl Verdict {
    fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Allow(_) | Self::Inspect { .. } | Self::Wait => None,
            Self::Deny(refusal) => Some(*refusal),
        }
    }
}

fn deny(address: &str, prefix_len: u8, ports: Option<PortRange>) -> Deny {
    Deny::new(address.parse().unwrap(), prefix_len, ports).unwrap()
}

const GUEST: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 2, 15)), 40_000);

fn request(remote: &str) -> Request {
    let remote = remote.parse().unwrap();
    Request { protocol: Protocol::Tcp, guest: GUEST, remote, to: remote, forwarded: false, dns_tls: false }
}

fn id(index: u32) -> FlowId {
    FlowId { index, generation: 0 }
}

/// Refusals of each rule that has some.
fn refused(policy: &Policy) -> Vec<(&str, u64)> {
    policy.counts().filter(|(_, count)| *count > 0).collect()
}

#[test]
fn rules_as_they_are_written() {
    for (rule, text) in [
        (deny("10.1.2.3", 8, None), "10.0.0.0/8"),
        (deny("10.1.2.3", 32, Some(PortRange::one(80))), "10.1.2.3/32:80"),
        (deny("0.0.0.0", 0, Some(PortRange { first: 1, last: 1024 })), "0.0.0.0/0:1-1024"),
        (deny("2001:db8::1", 32, None), "2001:db8::/32"),
        (deny("2001:db8::1", 128, Some(PortRange::one(443))), "[2001:db8::1]/128:443"),
        (deny("::", 0, None), "::/0"),
    ] {
        assert_eq!(rule.to_string(), text);
    }
    assert_eq!(Deny::host(Some(PortRange::one(22))).unwrap().to_string(), "host:22");
    assert_eq!(
        (Deny::host(None).unwrap().to_string(), Deny::host(Some(PortRange { first: 2, last: 1 }))),
        ("host".to_owned(), None)
    );
    assert_eq!(Deny::new("10.0.0.0".parse().unwrap(), 33, None), None);
    assert_eq!(Deny::new("::".parse().unwrap(), 129, None), None);
    assert_eq!(Deny::new("::".parse().unwrap(), 1, Some(PortRange { first: 2, last: 1 })), None);
}

#[test]
fn scope_of_a_deny_rule() {
    let table = [
        (deny("10.0.0.0", 8, None), "10.255.255.255:1", true),
        (deny("10.0.0.0", 8, None), "11.0.0.0:1", false),
        (deny("10.0.0.0", 8, None), "[2002:a00:1::]:1", true),
        (deny("10.0.0.0", 8, None), "[2002:b00:1::]:1", false),
        (deny("2002::", 16, None), "[2002:b00:1::]:1", true),
        (deny("0.0.0.0", 0, None), "255.0.0.1:1", true),
        (deny("0.0.0.0", 0, None), "[2001:db8::1]:1", false),
        (deny("::", 0, None), "[2001:db8::1]:1", true),
        (deny("192.0.2.0", 24, Some(PortRange { first: 80, last: 90 })), "192.0.2.1:79", false),
        (deny("192.0.2.0", 24, Some(PortRange { first: 80, last: 90 })), "192.0.2.1:80", true),
        (deny("192.0.2.0", 24, Some(PortRange { first: 80, last: 90 })), "192.0.2.1:90", true),
        (deny("192.0.2.0", 24, Some(PortRange { first: 80, last: 90 })), "192.0.2.1:91", false),
        (deny("2001:db8::", 127, None), "[2001:db8::1]:1", true),
        (deny("2001:db8::", 127, None), "[2001:db8::2]:1", false),
    ];
    for (rule, remote, denied) in table {
        let mut policy = Policy::new(&Rules { deny: vec![rule], ..Rules::default() });
        let decision = policy.decide(Instant::ZERO, &request(remote));
        assert_eq!(decision.refusal().is_some(), denied, "{rule} {remote}");
        assert!(decision.refusal().is_none() || decision.refusal().unwrap().reason == DropReason::Denied);
    }
    // An echo has no port; its key has an identifier in that place.
    let rules = Rules { deny: vec![deny("192.0.2.0", 24, Some(PortRange::one(7)))], ..Rules::default() };
    let echo = Request { protocol: Protocol::Echo, ..request("192.0.2.1:7") };
    assert_eq!(Policy::new(&rules).decide(Instant::ZERO, &echo), Verdict::Allow(None));
}

#[test]
fn the_floor_holds_for_what_is_not_mapped() {
    let mut policy = Policy::new(&Rules::default());
    for remote in [
        "127.0.0.1:80",
        "127.9.9.9:80",
        "[::1]:80",
        "169.254.169.254:80",
        "[fe80::1]:80",
        "[fd00:ec2::254]:80",
        "100.100.100.200:80",
        "[64:ff9b::127.0.0.1]:80",
    ] {
        let refusal = policy.decide(Instant::ZERO, &request(remote)).refusal().unwrap();
        assert_eq!(refusal.reason, DropReason::Refused, "{remote}");
    }
    let counts = [("floor host-loopback", 4), ("floor link-local", 2), ("floor cloud-metadata", 2)];
    assert_eq!(refused(&policy), counts);
    let mapped = Request { to: "127.0.0.1:80".parse().unwrap(), ..request("10.0.2.4:80") };
    assert_eq!(policy.decide(Instant::ZERO, &mapped), Verdict::Allow(None));
    // Denied by a rule under either address.
    for rule in [deny("127.0.0.0", 8, Some(PortRange::one(80))), deny("10.0.2.4", 32, None)] {
        let mut policy = Policy::new(&Rules { deny: vec![rule], ..Rules::default() });
        assert!(policy.decide(Instant::ZERO, &mapped).refusal().is_some(), "{rule}");
    }
}

#[test]
fn the_hosts_own_addresses_are_those_of_the_moment() {
    let rules =
        Rules { deny: vec![Deny::host(Some(PortRange { first: 1, last: 99 })).unwrap()], ..Rules::default() };
    let mut policy = Policy::new(&rules);
    let mut denied = |addresses: &[&str]| {
        policy.set_host_addresses(addresses.iter().map(|ip| ip.parse().unwrap()).collect());
        let remotes = ["192.0.2.1:80", "192.0.2.1:100", "[2001:db8::1]:80", "[64:ff9b::192.0.2.1]:80"];
        remotes.map(|remote| policy.decide(Instant::ZERO, &request(remote)).refusal().is_some())
    };
    assert_eq!(denied(&[]), [false; 4]);
    assert_eq!(denied(&["127.0.0.1", "192.0.2.1", "::1"]), [true, false, false, true]);
    assert_eq!(denied(&["127.0.0.1", "192.0.2.2", "::1", "2001:db8::1"]), [false, false, true, false]);
    // Loopback that was mapped is no address of the host's in this sense.
    let mapped = Request { to: "127.0.0.1:80".parse().unwrap(), ..request("10.0.2.4:80") };
    assert_eq!(policy.decide(Instant::ZERO, &mapped), Verdict::Allow(None));
}

#[test]
fn private_networks_are_denied_with_the_hosts_addresses() {
    let rules = Rules { deny: vec![Deny::private(None).unwrap()], ..Rules::default() };
    let mut policy = Policy::new(&rules);
    policy.set_host_addresses(["127.0.0.1", "203.0.113.7"].map(|ip| ip.parse().unwrap()).into());
    let mut denied = |remote, to: &str| {
        let request = Request { to: to.parse().unwrap(), ..request(remote) };
        policy.decide(Instant::ZERO, &request).refusal().is_some()
    };
    for address in ["192.168.1.1:80", "[fd00::1]:80", "[64:ff9b::10.0.0.1]:80", "203.0.113.7:80"] {
        assert!(denied(address, address), "{address}");
    }
    for address in ["203.0.113.8:80", "[2001:db8::1]:80"] {
        assert!(!denied(address, address), "{address}");
    }
    // Addresses of the guest's network that stand for the host's: its loopback, and another one.
    assert!(!denied("10.0.2.2:80", "127.0.0.1:80") && denied("10.0.2.5:80", "203.0.113.7:80"));
}

#[test]
fn the_first_rule_that_fits_is_counted() {
    let rules = Rules {
        deny: vec![
            deny("192.0.2.128", 25, None),
            deny("192.0.2.0", 24, Some(PortRange::one(80))),
            deny("192.0.2.0", 24, None),
        ],
        ..Rules::default()
    };
    let mut policy = Policy::new(&rules);
    for remote in ["192.0.2.1:80", "192.0.2.1:81", "192.0.2.200:80", "192.0.2.200:81", "198.51.100.1:80"] {
        _ = policy.decide(Instant::ZERO, &request(remote));
    }
    let counts = [("deny 192.0.2.128/25", 2), ("deny 192.0.2.0/24:80", 1), ("deny 192.0.2.0/24", 1)];
    assert_eq!(refused(&policy), counts);
}

#[test]
fn flows_per_destination_come_and_go() {
    let rules = Rules { flows_per_destination: Some(2), ..Rules::default() };
    let mut policy = Policy::new(&rules);
    let (a, b) = (request("192.0.2.1:80"), request("192.0.2.2:80"));
    for (n, request) in [(1, a), (2, a), (3, b)] {
        assert_eq!(policy.decide(Instant::ZERO, &request), Verdict::Allow(None));
        policy.opened(Instant::ZERO, request.remote.ip(), id(n));
    }
    let refusal = policy.decide(Instant::ZERO, &a).refusal().unwrap();
    assert_eq!(refusal.reason, DropReason::FlowsPerDestination);
    assert_eq!(refused(&policy), [("max-flows-per-destination 2", 1)]);
    assert_eq!(policy.decide(Instant::ZERO, &b), Verdict::Allow(None));
    // A flow without a verdict does not count, nor does the same flow twice.
    policy.closed(Instant::ZERO, a.remote.ip(), id(9));
    assert!(policy.decide(Instant::ZERO, &a).refusal().is_some());
    policy.closed(Instant::ZERO, a.remote.ip(), id(1));
    policy.closed(Instant::ZERO, a.remote.ip(), id(1));
    assert_eq!(policy.decide(Instant::ZERO, &a), Verdict::Allow(None));
    policy.opened(Instant::ZERO, a.remote.ip(), id(4));
    assert!(policy.decide(Instant::ZERO, &a).refusal().is_some());
    // The same destination through a translator is the same destination.
    assert!(policy.decide(Instant::ZERO, &request("[64:ff9b::192.0.2.1]:80")).refusal().is_some());
    for (n, request) in [(2, a), (4, a), (3, b)] {
        policy.closed(Instant::ZERO, request.remote.ip(), id(n));
    }
    assert!(policy.destinations.is_empty() && policy.counted.is_empty());
}

#[test]
fn new_flows_are_a_burst_and_a_rate() {
    let rules = Rules { new_flows: Some(FlowRate { per_second: 10, burst: 3 }), ..Rules::default() };
    let mut policy = Policy::new(&rules);
    let mut granted = |ms| {
        let now = Instant::from_ms(ms);
        (0..10).filter(|_| policy.decide(now, &request("192.0.2.1:80")).refusal().is_none()).count()
    };
    assert_eq!([granted(0), granted(99), granted(100), granted(350), granted(60_000)], [3, 0, 1, 2, 3]);
    assert_eq!(refused(&policy), [("max-new-flows 10/s:3", 41)]);
}

#[test]
fn limits_are_divided_among_workers_and_leave_each_a_flow() {
    let rules = Rules {
        new_flows: Some(FlowRate { per_second: 100, burst: 8 }),
        flows_per_destination: Some(3),
        workers: 4,
        ..Rules::default()
    };
    let mut policy = Policy::new(&rules);
    assert_eq!(policy.per_destination, Some(1));
    let mut granted = |ms| {
        let now = Instant::from_ms(ms);
        (0..10).filter(|_| policy.decide(now, &request("192.0.2.1:80")).refusal().is_none()).count()
    };
    assert_eq!([granted(0), granted(39), granted(40), granted(60_000)], [2, 0, 1, 2]);
    assert_eq!(policy.counts().last(), Some(("max-flows", 0)));
}

#[test]
fn denied_flows_take_no_share_of_the_limits() {
    let rules = Rules {
        deny: vec![deny("192.0.2.0", 24, None)],
        new_flows: Some(FlowRate { per_second: 1, burst: 1 }),
        ..Rules::default()
    };
    let mut policy = Policy::new(&rules);
    assert!(policy.decide(Instant::ZERO, &request("192.0.2.1:80")).refusal().is_some());
    assert_eq!(policy.decide(Instant::ZERO, &request("198.51.100.1:80")), Verdict::Allow(None));
}

#[test]
fn peers_that_may_begin_a_conversation() {
    let rules = Rules { deny: vec![deny("10.0.0.0", 8, None)], ..Rules::default() };
    let mut policy = Policy::new(&rules);
    let seen = "10.0.2.4:5000".parse().unwrap();
    for (peer, rule) in [
        // Programs of the host, and neighbours, under their translated address.
        ("127.0.0.1:5000", None),
        ("[::1]:5000", None),
        ("[fe80::1]:5000", None),
        ("203.0.113.9:5000", None),
        ("[fe80::a9fe:a9fe]:80", Some("floor link-local")),
        ("169.254.169.254:80", Some("floor link-local")),
        ("[::ffff:169.254.169.254]:80", Some("floor link-local")),
        ("100.100.100.200:80", Some("floor cloud-metadata")),
        ("[fd00:ec2::254]:80", Some("floor cloud-metadata")),
    ] {
        let request = Request {
            protocol: Protocol::Udp,
            guest: GUEST,
            remote: seen,
            to: peer.parse().unwrap(),
            forwarded: true,
            dns_tls: false,
        };
        let refusal = Policy::new(&Rules::default()).decide_inbound(Instant::ZERO, &request).err();
        let text = refusal.and_then(|refusal| policy.text(refusal));
        assert_eq!(text.as_deref(), rule, "{peer}");
    }
    // Deny rules match either address; the limits are for the guest's own flows.
    let peer: SocketAddr = "10.1.2.3:5000".parse().unwrap();
    let remote = "192.0.2.1:5000".parse().unwrap();
    for (remote, to) in [(peer, peer), (remote, peer)] {
        assert!(
            policy
                .decide_inbound(
                    Instant::ZERO,
                    &Request {
                        protocol: Protocol::Udp,
                        guest: GUEST,
                        remote,
                        to,
                        forwarded: true,
                        dns_tls: false
                    }
                )
                .is_err()
        );
    }
    assert_eq!(refused(&policy), [("deny 10.0.0.0/8", 2)]);
}

/// A policy that denies by name, with the reasons of all policies.
fn with_names() -> Policy {
    let source = PolicyRules {
        deny: vec![Rule::parse("*.a.example", Effect::Deny).unwrap()],
        ..PolicyRules::default()
    };
    let shared = SharedPolicy::new(Ruleset::new(source).unwrap(), &[], [7; 16]);
    Policy::new(&Rules { shared: Some(Arc::new(shared)), ..Rules::default() })
}

#[test]
fn counts_of_the_shared_policy_are_there_before_it_refuses_again() {
    let before = ["policy question", "deny *.a.example", "deny gone.a.example", "max-flows"];
    let before = before.map(|text| (digest(text), 5));
    let mut policy = with_names();
    policy.go_on_counting(before.into_iter().collect());
    assert_eq!(refused(&policy), [("max-flows", 5), ("policy question", 5), ("deny *.a.example", 5)]);
    policy.count_text(&Arc::from("policy question"), DropReason::Denied);
    policy.count_text(&Arc::from("deny gone.a.example"), DropReason::Denied);
    assert_eq!(
        refused(&policy)[1..],
        [("policy question", 6), ("deny *.a.example", 5), ("deny gone.a.example", 6)]
    );
    // A second crash.
    let counts = policy.counts().map(|(text, count)| (digest(text), count)).collect();
    let mut policy = with_names();
    policy.go_on_counting(counts);
    assert_eq!(refused(&policy), [("max-flows", 5), ("policy question", 6), ("deny *.a.example", 5)]);
}

#[test]
fn counts_of_a_text_that_two_rules_have_go_on_once() {
    let own = Rules { deny: vec![deny("192.0.2.0", 24, None); 2], ..Rules::default() };
    let before = [(digest("deny 192.0.2.0/24"), 5)];
    let mut policy = Policy::new(&own);
    policy.go_on_counting(before.into_iter().collect());
    assert_eq!(refused(&policy), [("deny 192.0.2.0/24", 5)]);
    // One of the options, and one of the shared policy, which is there or comes later.
    let source = PolicyRules {
        deny: vec![Rule::parse("192.0.2.0/24", Effect::Deny).unwrap()],
        ..PolicyRules::default()
    };
    let shared = SharedPolicy::new(Ruleset::new(source).unwrap(), &[], [7; 16]);
    let mut policy = Policy::new(&Rules { shared: Some(Arc::new(shared)), ..own });
    policy.go_on_counting(before.into_iter().collect());
    assert_eq!(refused(&policy), [("deny 192.0.2.0/24", 5)]);
    policy.count_text(&Arc::from("deny 192.0.2.0/24"), DropReason::Denied);
    assert_eq!(policy.counts().map(|(_, count)| count).sum::<u64>(), 6);
}

/// The rules may change between a permission and its line in the audit log.
#[test]
fn a_permission_is_noted_with_the_rule_and_the_policy_that_gave_it() {
    let rules = |allow: &str| {
        let allow = vec![AllowRule::from(Rule::parse(allow, Effect::Allow).unwrap())];
        Ruleset::new(PolicyRules { allow, ..PolicyRules::default() }).unwrap()
    };
    let shared = Arc::new(SharedPolicy::new(rules("192.0.2.0/24"), &[], [7; 16]));
    shared.keep_trail();
    let mut policy = Policy::new(&Rules { shared: Some(shared.clone()), ..Rules::default() });
    let request = request("192.0.2.1:80");
    let Verdict::Allow(Some(permission)) = policy.decide(Instant::ZERO, &request) else {
        panic!("a rule allows it");
    };
    assert_eq!(shared.take_trail(), Some(Trailed::default()), "limits may refuse it");
    shared.set(Instant::ZERO, rules("198.51.100.0/24"), false);
    policy.note_opening(Instant::ZERO, &request, permission);
    let noted = shared.take_trail().unwrap().decisions.remove(0);
    assert_eq!((noted.generation, &*noted.decision.reason), (1, "allow 192.0.2.0/24"));
}
