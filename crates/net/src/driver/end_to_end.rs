//! The whole data path on real descriptors: a guest in a namespace of its own, a TAP, the loop with its
//! stack, and servers on the host's loopback. Content arrives unchanged, and the loop sleeps without work.

use super::{Activity, Parts, Wake, Worker};
use crate::clock::Clock;
use crate::ephemeral_ports::{ephemeral_ports, udp_flows_max};
use crate::sockets::Sockets;
use crate::workers::{WorkerHandle, Workers};
use brodo_core::config::Config;
use brodo_core::link::Link;
use brodo_core::stack::{Keys, Stack};
use brodo_link::GuestLink;
use brodo_link::tap::{Tap, Wanted};
use brodo_testns::{in_namespace_with_tun, ip};
use nix::sched::{CloneFlags, unshare};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::SendFlags;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

/// The addresses that stand for the host's loopback.
pub(super) const HOST: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 2, 4)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 4))];
const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
const LIMIT: Duration = Duration::from_secs(20);

/// Runs `guest` in the guest's namespace while a worker serves it; returns the activity of the loop.
fn with_guest(wanted: Wanted, mtu: u16, guest: impl FnOnce() + Send + 'static) -> Activity {
    serve_guest(wanted, mtu, guest).activity()
}

/// As [`with_guest`], but returns the worker.
pub(super) fn serve_guest(wanted: Wanted, mtu: u16, guest: impl FnOnce() + Send + 'static) -> Worker<Tap> {
    let (to_worker, taps) = mpsc::channel();
    let done = eventfd(0, EventfdFlags::CLOEXEC).expect("eventfd");
    let signal = done.try_clone().expect("clone");
    let guest = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a namespace for this thread and its children alone");
        let tap = Tap::create("tap0", wanted).expect("TAP");
        ip(&format!("link set tap0 mtu {mtu} up"));
        ip("addr add 10.0.2.15/24 dev tap0");
        ip("-6 addr add fd00::15/64 dev tap0 nodad");
        to_worker.send(tap).expect("the worker waits");
        // Reported even if the guest panics: the worker must end.
        let _end = OnDrop(signal);
        guest();
    });
    let tap = taps.recv().expect("TAP");
    let mut config = Config { mtu, max_udp_flows: udp_flows_max(&ephemeral_ports()), ..Config::default() };
    config.v4.as_mut().expect("default").host_loopback = Some(Ipv4Addr::new(10, 0, 2, 4));
    config.v6.as_mut().expect("default").host_loopback = Some(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 4));
    let stack = Stack::new(config, Keys { table: [1; 16], isn: [2; 16], dns: [3; 16] }, tap.caps());
    let handle = WorkerHandle::new(Arc::new(Workers::new(1).expect("eventfd")), 0).expect("the first");
    let parts = Parts::new(stack, tap, Sockets::new().expect("epoll"), Clock::start(), handle);
    let mut worker = Worker::new(parts).expect("worker");
    worker.watch(&done, 1).expect("watch");
    let mut noticed = false;
    loop {
        match worker.run() {
            Ok(Wake::Extra(1)) => break,
            Ok(Wake::UdpPortsSpent) if !noticed => noticed = true,
            other => panic!("{other:?}"),
        }
    }
    guest.join().expect("the guest was content");
    assert!(!worker.link().gone());
    worker
}

/// Writes to an eventfd when it goes out of scope.
struct OnDrop(std::os::fd::OwnedFd);

impl Drop for OnDrop {
    fn drop(&mut self) {
        rustix::io::write(self.0.as_fd(), &1u64.to_ne_bytes()).expect("eventfd");
    }
}

