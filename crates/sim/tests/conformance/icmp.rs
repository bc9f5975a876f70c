//! ICMP from the path to the guest: hops, the kinds of error, path MTU; and two concurrent pings.

use brodo_core::counters::DropReason;
use brodo_core::host::{HostError, IcmpCause, IcmpReport, IpHeaderFields};
use brodo_sim::link::to_stack;
use brodo_sim::packet::{UdpDatagram, set_ttl};
use brodo_sim::script::{Script, Setup};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU8;

fn gateway(t: &Script) -> IpAddr {
    let config = &t.setup().config;
    if t.is_v6() {
        config.v6.expect("configured").gateway.into()
    } else {
        config.v4.expect("configured").gateway.into()
    }
}

fn router(t: &Script) -> IpAddr {
    let text = if t.is_v6() { "2001:db8:1::1" } else { "192.0.2.254" };
    text.parse().expect("an address")
}

/// Takes the next datagram sent by the host; returns its time to live.
fn ttl_sent(t: &mut Script) -> Option<u8> {
    let fields = t.host_datagram_fields().expect("the host sent a datagram");
    t.host_takes_datagram();
    fields.ttl.map(NonZeroU8::get)
}

#[test]
fn the_first_hop_is_the_gateway() {
    Script::each(|t| {
        for line in [
            "UDP data=32 ttl=1",
            "ICMP echo-request id=7 seq=1 data=32 ttl=1",
            "SYN win=65535 mss=1460 ttl=1",
            "UDP data=32 ttl=0",
        ] {
            t.guest(line);
            let error = t.expect_icmp();
            assert_eq!((error.src, error.kind), (gateway(t), if t.is_v6() { 3 } else { 11 }), "{line}");
            assert_eq!(error.code, 0);
        }
        t.expect_nothing();
        assert!(!t.has_socket());
        assert_eq!(t.driver.stack.counters().dropped(DropReason::TtlExpired), 4);
    });
}

#[test]
fn what_has_arrived_does_not_expire() {
    let mut setup = Setup::default();
    setup.config.resolvers = vec!["192.0.2.53:53".parse().expect("an address")];
    Script::each_with(&setup, |t| {
        let guest = t.addresses().0;
        t.connection_to(SocketAddr::new(guest, 7), SocketAddr::new(gateway(t), 7));
        t.guest("ICMP echo-request id=7 seq=9 data=56 ttl=1");
        t.expect("ICMP echo-reply id=7 seq=9 data=56");
        let config = &t.setup().config;
        let dns: IpAddr = if t.is_v6() {
            config.v6.expect("configured").dns.expect("DNS").into()
        } else {
            config.v4.expect("configured").dns.expect("DNS").into()
        };
        let (src, dst) = (SocketAddr::new(guest, 5000), SocketAddr::new(dns, 53));
        t.connection_to(src, dst);
        let question = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x01a\0\0\x01\0\x01".to_vec();
        let mut frame = UdpDatagram { src, dst, data: question }.to_frame(to_stack(t.setup().config.mac.0));
        set_ttl(&mut frame, 1);
        t.guest_raw(&frame);
        // The resolver may be some hops further.
        assert_eq!(ttl_sent(t), None);
        assert_eq!(t.driver.stack.counters().dropped(DropReason::TtlExpired), 0);
    });
}

#[test]
fn each_datagram_leaves_with_one_hop_less() {
    Script::each(|t| {
        let echo = t.connection(7, 7);
        let udp = t.connection(5000, 33_434);
        let table = [
            (2, Some(1)),
            (3, Some(2)),
            (63, Some(62)),
            (64, None),
            (65, Some(64)),
            (128, None),
            (254, Some(253)),
            (255, None),
        ];
        for (ttl, sent) in table {
            t.select(echo);
            t.guest(&format!("ICMP echo-request id=7 seq=1 data=32 ttl={ttl}"));
            assert_eq!(ttl_sent(t), sent, "{ttl}");
            t.select(udp);
            t.guest(&format!("UDP data=32 ttl={ttl}"));
            assert_eq!(ttl_sent(t), sent, "{ttl}");
        }
        // A run of datagrams is one send as far as the header fields agree.
        let frames: Vec<_> = [64, 64, 5, 5, 1].map(|ttl| t.frame(&format!("UDP data=100 ttl={ttl}"))).into();
        t.guest_raw_batch(&frames);
        for (len, ttl) in [(200, None), (200, NonZeroU8::new(4))] {
            assert_eq!(t.host_datagram_fields().map(|fields| fields.ttl), Some(ttl));
            assert_eq!(t.host_takes_datagram().0.len(), len);
        }
        t.expect("ICMP time-exceeded");
        t.host_got_nothing();
    });
}

