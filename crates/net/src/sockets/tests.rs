//! Host sockets on the loopback of a fresh namespace: results, events, and the events that must not come.

mod addresses;

use super::{Published, REGISTERED_AT_ONCE, Sockets, raise_nofile, readiness};
use crate::sys::addressed::Source;
use brodo_core::flow::FlowId;
use brodo_core::host::{
    Close, Connect, Host, HostError, IcmpCause, IcmpReport, IpHeaderFields, Readiness, Received, SocketId,
};
use brodo_testns::{in_namespace, ip};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

const FLOW: FlowId = FlowId { index: 7, generation: 3 };
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Events that arrive within `limit`.
fn events_within(sockets: &Sockets, limit: Duration) -> Vec<(FlowId, Readiness)> {
    let mut events = Vec::with_capacity(16);
    let limit = Timespec::try_from(limit).expect("small");
    epoll::wait(sockets.epoll(), rustix::buffer::spare_capacity(&mut events), Some(&limit)).expect("wait");
    events
        .iter()
        .map(|e: &epoll::Event| {
            let (flags, data) = (e.flags, e.data);
            (FlowId::from_bits(data.u64()), readiness(flags))
        })
        .collect()
}

fn no_event(sockets: &Sockets) {
    assert_eq!(events_within(sockets, Duration::ZERO), []);
}

/// The one event that must come, of [`FLOW`].
fn event(sockets: &Sockets) -> Readiness {
    let events = events_within(sockets, Duration::from_secs(10));
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].0, FLOW);
    events[0].1
}

fn recv(sockets: &mut Sockets, socket: SocketId) -> Result<Vec<u8>, HostError> {
    let mut a = [0; 3];
    let mut b = [0; 100];
    let len = sockets.tcp_recv(socket, &mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)])?;
    let mut all = [&a[..], &b[..]].concat();
    all.truncate(len);
    Ok(all)
}

fn send(
    sockets: &mut Sockets,
    socket: SocketId,
    data: &[u8],
    segment: Option<u16>,
) -> Result<usize, HostError> {
    sockets.datagram_send(socket, &[IoSlice::new(data)], segment, IpHeaderFields::default())
}

/// One datagram, if there is one.
fn recv_one(sockets: &mut Sockets, socket: SocketId, buf: &mut [u8]) -> Result<Received, HostError> {
    let mut received = [Received::default()];
    assert_eq!(sockets.datagram_recv(socket, &mut [IoSliceMut::new(buf)], &mut received)?, 1);
    Ok(received[0])
}

fn plain(len: usize) -> Received {
    Received { len, ..Received::default() }
}

#[test]
fn tcp_over_loopback_is_connected_at_once() {
    in_namespace("sockets::tests::tcp_over_loopback_is_connected_at_once", || {
        for address in [LOCALHOST, Ipv6Addr::LOCALHOST.into()] {
            let listener = TcpListener::bind((address, 0)).expect("listen");
            let mut sockets = Sockets::new().expect("epoll");
            let to = listener.local_addr().expect("address");
            let (socket, connect) = sockets.tcp_connect(FLOW, to).expect("connect");
            assert_eq!(connect, Connect::Done, "the second look finds it");
            assert_eq!(sockets.tcp_connected(socket), Ok(Connect::Done));
            no_event(&sockets);
            let (mut peer, _) = listener.accept().expect("accept");
            assert_eq!(sockets.tcp_send(socket, &[IoSlice::new(b"he"), IoSlice::new(b"llo")]), Ok(5));
            let mut hello = [0; 5];
            peer.read_exact(&mut hello).expect("data");
            assert_eq!(&hello, b"hello");
            no_event(&sockets);
            assert_eq!(recv(&mut sockets, socket), Err(HostError::WouldBlock));
            peer.write_all(b"answer").expect("write");
            assert!(event(&sockets).readable);
            assert_eq!(recv(&mut sockets, socket).as_deref(), Ok(&b"answer"[..]));
            // Half-close, ours and then theirs.
            assert_eq!(sockets.tcp_shutdown(socket), Ok(()));
            assert_eq!(peer.read(&mut hello).expect("end"), 0);
            drop(peer);
            assert!(event(&sockets).read_closed);
            assert_eq!(recv(&mut sockets, socket).as_deref(), Ok(&[][..]));
            sockets.tcp_keep_alive(socket);
            assert_eq!(sockets.open(), 1);
            sockets.close(socket, Close::Graceful);
            assert_eq!(sockets.open(), 0);
            no_event(&sockets);
            assert!(matches!(sockets.tcp_connected(socket), Err(HostError::Other(_))), "closed ids are dead");
        }
    });
}

