//! Rings in and out of service.

use super::*;
use crate::virtio::driver::{DriverRing, Shape, mapped, memfd};
use crate::virtio::memory::RegionPlace;

const SHAPE: Shape = Shape { size: 16, slot: 4096, piece: None, event_index: true };
const FORMAT: FrameFormat = FrameFormat { modern: true, mergeable: true };

fn started() -> (Arc<NetDevice>, Arc<GuestMemory>, Layout) {
    let size = DriverRing::bytes(SHAPE).next_multiple_of(4096);
    let place = RegionPlace { guest: 0, size, user: 0, offset: 0 };
    let memory = Arc::new(mapped(&memfd(size), place));
    let device = NetDevice::new(2, 1).expect("eventfd");
    device.set_memory(&memory);
    let layout = DriverRing::new(SHAPE, 0, 0).layout();
    memory.user(layout.used + 2, 2).expect("the used index").store(0, 5, Ordering::Relaxed);
    device.start_ring(0, Role::ToGuest, layout, FORMAT).expect("a ring");
    (device, memory, layout)
}

#[test]
fn a_ring_that_is_stopped_tells_where_it_was() {
    let (device, _, layout) = started();
    assert!(device.serves(0) && device.least_ring_to_guest() == Some(16));
    assert_eq!((device.stop_ring(0), device.stop_ring(0)), (Some(5), None));
    assert!(!device.serves(0) && device.least_ring_to_guest().is_none());
    assert_eq!(device.start_ring(2, Role::ToGuest, layout, FORMAT), Err(RingError::Area), "no such ring");
}

#[test]
fn a_broken_ring_signals_so_and_tells_where_it_was() {
    let (device, _, layout) = started();
    let error = eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd");
    device.set_error(0, Some(error.try_clone().expect("dup").into()));
    device.ring(0).break_ring();
    assert!(!device.serves(0) && rustix::io::read(&error, &mut [0; 8]).is_ok());
    assert_eq!(device.stop_ring(0), Some(5));
    assert_eq!(device.start_ring(0, Role::ToGuest, layout, FORMAT), Ok(()));
}

#[test]
fn memory_that_is_replaced_is_used_no_more() {
    let (device, memory, layout) = started();
    device.set_memory(&Arc::default());
    assert_eq!(Arc::strong_count(&memory), 1, "unmapped when the caller drops it");
    device.stop_ring(0);
    assert_eq!(device.start_ring(0, Role::ToGuest, layout, FORMAT), Err(RingError::Area));
}

#[test]
fn capabilities_are_stored_as_given() {
    let (device, ..) = started();
    for bits in 0..8 {
        for packet_max in [None, Some(1504), Some(u16::MAX)] {
            let (checksum, tso, uso) = (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
            let caps = LinkCaps { checksum, tso, uso, packet_max };
            device.set_caps(caps);
            assert_eq!(device.caps(), caps);
        }
    }
}
