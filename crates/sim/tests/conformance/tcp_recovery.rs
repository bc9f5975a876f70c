//! Loss recovery toward the guest: selective retransmission (RFC 2018, RFC 6675,
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

/// The guest acknowledges everything before segment `ack` and sends SACK blocks of `sacked`, the newest
/// first.
fn sack(t: &mut Script, ack: usize, sacked: &[(usize, usize)]) {
    let blocks: Vec<_> = sacked.iter().map(|&(from, to)| format!("{}-{}", at(t, from), at(t, to))).collect();
    let blocks = if blocks.is_empty() { String::new() } else { format!(" sack={}", blocks.join(",")) };
    t.guest(&format!("ACK ack={}{blocks}", at(t, ack)));
}

/// Segments from `from` up to `to` are retransmitted now, one by one, and no others.
fn expect_segments(t: &mut Script, from: usize, to: usize) {
    for n in from..to {
        t.expect(&format!("ACK seq={} data={}", at(t, n), t.mss()));
    }
    t.expect_nothing();
}

/// The next connection's sequence numbers wrap after about 8000 bytes: its first number moves with the clock,
/// one every 4 us.
fn near_wrap(t: &mut Script) {
    t.host_connects_at_once();
    t.guest("SYN win=65535");
    let isn = t.stack_isn().expect("accepted");
    t.guest("RST|ACK seq=1");
    t.take_all();
    t.advance_ms(u64::from((u32::MAX - 8000).wrapping_sub(isn)) * 4 / 1000);
    let (guest, remote) = t.endpoints();
    t.connection_to(guest, remote);
}

/// Runs `body` as [`Script::each`] does, with sequence numbers anywhere and with some that wrap.
fn each_sequence(body: impl Fn(&mut Script)) {
    Script::each(&body);
    Script::each(|t| {
        near_wrap(t);
        body(t);
        assert!(t.stack_isn().is_some_and(|isn| isn > u32::MAX - 10_000));
    });
}

/// Retransmissions so far.
fn resent(t: &Script) -> u64 {
    t.driver.stack.counters().tcp_retransmissions
}

/// The sender's limit now, bytes.
fn limit(t: &Script) -> u32 {
    t.driver.stack.tcp_infos(t.now()).next().expect("a connection").tx.limit
}

/// Payload of frames sent and not yet expected.
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
        assert_eq!(t.driver.stack.counters().tcp_recoveries, 2);
        sack(t, 20, &[]);
        t.advance_ms(60_000);
        t.expect_nothing();
    });
}

/// Acknowledgements may overtake each other: an old one is no D-SACK (RFC 2883, 4.1,
/// compares with the acknowledgement number beside it).
#[test]
fn an_old_acknowledgement_reports_no_duplicate() {
    Script::each(|t| {
        establish_at(t, 10);
        send(t, 6);
        t.advance_ms(10);
        sack(t, 6, &[]);
        sack(t, 0, &[(1, 2)]);
        assert_eq!(t.driver.stack.counters().tcp_duplicates_reported, 0);
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
        // Without known reordering, four segments beyond the first: lost at once.
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

/// RFC 6298, 5.4 to 5.6, and RFC 5681, 3.1: after a time-out one segment is sent, and then twice what is
/// acknowledged. New data waits until all lost segments have been retransmitted.
#[test]
fn after_a_time_out_the_first_segment_only() {
    Script::each(|t| {
        establish_at(t, 10);
        send(t, 8);
        let us = t.expect_within_ms(1000, &format!("ACK seq={} data={}", at(t, 7), t.mss()));
        assert!((60_000..=62_000).contains(&us), "a tail loss probe after {us}");
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

/// A link whose round trip never varies: the time-out stays longer than it, and long enough for an
/// acknowledgement that is held back for 40 to 200 ms.
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
            assert_eq!(t.driver.stack.counters().tcp_retransmissions, 0);
        });
    }
}

/// A host that sends a little all the time delays the tail loss probe, but not for ever.
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

/// RFC 8985, 7.4.2: a repeated acknowledgement without data says that the probe was not needed, also where
/// the guest does not report duplicates. The limit stays.
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
            assert_eq!(t.driver.stack.counters().tx_buffer_shrinks, 0);
            assert_eq!(t.driver.stack.counters().tcp_tail_probes, 1);
        });
    }
}

