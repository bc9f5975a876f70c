//! Bytes and descriptors of any kind are refused or used without harm.

use super::records::parse;
use super::*;
use brodo_core::flow::FlowId;
use brodo_core::time::Duration;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use std::net::{TcpListener, TcpStream, UdpSocket};

/// A hand-over of one worker without flows, whose stack is some bytes.
fn handover() -> Handover<'static> {
    let mut handover = Handover::default();
    let clock = records::save_clock(&Clock::start());
    handover.record(Tag::Begin, &v1::BeginV1 { magic: MAGIC, workers: 1, clock });
    handover.record(Tag::Worker, &v1::WorkerV1::default());
    stack(&mut handover);
    handover.end();
    handover
}

fn stack(handover: &mut Handover<'_>) {
    let (mut bytes, begun) = handover.begin_stack(0);
    bytes.extend(b"stack");
    handover.end_stack(bytes, begun);
}

#[test]
fn records_come_back() {
    let handover = handover();
    let parsed = parse(&handover.bytes).expect("whole");
    assert_eq!((parsed.workers.len(), parsed.workers[0].stack, parsed.unused), (1, &b"stack"[..], 0));
    let takeover = handover.duplicate().expect("no descriptors");
    assert!(takeover.clock().is_some_and(|clock| clock.now().as_ns() < 60_000_000_000));
}

#[test]
fn a_part_of_a_handover_is_none() {
    let bytes = handover().bytes;
    for len in 0..bytes.len() {
        let failure = parse(&bytes[..len]).expect_err("a part");
        assert!(
            matches!(failure, RestoreFailure::NotAHandover | RestoreFailure::Truncated),
            "{len}: {failure}"
        );
    }
}

#[test]
fn records_of_later_versions_are_skipped_and_a_later_handover_is_refused() {
    let mut later = Handover::default();
    let clock = records::save_clock(&Clock::start());
    later.record(Tag::Begin, &v1::BeginV1 { magic: MAGIC, workers: 1, clock });
    later.record(Tag::Worker, &v1::WorkerV1::default());
    Record { tag: 0x1ff, version: 1, bytes: b"?" }.write(&mut later.bytes);
    Record { tag: Tag::Sockets as u16, version: 2, bytes: b"?" }.write(&mut later.bytes);
    later.records += 2;
    stack(&mut later);
    later.end();
    assert_eq!(parse(&later.bytes).expect("whole").unused, 2);
    later.bytes[2] = 2;
    assert_eq!(parse(&later.bytes).expect_err("version 2"), RestoreFailure::UnknownVersion(2));
}

#[test]
fn a_clock_that_begins_later_is_refused() {
    let mut ahead = Handover::default();
    let mut clock = records::save_clock(&Clock::start());
    clock.start += Duration::from_secs(60).as_nanos() as u64;
    ahead.record(Tag::Begin, &v1::BeginV1 { magic: MAGIC, workers: 0, clock });
    ahead.end();
    assert_eq!(parse(&ahead.bytes).expect_err("ahead"), RestoreFailure::ClockAhead);
}

/// Each kind of descriptor is taken as what it is, and as nothing else.
#[test]
fn a_descriptor_is_taken_as_what_it_is() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let stream = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let udp = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let (unix, _other) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("pair");
    let (from, to) = pipe_with(PipeFlags::CLOEXEC).expect("pipe");
    let ping = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, Some(ipproto::ICMP));
    let kinds = [Expected::Stream, Expected::Listener, Expected::Udp, Expected::Echo];
    let given: [(OwnedFd, Option<Expected>); 6] = [
        (stream.into(), Some(Expected::Stream)),
        (listener.into(), Some(Expected::Listener)),
        (udp.into(), Some(Expected::Udp)),
        (unix, None),
        (from.try_clone().expect("dup"), None),
        (to.try_clone().expect("dup"), None),
    ];
    let ping = ping.ok().map(|ping| (ping, Some(Expected::Echo)));
    for (fd, what) in given.into_iter().chain(ping) {
        let mut incoming = Incoming::new(EarlyStreams::default(), vec![fd]);
        for kind in kinds.into_iter().filter(|&kind| Some(kind) != what) {
            assert!(incoming.take(0, kind).is_none(), "{what:?} as {kind:?}");
        }
        if let Some(what) = what {
            assert!(incoming.take(0, what).is_some(), "{what:?}");
            assert!(incoming.take(0, what).is_none(), "{what:?} once more");
        }
        assert!(incoming.take(1, Expected::Stream).is_none(), "there is no such");
        assert_eq!(incoming.rest().len(), usize::from(what.is_none()));
    }
}

#[test]
fn a_pipe_is_taken_with_its_content_alone() {
    let (from, to) = pipe_with(PipeFlags::CLOEXEC).expect("pipe");
    let (other, _end) = pipe_with(PipeFlags::CLOEXEC).expect("pipe");
    rustix::io::write(&to, b"abc").expect("room");
    let mut incoming = Incoming::new(EarlyStreams::default(), vec![from, to, other]);
    for (pipe, held) in [((0, 1), 2), ((0, 1), 4), ((1, 0), 3), ((0, 0), 3), ((2, 1), 3), ((0, 7), 3)] {
        assert!(incoming.take_pipe(pipe.0, pipe.1, held).is_none(), "{pipe:?} with {held}");
    }
    assert!(incoming.take_pipe(0, 1, 3).is_some());
    assert_eq!(incoming.rest().len(), 1);
}

#[test]
fn streams_in_advance_have_the_first_indices_and_are_taken_once() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let stream = || TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
    let flow = FlowId { index: 3, generation: 5 };
    let mut early = EarlyStreams::default();
    early.add(1, flow.to_bits(), stream().into());
    early.add(0, 0, UdpSocket::bind("127.0.0.1:0").expect("a port").into());
    early.add(u16::MAX, 0, stream().into());
    assert_eq!(early.len(), 3);
    let mut incoming = Incoming::new(early, vec![stream().into(), stream().into()]);
    assert!(incoming.is_registered(0, 1, flow) && !incoming.is_registered(0, 0, flow));
    assert!(!incoming.is_registered(2, u32::from(u16::MAX), FlowId { index: 0, generation: 0 }));
    assert!(incoming.take_poller(1).is_some() && incoming.take_poller(0).is_none());
    assert!(incoming.take(0, Expected::Udp).is_none(), "a stream alone comes in advance");
    assert!(incoming.take(0, Expected::Stream).is_some() && incoming.take(0, Expected::Stream).is_none());
    assert!(incoming.take(1, Expected::Stream).is_none() && incoming.take(1, Expected::Udp).is_none());
    assert!(incoming.take(3, Expected::Stream).is_some() && incoming.take(5, Expected::Stream).is_none());
    assert_eq!(incoming.rest().len(), 1, "the last; what came in advance is closed as it is");
}
