//! The event bus: flows that begin and end, and notices, from the workers to the flow log, clients of the
//! control socket and the log.
//!
//! Workers pass on the records of their stacks after the turn in which they were made ([`EventBus::take`]):
//! they put them into mailboxes and wake the readers. A [`Mailbox`] holds a bounded number of items; an item
//! without room is dropped and counted, and its reader gets the count. Without a subscriber nothing is
//! recorded.

use crate::log;
use brodo_control::event::Level;
use brodo_net::FlowRecords;
use brodo_net::clock::Clock;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Most items in a mailbox: about 16 MB of ended flows, a second of writing for a log on a disk.
const MAILBOX_MAX: usize = 64 << 10;

/// A message for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) unix_ns: u64,
    pub(crate) level: Level,
    pub(crate) text: String,
}

/// One item of a mailbox.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    Batch(Arc<FlowRecords>),
    Notice(Notice),
}

impl Item {
    fn len(&self) -> usize {
        match self {
            Self::Batch(batch) => batch.openings.len() + batch.ends.len() + 1,
            Self::Notice(_) => 1,
        }
    }
}

#[derive(Debug, Default)]
struct Contents {
    items: VecDeque<Item>,
    len: usize,
    lost: u64,
    closed: bool,
}

/// A queue for one reader, which sleeps in [`Mailbox::wait`] or polls [`Mailbox::waker`].
#[derive(Debug)]
pub(crate) struct Mailbox {
    contents: Mutex<Contents>,
    filled: Condvar,
    waker: Option<OwnedFd>,
}

impl Mailbox {
    /// A mailbox for a reader that blocks on it.
    pub(crate) fn new() -> Self {
        Self { contents: Mutex::default(), filled: Condvar::new(), waker: None }
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

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an item, or counts it as lost.
    pub(crate) fn put(&self, item: Item) {
        let mut contents = self.lock();
        let len = item.len();
        if contents.len + len > MAILBOX_MAX {
            contents.lost += len as u64;
        } else {
            contents.len += len;
            contents.items.push_back(item);
        }
        drop(contents);
        self.wake();
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
    pub(crate) fn close(&self, last: Vec<Item>) {
        let mut contents = self.lock();
        contents.items.extend(last);
        contents.closed = true;
        drop(contents);
        self.wake();
    }

    /// All items, and the number of items lost since the last call.
    pub(crate) fn take(&self) -> (VecDeque<Item>, u64) {
        if let Some(waker) = &self.waker {
            let _ = rustix::io::read(waker, &mut [0; 8]);
        }
        self.lock().take()
    }

    /// All items after waiting for one; `None` at the end of the queue.
    pub(crate) fn wait(&self) -> Option<(VecDeque<Item>, u64)> {
        let mut contents = self.lock();
        loop {
            if !contents.items.is_empty() || contents.lost > 0 {
                return Some(contents.take());
            }
            if contents.closed {
                return None;
            }
            contents = self.filled.wait(contents).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Contents {
    fn take(&mut self) -> (VecDeque<Item>, u64) {
        self.len = 0;
        (std::mem::take(&mut self.items), std::mem::take(&mut self.lost))
    }
}

/// Publishes records and notices to their readers.
#[derive(Debug)]
pub(crate) struct EventBus {
    clock: Clock,
    /// For the flow log, if there is one.
    log: Option<Arc<Mailbox>>,
    /// For clients of the control socket, if it is served.
    clients: Option<Arc<Mailbox>>,
    /// Whether a client has subscribed.
    subscribed: AtomicBool,
}

impl EventBus {
    /// A bus with the log as its only reader.
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, log: None, clients: None, subscribed: AtomicBool::new(false) }
    }

    /// Adds a flow log.
    pub(crate) fn with_log(mut self, log: Option<Arc<Mailbox>>) -> Self {
        self.log = log;
        self
    }

    /// Adds clients.
    pub(crate) fn with_clients(mut self, clients: Option<Arc<Mailbox>>) -> Self {
        self.clients = clients;
        self
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Whether the flow log needs ended flows, without regard to clients.
    pub(crate) fn keeps_log(&self) -> bool {
        self.log.is_some()
    }

    /// Sets whether a client has a subscription.
    pub(crate) fn set_subscribed(&self, subscribed: bool) {
        self.subscribed.store(subscribed, Ordering::Relaxed);
    }

    /// Takes the records of a worker.
    pub(crate) fn take(&self, records: FlowRecords) {
        let item = Item::Batch(Arc::new(records));
        if let Some(log) = &self.log {
            log.put(item.clone());
        }
        self.publish_to_clients(item);
    }

    fn publish_to_clients(&self, item: Item) {
        if let Some(clients) = self.clients.as_ref().filter(|_| self.subscribed.load(Ordering::Relaxed)) {
            clients.put(item);
        }
    }

    /// Publishes a message, without a line end: to the log, and to clients that have subscribed to notices.
    pub(crate) fn notify(&self, level: Level, text: &str) {
        log::say(level, text, &[]);
        let unix_ns = self.clock.unix_ns(self.clock.now());
        self.publish_to_clients(Item::Notice(Notice { unix_ns, level, text: text.to_owned() }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bus() -> (EventBus, Arc<Mailbox>) {
        let clients = Arc::new(Mailbox::with_waker().unwrap());
        let bus = EventBus::new(Clock::start()).with_clients(Some(clients.clone()));
        (bus, clients)
    }

    #[test]
    fn without_a_subscriber_nothing_is_kept() {
        let (bus, clients) = bus();
        bus.notify(Level::Info, "unheard");
        bus.set_subscribed(true);
        bus.notify(Level::Info, "heard");
        let (items, lost) = clients.take();
        assert_eq!((items.len(), lost), (1, 0));
        assert!(matches!(&items[0], Item::Notice(notice) if notice.text == "heard"));
        assert_eq!(clients.take().0.len(), 0);
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let (bus, clients) = bus();
        bus.set_subscribed(true);
        for _ in 0..MAILBOX_MAX + 3 {
            bus.notify(Level::Debug, "again");
        }
        let (items, lost) = clients.take();
        assert_eq!((items.len(), lost), (MAILBOX_MAX, 3));
        bus.notify(Level::Debug, "again");
        assert_eq!(clients.take().0.len(), 1);
    }

    #[test]
    fn a_closed_mailbox_gives_the_rest_and_then_nothing() {
        let mailbox = Mailbox::new();
        mailbox.close(vec![Item::Batch(Arc::default())]);
        assert_eq!(mailbox.wait().map(|(items, _)| items.len()), Some(1));
        assert!(mailbox.wait().is_none());
    }
}
