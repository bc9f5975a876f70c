//! The advertised window and the two limits: their adaptation, and the window updates to the guest.

use brodo_core::config::{BufferBounds, Tuning};
use brodo_core::counters::DropReason;
use brodo_core::tcp::info::{HalfInfo, TcpInfo};
use brodo_core::tcp::limiting_factor::LimitingFactor;
use brodo_core::trace::{Cause, Direction, Event};
use brodo_sim::script::{Script, Setup};

const KIB: u32 = 1 << 10;
/// The round trip that the stack measures in the handshake of [`establish`].
const RTT_MS: u64 = 20;

fn bounds(initial: u32, max: u32) -> Setup {
    let mut setup = Setup::default();
    let bounds = BufferBounds { initial, max };
    (setup.config.tcp_rx, setup.config.tcp_tx) = (bounds, bounds);
    setup
}

fn fixed(bytes: u32) -> Setup {
    bounds(bytes, bytes)
}

fn tuning(tuning: Tuning) -> Setup {
    let mut setup = bounds(64 * KIB, 1024 * KIB);
    setup.config.tcp_tuning = tuning;
    setup
}

/// Handshake over a path of [`RTT_MS`].
fn establish(t: &mut Script) {
    establish_with(t, "win=65535 mss=1460 wscale=7 sackok");
}

fn establish_with(t: &mut Script, syn: &str) {
    t.host_connects_at_once();
    t.guest(&format!("SYN {syn}"));
    t.expect("SYN|ACK");
    t.advance_ms(RTT_MS);
    t.guest("ACK");
    t.expect_nothing();
}

fn info(t: &Script) -> TcpInfo {
    t.driver.stack.tcp_infos(t.now()).next().expect("there is a connection")
}

fn rx(t: &Script) -> HalfInfo {
    info(t).rx
}

/// Receive limit of a flow, and how often it has fallen.
fn limits(t: &mut Script, flow: usize) -> (u32, u32) {
    t.select(flow);
    let (guest, _) = t.endpoints();
    let info = t.driver.stack.tcp_infos(t.now()).find(|info| info.guest == guest);
    let HalfInfo { limit, shrinks, .. } = info.expect("the connection is open").rx;
    (limit, shrinks)
}

/// A window-limited guest, a round trip away: it sends up to the edge that it knew when the round trip began.
/// Returns the bytes sent.
fn round(t: &mut Script) -> u32 {
    let (start, edge) = (t.guest_progress().0, t.offered_edge());
    let (mut next, mss) = (start, t.mss() as u32);
    while next < edge {
        let len = mss.min(edge - next);
        t.guest(&format!("ACK data={len}"));
        next += len;
    }
    t.take_all();
    t.host_received_some();
    t.advance_ms(RTT_MS);
    next - start
}

fn tunings(t: &Script, wanted: Direction) -> Vec<(u32, u32, Cause)> {
    t.driver
        .events
        .all()
        .filter_map(|event| match *event {
            Event::Tuned { direction, from, to, cause, .. } if direction == wanted => Some((from, to, cause)),
            _ => None,
        })
        .collect()
}

#[test]
fn a_guest_that_the_window_holds_back_sees_it_double_every_round_trip() {
    Script::each(|t| {
        establish(t);
        round(t);
        for doublings in 0..6 {
            let limit = rx(t).limit;
            assert!(limit >= (60 * KIB) << doublings, "{limit} after {doublings} doublings");
            round(t);
        }
        round(t);
        assert_eq!(rx(t).limit, 4096 * KIB, "{:?}", tunings(t, Direction::Receive));
        let events = tunings(t, Direction::Receive);
        assert!(events.iter().all(|&(from, to, cause)| from < to && cause == Cause::Hit), "{events:?}");
        assert_eq!(rx(t).grows as usize, events.len());
        assert_eq!(t.driver.stack.counters().rx_buffer_grows as usize, events.len());
    });
}

