//! Opening of connections: the handshake, and every way in which it fails.

use brodo_core::counters::DropReason;
use brodo_core::host::{Close, HostError};
use brodo_sim::host::Call;
use brodo_sim::script::{Script, Setup};

const SYN: &str = "SYN win=65535 mss=1460 wscale=7 sackok";

fn connects(t: &Script) -> usize {
    t.host_calls(|c| matches!(c, Call::Connect(..)))
}

#[test]
fn a_connect_done_at_once_is_accepted_at_once() {
    Script::each(|t| {
        t.host_connects_at_once();
        t.guest(SYN);
        t.expect(&format!("SYN|ACK seq=0 ack=1 win>=1 mss={} wscale>=0", t.mss()));
        assert_eq!(t.host_connected_to(), t.endpoints().1);
        t.guest("ACK");
        t.expect_nothing();
    });
}

#[test]
fn the_guest_hears_nothing_until_the_host_is_connected() {
    Script::each(|t| {
        t.guest(SYN);
        t.advance_ms(900);
        t.expect_nothing();
        t.host_connected();
        t.expect("SYN|ACK seq=0 ack=1");
        t.guest("ACK");
        t.expect_nothing();
    });
}

#[test]
fn refused_is_a_reset() {
    Script::each(|t| {
        t.guest(SYN);
        t.host_connect_fails(HostError::Refused);
        t.expect("RST|ACK seq=0 ack=1");
        t.expect_nothing();
        t.expect_all_gone();
    });
}

#[test]
fn refused_at_once_is_a_reset() {
    Script::each(|t| {
        t.host_refuses_at_once(HostError::Refused);
        t.guest(SYN);
        t.expect("RST|ACK seq=0 ack=1");
        t.expect_all_gone();
    });
}

#[test]
fn timed_out_is_silence() {
    Script::each(|t| {
        t.guest(SYN);
        t.advance_ms(120_000);
        t.host_connect_fails(HostError::TimedOut);
        t.expect_nothing();
        t.expect_all_gone();
    });
}

#[test]
fn unreachable_is_the_icmp_error_of_the_same_name() {
    let cases = [
        (HostError::NetUnreachable, "ICMP net-unreachable"),
        (HostError::HostUnreachable, "ICMP host-unreachable"),
        (HostError::Prohibited, "ICMP prohibited"),
    ];
    for (error, message) in cases {
        Script::each(|t| {
            t.guest(SYN);
            t.host_connect_fails(error);
            t.expect(message);
            t.expect_all_gone();
            t.connection(40_001, 80);
            t.host_refuses_at_once(error);
            t.guest(SYN);
            t.expect(message);
            t.expect_all_gone();
        });
    }
}

#[test]
fn a_host_out_of_sockets_is_silence_and_is_counted() {
    Script::each(|t| {
        t.host_refuses_at_once(HostError::Exhausted);
        t.guest(SYN);
        t.expect_nothing();
        assert_eq!(t.driver.stack.counters().dropped(DropReason::HostExhausted), 1);
        t.expect_all_gone();
        // The guest's next SYN may succeed.
        t.host_connects_at_once();
        t.guest("SYN seq=0 win=65535 mss=1460");
        t.expect("SYN|ACK seq=0 ack=1");
    });
}

#[test]
fn a_syn_repeated_while_connecting_changes_nothing() {
    Script::each(|t| {
        t.guest(SYN);
        t.advance_ms(1000);
        t.guest("SYN seq=0 win=65535 mss=1460 wscale=7 sackok");
        t.advance_ms(2000);
        t.guest("SYN seq=0 win=65535 mss=1460 wscale=7 sackok");
        t.expect_nothing();
        assert_eq!(connects(t), 1);
        t.host_connected();
        t.expect("SYN|ACK seq=0 ack=1");
        t.expect_nothing();
    });
}

#[test]
fn a_syn_repeated_after_the_syn_ack_gets_the_same_syn_ack() {
    Script::each(|t| {
        t.host_connects_at_once();
        t.guest(SYN);
        t.expect("SYN|ACK seq=0 ack=1");
        t.guest("SYN seq=0 win=65535 mss=1460 wscale=7 sackok");
        t.expect("SYN|ACK seq=0 ack=1");
        t.expect_nothing();
        assert_eq!(connects(t), 1);
    });
}

#[test]
fn another_syn_while_connecting_is_another_connection() {
    Script::each(|t| {
        t.guest(SYN);
        let old = t.socket();
        t.reopen(1_000_000);
        t.guest(SYN);
        assert_eq!((connects(t), t.driver.host.open_sockets()), (2, 1));
        assert!(t.driver.host.closed(old).is_some());
        t.expect_nothing();
        t.host_connected();
        t.expect("SYN|ACK seq=0 ack=1");
    });
}

#[test]
fn the_syn_ack_is_repeated_with_back_off_and_then_given_up() {
    Script::each(|t| {
        t.host_connects_at_once();
        t.guest(SYN);
        t.expect("SYN|ACK seq=0 ack=1");
        for expected_s in [1, 2, 4, 8, 16] {
            let us = t.expect_within_ms(70_000, "SYN|ACK seq=0 ack=1");
            assert!((expected_s * 1_000_000..expected_s * 1_100_000).contains(&us), "{us} us");
        }
        t.advance_ms(100_000);
        t.take_all();
        t.expect_all_gone();
    });
}

