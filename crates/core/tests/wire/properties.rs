//! Round trips, truncation at every length, and arbitrary bytes, for every parser and service.

use crate::strategies::{arp, ethernet, ipv4, ipv6, ndp, quick, tcp, udp};
use brodo_core::config::Config;
use brodo_core::host::IcmpCause;
use brodo_core::services;
use brodo_core::wire::arp::ArpPacket;
use brodo_core::wire::dns::{Header, Name, Question, Rcode, error_reply};
use brodo_core::wire::ethernet::{EtherType, EthernetHeader, MacAddr};
use brodo_core::wire::icmpv4::{Echo, Icmpv4Message};
use brodo_core::wire::icmpv6::{self, Icmpv6Message};
use brodo_core::wire::ipv4::Ipv4Header;
use brodo_core::wire::ipv6::Ipv6Header;
use brodo_core::wire::ndp::NdpMessage;
use brodo_core::wire::tcp::TcpHeader;
use brodo_core::wire::udp::UdpHeader;
use brodo_core::wire::{ICMPV6, checksum, dhcpv4, dhcpv6, dns};
use proptest::collection::vec;
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Calls `parse` with `packet` cut to every length.
fn cut(packet: &[u8], mut parse: impl FnMut(&[u8])) {
    for len in 0..=packet.len() {
        parse(&packet[..len]);
    }
}

/// Bytes with a plausible beginning for some parser, the rest arbitrary.
fn bytes_after(start: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    (Just(start), vec(any::<u8>(), 0..400)).prop_map(|(mut start, rest)| {
        start.extend(rest);
        start
    })
}

