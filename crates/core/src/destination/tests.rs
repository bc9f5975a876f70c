//! The translation as a table.

use super::*;
use crate::config::HostLink;

fn to(config: &Config, remote: &str) -> Result<Destination, DropReason> {
    resolve(config, Some(0), Protocol::Tcp, remote.parse().unwrap())
}

#[test]
fn addresses_and_where_they_lead() {
    let mut config = Config::default();
    config.v4.as_mut().unwrap().host_loopback = Some(Ipv4Addr::new(10, 0, 2, 4));
    config.v6.as_mut().unwrap().host_loopback = Some("fd00::4".parse().unwrap());
    config.resolvers = vec!["127.0.0.53:53".parse().unwrap(), "[::1]:5353".parse().unwrap()];
    let host = |a: &str| Ok(Destination::Host(a.parse().unwrap()));
    let bad = Err(DropReason::BadDestination);
    let table = [
        ("192.0.2.1:80", host("192.0.2.1:80")),
        ("[2001:db8::1]:80", host("[2001:db8::1]:80")),
        ("10.0.2.3:53", Ok(Destination::Resolver("127.0.0.53:53".parse().unwrap()))),
        ("[fd00::3]:53", Ok(Destination::Resolver("127.0.0.53:53".parse().unwrap()))),
        ("10.0.2.3:80", Ok(Destination::Refused)),
        ("10.0.2.2:80", Ok(Destination::Refused)),
        ("[fe80::2]:80", Ok(Destination::Refused)),
        ("10.0.2.4:8080", host("127.0.0.1:8080")),
        ("[fd00::4]:8080", host("[::1]:8080")),
        // Addresses of the floor; the policy refuses them.
        ("169.254.169.254:80", host("169.254.169.254:80")),
        ("[fd00:ec2::254]:80", host("[fd00:ec2::254]:80")),
        ("127.0.0.1:80", host("127.0.0.1:80")),
        ("[::1]:80", host("[::1]:80")),
        ("[::ffff:127.0.0.1]:80", bad),
        ("0.0.0.0:80", bad),
        ("255.255.255.255:80", bad),
        ("224.0.0.251:5353", bad),
        ("[ff02::fb]:5353", bad),
        ("10.0.2.15:80", bad),
    ];
    for (remote, expected) in table {
        assert_eq!(to(&config, remote), expected, "{remote}");
    }
    assert_eq!(
        resolve(&config, Some(1), Protocol::Udp, "10.0.2.3:53".parse().unwrap()),
        Ok(Destination::Resolver("[::1]:5353".parse().unwrap()))
    );
}

/// The mapped address hides the host's resolver: its DNS ports are the resolver's, all others the loopback's.
#[test]
fn dns_at_the_address_for_the_loopback() {
    let mut config = copy();
    let (v4, v6) = (config.v4.as_mut().unwrap(), config.v6.as_mut().unwrap());
    (v4.host_loopback, v4.dns_at_loopback) = (Some(v4.gateway), true);
    (v6.gateway, v6.gateway_link_local) = ("2001:db8::1".parse().unwrap(), "fe80::2".parse().unwrap());
    (v6.host_loopback, v6.dns_at_loopback) = (Some(v6.gateway), true);
    let host = |a: &str| Ok(Destination::Host(a.parse().unwrap()));
    let resolver = Ok(Destination::Resolver("127.0.0.53:53".parse().unwrap()));
    for (remote, expected) in [
        ("192.0.2.1:53", resolver),
        ("192.0.2.1:853", host("127.0.0.53:853")),
        ("192.0.2.1:80", host("127.0.0.1:80")),
        ("169.254.1.1:53", resolver),
        ("192.0.2.53:53", host("192.0.2.53:53")),
        ("[2001:db8::1]:53", resolver),
        ("[2001:db8::1]:80", host("[::1]:80")),
        ("[fe80::2]:53", resolver),
        ("[fe80::2]:80", host("[::1]:80")),
    ] {
        assert_eq!(to(&config, remote), expected, "{remote}");
    }
    let offered = (config.dns_offered_v4(), config.dns_offered_v6());
    assert_eq!(offered, (Some([169, 254, 1, 1].into()), None), "it is not offered");
    config.v4.as_mut().unwrap().host_loopback = None;
    assert_eq!(to(&config, "192.0.2.1:53"), host("192.0.2.1:53"), "without a mapping there is nothing");
}

#[test]
fn without_resolvers_and_mapping_nothing_is_reached() {
    let config = Config::default();
    assert_eq!(to(&config, "10.0.2.3:53"), Ok(Destination::Refused));
    assert_eq!(to(&config, "10.0.2.4:80"), Ok(Destination::Host("10.0.2.4:80".parse().unwrap())));
}

