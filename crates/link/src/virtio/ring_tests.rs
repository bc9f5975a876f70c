//! One ring against a driver that keeps to the rules, and against memory that no driver writes.

use super::driver::{DriverRing, Shape, describe, mapped, memfd};
use super::memory::{GuestMemory, RegionPlace};
use super::ring::{Chain, Filled, Layout, Ring, RingError, Span};
use std::sync::atomic::Ordering;

/// Descriptor flags.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

const GUEST: u64 = 0x8000;
const USER: u64 = 0x10_0000;
const SIZE: u16 = 8;

struct Bed {
    memory: GuestMemory,
    driver: DriverRing,
    ring: Ring,
    spans: Vec<Span>,
}

fn bed(shape: Shape, filled: Filled) -> Bed {
    let size = DriverRing::bytes(shape).next_multiple_of(4096);
    let memory = mapped(&memfd(size), RegionPlace { guest: GUEST, size, user: USER, offset: 0 });
    let driver = DriverRing::new(shape, USER, GUEST.wrapping_sub(USER));
    let ring = Ring::start(driver.layout(), filled, &memory).expect("a ring");
    Bed { memory, driver, ring, spans: Vec::new() }
}

const SHAPE: Shape = Shape { size: SIZE, slot: 4096, piece: None, event_index: false };

impl Bed {
    fn offer(&mut self, len: u32, writable: bool) -> u16 {
        let slot = self.driver.take_free().expect("a free slot");
        self.driver.offer(&self.memory, slot, len, writable);
        slot
    }

    fn peek(&mut self) -> Result<Option<Chain>, RingError> {
        self.spans.clear();
        self.ring.peek(&self.memory, 0, &mut self.spans)
    }

    /// Takes the next chain.
    fn complete(&mut self, written: u32) -> u16 {
        let chain = self.peek().expect("sound").expect("available");
        self.ring.complete(&self.memory, chain.head, written).expect("sound");
        chain.head
    }

    /// Writes descriptor `index` of the ring.
    fn describe(&self, index: u16, address: u64, len: u32, flags: u16, next: u16) {
        let place = self.driver.descriptors() + 16 * u64::from(index);
        describe(&self.memory, place, address, len, flags, next);
    }

    /// Writes a field of the available area.
    fn available(&self, at: u64, value: u16) {
        let field = self.memory.user(self.driver.available_area() + at, 2).expect("the area");
        field.store(0, value, Ordering::Release);
    }
}

#[test]
fn chains_go_round_the_ring_many_times_in_order() {
    for piece in [None, Some(64)] {
        let mut bed = bed(Shape { piece, ..SHAPE }, Filled::Driver);
        for round in 0..70_000_u32 {
            let len = 1 + round % 1000;
            let slot = bed.offer(len, false);
            let chain = bed.peek().expect("sound").expect("available");
            assert_eq!((chain.head, chain.len), (slot, u64::from(len)));
            let parts = piece.map_or(1, |piece| len.div_ceil(piece).clamp(1, 16));
            assert_eq!(bed.spans.len() as u32, parts);
            assert!(bed.driver.take_used(&bed.memory).is_none(), "not yet");
            bed.ring.complete(&bed.memory, chain.head, round).expect("sound");
            bed.ring.publish(&bed.memory).expect("sound");
            assert_eq!(bed.driver.take_used(&bed.memory), Some((slot, round)));
            bed.driver.give_back(slot);
        }
        assert_eq!(bed.peek(), Ok(None));
        assert_eq!(bed.ring.next(), (70_000_u32 % 65_536) as u16);
    }
}

#[test]
fn chains_ahead_are_read_without_being_taken() {
    let mut bed = bed(SHAPE, Filled::Device);
    let slots: Vec<_> = (0..SIZE).map(|_| bed.offer(100, true)).collect();
    for (ahead, slot) in slots.iter().enumerate() {
        let chain = bed.ring.peek(&bed.memory, ahead as u16, &mut bed.spans).expect("sound");
        assert_eq!(chain, Some(Chain { head: *slot, len: 100, descriptors: 1 }));
    }
    assert_eq!(bed.ring.peek(&bed.memory, SIZE, &mut bed.spans), Ok(None));
    assert_eq!((bed.spans.len(), bed.ring.next()), (8, 0));
    assert_eq!(bed.complete(7), slots[0]);
}

