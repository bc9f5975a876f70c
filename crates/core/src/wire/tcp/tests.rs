//! Sequence numbers that wrap, and TCP headers with every combination of options, foreign ones and malformed
//! ones.

use super::*;

fn header(options: TcpOptions) -> TcpHeader {
    TcpHeader {
        src_port: 40_000,
        dst_port: 443,
        seq: Seq(0xffff_fff0),
        ack: Seq(7),
        flags: TcpFlags::ACK | TcpFlags::PSH,
        window: 0x1234,
        urgent: 9,
        options,
    }
}

fn sack(n: u32) -> SackBlocks {
    let mut sack = SackBlocks::EMPTY;
    for i in 0..n {
        assert!(sack.push(SackBlock { left: Seq(100 * i), right: Seq(100 * i + 50) }));
    }
    sack
}

/// A segment with raw option bytes, and payload "x".
fn raw(options: &[u8]) -> Vec<u8> {
    let mut segment = vec![0; 20];
    header(TcpOptions::default()).emit(&mut segment);
    assert_eq!(options.len() % 4, 0);
    segment[12] = ((20 + options.len()) as u8 / 4) << 4;
    segment.extend(options);
    segment.push(b'x');
    segment
}

#[test]
fn sequence_numbers_wrap() {
    let (a, b) = (Seq(0xffff_fff0), Seq(0x10));
    assert!(a.lt(b) && a.le(b) && b.gt(a) && b.ge(a) && a.le(a) && a.ge(a) && !a.lt(a) && !a.gt(a));
    assert_eq!((a + 0x20, b - 0x20u32, b - a, a - b), (b, a, 0x20, -0x20));
}

#[test]
fn layout_is_that_of_linux() {
    let syn = TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some((1, 2)),
        sack: SackBlocks::EMPTY,
    };
    let mut out = [0xff; 60];
    header(syn).emit(&mut out);
    assert_eq!(out[20..40], [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7]);
    assert_eq!((out[12], out[16], out[17], out[40]), (0xa0, 0, 0, 0xff));
    let plain = TcpOptions { timestamps: Some((1, 2)), ..TcpOptions::default() };
    header(plain).emit(&mut out);
    assert_eq!(out[20..32], [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
}

#[test]
fn every_combination_of_options_both_ways() {
    for bits in 0..16u32 {
        for blocks in 0..=4 {
            let options = TcpOptions {
                mss: (bits & 1 != 0).then_some(1460),
                window_scale: (bits & 2 != 0).then_some(14),
                sack_permitted: bits & 4 != 0,
                timestamps: (bits & 8 != 0).then_some((u32::MAX, 3)),
                sack: sack(blocks),
            };
            let header = header(options);
            let len = header.header_len();
            assert!(len <= TcpHeader::LEN_MAX && len.is_multiple_of(4));
            let mut segment = vec![0xee; len + 3];
            header.emit(&mut segment);
            let (parsed, payload) = TcpHeader::parse(&segment).unwrap();
            assert_eq!(payload, [0xee; 3]);
            let kept = parsed.options.sack.as_slice().len();
            assert_eq!(parsed.options.sack.as_slice(), &options.sack.as_slice()[..kept]);
            // Every omitted option would not have fitted.
            assert!(
                kept == blocks as usize
                    || len + 8 > TcpHeader::LEN_MAX
                    || kept == 0 && len + 12 > TcpHeader::LEN_MAX
            );
            assert_eq!(
                parsed,
                TcpHeader { options: TcpOptions { sack: parsed.options.sack, ..options }, ..header }
            );
            for end in 0..len {
                assert_eq!(TcpHeader::parse(&segment[..end]), Err(DropReason::MalformedTcp));
            }
        }
    }
}

#[test]
fn foreign_and_odd_options() {
    let table: [(&[u8], TcpOptions); 6] = [
        (&[0, 99, 1, 0], TcpOptions::default()),
        (&[254, 4, 1, 2, 2, 4, 2, 0], TcpOptions { mss: Some(512), ..TcpOptions::default() }),
        (&[3, 3, 15, 0], TcpOptions { window_scale: Some(14), ..TcpOptions::default() }),
        (&[34, 2, 1, 1], TcpOptions::default()),
        (&[4, 2, 4, 2], TcpOptions { sack_permitted: true, ..TcpOptions::default() }),
        (&[], TcpOptions::default()),
    ];
    for (bytes, options) in table {
        assert_eq!(TcpHeader::parse(&raw(bytes)), Ok((header(options), &b"x"[..])), "{bytes:?}");
    }
}

#[test]
fn malformed_options() {
    for bytes in [
        &[2, 0, 0, 0][..],
        &[2, 1, 0, 0],
        &[2, 3, 0, 0],
        &[2, 5, 0, 0],
        &[254, 5, 0, 0],
        &[254, 1, 0, 0],
        &[1, 1, 1, 254],
        &[3, 2, 0, 0],
        &[4, 3, 0, 0],
        &[8, 4, 0, 0],
        &[5, 2, 0, 0],
        &[5, 6, 0, 0, 0, 0, 0, 0],
        &[5, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ] {
        assert_eq!(TcpHeader::parse(&raw(bytes)), Err(DropReason::MalformedTcp), "{bytes:?}");
    }
    for offset in 0..5 {
        let mut segment = raw(&[]);
        segment[12] = offset << 4;
        assert_eq!(TcpHeader::parse(&segment), Err(DropReason::MalformedTcp));
    }
}

#[test]
fn flags() {
    let flags = TcpFlags::SYN | TcpFlags::ACK;
    assert!(
        flags.contains(TcpFlags::SYN)
            && flags.contains(flags)
            && !flags.contains(TcpFlags::SYN | TcpFlags::FIN)
    );
    assert!(flags.intersects(TcpFlags::SYN | TcpFlags::FIN) && !flags.intersects(TcpFlags::RST));
}