#[test]
fn tcp_backpressure_gives_one_writable_edge() {
    in_namespace("sockets::tests::tcp_backpressure_gives_one_writable_edge", || {
        let listener = TcpListener::bind((LOCALHOST, 0)).expect("listen");
        let mut sockets = Sockets::new().expect("epoll");
        let (socket, _) =
            sockets.tcp_connect(FLOW, listener.local_addr().expect("address")).expect("connect");
        let (mut peer, _) = listener.accept().expect("accept");
        let chunk = vec![0; 64 << 10];
        let mut sent = 0;
        loop {
            match sockets.tcp_send(socket, &[IoSlice::new(&chunk)]) {
                Ok(n) => sent += n,
                Err(e) => break assert_eq!(e, HostError::WouldBlock),
            }
        }
        no_event(&sockets);
        for _ in 0..2 {
            let mut read = vec![0; sent];
            peer.read_exact(&mut read).expect("all that was sent");
            assert!(event(&sockets).writable);
            no_event(&sockets);
            sent = 0;
            while let Ok(n) = sockets.tcp_send(socket, &[IoSlice::new(&chunk)]) {
                sent += n;
            }
        }
    });
}

/// Streams of a recovery: one at rest has no event before it is registered, and none is lost; one that is
/// closed, or waits for room meanwhile, needs no registration.
#[test]
fn recovered_streams_at_rest_are_registered_by_and_by() {
    in_namespace("sockets::tests::recovered_streams_at_rest_are_registered_by_and_by", || {
        let listener = TcpListener::bind((LOCALHOST, 0)).expect("listen");
        let at = listener.local_addr().expect("address");
        let mut sockets = Sockets::new().expect("epoll");
        let recover = |sockets: &mut Sockets, at_rest| {
            let stream = TcpStream::connect(at).expect("connect");
            stream.set_nonblocking(true).expect("non-blocking");
            let socket = sockets.recover_stream(FLOW, stream.into(), at_rest).expect("recovered");
            (socket, listener.accept().expect("accept").0)
        };
        let (socket, _peer) = recover(&mut sockets, false);
        assert!(event(&sockets).writable, "bytes may wait for room");
        assert!(!sockets.register_some());
        sockets.close(socket, Close::Graceful);

        let (socket, mut peer) = recover(&mut sockets, true);
        peer.write_all(b"abc").expect("write");
        no_event(&sockets);
        assert!(!sockets.register_some(), "there was one");
        assert!(event(&sockets).readable);
        assert_eq!(recv(&mut sockets, socket).as_deref(), Ok(&b"abc"[..]));
        sockets.close(socket, Close::Graceful);

        let (socket, _peer) = recover(&mut sockets, true);
        sockets.close(socket, Close::Graceful);
        let (socket, _peer) = recover(&mut sockets, true);
        while sockets.tcp_send(socket, &[IoSlice::new(&vec![0; 64 << 10])]).is_ok() {}
        assert!(!sockets.register_some());
        no_event(&sockets);

        let many: Vec<_> = (0..=REGISTERED_AT_ONCE).map(|_| recover(&mut sockets, true)).collect();
        assert!(sockets.register_some(), "one is left");
        assert!(!sockets.register_some());
        drop(many);
    });
}

/// Urgent data, on connections of either origin: reported, in its place, and a read ends before it.
#[test]
fn urgent_data_is_in_line_and_reported() {
    in_namespace("sockets::tests::urgent_data_is_in_line_and_reported", || {
        let listener = TcpListener::bind((LOCALHOST, 0)).expect("listen");
        let at = listener.local_addr().expect("address");
        for adopted in [false, true] {
            let mut sockets = Sockets::new().expect("epoll");
            let (socket, mut peer) = if adopted {
                let peer = TcpStream::connect(at).expect("connect");
                let (accepted, _) = listener.accept().expect("accept");
                accepted.set_nonblocking(true).expect("non-blocking");
                (sockets.adopt(FLOW, accepted.into()).expect("adopt"), peer)
            } else {
                let (socket, _) = sockets.tcp_connect(FLOW, at).expect("connect");
                (socket, listener.accept().expect("accept").0)
            };
            peer.write_all(b"abc").expect("write");
            assert_eq!(rustix::net::send(&peer, b"!", SendFlags::OOB), Ok(1));
            peer.write_all(b"def").expect("write");
            assert!(event(&sockets).urgent, "adopted: {adopted}");
            assert_eq!(recv(&mut sockets, socket).as_deref(), Ok(&b"abc"[..]), "up to the mark");
            assert_eq!(recv(&mut sockets, socket).as_deref(), Ok(&b"!def"[..]), "adopted: {adopted}");
            assert_eq!(recv(&mut sockets, socket), Err(HostError::WouldBlock));
            peer.write_all(b"ghi").expect("write");
            assert!(!event(&sockets).urgent, "it has been read");
            sockets.close(socket, Close::Graceful);
        }
    });
}

