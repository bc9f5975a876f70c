//! Segmentation: headers, lengths and checksums of every segment, as by a network card.

use super::{FRAME_OVERHEAD, HEADER_LEN, NEEDS_CSUM, Segments, fold, read_u16, read_u32};

const SIZE: usize = 1448;
const TCP_LEN: usize = 32;
const SEQUENCE: u32 = 0xffff_fe00;

/// A super-packet of TCP with `payload` bytes, as a kernel hands it over.
fn super_packet(v6: bool, payload: usize) -> Vec<u8> {
    let ip_len = if v6 { 40 } else { 20 };
    let mut packet = vec![0; HEADER_LEN + ip_len + TCP_LEN];
    packet[0] = NEEDS_CSUM;
    packet[1] = if v6 { 4 } else { 1 };
    packet[4..6].copy_from_slice(&(SIZE as u16).to_le_bytes());
    packet[6..8].copy_from_slice(&(ip_len as u16).to_le_bytes());
    packet[8..10].copy_from_slice(&16_u16.to_le_bytes());
    packet.extend((0..payload).map(|i| (i / SIZE) as u8));
    let total = packet.len() - HEADER_LEN;
    let ip = &mut packet[HEADER_LEN..];
    if v6 {
        ip[0] = 0x60;
        ip[4..6].copy_from_slice(&((total - 40) as u16).to_be_bytes());
        ip[6] = 6;
        ip[8..40].fill(0x20);
    } else {
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        ip[4..6].copy_from_slice(&0xfffe_u16.to_be_bytes());
        ip[9] = 6;
        ip[12..20].fill(10);
        let sum = !words(&ip[..20]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let pseudo = pseudo_sum(ip, v6);
    let tcp = &mut ip[ip_len..];
    tcp[4..8].copy_from_slice(&SEQUENCE.to_be_bytes());
    tcp[12] = (TCP_LEN as u8 / 4) << 4;
    // CWR, ACK, PSH and FIN.
    tcp[13] = 0x80 | 0x10 | 0x08 | 0x01;
    tcp[16..18].copy_from_slice(&pseudo.to_be_bytes());
    packet
}

fn words(bytes: &[u8]) -> u16 {
    fold((0..bytes.len()).step_by(2).map(|at| u32::from(read_u16(bytes, at))).sum())
}

/// Pseudo-header sum, the checksum field of an unfinished segment: addresses, protocol and length.
fn pseudo_sum(ip: &[u8], v6: bool) -> u16 {
    let (addresses, length) = if v6 { (&ip[8..40], ip.len() - 40) } else { (&ip[12..20], ip.len() - 20) };
    fold(u32::from(words(addresses)) + 6 + length as u32)
}

#[test]
fn a_super_packet_counts_as_its_segments() {
    for v6 in [false, true] {
        let packet = super_packet(v6, 3 * SIZE + 5);
        let segments = Segments::of(&packet);
        let each = FRAME_OVERHEAD + TCP_LEN as u64 + if v6 { 40 } else { 20 };
        assert_eq!(segments.count(), 4);
        assert_eq!(segments.wire_bytes(&(0..4)), 4 * each + 3 * SIZE as u64 + 5);
        assert_eq!(segments.wire_bytes(&(3..4)), each + 5);
    }
}

#[test]
fn other_packets_are_one_segment() {
    let ack = &super_packet(false, 0)[..];
    let mut plain = super_packet(true, 1000);
    plain[..HEADER_LEN].fill(0);
    let mut finished = super_packet(false, 4000);
    finished[0] = 0;
    for packet in [ack, &plain, &finished, &[0; HEADER_LEN], &[0; 5], &[]] {
        let segments = Segments::of(packet);
        assert_eq!(segments.count(), 1);
        let ip = packet.len().saturating_sub(HEADER_LEN) as u64;
        assert_eq!(segments.wire_bytes(&(0..1)), ip + FRAME_OVERHEAD);
        let mut out = Vec::new();
        segments.cut(packet, &(0..1), &mut out);
        assert_eq!(out, packet);
    }
}

#[test]
fn cut_segments_are_whole_packets() {
    for v6 in [false, true] {
        let ip_len = if v6 { 40 } else { 20 };
        let packet = super_packet(v6, 3 * SIZE + 5);
        let segments = Segments::of(&packet);
        for start in 0..4 {
            for end in start + 1..=4 {
                let mut out = Vec::new();
                segments.cut(&packet, &(start..end), &mut out);
                let again = Segments::of(&out);
                assert_eq!(again.count(), end - start);
                assert_eq!(again.wire_bytes(&(0..end - start)), segments.wire_bytes(&(start..end)));
                assert_eq!(out[1] != 0, end - start > 1, "a super-packet only if there are several");
                let ip = &out[HEADER_LEN..];
                if v6 {
                    assert_eq!(usize::from(read_u16(ip, 4)), ip.len() - 40);
                } else {
                    assert_eq!(usize::from(read_u16(ip, 2)), ip.len());
                    assert_eq!(words(&ip[..20]), 0xffff, "the sum with its checksum");
                    assert_eq!(read_u16(ip, 4), 0xfffe_u16.wrapping_add(start as u16));
                }
                let tcp = &ip[ip_len..];
                assert_eq!(read_u16(tcp, 16), pseudo_sum(ip, v6));
                assert_eq!(read_u32(tcp, 4), SEQUENCE.wrapping_add(start * SIZE as u32));
                assert_eq!(tcp[13] & 0x80 != 0, start == 0, "CWR on the first");
                assert_eq!(tcp[13] & 0x09 == 0x09, end == 4, "PSH and FIN on the last");
                let expected = (start as usize * SIZE..).take(tcp.len() - TCP_LEN).map(|i| (i / SIZE) as u8);
                assert!(tcp[TCP_LEN..].iter().copied().eq(expected));
            }
        }
    }
}
