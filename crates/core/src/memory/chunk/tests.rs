//! The pool against a plain byte vector as its model.

use super::*;
use crate::key::FlowId;
use crate::memory::payload::{ByteStream, PayloadLayout};
use crate::wire::tcp::Seq;

fn pool(budget: usize) -> Pool {
    Pool::new(Arc::new(Budget::new(budget)))
}

fn content(pool: &Pool, queue: &ByteQueue) -> Vec<u8> {
    let mut all = Vec::new();
    let mut cursor = Cursor::FRONT;
    while (all.len() as u32) < queue.len() {
        let mut out = [IoSlice::new(&[]); SLICES_MAX];
        let (count, bytes, next) = pool.slices(queue, cursor, queue.len() - all.len() as u32, &mut out);
        assert!(bytes > 0);
        out[..count].iter().for_each(|s| all.extend_from_slice(s));
        cursor = next;
    }
    all
}

/// Payload memory for a budget of so many bytes.
fn memory(budget: usize) -> PayloadMemory {
    let layout = PayloadLayout::of(budget);
    let records = (0..layout.records()).map(|_| ChunkRecord::default()).collect::<Vec<_>>();
    PayloadMemory::new(layout, Vec::leak(vec![0; layout.bytes()]), Vec::leak(records)).expect("its parts")
}

fn pool_with_memory(budget: usize) -> Pool {
    let mut pool = pool(budget);
    pool.use_memory(memory(budget));
    pool
}

#[test]
fn the_memory_for_bytes_is_what_a_push_takes() {
    for bytes in [0, 1, SMALL, SMALL + 1, PACK_MAX, PACK_MAX + 1, LARGE, LARGE + 1, 3 * LARGE + PACK_MAX + 1]
    {
        let mut pool = pool(Pool::memory_for(bytes));
        let mut queue = ByteQueue::new();
        assert_eq!(pool.push(&mut queue, None, &vec![7; bytes]), bytes);
        assert_eq!(pool.budget().available(), 0, "{bytes} bytes");
    }
}

#[test]
fn push_fill_consume_follow_the_model() {
    follow_the_model(pool(64 << 20));
    follow_the_model(pool_with_memory(64 << 20));
}

fn follow_the_model(mut pool: Pool) {
    let (mut queue, mut model) = (ByteQueue::new(), Vec::new());
    let mut x = 12345u32;
    let mut random = move |n: u32| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 8) % n
    };
    for round in 0..3000 {
        match random(3) {
            0 => {
                let data: Vec<u8> = (0..random(20_000)).map(|i| (i + round) as u8).collect();
                assert_eq!(pool.push(&mut queue, None, &data), data.len());
                model.extend_from_slice(&data);
            }
            1 => {
                let want = random(70_000) as usize;
                let give = random(70_000) as usize;
                let mut byte = round as u8;
                let n = pool
                    .fill(&mut queue, None, want, |bufs| {
                        let mut n = 0;
                        for b in bufs.iter_mut().flat_map(|b| b.iter_mut()).take(give) {
                            byte = byte.wrapping_add(1);
                            *b = byte;
                            model.push(byte);
                            n += 1;
                        }
                        Ok::<_, ()>(n)
                    })
                    .unwrap()
                    .unwrap()
                    .bytes;
                assert!(n <= want && n <= give);
            }
            _ => {
                let n = random(queue.len() + 1);
                let n = if random(4) == 0 { queue.len() } else { n };
                pool.consume(&mut queue, n);
                model.drain(..n as usize);
            }
        }
        assert_eq!(queue.len() as usize, model.len());
        if round % 50 == 0 {
            assert_eq!(content(&pool, &queue), model);
            let at = random(queue.len() + 1);
            let mut out = [IoSlice::new(&[]); SLICES_MAX];
            let (count, bytes, _) = pool.slices(&queue, pool.seek(&queue, at), 100, &mut out);
            let got: Vec<u8> = out[..count].iter().flat_map(|s| s.to_vec()).collect();
            assert_eq!(got, model[at as usize..at as usize + bytes as usize]);
        }
    }
    pool.clear(&mut queue);
    assert_eq!(pool.budget().used(), 0);
}

#[test]
fn empty_queue_holds_no_chunk() {
    let mut pool = pool(1 << 20);
    let mut queue = ByteQueue::new();
    pool.push(&mut queue, None, &[1; 100]);
    assert_eq!(pool.budget().used(), SMALL);
    pool.consume(&mut queue, 100);
    assert_eq!((pool.budget().used(), queue.head), (0, NONE));
}

