//! A guest that ignores the closed window: what it sends beyond its edge counts nowhere, before the kernel
//! socket is made, and arrives once and in its place when it is sent again.

use super::{allow_promotions, answer, call, counters, give_back, of_guest, recalled, request, setup};
use brodo_core::counters::DropReason;
use brodo_core::flow::FlowId;
use brodo_core::promotion::{PromotionOutcome, Refusal, ReturnReason, TcpSeed};
use brodo_sim::host::promotions::Request;
use brodo_sim::script::Script;

/// Bytes beyond the edge.
const BEYOND: u32 = 500;

/// A connection whose seed the driver has, and the edge of its window. Beyond that the guest has sent
/// [`BEYOND`] bytes, both while it was made quiet and since.
struct Ignored {
    flow: FlowId,
    seed: TcpSeed,
    edge: u32,
}

fn each_ignored(body: impl Fn(&mut Script, &Ignored)) {
    Script::each_with(&setup(), |t| {
        allow_promotions(t);
        t.establish_with("win=65535 mss=1460 wscale=7 sackok");
        t.guest("ACK data=1000");
        assert_eq!((counters(t).promotions_tried, t.driver.stack.promoted()), (1, 0), "it is made quiet");
        let known = t.offered_edge();
        let half = (known - 1001) / 2;
        t.guest(&format!("ACK data={half}"));
        // The edge stays, but for the scale: from here the guest knows the stack's own.
        let edge = t.offered_edge();
        assert!(edge - known < 128, "{known} to {edge}");
        let beyond = format!("ACK seq={edge} data={BEYOND}");
        t.guest_batch(&[beyond.as_str(), &beyond]);
        assert!(request(t).is_none(), "the window has room");
        assert_eq!(t.offered_edge(), edge);
        // The one that fills the window reaches beyond it.
        let last = 1001 + half;
        t.guest(&format!("ACK seq={last} data={}", edge - last + BEYOND));
        t.take_all();
        t.host_received(edge as usize - 1);
        let Some(Request::Promote { flow, seed, .. }) = request(t) else { panic!("no promotion") };
        t.guest_batch(&[beyond.as_str(), &beyond]);
        t.expect_nothing();
        assert_eq!(counters(t).dropped(DropReason::Promoted), 2);
        body(t, &Ignored { flow, seed: *seed, edge });
    });
}

/// The flow is back with these bytes; the guest sends the next ones by the link.
fn back(t: &mut Script, ignored: &Ignored, up: &[u8]) {
    let &Ignored { flow, ref seed, edge } = ignored;
    give_back(t, flow, seed, (&[], up), |fields| {
        fields.rcv_nxt = fields.rcv_nxt.wrapping_add(up.len() as u32);
        fields.rcv_wup = fields.rcv_nxt;
        fields.rcv_wnd -= up.len() as u32;
    });
    let next = edge + up.len() as u32;
    t.expect(&format!("ACK seq=1 ack={next}"));
    t.guest(&format!("ACK seq={next} data=100"));
    t.host_received(up.len() + 100);
    assert_eq!((counters(t).promotions_returned, counters(t).promotions_broken), (1, 0));
}

#[test]
fn what_it_sends_again_reaches_the_kernel_socket() {
    each_ignored(|t, ignored| {
        let &Ignored { flow, edge, .. } = ignored;
        answer(t, flow, PromotionOutcome::Made);
        t.expect(&format!("ACK seq=1 ack={edge} win=65536"));
        let up = of_guest(t, &format!("ACK seq={edge} data={BEYOND}"));
        answer(t, flow, PromotionOutcome::Confirmed);
        assert!(matches!(request(t), Some(Request::Carry(carried)) if carried == flow));
        assert_eq!((counters(t).promotions_made, counters(t).promotions_recalled_stray), (1, 0));
        call(t, |stack, io| stack.recall(io, flow, ReturnReason::Capture));
        recalled(t, flow);
        back(t, ignored, &up);
    });
}

#[test]
fn what_comes_by_the_link_in_the_trial_takes_the_flow_back() {
    each_ignored(|t, ignored| {
        answer(t, ignored.flow, PromotionOutcome::Made);
        t.take_all();
        t.guest(&format!("ACK seq={} data={BEYOND}", ignored.edge));
        recalled(t, ignored.flow);
        assert_eq!(counters(t).promotions_recalled_stray, 1);
        back(t, ignored, &[]);
    });
}

#[test]
fn what_it_sends_again_reaches_a_connection_that_is_refused() {
    each_ignored(|t, &Ignored { flow, edge, .. }| {
        answer(t, flow, PromotionOutcome::Refused(Refusal::Socket));
        assert_eq!(counters(t).promotions_refused_socket, 1);
        t.take_all();
        t.guest(&format!("ACK seq={edge} data={BEYOND}"));
        t.take_all();
        t.host_received(BEYOND as usize);
        assert_eq!(t.acknowledged(), edge + BEYOND);
    });
}