#[test]
fn tcp_refused_unreachable_and_reset() {
    in_namespace("sockets::tests::tcp_refused_unreachable_and_reset", || {
        let mut sockets = Sockets::new().expect("epoll");
        let listener = TcpListener::bind((LOCALHOST, 0)).expect("listen");
        let to = listener.local_addr().expect("address");
        // A reset of ours.
        let (socket, _) = sockets.tcp_connect(FLOW, to).expect("connect");
        let (mut peer, _) = listener.accept().expect("accept");
        sockets.close(socket, Close::Reset);
        assert_eq!(peer.read(&mut [0]).expect_err("reset").kind(), ErrorKind::ConnectionReset);
        // A reset of theirs: a close with unread data.
        let (socket, _) = sockets.tcp_connect(FLOW, to).expect("connect");
        let (peer, _) = listener.accept().expect("accept");
        sockets.tcp_send(socket, &[IoSlice::new(b"unread")]).expect("send");
        drop(peer);
        assert!(event(&sockets).error);
        assert_eq!(recv(&mut sockets, socket), Err(HostError::Reset));
        assert_eq!(sockets.tcp_send(socket, &[IoSlice::new(b"more")]), Err(HostError::Reset));
        sockets.close(socket, Close::Graceful);
        // No listener.
        drop(listener);
        assert_eq!(sockets.tcp_connect(FLOW, to), Err(HostError::Refused));
        // No route, and a route that forbids.
        let out: SocketAddr = "192.0.2.1:80".parse().expect("address");
        assert_eq!(sockets.tcp_connect(FLOW, out), Err(HostError::NetUnreachable));
        ip("route add prohibit 192.0.2.0/24");
        assert_eq!(sockets.tcp_connect(FLOW, out), Err(HostError::Prohibited));
        assert_eq!(sockets.open(), 0, "a failed socket is closed");
    });
}

#[test]
fn tcp_pending_until_the_peer_is_resolved() {
    in_namespace("sockets::tests::tcp_pending_until_the_peer_is_resolved", || {
        // A link without neighbours: address resolution never succeeds.
        ip("link add v0 type veth peer name v1");
        ip("addr add 192.0.2.1/24 dev v0");
        ip("link set v0 up");
        ip("link set v1 up");
        std::fs::write("/proc/sys/net/ipv4/neigh/v0/mcast_solicit", "1").expect("one solicitation");
        let mut sockets = Sockets::new().expect("epoll");
        let (socket, connect) =
            sockets.tcp_connect(FLOW, "192.0.2.2:80".parse().expect("address")).expect("connect");
        assert_eq!(connect, Connect::Pending);
        assert_eq!(sockets.tcp_connected(socket), Ok(Connect::Pending));
        // Events of a socket before it connects are harmless.
        while !event(&sockets).error {
            assert_eq!(sockets.tcp_connected(socket), Ok(Connect::Pending));
        }
        assert_eq!(sockets.tcp_connected(socket), Err(HostError::HostUnreachable));
    });
}

#[test]
fn udp_datagrams_and_no_wakeups_for_our_own() {
    in_namespace("sockets::tests::udp_datagrams_and_no_wakeups_for_our_own", || {
        for address in [LOCALHOST, Ipv6Addr::LOCALHOST.into()] {
            let peer = UdpSocket::bind((address, 0)).expect("bind");
            let mut sockets = Sockets::new().expect("epoll");
            let socket = sockets.udp_open(FLOW, None, peer.local_addr().expect("address")).expect("open");
            no_event(&sockets);
            assert!(send(&mut sockets, socket, b"one", None).is_ok());
            assert!(send(&mut sockets, socket, b"", None).is_ok());
            let mut buf = [0; 2000];
            let (len, from) = peer.recv_from(&mut buf).expect("datagram");
            assert_eq!(&buf[..len], b"one");
            assert_eq!(peer.recv(&mut buf).expect("empty datagram"), 0);
            no_event(&sockets);
            assert_eq!(recv_one(&mut sockets, socket, &mut buf), Err(HostError::WouldBlock));
            peer.send_to(b"back", from).expect("send");
            assert_eq!(event(&sockets), Readiness { readable: true, ..Readiness::default() });
            assert_eq!(recv_one(&mut sockets, socket, &mut buf), Ok(plain(4)));
        }
    });
}

