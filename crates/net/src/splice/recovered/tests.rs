//! Splices that another set of splices goes on with, as after a crash: exact, or reset.

use super::super::{End, Joining, TurnBytes, connect};
use super::*;
use brodo_core::flow::info::Initiator;
use rustix::event::epoll::{self, CreateFlags};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;

const FLOW: FlowId = FlowId { index: 7, generation: 1 };

/// A client, a server, and the splice between them, which crashes.
struct Bed {
    client: TcpStream,
    server: TcpStream,
    poll: OwnedFd,
    splices: Splices,
    reports: (u64, u64),
    ended: bool,
}

fn event(number: u32) -> EventData {
    EventData::new_u64(number.into())
}

fn socket_toward(to: SocketAddr) -> (OwnedFd, brodo_core::host::Connect) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
    let socket = socket.expect("a socket");
    let connected = connect(&socket, to).expect("connects");
    (socket, connected)
}

fn accepted_by(listener: &TcpListener) -> (TcpStream, OwnedFd) {
    let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connects");
    let (accepted, _) = listener.accept().expect("accepts");
    accepted.set_nonblocking(true).expect("set");
    (client, accepted.into())
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("listens")
}

impl Bed {
    fn new() -> Self {
        let (front, back) = (listener(), listener());
        let (client, accepted) = accepted_by(&front);
        let (toward, connect) = socket_toward(back.local_addr().expect("an address"));
        let (server, _) = back.accept().expect("accepts");
        let poll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
        let mut splices = Splices::new(10);
        let joining =
            Joining { flow: FLOW, initiator: Initiator::Guest, accepted, toward, connect, elsewhere: None };
        splices.join(poll.as_fd(), joining, event).expect("joined");
        Self { client, server, poll, splices, reports: (0, 0), ended: false }
    }

    /// Turns until nothing moves any more.
    fn settle(&mut self) {
        for _ in 0..3 {
            while self.turn() {}
            // Room and bytes are reported by events.
            let mut events = Vec::with_capacity(16);
            let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), Some(&wait)).expect("waits");
            for event in events {
                self.splices.event({ event.data }.u64() as u32, event.flags);
            }
        }
        while self.turn() {}
    }

    fn turn(&mut self) -> bool {
        let Self { splices, poll, reports, ended, .. } = self;
        let turned = splices.turn(poll.as_fd(), TurnBytes::ALONE, |report| {
            reports.0 += report.progress.from_initiator.bytes;
            reports.1 += report.progress.from_responder.bytes;
            *ended |= report.end.is_some();
        });
        turned.busy
    }

    /// The record that the journal has at this moment.
    fn record(&self) -> SpliceRecord {
        let pair = self.splices.pairs.iter().next().expect("it is open");
        SpliceRecord {
            initiator: pair.initiator,
            sockets: pair.ends.each_ref().map(|End { fd, .. }| number(fd)),
            pipes: pair.ways.each_ref().map(|way| way.pipe.as_ref().map(Pipe::numbers)),
        }
    }

    /// The process is gone, and another one takes the descriptors.
    fn crash(&mut self) -> Option<Resumed> {
        let record = self.record();
        let poll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
        // Its instance goes with the process, and its descriptors stay.
        self.poll = poll;
        std::mem::forget(std::mem::replace(&mut self.splices, Splices::new(10)));
        let numbers =
            record.sockets.into_iter().chain(record.pipes.into_iter().flatten().flat_map(<[u32; 2]>::from));
        let mut inherited = Inherited::named(numbers, &[]);
        self.splices.recover(self.poll.as_fd(), FLOW, &record, &mut inherited, event)
    }
}

/// Bytes that do not repeat soon.
fn pattern(len: usize) -> Vec<u8> {
    let mut x = 1u32;
    let next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 24) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// A thread that writes all and ends its stream.
fn write_all(to: &TcpStream, bytes: Vec<u8>) -> JoinHandle<()> {
    let mut to = to.try_clone().expect("a copy");
    std::thread::spawn(move || {
        to.write_all(&bytes).expect("written");
        to.shutdown(Shutdown::Write).expect("shut");
    })
}

fn read_all(from: &TcpStream) -> JoinHandle<Vec<u8>> {
    let mut from = from.try_clone().expect("a copy");
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).expect("read");
        bytes
    })
}

#[test]
fn bytes_in_pipes_and_sockets_come_out_exactly() {
    let mut bed = Bed::new();
    let (there, back) = (pattern(32 << 20), pattern(24 << 20).into_iter().rev().collect::<Vec<_>>());
    let writers = [write_all(&bed.client, there.clone()), write_all(&bed.server, back.clone())];
    // Without a reader sockets and pipes become full, as soon as the writers have come so far.
    while !bed.record().pipes.iter().all(Option::is_some) {
        bed.settle();
    }
    let resumed = bed.crash().expect("it goes on");
    assert_eq!(resumed.moved, Some([bed.reports.0, bed.reports.1]), "the kernel has counted what was moved");
    let readers = [read_all(&bed.server), read_all(&bed.client)];
    while !bed.ended {
        bed.settle();
        if !bed.ended {
            let before = bed.reports;
            let resumed = bed.crash().expect("it goes on at any time");
            assert_eq!(resumed.moved, Some([before.0, before.1]));
        }
    }
    for writer in writers {
        writer.join().expect("no panic");
    }
    let [at_server, at_client] = readers.map(|reader| reader.join().expect("no panic"));
    assert!(at_server == there && at_client == back, "content");
    assert_eq!(bed.splices.open(), 0);
}

