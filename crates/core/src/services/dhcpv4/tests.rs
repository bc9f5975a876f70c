//! The DHCPv4 server against messages of the shape that dhclient, udhcpc and systemd-networkd send, in every
//! state of a client; replies are read by dhcproto.

use super::super::tests::{GUEST, open_ipv4, open_udp};
use super::*;
use crate::wire::ethernet::EtherType;
use dhcproto::v4::{DhcpOption, Message, MessageType, OptionCode};
use dhcproto::{Decodable, Decoder};

/// A client's message: flags, its address, and options.
struct Client<'a> {
    flags: u16,
    ciaddr: [u8; 4],
    options: &'a [u8],
}

impl Client<'_> {
    fn bytes(&self) -> Vec<u8> {
        let mut m = vec![0; 236];
        m[..8].copy_from_slice(&[1, 1, 6, 0, 0x39, 0x03, 0xf3, 0x26]);
        m[10..12].copy_from_slice(&self.flags.to_be_bytes());
        m[12..16].copy_from_slice(&self.ciaddr);
        m[28..34].copy_from_slice(&GUEST.0);
        m.extend([99, 130, 83, 99]);
        m.extend(self.options);
        m.resize(m.len().max(300), 0);
        m
    }
}

/// A reply: frame and packet addresses, and the message.
type Reply = (MacAddr, Ipv4Addr, Message);

fn ask(config: &Config, src: [u8; 4], payload: &[u8]) -> Result<Option<Reply>, DropReason> {
    let eth = EthernetHeader { dst: MacAddr::BROADCAST, src: GUEST, ethertype: EtherType::Ipv4 };
    let mut out = [0; FRAME_LEN_MAX];
    let len = answer(config, &eth, src.into(), Ipv4Addr::BROADCAST, payload, &mut out)?;
    Ok(len.map(|len| {
        let (eth, ip, datagram) = open_ipv4(&out[..len]);
        assert_eq!(ip.src, config.v4.unwrap().gateway);
        let (src_port, dst_port, payload) = open_udp(ip.src.into(), ip.dst.into(), datagram);
        assert_eq!((src_port, dst_port), (67, 68));
        (eth.dst, ip.dst, Message::decode(&mut Decoder::new(payload)).unwrap())
    }))
}

/// As dhclient asks: parameter list and host name, no client identifier.
const DHCLIENT_DISCOVER: &[u8] = &[
    53, 1, 1, 50, 4, 10, 0, 2, 15, 12, 4, b'h', b'o', b's', b't', 55, 13, 1, 28, 2, 3, 15, 6, 119, 12, 44,
    47, 26, 121, 42, 255,
];
/// As udhcpc asks: client identifier, maximum size, vendor class.
const UDHCPC_DISCOVER: &[u8] = &[
    53, 1, 1, 61, 7, 1, 0x52, 0x54, 0, 0x12, 0x34, 0x56, 57, 2, 2, 0x40, 55, 7, 1, 3, 6, 12, 15, 28, 42, 60,
    12, b'u', b'd', b'h', b'c', b'p', b' ', b'1', b'.', b'3', b'6', b'.', b'1', 255,
];
/// As systemd-networkd asks: an identifier of type 255, and the size of its MTU.
const NETWORKD_DISCOVER: &[u8] = &[
    53, 1, 1, 61, 19, 255, 0xb2, 0x2d, 0x4f, 0x1c, 0, 2, 0, 0, 0xab, 0x11, 1, 2, 3, 4, 5, 6, 7, 8, 55, 11, 1,
    3, 6, 12, 15, 26, 33, 42, 119, 120, 121, 57, 2, 5, 0xc0, 12, 2, b'v', b'm', 255,
];

#[test]
fn discoveries_are_offered_the_address() {
    let config = Config { search: vec!["lan.example".into(), "example".into()], ..Config::default() };
    for options in [DHCLIENT_DISCOVER, UDHCPC_DISCOVER, NETWORKD_DISCOVER] {
        let client = Client { flags: 0, ciaddr: [0; 4], options };
        let (mac, to, message) = ask(&config, [0; 4], &client.bytes()).unwrap().unwrap();
        assert_eq!((mac, to), (GUEST, Ipv4Addr::new(10, 0, 2, 15)));
        assert_eq!((message.xid(), message.chaddr()), (0x3903_f326, &GUEST.0[..]));
        assert_eq!(message.yiaddr(), Ipv4Addr::new(10, 0, 2, 15));
        let opts = message.opts();
        assert_eq!(opts.msg_type(), Some(MessageType::Offer));
        for expected in [
            DhcpOption::ServerIdentifier(Ipv4Addr::new(10, 0, 2, 2)),
            DhcpOption::AddressLeaseTime(u32::MAX),
            DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)),
            DhcpOption::Router(vec![Ipv4Addr::new(10, 0, 2, 2)]),
            DhcpOption::DomainNameServer(vec![Ipv4Addr::new(10, 0, 2, 3)]),
            DhcpOption::InterfaceMtu(65520),
        ] {
            assert_eq!(opts.get((&expected).into()), Some(&expected));
        }
        let Some(DhcpOption::DomainSearch(names)) = opts.get(OptionCode::DomainSearch) else { panic!() };
        assert_eq!(names.iter().map(ToString::to_string).collect::<Vec<_>>(), ["lan.example.", "example."]);
        // The client's identifier comes back (RFC 6842).
        let id = opts.get(OptionCode::ClientIdentifier);
        assert_eq!(id.is_some(), options[3] == 61, "{id:?}");
    }
}

