//! Ingress: each frame of the guest is decoded once.
//!
//! [`decode`] parses Ethernet, IP and the header of layer 4, and makes all checks that need no state: the
//! frame is for us, its family is configured, its lengths agree. Coalescing (`stack/gro.rs`), reassembly,
//! re-steering to another worker and dispatch read the one [`Packet`] that it returns. Checksums of layer 4
//! are verified later ([`Packet::verify`]), where the packet is wanted: they cost a pass over the payload.
//!
//! Of a frame whose end is unread the beginning is decoded. Only coalescing can do with that; whatever else
//! it is, it is read and decoded as a whole.

use crate::config::Config;
use crate::counters::DropReason;
use crate::destination;
use crate::flow::{Endpoint, FlowKey, Protocol};
use crate::fragments::IpHeader;
use crate::host::IpHeaderFields;
use crate::link::{Gso, RxChecksum, RxFrame, RxMeta, Unread};
use crate::wire::ethernet::{EtherType, EthernetHeader};
use crate::wire::fragment::Fragment;
use crate::wire::ipv4::Ipv4Header;
use crate::wire::ipv6::Ipv6Header;
use crate::wire::tcp::TcpHeader;
use crate::wire::udp::UdpHeader;
use crate::wire::{TCP, UDP, checksum};
use std::net::IpAddr;
use std::num::NonZeroU8;

/// Longest packet, in bytes, whose "do not fragment" may be a path MTU probe: the MTU of Ethernet.
const MEASURED_LEN_MAX: usize = 1500;

