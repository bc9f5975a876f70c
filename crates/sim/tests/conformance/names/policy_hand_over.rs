//! A policy that is handed over: the process that goes on has the addresses that DNS gave the guest, and the
//! names that connections have said, under the rules that it was started with.

use super::gates::{Gated, NAME, OTHER};
use super::under_policy::{Ruled, policy, under};
use super::*;
use brodo_core::memory::budget::Budget;
use brodo_core::policy::{PolicyRules, Ruleset, SharedPolicy, Stage};
use brodo_core::stack::{Restored, Settings};
use brodo_sim::handover::Snapshot;
use brodo_sim::hello::{client_hello, record};
use std::sync::Arc;

const TO: &str = "203.0.113.5:22";

fn rules() -> PolicyRules {
    policy(&["tcp://pkg.example.com:22", "https://pkg.example.com", "https://b.example"], &[])
}

/// Hands the script's stack over to a process with a policy of its own, which resets what it does not go on
/// with.
pub(super) fn hand_over(t: &mut Script, rules: PolicyRules) -> Arc<SharedPolicy> {
    let saved = Snapshot::of(&t.driver.stack, t.now());
    let policy = Arc::new(SharedPolicy::new(Ruleset::new(rules).expect("few rules"), &[], [7; 16]));
    let mut config = t.driver.stack.config().clone();
    config.rules.shared = Some(policy.clone());
    let budget = Arc::new(Budget::new(config.memory));
    let (caps, host_addresses) = (t.setup().caps, t.driver.stack.host_addresses());
    let settings = Settings { config, caps, budget, worker: 0, host_addresses, payload: None, room: None };
    let now = t.now();
    let Restored { stack, mut lost, .. } = saved.restore_with_lost(settings, now, &t.driver.host);
    t.driver.stack = stack;
    t.goes_on_under(&policy);
    if !lost.is_empty() {
        let sent = t.driver.turn_with(now, |stack, io| stack.reset_lost(io, &mut lost));
        t.see_all(&sent);
    }
    policy
}

fn review(t: &mut Script) {
    t.call(|stack, io| {
        stack.review(io, 0, 256);
    });
}

#[test]
fn addresses_that_the_guest_was_given_stay_good() {
    let mut t = Script::new(under(rules()));
    t.learns();
    let policy = hand_over(&mut t, rules());
    assert_eq!(policy.pins(), 2);
    assert!(t.connects(6001, TO));
    // They expire as they would have: the rules' least time after the answer.
    t.advance_ms(3_601_000);
    t.take_all();
    let from = format!("203.0.113.{}:443", OTHER[3]);
    assert!(!t.connects(6002, &from));
}

#[test]
fn totals_for_metrics_go_on() {
    let mut t = Script::new(under(rules()));
    t.learns();
    assert!(t.connects(6001, TO));
    assert!(!t.connects(6002, "198.51.100.77:22"));
    let before = t.driver.stack.config().rules.shared.clone().expect("a policy").tally();
    assert!(before.len() >= 3, "{before:?}");
    assert_eq!(hand_over(&mut t, rules()).tally(), before);
}

/// Memory for totals that outlives a crash has room for some of them: a long list of deny rules that have
/// refused leaves none of the others out.
#[test]
fn totals_go_on_after_a_crash_beside_many_deny_rules() {
    const ROOM: usize = 100;
    let names: Vec<String> = (0..2 * ROOM).map(|n| format!("n{n}.example")).collect();
    let denied: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut t = Script::new(under(policy(&[], &denied)));
    for name in denied {
        t.asks(&question(1, name, A));
    }
    let tally = |t: &Script| t.setup().config.rules.shared.as_ref().expect("a policy").tally();
    let before = tally(&t);
    assert!(!before.is_empty());
    let kept: Vec<_> = t.driver.stack.refusals().filter(|(_, count)| *count > 0).take(ROOM).collect();
    let mut next = Script::new(under(policy(&[], &[])));
    next.driver.stack.set_refusals(kept);
    next.goes_on_counting();
    assert_eq!(tally(&next), before);
}

