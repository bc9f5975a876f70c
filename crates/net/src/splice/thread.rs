//! A thread of its own for splices, so that a worker which has none of them to move sleeps. A worker has as
//! many as there are processors ([`super::threads`]).
//!
//! The processor's scheduler serves a thread that sleeps most of the time as soon as it wakes up, and lets
//! one that uses up its share wait for the others: a worker that moves bulk and serves a request of one byte
//! in the same loop has that request wait behind all programs that are busy. So promoted connections are
//! moved here.
//!
//! ```text
//! worker:  join, pause, take, abort --lock--> Splices <--lock-- turns, as long as there is something to move
//!          collect   <--------------------- reports <---------- progress and ends
//!          its epoll <----------- eventfd <-------------------- at once an end, progress each NEWS_INTERVAL
//! ```
//!
//! *Turns.* Beside sparse flows the thread moves little at a time ([`TurnBytes::OF_THREAD_BESIDE_SPARSE`])
//! and yields the processor after each turn: a program that a request has just woken would wait on the same
//! processor until this thread's time slice of some milliseconds is over.
//!
//! Without sparse flows it [rests] between turns while flows are fast.
//!
//! *Fairness of the lock.* The thread takes the lock again right after it has let go of it, and a mutex does
//! not prefer a waiter. So there are two: both sides queue at the turnstile first, and let go of it once they
//! have the splices. A worker that waits there waits for one turn at most, and only to begin or end a
//! promotion: reports have a lock of their own.
//!
//! *Exactness.* Reports are left before the lock is let go: a worker that has paused a connection and then
//! collects has all of its progress.
//!
//! *The end.* A thread is stopped and joined when its worker drops it. A crash ends it with its process.
//!
//! System calls: eventfd, write, `epoll_wait`, ppoll, `sched_yield`; those of [`super`].

mod rests;

use super::{SpliceReport, Splices, TurnBytes, Turned};
use rests::{REST, Rests};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Least time between two reports of progress alone.
const NEWS_INTERVAL: Duration = Duration::from_millis(20);
/// Events taken at a time.
const EVENTS: usize = 64;
/// Data of the eventfd that ends a wait; a splice's is the number of its event.
const WAKE: u64 = u64::MAX;

/// Splices and the thread that moves their bytes.
#[derive(Debug)]
pub(crate) struct SpliceThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// Of the splices' sockets and `wake`.
    epoll: OwnedFd,
    wake: OwnedFd,
    /// In the worker's epoll instance, and other threads' too.
    news: Arc<OwnedFd>,
    turnstile: Mutex<()>,
    splices: Mutex<Splices>,
    /// Those not collected yet, of each flow the sum.
    reports: Mutex<Reports>,
    /// Number of connections.
    connections: AtomicUsize,
    /// Sparse flows use the link.
    has_sparse: AtomicBool,
    ending: AtomicBool,
}

/// Reports in the order of their flows. Bulk has some at each [`NEWS_INTERVAL`]: a list keeps its memory from
/// one to the next.
#[derive(Debug, Default)]
struct Reports(Vec<SpliceReport>);

impl Reports {
    /// Adds to the report of the same flow.
    fn add(&mut self, report: &SpliceReport) {
        match self.0.binary_search_by_key(&report.flow, |known| known.flow) {
            Ok(place) => self.0[place].add(report),
            Err(place) => self.0.insert(place, *report),
        }
    }
}

impl SpliceThread {
    /// Starts the thread, which reports by `news`.
    ///
    /// # Errors
    /// No descriptors are left, or no thread can be started.
    pub(crate) fn start(splices: Splices, news: Arc<OwnedFd>) -> io::Result<Self> {
        let shared = Shared {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            news,
            turnstile: Mutex::new(()),
            splices: Mutex::new(splices),
            reports: Mutex::default(),
            connections: AtomicUsize::new(0),
            has_sparse: AtomicBool::new(false),
            ending: AtomicBool::new(false),
        };
        // Edge-triggered: each write is an event, and it is never read.
        let wake = EventFlags::IN | EventFlags::ET;
        epoll::add(&shared.epoll, &shared.wake, EventData::new_u64(WAKE), wake)?;
        let shared = Arc::new(shared);
        let (of_thread, (arrival, arrived)) = (shared.clone(), sync_channel(1));
        let body = move || {
            let _ = arrival.send(());
            of_thread.run();
        };
        let thread = std::thread::Builder::new().name("splices".into()).spawn(body)?;
        // Its set-up by the C library takes system calls that may not be allowed later.
        let _ = arrived.recv();
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Number of its connections at the last change.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Works on the splices between two turns of the thread, and has it look at them then.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Splices, BorrowedFd<'_>) -> T) -> T {
        let mut splices = self.shared.splices();
        let done = work(&mut splices, self.shared.epoll.as_fd());
        self.shared.note_connections(&splices);
        drop(splices);
        signal(&self.shared.wake);
        done
    }

