//! Spliced connections behave as one: content, half-close both ways, resets, refusals, and sides that do not
//! read.

mod resets;

use super::thread::tests::two_connections;
use super::*;
use rustix::event::epoll::CreateFlags;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown as End, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const FLOW: FlowId = FlowId { index: 7, generation: 1 };

/// A thread that accepts on one port and joins with another, as a worker does.
struct Joiner {
    at: SocketAddr,
    stop: mpsc::Sender<()>,
    thread: Option<thread::JoinHandle<Outcome>>,
}

/// State of the connections.
#[derive(Debug, Default)]
struct Outcome {
    counters: SpliceCounters,
    /// Connections left.
    open: usize,
    /// Connections that were open for a while.
    connected: usize,
    /// Bytes from the accepted end, and to it.
    from_initiator: u64,
    from_responder: u64,
    /// FINs passed on, in their order; true for the accepted end's.
    fins: Vec<bool>,
    ends: Vec<EndCause>,
}

impl Outcome {
    fn note(&mut self, report: &SpliceReport) {
        self.connected += usize::from(report.progress.connected);
        self.from_initiator += report.progress.from_initiator.bytes;
        self.from_responder += report.progress.from_responder.bytes;
        self.fins.extend(report.progress.initiator_finished.then_some(true));
        self.fins.extend(report.progress.responder_finished.then_some(false));
        self.ends.extend(report.end);
    }
}

impl Joiner {
    fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        listener.set_nonblocking(true).expect("non-blocking");
        let at = listener.local_addr().expect("address");
        let (stop, stopped) = mpsc::channel();
        let thread = thread::spawn(move || {
            let poll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
            let mut splices = Splices::new(100);
            let mut events = Vec::with_capacity(16);
            let mut outcome = Outcome::default();
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                while let Ok((accepted, _)) = listener.accept() {
                    accepted.set_nonblocking(true).expect("non-blocking");
                    join(&mut splices, &poll, accepted.into(), to);
                }
                let busy = splices.turn(poll.as_fd(), TurnBytes::ALONE, |report| outcome.note(report)).busy;
                let timeout =
                    rustix::event::Timespec { tv_sec: 0, tv_nsec: if busy { 0 } else { 5_000_000 } };
                events.clear();
                epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&timeout))
                    .expect("wait");
                for event in events.drain(..) {
                    splices.event({ event.data }.u64() as u32, event.flags);
                }
            }
            Outcome { counters: splices.counters(), open: splices.open(), ..outcome }
        });
        Self { at, stop, thread: Some(thread) }
    }

    fn end(mut self) -> Outcome {
        self.stop.send(()).expect("it runs");
        self.thread.take().expect("once").join().expect("no panic")
    }
}

fn join(splices: &mut Splices, poll: &OwnedFd, accepted: OwnedFd, to: SocketAddr) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).expect("socket");
    match connect(&socket, to) {
        Ok(connected) => {
            let event = |number: u32| EventData::new_u64(number.into());
            let initiator = Initiator::Guest;
            let joining = Joining {
                flow: FLOW,
                initiator,
                accepted,
                toward: socket,
                connect: connected,
                elsewhere: None,
            };
            splices.join(poll.as_fd(), joining, event).expect("room");
        }
        Err(_) => reset(accepted),
    }
}

