//! Bodies of the fuzz targets, one per parser: each takes arbitrary bytes. Beside the absence of panics it
//! checks the round trip (a parsed packet, emitted and parsed, is the same) and the answers of services,
//! which our own parsers must accept, checksums included.
//!
//! Where a checksum would reject nearly all input, the body also parses the input with a corrected checksum.
//! The bodies are plain functions: libFuzzer calls them (`fuzz_targets`), and so does an ordinary test, with
//! the committed corpus and a fixed series of mutations of it (`tests/replay.rs`).

pub mod control;
pub mod fragments;
pub mod names;
pub mod policy;
pub mod ports;
pub mod promotion;
pub mod recover;
pub mod restore;
pub mod restored;
pub mod rings;
pub mod same_server;
pub mod stack;

use brodo_core::config::Config;
use brodo_core::counters::DropReason;
use brodo_core::host::IcmpCause;
use brodo_core::services::{self, FRAME_LEN_MAX};
use brodo_core::wire::arp::ArpPacket;
use brodo_core::wire::dhcpv4::Request;
use brodo_core::wire::dhcpv6::{ALL_SERVERS, ClientMessage};
use brodo_core::wire::dns::message::{A, Fit, KEY_LEN_MAX, Query, Records, Reply};
use brodo_core::wire::dns::{self, Header, Name, Question, Rcode};
use brodo_core::wire::ethernet::{EtherType, EthernetHeader, MacAddr};
use brodo_core::wire::fragment::Fragment;
use brodo_core::wire::icmpv4::Icmpv4Message;
use brodo_core::wire::icmpv6::{self, Icmpv6Message};
use brodo_core::wire::ipv4::Ipv4Header;
use brodo_core::wire::ipv6::{FRAGMENT, Ipv6Header};
use brodo_core::wire::ndp::NdpMessage;
use brodo_core::wire::tcp::{TcpHeader, TcpOptions};
use brodo_core::wire::udp::UdpHeader;
use brodo_core::wire::{ICMPV6, UDP, checksum};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Name of a target, of its program and its corpus; and its body.
pub type Target = (&'static str, fn(&[u8]));

/// Every body.
pub const TARGETS: &[Target] = &[
    ("ethernet", ethernet),
    ("arp", arp),
    ("ipv4", ipv4),
    ("ipv6", ipv6),
    ("tcp", tcp),
    ("udp", udp),
    ("icmpv4", icmpv4),
    ("icmpv6", icmpv6),
    ("ndp", ndp),
    ("dhcpv4", dhcpv4),
    ("dhcpv6", dhcpv6),
    ("dns", dns),
    ("icmp_error", icmp_error),
    ("control", control::run),
    ("fragments", fragments::run),
    ("hello", policy::hello),
    ("http", policy::http),
    ("names", names::run),
    ("ports", ports::run),
    ("promotion", promotion::run),
    ("quic", policy::quic),
    ("recover", recover::run),
    ("restore", restore::run),
    ("rings", rings::run),
    ("rules", policy::rules),
    ("same_server", same_server::run),
    ("stack", stack::run),
];

const GUEST: MacAddr = MacAddr([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
const SRC_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x15);

fn config() -> Config {
    Config { search: vec!["lan.example".into(), "corp.example".into()], ..Config::default() }
}

/// Parses an answer: every layer must be valid, and no byte may follow the last.
fn check_frame(frame: &[u8]) {
    let (eth, packet) = EthernetHeader::parse(frame).expect("a frame");
    assert_eq!(eth.src, config().mac);
    match eth.ethertype {
        EtherType::Arp => _ = ArpPacket::parse(packet).expect("ARP"),
        EtherType::Ipv4 => {
            let (ip, payload) = Ipv4Header::parse(packet).expect("IPv4");
            assert_eq!(packet.len(), Ipv4Header::LEN + payload.len());
            match ip.protocol {
                UDP => check_udp(ip.src.into(), ip.dst.into(), payload),
                _ => _ = Icmpv4Message::parse(payload).expect("ICMP"),
            }
        }
        EtherType::Ipv6 => {
            let (ip, payload) = Ipv6Header::parse(packet).expect("IPv6");
            assert_eq!(packet.len(), Ipv6Header::LEN + payload.len());
            match ip.next_header {
                UDP => check_udp(ip.src.into(), ip.dst.into(), payload),
                _ => icmpv6::verify_checksum(ip.src, ip.dst, payload).expect("ICMPv6"),
            }
        }
        EtherType::Other(_) => panic!("an EtherType that no service sends"),
    }
}

fn check_udp(src: IpAddr, dst: IpAddr, datagram: &[u8]) {
    let (header, payload) = UdpHeader::parse(datagram).expect("UDP");
    assert_eq!(UdpHeader::LEN + payload.len(), datagram.len());
    assert_ne!(header.checksum, 0);
    let sum = checksum::pseudo_header(src, dst, UDP, datagram.len() as u32);
    assert_eq!(checksum::finish(checksum::sum(datagram, sum)), 0);
}

/// Corrects the checksum at `offset` of `data`, which covers `covered` bytes; false if it is too short.
fn fix_checksum(data: &mut [u8], offset: usize, covered: usize) -> bool {
    let Some(covered) = data.get_mut(..covered).filter(|c| c.len() >= offset + 2) else { return false };
    covered[offset..offset + 2].fill(0);
    let checksum = checksum::finish(checksum::sum(covered, 0));
    covered[offset..offset + 2].copy_from_slice(&checksum.to_be_bytes());
    true
}

/// Ethernet header.
pub fn ethernet(data: &[u8]) {
    if let Ok((header, payload)) = EthernetHeader::parse(data) {
        let mut out = [0; EthernetHeader::LEN];
        header.emit(&mut out);
        assert_eq!([&out[..], payload].concat(), data);
    }
}

/// ARP packet and its answer.
pub fn arp(data: &[u8]) {
    if let Ok(packet) = ArpPacket::parse(data) {
        let mut out = [0; ArpPacket::LEN];
        packet.emit(&mut out);
        assert_eq!(out, data[..ArpPacket::LEN]);
    }
    let mut out = [0; FRAME_LEN_MAX];
    if let Ok(Some(len)) = services::arp::answer(&config(), data, &mut out) {
        check_frame(&out[..len]);
    }
}

/// IPv4 header, as it is and with a corrected checksum.
pub fn ipv4(data: &[u8]) {
    ipv4_once(data);
    let mut data = data.to_vec();
    let covered = data.first().map_or(0, |b| usize::from(b & 0xf) * 4);
    if fix_checksum(&mut data, 10, covered) {
        ipv4_once(&data);
    }
}

fn ipv4_once(data: &[u8]) {
    if let Ok((header, Some(fragment), payload)) = Ipv4Header::parse_any(data) {
        assert_eq!(Ipv4Header::parse(data), Err(DropReason::Fragment));
        let mut out = vec![0; Ipv4Header::LEN];
        header.emit_fragment(fragment, &mut out);
        out.extend(payload);
        assert_eq!(Ipv4Header::parse_any(&out), Ok((header, Some(fragment), payload)));
    }
    if let Ok((header, payload)) = Ipv4Header::parse(data) {
        assert_eq!(usize::from(header.payload_len), payload.len());
        let mut out = vec![0; Ipv4Header::LEN];
        header.emit(&mut out);
        out.extend(payload);
        assert_eq!(Ipv4Header::parse(&out), Ok((header, payload)));
    }
}

/// IPv6 header and extension headers.
pub fn ipv6(data: &[u8]) {
    if let Ok((header, Some(fragment), payload)) = Ipv6Header::parse_any(data) {
        assert_eq!(Ipv6Header::parse(data), Err(DropReason::Fragment));
        let mut out = vec![0; Ipv6Header::LEN + Fragment::LEN_V6];
        let outer = Ipv6Header {
            next_header: FRAGMENT,
            payload_len: header.payload_len + Fragment::LEN_V6 as u16,
            ..header
        };
        outer.emit(&mut out);
        fragment.emit_v6(header.next_header, &mut out[Ipv6Header::LEN..]);
        out.extend(payload);
        assert_eq!(Ipv6Header::parse_any(&out), Ok((header, Some(fragment), payload)));
    }
    if let Ok((header, payload)) = Ipv6Header::parse(data) {
        assert_eq!(usize::from(header.payload_len), payload.len());
        let mut out = vec![0; Ipv6Header::LEN];
        header.emit(&mut out);
        out.extend(payload);
        assert_eq!(Ipv6Header::parse(&out), Ok((header, payload)));
    }
}

/// TCP header and options.
pub fn tcp(data: &[u8]) {
    let Ok((header, payload)) = TcpHeader::parse(data) else { return };
    let len = header.header_len();
    assert!(len <= TcpHeader::LEN_MAX && len.is_multiple_of(4));
    let mut out = vec![0; len];
    header.emit(&mut out);
    out.extend(payload);
    let (again, rest) = TcpHeader::parse(&out).expect("our own output");
    assert_eq!(rest, payload);
    // Blocks that do not fit beside the padding of the others are left out.
    let sack = again.options.sack;
    assert!(header.options.sack.as_slice().starts_with(sack.as_slice()));
    assert_eq!(again, TcpHeader { options: TcpOptions { sack, ..header.options }, ..header });
}

/// UDP header.
pub fn udp(data: &[u8]) {
    if let Ok((header, payload)) = UdpHeader::parse(data) {
        let mut out = [0; UdpHeader::LEN];
        header.emit(&mut out);
        assert_eq!(out, data[..UdpHeader::LEN]);
        assert_eq!(UdpHeader::LEN + payload.len(), usize::from(header.length));
    }
}

/// ICMP message, as it is and with a corrected checksum.
pub fn icmpv4(data: &[u8]) {
    _ = Icmpv4Message::parse(data);
    let mut data = data.to_vec();
    let covered = data.len();
    if !fix_checksum(&mut data, 2, covered) {
        return;
    }
    if let Ok(message) = Icmpv4Message::parse(&data) {
        let mut out = vec![0; message.len()];
        message.emit(&mut out);
        let again = Icmpv4Message::parse(&out).expect("our own output");
        if message.len() == data.len() {
            assert_eq!(again, message);
        }
    }
}

/// ICMPv6 message, as it is and with a corrected checksum.
pub fn icmpv6(data: &[u8]) {
    let (src, dst) = (SRC_V6, config().v6.expect("IPv6").gateway);
    _ = Icmpv6Message::parse(src, dst, data);
    if data.len() < 4 {
        return;
    }
    let mut data = data.to_vec();
    icmpv6::fill_checksum(src, dst, &mut data);
    if let Ok(message) = Icmpv6Message::parse(src, dst, &data) {
        let mut out = vec![0; message.len()];
        message.emit(src, dst, &mut out);
        let again = Icmpv6Message::parse(src, dst, &out).expect("our own output");
        if message.len() == data.len() {
            assert_eq!(again, message);
        }
    }
}

/// Neighbour discovery message and its answer. The first byte chooses the addresses.
pub fn ndp(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    if let Ok(message) = NdpMessage::parse(data) {
        let mut out = [0; NdpMessage::LEN_MAX];
        let len = message.emit(SRC_V6, SRC_V6, &mut out);
        assert_eq!(NdpMessage::parse(&out[..len]), Ok(message));
    }
    if data.len() < 4 {
        return;
    }
    let config = config();
    let gateway = config.v6.expect("IPv6").gateway;
    let src = [SRC_V6, Ipv6Addr::UNSPECIFIED, gateway][usize::from(choice % 3)];
    let group = brodo_core::wire::ndp::solicited_node(gateway);
    let dst = [gateway, group][usize::from(choice / 3 % 2)];
    let mut data = data.to_vec();
    icmpv6::fill_checksum(src, dst, &mut data);
    let ip = Ipv6Header {
        src,
        dst,
        next_header: ICMPV6,
        hop_limit: 255,
        traffic_class: 0,
        flow_label: 0,
        payload_len: 0,
    };
    let mut out = [0; FRAME_LEN_MAX];
    if let Ok(Some(len)) = services::ndp::answer(&config, GUEST, &ip, &data, &[], &mut out) {
        check_frame(&out[..len]);
    }
}

/// DHCPv4 request and its answer.
pub fn dhcpv4(data: &[u8]) {
    _ = Request::parse(data);
    let eth = EthernetHeader { dst: MacAddr::BROADCAST, src: GUEST, ethertype: EtherType::Ipv4 };
    let mut out = [0; FRAME_LEN_MAX];
    let (src, dst) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
    if let Ok(Some(len)) = services::dhcpv4::answer(&config(), &eth, src, dst, data, &mut out) {
        check_frame(&out[..len]);
    }
}

/// DHCPv6 message and its answer.
pub fn dhcpv6(data: &[u8]) {
    if let Ok(message) = ClientMessage::parse(data) {
        message.associations().flat_map(|a| a.addresses()).for_each(drop);
    }
    let eth = EthernetHeader { dst: MacAddr::BROADCAST, src: GUEST, ethertype: EtherType::Ipv6 };
    let mut out = [0; FRAME_LEN_MAX];
    if let Ok(Some(len)) = services::dhcpv6::answer(&config(), &eth, SRC_V6, ALL_SERVERS, data, &mut out) {
        check_frame(&out[..len]);
    }
}

/// DNS message: question, names anywhere in it, refusal, records; and as a query, with an answer to it.
pub fn dns(data: &[u8]) {
    if let Some(question) = Question::parse(data) {
        assert!(question.end <= data.len());
    }
    for start in 0..data.len().min(64) {
        if let Some((name, end)) = Name::parse(data, start) {
            assert!(end <= data.len());
            let len: usize = name.labels().map(|label| 1 + label.len()).sum();
            assert!(len < dns::NAME_LEN_MAX);
            assert!(!name.to_string().is_empty());
            assert!(name.is(&name) && name.encoded_len() == len + 1);
            assert!(name.reverse().is_none() || len > 20);
        }
    }
    if let Some((header, question)) = Header::parse(data).zip(Question::parse(data)) {
        for record in Records::new(data, &header, question.end).flatten() {
            assert!(record.data_at + record.data.len() <= data.len() && record.ttl_at + 6 == record.data_at);
            _ = (record.address(), record.target(), record.negative_ttl());
        }
    }
    if let Ok(query) = Query::parse(data) {
        dns_query(&query);
    }
    let mut out = [0; dns::ERROR_REPLY_LEN_MAX];
    if let Some(len) = dns::error_reply(data, Rcode::Refused, &mut out) {
        let (query, reply) = (Header::parse(data), Header::parse(&out[..len]).expect("a header"));
        assert_eq!(query.map(|q| q.id), Some(reply.id));
        assert!(reply.is_response());
        assert_eq!(dns::error_reply(&out[..len], Rcode::Refused, &mut [0; 12]), None);
    }
}

fn dns_query(query: &Query<'_>) {
    let mut key = [0; KEY_LEN_MAX];
    assert!(query.key(&mut key) > 5);
    let mut out = [0; 512];
    let mut reply = Reply::new(query, 0, &mut out);
    while reply.push(A, 60, &[192, 0, 2, 1]) {}
    let len = reply.finish();
    let answer = &mut out[..len];
    query.adopt(answer);
    assert_eq!(query.fit(query.header.id, answer), Fit::Yes);
    let (header, question) =
        (Header::parse(answer).expect("a header"), Question::parse(answer).expect("one"));
    assert!(question.name.is(&query.question.name));
    let records = Records::new(answer, &header, question.end);
    assert_eq!(records.flatten().count(), usize::from(header.answers + header.additionals));
}

/// ICMP error about a packet. The first byte chooses the error.
pub fn icmp_error(data: &[u8]) {
    let Some((&choice, packet)) = data.split_first() else { return };
    let cause = [
        IcmpCause::PortUnreachable,
        IcmpCause::NetUnreachable,
        IcmpCause::HostUnreachable,
        IcmpCause::Prohibited,
        IcmpCause::TooBig(u32::from(choice) << 9),
        IcmpCause::TimeExceeded,
        IcmpCause::ReassemblyTimeExceeded,
        IcmpCause::ProtocolUnreachable,
        IcmpCause::Unreachable(choice),
    ][usize::from(choice % 9)];
    let mut packet = packet.to_vec();
    if packet.first().is_some_and(|b| b >> 4 == 4) {
        let covered = usize::from(packet[0] & 0xf) * 4;
        fix_checksum(&mut packet, 10, covered);
    }
    let mut out = [0; FRAME_LEN_MAX];
    if let Ok(Some(len)) = services::icmp_error::icmp_error(&config(), GUEST, cause, None, &packet, &mut out)
    {
        check_frame(&out[..len]);
    }
}
