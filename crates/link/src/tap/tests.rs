//! Kernel behaviour that the TAP relies on, asserted on the running one: each test makes a namespace and is
//! the peer of the kernel TCP and UDP in it.

use super::{Tap, TapError, Wanted};
use crate::GuestLink;
use crate::sys;
use crate::vnet::HEADER_LEN;
use brodo_core::link::{FRAME_MAX, Gso, Link, LinkCaps, PartialChecksum, RxChecksum, RxMeta, TxFrame};
use brodo_testns::{in_namespace_with_tun, ip};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::UdpGsoSegment;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{IoSlice, Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::process::Command;
use std::time::Duration;

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// A TAP named tap0 with an address, a neighbour and no traffic of its own accord.
fn guest(wanted: Wanted) -> Tap {
    let tap = Tap::create("tap0", wanted).expect("TAP");
    bring_up();
    tap
}

/// Configures tap0 as [`guest`] needs it.
fn bring_up() {
    std::fs::write("/proc/sys/net/ipv6/conf/tap0/disable_ipv6", "1").expect("no IPv6 chatter");
    ip("link set tap0 address 02:00:00:00:00:01");
    ip("addr add 10.0.2.15/24 dev tap0");
    ip("link set tap0 up");
    ip("neigh add 10.0.2.2 lladdr 02:00:00:00:00:02 dev tap0");
}

fn ipv4_headers(protocol: u8, l4: &[u8], payload: usize) -> Vec<u8> {
    let mut h = Vec::new();
    h.extend(GUEST_MAC);
    h.extend(PEER_MAC);
    h.extend([8, 0]);
    let total = (20 + l4.len() + payload) as u16;
    let mut ip = vec![0x45, 0];
    ip.extend(total.to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    ip.extend(PEER.octets());
    ip.extend(GUEST.octets());
    let sum = fold(ip.chunks(2).map(|c| u32::from(u16::from_be_bytes([c[0], c[1]]))).sum());
    ip[10..12].copy_from_slice(&(!sum).to_be_bytes());
    h.extend(ip);
    h.extend(l4);
    // The pseudo-header sum, not inverted, in the checksum field: the rest is the guest's.
    let at = 34 + if protocol == 6 { 16 } else { 6 };
    let words = [PEER.octets(), GUEST.octets()].concat();
    let sum: u32 = words.chunks(2).map(|c| u32::from(u16::from_be_bytes([c[0], c[1]]))).sum();
    let sum = fold(sum + u32::from(protocol) + (l4.len() + payload) as u32);
    h[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    h
}

fn fold(mut sum: u32) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn tcp(port: u16, seq: u32, ack: u32, flags: u8) -> Vec<u8> {
    let mut h = Vec::new();
    h.extend(7000u16.to_be_bytes());
    h.extend(port.to_be_bytes());
    h.extend(seq.to_be_bytes());
    h.extend(ack.to_be_bytes());
    h.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    h
}

/// The next frame from the guest, waiting for it.
fn recv(tap: &mut Tap) -> (RxMeta, Vec<u8>) {
    let mut buf = vec![0; FRAME_MAX];
    loop {
        if let Some((meta, len)) = tap.recv(&mut buf).expect("read") {
            buf.truncate(len);
            return (meta, buf);
        }
        wait(tap, PollFlags::IN);
    }
}

fn wait(tap: &Tap, flags: PollFlags) -> PollFlags {
    let mut fds = [PollFd::new(&tap.fd, flags)];
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(poll(&mut fds, Some(&limit)).expect("poll"), 1, "nothing within 10 s");
    fds[0].revents()
}

fn send(tap: &mut Tap, headers: &[u8], payload: &[u8], partial: u16, gso: Gso) {
    let payload = [IoSlice::new(payload)];
    let partial = Some(PartialChecksum { start: 34, offset: partial });
    tap.send(&TxFrame { headers, payload: &payload, partial, gso }).expect("credit");
    assert_eq!(tap.losses(), super::LinkLosses::default(), "the kernel took the frame");
}

#[test]
fn kernel_grants_header_and_offloads() {
    in_namespace_with_tun("tap::tests::kernel_grants_header_and_offloads", || {
        let tap = guest(Wanted::Everything);
        assert!(tap.has_header());
        assert_eq!(sys::tun_header_len(&tap.fd).expect("length"), HEADER_LEN as i32);
        // USO came with Linux 6.2.
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("release");
        let mut numbers = release.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        assert_eq!(
            tap.caps(),
            LinkCaps { checksum: true, tso: true, uso: version >= (6, 2), packet_max: None }
        );
        // The two halves of USO are only granted together.
        let uso4 = libc::TUN_F_CSUM | libc::TUN_F_USO4;
        assert!(sys::tun_set_offload(&tap.fd, uso4).is_err());
        // A new owner of the descriptor finds the same properties.
        let caps = tap.caps();
        let tap = Tap::from_fd(tap.into_fd(), Wanted::Everything).expect("again");
        assert_eq!((tap.has_header(), tap.caps()), (true, caps));
        let tap = Tap::from_fd(tap.into_fd(), Wanted::NoOffload).expect("again");
        assert_eq!((tap.has_header(), tap.caps()), (true, LinkCaps::default()));
    });
}

#[test]
fn bare_frames_without_a_header() {
    in_namespace_with_tun("tap::tests::bare_frames_without_a_header", || {
        let mut tap = guest(Wanted::NoHeader);
        assert!(!tap.has_header());
        assert_eq!(tap.caps(), LinkCaps::default());
        let socket = UdpSocket::bind((GUEST, 0)).expect("bind");
        socket.send_to(b"ping", (PEER, 9)).expect("send");
        let (meta, frame) = recv(&mut tap);
        assert_eq!(meta, RxMeta::default());
        assert_eq!(frame.len(), 14 + 20 + 8 + 4);
        assert_eq!(frame[..6], PEER_MAC);
        // The other direction. UDP over IPv4 may omit the checksum.
        let port = socket.local_addr().expect("address").port().to_be_bytes();
        let mut headers = ipv4_headers(17, &[0, 9, port[0], port[1], 0, 12, 0, 0], 4);
        headers[40..42].fill(0);
        let payload = [IoSlice::new(b"po"), IoSlice::new(b"ng")];
        tap.send(&TxFrame { headers: &headers, payload: &payload, partial: None, gso: Gso::None })
            .expect("credit");
        let mut answer = [0; 16];
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("limit");
        assert_eq!(socket.recv(&mut answer).expect("answer"), 4);
        assert_eq!(&answer[..4], b"pong");
    });
}

#[test]
fn one_write_is_many_segments_and_its_ack_is_there_at_once() {
    in_namespace_with_tun("tap::tests::one_write_is_many_segments_and_its_ack_is_there_at_once", || {
        let mut tap = guest(Wanted::Everything);
        let listener = TcpListener::bind((GUEST, 80)).expect("listen");
        send(&mut tap, &ipv4_headers(6, &tcp(80, 1000, 0, 2), 0), &[], 16, Gso::None);
        // The guest's SYN-ACK was made inside our write.
        let mut buf = vec![0; FRAME_MAX];
        let (meta, _) = tap.recv(&mut buf).expect("read").expect("SYN-ACK without waiting");
        assert_eq!(meta.checksum, RxChecksum::Valid, "the guest left the checksum to us");
        assert_eq!(buf[47] & 0x12, 0x12);
        let their = u32::from_be_bytes(buf[38..42].try_into().expect("4")).wrapping_add(1);
        send(&mut tap, &ipv4_headers(6, &tcp(80, 1001, their, 0x10), 0), &[], 16, Gso::None);
        let (mut guest, _) = listener.accept().expect("accept");
        // 40 segments in one frame, over an MTU of 1500.
        let data: Vec<u8> = (0..40 * 1460u32).map(|i| i as u8).collect();
        let headers = ipv4_headers(6, &tcp(80, 1001, their, 0x18), data.len());
        send(&mut tap, &headers, &data, 16, Gso::Tcp4(1460));
        let acked = |frame: &[u8]| u32::from_be_bytes(frame[42..46].try_into().expect("4"));
        let mut last = 0;
        while let Some((_, len)) = tap.recv(&mut buf).expect("read") {
            assert!(len >= 54);
            last = acked(&buf);
        }
        assert_eq!(last, 1001 + data.len() as u32, "all of it was acknowledged inside the write");
        let mut read = vec![0; data.len()];
        guest.read_exact(&mut read).expect("data");
        assert!(read == data);
        // The other way: one write of the guest comes in frames above the MTU.
        guest.set_nodelay(true).expect("nodelay");
        guest.write_all(&data[..10 * 1460]).expect("write");
        let (meta, frame) = loop {
            let (meta, frame) = recv(&mut tap);
            if frame.len() > 54 {
                break (meta, frame);
            }
        };
        assert!(matches!(meta.gso, Gso::Tcp4(536..=1460)), "{meta:?}");
        assert!(frame.len() > 1514, "{}", frame.len());
    });
}

#[test]
fn udp_super_frames_both_ways() {
    in_namespace_with_tun("tap::tests::udp_super_frames_both_ways", || {
        let mut tap = guest(Wanted::Everything);
        if !tap.caps().uso {
            return;
        }
        let socket = UdpSocket::bind((GUEST, 53)).expect("bind");
        let data = vec![7; 40 * 1400];
        let len = ((data.len() + 8) as u16).to_be_bytes();
        let headers = ipv4_headers(17, &[0, 9, 0, 53, len[0], len[1], 0, 0], data.len());
        send(&mut tap, &headers, &data, 6, Gso::Udp(1400));
        let mut one = [0; 2000];
        socket.set_nonblocking(true).expect("non-blocking");
        let sizes: Vec<_> = std::iter::from_fn(|| socket.recv(&mut one).ok()).collect();
        assert_eq!(sizes, [1400; 40]);
        socket.connect((PEER, 9)).expect("connect");
        setsockopt(&socket, UdpGsoSegment, &1400).expect("UDP_SEGMENT");
        assert_eq!(socket.send(&data).expect("send"), data.len());
        let (meta, frame) = recv(&mut tap);
        assert_eq!(meta, RxMeta { checksum: RxChecksum::Valid, gso: Gso::Udp(1400) });
        assert_eq!(frame.len(), 42 + data.len());
    });
}

/// A tunnel in the guest: since Linux 6.17 its kernel leaves the inner checksum to the device.
#[test]
fn a_datagram_in_a_tunnel_has_its_checksum() {
    in_namespace_with_tun("tap::tests::a_datagram_in_a_tunnel_has_its_checksum", || {
        let mut tap = guest(Wanted::Everything);
        let words = "link add tunnel0 type vxlan id 1 dstport 4789 remote 10.0.2.2 local 10.0.2.15";
        let added = Command::new("ip").args(words.split(' ')).status().expect("iproute2 is installed");
        if !added.success() {
            eprintln!("*** SKIPPED: the kernel has no VXLAN");
            return;
        }
        std::fs::write("/proc/sys/net/ipv6/conf/tunnel0/disable_ipv6", "1").expect("no IPv6 chatter");
        ip("addr add 10.9.0.1/24 dev tunnel0");
        ip("link set tunnel0 up");
        ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:03 dev tunnel0");
        let socket = UdpSocket::bind(("10.9.0.1", 0)).expect("bind");
        socket.send_to(b"ping", ("10.9.0.2", 9)).expect("send");
        let (meta, frame) = recv(&mut tap);
        assert_eq!(frame.len(), 14 + 20 + 8 + 8 + 14 + 20 + 8 + 4);
        assert_eq!(meta, RxMeta::default(), "the outer checksum is to be verified");
        for (ip, udp) in [(14, 34), (64, 84)] {
            let addresses = [&frame[ip + 12..ip + 20], &[0, 17], &((frame.len() - udp) as u16).to_be_bytes()];
            let words = [&addresses.concat(), &frame[udp..]].concat();
            let sum = words.chunks(2).map(|c| u32::from(u16::from_be_bytes([c[0], c[1]]))).sum();
            assert!(frame[udp + 6..udp + 8] != [0, 0] || udp == 34, "there is a checksum");
            assert!(fold(sum) == 0xffff || frame[udp + 6..udp + 8] == [0, 0], "of the header at {udp}");
        }
    });
}

/// The guest's datagrams from `sockets`, one each: the queue of each source port.
fn queues_of(taps: &mut [Tap], sockets: &[UdpSocket]) -> Vec<(u16, usize)> {
    for socket in sockets {
        socket.send_to(b"ping", (PEER, 9)).expect("send");
    }
    let (mut found, mut buf) = (Vec::new(), vec![0; FRAME_MAX]);
    for (queue, tap) in taps.iter_mut().enumerate() {
        while let Some((_, len)) = tap.recv(&mut buf).expect("read") {
            assert_eq!((len, buf[23]), (14 + 20 + 8 + 4, 17), "only UDP is sent");
            found.push((u16::from_be_bytes([buf[34], buf[35]]), queue));
        }
    }
    found.sort_unstable();
    found
}

#[test]
fn a_flow_stays_with_its_queue() {
    in_namespace_with_tun("tap::tests::a_flow_stays_with_its_queue", || {
        let mut taps = Tap::create_queues("tap0", Wanted::Everything, 4).expect("TAP");
        let caps = taps[0].caps();
        assert!(taps.iter().all(|tap| tap.has_header() && tap.caps() == caps));
        bring_up();
        let sockets: Vec<_> = (0..200).map(|_| UdpSocket::bind((GUEST, 0)).expect("bind")).collect();
        let first = queues_of(&mut taps, &sockets);
        assert_eq!(first.len(), sockets.len(), "each datagram came once");
        for queue in 0..4 {
            let share = first.iter().filter(|(_, at)| *at == queue).count();
            assert!((20..=80).contains(&share), "queue {queue} has {share} of 200 flows");
        }
        // An answer through the same queue changes nothing ...
        let answer = |tap: &mut Tap, port: u16| {
            let [high, low] = port.to_be_bytes();
            let headers = ipv4_headers(17, &[0, 9, high, low, 0, 12, 0, 0], 4);
            send(tap, &headers, b"pong", 6, Gso::None);
        };
        for &(port, queue) in &first {
            answer(&mut taps[queue], port);
        }
        assert_eq!(queues_of(&mut taps, &sockets), first);
        // ... while one through another turns the flow to that: hence no worker may write for another.
        let (port, queue) = first[0];
        answer(&mut taps[(queue + 1) % 4], port);
        let mut turned = first.clone();
        turned[0] = (port, (queue + 1) % 4);
        assert_eq!(queues_of(&mut taps, &sockets), turned);
        // Down and up again the queues are the same.
        answer(&mut taps[queue], port);
        ip("link set tap0 down");
        ip("link set tap0 up");
        ip("neigh replace 10.0.2.2 lladdr 02:00:00:00:00:02 dev tap0");
        assert_eq!(queues_of(&mut taps, &sockets), first);
        // A queue less, and flows that were not turned anywhere go elsewhere: all stay open to the end.
        let fresh: Vec<_> = (0..200).map(|_| UdpSocket::bind((GUEST, 0)).expect("bind")).collect();
        let before = queues_of(&mut taps, &fresh);
        drop(taps.pop());
        let after = queues_of(&mut taps, &fresh);
        let moved = before.iter().zip(&after).filter(|((_, old), (_, new))| *old < 3 && old != new).count();
        assert!(moved > 0, "the hash depends on the number of queues");
    });
}

/// Root of the guest changes the length of the header by a queue of its own, which counts for the whole
/// interface.
#[test]
fn a_header_length_set_by_another_queue_costs_one_frame() {
    in_namespace_with_tun("tap::tests::a_header_length_set_by_another_queue_costs_one_frame", || {
        let queue = || {
            let flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE) as i16;
            Tap::open(Tap::device().expect("device"), "tap0", Wanted::Everything, flags).expect("TAP")
        };
        let mut tap = queue();
        bring_up();
        let spoil = || sys::tun_set_header_len(&queue().fd, 1 << 20).expect("any queue may");
        let socket = UdpSocket::bind((GUEST, 0)).expect("bind");
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("limit");
        for round in 0..3 {
            spoil();
            socket.send_to(b"lost", (PEER, 9)).expect("send");
            assert_eq!(recv(&mut tap), (RxMeta::default(), vec![]), "in round {round}");
            let mut buf = vec![0; FRAME_MAX];
            assert!(tap.recv(&mut buf).expect("no more").is_none(), "and nothing else to read");
            socket.send_to(b"ping", (PEER, 9)).expect("send");
            assert_eq!(recv(&mut tap).1.len(), 14 + 20 + 8 + 4);

            // Toward the guest no frame is lost.
            spoil();
            let port = socket.local_addr().expect("address").port().to_be_bytes();
            let headers = ipv4_headers(17, &[0, 9, port[0], port[1], 0, 12, 0, 0], 4);
            send(&mut tap, &headers, b"pong", 6, Gso::None);
            let mut answer = [0; 16];
            assert_eq!(socket.recv(&mut answer).expect("answer"), 4);
        }
    });
}

#[test]
fn a_short_read_loses_the_rest() {
    in_namespace_with_tun("tap::tests::a_short_read_loses_the_rest", || {
        let tap = guest(Wanted::NoHeader);
        let socket = UdpSocket::bind((GUEST, 0)).expect("bind");
        socket.send_to(&[1; 1000], (PEER, 9)).expect("send");
        let mut short = [0; 100];
        wait(&tap, PollFlags::IN);
        assert_eq!(rustix::io::read(&tap.fd, &mut short), Ok(100));
        assert_eq!(rustix::io::read(&tap.fd, &mut short), Err(super::Errno::AGAIN));
    });
}

#[test]
fn a_device_that_is_down_loses_frames_and_a_deleted_one_is_gone() {
    in_namespace_with_tun("tap::tests::a_device_that_is_down_loses_frames_and_a_deleted_one_is_gone", || {
        let mut tap = guest(Wanted::Everything);
        let headers = ipv4_headers(6, &tcp(80, 1, 0, 2), 0);
        let frame = TxFrame { headers: &headers, payload: &[], partial: None, gso: Gso::None };
        ip("link set tap0 down");
        assert_eq!(tap.send(&frame), Ok(()));
        assert_eq!((tap.losses().down, tap.gone()), (1, false));
        ip("link set tap0 up");
        // A checksum outside the frame: the kernel says EINVAL.
        let absurd = TxFrame { partial: Some(PartialChecksum { start: 60_000, offset: 16 }), ..frame };
        assert_eq!(tap.send(&absurd), Ok(()));
        assert_eq!((tap.losses().refused, tap.gone()), (1, false));
        ip("link del tap0");
        assert!(wait(&tap, PollFlags::IN).contains(PollFlags::ERR), "deletion wakes whoever waits");
        assert_eq!(tap.recv(&mut vec![0; FRAME_MAX]).expect("no error"), None);
        assert!(tap.gone());
        assert_eq!(tap.send(&frame), Ok(()));
        assert_eq!(tap.losses().down, 2);
    });
}

#[test]
fn an_open_tap_keeps_its_namespace() {
    in_namespace_with_tun("tap::tests::an_open_tap_keeps_its_namespace", || {
        let mut tap = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("a namespace for this thread alone");
            Tap::create("tap0", Wanted::Everything).expect("TAP")
        })
        .join()
        .expect("thread");
        // The namespace's last process has ended, but the descriptor holds the namespace: the TAP alone does
        // not show the guest's end. Deletion is asynchronous, so the test waits a moment for it to happen.
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(tap.recv(&mut vec![0; FRAME_MAX]).expect("no error"), None);
        assert!(!tap.gone());
    });
}

#[test]
fn errors_name_call_and_remedy() {
    in_namespace_with_tun("tap::tests::errors_name_call_and_remedy", || {
        let long = Tap::create("a-name-of-more-than-15", Wanted::Everything).expect_err("too long");
        assert!(long.to_string().starts_with("TUNSETIFF a-name"), "{long}");
        let loopback = Tap::create("lo", Wanted::Everything).expect_err("not a TAP");
        assert!(matches!(loopback, TapError::Attach(..)));
        let _held = guest(Wanted::Everything);
        let busy = Tap::create("tap0", Wanted::Everything).expect_err("in use");
        assert!(busy.to_string().contains("in use"), "{busy}");
        let file = std::fs::File::open("/dev/null").expect("file");
        assert!(matches!(Tap::from_fd(file.into(), Wanted::Everything), Err(TapError::NotTap)));
    });
}
