//! ARP: resolves brodo's IPv4 addresses to its MAC address, and in a copy of the host's network those of all
//! other hosts too (proxy ARP, RFC 1027).
//!
//! It asks the guest for its own address, before a flow from outside begins to a guest that has not sent a
//! frame yet.
//!
//! The guest's own probe for duplicates (RFC 5227) finds none: a probe has no sender address, and a proxy
//! does not answer it.

use crate::config::Config;
use crate::counters::DropReason;
use crate::wire::arp::{ArpOperation, ArpPacket};
use crate::wire::ethernet::{EtherType, EthernetHeader, MacAddr};
use std::net::Ipv4Addr;

#[cfg(test)]
mod tests;

/// Length of an answer in bytes.
pub const FRAME_LEN_MAX: usize = EthernetHeader::LEN + ArpPacket::LEN;

/// Writes a request for the guest's MAC address into `out`; returns the frame's length in bytes. None if the
/// link has no IPv4.
pub fn request(config: &Config, out: &mut [u8]) -> Option<usize> {
    let net = config.v4?;
    EthernetHeader { dst: MacAddr::BROADCAST, src: config.mac, ethertype: EtherType::Arp }.emit(out);
    let request = ArpPacket {
        operation: ArpOperation::Request,
        sender_mac: config.mac,
        sender_ip: net.gateway,
        target_mac: MacAddr([0; 6]),
        target_ip: net.guest,
    };
    request.emit(&mut out[EthernetHeader::LEN..]);
    Some(FRAME_LEN_MAX)
}

/// The sender's address in a packet that was answered by [`answer`].
pub(crate) fn sender(packet: &[u8]) -> Option<Ipv4Addr> {
    ArpPacket::parse(packet).ok().map(|packet| packet.sender_ip)
}

/// Answers the ARP packet in a frame's payload.
///
/// # Errors
/// [`DropReason::MalformedArp`], also for a sender with a group address.
pub fn answer(config: &Config, packet: &[u8], out: &mut [u8]) -> Result<Option<usize>, DropReason> {
    let packet = ArpPacket::parse(packet)?;
    if packet.sender_mac.is_multicast() {
        return Err(DropReason::MalformedArp);
    }
    let probe = packet.sender_ip.is_unspecified() || packet.sender_ip == packet.target_ip;
    let target = packet.target_ip.into();
    let answered = config.is_ours(target) || (!probe && config.is_neighbour(target));
    if packet.operation != ArpOperation::Request || !answered {
        return Ok(None);
    }
    EthernetHeader { dst: packet.sender_mac, src: config.mac, ethertype: EtherType::Arp }.emit(out);
    let reply = ArpPacket {
        operation: ArpOperation::Reply,
        sender_mac: config.mac,
        sender_ip: packet.target_ip,
        target_mac: packet.sender_mac,
        target_ip: packet.sender_ip,
    };
    reply.emit(&mut out[EthernetHeader::LEN..]);
    Ok(Some(FRAME_LEN_MAX))
}
