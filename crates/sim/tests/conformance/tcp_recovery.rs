//! What is done when something sent to the guest does not arrive: selective retransmission (RFC 2018, RFC 6675,
//! RFC 8985), tail loss probes, time-outs (RFC 6298), and guests without SACK (RFC 6582).

use brodo_sim::notation::Line;
use brodo_sim::script::Script;

/// Handshake over a link whose round trip takes `ms`; the guest understands SACK.
fn establish_at(t: &mut Script, ms: u64) {
    establish_at_with(t, ms, "win=65535 mss=1460 wscale=7 sackok");
}

fn establish_at_with(t: &mut Script, ms: u64, fields: &str) {
    t.host_connects_at_once();
    t.guest(&format!("SYN {fields}"));
    t.expect("SYN|ACK seq=0 ack=1");
    t.advance_ms(ms);
    t.guest("ACK");
    t.expect_nothing();
}

/// Where the `n`th segment of the stream to the guest begins, counted from 0.
fn at(t: &Script, n: usize) -> usize {
    1 + n * t.mss()
}

/// The host sends `n` segments, and all of them go out.
fn send(t: &mut Script, n: usize) {
    t.host_sends(n * t.mss());
    assert_eq!(t.take_all().len(), n);
}

/// The guest has everything before segment `ack`, and besides what `sacked` says, the newest first.
fn sack(t: &mut Script, ack: usize, sacked: &[(usize, usize)]) {
    let blocks: Vec<_> = sacked.iter().map(|&(from, to)| format!("{}-{}", at(t, from), at(t, to))).collect();
    let blocks = if blocks.is_empty() { String::new() } else { format!(" sack={}", blocks.join(",")) };
    t.guest(&format!("ACK ack={}{blocks}", at(t, ack)));
}

/// Segments from `from` up to `to` are sent again now, one by one, and nothing else is sent.
fn expect_segments(t: &mut Script, from: usize, to: usize) {
    for n in from..to {
        t.expect(&format!("ACK seq={} data={}", at(t, n), t.mss()));
    }
    t.expect_nothing();
}

/// Payload in what was sent and not expected.
fn payload(lines: &[Line]) -> i64 {
    lines.iter().filter_map(|l| l.value("data")).sum()
}

/// A loss that shows in the acknowledgement that ends a recovery begins the next one.
#[test]
fn one_recovery_after_another() {
    Script::each(|t| {
        establish_at(t, 10);
        send(t, 10);
        t.advance_ms(10);
        sack(t, 0, &[(2, 5)]);
        expect_segments(t, 0, 2);
        send(t, 10);
        t.advance_ms(10);
        sack(t, 10, &[(12, 15)]);
        expect_segments(t, 10, 12);
        assert_eq!(t.machine.stack.counters().tcp_recoveries, 2);
        sack(t, 20, &[]);
        t.advance_ms(60_000);
        t.expect_nothing();
    });
}

/// Acknowledgements may overtake each other: what one says of its own time is no report of a duplicate (RFC 2883, 4.1,
/// compares with the acknowledgement number beside it).
#[test]
fn an_old_acknowledgement_reports_no_duplicate() {
    Script::each(|t| {
        establish_at(t, 10);
        send(t, 6);
        t.advance_ms(10);
        sack(t, 6, &[]);
        sack(t, 0, &[(1, 2)]);
        assert_eq!(t.machine.stack.counters().tcp_duplicates_reported, 0);
        t.expect_nothing();
    });
}

/// Two blocks that are new in one acknowledgement, because one before it was lost, are no reordering.
#[test]
fn a_lost_acknowledgement_is_no_reordering() {
    Script::each(|t| {
        establish_at(t, 100);
        send(t, 10);
        t.advance_ms(100);
        sack(t, 0, &[(5, 8), (1, 2)]);
        // No reordering known, four segments beyond the first: lost at once.
        t.expect(&format!("ACK seq=1 data={}", t.mss()));
        assert_eq!(payload(&t.take_all()), 3 * t.mss() as i64);
        sack(t, 10, &[]);
        send(t, 10);
        t.advance_ms(100);
        sack(t, 10, &[(11, 14)]);
        expect_segments(t, 10, 11);
    });
}

/// The last segment is short, and it is the one that a partial acknowledgement shows to be missing.
#[test]
fn the_short_last_segment_is_a_hole_as_any_other() {
    Script::each(|t| {
        establish_at_with(t, 10, "win=65535 mss=1460 wscale=7");
        let mss = t.mss();
        t.host_sends(5 * mss + 100);
        assert_eq!(t.take_all().len(), 6);
        for _ in 0..3 {
            t.guest("ACK ack=1");
        }
        t.expect(&format!("ACK seq=1 data={mss}"));
        sack(t, 5, &[]);
        t.expect(&format!("ACK seq={} data=100", at(t, 5)));
        t.expect_nothing();
    });
}