/// Reason for which datagram sockets are registered without EPOLLOUT.
#[test]
fn the_kernel_reports_room_after_each_datagram() {
    in_namespace("sockets::tests::the_kernel_reports_room_after_each_datagram", || {
        let peer = UdpSocket::bind((LOCALHOST, 0)).expect("bind");
        let mut sockets = Sockets::new().expect("epoll");
        let socket = sockets.udp_open(FLOW, None, peer.local_addr().expect("address")).expect("open");
        let data = epoll::EventData::new_u64(FLOW.to_bits());
        let both = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::modify(&sockets.epoll, sockets.get(socket).expect("open"), data, both).expect("modify");
        assert!(event(&sockets).writable);
        no_event(&sockets);
        for _ in 0..3 {
            assert!(send(&mut sockets, socket, b"one", None).is_ok());
            // The buffer is given back when the reader takes the datagram.
            assert_eq!(peer.recv(&mut [0; 10]).expect("datagram"), 3);
            assert!(event(&sockets).writable);
        }
    });
}

#[test]
fn udp_segments_out_and_coalesced_in() {
    in_namespace("sockets::tests::udp_segments_out_and_coalesced_in", || {
        let peer = UdpSocket::bind((LOCALHOST, 0)).expect("bind");
        let mut sockets = Sockets::new().expect("epoll");
        let socket = sockets.udp_open(FLOW, None, peer.local_addr().expect("address")).expect("open");
        // More segments than one call takes, and a short last one.
        let data: Vec<u8> = (0..100 * 600 + 5u32).map(|i| i as u8).collect();
        assert!(send(&mut sockets, socket, &data, Some(600)).is_ok());
        peer.set_nonblocking(true).expect("non-blocking");
        let mut buf = vec![0; 70_000];
        let mut all = Vec::new();
        let mut sizes = Vec::new();
        while let Ok(len) = peer.recv(&mut buf) {
            sizes.push(len);
            all.extend_from_slice(&buf[..len]);
        }
        assert_eq!(all, data);
        assert_eq!((sizes.len(), sizes[0], sizes[100]), (101, 600, 5));
        // Back to a socket with UDP_GRO.
        let name = rustix::net::getsockname(sockets.get(socket).expect("open")).expect("name");
        peer.connect(SocketAddr::try_from(name).expect("address")).expect("connect");
        crate::sys::send_datagrams(peer.as_fd(), &[IoSlice::new(&data[..30_000])], Some(600)).expect("send");
        let received = recv_one(&mut sockets, socket, &mut buf).expect("coalesced");
        assert_eq!(received, Received { segment: Some(600), ..plain(30_000) });
        assert!(buf[..30_000] == data[..30_000]);
        // Segments above the MTU are sent one by one, in fragments.
        ip("link set lo mtu 1500");
        assert!(send(&mut sockets, socket, &data[..5000], Some(2000)).is_ok());
        let sizes: Vec<_> = std::iter::from_fn(|| peer.recv(&mut buf).ok()).collect();
        assert_eq!(sizes, [2000, 2000, 1000]);
    });
}

