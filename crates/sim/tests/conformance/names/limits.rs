//! Limits of allow rules: quotas, rates, flows and age, for all flows of a rule together.

use super::gates::Gated;
use super::policy_hand_over::hand_over;
use super::under_policy::{Ruled, policy, under};
use super::*;
use brodo_core::flow::end::EndCause;
use brodo_core::policy::{Limits, PolicyRules, Ruleset, SharedPolicy, Stage};
use brodo_sim::crashes::{Crashes, FLOWS_MAX};
use brodo_sim::hello::{client_hello, record};

const TO: &str = "198.51.100.7:80";
const MIB: u64 = 1 << 20;

/// Rules that share these limits, and one without.
fn limited(limits: Limits) -> PolicyRules {
    let mut rules = policy(
        &["198.51.100.0/24", "udp://198.51.101.0/24:53", "pkg.example.com", "192.0.2.0/24", "b.example"],
        &[],
    );
    rules.limits = vec![limits];
    rules.allow.iter_mut().take(3).for_each(|allow| allow.limits = Some(0));
    rules
}

/// A stack with these rules, without hand-overs in between: usage is shared by the stack before and the one
/// after there, and bytes of open flows, which a snapshot leaves to the next one to charge, would count
/// twice.
fn script(limits: Limits) -> Script {
    let mut t = Script::new(under(limited(limits)));
    t.driver.handovers.switch_off();
    t.call(|stack, _| {
        stack.record_ends(true);
    });
    t
}

/// An open connection to this destination.
fn open(t: &mut Script, port: u16, to: &str) {
    let from = SocketAddr::new(t.addresses().0, port);
    t.connection_to(from, to.parse().expect("an address"));
    t.establish();
    t.take_all();
}

fn is_reset(t: &mut Script) -> bool {
    t.take_all().iter().any(|line| line.to_string().contains("RST"))
}

fn causes(t: &mut Script) -> Vec<EndCause> {
    let mut causes = Vec::new();
    t.call(|stack, _| causes = stack.take_ends().into_iter().map(|end| end.cause).collect());
    causes
}

/// Other rules from now on, by which open flows are judged.
fn change(t: &mut Script, rules: PolicyRules) {
    let shared = t.setup().config.rules.shared.clone().expect("a policy");
    shared.set(t.now(), Ruleset::new(rules).expect("few rules"), false);
    t.call(|stack, io| _ = stack.review(io, 0, 256));
}

fn used(t: &Script) -> [u64; 2] {
    t.setup().config.rules.shared.as_ref().expect("a policy").used()[0].bytes
}

#[test]
fn attempt_54_a_quota_ends_all_flows_of_its_rule_and_no_other() {
    let mut t = script(Limits { bytes: [Some(10_000), None], ..Limits::default() });
    for port in 6000..6008 {
        open(&mut t, port, TO);
    }
    open(&mut t, 6100, "192.0.2.1:80");
    t.guest("ACK data=1400");
    t.take_all();
    open(&mut t, 6008, TO);
    for _ in 0..7 {
        t.guest("ACK data=1400");
        assert!(!is_reset(&mut t));
    }
    assert_eq!(used(&t), [9800, 0], "the other rule's bytes are not counted");
    t.guest("ACK data=1400");
    assert!(is_reset(&mut t));
    assert_eq!(causes(&mut t), [EndCause::Quota; 9]);
    assert_eq!(used(&t), [11_200, 0], "one access more at most");
    assert!(!t.connects(6200, TO));
    assert!(t.connects(6201, "192.0.2.1:80"));
    assert_eq!(t.refused(), [("policy quota".to_owned(), 1)]);
}

/// Ways in which a guest sends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    /// A few segments, each by itself.
    Pieces,
    /// A window that waits until the host's socket takes all of it at once.
    Waiting,
    /// A window in one batch.
    Batch,
    /// A window backwards: all of it comes in order with its first segment.
    Gap,
}

fn send(t: &mut Script, way: Way) {
    const LEN: u32 = 1400;
    let segment = format!("ACK data={LEN}");
    match way {
        Way::Pieces => {
            for _ in 0..4 {
                t.guest(&segment);
            }
        }
        Way::Waiting => {
            t.hoard();
            t.host_accepts_all();
        }
        Way::Batch | Way::Gap => {
            let room = t.offered_edge() - t.guest_progress().0;
            let mut frames: Vec<_> = (0..room / LEN).map(|_| t.frame(&segment)).collect();
            if way == Way::Gap {
                frames.reverse();
            }
            t.guest_raw_batch(&frames);
        }
    }
}