#[test]
fn a_half_close_is_kept_and_one_that_was_not_passed_on_is() {
    let mut bed = Bed::new();
    bed.client.write_all(b"request").expect("written");
    bed.client.shutdown(Shutdown::Write).expect("shut");
    assert!(bed.crash().is_some(), "before anything was moved");
    bed.settle();
    assert!(bed.crash().is_some(), "after the end was passed on");
    let mut request = Vec::new();
    bed.server.read_to_end(&mut request).expect("read");
    assert_eq!(request, b"request");
    // The server's end reaches a socket whose own stream has ended: it is in TIME_WAIT, with bytes unread.
    bed.server.write_all(b"answer").expect("written");
    bed.server.shutdown(Shutdown::Write).expect("shut");
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(bed.crash().is_some(), "both streams have ended at one end");
    bed.settle();
    assert!(bed.ended);
    let mut answer = Vec::new();
    bed.client.read_to_end(&mut answer).expect("an orderly end");
    assert_eq!(answer, b"answer");
}

#[test]
fn a_byte_that_is_missing_resets_both_ends() {
    for from in [0, 1] {
        let mut bed = Bed::new();
        bed.settle();
        bed.client.write_all(b"up").expect("written");
        bed.server.write_all(b"down").expect("written");
        let record = bed.record();
        let lossy = bed.splices.pairs.iter().next().expect("open").ends[from].fd.try_clone().expect("a copy");
        while let Err(rustix::io::Errno::AGAIN) = rustix::net::recv(&lossy, &mut [0; 1], RecvFlags::DONTWAIT)
        {
        }
        drop(lossy);
        assert_eq!(bed.crash(), None, "{record:?}");
        for stream in [&mut bed.client, &mut bed.server] {
            let error = stream.read_to_end(&mut Vec::new()).expect_err("no orderly end");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
    }
}

#[test]
fn a_pending_connect_is_awaited() {
    let (front, back) = (listener(), listener());
    // The backlog is full, so that no connection is made before one is accepted.
    assert!(rustix::net::listen(&back, 0).is_ok());
    let at = back.local_addr().expect("an address");
    let full: Vec<_> = (0..4).map(|_| socket_toward(at)).collect();
    let (client, accepted) = accepted_by(&front);
    let (toward, connect) = socket_toward(at);
    assert_eq!(connect, brodo_core::host::Connect::Pending);
    let poll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
    let mut splices = Splices::new(10);
    let joining =
        Joining { flow: FLOW, initiator: Initiator::Guest, accepted, toward, connect, elsewhere: None };
    splices.join(poll.as_fd(), joining, event).expect("joined");
    let server = client.try_clone().expect("a copy");
    let mut bed = Bed { client, server, poll, splices, reports: (0, 0), ended: false };
    bed.client.write_all(b"early").expect("written");
    bed.settle();
    assert_eq!(bed.crash().expect("it goes on").moved, Some([0, 0]));
    bed.settle();
    assert!(bed.splices.pairs.iter().next().expect("open").connecting);
    drop(full);
}

#[test]
fn a_record_of_other_descriptors_is_refused() {
    let (front, back) = (listener(), listener());
    let (client, accepted) = accepted_by(&front);
    let (toward, _) = socket_toward(back.local_addr().expect("an address"));
    let (server, _) = back.accept().expect("accepts");
    let (from, to) = rustix::pipe::pipe().expect("a pipe");
    rustix::io::write(&to, b"unexplained").expect("written");
    let numbers = [&accepted, &toward, &from, &to].map(number);
    std::mem::forget((accepted, toward, from, to));
    let [accepted, toward, from, to] = numbers;
    let record = |sockets, pipes| SpliceRecord { initiator: Initiator::Peer, sockets, pipes };
    let poll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
    let mut splices = Splices::new(10);
    let mut inherited = Inherited::named(numbers, &[]);
    let mut recover =
        |record: SpliceRecord| splices.recover(poll.as_fd(), FLOW, &record, &mut inherited, event);
    for wrong in [
        record([from, to], [None; 2]),
        record([1 << 30, u32::MAX], [None; 2]),
        // Exchanged ends, one end twice, and a pipe whose bytes came from nowhere.
        record([1 << 30, 1 << 30], [Some((to, from)), None]),
        record([1 << 30, 1 << 30], [Some((from, from)), None]),
        record([accepted, toward], [Some((from, to)), None]),
        record([accepted, toward], [None; 2]),
    ] {
        assert_eq!(recover(wrong), None, "{wrong:?}");
    }
    for mut stream in [client, server] {
        assert_eq!(stream.read(&mut [0; 1]).expect_err("reset").kind(), ErrorKind::ConnectionReset);
    }
}
