//! Reassembly against a map of bytes as its model, across sequence wrap.

use super::*;
use crate::memory::budget::Budget;
use crate::memory::chunk::{Cursor, SLICES_MAX};
use std::io::IoSlice;
use std::sync::Arc;

fn bytes(pool: &Pool, queue: &ByteQueue) -> Vec<u8> {
    let (mut all, mut cursor) = (Vec::new(), Cursor::FRONT);
    while (all.len() as u32) < queue.len() {
        let mut out = [IoSlice::new(&[]); SLICES_MAX];
        let (n, _, next) = pool.slices(queue, cursor, u32::MAX, &mut out);
        out[..n].iter().for_each(|s| all.extend_from_slice(s));
        cursor = next;
    }
    all
}

/// Origin of a segment at `seq`.
fn at_seq(seq: Seq) -> Origin {
    Origin { flow: FlowId { index: 0, generation: 0 }, stream: ByteStream::ToHost, seq }
}

#[test]
fn any_order_with_overlaps_gives_the_stream() {
    let mut x = 1u32;
    let mut random = move |n: u32| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 8) % n
    };
    for _ in 0..300 {
        let mut pool = Pool::new(Arc::new(Budget::new(1 << 20)));
        let base = Seq(u32::MAX - random(4000));
        let stream: Vec<u8> = (0..5000u32).map(|i| (i * 7 % 251) as u8).collect();
        let mut gaps = Reassembly::default();
        let (mut nxt, mut delivered) = (0u32, Vec::new());
        while nxt < 5000 {
            let at = random(5000 - nxt) + nxt;
            let len = random(700).min(5000 - at);
            let data = &stream[at as usize..(at + len) as usize];
            if at > nxt {
                let _ = gaps.insert(&mut pool, at_seq(base + at), data);
            } else {
                delivered.extend_from_slice(data);
                nxt += len;
                while let Some(mut more) = gaps.take(&mut pool, base + nxt) {
                    delivered.extend(bytes(&pool, &more));
                    nxt += more.len();
                    pool.clear(&mut more);
                }
            }
        }
        assert_eq!(delivered, stream);
        gaps.clear(&mut pool);
        assert_eq!(pool.budget().used(), 0);
    }
}

#[test]
fn islands_are_bounded() {
    let mut pool = Pool::new(Arc::new(Budget::new(1 << 20)));
    let mut gaps = Reassembly::default();
    for i in 0..RANGES_MAX as u32 {
        assert_eq!(gaps.insert(&mut pool, at_seq(Seq(10 + 2 * i)), b"x"), Ok(()));
    }
    assert_eq!(gaps.insert(&mut pool, at_seq(Seq(1000)), b"x"), Err(Full));
    assert_eq!(gaps.insert(&mut pool, at_seq(Seq(11)), b"x"), Ok(()), "filling a hole makes no range");
    assert_eq!(gaps.len(), RANGES_MAX as u32 + 1);
}
