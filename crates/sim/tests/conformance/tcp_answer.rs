//! Delayed ACK: acknowledgements that wait for the answer which carries them (RFC 9293, 3.8.6.3), and those
//! that must not.

use brodo_sim::script::Script;

/// Requests of one segment, each answered at once, that make a peer prompt.
const STREAK: usize = 4;

/// A request of one byte, acknowledged by itself, and its answer.
fn exchange(t: &mut Script) {
    t.guest("ACK|PSH data=1");
    t.expect("ACK data=0");
    t.host_sends(1);
    t.expect("ACK|PSH data=1");
    t.guest("ACK");
    t.expect_nothing();
}

/// A connection whose requests were answered promptly so far.
fn with_prompt_peer(t: &mut Script) {
    t.establish();
    (0..STREAK).for_each(|_| exchange(t));
}

#[test]
fn an_answer_carries_the_acknowledgement() {
    Script::each(|t| {
        with_prompt_peer(t);
        for i in 5..300 {
            t.guest("ACK|PSH data=1");
            t.expect_nothing();
            t.host_received(if i == 5 { 5 } else { 1 });
            t.host_sends(1);
            t.expect(&format!("ACK|PSH seq={i} ack={} data=1", i + 1));
            t.guest("ACK");
            t.expect_nothing();
        }
        assert_eq!(t.driver.stack.counters().tcp_acks_carried, 295);
    });
}

#[test]
fn without_an_answer_the_delayed_ack_times_out_and_the_peer_is_prompt_no_more() {
    Script::each(|t| {
        with_prompt_peer(t);
        t.guest("ACK|PSH data=1");
        t.expect_nothing();
        let waited = t.expect_within_ms(5, "ACK ack=6 data=0");
        assert!(waited >= 4, "{waited} ms");
        t.host_sends(1);
        t.expect("ACK|PSH data=1");
        t.guest("ACK");
        (0..STREAK).for_each(|_| exchange(t));
        t.guest("ACK|PSH data=1");
        t.expect_nothing();
        assert_eq!(t.driver.stack.counters().tcp_acks_late, 1);
    });
}

/// A guest that had more to send and waited for our acknowledgement: a harmful delay, which must become rare.
#[test]
fn a_guest_that_was_kept_waiting_is_not_again_for_longer_each_time() {
    Script::each(|t| {
        with_prompt_peer(t);
        for times in [2, 4, 8] {
            t.guest("ACK|PSH data=1");
            t.expect_nothing();
            t.expect_within_ms(5, "ACK data=0");
            t.guest("ACK|PSH data=1");
            t.expect("ACK data=0");
            t.host_sends(1);
            t.expect("ACK|PSH data=1");
            t.guest("ACK");
            (0..times * STREAK).for_each(|_| exchange(t));
        }
        t.guest("ACK|PSH data=1");
        t.expect_nothing();
    });
}

/// A slow server: no acknowledgement is delayed.
#[test]
fn slow_answers_make_no_prompt_peer() {
    Script::each(|t| {
        t.establish();
        for _ in 0..20 {
            t.guest("ACK|PSH data=1");
            t.expect("ACK data=0");
            t.advance_ms(6);
            t.host_sends(1);
            t.expect("ACK|PSH data=1");
            t.guest("ACK");
        }
    });
}

/// A guest that writes a request in two pieces holds the second back until the first is acknowledged (Nagle).
#[test]
fn requests_in_two_pieces_never_wait() {
    Script::each(|t| {
        t.establish();
        for _ in 0..20 {
            t.guest("ACK|PSH data=1");
            t.expect("ACK data=0");
            t.guest("ACK|PSH data=1");
            t.expect("ACK data=0");
            t.host_sends(1);
            t.expect("ACK|PSH data=1");
            t.guest("ACK");
        }
    });
}

#[test]
fn a_second_segment_is_acknowledged_at_once() {
    Script::each(|t| {
        with_prompt_peer(t);
        t.guest("ACK|PSH data=1");
        t.expect_nothing();
        t.guest("ACK|PSH data=1");
        t.expect("ACK data=0");
        t.advance_ms(5);
        t.expect_nothing();
    });
}

