//! UDP and ICMP echo: datagrams both ways, time-outs, ICMP errors in either direction.

use brodo_core::config::Config;
use brodo_core::counters::DropReason;
use brodo_core::host::{HostError, IcmpCause, SocketId};
use brodo_core::link::{LinkCaps, RxMeta};
use brodo_core::time::{Duration, Instant};
use brodo_core::wire::ethernet::MacAddr;
use brodo_sim::driver::SimDriver;
use brodo_sim::host::Call;
use brodo_sim::link::{GUEST_MAC, to_stack};
use brodo_sim::packet::UdpDatagram;
use brodo_sim::script::{Script, Setup};
use std::net::SocketAddr;

fn opened(t: &Script) -> usize {
    t.host_calls(|c| matches!(c, Call::UdpOpen(..) | Call::PingOpen(_)))
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
        assert_eq!((opened(t), t.driver.stack.flows()), (1, 1));
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
            // Its port on the host depends on the guest's alone.
            let (guest, remote) = t.endpoints();
            assert_eq!(t.host_calls(|call| *call == Call::UdpOpen(Some(guest), remote)), 1);
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
        assert_eq!(t.driver.host.open_sockets(), 1);
        t.advance_ms(2_000);
        t.expect_all_gone();
        t.guest("UDP data=10");
        t.host_sends_datagram(10);
        t.advance_ms(178_000);
        assert_eq!(t.driver.host.open_sockets(), 1);
        t.guest("UDP data=10");
        t.advance_ms(178_000);
        assert_eq!(t.driver.host.open_sockets(), 1, "every datagram counts");
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
            // The error queue is not yet empty when the guest sends: its datagram is not lost.
            if !matches!(cause, IcmpCause::TooBig(_)) {
                t.host_got_datagram(100);
                t.host_gets_icmp_unnoticed(cause);
                t.guest("UDP data=100");
                t.expect(message);
            }
            // The flow continues: the error is consumed, whichever call would have met it.
            t.host_got_datagram(100);
            t.guest("UDP data=100");
            t.host_got_datagram(100);
            t.host_sends_datagram(10);
            t.expect("UDP data=10");
            t.expect_nothing();
        });
    }
}

/// A dead host is reported once for each datagram that waited for its address.
#[test]
fn icmp_errors_beyond_a_few_do_not_wait_for_the_next_event() {
    Script::each(|t| {
        t.connection(5000, 4433);
        t.guest("UDP data=100");
        t.host_got_datagram(100);
        for _ in 0..19 {
            t.host_gets_icmp_unnoticed(IcmpCause::HostUnreachable);
        }
        t.host_gets_icmp(IcmpCause::HostUnreachable);
        for _ in 0..4 {
            t.expect("ICMP host-unreachable");
        }
        t.expect_nothing();
        // The host is back.
        t.host_sends_datagram(10);
        t.expect("UDP data=10");
        t.expect_nothing();
        assert_eq!(t.driver.stack.counters().dropped(DropReason::IcmpErrorRate), 16);
    });
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
            t.driver.host.refuse_next_open(error);
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
        t.driver.host.fail_next(t.socket(), HostError::TooBig(1300));
        t.guest("UDP data=1400");
        t.expect("ICMP too-big mtu=1300");
    });
}

