//! The link against a monitor at the other end of a socket pair, and a driver of its rings.

use super::*;
use crate::batch::ARENA_LEN;
use crate::connections::outliving::Outliving;
use crate::connections::{Listening, Once};
use crate::virtio::driver::{DriverRing, Shape, mapped, memfd};
use crate::virtio::link::{CHANGES, KICKS};
use crate::virtio::memory::{GuestMemory, RegionPlace};
use rustix::event::epoll::{self, CreateFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{read, write};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::io::IoSlice;

const SHAPE: Shape = Shape { size: 128, slot: 4096, piece: None, event_index: true };
const CONFIG: MachineConfig =
    MachineConfig { mac: MacAddr([2, 0, 0, 0, 0, 7]), mtu: 1500, offload: true, queues: 1, plain: false };
const USER: u64 = 0x10_0000;

struct Bed {
    link: VhostUserLink,
    epoll: OwnedFd,
    monitor: OwnedFd,
    /// The guest's sight of its memory.
    memory: GuestMemory,
    file: OwnedFd,
    rings: [DriverRing; 2],
    kicks: [OwnedFd; 2],
    calls: [OwnedFd; 2],
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("eventfd")
}

/// Both ends of a connection, the link's first.
fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("pair")
}

/// The link of one worker.
fn link(source: Box<dyn Connections>) -> VhostUserLink {
    VhostUserLink::links(source, CONFIG, 1).expect("eventfd").pop().expect("one")
}

fn bed() -> Bed {
    let (ours, monitor) = pair();
    let epoll = event();
    let link = link(Box::new(Once::new(ours)));
    let bytes = DriverRing::bytes(SHAPE).next_multiple_of(4096);
    let file = memfd(2 * bytes);
    let memory = mapped(&file, RegionPlace { guest: 0, size: 2 * bytes, user: USER, offset: 0 });
    let ring = |base| DriverRing::new(SHAPE, base, 0_u64.wrapping_sub(USER));
    let rings = [ring(USER), ring(USER + bytes)];
    let mut bed = Bed {
        link,
        epoll,
        monitor,
        memory,
        file,
        rings,
        kicks: [event(), event()],
        calls: [event(), event()],
    };
    bed.watch();
    bed.flush();
    assert!(bed.is_connected() && !bed.link.gone());
    bed
}

impl Bed {
    /// Registers a link that has seen no event.
    fn watch(&mut self) {
        self.epoll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
        self.link.register(Poller::new(self.epoll.as_fd(), 0)).expect("epoll_ctl");
    }

    fn is_connected(&self) -> bool {
        self.link.control.as_ref().is_some_and(|control| control.session.is_some())
    }

    fn flush(&mut self) {
        self.link.flush(Poller::new(self.epoll.as_fd(), 0));
    }