/// A frame from the guest.
#[allow(clippy::large_enum_variant, reason = "nearly every frame is a packet, and none is stored")]
pub(crate) enum Frame<'a> {
    /// An ARP packet.
    Arp(EthernetHeader, &'a [u8]),
    /// A fragment of an IP packet: `data` follows its headers.
    Fragment { l2: EthernetHeader, ip: IpHeader, fragment: Fragment, data: &'a [u8] },
    /// A whole IP packet.
    Packet(Packet<'a>),
}

/// The header of layer 4 and its payload, or the reason why it is malformed.
pub(crate) enum L4<'a> {
    Tcp(Result<(TcpHeader, &'a [u8]), DropReason>),
    Udp(Result<(UdpHeader, &'a [u8]), DropReason>),
    /// ICMP, or a protocol that is not relayed.
    Other,
}

/// An IP packet from the guest.
pub(crate) struct Packet<'a> {
    pub(crate) l2: EthernetHeader,
    pub(crate) ip: IpHeader,
    pub(crate) l4: L4<'a>,
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) protocol: u8,
    /// Time to live or hop limit.
    pub(crate) hop_limit: u8,
    /// The bytes behind the IP header and its extensions.
    pub(crate) payload: &'a [u8],
    /// The packet from its IP header on, for an ICMP error to quote.
    pub(crate) whole: &'a [u8],
    pub(crate) meta: RxMeta,
    /// The end of `payload` that the link has left unread: then `payload` and `whole` are a beginning.
    pub(crate) unread: Unread,
    /// Reassembled from fragments.
    pub(crate) reassembled: bool,
}

/// Decodes a frame.
///
/// # Errors
/// The frame is not for us, of a family that is not configured, or malformed up to its IP header.
pub(crate) fn decode<'a>(config: &Config, frame: &RxFrame<'a>) -> Result<Frame<'a>, DropReason> {
    let (l2, whole) = EthernetHeader::parse(frame.bytes)?;
    let len = whole.len() + frame.unread.len as usize;
    if l2.src.is_multicast() || !(l2.dst == config.mac || l2.dst.is_multicast()) {
        return Err(DropReason::NotForUs);
    }
    let (ip, fragment, payload) = match l2.ethertype {
        EtherType::Arp if config.v4.is_some() => return Ok(Frame::Arp(l2, whole)),
        EtherType::Ipv4 if config.v4.is_some() => {
            let (ip, fragment, payload) = Ipv4Header::parse_begin(whole, len)?;
            (IpHeader::V4(ip), fragment, payload)
        }
        EtherType::Ipv6 if config.v6.is_some() => {
            let (ip, fragment, payload) = Ipv6Header::parse_begin(whole, len)?;
            (IpHeader::V6(ip), fragment, payload)
        }
        _ => return Err(DropReason::UnknownEtherType),
    };
    if let Some(fragment) = fragment {
        return Ok(Frame::Fragment { l2, ip, fragment, data: payload });
    }
    let unread = frame.unread.first(usize::from(ip.payload_len()).saturating_sub(payload.len()));
    Ok(Frame::Packet(Packet { unread, ..Packet::new(l2, ip, payload, whole, frame.meta) }))
}

impl<'a> Packet<'a> {
    fn new(l2: EthernetHeader, ip: IpHeader, payload: &'a [u8], whole: &'a [u8], meta: RxMeta) -> Self {
        let (src, dst, protocol, hop_limit) = match ip {
            IpHeader::V4(ip) => (ip.src.into(), ip.dst.into(), ip.protocol, ip.ttl),
            IpHeader::V6(ip) => (ip.src.into(), ip.dst.into(), ip.next_header, ip.hop_limit),
        };
        let l4 = match protocol {
            TCP => L4::Tcp(TcpHeader::parse(payload)),
            UDP => L4::Udp(UdpHeader::parse(payload)),
            _ => L4::Other,
        };
        let (unread, reassembled) = (Unread::default(), false);
        Self { l2, ip, l4, src, dst, protocol, hop_limit, payload, whole, meta, unread, reassembled }
    }

    /// A packet reassembled from fragments with this Ethernet header.
    ///
    /// # Errors
    /// Its IP header is malformed.
    pub(crate) fn reassembled(l2: EthernetHeader, ipv6: bool, whole: &'a [u8]) -> Result<Self, DropReason> {
        let (ip, payload) = if ipv6 {
            let (ip, payload) = Ipv6Header::parse(whole)?;
            (IpHeader::V6(ip), payload)
        } else {
            let (ip, payload) = Ipv4Header::parse(whole)?;
            (IpHeader::V4(ip), payload)
        };
        Ok(Self { reassembled: true, ..Self::new(l2, ip, payload, whole, RxMeta::default()) })
    }

    /// The key of its flow, if it is TCP or UDP with a well-formed header.
    pub(crate) fn key(&self) -> Option<FlowKey> {
        let (protocol, from, to) = match &self.l4 {
            L4::Tcp(Ok((tcp, _))) => (Protocol::Tcp, tcp.src_port, tcp.dst_port),
            L4::Udp(Ok((udp, _))) => (Protocol::Udp, udp.src_port, udp.dst_port),
            L4::Tcp(Err(_)) | L4::Udp(Err(_)) | L4::Other => return None,
        };
        Some(self.key_of(protocol, from, to))
    }

    /// The key of a flow between these ports, or identifiers of an echo.
    pub(crate) fn key_of(&self, protocol: Protocol, guest: u16, remote: u16) -> FlowKey {
        FlowKey { protocol, guest: Endpoint::new(self.src, guest), remote: Endpoint::new(self.dst, remote) }
    }

    /// Whether the checksum of TCP or UDP over `content` is right, or verified by the link.
    pub(crate) fn verify(&self, content: &[u8]) -> bool {
        if self.meta.checksum == RxChecksum::Valid {
            return true;
        }
        let pseudo = checksum::pseudo_header(self.src, self.dst, self.protocol, content.len() as u32);
        checksum::finish(checksum::sum(content, pseudo)) == 0
    }

    /// IP header fields of the guest's packet (DSCP and ECN, time to live, "do not fragment") for the
    /// datagram that leaves the host: one hop less; the same to a group, which says how far it goes, and to a
    /// neighbour in a copied network, to which there is no hop. Common initial values of the time to live
    /// become the host's own default, so that most sockets need no option for it.
    ///
    /// Linux sets "do not fragment" on every packet that fits its link, whatever the program intends: on a
    /// link of 65,520 bytes a program that sends 8 KiB would lose its first datagram and meet an error. So it
    /// is honoured up to the MTU of Ethernet, where path MTU discovery happens; longer packets are fragmented
    /// by the host. A packet that the guest has fragmented may be fragmented again.
    pub(crate) fn fields(&self, config: &Config) -> IpHeaderFields {
        let (tos, dont_fragment) = match self.ip {
            IpHeader::V4(ip) => (ip.tos, ip.dont_fragment),
            IpHeader::V6(ip) => (ip.traffic_class, true),
        };
        // A super-datagram becomes packets of its segment size.
        let len = match self.meta.gso {
            Gso::Udp(size) => Ipv6Header::LEN + UdpHeader::LEN + usize::from(size),
            _ => self.whole.len(),
        };
        let direct = destination::is_direct(config, self.dst);
        // Of a neighbour 255 may be the proof that it is one (RFC 5082).
        let initial = matches!(self.hop_limit, 64 | 128) || (self.hop_limit == 255 && !direct);
        let usual = initial || config.is_ours(self.dst);
        let hops = u8::from(!direct);
        let ttl = if destination::is_group(config, self.dst) {
            NonZeroU8::new(self.hop_limit)
        } else {
            NonZeroU8::new(self.hop_limit.saturating_sub(hops)).filter(|_| !usual)
        };
        IpHeaderFields {
            tos,
            ttl,
            dont_fragment: dont_fragment && !self.reassembled && len <= MEASURED_LEN_MAX,
        }
    }
}
