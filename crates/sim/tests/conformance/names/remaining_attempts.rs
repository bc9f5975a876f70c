//! Bypass attempts that concern several parts at once: hints in records, tunnels over allowed flows, pings,
//! fragments, floods of refusals. Numbers are those of the guide's page on policies.

use super::gates::{Gated, NAME};
use super::under_policy::{ALLOWED, Ruled, policy, under};
use super::*;
use brodo_core::policy::{Limits, PolicyRules, Ruling, SharedPolicy, Stage, Trailed};
use brodo_sim::fragments::cut;
use brodo_sim::hello::{client_hello, record};
use std::sync::Arc;

const HTTPS: u16 = 65;
const TO: &str = "203.0.113.5:443";

fn shared(t: &Script) -> Arc<SharedPolicy> {
    t.setup().config.rules.shared.clone().expect("a policy")
}

/// The guest's next packets are UDP to this destination.
fn conversation(t: &mut Script, port: u16, to: &str) -> SocketAddr {
    let to = to.parse().expect("an address");
    t.connection_to(SocketAddr::new(t.addresses().0, port), to);
    to
}

/// | 11 | HTTPS and SVCB records with ECH keys, address hints or another target | NODATA; an address from
/// elsewhere is refused |
#[test]
fn attempt_11_records_with_hints_are_not_answered_and_pin_nothing() {
    let mut t = Script::new(under(policy(&[NAME], &[])));
    for kind in [HTTPS, 64] {
        let got = t.asks(&question(1, NAME, kind)).expect("an answer at once");
        assert_eq!((got[3] & 15, got[7]), (0, 0));
    }
    assert!(!t.connects(6000, TO), "an address that a hint would have had");
    // A policy that observes asks, and pins no hint either.
    shared(&t).set_observing(true);
    let q = question(2, NAME, HTTPS);
    // Priority 1, target ".", ipv4hint (key 4) with the address.
    let hint = [&[0, 1, 0, 0, 4, 0, 4][..], &ALLOWED].concat();
    t.ask(5000, &q);
    if t.driver.host.open_sockets() > 0 {
        t.says(resolvers()[0], &answer(&q, 0, &[(600, &hint)]));
    }
    t.take_all();
    shared(&t).set_observing(false);
    assert_eq!(shared(&t).pins(), 0);
    assert!(!t.connects(6001, TO));
}

