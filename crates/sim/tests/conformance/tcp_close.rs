//! Ends of connections: FIN either way, TIME-WAIT, resets, failures of the host's side.

use brodo_core::host::{Close, HostError};
use brodo_sim::script::Script;

#[test]
fn the_guest_closes_first() {
    Script::each(|t| {
        t.establish();
        t.guest("FIN|ACK");
        t.expect("ACK seq=1 ack=2");
        t.host_saw_fin(true);
        t.host_closed(None);
        // Half closed: the other direction goes on.
        t.host_sends(300);
        t.expect("ACK|PSH seq=1 ack=2 data=300");
        t.guest("ACK");
        t.host_eof();
        t.expect("FIN|ACK seq=301 ack=2");
        t.guest("ACK");
        t.expect_nothing();
        t.host_closed(Some(Close::Graceful));
        t.expect_all_gone();
    });
}

#[test]
fn the_host_closes_first() {
    Script::each(|t| {
        t.establish();
        t.host_eof();
        t.expect("FIN|ACK seq=1 ack=1");
        t.guest("ACK");
        // Half closed: the guest goes on.
        t.guest("ACK|PSH data=100");
        t.expect("ACK seq=2 ack=101");
        t.host_received(100);
        t.host_saw_fin(false);
        t.guest("FIN|ACK");
        t.expect("ACK seq=2 ack=102");
        t.host_saw_fin(true);
        t.host_closed(Some(Close::Graceful));
        // TIME-WAIT, without a socket.
        assert_eq!(t.driver.stack.flows(), 1);
        t.advance_ms(1900);
        assert_eq!(t.driver.stack.flows(), 1);
        t.advance_ms(300);
        t.expect_all_gone();
        t.expect_nothing();
    });
}

#[test]
fn fin_may_come_with_the_last_bytes() {
    Script::each(|t| {
        t.establish();
        t.guest("FIN|ACK|PSH data=100");
        t.expect("ACK ack=102");
        t.host_received(100);
        t.host_saw_fin(true);
        t.host_sends_last(200);
        t.expect("FIN|ACK|PSH seq=1 ack=102 data=200");
        t.guest("ACK");
        t.expect_all_gone();
    });
}

#[test]
fn a_fin_ahead_of_its_data_waits_for_it() {
    Script::each(|t| {
        t.establish();
        t.guest("FIN|ACK seq=101");
        t.expect("ACK ack=1");
        t.guest("FIN|ACK seq=51 data=50");
        for _ in 0..3 {
            t.expect("ACK ack=1 sack=51-101");
        }
        t.host_saw_fin(false);
        t.guest("ACK seq=1 data=50");
        t.expect("ACK ack=102");
        t.host_received(100);
        t.host_saw_fin(true);
    });
}

#[test]
fn a_fin_that_comes_again_is_acknowledged_again() {
    Script::each(|t| {
        t.establish();
        t.guest("FIN|ACK data=10");
        t.expect("ACK ack=12");
        t.guest("FIN|ACK seq=1 data=10");
        t.expect("ACK ack=12");
        t.guest("FIN|ACK seq=11");
        t.expect("ACK ack=12");
        t.host_received(10);
        t.host_saw_fin(true);
    });
}

#[test]
fn both_close_at_once() {
    Script::each(|t| {
        t.establish();
        t.host_eof();
        t.expect("FIN|ACK seq=1 ack=1");
        t.guest("FIN|ACK seq=1 ack=1");
        t.expect("ACK seq=2 ack=2");
        t.host_saw_fin(true);
        t.host_closed(Some(Close::Graceful));
        t.guest("ACK seq=2 ack=2");
        t.expect_nothing();
        // CLOSING has become TIME-WAIT.
        assert_eq!(t.driver.stack.flows(), 1);
        t.advance_ms(2200);
        t.expect_all_gone();
    });
}

#[test]
fn a_fin_that_acknowledges_ours_leads_to_time_wait() {
    Script::each(|t| {
        t.establish();
        t.host_eof();
        t.expect("FIN|ACK seq=1 ack=1");
        t.guest("FIN|ACK seq=1 ack=2");
        t.expect("ACK seq=2 ack=2");
        t.advance_ms(2200);
        t.expect_all_gone();
        t.expect_nothing();
    });
}

