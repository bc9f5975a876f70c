//! Hand-made frames: correct octets to start mutations from.
//!
//! Deliberately independent of brodo's own wire formats, so that a mistake there cannot hide in its tests.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A hardware address.
pub(super) type Mac = [u8; 6];

pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMPV6: u8 = 58;

/// Length of an Ethernet header.
pub(super) const ETHERNET: usize = 14;

pub(super) fn ethernet(to: Mac, from: Mac, ether_type: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from[..], &ether_type.to_be_bytes(), payload].concat()
}

/// A whole frame with an IP packet whose protocol header and payload are `body`, all checksums correct.
pub(super) fn ip_frame(
    to: Mac,
    from: Mac,
    addresses: (IpAddr, IpAddr),
    protocol: u8,
    body: &[u8],
) -> Vec<u8> {
    let (ether_type, packet) = match addresses {
        (IpAddr::V4(source), IpAddr::V4(destination)) => (0x0800, ipv4(source, destination, protocol, body)),
        (IpAddr::V6(source), IpAddr::V6(destination)) => (0x86dd, ipv6(source, destination, protocol, body)),
        _ => return Vec::new(),
    };
    let mut frame = ethernet(to, from, ether_type, &packet);
    repair(&mut frame);
    frame
}

fn ipv4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, body: &[u8]) -> Vec<u8> {
    let length = (20 + body.len()) as u16;
    let mut packet = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, protocol, 0, 0];
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend(body);
    packet
}

fn ipv6(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, protocol, 255];
    packet[4..6].copy_from_slice(&(body.len() as u16).to_be_bytes());
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend(body);
    packet
}

pub(super) fn udp(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let length = 8 + payload.len() as u16;
    let mut body = [source, destination, length, 0].map(u16::to_be_bytes).concat();
    body.extend(payload);
    body
}

pub(super) fn tcp(source: u16, destination: u16, sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut body = [source, destination].map(u16::to_be_bytes).concat();
    body.extend(sequence.to_be_bytes());
    body.extend([0, 0, 0, 1]);
    // 40 octets of header: maximum segment size, SACK permitted, timestamps, window scale.
    body.extend([0xa0, flags, 0xff, 0xff, 0, 0, 0, 0]);
    body.extend([2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7]);
    body.extend(payload);
    body
}

/// Corrects the checksums, as far as the packet's own lengths are consistent; otherwise leaves them.
pub(super) fn repair(frame: &mut [u8]) {
    let Some((header, packet)) = frame.split_at_mut_checked(ETHERNET) else { return };
    let ether_type = u16::from_be_bytes([header[12], header[13]]);
    let (addresses, protocol, body) = match ether_type {
        0x0800 if packet.len() >= 20 => {
            let length = usize::from(packet[0] & 15) * 4;
            if length < 20 || length > packet.len() {
                return;
            }
            packet[10..12].fill(0);
            let sum = checksum(0, &packet[..length]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            (packet[12..20].to_vec(), packet[9], &mut packet[length..])
        }
        0x86dd if packet.len() >= 40 => (packet[8..40].to_vec(), packet[6], &mut packet[40..]),
        _ => return,
    };
    let at = match protocol {
        TCP => 16,
        UDP => 6,
        ICMP | ICMPV6 => 2,
        _ => return,
    };
    if body.len() < at + 2 {
        return;
    }
    body[at..at + 2].fill(0);
    // ICMPv4 has no pseudo-header.
    let pseudo = if protocol == ICMP { 0 } else { sum(&addresses) + u32::from(protocol) + body.len() as u32 };
    let value = checksum(pseudo, body);
    body[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn sum(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    bytes.chunks(2).map(word).sum()
}

/// The Internet checksum (RFC 1071) of `bytes` on top of a partial sum.
fn checksum(partial: u32, bytes: &[u8]) -> u16 {
    let mut total = partial + sum(bytes);
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    !(total as u16)
}
