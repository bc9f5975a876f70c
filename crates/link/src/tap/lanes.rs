//! A TAP by several queues of one worker: one for bulk flows, the others for all else.
//!
//! The ring of a queue is first in, first out, and bulk flows fill theirs with whatever their windows allow.
//! Each frame of ours is written to the queue of its lane ([`TxFrame::lane`]), and the kernel puts the
//! guest's next frames of the same flow where that was (`tun_flow_update`). So a bulk flow's frames wait
//! behind one another alone. Those of the other queues are taken first, each batch by itself, and looked for
//! before every batch of bulk, without waiting for an event.
//!
//! The first frame of a flow, for which nothing was written yet, comes to any queue by a hash. More than one
//! queue for sparse flows makes it the less likely that it waits behind bulk; once answered, they use the
//! first.
//!
//! With one queue all frames share it.

use super::Tap;
use crate::batch::Batch;
use crate::poller::Poller;
use crate::{CreditWait, EventFlags, FailedCall, GuestLink, LinkLosses, LinkReady, Taken};
use brodo_core::link::{Lane, Link, LinkCaps, NoCredit, TxFrame};
use rustix::fd::AsFd;
use std::io;

/// Number of queues of each of so many workers: three for sparse flows and one for bulk, or one of each where
/// more would be too many to pass in one message.
pub fn queues_of(workers: u32) -> u32 {
    if workers > 32 { 2 } else { 4 }
}

/// A queue.
#[derive(Debug)]
struct Queue {
    tap: Tap,
    /// It may have frames that no event will report again.
    readable: bool,
}

/// The queues of one worker, at least one; the last is for bulk flows.
#[derive(Debug)]
pub struct TapLanes {
    queues: Vec<Queue>,
    /// The queue that has refused a frame last.
    refusing: usize,
}

impl From<Tap> for TapLanes {
    fn from(tap: Tap) -> Self {
        Self::new(vec![tap])
    }
}

impl TapLanes {
    /// A link of these queues of one interface, the last of which is for bulk flows.
    ///
    /// # Panics
    /// There is none.
    pub fn new(queues: Vec<Tap>) -> Self {
        assert!(!queues.is_empty(), "a link has a queue");
        let queue = |tap| Queue { tap, readable: true };
        Self { queues: queues.into_iter().map(queue).collect(), refusing: 0 }
    }

    fn bulk(&self) -> usize {
        self.queues.len() - 1
    }

    fn queue_of(&self, lane: Lane) -> usize {
        match lane {
            Lane::Sparse => 0,
            Lane::Bulk => self.bulk(),
        }
    }

    /// Takes frames of one queue, until it is empty or the batch has no room.
    fn take_from(&mut self, queue: usize, batch: &mut Batch<'_>) -> Result<(), FailedCall> {
        let Queue { tap, readable } = &mut self.queues[queue];
        *readable = tap.take(batch)? == Taken::Some;
        Ok(())
    }
}

impl GuestLink for TapLanes {
    fn register(&mut self, poller: Poller<'_>) -> io::Result<()> {
        for (key, queue) in self.queues.iter().enumerate() {
            poller.add(&queue.tap, key as u32, EventFlags::IN | EventFlags::ET)?;
        }
        Ok(())
    }

    fn ready(&mut self, key: u32, events: EventFlags) -> LinkReady {
        if let Some(queue) = self.queues.get_mut(key as usize) {
            queue.readable = true;
        }
        LinkReady { frames: true, credit: events.contains(EventFlags::OUT) }
    }

    fn take(&mut self, batch: &mut Batch<'_>) -> Result<Taken, FailedCall> {
        if self.queues.iter().all(|queue| !queue.readable) {
            // The caller knows of frames without an event.
            self.queues.iter_mut().for_each(|queue| queue.readable = true);
        }
        let bulk = self.bulk();
        for sparse in 0..bulk {
            // An answer may have come to the first one while a batch of bulk was handled.
            if self.queues[sparse].readable || (sparse == 0 && self.queues[bulk].readable) {
                self.take_from(sparse, batch)?;
            }
        }
        if batch.frames().is_empty() && self.queues[bulk].readable {
            self.take_from(bulk, batch)?;
        }
        let is_empty = self.queues.iter().all(|queue| !queue.readable);
        Ok(if is_empty { Taken::All } else { Taken::Some })
    }

    /// As of [`Tap`], of the queue that has refused a frame.
    fn await_credit(&mut self, poller: Poller<'_>, awaited: bool) -> io::Result<()> {
        let room = if awaited { EventFlags::OUT } else { EventFlags::empty() };
        let fd = self.queues[self.refusing].tap.as_fd();
        Ok(poller.modify(fd, self.refusing as u32, EventFlags::IN | EventFlags::ET | room)?)
    }

    fn credit_wait(&self) -> Option<CreditWait> {
        self.queues[self.refusing].tap.credit_wait()
    }

    fn forget_refusal(&mut self) {
        self.queues[self.refusing].tap.forget_refusal();
    }

    fn has_lossy_ring(&self) -> bool {
        self.queues.iter().any(|queue| queue.tap.has_lossy_ring())
    }

    fn has_lanes(&self) -> bool {
        self.queues.len() > 1
    }

    fn gone(&self) -> bool {
        self.queues.iter().any(|queue| queue.tap.gone())
    }

    fn losses(&self) -> LinkLosses {
        let mut losses = LinkLosses::default();
        self.queues.iter().for_each(|queue| losses.add(&queue.tap.losses()));
        losses
    }
}

impl Link for TapLanes {
    fn caps(&self) -> LinkCaps {
        self.queues[0].tap.caps()
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), NoCredit> {
        let index = self.queue_of(frame.lane);
        let queue = &mut self.queues[index];
        // A write runs the guest's TCP: its answer is there at once.
        queue.readable = true;
        let sent = queue.tap.send(frame);
        if sent.is_err() {
            self.refusing = index;
        }
        sent
    }
}
