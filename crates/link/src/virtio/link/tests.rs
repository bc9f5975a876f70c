//! Two workers over two pairs.

use super::*;
use crate::batch::ARENA_LEN;
use crate::poller::Token;
use crate::virtio::control;
use crate::virtio::device::Role;
use crate::virtio::driver::{DriverRing, Shape, mapped, memfd};
use crate::virtio::memory::{GuestMemory, RegionPlace};
use crate::virtio::queues::FrameFormat;
use crate::vnet::HEADER_LEN;
use brodo_core::link::Gso;
use rustix::event::epoll::{self, CreateFlags};
use rustix::event::{EventfdFlags, eventfd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const SHAPE: Shape = Shape { size: 16, slot: 8192, piece: None, event_index: true };
const FORMAT: FrameFormat = FrameFormat { modern: true, mergeable: true };
const RINGS: usize = 4;

struct Worker {
    link: VirtioLink,
    epoll: OwnedFd,
}

struct Bed {
    device: Arc<NetDevice>,
    memory: Arc<GuestMemory>,
    rings: Vec<DriverRing>,
    kicks: Vec<OwnedFd>,
    workers: [Worker; 2],
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("eventfd")
}

fn bed() -> Bed {
    let bytes = DriverRing::bytes(SHAPE).next_multiple_of(4096);
    let place = RegionPlace { guest: 0, size: bytes * RINGS as u64, user: 0, offset: 0 };
    let memory = Arc::new(mapped(&memfd(place.size), place));
    let device = NetDevice::new(RINGS, 2).expect("eventfd");
    let rings: Vec<_> = (0..RINGS as u64).map(|ring| DriverRing::new(SHAPE, ring * bytes, 0)).collect();
    let kicks: Vec<_> = (0..RINGS).map(|_| event()).collect();
    device.set_memory(&memory);
    for (ring, driver) in rings.iter().enumerate() {
        device.set_kick(ring, Some(kicks[ring].try_clone().expect("dup").into()));
        device.start_ring(ring, Role::of_pair(ring), driver.layout(), FORMAT).expect("a ring");
        device.enable_ring(ring, true);
    }
    let workers = [0, 1].map(|worker| {
        let mut link = VirtioLink::new(device.clone(), worker);
        let epoll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
        link.register(Poller::new(std::os::fd::AsFd::as_fd(&epoll), 0)).expect("registered");
        Worker { link, epoll }
    });
    let mut bed = Bed { device, memory, rings, kicks, workers };
    bed.turn();
    bed
}

/// A frame of the guest's, or the answer to it.
fn frame(port: u16, answer: bool, len: usize) -> Vec<u8> {
    let (guest, remote) = ((15, port), (1, 443));
    let (from, to) = if answer { (remote, guest) } else { (guest, remote) };
    let mut bytes = vec![7; 12];
    bytes.extend([8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0]);
    bytes.extend([10, 0, 2, from.0, 10, 0, 2, to.0]);
    bytes.extend([from.1.to_be_bytes(), to.1.to_be_bytes()].concat());
    bytes.resize(len, 0);
    bytes
}

impl Worker {
    fn events(&mut self) -> LinkReady {
        let mut events = Vec::with_capacity(16);
        let zero = rustix::time::Timespec::default();
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&zero)).expect("epoll");
        let mut ready = LinkReady::default();
        for event in events {
            let Token::Source { key, .. } = Token::read({ event.data }.u64()) else { panic!("a flow") };
            let LinkReady { frames, credit } = self.link.ready(key, event.flags);
            ready = LinkReady { frames: ready.frames | frames, credit: ready.credit | credit };
        }
        ready
    }

    fn taken(&mut self) -> usize {
        let mut arena = vec![0; ARENA_LEN];
        let mut frames = 0;
        loop {
            let mut batch = Batch::new(&mut arena, false);
            let left = self.link.take(&mut batch).expect("rings break, links do not");
            frames += batch.frames().len();
            if left == Taken::All {
                return frames;
            }
        }
    }

    fn send(&mut self, port: u16) -> Result<(), NoCredit> {
        let bytes = frame(port, true, 100);
        self.link.send(&TxFrame { headers: &bytes, payload: &[], partial: None, gso: Gso::None })
    }
}

