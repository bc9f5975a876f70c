//! ARP packets as Linux sends them, cut at every length, and with every fixed field wrong.

use super::*;

#[test]
fn request_as_linux_sends_it() {
    let bytes = [
        0, 1, 8, 0, 6, 4, 0, 1, 0x52, 0x54, 0, 0x12, 0x34, 0x56, 10, 0, 2, 15, 0, 0, 0, 0, 0, 0, 10, 0, 2, 2,
    ];
    let packet = ArpPacket {
        operation: ArpOperation::Request,
        sender_mac: MacAddr([0x52, 0x54, 0, 0x12, 0x34, 0x56]),
        sender_ip: Ipv4Addr::new(10, 0, 2, 15),
        target_mac: MacAddr::default(),
        target_ip: Ipv4Addr::new(10, 0, 2, 2),
    };
    assert_eq!(ArpPacket::parse(&bytes), Ok(packet));
    let padded = [&bytes[..], &[0; 18]].concat();
    assert_eq!(ArpPacket::parse(&padded), Ok(packet));
    let mut out = [0; ArpPacket::LEN];
    packet.emit(&mut out);
    assert_eq!(out, bytes);
    for len in 0..bytes.len() {
        assert_eq!(ArpPacket::parse(&bytes[..len]), Err(DropReason::MalformedArp));
    }
    // Hardware, protocol, lengths, operation: nothing else is understood.
    for at in 0..8 {
        let mut bytes = bytes;
        bytes[at] ^= 0x40;
        assert_eq!(ArpPacket::parse(&bytes), Err(DropReason::MalformedArp));
    }
}
