//! Bells ring for those they are meant for, each time, although nobody ever answers them.

use super::*;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// An epoll instance with the bell of one worker in it, as a worker has it.
fn listener(crew: &Crew, worker: u32) -> OwnedFd {
    let epoll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
    let flags = EventFlags::IN | EventFlags::ET;
    epoll::add(&epoll, crew.bell(worker), EventData::new_u64(7), flags).expect("epoll_ctl");
    epoll
}

fn rings(epoll: &OwnedFd) -> usize {
    let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 4];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    epoll::wait(epoll, &mut events, Some(&now)).expect("epoll_wait")
}

#[test]
fn every_ring_is_one_event_and_nobody_reads() {
    let crew = Crew::new(3).expect("eventfd");
    let listeners: Vec<_> = (0..3).map(|worker| listener(&crew, worker)).collect();
    for _ in 0..3 {
        crew.wake(0b101);
        assert_eq!(listeners.iter().map(rings).collect::<Vec<_>>(), [1, 0, 1]);
        assert_eq!(listeners.iter().map(rings).collect::<Vec<_>>(), [0, 0, 0], "once");
    }
    // A ring that came before anybody listened is heard too.
    crew.wake(0b10);
    assert_eq!(rings(&listener(&crew, 1)), 1);
}

#[test]
fn to_stop_rings_for_all_and_stays() {
    let crew = Crew::new(64).expect("eventfd");
    let listeners: Vec<_> = (0..64).map(|worker| listener(&crew, worker)).collect();
    assert!(!crew.is_stopping());
    crew.stop();
    assert!(crew.is_stopping() && listeners.iter().all(|listener| rings(listener) == 1));
}

#[test]
fn a_visit_is_left_for_one_worker_and_dropped_when_there_is_none() {
    let crew = Crew::new(2).expect("eventfd");
    let (told, heard) = std::sync::mpsc::channel();
    let visit = || {
        let told = told.clone();
        Box::new(move |_: &mut Inside<'_>| told.send(()).expect("somebody listens")) as Visit
    };
    let bell = listener(&crew, 1);
    crew.visit(1, visit());
    assert_eq!((rings(&bell), crew.take_visits(0).len(), crew.take_visits(1).len()), (1, 0, 1));
    crew.visit(7, visit());
    crew.visit(0, visit());
    crew.close();
    crew.visit(1, visit());
    drop(told);
    assert!(heard.recv().is_err(), "all are dropped, none was made");
}

#[test]
fn frames_for_the_first_are_left_with_it_within_bounds() {
    let crew = Crew::new(2).expect("eventfd");
    assert!(!crew.hands_over(1), "nothing begins on the host's side");
    crew.expect_inbound();
    assert!(crew.hands_over(1) && !crew.hands_over(0));
    assert!(crew.is_for_first(Foreign::Segment) && !crew.is_for_first(Foreign::Datagram(53)));
    crew.publish_datagrams(53, true);
    assert!(crew.is_for_first(Foreign::Datagram(53)) && !crew.is_for_first(Foreign::Datagram(52)));
    crew.publish_datagrams(53, false);
    assert!(!crew.is_for_first(Foreign::Datagram(53)));

    let bell = listener(&crew, 0);
    for _ in 0..HANDED_MAX + 3 {
        crew.hand_over(RxMeta::default(), &[7; 60]);
    }
    assert_eq!((rings(&bell), crew.handed_over()), (1, (HANDED_MAX as u64, 3)));
    assert!(crew.take_handed(1).is_empty());
    let frames = crew.take_handed(0);
    assert!(frames.len() == HANDED_MAX && frames.iter().all(|(_, frame)| **frame == [7; 60]));
    assert!(crew.take_handed(0).is_empty());
}
