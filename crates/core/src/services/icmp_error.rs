//! ICMP errors to the guest: the error of a router or host on the path about a packet of the guest.
//!
//! The error quotes the packet, so that the guest's kernel finds the socket it belongs to. When the packet
//! itself is gone (an error that the host receives later), [`quote`] rebuilds its headers from the flow's
//! key.

use super::{IPV4_PAYLOAD, IPV6_PAYLOAD, finish};
use crate::cidr;
use crate::config::Config;
use crate::counters::DropReason;
use crate::egress::headers::Ip;
use crate::flow::Addresses;
use crate::flow::{FlowKey, Protocol};
use crate::host::IcmpCause;
use crate::time::Duration;
use crate::wire::ethernet::MacAddr;
use crate::wire::icmpv4::{self, Icmpv4Message};
use crate::wire::icmpv6::{self, Icmpv6Message};
use crate::wire::ipv4::Ipv4Header;
use crate::wire::ipv6::Ipv6Header;
use crate::wire::{ICMP, ICMPV6, TCP, UDP};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[cfg(test)]
mod tests;

/// Longest frame in bytes: the least MTU of IPv6.
pub const FRAME_LEN_MAX: usize = IPV6_PAYLOAD + 8 + Icmpv6Message::QUOTE_MAX;

/// Rate limit of ICMP errors to a guest: at most [`BURST`] at once and one more each [`INTERVAL`] (RFC 1812
/// section 4.3.2.8, RFC 4443 section 2.4 f), so that packets sent into a void do not come back multiplied.
/// Linux has the same thousand a second.
pub(crate) const BURST: u32 = 1000;
pub(crate) const INTERVAL: Duration = Duration::from_millis(1);

/// Offset of the next header field in the IPv6 header.
const NEXT_HEADER_AT: u32 = 6;

/// The least MTU of IPv6, in bytes.
const IPV6_MTU_MIN: u32 = 1280;

/// Writes the frame with the ICMP error `cause`, for the guest with the MAC address `guest`, from `from`,
/// about the IP packet `packet`. If `from` is of the other family or unknown, its source is the gateway.
///
/// None if no error may answer that packet: one that is an ICMP error itself, or whose source or destination
/// is not a single host (RFC 1122 section 3.2.2, RFC 4443 section 2.4 e).
///
/// # Errors
/// The parser's error, for a malformed packet.
pub fn icmp_error(
    config: &Config,
    guest: MacAddr,
    cause: IcmpCause,
    from: Option<IpAddr>,
    packet: &[u8],
    out: &mut [u8],
) -> Result<Option<usize>, DropReason> {
    match packet.first().map(|b| b >> 4) {
        Some(4) => {
            let (header, payload) = Ipv4Header::parse(packet)?;
            let Some(net) = &config.v4 else { return Ok(None) };
            // Networks of one or two addresses have no broadcast address (RFC 3021).
            let link_broadcast = (net.prefix_len < 31)
                .then(|| Ipv4Addr::from_bits(net.guest.to_bits() | !cidr::mask_v4(net.prefix_len)));
            let single = |a: Ipv4Addr| {
                !a.is_unspecified() && !a.is_multicast() && !a.is_broadcast() && Some(a) != link_broadcast
            };
            // An ICMP packet too short for a type might be an error.
            let error = header.protocol == ICMP && payload.first().is_none_or(|&kind| icmpv4::is_error(kind));
            if error || !single(header.src) || !single(header.dst) || header.src.is_loopback() {
                return Ok(None);
            }
            let from = match from {
                Some(IpAddr::V4(from)) => from,
                _ => net.gateway,
            };
            let message = message_v4(cause, packet);
            message.emit(&mut out[IPV4_PAYLOAD..]);
            let ip = Ip::new(Addresses::new(from, header.src), ICMP);
            Ok(Some(finish(config, guest, &ip, message.len(), out)))
        }
        Some(6) => {
            let (header, payload) = Ipv6Header::parse(packet)?;
            let Some(net) = &config.v6 else { return Ok(None) };
            let single = |a: Ipv6Addr| !a.is_unspecified() && !a.is_multicast();
            let error =
                header.next_header == ICMPV6 && payload.first().is_none_or(|&kind| icmpv6::is_error(kind));
            if error || !single(header.src) || !single(header.dst) || header.src.is_loopback() {
                return Ok(None);
            }
            let from = match from {
                Some(IpAddr::V6(from)) => from,
                _ => net.gateway,
            };
            let message = message_v6(cause, packet);
            message.emit(from, header.src, &mut out[IPV6_PAYLOAD..]);
            let ip = Ip::new(Addresses::new(from, header.src), ICMPV6);
            Ok(Some(finish(config, guest, &ip, message.len(), out)))
        }
        _ => Err(DropReason::MalformedIpv4),
    }
}