/// Echo servers for TCP and UDP on both loopbacks, on the same port; returns the ports.
pub(super) fn echo_servers() -> [u16; 2] {
    LOOPBACK.map(|address| {
        let listener = TcpListener::bind((address, 0)).expect("listen");
        let port = listener.local_addr().expect("address").port();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("accept");
                let mut out = stream.try_clone().expect("clone");
                thread::spawn(move || {
                    let _ = std::io::copy(&mut stream, &mut out);
                    let _ = out.shutdown(Shutdown::Write);
                });
            }
        });
        let socket = UdpSocket::bind((address, port)).expect("bind");
        thread::spawn(move || {
            let mut buf = vec![0; 1 << 16];
            while let Ok((len, from)) = socket.recv_from(&mut buf) {
                socket.send_to(&buf[..len], from).expect("send");
            }
        });
        port
    })
}

pub(super) fn connect(host: IpAddr, port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&(host, port).into(), LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    Ok(stream)
}

/// Sends `data` and its end, and expects the same back.
fn echo(host: IpAddr, port: u16, data: &[u8]) {
    let mut stream = connect(host, port).expect("connect");
    let mut out = stream.try_clone().expect("clone");
    thread::scope(|scope| {
        scope.spawn(move || {
            out.write_all(data).expect("write");
            out.shutdown(Shutdown::Write).expect("shutdown");
        });
        let mut back = Vec::new();
        stream.read_to_end(&mut back).expect("read");
        assert!(back == data, "{} of {} bytes came back, or others", back.len(), data.len());
    });
}

fn everything_passes(ports: [u16; 2]) {
    let data: Vec<u8> = (0..20_000_000u32).map(|i| (i ^ (i >> 9)) as u8).collect();
    for (host, port) in HOST.into_iter().zip(ports) {
        for len in [0, 1, 70_000, data.len()] {
            echo(host, port, &data[..len]);
        }
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| echo(host, port, &data[..1_000_000]));
            }
        });
        let closed = if port == 1 { 2 } else { 1 };
        assert_eq!(connect(host, closed).expect_err("no listener").kind(), ErrorKind::ConnectionRefused);
        let any: IpAddr =
            if host.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).expect("bind");
        socket.set_read_timeout(Some(LIMIT)).expect("limit");
        socket.connect((host, port)).expect("connect");
        let mut back = [0; 2000];
        for len in [0, 1, 1400] {
            socket.send(&data[..len]).expect("send");
            let got = socket.recv(&mut back).expect("answer");
            assert!(back[..got] == data[..len]);
        }
        socket.connect((host, closed)).expect("connect");
        socket.send(b"?").expect("send");
        assert_eq!(socket.recv(&mut back).expect_err("refused").kind(), ErrorKind::ConnectionRefused);
    }
}

#[test]
fn with_every_offload() {
    in_namespace_with_tun("driver::end_to_end::with_every_offload", || {
        let ports = echo_servers();
        with_guest(Wanted::Everything, 65_520, move || everything_passes(ports));
    });
}

#[test]
fn with_every_offload_at_an_ordinary_mtu() {
    in_namespace_with_tun("driver::end_to_end::with_every_offload_at_an_ordinary_mtu", || {
        let ports = echo_servers();
        with_guest(Wanted::Everything, 1500, move || everything_passes(ports));
    });
}

#[test]
fn without_offload_and_without_a_header() {
    in_namespace_with_tun("driver::end_to_end::without_offload_and_without_a_header", || {
        let ports = echo_servers();
        with_guest(Wanted::NoOffload, 1500, move || everything_passes(ports));
        with_guest(Wanted::NoHeader, 1500, move || everything_passes(ports));
    });
}

