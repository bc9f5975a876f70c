//! The loop on a link made of a socket pair: its waits, its results, and its sleep.

use super::credit::Credit;
use super::{Activity, Parts, Wake, Worker};
#[cfg(feature = "capture")]
use crate::capture::Capture;
use crate::clock::Clock;
use crate::command::{Command, ForwardRefusal};
use crate::forward::{Forward, ForwardDirection, Forwards, ForwardsMax, Guest, Transport};
use crate::host_network::{HostNetFollow, HostNetwork};
use crate::resolv::ResolvConf;
use crate::resteer::ResteeredKind;
use crate::sockets::Sockets;
use crate::workers::{WorkerHandle, Workers};
use brodo_core::config::Config;
use brodo_core::counters::DropReason;
use brodo_core::journal::Slot;
use brodo_core::link::{Link, LinkCaps, NoCredit, RxMeta, TxFrame};
use brodo_core::stack::{Keys, Stack};
use brodo_core::wire::checksum;
use brodo_link::batch::{BATCH_FRAMES, Batch};
use brodo_link::poller::Poller;
use brodo_link::{CreditWait, EventFlags, FailedCall, GuestLink, Taken};
use brodo_testns::in_namespace;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::io;
use std::net::{TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A link whose frames are the messages of a socket pair.
struct Pair {
    fd: OwnedFd,
    wait: Option<CreditWait>,
    received: usize,
    forgotten: usize,
    overdue: usize,
    /// No event reports credit.
    silent: bool,
    gone: bool,
    /// There is always more that is no frame, as in a ring of a hostile guest's, and no event reports it.
    has_misfits: bool,
}

impl GuestLink for Pair {
    fn register(&mut self, poller: Poller<'_>) -> io::Result<()> {
        Ok(poller.add(&self.fd, 0, EventFlags::IN | EventFlags::ET)?)
    }

    fn take(&mut self, batch: &mut Batch<'_>) -> Result<Taken, FailedCall> {
        while let Some(room) = batch.room() {
            match rustix::net::recv(&self.fd, room, RecvFlags::empty()) {
                Ok((0, _)) => self.gone = true,
                Ok((len, _)) => {
                    self.received += 1;
                    batch.push(RxMeta::default(), len);
                    continue;
                }
                Err(rustix::io::Errno::AGAIN) => {}
                Err(e) => return Err(FailedCall { call: "recv", error: e.into() }),
            }
            return Ok(Taken::All);
        }
        Ok(Taken::Some)
    }

    fn await_credit(&mut self, poller: Poller<'_>, awaited: bool) -> io::Result<()> {
        let room = if awaited && !self.silent { EventFlags::OUT } else { EventFlags::empty() };
        Ok(poller.modify(&self.fd, 0, EventFlags::IN | EventFlags::ET | room)?)
    }

    fn credit_wait(&self) -> Option<CreditWait> {
        self.wait
    }

    fn wait_overdue(&mut self) {
        self.overdue += 1;
    }

    fn forget_refusal(&mut self) {
        self.forgotten += 1;
        self.wait = None;
    }

    fn gone(&self) -> bool {
        self.gone
    }

    fn has_frames(&mut self, _arm: bool) -> bool {
        self.has_misfits
    }
}

impl Link for Pair {
    fn caps(&self) -> LinkCaps {
        LinkCaps::default()
    }

    fn send(&mut self, _: &TxFrame<'_>) -> Result<(), NoCredit> {
        Ok(())
    }
}

/// The parts of a worker, and the guest's end of its link.
fn parts(wait: Option<CreditWait>) -> (Parts<Pair>, OwnedFd) {
    parts_of(Config::default(), wait)
}

fn parts_of(config: Config, wait: Option<CreditWait>) -> (Parts<Pair>, OwnedFd) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (fd, guest) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("pair");
    let (silent, gone, has_misfits) = (false, false, false);
    let link = Pair { fd, wait, received: 0, forgotten: 0, overdue: 0, silent, gone, has_misfits };
    let stack = Stack::new(config, Keys { table: [1; 16], isn: [2; 16], dns: [3; 16] }, link.caps());
    let handle = WorkerHandle::new(Arc::new(Workers::new(1).expect("eventfd")), 0).expect("the first");
    (Parts::new(stack, link, Sockets::new().expect("epoll"), Clock::start(), handle), guest)
}

