//! A hostile virtual machine: any messages of its monitor, any content of its rings, changed between any two
//! calls of the link.
//!
//! An input is a row of operations of four bytes. Nothing may panic or run for ever; frames have a possible
//! length. At the end the machine is set up as by a new driver, and frames must pass both ways, whatever
//! has happened before: by the same connection if it is left.

use brodo_core::link::{FRAME_MAX, Gso, Link, PartialChecksum, Piece, TxFrame, Unread};
use brodo_core::wire::ethernet::MacAddr;
use brodo_link::batch::{ARENA_LEN, Batch};
use brodo_link::connections::{Arrival, Connections};
use brodo_link::poller::{Poller, Token};
use brodo_link::vhost_user::front_end::Message;
use brodo_link::vhost_user::{MachineConfig, VhostUserLink};
use brodo_link::virtio::driver::{DriverRing, Shape, mapped, memfd};
use brodo_link::virtio::memory::{GuestMemory, RegionPlace};
use brodo_link::{GuestLink, Taken};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io::IoSlice;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

const CONFIG: MachineConfig =
    MachineConfig { mac: MacAddr([2, 0, 0, 0, 0, 7]), mtu: 1500, offload: true, queues: 2, plain: false };
const SHAPE: Shape = Shape { size: 8, slot: 16 << 10, piece: Some(1024), event_index: true };
const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7000_0000;
/// All that is offered: bits of virtio, and of vhost-user.
const FEATURES: u64 = 0x1c0_0009_7463_b9ab;
/// Protocol features of vhost-user: all that are offered, so that the control queue is the device's.
const PROTOCOL_FEATURES: u64 = 0xa23f;
/// Numbers of the machine's rings: the first pair, and the control queue behind two pairs.
const RINGS: [u32; 3] = [0, 1, 4];

/// Most operations of an input: one without an end would take too long.
const OPERATIONS: usize = 256;

/// Connections of one monitor, one after another: each request makes a pair.
struct Pairs {
    monitor: Arc<Mutex<Option<OwnedFd>>>,
    next: Option<OwnedFd>,
}

impl Connections for Pairs {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn request(&mut self) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (ours, monitor) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("pair");
        *self.monitor.lock().unwrap_or_else(PoisonError::into_inner) = Some(monitor);
        self.next = Some(ours);
    }

    fn take(&mut self) -> Arrival {
        self.next.take().map_or(Arrival::Pending, Arrival::Connected)
    }
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("eventfd")
}

/// The memory of a machine, its rings, and their descriptors.
struct Machine {
    file: OwnedFd,
    place: RegionPlace,
    memory: GuestMemory,
    rings: [DriverRing; 3],
    kicks: [OwnedFd; 3],
    calls: [OwnedFd; 3],
}

impl Machine {
    fn new() -> Self {
        let bytes = DriverRing::bytes(SHAPE).next_multiple_of(4096);
        let place = RegionPlace { guest: GUEST, size: 3 * bytes, user: USER, offset: 0 };
        let file = memfd(place.size);
        let memory = mapped(&file, place);
        let ring = |base| DriverRing::new(SHAPE, base, GUEST.wrapping_sub(USER));
        let rings = [0, 1, 2].map(|number| ring(USER + number * bytes));
        Self { file, place, memory, rings, kicks: [0; 3].map(|_| event()), calls: [0; 3].map(|_| event()) }
    }

    fn set_up(&self) -> Vec<Message<'_>> {
        let mut messages = vec![
            Message::new(16, &[PROTOCOL_FEATURES]),
            Message::new(2, &[FEATURES]),
            Message::memory(self.place, &self.file),
        ];
        for (ring, number) in RINGS.into_iter().enumerate() {
            messages.push(Message { file: None, payload: number.to_ne_bytes().to_vec(), request: 11 });
            let (kick, call) = (&self.kicks[ring], &self.calls[ring]);
            messages.extend(Message::ring(number, &self.rings[ring], &self.memory, kick, call));
            messages.push(Message::of_ring(18, number, 1));
        }
        messages
    }

    fn guest_sends(&mut self, len: u32) {
        if let Some(slot) = self.rings[1].take_free() {
            // A segment whose checksum is left to the device, as one is that may stay unread.
            let mut begin = [0; 40];
            (begin[0], begin[24], begin[35]) = (1, 8, 6);
            if let Some(place) = self.memory.user(self.rings[1].slot(slot), begin.len()) {
                place.write(&begin);
            }
            self.rings[1].offer(&self.memory, slot, len.min(SHAPE.slot), false);
        }
    }

    /// A command, most of them unknown.
    fn guest_commands(&mut self, class: u8, number: u16) {
        if let Some(slot) = self.rings[2].take_free() {
            let [low, high] = number.to_le_bytes();
            if let Some(place) = self.memory.user(self.rings[2].slot(slot), 4) {
                place.write(&[class % 6, 0, low % 4, high % 2]);
            }
            self.rings[2].offer(&self.memory, slot, 4, false);
        }
    }

    fn guest_posts(&mut self) {
        while let Some(slot) = self.rings[0].take_free() {
            self.rings[0].offer(&self.memory, slot, SHAPE.slot, true);
        }
    }
}

/// The link, its loop, and the monitor's end.
struct Bed {
    link: VhostUserLink,
    epoll: OwnedFd,
    monitor: Arc<Mutex<Option<OwnedFd>>>,
    arena: Vec<u8>,
    zero_copy: bool,
}

