//! Deny rules by name where all else is allowed: a gate tells a denied name from others at its address, and
//! protocols without names are refused by the address alone.

use super::gates::{Gated, hello, hello_with};
use super::policy_changes::Changing;
use super::under_policy::{ALLOWED, Ruled, policy, under};
use super::*;
use brodo_core::policy::{Effect, PolicyRules};

const EVIL: &str = "evil.example";
const TO: &str = "203.0.113.5:443";

fn denying(deny: &[&str]) -> PolicyRules {
    PolicyRules { default: Effect::Allow, private: Effect::Allow, ..policy(&[], deny) }
}

/// A guest that was given [`ALLOWED`] for a denied name.
fn served(deny: &[&str]) -> Script {
    let mut t = Script::new(under(denying(deny)));
    t.resolves(&question(1, EVIL, A), &[(600, &ALLOWED)]);
    t
}

fn open(t: &mut Script, port: u16, to: &str) {
    let from = SocketAddr::new(t.addresses().0, port);
    t.connection_to(from, to.parse().expect("an address"));
    t.establish();
}

#[test]
fn a_denied_name_is_refused_and_its_neighbours_pass() {
    let rule = "https://evil.example";
    for name in [EVIL, "EVIL.example."] {
        let mut t = served(&[rule]);
        open(&mut t, 6000, TO);
        t.sends(&hello(name));
        t.expect_alert("deny https://evil.example");
    }
    let mut t = served(&[rule]);
    open(&mut t, 6000, TO);
    t.sends(&hello(""));
    t.expect_alert("policy no-name");
    // Browsers send an encrypted hello to every server.
    for first in [hello("good.example"), hello_with(b"good.example", &[(0xfe0d, &[1, 2, 3])])] {
        let mut t = served(&[rule]);
        open(&mut t, 6000, TO);
        t.sends(&first);
        assert!(t.peer_gets() == first, "the neighbour's hello passes");
        assert_eq!(t.refused(), []);
    }
    // Elsewhere, at other ports, and in the clear.
    for to in ["203.0.113.6:443", "203.0.113.5:8443", "203.0.113.5:80"] {
        let mut t = served(&[rule]);
        open(&mut t, 6000, to);
        t.sends(b"GET / HTTP/1.1\r\n");
        assert_eq!(t.peer_gets(), b"GET / HTTP/1.1\r\n", "{to}");
    }
}

/// An allow rule changes nothing for its name at a gate that is there for another one.
#[test]
fn a_name_with_an_allow_rule_passes_the_gate_of_a_denied_one() {
    let rules = PolicyRules {
        default: Effect::Allow,
        private: Effect::Allow,
        ..policy(&["https://good.example"], &["https://evil.example"])
    };
    let mut t = Script::new(under(rules));
    t.resolves(&question(1, EVIL, A), &[(600, &ALLOWED)]);
    for (port, name) in [(6000, "good.example"), (6001, "other.example")] {
        open(&mut t, port, TO);
        t.sends(&hello(name));
        assert!(t.peer_gets() == hello(name), "{name} passes");
        t.take_all();
    }
    assert_eq!(t.refused(), []);
}

/// A crowded address: more names than it may have pins, one of them in use.
#[test]
fn names_that_are_only_denied_are_resolved_however_many_share_an_address() {
    let mut t = Script::new(under(denying(&["quic://*"])));
    for n in 0..70 {
        t.resolves(&question(1 + n, &format!("n{n}.example"), A), &[(600, &ALLOWED)]);
        if n == 0 {
            open(&mut t, 6000, TO);
        }
    }
    assert_eq!(t.open_flows().len(), 1);
}

#[test]
fn requests_for_a_denied_host_are_refused() {
    let get = |host| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
    let mut t = served(&["http://evil.example"]);
    open(&mut t, 6000, "203.0.113.5:80");
    t.sends(&get("good.example"));
    assert_eq!(t.peer_gets(), get("good.example"));
    t.sends(&get(EVIL));
    assert_eq!(t.peer_gets(), [0; 0]);
    let mut t = served(&["http://evil.example"]);
    open(&mut t, 6000, "203.0.113.5:80");
    t.sends(&get(EVIL));
    assert_eq!(t.peer_gets(), [0; 0]);
    t.guest("ACK");
    t.advance_ms(5000);
    assert_eq!(t.refused(), [("deny http://evil.example".to_owned(), 1)]);
}

#[test]
fn protocols_without_names_are_refused_by_the_address() {
    let mut t = served(&["tcp://evil.example:22"]);
    assert!(!t.connects(6000, "203.0.113.5:22"));
    assert_eq!(t.refused(), [("deny tcp://evil.example:22".to_owned(), 1)]);
    assert!(t.connects(6001, "203.0.113.5:23") && t.connects(6002, "203.0.113.6:22"));
    // Another denied name, which no rule denies there, takes nothing from that.
    let mut t = served(&["tcp://evil.example:22", "https://b.example"]);
    t.resolves(&question(2, "b.example", A), &[(600, &ALLOWED)]);
    assert!(!t.connects(6000, "203.0.113.5:22"));
}

/// Connections from before the guest asked for a denied name are not taken for ones to that name.
#[test]
fn open_connections_to_an_address_that_a_denied_name_has_too_go_on() {
    let mut t = Script::new(under(denying(&["https://evil.example"])));
    open(&mut t, 6000, TO);
    t.resolves(&question(1, EVIL, A), &[(600, &ALLOWED)]);
    t.changes(denying(&["https://evil.example", "https://b.example"]), false, 256);
    t.expect_nothing();
    assert_eq!(t.open_flows().len(), 1);
    // New rules take the gate of a name that has passed before.
    open(&mut t, 6001, TO);
    t.sends(&hello("good.example"));
    t.take_all();
    t.changes(denying(&["https://evil.example", "https://good.example"]), false, 256);
    let lines: Vec<String> = t.take_all().iter().map(ToString::to_string).collect();
    assert!(lines.iter().any(|line| line.contains("RST")), "{lines:?}");
    assert_eq!(t.open_flows().len(), 1);
}
