//! Monitors at the other ends of a listening socket, each with a protocol of its own.

use super::*;
use crate::batch::ARENA_LEN;
use crate::connections::outliving::Outliving;
use crate::connections::{Listening, Once};
use crate::poller::Token;
use crate::vhost_user::front_end::Message;
use brodo_core::link::Gso;
use brodo_core::wire::ethernet::MacAddr;
use rustix::event::epoll::{self, CreateFlags};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getsockname, listen,
    send, socket_with, socketpair, sockopt,
};

const CONFIG: MachineConfig =
    MachineConfig { mac: MacAddr::BROADCAST, mtu: 1500, offload: true, queues: 1, plain: false };
const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);
/// Number of GET_FEATURES, by which front ends begin.
const REQUEST: u32 = 1;

struct Bed {
    link: SpokenLink,
    epoll: OwnedFd,
    /// Where monitors connect.
    address: Option<SocketAddrUnix>,
}

impl Bed {
    fn with(source: Box<dyn Connections>, address: Option<SocketAddrUnix>) -> Self {
        let epoll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
        let mut bed = Self { link: SpokenLink::new(source, CONFIG).expect("eventfd"), epoll, address };
        bed.link.register(Poller::new(bed.epoll.as_fd(), 0)).expect("registered");
        bed.turn();
        bed
    }

    /// A link that listens at an address without a path.
    fn listening() -> Self {
        let socket = || socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None).expect("socket");
        let listener = socket();
        let name = format!("brodo-spoken-{}-{:?}", std::process::id(), std::thread::current().id());
        bind(&listener, &SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("short")).expect("free");
        listen(&listener, 4).expect("bound");
        let address = getsockname(&listener).expect("bound").try_into().expect("unix");
        Self::with(Box::new(Listening::new(listener)), Some(address))
    }

    fn monitor(&mut self) -> OwnedFd {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None).expect("socket");
        connect(&socket, self.address.as_ref().expect("it listens")).expect("it listens");
        self.turn();
        socket
    }

    /// A turn of the loop: events, frames, the end; how many frames came, and whether there is credit.
    fn turn(&mut self) -> (usize, bool) {
        let mut events = Vec::with_capacity(8);
        let none = rustix::time::Timespec::default();
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&none)).expect("wait");
        let mut credit = false;
        for event in events {
            let Token::Source { key, .. } = Token::read({ event.data }.u64()) else { panic!("no flow") };
            credit |= self.link.ready(key, event.flags).credit;
        }
        let mut arena = vec![0; ARENA_LEN];
        let mut batch = Batch::new(&mut arena, false);
        self.link.take(&mut batch).expect("links do not break");
        let frames = batch.frames().len();
        self.link.flush(Poller::new(self.epoll.as_fd(), 0));
        (frames, credit)
    }

    fn send(&mut self) -> Result<(), NoCredit> {
        let bytes = [7; 60];
        let (partial, gso) = (None, Gso::None);
        self.link.send(&TxFrame { headers: &bytes, payload: &[], partial, gso })
    }
}

fn say_frame(monitor: &OwnedFd) {
    let bytes = [&60_u32.to_be_bytes()[..], &[7; 60]].concat();
    send(monitor, &bytes, SendFlags::empty()).expect("room");
}

fn received(monitor: &OwnedFd) -> usize {
    recv(monitor, &mut [0; 256][..], RecvFlags::empty()).map_or(0, |(len, _)| len)
}

#[test]
fn each_monitor_is_served_by_the_protocol_it_speaks() {
    let mut bed = Bed::listening();
    for _ in 0..2 {
        let monitor = bed.monitor();
        Message::new(REQUEST, &[]).send(&monitor, false).expect("room");
        bed.turn();
        bed.turn();
        assert_eq!(received(&monitor), 20, "the reply with the features");
        drop(monitor);
        bed.turn();
        bed.turn();

        let monitor = bed.monitor();
        say_frame(&monitor);
        bed.turn();
        assert_eq!(bed.turn().0, 1);
        assert_eq!(bed.send(), Ok(()));
        bed.turn();
        assert_eq!(received(&monitor), 64);
        drop(monitor);
        bed.turn();
        bed.turn();

        // Taken for one of frames, as the one before, until its first bytes are no length.
        let lost = bed.link.losses().bad_lengths;
        let monitor = bed.monitor();
        Message::new(REQUEST, &[]).send(&monitor, false).expect("room");
        bed.turn();
        bed.turn();
        bed.turn();
        assert_eq!((bed.link.losses().bad_lengths, received(&monitor)), (lost + 1, 0));
        bed.turn();
    }
}

#[test]
fn a_silent_monitor_gets_frames_after_some_time() {
    let (ours, monitor) = socketpair(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None).expect("pair");
    let mut bed = Bed::with(Box::new(Once::new(ours)), None);
    for _ in 0..SILENT_WAITS {
        assert_eq!(bed.send(), Err(NoCredit));
        assert_eq!(bed.link.credit_wait(), Some(CreditWait::EventAtFirst));
        bed.link.await_credit(Poller::new(bed.epoll.as_fd(), 0), true).expect("epoll_ctl");
        bed.link.wait_overdue();
        bed.link.forget_refusal();
    }
    assert_eq!(bed.send(), Err(NoCredit), "the turn ends first");
    assert!(!bed.turn().1);
    assert_eq!(bed.link.credit_wait(), Some(CreditWait::Event), "the loop still waits");
    assert!(bed.turn().1, "which ends by an event");
    bed.link.forget_refusal();
    assert_eq!(bed.send(), Ok(()));
    bed.turn();
    assert_eq!(received(&monitor), 64);
    drop(monitor);
    bed.turn();
    bed.turn();
    assert!(bed.link.gone());
}

