//! Shared by the tests of all services: parsing of a frame, with every checksum verified.

use super::*;
use crate::wire::ethernet::EtherType;
use crate::wire::icmpv6;
use crate::wire::udp::UdpHeader;
use crate::wire::{UDP, checksum};
use std::net::IpAddr;

/// MAC address of a guest.
pub(super) const GUEST: MacAddr = MacAddr([0x52, 0x54, 0, 0x12, 0x34, 0x56]);

/// The IPv4 header and the layer-4 bytes of a frame from us.
pub(super) fn open_ipv4(frame: &[u8]) -> (EthernetHeader, Ipv4Header, &[u8]) {
    let (eth, packet) = EthernetHeader::parse(frame).unwrap();
    assert_eq!((eth.src, eth.ethertype), (Config::default().mac, EtherType::Ipv4));
    let (ip, payload) = Ipv4Header::parse(packet).unwrap();
    assert_eq!(Ipv4Header::LEN + payload.len(), packet.len());
    (eth, ip, payload)
}

/// The IPv6 header and the layer-4 bytes of a frame from us.
pub(super) fn open_ipv6(frame: &[u8]) -> (EthernetHeader, Ipv6Header, &[u8]) {
    let (eth, packet) = EthernetHeader::parse(frame).unwrap();
    assert_eq!((eth.src, eth.ethertype), (Config::default().mac, EtherType::Ipv6));
    let (ip, payload) = Ipv6Header::parse(packet).unwrap();
    assert_eq!(Ipv6Header::LEN + payload.len(), packet.len());
    if ip.next_header == ICMPV6 {
        icmpv6::verify_checksum(ip.src, ip.dst, payload).unwrap();
    }
    (eth, ip, payload)
}

/// The payload of a datagram, and its ports.
pub(super) fn open_udp(src: IpAddr, dst: IpAddr, datagram: &[u8]) -> (u16, u16, &[u8]) {
    let sum = checksum::pseudo_header(src, dst, UDP, datagram.len() as u32);
    assert_eq!(checksum::finish(checksum::sum(datagram, sum)), 0);
    let (header, payload) = UdpHeader::parse(datagram).unwrap();
    assert_ne!(header.checksum, 0);
    (header.src_port, header.dst_port, payload)
}
