//! The DHCPv6 server against every message of a client; dhcproto writes the questions and reads the replies.

use super::super::tests::{GUEST, open_ipv6, open_udp};
use super::*;
use crate::wire::dhcpv6::ALL_SERVERS;
use crate::wire::ethernet::{EtherType, MacAddr};
use dhcproto::v6::{
    DhcpOption, IAAddr, IANA, IAPD, Message, MessageType, ORO, OptionCode, Status, UnknownOption,
};
use dhcproto::{Decodable, Decoder, Encodable};

const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0xff, 0xfe12, 0x3456);
const GUEST_IP: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x15);
const OTHER_IP: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x99);
const FOREIGN_IP: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const DUID: &[u8] = &[0, 1, 0, 1, 0x2c, 0, 0, 1, 0x52, 0x54, 0, 0x12, 0x34, 0x56];

fn message(kind: MessageType, options: Vec<DhcpOption>) -> Message {
    let mut message = Message::new_with_id(kind, [1, 2, 3]);
    // Options of every client.
    message.opts_mut().insert(DhcpOption::ElapsedTime(0));
    let oro = ORO { opts: vec![OptionCode::DomainNameServers, OptionCode::DomainSearchList] };
    message.opts_mut().insert(DhcpOption::ORO(oro));
    for option in options {
        message.opts_mut().insert(option);
    }
    message
}

fn ia(id: u32, addresses: &[Ipv6Addr]) -> DhcpOption {
    let opts = addresses
        .iter()
        .map(|&addr| {
            DhcpOption::IAAddr(IAAddr {
                addr,
                preferred_life: 0,
                valid_life: 0,
                opts: [].into_iter().collect(),
            })
        })
        .collect();
    DhcpOption::IANA(IANA { id, t1: 0, t2: 0, opts })
}

fn ours() -> DhcpOption {
    DhcpOption::ServerId(server_duid(Config::default().mac).to_vec())
}

fn client() -> DhcpOption {
    DhcpOption::ClientId(DUID.to_vec())
}

fn ask(config: &Config, message: &Message) -> Result<Option<Message>, DropReason> {
    ask_raw(config, ALL_SERVERS, &message.to_vec().unwrap())
}

fn ask_raw(config: &Config, dst: Ipv6Addr, payload: &[u8]) -> Result<Option<Message>, DropReason> {
    let eth = EthernetHeader {
        dst: MacAddr::from_ipv6_multicast(ALL_SERVERS),
        src: GUEST,
        ethertype: EtherType::Ipv6,
    };
    let mut out = [0; FRAME_LEN_MAX];
    Ok(answer(config, &eth, LINK_LOCAL, dst, payload, &mut out)?.map(|len| {
        let (eth, ip, datagram) = open_ipv6(&out[..len]);
        assert_eq!((eth.dst, ip.dst), (GUEST, LINK_LOCAL));
        assert_eq!(ip.src, config.v6.unwrap().gateway_link_local);
        let (src_port, dst_port, payload) = open_udp(ip.src.into(), ip.dst.into(), datagram);
        assert_eq!((src_port, dst_port), (547, 546));
        let message = Message::decode(&mut Decoder::new(payload)).unwrap();
        assert_eq!(message.xid(), [1, 2, 3]);
        assert_eq!(message.opts().get(OptionCode::ServerId), Some(&ours()));
        message
    }))
}

fn has_dns(message: &Message) -> bool {
    let servers = DhcpOption::DomainNameServers(vec![Config::default().v6.unwrap().dns.unwrap()]);
    message.opts().get(OptionCode::DomainNameServers) == Some(&servers)
}

fn status(message: &Message) -> Option<Status> {
    match message.opts().get(OptionCode::StatusCode) {
        Some(DhcpOption::StatusCode(s)) => Some(s.status),
        _ => None,
    }
}

/// An identity association: its identifier, its addresses with their valid lifetimes, and its status.
type Granted = (u32, Vec<(Ipv6Addr, u32)>, Option<Status>);

