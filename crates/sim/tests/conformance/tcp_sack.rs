//! SACK and D-SACK to the guest: out-of-order segments (RFC 2018) and duplicates (RFC 2883).

use brodo_sim::script::{Script, Setup};

/// Runs `body` as [`Script::each`] does, with sequence numbers anywhere and with some that wrap after 3000
/// bytes.
fn each_sequence(body: impl Fn(&mut Script)) {
    for guest_isn in [None, Some(u32::MAX - 3000)] {
        Script::each_with(&Setup { guest_isn, ..Setup::default() }, &body);
    }
}

/// RFC 2018, section 4: the block of the newest segment first, as many of the others as there is room for,
/// the most recently reported first; in-order data is not reported.
#[test]
fn blocks_are_newest_first_and_at_most_four() {
    each_sequence(|t| {
        t.establish();
        t.guest("ACK seq=2001 data=100");
        for _ in 0..3 {
            t.expect("ACK ack=1 sack=2001-2101");
        }
        t.guest("ACK seq=6001 data=100");
        t.expect("ACK ack=1 sack=6001-6101,2001-2101");
        t.guest("ACK seq=4001 data=100");
        t.expect("ACK ack=1 sack=4001-4101,6001-6101,2001-2101");
        t.guest("ACK seq=8001 data=100");
        t.expect("ACK ack=1 sack=8001-8101,4001-4101,6001-6101,2001-2101");
        t.guest("ACK seq=10001 data=100");
        t.expect("ACK ack=1 sack=10001-10101,8001-8101,4001-4101,6001-6101");
        // A block that grows, at either end, is the newest again.
        t.guest("ACK seq=2101 data=100");
        t.expect("ACK ack=1 sack=2001-2201,10001-10101,8001-8101,4001-4101");
        t.guest("ACK seq=3901 data=100");
        t.expect("ACK ack=1 sack=3901-4101,2001-2201,10001-10101,8001-8101");
        // Two become one.
        t.guest("ACK seq=8101 data=1900");
        t.expect("ACK ack=1 sack=8001-10101,3901-4101,2001-2201,6001-6101");
        // Blocks of filled gaps disappear.
        t.guest("ACK seq=1 data=2000");
        t.expect("ACK ack=2201 sack=8001-10101,3901-4101,6001-6101");
        t.guest("ACK seq=2201 data=1700");
        t.guest("ACK seq=4101 data=1900");
        t.expect("ACK ack=4101 sack=8001-10101,6001-6101");
        t.expect("ACK ack=6101 sack=8001-10101");
        t.guest("ACK seq=6101 data=1900");
        t.expect("ACK ack=10101 sack=none");
        t.host_received(10_100);
        t.guest("ACK seq=10101 data=100");
        t.expect("ACK ack=10201 sack=none");
    });
}

/// One more gap is one more loss for a guest that counts duplicates: three duplicates again.
#[test]
fn every_first_gap_is_reported_three_times() {
    each_sequence(|t| {
        t.establish();
        for i in 0..3 {
            let gap = 1 + i * 2000;
            t.guest(&format!("ACK seq={} data=1000", gap + 1000));
            for _ in 0..3 {
                t.expect(&format!("ACK ack={gap} sack={}-{}", gap + 1000, gap + 2000));
            }
            t.expect_nothing();
            t.guest(&format!("ACK seq={gap} data=1000"));
            t.expect(&format!("ACK ack={} sack=none", gap + 2000));
        }
        t.host_received(6000);
    });
}

/// A segment with data has no room for blocks; one without follows it.
#[test]
fn data_does_not_take_the_place_of_blocks() {
    each_sequence(|t| {
        t.establish();
        t.guest("ACK seq=2001 data=100");
        t.guest("ACK seq=4001 data=100 win=128");
        assert_eq!(t.take_all().len(), 4);
        t.host_sends(228);
        t.expect("ACK seq=1 data=128");
        // The same segment fills a hole, and lets the host's bytes go on.
        t.guest("ACK seq=1 ack=129 win=65408 data=2000");
        t.expect("ACK|PSH seq=129 ack=2101 sack=none data=100");
        t.expect("ACK seq=229 ack=2101 sack=4001-4101");
        t.expect_nothing();
        // Without blocks to report, data is acknowledgement enough.
        t.guest("ACK seq=2101 data=1900");
        t.expect("ACK ack=4101 sack=none");
        t.guest("ACK seq=4101 win=0");
        t.host_sends(100);
        t.guest("ACK seq=4101 data=10 win=65408");
        t.expect("ACK|PSH ack=4111 data=100");
        t.expect_nothing();
    });
}