#[test]
fn attempt_54_four_workers_share_a_quota() {
    const QUOTA: u64 = 50 * MIB;
    const CONNECTIONS: u16 = 16;
    const PIECE: u64 = 64 << 10;
    for way in [Way::Pieces, Way::Waiting, Way::Batch, Way::Gap] {
        let setup = under(limited(Limits { bytes: [Some(QUOTA), None], ..Limits::default() }));
        let mut workers: Vec<Script> = (0..4).map(|_| Script::new(setup.clone())).collect();
        let mut flows = Vec::new();
        for t in &mut workers {
            t.driver.handovers.switch_off();
            flows = (0..CONNECTIONS)
                .map(|n| {
                    open(t, 6000 + n, TO);
                    t.flow_index()
                })
                .collect();
        }
        let (mut left, mut ended) = (0, false);
        while !ended {
            for &flow in &flows {
                for t in &mut workers {
                    t.select(flow);
                    let socket = t.socket();
                    if t.driver.host.closed(socket).is_some() {
                        ended = true;
                        continue;
                    }
                    send(t, way);
                    left += t.driver.host.peer_take(socket, usize::MAX).len() as u64;
                    t.take_all();
                }
            }
        }
        let used = used(&workers[0])[0];
        assert!((QUOTA..=QUOTA + 4 * PIECE).contains(&used), "{way:?}: {} bytes too many", used - QUOTA);
        assert!(left <= used, "{way:?}: {left} of {used}");
        for t in &mut workers {
            assert!(!t.connects(6200, TO));
        }
    }
}

#[test]
fn a_quota_counts_each_first_datagram() {
    let mut t = script(Limits { bytes: [Some(1000), None], ..Limits::default() });
    let to: SocketAddr = "198.51.101.1:53".parse().expect("an address");
    for port in 6000..6010 {
        t.connection_to(SocketAddr::new(t.addresses().0, port), to);
        t.guest_udp(to, &[7; 100]);
    }
    assert_eq!(used(&t), [1000, 0]);
    t.guest_udp(to, &[7; 100]);
    t.expect("ICMP prohibited");
}

#[test]
fn a_quota_downward_and_behind_a_gate() {
    let mut t = script(Limits { bytes: [None, Some(3000)], ..Limits::default() });
    t.behind_gate();
    t.sends(&record(22, &client_hello(b"pkg.example.com", &[(10, &[0, 2, 0, 29])])));
    t.take_all();
    t.host_sends(2000);
    assert!(!is_reset(&mut t));
    t.guest("ACK");
    t.host_sends(2000);
    // Bytes count when the guest has acknowledged them.
    t.guest("ACK");
    assert!(is_reset(&mut t));
    t.host_closed(Some(Close::Reset));
    // The rule's next connection is refused at its SYN or, where names decide, at its gate.
    let from = SocketAddr::new(t.addresses().0, 6001);
    t.connection_to(from, "203.0.113.5:443".parse().expect("an address"));
    t.establish();
    t.sends(&record(22, &client_hello(b"pkg.example.com", &[(10, &[0, 2, 0, 29])])));
    t.expect_alert("policy quota");
}

#[test]
fn flows_at_a_time_and_age() {
    let limits = Limits { flows: Some(2), max_age: Some(Duration::from_secs(60)), ..Limits::default() };
    let mut t = script(limits);
    open(&mut t, 6000, TO);
    t.advance_ms(30_000);
    open(&mut t, 6001, TO);
    assert!(!t.connects(6002, TO));
    assert_eq!(t.refused(), [("policy flows".to_owned(), 1)]);
    t.advance_ms(30_100);
    assert_eq!(causes(&mut t), [EndCause::Denied, EndCause::Quota]);
    assert!(is_reset(&mut t));
    assert!(t.connects(6003, TO), "one has made room");
}

