//! Two workers on the queues of a TAP, on threads: frozen by another thread again and again, handed over or
//! thawed, while a kernel is the guest.

use crate::config;
use brodo_link::tap::{Tap, Wanted};
use brodo_net::{Network, TakenOver, Takeover};
use brodo_testns::{in_namespace_with_tun, ip};
use nix::sched::{CloneFlags, unshare};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const WORKERS: u32 = 2;
/// Time between two freezes.
const EVERY: Duration = Duration::from_millis(15);
/// Connections of the guest at a time, and bytes of each.
const CONNECTIONS: usize = 8;
const LEN: usize = 8_000_000;
/// One of so many frozen networks is thawed.
const THAWED: u32 = 3;

/// An echo server for any number of connections; its port.
fn echo_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("address").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("accept");
            let mut out = stream.try_clone().expect("clone");
            thread::spawn(move || {
                std::io::copy(&mut stream, &mut out).expect("echo");
                out.shutdown(Shutdown::Write).expect("open");
            });
        }
    });
    port
}

/// Sends `data` and its end, and expects the same back.
fn echo(port: u16, data: &[u8]) {
    let mut stream = TcpStream::connect(("10.0.2.4", port)).expect("connect");
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

/// The guest, in a namespace of its own: passes its queues on, and is content when all has come back.
fn guest(port: u16, to_host: &mpsc::Sender<Vec<OwnedFd>>) {
    unshare(CloneFlags::CLONE_NEWNET).expect("a namespace for this thread and its children alone");
    let queues = Tap::create_queues("tap0", Wanted::Everything, WORKERS).expect("TAP");
    ip("link set tap0 mtu 65520 up");
    ip("addr add 10.0.2.15/24 dev tap0");
    to_host.send(queues.into_iter().map(Tap::into_fd).collect()).expect("the host waits");
    let data: Vec<u8> = (0..LEN as u32).map(|i| (i ^ (i >> 9)) as u8).collect();
    thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| echo(port, &data));
        }
    });
}

/// A network on duplicates of the queues, which goes on from a hand-over if there is one.
fn network(queues: &[OwnedFd], from: Option<Takeover>) -> Network<Tap> {
    let copy = |queue: &OwnedFd| Tap::from_fd(queue.try_clone().expect("dup"), Wanted::Everything);
    let links = queues.iter().map(|queue| copy(queue).expect("a TAP"));
    let builder = Network::builder().config(config(65_520)).links(links);
    let Some(from) = from else { return builder.build().expect("network") };
    let TakenOver { network, lost, unclaimed, unused } = builder.restore(from).expect("a whole hand-over");
    assert_eq!((lost, unclaimed, unused), (0, 0, 0));
    network
}

#[test]
fn two_workers_are_handed_over() {
    in_namespace_with_tun("workers::two_workers_are_handed_over", || {
        let port = echo_server();
        let (to_host, queues) = mpsc::channel();
        let guest = thread::spawn(move || guest(port, &to_host));
        let queues = queues.recv().expect("queues");
        let (mut from, mut frozen) = (None, 0);
        while !guest.is_finished() {
            let mut network = network(&queues, from.take());
            let (handle, over) = (network.handle(), AtomicBool::new(false));
            let ended = thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Ordering::Acquire) {
                        thread::sleep(EVERY);
                        handle.freeze();
                    }
                });
                let ended = network.run_after(
                    || {},
                    |_| ControlFlow::Continue(()),
                    &|_| {},
                    |all| {
                        frozen += 1;
                        let takeover = all.expect("all are parked").save().duplicate().expect("descriptors");
                        if frozen % THAWED == 0 {
                            ControlFlow::Continue(())
                        } else {
                            ControlFlow::Break(takeover)
                        }
                    },
                );
                over.store(true, Ordering::Release);
                ended
            });
            from = ended.expect("no failure");
        }
        guest.join().expect("the guest was content");
        println!("frozen {frozen} times");
    });
}
