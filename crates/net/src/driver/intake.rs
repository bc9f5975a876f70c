//! Intake of frames from the guest: taken in batches, re-steered if they belong to another worker, and passed
//! to the stack.
//!
//! A turn takes at most [`BATCH_FRAMES`] frames or [`BATCH_BYTES`], so that acknowledgements stay frequent
//! and sockets get their turn; fewer bytes while sparse flows use the link ([`Stack::turn_bytes`]). The link
//! is edge-triggered, so a turn that leaves frames behind remembers it.
//!
//! Frames come before timers because a machine may keep us off the processor for longer than a time-out:
//! answers of the guest meanwhile lie on the link, and must not be taken for lost. After such a pause the
//! timers wait until the link has been read empty, within a bound.

use super::pressure::Pressure;
use crate::captured_link::CapturedLink;
use crate::platform::Linux;
use crate::promotions::DivertedQueue;
use crate::workers::WorkerHandle;
use brodo_core::host::Host;
use brodo_core::link::{FRAME_MAX, Link, RxFrame};
use brodo_core::stack::{Io, Stack};
use brodo_core::time::{Duration, Instant};
use brodo_link::batch::{ARENA_LEN, BATCH_BYTES, BATCH_FRAMES, Batch};
use brodo_link::{FailedCall, GuestLink, Taken};

/// Longest wait of timers after a pause for the link to be read empty; a guest that never stops sending has
/// its timers all the same.
const CATCH_UP_MAX: Duration = Duration::from_millis(50);

/// The intake of one worker.
pub(super) struct Intake {
    /// Room for one batch.
    arena: Box<[u8]>,
    /// The link may have frames that no event will report again.
    pub(super) readable: bool,
    /// Another worker has no room for frames of its flows; this one is woken when it has.
    pub(super) blocked: bool,
    /// Bytes taken in this turn.
    pub(super) bytes: usize,
    pub(super) pressure: Pressure,
    /// After a pause: timers wait until the link has been read empty, or until then.
    catch_up: Option<Instant>,
}

impl Intake {
    pub(super) fn new() -> Self {
        Self {
            arena: vec![0; ARENA_LEN].into_boxed_slice(),
            readable: true,
            blocked: false,
            bytes: 0,
            pressure: Pressure::default(),
            catch_up: None,
        }
    }

    /// Notes a long pause of the worker.
    pub(super) fn paused(&mut self, now: Instant) {
        self.catch_up = Some(now + CATCH_UP_MAX);
        // The link's event may be behind those of many sockets.
        self.readable = true;
    }

    /// Whether timers may expire: no older answer of the guest's lies on the link, or the wait for that is
    /// over.
    pub(super) fn is_caught_up(&mut self, now: Instant) -> bool {
        let caught_up = !self.readable || self.catch_up.is_none_or(|until| until <= now);
        if caught_up {
            self.catch_up = None;
        }
        caught_up
    }

    /// Takes one batch, or several small ones; true if there were any frames.
    ///
    /// # Errors
    /// The link is broken for good.
    pub(super) fn take<L: GuestLink>(
        &mut self,
        stack: &mut Stack,
        io: &mut Io<'_, Linux<CapturedLink<L>>>,
        worker: &WorkerHandle,
    ) -> Result<bool, FailedCall> {
        let (mut taken, mut bytes) = (0, 0);
        let mut after_datagram = false;
        let bytes_max = stack.turn_bytes(io.now).min(BATCH_BYTES);
        while taken < BATCH_FRAMES && bytes < bytes_max {
            self.blocked = !has_room(worker);
            if self.blocked {
                break;
            }
            let mut batch = Batch::new(&mut self.arena[..bytes_max + FRAME_MAX], after_datagram);
            // A capture gets whole frames.
            if io.host.sends_unread() && io.link.capture.is_none() {
                batch.allow_unread();
            }
            let left = io.link.take(&mut batch)?;
            (taken, bytes) = (taken + batch.frames().len(), bytes + batch.bytes());
            self.bytes += batch.bytes();
            after_datagram = batch.ends_with_datagram();
            self.pressure.took(io.now, batch.frames().len(), batch.datagrams(), left == Taken::All);
            if left == Taken::All {
                stack.link_drained(io.now);
            }
            pass(worker, stack, io, batch.frames());
            if left == Taken::All {
                self.readable = false;
                return Ok(taken > 0);
            }
            if batch.frames().is_empty() {
                // The link has passed over frames, and the next turn has more.
                break;
            }
        }
        self.readable = true;
        Ok(taken > 0)
    }

    /// Takes one batch of datagrams from their own queue; true if more are waiting.
    pub(super) fn take_diverted<L: GuestLink>(
        &mut self,
        queue: &mut DivertedQueue,
        stack: &mut Stack,
        io: &mut Io<'_, Linux<CapturedLink<L>>>,
        worker: &WorkerHandle,
    ) -> bool {
        if !has_room(worker) {
            return false;
        }
        let bytes_max = stack.turn_bytes(io.now).min(BATCH_BYTES);
        let mut batch = Batch::new(&mut self.arena[..bytes_max + FRAME_MAX], true);
        queue.take(&mut batch, io.now);
        io.link.capture_taken(batch.frames());
        pass(worker, stack, io, batch.frames());
        queue.is_readable()
    }

    /// Whether the link is to be read again at once.
    pub(super) fn goes_on(&self) -> bool {
        self.readable && !self.blocked
    }
}

/// Whether all other workers have room for frames of their flows; this one is woken when they have.
fn has_room(worker: &WorkerHandle) -> bool {
    !worker.has_others() || worker.has_room()
}

/// Passes frames to the stack, and those of other workers' flows to them.
fn pass<L: GuestLink>(
    worker: &WorkerHandle,
    stack: &mut Stack,
    io: &mut Io<'_, Linux<CapturedLink<L>>>,
    frames: &mut [RxFrame<'_>],
) {
    let own = if worker.has_others() { keep_own(worker, stack, io.link, frames) } else { frames.len() };
    stack.frames(io, &frames[..own]);
    worker.pass_on(stack);
}

/// Re-steers frames of other workers' flows. The others are moved to the front; returns their number.
fn keep_own(worker: &WorkerHandle, stack: &mut Stack, link: &impl Link, frames: &mut [RxFrame<'_>]) -> usize {
    let (mut kept, mut wakes) = (0, 0);
    for index in 0..frames.len() {
        let frame = frames[index];
        if let Some(owner) = worker.resteer(stack, link, &frame) {
            wakes |= 1 << owner;
        } else {
            frames[kept] = frame;
            kept += 1;
        }
    }
    worker.wake(wakes);
    kept
}