impl Bed {
    fn new() -> Self {
        let monitor = Arc::default();
        let pairs = Pairs { monitor: Arc::clone(&monitor), next: None };
        let link = VhostUserLink::links(Box::new(pairs), CONFIG, 1).expect("eventfd").pop().expect("one");
        let epoll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
        Self { link, epoll, monitor, arena: vec![0; ARENA_LEN], zero_copy: false }
    }

    fn tell(&self, message: &Message<'_>) {
        let monitor = self.monitor.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(monitor) = &*monitor {
            // Full of messages, or closed by the link.
            let _ = message.send(monitor, false);
        }
    }

    /// One turn of the loop; the number of frames of the guest.
    fn turn(&mut self) -> usize {
        self.link.flush(Poller::new(self.epoll.as_fd(), 0));
        let mut events = Vec::with_capacity(8);
        let zero = rustix::time::Timespec::default();
        epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&zero)).expect("epoll");
        for event in &events {
            if let Token::Source { key, .. } = Token::read({ event.data }.u64()) {
                self.link.ready(key, event.flags);
            }
        }
        let mut frames = 0;
        for _ in 0..4 {
            let mut batch = Batch::new(&mut self.arena, false);
            if self.zero_copy {
                batch.allow_unread();
            }
            let left = self.link.take(&mut batch).expect("only connections and rings break");
            assert!(batch.frames().iter().all(|frame| (1..=FRAME_MAX).contains(&frame.len())));
            frames += batch.frames().len();
            let unread: Vec<_> = batch.frames().iter().map(|frame| frame.unread).collect();
            for part in unread.into_iter().filter(|part| part.len > 0) {
                self.send_part(part);
            }
            if left == Taken::All {
                break;
            }
        }
        self.link.has_frames(true);
        frames
    }

    /// Reads a part of a frame, and sends it; both find all of it.
    fn send_part(&mut self, part: Unread) {
        let mut bytes = vec![0; part.len as usize + 1];
        assert_eq!(self.link.read(part, &mut bytes), part.len as usize);
        let (near, far) = UnixStream::pair().expect("a pair");
        let piece = Piece { bytes: b"head", unread: part };
        let frames = self.link.unread().expect("rings");
        let sent = frames.send(near.as_fd(), &[piece]).expect("there is room");
        drop(near);
        let received = std::io::copy(&mut &far, &mut std::io::sink()).expect("received");
        assert_eq!((sent as u64, sent), (received, piece.len()));
    }

    fn send(&mut self, len: usize) -> bool {
        let bytes = vec![7; len.clamp(60, FRAME_MAX)];
        let caps = self.link.caps();
        let partial = caps.checksum.then_some(PartialChecksum { start: 34, offset: 16 });
        let gso = if caps.tso { Gso::Tcp4(1448) } else { Gso::None };
        let payload = [IoSlice::new(&bytes[54..])];
        self.link.send(&TxFrame { headers: &bytes[..54], payload: &payload, partial, gso }).is_ok()
    }
}

/// Plays an input.
pub fn run(data: &[u8]) {
    let (mut bed, mut machine) = (Bed::new(), Machine::new());
    bed.zero_copy = data.first().is_some_and(|first| first & 1 == 0);
    bed.turn();
    for message in machine.set_up() {
        bed.tell(&message);
    }
    bed.turn();
    for operation in data.chunks_exact(4).take(OPERATIONS) {
        let (what, [a, b, c]) = (operation[0], [operation[1], operation[2], operation[3]]);
        let number = u16::from_le_bytes([b, c]);
        match what % 8 {
            0 if what & 8 == 0 => machine.guest_sends(number.into()),
            0 => machine.guest_commands(a, number),
            1 => machine.guest_posts(),
            2 => {
                // Any field of a ring: descriptors, indices, tables.
                let ring = &machine.rings[usize::from(what >> 4) % 3];
                let reach = ring.slot(0) - ring.descriptors();
                let at = ring.descriptors() + u64::from(number) * 2 % reach;
                let value = u16::from(a >> 1) * if what & 8 == 0 { 1 } else { 511 };
                let field = machine.memory.user(at, 2).expect("the ring");
                field.store(0, value, Ordering::Relaxed);
            }
            3 => {
                let file = [None, Some(machine.file.as_fd()), Some(machine.kicks[0].as_fd())];
                let payload = [u32::from(b), u32::from(c), 0, 0].map(u32::to_ne_bytes).concat();
                let request = u32::from(a) % 42;
                let payload = payload.into_iter().cycle().take(usize::from(what >> 3) * 8).collect();
                bed.tell(&Message { request, payload, file: file[usize::from(b) % 3] });
            }
            4 => {
                let messages = machine.set_up();
                bed.tell(&messages[usize::from(a) % messages.len()]);
            }
            5 => {
                bed.send(usize::from(number));
            }
            _ => {
                bed.turn();
            }
        }
    }
    // A new driver, on the connection that there is or on the next. All messages so far are read before, 64
    // in a turn: the last may end the connection, and one turn more makes the next.
    for _ in 0..OPERATIONS.div_ceil(64) + 2 {
        bed.turn();
    }
    let mut machine = Machine::new();
    for message in machine.set_up() {
        bed.tell(&message);
    }
    machine.guest_posts();
    machine.guest_sends(72);
    let frames = (0..4).map(|_| bed.turn()).sum::<usize>();
    assert_eq!(frames, 1, "{:?}", bed.link.losses());
    assert!(bed.send(1514), "{:?}", bed.link.losses());
    bed.turn();
    assert_eq!(machine.rings[0].take_used(&machine.memory).map(|used| used.1), Some(1526));
}