#[test]
fn budget_is_never_exceeded() {
    let mut pool = pool(LARGE + SMALL);
    let mut queue = ByteQueue::new();
    assert_eq!(pool.push(&mut queue, None, &vec![7; 3 * LARGE]), LARGE);
    assert!(pool.budget().used() <= LARGE + SMALL);
    assert_eq!(pool.fill(&mut queue, None, 10, |_| Ok::<_, ()>(1)), Ok(None));
    assert_eq!(pool.fill::<()>(&mut ByteQueue::new(), None, 10, |_| unreachable!()), Ok(None));
}

#[test]
fn a_read_says_whether_it_took_all_that_was_offered() {
    let mut pool = pool(2 * LARGE);
    let all = |bufs: &mut [IoSliceMut<'_>]| Ok::<_, ()>(bufs.iter().map(|b| b.len()).sum());
    for (want, give) in [(LARGE, LARGE), (2 * LARGE, 2 * LARGE), (3 * LARGE, 2 * LARGE)] {
        let mut queue = ByteQueue::new();
        assert_eq!(pool.fill(&mut queue, None, want, all), Ok(Some(Filled { bytes: give, whole: true })));
        pool.clear(&mut queue);
        let some = pool.fill(&mut queue, None, want, |bufs| all(bufs).map(|n| n - 1));
        assert_eq!(some, Ok(Some(Filled { bytes: give - 1, whole: false })));
        pool.clear(&mut queue);
    }
}

#[test]
fn failed_read_keeps_nothing() {
    let mut pool = pool(1 << 20);
    let mut queue = ByteQueue::new();
    assert_eq!(pool.fill(&mut queue, None, 100, |_| Err("no")), Err("no"));
    assert_eq!((pool.budget().used(), queue.len()), (0, 0));
}

#[test]
fn append_moves_without_copy() {
    let mut pool = pool(1 << 20);
    let (mut a, mut b) = (ByteQueue::new(), ByteQueue::new());
    pool.push(&mut a, None, b"one");
    pool.push(&mut b, None, b"two");
    let used = pool.budget().used();
    pool.append(&mut a, b);
    assert_eq!(pool.budget().used(), used);
    assert_eq!(content(&pool, &a), b"onetwo");
}

#[test]
fn shares_shrink_as_memory_is_used() {
    let mut pool = pool(100 * LARGE);
    let mut queue = ByteQueue::new();
    let data = vec![7; LARGE];
    for n in 0..100 {
        let expected = match n {
            0..=85 => Pressure::None,
            86..=95 => Pressure::Short,
            _ => Pressure::Spent,
        };
        assert_eq!(pool.pressure(), expected, "{n} % used");
        let free = ((100 - n) * LARGE) as u32;
        assert_eq!(pool.send_cap(1460), if n <= 85 { free } else { free.min(4 * 1460) });
        assert_eq!(pool.push(&mut queue, None, &data), LARGE);
    }
    assert_eq!((pool.pressure(), pool.send_cap(1460)), (Pressure::Spent, 0));
    pool.clear(&mut queue);
    assert_eq!(pool.pressure(), Pressure::None);
}

#[test]
fn reservations_come_out_of_the_first_half() {
    let mut pool = pool(256 << 20);
    let half = 128 << 20;
    assert_eq!((pool.receive_cap(false), pool.receive_cap(true)), (half, half));
    // Ten thousand windows of 64 KiB whose hosts take everything count nothing.
    assert_eq!((pool.counted(64 << 10), pool.counted(100 << 10)), (0, 36 << 10));
    pool.reserve_window(0, 100 << 20);
    assert_eq!(pool.receive_cap(true), 28 << 20);
    let mut queue = ByteQueue::new();
    pool.push(&mut queue, None, &vec![7; 20 << 20]);
    assert_eq!(pool.receive_cap(true), 8 << 20);
    pool.reserve_window(100 << 20, 120 << 20);
    // When the first half is gone.
    assert_eq!((pool.receive_cap(false), pool.receive_cap(true)), (64 << 10, 2 << 10));
    assert_eq!((pool.pressure(), pool.send_cap(1460)), (Pressure::None, (256 - 140) << 20));
    pool.reserve_window(120 << 20, 250 << 20);
    assert_eq!((pool.pressure(), pool.send_cap(1460)), (Pressure::None, 4 * 1460));
    pool.reserve_window(250 << 20, 0);
    pool.clear(&mut queue);
    assert_eq!(pool.receive_cap(true), half);
}

#[test]
fn first_windows_follow_the_budget() {
    let first = [1 << 20, 8 << 20, 64 << 20, 256 << 20, 8 << 30].map(first_window);
    assert_eq!(first, [2 << 10, 2 << 10, 16 << 10, 64 << 10, 64 << 10]);
}

/// Bulk of one flow, of any length, touches as many chunks as it has in flight and those of one read, always
/// the same ones; an earlier burst, which needed many, has no effect.
#[test]
fn chunks_are_used_again_last_in_first_out() {
    use std::collections::BTreeSet;
    let mut pool = pool(64 << 20);
    let mut burst = ByteQueue::new();
    pool.push(&mut burst, None, &vec![0; 60 * LARGE]);
    pool.clear(&mut burst);
    let (mut queue, mut touched) = (ByteQueue::new(), BTreeSet::new());
    let in_flight = 4 * LARGE as u32;
    for _ in 0..10_000 {
        let max = FILL_CHUNKS * LARGE;
        pool.fill::<()>(&mut queue, None, max, |into| Ok(into.iter().map(|slice| slice.len()).sum()))
            .unwrap();
        let mut out = [IoSlice::new(&[]); SLICES_MAX];
        let (count, ..) = pool.slices(&queue, Cursor::FRONT, queue.len(), &mut out);
        touched.extend(out[..count].iter().map(|slice| slice.as_ptr()));
        let acknowledged = queue.len().saturating_sub(in_flight);
        pool.consume(&mut queue, acknowledged);
    }
    assert!(touched.len() <= 4 + FILL_CHUNKS, "{} chunks", touched.len());
}

const FLOW: FlowId = FlowId { index: 7, generation: 3 };

fn origin(stream: ByteStream, seq: u32) -> Origin {
    Origin { flow: FLOW, stream, seq: Seq(seq) }
}

/// The pool of a process that comes after the one that had `pool`.
fn after_a_crash(mut pool: Pool) -> Pool {
    let mut next = self::pool(pool.budget().total());
    next.inherit(pool.take_memory().expect("payload memory"));
    next
}

/// Recovery: the content of a queue is found after a crash at any time, at any place and in chunks of either
/// size.
#[test]
fn payload_is_found_after_a_crash() {
    let mut rng = 1u32;
    let mut random = move |below: u32| {
        rng = rng.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (rng >> 8) % below
    };
    let mut pool = pool_with_memory(8 << 20);
    let mut queue = ByteQueue::new();
    // Sequence numbers wrap on the way.
    let (mut first, mut model) = (u32::MAX - 300_000, Vec::<u8>::new());
    for round in 0..400 {
        let at = Some(origin(ByteStream::ToGuest, first.wrapping_add(queue.len())));
        let data: Vec<u8> = (0..random(90_000)).map(|i| (i + round) as u8).collect();
        if random(2) == 0 {
            pool.push(&mut queue, at, &data);
            model.extend_from_slice(&data);
        } else {
            let read = |into: &mut [IoSliceMut<'_>]| {
                let mut rest = &data[..];
                for slice in into {
                    let n = rest.len().min(slice.len());
                    slice[..n].copy_from_slice(&rest[..n]);
                    rest = &rest[n..];
                }
                Ok::<_, ()>(data.len() - rest.len())
            };
            let room = 1 + random(90_000) as usize;
            let filled = pool.fill(&mut queue, at, room, read).unwrap().expect("memory");
            model.extend_from_slice(&data[..filled.bytes]);
        }
        let gone = random(queue.len() + 1);
        pool.consume(&mut queue, gone);
        model.drain(..gone as usize);
        first = first.wrapping_add(gone);
        if round % 7 != 0 {
            continue;
        }
        let mut next = after_a_crash(pool);
        let skipped = random(model.len() as u32 + 1);
        first = first.wrapping_add(skipped);
        model.drain(..skipped as usize);
        queue = ByteQueue::new();
        let end = Seq(first.wrapping_add(model.len() as u32));
        next.claim(&mut queue, origin(ByteStream::ToGuest, first), end).expect("all of it");
        next.drop_inherited();
        assert_eq!(content(&next, &queue), model, "round {round}");
        pool = next;
    }
    pool.clear(&mut queue);
    assert_eq!(pool.budget().used(), 0);
}

/// The kernel counts bytes as read that a process never saw: a crash within the read.
#[test]
fn bytes_of_a_read_that_did_not_return_are_found() {
    let mut pool = pool_with_memory(1 << 20);
    let mut queue = ByteQueue::new();
    pool.push(&mut queue, Some(origin(ByteStream::ToGuest, 10)), &vec![1; 20_000]);
    let crash = std::panic::AssertUnwindSafe(|| {
        let at = Some(origin(ByteStream::ToGuest, 20_010));
        let _ = pool.fill::<()>(&mut queue, at, 100_000, |into| {
            for slice in into {
                slice.fill(2);
            }
            std::panic::resume_unwind(Box::new(()))
        });
    });
    std::panic::catch_unwind(crash).expect_err("a crash");
    let mut next = after_a_crash(pool);
    let mut queue = ByteQueue::new();
    next.claim(&mut queue, origin(ByteStream::ToGuest, 10), Seq(90_010)).expect("all of it");
    let all = content(&next, &queue);
    assert_eq!(all, [vec![1; 20_000], vec![2; 70_000]].concat());
}

/// Chunks that are kept for reuse are given up, and their pages become unused.
#[test]
fn memory_kept_for_reuse_can_be_given_up() {
    let mut pool = pool_with_memory(1 << 20);
    let mut queue = ByteQueue::new();
    pool.push(&mut queue, Some(origin(ByteStream::ToGuest, 10)), &vec![1; 100_000]);
    assert!(!pool.has_spare(), "in use");
    pool.clear(&mut queue);
    let mut given = 0;
    pool.take_unused(|pages| given += pages.len());
    assert!(pool.has_spare() && given < 100_000, "{given}");
    pool.give_up_spare();
    pool.take_unused(|pages| given += pages.len());
    assert!(!pool.has_spare() && given >= 100_000, "{given}");
    pool.push(&mut queue, Some(origin(ByteStream::ToGuest, 10)), &[7; 5000]);
    assert_eq!(content(&pool, &queue), [7; 5000]);
    pool.clear(&mut queue);
}

/// A crash while a short read is moved to a small chunk: its bytes are in both, and the large one says that
/// it is full.
#[test]
fn bytes_that_are_there_twice_are_found() {
    for lens in [[50, 80], [80, 50]] {
        let mut pool = pool_with_memory(1 << 20);
        for len in lens {
            let mut queue = ByteQueue::new();
            pool.push(&mut queue, Some(origin(ByteStream::ToHost, 100)), &vec![1; len]);
        }
        let mut next = after_a_crash(pool);
        let mut queue = ByteQueue::new();
        next.claim(&mut queue, origin(ByteStream::ToHost, 100), Seq(150)).expect("all of it");
        assert_eq!(content(&next, &queue), [1; 50]);
        next.drop_inherited();
    }
}

/// Payload of another flow, of the other stream, with a hole, or given up is not found.
#[test]
fn payload_that_is_not_there_is_not_found() {
    let found = |origin: Origin, end: u32| {
        let mut pool = pool_with_memory(1 << 20);
        let mut queue = ByteQueue::new();
        pool.push(&mut queue, Some(self::origin(ByteStream::ToHost, 100)), &[1; 50]);
        let mut behind = ByteQueue::new();
        pool.push(&mut behind, Some(self::origin(ByteStream::ToHost, 151)), &[1; 50]);
        let mut gone = ByteQueue::new();
        pool.push(&mut gone, Some(self::origin(ByteStream::ToHost, 201)), &[1; 50]);
        pool.clear(&mut gone);
        let mut untold = ByteQueue::new();
        pool.push(&mut untold, None, &[1; 50]);
        let mut next = after_a_crash(pool);
        let mut queue = ByteQueue::new();
        let result = next.claim(&mut queue, origin, Seq(end));
        next.clear(&mut queue);
        next.drop_inherited();
        assert_eq!(next.budget().used(), 0);
        result.is_ok()
    };
    let here = origin(ByteStream::ToHost, 100);
    assert!(found(here, 150));
    assert!(!found(here, 151), "a hole");
    assert!(!found(origin(ByteStream::ToHost, 201), 210), "given up");
    assert!(!found(origin(ByteStream::ToGuest, 100), 150), "the other stream");
    let other = FlowId { generation: 4, ..FLOW };
    assert!(!found(Origin { flow: other, ..here }, 150), "another flow");
}

/// Memory returns to the system once nothing is in use on its page, but for what is kept for reuse.
#[test]
fn unused_pages_are_given_back() {
    let mut pool = pool_with_memory(32 << 20);
    let mut queues = [const { ByteQueue::new() }; 3];
    let [large, small, other] = &mut queues;
    pool.push(large, None, &vec![1; 20 << 20]);
    for at in 0..4000u32 {
        // Each in a small chunk of its own.
        pool.push(if at % 2 == 0 { &mut *small } else { &mut *other }, None, &[1; SMALL]);
    }
    let given = |pool: &mut Pool| {
        let mut given = 0;
        pool.take_unused(|page| given += page.len());
        given
    };
    assert!(!pool.has_unused());
    pool.clear(large);
    assert_eq!(given(&mut pool), (20 << 20) - FREE_LARGE_MAX * LARGE);
    pool.clear(small);
    assert_eq!(given(&mut pool), 0, "each page has a chunk in use");
    pool.clear(other);
    assert!(given(&mut pool) > 0);
    pool.push(large, None, &vec![1; 20 << 20]);
    assert_eq!(given(&mut pool), 0);
    pool.clear(large);
}
