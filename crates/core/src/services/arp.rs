//! ARP: resolves brodo's IPv4 addresses to its MAC address, and in a copy of the host's network those of all
//! other hosts too (proxy ARP, RFC 1027).
//!
//! The guest's own probe for duplicates (RFC 5227) finds none: a probe has no sender address, and a proxy
//! does not answer it.

use crate::config::Config;
use crate::counters::DropReason;
use crate::wire::arp::{ArpOperation, ArpPacket};
use crate::wire::ethernet::{EtherType, EthernetHeader};

#[cfg(test)]
mod tests;

/// Length of an answer in bytes.
pub const FRAME_LEN_MAX: usize = EthernetHeader::LEN + ArpPacket::LEN;

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