#[test]
fn our_fin_is_repeated_until_acknowledged() {
    Script::each(|t| {
        t.establish();
        t.guest("FIN|ACK");
        t.expect("ACK ack=2");
        t.host_eof();
        t.expect("FIN|ACK seq=1 ack=2");
        let first = t.expect_within_ms(5000, "FIN|ACK seq=1 ack=2");
        let second = t.expect_within_ms(5000, "FIN|ACK seq=1 ack=2");
        assert!(second > first * 3 / 2, "{first} {second}");
        t.guest("ACK");
        t.expect_all_gone();
        t.advance_ms(10_000);
        t.expect_nothing();
    });
}

#[test]
fn our_fin_is_repeated_after_the_data_before_it() {
    Script::each(|t| {
        t.establish();
        t.host_sends_last(200);
        t.expect("FIN|ACK seq=1 data=200");
        let repeated = |t: &mut Script, from: i64| {
            t.advance_ms(1500);
            let lines = t.take_all();
            let first = &lines[0];
            let fin = first.to_string().starts_with("FIN|ACK");
            let all = first.value("seq") == Some(from) && first.value("data") == Some(201 - from);
            assert!(all && fin, "{lines:?}");
        };
        repeated(t, 1);
        t.guest("ACK ack=101");
        t.take_all();
        repeated(t, 101);
        t.guest("ACK ack=202");
        t.advance_ms(10_000);
        t.expect_nothing();
        t.guest("FIN|ACK");
        t.expect("ACK ack=2");
        t.advance_ms(2200);
        t.expect_all_gone();
    });
}

#[test]
fn a_fin_in_time_wait_is_acknowledged_and_begins_the_wait_again() {
    Script::each(|t| {
        t.establish();
        t.host_eof();
        t.expect("FIN|ACK seq=1 ack=1");
        t.guest("FIN|ACK");
        t.expect("ACK ack=2");
        t.advance_ms(1500);
        t.guest("FIN|ACK seq=1");
        t.expect("ACK seq=2 ack=2");
        t.advance_ms(1500);
        assert_eq!(t.driver.stack.flows(), 1, "the wait began again");
        t.advance_ms(700);
        t.expect_all_gone();
    });
}

#[test]
fn a_new_syn_takes_over_from_time_wait() {
    Script::each(|t| {
        t.establish();
        let old_isn = t.stack_isn().expect("established");
        t.host_sends_last(10_000);
        t.take_all();
        t.guest("FIN|ACK");
        t.take_all();
        // A SYN not newer than the old connection: no new one, but an acknowledgement of the old one.
        t.guest("SYN seq=0 win=65535");
        t.expect("ACK seq=10002 ack=2");
        t.reopen(64_000);
        t.host_connects_at_once();
        t.guest("SYN win=65535 mss=1460 wscale=7");
        t.expect("SYN|ACK seq=0 ack=1");
        let ahead = t.stack_isn().expect("accepted").wrapping_sub(old_isn);
        assert!((10_002..1 << 30).contains(&ahead), "sequence numbers are not used again: {ahead}");
        t.guest("ACK data=100");
        t.expect("ACK ack=101");
        t.host_received(100);
        assert_eq!(t.driver.stack.flows(), 1);
    });
}

#[test]
fn a_fin_is_passed_on_only_after_the_bytes_before_it() {
    Script::each(|t| {
        t.establish();
        t.host_accepts(0);
        t.guest("FIN|ACK data=100");
        t.expect("ACK ack=102");
        t.host_received(0);
        t.host_saw_fin(false);
        t.host_accepts_more(60);
        t.host_received(60);
        t.host_saw_fin(false);
        t.host_accepts_all();
        t.host_received(40);
        t.host_saw_fin(true);
    });
}

/// The guest has closed both directions while the host socket still refuses its last bytes: they are not
/// lost.
#[test]
fn the_last_bytes_survive_a_full_host_socket_if_the_guest_closed_first() {
    Script::each(|t| {
        t.establish();
        t.host_accepts(0);
        t.guest("FIN|ACK data=100");
        t.expect("ACK ack=102");
        t.host_eof();
        t.expect("FIN|ACK seq=1 ack=102");
        t.guest("ACK");
        t.advance_ms(60_000);
        t.host_closed(None);
        t.host_accepts_all();
        t.host_received(100);
        t.host_saw_fin(true);
        t.host_closed(Some(Close::Graceful));
        t.expect_all_gone();
        t.expect_nothing();
    });
}

