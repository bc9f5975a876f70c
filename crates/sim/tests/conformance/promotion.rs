//! Promotion, state by state: the driver's part is played by the script.

mod closed_window;
mod places;

use brodo_core::carried::{CarriedProgress, MovedUntil, Released};
use brodo_core::config::{Bulk, BulkBounds, Config};
use brodo_core::counters::{Counters, DropReason};
use brodo_core::flow::FlowId;
use brodo_core::flow::end::EndCause;
use brodo_core::flow::info::{Carrier, Traffic};
use brodo_core::host::{Close, Host};
use brodo_core::policy::{AllowRule, Effect, Limits, PolicyRules, Rule, Ruleset, SharedPolicy};
use brodo_core::promotion::{Fins, OurFin, PromotionOutcome, Refusal, ReturnReason, Returned};
use brodo_core::promotion::{SeedFields, TcpSeed};
use brodo_core::stack::{Io, Stack};
use brodo_core::tcp::limiting_factor::LimitingFactor;
use brodo_core::time::Duration;
use brodo_sim::driver::Simulated;
use brodo_sim::handover::Snapshot;
use brodo_sim::host::promotions::Request;
use brodo_sim::packet::{self, ParsedFrame, TcpSegment, flags};
use brodo_sim::script::{Script, Setup};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// Every connection that has moved a byte is a candidate.
fn setup() -> Setup {
    let bulk_bounds = BulkBounds { bytes: 1, rate: 0, period: Duration::ZERO, ..BulkBounds::default() };
    let config = Config { mtu: 1500, bulk: Bulk::Kernel, bulk_bounds, ..Config::default() };
    Setup { config, ..Setup::default() }
}

/// Runs `body` with a connection whose seed the driver has; 1000 bytes of the guest's came before.
fn each_seeded(body: impl Fn(&mut Script, FlowId, &TcpSeed)) {
    Script::each_with(&setup(), |t| {
        let (flow, seed) = seeded(t, "win=65535 mss=1460 wscale=7 sackok");
        body(t, flow, &seed);
    });
}

/// Connections are promoted once they are quiet, and a hand-over would end what is being made so.
fn allow_promotions(t: &mut Script) {
    t.driver.handovers.switch_off();
    t.driver.host.promotions().allow_all();
}

fn seeded(t: &mut Script, syn: &str) -> (FlowId, TcpSeed) {
    allow_promotions(t);
    t.establish_with(syn);
    t.guest("ACK data=1000");
    t.advance_ms(10);
    t.take_all();
    t.host_received(1000);
    let Some(Request::Promote { flow, seed, .. }) = request(t) else { panic!("no promotion") };
    assert_eq!(t.driver.stack.promoted(), 1);
    (flow, *seed)
}

/// The only wish of the stack's.
fn request(t: &mut Script) -> Option<Request> {
    let mut requests = t.driver.host.promotions().take();
    assert!(requests.len() <= 1, "{requests:?}");
    requests.pop_front()
}

