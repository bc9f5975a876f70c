//! UDP and ICMP echo: datagrams both ways, time-outs, ICMP errors in either direction.

use brodo_core::counters::DropReason;
use brodo_core::host::{HostError, IcmpCause};
use brodo_core::link::LinkCaps;
use brodo_sim::host::Call;
use brodo_sim::script::{Script, Setup};

fn opened(t: &Script) -> usize {
    t.host_calls(|c| matches!(c, Call::UdpOpen(_) | Call::PingOpen(_)))
}

#[test]
fn a_datagram_goes_out_and_its_answer_comes_back() {
    Script::each(|t| {
        t.connection(5000, 4433);
        t.guest("UDP data=100");
        t.host_got_datagram(100);
        assert_eq!(t.host_connected_to(), t.endpoints().1);
        t.host_sends_datagram(300);
        t.expect("UDP sport=4433 dport=5000 data=300");
        t.guest_batch(&["UDP data=1", "UDP data=1400", "UDP data=0"]);
        t.host_got_datagram(1);
        t.host_got_datagram(1400);
        t.host_got_datagram(0);
        t.host_got_nothing();
        t.host_sends_datagram(0);
        t.expect("UDP data=0");
        t.expect_nothing();
        assert_eq!((opened(t), t.machine.stack.flows()), (1, 1));
    });
}

#[test]
fn each_pair_of_ports_is_its_own_flow() {
    Script::each(|t| {
        let flows = [(5000, 53_000), (5001, 53_000), (5000, 53_001)].map(|(g, r)| t.connection(g, r));
        for f in flows {
            t.select(f);
            t.guest("UDP data=10");
        }
        assert_eq!(opened(t), 3);
        for f in flows {
            t.select(f);
            t.host_got_datagram(10);
            t.host_sends_datagram(20);
            let (guest, remote) = t.endpoints();
            t.expect(&format!("UDP sport={} dport={} data=20", remote.port(), guest.port()));
        }
    });
}

#[test]
fn a_silent_flow_ends_and_an_answered_one_lasts_longer() {
    Script::each(|t| {
        t.connection(5000, 4433);
        t.guest("UDP data=10");
        t.advance_ms(29_000);
        assert_eq!(t.machine.host.open_sockets(), 1);
        t.advance_ms(2_000);
        t.expect_all_gone();
        t.guest("UDP data=10");
        t.host_sends_datagram(10);
        t.advance_ms(178_000);
        assert_eq!(t.machine.host.open_sockets(), 1);
        t.guest("UDP data=10");
        t.advance_ms(178_000);
        assert_eq!(t.machine.host.open_sockets(), 1, "every datagram counts");
        t.advance_ms(4_000);
        t.expect_all_gone();
    });
}

const CAUSES: [(IcmpCause, &str); 6] = [
    (IcmpCause::PortUnreachable, "ICMP port-unreachable"),
    (IcmpCause::NetUnreachable, "ICMP net-unreachable"),
    (IcmpCause::HostUnreachable, "ICMP host-unreachable"),
    (IcmpCause::Prohibited, "ICMP prohibited"),
    (IcmpCause::TooBig(1400), "ICMP too-big mtu=1400"),
    (IcmpCause::TimeExceeded, "ICMP time-exceeded"),
];

#[test]
fn an_icmp_error_on_the_host_reaches_the_guest() {
    for (cause, message) in CAUSES {
        Script::each(|t| {
            t.connection(5000, 4433);
            t.guest("UDP data=100");
            t.host_gets_icmp(cause);
            t.expect(message);
            t.expect_nothing();
            // Nobody has emptied the error queue when the guest sends: its datagram is not lost.
            if !matches!(cause, IcmpCause::TooBig(_)) {
                t.host_got_datagram(100);
                t.host_gets_icmp_unnoticed(cause);
                t.guest("UDP data=100");
                t.expect(message);
            }
            // The flow goes on: the error is used up, whichever call would have met it.
            t.host_got_datagram(100);
            t.guest("UDP data=100");
            t.host_got_datagram(100);
            t.host_sends_datagram(10);
            t.expect("UDP data=10");
            t.expect_nothing();
        });
    }
}

#[test]
fn a_send_that_fails_is_an_icmp_error() {
    let cases = [
        (HostError::NetUnreachable, "ICMP net-unreachable"),
        (HostError::HostUnreachable, "ICMP host-unreachable"),
        (HostError::Prohibited, "ICMP prohibited"),
    ];
    for (error, message) in cases {
        Script::each(|t| {
            t.connection(5000, 4433);
            t.machine.host.refuse_next_open(error);
            t.guest("UDP data=100");
            t.expect(message);
            t.expect_nothing();
            t.expect_all_gone();
        });
    }
    Script::each(|t| {
        t.connection(5000, 4433);
        t.guest("UDP data=10");
        t.host_got_datagram(10);
        t.machine.host.fail_next(t.socket(), HostError::TooBig(1300));
        t.guest("UDP data=1400");
        t.expect("ICMP too-big mtu=1300");
    });
}

#[test]
fn a_super_datagram_is_one_send() {
    for v6 in [false, true] {
        let mut t = Script::new(Setup { v6, ..Setup::default() });
        t.connection(5000, 4433);
        t.guest("UDP data=5500 gso=1000");
        let (data, segment) = t.host_takes_datagram();
        assert_eq!((data.len(), segment), (5500, Some(1000)));
        t.host_got_nothing();
    }
}

