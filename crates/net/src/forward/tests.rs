//! Forwards are added, listed and removed; an invalid one is refused as a whole.

use super::*;
use brodo_testns::{in_namespace, ip};
use std::net::{TcpListener, TcpStream, UdpSocket};

pub(super) fn forward(direction: ForwardDirection, transport: Transport, spec: &str) -> Forward {
    Forward { direction, transport, spec: spec.parse().expect("a spec") }
}

fn tcp(spec: &str) -> Forward {
    forward(ForwardDirection::In, Transport::Tcp, spec)
}

fn forwards(sockets: &Sockets) -> Forwards {
    let addresses = ["10.0.2.15", "fd00::15"].map(|text| text.parse().ok());
    Forwards::new(
        Guest { addresses, ..Guest::default() },
        None,
        sockets,
        &crate::ephemeral_ports::ephemeral_ports(),
        ForwardsMax { descriptors: 1000, splices: 10 },
    )
    .expect("forwards")
}

fn connects(at: &str) -> bool {
    TcpStream::connect(at).is_ok()
}

#[test]
fn added_listed_and_removed() {
    in_namespace("forward::tests::added_listed_and_removed", || {
        let sockets = Sockets::new().expect("epoll");
        let mut forwards = forwards(&sockets);
        let id = forwards.add(tcp("7000-7002,~7001")).expect("ports");
        assert_eq!(forwards.add(tcp("7000-7002,~7001")), Ok(id), "again is no other");
        let loopback = forwards.add(tcp("127.0.0.1/7003")).expect("port");
        let datagrams =
            forwards.add(forward(ForwardDirection::In, Transport::Udp, "[::1]/7000")).expect("port");
        let listed: Vec<_> = forwards.list().iter().map(|it| (it.id, it.listeners)).collect();
        assert_eq!(listed, [(id, 4), (loopback, 1), (datagrams, 1)]);
        assert!(connects("127.0.0.1:7000") && connects("[::1]:7002") && connects("127.0.0.1:7003"));
        assert!(!connects("127.0.0.1:7001") && !connects("[::1]:7003"));

        assert!(forwards.remove(id) && !forwards.remove(id));
        assert!(!connects("127.0.0.1:7000") && connects("127.0.0.1:7003"));
        let back = forwards.add(tcp("7000-7002,~7001")).expect("had again at once");
        assert_ne!(back, id);
    });
}

