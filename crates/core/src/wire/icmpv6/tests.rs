//! Every ICMPv6 message both ways, at every length and between the wrong addresses; quotes cut to size.

use super::*;

const SRC: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x15);
const DST: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

#[test]
fn every_message_both_ways() {
    let echo = Echo { ident: 0x1234, sequence: 7, data: b"abcde" };
    let quoted = &b"the packet"[..];
    for (message, start) in [
        (Icmpv6Message::EchoRequest(echo), [128, 0, 0x12, 0x34, 0, 7]),
        (Icmpv6Message::EchoReply(echo), [129, 0, 0x12, 0x34, 0, 7]),
        (Icmpv6Message::Unreachable { code: PORT_UNREACHABLE, quoted }, [1, 4, 0, 0, 0, 0]),
        (Icmpv6Message::PacketTooBig { mtu: 0x1_0500, quoted }, [2, 0, 0, 1, 5, 0]),
        (Icmpv6Message::TimeExceeded { code: 1, quoted }, [3, 1, 0, 0, 0, 0]),
    ] {
        let mut out = vec![0; message.len()];
        message.emit(SRC, DST, &mut out);
        assert_eq!([out[0], out[1], out[4], out[5], out[6], out[7]], start);
        assert_eq!(Icmpv6Message::parse(SRC, DST, &out), Ok(message));
        assert_eq!(Icmpv6Message::parse(SRC, SRC, &out), Err(DropReason::IcmpChecksum));
        for len in 0..out.len() {
            assert!(Icmpv6Message::parse(SRC, DST, &out[..len]).is_err());
        }
    }
}

#[test]
fn quotes_are_cut() {
    let packet = [7; 2000];
    let message = Icmpv6Message::TimeExceeded { code: 0, quoted: &packet };
    assert_eq!(40 + message.len(), 1280);
}

#[test]
fn other_types_are_unknown() {
    for kind in [5, 100, 130, 133, 135, 143, 255] {
        let mut message = [kind, 0, 0, 0, 0, 0, 0, 0];
        fill_checksum(SRC, DST, &mut message);
        assert_eq!(Icmpv6Message::parse(SRC, DST, &message), Err(DropReason::UnknownIcmp));
    }
    assert!([1, 2, 3, 4, 127, 137].into_iter().all(is_error));
    assert!(![128, 129, 135, 136].into_iter().any(is_error));
}