/// A worker with nothing but its link.
fn worker(wait: Option<CreditWait>) -> (Worker<Pair>, OwnedFd) {
    let (parts, guest) = parts(wait);
    (Worker::new(parts).expect("worker"), guest)
}

/// Fires once, after so many milliseconds.
fn timer(ms: i64) -> OwnedFd {
    let fd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).expect("timer");
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let once = Itimerspec { it_interval: zero, it_value: Timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 } };
    rustix::time::timerfd_settime(&fd, TimerfdTimerFlags::empty(), &once).expect("set");
    fd
}

fn run_until_timer(worker: &mut Worker<Pair>) -> Activity {
    let end = timer(200);
    worker.watch(&end, 77).expect("watch");
    assert!(matches!(worker.run(), Ok(Wake::Extra(77))));
    worker.activity()
}

#[test]
fn an_idle_worker_sleeps() {
    for nanoseconds in [true, false] {
        let (mut worker, _guest) = worker(None);
        worker.waiter.nanoseconds = nanoseconds;
        let activity = run_until_timer(&mut worker);
        assert!(activity.turns <= 3, "{activity:?}");
    }
}

#[test]
fn frames_that_came_before_and_more_than_a_batch() {
    let (mut worker, guest) = worker(None);
    // The kernel bounds the queue of a pair.
    let sent = (0..)
        .take_while(|_| rustix::net::send(&guest, &[0; 60], SendFlags::NOSIGNAL).is_ok())
        .take(3 * BATCH_FRAMES)
        .count();
    let activity = run_until_timer(&mut worker);
    assert_eq!(worker.link().received, sent);
    assert!(activity.turns <= 3 + sent.div_ceil(BATCH_FRAMES) as u64, "{activity:?}");
}

/// Turns until a rest is due, if one is within a bound.
fn turns_until_rest(worker: &mut Worker<Pair>) -> Option<usize> {
    (0..20_000).find(|_| {
        assert!(matches!(worker.poll(), Ok(None)));
        worker.fruitless.rest().is_some()
    })
}

#[test]
fn a_link_that_has_more_without_end_and_no_frame_leads_to_rests() {
    let (mut worker, guest) = worker(None);
    assert_eq!(turns_until_rest(&mut worker), None, "turns by nothing of the guest's");
    worker.port.link.has_misfits = true;
    assert!(turns_until_rest(&mut worker).is_some());
    rustix::net::send(&guest, &[0; 60], SendFlags::NOSIGNAL).expect("send");
    assert!(matches!(worker.poll(), Ok(None)));
    assert_eq!(worker.link().received, 1, "frames are taken all the same");
}

/// A frame of a datagram over IPv4 from the guest to the host's loopback, with this between its addresses and
/// its EtherType.
fn datagram(config: &Config, tag: &[u8], port: u16) -> Vec<u8> {
    let mut ip = [0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 2, 15, 10, 0, 2, 4];
    let sum = checksum::finish(checksum::sum(&ip, 0));
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    // Without a checksum.
    let udp = [5000, port, 12, 0].map(u16::to_be_bytes).concat();
    [&config.mac.0[..], &[2, 0, 0, 0, 0, 1], tag, &[8, 0], &ip, &udp, b"ping"].concat()
}

#[test]
fn frames_with_a_priority_tag_are_of_the_untagged_network() {
    in_namespace("driver::tests::frames_with_a_priority_tag_are_of_the_untagged_network", || {
        let mut config = Config::default();
        config.v4.as_mut().expect("default").host_loopback = Some([10, 0, 2, 4].into());
        let server = UdpSocket::bind("127.0.0.1:0").expect("bind");
        let port = server.local_addr().expect("address").port();
        // Of a VLAN, and cut before and in the header.
        let mut frames = vec![datagram(&config, &[0x81, 0, 0xa0, 5], port)];
        frames.extend((13..18).map(|len| datagram(&config, &[0x81, 0, 0xa0, 0], port)[..len].to_vec()));
        frames.push(datagram(&config, &[0x81, 0, 0xa0, 0], port));
        let (parts, guest) = parts_of(config, None);
        let mut worker = Worker::new(parts).expect("worker");
        worker.watch(&server, 7).expect("watch");
        for frame in &frames {
            rustix::net::send(&guest, frame, SendFlags::NOSIGNAL).expect("send");
        }
        assert!(matches!(worker.run(), Ok(Wake::Extra(7))), "the datagram has arrived");
        let mut received = [0; 8];
        assert_eq!(server.recv(&mut received).expect("it"), 4);
        assert_eq!(&received[..4], b"ping");
        let counters = worker.stack().counters();
        let dropped = [DropReason::UnknownEtherType, DropReason::FrameTooShort];
        // 14 and 15 bytes have an EtherType, that of a tag, and nothing to say of which VLAN.
        assert_eq!(dropped.map(|reason| counters.dropped(reason)), [3, 3]);
    });
}