fn granted(message: &Message) -> Vec<Granted> {
    let ias = message.opts().iter().filter_map(|o| match o {
        DhcpOption::IANA(IANA { id, opts, .. }) | DhcpOption::IAPD(IAPD { id, opts, .. }) => Some((id, opts)),
        _ => None,
    });
    ias.map(|(id, opts)| {
        let addresses = opts.iter().filter_map(|o| match o {
            DhcpOption::IAAddr(a) => Some((a.addr, a.valid_life)),
            _ => None,
        });
        let status = opts.iter().find_map(|o| match o {
            DhcpOption::StatusCode(s) => Some(s.status),
            _ => None,
        });
        (*id, addresses.collect(), status)
    })
    .collect()
}

#[test]
fn information() {
    let config = Config { search: vec!["lan.example".into()], ..Config::default() };
    // With and without identifiers, as systemd-networkd and others ask.
    for options in [vec![], vec![client()], vec![client(), ours()]] {
        let reply =
            ask(&config, &message(MessageType::InformationRequest, options.clone())).unwrap().unwrap();
        assert_eq!(reply.msg_type(), MessageType::Reply);
        assert!(has_dns(&reply));
        assert_eq!(reply.opts().get(OptionCode::ClientId).is_some(), !options.is_empty());
        let Some(DhcpOption::DomainSearchList(names)) = reply.opts().get(OptionCode::DomainSearchList) else {
            panic!()
        };
        assert_eq!(names[0].to_string(), "lan.example.");
    }
}

#[test]
fn a_link_local_address_is_not_granted() {
    let mut config = Config::default();
    config.v6.as_mut().unwrap().guest = LINK_LOCAL;
    let reply = ask(&config, &message(MessageType::Solicit, vec![client(), ia(7, &[])])).unwrap().unwrap();
    assert_eq!(granted(&reply), [(7, vec![], Some(Status::NoAddrsAvail))]);
}

#[test]
fn addresses() {
    use MessageType::{Advertise, Rebind, Renew, Reply, Request, Solicit};
    let config = Config::default();
    let forever = (GUEST_IP, u32::MAX);
    let rapid = DhcpOption::RapidCommit;
    let prefix = DhcpOption::IAPD(IAPD { id: 9, t1: 0, t2: 0, opts: [].into_iter().collect() });
    let plain = vec![(7, vec![forever], None)];
    for (kind, options, answer, expected) in [
        (Solicit, vec![ia(7, &[])], Advertise, plain.clone()),
        (Solicit, vec![ia(7, &[]), rapid], Reply, plain.clone()),
        (Request, vec![ours(), ia(7, &[GUEST_IP])], Reply, plain.clone()),
        (Renew, vec![ours(), ia(7, &[GUEST_IP])], Reply, plain.clone()),
        (Rebind, vec![ia(7, &[GUEST_IP])], Reply, plain),
        // An address from before is withdrawn.
        (Renew, vec![ours(), ia(7, &[OTHER_IP])], Reply, vec![(7, vec![forever, (OTHER_IP, 0)], None)]),
        (
            Solicit,
            // The encoder puts the later of two like options first.
            vec![ia(8, &[]), ia(7, &[]), prefix],
            Advertise,
            vec![
                (7, vec![forever], None),
                (8, vec![], Some(Status::NoAddrsAvail)),
                (9, vec![], Some(Status::NoPrefixAvail)),
            ],
        ),
    ] {
        let rapid = options.contains(&DhcpOption::RapidCommit);
        let options = [options, vec![client()]].concat();
        let reply = ask(&config, &message(kind, options)).unwrap().unwrap();
        assert_eq!((reply.msg_type(), granted(&reply)), (answer, expected), "{kind:?}");
        assert_eq!(reply.opts().get(OptionCode::RapidCommit).is_some(), rapid);
        assert!(has_dns(&reply));
        assert_eq!(reply.opts().get(OptionCode::ClientId), Some(&client()));
    }
}

