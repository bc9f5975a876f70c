//! Segments of an attacker or a broken guest (RFC 5961, RFC 9293): each draws at most an acknowledgement.

use brodo_core::counters::DropReason;
use brodo_core::host::Close;
use brodo_sim::notation::Line;
use brodo_sim::packet::flags;
use brodo_sim::script::Script;

/// The connection still works both ways.
fn still_alive(t: &mut Script, sent: usize) {
    t.take_all();
    t.guest(&format!("ACK seq={} ack=1 data=100", 1 + sent));
    t.expect(&format!("ACK ack={}", 101 + sent));
    t.host_received(100);
    t.host_sends(50);
    t.expect("ACK seq=1 data=50");
}

#[test]
fn a_reset_outside_the_window_is_ignored() {
    Script::each(|t| {
        t.establish();
        t.guest("RST seq=100000000");
        t.guest("RST seq=0");
        t.guest("RST seq=-1000");
        t.expect_nothing();
        t.host_closed(None);
        still_alive(t, 0);
    });
}

#[test]
fn a_reset_inside_the_window_is_challenged() {
    Script::each(|t| {
        t.establish();
        t.guest("RST seq=2");
        t.expect("ACK seq=1 ack=1");
        t.host_closed(None);
        t.advance_ms(100);
        t.guest("RST seq=10001");
        t.expect("ACK seq=1 ack=1");
        // A guest that meant it answers the challenge.
        t.guest("RST seq=1");
        t.host_closed(Some(Close::Reset));
        t.expect_all_gone();
    });
}

#[test]
fn a_syn_on_an_open_connection_is_challenged() {
    Script::each(|t| {
        t.establish();
        for seq in [0, 1, 500, 1_000_000_000] {
            t.guest(&format!("SYN seq={seq} win=65535"));
            t.expect("ACK seq=1 ack=1");
            t.advance_ms(100);
        }
        t.guest("SYN|ACK seq=1 ack=1");
        t.expect("ACK seq=1 ack=1");
        t.host_closed(None);
        still_alive(t, 0);
    });
}

/// RFC 5961, 3.2: a reset counts at RCV.NXT alone, is challenged up to the edge, and is nothing elsewhere.
#[test]
fn a_reset_counts_at_one_number_only() {
    Script::each(|t| {
        t.establish();
        t.guest("RST seq=2");
        t.expect("ACK ack=1");
        t.advance_ms(20);
        let edge = i64::from(t.offered_edge());
        for (seq, challenged) in [(0, false), (2, true), (edge - 1, true), (edge, true), (edge + 1, false)] {
            t.guest(&format!("RST seq={seq}"));
            assert_eq!(t.take_all().len(), usize::from(challenged), "{seq}");
            t.advance_ms(20);
        }
        t.host_closed(None);
        t.guest("RST seq=1");
        t.host_closed(Some(Close::Reset));
    });
}

/// RFC 5961, 5.2: acknowledgements from the largest window ever offered before SND.UNA up to SND.NXT.
#[test]
fn acknowledgements_have_two_bounds() {
    Script::each(|t| {
        t.establish_with("win=20000 mss=1460");
        t.host_sends(1000);
        t.guest("ACK ack=1001 win=20000");
        t.host_sends(100);
        t.take_all();
        let mut next = 1;
        for (ack, good) in [(1101 - 100, true), (1001 - 20_000, true), (1000 - 20_000, false), (1102, false)]
        {
            t.guest(&format!("ACK seq={next} ack={ack} data=10"));
            next += if good { 10 } else { 0 };
            t.expect(&format!("ACK ack={next}"));
            t.advance_ms(20);
        }
        t.guest(&format!("ACK seq={next} ack=1101"));
        t.host_received(20);
        t.advance_ms(60_000);
        t.expect_nothing();
    });
}

/// One challenge ACK in 10 ms, for every cause together.
#[test]
fn challenges_of_all_kinds_share_a_limit() {
    Script::each(|t| {
        t.establish();
        for i in 0..200 {
            t.guest(["RST seq=5", "SYN seq=5", "ACK ack=9999", "ACK seq=0"][i % 4]);
            t.advance_ms(1);
        }
        let sent = t.take_all().len();
        assert!((15..=20).contains(&sent), "{sent}");
        still_alive(t, 0);
    });
}