#[test]
fn another_process_goes_on_in_every_state() {
    for said in [None, Some(true), Some(false)] {
        let (ours, monitor) = socketpair(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None).expect("pair");
        let mut bed = Bed::with(Box::new(Once::new(ours)), None);
        let say = |frame: bool| {
            if frame {
                say_frame(&monitor);
            } else {
                Message::new(REQUEST, &[]).send(&monitor, false).expect("room");
            }
        };
        if let Some(frame) = said {
            say(frame);
            bed.turn();
            assert_eq!(bed.turn().0, usize::from(frame));
            received(&monitor);
        }
        let saved = bed.link.save().expect("a connection");
        let descriptors = saved.descriptors.iter().map(|fd| fd.try_clone_to_owned().expect("dup")).collect();
        let (ours, _unused) = socketpair(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None).expect("pair");
        let mut link = SpokenLink::new(Box::new(Once::new(ours)), CONFIG).expect("eventfd");
        link.restore(&saved.bytes, descriptors);
        let mut next =
            Bed { link, epoll: epoll::create(CreateFlags::CLOEXEC).expect("epoll"), address: None };
        drop(bed);
        next.link.register(Poller::new(next.epoll.as_fd(), 0)).expect("registered");
        let frame = said.unwrap_or(true);
        say(frame);
        let frames: usize = (0..3).map(|_| next.turn().0).sum();
        assert_eq!((frames, received(&monitor)), if frame { (1, 0) } else { (0, 20) }, "{said:?}");
    }
}

/// A connection of a source that outlives crashes, and the monitor's end of it.
fn outliving() -> (Outliving, OwnedFd) {
    let (ours, monitor) = socketpair(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None).expect("pair");
    (Outliving::of(ours), monitor)
}

/// Protocol of the state that a source keeps.
fn kept(source: &Outliving) -> Option<u8> {
    source.kept().as_ref().and_then(|kept| kept.bytes.first().copied())
}

#[test]
fn a_silent_connection_survives_crashes() {
    for frame in [true, false] {
        let (source, monitor) = outliving();
        let mut bed = Bed::with(Box::new(source.clone()), None);
        // Half of a length says nothing yet.
        for part in 0..3 {
            assert_eq!(kept(&source), Some(UNSPOKEN));
            bed = Bed::with(Box::new(source.clone()), None);
            bed.turn();
            if part == 1 && frame {
                send(&monitor, &60_u32.to_be_bytes()[..2], SendFlags::empty()).expect("room");
            }
        }
        if frame {
            let rest = [&60_u32.to_be_bytes()[2..], &[7; 60]].concat();
            send(&monitor, &rest, SendFlags::empty()).expect("room");
        } else {
            Message::new(REQUEST, &[]).send(&monitor, false).expect("room");
        }
        let frames: usize = (0..3).map(|_| bed.turn().0).sum();
        assert_eq!((frames, received(&monitor)), if frame { (1, 0) } else { (0, 20) });
        let protocol = if frame { Protocol::Frames } else { Protocol::VhostUser };
        assert_eq!(kept(&source), Some(protocol as u8));
    }
}

/// A stream whose next frame may be cut has no state, and that of its silence is none of it.
#[test]
fn a_connection_that_has_spoken_is_not_kept_as_silent() {
    let (ours, monitor) = socketpair(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None).expect("pair");
    sockopt::set_socket_send_buffer_size(&ours, 8 << 10).expect("a socket");
    let source = Outliving::of(ours);
    let mut bed = Bed::with(Box::new(source.clone()), None);
    assert_eq!(kept(&source), Some(UNSPOKEN));
    say_frame(&monitor);
    let frames: usize = (0..3).map(|_| bed.turn().0).sum();
    assert_eq!((frames, kept(&source)), (1, None));
}

#[test]
fn a_silent_connection_that_ends_is_ended_and_watched_no_more() {
    let (source, monitor) = outliving();
    let mut bed = Bed::with(Box::new(source.clone()), None);
    // The source has a copy.
    let copy = source.kept().take().expect("kept");
    shutdown(&monitor, Shutdown::Write).expect("connected");
    bed.turn();
    assert!(recv(&monitor, &mut [0; 1][..], RecvFlags::empty()).is_ok_and(|(len, _)| len == 0), "the end");
    let mut events = Vec::with_capacity(8);
    let none = rustix::time::Timespec::default();
    send(&monitor, &[1], SendFlags::NOSIGNAL).expect_err("ended");
    epoll::wait(&bed.epoll, rustix::buffer::spare_capacity(&mut events), Some(&none)).expect("wait");
    assert!(events.is_empty() && bed.link.save().is_none());
    drop(copy);
}

#[test]
fn a_state_of_silence_without_a_monitor_s_socket_is_forgotten() {
    for descriptors in [0, 1] {
        let (source, _monitor) = outliving();
        drop(Bed::with(Box::new(source.clone()), None));
        let other = socket_with(AddressFamily::UNIX, SocketType::DGRAM, FLAGS, None).expect("socket");
        source.kept().as_mut().expect("kept").descriptors = [other].into_iter().take(descriptors).collect();
        let bed = Bed::with(Box::new(source.clone()), None);
        assert!(!source.keeps() && bed.link.save().is_none());
    }
}
