//! Wakers wake their own worker, each time, although their descriptors are never read.

use super::*;
use crate::command::NoReply;
use crate::resteer::{FULL, OVERHEAD, ResteeredKind};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::time::Duration;

const FRAME: ResteeredKind = ResteeredKind::Reassembled;

/// An epoll instance with the waker of one worker in it, as a worker has it.
fn listener(workers: &Workers, worker: u32) -> OwnedFd {
    let epoll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
    let flags = EventFlags::IN | EventFlags::ET;
    epoll::add(&epoll, workers.waker(worker), EventData::new_u64(7), flags).expect("epoll_ctl");
    epoll
}

fn events_of(epoll: &OwnedFd) -> usize {
    let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 4];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    epoll::wait(epoll, &mut events, Some(&now)).expect("epoll_wait")
}

#[test]
fn every_wake_up_is_one_event_without_a_read() {
    let workers = Workers::new(3).expect("eventfd");
    let listeners: Vec<_> = (0..3).map(|worker| listener(&workers, worker)).collect();
    for _ in 0..3 {
        workers.wake(0b101);
        assert_eq!(listeners.iter().map(events_of).collect::<Vec<_>>(), [1, 0, 1]);
        assert_eq!(listeners.iter().map(events_of).collect::<Vec<_>>(), [0, 0, 0], "once");
    }
    // A wake-up before the descriptor was registered is an event too.
    workers.wake(0b10);
    assert_eq!(events_of(&listener(&workers, 1)), 1);
}

#[test]
fn a_stop_wakes_all_and_stays() {
    let workers = Workers::new(64).expect("eventfd");
    let listeners: Vec<_> = (0..64).map(|worker| listener(&workers, worker)).collect();
    assert!(!workers.is_stopping());
    workers.stop();
    assert!(workers.is_stopping() && listeners.iter().all(|listener| events_of(listener) == 1));
}

#[test]
fn a_command_is_left_for_one_worker_and_refused_when_there_is_none() {
    let workers = Workers::new(2).expect("eventfd");
    let waker = listener(&workers, 1);
    let report = |worker| workers.ask(worker, |reply| Command::Report { reply });
    let _pending = report(1);
    assert_eq!(
        (events_of(&waker), workers.take_commands(0).len(), workers.take_commands(1).len()),
        (1, 0, 1)
    );
    let unknown = report(7);
    let late = report(0);
    workers.close();
    for pending in [unknown, late, report(1)] {
        assert_eq!(pending.wait(Duration::from_secs(10)).map(drop), Err(NoReply::Dropped));
    }
}

#[test]
fn a_worker_that_stands_still_collects_so_many_commands_and_no_more() {
    let workers = Workers::new(1).expect("eventfd");
    let mut pending: Vec<_> =
        (0..=COMMANDS_MAX).map(|_| workers.ask(0, |reply| Command::Report { reply })).collect();
    let last = pending.pop().expect("one too many");
    assert_eq!(last.wait(Duration::from_secs(10)).map(drop), Err(NoReply::Dropped));
    let first = pending.swap_remove(0);
    assert_eq!(first.wait(Duration::ZERO).map(drop), Err(NoReply::Late));
    assert_eq!(workers.take_commands(0).len(), COMMANDS_MAX);
}

#[test]
fn frames_for_another_worker_are_left_with_it_and_wait_while_it_has_no_room() {
    let workers = Arc::new(Workers::new(2).expect("eventfd"));
    let [first, second] = [0, 1].map(|number| WorkerHandle::new(workers.clone(), number).expect("a worker"));
    assert!(WorkerHandle::new(workers.clone(), 2).is_err());
    let resteering = first.resteering();
    resteering.publish_datagrams(53, true);
    assert!(resteering.publishes(53) && !resteering.publishes(52));
    resteering.publish_datagrams(53, false);
    assert!(!resteering.publishes(53));

    let waker = listener(&workers, 1);
    let mut put = 0;
    while second.has_room() {
        resteering.put(0, FRAME, vec![7; 60_000].into());
        put += 1;
    }
    assert!(put < 20, "{put} frames");
    assert!(first.has_room(), "its own queue is not meant");
    // A batch that was begun before.
    for _ in 0..64 {
        resteering.put(0, FRAME, vec![7; 1514].into());
    }
    assert!(second.take_resteered().is_empty());
    let frames = first.take_resteered();
    assert_eq!((frames.len(), first.resteered().resteered), (put + 64, put as u64 + 64));
    assert_eq!((first.resteered().resteered_lost, events_of(&waker)), (0, 1), "it may go on");
    assert_eq!(second.resteered(), ResteerCounters::default(), "counted once");
    assert!(second.has_room() && first.take_resteered().is_empty());
}

#[test]
fn a_queue_to_another_worker_is_bounded() {
    let workers = Arc::new(Workers::new(2).expect("eventfd"));
    let first = WorkerHandle::new(workers, 0).expect("a worker");
    for _ in 0..100_000 {
        first.resteering().put(0, FRAME, vec![7; 60].into());
    }
    let bytes = first.take_resteered().len() * (60 + OVERHEAD);
    assert!((FULL..4 * FULL).contains(&bytes), "{bytes}");
    assert!(first.resteered().resteered_lost > 0);
}

#[test]
fn more_workers_than_the_budget_counts_are_refused() {
    assert!(Workers::new(WORKERS_MAX).is_ok());
    assert_eq!(
        Workers::new(WORKERS_MAX + 1).map(drop).map_err(|e| e.kind()),
        Err(io::ErrorKind::InvalidInput)
    );
}