#[test]
fn coalesced_datagrams_are_cut_by_whoever_can() {
    for v6 in [false, true] {
        for uso in [false, true] {
            let caps = LinkCaps { checksum: uso, tso: false, uso };
            let mut t = Script::new(Setup { v6, caps, ..Setup::default() });
            t.connection(5000, 4433);
            t.guest("UDP data=1");
            t.host_sends_raw(&[7; 3300], Some(1000));
            if uso {
                t.expect("UDP data=3300 gso=1000");
            } else {
                for len in [1000, 1000, 1000, 300] {
                    t.expect(&format!("UDP data={len} gso=none"));
                }
            }
            t.expect_nothing();
        }
    }
}

#[test]
fn a_datagram_above_the_mtu_is_dropped_and_counted() {
    Script::each(|t| {
        t.connection(5000, 4433);
        t.guest("UDP data=1");
        t.host_sends_raw(&[7; 1500], None);
        t.expect_nothing();
        assert_eq!(t.machine.stack.counters().dropped(DropReason::DatagramTooBig), 1);
        let max = if t.is_v6() { 1452 } else { 1472 };
        t.host_sends_raw(&vec![7; max], None);
        t.expect(&format!("UDP data={max}"));
    });
}

#[test]
fn without_credit_datagrams_stay_in_the_kernel() {
    Script::each(|t| {
        t.connection(5000, 4433);
        t.guest("UDP data=1");
        t.link_credit(Some(3));
        for i in 0..10 {
            t.host_sends_raw(&[i; 100], None);
        }
        assert_eq!(t.take_all().len(), 3);
        t.link_credit(None);
        // The one that met the closed link is lost, and counted.
        let lost = t.machine.stack.counters().dropped(DropReason::LinkFull);
        assert_eq!(t.take_all().len() as u64, 7 - lost);
        assert!(lost <= 1, "{lost}");
    });
}

#[test]
fn a_full_host_socket_drops_and_counts() {
    Script::each(|t| {
        t.connection(5000, 4433);
        t.guest("UDP data=1");
        t.host_accepts(1);
        t.guest_batch(&["UDP data=2", "UDP data=3"]);
        assert_eq!(t.machine.stack.counters().dropped(DropReason::HostSocketFull), 1);
        t.expect_nothing();
    });
}

#[test]
fn the_guests_own_port_unreachable_ends_the_flow() {
    Script::each(|t| {
        t.connection(5000, 4433);
        t.guest("UDP data=1");
        t.host_sends_datagram(100);
        let got = t.expect_datagram();
        t.guest_refuses_datagram(&got);
        t.expect_nothing();
        t.expect_all_gone();
    });
}

#[test]
fn a_bad_checksum_or_source_is_dropped() {
    Script::each(|t| {
        t.connection(5000, 4433);
        let good = t.frame("UDP data=100");
        let mut bad = good.clone();
        *bad.last_mut().expect("not empty") ^= 1;
        t.guest_raw(&bad);
        assert_eq!((opened(t), t.machine.stack.counters().dropped(DropReason::UdpChecksum)), (0, 1));
        // No checksum at all is allowed over IPv4 only (RFC 8200, 8.1).
        let mut none = good;
        let field = 14 + if t.is_v6() { 40 } else { 20 } + 6;
        none[field..field + 2].fill(0);
        t.guest_raw(&none);
        assert_eq!(opened(t), usize::from(!t.is_v6()));
        let (mut guest, remote) = t.endpoints();
        guest.set_ip(if t.is_v6() {
            "2001:db8:ffff::1".parse().expect("an address")
        } else {
            "10.0.2.99".parse().expect("an address")
        });
        t.connection_to(guest, remote);
        t.guest("UDP data=10");
        assert_eq!(t.machine.stack.counters().dropped(DropReason::SpoofedSource), 1);
        t.expect_nothing();
    });
}

#[test]
fn a_flood_of_ports_is_bounded() {
    let mut setup = Setup::default();
    setup.config.max_flows = 64;
    Script::each_with(&setup, |t| {
        t.establish();
        for port in 0..1000 {
            t.connection(2000 + port, 9);
            t.guest("UDP data=1");
            t.advance_ms(1);
        }
        assert!(t.machine.stack.flows() <= 64 && t.machine.host.open_sockets() <= 64);
        // The newest works, and TCP was not pushed out.
        t.host_got_datagram(1);
        t.select(0);
        t.take_all();
        t.guest("ACK data=10");
        t.expect("ACK ack=11");
        t.host_received(10);
    });
}

#[test]
fn echo_there_and_back() {
    Script::each(|t| {
        t.guest("ICMP echo-request id=4660 seq=1 data=56");
        let request = t.host_answers_echo();
        assert_eq!(request[0], if t.is_v6() { 128 } else { 8 });
        assert_eq!(request.len(), 64);
        t.expect("ICMP echo-reply id=4660 seq=1 data=56");
        t.guest("ICMP echo-request id=4660 seq=2 data=1400");
        t.host_answers_echo();
        t.expect("ICMP echo-reply id=4660 seq=2 data=1400");
        t.guest("ICMP echo-request id=99 seq=1 data=0");
        assert_eq!(opened(t), 2);
        t.host_answers_echo();
        t.expect("ICMP echo-reply id=99 seq=1 data=0");
        t.advance_ms(40_000);
        t.expect_all_gone();
    });
}

#[test]
fn an_error_for_an_echo_reaches_the_guest() {
    for (cause, message) in CAUSES {
        Script::each(|t| {
            t.guest("ICMP echo-request id=7 seq=1 data=56");
            t.host_gets_icmp(cause);
            t.expect(message);
            t.expect_nothing();
        });
    }
}

#[test]
fn without_ping_sockets_echo_is_silent_and_counted() {
    Script::each(|t| {
        t.machine.host.set_ping_supported(false);
        t.guest("ICMP echo-request id=7 seq=1 data=56");
        t.expect_nothing();
        assert_eq!(t.machine.stack.counters().dropped(DropReason::EchoUnsupported), 1);
        t.expect_all_gone();
    });
}
