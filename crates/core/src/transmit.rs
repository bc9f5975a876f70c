//! Frames toward the guest: headers around payload that stays where it is.
//!
//! Headers are built in a small array on the stack and go to the link together with slices of chunk memory, so
//! payload is never copied here. If the link completes checksums itself only the pseudo-header sum is written and no
//! pass over the payload is made; otherwise the checksum is computed over the slices.

pub(crate) mod fragmented;

use crate::config::Config;
use crate::counters::Counters;
use crate::flow::Endpoint;
use crate::link::{Gso, HEADERS_MAX, Link, LinkCaps, NoCredit, PartialChecksum, TxFrame};
use crate::tx_queue::TxQueueBudget;
use crate::wire::checksum;
use crate::wire::ethernet::MacAddr;
use crate::wire::ethernet::{EtherType, EthernetHeader};
use crate::wire::ipv4::Ipv4Header;
use crate::wire::ipv6::Ipv6Header;
use crate::wire::tcp::TcpHeader;
use crate::wire::udp::UdpHeader;
use crate::wire::{TCP, UDP};
use std::io::IoSlice;
use std::net::IpAddr;

/// State shared by all frames to the guest.
#[derive(Debug)]
pub(crate) struct TxState {
    /// Capabilities of the link.
    pub(crate) caps: LinkCaps,
    /// Our MAC address.
    pub(crate) mac: MacAddr,
    /// Where frames go: learned from the guest's own.
    pub(crate) guest_mac: MacAddr,
    /// The identification of the packet that was fragmented last.
    pub(crate) ident: u32,
    /// The link answered `NoCredit`: nothing is sent until the driver reports credit.
    pub(crate) stalled: bool,
    /// TX queue budget of the advertised windows.
    pub(crate) queue: TxQueueBudget,
}

impl TxState {
    /// For a link with these capabilities; the guest's MAC address is broadcast until it is configured or learnt.
    pub(crate) fn new(config: &Config, caps: LinkCaps) -> Self {
        Self {
            caps,
            mac: config.mac,
            guest_mac: config.guest_mac.unwrap_or(MacAddr::BROADCAST),
            ident: 0,
            stalled: false,
            queue: TxQueueBudget::default(),
        }
    }
}

/// Hop limit of what brodo originates or relays: the default of RFC 1700, as Linux uses.
pub(crate) const TTL: u8 = 64;

/// Bytes of an IP header of the family of `address`, without options.
pub(crate) const fn ip_header_len(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(_) => Ipv4Header::LEN,
        IpAddr::V6(_) => Ipv6Header::LEN,
    }
}

/// Writes an IP header for `len` bytes of `protocol` from `src` to `dst` (same family), with `tos` as its byte of
/// differentiated services and ECN; gives its length.
pub(crate) fn emit_ip(
    out: &mut [u8],
    (src, dst): (IpAddr, IpAddr),
    protocol: u8,
    tos: u8,
    len: usize,
) -> usize {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let header = Ipv4Header {
                src,
                dst,
                protocol,
                ttl: TTL,
                ident: 0,
                dont_fragment: true,
                tos,
                payload_len: len as u16,
            };
            header.emit(out);
            Ipv4Header::LEN
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let header = Ipv6Header {
                src,
                dst,
                next_header: protocol,
                hop_limit: TTL,
                traffic_class: tos,
                flow_label: 0,
                payload_len: len as u16,
            };
            header.emit(out);
            Ipv6Header::LEN
        }
        _ => unreachable!("a flow has one address family"),
    }
}