impl Bed {
    fn turn(&mut self) {
        for worker in &mut self.workers {
            worker.events();
            worker.link.flush(Poller::new(std::os::fd::AsFd::as_fd(&worker.epoll), 0));
        }
    }

    fn guest_sends(&mut self, pair: usize, port: u16) {
        self.guest_sends_bytes(pair, &[vec![0; HEADER_LEN], frame(port, false, 2000)].concat());
    }

    /// A segment whose checksum is left to us, long enough to stay unread.
    fn guest_sends_long(&mut self, pair: usize, port: u16) {
        let header = [1, 1, 54, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0];
        self.guest_sends_bytes(pair, &[header.to_vec(), frame(port, false, 6000)].concat());
    }

    fn guest_sends_bytes(&mut self, pair: usize, bytes: &[u8]) {
        let driver = &mut self.rings[2 * pair + 1];
        let slot = driver.take_free().expect("a free slot");
        self.memory.user(driver.slot(slot), bytes.len()).expect("the slot").write(bytes);
        driver.offer(&self.memory, slot, bytes.len() as u32, false);
        if driver.needs_kick(&self.memory) {
            rustix::io::write(&self.kicks[2 * pair + 1], &1_u64.to_ne_bytes()).expect("a kick");
        }
    }

    fn guest_posts(&mut self, pair: usize) {
        let driver = &mut self.rings[2 * pair];
        while let Some(slot) = driver.take_free() {
            driver.offer(&self.memory, slot, SHAPE.slot, true);
        }
        if driver.needs_kick(&self.memory) {
            rustix::io::write(&self.kicks[2 * pair], &1_u64.to_ne_bytes()).expect("a kick");
        }
    }

    /// Frames that have come to the guest by each pair since the last call.
    fn arrived(&mut self) -> [usize; 2] {
        [0, 1].map(|pair| {
            let mut count = 0;
            while self.rings[2 * pair].take_used(&self.memory).is_some() {
                count += 1;
            }
            count
        })
    }
}

#[test]
fn each_worker_takes_from_its_own_pairs() {
    let mut bed = bed();
    for worker in &mut bed.workers {
        assert!(!worker.link.has_frames(true));
    }
    for _ in 0..3 {
        bed.guest_sends(1, 1000);
    }
    bed.guest_sends(0, 1001);
    let [first, second] = &mut bed.workers;
    assert!(first.events().frames && second.events().frames, "both were kicked");
    assert_eq!((first.taken(), second.taken()), (1, 3));
}

#[test]
fn answers_go_where_the_flow_has_sent_last_by_whichever_worker() {
    let mut bed = bed();
    bed.guest_posts(0);
    bed.guest_posts(1);
    bed.guest_sends(1, 1000);
    bed.guest_sends(0, 1001);
    for worker in &mut bed.workers {
        worker.taken();
    }
    for worker in 0..2 {
        for (port, arrived) in [(1000, [0, 1]), (1001, [1, 0]), (1002, [1, 0])] {
            assert_eq!(bed.workers[worker].send(port), Ok(()));
            assert_eq!(bed.arrived(), arrived, "port {port} by worker {worker}");
        }
    }
    // Its thread has moved to another processor.
    bed.guest_sends(0, 1000);
    bed.workers[0].taken();
    assert_eq!((bed.workers[1].send(1000), bed.arrived()), (Ok(()), [1, 0]));
}

#[test]
fn a_frame_for_a_disabled_pair_goes_to_another_one() {
    let mut bed = bed();
    bed.guest_posts(0);
    bed.guest_posts(1);
    bed.guest_sends(1, 1000);
    bed.workers[1].taken();
    bed.device.enable_ring(2, false);
    assert_eq!(bed.workers[1].send(1000), Err(NoCredit), "its lists are old");
    bed.device.announce();
    assert!(bed.workers[1].events().credit, "it is told of the change");
    // The loop sends again before it has looked at the rings.
    assert_eq!(bed.workers[1].send(1000), Err(NoCredit));
    bed.turn();
    assert!(bed.workers[1].events().credit, "no kick comes of a ring that is not used any more");
    bed.turn();
    assert!(!bed.workers[1].events().credit, "once");
    assert_eq!((bed.workers[1].send(1000), bed.arrived()), (Ok(()), [1, 0]));
    bed.device.enable_ring(0, false);
    bed.device.announce();
    bed.turn();
    assert_eq!(bed.workers[1].send(1000), Err(NoCredit), "none is left");
}

