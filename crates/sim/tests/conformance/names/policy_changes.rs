//! A policy that is changed while flows are open: those that it refuses now end, the others go on.

use super::gates::{Gated, NAME};
use super::under_policy::{ALLOWED, Ruled, policy, under};
use super::*;
use brodo_core::flow::Protocol;
use brodo_core::policy::{Audited, Effect, PolicyRules, Ruleset, Ruling, Stage};
use brodo_core::stack::FlowDetail;
use brodo_core::wire::ethernet::MacAddr;
use brodo_sim::hello::{client_hello, record};
use brodo_sim::link::GUEST_MAC;

/// Steps of these tests.
pub(super) trait Changing {
    /// Another policy from now on, and open flows judged by it, `most` at a time.
    fn changes(&mut self, rules: PolicyRules, lockdown: bool, most: usize);
    fn open_flows(&self) -> Vec<FlowDetail>;
}

impl Changing for Script {
    fn changes(&mut self, rules: PolicyRules, lockdown: bool, most: usize) {
        let shared = self.setup().config.rules.shared.clone().expect("a policy");
        shared.set(self.now(), Ruleset::new(rules).expect("few rules"), lockdown);
        let mut next = Some(0);
        while let Some(from) = next {
            self.call(|stack, io| next = stack.review(io, from, most));
        }
    }

    fn open_flows(&self) -> Vec<FlowDetail> {
        self.driver.stack.flow_details(0, self.now()).collect()
    }
}

/// The rules of the first policy.
fn first() -> PolicyRules {
    policy(
        &[
            "tcp://pkg.example.com:22",
            "https://pkg.example.com",
            "https://b.example",
            "https://c.example",
            "198.51.100.0/24",
        ],
        &[],
    )
}

/// An open connection to this destination.
fn open(t: &mut Script, port: u16, to: &str) {
    let from = SocketAddr::new(t.addresses().0, port);
    t.connection_to(from, to.parse().expect("an address"));
    t.establish();
    t.take_all();
}

fn expect_reset(t: &mut Script) {
    let lines: Vec<String> = t.take_all().iter().map(ToString::to_string).collect();
    assert!(lines.iter().any(|line| line.contains("RST")), "{lines:?}");
    t.host_closed(Some(Close::Reset));
}

#[test]
fn attempt_52_a_connection_that_no_rule_allows_any_more_is_reset() {
    let mut t = Script::new(under(first()));
    t.learns();
    open(&mut t, 6001, "203.0.113.5:22");
    t.changes(first(), false, 256);
    t.expect_nothing();
    t.changes(policy(&["https://pkg.example.com"], &[]), false, 256);
    expect_reset(&mut t);
    t.expect_all_gone();
    // A deny rule as well.
    let mut t = Script::new(under(first()));
    open(&mut t, 6001, "198.51.100.7:80");
    t.changes(PolicyRules { deny: policy(&[], &["198.51.100.7/32"]).deny, ..first() }, false, 256);
    expect_reset(&mut t);
    t.expect_all_gone();
}

#[test]
fn a_connection_behind_a_gate_is_judged_by_the_name_that_it_has_said() {
    for (kept, rules) in [
        (true, policy(&["https://pkg.example.com"], &[])),
        (true, policy(&["https://*.example.com"], &[])),
        // Another name at the same address does not do.
        (false, policy(&["https://c.example"], &[])),
        (false, policy(&["https://*.example.com"], &["https://pkg.example.com"])),
    ] {
        let mut t = Script::new(under(first()));
        t.resolves(&question(3, "c.example", A), &[(600, &ALLOWED)]);
        t.behind_gate();
        t.sends(&record(22, &client_hello(NAME.as_bytes(), &[])));
        if !kept {
            // The next flight, after which the gate is gone.
            t.sends(&[record(20, &[1]), record(23, &[9; 60])].concat());
        }
        t.take_all();
        t.changes(rules, false, 256);
        if kept {
            t.expect_nothing();
            assert_eq!(t.open_flows().len(), 1);
        } else {
            expect_reset(&mut t);
            t.expect_all_gone();
        }
    }
}

#[test]
fn a_closed_gate_judges_by_the_new_policy() {
    let mut t = Script::new(under(first()));
    t.resolves(&question(3, "c.example", A), &[(600, &ALLOWED)]);
    t.behind_gate();
    t.changes(policy(&["https://c.example", "http://*:443"], &[]), false, 256);
    t.expect_nothing();
    t.sends(&record(22, &client_hello(NAME.as_bytes(), &[])));
    t.expect_alert("policy name");
}

/// No name that it could say would do, so it does not wait for one.
#[test]
fn a_closed_gate_ends_with_a_change_that_refuses_its_destination() {
    for (rules, lockdown) in [
        (first(), true),
        (PolicyRules { deny: policy(&[], &["203.0.113.5/32"]).deny, ..first() }, false),
        (policy(&["https://b.example"], &[]), false),
    ] {
        let mut t = Script::new(under(first()));
        t.behind_gate();
        t.changes(rules, lockdown, 256);
        expect_reset(&mut t);
        assert_eq!(t.peer_gets(), [0; 0]);
        t.expect_all_gone();
    }
}