#[test]
fn every_extra_descriptor_is_reported_until_it_is_dealt_with() {
    let (mut worker, _guest) = worker(None);
    let fds = [(); 2].map(|()| eventfd(1, EventfdFlags::NONBLOCK).expect("eventfd"));
    worker.watch(&fds[0], 0).expect("watch");
    worker.watch(&fds[1], 1).expect("watch");
    let mut seen = Vec::new();
    for _ in 0..2 {
        let Ok(Wake::Extra(tag)) = worker.run() else { panic!("an extra descriptor is readable") };
        rustix::io::read(&fds[tag as usize], &mut [0; 8]).expect("was readable");
        seen.push(tag);
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1]);
}

#[test]
fn the_end_of_a_guest_is_reported() {
    let (mut worker, guest) = worker(None);
    rustix::net::send(&guest, &[0; 60], SendFlags::NOSIGNAL).expect("send");
    drop(guest);
    assert!(matches!(worker.run(), Ok(Wake::GuestGone)));
    assert_eq!(worker.link().received, 1, "frames sent before still count");
}

#[test]
fn a_refused_frame_waits_for_the_event_and_then_no_longer() {
    let (mut worker, _guest) = worker(Some(CreditWait::Event));
    let activity = run_until_timer(&mut worker);
    assert_eq!(
        (worker.link().forgotten, worker.credit.credit, worker.credit.armed),
        (1, Credit::Free, false)
    );
    assert!(activity.turns <= 5, "{activity:?}");
}

#[test]
fn a_long_wait_is_reported_to_a_link_with_another_way() {
    let (mut worker, _guest) = worker(Some(CreditWait::EventAtFirst));
    worker.port.link.silent = true;
    run_until_timer(&mut worker);
    assert_eq!((worker.link().overdue, worker.link().forgotten), (1, 1));
    assert_eq!((worker.credit.credit, worker.credit.armed), (Credit::Free, false));
}

#[test]
fn a_link_out_of_memory_is_tried_again_soon() {
    let (mut worker, _guest) = worker(Some(CreditWait::Timer));
    let activity = run_until_timer(&mut worker);
    assert_eq!((worker.link().forgotten, worker.credit.credit), (1, Credit::Free));
    assert!(activity.turns <= 5, "{activity:?}");
}

#[cfg(feature = "capture")]
#[test]
fn a_capture_is_written_without_traffic_and_ends_with_a_notice() {
    let (mut parts, guest) = parts(None);
    let (reader, writer) = rustix::pipe::pipe().expect("pipe");
    parts.capture = Some(Capture::new(writer.into(), "eth0", parts.clock).expect("headers"));
    let mut worker = Worker::new(parts).expect("worker");
    rustix::net::send(&guest, &[0; 60], SendFlags::NOSIGNAL).expect("send");
    drop(reader);
    // Without other events the loop's own deadline wakes it.
    let Ok(Wake::CaptureFailed(error)) = worker.run() else { panic!("the pipe is broken") };
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    let activity = worker.activity();
    assert!(activity.turns <= 4, "{activity:?}");
    run_until_timer(&mut worker);
}

