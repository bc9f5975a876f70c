//! etherparse reads what we write and writes what we read: whole frames with IPv4, IPv6, TCP and UDP.

use crate::strategies::{ipv4, ipv6, quick, tcp};
use brodo_core::wire::ethernet::{EtherType, EthernetHeader, MacAddr};
use brodo_core::wire::ipv4::Ipv4Header;
use brodo_core::wire::ipv6::Ipv6Header;
use brodo_core::wire::tcp::{SackBlock, SackBlocks, TcpHeader};
use brodo_core::wire::udp::UdpHeader;
use brodo_core::wire::{TCP, UDP, checksum};
use etherparse::{
    IpNumber, Ipv6Extensions, Ipv6FragmentHeader, Ipv6RawExtHeader, Ipv6RoutingExtensions, NetHeaders,
    PacketBuilder, PacketHeaders, TcpOptionElement, TransportHeader,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::net::IpAddr;

const ETHERNET: EthernetHeader = EthernetHeader {
    dst: MacAddr([1, 2, 3, 4, 5, 6]),
    src: MacAddr([7, 8, 9, 10, 11, 12]),
    ethertype: EtherType::Ipv4,
};

/// The layer-4 packet with its checksum at `offset` computed.
fn summed(src: IpAddr, dst: IpAddr, protocol: u8, offset: usize, mut packet: Vec<u8>) -> Vec<u8> {
    let sum = checksum::pseudo_header(src, dst, protocol, packet.len() as u32);
    let sum = checksum::sum(&packet, sum);
    let field = if protocol == UDP { UdpHeader::finish_checksum(sum) } else { checksum::finish(sum) };
    packet[offset..offset + 2].copy_from_slice(&field.to_be_bytes());
    packet
}

/// A whole frame over IPv4.
fn frame_v4(header: &Ipv4Header, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; EthernetHeader::LEN + Ipv4Header::LEN];
    ETHERNET.emit(&mut frame);
    header.emit(&mut frame[EthernetHeader::LEN..]);
    frame.extend(payload);
    frame
}

/// A whole frame over IPv6.
fn frame_v6(header: &Ipv6Header, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; EthernetHeader::LEN + Ipv6Header::LEN];
    EthernetHeader { ethertype: EtherType::Ipv6, ..ETHERNET }.emit(&mut frame);
    header.emit(&mut frame[EthernetHeader::LEN..]);
    frame.extend(payload);
    frame
}

