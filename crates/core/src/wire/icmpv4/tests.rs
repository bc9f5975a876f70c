//! Every ICMP message both ways, with every bit flipped and at every length; quotes cut to size.

use super::*;

#[test]
fn every_message_both_ways() {
    let echo = Echo { ident: 0x1234, sequence: 7, data: b"abcde" };
    let quoted = &b"the packet"[..];
    for (message, start) in [
        (Icmpv4Message::EchoRequest(echo), [8, 0, 0x12, 0x34, 0, 7]),
        (Icmpv4Message::EchoReply(echo), [0, 0, 0x12, 0x34, 0, 7]),
        (Icmpv4Message::Unreachable { code: PORT_UNREACHABLE, quoted }, [3, 3, 0, 0, 0, 0]),
        (Icmpv4Message::FragmentationNeeded { mtu: 1280, quoted }, [3, 4, 0, 0, 5, 0]),
        (Icmpv4Message::TimeExceeded { code: 1, quoted }, [11, 1, 0, 0, 0, 0]),
    ] {
        let mut out = vec![0; message.len()];
        message.emit(&mut out);
        assert_eq!([out[0], out[1], out[4], out[5], out[6], out[7]], start);
        assert_eq!(Icmpv4Message::parse(&out), Ok(message));
        for len in 0..out.len() {
            assert!(Icmpv4Message::parse(&out[..len]).is_err());
        }
        for bit in 0..out.len() * 8 {
            out[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Icmpv4Message::parse(&out), Err(DropReason::IcmpChecksum));
            out[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn quotes_are_cut() {
    let packet = [7; 2000];
    let message = Icmpv4Message::Unreachable { code: 0, quoted: &packet };
    assert_eq!(20 + message.len(), 576);
    let mut out = vec![0; message.len()];
    message.emit(&mut out);
    let quoted = &packet[..Icmpv4Message::QUOTE_MAX];
    assert_eq!(Icmpv4Message::parse(&out), Ok(Icmpv4Message::Unreachable { code: 0, quoted }));
}

#[test]
fn other_types_are_unknown() {
    for start in [[5, 0], [13, 0], [8, 1], [0, 1]] {
        let mut message = [start[0], start[1], 0, 0, 0, 0, 0, 0];
        let checksum = checksum::finish(checksum::sum(&message, 0));
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(Icmpv4Message::parse(&message), Err(DropReason::UnknownIcmp));
    }
    assert!([3, 4, 5, 11, 12].into_iter().all(is_error));
    assert!(![0, 8, 13, 17].into_iter().any(is_error));
}
