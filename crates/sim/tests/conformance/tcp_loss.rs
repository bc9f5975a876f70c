//! Losses toward the guest: retransmission time-out, Karn's rule, fast retransmit.

use brodo_core::link::LinkCaps;
use brodo_sim::packet::TcpSegment;
use brodo_sim::script::{Script, Setup};

#[test]
fn the_time_out_doubles_and_recovers() {
    Script::each(|t| {
        t.establish();
        t.host_sends(100);
        t.expect("ACK seq=1 data=100");
        let times: Vec<_> = (0..5).map(|_| t.expect_within_ms(70_000, "ACK seq=1 data=100")).collect();
        assert!((200_000..1_100_000).contains(&times[0]), "{times:?}");
        for pair in times.windows(2) {
            let ratio = pair[1] as f64 / pair[0] as f64;
            assert!((1.8..2.2).contains(&ratio), "{times:?}");
        }
        t.guest("ACK");
        t.advance_ms(20_000);
        t.expect_nothing();
        // Karn: the repeated segment's round trip of several seconds was not measured.
        t.host_sends(100);
        t.expect("ACK seq=101 data=100");
        let again = t.expect_within_ms(70_000, "ACK seq=101 data=100");
        assert!(again <= times[0] * 11 / 10, "{again} after {times:?}");
    });
}

#[test]
fn a_guest_that_never_answers_is_given_up() {
    Script::each(|t| {
        t.establish();
        t.host_sends(100);
        t.take_all();
        let mut retransmissions = 0;
        for _ in 0..40 {
            t.advance_ms(60_000);
            retransmissions += t.take_all().len();
        }
        assert!((5..=20).contains(&retransmissions), "{retransmissions}");
        t.expect_all_gone();
    });
}

#[test]
fn three_duplicates_are_a_loss_to_a_guest_without_sack() {
    Script::each(|t| {
        t.establish_with("win=65535 mss=1460 wscale=7");
        let mss = t.mss();
        t.host_sends(6 * mss);
        assert_eq!(t.take_all().len(), 6);
        t.guest("ACK ack=1");
        t.guest("ACK ack=1");
        t.expect_nothing();
        t.guest("ACK ack=1");
        t.expect(&format!("ACK seq=1 data={mss}"));
        t.expect_nothing();
        // Further duplicates cause no retransmission.
        t.guest("ACK ack=1");
        t.guest("ACK ack=1");
        t.expect_nothing();
        // A partial acknowledgement shows the next hole (RFC 6582).
        t.guest(&format!("ACK ack={}", 1 + 2 * mss));
        t.expect(&format!("ACK seq={} data={mss}", 1 + 2 * mss));
        t.guest(&format!("ACK ack={}", 1 + 6 * mss));
        t.expect_nothing();
        t.advance_ms(60_000);
        t.expect_nothing();
    });
}

#[test]
fn window_updates_and_data_are_no_duplicates() {
    Script::each(|t| {
        t.establish();
        let mss = t.mss();
        t.host_sends(4 * mss);
        t.take_all();
        for win in [60_000, 50_048, 40_064, 30_080, 65_408] {
            t.guest(&format!("ACK ack=1 win={win}"));
        }
        t.expect_nothing();
        for _ in 0..5 {
            t.guest("ACK ack=1 data=10");
        }
        let repeated: i64 = t.take_all().iter().filter_map(|l| l.value("data")).sum();
        assert_eq!(repeated, 0);
        t.host_received(50);
    });
}

#[test]
fn after_a_time_out_everything_is_sent_again_in_order() {
    Script::each(|t| {
        t.establish();
        let mss = t.mss();
        t.host_sends(5 * mss);
        assert_eq!(t.take_all().len(), 5);
        t.expect_within_ms(100, &format!("ACK seq={} data={mss}", 1 + 4 * mss));
        t.expect_within_ms(5000, &format!("ACK seq=1 data={mss}"));
        let mut next = 1;
        for _ in 0..20 {
            for line in t.take_all() {
                let (seq, len) = (line.value("seq"), line.value("data"));
                next = next.max(seq.unwrap_or(0) + len.unwrap_or(0));
            }
            t.guest("ACK");
        }
        t.guest(&format!("ACK ack={}", 1 + 5 * mss));
        t.advance_ms(60_000);
        t.take_all();
        assert_eq!(t.driver.stack.memory_used(), 0);
        t.host_sends(10);
        t.expect(&format!("ACK seq={} data=10", 1 + 5 * mss));
    });
}

#[test]
fn an_acknowledgement_that_arrives_after_the_time_out_counts() {
    Script::each(|t| {
        t.establish();
        t.host_sends(1000);
        t.expect("ACK seq=1 data=1000");
        t.expect_within_ms(5000, "ACK seq=1 data=1000");
        t.guest("ACK ack=1001");
        t.host_sends(1000);
        t.expect("ACK seq=1001 data=1000");
        t.guest("ACK");
        t.advance_ms(60_000);
        t.expect_nothing();
    });
}

