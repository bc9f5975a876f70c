//! UDP headers both ways and at every length, and the checksum that must not be zero.

use super::*;

#[test]
fn both_ways() {
    let header = UdpHeader { src_port: 53, dst_port: 0xabcd, length: 10, checksum: 0x1234 };
    let mut packet = vec![0; 8];
    header.emit(&mut packet);
    packet.extend(b"hi trailing");
    assert_eq!(UdpHeader::parse(&packet), Ok((header, &b"hi"[..])));
    for len in 0..10 {
        assert_eq!(UdpHeader::parse(&packet[..len]), Err(DropReason::MalformedUdp));
    }
    for length in 0..8 {
        packet[5] = length;
        assert_eq!(UdpHeader::parse(&packet), Err(DropReason::MalformedUdp));
    }
    packet[5] = 8;
    assert_eq!(UdpHeader::parse(&packet).unwrap().1, b"");
}

#[test]
fn zero_checksum_is_sent_as_ones() {
    assert_eq!(UdpHeader::finish_checksum(0xffff), 0xffff);
    assert_eq!(UdpHeader::finish_checksum(0), 0xffff);
    assert_eq!(UdpHeader::finish_checksum(1), 0xfffe);
}
