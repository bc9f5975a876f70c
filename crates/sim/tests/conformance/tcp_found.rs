//! Findings of the fuzz target `stack` (random sequences of operations), each as the shortest script.

use brodo_core::config::{BufferBounds, Config};
use brodo_core::host::HostError;
use brodo_sim::script::{Script, Setup};

/// One connection holds nearly all of 70,000 bytes of memory: the host does not take what the guest sends.
fn hold_the_memory(t: &mut Script) {
    t.establish();
    t.host_accepts(0);
    t.guest("ACK data=4000");
    t.guest("ACK data=8000");
    t.take_all();
}

#[test]
fn an_error_that_a_write_meets_does_not_look_like_an_end() {
    Script::each(|t| {
        t.establish_with("win=3000 mss=1460 sackok");
        t.host_sends(5000);
        t.take_all();
        // The write takes the error, so the read after the rest of the data is an end of stream.
        t.driver.host.break_silently(t.socket(), HostError::Reset);
        t.guest(&format!("ACK ack={} win=30000 data=10", 1 + 2 * t.mss()));
        let seen = t.take_all();
        assert!(seen.iter().all(|line| !line.to_string().contains("FIN")), "{seen:?}");
        assert!(seen.iter().any(|line| line.to_string().contains("RST")), "{seen:?}");
        t.expect_all_gone();
    });
}

#[test]
fn a_broken_connection_waits_for_memory_without_turning_in_circles() {
    let config = Config { mtu: 9000, memory: 70_000, ..Config::default() };
    Script::each_with(&Setup { config, ..Setup::default() }, |t| {
        hold_the_memory(t);
        let first = t.flow_index();
        // The other can neither read what its host has sent nor write.
        t.connection(40_001, 80);
        t.establish();
        t.host_sends(100);
        t.expect_nothing();
        t.driver.host.break_silently(t.socket(), HostError::Reset);
        t.guest("ACK data=10");
        t.advance_ms(100);
        t.take_all();
        // With free memory the guest gets the remaining bytes, and then the reset.
        let second = t.flow_index();
        t.select(first);
        t.host_accepts_all();
        t.select(second);
        t.advance_ms(20);
        let seen: Vec<_> = t.take_all().iter().map(ToString::to_string).collect();
        assert!(seen.iter().any(|line| line.contains("data=100")), "{seen:?}");
        assert!(seen.last().is_some_and(|line| line.contains("RST")), "{seen:?}");
    });
}

#[test]
fn every_time_out_sends_the_first_segment_again() {
    Script::each(|t| {
        t.establish_with("win=65535 mss=1460 wscale=7");
        let mss = t.mss();
        // An acknowledgement that comes after 700 ms: a younger segment is not old enough to be lost.
        t.host_sends(100);
        t.take_all();
        t.expect_within_ms(1000, "ACK seq=1 data=100");
        t.expect_within_ms(1000, "ACK seq=1 data=100");
        t.advance_ms(700);
        t.guest("ACK");
        t.expect_nothing();
        // One segment, and later more than the one that a time-out allows.
        t.guest("ACK win=1536");
        t.host_sends(4 * mss);
        t.expect(&format!("ACK seq=101 data={mss}"));
        t.advance_ms(100);
        t.guest("ACK ack=101 win=65535");
        assert_eq!(t.take_all().len(), 3);
        let after_us = t.expect_within_ms(1000, &format!("ACK seq=101 data={mss}"));
        assert!(after_us < 150_000, "sent again {after_us} us later");
    });
}

#[test]
fn what_a_broken_host_socket_will_not_take_is_given_up() {
    let config = Config { mtu: 9000, memory: 70_000, ..Config::default() };
    Script::each_with(&Setup { config, ..Setup::default() }, |t| {
        hold_the_memory(t);
        // Bytes that wait for the host hold the memory needed to read these.
        t.host_sends_and_breaks(100, HostError::Reset);
        t.advance_ms(20);
        let seen: Vec<_> = t.take_all().iter().map(ToString::to_string).collect();
        assert!(seen.iter().any(|line| line.contains("data=100")), "{seen:?}");
        assert!(seen.last().is_some_and(|line| line.contains("RST")), "{seen:?}");
        t.expect_all_gone();
    });
}

