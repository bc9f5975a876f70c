//! The waker: other workers and other threads wake this worker by it, and leave frames with it.
//!
//! System calls: those of [`crate::workers`].

use crate::source::{Source, Turn};
use crate::workers::WorkerHandle;
use brodo_core::time::Instant;
use brodo_link::poller::Poller;
use brodo_link::{EventFlags, GuestLink};
use std::io;

/// This worker's waker.
pub(super) struct Waker {
    worker: WorkerHandle,
    /// Woken since the last turn.
    woken: bool,
}

impl Waker {
    pub(super) fn new(worker: WorkerHandle) -> Self {
        Self { worker, woken: false }
    }

    /// Whether it was woken for this turn, in which case there may be commands; false from then on.
    pub(super) fn take_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken)
    }
}

impl<L: GuestLink> Source<L> for Waker {
    /// Edge-triggered: each wake is an event, and the descriptor is never read.
    fn register(&mut self, poller: Poller<'_>) -> io::Result<()> {
        Ok(poller.add(self.worker.waker(), 0, EventFlags::IN | EventFlags::ET)?)
    }

    fn ready(&mut self, _: u32, _: EventFlags, _: Instant) {
        self.woken = true;
    }

    /// Takes frames re-steered to this worker: before those of its own link, which came later.
    fn turn(&mut self, turn: &mut Turn<'_, L>) -> bool {
        if !self.woken {
            return false;
        }
        let frames = self.worker.take_resteered();
        for frame in &frames {
            let (stack, mut io) = turn.stack();
            frame.deliver(stack, &mut io);
            self.worker.pass_on(stack);
        }
        !frames.is_empty()
    }
}
