//! Addresses derived from the guest's, and refused contradictions, as tables.

use super::*;

fn given(words: &str) -> Given {
    let mut given =
        Given { guest: Vec::new(), gateway: None, dns: None, host_loopback: None, host_address: None };
    for word in words.split_whitespace() {
        match word.split_once('=').unwrap() {
            ("guest", value) => given.guest.push(value.parse().unwrap()),
            ("gateway", value) => given.gateway = Some(value.parse().unwrap()),
            ("dns", value) => given.dns = Some(value.parse().unwrap()),
            ("map", value) => given.host_loopback = Some(value.parse().unwrap()),
            ("host", value) => given.host_address = Some(value.parse().unwrap()),
            (key, _) => panic!("{key}"),
        }
    }
    given
}

#[test]
fn gateway_and_dns_follow_from_the_prefix() {
    for (words, gateway, dns) in [
        ("guest=10.0.2.15/24", "10.0.2.2", "10.0.2.3"),
        ("guest=192.168.7.5/24", "192.168.7.2", "192.168.7.3"),
        ("guest=192.168.7.2/24", "192.168.7.3", "192.168.7.4"),
        ("guest=192.168.7.3/24", "192.168.7.2", "192.168.7.4"),
        ("guest=172.16.9.9/12", "172.16.0.2", "172.16.0.3"),
        ("guest=10.0.0.130/25", "10.0.0.131", "10.0.0.132"),
        ("guest=10.0.0.5/29", "10.0.0.2", "10.0.0.3"),
        // Two hosts only: router and DNS server have one address.
        ("guest=10.0.0.1/30", "10.0.0.2", "10.0.0.2"),
        ("guest=10.0.0.2/30", "10.0.0.1", "10.0.0.1"),
        ("guest=192.168.7.5/24 gateway=192.168.7.1", "192.168.7.1", "192.168.7.3"),
        ("guest=192.168.7.5/24 gateway=192.168.7.3", "192.168.7.3", "192.168.7.4"),
        ("guest=192.168.7.5/24 dns=192.168.7.2", "192.168.7.2", "192.168.7.2"),
        ("guest=192.168.7.5/24 dns=169.254.1.1", "192.168.7.2", "169.254.1.1"),
        ("guest=192.168.7.5/24 map=192.168.7.2", "192.168.7.2", "192.168.7.3"),
        ("guest=192.168.7.5/24 map=gateway", "192.168.7.2", "192.168.7.3"),
        ("guest=192.168.7.5/24 map=192.168.7.3", "192.168.7.2", "192.168.7.3"),
        ("guest=192.168.7.5/24 guest=192.168.8.5/24", "192.168.7.2", "192.168.7.3"),
        ("guest=192.168.7.5/24 gateway=192.168.8.1", "192.168.8.1", "192.168.7.3"),
        ("guest=192.168.7.4/31", "192.168.7.5", "192.168.7.5"),
        ("guest=192.168.7.5/32 gateway=192.168.7.1", "192.168.7.1", "192.168.7.1"),
    ] {
        let net = Network::new(&given(words)).unwrap().v4();
        assert_eq!((net.gateway, net.dns), (gateway.parse().unwrap(), Some(dns.parse().unwrap())), "{words}");
    }
    for (words, gateway, dns) in [
        ("guest=fd00::15/64", "fd00::2", "fd00::3"),
        ("guest=fd01:2::2/48", "fd01:2::3", "fd01:2::4"),
        ("guest=fd01::2/126", "fd01::3", "fd01::1"),
        ("guest=fd01::2/64 gateway=fe80::1", "fe80::1", "fd01::3"),
    ] {
        let net = Network::new(&given(words)).unwrap().v6(Ipv6Addr::LOCALHOST);
        assert_eq!((net.gateway, net.dns), (gateway.parse().unwrap(), Some(dns.parse().unwrap())), "{words}");
    }
}

#[test]
fn contradictions_are_refused_with_a_sentence_about_them() {
    for (words, about) in [
        ("guest=192.168.7.0/24", "network's own address"),
        ("guest=192.168.7.255/24", "broadcast"),
        ("guest=127.0.0.5/8", "loopback"),
        ("guest=224.0.0.5/24", "multicast"),
        ("guest=0.1.2.3/8", "reserved"),
        ("guest=250.1.2.3/8", "reserved"),
        ("guest=fd00::/64", "anycast"),
        ("guest=fe80::5/64", "link-local"),
        ("guest=::1/64", "loopback"),
        ("guest=::ffff:10.0.0.1/120", "IPv4 address in IPv6 form"),
        ("guest=192.168.7.5/24 gateway=192.168.7.5", "guest's own"),
        ("guest=192.168.7.5/24 gateway=192.168.7.255", "broadcast"),
        ("guest=192.168.7.5/24 dns=192.168.7.5", "--dns 192.168.7.5 is the guest's own"),
        ("guest=192.168.7.5/24 dns=127.0.0.53", "loopback"),
        ("guest=192.168.7.5/24 dns=0.0.0.0", "unspecified"),
        ("guest=192.168.7.5/24 map=192.168.7.5", "--map-host-loopback 192.168.7.5 is the guest's own"),
        ("guest=192.168.7.5/24 map=192.168.7.3 host=192.168.7.3", "both the host's address"),
        ("guest=192.168.7.5/32", "no address for a gateway"),
        ("guest=192.168.7.5/24 map=127.0.0.1", "loopback"),
    ] {
        let refusal = Network::new(&given(words)).expect_err(words);
        assert!(refusal.contains(about), "{words}: {refusal}");
        assert!(!refusal.contains('\n') && !refusal.ends_with('.'), "{refusal}");
    }
}
