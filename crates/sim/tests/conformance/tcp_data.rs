//! Payload both ways: acknowledgement, windows, order, storage.

use brodo_core::config::BufferBounds;
use brodo_core::host::Close;
use brodo_core::link::LinkCaps;
use brodo_sim::host::Call;
use brodo_sim::script::{Script, Setup};

/// Receive and send limits fixed at `bytes`.
fn fixed(bytes: u32) -> Setup {
    let mut setup = Setup::default();
    let bounds = BufferBounds { initial: bytes, max: bytes };
    (setup.config.tcp_rx, setup.config.tcp_tx) = (bounds, bounds);
    setup
}

fn data_of(t: &mut Script) -> i64 {
    t.take_all().iter().filter_map(|l| l.value("data")).sum()
}

#[test]
fn up_is_acknowledged_when_the_host_has_it() {
    Script::each(|t| {
        t.establish();
        t.guest("ACK|PSH data=1000");
        t.expect("ACK seq=1 ack=1001");
        t.host_received(1000);
        t.guest("ACK|PSH data=1");
        t.expect("ACK ack=1002");
        t.host_received(1);
        t.expect_nothing();
        assert_eq!(t.driver.stack.memory_used(), 0);
    });
}

#[test]
fn one_acknowledgement_per_batch() {
    Script::each(|t| {
        t.establish();
        t.guest_batch(&["ACK data=1000", "ACK data=1000", "ACK|PSH data=500"]);
        t.expect("ACK ack=2501");
        t.expect_nothing();
        t.host_received(2500);
    });
}

#[test]
fn down_is_kept_until_acknowledged() {
    Script::each(|t| {
        t.establish();
        t.host_sends(500);
        t.expect("ACK|PSH seq=1 ack=1 data=500");
        t.expect_nothing();
        assert!(t.driver.stack.memory_used() > 0);
        t.guest("ACK");
        t.expect_nothing();
        assert_eq!(t.driver.stack.memory_used(), 0);
    });
}

#[test]
fn down_is_cut_at_the_mss() {
    Script::each(|t| {
        t.establish();
        t.host_sends(5000);
        let mss = t.mss();
        for i in 0..3 {
            t.expect(&format!("ACK seq={} data={mss}", 1 + i * mss));
        }
        t.expect(&format!("ACK|PSH seq={} data={}", 1 + 3 * mss, 5000 - 3 * mss));
        t.expect_nothing();
    });
}

#[test]
fn down_is_one_super_segment_if_the_link_cuts() {
    let caps = LinkCaps { checksum: true, tso: true, uso: false, packet_max: None };
    for v6 in [false, true] {
        let mut t = Script::new(Setup { caps, v6, ..Setup::default() });
        t.establish();
        t.host_sends(5000);
        t.expect(&format!("ACK|PSH seq=1 data=5000 gso={}", t.mss()));
        t.expect_nothing();
        t.guest("ACK");
        t.host_sends(100);
        t.expect("ACK|PSH seq=5001 data=100 gso=none");
    }
}

#[test]
fn a_super_segment_from_the_guest_is_taken_whole() {
    for v6 in [false, true] {
        let mut t = Script::new(Setup { v6, ..Setup::default() });
        t.establish();
        t.guest("ACK|PSH data=20000 gso=1440");
        t.expect("ACK ack=20001");
        t.host_received(20_000);
    }
}

/// Segments of one transfer that the driver takes together reach the host socket in one write, regardless of
/// the frames behind them.
#[test]
fn a_batch_of_bulk_is_written_together() {
    Script::each(|t| {
        t.establish();
        let writes = t.host_calls(|call| matches!(call, Call::Send(..)));
        t.guest_batch(&["ACK data=1000", "ACK|PSH data=1000", "ACK data=1000", "FIN|ACK data=10"]);
        t.expect("ACK ack=3012");
        t.host_received(3010);
        assert_eq!(t.host_calls(|call| matches!(call, Call::Send(..))), writes + 2);
    });
}

