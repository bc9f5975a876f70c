//! Checks of the link model: checksums complete or partial, segmentation, capabilities.

use super::*;
use crate::packet::{ParsedFrame, TcpSegment, UdpDatagram, flags};
use crate::rng::Pattern;
use brodo_core::link::PartialChecksum;
use std::io::IoSlice;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const ALL: LinkCaps = LinkCaps { checksum: true, tso: true, uso: true, packet_max: None };
const NONE: LinkCaps = LinkCaps { checksum: false, tso: false, uso: false, packet_max: None };

fn tcp(v4: bool, len: usize) -> TcpSegment {
    let (src, dst) =
        if v4 { ("1.2.3.4:80", "10.0.2.15:40000") } else { ("[2001:db8::1]:80", "[fd00::15]:40000") };
    TcpSegment {
        flags: flags::ACK | flags::PSH | flags::FIN,
        seq: 0xffff_ff00,
        ack: 5,
        data: Pattern(1).bytes(0, len),
        ..TcpSegment::new(src.parse().expect("address"), dst.parse().expect("address"))
    }
}

/// Sends a complete frame, cut into headers and payload at `at`, perhaps with its checksum made partial.
fn send(caps: LinkCaps, frame: &[u8], at: usize, partial: bool, gso: Gso) -> Result<SentFrame, String> {
    let mut frame = frame.to_vec();
    let partial = partial.then(|| {
        let layout = packet::layout(&frame).expect("IP").expect("IP");
        let offset = packet::checksum_offset(layout.protocol, layout.src.is_ipv4()).expect("has one");
        let sum = pseudo_sum(layout.src, layout.dst, layout.protocol, (frame.len() - layout.l4) as u32);
        frame[layout.l4 + offset..][..2].copy_from_slice(&sum.to_be_bytes());
        PartialChecksum { start: layout.l4 as u16, offset: offset as u16 }
    });
    let (headers, payload) = frame.split_at(at);
    let (a, b) = payload.split_at(payload.len() / 3);
    check(&TxFrame { headers, payload: &[IoSlice::new(a), IoSlice::new(b)], partial, gso }, caps, 1500, MAC)
}

fn frame(v4: bool, len: usize) -> (Vec<u8>, usize) {
    (tcp(v4, len).to_frame(Macs { to: GUEST_MAC, from: MAC }), if v4 { 54 } else { 74 })
}

#[test]
fn complete_and_partial_checksums_give_the_same_frame() {
    for v4 in [true, false] {
        let (bytes, headers) = frame(v4, 1000);
        for partial in [false, true] {
            let sent = send(ALL, &bytes, headers, partial, Gso::None).expect("valid");
            assert_eq!(sent.bytes, bytes);
            assert_eq!(sent.cut(), std::slice::from_ref(&bytes));
        }
        assert!(send(NONE, &bytes, headers, false, Gso::None).is_ok());
        assert!(send(NONE, &bytes, headers, true, Gso::None).is_err());
    }
}

#[test]
fn every_fault_of_a_frame_is_named() {
    let (bytes, headers) = frame(true, 1000);
    let with = |at: usize, value: u8| {
        let mut b = bytes.clone();
        b[at] ^= value;
        send(ALL, &b, headers, false, Gso::None)
    };
    assert!(with(0, 0).is_ok());
    for at in [0, 6, 12, 14, 17, 20, 22, 30, 40, 46, 50, 60, 1053] {
        assert!(with(at, 0x22).is_err(), "byte {at}");
    }
    assert!(send(ALL, &bytes, headers - 1, false, Gso::None).is_err());
    assert!(send(ALL, &bytes[..1053], headers, false, Gso::None).is_err());
    let (long, headers) = frame(true, 1461);
    assert!(send(ALL, &long, headers, true, Gso::None).is_err());
    let (wrong_sum, _) = frame(true, 1000);
    let mut wrong_sum = wrong_sum;
    wrong_sum[50] ^= 1;
    assert!(send(ALL, &wrong_sum, headers, false, Gso::None).is_err());
}

#[test]
fn segmentation_is_cut_as_the_kernel_does() {
    for v4 in [true, false] {
        let (bytes, headers) = frame(v4, 5000);
        let gso = |n| if v4 { Gso::Tcp4(n) } else { Gso::Tcp6(n) };
        let pieces = send(ALL, &bytes, headers, true, gso(1400)).expect("valid").cut();
        assert_eq!(pieces.len(), 4);
        let mut stream = Vec::new();
        for (i, piece) in pieces.iter().enumerate() {
            let Ok(ParsedFrame::Tcp(seg)) = packet::parse(piece) else { panic!("not TCP: {piece:02x?}") };
            assert_eq!(seg.seq, 0xffff_ff00_u32.wrapping_add(1400 * i as u32));
            assert_eq!(seg.has(flags::FIN), i == 3);
            assert_eq!(seg.has(flags::PSH), i == 3);
            stream.extend(seg.data);
        }
        assert_eq!(stream, Pattern(1).bytes(0, 5000));

        assert!(send(ALL, &bytes, headers, false, gso(1400)).is_err(), "complete checksum");
        assert!(send(ALL, &bytes, headers, true, gso(1461)).is_err(), "over the MTU");
        assert!(send(ALL, &bytes, headers, true, gso(0)).is_err());
        assert!(send(ALL, &bytes, headers, true, Gso::Udp(1400)).is_err());
        assert!(send(LinkCaps { tso: false, ..ALL }, &bytes, headers, true, gso(1400)).is_err());
        let (small, headers) = frame(v4, 1000);
        assert!(send(ALL, &small, headers, true, gso(1400)).is_err(), "nothing to cut");
    }
}

#[test]
fn udp_segmentation() {
    let udp = UdpDatagram {
        src: "1.2.3.4:53".parse().expect("address"),
        dst: "10.0.2.15:40000".parse().expect("address"),
        data: Pattern(2).bytes(0, 2500),
    };
    let bytes = udp.to_frame(Macs { to: GUEST_MAC, from: MAC });
    let pieces = send(ALL, &bytes, 42, true, Gso::Udp(1000)).expect("valid").cut();
    let mut data = Vec::new();
    for piece in &pieces {
        let Ok(ParsedFrame::Udp(d)) = packet::parse(piece) else { panic!("not UDP: {piece:02x?}") };
        data.extend(d.data);
    }
    assert_eq!((pieces.len(), data), (3, udp.data));
}

#[test]
fn credit_runs_out_and_comes_back() {
    let mut link = SimLink::new(ALL, 1500, MAC);
    let (bytes, headers) = frame(true, 10);
    let (headers, payload) = bytes.split_at(headers);
    let send = |link: &mut SimLink| {
        link.send(&TxFrame { headers, payload: &[IoSlice::new(payload)], partial: None, gso: Gso::None })
    };
    link.set_credit(Some(1));
    assert_eq!(send(&mut link), Ok(()));
    assert!(!link.take_writable());
    assert_eq!(send(&mut link), Err(NoCredit));
    assert!(!link.take_writable());
    link.set_credit(Some(2));
    assert!(link.take_writable() && !link.take_writable());
    assert_eq!(send(&mut link), Ok(()));
    assert_eq!((link.queued(), link.refused()), (2, 1));
}
