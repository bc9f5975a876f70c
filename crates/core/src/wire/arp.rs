//! ARP for IPv4 over Ethernet (RFC 826): requests and replies. Other hardware, protocols and operations are
//! malformed to us, because nothing else can be on the link.

use super::ethernet::MacAddr;
use super::{Writer, ipv4_at};
use crate::counters::DropReason;
use std::net::Ipv4Addr;

#[cfg(test)]
mod tests;

/// Operation of a packet. Reverse ARP and other operations are not supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArpOperation {
    /// Request for the MAC address of the target IP address.
    Request,
    /// The sender has the sender address.
    Reply,
}

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArpPacket {
    /// Question or answer.
    pub operation: ArpOperation,
    /// MAC address of the sender.
    pub sender_mac: MacAddr,
    /// Its address; unspecified in a probe for duplicates (RFC 5227).
    pub sender_ip: Ipv4Addr,
    /// MAC address of the target; without meaning in a request.
    pub target_mac: MacAddr,
    /// Address asked for.
    pub target_ip: Ipv4Addr,
}

/// Ethernet, IPv4, and their address lengths.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

impl ArpPacket {
    /// Length in bytes.
    pub const LEN: usize = 28;

    /// The packet; the bytes behind it are padding.
    ///
    /// # Errors
    /// [`DropReason::MalformedArp`], also for other hardware, protocols and operations.
    pub fn parse(packet: &[u8]) -> Result<Self, DropReason> {
        const BAD: DropReason = DropReason::MalformedArp;
        let p = packet.first_chunk::<{ Self::LEN }>().ok_or(BAD)?;
        let operation = match (p[..6] == ETHERNET_IPV4, &p[6..8]) {
            (true, [0, 1]) => ArpOperation::Request,
            (true, [0, 2]) => ArpOperation::Reply,
            _ => return Err(BAD),
        };
        Ok(Self {
            operation,
            sender_mac: MacAddr([p[8], p[9], p[10], p[11], p[12], p[13]]),
            sender_ip: ipv4_at(p, 14).ok_or(BAD)?,
            target_mac: MacAddr([p[18], p[19], p[20], p[21], p[22], p[23]]),
            target_ip: ipv4_at(p, 24).ok_or(BAD)?,
        })
    }

    /// Writes the packet to the start of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`ArpPacket::LEN`].
    pub fn emit(&self, out: &mut [u8]) {
        let mut out = Writer::new(out);
        out.bytes(&ETHERNET_IPV4);
        out.u16(match self.operation {
            ArpOperation::Request => 1,
            ArpOperation::Reply => 2,
        });
        out.bytes(&self.sender_mac.0);
        out.bytes(&self.sender_ip.octets());
        out.bytes(&self.target_mac.0);
        out.bytes(&self.target_ip.octets());
    }
}
