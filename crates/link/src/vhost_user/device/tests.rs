//! Set-up by the sequences of messages that front ends send. Those of QEMU and UML were observed, those of
//! cloud-hypervisor and crosvm read from their source.

use super::*;
use crate::virtio::driver::{DriverRing, Shape, memfd};
use brodo_core::wire::ethernet::MacAddr;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::read;
use std::sync::atomic::Ordering;

const GUEST: u64 = 0x1000;
const USER: u64 = 0x10_0000;
const SHAPE: Shape = Shape { size: 256, slot: 4096, piece: None, event_index: true };
const MRG_RXBUF: u64 = 1 << 15;
const ALL: u64 = feature::offered(true);

const CONFIG: MachineConfig =
    MachineConfig { mac: MacAddr([2, 0, 0, 0, 0, 7]), mtu: 9000, offload: true, queues: 1, plain: false };
const TO_GUEST: usize = 0;
const FROM_GUEST: usize = 1;

fn device_of(config: MachineConfig) -> Device {
    Device::new(config, NetDevice::new(rings(config.queues), 1).expect("eventfd"))
}

fn device() -> Device {
    device_of(CONFIG)
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("eventfd")
}

/// Value of an eventfd, which is 0 afterwards.
fn value(event: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    read(event, &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
}

fn memory(device: &mut Device) {
    let size = DriverRing::bytes(SHAPE).next_multiple_of(4096);
    let place = RegionPlace { guest: GUEST, size, user: USER, offset: 0 };
    done(device, Request::SetMemoryTable(vec![place]), vec![memfd(size)]);
}

fn done(device: &mut Device, request: Request, descriptors: Vec<OwnedFd>) {
    let text = format!("{request:?}");
    assert_eq!(device.handle(request, descriptors), Ok(None), "{text}");
}

fn refused(device: &mut Device, request: Request, descriptors: Vec<OwnedFd>) {
    let text = format!("{request:?}");
    assert_eq!(device.handle(request, descriptors), Err(Refused), "{text}");
}

fn reply(device: &mut Device, request: Request) -> Reply {
    device.handle(request, Vec::new()).expect("answered").expect("a reply")
}

fn addresses(ring: u32) -> Request {
    addresses_logged(ring, None)
}

fn addresses_logged(ring: u32, logged: Option<u64>) -> Request {
    let driver = DriverRing::new(SHAPE, USER, GUEST.wrapping_sub(USER));
    Request::SetRingAddresses(RingAddresses {
        ring,
        descriptors: driver.descriptors(),
        used: driver.used_area(),
        available: driver.available_area(),
        logged,
    })
}

fn descriptor(device: &mut Device, kind: Descriptor, ring: u32) -> OwnedFd {
    let event = event();
    let copy = event.try_clone().expect("dup");
    done(device, Request::SetRingDescriptor { kind, ring, present: true }, vec![copy]);
    event
}

/// One ring from size to call, as QEMU does it.
fn start(device: &mut Device, ring: u32, base: u32) {
    done(device, Request::SetRingSize { ring, size: 256 }, Vec::new());
    done(device, Request::SetRingBase { ring, base }, Vec::new());
    done(device, addresses(ring), Vec::new());
    descriptor(device, Descriptor::Kick, ring);
    descriptor(device, Descriptor::Call, ring);
}

#[test]
fn qemu_enables_rings_before_features_and_never_again() {
    let mut device = device();
    assert_eq!(reply(&mut device, Request::GetFeatures), Reply::Number(ALL));
    let Reply::Number(protocol) = reply(&mut device, Request::GetProtocolFeatures) else { panic!() };
    done(&mut device, Request::SetProtocolFeatures(protocol), Vec::new());
    assert!(device.acknowledges());
    assert_eq!(reply(&mut device, Request::GetQueueNum), Reply::Number(3));
    for ring in 0..2 {
        done(&mut device, Request::EnableRing { ring, enabled: true }, Vec::new());
    }
    done(&mut device, Request::SetFeatures(ALL), Vec::new());
    memory(&mut device);
    for ring in 0..2 {
        start(&mut device, ring, 0);
    }
    assert!(device.rings.serves(TO_GUEST) && device.rings.serves(FROM_GUEST));
    assert!(device.rings.is_enabled(TO_GUEST) && device.rings.is_enabled(FROM_GUEST));
    let caps = device.caps();
    assert!(caps.checksum && caps.tso && caps.uso, "{caps:?}");
    // The machine stops and starts again.
    for ring in 0..2 {
        let base = Reply::RingBase { ring, base: 0 };
        assert_eq!(reply(&mut device, Request::GetRingBase { ring }), base);
    }
    assert!(!device.rings.serves(TO_GUEST) && !device.rings.serves(FROM_GUEST));
    start(&mut device, 1, 0);
    assert!(device.rings.serves(FROM_GUEST) && device.rings.is_enabled(FROM_GUEST));
}

/// A frame to the guest, by a driver that has posted buffers: pages of its buffer and of the used area.
#[test]
fn a_machine_that_moves_has_its_written_pages_in_the_log() {
    let mut device = device();
    done(&mut device, Request::SetFeatures(ALL & !feature::LOG_ALL), Vec::new());
    memory(&mut device);
    start(&mut device, 0, 0);
    done(&mut device, Request::EnableRing { ring: 0, enabled: true }, Vec::new());
    let mut driver = DriverRing::new(SHAPE, USER, GUEST.wrapping_sub(USER));
    while let Some(slot) = driver.take_free() {
        driver.offer(&device.memory, slot, SHAPE.slot, true);
    }
    let mut link = crate::virtio::link::VirtioLink::new(device.rings.clone(), 0);
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).expect("epoll");
    let mut send = || {
        use crate::GuestLink;
        use brodo_core::link::{Gso, Link, TxFrame};
        link.note_change();
        link.flush(crate::poller::Poller::new(epoll.as_fd(), 0));
        let headers = [7; 60];
        let (partial, gso) = (None, Gso::None);
        link.send(&TxFrame { headers: &headers, payload: &[], partial, gso })
    };
    let log = memfd(0x1000);
    let pages = |file: &OwnedFd| {
        let mut bits = [0; 0x1000];
        rustix::io::pread(file, &mut bits, 0).expect("a file");
        let is_marked = |page: &u64| bits[(page / 8) as usize] & 1 << (page % 8) != 0;
        (0..0x8000).filter(is_marked).collect::<Vec<_>>()
    };
    let copy = log.try_clone().expect("dup");
    let set = Request::SetLog { size: 0x1000, offset: 0 };
    assert_eq!(device.handle(set, vec![copy]), Ok(Some(Reply::Number(0))), "it is answered");
    assert_eq!((send(), pages(&log)), (Ok(()), vec![]), "nothing is to be logged yet");
    // The monitor begins: features, then addresses, while the ring is in service.
    done(&mut device, Request::SetFeatures(ALL), Vec::new());
    let used = driver.used_area() - USER + GUEST;
    done(&mut device, addresses_logged(0, Some(used)), Vec::new());
    assert_eq!(send(), Ok(()));
    let second = driver.slot(1) - USER + GUEST;
    let mut expected = vec![used >> 12, second >> 12];
    expected.sort_unstable();
    expected.dedup();
    assert!(expected.iter().all(|page| pages(&log).contains(page)), "{expected:?} {:?}", pages(&log));
    assert!(pages(&log).len() <= 3, "{:?}", pages(&log));
    // The next process logs as well, and notifies if it is asked to.
    let signal = event();
    let copy = signal.try_clone().expect("dup");
    done(&mut device, Request::SetLogSignal, vec![copy]);
    assert_eq!((send(), value(&signal) > 0), (Ok(()), true));
    let saved: Vec<_> = device.requests().into_iter().map(|(request, _)| request).collect();
    assert!(saved.contains(&Request::SetLog { size: 0x1000, offset: 0 }), "{saved:?}");
    assert!(saved.contains(&Request::SetLogSignal));
}