/// A connection counts from its SYN on, while the host's is under way.
#[test]
fn connections_under_way_are_flows_at_a_time() {
    let mut t = script(Limits { flows: Some(2), ..Limits::default() });
    assert!(t.connects(6000, TO));
    let first = t.flow_index();
    assert!(t.connects(6001, TO));
    assert!(!t.connects(6002, TO), "two are under way");
    assert_eq!(t.refused(), [("policy flows".to_owned(), 1)]);
    assert_eq!(causes(&mut t), [EndCause::Denied]);
    let shared = t.setup().config.rules.shared.clone().expect("a policy");
    assert_eq!(shared.used()[0].flows, 2);
    // One that is given up makes room.
    t.select(first);
    t.guest("RST");
    assert_eq!(shared.used()[0].flows, 1);
    assert!(t.connects(6003, TO));
}

/// A connection for which a changed rule has no room, and one of two workers that have found room at the same
/// time.
#[test]
fn a_flow_too_many_ends_for_that_reason() {
    let mut t = script(Limits { flows: Some(1), ..Limits::default() });
    let shared = t.setup().config.rules.shared.clone().expect("a policy");
    open(&mut t, 6000, "192.0.2.1:80");
    open(&mut t, 6001, "192.0.2.1:80");
    // Now the rule with limits allows both.
    let mut rules = limited(Limits { flows: Some(1), ..Limits::default() });
    rules.allow.iter_mut().for_each(|allow| allow.limits = Some(0));
    change(&mut t, rules);
    assert_eq!(causes(&mut t), [EndCause::Quota]);
    let ended = shared.tally();
    let ended: Vec<_> = ended.iter().filter(|tallied| tallied.stage == Stage::End).collect();
    assert_eq!(ended.len(), 1, "{ended:?}");
    assert_eq!((ended[0].by, ended[0].count), ("flows", 1));
}

#[test]
fn a_rate_from_the_guest_holds_by_the_window() {
    let mut t = script(Limits { rates: [Some(MIB), None], ..Limits::default() });
    open(&mut t, 6000, TO);
    let begin = t.now();
    while used(&t)[0] < 4 * MIB {
        let (sent, edge) = (t.guest_progress().0, t.offered_edge());
        if edge.wrapping_sub(sent) >= 1400 {
            t.guest("ACK data=1400");
            t.take_all();
        } else {
            t.advance_ms(10);
        }
        let socket = t.socket();
        t.driver.host.peer_take(socket, usize::MAX);
    }
    let took = (t.now() - begin).as_millis();
    assert!((3_500..4_500).contains(&took), "{took} ms for 4 MiB at 1 MiB/s");
}

#[test]
fn a_rate_toward_the_guest_leaves_bytes_in_the_hosts_socket() {
    let mut t = script(Limits { rates: [None, Some(MIB)], ..Limits::default() });
    open(&mut t, 6000, TO);
    t.guest_window(1 << 20);
    t.guest("ACK");
    let begin = t.now();
    t.host_sends(3 << 20);
    while used(&t)[1] < 3 * MIB {
        t.take_all();
        t.guest("ACK");
        t.advance_ms(10);
        assert!(t.now() - begin < Duration::from_secs(10), "it stands still at {:?}", used(&t));
    }
    let took = (t.now() - begin).as_millis();
    assert!((2_400..3_600).contains(&took), "{took} ms for 3 MiB at 1 MiB/s");
}

/// Data that a host has sent before its reset comes at the rule's rate, and nothing is to be done in between.
#[test]
fn a_rate_holds_what_a_host_that_has_broken_off_has_sent() {
    let mut t = script(Limits { rates: [None, Some(MIB)], ..Limits::default() });
    open(&mut t, 6000, TO);
    t.guest_window(4 << 20);
    t.guest("ACK");
    t.host_sends(2 << 20);
    t.take_all();
    t.guest("ACK");
    t.host_breaks(HostError::Reset);
    t.guest("ACK data=100");
    let mut tenths = 0;
    while t.received_in_order() < 2 << 20 {
        t.host_closed(None);
        t.advance_ms(100);
        if !t.take_all().is_empty() {
            t.guest(&format!("ACK ack={}", 1 + t.received_in_order()));
        }
        tenths += 1;
        assert!(tenths < 100, "nothing comes after {} bytes", t.received_in_order());
    }
    assert!(tenths > 5, "the second MiB takes a second: {tenths}");
    t.host_closed(Some(Close::Reset));
}