/// Any further segment: a guest that sends more during the delay may not be waiting for the answer.
#[test]
fn any_segment_ends_the_wait() {
    Script::each(|t| {
        with_prompt_peer(t);
        t.guest("ACK|PSH data=1");
        t.expect_nothing();
        t.guest("ACK");
        t.expect("ACK ack=6 data=0");
        t.expect_nothing();
    });
}

#[test]
fn what_is_full_or_not_in_order_or_fills_a_gap_is_acknowledged_at_once() {
    Script::each(|t| {
        with_prompt_peer(t);
        t.guest(&format!("ACK|PSH data={}", t.mss()));
        t.expect("ACK data=0");
        t.host_sends(1);
        t.expect("ACK|PSH data=1");
        t.guest("ACK seq=2000 data=10");
        assert!(!t.take_all().is_empty(), "beyond a gap");
    });
    Script::each(|t| {
        with_prompt_peer(t);
        t.guest("ACK seq=6 data=1");
        t.take_all();
        t.host_sends(1);
        t.take_all();
        t.guest("ACK seq=5 data=1");
        t.expect("ACK ack=7 data=0");
    });
    Script::each(|t| {
        with_prompt_peer(t);
        t.guest("ACK seq=4 data=2");
        t.expect("ACK ack=6 data=0");
    });
    Script::each(|t| {
        with_prompt_peer(t);
        t.guest("FIN|ACK seq=9");
        t.expect("ACK ack=5 data=0");
    });
}

/// Bytes not yet taken by the host socket may be answered late, and the guest needs to know its window.
#[test]
fn what_waits_for_the_host_socket_is_acknowledged_at_once() {
    Script::each(|t| {
        with_prompt_peer(t);
        t.host_accepts(0);
        t.guest("ACK|PSH data=100");
        t.expect("ACK data=0");
    });
}

/// Promptness learned on one connection holds for the first request and the end of the next one to the same
/// destination, and for no other.
#[test]
fn a_destination_is_remembered() {
    Script::each(|t| {
        with_prompt_peer(t);
        t.connection(40_001, 81);
        t.establish();
        t.guest("ACK|PSH data=1");
        t.expect("ACK data=0");
        t.connection(40_002, 80);
        t.establish();
        t.guest("ACK|PSH data=1");
        t.expect_nothing();
        t.host_sends(1);
        t.expect("ACK|PSH ack=2 data=1");
        t.host_received(1);
        t.guest("FIN|ACK");
        t.expect_nothing();
        t.host_saw_fin(true);
        t.host_eof();
        t.expect("FIN|ACK seq=2 ack=3");
        t.guest("ACK");
        t.expect_nothing();
    });
}

#[test]
fn a_fin_that_is_not_answered_is_acknowledged_soon() {
    Script::each(|t| {
        with_prompt_peer(t);
        t.guest("FIN|ACK");
        t.expect_nothing();
        t.expect_within_ms(5, "ACK ack=6 data=0");
        // Retransmitted because the acknowledgement was lost, it is acknowledged at once.
        t.guest("FIN|ACK seq=5");
        t.expect("ACK ack=6 data=0");
    });
}

/// After the end of the host's stream no segment can carry the acknowledgement.
#[test]
fn after_the_hosts_end_nothing_waits() {
    Script::each(|t| {
        with_prompt_peer(t);
        t.host_eof();
        t.expect("FIN|ACK");
        t.guest("ACK");
        t.guest("ACK|PSH data=1");
        t.expect("ACK data=0");
        t.guest("FIN|ACK");
        t.expect("ACK data=0");
    });
}

#[test]
fn without_credit_what_is_late_is_sent_when_there_is_credit() {
    Script::each(|t| {
        with_prompt_peer(t);
        t.guest("ACK|PSH data=1");
        t.link_credit(Some(0));
        t.advance_ms(50);
        t.expect_nothing();
        t.link_credit(None);
        t.expect("ACK ack=6 data=0");
        assert_eq!(t.driver.stack.counters().tcp_acks_late, 1);
    });
}
