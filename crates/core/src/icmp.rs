//! ICMP as a relay sees it: echo replies and errors for the guest, and errors of the guest with the flow that
//! they quote.

use crate::context::{Cx, Platform};
use crate::counters::DropReason;
use crate::egress::fragments::{Datagram, FragmentProgress};
use crate::egress::headers::{Ip, ip_header_len, ip_payload_max};
use crate::flow::Addresses;
use crate::flow::{Endpoint, FlowKey, Protocol};
use crate::host::{HostError, IcmpCause};
use crate::link::NoCredit;
use crate::services::{self, icmp_error};
use crate::wire::icmpv4::{self, Echo, Icmpv4Message};
use crate::wire::icmpv6::{self, Icmpv6Message};
use crate::wire::ipv6::{self, Ipv6Header};
use crate::wire::tcp::Seq;
use crate::wire::{ICMP, ICMPV6, TCP, UDP, checksum};
use std::net::IpAddr;

/// Least MTU of a path over IPv4 that is believed, in bytes: what every host takes (RFC 791).
const PATH_MTU_MIN_V4: u16 = 576;
/// Least MTU of a path over IPv6, in bytes (RFC 8200, section 5).
pub(crate) const PATH_MTU_MIN_V6: u16 = 1280;
/// ICMP types of an echo reply.
const ECHO_REPLY_V4: u8 = 0;
const ECHO_REPLY_V6: u8 = 129;

/// The ICMP error for the guest that corresponds to a host error, if there is one.
pub(crate) fn cause_of(error: HostError) -> Option<IcmpCause> {
    match error {
        HostError::Refused => Some(IcmpCause::PortUnreachable),
        HostError::NetUnreachable | HostError::Unsupported => Some(IcmpCause::NetUnreachable),
        HostError::HostUnreachable => Some(IcmpCause::HostUnreachable),
        HostError::Prohibited => Some(IcmpCause::Prohibited),
        HostError::TooBig(mtu) => Some(IcmpCause::TooBig(mtu)),
        _ => None,
    }
}

/// Sends the guest an ICMP error about `packet`, an IP packet of its own, with the source `from` (the gateway
/// if unknown).
pub(crate) fn send_error<P: Platform>(
    cx: &mut Cx<'_, P>,
    cause: IcmpCause,
    from: Option<IpAddr>,
    packet: &[u8],
) {
    let mut frame = [0; services::FRAME_LEN_MAX];
    match icmp_error::icmp_error(&cx.shared.config, cx.shared.tx.guest_mac, cause, from, packet, &mut frame) {
        Ok(Some(len)) if cx.shared.icmp_errors.take(cx.now) => send(cx, &frame[..len]),
        Ok(Some(_)) => cx.shared.counters.drop(DropReason::IcmpErrorRate),
        Ok(None) => {}
        Err(reason) => cx.shared.counters.drop(reason),
    }
}

