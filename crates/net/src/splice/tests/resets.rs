//! Resets: all that was received before is passed on, and no reset becomes the end of a stream.
//!
//! The splices are turned by the test itself, so that bytes stand in pipes and sockets when a reset comes.

use super::*;
use rustix::buffer::spare_capacity;

/// Wait for an event that may not come. A longer one changes no result.
const PAUSE: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// One spliced connection.
struct Spliced {
    poll: OwnedFd,
    splices: Splices,
    outcome: Outcome,
}

impl Spliced {
    /// The client's end, the server's, and the splice between them.
    fn pair() -> (TcpStream, TcpStream, Self) {
        let server = TcpListener::bind("127.0.0.1:0").expect("listen");
        let between = TcpListener::bind("127.0.0.1:0").expect("listen");
        let (to, at) = (server.local_addr().expect("address"), between.local_addr().expect("address"));
        let poll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
        let mut splices = Splices::new(1);
        let client = TcpStream::connect(at).expect("connect");
        let (accepted, _) = between.accept().expect("accept");
        accepted.set_nonblocking(true).expect("non-blocking");
        join(&mut splices, &poll, accepted.into(), to);
        let (server, _) = server.accept().expect("accept");
        for stream in [&client, &server] {
            stream.set_nonblocking(true).expect("non-blocking");
        }
        (client, server, Self { poll, splices, outcome: Outcome::default() })
    }

    /// One turn after the next events; false if there was nothing to do.
    fn turn(&mut self) -> bool {
        let mut events = Vec::with_capacity(16);
        epoll::wait(&self.poll, spare_capacity(&mut events), Some(&PAUSE)).expect("wait");
        let has_events = !events.is_empty();
        for event in events {
            self.splices.event({ event.data }.u64() as u32, event.flags);
        }
        let outcome = &mut self.outcome;
        self.splices.turn(self.poll.as_fd(), TurnBytes::ALONE, |report| outcome.note(report)).busy
            || has_events
    }

    /// Writes until neither the stream nor the splice takes more, or all is written; the number of bytes.
    fn fill(&mut self, mut stream: &TcpStream, data: &[u8]) -> usize {
        let mut sent = 0;
        loop {
            let before = sent;
            while let Ok(count @ 1..) = stream.write(&data[sent..]) {
                sent += count;
            }
            if !self.turn() && sent == before {
                return sent;
            }
        }
    }
}

/// Reads what there is; false at the end.
fn read(mut stream: &TcpStream, into: &mut Vec<u8>) -> std::io::Result<bool> {
    let mut bytes = vec![0; 64 << 10];
    match stream.read(&mut bytes) {
        Ok(count) => {
            into.extend(&bytes[..count]);
            Ok(count > 0)
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}

#[test]
fn a_reset_that_a_write_meets_is_no_end_of_the_stream() {
    for server_resets in [true, false] {
        let (client, server, mut spliced) = Spliced::pair();
        let (sender, gone) = if server_resets { (client, server) } else { (server, client) };
        let sent = spliced.fill(&sender, &pattern(64 << 20));
        assert!(sent < 64 << 20, "the pipe is not empty");
        reset(gone.into());
        while spliced.splices.open() > 0 {
            spliced.turn();
        }
        let mut got = Vec::new();
        let error = read(&sender, &mut got).expect_err("a reset");
        assert_eq!((error.kind(), got.len()), (ErrorKind::ConnectionReset, 0));
        let cause = if server_resets { EndCause::ResetByHost } else { EndCause::ResetByGuest };
        assert_eq!((spliced.outcome.fins, spliced.outcome.ends), (vec![], vec![cause]));
    }
}

/// Bytes that are not acknowledged yet, FIN among them.
fn unacknowledged(stream: &TcpStream) -> u32 {
    crate::sys::unacknowledged(stream.as_fd()).expect("SIOCOUTQ")
}

#[test]
fn a_reset_behind_a_fin_loses_nothing() {
    // Bytes in the receiver's socket alone, in the joined ones, and in the pipe too.
    for (bytes, client_leaves) in
        [300_000, 3 << 20, 64 << 20].into_iter().flat_map(|bytes| [(bytes, true), (bytes, false)])
    {
        let (client, server, mut spliced) = Spliced::pair();
        let (leaving, mut staying) = if client_leaves { (client, server) } else { (server, client) };
        let data = pattern(bytes);
        let sent = spliced.fill(&leaving, &data);
        leaving.shutdown(End::Write).expect("half-close");
        let mut got = Vec::new();
        while unacknowledged(&leaving) > 0 {
            read(&staying, &mut got).expect("no reset");
            spliced.turn();
        }
        drop(leaving);
        // Its kernel answers the first with a reset; the others come behind that.
        for late in 0..3 {
            assert!(staying.write(&[late]).is_ok() || late > 0, "the first goes out");
            while spliced.turn() {}
        }
        while read(&staying, &mut got).unwrap_or_else(|error| panic!("{error} behind {}", got.len())) {
            spliced.turn();
        }
        assert!(got == data[..sent], "{} bytes of {sent}", got.len());
        while spliced.splices.open() > 0 {
            spliced.turn();
        }
        let cause = if client_leaves { EndCause::Finished } else { EndCause::ResetByHost };
        assert_eq!((spliced.outcome.fins, spliced.outcome.ends), (vec![client_leaves], vec![cause]));
        let error = loop {
            if let Err(error) = staying.write_all(&[7]) {
                break error;
            }
        };
        assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
    }
}

#[test]
fn a_reset_of_a_half_closed_connection_stays_a_reset() {
    for client_resets in [true, false] {
        let (client, server, mut spliced) = Spliced::pair();
        let (mut resets, stays) = if client_resets { (client, server) } else { (server, client) };
        stays.shutdown(End::Write).expect("half-close");
        while spliced.outcome.fins.is_empty() {
            spliced.turn();
        }
        resets.write_all(b"last words").expect("write");
        while spliced.turn() {}
        reset(resets.into());
        let mut got = Vec::new();
        let error = loop {
            spliced.turn();
            match read(&stays, &mut got) {
                Ok(more) => assert!(more, "an end of the stream"),
                Err(error) => break error,
            }
        };
        assert_eq!((error.kind(), &got[..]), (ErrorKind::ConnectionReset, &b"last words"[..]));
        let cause = if client_resets { EndCause::ResetByGuest } else { EndCause::ResetByHost };
        assert_eq!((spliced.outcome.fins, spliced.outcome.ends), (vec![!client_resets], vec![cause]));
    }
}