    /// Has later turns leave time to sparse flows, or not.
    pub(crate) fn set_has_sparse(&self, has_sparse: bool) {
        self.shared.has_sparse.store(has_sparse, Ordering::Relaxed);
    }

    /// Appends the reports since the last call, one for each flow.
    pub(crate) fn collect(&self, reports: &mut Vec<SpliceReport>) {
        reports.append(&mut lock(&self.shared.reports).0);
    }
}

impl Drop for SpliceThread {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        signal(&self.shared.wake);
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Event data of the number of a splice's event.
pub(crate) fn event_data(number: u32) -> EventData {
    EventData::new_u64(number.into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps for [`REST`].
fn rest() {
    // Without descriptors ppoll(2) ends with its time alone.
    let _ = poll(&mut [], Timespec::try_from(REST).ok().as_ref());
}

/// Has an eventfd report an event.
fn signal(eventfd: &OwnedFd) {
    // It could only fail after 2^64 writes.
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

impl Shared {
    fn splices(&self) -> MutexGuard<'_, Splices> {
        let _first = lock(&self.turnstile);
        lock(&self.splices)
    }

    fn run(&self) {
        let (mut events, mut busy, mut news) = (Vec::with_capacity(EVENTS), false, News::default());
        let mut rests = Rests::default();
        while !self.ending.load(Ordering::Relaxed) {
            match self.wait(&mut events, if busy { Some(Duration::ZERO) } else { news.due_in() }) {
                Ok(()) | Err(Errno::INTR) => {}
                // Of descriptors that are open: it cannot fail otherwise.
                Err(_) => return,
            }
            let has_sparse = self.has_sparse.load(Ordering::Relaxed);
            let max = TurnBytes::of_thread(has_sparse, rests.may_follow(Instant::now()));
            let turned = self.turn(&events, max, &mut news);
            busy = turned.busy;
            if news.are_due() {
                news = News::default();
                signal(&self.news);
            }
            if !has_sparse && rests.after(turned.bytes, Instant::now()) {
                rest();
            } else if busy && has_sparse {
                std::thread::yield_now();
            }
        }
    }

    fn wait(&self, events: &mut Vec<Event>, timeout: Option<Duration>) -> Result<(), Errno> {
        events.clear();
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout.as_ref()).map(drop)
    }

    /// One turn.
    fn turn(&self, events: &[Event], max: TurnBytes, news: &mut News) -> Turned {
        let mut splices = self.splices();
        for event in events {
            if let Ok(number) = u32::try_from({ event.data }.u64()) {
                splices.event(number, event.flags);
            }
        }
        let turned = splices.turn(self.epoll.as_fd(), max, |report| {
            news.add(report);
            lock(&self.reports).add(report);
        });
        self.note_connections(&splices);
        turned
    }

    fn note_connections(&self, splices: &Splices) {
        self.connections.store(splices.open(), Ordering::Relaxed);
    }
}

/// Reports of which the worker does not know yet.
#[derive(Debug, Default)]
struct News {
    /// Since the first of them.
    since: Option<Instant>,
    /// One of them cannot wait.
    urgent: bool,
}

impl News {
    fn add(&mut self, report: &SpliceReport) {
        self.since.get_or_insert_with(Instant::now);
        let progress = &report.progress;
        self.urgent |= report.end.is_some() || report.lacks_pipe || progress.connected;
        self.urgent |= progress.initiator_finished || progress.responder_finished;
    }

    fn due_in(&self) -> Option<Duration> {
        Some(NEWS_INTERVAL.saturating_sub(self.since?.elapsed()))
    }

    fn are_due(&self) -> bool {
        self.urgent || self.due_in() == Some(Duration::ZERO)
    }
}

#[cfg(test)]
pub(super) mod tests;
