//! ARP answers: for each of our addresses and no others, for every form of request.

use super::super::tests::GUEST;
use super::*;
use crate::config::HostLink;
use crate::wire::ethernet::MacAddr;
use std::net::Ipv4Addr;

fn request(sender: [u8; 4], target: [u8; 4]) -> ArpPacket {
    ArpPacket {
        operation: ArpOperation::Request,
        sender_mac: GUEST,
        sender_ip: sender.into(),
        target_mac: MacAddr::default(),
        target_ip: target.into(),
    }
}

fn ask(config: &Config, packet: ArpPacket) -> Result<Option<(EthernetHeader, ArpPacket)>, DropReason> {
    let mut bytes = [0; ArpPacket::LEN];
    packet.emit(&mut bytes);
    let mut out = [0; FRAME_LEN_MAX];
    Ok(answer(config, &bytes, &mut out)?.map(|len| {
        let (eth, payload) = EthernetHeader::parse(&out[..len]).unwrap();
        (eth, ArpPacket::parse(payload).unwrap())
    }))
}

#[test]
fn our_addresses_are_answered() {
    let mut config = Config::default();
    let loopback = Ipv4Addr::new(10, 0, 2, 9);
    config.v4.as_mut().unwrap().host_loopback = Some(loopback);
    for target in [[10, 0, 2, 2], [10, 0, 2, 3], loopback.octets()] {
        // An ordinary request, and a probe (RFC 5227): both are answered.
        for sender in [[10, 0, 2, 15], [0; 4]] {
            let (eth, reply) = ask(&config, request(sender, target)).unwrap().unwrap();
            assert_eq!(eth, EthernetHeader { dst: GUEST, src: config.mac, ethertype: EtherType::Arp });
            let expected = ArpPacket {
                operation: ArpOperation::Reply,
                sender_mac: config.mac,
                sender_ip: target.into(),
                target_mac: GUEST,
                target_ip: sender.into(),
            };
            assert_eq!(reply, expected);
        }
    }
}

#[test]
fn others_are_not() {
    let config = Config::default();
    // The guest's probe and announcement of its own address; a neighbour that is not there.
    for (sender, target) in
        [([0; 4], [10, 0, 2, 15]), ([10, 0, 2, 15], [10, 0, 2, 15]), ([10, 0, 2, 15], [10, 0, 2, 77])]
    {
        assert_eq!(ask(&config, request(sender, target)), Ok(None));
    }
    let reply = ArpPacket { operation: ArpOperation::Reply, ..request([10, 0, 2, 15], [10, 0, 2, 2]) };
    assert_eq!(ask(&config, reply), Ok(None));
    let group = ArpPacket { sender_mac: MacAddr::BROADCAST, ..request([10, 0, 2, 15], [10, 0, 2, 2]) };
    assert_eq!(ask(&config, group), Err(DropReason::MalformedArp));
    let without = Config { v4: None, ..config };
    assert_eq!(ask(&without, request([10, 0, 2, 15], [10, 0, 2, 2])), Ok(None));
}

#[test]
fn in_a_copy_of_the_hosts_network_its_hosts_are_answered_for() {
    let config = Config {
        host_link: Some(HostLink { scope_id: 0 }),
        more_addresses: vec![Ipv4Addr::new(10, 0, 2, 16).into()],
        ..Config::default()
    };
    let answered =
        |sender, target| ask(&config, request(sender, target)).unwrap().map(|(_, it)| it.sender_mac);
    let guest = [10, 0, 2, 15];
    assert_eq!(answered(guest, [10, 0, 2, 77]), Some(config.mac));
    assert_eq!(answered(guest, [169, 254, 3, 4]), Some(config.mac));
    // Addresses of the guest's own, its probes and announcements, groups.
    for (sender, target) in [
        (guest, guest),
        (guest, [10, 0, 2, 16]),
        ([0; 4], [10, 0, 2, 77]),
        ([10, 0, 2, 77], [10, 0, 2, 77]),
        (guest, [224, 0, 0, 1]),
        (guest, [255; 4]),
        (guest, [127, 0, 0, 1]),
    ] {
        assert_eq!(answered(sender, target), None, "{sender:?} {target:?}");
    }
}
