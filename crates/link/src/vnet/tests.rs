//! The virtio-net header: a header that was built reads back, any bytes at all read as some frame, and inner
//! checksums are completed.

use super::{HEADER_LEN, NEEDS_CSUM, build, complete, needs_completion, parse};
use brodo_core::link::{Gso, PartialChecksum, RxChecksum, RxMeta, TxFrame};
use brodo_core::wire::checksum::{finish, fold, pseudo_header, sum};
use brodo_core::wire::{TCP, UDP};
use std::net::Ipv4Addr;

#[test]
fn ordinary_frame_has_only_a_header_length() {
    let frame = TxFrame { headers: &[0; 54], payload: &[], partial: None, gso: Gso::None };
    let header = build(&frame);
    assert_eq!(header, [0, 0, 54, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(parse(&header), RxMeta { checksum: RxChecksum::Unknown, gso: Gso::None });
}

#[test]
fn super_frame_round_trip() {
    for gso in [Gso::Tcp4(1460), Gso::Tcp6(1440), Gso::Udp(1200)] {
        let partial = Some(PartialChecksum { start: 34, offset: 16 });
        let header = build(&TxFrame { headers: &[0; 66], payload: &[], partial, gso });
        assert_eq!(parse(&header), RxMeta { checksum: RxChecksum::Valid, gso });
        assert_eq!(header[2..4], 66u16.to_le_bytes());
        assert_eq!(header[6..10], [34, 0, 16, 0]);
    }
}

#[test]
fn ecn_bit_does_not_change_the_type() {
    let mut header = [0; HEADER_LEN];
    header[1] = 0x81;
    header[4] = 100;
    assert_eq!(parse(&header).gso, Gso::Tcp4(100));
}

#[test]
fn every_contradiction_reads_as_an_ordinary_frame() {
    for kind in 0..=255u8 {
        let mut header = [0; HEADER_LEN];
        header[1] = kind;
        // No size: nothing to cut at.
        assert_eq!(parse(&header).gso, Gso::None, "type {kind}");
        header[4] = 1;
        let known = matches!(kind & 0x7f, 1 | 4 | 5);
        assert_eq!(parse(&header).gso != Gso::None, known, "type {kind}");
    }
    assert_eq!(parse(&[2; HEADER_LEN]).checksum, RxChecksum::Valid);
}

const OUTER: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 2, 15), Ipv4Addr::new(198, 18, 0, 2)];
const INNER: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2)];
/// First byte of the inner IP packet's TCP header or UDP header.
const INNER_START: usize = 84;

/// A header that leaves the checksum at `start + offset` to the device.
fn leaves(start: usize, offset: usize) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[0] = NEEDS_CSUM;
    header[6..8].copy_from_slice(&(start as u16).to_le_bytes());
    header[8..10].copy_from_slice(&(offset as u16).to_le_bytes());
    header
}

fn pseudo([src, dst]: [Ipv4Addr; 2], protocol: u8, len: usize) -> u32 {
    pseudo_header(src.into(), dst.into(), protocol, len as u32)
}

