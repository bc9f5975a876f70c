//! Descriptors that were handed over: each is asked for its type before it is used, and given away once.
//!
//! A descriptor of another type than its record says stays here, and with the others that no part of the
//! network has taken it is closed with a reset ([`Incoming::rest`]). The kernel answers from the socket
//! itself, so nothing depends on the process that has sent it.

use super::{EarlyStreams, Expected};
use brodo_core::flow::FlowId;
use brodo_core::stack::Room;
use rustix::fs::{FileType, OFlags};
use rustix::io::Result;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Whether a descriptor is a pipe's end with this access mode.
fn is_pipe_end(descriptor: BorrowedFd<'_>, mode: OFlags) -> Result<bool> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(descriptor)?.st_mode);
    Ok(kind == FileType::Fifo && rustix::fs::fcntl_getfl(descriptor)? & OFlags::RWMODE == mode)
}

/// Whether two descriptors are the ends of one pipe.
fn is_pipe(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<bool> {
    let (one, other) = (rustix::fs::fstat(from)?, rustix::fs::fstat(to)?);
    Ok(is_pipe_end(from, OFlags::RDONLY)?
        && is_pipe_end(to, OFlags::WRONLY)?
        && (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

/// The descriptors of a hand-over.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// Indices of these come first.
    early: EarlyStreams,
    descriptors: Vec<Option<OwnedFd>>,
}

impl Incoming {
    pub(crate) fn new(early: EarlyStreams, descriptors: Vec<OwnedFd>) -> Self {
        Self { early, descriptors: descriptors.into_iter().map(Some).collect() }
    }

    /// The descriptor with this index, unless it came in advance.
    fn place(&mut self, index: u32) -> Option<&mut Option<OwnedFd>> {
        let index = (index as usize).checked_sub(self.early.len())?;
        self.descriptors.get_mut(index)
    }

    /// Memory made ready for the flows of a worker.
    pub(crate) fn take_room(&mut self, worker: u32) -> Option<Room> {
        self.early.take_room(worker)
    }

    /// The epoll instance where streams of a worker are registered already.
    pub(crate) fn take_poller(&mut self, worker: u32) -> Option<OwnedFd> {
        self.early.take_poller(worker)
    }

    /// Whether the stream with this index is registered there, for the events of this flow.
    pub(crate) fn is_registered(&self, index: u32, worker: u32, flow: FlowId) -> bool {
        self.early.is_registered(index as usize, worker, flow.to_bits())
    }

    /// Takes a socket of the expected type, and sees to it that it does not block.
    pub(crate) fn take(&mut self, index: u32, expected: Expected) -> Option<OwnedFd> {
        if (index as usize) < self.early.len() {
            return if expected == Expected::Stream { self.early.take(index as usize) } else { None };
        }
        let place = self.place(index)?;
        if expected.fits(place.as_ref()?.as_fd(), true) { place.take() } else { None }
    }

    /// Takes both ends of a pipe that holds so many bytes.
    pub(crate) fn take_pipe(&mut self, from: u32, to: u32, held: u64) -> Option<(OwnedFd, OwnedFd)> {
        let early = self.early.len();
        let at = |index: u32| self.descriptors.get((index as usize).checked_sub(early)?)?.as_ref();
        let (source, sink) = (at(from)?.as_fd(), at(to)?.as_fd());
        if Self::bytes_in(source, sink)? != held {
            return None;
        }
        let [from, to] = [from, to].map(|index| self.place(index).and_then(Option::take));
        from.zip(to)
    }

    /// Bytes in a pipe, of which these are both ends; sees to it that they do not block.
    pub(crate) fn bytes_in(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Option<u64> {
        let waits_not = |end| rustix::io::ioctl_fionbio(end, true).is_ok();
        let is_pipe = is_pipe(from, to).unwrap_or(false) && waits_not(from) && waits_not(to);
        if is_pipe { rustix::io::ioctl_fionread(from).ok() } else { None }
    }

    /// Takes the descriptors of a link, which asks them for their type itself.
    pub(crate) fn take_for_link(&mut self, indices: &[u32]) -> Vec<OwnedFd> {
        let mut take = |&index: &u32| self.place(index)?.take();
        indices.iter().map_while(&mut take).collect()
    }

    /// Takes a descriptor back, which is then among the rest.
    pub(crate) fn put_back(&mut self, descriptor: OwnedFd) {
        self.descriptors.push(Some(descriptor));
    }

    /// Descriptors that were not taken, but for those that came in advance.
    pub(crate) fn rest(self) -> Vec<OwnedFd> {
        self.descriptors.into_iter().flatten().collect()
    }
}
