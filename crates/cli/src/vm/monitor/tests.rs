//! Monitors that send datagrams, one after another, and the engine's end of the way to them.

use super::*;
use crate::conversation::connections::{KEEP, LOST, REQUEST, channel};
use crate::vm::connector::Connector;
use brodo_net::fd_passing;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SendFlags, bind, send, socket_with};
use std::sync::Arc;
use std::{env, fs};

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("brodo-{name}-{}", std::process::id()));
        fs::create_dir(&folder).expect("a folder");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A monitor's socket at the path that each has, with a way to brodo's.
struct Machine {
    socket: OwnedFd,
    brodo: SocketAddrUnix,
}

impl Machine {
    fn new(folder: &Folder) -> Self {
        let path = folder.0.join("machine");
        let _ = fs::remove_file(&path);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).expect("socket");
        bind(&socket, &SocketAddrUnix::new(&path).expect("short")).expect("bind");
        Self { socket, brodo: SocketAddrUnix::new(folder.0.join("brodo")).expect("short") }
    }

    fn sends(&self) -> Result<usize, Errno> {
        rustix::net::sendto(&self.socket, b"frame", SendFlags::empty(), &self.brodo)
    }
}

/// The engine's end of a connector that awaits datagrams.
fn engine(folder: &Folder, one_off: bool) -> OwnedFd {
    let bound = SocketFile::bind(&folder.0.join("brodo"), SocketType::DGRAM);
    let (socket, file) = bound.expect("a free path");
    let way = Way::waiting(socket, file, SocketType::DGRAM);
    let (warden, engine) = channel().expect("a pair");
    let monitor = Monitor { way, one_off, spent: AtomicBool::new(false) };
    Connector::start(Arc::new(monitor), Arc::new(warden)).expect("a thread");
    fd_passing::receive(&engine, &mut [0; 8], 0, RecvFlags::empty()).expect("a message at its start");
    engine
}

/// The engine's next connection.
fn connection(engine: &OwnedFd) -> Option<OwnedFd> {
    // An error: there is none, as its end of the channel says.
    let _ = send(engine, &[REQUEST], SendFlags::NOSIGNAL);
    let mut answer = fd_passing::receive(engine, &mut [0; 8], 1, RecvFlags::empty()).expect("answered");
    answer.descriptors.pop()
}

/// Length of the next datagram of a connection, 0 at its end.
fn received(connection: &OwnedFd) -> Option<usize> {
    let limit = rustix::time::Timespec { tv_sec: 5, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(connection, PollFlags::IN)], Some(&limit));
    assert_eq!(ready, Ok(1), "in time");
    recv(connection, &mut [0; 16][..], RecvFlags::DONTWAIT).ok().map(|(len, _)| len)
}

#[test]
fn a_monitor_of_datagrams_that_goes_without_a_word_makes_room_for_the_next() {
    let folder = Folder::new("datagrams");
    let engine = engine(&folder, false);
    for _ in 0..3 {
        let machine = Machine::new(&folder);
        assert_eq!(machine.sends(), Ok(5));
        let connection = connection(&engine).expect("one");
        assert_eq!(received(&connection), Some(5));
        thread::sleep(Duration::from_millis(700));
        assert_eq!((machine.sends(), received(&connection)), (Ok(5), Some(5)), "it is there");
        drop(machine);
        assert_eq!(Machine::new(&folder).sends(), Err(Errno::PERM), "another one, and no look yet");
        assert_eq!(received(&connection), Some(0), "the end");
    }
}

#[test]
fn a_monitor_of_datagrams_that_was_the_only_one_ends_all() {
    let folder = Folder::new("one-off-datagrams");
    let engine = engine(&folder, true);
    let machine = Machine::new(&folder);
    assert_eq!(machine.sends(), Ok(5));
    let only = connection(&engine).expect("one");
    assert_eq!(received(&only), Some(5));
    drop(machine);
    assert_eq!(received(&only), Some(0), "the end");
    assert!(connection(&engine).is_none());
}

/// Another engine asks after the first has ended: the machine may be waiting for it.
#[test]
fn a_monitor_of_datagrams_that_is_there_is_every_engine_s() {
    for one_off in [false, true] {
        let folder = Folder::new(&format!("engines-{one_off}"));
        let engine = engine(&folder, one_off);
        let machine = Machine::new(&folder);
        assert_eq!(machine.sends(), Ok(5));
        assert_eq!(received(&connection(&engine).expect("one")), Some(5));
        // Between the two engines.
        assert_eq!(machine.sends(), Ok(5));
        let next = connection(&engine).expect("the same");
        assert_eq!(received(&next), Some(5));
        assert_eq!(send(&next, b"frame", SendFlags::empty()), Ok(5));
        assert_eq!(recv(&machine.socket, &mut [0; 8][..], RecvFlags::DONTWAIT).map(|(len, _)| len), Ok(5));
    }
}

/// With a request of an engine that has ended before, the connector is not to wait for a second monitor: it
/// would not read what the engine has kept.
#[test]
fn a_request_that_is_superseded_does_not_have_the_next_monitor_awaited() {
    let folder = Folder::new("superseded");
    let path = folder.0.join("brodo");
    let (socket, file) = SocketFile::bind(&path, SocketType::STREAM).expect("a free path");
    let (way, spent) = (Way::waiting(socket, file, SocketType::STREAM), AtomicBool::new(false));
    let (warden, engine) = channel().expect("a pair");
    set_socket_timeout(&engine, Timeout::Recv, Some(Duration::from_secs(10))).expect("a socket");
    Connector::start(Arc::new(Monitor { way, one_off: false, spent }), Arc::new(warden)).expect("a thread");
    let answer = || {
        let mut kind = [0; 8];
        let received = fd_passing::receive(&engine, &mut kind, 1, RecvFlags::empty()).expect("in time");
        (kind[0], received.descriptors)
    };
    assert_eq!(answer().0, LOST);
    for _ in 0..2 {
        send(&engine, &[REQUEST], SendFlags::empty()).expect("room");
    }
    let _monitor = connected(&path, SocketType::STREAM).expect("it listens");
    let (kind, descriptors) = answer();
    assert_eq!((kind, descriptors.len()), (REQUEST, 1));
    fd_passing::send(&engine, &[KEEP], &[descriptors[0].as_fd()], SendFlags::empty()).expect("room");
    send(&engine, &[REQUEST], SendFlags::empty()).expect("room");
    let (kind, descriptors) = answer();
    assert_eq!((kind, descriptors.len()), (KEEP, 1), "the next engine has it");
}

#[test]
fn the_first_path_is_chosen_that_is_free_or_was_left_behind() {
    let folder = Folder::new("monitor-paths");
    let paths = || (1..=4).map(|number| folder.0.join(number.to_string()));
    let bound = || {
        first_free(paths(), SocketType::STREAM).map(|(socket, file)| (file.path().to_owned(), socket, file))
    };
    fs::write(folder.0.join("1"), "").expect("a file of another type");
    let second = bound().expect("free");
    drop(std::os::unix::net::UnixListener::bind(folder.0.join("3")).expect("a socket without a process"));
    let third = bound().expect("free");
    let fourth = bound().expect("free");
    let chosen = [&second.0, &third.0, &fourth.0].map(|path| path.strip_prefix(&folder.0).expect("inside"));
    assert_eq!(chosen, ["2", "3", "4"].map(Path::new));
    assert_eq!(bound().expect_err("all are taken").kind(), ErrorKind::AddrInUse);
}
