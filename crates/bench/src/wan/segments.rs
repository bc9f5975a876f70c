//! Segments of a super-packet: as cut by a network card.
//!
//! A packet from a TUN comes behind a virtio-net header. If that names a segment size, the packet is one TCP
//! header with the payload of many segments. On a real link each of them is a frame of its own, is queued
//! alone and can be lost alone; [`Segments`] counts them and [`Segments::cut`] makes a packet of any run of
//! them, which is again a super-packet if it has more than one. Everything else counts as one segment.

use brodo_core::link::Gso;
use brodo_link::vnet::{self, HEADER_LEN};
use std::ops::Range;

/// Overhead of an Ethernet frame on the wire, in bytes: preamble, header, check
/// sequence, gap.
pub(super) const FRAME_OVERHEAD: u64 = 8 + 14 + 4 + 12;

/// `flags` of the virtio-net header: the checksum field holds the sum of the pseudo-header only.
const NEEDS_CSUM: u8 = 1;

const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// The layout of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segments {
    /// Bytes from the start of the IP header to the payload of TCP; all of an indivisible packet.
    headers: usize,
    /// Offset of TCP's header from the IP header; 0 for an indivisible packet.
    tcp: usize,
    /// Bytes of payload behind the headers.
    payload: usize,
    /// Bytes of payload in every segment but the last.
    size: usize,
}

impl Segments {
    /// Reads the layout of `packet`, which begins with its virtio-net header.
    pub(super) fn of(packet: &[u8]) -> Self {
        Self::divisible(packet).unwrap_or(Self {
            headers: packet.len().saturating_sub(HEADER_LEN),
            tcp: 0,
            payload: 0,
            size: 1,
        })
    }

    fn divisible(packet: &[u8]) -> Option<Self> {
        let (header, ip) = packet.split_first_chunk::<HEADER_LEN>()?;
        let size = match vnet::parse(header).gso {
            Gso::Tcp4(size) | Gso::Tcp6(size) if header[0] & NEEDS_CSUM != 0 => usize::from(size),
            _ => return None,
        };
        let tcp = if is_v4(ip)? { usize::from(ip[0] & 15) * 4 } else { 40 };
        let headers = tcp + usize::from(*ip.get(tcp + 12)? >> 4) * 4;
        let payload = ip.len().checked_sub(headers).filter(|&length| length > 0)?;
        Some(Self { headers, tcp, payload, size })
    }

    /// Number of segments, at least one.
    pub(super) fn count(&self) -> u32 {
        self.payload.div_ceil(self.size).max(1) as u32
    }

    /// Bytes on the wire of the segments in `range`.
    pub(super) fn wire_bytes(&self, range: &Range<u32>) -> u64 {
        let each = self.headers as u64 + FRAME_OVERHEAD;
        u64::from(range.end - range.start) * each + self.span(range).len() as u64
    }

    /// Offsets in the payload of the segments in `range`.
    fn span(&self, range: &Range<u32>) -> Range<usize> {
        let at = |segment: u32| (segment as usize * self.size).min(self.payload);
        at(range.start)..at(range.end)
    }

    /// Replaces `out` by a packet of the segments in `range` of `packet`, which is the one this was read
    /// from.
    pub(super) fn cut(&self, packet: &[u8], range: &Range<u32>, out: &mut Vec<u8>) {
        out.clear();
        if self.tcp == 0 {
            out.extend_from_slice(packet);
            return;
        }
        let span = self.span(range);
        let payload = HEADER_LEN + self.headers;
        out.extend_from_slice(&packet[..payload]);
        out.extend_from_slice(&packet[payload + span.start..payload + span.end]);
        if range.end - range.start == 1 {
            // No longer a super-packet: kind and size of its segments.
            out[1] = 0;
            out[4..6].fill(0);
        }
        let ip = &mut out[HEADER_LEN..];
        let before = (self.headers - self.tcp + self.payload) as u16;
        let after = (self.headers - self.tcp + span.len()) as u16;
        self.shorten_ip(ip, range.start);
        let tcp = &mut ip[self.tcp..];
        let sequence = read_u32(tcp, 4).wrapping_add(span.start as u32);
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        if range.start > 0 {
            tcp[13] &= !TCP_CWR;
        }
        if range.end < self.count() {
            tcp[13] &= !(TCP_FIN | TCP_PSH);
        }
        // The pseudo-header contains the length.
        let sum = fold(u32::from(read_u16(tcp, 16)) + u32::from(!before) + u32::from(after));
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    }

    /// Writes length, identification and checksum of an IP header whose packet now begins with segment
    /// `first`.
    fn shorten_ip(&self, ip: &mut [u8], first: u32) {
        let length = ip.len();
        if self.tcp == 40 && ip[0] >> 4 == 6 {
            ip[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
            return;
        }
        ip[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        let identification = read_u16(ip, 4).wrapping_add(first as u16);
        ip[4..6].copy_from_slice(&identification.to_be_bytes());
        ip[10..12].fill(0);
        let sum = (0..self.tcp).step_by(2).map(|at| u32::from(read_u16(ip, at))).sum();
        ip[10..12].copy_from_slice(&(!fold(sum)).to_be_bytes());
    }
}

/// Whether this is a packet of IPv4 (or else IPv6); `None` for what is neither.
fn is_v4(ip: &[u8]) -> Option<bool> {
    match ip.first()? >> 4 {
        4 => Some(true),
        6 => Some(false),
        _ => None,
    }
}

fn read_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// A sum of 16-bit words in ones' complement (RFC 1071).
fn fold(mut sum: u32) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests;