#[test]
fn calls_and_kicks_are_asked_for_only_when_they_are_needed() {
    for event_index in [false, true] {
        let mut bed = bed(Shape { event_index, ..SHAPE }, Filled::Driver);
        bed.driver.arm(&bed.memory, false);
        bed.offer(10, false);
        // The event index starts at 0, so the first kick of all is wanted.
        assert_eq!(bed.driver.needs_kick(&bed.memory), event_index);
        bed.complete(0);
        bed.ring.publish(&bed.memory).expect("sound");
        assert_eq!(bed.ring.needs_call(&bed.memory), Ok(false), "the driver polls");
        bed.offer(10, false);
        assert!(!bed.driver.needs_kick(&bed.memory), "the device is awake");
        assert_eq!(bed.ring.arm(&bed.memory, 1), Ok(true), "a chain is there already");
        bed.complete(0);
        bed.ring.publish(&bed.memory).expect("sound");
        assert_eq!(bed.ring.arm(&bed.memory, 2), Ok(false));
        bed.offer(10, false);
        assert_eq!(bed.driver.needs_kick(&bed.memory), !event_index, "the second one is awaited");
        bed.offer(10, false);
        assert!(bed.driver.needs_kick(&bed.memory));
        bed.ring.disarm(&bed.memory).expect("sound");
        while bed.driver.take_used(&bed.memory).is_some() {}
        assert!(!bed.driver.arm(&bed.memory, true));
        bed.complete(0);
        bed.ring.publish(&bed.memory).expect("sound");
        assert_eq!(bed.ring.needs_call(&bed.memory), Ok(true), "the driver sleeps");
        assert_eq!(bed.ring.needs_call(&bed.memory), Ok(false), "and is called once");
    }
}

#[test]
fn a_ring_goes_on_at_the_used_index_in_memory() {
    let mut bed = bed(SHAPE, Filled::Driver);
    let slots: Vec<_> = (0..3).map(|_| bed.offer(10, false)).collect();
    bed.complete(0);
    bed.ring.publish(&bed.memory).expect("sound");
    assert_eq!(bed.driver.used_index(&bed.memory), 1);
    bed.ring = Ring::start(bed.driver.layout(), Filled::Driver, &bed.memory).expect("a ring");
    assert_eq!(bed.complete(0), slots[1], "the first that was not used");
    bed.ring.publish(&bed.memory).expect("sound");
    let used: Vec<_> = std::iter::from_fn(|| bed.driver.take_used(&bed.memory)).map(|used| used.0).collect();
    assert_eq!(used, slots[..2]);
}

/// As a driver may have it that puts its header in the ring and its frame in a table.
#[test]
fn a_chain_may_go_on_in_a_table() {
    let shape = Shape { piece: Some(64), ..SHAPE };
    let mut bed = bed(shape, Filled::Driver);
    assert_eq!(bed.offer(100, false), 0);
    let slot = GUEST + 4096;
    let table = bed.driver.slot(7);
    describe(&bed.memory, table, slot, 30, NEXT, 1);
    describe(&bed.memory, table + 16, slot, 50, 0, 0);
    let table = table - USER + GUEST;
    bed.describe(0, slot, 12, NEXT, 5);
    bed.describe(5, slot, 8, NEXT, 6);
    bed.describe(6, table, 32, INDIRECT, 0);
    assert_eq!(bed.peek(), Ok(Some(Chain { head: 0, len: 100, descriptors: 5 })));
    let lengths: Vec<_> = bed.spans.iter().map(|span| span.len).collect();
    assert_eq!(lengths, [12, 8, 30, 50]);
    bed.describe(6, table, 32, INDIRECT | NEXT, 0);
    assert_eq!(bed.peek(), Err(RingError::Indirect));
    bed.describe(6, slot, 8, NEXT, 0);
    assert_eq!(bed.peek(), Err(RingError::Loop));
}

type Spoil<'a> = &'a dyn Fn(&mut Bed);