/// RFC 2018, section 5, RFC 6675, RFC 8985: only missing segments are retransmitted, once, and a round trip
/// after they were sent for the first time: not after a time-out.
#[test]
fn one_lost_segment_costs_a_round_trip() {
    for rtt in [1, 10, 50] {
        each_sequence(|t| {
            establish_at(t, rtt);
            let before = resent(t);
            send(t, 10);
            t.advance_ms(rtt);
            sack(t, 2, &[(3, 10)]);
            expect_segments(t, 2, 3);
            sack(t, 2, &[(3, 10)]);
            t.expect_nothing();
            t.advance_ms(rtt);
            sack(t, 10, &[]);
            t.advance_ms(10_000);
            t.expect_nothing();
            assert_eq!(resent(t) - before, 1);
            // With one segment behind it, a quarter of a round trip and a tick more: it might be reordering.
            send(t, 3);
            t.advance_ms(rtt);
            sack(t, 11, &[(12, 13)]);
            let us = t.expect_within_ms(rtt / 4 + 2, &format!("ACK seq={} data={}", at(t, 11), t.mss()));
            assert!(us <= rtt * 250 + 1000, "{us}");
            t.advance_ms(rtt);
            sack(t, 13, &[]);
            t.advance_ms(10_000);
            t.expect_nothing();
            assert_eq!(resent(t) - before, 2);
        });
    }
}

#[test]
fn every_hole_is_filled_and_nothing_else() {
    each_sequence(|t| {
        establish_at(t, 10);
        let before = resent(t);
        send(t, 12);
        t.advance_ms(10);
        sack(t, 1, &[(8, 12), (4, 6), (2, 3)]);
        for n in [1, 3, 6, 7] {
            t.expect(&format!("ACK seq={} data={}", at(t, n), t.mss()));
        }
        t.expect_nothing();
        t.advance_ms(10);
        // Partial acknowledgements: everything that is missing is on its way.
        sack(t, 3, &[(8, 12), (4, 6)]);
        sack(t, 6, &[(8, 12)]);
        sack(t, 7, &[(8, 12)]);
        sack(t, 12, &[]);
        t.advance_ms(10_000);
        t.expect_nothing();
        assert_eq!(resent(t) - before, 4);
        assert_eq!(t.driver.stack.counters().tcp_recoveries, 1);
    });
}

/// A guest with false acknowledgements and SACK blocks: no byte is sent beyond its window, none is lost, and
/// the transfer goes on.
#[test]
fn blocks_that_cannot_be_are_not_believed() {
    each_sequence(|t| {
        establish_at(t, 10);
        send(t, 4);
        t.advance_ms(10);
        sack(t, 2, &[]);
        let (mss, nxt) = (t.mss(), at(t, 4));
        for blocks in [
            format!("{}-{}", nxt, nxt + mss),
            format!("{}-{}", nxt - mss, nxt + 1),
            format!("{}-{}", nxt + 2_000_000_000, nxt + 1),
            format!("{}-{}", at(t, 3), at(t, 3)),
            format!("{}-{}", at(t, 3) + 10, at(t, 3)),
            format!("1-{}", at(t, 2)),
            format!("1-{}", at(t, 3)),
            format!("{}-2000000000", at(t, 3)),
        ] {
            t.guest(&format!("ACK ack={} sack={blocks}", at(t, 2)));
            t.expect_nothing();
        }
        // Sacked segments must still be retransmitted if they are not acknowledged after all.
        t.guest(&format!("ACK ack={0} sack={0}-{1},{0}-{1},{2}-{1}", at(t, 2), nxt, at(t, 3)));
        t.expect_nothing();
        t.expect_within_ms(1000, &format!("ACK seq={} data={mss}", at(t, 2)));
        sack(t, 4, &[]);
        send(t, 2);
        sack(t, 6, &[]);
        t.advance_ms(60_000);
        t.expect_nothing();
        assert_eq!(t.driver.stack.memory_used(), 0);
    });
}

