//! The virtio-net header that precedes each frame on a TAP (and on virtio queues): 12 bytes, little-endian.
//!
//! Checksum offload and segmentation of a frame (virtio 1.3, 5.1.6). [`parse`] never fails: a contradictory
//! header reads as that of an ordinary, unverified frame, and the stack verifies what it must. [`build`] is
//! its counterpart for frames toward the guest.

use brodo_core::link::{Gso, RxChecksum, RxMeta, TxFrame};

/// Length in bytes of the header with `num_buffers`, as virtio 1.x has it.
pub const HEADER_LEN: usize = 12;

/// `flags`: the checksum from `csum_start` on is to be stored at `csum_start + csum_offset`.
const NEEDS_CSUM: u8 = 1;
/// `flags`: the checksum was verified.
const DATA_VALID: u8 = 2;

const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// Bit beside the type: the first segment carries CWR. Segmentation is the same.
const GSO_ECN: u8 = 0x80;

/// Metadata of the frame behind a header.
pub fn parse(header: &[u8; HEADER_LEN]) -> RxMeta {
    let size = u16::from_le_bytes([header[4], header[5]]);
    let gso = match header[1] & !GSO_ECN {
        GSO_TCPV4 if size > 0 => Gso::Tcp4(size),
        GSO_TCPV6 if size > 0 => Gso::Tcp6(size),
        GSO_UDP_L4 if size > 0 => Gso::Udp(size),
        _ => Gso::None,
    };
    let checksum =
        if header[0] & (NEEDS_CSUM | DATA_VALID) == 0 { RxChecksum::Unknown } else { RxChecksum::Valid };
    RxMeta { checksum, gso }
}

/// The header for a frame toward the guest.
///
/// `hdr_len` is exact, for uncut frames too: the kernel puts that many bytes into the linear part of its
/// buffer, and what of the headers is missing there costs it a copy.
pub fn build(frame: &TxFrame<'_>) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[2..4].copy_from_slice(&(frame.headers.len() as u16).to_le_bytes());
    if let Some(partial) = frame.partial {
        header[0] = NEEDS_CSUM;
        header[6..8].copy_from_slice(&partial.start.to_le_bytes());
        header[8..10].copy_from_slice(&partial.offset.to_le_bytes());
    }
    let (kind, size) = match frame.gso {
        Gso::None => (GSO_NONE, 0),
        Gso::Tcp4(size) => (GSO_TCPV4, size),
        Gso::Tcp6(size) => (GSO_TCPV6, size),
        Gso::Udp(size) => (GSO_UDP_L4, size),
    };
    header[1] = kind;
    header[4..6].copy_from_slice(&size.to_le_bytes());
    header
}

#[cfg(test)]
mod tests;
