//! Cooperation of the workers of one program.
//!
//! A worker has a thread, a link (a queue of the guest's TAP, or some queue pairs of its virtual machine), a
//! stack, sockets and an epoll instance of its own, which no other worker touches. The worker that gets the
//! first frame of a flow opens it and owns it. Two kinds of link, two kinds of steering:
//!
//! *TAP.* The kernel keeps the frames of a flow on one queue. A frame of the guest goes to the queue that
//! last wrote a frame of its flow; for a flow without such a frame in the last seconds, a hash of its
//! addresses and ports that is the same both ways chooses among the queues (`tun_automq_select_queue` and
//! `tun_flow_update` in the kernel's drivers/net/tun.c). Each worker answers only frames of its own queue, so
//! the writes agree with the hash; and the hash is stable as long as the number of queues is. So all queues
//! are attached before the interface comes up, and stay open until all workers have ended.
//! `link/tap/tests.rs` holds the running kernel to it. An inbound flow ([`crate::forward`]) belongs to the
//! first worker, whatever the hash says: that worker's own writes steer the guest's frames of the flow to its
//! queue, but only for some seconds after each.
//!
//! *Virtual machine.* The driver chooses the queue by the processor that a thread runs on, so a flow moves
//! between queues with its thread.
//!
//! In both cases a worker that gets a frame of another one's flow passes it on ([`crate::resteer`]); the
//! owners of all flows are in one table ([`brodo_core::flow::owners`]), which a frame of a worker's own flow
//! never needs.
//!
//! Not every packet has ports: ICMP is hashed by its two addresses alone. An ICMP error of the guest (port
//! unreachable) may therefore reach a worker that has no such flow; the flow then ends by its time-out. And a
//! worker's ICMP error about a remote host may for some seconds steer the guest's pings of that host to that
//! worker, which opens an echo flow of its own; answers to earlier ones still arrive.
//!
//! Fragments have no ports either: the first worker puts all of them together, and passes the whole on.
//!
//! Shared state of workers: the memory budget ([`brodo_core::memory::budget`]), the owners of flows, a
//! capture's file, and this: each has a waker, an eventfd in its epoll instance, which another worker writes
//! after it has freed memory that the first one waits for, after it has passed on a frame, or to end all.
//!
//! Other threads, such as that of a control socket, never touch a worker either: they leave a [`Command`]
//! with it ([`Workers::ask`]), which it executes between two turns of its loop.
//!
//! System calls: eventfd, write.

mod freeze;

use crate::command::{COMMANDS_MAX, Command, Pending, ReplyTo};
pub use crate::resteer::ResteerCounters;
use crate::resteer::{ResteeredFrame, ResteeredKind, Resteering};
use brodo_core::link::{Link, RxFrame};
use brodo_core::memory::budget::WORKERS_MAX;
use brodo_core::stack::Stack;
use freeze::Freeze;
pub use freeze::NotFrozen;
use rustix::event::{EventfdFlags, eventfd};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Waker and queued commands of a worker.
struct Mailbox {
    waker: OwnedFd,
    /// None once the worker has ended.
    commands: Mutex<Option<Vec<Command>>>,
}

/// Shared state of the workers of one program: a way to reach each, and the frames re-steered to the first.
pub struct Workers {
    mailboxes: Vec<Mailbox>,
    freeze: Freeze,
    resteering: Arc<Resteering>,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("workers", &self.mailboxes.len()).finish_non_exhaustive()
    }
}

impl Workers {
    /// State for this number of workers.
    ///
    /// # Errors
    /// More than [`WORKERS_MAX`], or eventfd failed: no descriptors.
    pub fn new(workers: u32) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        if workers > WORKERS_MAX {
            let why = format!("{workers} workers, but at most {WORKERS_MAX} are possible");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let mailbox = |_| Ok(Mailbox { waker: eventfd(0, flags)?, commands: Mutex::new(Some(Vec::new())) });
        let mailboxes = (0..workers).map(mailbox).collect::<rustix::io::Result<_>>()?;
        Ok(Self { mailboxes, freeze: Freeze::default(), resteering: Arc::new(Resteering::new(workers)) })
    }

    /// Number of workers.
    pub fn workers(&self) -> u32 {
        self.mailboxes.len() as u32
    }

    /// Leaves a command with a worker. It is refused, which is to say dropped, if there is no such worker, if
    /// it has ended, or if [`COMMANDS_MAX`] are queued for it already; a caller that waits for a reply learns
    /// that.
    pub fn send(&self, worker: u32, command: Command) {
        let Some(mailbox) = self.mailboxes.get(worker as usize) else { return };
        if let Some(commands) = &mut *mailbox.commands.lock().unwrap_or_else(PoisonError::into_inner)
            && commands.len() < COMMANDS_MAX
        {
            commands.push(command);
        }
        self.wake(1 << worker);
    }

    /// Sends a request: `command` makes the command around the destination of its reply.
    pub fn ask<T>(&self, worker: u32, command: impl FnOnce(ReplyTo<T>) -> Command) -> Pending<T> {
        let (reply, pending) = ReplyTo::new();
        self.send(worker, command(reply));
        pending
    }

