//! IPv4 headers both ways, with options, padding and every length; each kind of refusal has its row.

use super::*;

const HEADER: Ipv4Header = Ipv4Header {
    src: Ipv4Addr::new(10, 0, 2, 15),
    dst: Ipv4Addr::new(192, 0, 2, 1),
    protocol: 6,
    ttl: 64,
    ident: 0x1234,
    dont_fragment: true,
    tos: 0x10,
    payload_len: 5,
};

fn packet() -> Vec<u8> {
    let mut packet = vec![0; Ipv4Header::LEN];
    HEADER.emit(&mut packet);
    packet.extend(b"hello");
    packet
}

/// `packet` after `change`, with a correct header checksum.
fn changed(mut packet: Vec<u8>, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    change(&mut packet);
    let len = usize::from(packet[0] & 0xf) * 4;
    packet[10..12].fill(0);
    let checksum = checksum::finish(checksum::sum(&packet[..len], 0));
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet
}

#[test]
fn both_ways_and_padding() {
    let mut packet = packet();
    assert_eq!(Ipv4Header::parse(&packet), Ok((HEADER, &b"hello"[..])));
    packet.extend([0; 20]);
    assert_eq!(Ipv4Header::parse(&packet), Ok((HEADER, &b"hello"[..])));
}

#[test]
fn options_are_skipped() {
    let packet = changed(packet(), |p| {
        p[0] = 0x46;
        p[3] += 4;
        p.splice(20..20, [1, 1, 1, 0]);
    });
    assert_eq!(Ipv4Header::parse(&packet), Ok((HEADER, &b"hello"[..])));
}

#[test]
fn every_truncation_is_malformed() {
    let packet = packet();
    for len in 0..packet.len() {
        assert_eq!(Ipv4Header::parse(&packet[..len]), Err(DropReason::MalformedIpv4), "{len}");
    }
}

#[test]
fn refusals() {
    type Row = (&'static str, DropReason, fn(&mut Vec<u8>));
    let table: [Row; 7] = [
        ("version", DropReason::MalformedIpv4, |p| p[0] = 0x65),
        ("header length", DropReason::MalformedIpv4, |p| p[0] = 0x44),
        ("header beyond total", DropReason::MalformedIpv4, |p| {
            p[0] = 0x4f;
            p.resize(70, 0);
        }),
        ("total length below header", DropReason::MalformedIpv4, |p| p[3] = 19),
        ("total length beyond the bytes", DropReason::MalformedIpv4, |p| p[2] = 1),
        ("more fragments", DropReason::Fragment, |p| p[6] = 0x20),
        ("offset", DropReason::Fragment, |p| p[7] = 1),
    ];
    for (name, reason, change) in table {
        assert_eq!(Ipv4Header::parse(&changed(packet(), change)), Err(reason), "{name}");
    }
    for bit in 0..Ipv4Header::LEN * 8 {
        let mut packet = packet();
        packet[bit / 8] ^= 1 << (bit % 8);
        assert!(Ipv4Header::parse(&packet).is_err(), "bit {bit} flipped");
    }
}