#[test]
fn a_rate_drops_datagrams_beyond_it() {
    let mut t = script(Limits { rates: [Some(10_000), None], ..Limits::default() });
    let to: SocketAddr = "198.51.101.1:53".parse().expect("an address");
    t.connection_to(SocketAddr::new(t.addresses().0, 6000), to);
    for _ in 0..100 {
        t.guest_udp(to, &[7; 1000]);
        t.advance_ms(10);
    }
    let [sent, _] = used(&t);
    // A second's bytes, and what a full bucket lets pass at once.
    assert!((20_000..40_000).contains(&sent), "{sent}");
    assert_eq!(t.dropped(DropReason::RuleRate), 100 - sent / 1000);
}

#[test]
fn usage_stays_when_other_rules_change_and_over_a_hand_over() {
    let limits = Limits { bytes: [Some(10_000), None], ..Limits::default() };
    let mut t = script(limits);
    open(&mut t, 6000, TO);
    t.guest("ACK data=1000");
    t.guest("FIN|ACK");
    t.host_eof();
    t.take_all();
    t.guest("ACK");
    t.advance_ms(120_000);
    open(&mut t, 6001, TO);
    t.guest("ACK data=1400");
    t.take_all();
    assert_eq!(used(&t), [2400, 0]);
    change(&mut t, PolicyRules { deny: policy(&[], &["10.0.0.0/8"]).deny, ..limited(limits) });
    t.guest("ACK data=600");
    t.take_all();
    assert_eq!(used(&t), [3000, 0]);
    let policy = hand_over(&mut t, limited(limits));
    assert_eq!(policy.used()[0].bytes, [3000, 0]);
    t.guest("ACK data=500");
    assert_eq!(policy.used()[0].bytes, [3500, 0]);
    assert_eq!(policy.used()[0].flows, 1);
}

/// A change takes a flow out of the limits of its rule: those stay charged for its bytes until then, and
/// others that it comes under only for those since.
#[test]
fn usage_of_a_flow_that_a_change_takes_out_of_its_limits_stays_over_a_hand_over() {
    let quota = Limits { bytes: [Some(10_000), None], ..Limits::default() };
    for other in [None, Some(1)] {
        let mut rules = limited(quota);
        rules.limits.extend(other.map(|_| Limits { bytes: [Some(20_000), None], ..Limits::default() }));
        rules.allow[3] = policy(&["198.51.100.7"], &[]).allow.remove(0);
        rules.allow[3].limits = other;
        let mut t = script(quota);
        let shared = t.setup().config.rules.shared.clone().expect("a policy");
        shared.set(t.now(), Ruleset::new(rules.clone()).expect("few rules"), false);
        open(&mut t, 6000, TO);
        t.guest("ACK data=1400");
        // The other rule is written first from now on.
        rules.allow[..4].rotate_right(1);
        change(&mut t, rules.clone());
        t.guest("ACK data=600");
        let used = |shared: &SharedPolicy| shared.used().iter().map(|used| used.bytes).collect::<Vec<_>>();
        let expected = if other.is_some() { vec![[1400, 0], [600, 0]] } else { vec![[1400, 0]] };
        assert_eq!(used(&shared), expected);
        t.guest("FIN|ACK");
        t.host_eof();
        t.take_all();
        t.guest("ACK");
        t.advance_ms(120_000);
        assert_eq!(used(&hand_over(&mut t, rules)), expected);
    }
}

/// The host's addresses are known before its flows are counted.
#[test]
fn limits_of_a_rule_for_the_host_hold_after_a_hand_over() {
    let limits = Limits { bytes: [Some(10_000), None], flows: Some(1), ..Limits::default() };
    let rules = || {
        let mut rules = policy(&["tcp://host:80"], &[]);
        rules.limits = vec![limits];
        rules.allow[0].limits = Some(0);
        rules
    };
    let mut t = Script::new(under(rules()));
    let own: [IpAddr; 1] = [[192, 0, 2, 1].into()];
    t.call(|stack, _| stack.set_host_addresses(own.into()));
    open(&mut t, 6000, "192.0.2.1:80");
    t.guest("ACK data=1400");
    for _ in 0..2 {
        let next = hand_over(&mut t, rules());
        assert_eq!((next.used()[0].bytes, next.used()[0].flows), ([1400, 0], 1));
    }
    assert!(!t.connects(6001, "192.0.2.1:80"), "there is one already");
}