/// Bytes of a batch refused by the host socket are kept, and the guest's window shrinks by no more than that.
#[test]
fn a_batch_of_bulk_survives_a_partial_write() {
    Script::each(|t| {
        t.establish();
        t.host_accepts(1500);
        t.guest_batch(&["ACK data=1000", "ACK data=1000", "ACK data=1000"]);
        t.expect("ACK ack=3001");
        t.host_accepts_all();
        t.host_received(3000);
    });
}

#[test]
fn down_stays_within_the_guests_window() {
    Script::each(|t| {
        let mss = t.mss() as i64;
        t.establish_with("win=3000 mss=1460 wscale=0");
        t.host_sends(10_000);
        // Two segments fit; the rest of the window is a sliver.
        assert_eq!(data_of(t), 2 * mss);
        assert!(t.host_waiting() >= 10_000 - 3000 - 1500, "unsendable data stays in the kernel");
        t.guest("ACK");
        assert_eq!(data_of(t), 2 * mss);
        t.guest("ACK win=65535");
        assert_eq!(data_of(t), 10_000 - 4 * mss);
    });
}

/// An acknowledgement on a segment with an old sequence number: its window counts all the same.
#[test]
fn the_window_of_a_repeated_segment_that_acknowledges_something_new_counts() {
    Script::each(|t| {
        let mss = t.mss() as i64;
        t.establish_with("win=8000 mss=1460 wscale=0");
        t.guest("ACK data=100");
        t.host_sends(20_000);
        t.take_all();
        t.host_received(100);
        t.guest(&format!("ACK seq=51 data=100 ack={} win={mss}", 1 + 5 * mss));
        assert_eq!(data_of(t), mss);
    });
}

#[test]
fn down_stays_within_the_send_limit() {
    Script::each_with(&fixed(16 << 10), |t| {
        t.establish();
        t.host_sends(100_000);
        let mut received = 0;
        while received < 100_000 {
            let sent = data_of(t);
            assert!((1..=16 << 10).contains(&sent), "{sent} in flight");
            received += sent;
            t.guest("ACK");
        }
        assert_eq!(received, 100_000);
    });
}

#[test]
fn a_partial_write_discards_nothing() {
    Script::each_with(&fixed(64 << 10), |t| {
        t.establish();
        t.host_accepts(600);
        t.guest("ACK data=1000");
        // Stored bytes count against the window; rounding to the scale may add less than one unit.
        t.expect("ACK ack=1001 win<=65264");
        t.host_received(600);
        t.guest("ACK data=1000");
        t.expect("ACK ack=2001 win<=64264");
        t.host_received(0);
        t.host_accepts_more(900);
        t.host_received(900);
        t.host_accepts_more(10_000);
        t.host_received(500);
        t.take_all();
        t.guest("ACK data=10");
        t.expect("ACK ack=2011 win>=65535");
        t.host_received(10);
        assert_eq!(t.driver.stack.memory_used(), 0);
    });
}

#[test]
fn a_host_that_never_reads_closes_the_window_and_nothing_is_lost() {
    Script::each_with(&fixed(32 << 10), |t| {
        t.establish();
        t.host_accepts(0);
        let last = t.guest_fills_window().pop().expect("acknowledgements");
        let sent = t.guest_progress().0 - 1;
        assert!((32 << 10..=36 << 10).contains(&sent), "{sent}");
        assert_eq!((last.value("ack"), last.value("win")), (Some(1 + i64::from(sent)), Some(0)));
        // A probe of one byte is answered and not stored.
        t.guest(&format!("ACK seq={} data=1", 1 + sent));
        t.expect(&format!("ACK ack={} win=0", 1 + sent));
        // So is one without payload, below the window.
        t.advance_ms(100);
        t.guest(&format!("ACK seq={sent}"));
        t.expect(&format!("ACK ack={} win=0", 1 + sent));
        // Room: the guest gets a window update without a probe.
        t.host_accepts_all();
        t.expect(&format!("ACK ack={} win>=16384", 1 + sent));
        t.host_received(sent as usize);
        assert_eq!(t.driver.stack.memory_used(), 0);
    });
}