/// An Ethernet frame of an IPv4 packet.
fn ipv4([src, dst]: [Ipv4Addr; 2], protocol: u8, content: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    frame.extend((20 + content.len() as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    frame.extend([src.octets(), dst.octets()].concat());
    [&frame[..], content].concat()
}

/// A segment or datagram of this length, with the pseudo-header sum at `offset`.
fn unfinished(protocol: u8, offset: usize, len: usize) -> Vec<u8> {
    let mut content: Vec<u8> = (0..len).map(|at| at as u8).collect();
    content[offset..offset + 2].copy_from_slice(&fold(pseudo(INNER, protocol, len)).to_be_bytes());
    content
}

/// VXLAN as the kernel hands it over: the outer checksum is that of the completed inner one (LCO).
fn vxlan(protocol: u8, offset: usize) -> Vec<u8> {
    let content = unfinished(protocol, offset, 61);
    let mut finished = content.clone();
    finished[offset..offset + 2].copy_from_slice(&finish(sum(&content, 0)).to_be_bytes());
    let datagram = |content: &[u8], checksum: u16| {
        let inner = ipv4(INNER, protocol, content);
        let len = (16 + inner.len()) as u16;
        let udp = [40_000, 4789, len, checksum].map(u16::to_be_bytes).concat();
        [&udp[..], &[8, 0, 0, 0, 0, 0, 1, 0], &inner].concat()
    };
    let whole = datagram(&finished, 0);
    let checksum = finish(sum(&whole, pseudo(OUTER, UDP, whole.len())));
    ipv4(OUTER, UDP, &datagram(&content, checksum))
}

#[test]
fn an_inner_checksum_is_completed_and_the_outer_one_verified() {
    for (protocol, offset) in [(TCP, 16), (UDP, 6)] {
        let before = vxlan(protocol, offset);
        let mut frame = before.clone();
        let header = leaves(INNER_START, offset);
        assert!(needs_completion(&header, &frame));
        assert_eq!(complete(&header, &mut frame), RxMeta::default());
        let (outer, inner) = (&frame[34..], &frame[INNER_START..]);
        assert_eq!(finish(sum(inner, pseudo(INNER, protocol, inner.len()))), 0, "complete");
        assert_eq!(finish(sum(outer, pseudo(OUTER, UDP, outer.len()))), 0, "made for the complete one");
        let at = INNER_START + offset;
        assert!(frame[..at] == before[..at] && frame[at + 2..] == before[at + 2..]);
    }
}

#[test]
fn an_outer_checksum_is_left_alone() {
    let expected = RxMeta { checksum: RxChecksum::Valid, gso: Gso::None };
    for (protocol, offset) in [(TCP, 16), (UDP, 6)] {
        let (segment, ethernet) = (unfinished(protocol, offset, 61), [[2; 12].as_slice(), &[0x86, 0xdd]]);
        let mut ipv6 = ethernet.concat();
        ipv6.extend([0x60, 0, 0, 0, 0, 61, protocol, 64]);
        ipv6.extend([0xfd; 32]);
        ipv6.extend(&segment);
        // Destination options, of which there are six bytes of padding.
        let mut extended = ipv6.clone();
        (extended[19], extended[20]) = (69, 60);
        extended.splice(54..54, [protocol, 0, 1, 4, 0, 0, 0, 0]);
        let mut options = ipv4(INNER, protocol, &segment);
        options[14] = 0x46;
        options.splice(34..34, [1, 1, 1, 0]);
        for (before, start, offset) in [
            (ipv4(INNER, protocol, &segment), 34, offset),
            (options, 38, offset),
            (ipv6, 54, offset),
            (extended, 62, offset),
            // The outer datagram of a tunnel.
            (vxlan(protocol, offset), 34, 6),
        ] {
            // Behind a priority tag, which the kernel's offsets count, too.
            let tagged = [&before[..12], &[0x81, 0, 0xa0, 0], &before[12..]].concat();
            for (before, start) in [(before, start), (tagged, start + 4)] {
                let mut frame = before.clone();
                assert_eq!(complete(&leaves(start, offset), &mut frame), expected, "{start}");
                assert!(frame == before, "{start}");
            }
        }
    }
}

#[test]
fn places_outside_of_the_frame_complete_nothing() {
    let whole = vxlan(TCP, 16);
    for len in 0..=whole.len() {
        for start in (0..=len + 2).chain([usize::from(u16::MAX)]) {
            for offset in [0, 16, len.saturating_sub(start + 2), len.saturating_sub(start + 1), 0xffff] {
                let header = leaves(start, offset);
                let mut frame = whole[..len].to_vec();
                let meta = complete(&header, &mut frame);
                let is_outer = !needs_completion(&header, &frame);
                assert_eq!(meta.checksum == RxChecksum::Valid, is_outer, "{len} {start} {offset}");
                let changed = frame.iter().zip(&whole).filter(|(now, before)| now != before).count();
                let may = if is_outer || start + offset + 2 > len { 0 } else { 2 };
                assert!(changed <= may, "{len} {start} {offset}");
            }
        }
    }
}

#[test]
fn a_sum_of_zero_is_stored_as_its_other_form() {
    let mut frame = [0; 64];
    frame[40..44].copy_from_slice(&[0x12, 0x34, 0xed, 0xcb]);
    complete(&leaves(40, 6), &mut frame);
    assert_eq!(frame[40..48], [0x12, 0x34, 0xed, 0xcb, 0, 0, 0xff, 0xff]);
}