/// A connection behind a gate is counted after a hand-over as before; one that the gate has refused leaves
/// its bytes used.
#[test]
fn usage_behind_a_gate_stays_over_a_hand_over() {
    let limits = Limits { bytes: [Some(10_000), None], ..Limits::default() };
    let rules = || {
        let mut rules = policy(&["http://pkg.example.com", "http://b.example"], &[]);
        rules.limits = vec![limits];
        rules.allow[0].limits = Some(0);
        rules
    };
    let mut t = Script::new(under(rules()));
    t.driver.handovers.switch_off();
    t.behind_gate_to("203.0.113.5:80");
    let head = b"POST / HTTP/1.1\r\nHost: pkg.example.com\r\nContent-Length: 9000\r\n\r\n";
    for piece in [&head[..], &[b'x'; 1400], &[b'y'; 1400]] {
        t.sends(piece);
    }
    t.take_all();
    let before = used(&t);
    assert_eq!(before, [head.len() as u64 + 2800, 0]);
    for _ in 0..2 {
        let next = hand_over(&mut t, rules());
        assert_eq!((next.used()[0].bytes, next.used()[0].flows), (before, 1));
    }
    t.sends(&[b'z'; 9000 - 2800]);
    let refused = b"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n";
    t.sends(refused);
    assert!(is_reset(&mut t));
    let next = hand_over(&mut t, rules());
    assert_eq!(
        (next.used()[0].bytes, next.used()[0].flows),
        ([(head.len() + 9000 + refused.len()) as u64, 0], 0)
    );
}

#[test]
fn a_change_of_the_policy_leaves_no_connection_held_back() {
    let slow = Limits { rates: [Some(64 << 10), Some(64 << 10)], ..Limits::default() };
    for rules in [limited(slow), limited(Limits::default()), policy(&["198.51.100.0/24"], &[])] {
        let mut t = script(slow);
        open(&mut t, 6000, TO);
        t.guest_window(1 << 20);
        t.guest("ACK");
        t.host_sends(512 << 10);
        t.guest("ACK");
        let before = t.received_in_order();
        t.advance_ms(100);
        t.guest("ACK");
        assert_eq!(t.received_in_order(), before, "the rate holds it back");
        change(&mut t, rules);
        for _ in 0..1000 {
            t.take_all();
            t.guest("ACK");
            t.advance_ms(10);
        }
        assert!(t.received_in_order() - before > 256 << 10, "{} bytes", t.received_in_order() - before);
    }
}

#[test]
fn without_limits_windows_and_datagrams_are_as_before() {
    let slow = Limits { rates: [Some(10_000), None], ..Limits::default() };
    let without = || policy(&["198.51.100.0/24", "udp://198.51.101.0/24:53"], &[]);
    let mut t = script(slow);
    open(&mut t, 6000, TO);
    let room = |t: &Script| t.offered_edge().wrapping_sub(t.guest_progress().0);
    let send = |t: &mut Script| {
        for _ in 0..50 {
            if room(t) >= 1400 {
                t.guest("ACK data=1400");
            }
            t.advance_ms(200);
            t.take_all();
            let socket = t.socket();
            t.driver.host.peer_take(socket, usize::MAX);
        }
    };
    send(&mut t);
    assert!(room(&t) <= 16 << 10, "{}", room(&t));
    change(&mut t, without());
    send(&mut t);
    assert!(room(&t) > 32 << 10, "{}", room(&t));
    let mut t = script(slow);
    let to: SocketAddr = "198.51.101.1:53".parse().expect("an address");
    t.connection_to(SocketAddr::new(t.addresses().0, 6000), to);
    for _ in 0..40 {
        t.guest_udp(to, &[7; 1000]);
    }
    let dropped = t.dropped(DropReason::RuleRate);
    assert!(dropped > 0);
    change(&mut t, without());
    for _ in 0..40 {
        t.guest_udp(to, &[7; 1000]);
    }
    assert_eq!(t.dropped(DropReason::RuleRate), dropped);
}

#[test]
fn flows_that_are_idle_count_at_once_after_a_change_and_after_a_hand_over() {
    let limits = Limits { flows: Some(2), max_age: Some(Duration::from_secs(60)), ..Limits::default() };
    for handed_over in [false, true] {
        let mut t = script(limits);
        open(&mut t, 6000, TO);
        open(&mut t, 6001, TO);
        let shared = if handed_over {
            hand_over(&mut t, limited(limits))
        } else {
            change(&mut t, PolicyRules { deny: policy(&[], &["10.0.0.0/8"]).deny, ..limited(limits) });
            t.setup().config.rules.shared.clone().expect("a policy")
        };
        assert_eq!(shared.used()[0].flows, 2);
        assert!(!t.connects(6002, TO), "there are as many as may be");
        causes(&mut t);
        t.advance_ms(61_000);
        assert_eq!(causes(&mut t), [EndCause::Quota; 2], "their time is over");
    }
}