#[test]
fn an_address_in_use_stays_while_its_flow_is_open() {
    let mut t = Script::new(under(rules()));
    t.learns();
    let from = SocketAddr::new(t.addresses().0, 6001);
    t.connection_to(from, TO.parse().expect("an address"));
    t.establish();
    hand_over(&mut t, rules());
    t.advance_ms(3_601_000);
    t.take_all();
    assert!(t.connects(6002, TO), "its flow is open");
}

#[test]
fn addresses_that_are_in_use_past_their_time_stay_good() {
    let mut t = Script::new(under(rules()));
    t.learns();
    let from = SocketAddr::new(t.addresses().0, 6001);
    t.connection_to(from, TO.parse().expect("an address"));
    t.establish();
    t.advance_ms(3_601_000);
    t.take_all();
    let policy = hand_over(&mut t, rules());
    // Pins of the other address are as old, and no flow holds them.
    assert!(policy.pins() >= 1);
    assert!(!t.connects(6002, &format!("203.0.113.{}:443", OTHER[3])));
    assert!(t.connects(6003, TO), "its flow is open");
    review(&mut t);
    t.expect_nothing();
}

#[test]
fn names_that_the_new_rules_do_not_name_have_no_addresses() {
    let mut t = Script::new(under(rules()));
    t.learns();
    let policy = hand_over(&mut t, policy(&["https://b.example"], &[]));
    assert_eq!(policy.pins(), 1);
    assert!(!t.connects(6001, TO));
}

#[test]
fn a_connection_is_judged_by_the_name_that_it_said_before() {
    for (kept, further) in [(true, "198.51.100.0/24"), (false, "https://b.example")] {
        let mut t = Script::new(under(rules()));
        t.behind_gate();
        t.sends(&record(22, &client_hello(NAME.as_bytes(), &[])));
        // The next flight, after which the gate is gone.
        t.sends(&[record(20, &[1]), record(23, &[9; 60])].concat());
        t.take_all();
        let shared = hand_over(&mut t, rules());
        review(&mut t);
        t.expect_nothing();
        let next =
            if kept { policy(&["https://pkg.example.com", further], &[]) } else { policy(&[further], &[]) };
        shared.set(t.now(), Ruleset::new(next).expect("few rules"), false);
        review(&mut t);
        let lines: Vec<String> = t.take_all().iter().map(ToString::to_string).collect();
        assert_eq!(lines.iter().any(|line| line.contains("RST")), !kept, "{lines:?}");
    }
}

/// A connection to a web server without TLS, whose gate reads as long as it lasts.
fn with_http_gate() -> Script {
    let mut t = Script::new(under(http_rules()));
    t.behind_gate_to("203.0.113.5:80");
    t.sends(format!("GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n").as_bytes());
    t.take_all();
    t
}

fn http_rules() -> PolicyRules {
    policy(&["http://pkg.example.com", "http://b.example"], &[])
}

