//! The TX queue budget: the queue holds a number of frames and drops those beyond, so all advertised windows
//! fit into it together, and so do the acknowledgements of data sent.

use brodo_core::stack::TxQueueUsage;
use brodo_core::tcp::limiting_factor::LimitingFactor;
use brodo_sim::script::{Script, Setup};

/// A window of one segment and two like it, in frames.
const RINGS: [u32; 3] = [1, 2, 3];

fn ring(t: &mut Script, frames: u32) {
    t.driver.stack.set_tx_queue_len(Some(frames));
}

/// Bytes that the current connection may send.
fn window(t: &Script) -> u32 {
    t.offered_edge() - t.guest_progress().0
}

/// Frames that it may send: whole segments and, as Linux does, the rest.
fn frames(t: &Script) -> u32 {
    window(t).div_ceil(t.mss() as u32)
}

/// The current connection sends at most `most` frames, as far as its window allows. Gives how many.
fn send(t: &mut Script, most: u32) -> u32 {
    let mut sent = 0;
    while sent < most && window(t) > 0 {
        let line = format!("ACK data={}", window(t).min(t.mss() as u32));
        t.guest(&line);
        t.take_all();
        t.host_received_some();
        sent += 1;
    }
    sent
}

/// Frames in flight that the windows of all connections allow together.
fn on_offer(t: &mut Script, flows: &[usize]) -> u32 {
    flows
        .iter()
        .map(|&flow| {
            t.select(flow);
            frames(t)
        })
        .sum()
}

#[test]
fn a_connection_alone_gets_most_of_the_ring() {
    Script::each(|t| {
        ring(t, 20);
        // Shares cover four fifths of the queue, and a connection leaves a quarter of that to others.
        t.establish();
        assert_eq!(frames(t), 12);
        assert_eq!(t.driver.stack.tx_queue_usage(), Some(TxQueueUsage { bound: 16, allotted: 12 }));
        for _ in 0..10 {
            assert_eq!(send(t, 12), 12);
            assert_eq!(frames(t), 12);
        }
    });
}

#[test]
fn connections_share_the_ring_and_never_more() {
    Script::each(|t| {
        ring(t, 100);
        let flows = t.connections(8, Script::establish);
        for round in 0..60 {
            for (i, &flow) in flows.iter().enumerate() {
                t.select(flow);
                send(t, 1 + (i as u32 + round) % 5);
                let TxQueueUsage { bound, allotted } =
                    t.driver.stack.tx_queue_usage().expect("there is a bound");
                // One more for each connection that came when no frame was free, or whose edge stays and is
                // rounded up.
                assert!(allotted <= bound + 8, "{allotted} of {bound}");
                t.advance_ms(1);
            }
            let offered = on_offer(t, &flows);
            assert!(offered <= 88, "{offered} frames in a ring of 100");
        }
        for &flow in &flows {
            t.select(flow);
            assert!((8..=12).contains(&frames(t)), "{} of 80 for one of eight", frames(t));
        }
    });
}

#[test]
fn every_connection_moves_in_a_ring_without_room() {
    for frames in RINGS {
        Script::each(|t| {
            ring(t, frames);
            let flows = t.connections(5, Script::establish);
            for _ in 0..20 {
                for &flow in &flows {
                    t.select(flow);
                    assert_eq!(send(t, 1), 1, "a ring of {frames}");
                }
            }
            // Two more for each connection than the shares have: a segment and the rest of its rounding.
            assert!(on_offer(t, &flows) <= frames + 10);
        });
    }
}

/// A guest that does not fill its segments leaves less than a segment of its window, and may wait with that
/// for ever.
#[test]
fn a_rest_of_the_window_is_made_a_segment() {
    Script::each(|t| {
        ring(t, 1);
        t.establish();
        for len in [1, 700, 1, 1000, 1300] {
            t.guest(&format!("ACK data={len}"));
            t.take_all();
            t.host_received_some();
            let (window, mss) = (window(t), t.mss() as u32);
            assert!((mss..2 * mss + 128).contains(&window), "{window} after {len} bytes");
        }
    });
}

#[test]
fn what_a_closed_connection_had_is_free() {
    Script::each(|t| {
        ring(t, 100);
        let flows = t.connections(2, Script::establish);
        for _ in 0..20 {
            for &flow in &flows {
                t.select(flow);
                send(t, 20);
            }
        }
        assert!(frames(t) < 40);
        t.select(flows[0]);
        t.guest("RST");
        t.take_all();
        t.select(flows[1]);
        send(t, 40);
        assert!(frames(t) >= 44, "64 KiB, where it has the ring to itself");
    });
}

#[test]
fn idle_connections_leave_the_ring_to_the_busy_one() {
    Script::each(|t| {
        ring(t, 20);
        let flows = t.connections(6, Script::establish);
        let busy = *flows.last().expect("there are six");
        t.select(busy);
        send(t, 2);
        assert!(frames(t) <= 2, "the others were here first");
        for _ in 0..8 {
            t.advance_ms(100);
            send(t, 1);
        }
        assert_eq!(frames(t), 12);
    });
}

#[test]
fn another_queue_length_holds_for_windows_advertised_from_then_on() {
    Script::each(|t| {
        ring(t, 100);
        t.establish();
        let all = frames(t);
        ring(t, 20);
        for _ in 13..all {
            let before = frames(t);
            assert_eq!(send(t, 1), 1);
            assert!(frames(t) >= before - 1, "an advertised window stands");
        }
        send(t, 20);
        assert_eq!(frames(t), 12);
        t.driver.stack.set_tx_queue_len(None);
        send(t, 1);
        assert_eq!(frames(t), all);
        assert_eq!(t.driver.stack.tx_queue_usage(), None);
    });
}

#[test]
fn the_link_is_named_as_what_holds_the_guest_back() {
    Script::each(|t| {
        ring(t, 5);
        t.establish();
        let line = format!("ACK data={}", t.mss());
        t.guest_batch(&[line.as_str(); 3]);
        t.take_all();
        t.host_received_some();
        let info = t.driver.stack.tcp_infos(t.now()).next().expect("there is a connection");
        assert_eq!(info.rx.limiting.current, LimitingFactor::Link);
        assert_eq!(info.rx.limit, 64 << 10, "which is no reason to grow");
    });
}

/// The part outside of all shares, 10 of 20 by then, has room for five acknowledgements and window updates.
#[test]
fn no_more_is_sent_than_the_answers_to_which_have_room() {
    Script::each_with(&Setup::default(), |t| {
        ring(t, 20);
        t.establish();
        t.guest_window(1 << 20);
        t.guest("ACK");
        t.host_sends(40 * t.mss());
        let (mut sent, mut turns) = (0, 0);
        while sent < 40 {
            let frames = t.take_all().len();
            assert!((1..=10).contains(&frames), "{frames} frames before the link was read");
            (sent, turns) = (sent + frames, turns + 1);
            t.poll();
        }
        assert!(turns >= 4);
    });
}
