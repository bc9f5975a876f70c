//! IPv4 headers (RFC 791). Options are skipped and never sent; fragments are refused, because nothing here
//! reassembles: the guest's path MTU toward us is the link's, so it has no need to fragment.

use super::checksum;
use crate::counters::DropReason;
use std::net::Ipv4Addr;

#[cfg(test)]
mod tests;

/// The header of a packet that is not a fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4Header {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Upper-layer protocol.
    pub protocol: u8,
    /// Time to live, in hops.
    pub ttl: u8,
    /// Identification.
    pub ident: u16,
    /// The DF bit.
    pub dont_fragment: bool,
    /// Differentiated services and ECN, as one byte.
    pub tos: u8,
    /// Length of what follows the header in bytes, at most 65,515.
    pub payload_len: u16,
}

impl Ipv4Header {
    /// Length in bytes of the header that [`Ipv4Header::emit`] writes.
    pub const LEN: usize = 20;

    /// The header and its payload, without the padding of a short Ethernet frame. Options are skipped; the header
    /// checksum is verified.
    ///
    /// # Errors
    /// [`DropReason::MalformedIpv4`], [`DropReason::Ipv4Checksum`] or [`DropReason::Fragment`].
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), DropReason> {
        let fixed = packet.first_chunk::<{ Self::LEN }>().ok_or(DropReason::MalformedIpv4)?;
        let header_len = usize::from(fixed[0] & 0xf) * 4;
        let total_len = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        if fixed[0] >> 4 != 4 || header_len < Self::LEN || total_len < header_len {
            return Err(DropReason::MalformedIpv4);
        }
        let packet = packet.get(..total_len).ok_or(DropReason::MalformedIpv4)?;
        let (header, payload) = packet.split_at(header_len);
        if checksum::finish(checksum::sum(header, 0)) != 0 {
            return Err(DropReason::Ipv4Checksum);
        }
        let fragment = u16::from_be_bytes([fixed[6], fixed[7]]);
        // More fragments, or an offset: only DF (and the reserved bit) may be set.
        if fragment & 0x3fff != 0 {
            return Err(DropReason::Fragment);
        }
        let header = Self {
            src: Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15]),
            dst: Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19]),
            protocol: fixed[9],
            ttl: fixed[8],
            ident: u16::from_be_bytes([fixed[4], fixed[5]]),
            dont_fragment: fragment & 0x4000 != 0,
            tos: fixed[1],
            payload_len: payload.len() as u16,
        };
        Ok((header, payload))
    }

    /// Writes the header to the start of `out`, its checksum computed.
    ///
    /// # Panics
    /// If `out` is shorter than [`Ipv4Header::LEN`], or if `payload_len` is above 65,515.
    pub fn emit(&self, out: &mut [u8]) {
        let total_len =
            self.payload_len.checked_add(Self::LEN as u16).expect("an IPv4 packet's length fits in 16 bits");
        let mut header = [0; Self::LEN];
        header[0] = 0x45;
        header[1] = self.tos;
        header[2..4].copy_from_slice(&total_len.to_be_bytes());
        header[4..6].copy_from_slice(&self.ident.to_be_bytes());
        header[6] = if self.dont_fragment { 0x40 } else { 0 };
        header[8] = self.ttl;
        header[9] = self.protocol;
        header[12..16].copy_from_slice(&self.src.octets());
        header[16..20].copy_from_slice(&self.dst.octets());
        let checksum = checksum::finish(checksum::sum(&header, 0));
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        out[..Self::LEN].copy_from_slice(&header);
    }
}
