//! What the workers of one program have to do with each other.
//!
//! A worker has a thread, a queue of the guest's TAP, a stack, sockets and an epoll instance of its own, and no other worker
//! looks at them. That works because the kernel never gives frames of one flow to two queues. A frame of the guest's goes to
//! the queue that last wrote a frame of its flow; for a flow that no queue has written a frame of in the last seconds, a
//! hash of its addresses and ports that is the same both ways chooses among the queues (`tun_automq_select_queue` and
//! `tun_flow_update` in the kernel's drivers/net/tun.c). Each worker answers only what came by its own queue, so what was
//! written never says anything else than the hash; and the hash says the same as long as the number of queues does. So all
//! queues are attached before the interface comes up, and stay open until all workers have ended. `link/tap/tests.rs` holds
//! the running kernel to it.
//!
//! Not every packet has ports: ICMP goes by its two addresses alone. An ICMP error of the guest's (nobody listens on a UDP
//! port) may therefore reach a worker that has no such flow; the flow then ends by its time-out. And a worker's ICMP error
//! about a remote host may for some seconds turn the guest's pings of that host to that worker, which opens an echo flow
//! of its own; answers to earlier ones still arrive.
//!
//! Fragments are the same: they have no ports by which to choose, so those of a UDP conversation may come to another worker than
//! its short datagrams, which then opens a flow of its own.
//!
//! What workers share is little: the memory budget ([`brodo_core::budget`]), a capture's file, and this: each has a bell, an
//! eventfd in its epoll instance, that another rings when it has given back memory for which the first one waits, or
//! when all are to end.
//!
//! Other threads (the control socket's) never touch a worker either. They leave a [`Visit`] with the worker's bell, and the
//! worker makes it between two turns of its loop: no lock is held while it works, and nothing is asked of it while nobody
//! wants to know.
//!
//! System calls: eventfd, write.

use crate::driver::Inside;
use rustix::event::{EventfdFlags, eventfd};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Something that a worker does on its own thread, between two turns, for somebody who waits for it elsewhere. It should be
/// brief: frames wait meanwhile.
pub type Visit = Box<dyn FnOnce(&mut Inside<'_>) + Send>;

/// What others reach a worker by.
struct Door {
    bell: OwnedFd,
    /// None once nobody will make them any more.
    visits: Mutex<Option<Vec<Visit>>>,
}

/// The bells of all workers of one program.
pub struct Crew {
    doors: Vec<Door>,
    stopping: AtomicBool,
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").field("workers", &self.doors.len()).finish_non_exhaustive()
    }
}

impl Crew {
    /// A crew of so many workers, at most [`brodo_core::budget::WORKERS_MAX`].
    ///
    /// # Errors
    /// eventfd failed: no descriptors.
    pub fn new(workers: u32) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let door = |_| Ok(Door { bell: eventfd(0, flags)?, visits: Mutex::new(Some(Vec::new())) });
        let doors = (0..workers).map(door).collect::<rustix::io::Result<_>>()?;
        Ok(Self { doors, stopping: AtomicBool::new(false) })
    }

    /// How many workers there are.
    pub fn workers(&self) -> u32 {
        self.doors.len() as u32
    }

    /// Has `worker` make `visit` soon. It is dropped instead if there is no such worker, or none any more: whoever waits for its
    /// result should notice that.
    pub fn visit(&self, worker: u32, visit: Visit) {
        let Some(door) = self.doors.get(worker as usize) else { return };
        if let Some(visits) = &mut *door.visits.lock().unwrap_or_else(PoisonError::into_inner) {
            visits.push(visit);
        }
        self.wake(1 << worker);
    }

    /// What `worker` is to do.
    pub(crate) fn take_visits(&self, worker: u32) -> Vec<Visit> {
        let Some(door) = self.doors.get(worker as usize) else { return Vec::new() };
        let mut visits = door.visits.lock().unwrap_or_else(PoisonError::into_inner);
        visits.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Drops all visits, those that were not made and those still to come: the workers have ended.
    pub fn close(&self) {
        for door in &self.doors {
            door.visits.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }

    /// The descriptor to wait for, edge-triggered: every ring is an event, and nobody reads it.
    pub(crate) fn bell(&self, worker: u32) -> BorrowedFd<'_> {
        self.doors[worker as usize].bell.as_fd()
    }

    /// Rings for some workers, one bit each.
    pub fn wake(&self, mut workers: u64) {
        while workers != 0 {
            let worker = workers.trailing_zeros();
            workers &= workers - 1;
            if let Some(door) = self.doors.get(worker as usize) {
                // It could only fail after 2^64 rings.
                let _ = rustix::io::write(&door.bell, &1u64.to_ne_bytes());
            }
        }
    }

    /// Tells all workers to end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake(u64::MAX);
    }

    /// Whether all are to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests;