#[test]
fn what_is_read_ahead_during_a_repair_is_bounded_and_the_stack_rests() {
    let tcp_tx = BufferBounds { initial: 400_000, max: 400_000 };
    let config = Config { tcp_tx, ..Config::default() };
    Script::each_with(&Setup { config, ..Setup::default() }, |t| {
        t.establish_with("win=48180 mss=1460 wscale=7 sackok");
        t.host_sends(500_000);
        t.take_all();
        // All segments are lost; after the time-out the guest acknowledges few bytes and offers a large
        // window.
        t.advance_ms(1000);
        t.take_all();
        t.guest("ACK ack=1461 win=1000000");
        // A turn that does not end panics.
        let resent = t.take_all();
        assert!(!resent.is_empty() && resent.len() <= 2, "{resent:?}");
    });
}

/// Memory for two large chunks, less than the guest would take: a read that fills both has not emptied the
/// socket.
#[test]
fn a_read_that_memory_has_cut_short_is_followed_by_another() {
    let tcp_tx = BufferBounds { initial: 400_000, max: 400_000 };
    let tcp_rx = BufferBounds { initial: 2000, max: 2000 };
    let config = Config { tcp_tx, tcp_rx, memory: 150_000, ..Config::default() };
    Script::each_with(&Setup { config, ..Setup::default() }, |t| {
        t.establish_with("win=65535 mss=1460 wscale=7 sackok");
        t.guest("ACK win=1000000");
        t.host_sends(400_000);
        while t.received_in_order() < 400_000 {
            assert!(!t.take_all().is_empty(), "nothing comes after {} bytes", t.received_in_order());
            t.guest(&format!("ACK ack={} win=1000000", t.received_in_order() + 1));
        }
        assert_eq!(t.host_waiting(), 0);
    });
}

/// A segment that is sent again while no memory is left, and nothing to be read: the next bytes of the host
/// come after all memory is free again.
#[test]
fn a_turn_without_memory_and_without_a_read_does_not_stop_reads_for_good() {
    let tcp_tx = BufferBounds { initial: 400_000, max: 400_000 };
    let tcp_rx = BufferBounds { initial: 2000, max: 2000 };
    let config = Config { mtu: 1500, tcp_tx, tcp_rx, memory: 128 << 10, ..Config::default() };
    Script::each_with(&Setup { config, ..Setup::default() }, |t| {
        t.establish_with("win=65535 mss=1460 wscale=7 sackok");
        t.host_sends(30_000);
        t.take_all();
        let first = t.flow_index();
        t.connection(40_001, 80);
        t.establish_with("win=65535 mss=1460 wscale=7 sackok");
        t.host_sends(60_000);
        t.take_all();
        let second = t.flow_index();
        t.select(first);
        let mss = t.mss();
        t.guest(&format!("ACK ack=1 sack={}-30001", mss + 1));
        assert!(!t.take_all().is_empty(), "the first segment is sent again");
        t.guest("ACK ack=30001");
        t.select(second);
        t.guest("ACK ack=60001");
        t.select(first);
        t.host_sends(100);
        t.expect("ACK|PSH seq=30001 data=100");
    });
}

/// The kernel keeps what it has received when a write meets an error, and a program of the host's reads it.
#[test]
fn bytes_behind_the_limit_come_before_the_reset_of_a_failed_write() {
    Script::each(|t| {
        t.establish_with("win=65535 mss=1460 wscale=7 sackok");
        t.guest("ACK win=1000000");
        t.host_sends(500_000);
        t.take_all();
        t.driver.host.break_silently(t.socket(), HostError::Reset);
        t.guest("ACK data=10");
        while t.received_in_order() < 500_000 {
            let lines = t.take_all();
            assert!(!lines.is_empty(), "nothing comes after {} bytes", t.received_in_order());
            assert!(lines.iter().all(|line| !line.to_string().contains("FIN")), "it is no end");
            t.guest(&format!("ACK ack={} win=1000000", t.received_in_order() + 1));
        }
        let seen = t.take_all();
        assert!(seen.iter().any(|line| line.to_string().contains("RST")), "{seen:?}");
        t.expect_all_gone();
    });
}

