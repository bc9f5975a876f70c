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
//! A flow that began on the host's side ([`crate::forward`]) belongs to the first worker, whatever the hash says. What that worker writes brings the guest's frames of
//! it to its queue, but only for some seconds after each. Afterwards another worker may get one: a TCP segment for a connection that
//! it does not know, or a datagram from a published port. It leaves that with the first worker ([`Workers::resteer`]), whose answer brings the next ones
//! to the right queue again.
//!
//! Not every packet has ports: ICMP goes by its two addresses alone. An ICMP error of the guest's (nobody listens on a UDP
//! port) may therefore reach a worker that has no such flow; the flow then ends by its time-out. And a worker's ICMP error
//! about a remote host may for some seconds turn the guest's pings of that host to that worker, which opens an echo flow
//! of its own; answers to earlier ones still arrive.
//!
//! Fragments are the same: they have no ports by which to choose, so those of a UDP conversation may come to another worker than
//! its short datagrams, which then opens a flow of its own.
//!
//! What workers share is little: the memory budget ([`brodo_core::memory::budget`]), a capture's file, and this: each has a waker, an
//! eventfd in its epoll instance, that another rings when it has given back memory for which the first one waits, or
//! when all are to end.
//!
//! Other threads (the control socket's) never touch a worker either. They leave a [`Visit`] with the worker's waker, and the
//! worker makes it between two turns of its loop: no lock is held while it works, and nothing is asked of it while nobody
//! wants to know.
//!
//! System calls: eventfd, write.

use crate::driver::WorkerView;
use brodo_core::link::RxMeta;
use brodo_core::stack::Resteer;
use rustix::event::{EventfdFlags, eventfd};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Something that a worker does on its own thread, between two turns, for somebody who waits for it elsewhere. It should be
/// brief: frames wait meanwhile.
pub type Visit = Box<dyn FnOnce(&mut WorkerView<'_>) + Send>;

/// Frames left with the first worker that it has not taken yet. More are lost, as in any queue that is full: who has sent them sends them again.
const RESTEERED_MAX: usize = 256;
/// UDP ports, one bit each.
const PORT_WORDS: usize = 1 << 10;

/// What was left with the first worker.
#[derive(Default)]
struct Resteered {
    frames: Vec<(RxMeta, Box<[u8]>)>,
    passed: u64,
    lost: u64,
}

/// How other threads reach a worker.
struct WorkerHandle {
    waker: OwnedFd,
    /// None once nobody will make them any more.
    visits: Mutex<Option<Vec<Visit>>>,
}

/// What the workers of one program share: a handle of each, and the frames re-steered to the first.
pub struct Workers {
    handles: Vec<WorkerHandle>,
    stopping: AtomicBool,
    /// Flows may begin on the host's side.
    inbound: AtomicBool,
    /// The guest's UDP ports that are published.
    datagram_ports: Box<[AtomicU64]>,
    resteered: Mutex<Resteered>,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("workers", &self.handles.len()).finish_non_exhaustive()
    }
}

impl Workers {
    /// So many workers, at most [`brodo_core::memory::budget::WORKERS_MAX`].
    ///
    /// # Errors
    /// eventfd failed: no descriptors.
    pub fn new(workers: u32) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let handle = |_| Ok(WorkerHandle { waker: eventfd(0, flags)?, visits: Mutex::new(Some(Vec::new())) });
        let handles = (0..workers).map(handle).collect::<rustix::io::Result<_>>()?;
        let datagram_ports = std::iter::repeat_with(AtomicU64::default).take(PORT_WORDS).collect();
        let (stopping, inbound, resteered) = Default::default();
        Ok(Self { handles, stopping, inbound, datagram_ports, resteered })
    }

    /// How many workers there are.
    pub fn workers(&self) -> u32 {
        self.handles.len() as u32
    }

    /// Has `worker` make `visit` soon. It is dropped instead if there is no such worker, or none any more: whoever waits for its
    /// result should notice that.
    pub fn visit(&self, worker: u32, visit: Visit) {
        let Some(handle) = self.handles.get(worker as usize) else { return };
        if let Some(visits) = &mut *handle.visits.lock().unwrap_or_else(PoisonError::into_inner) {
            visits.push(visit);
        }
        self.wake(1 << worker);
    }

    /// What `worker` is to do.
    pub(crate) fn take_visits(&self, worker: u32) -> Vec<Visit> {
        let Some(handle) = self.handles.get(worker as usize) else { return Vec::new() };
        let mut visits = handle.visits.lock().unwrap_or_else(PoisonError::into_inner);
        visits.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Drops all visits, those that were not made and those still to come: the workers have ended.
    pub fn close(&self) {
        for handle in &self.handles {
            handle.visits.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }

    /// Flows may begin on the host's side from now on.
    pub(crate) fn expect_inbound(&self) {
        self.inbound.store(true, Ordering::Release);
    }

    /// Notes whether this UDP port of the guest is published.
    pub(crate) fn publish_datagrams(&self, port: u16, published: bool) {
        let (word, bit) = (&self.datagram_ports[usize::from(port >> 6)], 1 << (port & 63));
        if published {
            word.fetch_or(bit, Ordering::AcqRel);
        } else {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// Whether frames of flows that `worker` does not know may be the first one's.
    pub(crate) fn resteers(&self, worker: u32) -> bool {
        worker > 0 && self.inbound.load(Ordering::Acquire)
    }

    /// Whether such a frame is to be left with the first worker.
    pub(crate) fn is_for_first(&self, foreign: Resteer) -> bool {
        match foreign {
            Resteer::Segment => true,
            Resteer::Datagram(port) => {
                self.datagram_ports[usize::from(port >> 6)].load(Ordering::Acquire) & 1 << (port & 63) != 0
            }
        }
    }

    /// Leaves a frame with the first worker.
    pub(crate) fn resteer(&self, meta: RxMeta, frame: &[u8]) {
        let mut resteered = self.resteered.lock().unwrap_or_else(PoisonError::into_inner);
        if resteered.frames.len() < RESTEERED_MAX {
            resteered.frames.push((meta, frame.into()));
            resteered.passed += 1;
        } else {
            resteered.lost += 1;
        }
        drop(resteered);
        self.wake(1);
    }

    /// What was left with `worker`.
    pub(crate) fn take_resteered(&self, worker: u32) -> Vec<(RxMeta, Box<[u8]>)> {
        if worker > 0 || !self.inbound.load(Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut self.resteered.lock().unwrap_or_else(PoisonError::into_inner).frames)
    }

    /// Frames that workers have left with the first one since the start, and those that found no room.
    pub fn resteered(&self) -> (u64, u64) {
        let resteered = self.resteered.lock().unwrap_or_else(PoisonError::into_inner);
        (resteered.passed, resteered.lost)
    }

    /// The descriptor to wait for, edge-triggered: every ring is an event, and nobody reads it.
    pub(crate) fn waker(&self, worker: u32) -> BorrowedFd<'_> {
        self.handles[worker as usize].waker.as_fd()
    }

    /// Rings for some workers, one bit each.
    pub fn wake(&self, mut workers: u64) {
        while workers != 0 {
            let worker = workers.trailing_zeros();
            workers &= workers - 1;
            if let Some(handle) = self.handles.get(worker as usize) {
                // It could only fail after 2^64 rings.
                let _ = rustix::io::write(&handle.waker, &1u64.to_ne_bytes());
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