/// As a monitor does that logs the pages of a running machine.
#[test]
fn a_ring_that_is_set_up_anew_between_a_frame_and_its_call_is_called_for() {
    let mut bed = bed();
    let call = event();
    bed.guest_posts(0);
    assert!(!bed.rings[0].arm(&bed.memory, true), "the driver waits for a call");
    bed.device.set_call(0, Some(call.try_clone().expect("dup").into()));
    assert!(rustix::io::read(&call, &mut [0; 8]).is_ok());
    assert_eq!(bed.workers[1].send(1000), Ok(()));
    let layout = bed.rings[0].layout();
    bed.device.stop_ring(0);
    bed.device.start_ring(0, Role::ToGuest, layout, FORMAT).expect("a ring");
    bed.turn();
    assert!(rustix::io::read(&call, &mut [0; 8]).is_ok());
    assert_eq!(bed.arrived(), [1, 0]);
}

#[test]
fn credit_of_another_worker_s_ring_is_an_event() {
    let mut bed = bed();
    bed.guest_sends(1, 1000);
    bed.workers[1].taken();
    bed.turn();
    assert_eq!(bed.workers[0].send(1000), Err(NoCredit), "no buffers are posted");
    assert!(!bed.workers[0].events().credit);
    bed.guest_posts(1);
    assert!(bed.workers[0].events().credit);
    assert_eq!(bed.workers[0].send(1000), Ok(()));
}

/// A virtual processor that does not run, and a driver that gives one ring no buffers.
#[test]
fn a_starved_ring_holds_the_others_up_only_at_first() {
    let mut bed = bed();
    bed.guest_posts(0);
    bed.guest_sends(1, 1000);
    bed.workers[1].taken();
    bed.turn();
    let [worker, _] = &mut bed.workers;
    assert_eq!(worker.send(1000), Err(NoCredit), "pair 1 has no buffers");
    assert_eq!(worker.link.credit_wait(), Some(CreditWait::EventAtFirst));
    worker.link.wait_overdue();
    worker.link.forget_refusal();
    assert_eq!((worker.send(1000), bed.arrived()), (Ok(()), [1, 0]), "by the other pair");
    let [worker, _] = &mut bed.workers;
    while worker.send(1000).is_ok() {}
    assert_eq!(worker.link.credit_wait(), Some(CreditWait::Event), "there is no other way");
    // The refused ring is pair 0; buffers of the starved one are credit all the same.
    bed.guest_posts(1);
    assert!(bed.workers[0].events().credit);
    bed.arrived();
    assert_eq!((bed.workers[0].send(1000), bed.arrived()), (Ok(()), [0, 1]), "by its own pair again");
}

#[test]
fn a_kick_for_another_worker_is_no_credit() {
    let mut bed = bed();
    bed.guest_sends(1, 1000);
    bed.workers[1].taken();
    bed.turn();
    assert_eq!(bed.workers[0].send(1000), Err(NoCredit));
    assert_eq!(bed.workers[1].send(1001), Err(NoCredit));
    bed.guest_posts(0);
    assert_eq!([0, 1].map(|worker| bed.workers[worker].events().credit), [false, true]);
}

/// The guest's kick may be long past when its ring is enabled, as after a crash: its monitor has read it.
#[test]
fn a_ring_that_is_enabled_after_a_refusal_is_credit_without_a_kick() {
    let mut bed = bed();
    bed.guest_posts(0);
    for ring in [0, 2] {
        bed.device.enable_ring(ring, false);
        bed.device.set_kick(ring, Some(event().into()));
    }
    bed.device.announce();
    bed.turn();
    assert_eq!(bed.workers[0].send(1000), Err(NoCredit), "no ring is enabled");
    bed.device.enable_ring(0, true);
    bed.device.announce();
    assert!(bed.workers[0].events().credit);
    assert_eq!(bed.workers[0].send(1000), Err(NoCredit), "rings are looked at when a turn ends");
    bed.turn();
    assert!(bed.workers[0].events().credit);
    assert_eq!(bed.workers[0].send(1000), Ok(()));
    bed.turn();
    assert!(!bed.workers[0].events().credit, "once");
}