fn message_v4(cause: IcmpCause, quoted: &[u8]) -> Icmpv4Message<'_> {
    let unreachable = |code| Icmpv4Message::Unreachable { code, quoted };
    match cause {
        IcmpCause::PortUnreachable => unreachable(icmpv4::PORT_UNREACHABLE),
        IcmpCause::NetUnreachable => unreachable(icmpv4::NET_UNREACHABLE),
        // Excluded: the code whose message carries an MTU.
        IcmpCause::HostUnreachable | IcmpCause::Unreachable(icmpv4::FRAGMENTATION_NEEDED) => {
            unreachable(icmpv4::HOST_UNREACHABLE)
        }
        IcmpCause::ProtocolUnreachable => unreachable(icmpv4::PROTOCOL_UNREACHABLE),
        IcmpCause::Prohibited => unreachable(icmpv4::PROHIBITED),
        IcmpCause::Unreachable(code) => unreachable(code),
        IcmpCause::TooBig(mtu) => {
            Icmpv4Message::FragmentationNeeded { mtu: u16::try_from(mtu).unwrap_or(u16::MAX), quoted }
        }
        IcmpCause::TimeExceeded => Icmpv4Message::TimeExceeded { code: 0, quoted },
        IcmpCause::ReassemblyTimeExceeded => Icmpv4Message::TimeExceeded { code: 1, quoted },
    }
}

fn message_v6(cause: IcmpCause, quoted: &[u8]) -> Icmpv6Message<'_> {
    let unreachable = |code| Icmpv6Message::Unreachable { code, quoted };
    match cause {
        IcmpCause::PortUnreachable => unreachable(icmpv6::PORT_UNREACHABLE),
        IcmpCause::NetUnreachable => unreachable(icmpv6::NO_ROUTE),
        IcmpCause::HostUnreachable => unreachable(icmpv6::ADDRESS_UNREACHABLE),
        IcmpCause::ProtocolUnreachable => Icmpv6Message::ParameterProblem {
            code: icmpv6::UNRECOGNISED_NEXT_HEADER,
            pointer: NEXT_HEADER_AT,
            quoted,
        },
        IcmpCause::Prohibited => unreachable(icmpv6::PROHIBITED),
        IcmpCause::Unreachable(code) => unreachable(code),
        IcmpCause::TooBig(mtu) => Icmpv6Message::PacketTooBig { mtu: mtu.max(IPV6_MTU_MIN), quoted },
        IcmpCause::TimeExceeded => Icmpv6Message::TimeExceeded { code: 0, quoted },
        IcmpCause::ReassemblyTimeExceeded => Icmpv6Message::TimeExceeded { code: 1, quoted },
    }
}

/// Most bytes that [`quote`] writes.
pub const QUOTE_LEN_MAX: usize = Ipv6Header::LEN + 8;

/// Writes a packet of the guest as an ICMP error quotes it, IP header and eight bytes of layer 4, to the
/// start of `out`; returns its length in bytes. Enough for the guest's kernel to find a UDP or echo socket;
/// not for TCP, where it also compares the sequence number. `sequence` is that of an echo request, by which
/// programs match replies. None if the key's addresses are of two families.
///
/// # Panics
/// If `out` is shorter than [`QUOTE_LEN_MAX`].
pub fn quote(key: &FlowKey, sequence: Option<u16>, out: &mut [u8]) -> Option<usize> {
    let v6 = key.guest.is_ipv6();
    let mut start = [0; 8];
    let protocol = match (key.protocol, v6) {
        (Protocol::Echo, v6) => {
            start[0] = if v6 { 128 } else { 8 };
            start[4..6].copy_from_slice(&key.guest.port().to_be_bytes());
            start[6..8].copy_from_slice(&sequence.unwrap_or(0).to_be_bytes());
            if v6 { ICMPV6 } else { ICMP }
        }
        (Protocol::Tcp | Protocol::Udp, _) => {
            start[..2].copy_from_slice(&key.guest.port().to_be_bytes());
            start[2..4].copy_from_slice(&key.remote.port().to_be_bytes());
            if key.protocol == Protocol::Udp {
                start[5] = 8;
                UDP
            } else {
                TCP
            }
        }
    };
    let addresses = Addresses::new(key.guest.ip(), key.remote.ip());
    if addresses.src.is_ipv4() != addresses.dst.is_ipv4() {
        return None;
    }
    let header_len = Ip::new(addresses, protocol).emit(start.len(), out);
    out[header_len..header_len + start.len()].copy_from_slice(&start);
    Some(header_len + start.len())
}
