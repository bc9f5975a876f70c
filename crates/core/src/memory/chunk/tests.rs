//! The pool against a plain byte vector as its model.

use super::*;

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

#[test]
fn push_fill_consume_follow_the_model() {
    let mut pool = pool(64 << 20);
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
                assert_eq!(pool.push(&mut queue, &data), data.len());
                model.extend_from_slice(&data);
            }
            1 => {
                let want = random(70_000) as usize;
                let give = random(70_000) as usize;
                let mut byte = round as u8;
                let n = pool
                    .fill(&mut queue, want, |bufs| {
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
    pool.push(&mut queue, &[1; 100]);
    assert_eq!(pool.budget().used(), SMALL);
    pool.consume(&mut queue, 100);
    assert_eq!((pool.budget().used(), queue.head), (0, NONE));
}

#[test]
fn budget_is_never_exceeded() {
    let mut pool = pool(LARGE + SMALL);
    let mut queue = ByteQueue::new();
    assert_eq!(pool.push(&mut queue, &vec![7; 3 * LARGE]), LARGE);
    assert!(pool.budget().used() <= LARGE + SMALL);
    assert_eq!(pool.fill(&mut queue, 10, |_| Ok::<_, ()>(1)), Ok(None));
    assert_eq!(pool.fill::<()>(&mut ByteQueue::new(), 10, |_| unreachable!()), Ok(None));
}

#[test]
fn a_read_says_whether_it_took_all_that_was_offered() {
    let mut pool = pool(2 * LARGE);
    let all = |bufs: &mut [IoSliceMut<'_>]| Ok::<_, ()>(bufs.iter().map(|b| b.len()).sum());
    for (want, give) in [(LARGE, LARGE), (2 * LARGE, 2 * LARGE), (3 * LARGE, 2 * LARGE)] {
        let mut queue = ByteQueue::new();
        assert_eq!(pool.fill(&mut queue, want, all), Ok(Some(Filled { bytes: give, whole: true })));
        pool.clear(&mut queue);
        let some = pool.fill(&mut queue, want, |bufs| all(bufs).map(|n| n - 1));
        assert_eq!(some, Ok(Some(Filled { bytes: give - 1, whole: false })));
        pool.clear(&mut queue);
    }
}

#[test]
fn failed_read_keeps_nothing() {
    let mut pool = pool(1 << 20);
    let mut queue = ByteQueue::new();
    assert_eq!(pool.fill(&mut queue, 100, |_| Err("no")), Err("no"));
    assert_eq!((pool.budget().used(), queue.len()), (0, 0));
}

#[test]
fn append_moves_without_copy() {
    let mut pool = pool(1 << 20);
    let (mut a, mut b) = (ByteQueue::new(), ByteQueue::new());
    pool.push(&mut a, b"one");
    pool.push(&mut b, b"two");
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
        assert_eq!(pool.push(&mut queue, &data), LARGE);
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
    pool.push(&mut queue, &vec![7; 20 << 20]);
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
    pool.push(&mut burst, &vec![0; 60 * LARGE]);
    pool.clear(&mut burst);
    let (mut queue, mut touched) = (ByteQueue::new(), BTreeSet::new());
    let in_flight = 4 * LARGE as u32;
    for _ in 0..10_000 {
        let max = FILL_CHUNKS * LARGE;
        pool.fill::<()>(&mut queue, max, |into| Ok(into.iter().map(|slice| slice.len()).sum())).unwrap();
        let mut out = [IoSlice::new(&[]); SLICES_MAX];
        let (count, ..) = pool.slices(&queue, Cursor::FRONT, queue.len(), &mut out);
        touched.extend(out[..count].iter().map(|slice| slice.as_ptr()));
        let acknowledged = queue.len().saturating_sub(in_flight);
        pool.consume(&mut queue, acknowledged);
    }
    assert!(touched.len() <= 4 + FILL_CHUNKS, "{} chunks", touched.len());
}