/// Passes on an echo reply of the host's ping socket, with the guest's identifier instead of the socket's. An
/// unusable one is counted and dropped, one longer than the MTU is fragmented; `progress` is fresh at first.
///
/// # Errors
/// The link has no credit; `message` and `progress` must be kept.
pub(crate) fn reply<P: Platform>(
    cx: &mut Cx<'_, P>,
    key: &FlowKey,
    message: &mut [u8],
    progress: &mut FragmentProgress,
) -> Result<(), NoCredit> {
    let (src, dst) = (key.remote.ip(), key.guest.ip());
    let protocol = if src.is_ipv4() { ICMP } else { ICMPV6 };
    if message.len() < 8 || message.len() > ip_payload_max(dst) {
        cx.shared.counters.drop(DropReason::MalformedIcmpv4);
        return Ok(());
    }
    message[4..6].copy_from_slice(&key.guest.port().to_be_bytes());
    message[2..4].fill(0);
    if let (IpAddr::V6(src), IpAddr::V6(dst)) = (src, dst) {
        icmpv6::fill_checksum(src, dst, message);
    } else {
        let sum = checksum::finish(checksum::sum(message, 0));
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    let (ip, mtu) = (Ip::new(Addresses { src, dst }, protocol), cx.shared.datagram_mtu(cx.now, dst));
    if message.len() + ip_header_len(dst) > usize::from(mtu) {
        return cx.egress().fragments(mtu, &Datagram { ip, head: &[], body: message }, progress);
    }
    cx.egress().message(&ip, message)
}

/// Answers an echo request to one of brodo's own addresses.
pub(crate) fn answer_own<P: Platform>(
    cx: &mut Cx<'_, P>,
    guest: IpAddr,
    ours: IpAddr,
    echo: Echo<'_>,
    scratch: &mut [u8],
) {
    let key = FlowKey {
        protocol: Protocol::Echo,
        guest: Endpoint::new(guest, echo.ident),
        remote: Endpoint::new(ours, echo.ident),
    };
    let len = if let (IpAddr::V6(src), IpAddr::V6(dst)) = (ours, guest) {
        let message = Icmpv6Message::EchoReply(echo);
        message.emit(src, dst, scratch);
        message.len()
    } else {
        let message = Icmpv4Message::EchoReply(echo);
        message.emit(scratch);
        message.len()
    };
    if reply(cx, &key, &mut scratch[..len], &mut FragmentProgress::default()).is_err() {
        cx.shared.counters.drop(DropReason::LinkFull);
    }
}

/// Sends a complete frame of a service; without credit it is lost, and the guest repeats its request.
pub(crate) fn send<P: Platform>(cx: &mut Cx<'_, P>, frame: &[u8]) {
    if cx.egress().frame(frame).is_err() {
        cx.shared.counters.drop(DropReason::LinkFull);
    }
}

/// An ICMP error of the guest about a packet of brodo's, of which `quoted` is the beginning.
#[derive(Debug, Clone, Copy)]
pub(crate) enum GuestError<'a> {
    /// The destination is unreachable, `hard` if for good.
    Unreachable { quoted: &'a [u8], hard: bool },
    /// The packet is too big for a link of `mtu` bytes behind a router in the guest.
    TooBig { quoted: &'a [u8], mtu: u16 },
}

impl<'a> GuestError<'a> {
    /// The error in a message of ICMP, if it is one of these.
    pub(crate) fn of_v4(message: &Icmpv4Message<'a>) -> Option<Self> {
        match *message {
            Icmpv4Message::Unreachable { code, quoted } => {
                Some(Self::Unreachable { quoted, hard: icmpv4::is_hard_error(code) })
            }
            // Old routers do not name the MTU (RFC 1191, section 5).
            Icmpv4Message::FragmentationNeeded { mtu, quoted } => {
                Some(Self::TooBig { quoted, mtu: mtu.max(PATH_MTU_MIN_V4) })
            }
            _ => None,
        }
    }

    /// The error in a message of ICMPv6, if it is one of these. No path of IPv6 has less than 1280 bytes: a
    /// report of less is none (RFC 8201, section 4).
    pub(crate) fn of_v6(message: &Icmpv6Message<'a>) -> Option<Self> {
        match *message {
            Icmpv6Message::Unreachable { code, quoted } => {
                Some(Self::Unreachable { quoted, hard: icmpv6::is_hard_error(code) })
            }
            Icmpv6Message::PacketTooBig { mtu, quoted } if mtu >= PATH_MTU_MIN_V6.into() => {
                Some(Self::TooBig { quoted, mtu: u16::try_from(mtu).unwrap_or(u16::MAX) })
            }
            _ => None,
        }
    }

    /// The beginning of the packet.
    pub(crate) const fn quoted(self) -> &'a [u8] {
        match self {
            Self::Unreachable { quoted, .. } | Self::TooBig { quoted, .. } => quoted,
        }
    }
}

/// A packet of brodo's that an ICMP error from the guest quotes.
pub(crate) struct Quoted {
    /// Its flow; the flow's remote end is the packet's source.
    pub(crate) key: FlowKey,
    /// Sequence number of a TCP segment (SEG.SEQ).
    pub(crate) seq: Option<Seq>,
}

/// Parses the UDP datagram, TCP segment or echo reply quoted by an ICMP error from the guest. Required is
/// only the part that every host quotes: the IP header and eight bytes more (RFC 792). A fragment is
/// recognised if it is the first.
pub(crate) fn quoted(packet: &[u8]) -> Option<Quoted> {
    let (src, dst, protocol, rest) = match packet.first()? >> 4 {
        4 => {
            let header_len = usize::from(packet[0] & 15) * 4;
            let address = |at: usize| packet.get(at..at + 4)?.first_chunk::<4>().copied().map(IpAddr::from);
            if packet.get(6)? & 0x1f != 0 || *packet.get(7)? != 0 {
                return None;
            }
            (address(12)?, address(16)?, *packet.get(9)?, packet.get(header_len..)?)
        }
        6 => {
            let address = |at: usize| packet.get(at..at + 16)?.first_chunk::<16>().copied().map(IpAddr::from);
            let rest = packet.get(Ipv6Header::LEN..)?;
            let (next, rest) = match *packet.get(6)? {
                // A first fragment has the offset zero, in the upper 13 bits of the field.
                ipv6::FRAGMENT if rest.get(2..4)? <= &[0, 7][..] => (*rest.first()?, rest.get(8..)?),
                next => (next, rest),
            };
            (address(8)?, address(24)?, next, rest)
        }
        _ => return None,
    };
    let &[a, b, c, d, ref more @ ..] = rest.first_chunk::<8>()?;
    let ports = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
    let (protocol, [from, to], seq) = match (protocol, a) {
        (UDP, _) => (Protocol::Udp, ports, None),
        (TCP, _) => (Protocol::Tcp, ports, Some(Seq(u32::from_be_bytes(*more)))),
        (ICMP, ECHO_REPLY_V4) | (ICMPV6, ECHO_REPLY_V6) => {
            (Protocol::Echo, [u16::from_be_bytes([more[0], more[1]]); 2], None)
        }
        _ => return None,
    };
    let key = FlowKey { protocol, guest: Endpoint::new(dst, to), remote: Endpoint::new(src, from) };
    Some(Quoted { key, seq })
}