#[test]
fn challenges_are_rate_limited() {
    Script::each(|t| {
        t.establish();
        for i in 0..1000 {
            t.guest(&format!("RST seq={}", 2 + i));
        }
        assert!(t.take_all().len() <= 10);
        assert!(t.driver.stack.counters().tcp_challenge_acks <= 10);
        still_alive(t, 0);
    });
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_is_answered_and_not_believed() {
    Script::each(|t| {
        t.establish();
        t.guest("ACK ack=2");
        t.expect("ACK seq=1 ack=1");
        t.advance_ms(100);
        t.guest("ACK ack=1000000 data=100");
        t.expect("ACK seq=1 ack=1");
        t.host_received(0);
        t.host_sends(10);
        t.expect("ACK seq=1 data=10");
    });
}

#[test]
fn an_ancient_acknowledgement_is_not_taken() {
    Script::each(|t| {
        t.establish();
        t.guest("ACK ack=-2000000000 data=100");
        t.take_all();
        t.host_received(0);
        still_alive(t, 0);
    });
}

#[test]
fn a_segment_without_ack_is_dropped() {
    Script::each(|t| {
        t.establish();
        t.guest("PSH seq=1 data=100");
        t.guest("FIN seq=1");
        t.guest("- seq=1 data=5");
        t.expect_nothing();
        t.host_received(0);
        t.host_saw_fin(false);
        still_alive(t, 0);
    });
}

#[test]
fn data_outside_the_window_is_acknowledged_and_dropped() {
    Script::each(|t| {
        t.establish();
        t.guest("ACK seq=2000000 data=100");
        t.expect("ACK seq=1 ack=1");
        t.guest("ACK seq=-500 data=100");
        t.expect("ACK seq=1 ack=1");
        assert_eq!(t.driver.stack.counters().dropped(DropReason::OutOfWindow), 2);
        t.host_received(0);
        still_alive(t, 0);
    });
}

#[test]
fn every_combination_of_flags_is_survived() {
    for bits in 0..=255_u8 {
        let line = Line::of_flags(bits);
        for extra in ["", " data=10", " seq=0", " seq=2000 data=3"] {
            let mut t = Script::v4();
            t.guest(&format!("{line}{extra}"));
            t.take_all();
            t.connection(40_001, 80);
            t.establish();
            t.guest(&format!("{line}{extra}"));
            if bits & flags::RST != 0 {
                let sent = t.take_all();
                assert!(sent.iter().all(|l| l.to_string().starts_with("ACK")), "a reset was answered");
            }
            if t.host_is_open() {
                t.host_sends(100);
            }
            t.advance_ms(10);
        }
    }
}

#[test]
fn a_wrong_checksum_is_dropped() {
    Script::each(|t| {
        t.establish();
        let good = t.frame("ACK seq=1 data=100");
        for at in [good.len() - 1, good.len() - 60, 14 + if t.is_v6() { 40 } else { 20 } + 4] {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            t.guest_raw(&bad);
        }
        t.expect_nothing();
        t.host_received(0);
        assert_eq!(t.driver.stack.counters().dropped(DropReason::TcpChecksum), 3);
        still_alive(t, 0);
    });
}

/// Frames cut anywhere and with any one byte changed: no panic, and no altered byte reaches the host.
#[test]
fn mangled_frames_are_survived() {
    Script::each(|t| {
        t.establish();
        let good = t.frame("ACK seq=1 data=40 tsval=1 tsecr=2");
        for len in 0..good.len() {
            t.guest_raw(&good[..len]);
        }
        for at in 12..good.len() {
            // No checksum covers IPv6's traffic class, flow label and hop limit.
            if t.is_v6() && (at < 18 || at == 21) {
                continue;
            }
            for value in [0, 0xff, good[at] ^ 1, good[at] ^ 0x80] {
                let mut bad = good.clone();
                bad[at] = value;
                if value != good[at] {
                    t.guest_raw(&bad);
                }
            }
        }
        t.host_received(0);
        t.guest_raw(&good);
        t.take_all();
        t.host_received(40);
    });
}

/// A SYN flood fills the table and no more; the newest connection still gets through, and established ones
/// stay.
#[test]
fn a_flood_of_syns_is_bounded() {
    let mut setup = brodo_sim::script::Setup::default();
    setup.config.max_flows = 100;
    Script::each_with(&setup, |t| {
        t.establish();
        let first = 0;
        for i in 0..1000 {
            t.connection(1000 + i, 9);
            t.guest("SYN win=1000");
            t.advance_ms(1);
        }
        assert!(t.driver.stack.flows() <= 100);
        assert!(t.driver.host.open_sockets() <= 100);
        t.take_all();
        t.connection(999, 80);
        t.establish();
        t.select(first);
        still_alive(t, 0);
    });
}
