//! A namespace whose network changes, and a file that does.

use super::*;
use brodo_testns::{in_namespace, ip};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::Ipv4Addr;

fn follow(name: &str) -> (HostNetwork, PathBuf) {
    let path = std::env::temp_dir().join(format!("brodo-host-network-{name}-{}", std::process::id()));
    std::fs::write(&path, "nameserver 192.0.2.1\n").expect("file");
    let conf = ResolvConf::read(&path).expect("the file");
    (HostNetwork::new(path.clone(), conf).expect("a route socket"), path)
}

#[test]
fn resolv_conf_is_checked_twice_a_second_by_any_awake_worker() {
    let (host, path) = follow("names");
    let at = |ms| host.poll(Instant::from_ms(ms));
    at(1000);
    assert_eq!(host.changes().names, 0, "it is what it was at the start");
    std::fs::write(&path, "search lan\nnameserver 192.0.2.22\n").expect("file");
    at(1499);
    assert_eq!(host.changes().names, 0);
    at(1500);
    assert_eq!(host.changes(), Changes { names: 1, ..Changes::default() });
    assert_eq!(host.conf().search, ["lan"]);
    // Another file of the same content is no change.
    let new = path.with_extension("new");
    std::fs::copy(&path, &new).and_then(|_| std::fs::rename(new, &path)).expect("rename");
    at(9000);
    assert_eq!(host.changes().names, 1);
    std::fs::remove_file(path).expect("remove");
}

/// Waits for notices and the check that follows them; returns whether the network has changed.
fn next_change(host: &HostNetwork, lines: &[&str]) -> bool {
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(&host.descriptor(), PollFlags::IN)], Some(&limit));
    assert_eq!(ready, Ok(1), "{lines:?}");
    let now = Instant::from_ms(1000);
    host.notice(now);
    let Some(due) = host.due() else { return false };
    assert!(!host.check(now) && due > now);
    let changed = host.check(due);
    assert_eq!((host.due(), host.check(due)), (None, false));
    changed
}

/// Changes the network into another. The kernel's notice of an IPv6 address comes when a thread of its own
/// has seen to the address, perhaps after those of the next change: checks after earlier notices find
/// nothing.
fn becomes_another(host: &HostNetwork, lines: &[&str]) {
    for line in lines {
        ip(line);
    }
    while !next_change(host, lines) {}
}

/// Changes the network in an irrelevant way.
fn stays_the_same(host: &HostNetwork, lines: &[&str]) {
    for line in lines {
        ip(line);
    }
    assert!(!next_change(host, lines), "{lines:?}");
}

#[test]
fn addresses_and_default_routes_are_followed() {
    in_namespace("host_network::tests::addresses_and_default_routes_are_followed", || {
        ip("link add d0 type veth peer name d1");
        ip("link set d1 up");
        ip("link set d0 up");
        let (host, path) = follow("routes");
        let has = |address: [u8; 4]| host.addresses().binary_search(&Ipv4Addr::from(address).into()).is_ok();
        assert!(has([127, 0, 0, 1]) && !has([192, 0, 2, 9]));
        becomes_another(&host, &["addr add 192.0.2.9/24 dev d0", "addr add 192.0.2.10/32 dev d0"]);
        assert!(has([192, 0, 2, 9]) && has([192, 0, 2, 10]));
        assert_eq!(host.changes().network, 1);
        stays_the_same(&host, &["route add 198.51.100.0/24 via 192.0.2.1"]);
        becomes_another(&host, &["route add default via 192.0.2.1"]);
        becomes_another(&host, &["route del default"]);
        let listed = host.changes().listed;
        stays_the_same(&host, &["addr add 169.254.7.7/16 dev d0", "addr add fe80::7/64 dev d0 nodad"]);
        assert!(has([169, 254, 7, 7]) && host.changes().listed > listed, "known, though no change");
        stays_the_same(&host, &["addr add 192.0.2.11/32 dev d0", "addr del 192.0.2.11/32 dev d0"]);
        becomes_another(&host, &["addr add 2001:db8::9/64 dev d0 nodad"]);
        becomes_another(&host, &["addr del 192.0.2.10/32 dev d0"]);
        assert!(!has([192, 0, 2, 10]));
        std::fs::remove_file(path).expect("remove");
    });
}

#[test]
fn a_default_route_that_is_renewed_is_no_change() {
    in_namespace("host_network::tests::a_default_route_that_is_renewed_is_no_change", || {
        ip("link add d0 type veth peer name d1");
        ip("link set d1 up");
        ip("link set d0 up");
        ip("addr add 2001:db8::9/64 dev d0 nodad");
        ip("addr add 192.0.2.9/24 dev d0");
        let (host, path) = follow("renewed");
        let add = "-6 route add default via 2001:db8::1 dev d0 expires 600";
        becomes_another(&host, &[add]);
        stays_the_same(&host, &["-6 route replace default via 2001:db8::1 dev d0 expires 1800"]);
        stays_the_same(&host, &["-6 route del default", add]);
        becomes_another(&host, &["-6 route replace default via 2001:db8::2 dev d0"]);
        // Another table, as of a tunnel.
        becomes_another(&host, &["route add default via 192.0.2.1 table 7"]);
        stays_the_same(&host, &["route del default table 7", "route add default via 192.0.2.1 table 7"]);
        becomes_another(&host, &["route add default via 192.0.2.1 metric 5"]);
        // The routes go with the interface, of which the kernel sends no notice.
        becomes_another(&host, &["addr del 192.0.2.9/24 dev d0"]);
        becomes_another(&host, &["addr add 192.0.2.9/24 dev d0"]);
        becomes_another(&host, &["route add default via 192.0.2.1 metric 5"]);
        std::fs::remove_file(path).expect("remove");
    });
}

#[test]
fn invalid_messages_have_no_effect() {
    let concerned = |bytes: &[u8]| {
        let mut concerned = Concerned::default();
        concerned.note(bytes);
        (concerned.addresses, concerned.routes)
    };
    assert_eq!(concerned(&[]), (false, false));
    assert_eq!(concerned(&[0xff; 64]), (false, false));
    let mut address = [0; 24];
    (address[0], address[4]) = (24, libc::RTM_NEWADDR as u8);
    assert_eq!(concerned(&address), (true, false));
    let two = [&address[..], &address[..20]].concat();
    assert_eq!(concerned(&two), (true, false));
    // A route message that is too short.
    address[4] = libc::RTM_NEWROUTE as u8;
    assert_eq!(concerned(&address), (false, false));
}