#[test]
fn a_ring_broken_by_one_worker_is_left_alone_by_all() {
    let mut bed = bed();
    bed.guest_posts(0);
    bed.guest_posts(1);
    bed.guest_sends(1, 1000);
    bed.workers[1].taken();
    let index = bed.rings[2].available_area() + 2;
    let order = Ordering::Relaxed;
    bed.memory.user(index, 2).expect("the index").store(0, 9999, order);
    // Chains that were seen before are served.
    while bed.workers[1].send(1000).is_ok() {}
    assert_eq!(bed.workers[1].link.losses().broken_rings, 1);
    bed.arrived();
    bed.turn();
    assert_eq!((bed.workers[0].send(1000), bed.arrived()), (Ok(()), [1, 0]));
}

#[test]
fn a_kick_that_cannot_be_waited_for_breaks_its_ring() {
    let mut bed = bed();
    bed.device.set_kick(3, Some(memfd(4096).into()));
    bed.device.announce();
    bed.turn();
    assert!(!bed.device.serves(3) && bed.device.serves(1));
    assert_eq!(bed.workers.each_ref().map(|worker| worker.link.losses().broken_rings), [0, 1]);
}

#[test]
fn pairs_beyond_the_driver_s_number_get_no_frames() {
    let mut bed = bed();
    bed.guest_posts(0);
    bed.guest_posts(1);
    bed.guest_sends(1, 1000);
    bed.workers[1].taken();
    bed.device.use_pairs(1);
    bed.device.announce();
    bed.turn();
    for worker in &mut bed.workers {
        assert_eq!(worker.send(1000), Ok(()));
    }
    assert_eq!(bed.arrived(), [2, 0]);
}

/// Commands come by the first worker: ring 4 of a device with two pairs.
#[test]
fn a_command_of_the_driver_is_served_with_the_frames() {
    let bytes = DriverRing::bytes(SHAPE).next_multiple_of(4096);
    let place = RegionPlace { guest: 0, size: bytes, user: 0, offset: 0 };
    let memory = Arc::new(mapped(&memfd(bytes), place));
    let device = NetDevice::new(5, 1).expect("eventfd");
    let mut driver = DriverRing::new(SHAPE, 0, 0);
    device.set_memory(&memory);
    device.set_kick(4, Some(event().into()));
    device.start_ring(4, Role::Control, driver.layout(), FORMAT).expect("a ring");
    let mut worker = Worker {
        link: VirtioLink::new(device, 0),
        epoll: epoll::create(CreateFlags::CLOEXEC).expect("epoll"),
    };
    worker.link.flush(Poller::new(std::os::fd::AsFd::as_fd(&worker.epoll), 0));
    assert!(!worker.link.has_frames(true));
    let slot = driver.take_free().expect("a free slot");
    memory.user(driver.slot(slot), 4).expect("the slot").write(&control::tests::USE_TWO_PAIRS);
    driver.offer(&memory, slot, 4, false);
    assert!(worker.link.has_frames(false) && worker.taken() == 0);
    assert_eq!(worker.link.device().pairs_in_use(), 2);
    assert_eq!(driver.used_index(&memory), 1);
}

/// Takes a batch in which ends of frames may stay unread; what they are.
fn taken_unread(worker: &mut Worker) -> Vec<Unread> {
    let mut arena = vec![0; ARENA_LEN];
    let mut batch = Batch::new(&mut arena, false);
    batch.allow_unread();
    worker.link.take(&mut batch).expect("rings break, links do not");
    batch.frames().iter().map(|frame| frame.unread).collect()
}

#[test]
fn set_up_waits_for_a_ring_that_is_lent() {
    is_waited_for(|device| assert_eq!(device.stop_ring(1), Some(2)));
    is_waited_for(|device| assert_eq!(device.set_memory(&Arc::default())[1], (1, 2)));
}

