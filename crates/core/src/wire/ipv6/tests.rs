//! IPv6 headers both ways, behind chains of extension headers at every length; each kind of refusal has its
//! row.

use super::*;

const HEADER: Ipv6Header = Ipv6Header {
    src: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x15),
    dst: Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 3, 4, 5, 6),
    next_header: 17,
    hop_limit: 64,
    traffic_class: 0xa5,
    flow_label: 0xf_1234,
    payload_len: 5,
};

/// Extension headers: type, and bytes whose first is filled in.
type Chain<'a> = &'a [(u8, &'a [u8])];

/// A packet with these extension headers.
fn packet(extensions: Chain<'_>) -> Vec<u8> {
    let mut body: Vec<u8> = Vec::new();
    for (i, (_, bytes)) in extensions.iter().enumerate() {
        body.push(extensions.get(i + 1).map_or(HEADER.next_header, |next| next.0));
        body.extend(&bytes[1..]);
    }
    body.extend(b"hello");
    let mut packet = vec![0; Ipv6Header::LEN];
    let first = extensions.first().map_or(HEADER.next_header, |e| e.0);
    Ipv6Header { next_header: first, payload_len: body.len() as u16, ..HEADER }.emit(&mut packet);
    packet.extend(body);
    packet
}

const PADDED: &[u8] = &[0, 0, 1, 4, 0, 0, 0, 0];
const ROUTER_ALERT: &[u8] = &[0, 0, 5, 2, 0, 0, 1, 0];
const ROUTED: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 0];
const ATOMIC: &[u8] = &[0, 0, 0, 0, 1, 2, 3, 4];

#[test]
fn both_ways_and_padding() {
    let mut packet = packet(&[]);
    assert_eq!(Ipv6Header::parse(&packet), Ok((HEADER, &b"hello"[..])));
    packet.extend([0; 9]);
    assert_eq!(Ipv6Header::parse(&packet), Ok((HEADER, &b"hello"[..])));
}

#[test]
fn extensions_are_walked() {
    let longer: &[u8] = &[0, 1, 0, 1, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for extensions in [
        &[(HOP_BY_HOP, ROUTER_ALERT)][..],
        &[(HOP_BY_HOP, PADDED), (DESTINATION_OPTIONS, longer), (ROUTING, ROUTED), (FRAGMENT, ATOMIC)],
        &[(DESTINATION_OPTIONS, PADDED); EXTENSIONS_MAX],
    ] {
        let packet = packet(extensions);
        assert_eq!(Ipv6Header::parse(&packet), Ok((HEADER, &b"hello"[..])), "{extensions:?}");
        for len in 0..packet.len() {
            assert_eq!(Ipv6Header::parse(&packet[..len]), Err(DropReason::MalformedIpv6), "{len}");
        }
    }
}

#[test]
fn refusals() {
    let table: [(&str, DropReason, Chain<'_>); 10] = [
        ("too many", DropReason::MalformedIpv6, &[(DESTINATION_OPTIONS, PADDED); EXTENSIONS_MAX + 1]),
        ("hop-by-hop later", DropReason::MalformedIpv6, &[(ROUTING, ROUTED), (HOP_BY_HOP, PADDED)]),
        ("segments left", DropReason::MalformedIpv6, &[(ROUTING, &[0, 0, 0, 1, 0, 0, 0, 0])]),
        ("longer than the packet", DropReason::MalformedIpv6, &[(ROUTING, &[0, 9, 0, 0, 0, 0, 0, 0])]),
        ("option beyond the header", DropReason::MalformedIpv6, &[(HOP_BY_HOP, &[0, 0, 1, 5, 0, 0, 0, 0])]),
        ("option without length", DropReason::MalformedIpv6, &[(HOP_BY_HOP, &[0, 0, 1, 3, 0, 0, 0, 1])]),
        ("jumbo payload", DropReason::MalformedIpv6, &[(HOP_BY_HOP, &[0, 0, 0xc2, 4, 0, 1, 0, 0])]),
        (
            "option not to be skipped",
            DropReason::MalformedIpv6,
            &[(DESTINATION_OPTIONS, &[0, 0, 0x7e, 4, 0, 1, 0, 0])],
        ),
        ("more fragments", DropReason::Fragment, &[(FRAGMENT, &[0, 0, 0, 1, 0, 0, 0, 0])]),
        ("offset", DropReason::Fragment, &[(FRAGMENT, &[0, 0, 0, 8, 0, 0, 0, 0])]),
    ];
    for (name, reason, extensions) in table {
        assert_eq!(Ipv6Header::parse(&packet(extensions)), Err(reason), "{name}");
    }
    let mut wrong_version = packet(&[]);
    wrong_version[0] = 0x45;
    assert_eq!(Ipv6Header::parse(&wrong_version), Err(DropReason::MalformedIpv6));
}
