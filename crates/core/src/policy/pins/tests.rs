//! The table of pins: life and use of a pin, every bound, and the rules of a new policy.

use super::super::rule::{Effect, Rule};
use super::super::ruleset::{AllowRule, PolicyRules};
use super::*;
use std::net::Ipv4Addr;

const HOUR: Duration = Duration::from_secs(3600);

fn rules(texts: &[&str]) -> Ruleset {
    let allow = texts.iter().map(|text| AllowRule::from(Rule::parse(text, Effect::Allow).expect("a rule")));
    Ruleset::new(PolicyRules { allow: allow.collect(), ..PolicyRules::default() }).expect("few rules")
}

fn name(text: &str) -> DomainName {
    DomainName::parse(text.as_bytes()).expect("a name")
}

fn ip(n: u32) -> IpAddr {
    Ipv4Addr::from_bits(0xc000_0200 + n).into()
}

fn at(s: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(s)
}

/// The table with the rules that names are pinned by.
struct Table {
    rules: Ruleset,
    pins: Pins,
}

impl Table {
    fn new(texts: &[&str]) -> Self {
        Self { rules: rules(texts), pins: Pins::default() }
    }

    fn pin(&mut self, now: Instant, text: &str, address: IpAddr) -> Result<(), Full> {
        let name = name(text);
        self.pins.pin(now, &name, &self.rules.matches(&name), address, now + HOUR)
    }

    fn is_pinned(&self, text: &str, address: IpAddr, now: Instant) -> bool {
        self.pins.is_pinned_as(&name(text), address, now)
    }

    /// All lists agree.
    fn check(&self) {
        let pins = &self.pins;
        let listed: usize = pins.addresses.values().map(|pinned| pinned.names.len()).sum();
        let named: usize = pins.names.values().map(|named| named.addresses.len()).sum();
        let free = pins.addresses.values().filter(|pinned| pinned.flows == 0);
        let free: usize = free.map(|pinned| pinned.names.len()).sum();
        assert_eq!((listed, named), (pins.count, pins.count));
        assert_eq!((pins.expiry.len(), pins.by_rule.len()), (free, free));
        assert_eq!(pins.ids.len(), pins.names.len());
        let shares = pins.shares.values().fold((0, 0), |(p, n), share| (p + share.count, n + share.names));
        assert_eq!(shares, (pins.count, pins.names.len()));
        assert!(pins.names.values().all(|named| !named.addresses.is_empty()), "a name without pins");
        assert!(pins.count <= PINS_MAX && pins.names.len() <= NAMES_MAX);
    }
}

#[test]
fn a_pin_ends_with_its_time() {
    let mut t = Table::new(&["a.example"]);
    t.pin(at(0), "a.example", ip(1)).expect("room");
    assert!(t.is_pinned("a.example", ip(1), at(3599)));
    assert!(!t.is_pinned("a.example", ip(2), at(0)) && !t.is_pinned("b.example", ip(1), at(0)));
    assert!(!t.is_pinned("a.example", ip(1), at(3600)));
    // A later answer renews it.
    t.pin(at(3000), "a.example", ip(1)).expect("room");
    assert!(t.is_pinned("a.example", ip(1), at(6599)));
    t.check();
    t.pin(at(7000), "a.example", ip(2)).expect("room");
    assert_eq!(t.pins.len(), 1, "the first one has gone");
    t.check();
}

#[test]
fn a_pin_in_use_stays_and_five_minutes_longer() {
    let mut t = Table::new(&["a.example"]);
    t.pin(at(0), "a.example", ip(1)).expect("room");
    assert!(t.pins.flow_opened(at(1), ip(1)) && t.pins.flow_opened(at(1), ip(1)));
    assert!(!t.pins.flow_opened(at(1), ip(2)), "no pin, nothing to report");
    t.pins.expire(at(9000));
    assert!(t.is_pinned("a.example", ip(1), at(9000)));
    t.check();
    t.pins.flow_closed(at(9000), ip(1));
    t.pins.flow_closed(at(10_000), ip(1));
    t.check();
    assert!(t.is_pinned("a.example", ip(1), at(10_299)));
    assert!(!t.is_pinned("a.example", ip(1), at(10_300)));
}

#[test]
fn an_address_has_so_many_names_and_a_name_so_many_addresses() {
    let mut t = Table::new(&["*.a.example", "b.example"]);
    for n in 0..=PER_ADDRESS_MAX as u64 {
        t.pin(at(n), &format!("n{n}.a.example"), ip(1)).expect("room");
    }
    assert_eq!(t.pins.len(), PER_ADDRESS_MAX);
    assert!(!t.is_pinned("n0.a.example", ip(1), at(100)) && t.is_pinned("n1.a.example", ip(1), at(100)));
    for n in 0..=PER_NAME_MAX as u32 {
        t.pin(at(200 + u64::from(n)), "b.example", ip(1000 + n)).expect("room");
    }
    assert!(!t.is_pinned("b.example", ip(1000), at(500)) && t.is_pinned("b.example", ip(1001), at(500)));
    assert_eq!(t.pins.evicted, 2);
    t.check();
    // In use, nothing makes room.
    t.pins.flow_opened(at(500), ip(1));
    assert_eq!(t.pin(at(500), "last.a.example", ip(1)), Err(Full));
    t.check();
}

