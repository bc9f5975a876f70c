//! The kernel's counters in every state of a connection, and descriptors by their numbers.

use super::{Inherited, JournalMemory, JournalSize};
use crate::inherited::progress;
use brodo_core::journal::Progress;
use rustix::fd::{AsFd, AsRawFd, IntoRawFd};
use rustix::fs::{MemfdFlags, SealFlags};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket};

/// A connection over the loopback: the side that has connected, and the one that was accepted.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let connected = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    let (accepted, _) = listener.accept().expect("accepted");
    (connected, accepted)
}

/// Progress by a record from the beginning; one by a record with all bytes that were read is the same.
fn of(socket: &TcpStream, accepted: bool) -> Option<Progress> {
    let found = progress::of(socket.as_fd(), accepted, 0);
    found.and_then(|found| progress::of(socket.as_fd(), accepted, found.read as u32))
}

fn expected(written: u64, read: u64, shut: bool, peer_closed: bool) -> Progress {
    Progress { written, read, shut, peer_closed }
}

/// Waits until the peer of a loopback connection has all: the kernel delivers within the call that sends, but
/// for a moment under load.
fn settles(socket: &TcpStream, accepted: bool, wanted: impl Into<Option<Progress>>) {
    let wanted = wanted.into();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while of(socket, accepted) != wanted && std::time::Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(of(socket, accepted), wanted);
}

#[test]
fn bytes_are_counted_in_every_state() {
    for accepted in [false, true] {
        let (connected, other) = pair();
        let (mut one, mut other) = if accepted { (other, connected) } else { (connected, other) };
        settles(&one, accepted, expected(0, 0, false, false));
        one.write_all(&[1; 1000]).expect("written");
        other.write_all(&[2; 700]).expect("written");
        settles(&one, accepted, expected(1000, 0, false, false));
        one.read_exact(&mut [0; 300]).expect("read");
        settles(&one, accepted, expected(1000, 300, false, false));
        // Written, and not taken by the other side: it counts all the same.
        one.set_nonblocking(true).expect("set");
        let mut written = 1000;
        let much = vec![3; 1 << 16];
        while let Ok(more) = one.write(&much) {
            written += more as u64;
        }
        settles(&one, accepted, expected(written, 300, false, false));
        other.shutdown(Shutdown::Write).expect("shut");
        settles(&one, accepted, expected(written, 300, false, true));
        // The end of the stream, read or not, is no byte.
        one.read_exact(&mut [0; 400]).expect("read");
        settles(&one, accepted, expected(written, 700, false, true));
        assert_eq!(one.read(&mut [0; 1]).expect("the end"), 0);
        settles(&one, accepted, expected(written, 700, false, true));
        one.shutdown(Shutdown::Write).expect("shut");
        settles(&one, accepted, expected(written, 700, true, true));
    }
}

#[test]
fn a_shutdown_is_no_byte_and_a_reset_has_no_progress() {
    for accepted in [false, true] {
        let (connected, other) = pair();
        let (mut one, mut other) = if accepted { (other, connected) } else { (connected, other) };
        one.write_all(&[1; 10]).expect("written");
        one.shutdown(Shutdown::Write).expect("shut");
        settles(&one, accepted, expected(10, 0, true, false));
        other.write_all(&[2; 20]).expect("written");
        settles(&one, accepted, expected(10, 0, true, false));
        rustix::net::sockopt::set_socket_linger(&other, Some(std::time::Duration::ZERO)).expect("set");
        drop(other);
        settles(&one, accepted, None::<Progress>);
    }
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    assert_eq!(progress::of(udp.as_fd(), false, 0), None);
}

/// Over in both directions, our end first: the kernel has made TIME-WAIT of it, and the peer's last bytes
/// wait.
#[test]
fn an_orderly_end_differs_from_a_reset() {
    for accepted in [false, true] {
        for unread in [0, 20] {
            let (connected, other) = pair();
            let (mut one, mut other) = if accepted { (other, connected) } else { (connected, other) };
            one.write_all(&[1; 10]).expect("written");
            one.shutdown(Shutdown::Write).expect("shut");
            other.read_exact(&mut [0; 10]).expect("read");
            other.write_all(&vec![2; 5 + unread]).expect("written");
            one.read_exact(&mut [0; 5]).expect("read");
            drop(other);
            settles(&one, accepted, expected(10, 5, true, true));
            let mut rest = Vec::new();
            one.read_to_end(&mut rest).expect("the rest");
            assert_eq!(rest.len(), unread);
            settles(&one, accepted, expected(10, 5 + unread as u64, true, true));
        }
    }
    // The same, but for a reset whose error was read.
    let (mut one, mut other) = pair();
    one.write_all(&[1; 10]).expect("written");
    one.shutdown(Shutdown::Write).expect("shut");
    other.read_exact(&mut [0; 10]).expect("read");
    other.write_all(&[2; 20]).expect("written");
    rustix::net::sockopt::set_socket_linger(&other, Some(std::time::Duration::ZERO)).expect("set");
    drop(other);
    settles(&one, false, None::<Progress>);
    let read = rustix::net::sockopt::socket_error(&one).expect("an error or none");
    assert_eq!(read, Ok(()), "progress has read it");
    settles(&one, false, None::<Progress>);
}

#[test]
fn a_number_is_taken_once_and_never_that_of_another_owner() {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let number = socket.as_raw_fd();
    let taken = |number: i32, own: &[i32]| crate::sys::inherited::take(number, own);
    assert!(taken(number, &[number]).is_none(), "its owner keeps it");
    assert!((0..=2).all(|standard| taken(standard, &[]).is_none()));
    assert!(taken(-1, &[]).is_none() && taken(1 << 30, &[]).is_none());
    let number = socket.into_raw_fd();
    let taken = taken(number, &[]).expect("it has no owner now");
    assert_eq!(taken.fd.as_raw_fd(), number);
    assert_eq!(Inherited::default().descriptors().count(), 0);
}

#[test]
fn memory_that_could_shrink_is_not_mapped() {
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    let memory = rustix::fs::memfd_create(c"test", flags).expect("memory");
    let size = JournalSize { flows: 7, workers: 2, memory: 1 << 20 };
    let map = || JournalMemory::map(memory.as_fd(), size);
    assert!(map().is_err(), "empty, and without a seal");
    rustix::fs::ftruncate(&memory, size.bytes()).expect("a size");
    assert!(map().is_err(), "without a seal");
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK).expect("sealed");
    let more = JournalSize { memory: 2 << 20, ..size };
    assert!(JournalMemory::map(memory.as_fd(), more).is_err(), "smaller than asked for");
    let mut journal = map().expect("mapped");
    assert_eq!([0, 1, 2].map(|worker| journal.of(worker).len()), [5, 5, 0]);
    assert!(journal.remains().iter().all(|remains| remains.flows() == 0));
    let mut payload = || [0, 1, 2].map(|worker| journal.take_payload(worker).is_some());
    assert_eq!((payload(), payload()), ([true, true, false], [false; 3]), "each worker's, once");
}