/// A program that writes all before it reads learns of a reset from the bytes that it has no room for, if
/// these do not come to an end.
#[test]
fn a_guest_that_takes_none_of_the_rest_is_reset() {
    Script::each(|t| {
        t.establish();
        t.guest("ACK win=0");
        t.host_sends(1000);
        t.host_accepts(0);
        t.guest("ACK data=1000 win=0");
        t.take_all();
        t.driver.host.break_silently(t.socket(), HostError::Reset);
        t.host_accepts_more(1);
        let (edge, mut is_reset) = (t.offered_edge(), false);
        for _ in 0..600 {
            assert_eq!(t.driver.stack.memory_reserved(), 0, "for bytes that have no taker");
            t.advance_ms(100);
            let lines: Vec<String> = t.take_all().iter().map(ToString::to_string).collect();
            is_reset = lines.iter().any(|line| line.starts_with("RST"));
            if is_reset {
                break;
            }
            assert_eq!(t.offered_edge(), edge, "{lines:?}");
            if !lines.is_empty() {
                t.guest("ACK seq=1001 win=0");
            }
        }
        assert!(is_reset, "the guest would wait for ever");
        t.expect_all_gone();
    });
}

/// Time-outs of before the failure are none of the rest's.
#[test]
fn a_window_that_opens_soon_after_a_failure_gets_the_rest() {
    Script::each(|t| {
        t.establish();
        t.guest("ACK win=0");
        t.host_sends(1000);
        for _ in 0..600 {
            t.advance_ms(100);
            if !t.take_all().is_empty() {
                t.guest("ACK win=0");
            }
        }
        t.driver.host.break_silently(t.socket(), HostError::Reset);
        t.guest("ACK data=10 win=0");
        t.advance_ms(2000);
        t.guest("ACK seq=11 win=65535");
        assert_eq!(t.received_in_order(), 1000);
    });
}

/// The same with bytes in flight that were sent again and again, to a guest out of reach for a while.
#[test]
fn a_guest_that_is_back_soon_after_a_failure_gets_the_rest() {
    Script::each(|t| {
        // For a successor all time-outs are of the rest.
        t.driver.handovers.switch_off();
        t.establish_with("win=1000 mss=1000");
        t.host_sends(3000);
        t.expect("ACK seq=1 data=1000");
        for _ in 0..7 {
            t.expect_within_ms(60_000, "ACK seq=1 data=1000");
        }
        t.driver.host.break_silently(t.socket(), HostError::Reset);
        t.guest("ACK ack=1 win=1000 data=10");
        // It has lost the next one too.
        t.expect_within_ms(60_000, "ACK seq=1 data=1000");
        t.guest("ACK seq=11 ack=1001 win=65535");
        t.take_all();
        assert_eq!(t.received_in_order(), 3000);
    });
}

/// Slow readers get all that came before the reset.
#[test]
fn a_guest_that_takes_the_rest_slowly_gets_all() {
    Script::each(|t| {
        t.establish();
        t.guest("ACK win=0");
        t.host_sends(5000);
        t.driver.host.break_silently(t.socket(), HostError::Reset);
        t.guest("ACK data=10 win=0");
        for _ in 0..6 {
            for _ in 0..100 {
                t.advance_ms(100);
                if !t.take_all().is_empty() {
                    t.guest(&format!("ACK seq=11 ack={} win=0", 1 + t.received_in_order()));
                }
            }
            t.guest(&format!("ACK seq=11 ack={} win=1000", 1 + t.received_in_order()));
            t.advance_ms(10);
            t.guest(&format!("ACK seq=11 ack={} win=0", 1 + t.received_in_order()));
        }
        assert_eq!(t.received_in_order(), 5000);
    });
}
