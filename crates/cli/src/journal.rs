//! What happens while the network is served, for whoever wants to know: the flow log, clients of the control socket, people who
//! read standard error.
//!
//! Workers pass on what their stacks have recorded after the turn in which it happened ([`Journal::take`]): they put it
//! into mailboxes and ring, and that is all. A [`Mailbox`] holds a bounded number of things; what finds it full is dropped and
//! counted, and whoever empties it tells how many. Nothing is recorded while nobody wants it.

use crate::log;
use brodo_control::event::Level;
use brodo_core::flow::end::FlowEnd;
use brodo_core::flow::info::FlowInfo;
use brodo_core::stack::Stack;
use brodo_net::clock::Clock;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Things that a mailbox holds: about 16 MB of ends, which a log that writes as fast as a disk has written within a second.
const MAILBOX_MAX: usize = 64 << 10;

/// What one worker has recorded in one turn.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Its number.
    pub(crate) worker: u32,
    /// Flows that have begun.
    pub(crate) openings: Vec<FlowInfo>,
    /// Flows that have ended.
    pub(crate) ends: Vec<FlowEnd>,
    /// Flows that have begun or ended and are not among these.
    pub(crate) lost: u64,
}

/// Something that is told to people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) unix_ns: u64,
    pub(crate) level: Level,
    pub(crate) text: String,
}

/// One thing in a mailbox.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    Batch(Arc<Batch>),
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

/// What waits for one reader, who sleeps until [`Mailbox::wait`] gives something or looks when its bell has rung.
#[derive(Debug)]
pub(crate) struct Mailbox {
    contents: Mutex<Contents>,
    filled: Condvar,
    bell: Option<OwnedFd>,
}

impl Mailbox {
    /// For a reader who waits for nothing else.
    pub(crate) fn new() -> Self {
        Self { contents: Mutex::default(), filled: Condvar::new(), bell: None }
    }

    /// For a reader who polls descriptors.
    ///
    /// # Errors
    /// eventfd failed: no descriptors.
    pub(crate) fn with_bell() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { bell: Some(bell), ..Self::new() })
    }

    /// Readable after the bell was rung, until [`Mailbox::take`].
    pub(crate) fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(AsFd::as_fd)
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts something in, or counts it.
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
        self.ring();
    }

    /// Wakes the reader.
    pub(crate) fn ring(&self) {
        self.filled.notify_one();
        if let Some(bell) = &self.bell {
            // It could only fail after 2^64 rings.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// Nothing more will be put in but `last`, for which there is always room.
    pub(crate) fn close(&self, last: Vec<Item>) {
        let mut contents = self.lock();
        contents.items.extend(last);
        contents.closed = true;
        drop(contents);
        self.ring();
    }

    /// What is in there, and how many things found no room since the last time.
    pub(crate) fn take(&self) -> (VecDeque<Item>, u64) {
        if let Some(bell) = &self.bell {
            let _ = rustix::io::read(bell, &mut [0; 8]);
        }
        self.lock().take()
    }

    /// The same, once there is something; `None` if there never will be.
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

/// Where everything that happens is told.
#[derive(Debug)]
pub(crate) struct Journal {
    clock: Clock,
    /// For the flow log, if there is one.
    log: Option<Arc<Mailbox>>,
    /// For clients of the control socket, if it is served.
    clients: Option<Arc<Mailbox>>,
    /// Some client wants to know.
    heard: AtomicBool,
}

impl Journal {
    /// A journal that tells nobody but people.
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, log: None, clients: None, heard: AtomicBool::new(false) }
    }

    /// The same with a flow log.
    pub(crate) fn with_log(mut self, log: Option<Arc<Mailbox>>) -> Self {
        self.log = log;
        self
    }

    /// The same with clients.
    pub(crate) fn with_clients(mut self, clients: Option<Arc<Mailbox>>) -> Self {
        self.clients = clients;
        self
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Whether ends are wanted whatever clients want.
    pub(crate) fn keeps_log(&self) -> bool {
        self.log.is_some()
    }

    /// Whether some client wants to know of anything.
    pub(crate) fn set_heard(&self, heard: bool) {
        self.heard.store(heard, Ordering::Relaxed);
    }

    /// Takes what the stack of a worker has recorded.
    pub(crate) fn take(&self, worker: u32, stack: &mut Stack) {
        let batch = Batch {
            worker,
            openings: stack.take_openings(),
            ends: stack.take_ends(),
            lost: stack.take_lost_records(),
        };
        let item = Item::Batch(Arc::new(batch));
        if let Some(log) = &self.log {
            log.put(item.clone());
        }
        self.tell_clients(item);
    }

    fn tell_clients(&self, item: Item) {
        if let Some(clients) = self.clients.as_ref().filter(|_| self.heard.load(Ordering::Relaxed)) {
            clients.put(item);
        }
    }

    /// Tells people a sentence, which ends without a line break: on standard error, and clients that want to know.
    pub(crate) fn tell(&self, level: Level, text: &str) {
        log::say(level, text, &[]);
        let unix_ns = self.clock.unix_ns(self.clock.now());
        self.tell_clients(Item::Notice(Notice { unix_ns, level, text: text.to_owned() }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal() -> (Journal, Arc<Mailbox>) {
        let clients = Arc::new(Mailbox::with_bell().unwrap());
        let journal = Journal::new(Clock::start()).with_clients(Some(clients.clone()));
        (journal, clients)
    }

    #[test]
    fn what_nobody_hears_is_not_kept() {
        let (journal, clients) = journal();
        journal.tell(Level::Info, "unheard");
        journal.set_heard(true);
        journal.tell(Level::Info, "heard");
        let (items, lost) = clients.take();
        assert_eq!((items.len(), lost), (1, 0));
        assert!(matches!(&items[0], Item::Notice(notice) if notice.text == "heard"));
        assert_eq!(clients.take().0.len(), 0);
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let (journal, clients) = journal();
        journal.set_heard(true);
        for _ in 0..MAILBOX_MAX + 3 {
            journal.tell(Level::Debug, "again");
        }
        let (items, lost) = clients.take();
        assert_eq!((items.len(), lost), (MAILBOX_MAX, 3));
        journal.tell(Level::Debug, "again");
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