#[test]
fn udp_runs_from_many_places_and_batches_in() {
    in_namespace("sockets::tests::udp_runs_from_many_places_and_batches_in", || {
        let peer = UdpSocket::bind((LOCALHOST, 0)).expect("bind");
        peer.set_nonblocking(true).expect("non-blocking");
        let mut sockets = Sockets::new().expect("epoll");
        let socket = sockets.udp_open(FLOW, None, peer.local_addr().expect("address")).expect("open");
        let data: Vec<u8> = (0..2500u32).map(|i| i as u8).collect();
        // Datagrams of 1000 bytes in slices that end anywhere.
        let slices = [&data[..400], &data[400..1700], &data[1700..]].map(IoSlice::new);
        for mtu in ["65536", "900"] {
            // The second time the route does not take the segments: they go one by one.
            ip(&format!("link set lo mtu {mtu}"));
            for _ in 0..2 {
                assert_eq!(
                    sockets.datagram_send(socket, &slices, Some(1000), IpHeaderFields::default()),
                    Ok(2500)
                );
                let mut buf = [0; 3000];
                let got: Vec<_> =
                    std::iter::from_fn(|| peer.recv(&mut buf).ok().map(|n| buf[..n].to_vec())).collect();
                assert_eq!(got, data.chunks(1000).map(<[u8]>::to_vec).collect::<Vec<_>>());
            }
        }
        // One by one from the peer, three at a time to us.
        let name = rustix::net::getsockname(sockets.get(socket).expect("open")).expect("name");
        peer.connect(SocketAddr::try_from(name).expect("address")).expect("connect");
        (1..=5usize).for_each(|len| assert_eq!(peer.send(&data[..len]).expect("send"), len));
        let mut bufs = [[0; 100]; 3];
        let mut received = [Received::default(); 3];
        let mut recv = || {
            let mut into = bufs.each_mut().map(|b| IoSliceMut::new(b));
            let count = sockets.datagram_recv(socket, &mut into, &mut received)?;
            Ok(received[..count].iter().map(|r| r.len).collect::<Vec<_>>())
        };
        assert_eq!(recv(), Ok(vec![1, 2, 3]));
        assert_eq!(recv(), Ok(vec![4, 5]));
        assert_eq!(recv(), Err(HostError::WouldBlock));
        assert_eq!(bufs[1][..5], data[..5]);
    });
}

#[test]
fn the_byte_of_services_travels_both_ways() {
    in_namespace("sockets::tests::the_byte_of_services_travels_both_ways", || {
        for address in [LOCALHOST, Ipv6Addr::LOCALHOST.into()] {
            let fd = UdpSocket::bind((address, 0)).expect("bind");
            let mut sockets = Sockets::new().expect("epoll");
            let near = sockets.udp_open(FLOW, None, fd.local_addr().expect("address")).expect("open");
            let name = rustix::net::getsockname(sockets.get(near).expect("open")).expect("name");
            fd.connect(SocketAddr::try_from(name).expect("address")).expect("connect");
            let (level, option) = if address.is_ipv4() {
                (libc::SOL_IP, libc::IP_TOS)
            } else {
                (libc::SOL_IPV6, libc::IPV6_TCLASS)
            };
            let mut buf = [0; 10];
            for tos in [0x02, 0x02, 0xb8, 0] {
                crate::sys::set_socket_option(fd.as_fd(), level, option, tos).expect("option");
                fd.send(b"x").expect("send");
                let got = recv_one(&mut sockets, near, &mut buf);
                assert_eq!(got, Ok(Received { tos: tos as u8, ..plain(1) }));
            }
            // The other direction: the far end enables the ancillary data.
            let (level, option) = if address.is_ipv4() {
                (libc::SOL_IP, libc::IP_RECVTOS)
            } else {
                (libc::SOL_IPV6, libc::IPV6_RECVTCLASS)
            };
            crate::sys::set_socket_option(fd.as_fd(), level, option, 1).expect("option");
            for tos in [0, 0x2e << 2 | 1, 0x03, 0x03] {
                assert_eq!(
                    sockets.datagram_send(
                        near,
                        &[IoSlice::new(b"y")],
                        None,
                        IpHeaderFields { tos, ..IpHeaderFields::default() }
                    ),
                    Ok(1)
                );
                let mut received = None;
                crate::sys::recv_datagrams(fd.as_fd(), &mut [IoSliceMut::new(&mut buf)], |_, _, control| {
                    received = crate::sys::control_messages(control).next().map(|(_, _, data)| data[0]);
                })
                .expect("datagram");
                assert_eq!(received, Some(tos));
            }
        }
    });
}