#[test]
fn bytes_before_a_hand_over_or_a_limit_are_no_debt_of_a_rate() {
    let limits = Limits { rates: [Some(64 << 10), None], ..Limits::default() };
    let mut t = script(limits);
    open(&mut t, 6000, "192.0.2.1:80");
    for _ in 0..500 {
        t.guest("ACK data=1400");
        let socket = t.socket();
        t.driver.host.peer_take(socket, usize::MAX);
    }
    t.take_all();
    // Now the rule with limits allows it.
    let mut rules = limited(limits);
    rules.allow.iter_mut().for_each(|allow| allow.limits = Some(0));
    let shared = t.setup().config.rules.shared.clone().expect("a policy");
    change(&mut t, rules.clone());
    assert_eq!(shared.used()[0].bytes, [0, 0]);
    for _ in 0..2 {
        let policy = hand_over(&mut t, rules.clone());
        assert_eq!(policy.used()[0].bytes, [0, 0]);
    }
    t.guest("ACK data=1400");
    t.advance_ms(300);
    t.take_all();
    assert!(t.offered_edge().wrapping_sub(t.guest_progress().0) >= 1400, "the window moves on");
}

/// The first limits of a policy come before the review of a flow that is in the midst of its data.
#[test]
fn bytes_before_the_first_limits_of_a_policy_are_not_counted() {
    for limits in [
        Limits { rates: [Some(64 << 10), None], ..Limits::default() },
        Limits { bytes: [Some(100_000), None], ..Limits::default() },
    ] {
        let without = || policy(&["198.51.100.0/24", "udp://198.51.101.0/24:53"], &[]);
        let mut t = Script::new(under(without()));
        t.driver.handovers.switch_off();
        open(&mut t, 6000, TO);
        let send = |t: &mut Script| {
            t.guest("ACK data=1400");
            let socket = t.socket();
            t.driver.host.peer_take(socket, usize::MAX);
        };
        for _ in 0..500 {
            send(&mut t);
        }
        t.advance_ms(10);
        t.take_all();
        let shared = t.setup().config.rules.shared.clone().expect("a policy");
        shared.set(t.now(), Ruleset::new(limited(limits)).expect("few rules"), false);
        send(&mut t);
        assert!(!is_reset(&mut t));
        t.call(|stack, io| _ = stack.review(io, 0, 256));
        assert!(used(&t)[0] <= 1400, "{:?}", used(&t));
        assert_eq!(shared.used()[0].flows, 1);
        let before = used(&t)[0];
        for _ in 0..4 {
            send(&mut t);
        }
        assert_eq!(used(&t), [before + 4 * 1400, 0], "from now on it is charged");
        t.take_all();
        // One that begins after them is charged from its first byte on.
        open(&mut t, 6001, TO);
        send(&mut t);
        assert_eq!(used(&t), [before + 5 * 1400, 0]);
        assert!(!is_reset(&mut t));
    }
}

/// An allow rule added, a seal and an answer to a question are no reason to judge open flows again.
#[test]
fn a_wider_policy_has_no_quota_flows_or_rate_of_its_own() {
    let limits =
        Limits { bytes: [Some(10_000), None], flows: Some(2), rates: [Some(4096), None], max_age: None };
    let mut t = script(limits);
    let shared = t.setup().config.rules.shared.clone().expect("a policy");
    open(&mut t, 6000, TO);
    let first = t.flow_index();
    for changes in 0..7 {
        t.guest("ACK data=1400");
        assert!(!is_reset(&mut t), "{changes} changes");
        let mut wider = limited(limits);
        wider.allow.extend(policy(&["c.example"], &[]).allow);
        shared.set(t.now(), Ruleset::new(wider).expect("few rules"), false);
    }
    open(&mut t, 6001, TO);
    assert!(!t.connects(6002, TO), "two are open");
    assert_eq!(t.refused(), [("policy flows".to_owned(), 1)]);
    assert_eq!((shared.used()[0].bytes, shared.used()[0].flows), ([9800, 0], 2));
    t.select(first);
    t.guest("ACK data=1400");
    assert_eq!(causes(&mut t), [EndCause::Denied, EndCause::Quota, EndCause::Quota]);
}