/// Options, flags, address in header, source address; kind of answer and where it goes.
type Row<'a> = (&'a [u8], u16, [u8; 4], [u8; 4], Option<(MessageType, [u8; 4])>);

#[test]
fn every_state_of_a_client() {
    use MessageType::{Ack, Nak};
    const GUEST_IP: [u8; 4] = [10, 0, 2, 15];
    const WRONG: [u8; 4] = [192, 168, 1, 7];
    const NONE: [u8; 4] = [0; 4];
    let everybody = [255; 4];
    let selecting = &[53, 1, 3, 54, 4, 10, 0, 2, 2, 50, 4, 10, 0, 2, 15, 255][..];
    let selecting_wrong = &[53, 1, 3, 54, 4, 10, 0, 2, 2, 50, 4, 10, 0, 2, 16, 255][..];
    let rebooting = &[53, 1, 3, 50, 4, 10, 0, 2, 15, 255][..];
    let rebooting_wrong = &[53, 1, 3, 50, 4, 192, 168, 1, 7, 255][..];
    let renewing = &[53, 1, 3, 255][..];
    let elsewhere = &[53, 1, 3, 54, 4, 10, 0, 2, 99, 50, 4, 10, 0, 2, 15, 255][..];
    let inform = &[53, 1, 8, 255][..];
    let table: [Row<'_>; 14] = [
        (selecting, 0, NONE, NONE, Some((Ack, GUEST_IP))),
        (selecting, 0x8000, NONE, NONE, Some((Ack, everybody))),
        (selecting_wrong, 0, NONE, NONE, Some((Nak, everybody))),
        (rebooting, 0, NONE, NONE, Some((Ack, GUEST_IP))),
        (rebooting_wrong, 0, NONE, NONE, Some((Nak, everybody))),
        (renewing, 0, GUEST_IP, GUEST_IP, Some((Ack, GUEST_IP))),
        (renewing, 0x8000, GUEST_IP, GUEST_IP, Some((Ack, GUEST_IP))),
        (renewing, 0, WRONG, WRONG, Some((Nak, everybody))),
        (elsewhere, 0, NONE, NONE, None),
        (inform, 0, WRONG, WRONG, Some((Ack, WRONG))),
        (inform, 0, NONE, GUEST_IP, Some((Ack, GUEST_IP))),
        (inform, 0, NONE, NONE, Some((Ack, everybody))),
        (&[53, 1, 4, 50, 4, 10, 0, 2, 15, 255], 0, NONE, NONE, None),
        (&[53, 1, 7, 255], 0, GUEST_IP, GUEST_IP, None),
    ];
    let config = Config::default();
    for (options, flags, ciaddr, src, expected) in table {
        let reply = ask(&config, src, &Client { flags, ciaddr, options }.bytes()).unwrap();
        let summary = reply.as_ref().map(|(_, to, m)| (m.opts().msg_type().unwrap(), to.octets()));
        assert_eq!(summary, expected, "{options:?} {ciaddr:?}");
        let Some((mac, to, message)) = reply else { continue };
        assert_eq!(mac == MacAddr::BROADCAST, to.is_broadcast());
        let has = |code| message.opts().get(code).is_some();
        let (nak, informs) = (message.opts().msg_type() == Some(Nak), options == inform);
        // RFC 2131 table 3.
        assert!(has(OptionCode::ServerIdentifier));
        assert_eq!(has(OptionCode::AddressLeaseTime), !nak && !informs);
        assert_eq!(has(OptionCode::SubnetMask), !nak);
        assert_eq!(message.yiaddr().is_unspecified(), nak || informs);
        assert_eq!(message.ciaddr().octets(), if nak { NONE } else { ciaddr });
        assert_eq!(message.flags().broadcast(), flags != 0);
    }
}

