//! Bells ring for those they are meant for, each time, although nobody ever answers them.

use super::*;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// An epoll instance with the waker of one worker in it, as a worker has it.
fn listener(workers: &Workers, worker: u32) -> OwnedFd {
    let epoll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
    let flags = EventFlags::IN | EventFlags::ET;
    epoll::add(&epoll, workers.waker(worker), EventData::new_u64(7), flags).expect("epoll_ctl");
    epoll
}

fn rings(epoll: &OwnedFd) -> usize {
    let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 4];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    epoll::wait(epoll, &mut events, Some(&now)).expect("epoll_wait")
}

#[test]
fn every_ring_is_one_event_and_nobody_reads() {
    let workers = Workers::new(3).expect("eventfd");
    let listeners: Vec<_> = (0..3).map(|worker| listener(&workers, worker)).collect();
    for _ in 0..3 {
        workers.wake(0b101);
        assert_eq!(listeners.iter().map(rings).collect::<Vec<_>>(), [1, 0, 1]);
        assert_eq!(listeners.iter().map(rings).collect::<Vec<_>>(), [0, 0, 0], "once");
    }
    // A ring that came before anybody listened is heard too.
    workers.wake(0b10);
    assert_eq!(rings(&listener(&workers, 1)), 1);
}

#[test]
fn to_stop_rings_for_all_and_stays() {
    let workers = Workers::new(64).expect("eventfd");
    let listeners: Vec<_> = (0..64).map(|worker| listener(&workers, worker)).collect();
    assert!(!workers.is_stopping());
    workers.stop();
    assert!(workers.is_stopping() && listeners.iter().all(|listener| rings(listener) == 1));
}

#[test]
fn a_visit_is_left_for_one_worker_and_dropped_when_there_is_none() {
    let workers = Workers::new(2).expect("eventfd");
    let (told, heard) = std::sync::mpsc::channel();
    let visit = || {
        let told = told.clone();
        Box::new(move |_: &mut WorkerView<'_>| told.send(()).expect("somebody listens")) as Visit
    };
    let waker = listener(&workers, 1);
    workers.visit(1, visit());
    assert_eq!((rings(&waker), workers.take_visits(0).len(), workers.take_visits(1).len()), (1, 0, 1));
    workers.visit(7, visit());
    workers.visit(0, visit());
    workers.close();
    workers.visit(1, visit());
    drop(told);
    assert!(heard.recv().is_err(), "all are dropped, none was made");
}

#[test]
fn frames_for_the_first_are_left_with_it_within_bounds() {
    let workers = Workers::new(2).expect("eventfd");
    assert!(!workers.resteers(1), "nothing begins on the host's side");
    workers.expect_inbound();
    assert!(workers.resteers(1) && !workers.resteers(0));
    assert!(workers.is_for_first(Resteer::Segment) && !workers.is_for_first(Resteer::Datagram(53)));
    workers.publish_datagrams(53, true);
    assert!(workers.is_for_first(Resteer::Datagram(53)) && !workers.is_for_first(Resteer::Datagram(52)));
    workers.publish_datagrams(53, false);
    assert!(!workers.is_for_first(Resteer::Datagram(53)));

    let waker = listener(&workers, 0);
    for _ in 0..RESTEERED_MAX + 3 {
        workers.resteer(RxMeta::default(), &[7; 60]);
    }
    assert_eq!((rings(&waker), workers.resteered()), (1, (RESTEERED_MAX as u64, 3)));
    assert!(workers.take_resteered(1).is_empty());
    let frames = workers.take_resteered(0);
    assert!(frames.len() == RESTEERED_MAX && frames.iter().all(|(_, frame)| **frame == [7; 60]));
    assert!(workers.take_resteered(0).is_empty());
}
