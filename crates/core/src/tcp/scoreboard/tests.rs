//! The scoreboard against a plain array of bytes, and its bounds.

use super::{Fate, LIST_RANGES_MAX, LISTS_MAX, Lists, RANGES_MAX, Scoreboard};
use crate::time::Instant;
use crate::wire::tcp::Seq;
use proptest::prelude::*;

const BASE: Seq = Seq(u32::MAX - 500);

/// One byte of the model: time of transmission, fate, retransmitted.
type Byte = (u64, Fate, bool);

fn check(board: &Scoreboard, una: u32, model: &[Byte]) {
    let mut at = BASE + una;
    let mut seen = Vec::new();
    for range in board.iter() {
        assert_eq!(range.start, at, "ranges adjoin");
        assert!(range.len > 0);
        at = range.end();
        seen.extend((0..range.len).map(|_| (range.at.as_ns(), range.fate, range.resent)));
    }
    assert_eq!(seen.len(), model.len());
    for (got, want) in seen.iter().zip(model) {
        assert_eq!(got.1, want.1);
        if want.1 != Fate::Sacked {
            assert_eq!(got, want);
        }
    }
    let count = |fate| model.iter().filter(|b| b.1 == fate).count() as u32;
    assert_eq!((board.sacked(), board.lost()), (count(Fate::Sacked), count(Fate::Lost)));
}

#[derive(Debug, Clone)]
enum Op {
    Send(u32),
    Ack(u32),
    Sack(u32, u32),
    Lose(u32),
    Resend(u32),
    Renege,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (1..200u32).prop_map(Op::Send),
        (0..300u32).prop_map(Op::Ack),
        (0..600u32, 0..200u32).prop_map(|(a, n)| Op::Sack(a, n)),
        (0..100u32).prop_map(Op::Lose),
        (1..50u32).prop_map(Op::Resend),
        Just(Op::Renege),
    ]
}

proptest! {
    #[test]
    fn it_is_an_array_of_bytes(ops in prop::collection::vec(op(), 1..80)) {
        let (mut board, mut model, mut una) = (Scoreboard::default(), Vec::<Byte>::new(), 0);
        for (now, op) in ops.into_iter().enumerate() {
            let (now, at) = (now as u64, Instant::from_ns(now as u64));
            match op {
                Op::Send(n) => {
                    board.sent(BASE + una + model.len() as u32, n, at);
                    model.extend((0..n).map(|_| (now, Fate::InFlight, false)));
                }
                Op::Ack(n) => {
                    let n = n.min(model.len() as u32);
                    let fresh = model.drain(..n as usize).filter(|b| b.1 != Fate::Sacked).count() as u32;
                    una += n;
                    let mut reported = 0;
                    board.acknowledge(BASE + una, |range| reported += range.len);
                    assert_eq!(reported, fresh);
                }
                Op::Sack(from, n) if (from + n) as usize <= model.len() => {
                    let mut reported = 0;
                    board.sack(BASE + una + from, BASE + una + from + n, |range| reported += range.len);
                    let part = &mut model[from as usize..(from + n) as usize];
                    assert_eq!(reported, part.iter().filter(|b| b.1 != Fate::Sacked).count() as u32);
                    for b in part.iter_mut() {
                        b.1 = Fate::Sacked;
                    }
                }
                Op::Sack(..) => board.sack(BASE + una, BASE + una + model.len() as u32 + 1, |_| panic!("outside")),
                Op::Lose(n) => {
                    board.mark_first_lost(n.min(model.len() as u32));
                    let n = (n as usize).min(model.len());
                    model[..n].iter_mut().filter(|b| b.1 == Fate::InFlight).for_each(|b| b.1 = Fate::Lost);
                }
                Op::Resend(n) => {
                    if let Some(range) = board.next_lost() {
                        let from = (range.start - (BASE + una)) as usize;
                        let n = n.min(range.len);
                        assert_eq!(model.iter().position(|b| b.1 == Fate::Lost), Some(from));
                        board.resent(range.start, n, at);
                        model[from..from + n as usize].fill((now, Fate::InFlight, true));
                    } else {
                        assert!(model.iter().all(|b| b.1 != Fate::Lost));
                    }
                }
                Op::Renege => {
                    // Joined ranges have lost their send times; so take them over.
                    board.renege();
                    model.clear();
                    for range in board.iter() {
                        model.extend((0..range.len).map(|_| (range.at.as_ns(), range.fate, range.resent)));
                    }
                }
            }
            check(&board, una, &model);
        }
    }
}

#[test]
fn a_guest_that_splits_without_end_meets_the_bound() {
    let mut board = Scoreboard::default();
    board.sent(BASE, 100_000, Instant::ZERO);
    for i in 0..50_000 {
        board.sack(BASE + 2 * i + 1, BASE + 2 * i + 2, |_| {});
    }
    assert!(board.ranges.len() <= RANGES_MAX);
    // Further segments still count, in the last range.
    for i in 0..10_000 {
        board.sent(BASE + 100_000 + i, 1, Instant::from_ns(u64::from(i) + 1));
    }
    assert!(board.ranges.len() <= RANGES_MAX + 1);
    assert_eq!(board.iter().map(|r| r.len).sum::<u32>(), 110_000);
    board.acknowledge(BASE + 110_000, |_| {});
    assert_eq!((board.sacked(), board.lost(), board.ranges.len()), (0, 0, 0));
    let mut lists = Lists::default();
    board.give_list(&mut lists);
    assert_eq!(board.allocated(), 0);
    assert!(lists.0.iter().all(|list| list.capacity() <= LIST_RANGES_MAX));
}

#[test]
fn a_list_serves_one_flight_after_the_other() {
    let mut lists = Lists::default();
    for i in 0..2 * LISTS_MAX as u32 {
        let mut board = Scoreboard::default();
        board.take_list(&mut lists);
        board.sent(BASE, 10, Instant::from_ns(u64::from(i)));
        assert!(lists.0.is_empty(), "the one there is was taken");
        board.give_list(&mut lists);
        assert!(board.allocated() > 0, "something is in flight");
        board.acknowledge(BASE + 10, |_| {});
        board.give_list(&mut lists);
        assert_eq!((board.allocated(), lists.0.len()), (0, 1));
    }
}