fn call<R>(t: &mut Script, body: impl FnOnce(&mut Stack, &mut Io<'_, Simulated>) -> R) -> R {
    let (now, mut result) = (t.now(), None);
    let sent = t.driver.turn_with(now, |stack, io| result = Some(body(stack, io)));
    t.see_all(&sent);
    result.expect("called")
}

fn answer(t: &mut Script, flow: FlowId, outcome: PromotionOutcome) {
    assert!(call(t, |stack, io| stack.promotion(io, flow, outcome)), "{outcome:?} is awaited");
}

/// The socket is made: the guest learns of the window that it has.
fn make(t: &mut Script, flow: FlowId) {
    answer(t, flow, PromotionOutcome::Made);
    t.expect("ACK seq=1 ack=1001 win=65536");
    t.expect_nothing();
}

/// The socket is made, and has received a segment.
fn carried(t: &mut Script, flow: FlowId) {
    make(t, flow);
    answer(t, flow, PromotionOutcome::Confirmed);
    assert!(matches!(request(t), Some(Request::Carry(carried)) if carried == flow));
    t.expect_nothing();
}

fn progress(t: &mut Script, flow: FlowId, up: u64, down: u64) {
    let traffic = |bytes| Traffic { bytes, packets: 0 };
    let progress = CarriedProgress {
        connected: true,
        from_initiator: traffic(up),
        from_responder: traffic(down),
        ..CarriedProgress::default()
    };
    call(t, |stack, io| stack.carried_progress(io, flow, &progress));
}

fn counters(t: &Script) -> &Counters {
    t.driver.stack.counters()
}

fn recalled(t: &mut Script, flow: FlowId) {
    assert!(matches!(request(t), Some(Request::Recall(recalled)) if recalled == flow));
}

/// The flow is back with the seed changed by `change`.
fn give_back(
    t: &mut Script,
    flow: FlowId,
    seed: &TcpSeed,
    (to_guest, to_host): (&[u8], &[u8]),
    change: impl FnOnce(&mut SeedFields),
) {
    give_back_with(t, flow, seed, (to_guest, to_host), Fins::default(), change);
}

/// The same with a stream that has ended.
fn give_back_with(
    t: &mut Script,
    flow: FlowId,
    seed: &TcpSeed,
    (to_guest, to_host): (&[u8], &[u8]),
    fins: Fins,
    change: impl FnOnce(&mut SeedFields),
) {
    let mut fields = *seed.fields();
    change(&mut fields);
    let seed = TcpSeed::new(fields).expect("possible");
    call(t, |stack, io| stack.returned(io, flow, &Returned { seed: &seed, fins, to_guest, to_host }));
}

/// The driver reports that the guest's stream, or the host's, was passed on to its end.
fn finished(t: &mut Script, flow: FlowId, [guest, host]: [bool; 2]) {
    let progress =
        CarriedProgress { initiator_finished: guest, responder_finished: host, ..CarriedProgress::default() };
    call(t, |stack, io| stack.carried_progress(io, flow, &progress));
}

/// The next `len` bytes of the guest's stream, which the kernel socket has received.
fn from_guest(t: &mut Script, len: usize) -> Vec<u8> {
    of_guest(t, &format!("ACK data={len}"))
}

/// The payload of this segment of the guest's, which the kernel socket has received.
fn of_guest(t: &mut Script, segment: &str) -> Vec<u8> {
    let frame = t.frame(segment);
    let Ok(ParsedFrame::Tcp(segment)) = packet::parse(&frame) else { panic!("a segment") };
    t.driver.observer.from_guest(&segment);
    segment.data
}

/// Segment of the kernel socket's with the first bytes to the guest.
fn sent_by_kernel(t: &mut Script, seed: &TcpSeed, data: &[u8]) {
    let fields = seed.fields();
    let segment = TcpSegment {
        flags: flags::ACK,
        seq: fields.snd_nxt,
        ack: fields.rcv_nxt,
        window: seed.window().div_ceil(1 << fields.scales.map_or(0, |scales| scales.rcv)) as u16,
        data: data.to_vec(),
        ..TcpSegment::new(fields.remote, fields.guest)
    };
    t.driver.observer.to_guest(&segment).expect("within the window");
}

/// Bytes of the peer's that the driver takes from the host's socket.
fn from_peer(t: &mut Script, len: usize) -> Vec<u8> {
    t.host_sends(len);
    let mut bytes = vec![0; len];
    let socket = t.socket();
    let read = t.driver.host.tcp_recv(socket, &mut [IoSliceMut::new(&mut bytes)]);
    assert_eq!(read, Ok(len));
    bytes
}

#[test]
fn the_seed_has_the_numbers_that_the_guest_knows() {
    each_seeded(|t, _, seed| {
        let (guest, remote) = t.endpoints();
        let fields = seed.fields();
        assert_eq!((fields.guest, fields.remote), (guest, remote));
        assert_eq!(Some(fields.snd_nxt.wrapping_sub(1)), t.stack_isn());
        assert_eq!(fields.snd_una, fields.snd_nxt);
        let edge = t.driver.observer.offered_edge(guest, remote).expect("open");
        // The guest has used some of its window up, and gets the rest of what a socket begins with.
        assert!(edge.wrapping_sub(fields.rcv_nxt) < 64 * 1024);
        assert_eq!((fields.rcv_wup, seed.window()), (fields.rcv_nxt, 64 * 1024));
        assert_eq!((usize::from(fields.mss), fields.sack), (t.mss(), true));
        assert_eq!(fields.scales.map(|scales| scales.snd), Some(7));
        assert_eq!(t.driver.stack.memory_reserved(), 0, "its window is the kernel's");
        // The host's stream waits, and nothing is sent.
        t.host_sends(100);
        t.advance_ms(5000);
        t.expect_nothing();
        assert_eq!(t.host_waiting(), 100);
    });
}

/// Limiting factors of both directions: the wait of the splice, for as long as it lasts.
#[test]
fn a_promoted_connection_has_limiting_factors() {
    use LimitingFactor as F;
    each_seeded(|t, flow, _| {
        carried(t, flow);
        let after = |t: &mut Script, bytes: [u64; 2], until: [MovedUntil; 2]| {
            let [from_initiator, from_responder] = bytes.map(|bytes| Traffic { bytes, packets: 0 });
            let progress = CarriedProgress { from_initiator, from_responder, until, ..Default::default() };
            call(t, |stack, io| stack.carried_progress(io, flow, &progress));
            let info = t.driver.stack.tcp_infos(t.now()).next().expect("one");
            (info.rx.limiting.current, info.tx.limiting.current)
        };
        assert_eq!(after(t, [700, 700], [MovedUntil::Full; 2]), (F::HostSocket, F::GuestWindow));
        t.advance_ms(40);
        assert_eq!(after(t, [7, 7], [MovedUntil::TurnOver; 2]), (F::OurLimit, F::OurLimit));
        assert_eq!(after(t, [7, 0], [MovedUntil::Empty, MovedUntil::Full]), (F::Application, F::GuestWindow));
        assert_eq!(after(t, [0, 7], [MovedUntil::Empty; 2]), (F::Application, F::Application));
        let info = t.driver.stack.tcp_infos(t.now()).next().expect("one");
        // Exact to a unit of 66 us.
        for time in
            [info.rx.limiting.times[F::HostSocket as usize], info.tx.limiting.times[F::GuestWindow as usize]]
        {
            assert!(time.as_micros().abs_diff(40_000) < 66, "{time:?}");
        }
    });
}

#[test]
fn a_refused_connection_goes_on_and_is_tried_again_later() {
    each_seeded(|t, flow, _| {
        t.guest("ACK data=50");
        t.expect_nothing();
        assert_eq!(counters(t).dropped(DropReason::Promoted), 1);
        answer(t, flow, PromotionOutcome::Refused(Refusal::Socket));
        t.expect("ACK ack=1001");
        assert_eq!((counters(t).promotions_refused_socket, t.driver.stack.promoted()), (1, 0));
        t.guest("ACK seq=1001 data=50");
        t.expect("ACK ack=1051");
        t.host_received(50);
        assert!(request(t).is_none());
        t.advance_ms(300);
        t.guest("ACK data=50");
        t.advance_ms(10);
        assert!(matches!(request(t), Some(Request::Promote { .. })));
    });
}

#[test]
fn a_connection_that_does_not_become_quiet_is_left_alone() {
    Script::each_with(&setup(), |t| {
        allow_promotions(t);
        t.establish();
        t.host_sends(100);
        t.expect("ACK|PSH data=100");
        // Nothing is sent again within so short a time, and nothing is acknowledged.
        t.guest("ACK ack=1 data=10");
        t.expect("ACK ack=11");
        t.host_sends(30);
        t.expect_nothing();
        t.advance_ms(25);
        t.expect("ACK|PSH data=30");
        assert_eq!((counters(t).promotions_tried, counters(t).promotions_given_up), (1, 1));
        assert!(request(t).is_none());
    });
}

/// Quieting: the sender of a guest with an open window may be off the processor, and its segments may lie on
/// the link.
#[test]
fn a_guest_is_silent_on_a_link_that_was_read_empty_since() {
    Script::each_with(&setup(), |t| {
        allow_promotions(t);
        t.establish_with("win=65535 mss=1460 wscale=7 sackok");
        t.guest("ACK data=1000");
        t.advance_ms(1);
        assert!(request(t).is_none(), "a full segment fits into the window");
        t.driver.link_stands = true;
        t.advance_ms(6);
        assert!(request(t).is_none(), "the link was not read empty");
        t.guest("ACK data=500");
        t.driver.link_stands = false;
        t.advance_ms(1);
        assert!(request(t).is_none(), "a segment lay on it");
        t.advance_ms(5);
        t.take_all();
        t.host_received(1500);
        assert!(matches!(request(t), Some(Request::Promote { .. })));
        assert_eq!(counters(t).dropped(DropReason::Promoted), 0);
    });
}

/// Quieting: a guest that has no room for a full segment needs no more than a round trip.
#[test]
fn a_guest_whose_window_is_used_up_is_silent_soon() {
    Script::each_with(&setup(), |t| {
        allow_promotions(t);
        t.establish_with("win=65535 mss=1460 wscale=7 sackok");
        // Relative to the SYN, which takes one number.
        let window = t.offered_edge() as usize - 1;
        t.guest(&format!("ACK data={}", window - 1000));
        t.advance_ms(1);
        assert!(matches!(request(t), Some(Request::Promote { .. })));
        t.take_all();
        t.host_received(window - 1000);
    });
}

#[test]
fn a_fin_ends_the_attempt() {
    Script::each_with(&setup(), |t| {
        allow_promotions(t);
        t.establish();
        t.guest_batch(&["ACK data=10", "FIN|ACK"]);
        t.advance_ms(10);
        assert!(request(t).is_none());
        assert_eq!(counters(t).promotions_tried, counters(t).promotions_given_up);
        t.host_saw_fin(false);
        t.host_received(10);
        t.host_saw_fin(true);
    });
}

#[test]
fn a_reset_in_the_gap_ends_the_flow_and_releases_the_socket() {
    for made in [false, true] {
        each_seeded(|t, flow, _| {
            if made {
                make(t, flow);
            }
            // Anywhere but at RCV.NXT it proves nothing.
            t.guest("RST seq=1000");
            t.host_closed(None);
            if made {
                recalled(t, flow);
                return;
            }
            t.guest("RST seq=1001");
            t.host_closed(Some(Close::Reset));
            t.expect_all_gone();
            let released = Released { flow, carrier: Carrier::Kernel, number: 0 };
            assert_eq!(t.driver.stack.take_released(), [released]);
            assert_eq!(t.driver.stack.promoted(), 0);
            assert!(!call(t, |stack, io| stack.promotion(io, flow, PromotionOutcome::Made)));
        });
    }
}

#[test]
fn a_segment_at_the_link_in_the_trial_takes_the_flow_back_at_once() {
    for segment in ["ACK data=10", "FIN|ACK", "SYN", "ACK"] {
        each_seeded(|t, flow, seed| {
            make(t, flow);
            t.guest(segment);
            recalled(t, flow);
            assert_eq!(counters(t).promotions_recalled_stray, 1);
            give_back(t, flow, seed, (&[], &[]), |_| {});
            t.expect("ACK seq=1 ack=1001");
            t.guest("ACK seq=1001 data=10");
            t.expect("ACK ack=1011");
            t.host_received(10);
        });
    }
}

#[test]
fn a_silent_trial_takes_the_flow_back() {
    each_seeded(|t, flow, seed| {
        make(t, flow);
        t.advance_ms(49);
        assert!(request(t).is_none());
        t.advance_ms(3);
        recalled(t, flow);
        give_back(t, flow, seed, (&[], &[]), |_| {});
        t.expect("ACK seq=1 ack=1001");
        assert_eq!((counters(t).promotions_recalled_silent, counters(t).promotions_returned), (1, 1));
        assert_eq!(counters(t).promotions_made, 0);
    });
}

#[test]
fn a_returned_flow_goes_on_with_every_byte() {
    each_seeded(|t, flow, seed| {
        carried(t, flow);
        assert_eq!(t.driver.stack.flow_detail(flow, t.now()).map(|d| d.info.carrier), Some(Carrier::Kernel));
        // 700 bytes of the guest's have come, of which the host's socket has got none yet; of the peer's 900
        // the guest has acknowledged 100, and 500 more were sent.
        let up = from_guest(t, 700);
        let down = from_peer(t, 900);
        progress(t, flow, 0, 900);
        sent_by_kernel(t, seed, &down[..600]);
        t.guest("ACK data=1");
        recalled(t, flow);
        let before = t.driver.stack.counters().promotions_returned;
        give_back(t, flow, seed, (&down[100..], &up), |fields| {
            fields.rcv_nxt = fields.rcv_nxt.wrapping_add(700);
            fields.rcv_wup = fields.rcv_nxt;
            fields.rcv_wnd -= 700;
            fields.snd_una = fields.snd_una.wrapping_add(100);
            fields.snd_nxt = fields.snd_una.wrapping_add(500);
        });
        assert_eq!(counters(t).promotions_returned, before + 1);
        t.host_received(700);
        let info = t.driver.stack.flow_detail(flow, t.now()).expect("open").info;
        assert_eq!((info.carrier, info.from_guest.bytes, info.to_guest.bytes), (Carrier::Stack, 1700, 100));
        let seen = t.take_all();
        assert!(seen.iter().any(|line| line.to_string().contains("seq=601 ack=1701")), "{seen:?}");
    });
}

#[test]
fn a_return_with_a_hole_resets_both_sides() {
    let holes: [fn(&mut SeedFields); 4] = [
        |f| f.rcv_nxt = f.rcv_nxt.wrapping_add(1),
        |f| f.snd_una = f.snd_una.wrapping_sub(1),
        |f| f.snd_nxt = f.snd_nxt.wrapping_add(1),
        |f| f.guest.set_port(1),
    ];
    for hole in holes {
        each_seeded(|t, flow, seed| {
            carried(t, flow);
            call(t, |stack, io| stack.recall(io, flow, ReturnReason::Capture));
            recalled(t, flow);
            // The numbers of the reset are those of the seed, which are wrong.
            t.driver.observer.crashed();
            give_back(t, flow, seed, (&[], &[]), hole);
            let seen = t.take_all();
            assert!(seen.iter().any(|line| line.to_string().contains("RST")), "{seen:?}");
            t.host_closed(Some(Close::Reset));
            t.expect_all_gone();
            assert_eq!((counters(t).promotions_broken, t.driver.stack.promoted()), (1, 0));
            assert!(!t.driver.stack.has_released(), "the driver has closed its socket");
        });
    }
}

/// A kernel socket knows no limits: a flow that comes under some returns, and stays.
#[test]
fn a_flow_that_comes_under_limits_is_called_back() {
    let rules = |limits: Vec<Limits>| {
        let mut allow = AllowRule::from(Rule::parse("198.51.100.0/24", Effect::Allow).expect("a rule"));
        allow.limits = (!limits.is_empty()).then_some(0);
        Ruleset::new(PolicyRules { allow: vec![allow], limits, ..PolicyRules::default() }).expect("few rules")
    };
    let mut setup = setup();
    let policy = Arc::new(SharedPolicy::new(rules(Vec::new()), &setup.config.host_names, [7; 16]));
    setup.config.rules.shared = Some(policy.clone());
    let mut t = Script::new(setup);
    let (flow, seed) = seeded(&mut t, "win=65535 mss=1460 wscale=7 sackok");
    carried(&mut t, flow);
    policy.set(t.now(), rules(vec![Limits { rates: [None, Some(1 << 20)], ..Limits::default() }]), false);
    call(&mut t, |stack, io| _ = stack.review(io, 0, 256));
    recalled(&mut t, flow);
    // An urgent mark may stand in the way of the first attempt.
    call(&mut t, |stack, io| stack.recall_refused(io, flow));
    assert!(matches!(request(&mut t), Some(Request::Carry(carried)) if carried == flow));
    call(&mut t, Stack::recall_limited);
    recalled(&mut t, flow);
    give_back(&mut t, flow, &seed, (&[], &[]), |_| {});
    t.guest("ACK data=1000");
    t.advance_ms(60_000);
    assert!(request(&mut t).is_none() && t.driver.stack.promoted() == 0);
}

#[test]
fn a_return_without_memory_resets_both_sides() {
    let mut little = setup();
    little.config.memory = 100_000;
    Script::each_with(&little, |t| {
        let (flow, seed) = seeded(t, "win=65535 mss=1460 wscale=7 sackok");
        carried(t, flow);
        let down = from_peer(t, 200_000);
        progress(t, flow, 0, 200_000);
        call(t, |stack, io| stack.recall(io, flow, ReturnReason::Capture));
        recalled(t, flow);
        let has_room = |to_guest, to_host| t.driver.stack.has_room_for_return(to_guest, to_host);
        assert!(!has_room(down.len(), 0) && !has_room(0, down.len()) && has_room(40_000, 8000));
        give_back(t, flow, &seed, (&down, &[]), |_| {});
        let seen = t.take_all();
        assert!(seen.iter().any(|line| line.to_string().contains("RST")), "{seen:?}");
        t.expect_all_gone();
        assert_eq!(counters(t).promotions_broken, 1);
    });
}

#[test]
fn a_guest_with_a_closed_window_is_probed_after_the_return() {
    each_seeded(|t, flow, seed| {
        carried(t, flow);
        let down = from_peer(t, 300);
        progress(t, flow, 0, 300);
        call(t, |stack, io| stack.recall(io, flow, ReturnReason::Steering));
        recalled(t, flow);
        give_back(t, flow, seed, (&down, &[]), |fields| fields.snd_wnd = 0);
        t.expect("ACK seq=1 ack=1001 data=0");
        t.expect_within_ms(2000, "ACK seq=0 data=0");
        t.guest("ACK ack=1");
        t.expect("ACK|PSH seq=1 data=300");
    });
}

/// The carrier of the flow that has ended, as its record has it.
fn ended_by(t: &mut Script) -> Carrier {
    let ends = t.driver.stack.take_ends();
    ends.first().expect("the flow has ended").info.carrier
}

/// The guest's FIN, with bytes before it that the host's socket has not got, or passed on already: the host's
/// stream goes on, and its end is the end.
#[test]
fn a_flow_whose_guest_has_ended_its_stream_comes_back() {
    for passed_on in [false, true] {
        each_seeded(|t, flow, seed| {
            carried(t, flow);
            let up = of_guest(t, "ACK|FIN data=500");
            let taken = if passed_on { 500 } else { 200 };
            let socket = t.socket();
            let sent = t.driver.host.tcp_send(socket, &[IoSlice::new(&up[..taken])]);
            assert_eq!(sent, Ok(taken));
            progress(t, flow, taken as u64, 0);
            if passed_on {
                t.driver.host.tcp_shutdown(socket).expect("open");
                finished(t, flow, [true, false]);
            }
            call(t, |stack, io| stack.recall(io, flow, ReturnReason::Capture));
            recalled(t, flow);
            let fins = Fins { guest: true, ours: OurFin::None };
            give_back_with(t, flow, seed, (&[], &up[taken..]), fins, |fields| {
                fields.rcv_nxt = fields.rcv_nxt.wrapping_add(500);
            });
            t.host_received(500);
            t.host_saw_fin(true);
            t.expect("ACK seq=1 ack=1502 data=0");
            assert_eq!((counters(t).promotions_returned, counters(t).promotions_broken), (1, 0));
            t.host_sends(100);
            t.expect("ACK|PSH seq=1 ack=1502 data=100");
            t.host_eof();
            t.expect("ACK|FIN seq=101 ack=1502 data=0");
            t.guest("ACK seq=1502 ack=102");
            t.expect_all_gone();
        });
    }
}

/// Our FIN, waiting for the guest's window, sent or acknowledged: the guest's stream goes on.
#[test]
fn a_flow_whose_host_has_ended_its_stream_comes_back() {
    for ours in [OurFin::Unsent, OurFin::Sent, OurFin::Acknowledged] {
        each_seeded(|t, flow, seed| {
            carried(t, flow);
            let down = from_peer(t, 300);
            t.host_eof();
            progress(t, flow, 0, 300);
            finished(t, flow, [false, true]);
            if ours != OurFin::Unsent {
                sent_by_kernel(t, seed, &down);
            }
            call(t, |stack, io| stack.recall(io, flow, ReturnReason::Capture));
            recalled(t, flow);
            // The numbers of a FIN that the observer has not seen.
            t.driver.observer.crashed();
            let fins = Fins { guest: false, ours };
            let rest: &[u8] = if ours == OurFin::Acknowledged { &[] } else { &down };
            give_back_with(t, flow, seed, (rest, &[]), fins, |fields| {
                let [acknowledged, sent] = match ours {
                    OurFin::Acknowledged => [300, 300],
                    OurFin::Sent => [0, 300],
                    _ => [0, 0],
                };
                fields.snd_una = fields.snd_una.wrapping_add(acknowledged);
                fields.snd_nxt = fields.snd_nxt.wrapping_add(sent);
            });
            assert_eq!((counters(t).promotions_returned, counters(t).promotions_broken), (1, 0), "{ours:?}");
            let seen = t.take_all();
            if ours == OurFin::Unsent {
                assert!(seen.iter().any(|line| line.to_string().contains("FIN")), "{seen:?}");
            }
            t.guest("ACK seq=1001 ack=302 data=200");
            t.take_all();
            t.host_received(200);
            t.guest("ACK|FIN seq=1201 ack=302");
            t.expect("ACK seq=302 ack=1202 data=0");
            t.host_saw_fin(true);
            t.advance_ms(120_000);
            t.expect_all_gone();
        });
    }
}

/// FINs that contradict what the driver has reported are a hole in a stream.
#[test]
fn a_return_with_an_end_too_much_or_too_few_resets_both_sides() {
    let (guest, ours) =
        (Fins { guest: true, ours: OurFin::None }, Fins { guest: false, ours: OurFin::Unsent });
    let both = Fins { guest: true, ours: OurFin::Acknowledged };
    let cases = [
        ([true, false], Fins::default()),
        ([false, true], guest),
        ([false, false], ours),
        ([true, true], both),
    ];
    for (ended, fins) in cases {
        each_seeded(|t, flow, seed| {
            carried(t, flow);
            finished(t, flow, ended);
            call(t, |stack, io| stack.recall(io, flow, ReturnReason::Capture));
            recalled(t, flow);
            t.driver.observer.crashed();
            give_back_with(t, flow, seed, (&[], &[]), fins, |_| {});
            t.host_closed(Some(Close::Reset));
            assert_eq!(counters(t).promotions_broken, 1);
        });
    }
}

/// One of which both streams have ended at the kernel socket does not come back.
#[test]
fn a_flow_that_stays_half_closed_is_reset_if_its_steering_is_lost() {
    each_seeded(|t, flow, _| {
        carried(t, flow);
        finished(t, flow, [true, false]);
        for _ in 0..4 {
            t.host_closed(None);
            t.guest("ACK");
            if let Some(Request::Recall(_)) = request(t) {
                call(t, |stack, io| stack.recall_refused(io, flow));
                request(t);
            }
        }
        t.host_closed(Some(Close::Reset));
        assert_eq!(t.driver.stack.take_released().len(), 1);
        t.expect_nothing();
    });
}

/// A stream may end while the flow is taken back: the kernel keeps it then, and what the guest has sent by
/// the link meanwhile says nothing about the steering.
#[test]
fn a_flow_whose_stream_ends_in_its_return_goes_on_with_the_kernel() {
    each_seeded(|t, flow, _| {
        carried(t, flow);
        call(t, |stack, io| stack.recall(io, flow, ReturnReason::Capture));
        recalled(t, flow);
        finished(t, flow, [false, true]);
        for _ in 0..10 {
            t.guest("ACK");
        }
        call(t, |stack, io| stack.recall_refused(io, flow));
        assert!(matches!(request(t), Some(Request::Carry(carried)) if carried == flow));
        t.host_closed(None);
        assert_eq!((counters(t).promotions_broken, t.driver.stack.promoted()), (0, 1));
    });
}

/// A kernel socket that was not started is closed silently, so the stack tells the guest.
#[test]
fn a_flow_that_ends_before_its_kernel_socket_is_made_resets_the_guest() {
    each_seeded(|t, flow, _| {
        let socket = t.socket();
        t.driver.host.strand(socket);
        call(t, Stack::network_changed);
        t.expect("RST|ACK seq=1 ack=1001");
        t.expect_nothing();
        t.host_closed(Some(Close::Reset));
        let released = t.driver.stack.take_released();
        assert!(matches!(released.as_slice(), [Released { carrier: Carrier::Kernel, .. }]), "{released:?}");
        assert_eq!(t.driver.stack.promoted(), 0);
        assert!(!call(t, |stack, io| stack.promotion(io, flow, PromotionOutcome::Made)));
        t.expect_nothing();
    });
}

#[test]
fn a_flow_ends_with_its_kernel_socket() {
    // A driver that can neither go on with a flow nor give it back has broken it.
    let cases = [
        (EndCause::Finished, Close::Graceful, 0),
        (EndCause::ResetByGuest, Close::Reset, 0),
        (EndCause::NoResources, Close::Reset, 1),
    ];
    for (cause, how, broken) in cases {
        each_seeded(|t, flow, _| {
            t.driver.stack.record_ends(true);
            carried(t, flow);
            call(t, |stack, io| stack.close_carried(io, flow, cause));
            assert_eq!(counters(t).promotions_broken, broken);
            t.host_closed(Some(how));
            assert_eq!(ended_by(t), Carrier::Kernel);
            t.expect_all_gone();
            assert!(!t.driver.stack.has_released());
            assert_eq!(t.driver.stack.promoted(), 0);
        });
    }
}

#[test]
fn promotion_switched_off_takes_every_flow_back() {
    each_seeded(|t, flow, seed| {
        // Its answer is awaited first.
        call(t, |stack, io| stack.set_bulk(io, Bulk::Tap, ReturnReason::HandOver));
        assert!(request(t).is_none());
        make(t, flow);
        recalled(t, flow);
        give_back(t, flow, seed, (&[], &[]), |_| {});
        t.expect("ACK seq=1 ack=1001");
        assert_eq!((counters(t).promotions_recalled_hand_over, t.driver.stack.promoted()), (1, 0));
        t.advance_ms(1000);
        t.guest("ACK data=10");
        t.advance_ms(10);
        assert!(request(t).is_none(), "none is promoted any more");
    });
}

#[test]
fn a_return_that_another_needs_puts_no_attempt_off() {
    for (reason, at_once) in [(ReturnReason::Capture, true), (ReturnReason::Steering, false)] {
        each_seeded(|t, flow, seed| {
            carried(t, flow);
            call(t, |stack, io| stack.recall(io, flow, reason));
            recalled(t, flow);
            give_back(t, flow, seed, (&[], &[]), |_| {});
            t.take_all();
            t.guest("ACK seq=1001 data=10");
            t.advance_ms(10);
            assert_eq!(matches!(request(t), Some(Request::Promote { .. })), at_once, "{reason:?}");
            t.take_all();
        });
    }
}

#[test]
fn a_snapshot_leaves_out_flows_that_are_away() {
    each_seeded(|t, flow, _| {
        carried(t, flow);
        let saved = Snapshot::of(&t.driver.stack, t.now());
        assert_eq!((saved.omitted.promoted, saved.sockets.len()), (1, 0));
    });
}

#[test]
fn a_host_whose_address_is_gone_releases_the_socket() {
    each_seeded(|t, flow, _| {
        carried(t, flow);
        let socket = t.socket();
        t.driver.host.strand(socket);
        call(t, Stack::network_changed);
        t.host_closed(Some(Close::Reset));
        assert_eq!(t.driver.stack.take_released().len(), 1);
        t.expect_nothing();
    });
}
