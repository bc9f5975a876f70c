//! smoltcp reads what we write and writes what we read: ARP, ICMP, neighbour discovery, DHCPv4.

use crate::strategies::{arp, mac, ndp, quick};
use brodo_core::config::Config;
use brodo_core::services;
use brodo_core::wire::arp::{ArpOperation, ArpPacket};
use brodo_core::wire::dhcpv4::{Request, RequestType};
use brodo_core::wire::ethernet::{EtherType, EthernetHeader, MacAddr};
use brodo_core::wire::icmpv4::{Echo, Icmpv4Message};
use brodo_core::wire::icmpv6::{Icmpv6Message, verify_checksum};
use brodo_core::wire::ndp::{NdpMessage, NeighborAdvertisement};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation as TheirOperation, ArpPacket as TheirArpPacket, ArpRepr, DhcpMessageType, DhcpPacket,
    DhcpRepr, EthernetAddress, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, NdiscNeighborFlags,
    NdiscPrefixInfoFlags, NdiscRepr, NdiscRouterFlags, RawHardwareAddress,
};
use std::net::{Ipv4Addr, Ipv6Addr};

fn theirs(mac: MacAddr) -> EthernetAddress {
    EthernetAddress(mac.0)
}

fn raw(mac: Option<MacAddr>) -> Option<RawHardwareAddress> {
    mac.map(|mac| theirs(mac).into())
}

/// Our message as smoltcp's representation.
fn their_ndp(message: NdpMessage) -> Icmpv6Repr<'static> {
    Icmpv6Repr::Ndisc(match message {
        NdpMessage::RouterSolicitation { source_lladdr } => {
            NdiscRepr::RouterSolicit { lladdr: raw(source_lladdr) }
        }
        NdpMessage::NeighborSolicitation { target, source_lladdr } => {
            NdiscRepr::NeighborSolicit { target_addr: target, lladdr: raw(source_lladdr) }
        }
        NdpMessage::NeighborAdvertisement(NeighborAdvertisement {
            router,
            solicited,
            override_entry,
            target,
            target_lladdr,
        }) => {
            let mut flags = NdiscNeighborFlags::empty();
            flags.set(NdiscNeighborFlags::ROUTER, router);
            flags.set(NdiscNeighborFlags::SOLICITED, solicited);
            flags.set(NdiscNeighborFlags::OVERRIDE, override_entry);
            NdiscRepr::NeighborAdvert { flags, target_addr: target, lladdr: raw(target_lladdr) }
        }
    })
}

proptest! {
    #![proptest_config(quick())]

    #[test]
    fn arp_both_ways(packet in arp()) {
        let operation = match packet.operation {
            ArpOperation::Request => TheirOperation::Request,
            ArpOperation::Reply => TheirOperation::Reply,
        };
        let repr = ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: theirs(packet.sender_mac),
            source_protocol_addr: packet.sender_ip,
            target_hardware_addr: theirs(packet.target_mac),
            target_protocol_addr: packet.target_ip,
        };
        let mut bytes = [0; ArpPacket::LEN];
        packet.emit(&mut bytes);
        prop_assert_eq!(ArpRepr::parse(&TheirArpPacket::new_checked(&bytes).unwrap()), Ok(repr));
        let mut bytes = [0; ArpPacket::LEN];
        repr.emit(&mut TheirArpPacket::new_unchecked(&mut bytes));
        prop_assert_eq!(ArpPacket::parse(&bytes), Ok(packet));
    }

    #[test]
    fn ndp_both_ways(message in ndp(), src: Ipv6Addr, dst: Ipv6Addr) {
        let repr = their_ndp(message);
        let caps = ChecksumCapabilities::default();
        let mut bytes = [0; NdpMessage::LEN_MAX];
        let len = message.emit(src, dst, &mut bytes);
        let packet = Icmpv6Packet::new_checked(&bytes[..len]).unwrap();
        prop_assert_eq!(Icmpv6Repr::parse(&src, &dst, &packet, &caps), Ok(repr));
        prop_assert_eq!(repr.buffer_len(), len);
        let mut bytes = vec![0; len];
        repr.emit(&src, &dst, &mut Icmpv6Packet::new_unchecked(&mut bytes[..]), &caps);
        prop_assert_eq!(verify_checksum(src, dst, &bytes), Ok(()));
        prop_assert_eq!(NdpMessage::parse(&bytes), Ok(message));
    }

    #[test]
    fn echo_both_ways(
        ident: u16, seq_no: u16, data in vec(any::<u8>(), 0..200), reply: bool, src: Ipv6Addr, dst: Ipv6Addr,
    ) {
        let caps = ChecksumCapabilities::default();
        let echo = Echo { ident, sequence: seq_no, data: &data };
        let (ours, repr) = if reply {
            (Icmpv4Message::EchoReply(echo), Icmpv4Repr::EchoReply { ident, seq_no, data: &data })
        } else {
            (Icmpv4Message::EchoRequest(echo), Icmpv4Repr::EchoRequest { ident, seq_no, data: &data })
        };
        let mut bytes = vec![0; ours.len()];
        ours.emit(&mut bytes);
        prop_assert_eq!(Icmpv4Repr::parse(&Icmpv4Packet::new_checked(&bytes[..]).unwrap(), &caps), Ok(repr));
        repr.emit(&mut Icmpv4Packet::new_unchecked(&mut bytes[..]), &caps);
        prop_assert_eq!(Icmpv4Message::parse(&bytes), Ok(ours));

        let (ours, repr) = if reply {
            (Icmpv6Message::EchoReply(echo), Icmpv6Repr::EchoReply { ident, seq_no, data: &data })
        } else {
            (Icmpv6Message::EchoRequest(echo), Icmpv6Repr::EchoRequest { ident, seq_no, data: &data })
        };
        let mut bytes = vec![0; ours.len()];
        ours.emit(src, dst, &mut bytes);
        let packet = Icmpv6Packet::new_checked(&bytes[..]).unwrap();
        prop_assert_eq!(Icmpv6Repr::parse(&src, &dst, &packet, &caps), Ok(repr));
        repr.emit(&src, &dst, &mut Icmpv6Packet::new_unchecked(&mut bytes[..]), &caps);
        prop_assert_eq!(Icmpv6Message::parse(src, dst, &bytes), Ok(ours));
    }

    #[test]
    fn we_read_their_dhcpv4(
        xid: u32, chaddr in mac(), ciaddr: Ipv4Addr, broadcast: bool, kind in 0..5usize,
        requested_ip in option::of(any::<Ipv4Addr>()), server_id in option::of(any::<Ipv4Addr>()),
        max_size in option::of(any::<u16>()),
    ) {
        use DhcpMessageType as Their;
        let (message_type, kind) = [
            (Their::Discover, RequestType::Discover),
            (Their::Request, RequestType::Request),
            (Their::Decline, RequestType::Decline),
            (Their::Release, RequestType::Release),
            (Their::Inform, RequestType::Inform),
        ][kind];
        let repr = DhcpRepr {
            message_type,
            transaction_id: xid,
            secs: 3,
            client_hardware_address: theirs(chaddr),
            client_ip: ciaddr,
            your_ip: Ipv4Addr::UNSPECIFIED,
            server_ip: Ipv4Addr::UNSPECIFIED,
            router: None,
            subnet_mask: None,
            relay_agent_ip: Ipv4Addr::UNSPECIFIED,
            broadcast,
            requested_ip,
            client_identifier: Some(theirs(chaddr)),
            server_identifier: server_id,
            parameter_request_list: Some(&[1, 3, 6, 26]),
            dns_servers: None,
            max_size,
            lease_duration: None,
            renew_duration: None,
            rebind_duration: None,
            additional_options: &[],
        };
        let mut bytes = vec![0; repr.buffer_len()];
        repr.emit(&mut DhcpPacket::new_unchecked(&mut bytes[..])).unwrap();
        let id = [&[1][..], &chaddr.0].concat();
        let expected = Request {
            kind,
            xid,
            broadcast,
            ciaddr,
            giaddr: Ipv4Addr::UNSPECIFIED,
            chaddr,
            requested_ip,
            server_id,
            client_id: Some(&id),
            fqdn: None,
            lists_fqdn: false,
            rapid_commit: false,
            size_max: max_size.unwrap_or(0).max(576),
        };
        prop_assert_eq!(Request::parse(&bytes), Ok(expected));
    }
}