#[test]
fn the_window_is_not_scaled_unless_the_guest_offers_it() {
    Script::each(|t| {
        t.host_connects_at_once();
        t.guest("SYN win=65535 mss=1460");
        t.expect("SYN|ACK seq=0 ack=1 wscale=none win=65535");
        t.guest("ACK data=1000");
        t.expect("ACK ack=1001 win<=65535");
        t.host_received(1000);
        // The guest's own window is not scaled either: 2 KiB in the header are 2 KiB.
        t.guest("ACK rawwin=2048");
        t.host_sends(10_000);
        let sent: i64 = t.take_all().iter().filter_map(|l| l.value("data")).sum();
        assert!((1..=2048).contains(&sent), "{sent}");
    });
}

#[test]
fn the_window_in_the_syn_ack_is_never_scaled() {
    let mut setup = Setup::default();
    setup.config.tcp_rx.initial = 20_000;
    Script::each_with(&setup, |t| {
        t.host_connects_at_once();
        t.guest(SYN);
        t.expect("SYN|ACK win=20000 wscale>=1");
    });
}

#[test]
fn a_guest_without_mss_gets_small_segments() {
    Script::each(|t| {
        t.host_connects_at_once();
        t.guest("SYN win=65535");
        t.expect("SYN|ACK");
        t.guest("ACK");
        t.host_sends(3000);
        let max = if t.is_v6() { 1220 } else { 536 };
        let lens: Vec<_> = t.take_all().iter().filter_map(|l| l.value("data")).collect();
        assert_eq!((lens.iter().sum::<i64>(), lens[0]), (3000, max));
    });
}

#[test]
fn data_may_come_with_the_ack_of_the_handshake() {
    Script::each(|t| {
        t.host_connects_at_once();
        t.guest(SYN);
        t.expect("SYN|ACK seq=0 ack=1");
        t.guest("ACK|PSH data=100");
        t.expect("ACK ack=101");
        t.host_received(100);
    });
}

/// Tail loss of the handshake's ACK: the first data segment completes it.
#[test]
fn data_from_the_host_waits_for_the_handshake() {
    Script::each(|t| {
        t.host_connects_at_once();
        t.guest(SYN);
        t.expect("SYN|ACK seq=0 ack=1");
        t.host_sends(100);
        t.expect_nothing();
        t.guest("ACK");
        t.expect("ACK|PSH seq=1 ack=1 data=100");
    });
}

#[test]
fn a_reset_while_connecting_gives_the_host_socket_up() {
    Script::each(|t| {
        t.guest(SYN);
        t.guest("RST|ACK seq=1");
        t.host_closed(Some(Close::Reset));
        t.expect_nothing();
        t.expect_all_gone();
    });
}

#[test]
fn a_wrong_ack_of_the_syn_ack_is_reset_and_the_right_one_still_counts() {
    Script::each(|t| {
        t.host_connects_at_once();
        t.guest(SYN);
        t.expect("SYN|ACK seq=0 ack=1");
        t.guest("ACK seq=1 ack=5000");
        t.expect("RST seq=5000");
        t.guest("ACK seq=1 ack=1 data=10");
        t.expect("ACK ack=11");
        t.host_received(10);
    });
}

#[test]
fn a_segment_for_no_connection_is_reset() {
    Script::each(|t| {
        t.guest("ACK seq=1 ack=777");
        t.expect("RST seq=777");
        t.guest("FIN|ACK seq=1 ack=778 data=5");
        t.expect("RST seq=778");
        t.guest("PSH seq=1 data=5");
        t.expect("RST|ACK seq=0 ack=6");
        t.guest("SYN|ACK seq=0 ack=779");
        t.expect("RST seq=779");
        t.guest("RST seq=1");
        t.guest("RST|ACK seq=1 ack=1");
        t.expect_nothing();
        assert!(t.driver.stack.counters().dropped(DropReason::NoConnection) >= 4);
        t.expect_all_gone();
    });
}

#[test]
fn only_the_guests_own_address_may_open_connections() {
    Script::each(|t| {
        let (mut guest, remote) = t.endpoints();
        guest.set_ip(if t.is_v6() {
            "2001:db8:ffff::15".parse().expect("an address")
        } else {
            "10.0.2.16".parse().expect("an address")
        });
        t.connection_to(guest, remote);
        t.guest(SYN);
        t.guest("ACK seq=1 ack=5");
        t.expect_nothing();
        assert_eq!(connects(t), 0);
        assert_eq!(t.driver.stack.counters().dropped(DropReason::SpoofedSource), 2);
    });
}

#[test]
fn many_connections_at_once_do_not_mix() {
    Script::each(|t| {
        let flows = t.connections(50, Script::establish);
        for &f in &flows {
            t.select(f);
            t.guest("ACK|PSH data=200");
            t.expect("ACK ack=201");
            t.host_received(200);
            t.host_sends(300);
            t.expect("ACK|PSH seq=1 data=300");
        }
        assert_eq!(t.driver.host.open_sockets(), 50);
    });
}