#[test]
fn the_last_bytes_survive_a_full_host_socket_if_the_host_closed_first() {
    Script::each(|t| {
        t.establish();
        t.host_accepts(0);
        t.host_eof();
        t.expect("FIN|ACK seq=1 ack=1");
        t.guest("FIN|ACK data=100");
        t.expect("ACK ack=102");
        t.advance_ms(60_000);
        t.host_closed(None);
        t.host_accepts_all();
        t.host_received(100);
        t.host_saw_fin(true);
        t.host_closed(Some(Close::Graceful));
        t.advance_ms(2200);
        t.expect_all_gone();
        t.expect_nothing();
    });
}

#[test]
fn a_reset_of_the_host_reaches_the_guest() {
    for error in [HostError::Reset, HostError::TimedOut, HostError::HostUnreachable] {
        Script::each(|t| {
            t.establish();
            t.host_breaks(error);
            t.expect("RST|ACK seq=1 ack=1");
            t.expect_nothing();
            t.expect_all_gone();
        });
    }
}

/// Credit that ends in the midst of them keeps none back.
#[test]
fn what_arrived_before_the_hosts_reset_is_delivered_though_credit_ends() {
    Script::each(|t| {
        t.establish();
        t.guest_window(60_000);
        t.guest("ACK");
        t.host_breaks_unnoticed(20_000, false, HostError::Reset);
        t.link_credit(Some(1));
        t.advance_ms(1);
        let first = t.received_in_order();
        assert!(first < 20_000, "{first} with one frame");
        t.advance_ms(1000);
        t.link_credit(None);
        t.advance_ms(1);
        assert_eq!(t.received_in_order(), 20_000);
        let lines: Vec<String> = t.take_all().iter().map(ToString::to_string).collect();
        assert!(lines.last().is_some_and(|line| line.starts_with("RST")), "{lines:?}");
    });
}

/// A guest that only waits has no segment that would meet another reset, so one without credit is not the
/// last: the guest is probed, and reset by its own number, until it has no connection either.
#[test]
fn a_reset_without_credit_reaches_a_guest_that_waits() {
    Script::each(|t| {
        t.establish();
        t.host_sends(200);
        t.expect("ACK|PSH seq=1 ack=1 data=200");
        t.link_credit(Some(0));
        t.host_breaks(HostError::Reset);
        t.host_closed(Some(Close::Reset));
        t.advance_ms(60_000);
        t.expect_nothing();
        t.link_credit(None);
        t.expect("ACK seq=0 ack=1");
        t.guest("ACK ack=201");
        t.expect("RST seq=201");
        // Lost: the guest still has a connection, as it does after a reset that it does not take.
        t.advance_ms(600);
        t.expect("ACK seq=0 ack=1");
        t.guest("RST seq=1");
        t.expect_nothing();
        t.expect_all_gone();
    });
}

/// A long segment whose end is unread goes to the host socket by a way of its own, without a look at what a
/// lost connection has no use for.
#[test]
fn a_guest_that_sends_on_after_a_reset_without_credit_is_reset() {
    Script::each(|t| {
        t.driver.leave_unread(134, true);
        t.establish();
        t.guest("ACK seq=1 data=5000");
        t.host_received(5000);
        t.take_all();
        t.link_credit(Some(0));
        t.host_breaks(HostError::Reset);
        t.link_credit(None);
        t.take_all();
        t.guest("ACK seq=5001 data=5000");
        t.expect("RST seq=1");
        let held = t.driver.stack.tcp_infos(t.now()).map(|info| info.rx.held).sum::<u32>();
        assert_eq!(held, 0, "bytes for a socket that is closed");
        t.guest("RST seq=10001");
        t.expect_nothing();
        t.expect_all_gone();
    });
}

/// Its answer to the probe is the only segment of a guest that waits.
#[test]
fn a_reset_without_credit_that_an_answer_has_drawn_follows() {
    Script::each(|t| {
        t.establish();
        t.host_sends(1000);
        t.expect("ACK|PSH seq=1 ack=1 data=1000");
        t.link_credit(Some(0));
        t.host_breaks(HostError::Reset);
        t.link_credit(Some(1));
        t.advance_ms(10);
        t.expect("ACK seq=0 ack=1");
        t.guest("ACK ack=1001");
        t.expect_nothing();
        t.link_credit(Some(1));
        t.expect("RST|ACK seq=1001 ack=1");
        t.link_credit(None);
        t.advance_ms(600);
        t.expect("ACK seq=1000 ack=1");
        t.guest("RST seq=1");
        t.expect_nothing();
        t.expect_all_gone();
    });
}