/// The rules of a closed gate's names hold in the guest's own network only if they say so.
#[test]
fn a_closed_gate_ends_with_a_change_that_protects_private_addresses() {
    const PRIVATE: [u8; 4] = [192, 168, 7, 5];
    let unprotected = || PolicyRules { private: Effect::Allow, ..first() };
    let mut lifted = first();
    lifted.allow.iter_mut().for_each(|allow| allow.private |= &*allow.rule.text == "https://c.example");
    for (rules, kept) in [(unprotected(), true), (first(), false), (lifted, false)] {
        let mut t = Script::new(under(unprotected()));
        for name in [NAME, "c.example"] {
            t.resolves(&question(3, name, A), &[(600, &PRIVATE)]);
        }
        open(&mut t, 6000, "192.168.7.5:443");
        t.changes(rules, false, 256);
        if !kept {
            expect_reset(&mut t);
            t.expect_all_gone();
            continue;
        }
        t.expect_nothing();
        let hello = record(22, &client_hello(NAME.as_bytes(), &[]));
        t.sends(&hello);
        assert_eq!(t.peer_gets(), hello);
    }
}

/// A name that comes before open connections are looked at.
#[test]
fn a_gate_opens_for_no_name_in_a_lockdown() {
    let mut t = Script::new(under(first()));
    t.behind_gate();
    let shared = t.setup().config.rules.shared.clone().expect("a policy");
    shared.set(t.now(), Ruleset::new(first()).expect("few rules"), true);
    t.sends(&record(22, &client_hello(NAME.as_bytes(), &[])));
    t.expect_alert("policy lockdown");
}

#[test]
fn flows_are_judged_a_part_at_a_time() {
    for most in [1, 7, 256] {
        let mut t = Script::new(under(first()));
        for n in 0..20u16 {
            open(&mut t, 7000 + n, &format!("198.51.100.{}:80", n + 1));
        }
        t.changes(PolicyRules { deny: policy(&[], &["198.51.100.0/29"]).deny, ..first() }, false, most);
        t.take_all();
        // .1 to .7 of twenty.
        assert_eq!(t.open_flows().len(), 13, "{most} at a time");
    }
}

/// Flows are judged a part between two turns of the loop. With turns of 5 ms, ten times those of a busy loop,
/// sixteen parts have ended in time: as many as four thousand connections have, 256 in each.
#[test]
fn open_flows_that_a_change_refuses_end_within_a_tenth_of_a_second() {
    const FLOWS: u16 = 512;
    const PART: usize = 32;
    const TURN_MS: u64 = 5;
    let mut t = Script::new(under(first()));
    for n in 0..FLOWS {
        open(&mut t, 7000 + n, &format!("198.51.100.{}:80", n % 250 + 1));
    }
    assert_eq!(t.open_flows().len(), usize::from(FLOWS));
    let changed = t.now();
    let shared = t.setup().config.rules.shared.clone().expect("a policy");
    shared.set(changed, Ruleset::new(policy(&[], &[])).expect("no rules"), false);
    let (mut next, mut resets) = (Some(0), 0);
    while let Some(from) = next {
        t.call(|stack, io| next = stack.review(io, from, PART));
        resets += t.take_all().iter().filter(|line| line.to_string().contains("RST")).count();
        t.advance_ms(TURN_MS);
    }
    assert_eq!(resets, usize::from(FLOWS), "the guest hears of each");
    assert_eq!(t.open_flows().len(), 0);
    let elapsed = t.now().since(changed);
    assert!(elapsed <= Duration::from_millis(100), "{elapsed:?}");
}

#[test]
fn a_lockdown_refuses_everything_until_it_is_over() {
    let mut t = Script::new(under(first()));
    t.learns();
    open(&mut t, 6001, "198.51.100.7:80");
    t.changes(first(), true, 256);
    expect_reset(&mut t);
    t.expect_all_gone();
    assert_eq!(outcome_of(&t.asks(&question(4, NAME, A)).expect("an answer at once")), NXDOMAIN);
    assert!(!t.connects(6002, "198.51.100.7:80"));
    assert!(!t.connects(6003, "203.0.113.5:22"));
    assert_eq!(t.refused(), [("policy lockdown".to_owned(), 3)]);
    // Pins of names that are still named have stayed.
    t.changes(first(), false, 256);
    assert!(t.connects(6004, "203.0.113.5:22"));
}

/// Peers that a rule or a lockdown keeps from a published port are decisions of a stage of their own. They
/// are not refusals of the guest's, which it may ask for.
#[test]
fn refused_peers_of_published_ports_are_decisions() {
    let rules = || policy(&[], &["198.51.100.0/24"]);
    let mut setup = under(rules());
    setup.config.guest_mac = Some(MacAddr(GUEST_MAC));
    let mut t = Script::new(setup);
    let shared = t.setup().config.rules.shared.clone().expect("a policy");
    let peer: SocketAddr = "198.51.100.9:4433".parse().expect("an address");
    let guest = SocketAddr::new(t.addresses().0, 8080);
    t.connection_to(guest, peer);
    t.peer_sends_first(10, None).expect("credit");
    t.expect_nothing();
    t.changes(rules(), true, 256);
    t.peer_connects().expect_err("a lockdown");
    let denied = |protocol, reason: &str| (Stage::Inbound, Ruling::Denied, Some(protocol), reason.to_owned());
    let expected = [(Protocol::Udp, "deny 198.51.100.0/24"), (Protocol::Tcp, "policy lockdown")];
    let decisions = t.take_decisions().decisions;
    assert!(decisions.iter().all(|of| (of.decision.remote, of.occasion.guest) == (Some(peer), Some(guest))));
    let found = decisions
        .into_iter()
        .map(|Audited { decision: of, .. }| (of.stage, of.ruling, of.protocol, of.reason.to_string()));
    assert_eq!(found.collect::<Vec<_>>(), expected.map(|(protocol, reason)| denied(protocol, reason)));
    assert_eq!(shared.refusals().decisions, []);
    assert_eq!(t.refused(), expected.map(|(_, reason)| (reason.to_owned(), 1)));
}

fn outcome_of(message: &[u8]) -> u8 {
    message[3] & 15
}
