//! Datagrams toward the guest that its link does not take whole: cut into fragments, as the sender of IPv6 does and any router of
//! IPv4 (RFC 8200 section 4.5, RFC 791).

use super::{NoCredit, TTL, TxState, send};
use crate::context::{Cx, Platform};
use crate::counters::Counters;
use crate::flow::Endpoint;
use crate::link::{Gso, HEADERS_MAX, Link, TxFrame};
use crate::wire::ethernet::{EtherType, EthernetHeader};
use crate::wire::fragment::Fragment;
use crate::wire::ipv4::Ipv4Header;
use crate::wire::ipv6::{self, Ipv6Header};
use crate::wire::udp::UdpHeader;
use crate::wire::{UDP, checksum};
use std::io::IoSlice;
use std::net::IpAddr;

/// How far a datagram that is being cut has been sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FragmentProgress {
    /// The packet's identification, once it has one.
    ident: Option<u32>,
    /// Bytes of what follows the IP header that are sent.
    sent: usize,
}

/// A datagram to be cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Datagram<'a> {
    /// From where and to where.
    pub(crate) ends: (IpAddr, IpAddr),
    pub(crate) protocol: u8,
    /// Differentiated services and ECN.
    pub(crate) tos: u8,
    /// The header of layer 4, at most 8 bytes, its checksum complete; may be part of `body`.
    pub(crate) head: &'a [u8],
    pub(crate) body: &'a [u8],
}

/// Sends the fragments of a datagram that `cut` says are not sent yet, each at most `mtu` bytes with its headers.
///
/// # Errors
/// The link has no credit; `cut` says how far it went.
pub(crate) fn fragmented<L: Link>(
    tx: &mut TxState,
    counters: &mut Counters,
    link: &mut L,
    mtu: u16,
    datagram: &Datagram<'_>,
    cut: &mut FragmentProgress,
) -> Result<(), NoCredit> {
    let Datagram { head, body, .. } = *datagram;
    let total = head.len() + body.len();
    let headers_len = match datagram.ends.0 {
        IpAddr::V4(_) => Ipv4Header::LEN,
        IpAddr::V6(_) => Ipv6Header::LEN + Fragment::LEN_V6,
    };
    let piece = usize::from(mtu).saturating_sub(headers_len).max(8) & !7;
    let ident = *cut.ident.get_or_insert_with(|| {
        tx.ident = tx.ident.wrapping_add(1);
        tx.ident
    });
    while cut.sent < total {
        let end = (cut.sent + piece).min(total);
        let fragment = Fragment { ident, offset: cut.sent as u16, more: end < total };
        let mut headers = [0; HEADERS_MAX];
        let mut len = emit_headers(tx, datagram, fragment, end - cut.sent, &mut headers);
        let mut from = cut.sent.saturating_sub(head.len());
        if cut.sent == 0 {
            headers[len..len + head.len()].copy_from_slice(head);
            len += head.len();
            from = 0;
        }
        let payload = &[IoSlice::new(&body[from..end - head.len()])];
        let frame = TxFrame { headers: &headers[..len], payload, partial: None, gso: Gso::None };
        send(tx, counters, link, &frame)?;
        cut.sent = end;
    }
    Ok(())
}

/// The same for a UDP datagram with this payload, whose header is made here.
///
/// # Errors
/// As [`fragmented`].
pub(crate) fn udp<P: Platform>(
    cx: &mut Cx<'_, P>,
    (src, dst): (Endpoint, Endpoint),
    tos: u8,
    payload: &[u8],
    cut: &mut FragmentProgress,
) -> Result<(), NoCredit> {
    let ends = (src.ip(), dst.ip());
    let length = (UdpHeader::LEN + payload.len()) as u16;
    let mut header = UdpHeader { src_port: src.port(), dst_port: dst.port(), length, checksum: 0 };
    let mut head = [0; UdpHeader::LEN];
    header.emit(&mut head);
    let pseudo = checksum::pseudo_header(ends.0, ends.1, UDP, length.into());
    header.checksum = UdpHeader::finish_checksum(checksum::sum(payload, checksum::sum(&head, pseudo)));
    header.emit(&mut head);
    let datagram = Datagram { ends, protocol: UDP, tos, head: &head, body: payload };
    fragmented(&mut cx.shared.tx, &mut cx.shared.counters, cx.link, cx.shared.config.mtu, &datagram, cut)
}

/// Writes Ethernet and IP headers for `len` bytes; gives where these begin.
fn emit_headers(
    tx: &TxState,
    datagram: &Datagram<'_>,
    fragment: Fragment,
    len: usize,
    out: &mut [u8],
) -> usize {
    let (protocol, tos) = (datagram.protocol, datagram.tos);
    let start = EthernetHeader::LEN;
    let ethertype = if datagram.ends.0.is_ipv4() { EtherType::Ipv4 } else { EtherType::Ipv6 };
    EthernetHeader { dst: tx.guest_mac, src: tx.mac, ethertype }.emit(out);
    match datagram.ends {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let (payload_len, dont_fragment) = (len as u16, false);
            let header =
                Ipv4Header { src, dst, protocol, ttl: TTL, ident: 0, dont_fragment, tos, payload_len };
            header.emit_fragment(fragment, &mut out[start..]);
            start + Ipv4Header::LEN
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let header = Ipv6Header {
                src,
                dst,
                next_header: ipv6::FRAGMENT,
                hop_limit: TTL,
                traffic_class: tos,
                flow_label: 0,
                payload_len: (Fragment::LEN_V6 + len) as u16,
            };
            header.emit(&mut out[start..]);
            fragment.emit_v6(protocol, &mut out[start + Ipv6Header::LEN..]);
            start + Ipv6Header::LEN + Fragment::LEN_V6
        }
        _ => unreachable!("a flow has one address family"),
    }
}