#[test]
fn what_arrived_before_the_hosts_reset_is_delivered_before_it() {
    Script::each(|t| {
        t.establish();
        t.driver.host.set_record(true);
        t.host_sends_and_breaks(200, HostError::Reset);
        t.expect("ACK seq=1 data=200");
        t.expect("RST|ACK seq=201 ack=1");
        t.expect_all_gone();
    });
}

#[test]
fn a_failing_write_resets_the_guest() {
    Script::each(|t| {
        t.establish();
        t.driver.host.break_silently(t.socket(), HostError::Reset);
        t.guest("ACK data=100");
        let lines = t.take_all();
        assert!(lines.iter().any(|l| l.to_string().starts_with("RST|ACK")), "no reset");
        t.expect_all_gone();
    });
}

#[test]
fn a_reset_of_the_guest_reaches_the_host() {
    Script::each(|t| {
        t.establish();
        t.guest("RST|ACK");
        t.expect_nothing();
        t.host_closed(Some(Close::Reset));
        t.expect_all_gone();
    });
}

#[test]
fn a_reset_ends_every_state() {
    let states: [&[&str]; 5] = [
        &["FIN|ACK"],                         // CLOSE-WAIT
        &["FIN|ACK", "host_eof"],             // LAST-ACK
        &["host_eof"],                        // FIN-WAIT-1
        &["host_eof", "ACK"],                 // FIN-WAIT-2
        &["host_eof", "FIN|ACK seq=1 ack=1"], // CLOSING
    ];
    for steps in states {
        Script::each(|t| {
            t.establish();
            for &step in steps {
                if step == "host_eof" { t.host_eof() } else { t.guest(step) }
            }
            t.take_all();
            t.guest("RST|ACK");
            t.expect_nothing();
            t.expect_all_gone();
        });
    }
}

/// The guest's program has exited without reading: its kernel resets every segment.
#[test]
fn data_for_a_guest_that_has_gone() {
    Script::each(|t| {
        t.establish();
        t.guest("FIN|ACK");
        t.take_all();
        t.host_sends(1000);
        t.expect("ACK data=1000");
        t.guest("RST seq=2");
        // The guest's bytes and its FIN were acknowledged; the host's kernel resets a peer that still sends.
        t.host_closed(Some(Close::Graceful));
        t.expect_all_gone();
    });
}

/// A guest that has closed answers late segments with a reset, because it has forgotten the connection.
/// Acknowledged bytes must still arrive.
#[test]
fn a_reset_after_the_guests_fin_does_not_lose_what_was_acknowledged() {
    for host_closes in [false, true] {
        Script::each(|t| {
            t.establish();
            t.host_accepts(0);
            if host_closes {
                t.host_eof();
                t.expect("FIN|ACK seq=1 ack=1");
            }
            t.guest("FIN|ACK data=1000");
            t.expect("ACK ack=1002");
            t.guest("RST seq=1002");
            t.advance_ms(60_000);
            t.expect_nothing();
            t.host_closed(None);
            t.host_accepts_more(500);
            t.host_accepts_all();
            t.host_received(1000);
            t.host_saw_fin(true);
            t.host_closed(Some(Close::Graceful));
            t.expect_nothing();
            t.advance_ms(3000);
            t.expect_all_gone();
        });
    }
}

/// A window update after the guest's FIN would only draw a reset from a guest that has forgotten the
/// connection.
#[test]
fn no_window_update_after_the_guests_fin() {
    Script::each(|t| {
        t.establish();
        t.host_accepts(0);
        for _ in 0..20 {
            t.guest(&format!("ACK data={}", t.mss()));
        }
        t.guest("FIN|ACK");
        t.take_all();
        t.host_accepts_all();
        t.expect_nothing();
        t.host_received(20 * t.mss());
        t.host_saw_fin(true);
    });
}

