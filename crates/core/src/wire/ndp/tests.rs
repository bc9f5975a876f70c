//! Neighbour discovery messages both ways and at every length; the router advertisement byte by byte.

use super::*;

const SRC: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
const MAC: MacAddr = MacAddr([0x52, 0x55, 10, 0, 2, 2]);

fn emit(message: NdpMessage) -> Vec<u8> {
    let mut out = [0; NdpMessage::LEN_MAX];
    let len = message.emit(SRC, ALL_NODES, &mut out);
    assert_eq!(icmpv6::verify_checksum(SRC, ALL_NODES, &out[..len]), Ok(()));
    out[..len].to_vec()
}

#[test]
fn every_message_both_ways() {
    let target = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
    let advertisement = NeighborAdvertisement {
        router: true,
        solicited: false,
        override_entry: true,
        target,
        target_lladdr: Some(MAC),
    };
    for message in [
        NdpMessage::RouterSolicitation { source_lladdr: None },
        NdpMessage::RouterSolicitation { source_lladdr: Some(MAC) },
        NdpMessage::NeighborSolicitation { target, source_lladdr: None },
        NdpMessage::NeighborSolicitation { target, source_lladdr: Some(MAC) },
        NdpMessage::NeighborAdvertisement(advertisement),
        NdpMessage::NeighborAdvertisement(NeighborAdvertisement {
            router: false,
            solicited: true,
            override_entry: false,
            target_lladdr: None,
            ..advertisement
        }),
    ] {
        let bytes = emit(message);
        assert_eq!(NdpMessage::parse(&bytes), Ok(message));
        // Cut between options, it is another message in order; anywhere else, it is malformed.
        let whole =
            |len| len == 8 && bytes[0] == ROUTER_SOLICITATION || len == 24 && bytes[0] != ROUTER_SOLICITATION;
        for len in 0..bytes.len() {
            assert_eq!(NdpMessage::parse(&bytes[..len]).is_ok(), whole(len), "{message:?} cut to {len}");
        }
        // Unknown options have no effect.
        let more = [&bytes[..], &[14, 1, 0, 0, 0, 0, 0, 0], &[200, 2], &[0; 14]].concat();
        assert_eq!(NdpMessage::parse(&more), Ok(message));
        let endless = [&bytes[..], &[14, 0, 0, 0, 0, 0, 0, 0]].concat();
        assert_eq!(NdpMessage::parse(&endless), Err(DropReason::MalformedNdp));
        let mut coded = bytes;
        coded[1] = 1;
        assert_eq!(NdpMessage::parse(&coded), Err(DropReason::MalformedNdp));
    }
}

#[test]
fn refusals() {
    let group = emit(NdpMessage::NeighborSolicitation { target: ALL_NODES, source_lladdr: None });
    assert_eq!(NdpMessage::parse(&group), Err(DropReason::MalformedNdp));
    for kind in [ROUTER_ADVERTISEMENT, REDIRECT, 128] {
        assert_eq!(NdpMessage::parse(&[kind; 40]), Err(DropReason::UnknownIcmp));
    }
}

#[test]
fn solicited_node_groups() {
    let group: Ipv6Addr = "ff02::1:ff28:9c5a".parse().unwrap();
    assert_eq!(solicited_node("fe80::2aa:ff:fe28:9c5a".parse().unwrap()), group);
}

#[test]
fn advertisement_byte_by_byte() {
    let search = ["lan.example".to_owned(), "bad..name".to_owned()];
    let advertisement = RouterAdvertisement {
        hop_limit: 64,
        managed: false,
        other: true,
        lifetime_s: 1800,
        source_lladdr: MAC,
        mtu: 1500,
        prefix: Some(PrefixInformation {
            prefix: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x15),
            prefix_len: 64,
            on_link: true,
            autonomous: true,
            lifetime_s: u32::MAX,
        }),
        dns: Some(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3)),
        search: &search,
        withdrawn: &["old.lan".to_owned()],
    };
    let mut out = [0xee; RouterAdvertisement::LEN_MAX];
    let len = advertisement.emit(SRC, ALL_NODES, &mut out);
    assert_eq!(icmpv6::verify_checksum(SRC, ALL_NODES, &out[..len]), Ok(()));
    let mut expected = vec![134, 0, out[2], out[3], 64, 0x40, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    expected.extend([1, 1, 0x52, 0x55, 10, 0, 2, 2]);
    expected.extend([5, 1, 0, 0, 0, 0, 5, 0xdc]);
    expected.extend([3, 4, 64, 0xc0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0]);
    expected.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([25, 3, 0, 0, 0, 0, 7, 8]);
    expected.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
    expected.extend([31, 3, 0, 0, 0, 0, 7, 8]);
    expected.extend(b"\x03lan\x07example\x00\x00\x00\x00");
    expected.extend([31, 3, 0, 0, 0, 0, 0, 0]);
    expected.extend(b"\x03old\x03lan\x00\x00\x00\x00\x00\x00\x00\x00");
    assert_eq!(out[..len], expected);
}

#[test]
fn longest_advertisement() {
    let search = vec!["a".repeat(63); 10];
    let advertisement = RouterAdvertisement {
        hop_limit: 0,
        managed: true,
        other: false,
        lifetime_s: 0,
        source_lladdr: MAC,
        mtu: 0,
        prefix: Some(PrefixInformation {
            prefix: Ipv6Addr::from([0xff; 16]),
            prefix_len: 0,
            on_link: false,
            autonomous: false,
            lifetime_s: 0,
        }),
        dns: Some(SRC),
        search: &search,
        withdrawn: &search,
    };
    let mut out = [0; RouterAdvertisement::LEN_MAX];
    let len = advertisement.emit(SRC, ALL_NODES, &mut out);
    assert!(len <= RouterAdvertisement::LEN_MAX);
    // A prefix of length 0 has no bits.
    assert_eq!(out[16 + 8 + 8 + 16..][..16], [0; 16]);
}
