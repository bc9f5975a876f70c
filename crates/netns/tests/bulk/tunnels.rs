//! A guest with a tunnel, as of a VPN: connections within it beside promoted flows, and over one.
//!
//! ```text
//! guest's namespace                                          host's namespace
//! programs -- vpn0 (TUN) -- end -- eth0 -- brodo or the kernel -- end -- vpn1 (TUN) -- servers
//!                              datagrams, or one stream
//! ```

use crate::bed::{Bed, HOST, eager};
use crate::guests::shell;
use crate::transfer::{ENDLESS, Head, during_transfers, transfer};
use brodo_core::config::{Bulk, BulkBounds};
use brodo_core::time::Duration;
use brodo_link::tun;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The host's address within the tunnel.
const INNER_HOST: Ipv4Addr = Ipv4Addr::new(10, 99, 7, 1);
/// Bytes of a transfer within the tunnel beside promoted flows.
const INNER_BYTES: u64 = 16 << 20;
/// Largest packet of a TUN device with its header.
const PACKET_MAX: usize = 66 << 10;

/// A TUN device of the calling thread's namespace. Super-packets of `offload` are longer than a datagram.
fn device(name: &str, address: &str, offload: bool) -> Arc<OwnedFd> {
    let device = tun::create(name, offload).unwrap();
    shell(&format!("ip address add {address}/24 dev {name}; ip link set {name} mtu 1400 up"));
    Arc::new(device)
}

/// Reads the next packet of a device; its length.
fn read_packet(device: &OwnedFd, packet: &mut [u8]) -> usize {
    loop {
        if let Ok(len) = rustix::io::read(device, &mut *packet) {
            return len;
        }
        poll(&mut [PollFd::new(device, PollFlags::IN)], None).unwrap();
    }
}

/// Moves packets between a device and datagrams, until the test's end.
fn join_datagrams(device: Arc<OwnedFd>, socket: UdpSocket) {
    let (out, sending) = (device.clone(), socket.try_clone().unwrap());
    thread::spawn(move || {
        let mut packet = vec![0; PACKET_MAX];
        loop {
            let len = read_packet(&out, &mut packet);
            // Lost as any datagram may be.
            let _ = sending.send(&packet[..len]);
        }
    });
    thread::spawn(move || {
        let mut packet = vec![0; PACKET_MAX];
        loop {
            let len = socket.recv(&mut packet).unwrap_or(0);
            let _ = rustix::io::write(&device, &packet[..len]);
        }
    });
}

/// Moves packets between a device and a stream, each behind its length.
fn join_stream(device: Arc<OwnedFd>, mut stream: TcpStream) {
    let (out, mut sending) = (device.clone(), stream.try_clone().unwrap());
    thread::spawn(move || {
        let mut packet = vec![0; PACKET_MAX];
        loop {
            let len = read_packet(&out, &mut packet[4..]);
            packet[..4].copy_from_slice(&(len as u32).to_le_bytes());
            if sending.write_all(&packet[..4 + len]).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        let (mut len, mut packet) = ([0; 4], vec![0; PACKET_MAX]);
        while stream.read_exact(&mut len).is_ok() {
            let packet = &mut packet[..u32::from_le_bytes(len) as usize];
            stream.read_exact(packet).unwrap();
            let _ = rustix::io::write(&device, packet);
        }
    });
}

/// A VPN that has the guest's default route, over UDP: two transfers within it, while two beside it are
/// promoted.
pub(crate) fn of_datagrams() {
    let bed = Bed::new(1500, eager());
    let theirs = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = theirs.local_addr().unwrap().port();
    bed.in_guest(|| {
        let device = device("vpn0", "10.99.7.2", false);
        shell("ip route replace default dev vpn0");
        let ours = UdpSocket::bind("0.0.0.0:0").unwrap();
        ours.connect((HOST[0], port)).unwrap();
        ours.send(b"begin").unwrap();
        join_datagrams(device, ours);
    });
    let (_, from) = theirs.recv_from(&mut [0; 8]).unwrap();
    theirs.connect(from).unwrap();
    join_datagrams(device("vpn1", "10.99.7.1", false), theirs);
    let at = bed.server.also_at(INNER_HOST);
    let inner = |number: u64, upload: bool| {
        let head = Head { upload, number, bytes: INNER_BYTES };
        assert_eq!(bed.in_guest(|| transfer(at, head, &AtomicBool::new(false))), INNER_BYTES);
    };
    during_transfers(&bed, || {
        bed.until_carried(2);
        thread::scope(|scope| {
            scope.spawn(|| inner(3, true));
            inner(4, false);
        });
        bed.until_carried(2);
    });
    assert_eq!(bed.counters().promotions_recalled_stray, 0);
    bed.end();
}

/// A VPN over TCP: its connection is bulk, and is promoted, taken back and promoted again under transfers
/// within it.
pub(crate) fn over_a_stream() {
    // It is quiet less often than others, because both its directions are busy: the wait after so many failed
    // attempts, doubled by each, must not last.
    let bulk_bounds = BulkBounds { wait: Duration::from_micros(100), ..eager() };
    let bed = Bed::new(1500, bulk_bounds);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    bed.in_guest(|| {
        let ours = TcpStream::connect((HOST[0], port)).unwrap();
        join_stream(device("vpn0", "10.99.7.2", true), ours);
    });
    join_stream(device("vpn1", "10.99.7.1", true), listener.accept().unwrap().0);
    let at = bed.server.also_at(INNER_HOST);
    let stop = AtomicBool::new(false);
    let inner = |number: u64, upload: bool| {
        bed.in_guest(|| transfer(at, Head { upload, number, bytes: ENDLESS }, &stop))
    };
    thread::scope(|scope| {
        let both = [(1, true), (2, false)].map(|(number, upload)| scope.spawn(move || inner(number, upload)));
        for _ in 0..3 {
            bed.until_carried(1);
            let moved = bed.counters().promoted_bytes;
            bed.until("the kernel moves it", |counters| counters.promoted_bytes > moved + (8 << 20));
            assert_eq!(bed.running.handle().set_bulk(Bulk::Tap), Ok(true));
            bed.until_carried(0);
            assert_eq!(bed.running.handle().set_bulk(Bulk::Kernel), Ok(true));
        }
        bed.until_carried(1);
        stop.store(true, Ordering::Relaxed);
        bed.server.stop.store(true, Ordering::Relaxed);
        for transfer in both {
            assert!(transfer.join().unwrap() > 0);
        }
    });
    bed.end();
}
