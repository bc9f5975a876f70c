//! Neighbour discovery answers: for each of our addresses and no others; router advertisements, asked and
//! unasked.

use super::super::tests::{GUEST, open_ipv6};
use super::*;
use crate::config::HostLink;
use crate::wire::ICMPV6;
use crate::wire::ndp::ALL_ROUTERS;

const GUEST_LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0xff, 0xfe12, 0x3456);

/// Answers to `message` from `src` to `dst`.
fn ask(
    config: &Config,
    src: Ipv6Addr,
    dst: Ipv6Addr,
    message: NdpMessage,
) -> Result<Option<Vec<u8>>, DropReason> {
    let mut bytes = [0; NdpMessage::LEN_MAX];
    let len = message.emit(src, dst, &mut bytes);
    ask_raw(config, &header(src, dst, 255), &bytes[..len])
}

fn ask_raw(config: &Config, ip: &Ipv6Header, bytes: &[u8]) -> Result<Option<Vec<u8>>, DropReason> {
    let mut out = [0; FRAME_LEN_MAX];
    Ok(answer(config, GUEST, ip, bytes, &[], &mut out)?.map(|len| out[..len].to_vec()))
}

fn header(src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8) -> Ipv6Header {
    Ipv6Header { src, dst, next_header: ICMPV6, hop_limit, traffic_class: 0, flow_label: 0, payload_len: 0 }
}

#[test]
fn our_addresses_are_answered() {
    let config = Config::default();
    let net = config.v6.unwrap();
    for target in [net.gateway, net.gateway_link_local, net.dns.unwrap()] {
        for dst in [target, solicited_node(target)] {
            let question = NdpMessage::NeighborSolicitation { target, source_lladdr: Some(GUEST) };
            let frame = ask(&config, net.guest, dst, question).unwrap().unwrap();
            let (eth, ip, message) = open_ipv6(&frame);
            assert_eq!((eth.dst, ip.src, ip.dst, ip.hop_limit), (GUEST, target, net.guest, 255));
            let expected = NeighborAdvertisement {
                router: true,
                solicited: true,
                override_entry: true,
                target,
                target_lladdr: Some(config.mac),
            };
            assert_eq!(NdpMessage::parse(message), Ok(NdpMessage::NeighborAdvertisement(expected)));
        }
        // Duplicate address detection for one of our addresses is answered, to all nodes.
        let probe = NdpMessage::NeighborSolicitation { target, source_lladdr: None };
        let frame = ask(&config, Ipv6Addr::UNSPECIFIED, solicited_node(target), probe).unwrap().unwrap();
        let (eth, ip, message) = open_ipv6(&frame);
        assert_eq!((eth.dst, ip.src, ip.dst), (MacAddr::from_ipv6_multicast(ALL_NODES), target, ALL_NODES));
        let Ok(NdpMessage::NeighborAdvertisement(a)) = NdpMessage::parse(message) else { panic!() };
        assert!(!a.solicited && a.override_entry && a.target == target);
    }
}

#[test]
fn in_a_copy_of_the_hosts_network_its_hosts_are_answered_for() {
    let config = Config { host_link: Some(HostLink { scope_id: 2 }), ..Config::default() };
    let net = config.v6.unwrap();
    let answer = |src, target| {
        let question = NdpMessage::NeighborSolicitation { target, source_lladdr: None };
        let frame = ask(&config, src, solicited_node(target), question).unwrap()?;
        let (_, ip, message) = open_ipv6(&frame);
        let Ok(NdpMessage::NeighborAdvertisement(it)) = NdpMessage::parse(message) else { panic!() };
        assert_eq!((ip.src, it.target, it.target_lladdr), (target, target, Some(config.mac)));
        Some(it.router)
    };
    let address = |text: &str| text.parse::<Ipv6Addr>().unwrap();
    assert_eq!(answer(net.guest, address("fd00::77")), Some(false));
    assert_eq!(answer(net.guest, address("fe80::77")), Some(false));
    assert_eq!(answer(GUEST_LINK_LOCAL, net.gateway), Some(true));
    // Duplicate address detection of the guest, and its own addresses.
    assert_eq!(answer(Ipv6Addr::UNSPECIFIED, address("fd00::77")), None);
    assert_eq!(answer(Ipv6Addr::UNSPECIFIED, GUEST_LINK_LOCAL), None);
    assert_eq!(answer(GUEST_LINK_LOCAL, GUEST_LINK_LOCAL), None);
    assert_eq!(answer(GUEST_LINK_LOCAL, net.guest), None);
}

