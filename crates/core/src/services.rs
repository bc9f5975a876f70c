//! Services: what brodo itself answers on the link, as the router, DHCP server and neighbour it claims to be.
//!
//! Each is a pure function of the configuration and one packet: no state, no time. It writes one complete frame,
//! checksums included, to the start of a buffer of the caller's and gives the frame's length in bytes; `None` means
//! that the packet was in order but is due no answer. Every file has a `FRAME_LEN_MAX`; a buffer shorter than that
//! may make the function panic, [`FRAME_LEN_MAX`] suffices for all.
//!
//! Answers depend on nothing but one packet of the guest, go to the guest only, and are at most one per packet: a
//! hostile guest can only disturb itself.

pub mod arp;
pub mod dhcpv4;
pub mod dhcpv6;
pub mod icmp_error;
pub mod ndp;

use crate::config::Config;
use crate::transmit::TTL as HOP_LIMIT;
use crate::wire::ethernet::{EtherType, EthernetHeader, MacAddr};
use crate::wire::ipv4::Ipv4Header;
use crate::wire::ipv6::Ipv6Header;
use crate::wire::udp::UdpHeader;
use crate::wire::{ICMPV6, UDP, checksum};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[cfg(test)]
mod tests;

/// Longest frame of any service, in bytes: within the least MTU of IPv6, and so within every link's.
pub const FRAME_LEN_MAX: usize = EthernetHeader::LEN + 1280;

const _: () = assert!(
    FRAME_LEN_MAX >= arp::FRAME_LEN_MAX
        && FRAME_LEN_MAX >= dhcpv4::FRAME_LEN_MAX
        && FRAME_LEN_MAX >= dhcpv6::FRAME_LEN_MAX
        && FRAME_LEN_MAX >= icmp_error::FRAME_LEN_MAX
        && FRAME_LEN_MAX >= ndp::FRAME_LEN_MAX
);

/// Where layer 4 begins in an IPv4 frame.
const IPV4_PAYLOAD: usize = EthernetHeader::LEN + Ipv4Header::LEN;
/// Where layer 4 begins in an IPv6 frame.
const IPV6_PAYLOAD: usize = EthernetHeader::LEN + Ipv6Header::LEN;

/// Writes the headers in front of `payload_len` bytes of layer 4; gives the frame's length in bytes.
fn finish_ipv4(
    config: &Config,
    dst_mac: MacAddr,
    (src, dst): (Ipv4Addr, Ipv4Addr),
    protocol: u8,
    payload_len: usize,
    out: &mut [u8],
) -> usize {
    EthernetHeader { dst: dst_mac, src: config.mac, ethertype: EtherType::Ipv4 }.emit(out);
    let header = Ipv4Header {
        src,
        dst,
        protocol,
        ttl: HOP_LIMIT,
        ident: 0,
        dont_fragment: true,
        tos: 0,
        payload_len: payload_len as u16,
    };
    header.emit(&mut out[EthernetHeader::LEN..]);
    IPV4_PAYLOAD + payload_len
}

/// Writes the headers in front of `payload_len` bytes of layer 4; gives the frame's length in bytes.
fn finish_ipv6(
    config: &Config,
    dst_mac: MacAddr,
    (src, dst): (Ipv6Addr, Ipv6Addr),
    (next_header, hop_limit): (u8, u8),
    payload_len: usize,
    out: &mut [u8],
) -> usize {
    EthernetHeader { dst: dst_mac, src: config.mac, ethertype: EtherType::Ipv6 }.emit(out);
    let header = Ipv6Header {
        src,
        dst,
        next_header,
        hop_limit,
        traffic_class: 0,
        flow_label: 0,
        payload_len: payload_len as u16,
    };
    header.emit(&mut out[EthernetHeader::LEN..]);
    IPV6_PAYLOAD + payload_len
}

/// As [`finish_ipv6`], for a neighbour discovery message, which must not have crossed a router.
fn finish_ndp(
    config: &Config,
    dst_mac: MacAddr,
    addresses: (Ipv6Addr, Ipv6Addr),
    payload_len: usize,
    out: &mut [u8],
) -> usize {
    finish_ipv6(config, dst_mac, addresses, (ICMPV6, 255), payload_len, out)
}

/// Writes the UDP header at the start of `datagram`, in front of the payload that fills the rest of it.
fn finish_udp((src, dst): (IpAddr, IpAddr), (src_port, dst_port): (u16, u16), datagram: &mut [u8]) {
    let length = datagram.len() as u16;
    let mut header = UdpHeader { src_port, dst_port, length, checksum: 0 };
    header.emit(datagram);
    let sum = checksum::sum(datagram, checksum::pseudo_header(src, dst, UDP, u32::from(length)));
    header.checksum = UdpHeader::finish_checksum(sum);
    header.emit(datagram);
}