/// Our options as etherparse names them, without padding.
fn elements(header: &TcpHeader) -> Vec<TcpOptionElement> {
    let options = &header.options;
    let sack = options.sack.as_slice().split_first().map(|(first, rest)| {
        let edges = |block: &SackBlock| (block.left.0, block.right.0);
        let pair = |i: usize| rest.get(i).map(edges);
        TcpOptionElement::SelectiveAcknowledgement(edges(first), [pair(0), pair(1), pair(2)])
    });
    [
        options.mss.map(TcpOptionElement::MaximumSegmentSize),
        options.sack_permitted.then_some(TcpOptionElement::SelectiveAcknowledgementPermitted),
        options.timestamps.map(|(value, echo)| TcpOptionElement::Timestamp(value, echo)),
        options.window_scale.map(TcpOptionElement::WindowScale),
        sack,
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Asserts that etherparse's header equals ours.
fn same_tcp(theirs: &etherparse::TcpHeader, ours: &TcpHeader) {
    let flags =
        [theirs.fin, theirs.syn, theirs.rst, theirs.psh, theirs.ack, theirs.urg, theirs.ece, theirs.cwr];
    let flags = flags.iter().enumerate().fold(0, |sum, (bit, &set)| sum | u8::from(set) << bit);
    assert_eq!(
        (theirs.source_port, theirs.destination_port, theirs.sequence_number, theirs.acknowledgment_number),
        (ours.src_port, ours.dst_port, ours.seq.0, ours.ack.0)
    );
    assert_eq!((flags, theirs.window_size, theirs.urgent_pointer), (ours.flags.0, ours.window, ours.urgent));
    let padding = |e: &TcpOptionElement| *e == TcpOptionElement::Noop;
    let read: Vec<_> = theirs.options_iterator().map(Result::unwrap).filter(|e| !padding(e)).collect();
    assert_eq!(read, elements(ours));
}

proptest! {
    #![proptest_config(quick())]

    #[test]
    fn they_read_our_tcp_over_ipv4((ip, _) in ipv4(), tcp in tcp(), payload in vec(any::<u8>(), 0..99)) {
        let mut segment = vec![0; tcp.header_len()];
        tcp.emit(&mut segment);
        segment.extend(&payload);
        let segment = summed(ip.src.into(), ip.dst.into(), TCP, TcpHeader::CHECKSUM_OFFSET, segment);
        let ip = Ipv4Header { protocol: TCP, payload_len: segment.len() as u16, ..ip };
        let frame = frame_v4(&ip, &segment);
        let parsed = PacketHeaders::from_ethernet_slice(&frame).unwrap();
        let Some(NetHeaders::Ipv4(net, _)) = parsed.net else { panic!() };
        prop_assert_eq!((net.source, net.destination), (ip.src.octets(), ip.dst.octets()));
        prop_assert_eq!((net.time_to_live, net.identification), (ip.ttl, ip.ident));
        prop_assert_eq!(net.dont_fragment, ip.dont_fragment);
        prop_assert_eq!(net.dscp.value() << 2 | net.ecn.value(), ip.tos);
        prop_assert_eq!(net.header_checksum, net.calc_header_checksum());
        let Some(TransportHeader::Tcp(theirs)) = parsed.transport else { panic!() };
        same_tcp(&theirs, &tcp);
        prop_assert_eq!(theirs.checksum, theirs.calc_checksum_ipv4(&net, &payload).unwrap());
        prop_assert_eq!(parsed.payload.slice(), payload);
    }

    #[test]
    fn they_read_our_udp_over_ipv6((ip, _) in ipv6(), ports: (u16, u16), payload in vec(any::<u8>(), 0..99)) {
        let length = (UdpHeader::LEN + payload.len()) as u16;
        let mut datagram = vec![0; UdpHeader::LEN];
        UdpHeader { src_port: ports.0, dst_port: ports.1, length, checksum: 0 }.emit(&mut datagram);
        datagram.extend(&payload);
        let datagram = summed(ip.src.into(), ip.dst.into(), UDP, UdpHeader::CHECKSUM_OFFSET, datagram);
        let ip = Ipv6Header { next_header: UDP, payload_len: length, ..ip };
        let frame = frame_v6(&ip, &datagram);
        let parsed = PacketHeaders::from_ethernet_slice(&frame).unwrap();
        let Some(NetHeaders::Ipv6(net, _)) = parsed.net else { panic!() };
        prop_assert_eq!((net.source, net.destination), (ip.src.octets(), ip.dst.octets()));
        prop_assert_eq!((net.hop_limit, net.traffic_class), (ip.hop_limit, ip.traffic_class));
        prop_assert_eq!(net.flow_label.value(), ip.flow_label);
        let Some(TransportHeader::Udp(theirs)) = parsed.transport else { panic!() };
        prop_assert_eq!((theirs.source_port, theirs.destination_port), ports);
        prop_assert_eq!(theirs.length, length);
        prop_assert_eq!(theirs.checksum, theirs.calc_checksum_ipv6(&net, &payload).unwrap());
        prop_assert_eq!(parsed.payload.slice(), payload);
    }

    #[test]
    fn we_read_their_tcp((ip, _) in ipv6(), header in tcp(), payload in vec(any::<u8>(), 0..99)) {
        // They pad behind, which leaves less room for SACK blocks beside all the others.
        let mut ours = header;
        let mut theirs = etherparse::TcpHeader::new(ours.src_port, ours.dst_port, ours.seq.0, ours.window);
        if theirs.set_options(&elements(&ours)).is_err() {
            ours.options.sack = SackBlocks::EMPTY;
            theirs.set_options(&elements(&ours)).unwrap();
        }
        let flag = |bit: u8| ours.flags.0 & 1 << bit != 0;
        (theirs.fin, theirs.syn, theirs.rst, theirs.psh) = (flag(0), flag(1), flag(2), flag(3));
        (theirs.ack, theirs.urg, theirs.ece, theirs.cwr) = (flag(4), flag(5), flag(6), flag(7));
        theirs.acknowledgment_number = ours.ack.0;
        theirs.urgent_pointer = ours.urgent;
        let mut frame = Vec::new();
        PacketBuilder::ethernet2(ETHERNET.src.0, ETHERNET.dst.0)
            .ipv6(ip.src.octets(), ip.dst.octets(), ip.hop_limit)
            .tcp_header(theirs)
            .write(&mut frame, &payload)
            .unwrap();
        let (eth, packet) = EthernetHeader::parse(&frame).unwrap();
        prop_assert_eq!(eth, EthernetHeader { ethertype: EtherType::Ipv6, ..ETHERNET });
        let (net, segment) = Ipv6Header::parse(packet).unwrap();
        prop_assert_eq!((net.src, net.dst, net.next_header), (ip.src, ip.dst, TCP));
        let sum = checksum::pseudo_header(net.src.into(), net.dst.into(), TCP, segment.len() as u32);
        prop_assert_eq!(checksum::finish(checksum::sum(segment, sum)), 0);
        prop_assert_eq!(TcpHeader::parse(segment), Ok((ours, &payload[..])));
    }

    #[test]
    fn we_read_their_udp_over_ipv4((ip, _) in ipv4(), ports: (u16, u16), payload in vec(any::<u8>(), 0..99)) {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2(ETHERNET.src.0, ETHERNET.dst.0)
            .ipv4(ip.src.octets(), ip.dst.octets(), ip.ttl)
            .udp(ports.0, ports.1)
            .write(&mut frame, &payload)
            .unwrap();
        let (net, datagram) = Ipv4Header::parse(&frame[EthernetHeader::LEN..]).unwrap();
        prop_assert_eq!((net.src, net.dst, net.protocol, net.ttl), (ip.src, ip.dst, UDP, ip.ttl));
        let sum = checksum::pseudo_header(net.src.into(), net.dst.into(), UDP, datagram.len() as u32);
        prop_assert_eq!(checksum::finish(checksum::sum(datagram, sum)), 0);
        let (header, data) = UdpHeader::parse(datagram).unwrap();
        prop_assert_eq!((header.src_port, header.dst_port), ports);
        prop_assert_eq!(data, payload);
    }

    #[test]
    fn we_read_their_extension_chains(
        (ip, _) in ipv6(),
        present: [bool; 4],
        units in 0..20usize,
        ident: u32,
        payload in vec(any::<u8>(), 0..99),
    ) {
        // Six bytes behind type and length, filled by one PadN, and more units of eight.
        let raw = || {
            let mut options = vec![0; 6 + 8 * units.min(15)];
            options[0] = 1;
            options[1] = (options.len() - 2) as u8;
            Ipv6RawExtHeader::new_raw(IpNumber(0), &options).unwrap()
        };
        let routing = Ipv6RawExtHeader::new_raw(IpNumber(0), &[0; 6]).unwrap();
        let fragment = Ipv6FragmentHeader::new(IpNumber(0), 0.try_into().unwrap(), false, ident);
        let mut chain = Ipv6Extensions {
            hop_by_hop_options: present[0].then(raw),
            destination_options: present[1].then(raw),
            routing: present[2].then_some(Ipv6RoutingExtensions { routing, final_destination_options: None }),
            fragment: present[3].then_some(fragment),
            auth: None,
        };
        let first = chain.set_next_headers(IpNumber(ip.next_header));
        let mut body = Vec::new();
        chain.write(&mut body, first).unwrap();
        body.extend(&payload);
        let mut packet = vec![0; Ipv6Header::LEN];
        Ipv6Header { next_header: first.0, payload_len: body.len() as u16, ..ip }.emit(&mut packet);
        packet.extend(&body);
        let expected = Ipv6Header { payload_len: payload.len() as u16, ..ip };
        prop_assert_eq!(Ipv6Header::parse(&packet), Ok((expected, &payload[..])));
    }
}