/// | 35 | another host inside TLS (domain fronting), a VPN over an allowed host | **passes**: brodo does not
/// decrypt. The audit log has the name, the flow log the bytes, and a quota bounds them |
#[test]
fn attempt_35_whatever_is_inside_tls_passes_is_audited_and_bounded() {
    let mut rules = policy(&[NAME, "b.example"], &[]);
    rules.limits = vec![Limits { bytes: [Some(10_000), None], ..Limits::default() }];
    rules.allow[0].limits = Some(0);
    let mut t = Script::new(under(rules));
    t.driver.handovers.switch_off();
    t.behind_gate();
    let hello = record(22, &client_hello(NAME.as_bytes(), &[(10, &[0, 2, 0, 29])]));
    let flight = [record(20, &[1]), record(23, b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")].concat();
    for bytes in [&hello, &flight] {
        t.sends(bytes);
        assert_eq!(t.peer_gets(), *bytes);
    }
    t.take_all();
    let trail = t.take_decisions();
    let gate = trail.decisions.iter().find(|counted| counted.decision.stage == Stage::Gate).expect("a gate");
    assert_eq!((gate.decision.ruling, gate.decision.name.as_deref()), (Ruling::Allowed, Some(NAME)));
    for _ in 0..8 {
        t.guest("ACK data=1400");
    }
    assert!(t.take_all().iter().any(|line| line.to_string().contains("RST")), "the quota ends it");
}

/// | 40 | QUIC where no rule allows it | refused at the first datagram, by an ICMP error: clients go on with
/// TCP |
#[test]
fn attempt_40_quic_without_a_rule_is_refused_at_once() {
    let mut t = Script::new(under(policy(&[NAME], &[])));
    t.resolves(&question(1, NAME, A), &[(600, &ALLOWED)]);
    let to = conversation(&mut t, 6000, TO);
    t.guest_udp(to, &[0xc0; 1200]);
    t.expect("ICMP prohibited");
    t.expect_all_gone();
    assert_eq!(t.refused(), [("policy default".to_owned(), 1)]);
}

/// | 45 | ping with data: to an address that no rule names; to a `ping` rule's host, 1,400 bytes, or a
/// thousand in a second | refused; at most 64 bytes, ten in a second leave |
#[test]
fn attempt_45_pings_carry_little() {
    let mut t = Script::new(under(policy(&["ping://pkg.example.com", "192.0.2.0/24"], &[])));
    t.resolves(&question(1, NAME, A), &[(600, &ALLOWED)]);
    conversation(&mut t, 6000, "203.0.113.9:7");
    t.guest("ICMP echo-request id=7 seq=1 data=56");
    t.expect("ICMP prohibited");
    conversation(&mut t, 6000, "203.0.113.5:7");
    t.guest("ICMP echo-request id=8 seq=1 data=64");
    t.host_answers_echo();
    t.expect("ICMP echo-reply id=8 seq=1 data=64");
    for len in [65, 1400] {
        t.guest(&format!("ICMP echo-request id=8 seq=2 data={len}"));
    }
    assert_eq!(t.dropped(DropReason::RuleRate), 2);
    let refusals = shared(&t).refusals();
    let pings = refusals.decisions.iter().filter(|counted| &*counted.decision.reason == "policy ping");
    assert_eq!(pings.map(|counted| counted.count).sum::<u64>(), 2);
    t.advance_ms(2000);
    // Identifiers of their own give no rate of their own.
    for n in 0..1000 {
        t.guest(&format!("ICMP echo-request id={} seq={n} data=56", 100 + n % 10));
        t.advance_ms(1);
    }
    let dropped = t.dropped(DropReason::RuleRate) - 2;
    assert!((980..=981).contains(&dropped), "a burst of ten, and ten in the second: {dropped}");
    // A rule for a network has no such bound.
    conversation(&mut t, 6000, "192.0.2.1:7");
    t.guest("ICMP echo-request id=9 seq=1 data=1400");
    t.host_answers_echo();
    assert_eq!(t.dropped(DropReason::RuleRate) - 2, dropped);
}

/// | 46 | UDP to a host of a `udp` rule as a tunnel | **passes**, only there; a quota (`up`) ends it |
#[test]
fn attempt_46_a_tunnel_over_udp_ends_with_its_quota() {
    let mut rules = policy(&["udp://pkg.example.com:5000"], &[]);
    rules.limits = vec![Limits { bytes: [Some(5000), None], ..Limits::default() }];
    rules.allow[0].limits = Some(0);
    let mut t = Script::new(under(rules));
    t.driver.handovers.switch_off();
    t.resolves(&question(1, NAME, A), &[(600, &ALLOWED)]);
    for (to, passes) in [("203.0.113.5:5000", true), ("203.0.113.5:5001", false), ("203.0.113.6:5000", false)]
    {
        let to = conversation(&mut t, 6000, to);
        t.guest_udp(to, &[7; 1000]);
        if passes {
            assert_eq!(t.host_takes_datagram().0.len(), 1000);
        } else {
            t.expect("ICMP prohibited");
        }
    }
    let to = conversation(&mut t, 6000, "203.0.113.5:5000");
    for _ in 0..5 {
        t.guest_udp(to, &[7; 1000]);
    }
    t.take_all();
    t.guest_udp(to, &[7; 1000]);
    t.expect("ICMP prohibited");
}

/// | 48 | fragments, IPv6 extension headers, the source address of another | put together before they are
/// judged, or dropped |
#[test]
fn attempt_48_fragments_are_judged_as_a_whole() {
    let mut t = Script::new(under(policy(&["udp://192.0.2.0/24:5000"], &[])));
    // The port is in the first fragment alone: no other gets anywhere without it.
    for (to, allowed) in [("192.0.2.1:5000", true), ("192.0.2.1:53", false)] {
        conversation(&mut t, 6000, to);
        let frame = t.frame("UDP data=3000");
        let mut pieces = cut(&frame, 1448, 7);
        pieces.reverse();
        let (last, others) = pieces.split_last().expect("pieces");
        let open = t.driver.host.open_sockets();
        t.guest_raw_batch(others);
        assert_eq!(t.driver.host.open_sockets(), open, "nothing opens before the whole");
        t.guest_raw(last);
        if allowed {
            t.host_got_datagram(3000);
            t.advance_ms(200_000);
        } else {
            t.expect("ICMP prohibited");
        }
    }
    // A TCP header in fragments: tiny ones are no way around a rule for ports.
    conversation(&mut t, 6000, "203.0.113.5:443");
    let syn = t.frame(SYN);
    let open = t.driver.host.open_sockets();
    t.guest_raw_batch(&cut(&syn, 8, 9));
    assert_eq!(t.driver.host.open_sockets(), open);
    // The source of another: no flow of the guest's.
    let forged = SocketAddr::new([198, 51, 100, 1].into(), 6000);
    t.connection_to(forged, "192.0.2.1:5000".parse().expect("an address"));
    t.guest("UDP data=1");
    assert_eq!(t.dropped(DropReason::SpoofedSource), 1);
}

/// | 50 | a million refusals in ten seconds | counted exactly, in lines for each second, and another flow's
/// bytes pass |
#[test]
fn attempt_50_a_flood_of_refusals_is_counted_and_keeps_nothing_from_others() {
    const REFUSALS: u32 = 1_000_000;
    let mut t = Script::new(under(policy(&["192.0.2.0/24"], &[])));
    t.driver.handovers.switch_off();
    assert!(t.connects(6000, "192.0.2.1:80"));
    let (mut noted, mut lines, mut left_out) = (0, 0, 0);
    let frames: Vec<Vec<u8>> = (0..10_000u32)
        .map(|n| {
            let to = format!("203.0.{}.{}:9", n / 250 % 250, 1 + n % 250);
            conversation(&mut t, 7000 + (n % 50_000) as u16, &to);
            t.frame("UDP data=10")
        })
        .collect();
    for round in 0..REFUSALS / 10_000 {
        for batch in frames.chunks(1000) {
            t.guest_raw_batch(batch);
            t.take_all();
        }
        t.advance_ms(100);
        if round % 10 == 9 {
            let Trailed { decisions, left_out: lost } = t.take_decisions();
            lines += decisions.len();
            left_out += lost;
            noted += decisions.iter().map(|counted| counted.count).sum::<u64>();
        }
    }
    let refused = u64::from(REFUSALS);
    assert_eq!(t.refused(), [("policy default".to_owned(), refused)]);
    assert_eq!(noted + left_out, refused + 1, "and one that was allowed");
    assert!(lines <= 10 * 4096 + 1, "{lines}");
    let tally = shared(&t).tally();
    assert_eq!(tally.iter().map(|of| of.count).sum::<u64>(), refused + 1);
    assert!(t.connects(6001, "192.0.2.2:80"), "others go on");
}

/// The rules of a policy file without a rule.
#[test]
fn an_empty_policy_refuses_everything() {
    let mut t = Script::new(under(PolicyRules::default()));
    assert_eq!(t.asks(&question(1, NAME, A)).expect("an answer")[3] & 15, NXDOMAIN);
    assert!(!t.connects(6000, TO) && !t.connects(6001, "10.0.0.1:22"));
}