#[cfg(feature = "capture")]
#[test]
fn a_capture_that_fails_ends_at_all_workers_and_is_reported_by_one() {
    let [(mut first, guest), (mut second, other)] = [(); 2].map(|()| parts(None));
    let (reader, writer) = rustix::pipe::pipe().expect("pipe");
    let capture = Capture::new(writer.into(), "eth0", first.clock).expect("headers");
    (first.capture, second.capture) = (Some(capture.clone()), Some(capture));
    let worker = |parts| Worker::new(parts).expect("worker");
    let (mut first, mut second) = (worker(first), worker(second));
    drop(reader);
    rustix::net::send(&guest, &[0; 60], SendFlags::NOSIGNAL).expect("send");
    assert!(matches!(first.run(), Ok(Wake::CaptureFailed(_))));
    rustix::net::send(&other, &[0; 60], SendFlags::NOSIGNAL).expect("send");
    run_until_timer(&mut second);
    assert!(first.port.capture.is_none() && second.port.capture.is_none());
}

/// A guest that has moved a flow to another queue: frames of the former one are older.
#[test]
fn frames_left_by_another_worker_come_before_those_of_the_link() {
    in_namespace("driver::tests::frames_left_by_another_worker_come_before_those_of_the_link", || {
        let mut config = Config::default();
        config.v4.as_mut().expect("default").host_loopback = Some([10, 0, 2, 4].into());
        let server = UdpSocket::bind("127.0.0.1:0").expect("bind");
        let frame = datagram(&config, &[], server.local_addr().expect("address").port());
        let second = [&frame[..frame.len() - 4], b"pong"].concat();
        let (mut parts, guest) = parts_of(config, None);
        let workers = Arc::new(Workers::new(2).expect("eventfd"));
        parts.worker = WorkerHandle::new(workers.clone(), 0).expect("the first");
        let mut worker = Worker::new(parts).expect("worker");
        worker.watch(&server, 7).expect("watch");
        let kind = ResteeredKind::Received(RxMeta::default());
        worker.handle.resteering().put(0, kind, frame.into());
        workers.wake(0b1);
        rustix::net::send(&guest, &second, SendFlags::NOSIGNAL).expect("send");
        assert!(matches!(worker.run(), Ok(Wake::Extra(7))), "datagrams have arrived");
        for expected in [b"ping", b"pong"] {
            let mut received = [0; 8];
            assert_eq!(server.recv(&mut received).expect("it"), 4);
            assert_eq!(&received[..4], expected);
        }
    });
}

#[test]
fn resolvers_follow_the_file() {
    let path = std::env::temp_dir().join(format!("brodo-driver-resolv-{}", std::process::id()));
    std::fs::write(&path, "nameserver 192.0.2.53\n").expect("file");
    let (mut parts, _guest) = parts(None);
    let network = HostNetwork::new(path.clone(), ResolvConf::default()).expect("a route socket");
    let follow = HostNetFollow { resolvers: true, search: true };
    parts.host_network = Some((Arc::new(network), follow));
    let mut worker = Worker::new(parts).expect("epoll");
    run_until_timer(&mut worker);
    let host = worker.sources.host_network.take().expect("still there");
    assert_eq!(host.seen.names, 1, "the loop has read it");
    std::fs::remove_file(path).expect("remove");
}

#[test]
fn stopped_workers_end_a_worker_that_sleeps() {
    let (mut parts, _guest) = parts(None);
    let workers = Arc::new(Workers::new(2).expect("eventfd"));
    parts.worker = WorkerHandle::new(workers.clone(), 1).expect("the second");
    let mut worker = Worker::new(parts).expect("epoll");
    let ringer = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        workers.wake(0b10);
        std::thread::sleep(std::time::Duration::from_millis(50));
        workers.stop();
    });
    assert!(matches!(worker.run(), Ok(Wake::Stopped)));
    ringer.join().expect("rings");
}