#[test]
fn they_read_our_router_advertisement() {
    let config = Config { search: vec!["lan.example".into()], ..Config::default() };
    let net = config.v6.unwrap();
    let mut out = [0; services::FRAME_LEN_MAX];
    let len = services::ndp::advertise(&config, &[], &mut out).unwrap();
    let message = Icmpv6Packet::new_checked(&out[14 + 40..len]).unwrap();
    let all_nodes = "ff02::1".parse().unwrap();
    let caps = ChecksumCapabilities::default();
    let repr = Icmpv6Repr::parse(&net.gateway_link_local, &all_nodes, &message, &caps).unwrap();
    let Icmpv6Repr::Ndisc(NdiscRepr::RouterAdvert {
        hop_limit,
        flags,
        router_lifetime,
        lladdr,
        mtu,
        prefix_info,
        ..
    }) = repr
    else {
        panic!("{repr:?}")
    };
    assert_eq!((hop_limit, flags, router_lifetime.secs()), (64, NdiscRouterFlags::OTHER, 65_535));
    assert_eq!((lladdr, mtu), (raw(Some(config.mac)), Some(u32::from(config.mtu))));
    let prefix = prefix_info.unwrap();
    assert_eq!((prefix.prefix, prefix.prefix_len), ("fd00::".parse().unwrap(), 64));
    assert_eq!(prefix.flags, NdiscPrefixInfoFlags::ON_LINK | NdiscPrefixInfoFlags::ADDRCONF);
    assert_eq!(prefix.valid_lifetime.secs(), u64::from(u32::MAX));
}

#[test]
fn they_read_our_dhcpv4() {
    let config = Config::default();
    let mut request = vec![0; 236];
    request[..8].copy_from_slice(&[1, 1, 6, 0, 1, 2, 3, 4]);
    request[28..34].copy_from_slice(&[2; 6]);
    request.extend([99, 130, 83, 99, 53, 1, 1, 255]);
    let eth = EthernetHeader { dst: MacAddr::BROADCAST, src: MacAddr([2; 6]), ethertype: EtherType::Ipv4 };
    let mut out = [0; services::FRAME_LEN_MAX];
    let (src, dst) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
    let len = services::dhcpv4::answer(&config, &eth, src, dst, &request, &mut out).unwrap().unwrap();
    let packet = DhcpPacket::new_checked(&out[14 + 20 + 8..len]).unwrap();
    let repr = DhcpRepr::parse(&packet).unwrap();
    let net = config.v4.unwrap();
    assert_eq!((repr.message_type, repr.transaction_id), (DhcpMessageType::Offer, 0x0102_0304));
    assert_eq!(
        (repr.your_ip, repr.router, repr.server_identifier),
        (net.guest, Some(net.gateway), Some(net.gateway))
    );
    assert_eq!(repr.subnet_mask, Some(Ipv4Addr::new(255, 255, 255, 0)));
    assert_eq!(repr.dns_servers.unwrap()[..], [net.dns.unwrap()]);
    assert_eq!(repr.lease_duration, Some(u32::MAX));
}
