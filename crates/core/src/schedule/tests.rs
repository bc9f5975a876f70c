//! Bytes per round for flows of any frame size, and the order of flows.

use super::{Listed, QUANTUM, Schedule, TURN, Turn};
use crate::flow::FlowId;

const SUPER: u32 = 65_480;

fn id(index: u32) -> FlowId {
    FlowId { index, generation: 0 }
}

/// A turn of a flow that always has a further frame of `frame` bytes; returns the bytes sent.
fn backlogged(schedule: &mut Schedule, turn: &mut Turn, id: FlowId, frame: u32) -> u32 {
    let mut sent = 0;
    turn.begin(false);
    while turn.goes_on() {
        turn.spend(frame);
        sent += frame;
    }
    turn.end();
    schedule.list_again(id, turn);
    sent
}

/// No flow is served while the link has no credit.
#[test]
fn flows_that_are_gone_do_not_pile_up() {
    let mut schedule = Schedule::default();
    for n in 0..10_000 {
        schedule.list(id(n), &mut Turn::default());
        schedule.list_again(id(n), &mut Turn::default());
        // One in a thousand stays.
        let open = n as usize / 1000 + 1;
        schedule.prune(open, |id| id.index % 1000 == 0);
        let Listed { sparse, bulk } = schedule.listed();
        assert!(sparse.max(bulk) <= 2 * open + 65, "{sparse} and {bulk} of {open}");
    }
    let open: Vec<u32> = (0..10).map(|n| n * 1000).collect();
    schedule.prune(0, |id| id.index % 1000 == 0);
    assert_eq!(schedule.sparse().map(|id| id.index).filter(|n| n % 1000 == 0).collect::<Vec<_>>(), open);
}

#[test]
fn backlogged_flows_move_equally_many_bytes_whatever_their_frames() {
    let frames = [SUPER, 1448, 40_000, 65_160, 64];
    let mut turns: Vec<Turn> = frames.iter().map(|_| Turn::default()).collect();
    let mut sent = [0_u64; 5];
    let mut schedule = Schedule::default();
    for (i, turn) in turns.iter_mut().enumerate() {
        schedule.list(id(i as u32), turn);
    }
    for round in 0..10_000 {
        let Listed { sparse, bulk } = schedule.listed();
        let first: Vec<_> = (0..sparse).filter_map(|_| schedule.next_sparse()).collect();
        let then: Vec<_> = (0..bulk).filter_map(|_| schedule.next_bulk()).collect();
        for flow in first.into_iter().chain(then) {
            let i = flow.index as usize;
            sent[i] += u64::from(backlogged(&mut schedule, &mut turns[i], flow, frames[i]));
        }
        let (least, most) = (sent.iter().min().copied(), sent.iter().max().copied());
        let apart = most.zip(least).map(|(most, least)| most - least);
        assert!(apart <= Some(TURN as u64 + u64::from(SUPER)), "round {round}: {sent:?}");
    }
}

#[test]
fn a_flow_is_sparse_until_it_has_sent_a_quantum() {
    let mut schedule = Schedule::default();
    let mut turn = Turn::default();
    let mut sparse = 0;
    for _ in 0..QUANTUM {
        schedule.list(id(1), &mut turn);
        sparse += schedule.listed().sparse;
        assert!(schedule.next_sparse().or_else(|| schedule.next_bulk()).is_some());
        turn.begin(false);
        turn.spend(1000);
        turn.end();
    }
    // After 66 times it has sent a quantum; then it waits with the others once.
    assert_eq!(sparse, (QUANTUM - QUANTUM / 67) as usize);
}

/// As datagrams do: with a bound of its own below a turn, and listed as if nothing had been left.
#[test]
fn one_that_leaves_half_of_its_turns_gets_no_more_than_others() {
    let (mut schedule, mut turns) = (Schedule::default(), [Turn::default(), Turn::default()]);
    let (mut sent, mut first, mut later) = ([0_u64; 2], 0, 0);
    schedule.list(id(0), &mut turns[0]);
    schedule.list(id(1), &mut turns[1]);
    for _ in 0..10_000 {
        // A round ends with the turn of one flow that is not sparse.
        let sparse: Vec<_> = (0..schedule.listed().sparse).filter_map(|_| schedule.next_sparse()).collect();
        let bulk = schedule.next_bulk();
        first += u32::from(sparse.contains(&id(1)));
        later += u32::from(bulk == Some(id(1)));
        for flow in sparse.into_iter().chain(bulk) {
            let turn = &mut turns[flow.index as usize];
            if flow.index == 0 {
                sent[0] += u64::from(backlogged(&mut schedule, turn, flow, SUPER));
                continue;
            }
            turn.begin(false);
            for _ in 0..2 {
                if turn.goes_on() {
                    turn.spend(SUPER);
                    sent[1] += u64::from(SUPER);
                }
            }
            turn.end();
            schedule.list(flow, turn);
        }
    }
    assert!(sent[1] <= sent[0] + TURN as u64 && sent[1] * 2 >= sent[0], "{sent:?}");
    assert!(first <= later + 1, "went before others {first} times, waited {later} times");
}

#[test]
fn a_flow_is_listed_once() {
    let mut schedule = Schedule::default();
    let mut turn = Turn::default();
    schedule.list(id(1), &mut turn);
    schedule.list(id(1), &mut turn);
    assert_eq!(schedule.listed(), Listed { sparse: 1, bulk: 0 });
}

#[test]
fn one_that_is_alone_keeps_no_more_than_a_quantum_for_later() {
    let mut turn = Turn::default();
    assert_eq!(turn.begin(true), TURN as u32);
    turn.spend(100);
    turn.end();
    assert_eq!(turn.begin(false), QUANTUM as u32);
}