#[test]
fn uml_keeps_a_channel_reads_the_mac_and_stops_rings_by_disabling_them() {
    let mut device = device();
    done(&mut device, Request::SetBackendChannel, vec![event()]);
    let space = |device: &mut Device, offset, size| match reply(
        device,
        Request::GetConfig { offset, size, flags: 0 },
    ) {
        Reply::Config { bytes, .. } => bytes,
        other => panic!("{other:?}"),
    };
    assert_eq!(space(&mut device, 0, 6), [2, 0, 0, 0, 0, 7]);
    assert_eq!(space(&mut device, 6, 6), [1, 0, 1, 0, 0x28, 0x23]);
    for (offset, size) in [(0, 257), (256, 1), (u32::MAX, 1), (1, u32::MAX)] {
        assert!(space(&mut device, offset, size).is_empty(), "{offset} {size}");
    }
    done(&mut device, Request::SetFeatures(ALL), Vec::new());
    memory(&mut device);
    start(&mut device, 1, 0);
    assert!(!device.rings.is_enabled(FROM_GUEST), "it has not said so");
    for enabled in [true, false] {
        done(&mut device, Request::EnableRing { ring: 1, enabled }, Vec::new());
        assert_eq!(device.rings.is_enabled(FROM_GUEST), enabled);
    }
    assert_eq!(reply(&mut device, Request::GetFeatures), Reply::Number(ALL));
}

