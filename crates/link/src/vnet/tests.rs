//! The virtio-net header: a header that was built reads back, and any bytes at all read as some frame.

use super::{HEADER_LEN, build, parse};
use brodo_core::link::{Gso, PartialChecksum, RxChecksum, RxMeta, TxFrame};

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