/// After the answer a driver may free its buffers, as UML does.
#[test]
fn a_ring_that_is_lent_is_waited_for_before_it_is_disabled() {
    is_waited_for(|device| {
        device.enable_ring(1, false);
        assert!(!device.ring(1).lent);
    });
}

/// Asserts that this ends no sooner than the batch for which ring 1 is lent.
fn is_waited_for(set_up: fn(&NetDevice)) {
    let mut bed = bed();
    bed.guest_sends_long(0, 1);
    bed.guest_sends(0, 2);
    let [unread, none] = taken_unread(&mut bed.workers[0])[..] else { panic!("two frames") };
    assert_eq!((unread.len, none.len), (6000 - 256, 0));
    assert!(bed.rings[1].take_used(&bed.memory).is_none(), "its buffers are in use");
    bed.device.enable_ring(1, true);
    assert!(bed.device.ring(1).lent, "a ring that stays enabled is not waited for");
    let done = Arc::new(AtomicBool::new(false));
    let (device, is_done) = (bed.device.clone(), done.clone());
    let set_up = thread::spawn(move || {
        set_up(&device);
        is_done.store(true, Ordering::SeqCst);
        device.clear();
    });
    for _ in 0..1000 {
        thread::yield_now();
        assert!(!done.load(Ordering::SeqCst), "the ring is lent");
        assert_eq!(bed.workers[0].link.read(unread, &mut [0; 10]), 10);
    }
    // The end of the turn.
    let Worker { link, epoll } = &mut bed.workers[0];
    link.flush(Poller::new(std::os::fd::AsFd::as_fd(epoll), 0));
    assert_eq!(link.read(unread, &mut [0; 10]), 0);
    assert_eq!(std::iter::from_fn(|| bed.rings[1].take_used(&bed.memory)).count(), 2);
    set_up.join().expect("ended");
}

/// A driver may have freed it, as UML has, or go on with it for a moment, as Linux with fewer pairs in QEMU.
#[test]
fn a_disabled_ring_is_not_written_to_until_it_has_chains() {
    for event_index in [true, false] {
        let mut bed = bed();
        bed.device.stop_ring(1);
        let base = bed.rings[1].descriptors();
        bed.rings[1] = DriverRing::new(Shape { event_index, ..SHAPE }, base, 0);
        bed.device.start_ring(1, Role::FromGuest, bed.rings[1].layout(), FORMAT).expect("a ring");
        bed.guest_sends(0, 1);
        assert_eq!(bed.workers[0].taken(), 1);
        bed.device.enable_ring(1, false);
        bed.device.announce();
        // Flags, used index, entries, event index: all are ours to write.
        let (area, len) = (bed.rings[1].used_area(), 6 + 8 * usize::from(SHAPE.size));
        let memory = bed.memory.clone();
        let used = || memory.user(area, len).expect("the ring");
        let mut known = vec![0; len];
        used().read(&mut known);
        used().write(&vec![0xee; len]);
        for _ in 0..2 {
            bed.turn();
            assert!(bed.workers[0].taken() == 0 && !bed.workers[0].link.has_frames(true));
        }
        let mut now = vec![0; len];
        used().read(&mut now);
        assert_eq!(now, vec![0xee; len]);
        used().write(&known);
        // A frame that was under way, and one once the ring is enabled again.
        for enabled in [false, true] {
            bed.device.enable_ring(1, enabled);
            assert!(!bed.workers[0].link.has_frames(true));
            bed.workers[0].events();
            bed.guest_sends(0, 1);
            assert!(bed.workers[0].events().frames, "it was kicked");
            assert_eq!(bed.workers[0].taken(), usize::from(enabled));
            bed.turn();
        }
        assert_eq!(std::iter::from_fn(|| bed.rings[1].take_used(&bed.memory)).count(), 3);
    }
}

