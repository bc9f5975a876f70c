//! Packets of the RFCs' examples, packets of our own making, and others.

use super::protection::ClientKeys;
use super::*;

/// Destination connection ID of those examples.
pub(crate) const DESTINATION: [u8; 8] = [0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08];

fn hex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("a digit") as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// The CRYPTO frame of RFC 9001, A.2.
pub(crate) fn example_frame() -> Vec<u8> {
    hex("060040f1010000ed0303ebf8fa56f12939b9584a3896472ec40bb863cfd3e86804fe3a47f06a2b69484c\
         00000413011302010000c000000010000e00000b6578616d706c652e636f6dff01000100000a00080006001d\
         0017001800100007000504616c706e000500050100000000003300260024001d00209370b2c9caa47fbabaf4\
         559fedba753de171fa71f50f1ce15d43e994ec74d748002b0003020304000d0010000e0403050306030203080408\
         050806002d00020101001c00024001003900320408ffffffffffffffff05048000ffff07048000ffff080110010480\
         0075300901100f088394c8f03e51570806048000ffff")
}

/// The same, padded as there.
pub(crate) fn example_payload() -> Vec<u8> {
    let mut payload = example_frame();
    payload.resize(1162, 0);
    payload
}

fn opened(datagram: &[u8]) -> Option<Vec<u8>> {
    let Ok((QuicPacket::Long(packet), _)) = QuicPacket::parse(datagram) else { return None };
    ClientKeys::new(packet.version, packet.destination).open(&packet)
}

#[test]
fn examples_of_the_rfcs() {
    // RFC 9001, A.2, and RFC 9369, A.2: the header before protection, and the packet's first bytes after.
    for (version, header, protected) in [
        (
            Version::V1,
            "c300000001088394c8f03e5157080000449e00000002",
            "c000000001088394c8f03e5157080000449e7b9aec34d1b1c98dd7689fb8ec11d242b123dc9b",
        ),
        (
            Version::V2,
            "d36b3343cf088394c8f03e5157080000449e00000002",
            "d76b3343cf088394c8f03e5157080000449ea0c95e82ffe67b6abcdb4298b485dd04de806071",
        ),
    ] {
        let sealed = ClientKeys::new(version, &DESTINATION).seal(&hex(header), &example_payload());
        assert_eq!(sealed.len(), 1200);
        assert_eq!(sealed[..hex(protected).len()], hex(protected), "{version:?}");
        assert_eq!(opened(&sealed), Some(example_payload()));
        let (packet, rest) = QuicPacket::parse(&sealed).expect("a packet");
        let QuicPacket::Long(packet) = packet else { panic!("a long header") };
        assert_eq!((packet.version, packet.kind, rest), (version, LongType::Initial, &[][..]));
        assert_eq!(packet.destination, DESTINATION);
        // Every changed byte breaks the tag, or makes another packet.
        for at in (0..sealed.len()).step_by(7) {
            let mut bad = sealed.clone();
            bad[at] ^= 4;
            assert_eq!(opened(&bad), None, "byte {at}");
        }
        // The keys of another connection ID do not fit, nor do those of the other version.
        assert_eq!(ClientKeys::new(version, b"12345678").open(&packet), None);
        let other = if version == Version::V1 { Version::V2 } else { Version::V1 };
        assert_eq!(ClientKeys::new(other, &DESTINATION).open(&packet), None);
    }
}

#[test]
fn the_end_of_the_example() {
    // The last bytes, with the tag, of RFC 9001, A.2: all of the packet went into them.
    let keys = ClientKeys::new(Version::V1, &DESTINATION);
    let sealed = keys.seal(&hex("c300000001088394c8f03e5157080000449e00000002"), &example_payload());
    assert_eq!(sealed[1184..], hex("e221af44860018ab0856972e194cd934"));
}

#[test]
fn frames_are_read_to_the_end() {
    let payload = example_payload();
    let frames: Vec<_> = CryptoFrames::new(&payload).collect();
    assert_eq!(frames, [Ok(CryptoFrame { offset: 0, data: &payload[4..245] })]);
    let mixed =
        [&[0, 1, 2, 5, 0, 1, 3, 0, 0, 3, 5, 0, 0, 3, 1, 1, 1][..], &[6, 0x44, 0, 2, 7, 8, 0x1c, 0, 0, 1, 9]];
    let mixed = mixed.concat();
    let frames: Vec<_> = CryptoFrames::new(&mixed).collect();
    assert_eq!(frames, [Ok(CryptoFrame { offset: 0x400, data: &[7, 8] })]);
    for bad in [
        &[6, 0, 3, 1, 2][..],
        &[6, 0],
        &[2, 0, 0, 0xff],
        &[2, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0],
        &[0x1c, 0, 0, 5, 1],
        // STREAM, HANDSHAKE_DONE, and a type with a longer number than it needs.
        &[8, 0],
        &[0x1e],
        &[0x40, 6, 0, 1, 1],
    ] {
        assert_eq!(CryptoFrames::new(bad).collect::<Vec<_>>(), [Err(Malformed)], "{bad:?}");
    }
}

#[test]
fn other_packets() {
    let parse = |bytes: &[u8]| {
        QuicPacket::parse(bytes).map(|(packet, rest)| {
            let kind = match packet {
                QuicPacket::Long(packet) => Some(packet.kind),
                QuicPacket::Short => None,
            };
            (kind, rest.len())
        })
    };
    let header = |first: u8, version: u32, tail: &[u8]| {
        [&[first][..], &version.to_be_bytes(), &[1, 9, 0], tail].concat()
    };
    assert_eq!(parse(&[0x40, 1, 2]), Ok((None, 0)));
    assert_eq!(parse(&header(0xe0, 1, &[2, 7, 7, 0x40])), Ok((Some(LongType::Handshake), 1)));
    assert_eq!(parse(&header(0xd0, 1, &[0])), Ok((Some(LongType::ZeroRtt), 0)));
    assert_eq!(parse(&header(0xf0, 1, &[1, 2, 3])), Ok((Some(LongType::Retry), 0)));
    assert_eq!(parse(&header(0xc0, 0x6b33_43cf, &[1, 2, 3])), Ok((Some(LongType::Retry), 0)));
    assert_eq!(parse(&header(0xf0, 0x6b33_43cf, &[1, 2])), Ok((Some(LongType::Handshake), 0)));
    assert_eq!(parse(&header(0xc0, 1, &[2, 5, 5, 1, 0, 6])), Ok((Some(LongType::Initial), 1)));
    for bad in [
        &[][..],
        &[0xc0],
        &header(0xc0, 0, &[0, 0]),
        &header(0xc0, 0x1a2a_3a4a, &[0, 0]),
        &header(0xc0, 1, &[9, 0]),
        &header(0xc0, 1, &[0, 2, 1]),
        &[&[0xc0, 0, 0, 0, 1, 21][..], &[0; 64]].concat(),
    ] {
        assert_eq!(parse(bad), Err(Malformed), "{bad:?}");
    }
    // Too short for a sample.
    let short = header(0xc0, 1, &[0, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    assert_eq!(opened(&short), None);
}
