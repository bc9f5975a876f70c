//! The kernel's counters in every state of a connection, and descriptors by their numbers.

use super::{Inherited, JournalMemory};
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

fn of(socket: &TcpStream, accepted: bool) -> Option<Progress> {
    progress::of(socket.as_fd(), accepted)
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
    assert_eq!(progress::of(udp.as_fd(), false), None);
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
    assert_eq!(taken.as_raw_fd(), number);
    assert_eq!(Inherited::default().descriptors().count(), 0);
}

#[test]
fn memory_that_could_shrink_is_not_mapped() {
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    let memory = rustix::fs::memfd_create(c"test", flags).expect("memory");
    assert!(JournalMemory::map(memory.as_fd()).is_err(), "empty, and without a seal");
    rustix::fs::ftruncate(&memory, JournalMemory::size(7, 2)).expect("a size");
    assert!(JournalMemory::map(memory.as_fd()).is_err(), "without a seal");
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK).expect("sealed");
    let journal = JournalMemory::map(memory.as_fd()).expect("mapped");
    assert_eq!((journal.of(0, 2).len(), journal.of(1, 2).len(), journal.of(2, 2).len()), (5, 5, 0));
    assert!(journal.remains(2).iter().all(|remains| remains.flows() == 0));
}
