//! The passage of states, well-formed and hostile ones, and the decision after it.

use super::*;
use rustix::net::SocketType;
use std::fs::File;
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
            send(to.as_fd(), &sent, &descriptors)
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
    assert_eq!(refused(u64::MAX, 0, b""), ErrorKind::InvalidData);
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
    assert!(!freezing.is_to_retire());
    freezing.ask(socket()).expect("it serves again");
    assert!(freezing.frozen().is_some());
    freezing.retire().expect("frozen");
    freezing.thaw();
    assert!(freezing.is_to_retire(), "it never goes on after that");
}