#[test]
fn drops_of_the_kernel_are_reported() {
    in_namespace("sockets::tests::drops_of_the_kernel_are_reported", || {
        let peer = UdpSocket::bind((LOCALHOST, 0)).expect("bind");
        let mut sockets = Sockets::new().expect("epoll");
        let socket = sockets.udp_open(FLOW, None, peer.local_addr().expect("address")).expect("open");
        let name = rustix::net::getsockname(sockets.get(socket).expect("open")).expect("name");
        peer.connect(SocketAddr::try_from(name).expect("address")).expect("connect");
        let mut buf = vec![0; 2000];
        let mut lost = 0;
        let mut got = 0;
        for _ in 0..2 {
            // More than any buffer holds, and one more once there is room, with which the kernel reports the
            // drops.
            (0..5000).for_each(|_| assert_eq!(peer.send(&[7; 1400]).expect("send"), 1400));
            for last in [false, true] {
                while let Ok(received) = recv_one(&mut sockets, socket, &mut buf) {
                    got += 1;
                    lost += received.lost;
                }
                if !last {
                    peer.send(b"news").expect("send");
                }
            }
        }
        assert!(lost > 0);
        assert_eq!(got + lost, 2 * 5001);
    });
}

#[test]
fn a_full_datagram_socket_reports_room_once() {
    in_namespace("sockets::tests::a_full_datagram_socket_reports_room_once", || {
        // A device that takes nothing for a while: 10 datagrams a second, and a queue behind it.
        ip("link add slow type veth peer name end");
        ip("link set slow up");
        ip("link set end up");
        ip("addr add 198.18.0.1/24 dev slow");
        ip("neigh add 198.18.0.2 lladdr 02:00:00:00:00:02 dev slow");
        let tc = |line: &str| {
            let status = std::process::Command::new("tc").args(line.split(' ')).status();
            assert!(status.is_ok_and(|s| s.success()), "tc {line}");
        };
        tc("qdisc add dev slow root tbf rate 8mbit burst 16kb limit 10mb");
        let mut sockets = Sockets::new().expect("epoll");
        let to = SocketAddr::from(([198, 18, 0, 2], 9));
        let socket = sockets.udp_open(FLOW, None, to).expect("open");
        while send(&mut sockets, socket, &[0; 1000], None).is_ok() {}
        let room = Readiness { writable: true, ..Readiness::default() };
        assert_eq!(event(&sockets), room);
        while send(&mut sockets, socket, &[0; 1000], None).is_ok() {}
        assert_eq!(event(&sockets), room, "full again, reported again");
        // Once it accepts a datagram no flow is waiting any more.
        assert!(send(&mut sockets, socket, &[0; 1000], None).is_ok());
        assert_eq!(events_within(&sockets, Duration::from_millis(300)), []);
    });
}

#[test]
fn udp_errors_come_from_the_queue_and_cost_no_datagram() {
    in_namespace("sockets::tests::udp_errors_come_from_the_queue_and_cost_no_datagram", || {
        for address in [LOCALHOST, Ipv6Addr::LOCALHOST.into()] {
            let peer = UdpSocket::bind((address, 0)).expect("bind");
            let to = peer.local_addr().expect("address");
            drop(peer);
            let mut sockets = Sockets::new().expect("epoll");
            let socket = sockets.udp_open(FLOW, None, to).expect("open");
            assert!(send(&mut sockets, socket, b"lost", None).is_ok());
            assert!(event(&sockets).error);
            // A listener by now; the pending error must not eat this datagram.
            let peer = UdpSocket::bind(to).expect("bind");
            assert!(send(&mut sockets, socket, b"kept", None).is_ok());
            let mut buf = [0; 10];
            assert_eq!(peer.recv(&mut buf).expect("datagram"), 4);
            let report =
                IcmpReport { cause: IcmpCause::PortUnreachable, from: Some(address), sequence: None };
            assert_eq!(sockets.datagram_error(socket), Some(report));
            assert_eq!(sockets.datagram_error(socket), None);
            assert_eq!(recv_one(&mut sockets, socket, &mut buf), Err(HostError::WouldBlock));
            sockets.close(socket, Close::Graceful);
        }
    });
}

#[test]
fn udp_too_big_names_the_path_mtu() {
    in_namespace("sockets::tests::udp_too_big_names_the_path_mtu", || {
        let mut sockets = Sockets::new().expect("epoll");
        let peer = UdpSocket::bind((LOCALHOST, 9)).expect("bind");
        let socket = sockets.udp_open(FLOW, None, peer.local_addr().expect("address")).expect("open");
        let huge = vec![0; 65_508];
        // Larger than any IPv4 datagram.
        assert_eq!(send(&mut sockets, socket, &huge, None), Err(HostError::TooBig(65_535)));
        assert_eq!(sockets.datagram_error(socket), None, "reported once");
        // Larger than the link: fragmented, as for any program.
        ip("link set lo mtu 1500");
        assert!(send(&mut sockets, socket, &huge[..4000], None).is_ok());
        assert_eq!(peer.recv(&mut [0; 5000]).expect("datagram"), 4000);
    });
}