/// RFC 6298, 5.4 to 5.6, and RFC 5681, 3.1: after a time-out one segment is sent, and then twice what is acknowledged.
/// What is new waits until everything lost was sent again.
#[test]
fn after_a_time_out_the_first_segment_only() {
    Script::each(|t| {
        establish_at(t, 10);
        send(t, 8);
        let us = t.expect_within_ms(1000, &format!("ACK seq={} data={}", at(t, 7), t.mss()));
        assert!((20_000..=22_000).contains(&us), "a tail loss probe after {us}");
        t.expect_within_ms(1000, &format!("ACK seq=1 data={}", t.mss()));
        t.host_sends(5 * t.mss());
        t.expect_nothing();
        sack(t, 1, &[]);
        expect_segments(t, 1, 3);
        sack(t, 2, &[]);
        expect_segments(t, 3, 5);
        sack(t, 5, &[]);
        for n in 5..8 {
            t.expect(&format!("ACK seq={} data={}", at(t, n), t.mss()));
        }
        assert_eq!(payload(&t.take_all()), 5 * t.mss() as i64);
        sack(t, 13, &[]);
        t.advance_ms(60_000);
        t.expect_nothing();
    });
}

/// Karn's rule holds for a SYN|ACK too that a repeated SYN has drawn.
#[test]
fn a_syn_ack_sent_twice_is_not_measured() {
    Script::each(|t| {
        t.host_connects_at_once();
        t.guest("SYN win=65535 mss=1460 wscale=7 sackok");
        t.expect("SYN|ACK seq=0 ack=1");
        t.advance_ms(900);
        t.guest("SYN seq=0 win=65535 mss=1460 wscale=7 sackok");
        t.expect("SYN|ACK seq=0 ack=1");
        t.guest("ACK");
        t.host_sends(10);
        t.expect("ACK seq=1 data=10");
        // The time-out before the first sample.
        let us = t.expect_within_ms(5000, "ACK seq=1 data=10");
        assert!((1_000_000..=1_002_000).contains(&us), "{us}");
    });
}

/// A link whose round trip never varies: the time-out stays longer than it, and long enough for an acknowledgement
/// that is held back for 40 to 200 ms.
#[test]
fn delayed_acknowledgements_cause_no_time_out() {
    for (rtt, delay) in [(1, 40), (1, 200), (50, 40), (100, 200), (200, 40), (300, 40), (250, 200)] {
        Script::each(|t| {
            establish_at(t, rtt);
            for _ in 0..40 {
                t.host_sends(100);
                t.expect("ACK data=100");
                t.advance_ms(rtt);
                t.guest("ACK");
            }
            for _ in 0..10 {
                t.host_sends(100);
                t.expect("ACK data=100");
                t.advance_ms(rtt + delay);
                t.expect_nothing();
                t.guest("ACK");
            }
            assert_eq!(t.machine.stack.counters().tcp_retransmissions, 0);
        });
    }
}

/// A host that sends a little all the time puts off the probe of the tail, but not for ever.
#[test]
fn a_trickle_does_not_put_off_the_time_out() {
    Script::each(|t| {
        establish_at(t, 10);
        send(t, 3);
        let mut first = None;
        for ms in (0..2000).step_by(10) {
            t.host_sends(10);
            for line in t.take_all() {
                if line.value("seq") == Some(1) && first.is_none() {
                    first = Some(ms);
                }
            }
            t.advance_ms(10);
        }
        assert!(first.is_some_and(|ms| ms <= 500), "the first segment was sent again after {first:?} ms");
    });
}

/// A guest that takes back the window that it has offered, while something is on its way, is not given up as long as
/// it answers.
#[test]
fn a_guest_that_closes_its_window_on_what_is_on_its_way_is_not_given_up() {
    Script::each(|t| {
        t.establish();
        t.host_sends(100);
        t.expect("ACK seq=1 data=100");
        t.guest("ACK ack=1 win=0");
        for _ in 0..30 {
            t.expect_within_ms(70_000, "ACK seq=1 data=100");
            t.guest("ACK ack=1 win=0");
        }
        t.host_closed(None);
        t.guest("ACK ack=101 win=65408");
        t.host_sends(10);
        t.expect("ACK seq=101 data=10");
    });
}

/// RFC 8985, 7.4.2: a repeated acknowledgement without data says that the probe was not needed, also where the guest
/// does not report duplicates. The limit stays.
#[test]
fn a_probe_that_was_not_needed_does_not_halve_the_limit() {
    for report in ["", " sack"] {
        Script::each(|t| {
            establish_at(t, 10);
            send(t, 4);
            t.expect_within_ms(100, &format!("ACK seq={} data={}", at(t, 3), t.mss()));
            sack(t, 4, &[]);
            let report =
                if report.is_empty() { String::new() } else { format!("{report}={}-{}", at(t, 3), at(t, 4)) };
            t.guest(&format!("ACK ack={}{report}", at(t, 4)));
            send(t, 2);
            sack(t, 6, &[]);
            assert_eq!(t.machine.stack.counters().tx_buffer_shrinks, 0);
            assert_eq!(t.machine.stack.counters().tcp_tail_probes, 1);
        });
    }
}