/// RFC 2018, section 8: a guest may drop what it has only sacked. After time-outs everything is
/// retransmitted.
#[test]
fn a_guest_that_has_forgotten_what_it_had_gets_it_again() {
    each_sequence(|t| {
        establish_at(t, 10);
        send(t, 5);
        t.advance_ms(10);
        sack(t, 0, &[(1, 5)]);
        expect_segments(t, 0, 1);
        t.advance_ms(10);
        sack(t, 1, &[]);
        t.expect_nothing();
        t.expect_within_ms(2000, &format!("ACK seq={} data={}", at(t, 1), t.mss()));
        sack(t, 2, &[]);
        expect_segments(t, 2, 4);
        sack(t, 4, &[]);
        expect_segments(t, 4, 5);
        sack(t, 5, &[]);
        t.advance_ms(60_000);
        t.expect_nothing();
    });
}

/// RFC 8985, 3.3 and 6.2, step 5: a lost retransmission is detected by segments sent after it.
#[test]
fn a_retransmission_that_is_lost_is_sent_again() {
    each_sequence(|t| {
        establish_at(t, 10);
        send(t, 10);
        t.advance_ms(10);
        sack(t, 0, &[(1, 4)]);
        expect_segments(t, 0, 1);
        t.advance_ms(2);
        send(t, 4);
        t.advance_ms(3);
        // Sent before the retransmission, so they are no evidence of its loss.
        sack(t, 0, &[(1, 10)]);
        t.expect_nothing();
        t.advance_ms(7);
        sack(t, 0, &[(1, 11)]);
        expect_segments(t, 0, 1);
        // Without later segments the time-out repairs it.
        sack(t, 0, &[(1, 14)]);
        t.expect_nothing();
        let us = t.expect_within_ms(1000, &format!("ACK seq=1 data={}", t.mss()));
        assert!(us >= 200_000, "{us}");
        sack(t, 14, &[]);
        t.advance_ms(60_000);
        t.expect_nothing();
    });
}

/// RFC 8985, 6.2, step 4: once reordering was seen, what follows must be a quarter of a round trip ahead to
/// show a loss, and a quarter more after each round trip in which the guest reports a duplicate.
#[test]
fn reordering_is_no_loss() {
    each_sequence(|t| {
        establish_at(t, 100);
        let before = resent(t);
        send(t, 6);
        t.advance_ms(100);
        sack(t, 0, &[(1, 2)]);
        t.advance_ms(5);
        sack(t, 2, &[]);
        sack(t, 6, &[]);
        send(t, 6);
        t.advance_ms(100);
        sack(t, 6, &[(7, 12)]);
        t.advance_ms(20);
        t.expect_nothing();
        sack(t, 12, &[]);
        t.advance_ms(1000);
        t.expect_nothing();
        assert_eq!(resent(t), before);
        // Later than that: a spurious retransmission, reported by the guest with D-SACK.
        send(t, 6);
        t.advance_ms(100);
        sack(t, 12, &[(13, 18)]);
        let us = t.expect_within_ms(200, &format!("ACK seq={} data={}", at(t, 12), t.mss()));
        assert!((20_000..=27_000).contains(&us), "{us}");
        sack(t, 18, &[]);
        t.guest(&format!("ACK ack={} sack={}-{}", at(t, 18), at(t, 12), at(t, 13)));
        assert_eq!(t.driver.stack.counters().tcp_duplicates_reported, 1);
        send(t, 6);
        t.advance_ms(100);
        sack(t, 18, &[(19, 24)]);
        let us = t.expect_within_ms(200, &format!("ACK seq={} data={}", at(t, 18), t.mss()));
        assert!((45_000..=52_000).contains(&us), "{us}");
    });
}

/// RFC 8985, 7.2 and 7.3: a probe with the last segment after two round trips, and no second one before the
/// time-out.
#[test]
fn a_lost_tail_is_probed_once() {
    for (rtt, wait) in [(1, 60), (10, 60), (50, 100)] {
        each_sequence(|t| {
            establish_at(t, rtt);
            send(t, 4);
            let us = t.expect_within_ms(1000, &format!("ACK seq={} data={}", at(t, 3), t.mss()));
            assert!((wait * 1000..=wait * 1000 + 1000).contains(&us), "{us}");
            let us = t.expect_within_ms(1000, &format!("ACK seq=1 data={}", t.mss()));
            assert!(us >= 220_000, "{us}");
            assert_eq!(t.driver.stack.counters().tcp_tail_probes, 1);
        });
        each_sequence(|t| {
            // Two of four are lost: the probe's answer shows the other.
            establish_at(t, rtt);
            send(t, 4);
            t.advance_ms(rtt);
            sack(t, 2, &[]);
            t.expect_within_ms(wait + 1, &format!("ACK seq={} data={}", at(t, 3), t.mss()));
            t.advance_ms(rtt);
            sack(t, 2, &[(3, 4)]);
            expect_segments(t, 2, 3);
            sack(t, 4, &[]);
            t.advance_ms(60_000);
            t.expect_nothing();
            assert_eq!(t.driver.stack.counters().tcp_timeouts, 0);
        });
    }
}

