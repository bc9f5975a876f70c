//! MAC addresses as text, groups, and the frame header both ways.

use super::*;

#[test]
fn mac_text() {
    let mac = MacAddr([0x52, 0x55, 0x0a, 0, 2, 0xff]);
    assert_eq!(mac.to_string(), "52:55:0a:00:02:ff");
    assert_eq!("52:55:0A:00:02:ff".parse(), Ok(mac));
    for bad in [
        "",
        "52",
        "52:55:0a:00:02",
        "52:55:0a:00:02:ff:00",
        "52:55:0a:00:02:+f",
        "5255:0a:00:02:ff",
        "52:55:0a:00:02:é",
    ] {
        assert_eq!(bad.parse::<MacAddr>(), Err(InvalidMacAddr), "{bad}");
    }
}

#[test]
fn mac_groups() {
    assert!(MacAddr::BROADCAST.is_multicast() && MacAddr::BROADCAST.is_broadcast());
    let all_nodes = MacAddr::from_ipv6_multicast("ff02::1:ff00:15".parse().unwrap());
    assert_eq!(all_nodes, MacAddr([0x33, 0x33, 0xff, 0, 0, 0x15]));
    assert!(all_nodes.is_multicast() && !all_nodes.is_broadcast());
    assert!(!MacAddr([0x52, 0, 0, 0, 0, 1]).is_multicast());
}

#[test]
fn header_both_ways() {
    let header = EthernetHeader { dst: MacAddr([1; 6]), src: MacAddr([2; 6]), ethertype: EtherType::Ipv6 };
    let mut frame = [0xaa; 16];
    header.emit(&mut frame);
    assert_eq!(frame[12..], [0x86, 0xdd, 0xaa, 0xaa]);
    assert_eq!(EthernetHeader::parse(&frame), Ok((header, &[0xaa, 0xaa][..])));
    assert_eq!(EthernetHeader::parse(&frame[..13]), Err(DropReason::FrameTooShort));
    for number in 0..=u16::MAX {
        assert_eq!(u16::from(EtherType::from(number)), number);
    }
}

#[test]
fn priority_tags_are_those_of_vlan_0() {
    let mut frame = [0; 18];
    for (tag, is_priority) in [
        ([0x81, 0, 0, 0], true),
        ([0x81, 0, 0xa0, 0], true),
        ([0x81, 0, 0xf0, 0], true),
        ([0x81, 0, 0xa0, 5], false),
        ([0x81, 0, 0xa5, 0], false),
        ([0x88, 0xa8, 0, 0], false),
        ([0x08, 0, 0x40, 0], false),
    ] {
        frame[12..16].copy_from_slice(&tag);
        assert_eq!(EthernetHeader::has_priority_tag(&frame), is_priority, "{tag:02x?}");
        assert!(!EthernetHeader::has_priority_tag(&frame[..15]), "{tag:02x?}");
    }
}