/// A guest with the addresses of a host in 192.0.2.0/24 and 2001:db8::/64.
fn copy() -> Config {
    let mut config = Config { host_link: Some(HostLink { scope_id: 7 }), ..Config::default() };
    let v4 = config.v4.as_mut().unwrap();
    (v4.guest, v4.gateway) = (Ipv4Addr::new(192, 0, 2, 9), Ipv4Addr::new(192, 0, 2, 1));
    v4.dns = Some(Ipv4Addr::new(169, 254, 1, 1));
    v4.host_address = Some(Ipv4Addr::new(169, 254, 1, 2));
    let v6 = config.v6.as_mut().unwrap();
    (v6.guest, v6.gateway) = ("2001:db8::9".parse().unwrap(), "fe80::1".parse().unwrap());
    (v6.gateway_link_local, v6.dns) = (v6.gateway, None);
    config.more_addresses = vec!["192.0.2.10".parse().unwrap(), "2001:db8::10".parse().unwrap()];
    config.resolvers = vec!["127.0.0.53:53".parse().unwrap()];
    config
}

#[test]
fn in_a_copy_of_the_hosts_network_only_services_are_brodos() {
    let mut config = copy();
    let host = |a: &str| Ok(Destination::Host(a.parse().unwrap()));
    let scoped =
        |a: &str, port| Ok(Destination::Host(SocketAddrV6::new(a.parse().unwrap(), port, 0, 7).into()));
    let bad = Err(DropReason::BadDestination);
    let table = [
        ("169.254.1.1:53", Ok(Destination::Resolver("127.0.0.53:53".parse().unwrap()))),
        ("169.254.1.1:853", host("127.0.0.53:853")),
        ("169.254.1.1:80", host("169.254.1.1:80")),
        ("169.254.1.2:80", host("192.0.2.9:80")),
        ("192.0.2.1:80", host("192.0.2.1:80")),
        ("192.0.2.77:80", host("192.0.2.77:80")),
        ("192.0.2.9:80", bad),
        ("192.0.2.10:80", bad),
        ("[2001:db8::10]:80", bad),
        ("[fe80::1]:80", scoped("fe80::1", 80)),
        ("[fe80::77]:80", scoped("fe80::77", 80)),
        ("[fd00::3]:53", host("[fd00::3]:53")),
    ];
    for (remote, expected) in table {
        assert_eq!(to(&config, remote), expected, "{remote}");
    }
    // One address for all: the DNS port goes first, then the loopback.
    let v4 = config.v4.as_mut().unwrap();
    (v4.dns, v4.host_loopback) = (Some(v4.gateway), Some(v4.gateway));
    assert_eq!(to(&config, "192.0.2.1:53"), Ok(Destination::Resolver("127.0.0.53:53".parse().unwrap())));
    assert_eq!(to(&config, "192.0.2.1:80"), host("127.0.0.1:80"));
    // A link-local address that the router does not have.
    config.v6.as_mut().unwrap().gateway_link_local = "fe80::2".parse().unwrap();
    assert_eq!(to(&config, "[fe80::2]:80"), Ok(Destination::Refused));
    // The router stands for the host's loopback: by both of its addresses.
    let v6 = config.v6.as_mut().unwrap();
    (v6.gateway, v6.host_loopback) = ("2001:db8::1".parse().unwrap(), Some("2001:db8::1".parse().unwrap()));
    assert_eq!(to(&config, "[2001:db8::1]:80"), host("[::1]:80"));
    assert_eq!(to(&config, "[fe80::2]:80"), host("[::1]:80"));
    // Another address stands for it: neither of the router's.
    config.v6.as_mut().unwrap().host_loopback = Some("2001:db8::4".parse().unwrap());
    assert_eq!(to(&config, "[fe80::2]:80"), Ok(Destination::Refused));
}

#[test]
fn groups_are_destinations_of_datagrams_alone() {
    let network = Config { multicast: true, ..Config::default() };
    let mut copy = Config { host_link: Some(HostLink { scope_id: 7 }), ..network.clone() };
    copy.v4.as_mut().unwrap().prefix_len = 24;
    let groups = |config: &Config, remote: &str| {
        let remote: SocketAddr = remote.parse().unwrap();
        let of = |protocol| resolve(config, None, protocol, remote);
        let group = is_group(config, remote.ip());
        assert!(!group || of(Protocol::Echo) == of(Protocol::Tcp), "{remote}");
        group.then(|| of(Protocol::Udp))
    };
    for remote in ["224.0.0.251:5353", "239.255.255.250:1900", "255.255.255.255:9", "[ff05::c]:1900"] {
        let same = Ok(Destination::Host(remote.parse().unwrap()));
        assert_eq!(groups(&network, remote), Some(same), "{remote}");
        assert_eq!(to(&network, remote), Err(DropReason::BadDestination), "{remote} over TCP");
    }
    let scoped = "[ff02::fb%7]:5353".parse().unwrap();
    assert_eq!(groups(&copy, "[ff02::fb]:5353"), Some(Ok(Destination::Host(scoped))));
    // Of the link, not of a network of the host's.
    assert_eq!(groups(&network, "10.0.2.255:9"), None);
    let directed = "10.0.2.255:9";
    assert_eq!(groups(&copy, directed), Some(Ok(Destination::Host(directed.parse().unwrap()))));
    // Interface-local, and reserved.
    for remote in ["[ff01::1]:9", "[ff00::1]:9", "192.0.2.1:9", "[2001:db8::1]:9", "240.0.0.1:9"] {
        assert_eq!(groups(&copy, remote), None, "{remote}");
    }
}