#[test]
fn a_guest_that_sends_less_than_the_window_does_not_change_it() {
    Script::each(|t| {
        establish(t);
        for _ in 0..100 {
            for _ in 0..20 {
                t.guest(&format!("ACK data={}", t.mss()));
            }
            t.take_all();
            t.host_received_some();
            t.advance_ms(RTT_MS);
        }
        assert_eq!((rx(t).limit, rx(t).grows), (64 * KIB, 0));
        assert_eq!(rx(t).limiting.current, LimitingFactor::Application);
    });
}

#[test]
fn a_host_socket_that_is_full_does_not_make_the_window_grow() {
    Script::each(|t| {
        establish(t);
        t.host_accepts(0);
        for _ in 0..50 {
            round(t);
            t.host_accepts_more(20_000);
        }
        assert_eq!((rx(t).limit, rx(t).grows), (64 * KIB, 0));
        assert_eq!(rx(t).limiting.current, LimitingFactor::HostSocket);
        let held = rx(t).limiting.times[LimitingFactor::HostSocket as usize].as_millis();
        assert!(held >= 900, "{held} ms");
    });
}

#[test]
fn a_window_that_has_grown_falls_while_the_host_socket_stays_full() {
    Script::each(|t| {
        establish(t);
        (0..9).for_each(|_| _ = round(t));
        assert_eq!(rx(t).limit, 4096 * KIB, "{:?}", tunings(t, Direction::Receive));
        t.hoard();
        t.advance_ms(1000);
        t.host_accepts_more(4096);
        let limit = rx(t).limit;
        assert!((64 * KIB..2048 * KIB).contains(&limit), "{limit}");
        let last = tunings(t, Direction::Receive).pop().expect("a traced change");
        assert_eq!(last.2, Cause::Blocked);
        assert!(limit <= last.1);
        assert!(rx(t).shrinks >= 1 && t.driver.stack.counters().rx_buffer_shrinks >= 1);
        // The advertised window is accepted all the same; a falling limit only keeps the edge where it is.
        let edge = t.offered_edge();
        t.host_accepts_all();
        t.host_received_some();
        assert!(t.offered_edge() >= edge);
    });
}

/// Segments of a bulk flow and of a flow with one byte every two milliseconds, beside each other.
fn bulk_beside_requests(t: &mut Script, bulk: usize, sparse: usize) {
    for _ in 0..100 {
        t.select(sparse);
        t.guest("ACK data=1");
        t.host_received_some();
        t.select(bulk);
        t.guest(&format!("ACK data={}", t.mss()));
        t.host_received_some();
        t.advance_ms(2);
        t.take_all();
    }
}

#[test]
fn a_window_falls_while_its_frames_delay_those_of_a_sparse_flow() {
    Script::each(|t| {
        // A stack that takes over sees the queue anew.
        t.driver.handovers.switch_off();
        establish(t);
        let bulk = t.flow_index();
        (0..9).for_each(|_| _ = round(t));
        let sparse = t.connection(40_001, 80);
        establish(t);
        // Requests beside a link that is read empty.
        bulk_beside_requests(t, bulk, sparse);
        assert_eq!(limits(t, bulk), (4096 * KIB, 0));
        assert!(t.driver.stack.has_sparse(t.now()));
        t.driver.link_stands = true;
        bulk_beside_requests(t, bulk, sparse);
        let (limit, shrinks) = limits(t, bulk);
        assert!(limit == 64 * KIB && shrinks >= 20, "{limit} after {shrinks}");
        let last = tunings(t, Direction::Receive).pop().expect("a traced change");
        assert_eq!(last.2, Cause::Queued);
        // The queue has gone, and the window is used: it grows as any other.
        t.driver.link_stands = false;
        t.select(bulk);
        (0..4).for_each(|_| _ = round(t));
        assert!(limits(t, bulk).0 >= 256 * KIB, "{:?}", tunings(t, Direction::Receive));
    });
}

#[test]
fn a_queue_that_stands_on_the_link_without_sparse_flows_leaves_windows_alone() {
    Script::each(|t| {
        establish(t);
        (0..9).for_each(|_| _ = round(t));
        t.driver.link_stands = true;
        (0..9).for_each(|_| _ = round(t));
        assert_eq!((rx(t).limit, rx(t).shrinks), (4096 * KIB, 0));
        assert!(!t.driver.stack.has_sparse(t.now()));
    });
}