#[test]
fn impossible_content_breaks_the_ring() {
    let broken = |filled, piece: Option<u32>, spoil: &dyn Fn(&mut Bed)| {
        let mut bed = bed(Shape { piece, ..SHAPE }, filled);
        let slot = bed.offer(100, filled == Filled::Device);
        assert_eq!(slot, 0);
        spoil(&mut bed);
        bed.peek()
    };
    let (driver, device) = (Filled::Driver, Filled::Device);
    let slot = GUEST + 4096;
    let cases: &[(Filled, Option<u32>, Spoil<'_>, RingError)] = &[
        (driver, None, &|bed| bed.available(2, SIZE + 1), RingError::Index),
        (driver, None, &|bed| bed.available(4, SIZE), RingError::Descriptor),
        (driver, None, &|bed| bed.describe(0, slot, 1, NEXT, SIZE), RingError::Descriptor),
        (driver, None, &|bed| bed.describe(0, slot, 1, NEXT, 0), RingError::Loop),
        (driver, None, &|bed| bed.describe(0, slot, 1, WRITE, 0), RingError::Direction),
        (device, None, &|bed| bed.describe(0, slot, 1, 0, 0), RingError::Direction),
        (driver, None, &|bed| bed.describe(0, 0, 1, 0, 0), RingError::Buffer),
        (driver, None, &|bed| bed.describe(0, u64::MAX, 2, 0, 0), RingError::Buffer),
        (driver, None, &|bed| bed.describe(0, slot, u32::MAX, 0, 0), RingError::Buffer),
        (driver, None, &|bed| bed.describe(0, slot, 16, INDIRECT, 0), RingError::Indirect),
        (driver, Some(64), &|bed| bed.describe(0, slot, 0, INDIRECT, 0), RingError::Indirect),
        (driver, Some(64), &|bed| bed.describe(0, slot, 17, INDIRECT, 0), RingError::Indirect),
        (driver, Some(64), &|bed| bed.describe(0, slot, 16 * 1025, INDIRECT, 0), RingError::Indirect),
        (driver, Some(64), &|bed| bed.describe(0, slot, 16, INDIRECT | NEXT, 1), RingError::Indirect),
        (driver, Some(64), &|bed| bed.describe(0, 0, 16, INDIRECT, 0), RingError::Indirect),
        (
            driver,
            Some(64),
            &|bed| {
                let table = bed.memory.guest(slot, 16).expect("memory");
                table.write(&[0; 12]);
                table.skip(12).write(&INDIRECT.to_le_bytes());
                bed.describe(0, slot, 16, INDIRECT, 0);
            },
            RingError::Indirect,
        ),
    ];
    for (number, (filled, piece, spoil, error)) in cases.iter().enumerate() {
        assert_eq!(broken(*filled, *piece, *spoil), Err(*error), "case {number}");
    }
}

#[test]
fn rings_outside_of_memory_or_of_no_size_are_refused() {
    let bed = bed(SHAPE, Filled::Driver);
    let sound = bed.driver.layout();
    let end = USER + DriverRing::bytes(SHAPE).next_multiple_of(4096);
    for layout in [
        Layout { size: 0, ..sound },
        Layout { size: 7, ..sound },
        Layout { descriptors: 0, ..sound },
        Layout { descriptors: USER + 8, ..sound },
        Layout { available: end - 4, ..sound },
        Layout { available: USER + 1, ..sound },
        Layout { used: USER + 2, ..sound },
        Layout { used: u64::MAX, ..sound },
    ] {
        let started = Ring::start(layout, Filled::Driver, &bed.memory);
        assert_eq!(started.map(drop), Err(RingError::Area), "{layout:?}");
    }
}

#[test]
fn memory_that_goes_away_breaks_the_ring() {
    let mut bed = bed(SHAPE, Filled::Driver);
    bed.offer(10, false);
    bed.memory = GuestMemory::default();
    assert_eq!(bed.peek(), Err(RingError::Area));
    assert_eq!(bed.ring.arm(&bed.memory, 1), Err(RingError::Area));
}

/// Bytes of a hostile guest all over the ring, changed between the calls: nothing but errors may come of it.
#[test]
fn random_memory_is_survived() {
    let mut state = 1_u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let (mut errors, mut chains) = (0, 0);
    for world in 0..2_000 {
        let shape = Shape { piece: Some(64), event_index: world % 2 == 0, ..SHAPE };
        let filled = if world % 3 == 0 { Filled::Device } else { Filled::Driver };
        let mut bed = bed(shape, filled);
        let area = (bed.driver.slot(0) - USER) as usize;
        for _ in 0..20 {
            if bed.driver.take_free().is_some_and(|slot| {
                bed.driver.offer(&bed.memory, slot, (random() % 1000) as u32, filled == Filled::Device);
                random() % 2 == 0
            }) {
                let at = USER + (random() as usize % (area / 2) * 2) as u64;
                bed.memory.user(at, 2).expect("ring").store(0, random() as u16, Ordering::Relaxed);
            }
            match bed.peek() {
                Ok(Some(chain)) => {
                    chains += 1;
                    assert!(bed.spans.iter().all(|span| bed.memory.guest(span.address, 1).is_some()));
                    bed.ring.complete(&bed.memory, chain.head, 1).expect("the area is there");
                    bed.ring.publish(&bed.memory).expect("the area is there");
                }
                Ok(None) => {}
                Err(_) => {
                    errors += 1;
                    break;
                }
            }
            let _ = bed.ring.needs_call(&bed.memory);
            let _ = bed.ring.arm(&bed.memory, 1);
        }
    }
    assert!(errors > 100 && chains > 1_000, "{errors} errors, {chains} chains");
}
