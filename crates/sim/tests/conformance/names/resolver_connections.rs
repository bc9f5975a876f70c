//! Connections to the DNS address without a policy: the resolver that each leads to.

use super::*;
use brodo_core::flow::owners::FlowOwners;
use std::sync::Arc;

/// DNS over TLS (RFC 7858).
const PORT_TLS: u16 = 853;

#[test]
fn a_question_over_tcp_whose_resolver_refuses_goes_to_the_next() {
    Script::each_with(&setup(3), |t| {
        let [first, second, third] = resolvers();
        let (guest, to) = (SocketAddr::new(t.addresses().0, 5000), dns(t));
        t.connection_to(guest, to);
        t.driver.host.plan_connect(ConnectPlan::Pending);
        t.guest(SYN);
        assert_eq!(t.host_connected_to(), first);
        t.driver.host.plan_connect(ConnectPlan::Fail(HostError::NetUnreachable));
        t.driver.host.plan_connect(ConnectPlan::Done);
        t.host_connect_fails(HostError::Refused);
        t.expect("SYN|ACK");
        let tried = t.driver.host.calls().iter().filter_map(|(_, call)| match call {
            Call::Connect(to, _) => Some(*to),
            _ => None,
        });
        assert_eq!(tried.collect::<Vec<_>>(), [first, second, third]);
        // Questions over UDP keep the order.
        t.ask(5001, &question(7, "a.test", A));
        assert_eq!(t.asked().last(), Some(&first));
    });
}

/// The first resolver knows nothing of the name, as over UDP.
#[test]
fn a_question_whose_answer_was_cut_goes_over_tcp_to_the_resolver_that_has_answered() {
    Script::each_with(&setup(2), |t| {
        // A successor does not know of cut answers.
        t.driver.handovers.switch_off();
        let [first, second, _] = resolvers();
        let q = question(7, "big.test", A);
        t.ask(5000, &q);
        t.says(first, &answer(&q, REFUSED, &[]));
        let mut cut = answer(&q, 0, &[]);
        cut[2] |= 2;
        t.says(second, &cut);
        t.take_all();
        // Not over TLS, which has the order of preference alone.
        let tls = SocketAddr::new(dns(t).ip(), PORT_TLS);
        let first_tls = SocketAddr::new(first.ip(), PORT_TLS);
        for (port, to, seconds, expected) in
            [(5001, dns(t), 0, second), (5002, tls, 0, first_tls), (5003, dns(t), 11, first)]
        {
            t.advance_ms(seconds * 1000);
            // The first one has been silent for ten seconds.
            t.take_all();
            t.connection_to(SocketAddr::new(t.addresses().0, port), to);
            t.establish();
            assert_eq!(t.host_connected_to(), expected);
        }
    });
}

/// The question over TCP has another port, and so perhaps another worker.
#[test]
fn a_question_whose_answer_was_cut_may_come_to_another_worker() {
    let [first, second, _] = resolvers();
    let owners = Arc::new(FlowOwners::new([9; 16]));
    let worker = || {
        let mut t = Script::new(setup(2));
        t.driver.handovers.switch_off();
        t.driver.stack.share_flows(owners.clone());
        t
    };
    let (mut t, mut other) = (worker(), worker());
    let q = question(7, "big.test", A);
    t.ask(5000, &q);
    t.says(first, &answer(&q, REFUSED, &[]));
    let mut cut = answer(&q, 0, &[]);
    cut[2] |= 2;
    t.says(second, &cut);
    t.take_all();
    other.connection_to(SocketAddr::new(other.addresses().0, 5001), dns(&other));
    other.establish();
    assert_eq!(other.host_connected_to(), second);
}

#[test]
fn a_question_over_tcp_whose_resolver_is_silent_goes_to_the_next() {
    Script::each_with(&setup(2), |t| {
        let [first, second, _] = resolvers();
        let (guest, to) = (SocketAddr::new(t.addresses().0, 5000), dns(t));
        t.connection_to(guest, to);
        t.driver.host.plan_connect(ConnectPlan::Pending);
        t.guest(SYN);
        t.advance_ms(1_900);
        assert_eq!(t.host_connected_to(), first);
        t.expect_nothing();
        t.driver.host.plan_connect(ConnectPlan::Pending);
        t.advance_ms(200);
        assert_eq!(t.host_connected_to(), second);
        // The last one has all the time of the host's kernel.
        t.advance_ms(20_000);
        t.host_connected();
        t.expect("SYN|ACK");
    });
}

#[test]
fn questions_over_tcp_begin_with_a_resolver_that_accepts_for_a_minute() {
    Script::each_with(&setup(2), |t| {
        // A successor does not know of failed connects.
        t.driver.handovers.switch_off();
        let [first, second, _] = resolvers();
        let (guest, to) = (SocketAddr::new(t.addresses().0, 5000), dns(t));
        t.connection_to(guest, to);
        t.driver.host.plan_connect(ConnectPlan::Fail(HostError::Refused));
        t.guest(SYN);
        for (port, minutes, expected) in [(5001, 0, second), (5002, 1, first)] {
            t.advance_ms(minutes * 60_000);
            t.connection_to(SocketAddr::new(guest.ip(), port), to);
            t.guest(SYN);
            assert_eq!(t.host_connected_to(), expected);
        }
    });
}

#[test]
fn queries_over_tcp_are_reset_without_a_reachable_resolver() {
    Script::each_with(&setup(2), |t| {
        let (guest, to) = (SocketAddr::new(t.addresses().0, 5000), dns(t));
        t.connection_to(guest, to);
        for _ in 0..2 {
            t.driver.host.plan_connect(ConnectPlan::Fail(HostError::Refused));
        }
        t.guest(SYN);
        t.expect("RST|ACK ack=1");
        t.expect_all_gone();
    });
}
