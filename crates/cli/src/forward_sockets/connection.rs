//! A connection of bounded duration, read and written as if it blocked, and given up when the thread is to
//! end.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Waits for descriptors, for at most `patience` if it is given: which of them are ready. `None` once `stop`
/// is readable.
pub(super) fn until_stopped(
    stop: BorrowedFd<'_>,
    wanted: &[(BorrowedFd<'_>, PollFlags)],
    patience: Option<Duration>,
) -> Option<Vec<bool>> {
    let mut polled = vec![PollFd::from_borrowed_fd(stop, PollFlags::IN)];
    polled.extend(wanted.iter().map(|&(descriptor, flags)| PollFd::from_borrowed_fd(descriptor, flags)));
    let timeout = patience.map(|left| Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    });
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        // Not without a defect: the descriptors are open.
        Err(_) => return None,
    }
    let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
    (!ready[0]).then(|| ready[1..].to_vec())
}

/// A client.
#[derive(Debug)]
pub(super) struct Connection<'a> {
    stream: UnixStream,
    stop: BorrowedFd<'a>,
    until: Instant,
}

impl<'a> Connection<'a> {
    /// A connection that ends after `patience`, or when `stop` becomes readable.
    ///
    /// # Errors
    /// As fcntl.
    pub(super) fn new(stream: UnixStream, stop: BorrowedFd<'a>, patience: Duration) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, stop, until: Instant::now() + patience })
    }

    /// The socket.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn wait(&self, flags: PollFlags) -> io::Result<()> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        let ready = until_stopped(self.stop, &[(self.stream.as_fd(), flags)], Some(left));
        ready.map(drop).ok_or_else(|| ErrorKind::ConnectionAborted.into())
    }
}

impl Read for Connection<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::IN)?,
                other => return other,
            }
        }
    }
}

impl Write for Connection<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.stream.write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::OUT)?,
                other => return other,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn a_silent_client_is_given_up_and_so_is_any_at_the_end() {
        let stop = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let mut connection = Connection::new(ours, stop.as_fd(), Duration::from_mins(5)).expect("a client");
        theirs.write_all(b"abc").expect("room");
        let mut bytes = [0; 8];
        assert_eq!(connection.read(&mut bytes).expect("three bytes"), 3);
        connection.until = Instant::now();
        assert_eq!(connection.read(&mut bytes).expect_err("too late").kind(), ErrorKind::TimedOut);
        connection.until = Instant::now() + Duration::from_mins(5);
        rustix::io::write(&stop, &1u64.to_ne_bytes()).expect("room");
        assert_eq!(connection.read(&mut bytes).expect_err("the end").kind(), ErrorKind::ConnectionAborted);
    }
}
