//! Parked flows wake in order, each once per wake, no more at a time than there is room for, and none stays
//! parked for ever.

use super::*;

const SEC: Duration = Duration::from_secs(1);

fn flow(index: u32) -> FlowId {
    FlowId { index, generation: 0 }
}

/// A spent budget of so many reads, and the flows 0 to 4 that wait for it.
fn crowd(reads: usize) -> (Arc<Budget>, ParkedFlows) {
    let budget = Arc::new(Budget::new(reads * READ_ROOM));
    assert!(budget.take(reads * READ_ROOM));
    let mut waiting = ParkedFlows::new(budget.clone(), Need::Read, 3);
    for index in 0..5 {
        waiting.stop(Instant::ZERO, flow(index), &mut false);
    }
    (budget, waiting)
}

/// Flows woken in one round.
fn round(waiting: &mut ParkedFlows) -> Vec<u32> {
    let n = waiting.wakeable();
    (0..n).map_while(|_| waiting.pop()).map(|flow| flow.index).collect()
}

#[test]
fn as_many_look_as_there_is_room_for() {
    let (budget, mut waiting) = crowd(4);
    assert_eq!(round(&mut waiting), [], "no memory was freed");
    assert!(!waiting.rest());
    assert_eq!(budget.give_back(2 * READ_ROOM), 1 << 3);
    assert_eq!(round(&mut waiting), [0, 1]);
    // They have not taken the memory, so the next ones are woken.
    assert!(waiting.rest());
    assert_eq!(round(&mut waiting), [2, 3]);
    assert!(budget.take(2 * READ_ROOM));
    assert!(!waiting.rest(), "now it is gone");
    assert_eq!(round(&mut waiting), []);
    assert_eq!(budget.give_back(READ_ROOM), 1 << 3, "stopped again");
    assert_eq!(round(&mut waiting), [4]);
    assert!(!waiting.rest());
}

#[test]
fn a_flow_without_progress_resumes_once_per_wake() {
    let (budget, mut waiting) = crowd(8);
    let _ = budget.give_back(8 * READ_ROOM);
    let woken = round(&mut waiting);
    assert_eq!(woken, [0, 1, 2, 3, 4]);
    for index in woken {
        waiting.stop(Instant::ZERO, flow(index), &mut false);
    }
    assert!(!waiting.rest(), "or they would turn in circles");
    assert!(budget.take(READ_ROOM));
    assert_ne!(budget.give_back(READ_ROOM), 0);
    assert_eq!(round(&mut waiting), [0, 1, 2, 3, 4]);
}

#[test]
fn a_wake_is_not_lost_to_a_flow_that_stops_after_it() {
    let (budget, mut waiting) = crowd(2);
    let _ = budget.give_back(READ_ROOM);
    waiting.stop(Instant::ZERO, flow(5), &mut false);
    assert_eq!(round(&mut waiting), [0]);
}

#[test]
fn a_flow_is_listed_once() {
    let (_, mut waiting) = crowd(1);
    let mut listed = true;
    waiting.stop(Instant::ZERO, flow(0), &mut listed);
    assert_eq!(waiting.flows.len(), 5);
}

#[test]
fn the_watchdog_finds_who_was_forgotten_at_its_second_look() {
    let (budget, mut waiting) = crowd(1);
    assert_eq!(waiting.watch_at(), Some(Instant::ZERO + SEC));
    // A lost wake-up: memory is freed, and the mask of workers to wake is discarded.
    let _ = budget.give_back(READ_ROOM);
    budget.stopped(Need::Read).stop(3);
    waiting.watch(Instant::ZERO + SEC);
    assert!(waiting.suspected && round(&mut waiting).is_empty());
    waiting.watch(Instant::ZERO + SEC * 2);
    assert_eq!(round(&mut waiting), [0]);
    assert!(waiting.was_forgotten());
    while waiting.rest() {
        round(&mut waiting);
    }
    assert!(!waiting.was_forgotten());
    waiting.watch(Instant::ZERO + SEC * 3);
    assert_eq!(waiting.watch_at(), None, "nobody waits");
}

#[test]
fn the_watchdog_is_content_while_there_is_no_room() {
    let (_budget, mut waiting) = crowd(1);
    for second in 1..5 {
        waiting.watch(Instant::ZERO + SEC * second);
        assert!(!waiting.suspected && round(&mut waiting).is_empty());
    }
}

#[test]
fn flows_that_are_gone_do_not_fill_the_list() {
    let (_, mut waiting) = crowd(1);
    for index in 5..1000 {
        waiting.stop(Instant::ZERO, flow(index), &mut false);
        waiting.prune(10, |flow| flow.index < 7);
    }
    assert!(waiting.flows.len() <= 2 * 10 + STALE_SLACK + 1);
    assert_eq!(waiting.flows[0], flow(0));
}