/// A FIN has no room for blocks either.
#[test]
fn a_fin_does_not_take_the_place_of_blocks() {
    Script::each(|t| {
        t.establish();
        t.guest("ACK seq=2001 data=100");
        t.guest("ACK seq=4001 data=100");
        t.take_all();
        t.driver.host.peer_fin(t.socket());
        t.guest("ACK seq=1 data=2000");
        t.expect("FIN|ACK seq=1 ack=2101 sack=none");
        t.expect("ACK seq=2 ack=2101 sack=4001-4101");
        t.expect_nothing();
    });
}

/// Bytes beyond the guest's own FIN are not kept.
#[test]
fn nothing_follows_a_fin() {
    each_sequence(|t| {
        t.establish();
        t.guest("ACK seq=5001 data=1000");
        t.guest("FIN|ACK seq=101 ack=1");
        t.take_all();
        t.guest("ACK seq=1 data=100");
        t.expect("ACK ack=102 sack=none");
        t.host_received(100);
        t.host_saw_fin(true);
        assert_eq!(t.driver.stack.memory_used(), 0);
        t.guest("ACK seq=5001 data=1000");
        t.expect("ACK ack=102 sack=none");
        t.host_received(0);
    });
}

#[test]
fn a_guest_without_sack_gets_no_blocks() {
    Script::each(|t| {
        t.establish_with("win=65535 mss=1460 wscale=7");
        t.guest("ACK seq=2001 data=100");
        for _ in 0..3 {
            t.expect("ACK ack=1 sack=none");
        }
        t.guest("ACK seq=2001 data=100");
        t.expect("ACK ack=1 sack=none");
        t.guest("ACK seq=1 data=2000");
        t.expect("ACK ack=2101 sack=none");
        t.guest("ACK seq=1 data=2000");
        t.expect("ACK ack=2101 sack=none");
        t.host_received(2100);
    });
}

/// RFC 2883, section 4: a duplicate is reported once, in the first block; the block that contains it follows.
#[test]
fn duplicates_are_reported_once() {
    each_sequence(|t| {
        t.establish();
        t.guest("ACK data=1000");
        t.expect("ACK ack=1001 sack=none");
        // All of a segment.
        t.guest("ACK seq=1 data=1000");
        t.expect("ACK ack=1001 sack=1-1001");
        t.guest("ACK seq=1001 data=10");
        t.expect("ACK ack=1011 sack=none");
        // A part of one that brings something new.
        t.guest("ACK seq=501 data=1000");
        t.expect("ACK ack=1501 sack=501-1011");
        // Out of order, all and a part.
        t.guest("ACK seq=3001 data=1000");
        for _ in 0..3 {
            t.expect("ACK ack=1501 sack=3001-4001");
        }
        t.guest("ACK seq=3001 data=1000");
        t.expect("ACK ack=1501 sack=3001-4001,3001-4001");
        t.guest("ACK seq=3501 data=1000");
        t.expect("ACK ack=1501 sack=3501-4001,3001-4501");
        // In an older block.
        t.guest("ACK seq=6001 data=100");
        t.expect("ACK ack=1501 sack=6001-6101,3001-4501");
        t.guest("ACK seq=3101 data=100");
        t.expect("ACK ack=1501 sack=3101-3201,3001-4501,6001-6101");
        // Below what is in order, while there is a gap.
        t.guest("ACK seq=1 data=100");
        t.expect("ACK ack=1501 sack=1-101,3001-4501,6001-6101");
        // The rest of a hole, and more than that.
        t.guest("ACK seq=1501 data=1600");
        t.expect("ACK ack=4501 sack=3001-3101,6001-6101");
        t.guest("ACK seq=4501 data=1500");
        t.expect("ACK ack=6101 sack=none");
        t.host_received(6100);
    });
}

/// A link without credit delays the report of a duplicate and does not lose it: without the report, a sender
/// takes its probe of the tail (RFC 8985) for the repair of a loss and halves its window.
#[test]
fn a_duplicate_is_reported_once_the_link_has_credit() {
    each_sequence(|t| {
        t.establish();
        t.guest("ACK data=1000");
        t.expect("ACK ack=1001 sack=none");
        t.link_credit(Some(0));
        t.guest("ACK seq=1 data=1000");
        t.guest("ACK seq=1001 data=10");
        t.expect_nothing();
        t.link_credit(None);
        t.expect("ACK ack=1011 sack=1-1001");
        t.guest("ACK seq=1011 data=10");
        t.expect("ACK ack=1021 sack=none");
        t.host_received(1020);
    });
}

/// Urgent data stays where it is in the stream, as with SO_OOBINLINE: the host's peer gets every byte in
/// order.
#[test]
fn urgent_data_is_data() {
    Script::each(|t| {
        t.establish();
        t.guest("ACK|URG urg=1 data=10");
        t.expect("ACK ack=11");
        t.guest("ACK|URG|PSH urg=65535 data=10");
        t.expect("ACK ack=21");
        t.guest("FIN|ACK|URG urg=3 data=1");
        t.expect("ACK ack=23");
        t.host_received(21);
        t.host_saw_fin(true);
    });
}