#[test]
fn echo_where_allowed() {
    in_namespace("sockets::tests::echo_where_allowed", || {
        let mut sockets = Sockets::new().expect("epoll");
        let range = "/proc/sys/net/ipv4/ping_group_range";
        // A new namespace allows no group.
        assert_eq!(sockets.ping_open(FLOW, LOCALHOST), Err(HostError::Unsupported));
        std::fs::write(range, "0 0").expect("open");
        for (to, request, reply) in [(LOCALHOST, 8, 0), (Ipv6Addr::LOCALHOST.into(), 128, 129)] {
            let socket = sockets.ping_open(FLOW, to).expect("open");
            let message = [request, 0, 0, 0, 0, 0, 0, 1, b'd', b'a', b't', b'a'];
            assert!(send(&mut sockets, socket, &message, None).is_ok());
            assert!(event(&sockets).readable);
            let mut buf = [0; 100];
            assert_eq!(recv_one(&mut sockets, socket, &mut buf), Ok(plain(12)));
            assert_eq!(buf[0], reply);
            assert_eq!(&buf[6..12], &message[6..]);
            sockets.close(socket, Close::Graceful);
        }
    });
}

#[test]
fn out_of_descriptors_is_an_error_value() {
    in_namespace("sockets::tests::out_of_descriptors_is_an_error_value", || {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let mut sockets = Sockets::new().expect("epoll");
        setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: Some(128) }).expect("limit");
        assert_eq!(raise_nofile(), 128);
        let to = SocketAddr::new(LOCALHOST, 9);
        let mut opened = Vec::new();
        let error = loop {
            match sockets.udp_open(FLOW, None, to) {
                Ok(socket) => opened.push(socket),
                Err(e) => break e,
            }
        };
        assert_eq!(error, HostError::Exhausted);
        assert!(opened.len() > 64 && opened.len() < 128, "{}", opened.len());
        sockets.close(opened[0], Close::Graceful);
        assert_eq!(sockets.udp_open(FLOW, None, to), Ok(opened[0]), "the id is free again");
    });
}

/// Sends one datagram of `len` bytes with these IP header fields.
fn send_marked(
    sockets: &mut Sockets,
    socket: SocketId,
    len: usize,
    (ttl, dont_fragment): (u8, bool),
) -> Result<usize, HostError> {
    let fields =
        IpHeaderFields { ttl: std::num::NonZeroU8::new(ttl), dont_fragment, ..IpHeaderFields::default() };
    sockets.datagram_send(socket, &[IoSlice::new(&vec![8; len])], None, fields)
}

#[test]
fn time_to_live_is_that_of_each_datagram() {
    in_namespace("sockets::tests::time_to_live_is_that_of_each_datagram", || {
        for address in [LOCALHOST, Ipv6Addr::LOCALHOST.into()] {
            let peer = UdpSocket::bind((address, 0)).expect("bind");
            let (level, option) = match address {
                IpAddr::V4(_) => (libc::SOL_IP, libc::IP_RECVTTL),
                IpAddr::V6(_) => (libc::SOL_IPV6, libc::IPV6_RECVHOPLIMIT),
            };
            crate::sys::set_socket_option(peer.as_fd(), level, option, 1).expect("option");
            let mut sockets = Sockets::new().expect("epoll");
            let socket = sockets.udp_open(FLOW, None, peer.local_addr().expect("address")).expect("open");
            for (ttl, seen) in [(0, 64), (1, 1), (1, 1), (254, 254), (0, 64), (255, 255)] {
                assert_eq!(send_marked(&mut sockets, socket, 1, (ttl, true)), Ok(1));
                let (mut buf, mut received) = ([0; 10], 0);
                crate::sys::recv_datagrams(
                    peer.as_fd(),
                    &mut [IoSliceMut::new(&mut buf)],
                    |_, _, control| {
                        let mut messages = crate::sys::control_messages(control);
                        received = messages.next().map_or(0, |(_, _, data)| data[0]);
                    },
                )
                .expect("datagram");
                assert_eq!(received, seen, "{address} {ttl}");
            }
        }
    });
}