/// An upload gives its ring back and lends it again within one call, long before the thread that waits for
/// the ring runs: here that does so after three more batches.
#[test]
fn a_ring_that_set_up_waits_for_is_not_lent_again() {
    let mut bed = bed();
    bed.guest_sends_long(0, 1);
    assert_eq!(taken_unread(&mut bed.workers[0]).len(), 1);
    bed.device.ring(1).awaited = true;
    for _ in 0..3 {
        bed.guest_sends_long(0, 1);
        let mut arena = vec![0; ARENA_LEN];
        let mut batch = Batch::new(&mut arena, false);
        batch.allow_unread();
        let Worker { link, epoll } = &mut bed.workers[0];
        assert_eq!(link.take(&mut batch).expect("no break"), Taken::Some, "the loop is to come back");
        assert!(batch.frames().is_empty() && !bed.device.ring(1).lent);
        link.flush(Poller::new(std::os::fd::AsFd::as_fd(epoll), 0));
        assert!(link.has_frames(false) && link.has_frames(true), "nor is a kick needed for that");
    }
    assert!(bed.rings[1].take_used(&bed.memory).is_some(), "given back");
    assert_eq!(bed.device.stop_ring(1), Some(1));
    bed.device.start_ring(1, Role::FromGuest, bed.rings[1].layout(), FORMAT).expect("a ring");
    assert_eq!(taken_unread(&mut bed.workers[0]).len(), 3, "set-up waits no more");
}

#[test]
fn set_up_goes_on_during_an_upload_without_end() {
    let mut bed = bed();
    let (device, memory) = (bed.device.clone(), bed.memory.clone());
    let done = Arc::new(AtomicBool::new(false));
    let ended = done.clone();
    let state = |bed: &Bed| {
        let ring = bed.device.ring(1);
        (ring.awaited, ring.memory.clone())
    };
    let upload = thread::spawn(move || {
        let begin = Instant::now();
        let (mut offered, mut overtaken) = (0, 0);
        while !ended.load(Ordering::SeqCst) {
            assert!(begin.elapsed() < Duration::from_secs(60), "set-up does not come to its end");
            while offered < 8 {
                bed.guest_sends_long(0, 1);
                offered += 1;
            }
            let (is_awaited, before) = state(&bed);
            let is_lent = !taken_unread(&mut bed.workers[0]).is_empty();
            let is_set_up = !Arc::ptr_eq(&before, &state(&bed).1);
            overtaken += usize::from(is_awaited && is_lent && !is_set_up);
            // The batch is handled.
            thread::sleep(Duration::from_millis(1));
            while let Some((slot, _)) = bed.rings[1].take_used(&bed.memory) {
                bed.rings[1].give_back(slot);
                offered -= 1;
            }
        }
        overtaken
    });
    for _ in 0..50 {
        device.set_memory(&Arc::new((*memory).clone()));
    }
    done.store(true, Ordering::SeqCst);
    assert_eq!(upload.join().expect("ended"), 0, "batches for which the ring was lent in between");
}

#[test]
fn a_ring_is_lent_for_one_batch_and_not_beyond_its_link() {
    let mut bed = bed();
    let given_back = |bed: &mut Bed| {
        let slots: Vec<_> = std::iter::from_fn(|| bed.rings[1].take_used(&bed.memory)).collect();
        for (slot, _) in &slots {
            bed.rings[1].give_back(*slot);
        }
        slots.len()
    };
    bed.guest_sends_long(0, 1);
    assert_eq!(taken_unread(&mut bed.workers[0]).len(), 1);
    assert_eq!(given_back(&mut bed), 0);
    bed.guest_sends_long(0, 1);
    assert_eq!(taken_unread(&mut bed.workers[0]).len(), 1);
    assert_eq!(given_back(&mut bed), 1, "of the batch before");
    // A ring that breaks behind a frame that is lent.
    bed.guest_sends_long(0, 1);
    let descriptors = bed.rings[1].descriptors();
    bed.guest_sends_long(0, 1);
    for descriptor in 0..u64::from(SHAPE.size) {
        let address = bed.memory.user(descriptors + descriptor * 16, 8).expect("the ring");
        if descriptor > 2 {
            address.write(&u64::MAX.to_le_bytes());
        }
    }
    let mut left = taken_unread(&mut bed.workers[0]).len();
    left += taken_unread(&mut bed.workers[0]).len();
    assert!(left <= 2);
    bed.workers[0].link = VirtioLink::new(bed.device.clone(), 0);
    assert_eq!(bed.device.stop_ring(1), Some(2 + left as u16), "no link lends it any more");
}