#[test]
fn both_limits_are_at_their_floor_two_seconds_after_the_last_byte() {
    Script::each(|t| {
        establish(t);
        (0..9).for_each(|_| _ = round(t));
        download(t, 60);
        assert!(rx(t).limit > 64 * KIB && info(t).tx.limit > 64 * KIB);
        t.advance_ms(2000);
        assert_eq!((rx(t).limit, info(t).tx.limit), (64 * KIB, 64 * KIB));
        assert_eq!(t.driver.stack.memory_used(), 0);
        // The window follows the limit.
        t.guest("ACK data=100");
        t.take_all();
        let last = tunings(t, Direction::Receive).pop().expect("a traced change");
        assert_eq!((last.1, last.2), (64 * KIB, Cause::Idle));
    });
}

/// The host sends without end, the guest acknowledges all received bytes each round trip. Returns the largest
/// number of bytes in flight.
fn download(t: &mut Script, rounds: u32) -> u32 {
    t.guest("ACK win=8000000");
    let mut most = 0;
    for _ in 0..rounds {
        let unread = t.host_waiting();
        if unread < 4_000_000 {
            t.host_sends(4_000_000 - unread);
        }
        most = most.max(info(t).in_flight);
        t.take_all();
        t.advance_ms(RTT_MS);
        t.guest("ACK");
    }
    while info(t).in_flight > 0 || t.host_waiting() > 0 {
        t.advance_ms(RTT_MS);
        t.take_all();
        t.guest("ACK");
    }
    t.take_all();
    most
}

#[test]
fn a_send_limit_doubles_while_it_is_what_holds_the_host_back() {
    let mut t = Script::new(Setup::default());
    establish(&mut t);
    let most = download(&mut t, 12);
    assert!(most > 3 << 20, "{most} in flight, {:?}", tunings(&t, Direction::Send));
    let grows = t.driver.stack.counters().tx_buffer_grows;
    assert_eq!(grows as usize, tunings(&t, Direction::Send).iter().filter(|c| c.1 > c.0).count());
}

#[test]
fn a_send_limit_does_not_grow_for_a_host_with_little_to_send() {
    Script::each(|t| {
        establish(t);
        for _ in 0..100 {
            t.host_sends(30_000);
            t.take_all();
            t.advance_ms(RTT_MS);
            t.guest("ACK");
        }
        assert_eq!((info(t).tx.limit, info(t).tx.grows), (64 * KIB, 0));
    });
}

#[test]
fn a_send_limit_does_not_grow_beyond_what_the_guest_takes() {
    Script::each(|t| {
        establish(t);
        t.guest("ACK win=40000");
        for _ in 0..50 {
            t.host_sends(40_000);
            t.take_all();
            t.advance_ms(RTT_MS);
            t.guest("ACK");
        }
        assert_eq!(info(t).tx.grows, 0);
        assert_eq!(info(t).tx.limit, 64 * KIB);
    });
}

#[test]
fn without_scaling_the_window_never_exceeds_its_field() {
    Script::each_with(&bounds(16 * KIB, 4096 * KIB), |t| {
        establish_with(t, "win=65535 mss=1460");
        (0..10).for_each(|_| _ = round(t));
        assert_eq!(rx(t).limit, 65_535);
        assert!(t.offered_edge() - t.guest_progress().0 <= 65_535);
    });
}

#[test]
fn fixed_bounds_are_kept() {
    for setup in [fixed(32 * KIB), tuning(Tuning::Fixed)] {
        Script::each_with(&setup, |t| {
            establish(t);
            for _ in 0..20 {
                round(t);
                assert_eq!(rx(t).limit, t.setup().config.tcp_rx.initial);
            }
            t.advance_ms(5000);
            assert_eq!(rx(t).limit, t.setup().config.tcp_rx.initial);
            assert!(tunings(t, Direction::Receive).is_empty());
        });
    }
}

