//! Services: protocols that brodo answers itself on the link, as router, DHCP server and neighbour.
//!
//! Each is a pure function of the configuration and one packet: no state, no time. It writes one complete
//! frame, checksums included, to the start of the caller's buffer and returns the frame's length in bytes;
//! `None` means a well-formed packet that is due no answer. Every file has a `FRAME_LEN_MAX`; a buffer
//! shorter than that may make the function panic, [`FRAME_LEN_MAX`] suffices for all.
//!
//! Answers depend on nothing but one packet of the guest, go to the guest only, and are at most one per
//! packet: a hostile guest can only disturb itself.

pub mod arp;
pub mod dhcpv4;
pub mod dhcpv6;
pub mod icmp_error;
pub mod ndp;

use crate::config::Config;
use crate::egress::headers::{self, Ip, Macs};
use crate::flow::Addresses;
use crate::wire::ICMPV6;
use crate::wire::ethernet::{EthernetHeader, MacAddr};
use crate::wire::ipv4::Ipv4Header;
use crate::wire::ipv6::Ipv6Header;

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

/// Offset of layer 4 in an IPv4 frame.
const IPV4_PAYLOAD: usize = EthernetHeader::LEN + Ipv4Header::LEN;
/// Offset of layer 4 in an IPv6 frame.
const IPV6_PAYLOAD: usize = EthernetHeader::LEN + Ipv6Header::LEN;

/// Writes the headers in front of `payload_len` bytes of layer 4; returns the frame's length in bytes.
fn finish(config: &Config, dst_mac: MacAddr, ip: &Ip, payload_len: usize, out: &mut [u8]) -> usize {
    headers::frame(Macs { src: config.mac, dst: dst_mac }, ip, payload_len, out) + payload_len
}

/// As [`finish`], for a neighbour discovery message, which must not have crossed a router (RFC 4861
/// section 11.2).
fn finish_ndp(
    config: &Config,
    dst_mac: MacAddr,
    addresses: Addresses,
    payload_len: usize,
    out: &mut [u8],
) -> usize {
    finish(config, dst_mac, &Ip { hop_limit: 255, ..Ip::new(addresses, ICMPV6) }, payload_len, out)
}
