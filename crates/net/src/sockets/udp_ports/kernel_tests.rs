//! Ports of the guest's UDP flows on real sockets: each peer reports the source of what it gets.

use crate::forward::{ForwardDirection, ListenSpec, Opening, PortSharing, Transport, open as open_port};
use crate::sockets::{Outbound, PublishedPort, Sockets, SourcePorts};
use brodo_core::flow::FlowId;
use brodo_core::host::{Close, Host, HostError, IpHeaderFields, Received, SocketId};
use brodo_testns::{in_namespace, ip};
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const FLOW: FlowId = FlowId { index: 7, generation: 3 };
const GUEST: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 2, 15)), 5000);

/// A peer on a loopback address of this number.
fn peer(number: u8) -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::new(127, 0, 0, number), 0)).expect("bind")
}

fn open(sockets: &mut Sockets, guest: SocketAddr, peer: &UdpSocket) -> SocketId {
    sockets.udp_open(FLOW, Some(guest), peer.local_addr().expect("an address")).expect("open")
}

fn send(sockets: &mut Sockets, socket: SocketId) {
    let sent = sockets.datagram_send(socket, &[IoSlice::new(b"seen")], None, IpHeaderFields::default());
    assert_eq!(sent, Ok(4));
}

/// The port from which a flow's datagrams come to its peer.
fn port_at(sockets: &mut Sockets, socket: SocketId, peer: &UdpSocket) -> u16 {
    send(sockets, socket);
    let (len, from) = peer.recv_from(&mut [0; 10]).expect("a datagram");
    assert_eq!(len, 4);
    from.port()
}

fn received(sockets: &mut Sockets, socket: SocketId) -> Result<Vec<u8>, HostError> {
    let (mut bytes, mut of) = ([0; 100], [Received::default()]);
    sockets.datagram_recv(socket, &mut [IoSliceMut::new(&mut bytes)], &mut of)?;
    Ok(bytes[..of[0].len].to_vec())
}

#[test]
fn peers_see_one_port_and_are_not_mixed_up() {
    in_namespace("sockets::udp_ports::kernel_tests::peers_see_one_port_and_are_not_mixed_up", || {
        let mut sockets = Sockets::new().expect("epoll");
        let peers: Vec<_> = (2..102).map(peer).collect();
        let flows: Vec<_> = peers.iter().map(|peer| open(&mut sockets, GUEST, peer)).collect();
        for (flow, peer) in flows.iter().zip(&peers) {
            assert_eq!(port_at(&mut sockets, *flow, peer), 5000, "the guest's own port");
        }
        for (number, peer) in peers.iter().enumerate() {
            peer.send_to(&[number as u8; 3], "127.0.0.1:5000").expect("send");
        }
        for (number, flow) in flows.iter().enumerate() {
            assert_eq!(received(&mut sockets, *flow), Ok(vec![number as u8; 3]));
            assert_eq!(received(&mut sockets, *flow), Err(HostError::WouldBlock));
        }
        // Any other peer is refused.
        let other = peer(200);
        other.connect("127.0.0.1:5000").expect("connect");
        other.send(b"?").expect("send");
        assert_eq!(other.recv(&mut [0; 10]).expect_err("refused").kind(), ErrorKind::ConnectionRefused);
        // The port is free when the last flow has ended.
        let taken = UdpSocket::bind("0.0.0.0:5000").expect_err("in use");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        for flow in flows {
            sockets.close(flow, Close::Graceful);
        }
        UdpSocket::bind("0.0.0.0:5000").expect("free");
    });
}

/// A port is open to every host for a moment, between bind(2) and connect(2).
#[test]
fn another_host_that_floods_the_port_is_not_taken_for_the_peer() {
    in_namespace(
        "sockets::udp_ports::kernel_tests::another_host_that_floods_the_port_is_not_taken_for_the_peer",
        || {
            let mut sockets = Sockets::new().expect("epoll");
            let (its, over) = (peer(2), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let flood = scope.spawn(|| {
                    let other = peer(3);
                    while !over.load(Ordering::Relaxed) {
                        let _ = other.send_to(b"foreign", "127.0.0.1:5000");
                    }
                });
                let foreign = (0..20_000).any(|_| {
                    let flow = open(&mut sockets, GUEST, &its);
                    let got = received(&mut sockets, flow);
                    sockets.close(flow, Close::Graceful);
                    got != Err(HostError::WouldBlock)
                });
                over.store(true, Ordering::Relaxed);
                flood.join().expect("the flood");
                assert!(!foreign, "a datagram of another host");
            });
            // The peer's own are received, also those that came before.
            let flow = open(&mut sockets, GUEST, &its);
            its.send_to(b"its", "127.0.0.1:5000").expect("send");
            assert_eq!(received(&mut sockets, flow), Ok(b"its".to_vec()));
        },
    );
}