#[test]
fn a_quota_that_a_change_lowers_or_raises_counts_on() {
    let quota = |up: u64| Limits { bytes: [Some(up), None], ..Limits::default() };
    let mut t = script(quota(3000));
    let shared = t.setup().config.rules.shared.clone().expect("a policy");
    open(&mut t, 6000, TO);
    t.guest("ACK data=1400");
    shared.set(t.now(), Ruleset::new(limited(quota(4000))).expect("few rules"), false);
    // Before its review a flow is charged for both.
    t.guest("ACK data=1000");
    assert_eq!(shared.used()[0].bytes, [2400, 0]);
    t.call(|stack, io| _ = stack.review(io, 0, 256));
    t.guest("ACK data=1400");
    assert!(!is_reset(&mut t));
    t.guest("ACK data=200");
    assert!(is_reset(&mut t));
}

/// A flow under a name's rule, with 1400 bytes from the guest, after a crash: DNS has given nothing since.
fn crashed(rule: &str, to: &str) -> Script {
    let mut rules = policy(&[rule, "tcp://b.example:443"], &[]);
    rules.limits = vec![Limits { flows: Some(1), rates: [Some(4096), None], ..Limits::default() }];
    rules.allow[0].limits = Some(0);
    let mut setup = under(rules.clone());
    setup.config.max_flows = FLOWS_MAX;
    let mut t = Script::new(setup);
    t.driver.handovers.switch_off();
    t.driver.crashes = Some(Crashes::new(&mut t.driver.stack, 7));
    t.learns();
    open(&mut t, 6000, to);
    let mut data = 1400;
    if rule.starts_with("https") {
        let hello = record(22, &client_hello(b"pkg.example.com", &[(10, &[0, 2, 0, 29])]));
        // The next flight, after which the gate is gone.
        for flight in [hello, [record(20, &[1]), record(23, &[9; 60])].concat()] {
            data -= flight.len();
            t.sends(&flight);
        }
    }
    // Rules without the name take its pins, as the crash of a process does.
    let shared = t.setup().config.rules.shared.clone().expect("a policy");
    for rules in [policy(&[], &[]), rules] {
        shared.set(t.now(), Ruleset::new(rules).expect("few rules"), false);
    }
    t.driver.crashes.as_mut().expect("a journal").at(1);
    t.guest(&format!("ACK data={data}"));
    t.take_all();
    assert_eq!(t.driver.crashes.as_ref().map(Crashes::done), Some(1));
    assert_eq!((t.driver.stack.flows(), shared.used()[0].flows), (1, 0));
    t.call(|stack, _| {
        stack.record_ends(true);
    });
    t
}

#[test]
fn limits_hold_again_after_a_crash_once_the_rule_is_known() {
    for (rule, to) in
        [("tcp://pkg.example.com:22", "203.0.113.5:22"), ("https://pkg.example.com", "203.0.113.5:443")]
    {
        let mut t = crashed(rule, to);
        let from = t.flow_index();
        t.resolves(&question(1, "pkg.example.com", A), &[(600, &[203, 0, 113, 5])]);
        t.select(from);
        t.guest("ACK data=100");
        assert_eq!(used(&t), [0, 0], "it was looked up less than a second ago");
        t.advance_ms(1000);
        t.guest("ACK data=100");
        assert_eq!(used(&t), [1600, 0], "{rule}");
        assert!(!t.connects(6001, to) || rule.starts_with("https"));
        t.advance_ms(120_000);
        assert!(!is_reset(&mut t));
    }
}

#[test]
fn a_flow_whose_rule_a_crash_leaves_unknown_ends() {
    let mut t = crashed("tcp://pkg.example.com:22", "203.0.113.5:22");
    t.advance_ms(59_000);
    t.guest("ACK data=100");
    assert!(!is_reset(&mut t));
    t.advance_ms(1100);
    assert!(is_reset(&mut t));
    assert_eq!(causes(&mut t), [EndCause::PolicyChanged]);
    // A rule without limits leaves it as it is.
    let mut t = crashed("tcp://pkg.example.com:23", "203.0.113.6:443");
    t.advance_ms(300_000);
    t.guest("ACK data=100");
    assert!(!is_reset(&mut t));
}