#[test]
fn without_protocol_features_rings_are_enabled_from_the_start() {
    let mut device = device();
    done(&mut device, Request::SetFeatures(ALL & !feature::PROTOCOL_FEATURES), Vec::new());
    assert!(device.rings.is_enabled(TO_GUEST) && device.rings.is_enabled(FROM_GUEST));
}

#[test]
fn a_ring_goes_on_at_its_used_index_whatever_base_the_monitor_gives() {
    let mut device = device();
    done(&mut device, Request::SetFeatures(ALL), Vec::new());
    memory(&mut device);
    let base = |device: &mut Device| reply(device, Request::GetRingBase { ring: 0 });
    done(&mut device, Request::SetRingBase { ring: 0, base: 65_000 }, Vec::new());
    assert_eq!(base(&mut device), Reply::RingBase { ring: 0, base: 65_000 }, "it was not in service");
    // cloud-hypervisor, which gives the available index of a ring whose buffers are all posted.
    let used = DriverRing::new(SHAPE, USER, 0).used_area() + 2;
    device.memory.user(used, 2).expect("the index").store(0, 65_000 - 256, Ordering::Relaxed);
    start(&mut device, 0, 65_000);
    assert_eq!(base(&mut device), Reply::RingBase { ring: 0, base: 65_000 - 256 });
}

#[test]
fn offloads_depend_on_features_and_on_room_in_the_ring() {
    let caps = |features, size| {
        let mut device = device();
        done(&mut device, Request::SetFeatures(features), Vec::new());
        memory(&mut device);
        start(&mut device, 0, 0);
        done(&mut device, Request::SetRingSize { ring: 0, size }, Vec::new());
        let caps = device.caps();
        (caps.checksum, caps.tso, caps.uso, caps.packet_max)
    };
    assert_eq!(caps(ALL, 128), (true, true, true, None));
    let half = Some(32 * 1518 - 14);
    assert_eq!(caps(ALL, 64), (true, false, false, half), "it may never hold a super-frame");
    assert_eq!(caps(ALL, 1), (true, false, false, Some(1504)));
    assert_eq!(caps(ALL & !MRG_RXBUF, 64), (true, true, true, None), "each buffer holds one");
    assert_eq!(caps(ALL & !feature::GUEST_CSUM, 256), (false, false, false, None));
    assert_eq!(caps(ALL & !feature::GUEST_TSO6, 256), (true, false, true, None));
    assert_eq!(caps(ALL & !feature::GUEST_USO4, 256), (true, true, false, None));
    let plain = device_of(MachineConfig { offload: false, ..CONFIG });
    assert_eq!(plain.caps(), LinkCaps::default());
}

#[test]
fn what_cannot_be_met_is_refused_and_the_rest_goes_on() {
    let mut device = device();
    let none = Vec::new;
    refused(&mut device, Request::SetFeatures(1 << 40), none());
    refused(&mut device, Request::SetProtocolFeatures(1 << 12), none());
    refused(&mut device, Request::Unknown, none());
    refused(&mut device, Request::EnableRing { ring: 6, enabled: true }, none());
    refused(&mut device, Request::GetRingBase { ring: 99 }, none());
    refused(&mut device, Request::SetRingSize { ring: 0, size: 65_536 }, none());
    refused(&mut device, Request::SetRingBase { ring: 0, base: 65_536 }, none());
    refused(&mut device, Request::SetBackendChannel, none());
    let place = RegionPlace { guest: 0, size: 4096, user: 0, offset: 0 };
    refused(&mut device, Request::SetMemoryTable(vec![place]), none());
    refused(&mut device, Request::SetMemoryTable(vec![place, place]), vec![memfd(4096), memfd(4096)]);
    refused(&mut device, Request::AddMemoryRegion(place), none());
    refused(&mut device, Request::RemoveMemoryRegion(place), none());
    let kick = Request::SetRingDescriptor { kind: Descriptor::Kick, ring: 0, present: false };
    refused(&mut device, kick.clone(), none());
    refused(&mut device, kick, vec![event()]);
    done(&mut device, Request::SetFeatures(ALL), none());
    memory(&mut device);
    start(&mut device, 0, 0);
    assert!(device.rings.serves(TO_GUEST));
}