/// FreeBSD's rule: linear, up to the bound, for ever.
#[test]
fn steps_grow_the_window_by_so_much_per_round_trip() {
    Script::each_with(&tuning(Tuning::Step(16 * KIB)), |t| {
        establish(t);
        (0..20).for_each(|_| _ = round(t));
        let steps = (rx(t).limit - 64 * KIB) / (16 * KIB);
        assert!((16..=20).contains(&steps), "{steps}");
        let events = tunings(t, Direction::Receive);
        assert!(events.iter().all(|&(from, to, _)| to == from + 16 * KIB), "{events:?}");
        let limit = rx(t).limit;
        t.advance_ms(10_000);
        assert_eq!(rx(t).limit, limit);
    });
}

/// Consomme's rule: twice as much when the guest stands at the edge, up to the bound, for ever.
#[test]
fn pressure_doubles_the_window_when_it_is_full() {
    Script::each_with(&tuning(Tuning::Pressure), |t| {
        establish(t);
        (0..4).for_each(|_| _ = round(t));
        let events = tunings(t, Direction::Receive);
        assert!(
            events.len() >= 3
                && events.iter().all(|&(from, to, cause)| (to, cause) == (2 * from, Cause::Hit))
        );
        let limit = rx(t).limit;
        t.advance_ms(10_000);
        assert_eq!(rx(t).limit, limit);
    });
}

/// Invariant 13: the update comes in the turn in which the host socket has room again.
#[test]
fn a_window_that_was_closed_is_opened_at_once() {
    Script::each_with(&fixed(32 * KIB), |t| {
        establish(t);
        t.hoard();
        t.host_accepts_all();
        t.expect("ACK win>=16384");
        let updates: Vec<_> = t
            .driver
            .events
            .all()
            .filter(|event| matches!(event, Event::WindowUpdate { repeated: false, .. }))
            .collect();
        assert_eq!(updates.len(), 1, "{updates:?}");
    });
}

/// Invariant 14, and its bounds: window updates to a guest with nothing more to send are bounded.
#[test]
fn an_update_that_opens_a_window_is_repeated_until_the_guest_moves() {
    Script::each_with(&fixed(32 * KIB), |t| {
        establish(t);
        t.hoard();
        t.host_accepts_all();
        t.expect("ACK win>=16384");
        let first = t.expect_within_ms(200, "ACK win>=16384");
        assert!(first >= RTT_MS * 1000, "not before the guest can have answered: {first} us");
        let second = t.expect_within_ms(400, "ACK win>=16384");
        assert!(second >= first * 3 / 2, "{first} {second}");
        // The guest sends.
        t.guest("ACK data=100");
        t.expect("ACK");
        t.advance_ms(60_000);
        t.expect_nothing();
    });
}

#[test]
fn an_update_is_repeated_a_bounded_number_of_times() {
    Script::each_with(&fixed(32 * KIB), |t| {
        establish(t);
        t.hoard();
        t.host_accepts_all();
        t.expect("ACK win>=16384");
        t.advance_ms(600_000);
        let repeated = t.take_all().len();
        assert!((3..=8).contains(&repeated), "{repeated}");
        let events = t.driver.events.all();
        assert_eq!(
            events.filter(|e| matches!(e, Event::WindowUpdate { repeated: true, .. })).count(),
            repeated
        );
    });
}

#[test]
fn a_window_that_was_never_closed_is_not_announced_twice() {
    Script::each(|t| {
        establish(t);
        (0..5).for_each(|_| _ = round(t));
        t.advance_ms(60_000);
        t.expect_nothing();
    });
}

/// RFC 9293, 3.8.6.2.2: the edge moves by a segment or half the window, not by slivers.
#[test]
fn the_edge_does_not_move_by_slivers() {
    Script::each_with(&fixed(16 * KIB), |t| {
        establish(t);
        t.hoard();
        let mut edge = t.offered_edge();
        for _ in 0..160 {
            t.host_accepts_more(100);
            t.host_received_some();
            let now = t.offered_edge();
            assert!(now == edge || now - edge >= t.mss() as u32, "by {}", now - edge);
            edge = now;
            t.take_all();
        }
        assert!(edge > 16 * KIB + 8 * KIB);
    });
}