#[test]
fn totals_go_on_in_the_next_worker() {
    let slots: &'static [Slot] = Box::leak((0..32).map(|_| Slot::default()).collect());
    let (mut first, _guest) = worker(None);
    first.resume_totals(slots);
    first.stack.set_counter("tcp_opened", 7);
    first.stack.set_dropped(DropReason::TooManyGaps, 8);
    first.waiter.activity.set("worker_turns", 9);
    let rules: Vec<_> = first.stack.refusals().map(|(rule, _)| (rule, 10)).collect();
    assert!(!rules.is_empty());
    first.stack.set_refusals(rules.iter().copied());
    // A report leaves none behind.
    let asked = first.handle.workers().ask(0, |reply| Command::Report { reply });
    first.execute_commands();
    let limit = std::time::Duration::from_secs(10);
    assert_eq!(asked.wait(limit).map(|report| report.counters.tcp_opened), Ok(7));
    drop(first);
    let (mut second, _guest) = worker(None);
    second.resume_totals(slots);
    let counters = second.stack.counters();
    assert_eq!((counters.tcp_opened, counters.dropped(DropReason::TooManyGaps)), (7, 8));
    assert_eq!(second.activity().turns, 9);
    assert_eq!(second.stack.refusals().collect::<Vec<_>>(), rules);
    // Nothing that another process has written behind them is taken for a refusal.
    let behind: Vec<_> =
        slots.iter().flatten().skip_while(|word| word.load(Ordering::Acquire) == 0).collect();
    let last = behind.iter().rposition(|word| word.load(Ordering::Acquire) != 0).expect("refusals");
    behind[last + 1].store(77, Ordering::Release);
    behind[last + 2].store(88, Ordering::Release);
    second.write_totals();
    assert_eq!(behind[last + 1].load(Ordering::Acquire), 0);
    // A count beyond all that a program can reach is not believed.
    for word in slots.iter().flatten() {
        word.store(u64::MAX, Ordering::Release);
    }
    let (mut third, _guest) = worker(None);
    third.resume_totals(slots);
    assert_eq!((third.stack.counters().tcp_opened, third.activity().turns), (0, 0));
}

#[test]
fn a_command_is_carried_out_between_two_turns() {
    let (mut worker, _guest) = worker(None);
    let workers = worker.handle.workers().clone();
    let asked = std::thread::spawn(move || {
        let limit = std::time::Duration::from_secs(10);
        let report = workers.ask(0, |reply| Command::Report { reply }).wait(limit);
        let forwards = workers.ask(0, |reply| Command::ListForwards { sockets_max: 1, reply }).wait(limit);
        workers.stop();
        (report, forwards)
    });
    assert!(matches!(worker.run(), Ok(Wake::Stopped)));
    let (report, forwards) = asked.join().expect("no panic");
    assert_eq!(report.map(|report| (report.flows, report.activity.turns > 0)), Ok((0, true)));
    assert_eq!(forwards, Ok(Err(ForwardRefusal::NoForwards)));
}

/// The listener reports the connection until it is accepted.
#[test]
fn a_connection_without_a_descriptor_for_it_does_not_spin() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    in_namespace("driver::tests::a_connection_without_a_descriptor_for_it_does_not_spin", || {
        let (mut parts, _guest) = parts(None);
        let addresses = ["10.0.2.15", "fd00::15"].map(|text| text.parse().ok());
        let forwards = Forwards::new(
            Guest { addresses, ..Guest::default() },
            None,
            &parts.sockets,
            &crate::ephemeral_ports::ephemeral_ports(),
            ForwardsMax { descriptors: 1000, splices: 10 },
        );
        let mut forwards = forwards.expect("forwards");
        let (direction, transport) = (ForwardDirection::In, Transport::Tcp);
        let spec = "7000".parse().expect("a spec");
        forwards.add(Forward { direction, transport, spec }).expect("a port");
        parts.forwards = Some(forwards);
        let mut worker = Worker::new(parts).expect("epoll");
        let ends = [timer(200), timer(400)];
        let _client = TcpStream::connect("127.0.0.1:7000").expect("connect");

        // The number that the next descriptor would have.
        let next = rustix::io::dup(&ends[0]).expect("dup").as_raw_fd();
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(next as u64), ..limit }).expect("lower");
        let mut run = |tag, end: &OwnedFd| {
            worker.watch(end, tag).expect("watch");
            assert!(matches!(worker.run(), Ok(Wake::Extra(found)) if found == tag));
            let _ = rustix::io::read(end, &mut [0; 8]);
            (worker.forwards().expect("forwards").counters(), worker.activity())
        };
        let (counters, activity) = run(7, &ends[0]);
        assert!(counters.accepted == 0 && counters.pauses > 0, "{counters:?}");
        assert!(activity.turns < 40, "{activity:?} {counters:?}");
        setrlimit(Resource::Nofile, limit).expect("restore");
        assert_eq!(run(8, &ends[1]).0.accepted, 1);
    });
}