#[test]
fn a_ring_whose_driver_gives_it_no_possible_place_is_broken_alone() {
    let mut device = device();
    done(&mut device, Request::SetFeatures(ALL), Vec::new());
    memory(&mut device);
    start(&mut device, 0, 0);
    start(&mut device, 1, 0);
    let error = descriptor(&mut device, Descriptor::Error, 1);
    let Request::SetRingAddresses(sound) = addresses(1) else { panic!() };
    for (number, places) in [
        RingAddresses { used: sound.used + 2, ..sound },
        RingAddresses { descriptors: 0, ..sound },
        RingAddresses { available: u64::MAX, ..sound },
    ]
    .into_iter()
    .enumerate()
    {
        done(&mut device, Request::SetRingAddresses(places), Vec::new());
        assert!(device.rings.serves(TO_GUEST) && !device.rings.serves(FROM_GUEST), "{number}");
        assert_eq!((value(&error), device.take_broken()), (1, 1), "{number}");
        done(&mut device, addresses(1), Vec::new());
        assert!(device.rings.serves(FROM_GUEST) && device.take_broken() == 0);
    }
    done(&mut device, Request::SetRingSize { ring: 1, size: 7 }, Vec::new());
    assert!(!device.rings.serves(FROM_GUEST), "7 is the size of no ring");
    assert_eq!((value(&error), device.take_broken()), (1, 1));
    // A restart of the machine, after which QEMU does not send the error descriptor again.
    reply(&mut device, Request::GetRingBase { ring: 1 });
    descriptor(&mut device, Descriptor::Kick, 1);
    assert_eq!((value(&error), device.take_broken()), (1, 1));
    let kept = device.requests().into_iter().map(|(request, _)| request);
    let is_error = |request| matches!(request, Request::SetRingDescriptor { kind: Descriptor::Error, .. });
    assert_eq!(kept.filter(|request| is_error(request.clone())).count(), 1);
}

#[test]
fn memory_comes_and_goes_by_regions() {
    let mut device = device();
    let place = |guest, user| RegionPlace { guest, size: 4096, user, offset: 0 };
    done(&mut device, Request::AddMemoryRegion(place(0, 0x5000)), vec![memfd(4096)]);
    done(&mut device, Request::AddMemoryRegion(place(4096, 0x9000)), vec![memfd(4096)]);
    refused(&mut device, Request::AddMemoryRegion(place(4095, 0xd000)), vec![memfd(4096)]);
    done(&mut device, Request::RemoveMemoryRegion(place(0, 0x5000)), Vec::new());
    assert!(device.memory.guest(0, 1).is_none() && device.memory.guest(4096, 1).is_some());
    assert_eq!(reply(&mut device, Request::GetMaxMemorySlots), Reply::Number(509));
}

/// QEMU replaces a section of the guest's memory that has changed so, while rings are in service.
#[test]
fn rings_in_memory_that_is_removed_go_on_when_it_is_added_again() {
    use crate::GuestLink;
    use crate::batch::{ARENA_LEN, Batch};
    let mut device = device();
    done(&mut device, Request::SetFeatures(ALL), Vec::new());
    let size = DriverRing::bytes(SHAPE).next_multiple_of(4096);
    let place = RegionPlace { guest: GUEST, size, user: USER, offset: 0 };
    let file = memfd(size);
    let add = |device: &mut Device| {
        done(device, Request::AddMemoryRegion(place), vec![file.try_clone().expect("dup")]);
    };
    add(&mut device);
    start(&mut device, 1, 0);
    let error = descriptor(&mut device, Descriptor::Error, 1);
    done(&mut device, Request::EnableRing { ring: 1, enabled: true }, Vec::new());
    let mut link = crate::virtio::link::VirtioLink::new(device.rings.clone(), 0);
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).expect("epoll");
    let mut driver = DriverRing::new(SHAPE, USER, GUEST.wrapping_sub(USER));
    let mut taken = |device: &Device| {
        link.note_change();
        link.flush(crate::poller::Poller::new(epoll.as_fd(), 0));
        let mut arena = vec![0; ARENA_LEN];
        let mut batch = Batch::new(&mut arena, false);
        link.take(&mut batch).expect("rings break, links do not");
        let frames = batch.frames().len();
        assert!(!link.has_frames(true) && link.losses() == crate::LinkLosses::default());
        (frames, device.rings.serves(FROM_GUEST))
    };
    let mut sends = |device: &Device| {
        let slot = driver.take_free().expect("a free slot");
        driver.offer(&device.memory, slot, 72, false);
    };
    sends(&device);
    assert_eq!(taken(&device), (1, true));
    sends(&device);
    done(&mut device, Request::RemoveMemoryRegion(place), Vec::new());
    assert_eq!(taken(&device), (0, false));
    let kept = device.requests().into_iter().map(|(request, _)| request);
    let is_kick = |request: &Request| {
        matches!(request, Request::SetRingDescriptor { kind: Descriptor::Kick, ring: 1, .. })
    };
    assert_eq!(kept.filter(is_kick).count(), 1, "the next process takes it into service too");
    add(&mut device);
    assert_eq!(taken(&device), (1, true));
    // Stopped meanwhile, it stays out of service, and its index is as it was.
    done(&mut device, Request::RemoveMemoryRegion(place), Vec::new());
    let base = reply(&mut device, Request::GetRingBase { ring: 1 });
    assert_eq!(base, Reply::RingBase { ring: 1, base: 2 });
    add(&mut device);
    assert_eq!((taken(&device), device.take_broken(), value(&error)), ((0, false), 0, 0));
}