#[test]
fn a_little_room_is_not_worth_a_window_update() {
    Script::each_with(&fixed(32 << 10), |t| {
        t.establish();
        t.hoard();
        let sent = t.guest_progress().0 - 1;
        t.host_accepts_more(10);
        t.expect_nothing();
        t.host_received(10);
        t.host_accepts_all();
        t.expect("ACK win>=16384");
        t.host_received(sent as usize - 10);
    });
}

#[test]
fn a_lost_window_update_is_found_by_a_probe() {
    Script::each_with(&fixed(32 << 10), |t| {
        t.establish();
        t.hoard();
        let sent = t.guest_progress().0 - 1;
        t.host_accepts_all();
        t.take_all();
        t.advance_ms(1000);
        t.take_all();
        t.guest(&format!("ACK seq={} data=1", 1 + sent));
        t.expect("ACK win>=16384");
        t.host_received(sent as usize + 1);
    });
}

#[test]
fn out_of_order_is_stored_and_every_segment_acknowledged_at_once() {
    Script::each(|t| {
        t.establish();
        t.guest_batch(&["ACK seq=1001 data=1000", "ACK seq=2001 data=1000", "ACK seq=4001 data=1000"]);
        // Three for the first, in case nothing follows it; the newest block first (RFC 2018, section 4).
        for _ in 0..3 {
            t.expect("ACK ack=1 sack=1001-2001");
        }
        t.expect("ACK ack=1 sack=1001-3001");
        t.expect("ACK ack=1 sack=4001-5001,1001-3001");
        t.host_received(0);
        t.guest("ACK seq=1 data=1000");
        t.expect("ACK ack=3001 sack=4001-5001");
        t.host_received(3000);
        t.guest("ACK seq=3001 data=1000");
        t.expect("ACK ack=5001");
        t.host_received(2000);
        assert_eq!(t.driver.stack.memory_used(), 0);
    });
}

#[test]
fn overlaps_of_every_kind_give_the_stream_once() {
    Script::each(|t| {
        t.establish();
        for (seq, len) in [
            (101, 100),
            (301, 100),
            (151, 100), // reaches beyond a range
            (51, 100),  // begins before one
            (101, 100), // the same again
            (41, 400),  // covers several
            (351, 20),  // inside
            (1, 20),    // in order at last
            (11, 500),  // partly old, over everything
        ] {
            t.guest(&format!("ACK seq={seq} data={len}"));
        }
        t.take_all();
        t.host_received(510);
        t.guest("ACK seq=511 data=1");
        t.expect("ACK ack=512");
        t.host_received(1);
        assert_eq!(t.driver.stack.memory_used(), 0);
    });
}

#[test]
fn a_thousand_islands_are_bounded() {
    Script::each(|t| {
        t.establish();
        for i in 0..1000 {
            t.guest(&format!("ACK seq={} data=1", 3 + 2 * i));
        }
        t.take_all();
        assert!(t.driver.stack.memory_used() < 1 << 20, "{} bytes", t.driver.stack.memory_used());
        for i in 0..1000 {
            t.guest(&format!("ACK seq={} data=3", 1 + 2 * i));
        }
        t.host_received(2001);
        assert_eq!(t.driver.stack.memory_used(), 0);
    });
}

#[test]
fn old_data_is_acknowledged_again_and_not_delivered_again() {
    Script::each(|t| {
        t.establish();
        t.guest("ACK data=1000");
        t.expect("ACK ack=1001");
        t.guest("ACK seq=1 data=1000");
        t.expect("ACK ack=1001");
        t.guest("ACK seq=501 data=700");
        t.expect("ACK ack=1201");
        t.host_received(1200);
    });
}