/// At every scale, rounding neither moves the edge to the left (the observer sees to that) nor shuts a window
/// behind which there is room.
#[test]
fn rounding_neither_takes_back_nor_shuts() {
    for shift in [0, 3, 9, 14] {
        let max = (65_535_u32 << shift).min(1 << 30);
        Script::each_with(&bounds(20_000, max), |t| {
            establish(t);
            for len in [1, 7, 100, 1459, 1460, 3, 1000, 1, 1] {
                t.guest(&format!("ACK data={len}"));
                let line = t.take_all().pop().expect("acknowledged");
                assert!(line.value("win").is_some_and(|win| win > 0), "shift {shift}: {line}");
            }
            t.host_received_some();
            t.host_accepts(0);
            for len in [1, 7, 100, 1459, 1460, 3, 1000, 1, 1] {
                t.guest(&format!("ACK data={len}"));
                t.take_all();
            }
        });
    }
}

/// An acknowledgement refused by the link advertises no window.
#[test]
fn a_refused_acknowledgement_advertises_no_window() {
    Script::each_with(&fixed(32 * KIB), |t| {
        establish(t);
        let edge = t.offered_edge();
        t.link_credit(Some(0));
        t.guest(&format!("ACK data={}", t.mss()));
        t.guest(&format!("ACK data={}", t.mss()));
        t.host_received_some();
        t.guest(&format!("ACK seq={} data=100", edge + 10));
        assert_eq!(t.driver.stack.memory_used(), 0, "beyond the advertised window");
        t.link_credit(None);
        t.take_all();
        assert!(t.offered_edge() > edge);
    });
}

fn budget(bytes: usize) -> Setup {
    let mut setup = bounds(64 * KIB, 64 * KIB);
    setup.config.memory = bytes;
    setup
}

/// `count` flows whose hosts take no byte, and whose guests fill their windows.
fn fill_windows(t: &mut Script, count: u16) {
    for flow in t.connections(count, establish) {
        t.select(flow);
        t.hoard();
    }
}

/// Forty windows of 64 KiB do not fit into 720 KiB, and are not advertised: no byte sent into a window is
/// dropped, and each flow has a window.
#[test]
fn windows_are_advertised_as_far_as_memory_reaches() {
    Script::each_with(&budget(720 << 10), |t| {
        fill_windows(t, 40);
        let used = t.driver.stack.memory_used();
        assert!((360 << 10..=720 << 10).contains(&used), "{used}");
        assert_eq!(t.driver.stack.counters().dropped(DropReason::MemoryBudget), 0);
        let least = t.driver.stack.tcp_infos(t.now()).map(|info| info.rx.held).min();
        assert!(least >= Some(1000), "{least:?}");
    });
}

/// A window reserved while its host socket takes everything counts beyond the first 4096th of the budget, so
/// that many large ones that their hosts stop taking at once fit.
#[test]
fn windows_count_before_their_hosts_refuse() {
    let mut setup = Setup::default();
    setup.config.memory = 8 << 20;
    Script::each_with(&setup, |t| {
        let flows = t.connections(200, |t| {
            establish(t);
            // Each has a window of at least 64 KiB if that can be.
            t.guest("ACK data=1000");
            t.host_received_some();
            t.take_all();
        });
        for &flow in &flows {
            t.select(flow);
            t.host_accepts(0);
        }
        for &flow in &flows {
            t.select(flow);
            t.guest_fills_window();
        }
        assert_eq!(t.driver.stack.counters().dropped(DropReason::MemoryBudget), 0);
        assert!(t.driver.stack.memory_used() <= 8 << 20);
    });
}

/// Above 85 % of the budget, what the host sends is read a few segments at a time.
#[test]
fn memory_that_is_short_leaves_every_flow_a_few_segments() {
    Script::each_with(&budget(720 << 10), |t| {
        fill_windows(t, 160);
        assert!(t.driver.stack.memory_used() > 720 * 1024 / 100 * 85, "{}", t.driver.stack.memory_used());
        let late = t.connection(45_000, 80);
        t.select(late);
        establish(t);
        t.host_sends(100_000);
        let waiting = t.host_waiting();
        assert!(waiting >= 100_000 - 4 * t.mss(), "{waiting}");
    });
}

