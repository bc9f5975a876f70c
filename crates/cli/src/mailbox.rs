//! Mailbox: a bounded queue from many threads to one reader.
//!
//! Writers never wait: an item without room is dropped and counted, and the reader gets the count.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most weight of the items in a mailbox, one for each event: about 16 MB of ended flows, a second of writing
/// for a log on a disk.
pub(crate) const MAILBOX_MAX: usize = 64 << 10;

#[derive(Debug)]
struct Contents<T> {
    items: VecDeque<T>,
    len: usize,
    lost: u64,
    closed: bool,
    /// The reader waits, and has done with all it has taken.
    idle: bool,
}

/// Items and losses up to now, as the reader gets them.
#[derive(Debug)]
pub(crate) struct Taken<T> {
    /// The items, the oldest first.
    pub(crate) items: VecDeque<T>,
    /// Records in items lost since the reader came last.
    pub(crate) lost: u64,
    /// End of the queue: no items follow.
    pub(crate) closed: bool,
}

/// A queue for one reader, which sleeps in [`Mailbox::wait`] or polls [`Mailbox::waker`].
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    contents: Mutex<Contents<T>>,
    filled: Condvar,
    emptied: Condvar,
    waker: Option<OwnedFd>,
}

impl<T> Mailbox<T> {
    /// A mailbox for a reader that blocks on it.
    pub(crate) fn new() -> Self {
        let contents = Contents { items: VecDeque::new(), len: 0, lost: 0, closed: false, idle: false };
        Self { contents: Mutex::new(contents), filled: Condvar::new(), emptied: Condvar::new(), waker: None }
    }

    /// A mailbox for a reader that polls descriptors.
    ///
    /// # Errors
    /// eventfd failed: no descriptors.
    pub(crate) fn with_waker() -> io::Result<Self> {
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { waker: Some(waker), ..Self::new() })
    }

    /// An eventfd, readable after [`Mailbox::wake`] until [`Mailbox::take`].
    pub(crate) fn waker(&self) -> Option<BorrowedFd<'_>> {
        self.waker.as_ref().map(AsFd::as_fd)
    }

    fn lock(&self) -> MutexGuard<'_, Contents<T>> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an item of so much weight, which is the number of records in it, or counts them as lost.
    pub(crate) fn put(&self, item: T, weight: usize) {
        self.put_records(item, weight, weight as u64);
    }

    /// The same for an item of so many records, whatever its weight; false if there is no room for it.
    pub(crate) fn put_records(&self, item: T, weight: usize, records: u64) -> bool {
        let mut contents = self.lock();
        let has_room = contents.len + weight <= MAILBOX_MAX;
        if has_room {
            contents.len += weight;
            contents.items.push_back(item);
        } else {
            contents.lost += records;
        }
        drop(contents);
        self.wake();
        has_room
    }

    /// Wakes the reader.
    pub(crate) fn wake(&self) {
        self.filled.notify_one();
        if let Some(waker) = &self.waker {
            // It could only fail after 2^64 writes.
            let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
        }
    }

    /// Adds `last`, for which there is always room, and ends the queue.
    pub(crate) fn close(&self, last: Vec<T>) {
        let mut contents = self.lock();
        contents.items.extend(last);
        contents.closed = true;
        drop(contents);
        self.wake();
    }

    /// All items.
    pub(crate) fn take(&self) -> Taken<T> {
        if let Some(waker) = &self.waker {
            let _ = rustix::io::read(waker, &mut [0; 8]);
        }
        self.lock().take()
    }

    /// Waits until a reader in [`Mailbox::wait`] has done with all items, at most for `patience`.
    pub(crate) fn flush(&self, patience: Duration) {
        let busy = |contents: &mut Contents<T>| {
            !contents.closed && (!contents.idle || !contents.items.is_empty() || contents.lost > 0)
        };
        let _ = self.emptied.wait_timeout_while(self.lock(), patience, busy);
    }

    /// All items after waiting for one; `None` at the end of the queue.
    pub(crate) fn wait(&self) -> Option<Taken<T>> {
        let mut contents = self.lock();
        loop {
            if !contents.items.is_empty() || contents.lost > 0 {
                contents.idle = false;
                return Some(contents.take());
            }
            if contents.closed {
                return None;
            }
            contents.idle = true;
            self.emptied.notify_all();
            contents = self.filled.wait(contents).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Contents<T> {
    fn take(&mut self) -> Taken<T> {
        self.len = 0;
        Taken {
            items: std::mem::take(&mut self.items),
            lost: std::mem::take(&mut self.lost),
            closed: self.closed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_without_room_are_counted() {
        let mailbox = Mailbox::with_waker().unwrap();
        for number in 0..MAILBOX_MAX + 3 {
            mailbox.put(number, 1);
        }
        mailbox.put_records(0, 1, 500);
        let Taken { items, lost, closed } = mailbox.take();
        assert_eq!((items.len(), lost, closed), (MAILBOX_MAX, 3 + 500, false));
        mailbox.put(0, 1);
        assert_eq!(mailbox.take().items.len(), 1);
    }

    #[test]
    fn a_closed_mailbox_gives_the_rest_and_then_nothing() {
        let mailbox = Mailbox::new();
        mailbox.close(vec![1]);
        assert_eq!(mailbox.wait().map(|taken| taken.items.len()), Some(1));
        assert!(mailbox.wait().is_none());
        assert!(mailbox.take().closed);
    }
}