/// Sends one TCP segment, or with `payload` longer than `mss` one super-segment.
pub(crate) fn tcp<L: Link>(
    tx: &mut TxState,
    counters: &mut Counters,
    link: &mut L,
    (src, dst): (IpAddr, IpAddr),
    header: &TcpHeader,
    payload: &[IoSlice<'_>],
    mss: u16,
) -> Result<(), NoCredit> {
    let len: usize = payload.iter().map(|s| s.len()).sum();
    let gso = match src {
        _ if len <= usize::from(mss) => Gso::None,
        IpAddr::V4(_) => Gso::Tcp4(mss),
        IpAddr::V6(_) => Gso::Tcp6(mss),
    };
    let mut headers = [0; HEADERS_MAX];
    let l4_len = header.header_len();
    let l4 = frame_start(tx, &mut headers, (src, dst), TCP, 0, l4_len + len);
    header.emit(&mut headers[l4..]);
    let field = l4 + TcpHeader::CHECKSUM_OFFSET;
    let pseudo = checksum::pseudo_header(src, dst, TCP, (l4_len + len) as u32);
    let partial = if tx.caps.checksum {
        headers[field..field + 2].copy_from_slice(&checksum::fold(pseudo).to_be_bytes());
        Some(PartialChecksum { start: l4 as u16, offset: TcpHeader::CHECKSUM_OFFSET as u16 })
    } else {
        let sum = sum_slices(checksum::sum(&headers[l4..l4 + l4_len], pseudo), payload);
        headers[field..field + 2].copy_from_slice(&checksum::finish(sum).to_be_bytes());
        None
    };
    send(tx, counters, link, &TxFrame { headers: &headers[..l4 + l4_len], payload, partial, gso })
}

/// Sends one UDP datagram gathered from `payload`, or with `segment` shorter than the payload one super-datagram.
pub(crate) fn udp<L: Link>(
    tx: &mut TxState,
    counters: &mut Counters,
    link: &mut L,
    (src, dst): (Endpoint, Endpoint),
    tos: u8,
    payload: &[IoSlice<'_>],
    segment: Option<u16>,
) -> Result<(), NoCredit> {
    let payload_len: usize = payload.iter().map(|s| s.len()).sum();
    let len = UdpHeader::LEN + payload_len;
    let gso = segment.filter(|&s| payload_len > usize::from(s)).map_or(Gso::None, Gso::Udp);
    let ends = (src.ip(), dst.ip());
    let mut headers = [0; HEADERS_MAX];
    let l4 = frame_start(tx, &mut headers, ends, UDP, tos, len);
    UdpHeader { src_port: src.port(), dst_port: dst.port(), length: len as u16, checksum: 0 }
        .emit(&mut headers[l4..]);
    let field = l4 + UdpHeader::CHECKSUM_OFFSET;
    let pseudo = checksum::pseudo_header(ends.0, ends.1, UDP, len as u32);
    let partial = if tx.caps.checksum {
        headers[field..field + 2].copy_from_slice(&checksum::fold(pseudo).to_be_bytes());
        Some(PartialChecksum { start: l4 as u16, offset: UdpHeader::CHECKSUM_OFFSET as u16 })
    } else {
        let sum = sum_slices(checksum::sum(&headers[l4..l4 + UdpHeader::LEN], pseudo), payload);
        headers[field..field + 2].copy_from_slice(&UdpHeader::finish_checksum(sum).to_be_bytes());
        None
    };
    send(tx, counters, link, &TxFrame { headers: &headers[..l4 + UdpHeader::LEN], payload, partial, gso })
}

/// Sends a complete frame, checksums included.
pub(crate) fn whole<L: Link>(
    tx: &mut TxState,
    counters: &mut Counters,
    link: &mut L,
    frame: &[u8],
) -> Result<(), NoCredit> {
    let (headers, payload) = frame.split_at(EthernetHeader::LEN);
    pieces(tx, counters, link, headers, payload)
}

/// Sends complete headers and what follows them, checksums included.
pub(crate) fn pieces<L: Link>(
    tx: &mut TxState,
    counters: &mut Counters,
    link: &mut L,
    headers: &[u8],
    payload: &[u8],
) -> Result<(), NoCredit> {
    let payload = &[IoSlice::new(payload)];
    send(tx, counters, link, &TxFrame { headers, payload, partial: None, gso: Gso::None })
}

/// Writes Ethernet and IP headers; gives where layer 4 begins.
pub(crate) fn frame_start(
    tx: &TxState,
    out: &mut [u8],
    ends: (IpAddr, IpAddr),
    protocol: u8,
    tos: u8,
    len: usize,
) -> usize {
    let ethertype = if ends.0.is_ipv4() { EtherType::Ipv4 } else { EtherType::Ipv6 };
    EthernetHeader { dst: tx.guest_mac, src: tx.mac, ethertype }.emit(out);
    EthernetHeader::LEN + emit_ip(&mut out[EthernetHeader::LEN..], ends, protocol, tos, len)
}

fn send<L: Link>(
    tx: &mut TxState,
    counters: &mut Counters,
    link: &mut L,
    frame: &TxFrame<'_>,
) -> Result<(), NoCredit> {
    if tx.stalled {
        return Err(NoCredit);
    }
    if let Err(NoCredit) = link.send(frame) {
        tx.stalled = true;
        counters.link_stalls += 1;
        return Err(NoCredit);
    }
    counters.tx_frames += 1;
    counters.tx_bytes += frame.len() as u64;
    Ok(())
}

/// Adds slices to a sum; a slice that starts at an odd offset contributes with its bytes swapped (RFC 1071, 2B).
fn sum_slices(initial: u32, slices: &[IoSlice<'_>]) -> u32 {
    let (mut total, mut odd) = (checksum::fold(initial), false);
    for slice in slices {
        let part = checksum::fold(checksum::sum(slice, 0));
        let part = if odd { part.swap_bytes() } else { part };
        total = checksum::fold(u32::from(total) + u32::from(part));
        odd ^= slice.len() % 2 == 1;
    }
    u32::from(total)
}