/// Sequential connections, each closed in one of four ways, over the same few ports: none leaves any state.
#[test]
fn ten_thousand_short_connections_leave_nothing() {
    let mut t = Script::v4();
    t.driver.host.set_record(false);
    for i in 0..10_000_u32 {
        if i < 16 {
            t.connection(50_000 + (i % 16) as u16, 80);
        } else {
            t.select(1 + (i % 16) as usize);
            t.reopen(100_000);
            t.replace(1 + (i % 16) as usize);
        }
        t.advance_ms(1);
        t.establish();
        t.guest("ACK|PSH data=100");
        t.host_received(100);
        match i % 4 {
            0 => {
                t.host_sends_last(200);
                t.guest("FIN|ACK");
            }
            1 => {
                t.guest("FIN|ACK");
                t.host_sends_last(200);
                t.guest("ACK");
            }
            2 => t.guest("RST|ACK"),
            _ => t.host_breaks(HostError::Reset),
        }
        t.take_all();
    }
    assert_eq!(t.driver.host.open_sockets(), 0);
    t.advance_ms(3000);
    t.expect_all_gone();
    let counters = t.driver.stack.counters();
    assert_eq!((counters.tcp_opened, counters.tcp_closed), (10_000, 10_000));
}

/// A reset behind the host's FIN, which no read of the host socket meets.
#[test]
fn a_reset_of_the_host_after_its_fin_resets_the_guest() {
    Script::each(|t| {
        t.establish();
        t.host_sends_last(100);
        t.expect("FIN|ACK|PSH seq=1 data=100");
        t.guest("ACK");
        t.host_breaks(HostError::Reset);
        t.expect("RST|ACK seq=102");
        t.host_closed(Some(Close::Reset));
        t.expect_all_gone();
    });
}

#[test]
fn data_fin_and_reset_of_the_host_at_once_reach_the_guest_in_this_order() {
    Script::each(|t| {
        t.establish_with("win=1000 mss=1000");
        t.host_breaks_unnoticed(1500, true, HostError::Reset);
        t.poll();
        t.expect("ACK seq=1 data=1000");
        t.expect_nothing();
        t.guest("ACK ack=1001 win=1000");
        t.expect("ACK|PSH seq=1001 data=500");
        t.guest("ACK");
        t.expect("RST|ACK seq=1501");
        t.expect_all_gone();
    });
}

/// A FIN that comes ahead of the last data counts once these come, also in one batch.
#[test]
fn a_fin_ahead_of_a_batch_of_data_counts() {
    Script::each(|t| {
        t.establish();
        t.guest("FIN|ACK seq=2001");
        t.take_all();
        t.host_saw_fin(false);
        t.guest_batch(&["ACK seq=1 data=1000", "ACK|PSH seq=1001 data=1000"]);
        t.host_received(2000);
        t.host_saw_fin(true);
    });
}

/// A connection that was reset after the end of the host's stream, when the link had no room for our RST,
/// only waits for the guest's answer to a probe.
#[test]
fn a_reset_that_finds_no_room_behind_the_end_of_the_stream_is_waited_for() {
    Script::each(|t| {
        t.establish();
        t.host_sends_last(100);
        t.take_all();
        t.link_credit(Some(0));
        t.host_breaks(HostError::Reset);
        t.advance_ms(50);
        t.link_credit(None);
        t.advance_ms(1000);
        t.guest("RST seq=1");
        t.take_all();
        t.expect_all_gone();
    });
}

/// A server that hangs while its kernel answers window probes would hold a socket for ever.
#[test]
fn a_host_that_takes_nothing_of_a_guest_that_is_done_is_given_up() {
    Script::each(|t| {
        t.establish();
        t.host_accepts(0);
        t.guest("FIN|ACK data=1000");
        t.expect("ACK ack=1002");
        t.guest("RST seq=1002");
        for _ in 0..5 {
            t.advance_ms(9 * 60_000);
            t.host_closed(None);
            t.host_accepts_more(1);
        }
        t.advance_ms(11 * 60_000);
        t.expect_nothing();
        t.host_closed(Some(Close::Reset));
        t.expect_all_gone();
    });
}

/// After a pause of the process its timers come before the events of its sockets.
#[test]
fn a_host_that_takes_all_after_a_long_pause_gets_all() {
    Script::each(|t| {
        t.establish();
        t.host_accepts(0);
        t.guest("FIN|ACK data=1000");
        t.expect("ACK ack=1002");
        t.guest("RST seq=1002");
        t.stop_for_ms(11 * 60_000);
        t.host_accepts_all();
        t.host_received(1000);
        t.host_closed(Some(Close::Graceful));
        t.expect_all_gone();
    });
}
