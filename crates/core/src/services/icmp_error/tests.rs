//! ICMP errors: every cause over both families, what is quoted, and what must never be answered.

use super::super::tests::{GUEST, open_ipv4, open_ipv6};
use super::*;
use crate::flow::Endpoint;
use std::net::SocketAddr;

const CAUSES: [IcmpCause; 9] = [
    IcmpCause::NetUnreachable,
    IcmpCause::HostUnreachable,
    IcmpCause::PortUnreachable,
    IcmpCause::Prohibited,
    IcmpCause::TooBig(1400),
    IcmpCause::TimeExceeded,
    IcmpCause::ReassemblyTimeExceeded,
    IcmpCause::ProtocolUnreachable,
    IcmpCause::Unreachable(5),
];

/// A packet of the guest's to `remote`, with `payload` behind its headers.
fn packet(protocol: u8, guest: &str, remote: &str, payload: &[u8]) -> Vec<u8> {
    let payload_len = payload.len() as u16;
    let mut packet = match (guest.parse().unwrap(), remote.parse().unwrap()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut header = vec![0; Ipv4Header::LEN];
            Ipv4Header { src, dst, protocol, ttl: 9, ident: 1, dont_fragment: true, tos: 0, payload_len }
                .emit(&mut header);
            header
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut header = vec![0; Ipv6Header::LEN];
            let (next_header, hop_limit, traffic_class, flow_label) = (protocol, 9, 0, 0);
            Ipv6Header { src, dst, next_header, hop_limit, traffic_class, flow_label, payload_len }
                .emit(&mut header);
            header
        }
        _ => unreachable!(),
    };
    packet.extend(payload);
    packet
}

fn tell(cause: IcmpCause, from: Option<IpAddr>, packet: &[u8]) -> Result<Option<Vec<u8>>, DropReason> {
    let mut out = [0; FRAME_LEN_MAX];
    let len = icmp_error(&Config::default(), GUEST, cause, from, packet, &mut out)?;
    Ok(len.map(|len| out[..len].to_vec()))
}

/// Networks of one or two addresses, whose last one is a host's (RFC 3021); longer ones have a broadcast.
#[test]
fn guests_in_networks_of_one_or_two_addresses_get_errors() {
    for (prefix_len, remote, answered) in
        [(32, "192.0.2.1", true), (31, "10.0.2.14", true), (31, "192.0.2.1", true), (28, "10.0.2.15", false)]
    {
        let mut config = Config::default();
        let net = config.v4.as_mut().unwrap();
        net.prefix_len = prefix_len;
        let guest = if prefix_len == 28 { "10.0.2.5" } else { "10.0.2.15" };
        net.guest = guest.parse().unwrap();
        let packet = packet(UDP, guest, remote, &[7; 8]);
        let mut out = [0; FRAME_LEN_MAX];
        let found = icmp_error(&config, GUEST, IcmpCause::PortUnreachable, None, &packet, &mut out);
        assert_eq!(found.map(|len| len.is_some()), Ok(answered), "{remote}/{prefix_len}");
    }
}

#[test]
fn every_cause_over_ipv4() {
    for size in [8, 100, 40_000] {
        let packet = packet(UDP, "10.0.2.15", "192.0.2.1", &vec![7; size]);
        let quoted = &packet[..packet.len().min(Icmpv4Message::QUOTE_MAX)];
        let expected = [
            Icmpv4Message::Unreachable { code: 0, quoted },
            Icmpv4Message::Unreachable { code: 1, quoted },
            Icmpv4Message::Unreachable { code: 3, quoted },
            Icmpv4Message::Unreachable { code: 13, quoted },
            Icmpv4Message::FragmentationNeeded { mtu: 1400, quoted },
            Icmpv4Message::TimeExceeded { code: 0, quoted },
            Icmpv4Message::TimeExceeded { code: 1, quoted },
            Icmpv4Message::Unreachable { code: 2, quoted },
            Icmpv4Message::Unreachable { code: 5, quoted },
        ];
        for (cause, expected) in CAUSES.into_iter().zip(expected) {
            let router = "198.51.100.7".parse().unwrap();
            let frame = tell(cause, Some(router), &packet).unwrap().unwrap();
            let (eth, ip, message) = open_ipv4(&frame);
            assert_eq!((eth.dst, IpAddr::V4(ip.src), ip.protocol), (GUEST, router, ICMP));
            assert_eq!(ip.dst, Ipv4Addr::new(10, 0, 2, 15));
            assert_eq!(Icmpv4Message::parse(message), Ok(expected));
            assert!(frame.len() <= 14 + 576);
        }
    }
}

#[test]
fn every_cause_over_ipv6() {
    for size in [8, 100, 40_000] {
        let packet = packet(UDP, "fd00::15", "2001:db8::1", &vec![7; size]);
        let quoted = &packet[..packet.len().min(Icmpv6Message::QUOTE_MAX)];
        let expected = [
            Icmpv6Message::Unreachable { code: 0, quoted },
            Icmpv6Message::Unreachable { code: 3, quoted },
            Icmpv6Message::Unreachable { code: 4, quoted },
            Icmpv6Message::Unreachable { code: 1, quoted },
            Icmpv6Message::PacketTooBig { mtu: 1400, quoted },
            Icmpv6Message::TimeExceeded { code: 0, quoted },
            Icmpv6Message::TimeExceeded { code: 1, quoted },
            Icmpv6Message::ParameterProblem { code: 1, pointer: 6, quoted },
            Icmpv6Message::Unreachable { code: 5, quoted },
        ];
        for (cause, expected) in CAUSES.into_iter().zip(expected) {
            let frame = tell(cause, None, &packet).unwrap().unwrap();
            let (eth, ip, message) = open_ipv6(&frame);
            assert_eq!((eth.dst, ip.src), (GUEST, Config::default().v6.unwrap().gateway));
            assert_eq!(Icmpv6Message::parse(ip.src, ip.dst, message), Ok(expected));
            assert!(frame.len() <= 14 + 1280);
        }
    }
}