#[test]
fn nothing_at_or_above_the_edge_is_stored_and_everything_below_is() {
    Script::each_with(&fixed(32 << 10), |t| {
        t.establish();
        t.host_accepts(0);
        let edge = t.offered_edge();
        // Straddling the edge: taken up to it.
        t.guest(&format!("ACK seq={} data=200", edge - 100));
        t.guest(&format!("ACK seq={} data=100", edge + 1));
        t.guest(&format!("ACK seq={} data=100", edge + 1_000_000));
        t.take_all();
        let mut next = 1;
        while next < edge - 100 {
            let len = (edge - 100 - next).min(1000);
            t.guest(&format!("ACK seq={next} data={len}"));
            next += len;
        }
        let last = t.take_all().pop().expect("acknowledged");
        assert_eq!(last.value("ack"), Some(i64::from(edge)));
        t.host_accepts_all();
        t.host_received(edge as usize - 1);
    });
}

#[test]
fn a_closed_guest_window_is_probed_with_back_off() {
    Script::each(|t| {
        t.establish();
        t.guest("ACK win=0");
        t.host_sends(1000);
        t.expect_nothing();
        let first = t.expect_within_ms(5_000, "ACK data<=1");
        let second = t.expect_within_ms(10_000, "ACK data<=1");
        let third = t.expect_within_ms(20_000, "ACK data<=1");
        assert!(second > first * 3 / 2 && third > second * 3 / 2, "{first} {second} {third}");
        t.guest("ACK win=0");
        t.take_all();
        t.guest("ACK win=65535");
        let sent = data_of(t);
        assert!((999..=1000).contains(&sent), "{sent}");
        t.guest("ACK");
        assert_eq!(t.received_in_order(), 1000);
        t.advance_ms(100_000);
        t.expect_nothing();
    });
}

#[test]
fn a_keep_alive_probe_is_answered_and_passed_on() {
    Script::each(|t| {
        t.establish();
        t.guest("ACK seq=0");
        t.expect("ACK seq=1 ack=1");
        assert!(t.driver.host.keep_alive(t.socket()));
        // With the byte of garbage that some old systems send.
        t.advance_ms(1000);
        t.guest("ACK seq=0 data=1");
        t.expect("ACK seq=1 ack=1");
        t.host_received(0);
    });
}

#[test]
fn a_keep_alive_with_a_byte_of_garbage_is_passed_on() {
    Script::each(|t| {
        t.establish();
        t.guest("ACK seq=0 data=1");
        t.expect("ACK seq=1 ack=1");
        assert!(t.driver.host.keep_alive(t.socket()));
        t.host_received(0);
    });
}

/// A virtual machine that is paused, or fills its ring no more: what it has not been sent it cannot have
/// left without an answer.
#[test]
fn a_guest_that_can_be_sent_nothing_is_not_given_up() {
    let mut setup = Setup::default();
    setup.config.timeouts.keep_alive_idle = std::time::Duration::from_secs(100);
    Script::each_with(&setup, |t| {
        t.establish();
        t.host_sends(1000);
        t.expect("ACK|PSH data=1000");
        t.link_credit(Some(0));
        t.advance_ms(2 * 3600 * 1000);
        t.expect_nothing();
        t.link_credit(None);
        t.take_all();
        t.guest("ACK ack=1001");
        t.host_sends(100);
        t.expect("ACK|PSH seq=1001 data=100");
    });
}

/// The time of a pause is no round trip of the link's.
#[test]
fn a_pause_of_the_link_is_no_round_trip() {
    Script::each(|t| {
        t.establish();
        t.guest_window(60_000);
        t.guest("ACK");
        t.link_credit(Some(1));
        t.host_sends(20_000);
        t.advance_ms(3_600_000);
        t.link_credit(None);
        t.take_all();
        let received = t.received_in_order();
        t.guest(&format!("ACK ack={}", 1 + received.min(20_000)));
        t.host_sends(100);
        t.take_all();
        // The first retransmission comes after a fraction of a second, as before.
        t.advance_ms(2_000);
        assert!(t.take_all().len() >= 2, "retransmissions");
    });
}