    /// Takes the commands for `worker`.
    fn take_commands(&self, worker: u32) -> Vec<Command> {
        let Some(mailbox) = self.mailboxes.get(worker as usize) else { return Vec::new() };
        let mut commands = mailbox.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Drops all commands, queued and future: the workers have ended.
    pub fn close(&self) {
        for mailbox in &self.mailboxes {
            mailbox.commands.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }

    /// Descriptor to wait for, edge-triggered: every wake-up is an event, and it is never read.
    pub(crate) fn waker(&self, worker: u32) -> BorrowedFd<'_> {
        self.mailboxes[worker as usize].waker.as_fd()
    }

    /// Wakes workers, one bit each.
    pub fn wake(&self, mut workers: u64) {
        while workers != 0 {
            let worker = workers.trailing_zeros();
            workers &= workers - 1;
            if let Some(mailbox) = self.mailboxes.get(worker as usize) {
                // It could only fail after 2^64 writes.
                let _ = rustix::io::write(&mailbox.waker, &1u64.to_ne_bytes());
            }
        }
    }

    /// Stops all workers.
    pub fn stop(&self) {
        self.freeze.stop();
        self.wake(u64::MAX);
    }

    /// Whether all workers must stop.
    pub fn is_stopping(&self) -> bool {
        self.freeze.is_stopping()
    }

    /// Has all workers park at the end of their turn ([`crate::handover`]).
    pub fn freeze(&self) {
        self.freeze.request();
        self.wake(u64::MAX);
    }

    /// Whether all workers must park.
    pub fn is_freezing(&self) -> bool {
        self.freeze.is_requested()
    }

    /// Has parked workers go on.
    pub(crate) fn thaw(&self) {
        self.freeze.thaw();
    }

    /// Parks the calling worker. False if it must end instead of going on.
    pub(crate) fn park(&self) -> bool {
        self.freeze.park()
    }

    /// Waits until all workers but the calling first one are parked.
    ///
    /// # Errors
    /// One of them stands still, or all must stop.
    pub(crate) fn await_parked(&self) -> Result<(), NotFrozen> {
        self.freeze.await_parked(self.workers().saturating_sub(1))
    }
}

/// One worker among the others.
#[derive(Debug, Clone)]
pub struct WorkerHandle {
    workers: Arc<Workers>,
    number: u32,
}

impl WorkerHandle {
    /// The worker of this number, counted from 0.
    ///
    /// # Errors
    /// There is no such worker.
    pub fn new(workers: Arc<Workers>, number: u32) -> io::Result<Self> {
        if number < workers.workers() {
            Ok(Self { workers, number })
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no worker {number}")))
        }
    }

    /// Whether it is the first worker, which polls shared sources for all and owns the inbound flows.
    pub fn is_first(&self) -> bool {
        self.number == 0
    }

    /// All workers.
    pub fn workers(&self) -> &Arc<Workers> {
        &self.workers
    }

    /// Counters of re-steered frames: of the first worker those of all, of another none.
    pub(crate) fn resteered(&self) -> ResteerCounters {
        if self.is_first() { self.resteering().counters() } else { ResteerCounters::default() }
    }

    /// Frames on their way to other workers.
    pub(crate) fn resteering(&self) -> &Arc<Resteering> {
        &self.workers.resteering
    }

    /// Wakes workers, one bit each.
    pub(crate) fn wake(&self, workers: u64) {
        self.workers.wake(workers);
    }

    pub(crate) fn waker(&self) -> BorrowedFd<'_> {
        self.workers.waker(self.number)
    }

    /// Takes the commands for this worker.
    pub(crate) fn take_commands(&self) -> Vec<Command> {
        self.workers.take_commands(self.number)
    }

    /// Takes the frames re-steered to this worker. Workers that have waited for that are woken.
    pub(crate) fn take_resteered(&self) -> Vec<ResteeredFrame> {
        let (frames, waiting) = self.resteering().take(self.number);
        self.wake(waiting);
        frames
    }

    /// Sets a counter of re-steered frames by its name, after a hand-over.
    pub(crate) fn set_resteered(&self, name: &str, value: u64) {
        if self.is_first() {
            self.resteering().set_counter(name, value);
        }
    }

    /// Whether frames of this worker's link may belong to another one.
    pub(crate) fn has_others(&self) -> bool {
        self.workers.workers() > 1
    }

    /// Whether all other workers have room for a batch; if not, this one is woken when they may have.
    pub(crate) fn has_room(&self) -> bool {
        self.resteering().has_room(self.number)
    }

    /// Passes on frames that the stack has put together for other workers.
    pub(crate) fn pass_on(&self, stack: &mut Stack) {
        for (owner, frame) in stack.take_passed() {
            self.resteering().put(owner, ResteeredKind::Reassembled, frame.into());
            self.wake(1 << owner);
        }
    }

    /// Leaves a frame of `link` for the worker that it belongs to, unless that is this one; the worker to be
    /// woken.
    pub(crate) fn resteer(&self, stack: &mut Stack, link: &impl Link, frame: &RxFrame<'_>) -> Option<u32> {
        let resteering = self.resteering();
        let owner = stack.steer(frame, |port| resteering.publishes(port))?;
        let mut whole = vec![0; frame.len()];
        let len = frame.read_whole(link, &mut whole);
        whole.truncate(len);
        resteering.put(owner, ResteeredKind::Received(frame.meta), whole.into());
        Some(owner)
    }

    /// Whether all workers must stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.workers.is_stopping()
    }

    /// Whether all workers must park.
    pub(crate) fn is_freezing(&self) -> bool {
        self.workers.is_freezing()
    }
}

#[cfg(test)]
mod tests;
