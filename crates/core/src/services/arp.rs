//! ARP: resolves brodo's IPv4 addresses to its MAC address, and no other address, so that the guest's own
//! probe for duplicates (RFC 5227) finds none.

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
    if packet.operation != ArpOperation::Request || !config.is_ours(packet.target_ip.into()) {
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