#[test]
fn confirm_release_and_decline() {
    use MessageType::{Confirm, Decline, Release};
    let config = Config::default();
    for (kind, options, expected) in [
        (Confirm, vec![ia(7, &[GUEST_IP, OTHER_IP])], Some(Status::Success)),
        (Confirm, vec![ia(7, &[GUEST_IP, FOREIGN_IP])], Some(Status::NotOnLink)),
        (Confirm, vec![ia(7, &[])], None),
        (Release, vec![ours(), ia(7, &[GUEST_IP])], Some(Status::Success)),
        (Decline, vec![ours(), ia(7, &[GUEST_IP])], Some(Status::Success)),
    ] {
        let options = [options, vec![client()]].concat();
        let reply = ask(&config, &message(kind, options)).unwrap();
        assert_eq!(reply.as_ref().and_then(status), expected, "{kind:?}");
        assert_eq!(reply.is_some(), expected.is_some());
    }
}

#[test]
fn unanswered_messages() {
    use MessageType::{InformationRequest, Request, Solicit};
    let config = Config::default();
    let bad = Err(DropReason::MalformedDhcpv6);
    let other = DhcpOption::ServerId(vec![0, 3, 0, 1, 1, 2, 3, 4, 5, 6]);
    for (kind, options, expected) in [
        (Solicit, vec![ia(7, &[])], bad.clone()),
        (Solicit, vec![client(), ours()], bad.clone()),
        (Request, vec![client()], bad.clone()),
        (Request, vec![ours()], bad.clone()),
        (InformationRequest, vec![ia(7, &[])], bad.clone()),
        (Request, vec![client(), other.clone()], Ok(None)),
        (InformationRequest, vec![other], Ok(None)),
        (MessageType::Reply, vec![client(), ours()], bad),
    ] {
        assert_eq!(ask(&config, &message(kind, options.clone())), expected, "{kind:?} {options:?}");
    }
    let solicit = message(Solicit, vec![client()]);
    assert_eq!(ask(&Config { v6: None, ..config.clone() }, &solicit), Ok(None));
    // Not addressed to the group.
    let bytes = solicit.to_vec().unwrap();
    assert_eq!(ask_raw(&config, config.v6.unwrap().gateway, &bytes), Ok(None));
    for len in 0..bytes.len() {
        let _ = ask_raw(&config, ALL_SERVERS, &bytes[..len]);
    }
}

/// The name `db.example` as in DNS.
const NAME: &[u8] = b"\x02db\x07example\0";

#[test]
fn a_domain_name_for_clients_that_ask_for_one() {
    let config = Config { fqdn_offered: Some("db.example".into()), ..Config::default() };
    let sent =
        |flags: u8| DhcpOption::Unknown(UnknownOption::new(OptionCode::ClientFqdn, vec![flags, 1, b'x']));
    let listed = DhcpOption::ORO(ORO { opts: vec![OptionCode::ClientFqdn] });
    for (option, flags) in [
        (None, None),
        (Some(listed), Some(0b100)),
        (Some(sent(0)), Some(0b100)),
        (Some(sent(1)), Some(0b110)),
        (Some(sent(4)), Some(0b100)),
    ] {
        let options = [vec![client(), ia(7, &[])], option.into_iter().collect()].concat();
        let question = message(MessageType::Solicit, options.clone());
        let reply = ask(&config, &question).unwrap().unwrap().to_vec().unwrap();
        let flags_and_name = flags.map(|flags| [&[flags], NAME].concat());
        let at = reply.windows(NAME.len()).position(|window| window == NAME);
        assert_eq!(at.map(|at| reply[at - 1..at + NAME.len()].to_vec()), flags_and_name, "{options:?}");
        let header = [0, 39, 0, 1 + NAME.len() as u8];
        assert_eq!(at.map(|at| &reply[at - 5..at - 1]), flags.map(|_| &header[..]));
        let without = ask(&Config::default(), &question).unwrap().unwrap();
        assert!(without.opts().get(OptionCode::ClientFqdn).is_none());
    }
}