/// The gate goes on where it stood: in the midst of a head, of a body, between two requests.
#[test]
fn a_connection_behind_a_gate_goes_on_behind_it() {
    let get = |host: &str| format!("GET /next HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
    let body = [b'x'; 1000];
    let post = format!("POST / HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: {}\r\n\r\n", body.len());
    let post = [post.as_bytes(), &body].concat();
    let stream = [&post[..], &get(NAME)].concat();
    for at in [0, 10, post.len() - 500, post.len(), post.len() + 20, stream.len()] {
        let mut t = with_http_gate();
        t.peer_gets();
        t.host_sends(1000);
        t.expect("ACK|PSH data=1000");
        t.guest("ACK");
        let (before, behind) = stream.split_at(at);
        let mut got = Vec::new();
        for part in [before, behind] {
            if !part.is_empty() {
                t.sends(part);
            }
            got.extend(t.peer_gets());
            hand_over(&mut t, http_rules());
            t.take_all();
        }
        assert_eq!(got, stream, "{at}");
        t.host_sends(1000);
        t.expect("ACK|PSH data=1000");
        t.sends(&get("b.example"));
        assert_eq!(t.peer_gets(), [0; 0]);
        t.expect("RST|ACK");
        assert_eq!(t.refused(), [("policy name-changed".to_owned(), 1)]);
    }
}

/// One that is still closed lets nothing pass either way, and refuses at its time.
#[test]
fn a_closed_gate_goes_on_closed() {
    let request = format!("GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n").into_bytes();
    for host in [NAME, "evil.example"] {
        let mut t = Script::new(under(http_rules()));
        t.behind_gate_to("203.0.113.5:80");
        t.sends(&request[..20]);
        t.take_all();
        hand_over(&mut t, http_rules());
        t.host_sends(100);
        t.expect_nothing();
        assert_eq!(t.peer_gets(), [0; 0]);
        t.sends(format!(": {host}\r\n\r\n").as_bytes());
        assert_eq!(t.peer_gets(), if host == NAME { &request[..] } else { &[] });
        let lines: Vec<String> = t.take_all().iter().map(ToString::to_string).collect();
        assert_eq!(lines.iter().any(|line| line.contains("data=100")), host == NAME, "{lines:?}");
    }
    let mut t = Script::new(under(http_rules()));
    t.behind_gate_to("203.0.113.5:80");
    t.advance_ms(4000);
    hand_over(&mut t, http_rules());
    t.advance_ms(900);
    t.expect_nothing();
    t.advance_ms(200);
    t.expect("FIN|ACK|PSH data=164");
}

/// One that the host has not accepted yet is opened behind its gate.
#[test]
fn a_connection_to_a_gate_that_is_under_way_goes_on() {
    let mut t = Script::new(under(http_rules()));
    t.learns();
    assert!(t.connects(6001, "203.0.113.5:80"));
    hand_over(&mut t, http_rules());
    t.expect_nothing();
    assert_eq!(t.driver.stack.flows(), 1);
}

/// Rules that do not name the server any more end the connection, as without a hand-over; without a policy
/// there is no gate to go on with, and the guest is reset.
#[test]
fn a_gate_goes_on_under_the_rules_in_force() {
    let mut t = with_http_gate();
    hand_over(&mut t, policy(&["http://b.example"], &[]));
    review(&mut t);
    t.expect("RST|ACK");
    assert_eq!(t.driver.stack.flows(), 0);
    let t = with_http_gate();
    let saved = Snapshot::of(&t.driver.stack, t.now());
    let mut config = t.driver.stack.config().clone();
    config.rules.shared = None;
    let budget = Arc::new(Budget::new(config.memory));
    let (caps, host_addresses) = (t.setup().caps, t.driver.stack.host_addresses());
    let settings = Settings { config, caps, budget, worker: 0, host_addresses, payload: None, room: None };
    let restored = saved.restore_any(settings, t.now(), &t.driver.host);
    assert_eq!(restored.lost.len(), 1);
    assert_eq!(restored.stack.flows(), 0);
}

/// The outer name of an encrypted ClientHello is judged as one again after a change that no longer takes it,
/// and noted as one where the flow ends for another reason.
#[test]
fn an_outer_name_is_known_as_one() {
    let rules = |outer| {
        let mut rules = rules();
        rules.allow[1].ech_outer = outer;
        rules
    };
    for (encrypted, outer, ends) in [(true, false, true), (true, true, false), (false, false, false)] {
        let mut t = Script::new(under(rules(true)));
        t.behind_gate();
        let ech: &[(u16, &[u8])] = &[(0xfe0d, &[1, 2, 3])];
        t.sends(&record(22, &client_hello(NAME.as_bytes(), if encrypted { ech } else { &[] })));
        t.sends(&[record(20, &[1]), record(23, &[9; 60])].concat());
        t.take_all();
        // A second time, from what the first has restored.
        hand_over(&mut t, rules(true));
        let shared = hand_over(&mut t, rules(true));
        shared.set(t.now(), Ruleset::new(rules(outer)).expect("few rules"), false);
        review(&mut t);
        let lines: Vec<String> = t.take_all().iter().map(ToString::to_string).collect();
        assert_eq!(lines.iter().any(|line| line.contains("RST")), ends, "{encrypted} {outer}: {lines:?}");
        if ends {
            continue;
        }
        t.take_decisions();
        shared.set(t.now(), Ruleset::new(policy(&["https://b.example"], &[])).expect("few rules"), false);
        review(&mut t);
        let trail = t.take_decisions().decisions;
        let end = trail.iter().find(|audited| audited.decision.stage == Stage::End).expect("an end");
        assert_eq!(end.particulars.encrypted, encrypted);
    }
}