#[test]
fn others_are_not() {
    let config = Config::default();
    let net = config.v6.unwrap();
    let unspecified = Ipv6Addr::UNSPECIFIED;
    // The guest's probes for duplicates of its own addresses, and a neighbour that is not there.
    for (src, target) in
        [(unspecified, net.guest), (unspecified, GUEST_LINK_LOCAL), (net.guest, "fd00::77".parse().unwrap())]
    {
        let question = NdpMessage::NeighborSolicitation { target, source_lladdr: None };
        assert_eq!(ask(&config, src, solicited_node(target), question), Ok(None));
    }
    let question = NdpMessage::NeighborSolicitation { target: net.gateway, source_lladdr: None };
    let without = Config { v6: None, ..config.clone() };
    assert_eq!(ask(&without, net.guest, net.gateway, question), Ok(None));
    let advertisement = NdpMessage::NeighborAdvertisement(NeighborAdvertisement {
        router: false,
        solicited: false,
        override_entry: true,
        target: net.guest,
        target_lladdr: Some(GUEST),
    });
    assert_eq!(ask(&config, net.guest, ALL_NODES, advertisement), Ok(None));
}

#[test]
fn malformed() {
    let config = Config::default();
    let net = config.v6.unwrap();
    let (unspecified, group) = (Ipv6Addr::UNSPECIFIED, solicited_node(net.gateway));
    let target = net.gateway;
    let bad = Err(DropReason::MalformedNdp);
    let with = |mac| NdpMessage::NeighborSolicitation { target, source_lladdr: mac };
    assert_eq!(ask(&config, unspecified, group, with(Some(GUEST))), bad);
    assert_eq!(ask(&config, unspecified, target, with(None)), bad);
    assert_eq!(ask(&config, net.guest, group, with(Some(MacAddr::BROADCAST))), bad);
    assert_eq!(ask(&config, ALL_NODES, group, with(None)), bad);
    let solicit = NdpMessage::RouterSolicitation { source_lladdr: Some(GUEST) };
    assert_eq!(ask(&config, unspecified, ALL_ROUTERS, solicit), bad);

    let mut bytes = [0; NdpMessage::LEN_MAX];
    let len = with(None).emit(net.guest, target, &mut bytes);
    assert_eq!(ask_raw(&config, &header(net.guest, target, 254), &bytes[..len]), bad);
    bytes[10] ^= 1;
    let wrong = ask_raw(&config, &header(net.guest, target, 255), &bytes[..len]);
    assert_eq!(wrong, Err(DropReason::IcmpChecksum));
}

#[test]
fn routers_are_advertised() {
    let config = Config { search: vec!["lan.example".into()], ..Config::default() };
    let net = config.v6.unwrap();
    let everybody = (MacAddr::from_ipv6_multicast(ALL_NODES), ALL_NODES);
    let mut out = [0; FRAME_LEN_MAX];
    let unasked = advertise(&config, &[], &mut out).unwrap();
    let frames = [
        (everybody, out[..unasked].to_vec()),
        (
            everybody,
            ask(
                &config,
                Ipv6Addr::UNSPECIFIED,
                ALL_ROUTERS,
                NdpMessage::RouterSolicitation { source_lladdr: None },
            )
            .unwrap()
            .unwrap(),
        ),
        (
            (GUEST, GUEST_LINK_LOCAL),
            ask(
                &config,
                GUEST_LINK_LOCAL,
                ALL_ROUTERS,
                NdpMessage::RouterSolicitation { source_lladdr: Some(GUEST) },
            )
            .unwrap()
            .unwrap(),
        ),
    ];
    for ((mac, dst), frame) in frames {
        let (eth, ip, message) = open_ipv6(&frame);
        assert_eq!((eth.dst, ip.dst, ip.src, ip.hop_limit), (mac, dst, net.gateway_link_local, 255));
        // Type, hop limit, O only, router lifetime; autonomous prefix; DNS server.
        assert_eq!((message[0], message[4], &message[5..8]), (134, 64, &[0x40, 255, 255][..]));
        assert!(message.windows(4).any(|w| w == [3, 4, 64, 0xc0]));
        assert!(message.windows(16).any(|w| w == net.dns.unwrap().octets()));
        assert!(message.windows(12).any(|w| w == b"\x03lan\x07example"));
    }
    assert_eq!(advertise(&Config { v6: None, ..config }, &[], &mut out), None);
}

#[test]
fn the_link_local_prefix_is_not_advertised() {
    let mut config = Config::default();
    config.v6.as_mut().unwrap().guest = GUEST_LINK_LOCAL;
    let mut out = [0; FRAME_LEN_MAX];
    let len = advertise(&config, &[], &mut out).unwrap();
    let (_, _, message) = open_ipv6(&out[..len]);
    assert_eq!((message[0], &message[5..8]), (134, &[0x40, 255, 255][..]), "a router all the same");
    assert!(!message.windows(3).any(|w| w == [3, 4, 64]));
}

#[test]
fn prefixes_that_are_not_64_bits_long_send_guests_to_dhcp() {
    let mut config = Config::default();
    config.v6.as_mut().unwrap().prefix_len = 80;
    let mut out = [0; FRAME_LEN_MAX];
    let len = advertise(&config, &[], &mut out).unwrap();
    let (_, _, message) = open_ipv6(&out[..len]);
    assert_eq!(message[5], 0xc0);
    assert!(message.windows(4).any(|w| w == [3, 4, 80, 0x80]));
}
