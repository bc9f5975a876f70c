//! Re-steering: frames that came to another worker than the owner of their flow.
//!
//! [`brodo_core::stack::Stack::steer`] knows the owner. Its frames are copied into a queue, one for each
//! worker, and it is woken.
//!
//! *Order.* A woken worker takes the frames in its queue before those of its own link: when a flow moves to
//! the owner's queue, what had come to the former one is older.
//!
//! *Back pressure.* A worker takes no frames from its link while a queue to another one is nearly full, and
//! is woken when that has been emptied. So a bulk transfer whose sender has moved to another queue of a
//! virtual machine loses nothing: a batch of every worker fits behind the mark. Each worker empties its own
//! queue whatever it waits for itself, so no circle of them stands still.

use brodo_core::link::RxMeta;
use brodo_core::stack::{Io, Platform, Stack};
use brodo_link::batch::{ARENA_LEN, BATCH_FRAMES};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bytes in a queue from which it has no room for another batch.
pub(crate) const FULL: usize = 1 << 20;
/// Bytes that a frame costs besides its own.
pub(crate) const OVERHEAD: usize = 256;
/// Bytes that one batch may add to a queue.
const BATCH_MAX: usize = ARENA_LEN + BATCH_FRAMES * OVERHEAD;
/// UDP ports, one bit each.
const PORT_WORDS: usize = 1 << 10;

brodo_core::counters! {
    /// Frames that came to another worker than their flow's.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct ResteerCounters named "frames_" {
        /// Frames re-steered to the worker of their flow.
        resteered,
        /// Frames dropped because the queue to that worker was full.
        resteered_lost,
    }
}

/// A frame on its way to another worker.
#[derive(Debug)]
pub(crate) struct ResteeredFrame {
    pub(crate) kind: ResteeredKind,
    pub(crate) bytes: Box<[u8]>,
}

/// Origin of a frame on its way to another worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResteeredKind {
    /// From the link.
    Received(RxMeta),
    /// Put together from fragments.
    Reassembled,
}

impl ResteeredFrame {
    /// Gives the frame to the stack of its worker.
    pub(crate) fn deliver<P: Platform>(&self, stack: &mut Stack, io: &mut Io<'_, P>) {
        match self.kind {
            ResteeredKind::Received(meta) => stack.frame(io, meta, &self.bytes),
            ResteeredKind::Reassembled => stack.passed_frame(io, &self.bytes),
        }
    }
}

/// The way to one worker.
#[derive(Default)]
struct Queue {
    frames: Mutex<Vec<ResteeredFrame>>,
    /// Bytes in it, changed under the lock and readable without.
    bytes: AtomicUsize,
    /// Workers that wait until it is emptied, one bit each.
    waiting: AtomicU64,
}

/// Frames on their way to other workers, and the criteria for those that open a flow of the first one.
pub(crate) struct Resteering {
    queues: Box<[Queue]>,
    /// The guest's UDP ports that are published.
    datagram_ports: Box<[AtomicU64]>,
    resteered: AtomicU64,
    lost: AtomicU64,
}

impl Resteering {
    /// For this number of workers.
    pub(crate) fn new(workers: u32) -> Self {
        Self {
            queues: std::iter::repeat_with(Queue::default).take(workers as usize).collect(),
            datagram_ports: std::iter::repeat_with(AtomicU64::default).take(PORT_WORDS).collect(),
            resteered: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// Sets whether this UDP port of the guest is published.
    pub(crate) fn publish_datagrams(&self, port: u16, published: bool) {
        let (word, bit) = (&self.datagram_ports[usize::from(port >> 6)], 1 << (port & 63));
        if published {
            word.fetch_or(bit, Ordering::AcqRel);
        } else {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// Whether this UDP port of the guest is published.
    pub(crate) fn publishes(&self, port: u16) -> bool {
        self.datagram_ports[usize::from(port >> 6)].load(Ordering::Acquire) & 1 << (port & 63) != 0
    }

    /// Whether all queues but that of `worker` have room for a batch. If not, the worker is woken when they
    /// may have.
    pub(crate) fn has_room(&self, worker: u32) -> bool {
        let others = || self.queues.iter().enumerate().filter(|(other, _)| *other != worker as usize);
        let full = |queue: &Queue| queue.bytes.load(Ordering::SeqCst) >= FULL;
        others().all(|(_, queue)| {
            if !full(queue) {
                return true;
            }
            queue.waiting.fetch_or(1 << worker, Ordering::SeqCst);
            // It may have been emptied in between, before it could see the bit.
            !full(queue)
        })
    }

    /// Leaves a frame for a worker, which must be woken then.
    pub(crate) fn put(&self, worker: u32, kind: ResteeredKind, frame: Box<[u8]>) {
        let Some(queue) = self.queues.get(worker as usize) else { return };
        let mut frames = queue.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = queue.bytes.load(Ordering::SeqCst) + frame.len() + OVERHEAD;
        if bytes <= FULL + self.queues.len() * BATCH_MAX {
            frames.push(ResteeredFrame { kind, bytes: frame });
            queue.bytes.store(bytes, Ordering::SeqCst);
            self.resteered.fetch_add(1, Ordering::Relaxed);
        } else {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes all frames left for a worker, and the workers that have waited for that, one bit each.
    pub(crate) fn take(&self, worker: u32) -> (Vec<ResteeredFrame>, u64) {
        let Some(queue) = self.queues.get(worker as usize) else { return (Vec::new(), 0) };
        if queue.bytes.load(Ordering::SeqCst) == 0 {
            return (Vec::new(), 0);
        }
        let mut frames = queue.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = std::mem::take(&mut *frames);
        queue.bytes.store(0, Ordering::SeqCst);
        drop(frames);
        (taken, queue.waiting.swap(0, Ordering::SeqCst))
    }

    /// Sets a counter by its name, after a hand-over.
    pub(crate) fn set_counter(&self, name: &str, value: u64) {
        let mut counters = self.counters();
        counters.set(name, value);
        self.resteered.store(counters.resteered, Ordering::Relaxed);
        self.lost.store(counters.resteered_lost, Ordering::Relaxed);
    }

    /// Counters since the start, of all workers.
    pub(crate) fn counters(&self) -> ResteerCounters {
        ResteerCounters {
            resteered: self.resteered.load(Ordering::Relaxed),
            resteered_lost: self.lost.load(Ordering::Relaxed),
        }
    }
}
