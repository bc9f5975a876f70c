//! Sockets and the host's addresses: a host without one for a destination.

use super::super::Source;
use super::*;
use crate::sockets::Outbound;

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