/// Stalled connections, on either side, cost no processor time.
#[test]
fn stalled_connections_do_not_spin() {
    in_namespace_with_tun("driver::end_to_end::stalled_connections_do_not_spin", || {
        let [port, _] = echo_servers();
        let activity = with_guest(Wanted::Everything, 65_520, move || {
            let _idle: Vec<_> = (0..50).map(|_| connect(HOST[0], port).expect("connect")).collect();
            // Unread echo: first the guest's window closes, then the server's buffers fill.
            let mut full = connect(HOST[0], port).expect("connect");
            full.set_nonblocking(true).expect("non-blocking");
            let chunk = vec![0; 1 << 16];
            let mut refused = 0;
            while refused < 100 {
                match full.write(&chunk) {
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {
                        refused += 1;
                        thread::sleep(Duration::from_millis(1));
                    }
                    other => refused = other.map(|_| 0).expect("write"),
                }
            }
            thread::sleep(Duration::from_secs(1));
        });
        // Each turn belongs to a frame, a connection or a probe; a loop that spins makes millions.
        assert!(activity.turns < 20_000, "{activity:?}");
    });
}

/// Urgent data of a peer arrives in line, at once, and without loss or delay of later data.
#[test]
fn urgent_data_of_a_peer_arrives_in_line() {
    in_namespace_with_tun("driver::end_to_end::urgent_data_of_a_peer_arrives_in_line", || {
        const ROUNDS: usize = 200;
        const ROUND: usize = 100_000;
        let listener = TcpListener::bind((LOOPBACK[0], 0)).expect("listen");
        let port = listener.local_addr().expect("address").port();
        let server = thread::spawn(move || {
            let urgent = |stream: &TcpStream| rustix::net::send(stream, b"!", SendFlags::OOB).expect("send");
            let (mut stream, _) = listener.accept().expect("accept");
            stream.write_all(b"abc").expect("write");
            assert_eq!(urgent(&stream), 1);
            stream.write_all(b"def").expect("write");
            // It says nothing more until the guest has all of this.
            stream.read_exact(&mut [0]).expect("the guest has got it");
            let round = vec![b'.'; ROUND];
            for _ in 0..ROUNDS {
                stream.write_all(&round).expect("write");
                assert_eq!(urgent(&stream), 1);
            }
        });
        with_guest(Wanted::Everything, 65_520, move || {
            let mut stream = connect(HOST[0], port).expect("connect");
            let mut first = [0; 7];
            stream.read_exact(&mut first).expect("all of it, though nothing follows");
            assert_eq!(&first, b"abc!def");
            stream.write_all(b"+").expect("write");
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).expect("read");
            assert_eq!(rest.len(), ROUNDS * (ROUND + 1));
            assert!(rest.chunks(ROUND + 1).all(|round| round[ROUND] == b'!'), "each in its place");
        });
        server.join().expect("the server was content");
    });
}

/// UDP port scan by the guest: other programs of the host still get ports, and the newest flow works.
#[test]
fn a_scan_of_udp_ports_leaves_the_host_most_of_its_own() {
    in_namespace_with_tun("driver::end_to_end::a_scan_of_udp_ports_leaves_the_host_most_of_its_own", || {
        let [port, _] = echo_servers();
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40059").expect("sixty ports");
        let worker = serve_guest(Wanted::Everything, 1500, move || {
            let socket = UdpSocket::bind(("10.0.2.15", 0)).expect("bind");
            for scanned in 1000..1500 {
                // Answered with port unreachable, which an unconnected socket does not report.
                socket.send_to(b"?", (HOST[0], scanned)).expect("send");
            }
            socket.set_read_timeout(Some(LIMIT)).expect("limit");
            socket.send_to(b"!", (HOST[0], port)).expect("send");
            assert_eq!(socket.recv(&mut [0; 8]).expect("the echo"), 1);
        });
        // Sockets of flows stay open for as long as the worker is there.
        assert_eq!((udp_flows_max(&ephemeral_ports()), worker.sockets().open()), (15, 15));
        let others: Vec<_> = (0..40).map(|_| UdpSocket::bind((LOOPBACK[0], 0)).expect("a port")).collect();
        assert_eq!(others.len(), 40);
        assert!(worker.stack().counters().udp_flows_evicted > 0);
        assert!(worker.udp_ports_reported, "the user gets a notice");
    });
}