    /// Keys of the descriptors that are ready, without announcements, after which the link has seen them.
    fn events(&mut self) -> Vec<u32> {
        let mut events = Vec::with_capacity(16);
        let zero = rustix::time::Timespec::default();
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&zero)).expect("epoll");
        let mut keys = Vec::new();
        for event in events {
            let crate::poller::Token::Source { key, .. } = crate::poller::Token::read({ event.data }.u64())
            else {
                panic!("a flow")
            };
            self.link.ready(key, event.flags);
            if key != CHANGES {
                keys.push(key);
            }
        }
        keys.sort_unstable();
        keys
    }

    /// Sets both rings up; the link has seen all of it.
    fn start(&mut self, features: u64) {
        let size = 2 * DriverRing::bytes(SHAPE).next_multiple_of(4096);
        let place = RegionPlace { guest: 0, size, user: USER, offset: 0 };
        let mut messages =
            vec![front_end::Message::new(2, &[features]), front_end::Message::memory(place, &self.file)];
        for ring in 0..2 {
            let (driver, kick, call) = (&self.rings[ring], &self.kicks[ring], &self.calls[ring]);
            messages.extend(front_end::Message::ring(ring as u32, driver, &self.memory, kick, call));
            messages.push(front_end::Message::of_ring(18, ring as u32, 1));
        }
        for message in messages {
            message.send(&self.monitor, false).expect("sent");
        }
        assert_eq!(self.events(), [CONNECTION]);
        self.flush();
        assert!(self.is_connected(), "{:?}", self.link.losses());
    }

    fn guest_sends(&mut self, len: usize) {
        let slot = self.rings[1].take_free().expect("a free slot");
        let bytes: Vec<_> = (0..12 + len).map(|at| if at < 12 { 0 } else { at as u8 }).collect();
        self.memory.user(self.rings[1].slot(slot), bytes.len()).expect("the slot").write(&bytes);
        self.rings[1].offer(&self.memory, slot, bytes.len() as u32, false);
        if self.rings[1].needs_kick(&self.memory) {
            write(&self.kicks[1], &1_u64.to_ne_bytes()).expect("a kick");
        }
    }

    fn guest_offers(&mut self, count: usize) {
        for _ in 0..count {
            let slot = self.rings[0].take_free().expect("a free slot");
            self.rings[0].offer(&self.memory, slot, SHAPE.slot, true);
        }
        if self.rings[0].needs_kick(&self.memory) {
            write(&self.kicks[0], &1_u64.to_ne_bytes()).expect("a kick");
        }
    }

    /// Lengths of the frames that the link takes.
    fn taken(&mut self) -> Vec<usize> {
        let mut arena = vec![0; ARENA_LEN];
        let mut lengths = Vec::new();
        loop {
            let mut batch = Batch::new(&mut arena, false);
            let left = self.link.take(&mut batch).expect("failures end the connection alone");
            lengths.extend(batch.frames().iter().map(|frame| frame.bytes.len()));
            if left == Taken::All {
                return lengths;
            }
        }
    }

    fn send(&mut self, len: usize) -> Result<(), NoCredit> {
        let bytes = vec![7; len];
        let frame = TxFrame {
            headers: &bytes[..14],
            payload: &[IoSlice::new(&bytes[14..])],
            partial: None,
            gso: brodo_core::link::Gso::None,
        };
        self.link.send(&frame)
    }

    fn called(&self, ring: usize) -> bool {
        read(&self.calls[ring], &mut [0; 8]).is_ok()
    }
}

#[test]
fn frames_pass_with_a_kick_and_a_call_only_where_they_are_wanted() {
    let mut bed = bed();
    assert_eq!(bed.send(100), Err(NoCredit), "there is no ring");
    bed.start(device::tests_features());
    for ring in 0..2 {
        assert!(bed.called(ring), "for a call that may have been lost");
        assert!(!bed.rings[ring].arm(&bed.memory, true));
    }
    bed.guest_sends(60);
    assert_eq!(bed.events(), [KICKS + 1]);
    assert_eq!(bed.taken(), [60]);
    bed.guest_sends(61);
    assert!(bed.events().is_empty() && bed.link.has_frames(false), "awake, rings are looked at");
    assert!(bed.link.has_frames(true), "too late for a kick");
    assert_eq!(bed.taken(), [61]);
    assert!(!bed.called(1));
    bed.flush();
    assert!(bed.called(1));
    assert!(!bed.link.has_frames(true));
    bed.guest_sends(62);
    assert_eq!(bed.events(), [KICKS + 1], "asleep");

    bed.guest_offers(4);
    assert_eq!(bed.send(3000), Ok(()));
    assert!(!bed.called(0));
    bed.flush();
    assert!(bed.called(0));
    assert_eq!(bed.rings[0].take_used(&bed.memory).map(|used| used.1), Some(3012));
}

#[test]
fn a_refused_frame_has_an_event_when_buffers_come() {
    let mut bed = bed();
    bed.start(device::tests_features());
    assert_eq!(bed.send(5000), Err(NoCredit));
    assert_eq!(bed.link.credit_wait(), Some(CreditWait::Event));
    bed.guest_offers(1);
    assert_eq!(bed.events(), [KICKS]);
    assert_eq!(bed.send(5000), Err(NoCredit), "one of two");
    bed.guest_offers(1);
    assert_eq!(bed.events(), [KICKS]);
    assert_eq!((bed.send(5000), bed.link.credit_wait()), (Ok(()), None));
}