#[test]
fn a_super_datagram_of_more_pieces_than_linux_cuts_is_dropped() {
    for v6 in [false, true] {
        let mut t = Script::new(Setup { v6, ..Setup::default() });
        t.connection(5000, 4433);
        let drops = |t: &Script| t.driver.stack.counters().dropped(DropReason::BadOffload);
        t.guest("UDP data=640 gso=10");
        let (data, segment) = t.host_takes_datagram();
        assert_eq!((data.len(), segment), (640, Some(10)));
        t.guest("UDP data=1281 gso=10");
        t.guest("UDP data=65000 gso=1");
        t.host_got_nothing();
        assert_eq!(drops(&t), 2);
    }
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
fn coalesced_datagrams_are_cut_by_the_link_if_it_can() {
    for v6 in [false, true] {
        for uso in [false, true] {
            let caps = LinkCaps { checksum: uso, tso: false, uso, packet_max: None };
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
        // Datagrams that were read are not lost.
        for i in 3..10 {
            assert_eq!(t.expect_datagram().data, [i; 100]);
        }
        t.expect_nothing();
        assert_eq!(t.driver.stack.counters().drops().count(), 0);
    });
}

#[test]
fn a_batch_that_the_link_refuses_goes_on_where_it_stopped() {
    for uso in [false, true] {
        let caps = LinkCaps { checksum: uso, tso: false, uso, packet_max: None };
        let mut t = Script::new(Setup { caps, ..Setup::default() });
        t.connection(5000, 4433);
        t.guest("UDP data=1");
        t.link_credit(Some(0));
        // Sizes of datagrams, and what was coalesced from several.
        let arrivals: [(usize, Option<u16>); 6] =
            [(700, None), (700, None), (3300, Some(1000)), (0, None), (1000, None), (1400, Some(700))];
        let mut expected = Vec::new();
        for (n, (len, segment)) in arrivals.into_iter().enumerate() {
            let data: Vec<u8> = (0..len).map(|i| (n * 7 + i) as u8).collect();
            t.host_sends_raw(&data, segment);
            expected.extend(data);
        }
        let (mut got, mut frames) = (Vec::new(), 0);
        while got.len() < expected.len() {
            t.expect_nothing();
            t.link_credit(Some(1));
            got.extend(t.expect_datagram().data);
            frames += 1;
        }
        assert!(got == expected, "uso {uso}");
        // Each event found one datagram, and no read was in vain.
        assert_eq!(frames, if uso { 6 } else { 10 });
        t.link_credit(None);
        t.expect_nothing();
        assert_eq!(t.driver.stack.counters().drops().count(), 0);
    }
}

/// Lengths and bytes of services.
type Datagrams = Vec<(usize, u8)>;

#[test]
fn neighbours_of_one_size_reach_the_guest_as_one() {
    for v6 in [false, true] {
        let caps = LinkCaps { checksum: true, tso: true, uso: true, packet_max: None };
        let mut t = Script::new(Setup { v6, caps, ..Setup::default() });
        t.connection(5000, 4433);
        t.guest("UDP data=1");
        let same = |len, n| vec![(len, 0); n];
        let cases: [(Datagrams, &[&str]); 6] = [
            (same(100, 3), &["data=300 gso=100"]),
            // A shorter one is the last, a longer one begins anew.
            (vec![(100, 0), (100, 0), (40, 0), (100, 0)], &["data=240 gso=100", "data=100 gso=none"]),
            (vec![(40, 0), (100, 0), (100, 0)], &["data=40 gso=none", "data=200 gso=100"]),
            // Other header fields, and an empty datagram.
            (
                vec![(100, 0), (100, 2), (100, 2), (0, 2), (100, 0xb8)],
                &["data=100 tos=0", "data=200 gso=100 tos=2", "data=0 tos=2", "data=100 tos=184"],
            ),
            // Batches grow as long as they are full, up to what one frame carries.
            (same(1400, 52), &["data=11200 gso=1400", "data=22400 gso=1400", "data=39200 gso=1400"]),
            (same(1, 70), &["data=16 gso=1", "data=32 gso=1", "data=22 gso=1"]),
        ];
        for (arrivals, frames) in cases {
            t.host_sends_burst(&arrivals);
            for frame in frames {
                t.expect(&format!("UDP {frame}"));
            }
            t.expect_nothing();
        }
    }
}

/// A super-datagram, whose bound is the same for both families, has no room for a datagram of the largest
/// size on the link.
#[test]
fn the_largest_datagram_reaches_the_guest_alone() {
    for v6 in [false, true] {
        let caps = LinkCaps { checksum: true, tso: true, uso: true, packet_max: None };
        let config = Config { mtu: 65_521, ..Config::default() };
        let mut t = Script::new(Setup { v6, caps, config, ..Setup::default() });
        t.connection(5000, 4433);
        t.guest("UDP data=1");
        let largest = 65_521 - if v6 { 48 } else { 28 };
        t.host_sends_burst(&[(largest, 0), (largest, 0), (1, 0)]);
        for data in [largest, largest, 1] {
            t.expect(&format!("UDP data={data} gso=none"));
        }
        t.expect_nothing();
    }
}

#[test]
fn neighbours_of_one_size_leave_as_one() {
    Script::each(|t| {
        let a = t.connection(5000, 4433);
        // The first opens the flow.
        t.guest_batch(&[
            "UDP data=100",
            "UDP data=100",
            "UDP data=100",
            "UDP data=40",
            "UDP data=40",
            "UDP data=100",
        ]);
        for (len, segment) in [(100, None), (240, Some(100)), (40, None), (100, None)] {
            let (data, cut) = t.host_takes_datagram();
            assert_eq!((data.len(), cut), (len, segment));
        }
        // Another conversation in between, and other header fields.
        let b = t.connection(5001, 4433);
        t.guest("UDP data=1");
        t.host_got_datagram(1);
        t.select(a);
        let mut frames = vec![t.frame("UDP data=200"), t.frame("UDP data=200")];
        t.select(b);
        frames.push(t.frame("UDP data=200"));
        t.select(a);
        frames.extend([
            t.frame("UDP data=200"),
            t.frame("UDP data=200 tos=2"),
            t.frame("UDP data=200 tos=2"),
        ]);
        t.guest_raw_batch(&frames);
        for (len, segment, tos) in [(400, Some(200), 0), (200, None, 0), (400, Some(200), 2)] {
            assert_eq!(t.host_datagram_tos(), Some(tos));
            let (data, cut) = t.host_takes_datagram();
            assert_eq!((data.len(), cut), (len, segment));
        }
        t.select(b);
        assert_eq!(t.host_takes_datagram().0.len(), 200);
        // A datagram with a wrong checksum is dropped, and no other.
        t.select(a);
        let mut frames = [t.frame("UDP data=300"), t.frame("UDP data=300"), t.frame("UDP data=300")];
        *frames[1].last_mut().expect("not empty") ^= 1;
        t.guest_raw_batch(&frames);
        assert_eq!((t.host_takes_datagram().0.len(), t.host_takes_datagram().0.len()), (300, 300));
        t.host_got_nothing();
        assert_eq!(t.driver.stack.counters().dropped(DropReason::UdpChecksum), 1);
    });
}

#[test]
fn a_run_that_fails_in_the_middle_names_the_right_datagram() {
    Script::each(|t| {
        t.connection(5000, 4433);
        t.guest("UDP data=1");
        t.host_got_datagram(1);
        t.host_accepts(2);
        t.driver.host.fail_next(t.socket(), HostError::TooBig(1300));
        let frames = [(); 4].map(|()| t.frame("UDP data=600"));
        t.guest_raw_batch(&frames);
        t.expect("ICMP too-big mtu=1300");
        t.expect_nothing();
        // The first was refused, two were taken, and the last waits.
        let (data, segment) = t.host_takes_datagram();
        let payload = |n: usize| &frames[n][frames[n].len() - 600..];
        assert!(data == [payload(1), payload(2)].concat() && segment == Some(600));
        t.host_got_nothing();
        t.host_accepts_more(1);
        assert_eq!(t.host_takes_datagram().0, payload(3));
    });
}

#[test]
fn a_full_host_socket_holds_and_goes_on_in_order() {
    Script::each(|t| {
        t.connection(5000, 4433);
        t.guest("UDP data=1");
        t.host_got_datagram(1);
        t.host_accepts(1);
        t.guest_batch(&["UDP data=2", "UDP data=3", "UDP data=3", "UDP data=3", "UDP data=0", "UDP data=5"]);
        t.host_got_datagram(2);
        t.host_got_nothing();
        assert_eq!(t.driver.stack.counters().udp_held, 5);
        t.host_accepts_more(2);
        // Later datagrams queue behind those that wait.
        t.guest("UDP data=6");
        assert_eq!(t.host_takes_datagram().0.len(), 6);
        t.host_got_nothing();
        t.host_accepts_all();
        for len in [3, 0, 5, 6] {
            assert_eq!(t.host_takes_datagram().0.len(), len);
        }
        assert_eq!(t.driver.stack.memory_used(), 0);
        assert_eq!(t.driver.stack.counters().drops().count(), 0);
        t.expect_nothing();
    });
}

#[test]
fn what_a_host_socket_does_not_take_is_bounded_and_given_back() {
    let mut setup = Setup::default();
    setup.config.memory = 4 << 20;
    Script::each_with(&setup, |t| {
        for port in 0..8 {
            t.connection(5000 + port, 4433);
            t.guest("UDP data=1");
            t.host_got_datagram(1);
            t.host_accepts(0);
            (0..300).for_each(|_| t.guest("UDP data=1000"));
        }
        let used = t.driver.stack.memory_used();
        assert!((900 << 10..1200 << 10).contains(&used), "{used}");
        let c = t.driver.stack.counters();
        assert_eq!(c.udp_held + c.dropped(DropReason::HostSocketFull), 8 * 300);
        t.advance_ms(40_000);
        t.expect_all_gone();
        assert_eq!(t.driver.stack.memory_used(), 0);
    });
}

#[test]
fn what_waits_too_long_is_dropped_or_marked() {
    for tos in [0, 2] {
        Script::each(|t| {
            t.connection(5000, 4433);
            t.guest("UDP data=1");
            t.host_got_datagram(1);
            t.host_accepts(0);
            let line = format!("UDP data=1000 tos={tos}");
            (0..50).for_each(|_| t.guest(&line));
            for _ in 0..500 {
                t.advance_ms(1);
                t.guest(&line);
                t.host_accepts_more(1);
            }
            t.host_accepts_all();
            let mut ce = 0;
            while let Some(tos) = t.host_datagram_tos() {
                ce += u64::from(tos == 3);
                t.host_takes_datagram();
            }
            let c = t.driver.stack.counters();
            let (dropped, marked) = (c.dropped(DropReason::HostQueueDelay), c.udp_marked);
            assert_eq!((dropped > 3, marked > 3), (tos == 0, tos == 2), "{dropped} {marked}");
            // A mark may stand for several datagrams only if none was cut.
            assert_eq!(ce, marked);
        });
    }
}

#[test]
fn an_error_for_what_waited_reaches_the_guest() {
    Script::each(|t| {
        t.connection(5000, 4433);
        t.guest("UDP data=1");
        t.host_got_datagram(1);
        t.host_accepts(0);
        t.guest_batch(&["UDP data=100", "UDP data=200"]);
        t.driver.host.fail_next(t.socket(), HostError::TooBig(1300));
        t.host_accepts_all();
        t.expect("ICMP too-big mtu=1300");
        t.expect_nothing();
        assert_eq!(t.host_takes_datagram().0.len(), 200);
    });
}

#[test]
fn marks_travel_both_ways() {
    Script::each(|t| {
        t.connection(5000, 4433);
        for tos in [0x02, 0xb8, 0] {
            t.guest(&format!("UDP data=10 tos={tos}"));
            assert_eq!(t.host_datagram_tos(), Some(tos));
            t.host_takes_datagram();
            t.host_sends_burst(&[(3, tos ^ 1)]);
            t.expect(&format!("UDP data=3 tos={}", tos ^ 1));
        }
    });
}

#[test]
fn what_the_hosts_kernel_dropped_is_counted() {
    Script::each(|t| {
        t.connection(5000, 4433);
        t.guest("UDP data=1");
        t.driver.host.peer_overflow(t.socket(), 17);
        t.host_sends_datagram(10);
        t.expect("UDP data=10");
        t.host_sends_datagram(10);
        t.expect("UDP data=10");
        assert_eq!(t.driver.stack.counters().udp_host_overflows, 17);
    });
}

#[test]
fn a_lone_question_costs_one_call_each_way() {
    Script::each(|t| {
        t.connection(5000, 4433);
        t.guest("UDP data=1");
        t.host_sends_datagram(10);
        t.expect("UDP data=10");
        assert_eq!(t.host_calls(|c| matches!(c, Call::DatagramRecv(..) | Call::DatagramSend(..))), 2);
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
        assert_eq!((opened(t), t.driver.stack.counters().dropped(DropReason::UdpChecksum)), (0, 1));
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
        assert_eq!(t.driver.stack.counters().dropped(DropReason::SpoofedSource), 1);
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
        assert!(t.driver.stack.flows() <= 64 && t.driver.host.open_sockets() <= 64);
        // The newest flow works, and TCP was not evicted.
        t.host_got_datagram(1);
        t.select(0);
        t.take_all();
        t.guest("ACK data=10");
        t.expect("ACK ack=11");
        t.host_received(10);
    });
}

/// Ephemeral ports of the host: only UDP flows of the guest's hold one each. Beyond their bound the one of
/// the lowest eviction class is evicted, and no other flow.
#[test]
fn udp_of_the_guest_is_bounded_by_its_share_of_the_hosts_ports() {
    let mut setup = Setup::default();
    setup.config.guest_mac = Some(MacAddr(GUEST_MAC));
    setup.config.max_udp_flows = 8;
    Script::each_with(&setup, |t| {
        // No port each: TCP, an answered echo, a flow that a peer has begun.
        t.establish();
        t.guest("ICMP echo-request id=7 seq=1 data=56");
        t.host_answers_echo();
        let inbound = t.connection(8080, 4433);
        t.peer_sends_first(10, None).expect("credit");
        let in_use = t.connection(1999, 9);
        t.guest("UDP data=10");
        t.host_got_datagram(10);
        t.host_sends_datagram(10);
        for port in 0..1000 {
            t.connection(2000 + port, 9);
            t.guest("UDP data=1");
            t.advance_ms(1);
        }
        t.host_got_datagram(1);
        let c = t.driver.stack.counters();
        assert_eq!((c.udp_flows_evicted, c.flows_evicted), (993, 993));
        assert_eq!((t.driver.stack.flows(), t.driver.host.open_sockets()), (11, 11));
        let opened = t.driver.host.opened();
        for flow in [inbound, in_use] {
            t.select(flow);
            t.guest("UDP data=10");
        }
        assert_eq!(t.driver.host.opened(), opened, "both were still there");
    });
}

#[test]
fn a_hundred_thousand_flows_do_not_push_out_those_in_use() {
    let config = Config { mtu: 1500, max_flows: 1000, ..Config::default() };
    let macs = to_stack(config.mac.0);
    let guest = |port| SocketAddr::from(([10, 0, 2, 15], port));
    let datagram = |src, dst| (RxMeta::default(), UdpDatagram { src, dst, data: vec![7] }.to_frame(macs));
    let mut driver = SimDriver::new(config.clone(), LinkCaps::default(), 1);
    driver.host.set_record(false);
    // The memory of one stack is measured, over its life.
    driver.handovers.switch_off();
    // Fifty conversations that are answered from time to time, and very many questions that never are.
    let peer = SocketAddr::from(([198, 51, 100, 7], 4433));
    let used: Vec<_> = (0..50).map(|i| datagram(guest(1000 + i), peer)).collect();
    let mut now = Instant::ZERO;
    let mut state = 0;
    for round in 0..100u32 {
        now = now + Duration::from_millis(100);
        driver.turn(now, &used);
        for socket in (1..=50).map(SocketId) {
            assert!(driver.host.take_datagram(socket).is_some(), "opened anew");
            driver.host.peer_datagram(socket, b"answer", None);
        }
        assert_eq!(driver.turn(now, &[]).len(), 50);
        for batch in 0..20 {
            let frames: Vec<_> = (0..50)
                .map(|i| {
                    let [_, a, b, c] = (round * 1000 + batch * 50 + i).to_be_bytes();
                    datagram(guest(60_000), SocketAddr::from(([198, 18 + a, b, c], 9)))
                })
                .collect();
            driver.turn(now, &frames);
        }
        let closed: Vec<_> = driver.host.all().filter(|&s| driver.host.closed(s).is_some()).collect();
        for socket in closed {
            driver.host.forget(socket);
        }
        // The index of the table makes itself room for what was removed, once.
        if round == 50 {
            state = driver.stack.state_allocated();
        }
    }
    let c = driver.stack.counters();
    assert_eq!((driver.stack.flows(), driver.host.open_sockets()), (1000, 1000));
    assert_eq!((c.udp_opened, c.flows_evicted), (100_050, 99_050));
    assert_eq!(c.drops().count(), 0);
    assert!(driver.stack.state_allocated() <= state, "memory grew");
    assert_eq!(driver.stack.memory_used(), 0);
}

#[test]
fn the_least_useful_goes_first() {
    let mut setup = Setup::default();
    setup.config.max_flows = 4;
    setup.config.resolvers = vec!["192.0.2.53:53".parse().expect("an address")];
    let mut t = Script::new(setup);
    // A conversation, a question without an answer, a question about a name, an answered echo.
    let stream = t.connection(5000, 4433);
    t.guest("UDP data=10");
    t.host_sends_datagram(10);
    t.connection(5001, 4433);
    t.guest("UDP data=10");
    let dns_server = t.setup().config.v4.expect("IPv4").dns.expect("DNS");
    let (guest, _) = t.endpoints();
    t.connection_to(SocketAddr::new(guest.ip(), 5002), SocketAddr::new(dns_server.into(), 53));
    let question = b"\0\0\x01\0\0\x01\0\0\0\0\0\0\x01a\0\0\x01\0\x01";
    t.guest_udp(SocketAddr::new(dns_server.into(), 53), question);
    t.select(stream);
    t.guest("ICMP echo-request id=7 seq=1 data=56");
    t.host_answers_echo();
    t.take_all();
    // The answered question, then those that have no answer, the oldest first: those in use stay.
    let open = |t: &Script| {
        t.driver.host.all().filter(|&s| t.driver.host.closed(s).is_none()).map(|s| s.0).collect::<Vec<_>>()
    };
    assert_eq!(open(&t), [1, 2, 3, 4]);
    for (port, left) in
        [(6000, [1, 2, 3, 5]), (6001, [1, 3, 5, 6]), (6002, [1, 5, 6, 7]), (6003, [1, 6, 7, 8])]
    {
        t.advance_ms(10);
        t.connection(port, 4433);
        t.guest("UDP data=10");
        assert_eq!(open(&t), left);
    }
}

#[test]
fn a_table_full_of_silent_connections_is_not_full_for_ever() {
    let mut setup = Setup::default();
    setup.config.max_flows = 3;
    let mut t = Script::new(setup);
    let tcp: Vec<_> = (0..3u16)
        .map(|i| {
            let flow = t.connection(3000 + i, 80);
            t.establish_with("");
            flow
        })
        .collect();
    t.connection(5000, 4433);
    t.guest("UDP data=10");
    t.advance_ms(200_000);
    t.select(tcp[0]);
    t.guest("ACK data=10");
    t.take_all();
    assert_eq!(t.driver.stack.counters().dropped(DropReason::FlowTableFull), 1, "all may be in use");
    t.advance_ms(150_000);
    t.connection(5000, 4433);
    t.guest("UDP data=10");
    assert_eq!(t.driver.stack.counters().flows_evicted, 1);
    t.host_got_datagram(10);
    // The most recently used flow is still there.
    t.select(tcp[0]);
    t.take_all();
    t.guest("ACK data=10");
    t.expect("ACK ack=21");
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
        t.driver.host.set_ping_supported(false);
        t.guest("ICMP echo-request id=7 seq=1 data=56");
        t.expect_nothing();
        assert_eq!(t.driver.stack.counters().dropped(DropReason::EchoUnsupported), 1);
        t.expect_all_gone();
    });
}
