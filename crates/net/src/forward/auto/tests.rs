//! Listeners followed by `auto`, and the addresses of their counterparts.

use super::*;
use crate::forward::LocalPeers;

fn found(address: &str, port: u16, inode: u32) -> Listener {
    Listener { address: address.parse().expect("address"), port, only_v6: false, inode }
}

fn shown(rule: &Rule<'_>, found: &[Listener]) -> String {
    let own = BTreeSet::from([99]);
    let places = places(rule, found, &own, |port| port == 7);
    places
        .iter()
        .map(|((at, port), to)| match to {
            Some(to) => format!("{at}/{port}>{to}"),
            None => format!("{at}/{port}"),
        })
        .collect::<Vec<_>>()
        .join(" ")
}

static GUEST: Guest = Guest {
    addresses: [
        Some(IpAddr::V4(Ipv4Addr::new(10, 0, 2, 15))),
        Some(IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x15))),
    ],
    more_addresses: Vec::new(),
    local_peers: LocalPeers::Loopback,
};

const RULE: Rule<'_> = Rule {
    direction: ForwardDirection::In,
    transport: Transport::Tcp,
    address: None,
    excluded: &[PortRange { first: 90, last: 91 }],
    ephemeral: PortRange { first: 32768, last: 60999 },
    among: None,
    guest: &GUEST,
};

#[test]
fn nothing_is_published_more_widely_than_it_is_offered() {
    let one = |address: &str| shown(&RULE, &[found(address, 80, 1)]);
    assert_eq!(one("0.0.0.0"), "0.0.0.0/80");
    assert_eq!(one("10.0.2.15"), "0.0.0.0/80>10.0.2.15");
    for unreached in
        ["10.0.2.99", "172.17.0.1", "224.0.0.251", "127.0.0.53", "fe80::1", "fd00::99", "ff02::fb"]
    {
        assert_eq!(one(unreached), "", "{unreached}");
    }
    assert_eq!(one("fd00::15"), "::/80>fd00::15");
    assert_eq!(shown(&RULE, &[found("172.17.0.1", 80, 1), found("127.0.0.1", 80, 2)]), "127.0.0.1/80");
    assert_eq!(shown(&RULE, &[found("10.0.2.15", 80, 1), found("0.0.0.0", 80, 2)]), "0.0.0.0/80");
    assert_eq!(one("127.0.0.1"), "127.0.0.1/80");
    assert_eq!(one("::1"), "::1/80");
    assert_eq!(one("::"), "0.0.0.0/80 ::/80");
    assert_eq!(one("::ffff:127.0.0.1"), "127.0.0.1/80");
    assert_eq!(shown(&RULE, &[found("127.0.0.1", 80, 1), found("0.0.0.0", 80, 2)]), "0.0.0.0/80");
    let only_v4 = Guest { addresses: [GUEST.addresses[0], None], ..GUEST.clone() };
    let only_v6 = Listener { only_v6: true, ..found("::", 80, 1) };
    assert_eq!(shown(&RULE, &[only_v6]), "::/80");
    assert_eq!(shown(&Rule { guest: &only_v4, ..RULE }, &[found("::", 80, 1)]), "0.0.0.0/80");
}

#[test]
fn further_addresses_of_the_guest_are_followed_and_ports_may_be_restricted() {
    let more = Guest { more_addresses: vec!["10.0.2.16".parse().expect("address")], ..GUEST.clone() };
    let rule = Rule { guest: &more, among: Some(&[PortRange { first: 80, last: 82 }]), ..RULE };
    let sockets = [found("10.0.2.16", 80, 1), found("0.0.0.0", 83, 2), found("0.0.0.0", 82, 3)];
    assert_eq!(shown(&rule, &sockets), "0.0.0.0/80>10.0.2.16 0.0.0.0/82");
}

#[test]
fn own_excluded_taken_and_clients_are_left_out() {
    let sockets = [
        found("0.0.0.0", 80, 99),
        found("0.0.0.0", 90, 1),
        found("0.0.0.0", 7, 2),
        found("0.0.0.0", 40000, 3),
    ];
    assert_eq!(shown(&RULE, &sockets), "0.0.0.0/40000");
    assert_eq!(shown(&Rule { transport: Transport::Udp, ..RULE }, &sockets), "");
}

#[test]
fn the_guest_is_offered_what_the_loopback_reaches() {
    let rule = Rule { direction: ForwardDirection::Out, ..RULE };
    let one = |address: &str| shown(&rule, &[found(address, 80, 1)]);
    assert_eq!(one("0.0.0.0"), "127.0.0.1/80");
    assert_eq!(one("127.0.0.1"), "127.0.0.1/80");
    assert_eq!(one("192.0.2.1"), "");
    assert_eq!(one("::"), "127.0.0.1/80 ::1/80");
}

#[test]
fn an_address_that_was_given_is_used() {
    let address = Some("192.0.2.1".parse().expect("address"));
    let rule = Rule { address, ..RULE };
    assert_eq!(
        shown(
            &rule,
            &[found("127.0.0.1", 80, 1), found("::", 81, 2), found("::1", 82, 3), found("172.17.0.1", 83, 4)]
        ),
        "192.0.2.1/80 192.0.2.1/81"
    );
}