#[test]
fn long_turns_call_the_guest_in_between() {
    let mut bed = bed();
    bed.start(device::tests_features());
    assert!(bed.called(0) && !bed.rings[0].arm(&bed.memory, true));
    bed.guest_offers(100);
    for _ in 0..16 {
        bed.send(4000).expect("room");
    }
    assert!(!bed.called(0));
    bed.send(4000).expect("room");
    assert!(bed.called(0), "after 64 KiB");
}

#[test]
fn impossible_content_breaks_one_ring_and_nothing_else() {
    let mut bed = bed();
    bed.start(device::tests_features());
    bed.guest_sends(60);
    let available = bed.rings[1].available_area();
    bed.memory.user(available + 2, 2).expect("ring").store(0, 9999, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(bed.taken(), []);
    assert_eq!(bed.link.losses().broken_rings, 1);
    assert!(!bed.link.has_frames(true), "it is out of service");
    bed.guest_offers(1);
    assert_eq!(bed.send(100), Ok(()), "the other one is not");
}

#[test]
fn addresses_of_the_guest_s_driver_break_its_ring_and_not_the_connection() {
    let mut bed = bed();
    bed.start(device::tests_features());
    let mut addresses = front_end::Message::of_ring(9, 1, 0);
    addresses.payload.extend([1_u64, 2, 3, 0].into_iter().flat_map(u64::to_ne_bytes));
    addresses.send(&bed.monitor, false).expect("sent");
    assert_eq!(bed.events(), [CONNECTION]);
    bed.flush();
    let LinkLosses { broken_rings, bad_messages, .. } = bed.link.losses();
    assert_eq!((broken_rings, bad_messages, bed.is_connected()), (1, 0, true));
    bed.guest_offers(1);
    assert_eq!(bed.send(100), Ok(()), "the other ring is not");
}

#[test]
fn bad_messages_end_the_connection_and_the_watch_of_its_kicks() {
    for (request, payload) in [(2, vec![0; 7]), (99, vec![]), (8, vec![0xff; 8])] {
        let mut bed = bed();
        bed.start(device::tests_features());
        front_end::Message { request, payload, file: None }.send(&bed.monitor, false).expect("sent");
        assert_eq!(bed.events(), [CONNECTION]);
        assert_eq!(bed.link.losses().bad_messages, 1);
        bed.flush();
        assert!(bed.link.gone(), "there is no further connection");
        write(&bed.kicks[1], &1_u64.to_ne_bytes()).expect("a kick");
        assert!(bed.events().is_empty());
        assert_eq!(bed.link.caps(), LinkCaps::default());
    }
}

#[test]
fn a_message_in_single_bytes_is_served_when_it_is_whole() {
    let mut bed = bed();
    for byte in [1_u32, 1, 0].iter().flat_map(|word| word.to_ne_bytes()) {
        assert_eq!(recv(&bed.monitor, &mut [0; 64][..], RecvFlags::empty()).map(|(len, _)| len).ok(), None);
        send(&bed.monitor, &[byte], SendFlags::empty()).expect("sent");
        assert_eq!(bed.events(), [CONNECTION]);
    }
    let mut reply = [0; 64];
    assert_eq!(recv(&bed.monitor, &mut reply[..], RecvFlags::empty()).map(|(len, _)| len), Ok(20));
    assert_eq!(reply[..12], [1_u32, 5, 8].map(u32::to_ne_bytes).concat());
}

#[test]
fn rings_go_on_with_the_next_connection() {
    let mut bed = bed();
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let listener =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("socket");
    let name = format!("brodo-test-{}", std::process::id());
    let address = rustix::net::SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
    rustix::net::bind(&listener, &address).expect("bind");
    rustix::net::listen(&listener, 2).expect("listen");
    bed.link = link(Box::new(Listening::new(listener)));
    bed.link.register(Poller::new(bed.epoll.as_fd(), 0)).expect("registered");
    for round in 0..3 {
        let client = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        bed.monitor = client.expect("socket");
        rustix::net::connect(&bed.monitor, &address).expect("connect");
        bed.events();
        bed.flush();
        if round == 0 {
            bed.guest_offers(10);
        }
        bed.start(device::tests_features());
        bed.guest_sends(60 + round);
        assert_eq!(bed.taken(), [60 + round]);
        bed.send(100).expect("buffers are left");
        bed.flush();
        assert_eq!(bed.rings[0].take_used(&bed.memory).map(|used| used.1), Some(112));
        bed.monitor = event();
        assert!(bed.events().contains(&CONNECTION));
        assert!(!bed.is_connected() && bed.send(100) == Err(NoCredit));
        bed.flush();
    }
    assert_eq!(bed.link.losses().bad_messages, 0);
}

#[test]
fn a_reset_of_the_device_is_reported_once_and_a_pause_is_none() {
    let mut bed = bed();
    bed.start(device::tests_features());
    // As QEMU pauses a machine or moves it, and RESET_OWNER.
    for message in [
        front_end::Message::of_ring(11, 0, 0),
        front_end::Message::of_ring(11, 1, 0),
        front_end::Message::new(4, &[]),
    ] {
        message.send(&bed.monitor, false).expect("sent");
    }
    assert_eq!(bed.events(), [CONNECTION]);
    bed.flush();
    bed.start(device::tests_features());
    assert!(!bed.link.take_reset());
    front_end::Message::new(34, &[]).send(&bed.monitor, false).expect("sent");
    assert_eq!(bed.events(), [CONNECTION]);
    bed.flush();
    assert!(bed.link.take_reset() && !bed.link.take_reset());
    bed.start(device::tests_features());
    bed.hand_over(|_, _| {});
    assert!(!bed.link.take_reset(), "set up anew by another process");
}

impl Bed {
    /// Has a link of another process go on with what was saved, changed by `change`.
    fn hand_over(&mut self, change: impl FnOnce(&mut Vec<u8>, &mut Vec<OwnedFd>)) {
        let SavedLink { mut bytes, descriptors } = self.link.save().expect("between messages");
        let dup = |fd: &rustix::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("dup");
        let mut descriptors = descriptors.iter().map(dup).collect();
        change(&mut bytes, &mut descriptors);
        self.link = link(Box::new(Once::new(event())));
        self.link.restore(&bytes, descriptors);
        self.watch();
    }
}

#[test]
fn another_process_goes_on_with_the_rings_and_the_connection() {
    let mut bed = bed();
    bed.guest_offers(10);
    bed.start(device::tests_features());
    let caps = bed.link.caps();
    for round in 0..3 {
        bed.guest_sends(60 + round);
        assert_eq!(bed.taken(), [60 + round]);
        bed.send(100).expect("buffers are left");
        bed.flush();
        // One comes while nothing serves the rings.
        bed.guest_sends(80);
        bed.hand_over(|_, _| {});
        assert!(bed.is_connected() && bed.link.caps() == caps);
        bed.flush();
        assert!(bed.link.has_frames(true));
        assert_eq!(bed.taken(), [80]);
        bed.send(101).expect("buffers are left");
        bed.flush();
        for len in [112, 113] {
            assert_eq!(bed.rings[0].take_used(&bed.memory).map(|used| used.1), Some(len));
        }
        bed.events();
        // The monitor stops a ring of the device that it has set up before.
        front_end::Message::of_ring(11, 1, 0).send(&bed.monitor, false).expect("sent");
        assert!(bed.events().contains(&CONNECTION));
        let mut reply = [0; 64];
        assert_eq!(recv(&bed.monitor, &mut reply[..], RecvFlags::empty()).map(|(len, _)| len), Ok(20));
        assert_eq!(reply[16..20], (2 * (round as u32 + 1)).to_ne_bytes(), "the next chain");
        bed.start(device::tests_features());
    }
    assert_eq!(bed.link.losses(), LinkLosses::default());
}

#[test]
fn a_ring_that_was_broken_stays_so_after_a_hand_over() {
    let mut bed = bed();
    bed.start(device::tests_features());
    bed.guest_sends(60);
    let available = bed.rings[1].available_area();
    bed.memory.user(available + 2, 2).expect("ring").store(0, 9999, std::sync::atomic::Ordering::Relaxed);
    bed.taken();
    bed.hand_over(|_, _| {});
    bed.flush();
    assert!(bed.is_connected() && !bed.link.has_frames(true));
    bed.guest_offers(1);
    bed.flush();
    assert_eq!(bed.send(100), Ok(()), "the other one goes on");
}

#[test]
fn a_device_that_was_not_saved_as_one_begins_anew() {
    type Change = fn(&mut Vec<u8>, &mut Vec<OwnedFd>);
    let changes: [Change; 6] = [
        |bytes, _| bytes.truncate(1),
        |bytes, _| bytes.truncate(40),
        |bytes, _| bytes[2] = 99,
        |bytes, _| bytes.extend([0; 12]),
        |_, descriptors| descriptors.truncate(3),
        |_, descriptors| descriptors[0] = event(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut bed = bed();
        bed.start(device::tests_features());
        bed.hand_over(change);
        assert!(!bed.is_connected(), "{number}");
        assert_eq!((bed.send(100), bed.link.caps()), (Err(NoCredit), LinkCaps::default()), "{number}");
    }
}

impl Bed {
    /// Has a link begin with what the one before has had kept by its source.
    fn begin_with(&mut self, source: &Outliving) {
        self.link = link(Box::new(source.clone()));
        self.watch();
        self.flush();
    }

    /// A bed whose connection comes from an outliving source.
    fn outliving() -> (Self, Outliving) {
        let mut bed = bed();
        let (ours, monitor) = pair();
        let source = Outliving::of(ours);
        bed.monitor = monitor;
        bed.begin_with(&source);
        (bed, source)
    }
}

#[test]
fn after_a_crash_rings_go_on_behind_the_last_chain_that_the_driver_knows() {
    let (mut bed, source) = Bed::outliving();
    bed.guest_offers(10);
    bed.start(device::tests_features());
    let caps = bed.link.caps();
    for round in 0..3 {
        bed.guest_sends(60 + round);
        assert_eq!(bed.taken(), [60 + round]);
        bed.flush();
        bed.send(100).expect("buffers are left");
        // One comes while nothing serves the rings.
        bed.guest_sends(80);
        assert!(source.keeps());
        // The first of the processes crashes soon.
        bed.begin_with(&source);
        bed.begin_with(&source);
        // The next turn has the rings.
        bed.events();
        bed.flush();
        assert!(bed.is_connected() && source.keeps() && bed.link.caps() == caps);
        assert!(bed.called(0) && bed.called(1), "for a call that may have been lost");
        assert!(bed.link.has_frames(true));
        assert_eq!((bed.taken(), bed.send(101)), (vec![80], Ok(())));
        bed.flush();
        for len in [Some(112), Some(113), None] {
            assert_eq!(bed.rings[0].take_used(&bed.memory).map(|used| used.1), len);
        }
    }
    assert_eq!(bed.link.losses(), LinkLosses::default());
}

#[test]
fn a_crash_in_the_midst_of_a_message_costs_the_connection() {
    let (mut bed, source) = Bed::outliving();
    bed.start(device::tests_features());
    assert!(source.keeps());
    send(&bed.monitor, &1_u32.to_ne_bytes(), SendFlags::empty()).expect("sent");
    assert_eq!(bed.events(), [CONNECTION]);
    bed.flush();
    assert!(!source.keeps());
    bed.begin_with(&source);
    assert!(!bed.is_connected());
    assert!(
        recv(&bed.monitor, &mut [0; 1][..], RecvFlags::empty()).is_ok_and(|(len, _)| len == 0),
        "the end"
    );
}

#[test]
fn a_state_that_is_none_is_forgotten() {
    let (mut bed, source) = Bed::outliving();
    bed.start(device::tests_features());
    source.kept().as_mut().expect("kept").descriptors.clear();
    bed.begin_with(&source);
    assert!(!bed.is_connected() && !source.keeps());
}

#[test]
fn a_lost_connection_is_shut_down_for_the_source_too() {
    let (mut bed, source) = Bed::outliving();
    bed.start(device::tests_features());
    let kept = source.kept().take().expect("kept");
    front_end::Message::new(99, &[]).send(&bed.monitor, false).expect("sent");
    bed.events();
    assert!(!bed.is_connected());
    assert!(recv(&kept.descriptors[0], &mut [0; 1][..], RecvFlags::empty()).is_ok_and(|(len, _)| len == 0));
}
