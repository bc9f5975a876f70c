//! Frames over a pair of rings: content through buffers of every cut, and frames that do not fit.

use super::*;
use crate::batch::ARENA_LEN;
use crate::virtio::driver::{DriverRing, Shape, mapped, memfd};
use crate::virtio::memory::RegionPlace;
use crate::virtio::ring::Filled;
use brodo_core::link::{Gso, PartialChecksum, RxChecksum};
use brodo_core::wire::checksum;
use std::io::IoSlice;

const USER: u64 = 0x10_0000;
const MERGEABLE: FrameFormat = FrameFormat { modern: true, mergeable: true };

fn set_up(shape: Shape, filled: Filled) -> (Arc<GuestMemory>, DriverRing, Ring) {
    let size = DriverRing::bytes(shape).next_multiple_of(4096);
    let memory = Arc::new(mapped(&memfd(size), RegionPlace { guest: 0, size, user: USER, offset: 0 }));
    let driver = DriverRing::new(shape, USER, 0_u64.wrapping_sub(USER));
    let ring = Ring::start(driver.layout(), filled, &memory).expect("a ring");
    (memory, driver, ring)
}

/// The guest sends `bytes`, a header among them.
fn guest_sends(memory: &GuestMemory, driver: &mut DriverRing, bytes: &[u8]) {
    let slot = driver.take_free().expect("a free slot");
    memory.user(driver.slot(slot), bytes.len()).expect("the slot").write(bytes);
    driver.offer(memory, slot, bytes.len() as u32, false);
}

/// The guest posts so many buffers; whether a kick is wanted then.
fn offer(memory: &GuestMemory, driver: &mut DriverRing, shape: Shape, count: usize) -> bool {
    for _ in 0..count {
        let slot = driver.take_free().expect("free");
        driver.offer(memory, slot, shape.slot, true);
    }
    driver.needs_kick(memory)
}

/// All bytes that the guest has received in the next frame.
fn guest_receives(memory: &GuestMemory, driver: &mut DriverRing) -> Vec<u8> {
    let (mut bytes, mut parts) = (Vec::new(), 1);
    while parts > 0 {
        let (slot, written) = driver.take_used(memory).expect("a used buffer");
        let mut part = vec![0; written as usize];
        memory.user(driver.slot(slot), part.len()).expect("the slot").read(&mut part);
        if bytes.is_empty() {
            parts = u16::from_le_bytes([part[10], part[11]]);
        }
        bytes.extend(part);
        driver.give_back(slot);
        parts -= 1;
    }
    bytes
}

