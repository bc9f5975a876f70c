//! Guests with an address translation, listeners and observers of their own, and one that harms itself.

use crate::bed::{Bed, LIMIT, eager, inside_of, namespace, set_cubic};
use crate::transfer::{ENDLESS, Head, during_transfers, there_and_back, transfer};
use brodo_net::netlink::nftables::{Batch, Nftables};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

pub(crate) fn steering_deleted() {
    let bed = Bed::new(65_520, eager());
    during_transfers(&bed, || {
        bed.until_carried(2);
        bed.in_guest(|| {
            Nftables::open().unwrap().commit(Batch::new("eth0-bulk").delete_table()).unwrap();
        });
        bed.until("both come back", |counters| counters.promotions_returned == 2);
        bed.until("a further attempt is refused", |counters| counters.promotions_refused_steering > 0);
    });
    assert!(bed.counters().promotions_recalled_stray > 0);
    bed.end();
}

/// Runs lines of a shell, all of which must succeed.
pub(crate) fn shell(lines: &str) {
    let status = Command::new("sh").args(["-ec", lines]).status().unwrap();
    assert!(status.success(), "{lines}");
}

/// A container whose packets the guest forwards by its own address: steering sees them as they leave, and
/// answers arrive where the guest's connection tracking expects them.
pub(crate) fn translated() {
    let bed = Bed::new(1500, eager());
    let mut container = namespace();
    let pid = container.id();
    bed.in_guest(|| {
        shell(&format!(
            "ip link add inner type veth peer name c0 netns /proc/{pid}/ns/net
             ip address add 10.99.0.1/24 dev inner
             ip link set inner up
             echo 1 > /proc/sys/net/ipv4/ip_forward
             nft add table ip nat
             nft 'add chain ip nat leaving {{ type nat hook postrouting priority srcnat; }}'
             nft add rule ip nat leaving oifname eth0 masquerade"
        ));
    });
    inside_of(pid, || {
        set_cubic();
        shell(
            "ip address add 10.99.0.2/24 dev c0
             ip link set c0 up
             ip route add default via 10.99.0.1",
        );
    });
    let stop = AtomicBool::new(false);
    let run = |number: u64, upload: bool| {
        let head = Head { upload, number, bytes: ENDLESS };
        inside_of(pid, || transfer(bed.server.at(false), head, &stop))
    };
    thread::scope(|scope| {
        let both = [(1, true), (2, false)].map(|(number, upload)| scope.spawn(move || run(number, upload)));
        bed.until_carried(2);
        let moved = bed.counters().promoted_bytes;
        bed.until("both go on", |counters| counters.promoted_bytes > moved + (32 << 20));
        stop.store(true, Ordering::Relaxed);
        bed.server.stop.store(true, Ordering::Relaxed);
        for transfer in both {
            transfer.join().unwrap();
        }
    });
    assert_eq!(bed.counters().promotions_recalled_stray, 0);
    container.kill().unwrap();
    container.wait().unwrap();
    bed.end();
}

/// The remote end of a promoted flow has an address and port outside the guest: its port is free there.
pub(crate) fn listening() {
    let bed = Bed::new(65_520, eager());
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut guest, mut host) = bed.promoted_pair(&server);
    let port = server.local_addr().unwrap().port();
    bed.in_guest(|| {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
        for address in ["127.0.0.1", "10.0.2.15"] {
            let mut client = TcpStream::connect((address, port)).unwrap();
            client.write_all(b"own").unwrap();
            let mut said = [0; 3];
            listener.accept().unwrap().0.read_exact(&mut said).unwrap();
            assert_eq!(&said, b"own");
        }
    });
    there_and_back(&mut guest, &mut host, &mut [7; 5]);
    bed.until_carried(1);
    drop((guest, host));
    bed.end();
}

/// Packet socket on all interfaces, as tcpdump opens it (which cannot run here: it wants to be another user).
/// Says that it is there, and then each interface and way by which segments of a port have passed, once.
const OBSERVER: &str = "
import socket, struct, sys
port, seen = int(sys.argv[1]), set()
packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
print('there', flush=True)
while True:
    packet, (name, protocol, way, *_) = packets.recvfrom(100)
    if protocol == 0x800 and packet[9] == 6 and port in struct.unpack('!HH', packet[20:24]):
        line = f'{name} {\"out\" if way == 4 else \"in\"}'
        if line not in seen:
            seen.add(line)
            print(line, flush=True)
";

/// Segments to the guest arrive at `eth0`; those from it leave by `eth0-bulk`.
pub(crate) fn observed() {
    let bed = Bed::new(65_520, eager());
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut guest, mut host) = bed.promoted_pair(&server);
    let port = server.local_addr().unwrap().port().to_string();
    let mut observer = bed.in_guest(|| {
        let mut observer = Command::new("python3");
        observer.args(["-c", OBSERVER, &port]).stdout(Stdio::piped()).spawn().unwrap()
    });
    let mut said = BufReader::new(observer.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "there");
    let (until, seen) = (Instant::now() + LIMIT, Mutex::new(Vec::new()));
    let is_complete =
        || ["eth0 in", "eth0-bulk out"].iter().all(|line| seen.lock().unwrap().iter().any(|it| it == line));
    thread::scope(|scope| {
        scope.spawn(|| said.for_each(|line| seen.lock().unwrap().push(line.unwrap())));
        let mut byte = [0];
        while !is_complete() && Instant::now() < until {
            there_and_back(&mut guest, &mut host, &mut byte);
        }
        observer.kill().unwrap();
        observer.wait().unwrap();
    });
    assert!(is_complete(), "{seen:?}");
    bed.until_carried(1);
    drop((guest, host));
    bed.end();
}
