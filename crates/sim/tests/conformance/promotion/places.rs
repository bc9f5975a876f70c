//! Places of promoted flows: one that is idle makes room for another.

use super::{call, carried, counters, give_back, progress, recalled, request, seeded, setup};
use brodo_core::flow::FlowId;
use brodo_core::link::RxMeta;
use brodo_core::promotion::{Refusal, TcpSeed};
use brodo_sim::host::ConnectPlan;
use brodo_sim::host::promotions::Request;
use brodo_sim::link::to_stack;
use brodo_sim::packet::{self, ParsedFrame, TcpSegment, flags};
use brodo_sim::script::Script;
use std::net::SocketAddr;

/// A segment of another connection of the guest's, with so many bytes; the stack's answers.
fn of_another(t: &mut Script, segment: &TcpSegment) -> Vec<TcpSegment> {
    let mac = t.driver.stack.config().mac.0;
    let sent = t.driver.turn(t.now(), &[(RxMeta::default(), segment.to_frame(to_stack(mac)))]);
    let parsed = sent.iter().filter_map(|frame| match packet::parse(&frame.bytes) {
        Ok(ParsedFrame::Tcp(segment)) => Some(segment),
        _ => None,
    });
    parsed.collect()
}

/// Another connection of the guest's, which sends a thousand bytes whenever it is called.
fn another(t: &mut Script) -> impl FnMut(&mut Script) + use<> {
    t.driver.host.set_default_connect(ConnectPlan::Done);
    let (guest, remote) = ([10, 0, 2, 15].into(), [198, 51, 100, 9].into());
    let ends = TcpSegment::new(SocketAddr::new(guest, 50_000), SocketAddr::new(remote, 80));
    let answers = of_another(t, &TcpSegment { flags: flags::SYN, seq: 99, window: 65_535, ..ends.clone() });
    let [syn_ack] = &answers[..] else { panic!("{answers:?}") };
    let (mut next, ack) = (100, syn_ack.seq.wrapping_add(1));
    move |t| {
        let data = vec![7; 1000];
        of_another(t, &TcpSegment { flags: flags::ACK, seq: next, ack, window: 500, data, ..ends.clone() });
        next += 1000;
    }
}

/// Runs `body` with so much memory, a carried flow that has the only place, and another that sends.
fn each_without_a_place(
    memory: usize,
    body: impl Fn(&mut Script, FlowId, &TcpSeed, &mut dyn FnMut(&mut Script)),
) {
    let mut setup = setup();
    (setup.config.bulk_bounds.flows_max, setup.config.memory) = (1, memory);
    Script::each_with(&setup, |t| {
        let (flow, seed) = seeded(t, "win=65535 mss=1460 wscale=7 sackok");
        carried(t, flow);
        let mut data = another(t);
        data(t);
        assert!(request(t).is_none(), "the place is taken");
        body(t, flow, &seed, &mut data);
        t.take_all();
    });
}

#[test]
fn an_idle_flow_makes_room_for_another() {
    each_without_a_place(64 << 20, |t, flow, seed, data| {
        t.advance_ms(900);
        progress(t, flow, 1000, 0);
        t.advance_ms(900);
        data(t);
        assert!(request(t).is_none(), "by a flow that has moved something of late");
        t.advance_ms(200);
        assert!(request(t).is_none(), "that no other wants");
        data(t);
        recalled(t, flow);
        data(t);
        assert!(request(t).is_none(), "one at a time");
        give_back(t, flow, seed, (&[], &[]), |_| {});
        assert_eq!((counters(t).promotions_recalled_idle, t.driver.stack.promoted()), (1, 0));
        t.take_all();
        data(t);
        t.advance_ms(10);
        let promoted = request(t);
        assert!(matches!(&promoted, Some(Request::Promote { flow: other, .. }) if *other != flow));
    });
}

/// One that cannot come back is not asked at once again: others that are idle have their turn.
#[test]
fn an_idle_flow_that_stays_is_left_alone_for_a_while() {
    each_without_a_place(64 << 20, |t, flow, _, data| {
        t.advance_ms(1100);
        data(t);
        recalled(t, flow);
        call(t, |stack, io| stack.recall_refused(io, flow));
        assert!(matches!(request(t), Some(Request::Carry(carried)) if carried == flow));
        for _ in 0..4 {
            t.advance_ms(200);
            data(t);
            assert!(request(t).is_none());
        }
        t.advance_ms(300);
        data(t);
        recalled(t, flow);
        call(t, |stack, io| stack.recall_refused(io, flow));
        request(t);
    });
}

/// A place is of no use to a flow that may not be promoted, so none is made free for it.
#[test]
fn no_idle_flow_makes_room_for_one_that_may_not_leave() {
    each_without_a_place(64 << 20, |t, _, _, data| {
        t.advance_ms(1100);
        t.driver.host.promotions().refuse_all(Refusal::Broker);
        data(t);
        assert!(request(t).is_none());
        assert_eq!((counters(t).promotions_refused_broker, counters(t).promotions_recalled_idle), (1, 0));
    });
}

/// Bytes that a kernel socket holds need memory: no flow is taken back that could be reset for want of it.
#[test]
fn no_idle_flow_makes_room_when_memory_is_short() {
    each_without_a_place(8 << 20, |t, _, _, data| {
        t.advance_ms(1100);
        data(t);
        assert!(request(t).is_none());
    });
}
