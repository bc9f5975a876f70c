//! The choice of the interface, and routes as messages.

use super::*;
use netlink_packet_route::route::RouteFlags;

fn found(interface: u32, destination: &str, metric: Option<u32>) -> Found {
    let (address, length) = destination.split_once('/').expect("a prefix");
    let destination = address.parse().expect("an address");
    let prefix_len = length.parse().expect("a length");
    Found { interface, route: Route { destination, prefix_len, via: None, source: None, metric } }
}

#[test]
fn the_best_default_route_decides_or_the_only_interface() {
    let routes = [
        found(2, "0.0.0.0/0", Some(200)),
        found(3, "0.0.0.0/0", Some(100)),
        found(4, "10.0.0.0/8", None),
        found(5, "2001:db8::/64", Some(256)),
        found(6, "fe80::/64", Some(256)),
    ];
    assert_eq!(choose(&routes, false), Some(3));
    assert_eq!(choose(&routes, true), Some(5), "link-local routes are everywhere");
    assert_eq!(choose(&routes[2..], false), Some(4));
    assert_eq!(choose(&[routes[2], found(7, "10.1.0.0/16", None)], false), None);
    assert_eq!(choose(&[], true), None);
    assert_eq!(choose(&[found(LOOPBACK, "::1/128", Some(256))], true), None, "as systemd sets it");
    assert_eq!(choose(&[found(LOOPBACK, "2001:db8::1/128", Some(256))], true), None);
}

fn message(attributes: Vec<RouteAttribute>) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = netlink_packet_route::AddressFamily::Inet;
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.kind = RouteType::Unicast;
    message.attributes = attributes;
    message
}

#[test]
fn a_multipath_route_becomes_that_of_its_best_hop() {
    let mut light = RouteNextHop::default();
    light.interface_index = 2;
    light.attributes = vec![RouteAttribute::Gateway(RouteAddress::Inet([192, 0, 2, 1].into()))];
    let mut heavy = light.clone();
    (heavy.interface_index, heavy.hops) = (3, 9);
    heavy.attributes = vec![RouteAttribute::Gateway(RouteAddress::Inet([192, 0, 2, 2].into()))];
    let best = |hops| read(&message(vec![RouteAttribute::MultiPath(hops)])).expect("a route");
    let of_heavy = Found { interface: 3, route: Route::default_via([192, 0, 2, 2].into()) };
    assert_eq!(best(vec![light.clone(), heavy.clone()]), of_heavy);
    let mut equal = heavy.clone();
    equal.interface_index = 4;
    assert_eq!(best(vec![light, heavy, equal]), of_heavy, "the first of equal weights");
}

#[test]
fn routes_that_the_guest_cannot_have_are_left_out() {
    let oif = || RouteAttribute::Oif(2);
    assert!(read(&message(vec![oif()])).is_some());
    assert!(read(&message(vec![])).is_none(), "no interface");
    assert!(read(&message(vec![oif(), RouteAttribute::Encap(vec![])])).is_none());
    let changed = |change: fn(&mut RouteHeader)| {
        let mut message = message(vec![oif()]);
        change(&mut message.header);
        read(&message)
    };
    assert!(changed(|header| header.table = 255).is_none());
    assert!(changed(|header| header.kind = RouteType::BlackHole).is_none());
    assert!(changed(|header| header.flags = RouteFlags::Cloned).is_none());
}

#[test]
fn the_gateway_is_that_of_the_default_route_with_the_lowest_metric() {
    let via =
        |last: u8, metric| Route { metric: Some(metric), ..Route::default_via([192, 0, 2, last].into()) };
    let template = Template { routes: vec![via(1, 9), via(2, 3), via(3, 7)], ..Template::default() };
    assert_eq!(template.gateway(false), Some([192, 0, 2, 2].into()));
    assert_eq!(template.gateway(true), None);
}
