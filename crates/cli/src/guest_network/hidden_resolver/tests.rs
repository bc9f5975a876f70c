//! Mapped addresses and resolvers, and who is hidden.

use super::*;
use crate::guest_network::Given;
use crate::option_values::{HostLoopback, MaybeAddress};

/// A network whose router is at `gateway`, with `mapped` in the place of the host's loopback.
fn network(gateway: &str, mapped: Option<HostLoopback>) -> Network {
    let gateway: IpAddr = gateway.parse().unwrap();
    let guest = if gateway.is_ipv4() { "192.0.2.9/24" } else { "2001:db8::9/64" };
    let given = Given {
        guest: vec![guest.parse().unwrap()],
        gateway: Some(gateway),
        dns: Some(MaybeAddress::None),
        host_loopback: mapped,
        host_address: None,
    };
    Network::new(&given).unwrap()
}

#[test]
fn a_resolver_is_hidden_by_its_own_address_or_on_the_loopback() {
    let router = Some(HostLoopback::Gateway);
    let address = |text: &str| Some(HostLoopback::Address(text.parse().unwrap()));
    for (gateway, mapped, resolvers, is_hidden) in [
        ("192.0.2.1", router, &["192.0.2.1:53"][..], true),
        ("192.0.2.1", router, &["127.0.0.53:53"], true),
        ("192.0.2.1", router, &["9.9.9.9:53", "192.0.2.1:53"], true),
        ("192.0.2.1", router, &["9.9.9.9:53"], false),
        ("192.0.2.1", router, &["[::1]:53", "[fe80::1%2]:53"], false),
        ("192.0.2.1", router, &[], false),
        ("192.0.2.1", None, &["192.0.2.1:53", "127.0.0.53:53"], false),
        ("192.0.2.1", address("192.0.2.7"), &["192.0.2.1:53"], false),
        ("192.0.2.1", address("192.0.2.7"), &["192.0.2.7:53"], true),
        ("fe80::1", router, &["[fe80::1%2]:53"], true),
        ("fe80::1", router, &["[::1]:53"], true),
        ("fe80::1", router, &["127.0.0.53:53", "192.0.2.1:53"], false),
    ] {
        let resolvers: Vec<SocketAddr> = resolvers.iter().map(|it| it.parse().unwrap()).collect();
        let network = network(gateway, mapped).with_hidden_resolver(&resolvers);
        let (is_v4, link_local) = (gateway.contains('.'), "fe80::2".parse().unwrap());
        let (found, offered) = if is_v4 {
            let net = network.v4();
            (net.dns_at_loopback, net.dns.map(IpAddr::from))
        } else {
            let net = network.v6(link_local);
            (net.dns_at_loopback, net.dns.map(IpAddr::from))
        };
        assert_eq!((found, offered), (is_hidden, None), "{gateway} {mapped:?} {resolvers:?}");
    }
}