/// RFC 8985, 7.2: one segment a guest may acknowledge late, and without SACK the answer would be no evidence.
#[test]
fn what_is_not_probed_waits_for_the_time_out() {
    for (fields, segments) in [("win=65535 mss=1460 wscale=7 sackok", 1), ("win=65535 mss=1460 wscale=7", 4)]
    {
        each_sequence(|t| {
            establish_at_with(t, 10, fields);
            send(t, segments);
            let us = t.expect_within_ms(1000, &format!("ACK seq=1 data={}", t.mss()));
            assert!((220_000..=260_000).contains(&us), "{us}");
            assert_eq!(t.driver.stack.counters().tcp_tail_probes, 0);
            sack(t, segments, &[]);
            t.advance_ms(60_000);
            t.expect_nothing();
        });
    }
}

/// RFC 8985, 7.4.2: a probe that was needed is a loss, for the limit too; an unneeded one is none.
#[test]
fn a_probe_that_repaired_a_loss_halves_the_limit() {
    for needed in [true, false] {
        Script::each(|t| {
            grow(t);
            let base = 400_000 / t.mss() + 1;
            let rest = base * t.mss() - 400_000;
            t.host_sends(rest);
            t.guest("ACK");
            t.take_all();
            t.advance_ms(1);
            let before = limit(t);
            send(t, 4);
            t.expect_within_ms(100, &format!("ACK seq={} data={}", at(t, base + 3), t.mss()));
            sack(t, base + 4, &[]);
            if !needed {
                t.guest(&format!("ACK sack={}-{}", at(t, base + 3), at(t, base + 4)));
            }
            send(t, 1);
            sack(t, base + 5, &[]);
            let after = limit(t);
            assert_eq!(after < before * 3 / 4, needed, "{before} then {after}");
        });
    }
}

/// Has the limit of a flow grow well above its floor: 400,000 bytes, all acknowledged.
fn grow(t: &mut Script) {
    establish_at(t, 10);
    t.host_sends(400_000);
    t.guest("ACK win=4000000");
    while limit(t) < 200_000 {
        t.advance_ms(10);
        t.guest("ACK");
    }
    while t.host_waiting() > 0 || t.received_in_order() < 400_000 {
        t.advance_ms(10);
        t.guest("ACK");
    }
    t.take_all();
}

/// A flow whose limit has grown well above its floor, with `n` segments in flight: the limit, and where they
/// begin.
fn grown(t: &mut Script, n: usize) -> (u32, usize) {
    grow(t);
    t.advance_ms(10);
    t.guest("ACK");
    send(t, n);
    (limit(t), 400_001)
}

/// The guest's kernel stood still for longer than a time-out, and then reports all retransmissions as
/// duplicates: nothing was lost, and the limit is as before.
#[test]
fn a_needless_recovery_is_undone() {
    Script::each(|t| {
        let (before, una) = grown(t, 10);
        t.advance_ms(400);
        let again: Vec<_> = t.take_all();
        let counters = t.driver.stack.counters();
        assert!(counters.tcp_timeouts == 1 && counters.tcp_recoveries == 1, "{again:?}");
        assert!(limit(t) <= before / 2 + 1, "{} of {before}", limit(t));
        // The first transmissions are acknowledged, then the probe of the tail and the first segment, twice
        // there.
        let (mss, end) = (t.mss(), una + 10 * t.mss());
        t.guest(&format!("ACK ack={end}"));
        t.guest(&format!("ACK ack={end} sack={}-{end}", end - mss));
        t.guest(&format!("ACK ack={end} sack={una}-{}", una + mss));
        assert_eq!(limit(t), before);
    });
}

