//! A policy that only observes: everything passes but the floor, and refusals are noted.

use super::gates::{Gated, NAME};
use super::under_policy::{ALLOWED, Ruled, policy, under};
use super::*;
use brodo_core::policy::{Audited, Decision, NameSource, Particulars, Ruling, Stage};
use brodo_sim::hello::{client_hello, record};
use brodo_sim::quic::{Client, crypto};

/// A guest whose policy looks on.
fn observed() -> Script {
    let setup = under(policy(&[NAME, "http://pkg.example.com"], &["denied.example"]));
    let shared = setup.config.rules.shared.clone().expect("a policy");
    shared.set_observing(true);
    Script::new(setup)
}

/// Stage and reason of the decisions with this verdict, and their numbers.
fn decisions(t: &mut Script, ruling: Ruling) -> Vec<(Stage, String, u64)> {
    let trail = t.take_decisions();
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
    t.resolves(&question(2, NAME, 16), &[]);
    assert!(t.connects(6001, "203.0.113.5:22"));
    assert!(t.connects(6002, "10.1.2.3:80"));
    // The floor holds.
    assert!(!t.connects(6003, "169.254.169.254:80"));
    assert_eq!(t.refused(), [("floor link-local".to_owned(), 1)]);
    let noted = decisions(&mut t, Ruling::WouldDeny);
    assert_eq!(
        noted,
        [
            (Stage::Question, "policy question".to_owned(), 1),
            (Stage::Question, "deny denied.example".to_owned(), 1),
            (Stage::Question, "policy question-type".to_owned(), 1),
            (Stage::Open, "policy default".to_owned(), 1),
            (Stage::Open, "policy private".to_owned(), 1),
        ]
    );
}

/// Lines of an audit log say how a name was said, the type of a question, and an encrypted ClientHello.
#[test]
fn particulars_of_names_are_noted() {
    let particulars = |name_from, qtype, encrypted| Particulars { name_from, qtype, encrypted };
    let of = |t: &mut Script, stage: Stage| -> Vec<Particulars> {
        let decisions = t.take_decisions().decisions.into_iter();
        decisions.filter(|audited| audited.decision.stage == stage).map(|it| it.particulars).collect()
    };
    let mut t = observed();
    t.resolves(&question(1, NAME, A), &[(600, &ALLOWED)]);
    t.ask(5001, &question(2, NAME, 28));
    let asked = |qtype| particulars(Some(NameSource::Dns), Some(qtype), false);
    assert_eq!(of(&mut t, Stage::Question), [asked(A), asked(28)]);
    let hello = |extensions: &[(u16, &[u8])]| record(22, &client_hello(NAME.as_bytes(), extensions));
    let sni = Some(NameSource::Sni);
    for (bytes, expected) in [
        (hello(&[]), particulars(sni, None, false)),
        (hello(&[(0xfe0d, &[1])]), particulars(sni, None, true)),
        (record(22, &client_hello(b"", &[(0xffce, &[1])])), particulars(None, None, true)),
        (
            b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_vec(),
            particulars(Some(NameSource::Host), None, false),
        ),
    ] {
        let mut t = observed();
        t.behind_gate_to(if bytes.starts_with(b"GET") { "203.0.113.5:80" } else { "203.0.113.5:443" });
        t.sends(&bytes);
        assert_eq!(of(&mut t, Stage::Gate), [expected]);
    }
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
        assert!(decisions(&mut t, ruling).contains(&(Stage::Gate, reason.to_owned(), 1)), "{name}");
        assert_eq!(t.refused(), []);
    }
}

/// Gates that look on are bounded as all are; flows beyond the bound go on unread.
#[test]
fn flows_of_quic_beyond_the_bound_of_gates_pass() {
    const FLOWS: u16 = 1030;
    let to: SocketAddr = "203.0.113.5:443".parse().expect("an address");
    let setup = under(policy(&["quic://pkg.example.com"], &[]));
    setup.config.rules.shared.as_ref().expect("a policy").set_observing(true);
    let mut t = Script::new(setup);
    t.resolves(&question(1, NAME, A), &[(600, &ALLOWED)]);
    let hello = client_hello(NAME.as_bytes(), &[]);
    let datagram = Client::new(b"\x83\x94\xc8\xf0").datagram(0, &crypto(&hello, 0, hello.len()));
    for n in 0..FLOWS {
        t.connection_to(SocketAddr::new(t.addresses().0, 10_000 + n), to);
        t.guest_udp(to, &datagram);
    }
    let sockets: Vec<_> = t.driver.host.all().filter(|&socket| t.driver.host.peer(socket) == to).collect();
    let got = sockets.into_iter().filter_map(|socket| t.driver.host.take_datagram(socket));
    assert!(got.map(|(got, _)| got).eq(vec![datagram; FLOWS.into()]));
    assert_eq!(t.refused(), []);
    let trail = t.take_decisions().decisions;
    let noted = |stage, ruling| -> u64 {
        let of = |decision: &Decision| (decision.stage, decision.ruling) == (stage, ruling);
        trail.iter().filter(|audited| of(&audited.decision)).map(|audited| audited.count).sum()
    };
    assert_eq!(noted(Stage::Gate, Ruling::Allowed), 1024);
    assert_eq!(noted(Stage::Open, Ruling::WouldDeny), 6, "nothing has read them");
    assert_eq!(trail.iter().filter(|audited| audited.decision.ruling == Ruling::Denied).count(), 0);
}
