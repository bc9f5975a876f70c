//! Sockets and the host's addresses: a host without one for a destination, a stream that is its own peer, and
//! addresses of local routes, which the kernel does not list.

use super::super::{GONE_MAX, STREAM_EVENTS, Source};
use super::*;
use crate::sockets::Outbound;
use rustix::net::{AddressFamily, SocketType};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::OwnedFd;

/// Ports of sockets that are connected without a bind.
fn set_ephemeral_ports(range: &str) {
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", range).expect("a range");
}

/// Errors of opening a socket of each kind for a destination.
fn errors_of(sockets: &mut Sockets, to: SocketAddr) -> [Option<HostError>; 4] {
    let guest = SocketAddr::new(to.ip(), 5000);
    [
        sockets.tcp_connect(FLOW, to).err(),
        sockets.udp_open(FLOW, None, to).err(),
        sockets.udp_open(FLOW, Some(guest), to).err(),
        sockets.ping_open(FLOW, to.ip()).err(),
    ]
}

#[test]
fn a_host_without_an_address_has_no_route() {
    in_namespace("sockets::tests::addresses::a_host_without_an_address_has_no_route", || {
        std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").expect("an option");
        std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0").expect("an option");
        let mut sockets = Sockets::new().expect("epoll");
        let none = [Some(HostError::NetUnreachable); 4];
        assert_eq!(errors_of(&mut sockets, "[2001:db8::1]:80".parse().expect("an address")), none);
        let group: SocketAddr = "[ff0e::1]:9".parse().expect("an address");
        let socket = sockets.group_open(FLOW, "[fd00::15]:5000".parse().expect("an address"), group);
        let socket = socket.expect("it is not connected");
        assert_eq!(send(&mut sockets, socket, b"question", None), Err(HostError::NetUnreachable));

        // An address to leave from that the host has lost.
        let v4 = Source { address: "192.0.2.1".parse().ok(), interface: None };
        let mut sockets = sockets.leaving_from(Outbound { v4, ..Outbound::default() });
        ip("addr add 198.51.100.1/24 dev lo");
        assert_eq!(errors_of(&mut sockets, "198.51.100.1:80".parse().expect("an address")), none);
    });
}

#[test]
fn a_host_without_a_free_port_is_out_of_sockets() {
    in_namespace("sockets::tests::addresses::a_host_without_a_free_port_is_out_of_sockets", || {
        let listener = TcpListener::bind((LOCALHOST, 0)).expect("listen");
        let to = listener.local_addr().expect("an address");
        set_ephemeral_ports("40000 40001");
        let mut sockets = Sockets::new().expect("epoll");
        let connected = [(); 2].map(|()| sockets.tcp_connect(FLOW, to).map(|(_, connect)| connect));
        assert_eq!(connected, [Ok(Connect::Done); 2]);
        assert_eq!(sockets.tcp_connect(FLOW, to), Err(HostError::Exhausted));
    });
}

/// The kernel may give a stream the port that it is to connect to: a simultaneous open with itself.
#[test]
fn a_stream_does_not_connect_to_itself() {
    in_namespace("sockets::tests::addresses::a_stream_does_not_connect_to_itself", || {
        set_ephemeral_ports("40000 40007");
        ip("addr add 192.0.2.1/32 dev lo");
        let mut sockets = Sockets::new().expect("epoll");
        for to in ["127.0.0.1:40002", "[::1]:40002", "192.0.2.1:40002"] {
            let to: SocketAddr = to.parse().expect("an address");
            for attempt in 0..64 {
                let refused = sockets.tcp_connect(FLOW, to).map(|(_, connect)| connect);
                assert_eq!(refused, Err(HostError::Refused), "{to}, attempt {attempt}");
            }
        }
    });
}

#[test]
fn a_pending_stream_that_has_met_itself_is_refused() {
    in_namespace("sockets::tests::addresses::a_pending_stream_that_has_met_itself_is_refused", || {
        ip("addr add 192.0.2.1/32 dev lo");
        let mut sockets = Sockets::new().expect("epoll");
        for known in [None, Some(["192.0.2.1".parse().expect("an address")])] {
            if let Some(known) = known {
                sockets.set_addresses(known.into());
            }
            for at in ["127.0.0.1:40002", "192.0.2.1:40002"] {
                let at: SocketAddr = at.parse().expect("an address");
                let fd = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("socket");
                rustix::net::bind(&fd, &at).expect("bind");
                rustix::net::connect(&fd, &at).expect("a simultaneous open");
                let socket = sockets.keep(FLOW, fd, STREAM_EVENTS).expect("registered");
                assert_eq!(sockets.tcp_connected(socket), Err(HostError::Refused), "{at} {known:?}");
                // With a reset: the port is free at once.
                sockets.close(socket, Close::Graceful);
            }
        }
    });
}

/// Link-local addresses of containers' interfaces, which come and go without a change of the network.
#[test]
fn addresses_that_come_and_go_are_forgotten() {
    let mut sockets = Sockets::new().expect("epoll");
    let usual: IpAddr = "192.0.2.1".parse().expect("an address");
    for n in 0..10_000_u16 {
        let container = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, n).into();
        sockets.add_addresses(&[usual, container].into());
        assert!(sockets.may_be_own(container) && sockets.may_be_own(usual));
        sockets.add_addresses(&[usual].into());
        assert!(sockets.may_be_own(container), "lost with the next change");
    }
    assert!(sockets.addresses.is_some_and(|known| known.len() <= 2 + GONE_MAX));
}

/// AnyIP: all addresses of a prefix are local by one route, and none is listed.
#[test]
fn an_address_of_a_local_route_is_never_lost() {
    in_namespace("sockets::tests::addresses::an_address_of_a_local_route_is_never_lost", || {
        ip("route add local 198.51.100.0/24 dev lo");
        ip("-6 route add local 2001:db8:1::/64 dev lo");
        ip("addr add 192.0.2.1/32 dev lo");
        let mut sockets = Sockets::new().expect("epoll");
        let listener = TcpListener::bind("[::]:7000").expect("listen");
        let adopted = ["198.51.100.7:7000", "[2001:db8:1::7]:7000", "192.0.2.1:7000"].map(|at| {
            let peer = TcpStream::connect(at).expect("connect");
            let accepted = OwnedFd::from(listener.accept().expect("accept").0);
            (sockets.adopt(FLOW, accepted).expect("adopt"), peer)
        });
        sockets.set_addresses(["192.0.2.1".parse().expect("an address")].into());
        sockets.set_addresses(["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().expect("an address")).into());
        assert_eq!([0, 1, 2].map(|n| sockets.is_stranded(adopted[n].0)), [false; 3]);
        sockets.set_addresses(["192.0.2.2".parse().expect("an address")].into());
        assert_eq!([0, 1, 2].map(|n| sockets.is_stranded(adopted[n].0)), [false, false, true]);
        // Link-local ones come without a change of the network.
        sockets.add_addresses(&["198.51.100.7".parse().expect("an address")].into());
        sockets.set_addresses(["192.0.2.2".parse().expect("an address")].into());
        assert_eq!([0, 1, 2].map(|n| sockets.is_stranded(adopted[n].0)), [true, false, false]);
    });
}