proptest! {
    #![proptest_config(quick())]

    #[test]
    fn ethernet_round_trip(header in ethernet(), payload in vec(any::<u8>(), 0..64)) {
        let mut frame = vec![0; EthernetHeader::LEN];
        header.emit(&mut frame);
        frame.extend(&payload);
        prop_assert_eq!(EthernetHeader::parse(&frame), Ok((header, &payload[..])));
        cut(&frame, |f| _ = EthernetHeader::parse(f));
    }

    #[test]
    fn ipv4_round_trip((header, payload) in ipv4()) {
        let mut packet = vec![0; Ipv4Header::LEN];
        header.emit(&mut packet);
        packet.extend(&payload);
        prop_assert_eq!(Ipv4Header::parse(&packet), Ok((header, &payload[..])));
        cut(&packet[..packet.len() - 1], |p| assert!(Ipv4Header::parse(p).is_err()));
    }

    #[test]
    fn ipv6_round_trip((header, payload) in ipv6()) {
        let mut packet = vec![0; Ipv6Header::LEN];
        header.emit(&mut packet);
        packet.extend(&payload);
        prop_assert_eq!(Ipv6Header::parse(&packet), Ok((header, &payload[..])));
        cut(&packet[..packet.len() - 1], |p| assert!(Ipv6Header::parse(p).is_err()));
    }

    #[test]
    fn udp_round_trip((header, payload) in udp()) {
        let mut packet = vec![0; UdpHeader::LEN];
        header.emit(&mut packet);
        packet.extend(&payload);
        prop_assert_eq!(UdpHeader::parse(&packet), Ok((header, &payload[..])));
        cut(&packet[..packet.len() - 1], |p| assert!(UdpHeader::parse(p).is_err()));
    }

    #[test]
    fn tcp_round_trip(header in tcp(), payload in vec(any::<u8>(), 0..64)) {
        let mut segment = vec![0; header.header_len()];
        header.emit(&mut segment);
        segment.extend(&payload);
        prop_assert_eq!(TcpHeader::parse(&segment), Ok((header, &payload[..])));
        cut(&segment, |s| _ = TcpHeader::parse(s));
    }

    #[test]
    fn arp_round_trip(packet in arp()) {
        let mut bytes = [0; ArpPacket::LEN];
        packet.emit(&mut bytes);
        prop_assert_eq!(ArpPacket::parse(&bytes), Ok(packet));
    }

    #[test]
    fn ndp_round_trip(message in ndp(), src: Ipv6Addr, dst: Ipv6Addr) {
        let mut bytes = [0; NdpMessage::LEN_MAX];
        let len = message.emit(src, dst, &mut bytes);
        prop_assert_eq!(icmpv6::verify_checksum(src, dst, &bytes[..len]), Ok(()));
        prop_assert_eq!(NdpMessage::parse(&bytes[..len]), Ok(message));
    }

    #[test]
    fn icmp_round_trips(
        kind in 0..5u8, code in (0..16u8).prop_filter("not fragmentation needed", |c| *c != 4),
        first: u16, second: u16, data in vec(any::<u8>(), 0..300), src: Ipv6Addr, dst: Ipv6Addr,
    ) {
        let echo = Echo { ident: first, sequence: second, data: &data };
        let quoted = &data[..];
        let message = match kind {
            0 => Icmpv4Message::EchoRequest(echo),
            1 => Icmpv4Message::EchoReply(echo),
            2 => Icmpv4Message::Unreachable { code, quoted },
            3 => Icmpv4Message::FragmentationNeeded { mtu: first, quoted },
            _ => Icmpv4Message::TimeExceeded { code, quoted },
        };
        let mut bytes = vec![0; message.len()];
        message.emit(&mut bytes);
        prop_assert_eq!(Icmpv4Message::parse(&bytes), Ok(message));
        cut(&bytes, |b| _ = Icmpv4Message::parse(b));

        let message = match kind {
            0 => Icmpv6Message::EchoRequest(echo),
            1 => Icmpv6Message::EchoReply(echo),
            2 => Icmpv6Message::Unreachable { code, quoted },
            3 => Icmpv6Message::PacketTooBig { mtu: u32::from(first) * 3, quoted },
            _ => Icmpv6Message::TimeExceeded { code, quoted },
        };
        let mut bytes = vec![0; message.len()];
        message.emit(src, dst, &mut bytes);
        prop_assert_eq!(Icmpv6Message::parse(src, dst, &bytes), Ok(message));
        cut(&bytes, |b| _ = Icmpv6Message::parse(src, dst, b));
    }

    #[test]
    fn dns_header_round_trip(fields: [u16; 6]) {
        let [id, flags, questions, answers, authorities, additionals] = fields;
        let header = Header { id, flags, questions, answers, authorities, additionals };
        let mut bytes = [0; Header::LEN];
        header.emit(&mut bytes);
        prop_assert_eq!(Header::parse(&bytes), Some(header));
    }

    #[test]
    fn dns_names_round_trip(name in "[a-z0-9_-]{1,63}(\\.[A-Z0-9]{1,30}){0,5}") {
        let mut bytes = [0; dns::NAME_LEN_MAX];
        let len = dns::encode_name(&name, &mut bytes).unwrap();
        let (parsed, end) = Name::parse(&bytes, 0).unwrap();
        prop_assert_eq!((parsed.to_string(), end), (name + ".", len));
    }

    #[test]
    fn sums_in_pieces(data in vec(any::<u8>(), 0..300), cut: prop::sample::Index, initial: u32) {
        let (a, b) = data.split_at(cut.index(data.len() + 1) & !1);
        let whole = checksum::fold(checksum::sum(&data, initial));
        prop_assert_eq!(checksum::fold(checksum::sum(b, checksum::sum(a, initial))), whole);
        let mut slow = u64::from(initial);
        for pair in data.chunks(2) {
            slow += u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
        }
        while slow > 0xffff {
            slow = (slow & 0xffff) + (slow >> 16);
        }
        prop_assert_eq!(u64::from(whole), slow);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..300), src: Ipv6Addr, dst: Ipv6Addr) {
        _ = EthernetHeader::parse(&bytes);
        _ = ArpPacket::parse(&bytes);
        _ = Ipv4Header::parse(&bytes);
        _ = Ipv6Header::parse(&bytes);
        _ = TcpHeader::parse(&bytes);
        _ = UdpHeader::parse(&bytes);
        _ = Icmpv4Message::parse(&bytes);
        _ = Icmpv6Message::parse(src, dst, &bytes);
        _ = NdpMessage::parse(&bytes);
        _ = dhcpv4::Request::parse(&bytes);
        _ = dhcpv6::ClientMessage::parse(&bytes);
        _ = Question::parse(&bytes).map(|q| q.name.to_string());
        _ = error_reply(&bytes, Rcode::ServFail, &mut [0; dns::ERROR_REPLY_LEN_MAX]);
    }

    #[test]
    fn services_take_arbitrary_bytes(
        udp_v4 in bytes_after(dhcp_start()), udp_v6 in bytes_after(vec![1, 0, 0, 0, 0, 1, 0, 2, 7, 7]),
        kind in 1..12u8, icmp in vec(any::<u8>(), 4..200), src: Ipv6Addr, packet in vec(any::<u8>(), 0..200),
        mtu: u32,
    ) {
        let config = Config { search: vec!["lan.example".into(); 30], ..Config::default() };
        let mut out = [0; services::FRAME_LEN_MAX];
        let eth = EthernetHeader { dst: config.mac, src: MacAddr([2; 6]), ethertype: EtherType::Ipv4 };
        let any_v4 = Ipv4Addr::UNSPECIFIED;
        _ = services::arp::answer(&config, &packet, &mut out);
        _ = services::dhcpv4::answer(&config, &eth, any_v4, Ipv4Addr::BROADCAST, &udp_v4, &mut out);
        let mut udp_v6 = udp_v6;
        udp_v6[0] = kind;
        _ = services::dhcpv6::answer(&config, &eth, src, dhcpv6::ALL_SERVERS, &udp_v6, &mut out);

        let net = config.v6.unwrap();
        let mut icmp = icmp;
        icmp[0] = 133 + kind % 5;
        icmp[1] = 0;
        icmpv6::fill_checksum(src, net.gateway, &mut icmp);
        let ip = Ipv6Header {
            src,
            dst: net.gateway,
            next_header: ICMPV6,
            hop_limit: 255,
            traffic_class: 0,
            flow_label: 0,
            payload_len: 0,
        };
        _ = services::ndp::answer(&config, eth.src, &ip, &icmp, &[], &mut out);
        let cause = IcmpCause::TooBig(mtu);
        _ = services::icmp_error::icmp_error(&config, eth.src, cause, None, &packet, &mut out);
    }
}

/// A DHCPv4 request up to its first options.
fn dhcp_start() -> Vec<u8> {
    let mut start = vec![0; 236];
    start[..3].copy_from_slice(&[1, 1, 6]);
    start.extend([99, 130, 83, 99, 53, 1, 1]);
    start
}