/// A client and a server with a joiner between them.
fn pair() -> (TcpStream, TcpStream, Joiner) {
    let server = TcpListener::bind("127.0.0.1:0").expect("listen");
    let joiner = Joiner::start(server.local_addr().expect("address"));
    let client = TcpStream::connect(joiner.at).expect("connect");
    let (accepted, _) = server.accept().expect("accept");
    (client, accepted, joiner)
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

#[test]
fn content_and_half_close_both_ways() {
    for server_first in [false, true] {
        let (client, server, joiner) = pair();
        let (mut first, mut second) = if server_first { (server, client) } else { (client, server) };
        let data = pattern(20 << 20);
        let sent = data.clone();
        let sender = thread::spawn(move || {
            first.write_all(&sent).expect("write");
            first.shutdown(End::Write).expect("half-close");
            let mut answer = Vec::new();
            first.read_to_end(&mut answer).expect("the other half goes on");
            answer
        });
        let mut got = Vec::new();
        second.read_to_end(&mut got).expect("read");
        assert!(got == data, "{} bytes of {}", got.len(), data.len());
        second.write_all(b"and back").expect("write after the other's end");
        drop(second);
        assert_eq!(sender.join().expect("sender"), b"and back");
        let outcome = joiner.end();
        let moved = (outcome.from_initiator, outcome.from_responder);
        let (there, back) = (data.len() as u64, b"and back".len() as u64);
        assert_eq!(moved, if server_first { (back, there) } else { (there, back) });
        assert_eq!((outcome.counters, outcome.open), (SpliceCounters::default(), 0));
        assert_eq!((outcome.connected, outcome.ends), (1, vec![EndCause::Finished]));
        assert_eq!(outcome.fins, [!server_first, server_first], "half-closed, and then closed");
    }
}

#[test]
fn a_reset_goes_through_and_what_came_before_it() {
    let (mut client, mut server, joiner) = pair();
    client.write_all(b"last words").expect("write");
    let mut words = [0; 10];
    server.read_exact(&mut words).expect("read");
    reset(client.into());
    let error = server.read(&mut words).expect_err("reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let outcome = joiner.end();
    assert_eq!((outcome.counters.reset, outcome.open), (1, 0));
    assert_eq!((outcome.from_initiator, outcome.ends), (10, vec![EndCause::ResetByGuest]));
}

#[test]
fn a_receiver_that_goes_away_resets_the_sender() {
    let (mut client, server, joiner) = pair();
    client.write_all(&pattern(1 << 20)).expect("write");
    drop(server);
    let chunk = [0; 4096];
    let error = loop {
        if let Err(error) = client.write_all(&chunk) {
            break error;
        }
    };
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
    let outcome = joiner.end();
    assert_eq!((outcome.open, outcome.ends), (0, vec![EndCause::ResetByHost]));
}

#[test]
fn a_client_without_a_server_is_reset() {
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a free port");
    let joiner = Joiner::start(closed);
    let mut client = TcpStream::connect(joiner.at).expect("connect");
    let error = client.read(&mut [0]).expect_err("reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    joiner.end();
}

#[test]
fn a_receiver_that_does_not_read_stops_the_sender() {
    let (mut client, mut server, joiner) = pair();
    client.set_nonblocking(true).expect("non-blocking");
    let chunk = pattern(64 << 10);
    let (mut sent, mut refused) = (0, 0);
    while refused < 50 {
        match client.write(&chunk) {
            Ok(count) => (sent, refused) = (sent + count, 0),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                refused += 1;
                thread::sleep(Duration::from_millis(2));
            }
            Err(e) => panic!("{e}"),
        }
        assert!(sent < 256 << 20, "nothing holds it back");
    }
    client.shutdown(End::Write).expect("half-close");
    let mut got = 0;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match server.read(&mut buffer).expect("read") {
            0 => break,
            count => got += count,
        }
    }
    assert_eq!(got, sent);
    drop((client, server));
    joiner.end();
}

#[test]
fn urgent_data_stands_in_line_and_holds_nothing_up() {
    let urgent = |stream: &TcpStream| rustix::net::send(stream, b"!", SendFlags::OOB).expect("send");
    // The end comes together with the rest, or long after it; and the mark is before, within, or behind the
    // rest.
    for (later, parts) in [false, true].into_iter().flat_map(|later| {
        [vec!["", "after"], vec!["before", "after"], vec!["before", ""], vec!["a", "b", "", "", "c"]]
            .map(|parts| (later, parts))
    }) {
        let (mut client, mut server, joiner) = pair();
        for (number, part) in parts.iter().enumerate() {
            if number > 0 {
                urgent(&client);
            }
            client.write_all(part.as_bytes()).expect("write");
        }
        let whole = parts.join("!");
        if later {
            server.set_read_timeout(Some(Duration::from_secs(5))).expect("time-out");
            let mut got = vec![0; whole.len()];
            server.read_exact(&mut got).expect("all of it before the end");
            assert_eq!(String::from_utf8_lossy(&got), whole);
        }
        client.shutdown(End::Write).expect("half-close");
        let mut rest = String::new();
        server.read_to_string(&mut rest).expect("read");
        assert_eq!(rest, if later { "" } else { &whole }, "{parts:?}");
        drop((client, server));
        assert_eq!(joiner.end().from_initiator, whole.len() as u64);
    }
}

#[test]
fn urgent_data_among_much_is_one_byte_of_it() {
    let (mut client, mut server, joiner) = pair();
    let sender = thread::spawn(move || {
        let chunk = pattern(100_000);
        for _ in 0..50 {
            client.write_all(&chunk).expect("write");
            rustix::net::send(&client, b"!", SendFlags::OOB).expect("send");
        }
    });
    let mut got = Vec::new();
    server.read_to_end(&mut got).expect("read");
    sender.join().expect("sender");
    let expected = [pattern(100_000), b"!".to_vec()].concat().repeat(50);
    assert!(got == expected, "{} bytes of {}", got.len(), expected.len());
    joiner.end();
}

#[test]
fn many_with_much_to_move_leave_the_loop_its_turn() {
    [TurnBytes::ALONE, TurnBytes::BESIDE_SPARSE].into_iter().for_each(check_turns);
}

/// Turns of splices with much to move are bounded by `max`.
fn check_turns(max: TurnBytes) {
    let server = TcpListener::bind("127.0.0.1:0").expect("listen");
    let between = TcpListener::bind("127.0.0.1:0").expect("listen");
    let (to, at) = (server.local_addr().expect("address"), between.local_addr().expect("address"));
    let poll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
    let mut splices = Splices::new(100);
    let chunk = pattern(64 << 10);
    // Each fills what lies before the join: some MiB, which the sockets behind it have room for.
    let fill = |_| {
        let mut client = TcpStream::connect(at).expect("connect");
        client.set_nonblocking(true).expect("non-blocking");
        let (accepted, _) = between.accept().expect("accept");
        accepted.set_nonblocking(true).expect("non-blocking");
        join(&mut splices, &poll, accepted.into(), to);
        while client.write(&chunk).is_ok() {}
        (client, server.accept().expect("accept"))
    };
    let _open: Vec<_> = (0..16).map(fill).collect();
    let (mut busy, mut all) = (true, 0);
    while busy {
        let mut outcome = Outcome::default();
        busy = splices.turn(poll.as_fd(), max, |report| outcome.note(report)).busy;
        let moved = outcome.from_initiator + outcome.from_responder;
        // The last connection may move its share, and a call's more, each way.
        assert!(moved < max.all + 4 * max.connection as u64, "{moved} bytes in one turn");
        all += moved;
    }
    assert!(all > 2 * max.all, "{all} bytes would not have shown it");
}

#[test]
fn a_turn_of_a_thread_that_rests_is_over_behind_a_short_piece() {
    const RESTS: TurnBytes = TurnBytes::OF_THREAD_THAT_RESTS;
    for (length, max, busy) in
        [(48 << 10, RESTS, true), (48 << 10, TurnBytes::ALONE, false), (1 << 10, RESTS, false)]
    {
        let (mut sender, _receiver, ends) = two_connections();
        sender.write_all(&pattern(length)).expect("write");
        while rustix::io::ioctl_fionread(&ends[0]).expect("a socket") < length as u64 {}
        let poll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
        let mut splices = Splices::new(1);
        splices.join_promoted(poll.as_fd(), FLOW, Initiator::Guest, ends, event_data).expect("room");
        let mut until = None;
        let turned = splices.turn(poll.as_fd(), max, |report| until = Some(report.progress.until));
        assert_eq!(turned, Turned { bytes: length as u64, busy }, "{length} bytes, {max:?}");
        assert_eq!(until, Some([MovedUntil::Empty; 2]), "the turn was no limit");
    }
}

#[test]
fn a_way_without_a_pipe_does_not_stop_the_other() {
    use Next::{More, Starved, Wait};
    for (one, other, pair) in
        [(More, Starved, More), (More, Wait, More), (Starved, Wait, Starved), (Wait, Wait, Wait)]
    {
        assert_eq!((one.and(other), other.and(one)), (pair, pair), "{one:?} and {other:?}");
    }
}

#[test]
fn many_at_once_share_few_pipes() {
    let server = TcpListener::bind("127.0.0.1:0").expect("listen");
    let joiner = Joiner::start(server.local_addr().expect("address"));
    let echo = thread::spawn(move || {
        for _ in 0..60 {
            let (mut stream, _) = server.accept().expect("accept");
            thread::spawn(move || {
                let mut reader = stream.try_clone().expect("clone");
                std::io::copy(&mut reader, &mut stream).expect("echo");
                stream.shutdown(End::Write).expect("end");
            });
        }
    });
    let clients: Vec<_> = (0..60)
        .map(|number| {
            let at = joiner.at;
            thread::spawn(move || {
                let mut stream = TcpStream::connect(at).expect("connect");
                let data = pattern(10_000 + number);
                stream.write_all(&data).expect("write");
                stream.shutdown(End::Write).expect("end");
                let mut got = Vec::new();
                stream.read_to_end(&mut got).expect("read");
                assert!(got == data);
            })
        })
        .collect();
    for client in clients {
        client.join().expect("client");
    }
    echo.join().expect("server");
    let outcome = joiner.end();
    assert_eq!((outcome.connected, outcome.counters.reset, outcome.open), (60, 0, 0));
}

#[test]
fn an_aborted_connection_resets_both_ends() {
    let server = TcpListener::bind("127.0.0.1:0").expect("listen");
    let between = TcpListener::bind("127.0.0.1:0").expect("listen");
    let (to, at) = (server.local_addr().expect("address"), between.local_addr().expect("address"));
    let poll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
    let mut splices = Splices::new(1);
    let mut client = TcpStream::connect(at).expect("connect");
    join(&mut splices, &poll, between.accept().expect("accept").0.into(), to);
    let (mut accepted, _) = server.accept().expect("accept");
    splices.abort(poll.as_fd(), 0, FlowId { generation: 2, ..FLOW });
    assert_eq!(splices.open(), 1, "the number is another flow's");
    splices.abort(poll.as_fd(), 0, FLOW);
    assert_eq!((splices.open(), splices.counters().reset), (0, 1));
    for end in [&mut client, &mut accepted] {
        assert_eq!(end.read(&mut [0]).expect_err("reset").kind(), ErrorKind::ConnectionReset);
    }
}
