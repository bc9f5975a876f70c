//! The virtio-net header that precedes each frame on a TAP (and on virtio queues): 12 bytes, little-endian.
//!
//! Checksum offload and segmentation of a frame (virtio 1.3, 5.1.6). [`parse`] never fails: a contradictory
//! header reads as that of an ordinary, unverified frame, and the stack verifies what it must. [`build`] is
//! its counterpart for frames toward the guest.
//!
//! *Tunnels in the guest.* The checksum that is left to the device (`NEEDS_CSUM`) may be that of a header
//! within a tunnel: VXLAN over a TAP since Linux 6.17. The inner segment goes on to a peer that verifies it,
//! so its checksum is completed ([`complete`]).

use brodo_core::link::{Gso, PartialChecksum, RxChecksum, RxMeta, TxFrame};
use brodo_core::wire::ethernet::EthernetHeader;
use brodo_core::wire::ipv6::Ipv6Header;
use brodo_core::wire::tcp::TcpHeader;
use brodo_core::wire::udp::UdpHeader;
use brodo_core::wire::{TCP, UDP, checksum};

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

/// Metadata of the whole frame behind a header. An inner checksum that is left to the device is completed in
/// the frame; then the outer one is to be verified (Linux has made it for the completed inner one).
pub fn complete(header: &[u8; HEADER_LEN], frame: &mut [u8]) -> RxMeta {
    let meta = parse(header);
    if !needs_completion(header, frame) {
        return meta;
    }
    let PartialChecksum { start, offset } = partial(header);
    if let Some(covered) = frame.get_mut(usize::from(start)..) {
        let sum = checksum::finish(checksum::sum(covered, 0));
        if let Some(field) = covered.get_mut(usize::from(offset)..).and_then(<[u8]>::first_chunk_mut) {
            // UDP: 0 says that there is none (RFC 768), and 0xffff is the same number.
            *field = if sum == 0 { 0xffff } else { sum }.to_be_bytes();
        }
    }
    RxMeta { checksum: RxChecksum::Unknown, ..meta }
}

/// Whether a checksum is left to the device that is not the one of the frame's outer TCP or UDP header, or
/// lies outside of the frame. `frame` is the frame or its beginning, with all outer headers.
pub fn needs_completion(header: &[u8; HEADER_LEN], frame: &[u8]) -> bool {
    header[0] & NEEDS_CSUM != 0 && outer(frame) != Some(partial(header))
}

/// `csum_start` and `csum_offset`.
fn partial(header: &[u8; HEADER_LEN]) -> PartialChecksum {
    let [.., start0, start1, offset0, offset1, _, _] = *header;
    let (start, offset) = ([start0, start1], [offset0, offset1]);
    PartialChecksum { start: u16::from_le_bytes(start), offset: u16::from_le_bytes(offset) }
}

/// Place of the checksum of the outer TCP or UDP header, in a frame that may have a priority tag.
fn outer(frame: &[u8]) -> Option<PartialChecksum> {
    let tag = if EthernetHeader::has_priority_tag(frame) { EthernetHeader::TAG_LEN } else { 0 };
    let network = EthernetHeader::LEN + tag;
    let (header, packet) = frame.split_at_checked(network)?;
    let (len, protocol) = match header[network - 2..] {
        [0x08, 0x00] => (usize::from(packet.first()? & 15) * 4, *packet.get(9)?),
        [0x86, 0xdd] => match *packet.get(6)? {
            direct @ (TCP | UDP) => (Ipv6Header::LEN, direct),
            _ => behind_extensions(packet)?,
        },
        _ => return None,
    };
    let offset = match protocol {
        TCP => TcpHeader::CHECKSUM_OFFSET,
        UDP => UdpHeader::CHECKSUM_OFFSET,
        _ => return None,
    };
    Some(PartialChecksum { start: (network + len) as u16, offset: offset as u16 })
}

/// Length of an IPv6 header with its extensions, and the protocol behind them.
fn behind_extensions(packet: &[u8]) -> Option<(usize, u8)> {
    let length = usize::from(u16::from_be_bytes([*packet.get(4)?, *packet.get(5)?]));
    // The length of a beginning is not compared.
    let (ip, fragment, _) = Ipv6Header::parse_begin(packet, Ipv6Header::LEN + length).ok()?;
    fragment.is_none().then_some((Ipv6Header::LEN + length - usize::from(ip.payload_len), ip.next_header))
}

/// Metadata of the frame behind a header, with the checksum taken for that of the outer header.
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
