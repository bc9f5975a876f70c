//! IPv4 headers (RFC 791). Options are skipped and never sent. Fragments have a parser of their own, so that
//! none is taken for a packet.

use super::checksum;
use super::fragment::Fragment;
use crate::counters::DropReason;
use std::net::Ipv4Addr;

#[cfg(test)]
mod tests;

/// The header of a packet or fragment.
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
    /// Identification of the fragments of one packet.
    pub ident: u16,
    /// The DF bit.
    pub dont_fragment: bool,
    /// Differentiated services and ECN, as one byte.
    pub tos: u8,
    /// Length of the payload in bytes, at most 65,515.
    pub payload_len: u16,
}

impl Ipv4Header {
    /// Length in bytes of the header that [`Ipv4Header::emit`] writes.
    pub const LEN: usize = 20;
    /// Longest payload behind it, bytes: the total length counts the header too (RFC 791).
    pub const PAYLOAD_MAX: usize = 65_535 - Self::LEN;

    /// The header and its payload, without the padding of a short Ethernet frame. Options are skipped; the
    /// header checksum is verified.
    ///
    /// # Errors
    /// [`DropReason::MalformedIpv4`], [`DropReason::Ipv4Checksum`] or [`DropReason::Fragment`].
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), DropReason> {
        match Self::parse_any(packet)? {
            (header, None, payload) => Ok((header, payload)),
            _ => Err(DropReason::Fragment),
        }
    }

    /// As [`Ipv4Header::parse`], but accepts fragments; the fragment is `None` for a whole packet.
    ///
    /// # Errors
    /// [`DropReason::MalformedIpv4`] or [`DropReason::Ipv4Checksum`].
    pub fn parse_any(packet: &[u8]) -> Result<(Self, Option<Fragment>, &[u8]), DropReason> {
        Self::parse_begin(packet, packet.len())
    }

    /// As [`Ipv4Header::parse_any`], of a packet of `len` bytes of which these are the first: the payload may
    /// be shorter than [`Ipv4Header::payload_len`].
    ///
    /// # Errors
    /// [`DropReason::MalformedIpv4`] or [`DropReason::Ipv4Checksum`].
    pub fn parse_begin(packet: &[u8], len: usize) -> Result<(Self, Option<Fragment>, &[u8]), DropReason> {
        let fixed = packet.first_chunk::<{ Self::LEN }>().ok_or(DropReason::MalformedIpv4)?;
        let header_len = usize::from(fixed[0] & 0xf) * 4;
        let total_len = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        if fixed[0] >> 4 != 4 || header_len < Self::LEN || total_len < header_len {
            return Err(DropReason::MalformedIpv4);
        }
        let known = &packet[..total_len.min(packet.len())];
        let (header, payload) = known
            .split_at_checked(header_len)
            .filter(|_| total_len <= len)
            .ok_or(DropReason::MalformedIpv4)?;
        if checksum::finish(checksum::sum(header, 0)) != 0 {
            return Err(DropReason::Ipv4Checksum);
        }
        let field = u16::from_be_bytes([fixed[6], fixed[7]]);
        let ident = u16::from_be_bytes([fixed[4], fixed[5]]);
        let header = Self {
            src: Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15]),
            dst: Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19]),
            protocol: fixed[9],
            ttl: fixed[8],
            ident,
            dont_fragment: field & 0x4000 != 0,
            tos: fixed[1],
            payload_len: (total_len - header_len) as u16,
        };
        Ok((header, Fragment::of_ipv4(field, ident), payload))
    }

    /// Writes the header to the start of `out`, its checksum computed.
    ///
    /// # Panics
    /// If `out` is shorter than [`Ipv4Header::LEN`], or if `payload_len` is above 65,515.
    pub fn emit(&self, out: &mut [u8]) {
        self.emit_as(None, out);
    }

    /// As [`Ipv4Header::emit`], for a fragment, whose identification replaces the header's.
    pub fn emit_fragment(&self, fragment: Fragment, out: &mut [u8]) {
        Self { ident: fragment.ident as u16, ..*self }.emit_as(Some(fragment), out);
    }

    fn emit_as(&self, fragment: Option<Fragment>, out: &mut [u8]) {
        let total_len =
            self.payload_len.checked_add(Self::LEN as u16).expect("an IPv4 packet's length fits in 16 bits");
        let mut header = [0; Self::LEN];
        header[0] = 0x45;
        header[1] = self.tos;
        header[2..4].copy_from_slice(&total_len.to_be_bytes());
        header[4..6].copy_from_slice(&self.ident.to_be_bytes());
        let field = fragment.map_or(0, Fragment::to_ipv4) | if self.dont_fragment { 0x4000 } else { 0 };
        header[6..8].copy_from_slice(&field.to_be_bytes());
        header[8] = self.ttl;
        header[9] = self.protocol;
        header[12..16].copy_from_slice(&self.src.octets());
        header[16..20].copy_from_slice(&self.dst.octets());
        let checksum = checksum::finish(checksum::sum(&header, 0));
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        out[..Self::LEN].copy_from_slice(&header);
    }
}
