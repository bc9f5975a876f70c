//! Headers of frames toward the guest: the one place that writes Ethernet, IP and UDP headers.
//!
//! The TCP, ICMP and DHCP code writes its own message; its headers come from here, with one hop limit and no
//! IP options. IPv4 packets have "do not fragment", but for fragments and for packets that a router in the
//! guest may fragment ([`Ip::ident`]).

use crate::flow::{Addresses, Ends};
use crate::wire::ethernet::{EtherType, EthernetHeader, MacAddr};
use crate::wire::fragment::Fragment;
use crate::wire::ipv4::Ipv4Header;
use crate::wire::ipv6::{self, Ipv6Header};
use crate::wire::udp::UdpHeader;
use crate::wire::{UDP, checksum};
use std::io::IoSlice;
use std::net::IpAddr;

/// Hop limit of packets that brodo originates or relays: the default of RFC 1700, as Linux uses.
pub(crate) const HOP_LIMIT: u8 = 64;

/// MAC addresses of a frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Macs {
    pub(crate) src: MacAddr,
    pub(crate) dst: MacAddr,
}

/// Fields of an IP header of either family.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ip {
    pub(crate) addresses: Addresses,
    /// Protocol, or next header after the fragment header.
    pub(crate) protocol: u8,
    pub(crate) hop_limit: u8,
    /// DSCP and ECN, as one byte.
    pub(crate) tos: u8,
    /// Identification of an IPv4 packet that routers may fragment. Without one the packet has "do not
    /// fragment", and needs none (RFC 6864, section 4.1).
    pub(crate) ident: Option<u16>,
}

impl Ip {
    /// A header with the usual hop limit, DSCP 0 and, in IPv4, "do not fragment".
    pub(crate) const fn new(addresses: Addresses, protocol: u8) -> Self {
        Self { addresses, protocol, hop_limit: HOP_LIMIT, tos: 0, ident: None }
    }

    /// Writes the header in front of `len` bytes; returns its length.
    pub(crate) fn emit(&self, len: usize, out: &mut [u8]) -> usize {
        match (self.addresses.src, self.addresses.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let header = Ipv4Header {
                    src,
                    dst,
                    protocol: self.protocol,
                    ttl: self.hop_limit,
                    ident: self.ident.unwrap_or(0),
                    dont_fragment: self.ident.is_none(),
                    tos: self.tos,
                    payload_len: len as u16,
                };
                header.emit(out);
                Ipv4Header::LEN
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let header = Ipv6Header {
                    src,
                    dst,
                    next_header: self.protocol,
                    hop_limit: self.hop_limit,
                    traffic_class: self.tos,
                    flow_label: 0,
                    payload_len: len as u16,
                };
                header.emit(out);
                Ipv6Header::LEN
            }
            _ => unreachable!("a packet has one address family"),
        }
    }

    /// Writes the header of a fragment of `len` bytes; returns its length.
    fn emit_fragment(&self, fragment: Fragment, len: usize, out: &mut [u8]) -> usize {
        if let (IpAddr::V4(src), IpAddr::V4(dst)) = (self.addresses.src, self.addresses.dst) {
            let header = Ipv4Header {
                src,
                dst,
                protocol: self.protocol,
                ttl: self.hop_limit,
                ident: 0,
                dont_fragment: false,
                tos: self.tos,
                payload_len: len as u16,
            };
            header.emit_fragment(fragment, out);
            return Ipv4Header::LEN;
        }
        let start = Self { protocol: ipv6::FRAGMENT, ..*self }.emit(Fragment::LEN_V6 + len, out);
        fragment.emit_v6(self.protocol, &mut out[start..]);
        start + Fragment::LEN_V6
    }
}

/// Length of an IP header of the family of `address`, without options, in bytes.
pub(crate) const fn ip_header_len(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(_) => Ipv4Header::LEN,
        IpAddr::V6(_) => Ipv6Header::LEN,
    }
}

/// Longest payload of an IP packet of the family of `address`, in bytes.
pub(crate) const fn ip_payload_max(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(_) => Ipv4Header::PAYLOAD_MAX,
        IpAddr::V6(_) => Ipv6Header::PAYLOAD_MAX,
    }
}

/// Writes Ethernet and IP headers in front of `len` bytes; returns the offset of layer 4.
pub(crate) fn frame(macs: Macs, ip: &Ip, len: usize, out: &mut [u8]) -> usize {
    ethernet(macs, ip, out) + ip.emit(len, &mut out[EthernetHeader::LEN..])
}

/// Writes Ethernet and IP headers in front of `len` bytes of a fragment; returns the offset of the fragment's
/// content.
pub(super) fn fragment(macs: Macs, ip: &Ip, fragment: Fragment, len: usize, out: &mut [u8]) -> usize {
    ethernet(macs, ip, out) + ip.emit_fragment(fragment, len, &mut out[EthernetHeader::LEN..])
}

fn ethernet(Macs { src, dst }: Macs, ip: &Ip, out: &mut [u8]) -> usize {
    let ethertype = if ip.addresses.src.is_ipv4() { EtherType::Ipv4 } else { EtherType::Ipv6 };
    EthernetHeader { dst, src, ethertype }.emit(out);
    EthernetHeader::LEN
}

/// The part of a checksum that brodo computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checksum {
    /// The complete checksum.
    Complete,
    /// The sum of the pseudo-header only; the guest's kernel adds the rest (virtio-net).
    Pseudo,
}

/// Writes a UDP header in front of `payload`.
pub(crate) fn udp(ends: Ends, payload: &[IoSlice<'_>], checksum: Checksum, out: &mut [u8]) {
    let len = UdpHeader::LEN + payload.iter().map(|slice| slice.len()).sum::<usize>();
    UdpHeader { src_port: ends.src.port(), dst_port: ends.dst.port(), length: len as u16, checksum: 0 }
        .emit(out);
    let pseudo = checksum::pseudo_header(ends.src.ip(), ends.dst.ip(), UDP, len as u32);
    let field = match checksum {
        Checksum::Pseudo => checksum::fold(pseudo),
        Checksum::Complete => {
            let sum = checksum::sum(&out[..UdpHeader::LEN], pseudo);
            UdpHeader::finish_checksum(sum_slices(sum, payload))
        }
    };
    let at = UdpHeader::CHECKSUM_OFFSET;
    out[at..at + 2].copy_from_slice(&field.to_be_bytes());
}

/// Writes a UDP header at the start of `datagram`, in front of the payload that fills the rest of it.
pub(crate) fn udp_in_place(ends: Ends, datagram: &mut [u8]) {
    let (header, payload) = datagram.split_at_mut(UdpHeader::LEN);
    udp(ends, &[IoSlice::new(payload)], Checksum::Complete, header);
}

/// Adds slices to a sum; a slice that starts at an odd offset contributes with its bytes swapped (RFC
/// 1071, 2B).
pub(super) fn sum_slices(initial: u32, slices: &[IoSlice<'_>]) -> u32 {
    let (mut total, mut odd) = (checksum::fold(initial), false);
    for slice in slices {
        let part = checksum::fold(checksum::sum(slice, 0));
        let part = if odd { part.swap_bytes() } else { part };
        total = checksum::fold(u32::from(total) + u32::from(part));
        odd ^= slice.len() % 2 == 1;
    }
    u32::from(total)
}
