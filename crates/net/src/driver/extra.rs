//! Descriptors of the caller's, such as one for signals: level-triggered, they end
//! [`Worker::run`](super::Worker::run) with their tag, after the turn of their event.

use crate::source::{Source, SourceId, Turn};
use brodo_core::time::Instant;
use brodo_link::poller::Poller;
use brodo_link::{EventFlags, GuestLink};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// The caller's descriptors, of which one may be readable.
#[derive(Debug, Default)]
pub(super) struct ExtraDescriptors {
    /// The first tag of this turn.
    ready: Option<u32>,
}

impl ExtraDescriptors {
    /// Reports `fd` under `tag` while it is readable.
    ///
    /// # Errors
    /// epoll_ctl failed.
    pub(super) fn watch(epoll: BorrowedFd<'_>, fd: impl AsFd, tag: u32) -> io::Result<()> {
        Ok(SourceId::Extra.poller(epoll).add(fd, tag, EventFlags::IN)?)
    }

    /// Takes the tag of a descriptor that was readable in this turn. Others report again.
    pub(super) fn take(&mut self) -> Option<u32> {
        self.ready.take()
    }
}

impl<L: GuestLink> Source<L> for ExtraDescriptors {
    fn register(&mut self, _: Poller<'_>) -> io::Result<()> {
        Ok(())
    }

    fn ready(&mut self, key: u32, _: EventFlags, _: Instant) {
        self.ready = self.ready.or(Some(key));
    }

    fn turn(&mut self, _: &mut Turn<'_, L>) -> bool {
        false
    }
}