/// A group's socket hears every host, has the guest's port, and leaves the datagrams of a host that the guest
/// goes on with to the flow with that host.
#[test]
fn hosts_answer_a_group_at_the_guests_port() {
    in_namespace("sockets::udp_ports::kernel_tests::hosts_answer_a_group_at_the_guests_port", || {
        ip("link set lo multicast on");
        ip("route add 224.0.0.0/4 dev lo");
        let group: SocketAddr = "239.255.255.250:1900".parse().expect("an address");
        let member = UdpSocket::bind(("0.0.0.0", group.port())).expect("bind");
        member.join_multicast_v4(&Ipv4Addr::new(239, 255, 255, 250), &Ipv4Addr::LOCALHOST).expect("join");
        let mut sockets = Sockets::new().expect("epoll");
        let asked = sockets.group_open(FLOW, GUEST, group).expect("open");
        assert_eq!(port_at(&mut sockets, asked, &member), 5000, "the guest's own port");
        let hosts = [peer(2), peer(3)];
        let answer = |host: &UdpSocket| host.send_to(b"here", "127.0.0.1:5000").expect("send");
        let arrived = |sockets: &mut Sockets, socket| {
            let (mut bytes, mut of) = ([0; 100], [Received::default()]);
            sockets.datagram_recv(socket, &mut [IoSliceMut::new(&mut bytes)], &mut of)?;
            Ok((of[0].from, bytes[..of[0].len].to_vec()))
        };
        for host in &hosts {
            answer(host);
            let expected = (host.local_addr().ok(), b"here".to_vec());
            assert_eq!(arrived(&mut sockets, asked), Ok(expected));
        }
        let goes_on = open(&mut sockets, GUEST, &hosts[0]);
        assert_eq!(port_at(&mut sockets, goes_on, &hosts[0]), 5000);
        answer(&hosts[0]);
        assert_eq!(received(&mut sockets, goes_on), Ok(b"here".to_vec()));
        // Others' datagrams to a group that a program of the host has joined.
        hosts[1].send_to(b"all", "239.255.255.250:5000").expect("send");
        assert_eq!(arrived(&mut sockets, asked), Err(HostError::WouldBlock));
        sockets.close(asked, Close::Graceful);
        sockets.close(goes_on, Close::Graceful);
        UdpSocket::bind("0.0.0.0:5000").expect("free");
    });
}

#[test]
fn a_port_that_is_taken_has_one_other_for_all_peers() {
    in_namespace(
        "sockets::udp_ports::kernel_tests::a_port_that_is_taken_has_one_other_for_all_peers",
        || {
            let peers = [peer(2), peer(3)];
            let ports_of = |sockets: &mut Sockets, guest: SocketAddr| {
                let flows = peers.each_ref().map(|peer| open(sockets, guest, peer));
                let [first, second] = [0, 1].map(|at| port_at(sockets, flows[at], &peers[at]));
                assert_eq!(first, second);
                first
            };
            let mut sockets = Sockets::new().expect("epoll");
            let service = UdpSocket::bind("127.0.0.1:5000").expect("bind");
            assert_ne!(ports_of(&mut sockets, GUEST), 5000, "a service of the host has it");
            drop(service);
            // Without any privilege as with: port 9 is free, but may need one.
            let privileged = ports_of(&mut sockets, SocketAddr::new(GUEST.ip(), 9));
            assert!(privileged == 9 || privileged >= 1024, "{privileged}");
            assert_ne!(ports_of(&mut sockets, SocketAddr::new(GUEST.ip(), 0)), 0);
            // Another brodo of the same user keeps it to itself, although its own flows may join.
            let mut first = Sockets::new().expect("epoll");
            let other = SocketAddr::new(GUEST.ip(), 6000);
            assert_eq!(ports_of(&mut first, other), 6000);
            assert_ne!(ports_of(&mut sockets, other), 6000);
            // So does another address of the guest.
            let [one, two] =
                [15, 16].map(|number| SocketAddr::new(Ipv4Addr::new(10, 0, 2, number).into(), 7000));
            assert_eq!(ports_of(&mut sockets, one), 7000);
            assert_ne!(ports_of(&mut sockets, two), 7000);
        },
    );
}

#[test]
fn both_families_have_the_same_port() {
    in_namespace("sockets::udp_ports::kernel_tests::both_families_have_the_same_port", || {
        let mut sockets = Sockets::new().expect("epoll");
        let v6 = [(); 2].map(|()| UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).expect("bind"));
        let guest_v6 = "[fd00::15]:5000".parse().expect("an address");
        let v4 = peer(2);
        let flow = open(&mut sockets, GUEST, &v4);
        assert_eq!(port_at(&mut sockets, flow, &v4), 5000);
        for peer in &v6 {
            let flow = open(&mut sockets, guest_v6, peer);
            assert_eq!(port_at(&mut sockets, flow, peer), 5000);
        }
    });
}