#[test]
fn an_idle_guest_is_probed_and_a_dead_one_given_up() {
    let mut setup = Setup::default();
    setup.config.timeouts.keep_alive_idle = std::time::Duration::from_secs(100);
    Script::each_with(&setup, |t| {
        t.establish();
        let us = t.expect_within_ms(150_000, "ACK seq=0 ack=1");
        assert!((100_000_000..110_000_000).contains(&us), "{us}");
        t.guest("ACK");
        t.expect_within_ms(150_000, "ACK seq=0 ack=1");
        for _ in 0..8 {
            t.expect_within_ms(80_000, "ACK seq=0 ack=1");
        }
        t.expect_within_ms(80_000, "RST|ACK");
        t.expect_all_gone();
    });
}

/// Another kernel does not know the connection: its reset in answer to the probe ends the host's side too.
#[test]
fn a_guest_that_has_booted_anew_ends_its_old_connections_within_seconds() {
    Script::each(|t| {
        t.establish();
        t.advance_ms(60_000);
        t.guest_device_reset();
        t.expect_nothing();
        let us = t.expect_within_ms(10_000, "ACK seq=0 ack=1");
        assert!((4_000_000..7_000_000).contains(&us), "{us}");
        // It has no address yet.
        t.expect_within_ms(80_000, "ACK seq=0 ack=1");
        t.guest("RST seq=1");
        t.host_closed(Some(Close::Reset));
        t.expect_all_gone();
        assert_eq!(t.driver.stack.counters().tcp_doubted, 1);
    });
}

#[test]
fn a_guest_that_has_only_reset_its_device_keeps_its_connections() {
    Script::each(|t| {
        t.establish();
        t.guest_device_reset();
        t.expect_within_ms(10_000, "ACK seq=0 ack=1");
        t.guest("ACK");
        // The next probe comes after two hours.
        t.advance_ms(3_600_000);
        t.expect_nothing();
        t.guest_device_reset();
        // It sleeps: nothing can be sent to it, and silence says nothing.
        t.link_credit(Some(0));
        t.advance_ms(24 * 3_600_000);
        t.expect_nothing();
        t.link_credit(None);
        t.guest("ACK data=100");
        t.host_received(100);
    });
}

#[test]
fn a_guest_that_never_answers_after_a_reset_of_its_device_is_given_up() {
    Script::each(|t| {
        t.establish();
        t.guest_device_reset();
        for _ in 0..9 {
            t.expect_within_ms(80_000, "ACK seq=0 ack=1");
        }
        t.expect_within_ms(80_000, "RST|ACK");
        t.expect_all_gone();
    });
}

/// Twenty guests fill their windows while no host reads: the budget holds, and acknowledged bytes are
/// delivered.
#[test]
fn the_memory_budget_holds_and_loses_nothing_that_was_acknowledged() {
    let mut setup = Setup::default();
    setup.config.memory = 256 << 10;
    Script::each_with(&setup, |t| {
        let flows = t.connections(20, |t| {
            t.establish();
            t.host_accepts(0);
        });
        for round in 0..40 {
            for &f in &flows {
                t.select(f);
                let next = t.acknowledged();
                let room = t.offered_edge() - next;
                let len = room.min(t.mss() as u32);
                if len > 0 {
                    t.guest(&format!("ACK seq={next} data={len}"));
                }
                assert!(t.driver.stack.memory_used() <= 256 << 10, "in round {round}");
            }
            t.take_all();
        }
        for &f in &flows {
            t.select(f);
            t.host_accepts_all();
            t.host_received(t.acknowledged() as usize - 1);
        }
        assert_eq!(t.driver.stack.memory_used(), 0);
        // Every flow resumes.
        for &f in &flows {
            t.select(f);
            t.take_all();
            let next = t.acknowledged();
            t.guest(&format!("ACK seq={next} data=1000"));
            t.expect(&format!("ACK ack={}", next + 1000));
            t.host_received(1000);
        }
    });
}