/// Takes frames, none of which may stay unread, and gives their buffers back.
fn take(
    queue: &mut FromGuest,
    memory: &Arc<GuestMemory>,
    batch: Option<&mut Batch<'_>>,
    misfits: &mut u64,
) -> Result<Taken, RingError> {
    let taken = queue.take(memory, batch, &UnreadFrames::default(), misfits)?;
    queue.release(memory).map(|()| taken)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn frames_of_the_guest_arrive_whole_from_chains_of_every_cut() {
    for piece in [None, Some(4097), Some(5000), Some(65_535)] {
        let shape = Shape { size: 4, slot: 68 << 10, piece, event_index: true };
        let (memory, mut driver, ring) = set_up(shape, Filled::Driver);
        let mut queue = FromGuest::new(ring, MERGEABLE);
        let mut arena = vec![0; ARENA_LEN];
        for len in [1, 13, 60, 1514, 4096, 9014, FRAME_MAX] {
            // The checksum was verified: frames of a pattern have none that could be left to the device.
            let mut bytes = vec![2, 1, 66, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0];
            bytes.extend(pattern(len));
            guest_sends(&memory, &mut driver, &bytes);
            let (mut batch, mut misfits) = (Batch::new(&mut arena, false), 0);
            take(&mut queue, &memory, Some(&mut batch), &mut misfits).expect("sound");
            let [frame] = batch.frames() else { panic!("{len}: {}", batch.frames().len()) };
            assert_eq!((frame.bytes, misfits), (&*pattern(len), 0));
            assert_eq!((frame.meta.checksum, frame.meta.gso), (RxChecksum::Valid, Gso::Tcp4(1448)));
            let (slot, _) = driver.take_used(&memory).expect("the buffer comes back");
            driver.give_back(slot);
        }
    }
}

/// A segment of `len` bytes on its link, from headers that say `kind`: EtherType, protocol, fragment.
fn segment(len: usize, [ethertype, protocol, fragment]: [u8; 3]) -> Vec<u8> {
    let mut bytes = pattern(len);
    (bytes[12], bytes[13], bytes[20], bytes[21]) = (8, ethertype, fragment, 0);
    bytes[14] = 0x45;
    bytes[23] = protocol;
    bytes
}

#[test]
fn ends_of_long_segments_stay_unread_until_the_ring_is_released() {
    let (checked, unchecked) = ([1, 1, 66, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0], [0; HEADER_LEN]);
    let (tcp, udp) = ([0, 6, 0], [1, 5, 42, 0, 0xa8, 5, 34, 0, 6, 0, 0, 0]);
    for piece in [None, Some(100), Some(4097), Some(65_535)] {
        let shape = Shape { size: 4, slot: 68 << 10, piece, event_index: true };
        let (memory, mut driver, ring) = set_up(shape, Filled::Driver);
        let (mut queue, unread) = (FromGuest::new(ring, MERGEABLE), UnreadFrames::default());
        let mut arena = vec![0; ARENA_LEN];
        // A short one, of another protocol, a fragment, one to be verified.
        let whole = [(4095, checked, tcp), (9000, udp, [0, 17, 0]), (9000, checked, [0, 6, 0x20])];
        let whole = whole.into_iter().chain([(9000, unchecked, tcp)]).map(|frame| (frame, false));
        let long = [(4096, checked, tcp), (9014, checked, tcp), (FRAME_MAX, checked, tcp)];
        for ((len, header, kind), leaves) in long.into_iter().map(|frame| (frame, true)).chain(whole) {
            let bytes = segment(len, kind);
            guest_sends(&memory, &mut driver, &[&header[..], &bytes].concat());
            let (mut batch, mut misfits) = (Batch::new(&mut arena, false), 0);
            batch.allow_unread();
            queue.take(&memory, Some(&mut batch), &unread, &mut misfits).expect("sound");
            let [frame] = batch.frames() else { panic!("{len}: {}", batch.frames().len()) };
            let begin = if leaves { BEGIN } else { len };
            assert_eq!((frame.bytes.len(), frame.len(), misfits), (begin, len, 0), "{piece:?}");
            assert!(*frame.bytes == bytes[..begin], "{piece:?} {len}");
            let mut rest = vec![0; len - begin + 1];
            assert_eq!(unread.read(frame.unread, &mut rest), len - begin);
            assert!(rest[..len - begin] == bytes[begin..], "{piece:?} {len}");
            assert!(driver.take_used(&memory).is_none(), "the buffer is not given back yet");
            unread.clear();
            assert_eq!(unread.read(frame.unread, &mut rest), 0);
            queue.release(&memory).expect("sound");
            let (slot, _) = driver.take_used(&memory).expect("the buffer comes back");
            driver.give_back(slot);
        }
    }
}

#[test]
fn a_frame_whose_inner_checksum_is_to_be_completed_is_read_whole() {
    const LEN: usize = 9014;
    // A checksum within a tunnel, which begins at byte 100.
    let header = [1, 0, 66, 0, 0, 0, 100, 0, 16, 0, 0, 0];
    let shape = Shape { size: 4, slot: 68 << 10, piece: Some(4097), event_index: true };
    let (memory, mut driver, ring) = set_up(shape, Filled::Driver);
    let mut queue = FromGuest::new(ring, MERGEABLE);
    let bytes = segment(LEN, [0, 6, 0]);
    guest_sends(&memory, &mut driver, &[&header[..], &bytes].concat());
    let mut arena = vec![0; ARENA_LEN];
    let (mut batch, mut misfits) = (Batch::new(&mut arena, false), 0);
    batch.allow_unread();
    take(&mut queue, &memory, Some(&mut batch), &mut misfits).expect("sound");
    let [frame] = batch.frames() else { panic!("{}", batch.frames().len()) };
    assert_eq!((frame.bytes.len(), frame.len(), frame.meta.checksum), (LEN, LEN, RxChecksum::Unknown));
    let expected = checksum::finish(checksum::sum(&bytes[100..], 0));
    assert_eq!(frame.bytes[116..118], expected.to_be_bytes());
    assert!(frame.bytes[..116] == bytes[..116] && frame.bytes[118..] == bytes[118..]);
}

#[test]
fn chains_that_are_no_frames_are_counted_and_given_back() {
    let shape = Shape { size: 4, slot: 68 << 10, piece: None, event_index: false };
    let (memory, mut driver, ring) = set_up(shape, Filled::Driver);
    let mut queue = FromGuest::new(ring, MERGEABLE);
    for len in [0, HEADER_LEN, HEADER_LEN + FRAME_MAX + 1] {
        guest_sends(&memory, &mut driver, &vec![0; len]);
    }
    guest_sends(&memory, &mut driver, &[0; HEADER_LEN + 60]);
    let mut arena = vec![0; ARENA_LEN];
    let (mut batch, mut misfits) = (Batch::new(&mut arena, false), 0);
    take(&mut queue, &memory, Some(&mut batch), &mut misfits).expect("sound");
    assert_eq!((batch.frames().len(), misfits), (1, 3));
    assert_eq!(std::iter::from_fn(|| driver.take_used(&memory)).count(), 4);
}

#[test]
fn a_disabled_ring_is_emptied() {
    let shape = Shape { size: 128, slot: 4096, piece: None, event_index: false };
    let (memory, mut driver, ring) = set_up(shape, Filled::Driver);
    let mut queue = FromGuest::new(ring, MERGEABLE);
    for _ in 0..100 {
        guest_sends(&memory, &mut driver, &[0; 100]);
    }
    for left in [36, 0] {
        assert_eq!(take(&mut queue, &memory, None, &mut 0), Ok(Taken::All));
        assert_eq!(queue.ring_mut().has_chains(&memory), Ok(left > 0));
    }
    assert_eq!(std::iter::from_fn(|| driver.take_used(&memory)).count(), 100);
}

/// A frame of `len` bytes whose payload is in two pieces.
fn with_frame<T>(len: usize, act: impl FnOnce(&TxFrame<'_>) -> T) -> T {
    let bytes = pattern(len);
    let (headers, payload) = bytes.split_at(len.min(66));
    let (first, second) = payload.split_at(payload.len() / 3);
    let payload = [IoSlice::new(first), IoSlice::new(second)];
    let partial = Some(PartialChecksum { start: 34, offset: 16 });
    act(&TxFrame { headers, payload: &payload, partial, gso: Gso::Tcp6(1440) })
}

#[test]
fn frames_to_the_guest_take_as_many_mergeable_buffers_as_they_need() {
    for slot in [1536, 4096, 66 << 10] {
        let shape = Shape { size: 64, slot, piece: None, event_index: true };
        let (memory, mut driver, ring) = set_up(shape, Filled::Device);
        let mut queue = ToGuest::new(ring, MERGEABLE);
        for len in [60, 1514, 1524, 1525, 16_384, FRAME_MAX, 61, FRAME_MAX] {
            while let Some(slot) = driver.take_free() {
                driver.offer(&memory, slot, shape.slot, true);
            }
            let sent = with_frame(len, |frame| queue.send(&memory, frame, 0));
            assert_eq!(sent, Ok(Sent::Whole), "{len} in {slot}");
            queue.ring_mut().needs_call(&memory).expect("sound");
            let received = guest_receives(&memory, &mut driver);
            let parts = (len + HEADER_LEN).div_ceil(slot as usize) as u16;
            let header =
                [&[1, 4, len.min(66) as u8, 0, 0xa0, 5, 34, 0, 16, 0][..], &parts.to_le_bytes()].concat();
            assert_eq!(received[..HEADER_LEN], header);
            assert_eq!(received[HEADER_LEN..], pattern(len));
        }
    }
}

#[test]
fn a_frame_without_room_takes_nothing_and_a_kick_comes_with_the_rest() {
    let shape = Shape { size: 64, slot: 4096, piece: None, event_index: true };
    let (memory, mut driver, ring) = set_up(shape, Filled::Device);
    let mut queue = ToGuest::new(ring, MERGEABLE);
    let mut offer = |count| offer(&memory, &mut driver, shape, count);
    let mut send = || with_frame(FRAME_MAX, |frame| queue.send(&memory, frame, 0));
    assert_eq!(send(), Ok(Sent::NoBuffers));
    assert!(offer(10), "there was none");
    assert_eq!(send(), Ok(Sent::NoBuffers));
    assert!(!offer(6), "17 are needed");
    assert!(offer(1));
    assert_eq!(send(), Ok(Sent::Whole));
}

/// Without an event index a ring is armed or not, for all workers.
#[test]
fn a_ring_stays_armed_until_each_worker_has_its_buffers() {
    let shape = Shape { size: 64, slot: 4096, piece: None, event_index: false };
    let (memory, mut driver, ring) = set_up(shape, Filled::Device);
    let mut queue = ToGuest::new(ring, MERGEABLE);
    let mut offer = |count| offer(&memory, &mut driver, shape, count);
    let mut send = |len, worker| with_frame(len, |frame| queue.send(&memory, frame, worker));
    assert!(!offer(4));
    assert_eq!(send(FRAME_MAX, 0), Ok(Sent::NoBuffers));
    assert_eq!(send(60, 1), Ok(Sent::Whole), "another worker's frame takes one");
    assert!(offer(20), "the first waits");
    assert_eq!(send(FRAME_MAX, 0), Ok(Sent::Whole));
    assert!(!offer(1), "no worker waits");
}

#[test]
fn frames_that_the_ring_cannot_hold_are_lost_and_not_waited_for() {
    let shape = Shape { size: 8, slot: 4096, piece: None, event_index: true };
    for (mergeable, largest) in [(true, 8 * 4096 - HEADER_LEN), (false, 4096 - HEADER_LEN)] {
        let (memory, mut driver, ring) = set_up(shape, Filled::Device);
        let mut queue = ToGuest::new(ring, FrameFormat { mergeable, ..MERGEABLE });
        while let Some(slot) = driver.take_free() {
            driver.offer(&memory, slot, shape.slot, true);
        }
        let mut send = |len| with_frame(len, |frame| queue.send(&memory, frame, 0));
        assert_eq!(send(largest + 1), Ok(Sent::TooLong));
        assert_eq!(send(largest), Ok(Sent::Whole));
    }
}

#[test]
fn headers_of_drivers_before_virtio_1_have_no_number_of_buffers() {
    let shape = Shape { size: 4, slot: 4096, piece: None, event_index: false };
    let (memory, mut driver, ring) = set_up(shape, Filled::Device);
    let slot = driver.take_free().expect("free");
    driver.offer(&memory, slot, 4096, true);
    let mut queue = ToGuest::new(ring, FrameFormat { modern: false, mergeable: false });
    assert_eq!(with_frame(100, |frame| queue.send(&memory, frame, 0)), Ok(Sent::Whole));
    queue.ring_mut().needs_call(&memory).expect("sound");
    let (slot, written) = driver.take_used(&memory).expect("used");
    assert_eq!(written, 110);
    let mut bytes = vec![0; 100];
    memory.user(driver.slot(slot) + 10, 100).expect("slot").read(&mut bytes);
    assert_eq!(bytes, pattern(100));
}

/// Many chains of one long run of empty descriptors each, as no driver posts them.
#[test]
fn empty_buffers_break_the_ring_before_all_of_them_are_read() {
    const SIZE: u16 = 2048;
    let shape = Shape { size: SIZE, slot: 64, piece: None, event_index: false };
    let (memory, mut driver, ring) = set_up(shape, Filled::Device);
    let mut queue = ToGuest::new(ring, MERGEABLE);
    for _ in 0..SIZE {
        let slot = driver.take_free().expect("free");
        driver.offer(&memory, slot, 0, true);
    }
    let sent = with_frame(60, |frame| queue.send(&memory, frame, 0));
    assert_eq!(sent, Ok(Sent::TooLong), "one descriptor for each entry");
    let run = SIZE - 1;
    for index in 0..run {
        let place = driver.descriptors() + 16 * u64::from(index);
        let (next, flags) = (index + 1, if index + 1 < run { 3 } else { 2 });
        crate::virtio::driver::describe(&memory, place, 0, 0, flags, next);
    }
    for entry in 0..SIZE {
        let place = driver.available_area() + 4 + 2 * u64::from(entry);
        memory.user(place, 2).expect("the entry").write(&0_u16.to_le_bytes());
    }
    let sent = with_frame(60, |frame| queue.send(&memory, frame, 0));
    assert_eq!(sent, Err(RingError::Scattered));
    assert!(queue.chains.len() <= 5);
}
