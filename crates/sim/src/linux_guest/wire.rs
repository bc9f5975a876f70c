//! Frames of a bulk transfer: headers written and read without a copy of the payload or a pass over it.
//!
//! As on a TAP with virtio-net headers the TCP checksum is left out: such a frame never crosses a wire. The
//! header checksum of IPv4 is there. Everything else is as in [`crate::packet`], which checks more and is too
//! slow for 10 Gbit/s.

use crate::packet::{Macs, TcpSegment};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

/// Bytes of Ethernet and IPv4 header.
const L4: usize = 34;

/// The frame of `header`, its payload of `len` bytes written by `payload`.
///
/// # Panics
/// If an address is not IPv4.
pub fn frame(header: &TcpSegment, macs: Macs, len: usize, payload: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (header.src.ip(), header.dst.ip()) else {
        panic!("bulk transfers are over IPv4");
    };
    let options = options(header);
    let l4_len = 20 + options.len();
    let mut out = Vec::with_capacity(L4 + l4_len + len);
    out.extend(macs.to);
    out.extend(macs.from);
    out.extend([0x08, 0x00]);
    out.extend(ipv4_header(src, dst, l4_len + len));
    out.extend(header.src.port().to_be_bytes());
    out.extend(header.dst.port().to_be_bytes());
    out.extend(header.seq.to_be_bytes());
    out.extend(header.ack.to_be_bytes());
    out.extend([(l4_len / 4) as u8 * 16, header.flags]);
    out.extend(header.window.to_be_bytes());
    out.extend([0; 4]);
    out.extend(options);
    out.resize(L4 + l4_len + len, 0);
    payload(&mut out[L4 + l4_len..]);
    out
}

fn ipv4_header(src: Ipv4Addr, dst: Ipv4Addr, payload: usize) -> [u8; 20] {
    let mut ip = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    ip[2..4].copy_from_slice(&(20 + payload as u16).to_be_bytes());
    ip[12..16].copy_from_slice(&src.octets());
    ip[16..20].copy_from_slice(&dst.octets());
    let mut sum: u32 = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    ip
}

fn options(header: &TcpSegment) -> Vec<u8> {
    let mut o = Vec::new();
    if let Some(mss) = header.mss {
        o.extend([2, 4]);
        o.extend(mss.to_be_bytes());
    }
    if header.sack_ok {
        o.extend([1, 1, 4, 2]);
    }
    if let Some(shift) = header.wscale {
        o.extend([1, 3, 3, shift]);
    }
    if !header.sack.is_empty() {
        o.extend([1, 1, 5, 2 + 8 * header.sack.len() as u8]);
        for (left, right) in &header.sack {
            o.extend(left.to_be_bytes());
            o.extend(right.to_be_bytes());
        }
    }
    o
}

/// Reads a frame: its header, and where in the frame the payload stands. `None` if it is not TCP over IPv4.
pub fn read(frame: &[u8]) -> Option<(TcpSegment, Range<usize>)> {
    let ip: &[u8; 20] = frame.get(14..L4)?.try_into().ok()?;
    let tcp: &[u8; 20] = frame.get(L4..L4 + 20)?.try_into().ok()?;
    if frame[12..14] != [0x08, 0x00] || ip[0] != 0x45 || ip[9] != 6 {
        return None;
    }
    let u16_at = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let u32_at = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
    let src = Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15]);
    let dst = Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19]);
    let mut segment = TcpSegment {
        flags: tcp[13],
        seq: u32_at(4),
        ack: u32_at(8),
        window: u16_at(14),
        ..TcpSegment::new(SocketAddr::new(src.into(), u16_at(0)), SocketAddr::new(dst.into(), u16_at(2)))
    };
    let data = L4 + usize::from(tcp[12] >> 4) * 4;
    read_options(&mut segment, frame.get(L4 + 20..data)?)?;
    Some((segment, data..frame.len()))
}

fn read_options(segment: &mut TcpSegment, mut rest: &[u8]) -> Option<()> {
    while let [kind, after @ ..] = rest {
        match kind {
            0 => break,
            1 => {
                rest = after;
                continue;
            }
            _ => {}
        }
        let len = usize::from(*after.first()?);
        let option = rest.get(2..len)?;
        match (kind, option) {
            (2, &[a, b]) => segment.mss = Some(u16::from_be_bytes([a, b])),
            (3, &[shift]) => segment.wscale = Some(shift),
            (4, []) => segment.sack_ok = true,
            (5, blocks) => {
                let (blocks, []) = blocks.as_chunks::<8>() else { return None };
                let edge = |b: &[u8]| u32::from_be_bytes([b[0], b[1], b[2], b[3]]);
                segment.sack = blocks.iter().map(|b| (edge(b), edge(&b[4..]))).collect();
            }
            // Timestamps are not offered, so they do not come; unknown options are skipped (RFC 9293, 3.1).
            _ => {}
        }
        rest = &rest[len..];
    }
    Some(())
}
