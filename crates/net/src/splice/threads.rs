//! The threads of one worker that move its promoted connections.
//!
//! A connection belongs to one [thread](super::thread) from its begin to its end: that with the fewest then.
//! A single thread has one processor, while the programs at both ends of several flows use all of them: its
//! turn comes late, and sockets that could take more wait for it. With a thread for each processor, of two,
//! four flows move a sixth more, and requests beside them are answered sooner (the guide, chapter
//! "Benchmarks", experiments).
//!
//! All threads report by the same eventfd. They are started with the worker: a confined engine may start
//! none.

use super::thread::SpliceThread;
use super::{SpliceReport, Splices};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::Arc;

/// Most threads of a worker. Each takes memory, idle or not, and moves tens of Gbit/s.
pub(crate) const THREADS_MAX: usize = 4;

/// The threads.
#[derive(Debug)]
pub(crate) struct SpliceThreads {
    /// One at least.
    threads: Vec<SpliceThread>,
    /// In the worker's epoll instance.
    news: Arc<OwnedFd>,
}

/// A connection among those of the threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spliced {
    thread: usize,
    /// Its number there.
    pub(crate) number: u32,
}

/// Threads for each worker of so many: together one for each processor.
pub(crate) fn threads_of_worker(processors: usize, workers: usize) -> usize {
    processors.div_ceil(workers.max(1)).clamp(1, THREADS_MAX)
}

impl SpliceThreads {
    /// Starts a thread for each of these, of which there is one at least.
    ///
    /// # Errors
    /// No descriptors are left, or no thread can be started.
    pub(crate) fn start(splices: impl Iterator<Item = Splices>) -> io::Result<Self> {
        let news = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let threads = splices.map(|splices| SpliceThread::start(splices, news.clone()));
        Ok(Self { threads: threads.collect::<io::Result<_>>()?, news })
    }

    /// Has an event at each report, edge-triggered; it is never read.
    pub(crate) fn news(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    /// Number of the thread with the fewest connections.
    fn with_fewest(&self) -> usize {
        let counts = self.threads.iter().map(SpliceThread::connections).enumerate();
        counts.min_by_key(|&(_, count)| count).map_or(0, |(thread, _)| thread)
    }

    /// Whether there is room for one more connection, and a pipe at least.
    pub(crate) fn has_room(&self) -> bool {
        self.threads[self.with_fewest()].with(|splices, _| splices.has_room())
    }

    /// Has `join` add a connection to those of a thread, of which it returns the number there.
    pub(crate) fn join(
        &self,
        join: impl FnOnce(&mut Splices, BorrowedFd<'_>) -> Option<u32>,
    ) -> Option<Spliced> {
        let thread = self.with_fewest();
        self.threads[thread].with(join).map(|number| Spliced { thread, number })
    }

    /// Works on the splices of a connection's thread ([`SpliceThread::with`]).
    pub(crate) fn with<T>(
        &self,
        connection: Spliced,
        work: impl FnOnce(&mut Splices, BorrowedFd<'_>) -> T,
    ) -> T {
        self.threads[connection.thread].with(work)
    }

    /// Has later turns leave time to sparse flows, or not.
    pub(crate) fn set_has_sparse(&self, has_sparse: bool) {
        self.threads.iter().for_each(|thread| thread.set_has_sparse(has_sparse));
    }

    /// Closes the pipes that no direction has.
    pub(crate) fn give_up_idle_pipes(&self) {
        for thread in &self.threads {
            thread.with(|splices, _| splices.give_up_idle_pipes());
        }
    }

    /// Takes the reports since the last call, one for each flow, in the place of those in `reports`.
    pub(crate) fn collect(&self, reports: &mut Vec<SpliceReport>) {
        reports.clear();
        self.threads.iter().for_each(|thread| thread.collect(reports));
    }
}

#[cfg(test)]
mod tests;
