//! Processor time of policy and gates for each connection: a measurement, run by name in a release build.
//!
//! ```text
//! cargo test --release -p brodo-core --lib cost_of_ -- --ignored --nocapture
//! ```

#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "a measurement reads the clock")]

use super::quic::{Fate, QuicGate};
use super::{Gate, Outcome, Subject};
use crate::flow::Protocol;
use crate::policy::{AllowRule, Checks, Effect, NewFlow, PolicyRules, Rule, Ruleset, SharedPolicy};
use crate::time::Instant;
use crate::wire::quic::Version;
use crate::wire::quic::protection::ClientKeys;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Connections of one measurement, and measurements of which the fastest counts.
const CONNECTIONS: u32 = 20_000;
const ROUNDS: u32 = 9;
const GUEST: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 2, 15)), 40_000);
const NOW: Instant = Instant::from_ns(1);

fn hex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("a digit") as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// The ClientHello of RFC 9001, A.2, for example.com.
fn hello() -> Vec<u8> {
    hex(
        "010000ed0303ebf8fa56f12939b9584a3896472ec40bb863cfd3e86804fe3a47f06a2b69484c00000413011302010000c000\
         000010000e00000b6578616d706c652e636f6dff01000100000a00080006001d00170018001000070005\
         04616c706e000500050100000000003300260024001d00209370b2c9caa47fbabaf4559fedba753de171fa71f50f1ce15d43\
         e994ec74d748002b0003020304000d0010000e0403050306030203080408050806002d00020101001c000240010039003204\
         08ffffffffffffffff05048000ffff07048000ffff0801100104800075300901100f088394c8f03e51570806048000ffff",
    )
}

/// An Initial of 1,200 bytes with that hello.
fn initial(version: Version) -> Vec<u8> {
    let destination = [0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08];
    let mut header = vec![if version == Version::V1 { 0xc3 } else { 0xd3 }];
    header.extend(version.number().to_be_bytes());
    header.push(8);
    header.extend(destination);
    header.extend([0, 0, 0x44, 0x9e, 0, 0, 0, 2]);
    let mut payload = [&[6, 0, 0x40, 0xf1][..], &hello()].concat();
    payload.resize(1162, 0);
    ClientKeys::new(version, &destination).seal(&header, &payload)
}

/// A policy of so many rules about names, the last of which allows example.com in every way.
fn policy(rules: usize) -> SharedPolicy {
    let rule = |text: &str| AllowRule::from(Rule::parse(text, Effect::Allow).expect("a rule"));
    let others = (4..rules).map(|n| rule(&format!("n{n}.example.com")));
    let own = ["http://example.com", "quic://example.com", "example.com", "203.0.113.0/24"].map(rule);
    let rules = PolicyRules { allow: others.chain(own).collect(), ..PolicyRules::default() };
    let host_names = [("example.com".to_owned(), "192.0.2.7".parse().expect("an address"))];
    SharedPolicy::new(Ruleset::new(rules).expect("few rules"), &host_names)
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
    let message = hello();
    let record = [&[22, 3, 1, 0, message.len() as u8][..], &message].concat();
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
            let flow = NewFlow { protocol: Protocol::Tcp, guest: GUEST, remote: to, to, host: &[] };
            let ns = fastest(|| {
                black_box(policy.opening(NOW, black_box(&flow)));
            });
            println!("a flow {what}, {rules} rules: {ns} ns");
        }
    }
}