/// A window closed for want of memory opens when other flows have freed theirs, without a segment of the
/// guest.
#[test]
fn a_window_shut_for_want_of_memory_opens_by_itself() {
    Script::each_with(&budget(256 << 10), |t| {
        let flows = t.connections(100, establish);
        for &flow in &flows[1..] {
            t.select(flow);
            t.hoard();
        }
        assert!(t.driver.stack.memory_used() > 256 * 1024 / 100 * 95);
        // Its host takes everything, and yet its window is closed in the end.
        t.select(flows[0]);
        t.guest_fills_window();
        t.host_received_some();
        let index = t.driver.stack.tcp_infos(t.now()).position(|i| i.guest.port() == 41_000);
        let by =
            t.driver.stack.tcp_infos(t.now()).nth(index.expect("open")).expect("open").rx.limiting.current;
        assert_eq!(by, LimitingFactor::Memory);
        t.expect_nothing();
        t.advance_ms(900);
        t.expect_nothing();
        t.select(flows[1]);
        t.host_accepts_all();
        t.host_received_some();
        t.expect("ACK win>=1460");
    });
}

/// Row 12 in small: a thousand guests fill their windows while the hosts read slowly; memory holds, no flow
/// starves.
#[test]
fn a_thousand_slow_readers_share_a_budget_and_none_stalls() {
    const FLOWS: u16 = 1000;
    const EACH: u32 = 30_000;
    let mut t = Script::new(budget(8 << 20));
    t.driver.host.set_record(false);
    let flows = t.connections(FLOWS, |t| {
        t.establish();
        t.host_accepts(0);
    });
    let mut last_progress = 0;
    for round in 0..2000 {
        let mut open = 0;
        for &flow in &flows {
            t.select(flow);
            let (next, edge) = (t.acknowledged(), t.offered_edge());
            let len = edge.saturating_sub(next).min(t.mss() as u32).min((1 + EACH).saturating_sub(next));
            if len > 0 {
                t.guest(&format!("ACK seq={next} data={len}"));
                last_progress = if t.acknowledged() > next { round } else { last_progress };
            }
            t.host_accepts_more(500);
            t.host_received_some();
            open += u32::from(t.acknowledged() <= EACH);
        }
        t.take_all();
        t.advance_ms(1);
        assert!(t.driver.stack.memory_used() <= 8 << 20, "in round {round}");
        assert!(round - last_progress < 100, "no connection has moved since round {last_progress}");
        if open == 0 {
            break;
        }
    }
    for &flow in &flows {
        t.select(flow);
        assert_eq!(t.acknowledged(), 1 + EACH);
        t.host_accepts_all();
        t.host_received_some();
    }
    assert_eq!(t.driver.stack.memory_used(), 0);
}

#[test]
fn what_holds_the_guest_back_is_accounted_for() {
    Script::each(|t| {
        establish(t);
        assert_eq!(rx(t).limiting.current, LimitingFactor::Application);
        (0..9).for_each(|_| _ = round(t));
        t.hoard();
        assert_eq!(rx(t).limiting.current, LimitingFactor::HostSocket);
        t.advance_ms(500);
        let held = |t: &Script, by: LimitingFactor| rx(t).limiting.times[by as usize].as_millis();
        assert!((500..510).contains(&held(t, LimitingFactor::HostSocket)), "{:?}", rx(t).limiting);
        t.host_accepts_all();
        t.host_received_some();
        t.advance_ms(1000);
        // It was at the edge and then had nothing more to send.
        assert_eq!(rx(t).limiting.current, LimitingFactor::Application);
        assert!(held(t, LimitingFactor::Application) >= 900, "{:?}", rx(t).limiting);
        let changes = t.driver.events.all();
        assert!(
            changes
                .filter(|e| matches!(e, Event::LimitingFactor { direction: Direction::Receive, .. }))
                .count()
                >= 2
        );
    });
}