#[test]
fn a_ring_whose_memory_comes_last_is_served_from_then_on() {
    let mut device = device();
    done(&mut device, Request::SetFeatures(ALL), Vec::new());
    start(&mut device, 1, 0);
    assert_eq!((device.rings.serves(FROM_GUEST), device.take_broken()), (false, 1));
    memory(&mut device);
    assert_eq!((device.rings.serves(FROM_GUEST), device.take_broken()), (true, 0));
}

#[test]
fn a_new_call_is_signalled() {
    let mut device = device();
    done(&mut device, Request::SetFeatures(ALL), Vec::new());
    memory(&mut device);
    start(&mut device, 1, 0);
    let call = descriptor(&mut device, Descriptor::Call, 1);
    assert_eq!(value(&call), 1, "one before it may be lost");
}

/// crosvm and User-Mode Linux take the configuration from the device, and leave its control queue to it; QEMU
/// and cloud-hypervisor do not acknowledge CONFIG.
#[test]
fn the_control_queue_is_the_device_s_where_its_configuration_is() {
    for (with_config, features, control) in [
        (true, ALL, Some(4)),
        (true, ALL & !feature::MQ, Some(2)),
        (true, ALL & !feature::CTRL_VQ, None),
        (false, ALL, None),
    ] {
        let mut device = device_of(MachineConfig { queues: 2, ..CONFIG });
        let bits = protocol::ALL & if with_config { u64::MAX } else { !protocol::CONFIG };
        done(&mut device, Request::SetProtocolFeatures(bits), Vec::new());
        done(&mut device, Request::SetFeatures(features), Vec::new());
        assert_eq!(device.control_ring(), control, "{features:#x}");
    }
}

#[test]
fn a_plain_device_offers_no_channel_and_no_configuration() {
    let mut device = device_of(MachineConfig { plain: true, ..CONFIG });
    let without = protocol::ALL & !(1 << 5 | protocol::CONFIG);
    assert_eq!(reply(&mut device, Request::GetProtocolFeatures), Reply::Number(without));
    refused(&mut device, Request::SetProtocolFeatures(protocol::ALL), Vec::new());
    done(&mut device, Request::SetProtocolFeatures(without), Vec::new());
}

#[test]
fn several_pairs_are_advertised_and_may_be_used() {
    let mut device = device_of(MachineConfig { queues: 8, ..CONFIG });
    assert_eq!(reply(&mut device, Request::GetQueueNum), Reply::Number(17));
    let space = reply(&mut device, Request::GetConfig { offset: 8, size: 2, flags: 0 });
    assert_eq!(space, Reply::Config { offset: 8, flags: 0, bytes: vec![8, 0] });
    done(&mut device, Request::SetFeatures(ALL), Vec::new());
    memory(&mut device);
    for ring in 0..34 {
        start(&mut device, ring, 0);
        done(&mut device, Request::EnableRing { ring, enabled: true }, Vec::new());
        assert!(device.rings.serves(ring as usize) && device.rings.is_enabled(ring as usize));
    }
    refused(&mut device, Request::EnableRing { ring: 34, enabled: true }, Vec::new());
}

#[test]
fn a_reset_forgets_all_but_the_memory() {
    let mut device = device();
    done(&mut device, Request::SetFeatures(ALL), Vec::new());
    memory(&mut device);
    start(&mut device, 0, 0);
    done(&mut device, Request::EnableRing { ring: 0, enabled: true }, Vec::new());
    done(&mut device, Request::ResetDevice, Vec::new());
    assert!(!device.rings.serves(TO_GUEST) && device.memory.guest(GUEST, 1).is_some());
    done(&mut device, Request::SetFeatures(feature::PROTOCOL_FEATURES), Vec::new());
    assert!(!device.rings.is_enabled(TO_GUEST));
    assert_eq!(device.caps(), LinkCaps::default());
}
