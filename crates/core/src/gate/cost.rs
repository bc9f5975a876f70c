//! Processor time of policy and gates for each connection: a measurement, run by name in a release build.
//!
//! ```text
//! cargo test --release -p brodo-core --lib cost_of_ -- --ignored --nocapture
//! ```

#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "a measurement reads the clock")]

use super::quic::{Fate, QuicGate};
use super::{Gate, Outcome, Subject};
use crate::flow::Protocol;
use crate::policy::{
    AllowRule, Checks, Decision, Effect, NewFlow, Particulars, PolicyRules, Rule, Ruleset, Ruling,
    SharedPolicy,
};
use crate::time::Instant;
use crate::wire::quic::Version;
use crate::wire::quic::protection::ClientKeys;
use crate::wire::quic::tests::{DESTINATION, example_frame, example_payload};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// Connections of one measurement, and measurements of which the fastest counts.
const CONNECTIONS: u32 = 20_000;
const ROUNDS: u32 = 9;
const GUEST: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 2, 15)), 40_000);
const NOW: Instant = Instant::from_ns(1);

/// The example of RFC 9001, A.2, an Initial of 1,200 bytes with a ClientHello for example.com.
fn initial(version: Version) -> Vec<u8> {
    let mut header = vec![if version == Version::V1 { 0xc3 } else { 0xd3 }];
    header.extend(version.number().to_be_bytes());
    header.push(DESTINATION.len() as u8);
    header.extend(DESTINATION);
    header.extend([0, 0, 0x44, 0x9e, 0, 0, 0, 2]);
    ClientKeys::new(version, &DESTINATION).seal(&header, &example_payload())
}

/// A policy of so many rules about names, the last of which allows example.com in every way.
fn policy(rules: usize) -> SharedPolicy {
    let rule = |text: &str| AllowRule::from(Rule::parse(text, Effect::Allow).expect("a rule"));
    let others = (4..rules).map(|n| rule(&format!("n{n}.example.com")));
    let own = ["http://example.com", "quic://example.com", "example.com", "203.0.113.0/24"].map(rule);
    let rules = PolicyRules { allow: others.chain(own).collect(), ..PolicyRules::default() };
    let host_names = [("example.com".to_owned(), "192.0.2.7".parse().expect("an address"))];
    SharedPolicy::new(Ruleset::new(rules).expect("few rules"), &host_names, [7; 16])
}

/// Nanoseconds of one call, in the fastest round.
fn fastest(mut call: impl FnMut()) -> u128 {
    let mut round = || {
        let start = std::time::Instant::now();
        (0..CONNECTIONS).for_each(|_| call());
        start.elapsed().as_nanos() / u128::from(CONNECTIONS)
    };
    (0..ROUNDS).map(|_| round()).min().unwrap_or_default()
}

fn subject(port: u16, checks: Checks) -> Subject {
    Subject { guest: GUEST, remote: SocketAddr::new([192, 0, 2, 7].into(), port), checks }
}

#[test]
#[ignore = "a measurement"]
fn cost_of_gates() {
    let policy = policy(16_384);
    // Behind the frame's type, offset and length.
    let message = &example_frame()[4..];
    let record = [&[22, 3, 1, 0, message.len() as u8][..], message].concat();
    let request =
        b"GET /index.html HTTP/1.1\r\nHost: example.com\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\r\n";
    let none = Checks::default();
    for (what, port, checks, bytes) in [
        ("TLS ClientHello", 443, Checks { tls: true, ..none }, &record[..]),
        ("HTTP request", 80, Checks { http: true, ..none }, &request[..]),
    ] {
        let ns = fastest(|| {
            let mut gate = Box::new(Gate::new(subject(port, checks)));
            gate.begin(NOW);
            let (taken, outcome) = gate.read(NOW, &policy, black_box(bytes));
            assert!(taken == bytes.len() && outcome != Outcome::Refuse && !gate.is_closed());
        });
        println!("{what} of {} bytes at a gate: {ns} ns", bytes.len());
    }
    for version in [Version::V1, Version::V2] {
        let datagram = initial(version);
        let ns = fastest(|| {
            let mut gate = Box::new(QuicGate::new(subject(443, Checks { quic: true, ..none })));
            assert_eq!(gate.read(NOW, &policy, black_box(&datagram)), Fate::Pass);
        });
        println!("QUIC Initial ({version:?}) of {} bytes at a gate: {ns} ns", datagram.len());
    }
}

#[test]
#[ignore = "a measurement"]
fn cost_of_openings() {
    for rules in [10, 16_384] {
        let policy = policy(rules);
        for (what, to) in [
            ("allowed by address", "203.0.113.9:443"),
            ("given by DNS for a name", "192.0.2.7:443"),
            ("refused", "198.51.100.1:443"),
        ] {
            let to = to.parse().expect("an address");
            let flow = NewFlow {
                protocol: Protocol::Tcp,
                guest: GUEST,
                remote: to,
                to,
                host: &[],
                dns_tls: false,
                alias: None,
            };
            let ns = fastest(|| {
                black_box(policy.opening(NOW, black_box(&flow)));
            });
            println!("a flow {what}, {rules} rules: {ns} ns");
        }
    }
}

/// Refusals are kept for explanations and an audit log: distinct ones up to the bounds of both in each
/// second, then such as have no room.
#[test]
#[ignore = "a measurement"]
fn cost_of_refusals() {
    let policy = policy(10);
    policy.keep_trail();
    let reason: Arc<str> = "policy default".into();
    let mut number = 0u32;
    let ns = fastest(|| {
        number += 1;
        if number.is_multiple_of(100_000) {
            black_box(policy.take_trail());
        }
        let to = SocketAddr::new([203, 0, 113, (number % 250) as u8].into(), (number % 60_000) as u16);
        let refusal = Decision::on_flow(Protocol::Udp, to, reason.clone(), Ruling::Denied);
        policy.note(NOW, GUEST, refusal, Particulars::default());
    });
    println!("a refusal that is kept: {ns} ns");
}