#[test]
fn two_flows_to_one_peer_have_two_ports() {
    in_namespace("sockets::udp_ports::kernel_tests::two_flows_to_one_peer_have_two_ports", || {
        let mut sockets = Sockets::new().expect("epoll");
        let peer = peer(2);
        let flows = [(); 2].map(|()| open(&mut sockets, GUEST, &peer));
        let ports = flows.map(|flow| port_at(&mut sockets, flow, &peer));
        assert_eq!(ports[0], 5000);
        assert_ne!(ports[1], 5000);
        // The end of the second is none of the first's.
        sockets.close(flows[1], Close::Graceful);
        let third = self::peer(3);
        let flow = open(&mut sockets, GUEST, &third);
        assert_eq!(port_at(&mut sockets, flow, &third), 5000);
    });
}

#[test]
fn a_flow_does_not_answer_itself() {
    in_namespace("sockets::udp_ports::kernel_tests::a_flow_does_not_answer_itself", || {
        let mut sockets = Sockets::new().expect("epoll");
        let to = "127.0.0.1:5000".parse().expect("an address");
        let flow = sockets.udp_open(FLOW, Some(GUEST), to).expect("open");
        send(&mut sockets, flow);
        assert_eq!(received(&mut sockets, flow), Err(HostError::WouldBlock));
        assert!(sockets.datagram_error(flow).is_some(), "port unreachable");
    });
}

#[test]
fn without_the_mapping_each_flow_has_a_port() {
    in_namespace("sockets::udp_ports::kernel_tests::without_the_mapping_each_flow_has_a_port", || {
        let any = Outbound { ports: SourcePorts::Any, ..Outbound::default() };
        let mut sockets = Sockets::new().expect("epoll").leaving_from(any);
        let peers = [peer(2), peer(3)];
        let flows = peers.each_ref().map(|peer| open(&mut sockets, GUEST, peer));
        let ports = [0, 1].map(|at| port_at(&mut sockets, flows[at], &peers[at]));
        assert_ne!(ports[0], ports[1]);
    });
}

/// The socket of a published port, with or without flows of the guest's on it.
fn published(port: u16, shared: PortSharing) -> Option<UdpSocket> {
    let place = ListenSpec {
        direction: ForwardDirection::In,
        transport: Transport::Udp,
        address: Ipv4Addr::UNSPECIFIED.into(),
        port,
        interface: None,
        shared,
    };
    let socket = UdpSocket::from(open_port(&place, Opening::default(), None).ok()?);
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
    Some(socket)
}

/// Datagrams of these peers come to their flows, and those of others to the published port.
fn distinguished(sockets: &mut Sockets, port: &UdpSocket, number: u16, flows: &[(SocketId, UdpSocket)]) {
    let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), number);
    for round in 0..10 {
        for (flow, peer) in flows {
            peer.send_to(&[round; 7], to).expect("send");
            assert_eq!(received(sockets, *flow), Ok(vec![round; 7]));
        }
        let other = peer(100 + round);
        other.send_to(&[round; 5], to).expect("send");
        let (len, from) = port.recv_from(&mut [0; 10]).expect("a datagram");
        assert_eq!((len, from), (5, other.local_addr().expect("an address")));
    }
}

#[test]
fn flows_of_a_published_port_leave_from_it_and_others_reach_it() {
    in_namespace(
        "sockets::udp_ports::kernel_tests::flows_of_a_published_port_leave_from_it_and_others_reach_it",
        || {
            let mut sockets = Sockets::new().expect("epoll");
            let port = published(8000, PortSharing::Later).expect("free");
            let at = (Ipv4Addr::UNSPECIFIED.into(), 8000);
            let place = PublishedPort { v6: false, guest_port: 5000, at };
            sockets.udp_ports.publish(place);
            let open_one = |sockets: &mut Sockets, number| {
                let peer = peer(number);
                let flow = open(sockets, GUEST, &peer);
                assert_eq!(port_at(sockets, flow, &peer), 8000);
                (flow, peer)
            };
            let flows: Vec<_> = (2..12).map(|number| open_one(&mut sockets, number)).collect();
            distinguished(&mut sockets, &port, 8000, &flows);
            // No other may publish it.
            assert!(published(8000, PortSharing::Later).is_none());
            sockets.udp_ports.withdraw(&place);
            drop(port);
            let more = open_one(&mut sockets, 12);
            assert_eq!(more.1.local_addr().expect("an address").ip(), Ipv4Addr::new(127, 0, 0, 12));
        },
    );
}

#[test]
fn a_port_is_published_while_flows_have_it() {
    in_namespace("sockets::udp_ports::kernel_tests::a_port_is_published_while_flows_have_it", || {
        let mut sockets = Sockets::new().expect("epoll");
        let open_one = |sockets: &mut Sockets, number| {
            let peer = peer(number);
            (open(sockets, GUEST, &peer), peer)
        };
        let flows: Vec<_> = (2..12).map(|number| open_one(&mut sockets, number)).collect();
        assert!(sockets.udp_ports.has(false, 5000) && !sockets.udp_ports.has(true, 5000));
        assert!(published(5000, PortSharing::Later).is_none(), "the flows have it");
        let port = published(5000, PortSharing::Now).expect("joins them");
        distinguished(&mut sockets, &port, 5000, &flows);
    });
}
