//! Packets built and parsed again, both families.

use super::*;

fn addr(s: &str) -> SocketAddr {
    s.parse().expect("address")
}

const MACS: Macs = Macs { to: [2, 0, 0, 0, 0, 2], from: [2, 0, 0, 0, 0, 1] };

fn segment(src: &str, dst: &str) -> TcpSegment {
    TcpSegment {
        flags: flags::SYN | flags::ACK,
        seq: 0xffff_fff0,
        ack: 7,
        window: 512,
        mss: Some(1460),
        wscale: Some(7),
        sack_ok: true,
        timestamps: Some((1, 2)),
        data: vec![1, 2, 3],
        ..TcpSegment::new(addr(src), addr(dst))
    }
}

#[test]
fn tcp_round_trip_in_both_families() {
    for (src, dst) in [("10.0.2.15:40000", "1.2.3.4:80"), ("[fd00::15]:40000", "[2001:db8::1]:80")] {
        let mut seg = segment(src, dst);
        assert_eq!(parse(&seg.to_frame(MACS)), Ok(ParsedFrame::Tcp(seg.clone())));
        seg.flags = flags::ACK | flags::PSH | flags::FIN;
        (seg.mss, seg.wscale, seg.sack_ok) = (None, None, false);
        seg.sack = vec![(1, 2), (5, 9)];
        assert_eq!(parse(&seg.to_frame(MACS)), Ok(ParsedFrame::Tcp(seg.clone())));
        assert_eq!(seg.seq_len(), 4);
    }
}

#[test]
fn udp_and_icmp_round_trip() {
    for (src, dst) in [("10.0.2.15:1", "1.2.3.4:2"), ("[fd00::15]:1", "[2001:db8::1]:2")] {
        let udp = UdpDatagram { src: addr(src), dst: addr(dst), data: vec![9; 33] };
        assert_eq!(parse(&udp.to_frame(MACS)), Ok(ParsedFrame::Udp(udp.clone())));
        let icmp = IcmpMessage {
            src: udp.src.ip(),
            dst: udp.dst.ip(),
            kind: 8,
            code: 0,
            word: 0x0001_0002,
            body: vec![5; 56],
        };
        assert_eq!(parse(&icmp.to_frame(MACS)), Ok(ParsedFrame::Icmp(icmp)));
    }
}

/// Every single flipped bit of a frame's IP part is an error or changes the parsed packet.
#[test]
fn no_flipped_bit_goes_unnoticed() {
    for (src, dst) in [("10.0.2.15:40000", "1.2.3.4:80"), ("[fd00::15]:40000", "[2001:db8::1]:80")] {
        let seg = segment(src, dst);
        let good = seg.to_frame(MACS);
        for bit in 14 * 8..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            // IPv6 has no checksum over traffic class, flow label and hop limit.
            let unprotected = src.starts_with('[') && (bit < 18 * 8 || bit / 8 == 21);
            assert!(unprotected || parse(&bad) != Ok(ParsedFrame::Tcp(seg.clone())), "bit {bit}");
        }
    }
}

#[test]
fn an_udp_checksum_of_zero_is_sent_as_all_ones() {
    // The payload is chosen so that the sum over the datagram is 0xffff.
    let mut udp = UdpDatagram { src: addr("10.0.2.15:1"), dst: addr("1.2.3.4:2"), data: vec![0, 0] };
    let frame = udp.to_frame(MACS);
    let sum = u16::from_be_bytes([frame[40], frame[41]]);
    udp.data = sum.to_be_bytes().to_vec();
    let frame = udp.to_frame(MACS);
    assert_eq!(frame[40..42], [0xff, 0xff]);
    assert!(parse(&frame).is_ok());
}