/// The sequence space of both directions wraps in the middle of a transfer.
#[test]
fn a_wrapping_sequence_space_changes_nothing() {
    for v6 in [false, true] {
        let guest_isn = Some(0xffff_8000);
        let mut t = Script::new(Setup { v6, guest_isn, ..fixed(64 << 10) });
        // The initial sequence number moves with the clock, one every 4 us: wait until it is just below the
        // wrap.
        t.host_connects_at_once();
        t.guest("SYN win=65535 mss=1460 wscale=7");
        let isn = t.stack_isn().expect("accepted");
        t.guest("RST|ACK seq=1");
        t.take_all();
        let wait_us = u64::from(0xffff_8000_u32.wrapping_sub(isn)) * 4;
        t.advance_ms(wait_us / 1000);
        let (guest, remote) = t.endpoints();
        t.connection_to(guest, remote);
        t.establish();
        assert!(t.stack_isn().is_some_and(|isn| isn > 0xffff_0000));
        for i in 0..100 {
            t.guest(&format!("ACK data={}", t.mss()));
            t.expect(&format!("ACK ack={}", 1 + (i + 1) * t.mss()));
            t.host_received(t.mss());
            t.host_sends(1000);
            t.expect(&format!("ACK|PSH seq={} data=1000", 1 + i * 1000));
            t.guest("ACK");
        }
        t.expect_nothing();
    }
}

/// Every frame of a conversation in turn finds the link without credit: no loss, no reordering, and refused
/// frames are sent once there is credit.
#[test]
fn a_link_without_credit_at_any_frame_loses_nothing() {
    for v6 in [false, true] {
        for refused in 0..24 {
            let mut t = Script::new(Setup { v6, ..fixed(64 << 10) });
            t.link_credit(Some(refused));
            t.host_connects_at_once();
            let exchange = |t: &mut Script| {
                t.poll();
                t.driver.link.queued()
            };
            t.guest("SYN win=65535 mss=1460 wscale=7");
            refill(&mut t);
            t.guest("ACK");
            t.guest("ACK data=1000");
            refill(&mut t);
            t.host_received(1000);
            t.host_sends(20_000);
            refill(&mut t);
            assert_eq!(t.received_in_order(), 20_000, "refused at {refused}");
            t.guest("ACK");
            t.guest("FIN|ACK data=500");
            refill(&mut t);
            t.host_received(500);
            t.host_saw_fin(true);
            t.host_sends_last(3000);
            refill(&mut t);
            t.guest("ACK");
            assert_eq!(exchange(&mut t), 0);
            t.expect_all_gone();
            assert_eq!(t.driver.observer.retransmitted(), 0, "refused at {refused}");
        }
    }
}

/// Credit for one further frame at a time, until the stack has nothing more to send; the rest of the credit
/// stays used up.
fn refill(t: &mut Script) {
    for _ in 0..100 {
        t.advance_ms(1);
        if t.driver.link.has_credit() {
            return;
        }
        t.link_credit(Some(1));
    }
    panic!("the stack goes on and on");
}

/// Urgent data: a read of the host socket ends at the mark, with more data behind it.
#[test]
fn urgent_data_from_the_peer_is_relayed_in_line_and_stalls_nothing() {
    Script::each(|t| {
        t.establish();
        t.host_sends_urgent(7, 3);
        t.expect("ACK|PSH seq=1 data=7");
        t.guest("ACK");
        t.host_sends_urgent(5, 0);
        t.expect("ACK|PSH seq=8 data=5");
        t.guest("ACK");
        t.host_sends(20);
        t.expect("ACK|PSH seq=13 data=20");
        t.guest("ACK");
        t.host_sends_last(10);
        t.expect("FIN|ACK|PSH seq=33 data=10");
    });
}

/// A process that was stopped (SIGSTOP, a frozen control group) finds the whole silence past: the guest has
/// as long for its answer to the first probe as ever.
#[test]
fn a_guest_has_time_to_answer_after_a_pause_of_this_process() {
    let mut setup = Setup::default();
    setup.config.timeouts.keep_alive_idle = std::time::Duration::from_secs(100);
    Script::each_with(&setup, |t| {
        t.establish();
        t.stop_for_ms(10_000_000);
        t.poll();
        t.expect("ACK seq=0 ack=1");
        t.advance_ms(1000);
        t.expect_nothing();
        t.guest("ACK");
        t.advance_ms(90_000);
        t.expect_nothing();
    });
}
