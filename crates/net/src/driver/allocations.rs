//! No allocations on the data path in its steady state: not per frame, segment, datagram or connection.
//! Counted on the worker's own thread, on the whole path: a TAP, the loop, the stack, sockets of the host.

use super::end_to_end::{HOST, connect, echo_servers, serve_guest};
use brodo_core::link::{Gso, Link, TxFrame};
use brodo_link::GuestLink;
use brodo_link::batch::{ARENA_LEN, Batch};
use brodo_link::poller::Poller;
use brodo_link::tap::Wanted;
use brodo_link::virtio::device::{NetDevice, Role};
use brodo_link::virtio::driver::{DriverRing, Shape, mapped, memfd};
use brodo_link::virtio::link::VirtioLink;
use brodo_link::virtio::memory::{GuestMemory, RegionPlace};
use brodo_link::virtio::queues::FrameFormat;
use brodo_testns::in_namespace_with_tun;
use rustix::event::epoll::{self, CreateFlags};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// The system's allocator, with a count of the allocations of observed threads.
struct Counting;

/// Allocations of threads under observation.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OBSERVED: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    // A thread that ends allocates too, after its thread-local state.
    if OBSERVED.try_with(Cell::get).unwrap_or(false) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on as it is; counting touches no memory of the allocator's and does not
// allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes of a bulk transfer, and of one write or read.
const BULK: usize = 64 << 20;
const PIECE: usize = 256 << 10;

/// Most runs before one without allocations.
const RUNS_MAX: usize = 20;

/// A server on loopback that reads to the end and confirms it with a byte, and one that sends [`BULK`] bytes;
/// their ports.
fn bulk_servers() -> [u16; 2] {
    [true, false].map(|sink| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listen");
        let port = listener.local_addr().expect("address").port();
        thread::spawn(move || {
            let mut buffer = vec![0; PIECE];
            for stream in listener.incoming() {
                let mut stream = stream.expect("accept");
                if sink {
                    while stream.read(&mut buffer).expect("read") > 0 {}
                    stream.write_all(b"!").expect("write");
                } else {
                    (0..BULK / PIECE).for_each(|_| stream.write_all(&buffer).expect("write"));
                }
            }
        });
        port
    })
}

fn upload(port: u16) {
    let mut stream = connect(HOST[0], port).expect("connect");
    let piece = vec![0x55; PIECE];
    (0..BULK / PIECE).for_each(|_| stream.write_all(&piece).expect("write"));
    stream.shutdown(Shutdown::Write).expect("shutdown");
    stream.read_exact(&mut [0]).expect("everything arrived");
}

fn download(port: u16) {
    let mut stream = connect(HOST[0], port).expect("connect");
    let (mut piece, mut bytes) = (vec![0; PIECE], 0);
    loop {
        match stream.read(&mut piece).expect("read") {
            0 => break assert_eq!(bytes, BULK),
            n => bytes += n,
        }
    }
}

fn connect_request_response(port: u16, times: usize) {
    for _ in 0..times {
        let mut stream = connect(HOST[0], port).expect("connect");
        stream.write_all(b"?").expect("write");
        stream.read_exact(&mut [0]).expect("answer");
    }
}

fn request_response(port: u16, times: usize) {
    let mut stream = connect(HOST[0], port).expect("connect");
    for _ in 0..times {
        stream.write_all(b"?").expect("write");
        stream.read_exact(&mut [0]).expect("answer");
    }
}

/// Datagrams back and forth in bursts, on one socket.
fn datagrams(socket: &UdpSocket, times: usize) {
    let mut back = [0; 2000];
    for _ in 0..times {
        (0..8).for_each(|_| assert_eq!(socket.send(&[7; 1400]).expect("send"), 1400));
        // The first answer is sure to come; on a busy host not every datagram is.
        socket.set_nonblocking(false).expect("blocking");
        socket.recv(&mut back).expect("answer");
        thread::sleep(Duration::from_micros(200));
        socket.set_nonblocking(true).expect("non-blocking");
        while socket.recv(&mut back).is_ok() {}
    }
}

/// Runs `work` until it allocates no more; fails if it never does. The maximum need of a run depends on the
/// scheduler: a later one may for the first time have more in flight. An allocation per anything shows in
/// every run.
fn none_after_warm_up(what: &str, mut work: impl FnMut()) {
    let mut counts = Vec::new();
    while counts.last() != Some(&0) {
        assert!(counts.len() < RUNS_MAX, "{what}: {counts:?} allocations");
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        work();
        counts.push(ALLOCATIONS.load(Ordering::Relaxed) - before);
    }
    println!("{what}: {counts:?} allocations");
}

