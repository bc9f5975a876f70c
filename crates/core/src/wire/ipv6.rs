//! IPv6 headers (RFC 8200). `parse` walks the extension headers that an end node has to understand and
//! returns the upper-layer protocol and its payload; `emit` writes the fixed header only, because brodo sends
//! no extension header but that of fragments. Fragments have a parser of their own, so that none is taken for
//! a packet.

use super::fragment::Fragment;
use super::ipv6_at;
use crate::counters::DropReason;
use std::net::Ipv6Addr;

#[cfg(test)]
mod tests;

/// Most extension headers walked in one packet. RFC 8200 section 4.1 recommends orders with at most six of
/// those known here.
pub const EXTENSIONS_MAX: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
/// The extension header of a fragment, see [`Fragment`].
pub const FRAGMENT: u8 = 44;
/// The extension header of options for the destination.
pub const DESTINATION_OPTIONS: u8 = 60;

/// The header of a packet or fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Header {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// Next header; after `parse` the upper-layer protocol, behind the last extension header.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Differentiated services and ECN, as one byte.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Length of the upper-layer packet in bytes: after `parse`, without extension headers.
    pub payload_len: u16,
}

impl Ipv6Header {
    /// Length in bytes of the header that [`Ipv6Header::emit`] writes.
    pub const LEN: usize = 40;
    /// Longest payload behind it, bytes: its length does not count the header (RFC 8200 section 3).
    pub const PAYLOAD_MAX: usize = 65_535;

    /// The header and the upper-layer packet, without extension headers and without what exceeds the payload
    /// length. An atomic fragment (RFC 6946) passes as the whole packet it is.
    ///
    /// # Errors
    /// [`DropReason::MalformedIpv6`] or [`DropReason::Fragment`].
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), DropReason> {
        match Self::parse_any(packet)? {
            (header, None, payload) => Ok((header, payload)),
            _ => Err(DropReason::Fragment),
        }
    }

    /// As [`Ipv6Header::parse`], but accepts fragments: then the payload is the bytes behind the fragment
    /// header, of the protocol named there. The fragment is `None` for a whole packet.
    ///
    /// # Errors
    /// [`DropReason::MalformedIpv6`] for a malformed header or extension.
    pub fn parse_any(packet: &[u8]) -> Result<(Self, Option<Fragment>, &[u8]), DropReason> {
        Self::parse_begin(packet, packet.len())
    }

    /// As [`Ipv6Header::parse_any`], of a packet of `len` bytes of which these are the first: the payload may
    /// be shorter than [`Ipv6Header::payload_len`].
    ///
    /// # Errors
    /// [`DropReason::MalformedIpv6`] for a malformed header or extension.
    pub fn parse_begin(packet: &[u8], len: usize) -> Result<(Self, Option<Fragment>, &[u8]), DropReason> {
        let (fixed, rest) = packet.split_first_chunk::<{ Self::LEN }>().ok_or(DropReason::MalformedIpv6)?;
        let first = u32::from_be_bytes([fixed[0], fixed[1], fixed[2], fixed[3]]);
        if first >> 28 != 6 {
            return Err(DropReason::MalformedIpv6);
        }
        let length = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
        if length > len.saturating_sub(Self::LEN) {
            return Err(DropReason::MalformedIpv6);
        }
        let rest = &rest[..length.min(rest.len())];
        let (next_header, fragment, payload) = match fixed[6] {
            HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS => extensions(fixed[6], rest)?,
            upper => (upper, None, rest),
        };
        let header = Self {
            src: ipv6_at(fixed, 8).ok_or(DropReason::MalformedIpv6)?,
            dst: ipv6_at(fixed, 24).ok_or(DropReason::MalformedIpv6)?,
            next_header,
            hop_limit: fixed[7],
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            // Extensions are no payload.
            payload_len: (length - (rest.len() - payload.len())) as u16,
        };
        Ok((header, fragment, payload))
    }

    /// Writes the header to the start of `out`. Bits of `flow_label` above the twentieth are ignored.
    ///
    /// # Panics
    /// If `out` is shorter than [`Ipv6Header::LEN`].
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..Self::LEN];
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        out[..4].copy_from_slice(&first.to_be_bytes());
        out[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        out[6] = self.next_header;
        out[7] = self.hop_limit;
        out[8..24].copy_from_slice(&self.src.octets());
        out[24..40].copy_from_slice(&self.dst.octets());
    }
}

/// Walks extension headers, the first of type `next`, up to that of a fragment; returns the upper-layer
/// protocol, the fragment if it is one, and the bytes behind the headers.
fn extensions(mut next: u8, mut rest: &[u8]) -> Result<(u8, Option<Fragment>, &[u8]), DropReason> {
    for walked in 0..EXTENSIONS_MAX {
        let start = rest.first_chunk::<8>();
        // Length in units of 8 bytes, the first not counted; in a fragment header the field is reserved.
        let len = |start: &[u8; 8]| (usize::from(start[1]) + 1) * 8;
        let (header, after) = match (next, start) {
            (HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS, Some(start)) if len(start) <= rest.len() => {
                rest.split_at(len(start))
            }
            (FRAGMENT, Some(_)) => rest.split_at(8),
            (HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | FRAGMENT, _) => {
                return Err(DropReason::MalformedIpv6);
            }
            (upper, _) => return Ok((upper, None, rest)),
        };
        match next {
            HOP_BY_HOP if walked > 0 => return Err(DropReason::MalformedIpv6),
            HOP_BY_HOP | DESTINATION_OPTIONS => options(&header[2..])?,
            // Segments left: the packet's route leads through this node, which is no router for it.
            ROUTING if header[3] != 0 => return Err(DropReason::MalformedIpv6),
            FRAGMENT => {
                let fragment = header.first_chunk().map(|header| Fragment::of_ipv6(*header));
                let fragment = fragment.filter(|fragment| fragment.offset != 0 || fragment.more);
                if fragment.is_some() {
                    return Ok((header[0], fragment, after));
                }
            }
            _ => {}
        }
        next = header[0];
        rest = after;
    }
    match next {
        HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS => Err(DropReason::MalformedIpv6),
        upper => Ok((upper, None, rest)),
    }
}

/// Checks the options of one header: well-formed, and none whose type forbids to skip it (RFC 8200 section
/// 4.2: the two high bits are not 00). That includes jumbo payloads, which no link here carries.
fn options(mut rest: &[u8]) -> Result<(), DropReason> {
    while let [kind, after @ ..] = rest {
        rest = if *kind == 0 {
            after
        } else {
            let (&len, data) = after.split_first().ok_or(DropReason::MalformedIpv6)?;
            if kind >> 6 != 0 {
                return Err(DropReason::MalformedIpv6);
            }
            data.get(usize::from(len)..).ok_or(DropReason::MalformedIpv6)?
        };
    }
    Ok(())
}