/// An acknowledgement that has waited while the process was stopped (SIGSTOP, a frozen control group) is no
/// sample of the round-trip time.
#[test]
fn a_pause_of_this_process_is_no_round_trip() {
    Script::each(|t| {
        t.establish();
        t.host_sends(1000);
        t.expect("ACK|PSH seq=1 ack=1 data=1000");
        t.stop_for_ms(300_000);
        t.guest("ACK ack=1001");
        t.host_sends(1000);
        t.expect("ACK|PSH seq=1001 ack=1 data=1000");
        t.expect_within_ms(1000, "ACK seq=1001 ack=1 data=1000");
    });
}

/// A link of 65,520 bytes, wider than a tunnel behind it in the guest.
fn wide(caps: LinkCaps) -> Setup {
    let mut setup = Setup { caps, ..Setup::default() };
    setup.config.mtu = 65_520;
    setup
}

/// The next frames carry the bytes of the stream from `at` to `end`, in segments of `mss`.
fn expect_segments(t: &mut Script, mut at: usize, end: usize, mss: usize) {
    while at < end {
        let len = mss.min(end - at);
        t.expect(&format!("ACK seq={at} data={len}"));
        at += len;
    }
    t.expect_nothing();
}

#[test]
fn a_narrow_link_in_the_guest_gets_shorter_segments() {
    for sack in ["", " sackok"] {
        Script::each_with(&wide(LinkCaps::default()), |t| {
            t.establish_with(&format!("win=65535 mss=40000{sack}"));
            t.host_sends(100);
            t.expect("ACK seq=1 data=100");
            t.guest("ACK");
            t.host_sends(20_000);
            let long = t.expect_segment();
            let macs = t.macs_to_guest();
            // About nothing in flight: a report that is late, or forged.
            let forged = [long.seq.wrapping_add(20_000), long.seq.wrapping_sub(101)];
            for seq in forged {
                let quoted = TcpSegment { seq, ..long.clone() };
                t.guest_reports_too_big(&quoted.to_frame(macs), 1500);
                t.expect_nothing();
            }
            let headers = if t.is_v6() { 60 } else { 40 };
            let frame = long.to_frame(macs);
            for mtu in [1500, 1400] {
                t.guest_reports_too_big(&frame, mtu);
                expect_segments(t, 101, 20_101, mtu as usize - headers);
                // Of each segment that was too long there is a report.
                t.guest_reports_too_big(&frame, mtu);
                t.expect_nothing();
            }
            t.guest("ACK");
            t.host_sends(5000);
            expect_segments(t, 20_101, 25_101, 1400 - headers);
            // No host takes less than 576 bytes, and no link of IPv6 less than 1280.
            let last = TcpSegment { seq: long.seq.wrapping_add(20_000), ..long.clone() }.to_frame(macs);
            t.guest_reports_too_big(&last, 100);
            if !t.is_v6() {
                expect_segments(t, 20_101, 25_101, 536);
            }
            t.guest("ACK");
            t.expect_nothing();
            t.advance_ms(10_000);
            t.expect_nothing();
        });
    }
}

#[test]
fn super_segments_for_a_narrow_link_have_its_size() {
    let caps = LinkCaps { checksum: true, tso: true, uso: true, packet_max: None };
    for v6 in [false, true] {
        let mut t = Script::new(Setup { v6, ..wide(caps) });
        t.establish_with("win=65535 mss=40000 sackok");
        t.host_sends(20_000);
        let frame = t.expect_segment().to_frame(t.macs_to_guest());
        t.guest_reports_too_big(&frame, 1500);
        let mss = if v6 { 1440 } else { 1460 };
        t.expect(&format!("ACK seq=1 data=20000 gso={mss}"));
        t.guest("ACK");
        t.host_sends(30_000);
        t.expect(&format!("ACK seq=20001 data=30000 gso={mss}"));
        t.expect_nothing();
    }
}

/// A guest that withdraws its window while bytes are in flight is not given up as long as it answers.
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

/// The time-out has doubled up to a minute by then.
#[test]
fn a_window_that_opens_on_what_is_on_its_way_gets_it_at_once() {
    for sack in ["", " sackok"] {
        Script::each(|t| {
            t.establish_with(&format!("win=65535 mss=1460{sack}"));
            t.host_sends(3 * t.mss());
            // With a probe of the tail, if the guest takes SACK.
            t.advance_ms(100);
            t.take_all();
            t.guest("ACK ack=1 win=0");
            for _ in 0..10 {
                t.expect_within_ms(70_000, &format!("ACK seq=1 data={}", t.mss()));
                t.guest("ACK ack=1 win=0");
            }
            t.guest("ACK ack=1 win=65535");
            t.expect_within_ms(10, &format!("ACK seq=1 data={}", t.mss()));
            t.expect_nothing();
            t.guest(&format!("ACK ack={} win=65535", 1 + 3 * t.mss()));
            t.host_sends(10);
            t.expect(&format!("ACK seq={} data=10", 1 + 3 * t.mss()));
        });
    }
}
