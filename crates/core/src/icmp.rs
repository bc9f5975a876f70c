//! ICMP as a relay sees it: echo replies and errors for the guest, and the flow quoted in an ICMP error of
//! the guest.

use crate::context::{Cx, Platform};
use crate::counters::DropReason;
use crate::egress::fragments::{Datagram, FragmentProgress};
use crate::egress::headers::{Ip, ip_header_len, ip_payload_max};
use crate::flow::Addresses;
use crate::flow::{Endpoint, FlowKey, Protocol};
use crate::host::{HostError, IcmpCause};
use crate::link::NoCredit;
use crate::services::{self, icmp_error};
use crate::wire::icmpv4::{Echo, Icmpv4Message};
use crate::wire::icmpv6::{self, Icmpv6Message};
use crate::wire::ipv6::Ipv6Header;
use crate::wire::tcp::Seq;
use crate::wire::{ICMP, ICMPV6, TCP, UDP, checksum};
use std::net::IpAddr;

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
    let (ip, mtu) = (Ip::new(Addresses { src, dst }, protocol), cx.shared.config.mtu);
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

/// A packet of brodo's that an ICMP error from the guest quotes.
pub(crate) struct Quoted {
    /// Its flow; the flow's remote end is the packet's source.
    pub(crate) key: FlowKey,
    /// Sequence number of a TCP segment (SEG.SEQ).
    pub(crate) seq: Option<Seq>,
}

/// Parses the UDP datagram or TCP segment quoted by an ICMP error from the guest. Required is only the part
/// that every host quotes: the IP header and eight bytes more (RFC 792).
pub(crate) fn quoted(packet: &[u8]) -> Option<Quoted> {
    let (src, dst, protocol, rest) = match packet.first()? >> 4 {
        4 => {
            let header_len = usize::from(packet[0] & 15) * 4;
            let address = |at: usize| packet.get(at..at + 4)?.first_chunk::<4>().copied().map(IpAddr::from);
            (address(12)?, address(16)?, *packet.get(9)?, packet.get(header_len..)?)
        }
        6 => {
            let address = |at: usize| packet.get(at..at + 16)?.first_chunk::<16>().copied().map(IpAddr::from);
            (address(8)?, address(24)?, *packet.get(6)?, packet.get(Ipv6Header::LEN..)?)
        }
        _ => return None,
    };
    let &[a, b, c, d, ref more @ ..] = rest.first_chunk::<8>()?;
    let (protocol, seq) = match protocol {
        UDP => (Protocol::Udp, None),
        TCP => (Protocol::Tcp, Some(Seq(u32::from_be_bytes(*more)))),
        _ => return None,
    };
    let key = FlowKey {
        protocol,
        guest: Endpoint::new(dst, u16::from_be_bytes([c, d])),
        remote: Endpoint::new(src, u16::from_be_bytes([a, b])),
    };
    Some(Quoted { key, seq })
}
