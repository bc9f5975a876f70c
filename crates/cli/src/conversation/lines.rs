//! Lines over a stream socket, with descriptors beside them: both ends of requests and records.
//!
//! A line is received whole before it is read. Its length is bounded, and so is the number of descriptors
//! that wait for a reader; beyond either the conversation is over. Descriptors of a message are in the
//! reader's hands no later than its line.

use brodo_net::fd_passing;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

/// Bytes received at a time.
const READ_SIZE: usize = 64 << 10;
/// Most descriptors of one message, and most that wait for a reader.
const DESCRIPTORS_MAX: usize = 2;

/// A pair of connected sockets: a stream of bytes, or messages with borders.
pub(crate) fn pair(kind: SocketType) -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?)
}

/// The same between the warden and an engine: the warden's end first. It takes no descriptors
/// ([`fd_passing::refuse`]).
pub(crate) fn pair_with_engine(kind: SocketType) -> io::Result<(OwnedFd, OwnedFd)> {
    let (warden, engine) = pair(kind)?;
    // A kernel before 6.16 cannot.
    let _ = fd_passing::refuse(&warden);
    Ok((warden, engine))
}

/// Sends bytes, and a descriptor with the first of them.
///
/// # Errors
/// The other end is closed, or `TimedOut`: the socket had no room for `patience`.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
    patience: Duration,
) -> io::Result<()> {
    let until = Instant::now() + patience;
    let (mut sent, mut descriptor) = (0, descriptor);
    while sent < bytes.len() {
        match fd_passing::send(socket, &bytes[sent..], descriptor.as_slice(), SendFlags::DONTWAIT) {
            Ok(count) => (sent, descriptor) = (sent + count, None),
            Err(Errno::AGAIN) => wait_for(socket, PollFlags::OUT, until)?,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Waits until a socket is ready, or may be: a signal ends the wait too.
///
/// # Errors
/// `TimedOut` after `until`.
pub(crate) fn wait_for(socket: BorrowedFd<'_>, flags: PollFlags, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match poll(&mut [PollFd::from_borrowed_fd(socket, flags)], Some(&timeout)) {
        Ok(0) => Err(ErrorKind::TimedOut.into()),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Lines {
    socket: OwnedFd,
    /// Received, and not yet read: a whole number of lines and the beginning of another.
    bytes: Vec<u8>,
    /// Beginning of the bytes not yet read.
    at: usize,
    /// Bytes known to hold no line end.
    searched: usize,
    descriptors: VecDeque<OwnedFd>,
    line_max: usize,
}

impl Lines {
    /// Lines of at most `line_max` bytes.
    pub(crate) fn new(socket: OwnedFd, line_max: usize) -> Self {
        let (bytes, at, searched, descriptors) = Default::default();
        Self { socket, bytes, at, searched, descriptors, line_max }
    }

    /// Lines behind `pending`, bytes that have come already.
    pub(crate) fn resume(socket: OwnedFd, pending: Vec<u8>, line_max: usize) -> Self {
        Self { bytes: pending, ..Self::new(socket, line_max) }
    }

    /// Received, and not yet read.
    pub(crate) fn pending(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// Puts whole lines in front of those that are not yet read.
    pub(crate) fn put_back(&mut self, mut lines: Vec<u8>) {
        lines.extend_from_slice(self.pending());
        (self.bytes, self.at, self.searched) = (lines, 0, 0);
    }

    /// Receives what there is, without waiting.
    ///
    /// # Errors
    /// `WouldBlock`: nothing now. `UnexpectedEof`: the other end is closed. `InvalidData`: a line is too
    /// long.
    pub(crate) fn receive(&mut self) -> io::Result<()> {
        self.bytes.drain(..std::mem::take(&mut self.at));
        if self.bytes.len() > self.line_max {
            return Err(ErrorKind::InvalidData.into());
        }
        let before = self.bytes.len();
        self.bytes.resize(before + READ_SIZE, 0);
        let room = &mut self.bytes[before..];
        let received = fd_passing::receive(&self.socket, room, DESCRIPTORS_MAX, RecvFlags::DONTWAIT);
        let count = received.as_ref().map_or(0, |received| received.length);
        self.bytes.truncate(before + count);
        self.descriptors.extend(received?.descriptors);
        if self.descriptors.len() > DESCRIPTORS_MAX {
            return Err(ErrorKind::InvalidData.into());
        }
        if count == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// The next whole line, without its end.
    pub(crate) fn next(&mut self) -> Option<&[u8]> {
        let from = self.at.max(self.searched);
        let Some(end) = self.bytes[from..].iter().position(|&byte| byte == b'\n') else {
            // Relative to the bytes that stay at the next receipt.
            self.searched = self.bytes.len() - self.at;
            return None;
        };
        let line = self.at..from + end;
        (self.at, self.searched) = (line.end + 1, 0);
        Some(&self.bytes[line])
    }

    /// The next line, after waiting for it until a time.
    ///
    /// # Errors
    /// As [`Lines::receive`]; `TimedOut`.
    pub(crate) fn next_until(&mut self, until: Instant) -> io::Result<Vec<u8>> {
        loop {
            if let Some(line) = self.next() {
                return Ok(line.to_owned());
            }
            match self.receive() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    wait_for(self.socket.as_fd(), PollFlags::IN, until)?;
                }
                other => other?,
            }
        }
    }

    /// The descriptor that came with the last lines, if there is one.
    pub(crate) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }
}

impl AsFd for Lines {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn connected(line_max: usize) -> (OwnedFd, Lines) {
        let (ours, theirs) = pair(SocketType::STREAM).expect("pair");
        (ours, Lines::new(theirs, line_max))
    }

    #[test]
    fn lines_come_whole_and_in_order_with_their_descriptor() {
        let (to, mut from) = connected(100);
        send(to.as_fd(), b"one\ntw", None, PATIENCE).expect("room");
        let until = Instant::now() + PATIENCE;
        assert_eq!(from.next_until(until).expect("a line"), b"one");
        assert_eq!(from.next(), None);
        assert_eq!(from.receive().unwrap_err().kind(), ErrorKind::WouldBlock);
        send(to.as_fd(), b"o\nthree\n", Some(to.as_fd()), PATIENCE).expect("room");
        assert_eq!(from.next_until(until).expect("a line"), b"two");
        assert!(from.take_descriptor().is_some() && from.take_descriptor().is_none());
        assert_eq!(from.next_until(until).expect("a line"), b"three");
        drop(to);
        assert_eq!(from.next_until(until).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn an_engine_sends_the_warden_no_descriptors() {
        let (warden, engine) = pair_with_engine(SocketType::STREAM).unwrap();
        let (any, _) = pair(SocketType::STREAM).unwrap();
        if fd_passing::refuse(&any).is_err() {
            return;
        }
        let (warden, engine) = (warden.as_fd(), engine.as_fd());
        let refused = send(engine, b"a\n", Some(engine), Duration::ZERO).expect_err("EPERM");
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        send(engine, b"a\n", None, Duration::ZERO).unwrap();
        send(warden, b"a\n", Some(engine), Duration::ZERO).unwrap();
    }

    #[test]
    fn a_line_without_end_and_many_descriptors_end_the_conversation() {
        let (to, mut from) = connected(100);
        send(to.as_fd(), &[b'x'; 200], None, PATIENCE).expect("room");
        let until = Instant::now() + PATIENCE;
        assert_eq!(from.next_until(until).unwrap_err().kind(), ErrorKind::InvalidData);
        let (to, mut from) = connected(100);
        for _ in 0..3 {
            send(to.as_fd(), b"x", Some(to.as_fd()), PATIENCE).expect("room");
        }
        assert_eq!(from.next_until(until).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn an_end_that_is_not_read_costs_no_more_than_the_patience() {
        let (to, _from) = connected(100);
        let refused = send(to.as_fd(), &vec![b'x'; 8 << 20], None, Duration::from_millis(10));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
