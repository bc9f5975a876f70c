//! Streams joined by splice(2): pages move from socket to pipe to socket, and no byte is copied in between.

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Size of the pipe, and of each move.
const LENGTH: usize = 1 << 20;

/// A pipe, empty between two moves.
pub(super) struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
}

impl Pipe {
    pub(super) fn new() -> io::Result<Self> {
        let (out, into) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setpipe_size(&into, LENGTH)?;
        fcntl_setfl(&into, OFlags::WRONLY)?;
        Ok(Self { out, into })
    }

    /// Moves what has arrived; 0 bytes at the end of the stream.
    pub(super) fn pass(&self, from: impl AsFd, to: impl AsFd) -> io::Result<usize> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let length = match splice(from, None, &self.into, None, LENGTH, flags) {
            Err(Errno::AGAIN) => return Err(io::ErrorKind::WouldBlock.into()),
            other => other?,
        };
        let mut left = length;
        while left > 0 {
            left -= splice(&self.out, None, to.as_fd(), None, left, SpliceFlags::MOVE)?;
        }
        Ok(length)
    }
}