/// One of the retransmissions was needed: the limit stays low.
#[test]
fn a_recovery_that_repaired_something_is_not_undone() {
    Script::each(|t| {
        let ((before, una), mss) = (grown(t, 10), t.mss());
        let hole = |n: usize| una + n * mss;
        t.guest(&format!("ACK ack={} sack={}-{}", hole(1), hole(3), hole(9)));
        assert_eq!(payload(&t.take_all()), 2 * mss as i64);
        assert!(limit(t) < before);
        t.advance_ms(10);
        // Only the second of the two came twice.
        t.guest(&format!("ACK ack={} sack={}-{}", hole(9), hole(2), hole(3)));
        t.guest(&format!("ACK ack={}", hole(10)));
        assert!(limit(t) < before);
    });
}

/// RFC 6298, 5.5 and 5.7: the time-out doubles, and any new acknowledgement ends that.
#[test]
fn backing_off_ends_with_any_acknowledgement() {
    each_sequence(|t| {
        establish_at_with(t, 10, "win=65535 mss=1460 wscale=7");
        send(t, 2);
        let first = format!("ACK seq=1 data={}", t.mss());
        let times: Vec<_> = (0..4).map(|_| t.expect_within_ms(10_000, &first)).collect();
        assert!(times.windows(2).all(|pair| pair[1].abs_diff(2 * pair[0]) <= 2000), "{times:?}");
        sack(t, 1, &[]);
        expect_segments(t, 1, 2);
        let again = t.expect_within_ms(10_000, &format!("ACK seq={} data={}", at(t, 1), t.mss()));
        assert!(again.abs_diff(times[0]) <= 1000, "{again} after {times:?}");
        sack(t, 2, &[]);
        t.advance_ms(60_000);
        t.expect_nothing();
    });
}

/// RFC 6582: one hole in each round trip, and the duplicates that retransmissions draw begin nothing new.
#[test]
fn a_guest_without_sack_gets_hole_after_hole() {
    each_sequence(|t| {
        establish_at_with(t, 10, "win=65535 mss=1460 wscale=7");
        let before = resent(t);
        send(t, 10);
        for _ in 0..3 {
            sack(t, 1, &[]);
        }
        // The first of these is new, so it is no duplicate.
        t.expect_nothing();
        sack(t, 1, &[]);
        expect_segments(t, 1, 2);
        for hole in [4, 5, 8] {
            sack(t, hole, &[]);
            expect_segments(t, hole, hole + 1);
            sack(t, hole, &[]);
            sack(t, hole, &[]);
            sack(t, hole, &[]);
            t.expect_nothing();
        }
        sack(t, 10, &[]);
        assert_eq!(resent(t) - before, 4);
        send(t, 4);
        sack(t, 14, &[]);
        t.advance_ms(60_000);
        t.expect_nothing();
    });
}

/// The last segment of what was in flight is short, and new data follows it. A partial acknowledgement marks
/// no more than what was in flight when the loss showed, also when the link has room for a part of it alone.
#[test]
fn a_hole_before_new_data_ends_where_the_recovery_does() {
    each_sequence(|t| {
        establish_at_with(t, 10, "win=65535 mss=1460 wscale=7");
        let (mss, short) = (t.mss(), 500);
        t.host_sends(10 * mss + short);
        assert_eq!(t.take_all().len(), 11);
        for _ in 0..3 {
            sack(t, 0, &[]);
        }
        expect_segments(t, 0, 1);
        t.host_sends(2 * mss);
        assert_eq!(t.take_all().len(), 2);
        t.link_credit(Some(1));
        sack(t, 10, &[]);
        t.expect(&format!("ACK seq={} data={short}", at(t, 10)));
        let until = at(t, 10) + short;
        t.guest(&format!("ACK ack={until}"));
        t.link_credit(None);
        t.poll();
        t.expect_nothing();
        t.guest(&format!("ACK ack={}", until + 2 * mss));
        t.advance_ms(60_000);
        t.expect_nothing();
    });
}