#[test]
fn a_refused_forward_leaves_no_listener_behind() {
    in_namespace("forward::tests::a_refused_forward_leaves_no_listener_behind", || {
        let sockets = Sockets::new().expect("epoll");
        let mut forwards = forwards(&sockets);
        let _other = TcpListener::bind("0.0.0.0:7005").expect("listen");
        let error = forwards.add(tcp("7000-7010")).expect_err("one is in use").to_string();
        assert!(error.contains("port 7005 (-t): bind 0.0.0.0:7005: Address already in use"), "{error}");
        assert!(forwards.list().is_empty() && !connects("127.0.0.1:7000"));

        // `all` passes over it, and over what was named.
        forwards.add(tcp("7006:80")).expect("port");
        let all = forwards.add(tcp("all,~1-6999,~7010-65535")).expect("all");
        let listed = forwards.list();
        assert_eq!(listed.iter().find(|it| it.id == all).map(|it| it.listeners), Some(2 * 8));
        let error = forwards.add(tcp("all")).expect_err("contradiction").to_string();
        assert!(error.contains("same address"), "{error}");
        assert!(forwards.remove(all));
        let error = forwards.add(tcp("all")).expect_err("too many").to_string();
        assert!(error.contains("limit on open files"), "{error}");

        let _other = UdpSocket::bind("[::]:7000").expect("bind");
        let error = forwards.add(forward(ForwardDirection::In, Transport::Udp, "7000")).expect_err("in use");
        assert!(error.to_string().contains("ss -lunp"), "{error}");
        for (forward, expected) in [
            (
                forward(ForwardDirection::Out, Transport::Tcp, "80"),
                "-T 80: it needs sockets of the guest's namespace",
            ),
            (tcp("auto"), "-t auto: it needs sockets of the guest's namespace"),
            (tcp("7000:192.0.2.1/80"), "neither an address of the guest"),
            (tcp("7006"), "port 7006 is given twice"),
        ] {
            let error = forwards.add(forward).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(forwards.list().len(), 1);
    });
}

#[test]
fn empty_forwards_and_too_many_are_refused() {
    in_namespace("forward::tests::empty_forwards_and_too_many_are_refused", || {
        let sockets = Sockets::new().expect("epoll");
        let addresses = ["10.0.2.15".parse().ok(), None];
        let mut forwards = Forwards::new(
            Guest { addresses, ..Guest::default() },
            None,
            &sockets,
            &crate::ephemeral_ports::ephemeral_ports(),
            ForwardsMax { descriptors: 1000, splices: 10 },
        )
        .expect("forwards");
        let refused = |forwards: &mut Forwards, spec, expected| {
            let error = forwards.add(tcp(spec)).expect_err(spec).to_string();
            assert!(error.contains(expected), "{spec}: {error}");
        };
        refused(&mut forwards, "7000,7001,~1-65535", "it has no port left");
        refused(&mut forwards, "all,~1-65535", "it has no port left");
        refused(&mut forwards, "[::1]/7000", "the guest has no address of the family of ::1");
        refused(&mut forwards, "7000:[::1]/7000", "the guest has no address of the family of ::1");
        assert!(forwards.list().is_empty());

        for port in 0..ENTRIES_MAX {
            forwards.add(tcp(&(7000 + port).to_string())).expect("port");
        }
        refused(&mut forwards, "8000", "there are 256 forwards already");
        let first = forwards.list()[0].id;
        assert_eq!(forwards.add(tcp("7000")), Ok(first), "it is there already");
        assert!(forwards.remove(first));
        forwards.add(tcp("8000")).expect("room for one");
    });
}

/// A host may be without IPv6, which is no failure of each port, unless an address of it was asked for.
#[test]
fn auto_passes_over_a_family_that_the_host_lacks() {
    in_namespace("forward::tests::auto_passes_over_a_family_that_the_host_lacks", || {
        std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").expect("an option");
        let sockets = Sockets::new().expect("epoll");
        let mut forwards = forwards(&sockets);
        let (direction, transport) = (ForwardDirection::In, Transport::Tcp);
        for (id, spec, noticed) in [(1, "auto", false), (2, "[::1]/auto", true)] {
            forwards.entries.push(Entry { id, forward: tcp(spec), failed: BTreeSet::new() });
            let (address, shared) = (auto::loopback(true), PortSharing::None);
            let place = ListenSpec { direction, transport, address, port: 7000, interface: None, shared };
            forwards.try_place(id, &place, None);
            assert_eq!(forwards.take_notice().is_some(), noticed, "{spec}");
        }
    });
}

#[test]
fn interfaces_are_kept_apart() {
    in_namespace("forward::tests::interfaces_are_kept_apart", || {
        ip("link add left type veth peer name right");
        ip("addr add 192.0.2.1/24 dev left");
        ip("link set left up");
        let sockets = Sockets::new().expect("epoll");
        let mut forwards = forwards(&sockets);
        forwards.add(tcp("%left/7000")).expect("port");
        assert!(!connects("127.0.0.1:7000"), "not by lo");
        forwards.add(tcp("%lo/7000")).expect("the same port of another");
        assert!(connects("127.0.0.1:7000"));
        let error = forwards.add(tcp("%nosuch/7001")).expect_err("none").to_string();
        assert!(error.contains("on nosuch") && error.contains("no such interface"), "{error}");
    });
}

#[test]
fn a_port_of_the_guest_is_published_as_long_as_one_listener_leads_there() {
    in_namespace(
        "forward::tests::a_port_of_the_guest_is_published_as_long_as_one_listener_leads_there",
        || {
            let sockets = Sockets::new().expect("epoll");
            let mut forwards = forwards(&sockets);
            let udp = |spec| forward(ForwardDirection::In, Transport::Udp, spec);
            let first = forwards.add(udp("7000:80")).expect("port");
            let resteering = Arc::new(Resteering::new(2));
            forwards.announce(&resteering);
            let published = || resteering.publishes(80);
            let second = forwards.add(udp("7001:80")).expect("port");
            forwards.add(udp("7002:81")).expect("port");
            assert!(forwards.remove(first) && published(), "the other is there");
            assert!(forwards.remove(second) && !published() && forwards.listeners.published_ports() == 1);
            assert!(resteering.publishes(81));
            forwards.add(udp("7000:80")).expect("port");
            assert!(published(), "again");
        },
    );
}