#[test]
fn unanswered_messages() {
    let config = Config::default();
    let nothing = Client { flags: 0, ciaddr: [0; 4], options: &[53, 1, 3, 255] };
    assert_eq!(ask(&config, [0; 4], &nothing.bytes()), Err(DropReason::MalformedDhcpv4));
    let mut relayed = Client { flags: 0, ciaddr: [0; 4], options: DHCLIENT_DISCOVER }.bytes();
    let without = Config { v4: None, ..config.clone() };
    assert_eq!(ask(&without, [0; 4], &relayed), Ok(None));
    let eth = EthernetHeader { dst: MacAddr::BROADCAST, src: GUEST, ethertype: EtherType::Ipv4 };
    let mut out = [0; FRAME_LEN_MAX];
    let elsewhere = Ipv4Addr::new(192, 0, 2, 1);
    let reply = answer(&config, &eth, Ipv4Addr::new(10, 0, 2, 15), elsewhere, &relayed, &mut out);
    assert_eq!(reply, Ok(None));
    relayed[24] = 10;
    assert_eq!(ask(&config, [0; 4], &relayed), Ok(None));
}

/// Options after the type; kind of the answer; its client FQDN.
type NamesCase<'a> = (&'a [u8], MessageType, Option<Vec<u8>>);

/// The name `db.example` as in DNS.
const NAME: &[u8] = b"\x02db\x07example\0";

#[test]
fn names_are_offered_and_an_address_at_once() {
    let names = Config {
        host_name_offered: Some("db".into()),
        fqdn_offered: Some("db.example".into()),
        ..Config::default()
    };
    let encoded = |flags: u8| Some([&[flags, 255, 255], NAME].concat());
    let text = |flags: u8| Some([&[flags, 255, 255], &b"db.example"[..]].concat());
    let table: [NamesCase<'_>; 7] = [
        (&[255], MessageType::Offer, None),
        (&[55, 2, 1, 81, 255], MessageType::Offer, encoded(0b1100)),
        (&[81, 3, 0b0101, 0, 0, 255], MessageType::Offer, encoded(0b1110)),
        (&[81, 5, 0b1100, 0, 0, 1, b'x', 255], MessageType::Offer, encoded(0b1100)),
        (&[81, 4, 0b0001, 0, 0, b'x', 255], MessageType::Offer, text(0b1010)),
        (&[81, 0, 255], MessageType::Offer, None),
        (&[80, 0, 255], MessageType::Ack, None),
    ];
    for (options, kind, fqdn) in table {
        let options = [&[53, 1, 1], options].concat();
        let client = Client { flags: 0, ciaddr: [0; 4], options: &options }.bytes();
        let (_, _, message) = ask(&names, [0; 4], &client).unwrap().unwrap();
        let opts = message.opts();
        assert_eq!(opts.msg_type(), Some(kind), "{options:?}");
        assert_eq!(opts.get(OptionCode::RapidCommit).is_some(), kind == MessageType::Ack);
        assert_eq!(opts.get(OptionCode::Hostname), Some(&DhcpOption::Hostname("db".into())));
        let has = raw_option(&names, &client, 81);
        assert_eq!(has, fqdn, "{options:?}");
        let (_, _, message) = ask(&Config::default(), [0; 4], &client).unwrap().unwrap();
        for code in [OptionCode::Hostname, OptionCode::ClientFQDN] {
            assert_eq!(message.opts().get(code), None);
        }
    }
    // A name that the client has no room for is left out; rapid commit is for discoveries alone.
    let long = Config { fqdn_offered: Some(["x"; 120].join(".")), ..Config::default() };
    let id = [&[53, 1, 1, 81, 3, 4, 0, 0, 61, 200], &[1; 200][..], &[255]].concat();
    let client = Client { flags: 0, ciaddr: [0; 4], options: &id }.bytes();
    assert_eq!(raw_option(&long, &client, 81), None);
    let selecting = [53, 1, 3, 50, 4, 10, 0, 2, 15, 80, 0, 255];
    let client = Client { flags: 0, ciaddr: [0; 4], options: &selecting }.bytes();
    assert_eq!(raw_option(&names, &client, 80), None);
}

/// Value of an option of the answer, byte by byte.
fn raw_option(config: &Config, payload: &[u8], wanted: u8) -> Option<Vec<u8>> {
    let eth = EthernetHeader { dst: MacAddr::BROADCAST, src: GUEST, ethertype: EtherType::Ipv4 };
    let mut out = [0; FRAME_LEN_MAX];
    let any = Ipv4Addr::UNSPECIFIED;
    let len = answer(config, &eth, any, Ipv4Addr::BROADCAST, payload, &mut out).unwrap().unwrap();
    let mut options = &out[14 + 20 + 8 + 240..len];
    while let [code @ 1..=254, count, rest @ ..] = options {
        let (value, rest) = rest.split_at(usize::from(*count));
        if *code == wanted {
            return Some(value.to_vec());
        }
        options = rest;
    }
    None
}