#[test]
fn routers_on_the_way_are_named() {
    Script::each(|t| {
        let from = router(t);
        let report = IcmpReport { cause: IcmpCause::TimeExceeded, from: Some(from), sequence: None };
        t.connection(5000, 33_434);
        t.guest("UDP data=32 ttl=2");
        t.host_gets_icmp_report(report);
        let error = t.expect_icmp();
        assert_eq!((error.src, error.kind), (from, if t.is_v6() { 3 } else { 11 }));
        // Echoes are distinguished by their sequence numbers.
        for seq in [1u16, 513] {
            t.guest(&format!("ICMP echo-request id=7 seq={seq} data=32 ttl=2"));
            t.host_gets_icmp_report(IcmpReport { sequence: Some(seq), ..report });
            let error = t.expect_icmp();
            let l4 = if t.is_v6() { 40 } else { 20 };
            assert_eq!(error.src, from);
            assert_eq!(error.body[l4 + 4..l4 + 8], [0, 7, (seq >> 8) as u8, seq as u8]);
        }
    });
}

/// The host reports neighbours that do not answer from its own address, which in a copy of its network is the
/// guest's: a packet from that is a martian there.
#[test]
fn errors_from_the_guests_own_address_come_from_the_router() {
    Script::each(|t| {
        let own = t.addresses().0;
        t.guest("UDP data=32");
        t.host_gets_icmp_report(IcmpReport {
            cause: IcmpCause::HostUnreachable,
            from: Some(own),
            sequence: None,
        });
        assert_eq!(t.expect_icmp().src, gateway(t));
    });
}

#[test]
fn every_kind_of_error_reaches_udp_and_echo() {
    let table = [
        (IcmpCause::PortUnreachable, "port-unreachable"),
        (IcmpCause::NetUnreachable, "net-unreachable"),
        (IcmpCause::HostUnreachable, "host-unreachable"),
        (IcmpCause::ProtocolUnreachable, "protocol-unreachable"),
        (IcmpCause::Prohibited, "prohibited"),
        (IcmpCause::TimeExceeded, "time-exceeded"),
        (IcmpCause::ReassemblyTimeExceeded, "reassembly-time-exceeded"),
        (IcmpCause::TooBig(1400), "too-big mtu=1400"),
    ];
    Script::each(|t| {
        for (cause, message) in table {
            for line in ["UDP data=32", "ICMP echo-request id=7 seq=1 data=32"] {
                t.guest(line);
                t.host_gets_icmp(cause);
                t.expect(&format!("ICMP {message}"));
                t.expect_nothing();
            }
        }
        // Codes without a name of their own keep their number.
        for code in if t.is_v6() { vec![2, 5, 6] } else { vec![5, 6, 7, 8, 9, 10, 11, 12, 14, 15] } {
            t.guest("UDP data=32");
            t.host_gets_icmp(IcmpCause::Unreachable(code));
            t.expect(&format!("ICMP {}/{code}", if t.is_v6() { 1 } else { 3 }));
        }
    });
}

#[test]
fn errors_are_limited() {
    let mut setup = Setup::default();
    setup.config.max_flows = 16;
    Script::each_with(&setup, |t| {
        let frames: Vec<_> = (0..3000).map(|_| t.frame("UDP data=1 ttl=1")).collect();
        t.guest_raw_batch(&frames);
        assert_eq!(t.take_all().len(), 1000);
        assert_eq!(t.driver.stack.counters().dropped(DropReason::IcmpErrorRate), 2000);
        // One more each millisecond.
        t.advance_ms(10);
        t.guest_raw_batch(&frames);
        assert_eq!(t.take_all().len(), 10);
    });
}

#[test]
fn the_guests_word_on_fragments_is_the_hosts() {
    Script::each(|t| {
        t.connection(5000, 4433);
        for df in [1, 0, 1] {
            t.guest(&format!("UDP data=1400 df={df}"));
            // No router fragments IPv6.
            let dont_fragment = df == 1 || t.is_v6();
            assert_eq!(
                t.host_datagram_fields(),
                Some(IpHeaderFields { dont_fragment, ..IpHeaderFields::default() })
            );
            t.host_takes_datagram();
        }
        t.guest("ICMP echo-request id=7 seq=1 data=1400 df=1");
        assert_eq!(t.host_datagram_fields().map(|fields| fields.dont_fragment), Some(true));
        t.host_takes_datagram();
        t.driver.host.fail_next(t.socket(), HostError::TooBig(1300));
        t.guest("ICMP echo-request id=7 seq=2 data=1400 df=1");
        t.expect("ICMP too-big mtu=1300");
        t.host_got_nothing();
    });
}

#[test]
fn two_pings_of_one_host_are_kept_apart() {
    Script::each(|t| {
        let first = t.connection(1, 1);
        t.guest("ICMP echo-request id=100 seq=1 data=56");
        let second = t.connection(2, 2);
        t.guest("ICMP echo-request id=200 seq=1 data=56");
        t.select(first);
        t.guest("ICMP echo-request id=100 seq=2 data=56");
        // Replies in another order than the requests, each by its own socket.
        t.select(second);
        t.host_answers_echo();
        t.expect("ICMP echo-reply id=200 seq=1 data=56");
        t.select(first);
        for seq in [1, 2] {
            t.host_answers_echo();
            t.expect(&format!("ICMP echo-reply id=100 seq={seq} data=56"));
        }
        t.expect_nothing();
        assert_eq!(t.driver.host.opened(), 2);
    });
}