#[test]
fn datagrams_with_df_above_the_path_mtu_are_refused_with_it() {
    in_namespace("sockets::tests::datagrams_with_df_above_the_path_mtu_are_refused_with_it", || {
        ip("link add near mtu 1400 type veth peer name far");
        ip("link set near up");
        ip("link set far up");
        ip("addr add 198.18.0.1/24 dev near");
        ip("addr add 2001:db8::1/64 dev near nodad");
        ip("neigh add 198.18.0.2 lladdr 02:00:00:00:00:02 dev near");
        ip("neigh add 2001:db8::2 lladdr 02:00:00:00:00:02 dev near");
        let mut sockets = Sockets::new().expect("epoll");
        for (to, headers) in [("198.18.0.2:9", 28), ("[2001:db8::2]:9", 48)] {
            let to: SocketAddr = to.parse().expect("address");
            let udp = sockets.udp_open(FLOW, None, to).expect("open");
            let fits = 1400 - headers;
            for (len, dont_fragment, expected) in [
                (fits, true, Ok(fits)),
                (fits + 1, true, Err(HostError::TooBig(1400))),
                (fits + 1, false, Ok(fits + 1)),
                (8000, false, Ok(8000)),
                (8000, true, Err(HostError::TooBig(1400))),
                (1, true, Ok(1)),
            ] {
                let sent = send_marked(&mut sockets, udp, len, (0, dont_fragment));
                assert_eq!(sent, expected, "{to} {len} {dont_fragment}");
            }
            // Segments that do not fit are refused one by one.
            let fields = IpHeaderFields { dont_fragment: true, ..IpHeaderFields::default() };
            let sent = sockets.datagram_send(udp, &[IoSlice::new(&[8; 4500])], Some(1500), fields);
            assert_eq!(sent, Err(HostError::TooBig(1400)));
            assert_eq!(
                sockets.datagram_error(udp),
                None,
                "an error returned by the call is not reported again"
            );
            sockets.close(udp, Close::Graceful);
        }
    });
}

#[test]
fn a_socket_whose_address_is_gone_is_stranded() {
    in_namespace("sockets::tests::a_socket_whose_address_is_gone_is_stranded", || {
        let own = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse::<IpAddr>().expect("an address"));
        ip("addr add 192.0.2.1/32 dev lo");
        ip("addr add 2001:db8::1/128 dev lo nodad");
        let mut sockets = Sockets::new().expect("epoll");
        let bound = own.map(|ip| sockets.udp_open(FLOW, None, SocketAddr::new(ip, 9)).expect("a route"));
        let loopback =
            sockets.udp_open(FLOW, None, SocketAddr::new([127, 0, 0, 7].into(), 9)).expect("a route");
        let stranded =
            |sockets: &mut Sockets| [bound[0], bound[1], loopback].map(|id| sockets.is_stranded(id));
        assert_eq!(stranded(&mut sockets), [false; 3], "no socket affected");
        sockets.assume_addresses(own.into());
        sockets.set_addresses(own.into());
        assert_eq!(stranded(&mut sockets), [false; 3]);
        sockets.set_addresses([own[1]].into());
        assert_eq!(stranded(&mut sockets), [true, false, false]);
        sockets.close(bound[0], Close::Graceful);
        assert_eq!(stranded(&mut sockets), [false; 3], "of what is closed nothing is said");
        sockets.set_addresses([].into());
        assert_eq!(stranded(&mut sockets), [false, true, false]);
    });
}

/// Over IPv6 the kernel says EINVAL to a source that is gone, and to segments that a device cannot take.
#[test]
fn a_source_that_is_gone_says_nothing_of_segments() {
    in_namespace("sockets::tests::a_source_that_is_gone_says_nothing_of_segments", || {
        let peer = UdpSocket::bind("[::1]:0").expect("bind");
        let port = Published::new(UdpSocket::bind("[::]:0").expect("bind").into());
        let send = |source| {
            let to = peer.local_addr().expect("an address");
            port.send(&[IoSlice::new(b"aabb")], to, source, Some(2), IpHeaderFields::default())
        };
        let gone = Source { address: "2001:db8::1".parse().expect("an address"), interface: 0 };
        assert_eq!(send(Some(gone)), Err(Errno::INVAL));
        assert_eq!((port.segment_max(), send(None)), (u16::MAX, Ok(4)));
        for expected in [b"aa", b"bb"] {
            let mut buffer = [0; 10];
            let (len, _) = peer.recv_from(&mut buffer).expect("a datagram");
            assert_eq!(&buffer[..len], expected);
        }
    });
}