/// | 17 | 5,000 names of a zone of the guest's own | they push out only each other |
#[test]
fn attempt_17_a_wildcard_that_fills_up_loses_its_own_pins() {
    let mut t = Table::new(&["*.evil.example", "good.example"]);
    t.pin(at(0), "good.example", ip(0)).expect("room");
    t.pin(at(0), "used.evil.example", ip(1)).expect("room");
    t.pins.flow_opened(at(0), ip(1));
    for n in 0..5000 {
        t.pin(at(1), &format!("n{n}.evil.example"), ip(2 + n)).expect("room");
    }
    t.check();
    assert_eq!(t.pins.names.len(), NAMES_PER_RULE_MAX + 1);
    assert!(t.is_pinned("good.example", ip(0), at(2)));
    assert!(t.is_pinned("used.evil.example", ip(1), at(2)), "a flow holds it");
    assert!(t.is_pinned("n4999.evil.example", ip(5001), at(2)));
}

#[test]
fn the_whole_table_is_bounded() {
    let texts: Vec<String> = (0..4).map(|n| format!("*.r{n}.example")).collect();
    let mut t = Table::new(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    for n in 0..30_000u32 {
        t.pin(at(u64::from(n) / 100), &format!("n{}.r{}.example", n / 50, n % 4), ip(n)).expect("room");
    }
    t.check();
    assert_eq!(t.pins.len(), PINS_MAX);
    assert_eq!(t.pins.evicted, 30_000 - PINS_MAX as u64);
}

#[test]
fn a_new_policy_keeps_pins_of_names_that_it_names() {
    let mut t = Table::new(&["a.example", "b.example"]);
    for text in ["a.example", "b.example"] {
        t.pin(at(0), text, ip(1)).expect("room");
        t.pin(at(0), text, ip(2)).expect("room");
    }
    t.pins.flow_opened(at(0), ip(1));
    t.pins.follow(&rules(&["*.example.com", "tcp://b.example:22"]));
    t.check();
    assert!(!t.is_pinned("a.example", ip(1), at(1)) && t.is_pinned("b.example", ip(2), at(1)));
    assert_eq!(t.pins.names_of(ip(1), at(9000)).count(), 1, "its flow is still open");
    t.pins.follow(&rules(&[]));
    assert_eq!(t.pins.len(), 0);
    t.pins.flow_closed(at(2), ip(1));
    t.check();
}

/// An address rule may allow a flow whose address has lost its last name.
#[test]
fn a_flow_is_counted_while_its_address_has_no_name() {
    let mut t = Table::new(&["a.example"]);
    let pinned = |address| {
        let mut t = Table::new(&["a.example"]);
        t.pin(at(0), "a.example", address).expect("room");
        t.pins.flow_opened(at(0), address);
        t.pins.follow(&rules(&[]));
        t.check();
        t.pins
    };
    t.pins = pinned(ip(1));
    t.pin(at(0), "a.example", ip(1)).expect("room");
    t.check();
    t.pins.flow_closed(at(3400), ip(1));
    t.check();
    // Five minutes after the flow, and not an hour after the answer.
    t.pin(at(3699), "a.example", ip(2)).expect("room");
    assert!(t.is_pinned("a.example", ip(1), at(3699)));
    t.pin(at(3700), "a.example", ip(2)).expect("room");
    assert_eq!(t.pins.len(), 1);
    t.check();
    // No name came.
    t.pins = pinned(ip(3));
    t.pins.flow_closed(at(1), ip(3));
    assert!(t.pins.addresses.is_empty());
    t.check();
}

#[test]
fn an_end_that_was_not_counted_changes_nothing() {
    let mut t = Table::new(&["a.example"]);
    t.pin(at(0), "a.example", ip(1)).expect("room");
    t.pins.flow_closed(at(3500), ip(1));
    t.check();
    assert!(!t.is_pinned("a.example", ip(1), at(3600)));
}

#[test]
fn work_on_a_list_that_is_wrong_comes_to_an_end() {
    let mut t = Table::new(&["a.example"]);
    t.pin(at(0), "a.example", ip(1)).expect("room");
    let (&id, _) = t.pins.names.iter().next().expect("a name");
    t.pins.list((at(1), id, ip(2)));
    t.pins.list((at(2), id + 1, ip(1)));
    t.pins.expire(at(3));
    t.check();
    assert!(t.is_pinned("a.example", ip(1), at(3)));
}

#[test]
fn a_flow_does_not_bring_back_a_pin_whose_time_is_over() {
    let mut t = Table::new(&["a.example", "b.example"]);
    t.pin(at(0), "a.example", ip(1)).expect("room");
    t.pin(at(3000), "b.example", ip(1)).expect("room");
    assert!(t.pins.flow_opened(at(3600), ip(1)), "for the other name");
    assert!(!t.is_pinned("a.example", ip(1), at(3600)) && t.is_pinned("b.example", ip(1), at(3600)));
    t.check();
    t.pin(at(3600), "a.example", ip(2)).expect("room");
    assert!(!t.pins.flow_opened(at(7200), ip(2)));
    assert!(!t.is_pinned("a.example", ip(2), at(7200)));
    t.check();
}