fn nothing_is_allocated(mtu: u16) {
    let [echo, _] = echo_servers();
    let [sink, source] = bulk_servers();
    OBSERVED.set(true);
    let worker = serve_guest(Wanted::Everything, mtu, move || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("bind");
        socket.connect((HOST[0], echo)).expect("connect");
        connect_request_response(echo, 1);
        assert!(ALLOCATIONS.load(Ordering::Relaxed) > 0, "the first connection takes what it needs");
        none_after_warm_up("100 connections with a request each", || connect_request_response(echo, 100));
        none_after_warm_up("1000 requests", || request_response(echo, 1000));
        none_after_warm_up("64 MiB up", || upload(sink));
        none_after_warm_up("64 MiB down", || download(source));
        none_after_warm_up("800 datagrams", || datagrams(&socket, 100));
    });
    OBSERVED.set(false);
    drop(worker);
}

#[test]
fn nothing_is_allocated_in_the_steady_state() {
    in_namespace_with_tun("driver::allocations::nothing_is_allocated_in_the_steady_state", || {
        nothing_is_allocated(65_520);
    });
}

#[test]
fn nothing_is_allocated_at_an_ordinary_mtu() {
    in_namespace_with_tun("driver::allocations::nothing_is_allocated_at_an_ordinary_mtu", || {
        nothing_is_allocated(1500);
    });
}

/// A virtual machine's rings, its driver and the link over them.
struct Machine {
    memory: Arc<GuestMemory>,
    to_guest: DriverRing,
    from_guest: DriverRing,
    link: VirtioLink,
}

impl Machine {
    const SHAPE: Shape = Shape { size: 64, slot: 4096, piece: None, event_index: true };

    fn new() -> Self {
        let bytes = DriverRing::bytes(Self::SHAPE).next_multiple_of(4096);
        let place = RegionPlace { guest: 0, size: 2 * bytes, user: 0, offset: 0 };
        let memory = Arc::new(mapped(&memfd(place.size), place));
        let [mut to_guest, from_guest] = [0, bytes].map(|base| DriverRing::new(Self::SHAPE, base, 0));
        while let Some(slot) = to_guest.take_free() {
            to_guest.offer(&memory, slot, Self::SHAPE.slot, true);
        }
        let device = NetDevice::new(2, 1).expect("eventfd");
        device.set_memory(&memory);
        let format = FrameFormat { modern: true, mergeable: true };
        for (ring, driver) in [&to_guest, &from_guest].into_iter().enumerate() {
            device.start_ring(ring, Role::of_pair(ring), driver.layout(), format).expect("a ring");
            device.enable_ring(ring, true);
        }
        Self { memory, to_guest, from_guest, link: VirtioLink::new(device, 0) }
    }

    /// The guest sends a frame, which the link's user takes; true if it did.
    fn sends(&mut self, arena: &mut [u8]) -> bool {
        let slot = self.from_guest.take_free().expect("a slot");
        self.from_guest.offer(&self.memory, slot, 1514, false);
        let mut batch = Batch::new(arena, false);
        self.link.take(&mut batch).expect("rings break, links do not");
        let (slot, _) = self.from_guest.take_used(&self.memory).expect("the frame is used");
        self.from_guest.give_back(slot);
        batch.frames().len() == 1
    }

    /// A long frame reaches the guest, whose driver refills the ring; the number of its buffers.
    fn receives(&mut self, payload: &[u8]) -> usize {
        let payload = [io::IoSlice::new(payload)];
        let frame = TxFrame { headers: &[7; 54], payload: &payload, partial: None, gso: Gso::None };
        self.link.send(&frame).expect("there are buffers");
        let mut buffers = 0;
        while let Some((slot, _)) = self.to_guest.take_used(&self.memory) {
            self.to_guest.offer(&self.memory, slot, Self::SHAPE.slot, true);
            buffers += 1;
        }
        buffers
    }
}

#[test]
fn nothing_is_allocated_for_frames_over_rings() {
    let (mut machine, mut arena) = (Machine::new(), vec![0; ARENA_LEN]);
    let (payload, epoll) = (vec![0x55; 60_000], epoll::create(CreateFlags::CLOEXEC).expect("epoll"));
    let mut turn = |frames: usize| {
        machine.link.flush(Poller::new(epoll.as_fd(), 0));
        for _ in 0..frames {
            assert!(machine.sends(&mut arena));
            assert_eq!(machine.receives(&payload), 15);
        }
    };
    OBSERVED.set(true);
    turn(1);
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > 0, "the first turn takes what it needs");
    none_after_warm_up("1000 frames each way over rings", || (0..10).for_each(|_| turn(100)));
    OBSERVED.set(false);
}