#[test]
fn packets_that_no_error_may_answer() {
    let echo = [8, 0, 0, 0, 0, 0, 0, 0];
    let unreachable = [3, 3, 0, 0, 0, 0, 0, 0];
    let echo_v6 = [128, 0, 0, 0, 0, 0, 0, 0];
    let unreachable_v6 = [1, 4, 0, 0, 0, 0, 0, 0];
    let table: [(u8, &str, &str, &[u8], bool); 17] = [
        (ICMP, "10.0.2.15", "192.0.2.1", &echo, true),
        (ICMP, "10.0.2.15", "192.0.2.1", &unreachable, false),
        (ICMP, "10.0.2.15", "192.0.2.1", &[], false),
        (UDP, "10.0.2.15", "255.255.255.255", &echo, false),
        (UDP, "10.0.2.15", "10.0.2.255", &echo, false),
        (UDP, "10.0.2.15", "224.0.0.251", &echo, false),
        (UDP, "0.0.0.0", "192.0.2.1", &echo, false),
        (UDP, "127.0.0.1", "192.0.2.1", &echo, false),
        (UDP, "224.0.0.1", "192.0.2.1", &echo, false),
        (ICMPV6, "fd00::15", "2001:db8::1", &echo_v6, true),
        (ICMPV6, "fd00::15", "2001:db8::1", &unreachable_v6, false),
        (ICMPV6, "fd00::15", "2001:db8::1", &[], false),
        (ICMPV6, "fd00::15", "2001:db8::1", &[137], false),
        (UDP, "fd00::15", "ff02::fb", &echo, false),
        (UDP, "::", "2001:db8::1", &echo, false),
        (UDP, "::1", "2001:db8::1", &echo, false),
        (UDP, "ff02::1", "2001:db8::1", &echo, false),
    ];
    for (protocol, guest, remote, payload, answered) in table {
        let packet = packet(protocol, guest, remote, payload);
        let frame = tell(IcmpCause::HostUnreachable, None, &packet).unwrap();
        assert_eq!(frame.is_some(), answered, "{protocol} {guest} {remote} {payload:?}");
    }
    assert!(tell(IcmpCause::HostUnreachable, None, &[]).is_err());
    assert!(tell(IcmpCause::HostUnreachable, None, &[0x45; 30]).is_err());
    assert!(tell(IcmpCause::HostUnreachable, None, &[0x60; 30]).is_err());
}

#[test]
fn mtus_stay_legal() {
    let packet_v4 = packet(UDP, "10.0.2.15", "192.0.2.1", &[0; 8]);
    let frame = tell(IcmpCause::TooBig(1 << 20), None, &packet_v4).unwrap().unwrap();
    let (_, _, message) = open_ipv4(&frame);
    assert!(matches!(
        Icmpv4Message::parse(message),
        Ok(Icmpv4Message::FragmentationNeeded { mtu: u16::MAX, .. })
    ));
    let packet_v6 = packet(UDP, "fd00::15", "2001:db8::1", &[0; 8]);
    let frame = tell(IcmpCause::TooBig(0), None, &packet_v6).unwrap().unwrap();
    let (_, ip, message) = open_ipv6(&frame);
    let parsed = Icmpv6Message::parse(ip.src, ip.dst, message);
    assert!(matches!(parsed, Ok(Icmpv6Message::PacketTooBig { mtu: 1280, .. })));
}

#[test]
fn quotes_from_keys() {
    let address = |text: &str| Endpoint::from(text.parse::<SocketAddr>().unwrap());
    let mut out = [0; QUOTE_LEN_MAX];
    for (protocol, guest, remote, start) in [
        (Protocol::Udp, "10.0.2.15:4660", "192.0.2.1:53", [0x12, 0x34, 0, 53, 0, 8, 0, 0]),
        (Protocol::Udp, "[fd00::15]:4660", "[2001:db8::1]:53", [0x12, 0x34, 0, 53, 0, 8, 0, 0]),
        (Protocol::Echo, "10.0.2.15:4660", "192.0.2.1:4660", [8, 0, 0, 0, 0x12, 0x34, 1, 2]),
        (Protocol::Echo, "[fd00::15]:4660", "[2001:db8::1]:4660", [128, 0, 0, 0, 0x12, 0x34, 1, 2]),
        (Protocol::Tcp, "10.0.2.15:4660", "192.0.2.1:80", [0x12, 0x34, 0, 80, 0, 0, 0, 0]),
    ] {
        let key = FlowKey { protocol, guest: address(guest), remote: address(remote) };
        let len = quote(&key, Some(0x0102), &mut out).unwrap();
        assert_eq!(out[len - 8..len], start);
        assert!(tell(IcmpCause::PortUnreachable, None, &out[..len]).unwrap().is_some());
    }
    let mixed = FlowKey {
        protocol: Protocol::Udp,
        guest: address("10.0.2.15:1"),
        remote: address("[2001:db8::1]:1"),
    };
    assert_eq!(quote(&mixed, None, &mut out), None);
}
