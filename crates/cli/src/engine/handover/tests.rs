//! The passage of states, well-formed and hostile ones, and the decision after it.

use super::*;
use brodo_net::EarlyHeader;
use rustix::net::SocketType;
use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::thread;

const MOST: Most = Most { bytes: 64 << 20, descriptors: 4096 };

fn files(count: usize) -> Vec<File> {
    (0..count).map(|_| File::open("/dev/null").expect("a file")).collect()
}

#[test]
fn bytes_and_descriptors_of_several_messages_arrive_in_order() {
    for (bytes, count) in [(0, 0), (1, 1), (5 << 20, 253), (100, 600)] {
        let (to, from) = lines::pair(SocketType::STREAM).expect("a pair");
        let sent: Vec<u8> = (0..bytes).map(|index: usize| (index % 251) as u8).collect();
        let expected = sent.clone();
        let sender = thread::spawn(move || {
            let files = files(count);
            let descriptors: Vec<_> = files.iter().map(AsFd::as_fd).collect();
            send(to.as_fd(), &sent, &descriptors, Instant::now() + PATIENCE)
        });
        let taken = receive(&from, MOST).expect("a state");
        sender.join().expect("no panic").expect("a reader");
        assert!(taken.bytes == expected && taken.descriptors.len() == count, "{bytes} {count}");
    }
}

#[test]
fn a_state_that_is_too_large_or_ends_early_is_refused() {
    let refused = |bytes: u64, descriptors: u64, then: &[u8]| {
        let (to, from) = lines::pair(SocketType::STREAM).expect("a pair");
        let header: Vec<u8> = [bytes, descriptors].iter().flat_map(|length| length.to_le_bytes()).collect();
        lines::send(to.as_fd(), &[&header, then].concat(), None, PATIENCE).expect("room");
        drop(to);
        receive(&from, MOST).expect_err("no state").kind()
    };
    assert_eq!(refused(u64::MAX - 1, 0, b""), ErrorKind::InvalidData);
    assert_eq!(refused(0, 4097, b""), ErrorKind::InvalidData);
    assert_eq!(refused(MOST.bytes, 0, b"abc"), ErrorKind::UnexpectedEof);
    // A byte that should carry a descriptor and does not.
    assert_eq!(refused(0, 1, b"x"), io::Error::from(Errno::MFILE).kind());
}

#[test]
fn an_engine_retires_only_while_it_is_frozen() {
    let freezing = Freezing::default();
    assert!(freezing.retire().is_err(), "it serves");
    let socket = || lines::pair(SocketType::STREAM).expect("a pair").0;
    freezing.ask(socket()).expect("it serves");
    assert!(freezing.ask(socket()).is_err() && freezing.retire().is_err(), "on its way");
    assert!(freezing.frozen().is_some());
    freezing.thaw();
    assert!(freezing.retire().is_err(), "asked to go on");
    let late = || Instant::now() + PATIENCE;
    assert!(!freezing.is_to_retire(late()));
    freezing.ask(socket()).expect("it serves again");
    assert!(freezing.frozen().is_some());
    freezing.retire().expect("frozen");
    freezing.thaw();
    assert!(freezing.is_to_retire(late()), "it never goes on after that");
}

/// The warden thaws an engine whose retirement it has not seen; one that was halted says nothing at all.
#[test]
fn an_engine_that_has_retired_ends_if_the_next_one_does_not_begin() {
    let frozen = || {
        let freezing = Freezing::default();
        freezing.ask(lines::pair(SocketType::STREAM).expect("a pair").0).expect("it serves");
        assert!(freezing.frozen().is_some());
        freezing
    };
    let (freezing, begun) = (frozen(), Instant::now());
    freezing.retire().expect("frozen");
    assert!(freezing.is_to_retire(begun + PATIENCE));
    freezing.await_end(Duration::from_millis(50));
    assert!(begun.elapsed() >= Duration::from_millis(50), "the warden has as long to end it");
    thread::scope(|scope| {
        let waits = scope.spawn(|| freezing.await_end(Duration::from_secs(600)));
        freezing.thaw();
        waits.join().expect("no panic");
    });
    // Both before the first worker has seen the first.
    let freezing = frozen();
    freezing.retire().expect("frozen");
    freezing.thaw();
    assert!(freezing.retire().is_err(), "it ends");
    assert!(freezing.is_to_retire(Instant::now() + PATIENCE));
    freezing.await_end(Duration::from_secs(600));
    assert!(begun.elapsed() < Duration::from_secs(300));
}

#[test]
fn an_engine_goes_on_when_there_is_no_decision() {
    let freezing = Freezing::default();
    freezing.ask(lines::pair(SocketType::STREAM).expect("a pair").0).expect("it serves");
    assert!(freezing.frozen().is_some());
    assert!(!freezing.is_to_retire(Instant::now()));
    assert!(freezing.retire().is_err(), "it has gone on");
}

#[test]
fn a_state_that_is_not_read_is_given_up() {
    let (to, _unread) = lines::pair(SocketType::STREAM).expect("a pair");
    let sent = send(to.as_fd(), &vec![0; 16 << 20], &[], Instant::now());
    assert_eq!(sent.expect_err("no room").kind(), ErrorKind::TimedOut);
}

#[test]
fn streams_in_advance_come_before_the_state() {
    let (to, from) = lines::pair(SocketType::STREAM).expect("a pair");
    early::offer(&from);
    let receiver = thread::spawn(move || receive(&from, MOST));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
    let streams: Vec<_> = (0..300).map(|_| stream.try_clone().expect("a descriptor")).collect();
    let header = Header { bytes: early::ANNOUNCED, descriptors: 0 };
    lines::send(to.as_fd(), &header.to_bytes(), None, PATIENCE).expect("room");
    for some in streams.chunks(DESCRIPTORS_MAX) {
        let header = EarlyHeader { count: some.len() as u16, worker: 0 };
        let bytes = [&header.to_bytes()[..], &vec![1; some.len() * 8]].concat();
        let descriptors: Vec<_> = some.iter().map(AsFd::as_fd).collect();
        fd_passing::send(&to, &bytes, &descriptors, SendFlags::empty()).expect("room");
    }
    lines::send(to.as_fd(), &[0; EarlyHeader::LEN], None, PATIENCE).expect("room");
    send(to.as_fd(), b"state", &[], Instant::now() + PATIENCE).expect("a reader");
    let taken = receiver.join().expect("no panic").expect("a state");
    assert_eq!((taken.early.len(), taken.bytes.as_slice()), (300, &b"state"[..]));
}

#[test]
fn streams_in_advance_without_their_number_are_refused() {
    for count in [1, 254, u16::MAX] {
        let (to, from) = lines::pair(SocketType::STREAM).expect("a pair");
        let header = Header { bytes: early::ANNOUNCED, descriptors: 0 };
        let lie = EarlyHeader { count, worker: 0 };
        let bytes = [&header.to_bytes()[..], &lie.to_bytes(), &[0; 8]].concat();
        lines::send(to.as_fd(), &bytes, None, PATIENCE).expect("room");
        receive(&from, MOST).expect_err("descriptors are missing");
    }
}
