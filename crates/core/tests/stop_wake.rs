//! The shared memory budget under a model checker: every interleaving of its threads, and every value that
//! the memory model lets a thread read.
//!
//! `src/memory/budget.rs` is compiled here a second time, with loom's atomic integers in the place of the
//! standard library's; the shipped code is unaffected. The rules are those at the head of that file. For each
//! there is a variant that breaks it, which the checker must find: a model that cannot fail proves nothing.
//!
//! A lost wake-up: a worker has gone to sleep and its flag is in no wake mask. No thread really sleeps: each
//! returns its final state, and the check runs when all have ended.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "the file is part of a crate, and the models do not use all of it"
)]

mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
}
#[path = "../src/memory/budget.rs"]
mod budget;

use atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use budget::{Budget, Need, Pressure, READ_ROOM};
use loom::sync::Arc;
use loom::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The worker that waits.
const WAITER: u32 = 0;

/// Exploration of three threads, with three preemptions at most: every known fault shows with these, and an
/// unbounded search would take long.
fn model_of_three(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Whether the checker finds a run in which `model` panics.
fn is_refuted(model: impl Fn() + Sync + Send + 'static) -> bool {
    catch_unwind(AssertUnwindSafe(|| loom::model(model))).is_err()
}

/// A spent budget of two reads, of which one thread gives back `pieces`, each by itself, while this one tries
/// to read and otherwise stops by `wait`, which is true if it sleeps. The other read stays in use: its bytes
/// are of a flow that does not move.
fn one_waits(pieces: &'static [usize], wait: fn(&Budget) -> bool) {
    let budget = Arc::new(Budget::new(2 * READ_ROOM));
    assert!(budget.take(2 * READ_ROOM));
    let givers: Vec<_> = pieces
        .iter()
        .map(|&bytes| {
            let budget = budget.clone();
            thread::spawn(move || budget.give_back(bytes))
        })
        .collect();
    let asleep = !budget.take(READ_ROOM) && wait(&budget);
    let woken = givers.into_iter().fold(0, |woken, giver| woken | giver.join().expect("gives back"));
    assert!(!asleep || woken & (1 << WAITER) != 0, "lost wake-up");
}

fn by_the_rules(budget: &Budget) -> bool {
    budget.stopped(Need::Read).stop(WAITER);
    !budget.has_room(Need::Read)
}

#[test]
fn a_waiter_wakes() {
    loom::model(|| one_waits(&[READ_ROOM], by_the_rules));
}

#[test]
fn a_waiter_wakes_when_only_two_together_make_room() {
    model_of_three(|| one_waits(&[READ_ROOM / 2, READ_ROOM / 2], by_the_rules));
}

#[test]
fn to_ask_whether_all_is_free_loses_a_wake() {
    assert!(is_refuted(|| one_waits(&[READ_ROOM], |budget| {
        budget.stopped(Need::Read).stop(WAITER);
        budget.used() != 0
    })));
}

#[test]
fn to_ask_before_one_stops_loses_a_wake() {
    assert!(is_refuted(|| one_waits(&[READ_ROOM], |budget| {
        let room = budget.has_room(Need::Read);
        budget.stopped(Need::Read).stop(WAITER);
        !room
    })));
}

#[test]
fn to_ask_for_more_than_is_needed_before_waking_loses_a_wake() {
    assert!(is_refuted(|| {
        let (used, gate) = (Arc::new(AtomicUsize::new(2)), Arc::new(budget::StopWake::default()));
        let other = (used.clone(), gate.clone());
        let giver = thread::spawn(move || {
            other.0.fetch_sub(1, Ordering::Relaxed);
            other.1.freed(|| other.0.load(Ordering::Relaxed) == 0)
        });
        gate.stop(WAITER);
        let asleep = used.load(Ordering::Relaxed) == 2;
        assert!(!asleep || giver.join().expect("gives back") != 0, "lost wake-up");
    }));
}

/// The same protocol with or without each of its fences.
fn fences(of_stop: bool, of_freed: bool) {
    let (used, stopped) = (Arc::new(AtomicUsize::new(2)), Arc::new(AtomicU64::new(0)));
    let other = (used.clone(), stopped.clone());
    let giver = thread::spawn(move || {
        other.0.fetch_sub(1, Ordering::Relaxed);
        if of_freed {
            fence(Ordering::SeqCst);
        }
        other.1.load(Ordering::Relaxed)
    });
    stopped.fetch_or(1 << WAITER, Ordering::Relaxed);
    if of_stop {
        fence(Ordering::SeqCst);
    }
    let asleep = used.load(Ordering::Relaxed) == 2;
    assert!(!asleep || giver.join().expect("gives back") != 0, "lost wake-up");
}

#[test]
fn both_fences_are_needed() {
    loom::model(|| fences(true, true));
    assert!(is_refuted(|| fences(true, false)));
    assert!(is_refuted(|| fences(false, true)));
}

#[test]
fn a_worker_that_takes_freed_memory_wakes_the_next() {
    // One thread gives back, another worker takes that at once and gives it back; one of both must wake the
    // waiter.
    model_of_three(|| {
        let budget = Arc::new(Budget::new(READ_ROOM));
        assert!(budget.take(READ_ROOM));
        let first = budget.clone();
        let first = thread::spawn(move || first.give_back(READ_ROOM));
        let second = budget.clone();
        let second =
            thread::spawn(move || if second.take(READ_ROOM) { second.give_back(READ_ROOM) } else { 0 });
        let asleep = !budget.take(READ_ROOM) && by_the_rules(&budget);
        let woken = first.join().expect("gives back") | second.join().expect("takes and gives back");
        assert!(!asleep || woken & (1 << WAITER) != 0, "lost wake-up");
    });
}

#[test]
fn a_window_that_waits_is_woken() {
    loom::model(|| {
        let budget = Arc::new(Budget::new(100 * READ_ROOM));
        assert!(budget.take(96 * READ_ROOM));
        let giver = budget.clone();
        let giver = thread::spawn(move || giver.give_back(READ_ROOM));
        budget.stopped(Need::Window).stop(WAITER);
        let asleep = budget.pressure() == Pressure::Spent;
        assert!(!asleep || giver.join().expect("gives back") & (1 << WAITER) != 0, "lost wake-up");
    });
}

#[test]
fn the_budget_is_never_exceeded() {
    loom::model(|| {
        let budget = Arc::new(Budget::new(READ_ROOM));
        let other = budget.clone();
        let other = thread::spawn(move || other.take(READ_ROOM));
        let taken = [budget.take(READ_ROOM), other.join().expect("takes")];
        assert_eq!(taken.iter().filter(|&&taken| taken).count(), 1, "{taken:?}");
        assert_eq!(budget.used(), READ_ROOM);
    });
}
