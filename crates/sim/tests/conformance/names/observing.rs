//! A policy that only observes: everything passes but the floor, and refusals are noted.

use super::gates::{Gated, NAME};
use super::under_policy::{ALLOWED, Ruled, policy, under};
use super::*;
use brodo_core::policy::{Audited, Ruling, Stage};
use brodo_sim::hello::{client_hello, record};

/// A guest whose policy looks on.
fn observed() -> Script {
    let setup = under(policy(&[NAME, "http://pkg.example.com"], &["denied.example"]));
    let shared = setup.config.rules.shared.clone().expect("a policy");
    shared.set_observing(true);
    shared.keep_trail();
    Script::new(setup)
}

/// Stage and reason of the decisions with this verdict, and their numbers.
fn decisions(t: &Script, ruling: Ruling) -> Vec<(Stage, String, u64)> {
    let shared = t.setup().config.rules.shared.clone().expect("a policy");
    let trail = shared.take_trail().expect("a trail");
    assert_eq!(trail.left_out, 0);
    let of = trail.decisions.into_iter().filter(|counted| counted.decision.ruling == ruling);
    of.map(|Audited { decision, count, .. }| (decision.stage, decision.reason.to_string(), count)).collect()
}

/// | 55 | under a policy that observes: names that it would refuse, metadata services, a server that speaks
/// first | pass, and are noted; refused; no delay |
#[test]
fn attempt_55_what_would_be_refused_passes_and_is_noted() {
    let mut t = observed();
    for name in ["evil.example", "denied.example", NAME] {
        t.resolves(&question(1, name, A), &[(600, &ALLOWED)]);
    }
    assert!(t.connects(6001, "203.0.113.5:22"));
    assert!(t.connects(6002, "10.1.2.3:80"));
    // The floor holds.
    assert!(!t.connects(6003, "169.254.169.254:80"));
    assert_eq!(t.refused(), [("floor link-local".to_owned(), 1)]);
    let noted = decisions(&t, Ruling::WouldDeny);
    assert_eq!(
        noted,
        [
            (Stage::Question, "deny denied.example".to_owned(), 1),
            (Stage::Question, "policy question".to_owned(), 1),
            (Stage::Open, "policy default".to_owned(), 1),
            (Stage::Open, "policy private".to_owned(), 1),
        ]
    );
}

#[test]
fn attempt_55_a_gate_that_observes_holds_nothing_back() {
    for (name, ruling, reason) in [
        (NAME, Ruling::Allowed, "allow pkg.example.com"),
        ("evil.example", Ruling::WouldDeny, "policy name"),
        ("", Ruling::WouldDeny, "policy no-name"),
    ] {
        let mut t = observed();
        t.behind_gate();
        // A server that speaks first gets through.
        t.host_sends(100);
        t.take_all();
        let hello = record(22, &client_hello(name.as_bytes(), &[]));
        let (first, second) = hello.split_at(20);
        for piece in [first, second, b"anything", &[7; 1400]] {
            t.sends(piece);
            assert_eq!(t.peer_gets(), piece);
        }
        t.advance_ms(6000);
        assert!(decisions(&t, ruling).contains(&(Stage::Gate, reason.to_owned(), 1)), "{name}");
        assert_eq!(t.refused(), []);
    }
}
