//! Copies of the host's network, with parts replaced by options.

use super::*;

fn template() -> Template {
    let address = |text: &str, prefix_len| InterfaceAddress { address: text.parse().unwrap(), prefix_len };
    let on_link = Route {
        destination: "198.51.100.0".parse().unwrap(),
        prefix_len: 24,
        via: None,
        source: None,
        metric: None,
    };
    Template {
        name: "wlan0".to_owned(),
        mtu: 1500,
        scope_id: 2,
        addresses: vec![address("192.0.2.9", 24), address("192.0.2.10", 24), address("2001:db8::9", 64)],
        routes: vec![
            Route::default_via("192.0.2.1".parse().unwrap()),
            on_link,
            Route::default_via("fe80::1".parse().unwrap()),
        ],
    }
}

fn given() -> Given {
    Given { guest: Vec::new(), gateway: None, dns: None, host_loopback: None, host_address: None }
}

#[test]
fn all_addresses_and_routes_are_the_hosts() {
    let v4 = network(Family::V4, &template(), &given()).unwrap();
    let net = v4.v4();
    assert_eq!((net.guest, net.prefix_len, net.gateway), ([192, 0, 2, 9].into(), 24, [192, 0, 2, 1].into()));
    assert_eq!(net.dns, Some([169, 254, 1, 1].into()));
    assert_eq!((v4.addresses().len(), v4.routes.len()), (2, 2));
    let v6 = network(Family::V6, &template(), &given()).unwrap();
    let net = v6.v6("fe80::2".parse().unwrap());
    assert_eq!(net.gateway, "fe80::1".parse::<Ipv6Addr>().unwrap());
    assert_eq!(net.gateway_link_local, net.gateway);
}

#[test]
fn given_addresses_and_routers_replace_those_of_their_family() {
    let words = Given { guest: vec!["10.9.9.9/32".parse().unwrap()], ..given() };
    let v4 = network(Family::V4, &template(), &words).unwrap();
    assert_eq!((v4.addresses().len(), v4.routes.len()), (1, 2), "the routes are still the host's");
    let words = Given { gateway: Some("10.9.9.1".parse().unwrap()), dns: Some(MaybeAddress::None), ..words };
    let v4 = network(Family::V4, &template(), &words).unwrap();
    assert_eq!(v4.routes, [Route::default_via("10.9.9.1".parse().unwrap())]);
    assert_eq!((v4.v4().gateway, v4.v4().dns), ([10, 9, 9, 1].into(), None));
    let words = Given { gateway: Some("192.0.2.10".parse().unwrap()), ..given() };
    assert!(network(Family::V4, &template(), &words).unwrap_err().contains("guest's own"));
}

/// As pasta since December 2025: each family for itself.
#[test]
fn in_a_family_that_the_host_does_not_have_the_guest_has_a_link_local_address() {
    let of = |family, template: &Template| network(family, template, &given()).unwrap();
    let (mut only_v4, mut only_v6) = (template(), template());
    only_v4.addresses.retain(|it| it.address.is_ipv4());
    only_v6.addresses.retain(|it| it.address.is_ipv6());
    for template in [Template::default(), only_v6] {
        let v4 = of(Family::V4, &template);
        let net = v4.v4();
        assert_eq!((net.guest, net.prefix_len), ([169, 254, 2, 1].into(), 16));
        assert_eq!(net.gateway, Ipv4Addr::new(169, 254, 2, 2));
        assert_eq!(v4.routes, [Route::default_via(ROUTER_V4)], "the routes lead nowhere without an address");
    }
    for template in [Template::default(), only_v4.clone()] {
        let v6 = of(Family::V6, &template);
        let net = v6.v6("fe80::9".parse().unwrap());
        assert_eq!((net.guest, net.prefix_len), ("fe80::2".parse().unwrap(), 64));
        assert_eq!(
            (net.gateway, net.gateway_link_local),
            (net.gateway_link_local, "fe80::1".parse().unwrap())
        );
        assert_eq!(v6.routes, [Route::default_via(ROUTER_V6)]);
    }
    assert_eq!(of(Family::V4, &only_v4).v4().guest, Ipv4Addr::new(192, 0, 2, 9));

    for (gateway, guest) in [("169.254.2.1", "169.254.2.3"), ("fe80::2", "fe80::4")] {
        let words = Given { gateway: Some(gateway.parse().unwrap()), ..given() };
        let family = Family::of(guest.parse().unwrap());
        let network = network(family, &Template::default(), &words).unwrap();
        assert_eq!(
            network.addresses()[0].address,
            guest.parse::<IpAddr>().unwrap(),
            "{gateway} is the router"
        );
    }

    only_v4.routes.truncate(2);
    let words = Given { guest: vec!["2001:db8::1/64".parse().unwrap()], ..given() };
    let v6 = network(Family::V6, &only_v4, &words).unwrap();
    assert_eq!((v6.addresses().len(), &v6.routes[..]), (1, &[Route::default_via(ROUTER_V6)][..]));
}

#[test]
fn the_gateway_may_stand_for_the_hosts_loopback() {
    let words = Given { host_loopback: Some(HostLoopback::Gateway), ..given() };
    let v4 = network(Family::V4, &template(), &words).unwrap().v4();
    assert_eq!(v4.host_loopback, Some(v4.gateway));
}

/// WireGuard and PPP have none: the router of the guest's link is then no address of the host's network.
#[test]
fn the_loopback_is_nowhere_if_the_host_has_no_gateway() {
    let words = Given { host_loopback: Some(HostLoopback::Gateway), ..given() };
    let loopback = |template: &Template, given: &Given| {
        let v4 = network(Family::V4, template, given).unwrap().v4();
        (v4.gateway, v4.host_loopback)
    };
    let mut without = template();
    without.routes[0].via = None;
    assert_eq!(loopback(&without, &words), (Ipv4Addr::new(169, 254, 2, 2), None));
    without.routes.remove(0);
    assert_eq!(loopback(&without, &words), (Ipv4Addr::new(169, 254, 2, 2), None));
    without.routes.clear();
    assert_eq!(loopback(&without, &words).1, None);
    let address: Ipv4Addr = [10, 0, 0, 9].into();
    let host_loopback = Some(HostLoopback::Address(address.into()));
    assert_eq!(loopback(&without, &Given { host_loopback, ..words.clone() }).1, Some(address));
    let router: Ipv4Addr = [10, 0, 0, 1].into();
    let given = Given { gateway: Some(router.into()), ..words.clone() };
    assert_eq!(loopback(&without, &given), (router, Some(router)));
    let (router, local) = loopback(&Template::default(), &words);
    assert_eq!(local, Some(router), "a host without the family offers its loopback alone");
    let given = Given { guest: vec!["10.9.9.9/24".parse().unwrap()], ..words.clone() };
    assert_eq!(loopback(&Template::default(), &given), (router, Some(router)), "an address changes nothing");
}