/// The FIN is lost with the data before it, or alone.
#[test]
fn a_lost_fin_is_sent_again() {
    each_sequence(|t| {
        establish_at(t, 10);
        let mss = t.mss();
        t.host_sends_last(4 * mss);
        assert_eq!(t.take_all().len(), 4);
        t.expect_within_ms(100, &format!("FIN|ACK seq={} data={}", at(t, 3) + 1, mss - 1));
        t.advance_ms(10);
        t.guest(&format!("ACK ack={} sack={}-{}", at(t, 2), at(t, 3) + 1, at(t, 4) + 1));
        // The first byte of the last segment was not in the probe.
        t.expect(&format!("ACK seq={} data={mss}", at(t, 2)));
        t.expect(&format!("ACK seq={} data=1", at(t, 3)));
        t.guest(&format!("ACK ack={}", at(t, 4) + 1));
        t.guest("FIN|ACK");
        t.expect("ACK ack=2");
        t.advance_ms(3000);
        t.expect_all_gone();
    });
    each_sequence(|t| {
        establish_at(t, 10);
        send(t, 4);
        t.host_eof();
        t.expect(&format!("FIN|ACK seq={}", at(t, 4)));
        t.advance_ms(10);
        sack(t, 4, &[]);
        t.expect_within_ms(1000, &format!("FIN|ACK seq={}", at(t, 4)));
        t.guest(&format!("FIN|ACK ack={}", at(t, 4) + 1));
        t.expect("ACK ack=2");
        t.advance_ms(3000);
        t.expect_all_gone();
    });
}

/// A window that closes during a recovery: only the first segment, which also probes the window, is sent into
/// it; the rest follows when it opens.
#[test]
fn a_window_that_closes_during_a_recovery() {
    each_sequence(|t| {
        establish_at(t, 10);
        send(t, 10);
        t.advance_ms(10);
        t.guest(&format!("ACK ack=1 win=0 sack={}-{},{}-{}", at(t, 5), at(t, 10), at(t, 1), at(t, 4)));
        expect_segments(t, 0, 1);
        t.host_sends(100);
        t.expect_nothing();
        t.expect_within_ms(1000, &format!("ACK seq=1 data={}", t.mss()));
        t.guest(&format!("ACK ack={} win=65408 sack={}-{}", at(t, 4), at(t, 5), at(t, 10)));
        t.expect(&format!("ACK seq={} data={}", at(t, 4), t.mss()));
        t.expect(&format!("ACK seq={} data=100", at(t, 10)));
        t.guest("ACK");
        t.advance_ms(60_000);
        t.expect_nothing();
        // The window closes on an acknowledgement of everything: then it is probed.
        t.guest("ACK win=0");
        t.host_sends(100);
        t.expect_within_ms(1000, &format!("ACK seq={}", at(t, 10) + 99));
        t.guest("ACK win=65408");
        t.expect(&format!("ACK seq={} data=100", at(t, 10) + 100));
        t.guest("ACK");
        t.advance_ms(60_000);
        t.expect_nothing();
    });
}

/// Acknowledgements without new information delay neither the reordering timer nor the time-out.
#[test]
fn repeated_acknowledgements_put_nothing_off() {
    each_sequence(|t| {
        establish_at(t, 100);
        send(t, 4);
        t.advance_ms(100);
        for ms in 0..40 {
            sack(t, 0, &[(1, 2)]);
            if let [line] = &t.take_all()[..] {
                assert_eq!(line.value("seq"), Some(1));
                assert!((24..=27).contains(&ms), "after {ms} ms");
                return;
            }
            t.advance_ms(1);
        }
        panic!("the first segment was never sent again");
    });
    each_sequence(|t| {
        establish_at(t, 10);
        send(t, 1);
        for ms in 0..300 {
            sack(t, 0, &[]);
            if !t.take_all().is_empty() {
                assert!((220..=245).contains(&ms), "after {ms} ms");
                return;
            }
            t.advance_ms(1);
        }
        panic!("the segment was never sent again");
    });
}

/// A guest whose SACK blocks are single bytes makes the sender keep many ranges: the transfer still ends, and
/// retransmissions are bounded by the bytes in flight.
#[test]
fn a_guest_that_sacks_single_bytes_gets_everything() {
    each_sequence(|t| {
        establish_at(t, 10);
        let n = 20;
        send(t, n);
        t.advance_ms(10);
        let end = at(t, n);
        let mut sent = 0;
        for first in (10..end - 40).step_by(40) {
            let blocks: Vec<_> = (0..4).map(|i| first + i * 10).map(|b| format!("{b}-{}", b + 1)).collect();
            t.guest(&format!("ACK ack=1 sack={}", blocks.join(",")));
            sent += payload(&t.take_all());
        }
        assert!(sent <= 2 * end as i64, "{sent}");
        sack(t, n, &[]);
        t.advance_ms(60_000);
        t.expect_nothing();
        send(t, 2);
        sack(t, n + 2, &[]);
        assert_eq!(t.driver.stack.memory_used(), 0);
    });
}
