//! UDP headers (RFC 768). A super-datagram (USO) has one too, with the length of the whole.

use super::checksum;
use crate::counters::DropReason;

#[cfg(test)]
mod tests;

/// The header of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpHeader {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Length of header and payload in bytes, at least 8.
    pub length: u16,
    /// Checksum; 0 means none, which only IPv4 allows.
    pub checksum: u16,
}

impl UdpHeader {
    /// Length in bytes.
    pub const LEN: usize = 8;

    /// Offset of the checksum field in the header, bytes.
    pub const CHECKSUM_OFFSET: usize = 6;

    /// The header and its payload, trimmed to the header's length. The checksum is not verified.
    ///
    /// # Errors
    /// [`DropReason::MalformedUdp`] for a truncated header or a length beyond the packet.
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), DropReason> {
        let header = packet.first_chunk::<{ Self::LEN }>().ok_or(DropReason::MalformedUdp)?;
        let [s0, s1, d0, d1, l0, l1, c0, c1] = *header;
        let length = u16::from_be_bytes([l0, l1]);
        let payload = packet.get(Self::LEN..usize::from(length)).ok_or(DropReason::MalformedUdp)?;
        let header = Self {
            src_port: u16::from_be_bytes([s0, s1]),
            dst_port: u16::from_be_bytes([d0, d1]),
            length,
            checksum: u16::from_be_bytes([c0, c1]),
        };
        Ok((header, payload))
    }

    /// Writes the header to the start of `out`, the checksum as given.
    ///
    /// # Panics
    /// If `out` is shorter than [`UdpHeader::LEN`].
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..Self::LEN];
        out[..2].copy_from_slice(&self.src_port.to_be_bytes());
        out[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        out[4..6].copy_from_slice(&self.length.to_be_bytes());
        out[6..].copy_from_slice(&self.checksum.to_be_bytes());
    }

    /// The checksum field for an accumulator over pseudo-header, header with a zero field, and payload. A
    /// computed 0 is sent as 0xffff, because 0 means "no checksum".
    pub const fn finish_checksum(sum: u32) -> u16 {
        match checksum::finish(sum) {
            0 => 0xffff,
            checksum => checksum,
        }
    }
}
