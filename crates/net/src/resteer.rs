//! Re-steering: frames of inbound flows that the kernel has steered to another worker than the first.
//!
//! Inbound flows belong to the first worker, whose writes steer the guest's frames of them to its queue, but
//! only for some seconds after each ([`crate::workers`]). Afterwards another worker may get one: a TCP
//! segment for a connection that it does not know, or a datagram from a published port. It leaves that here;
//! the first worker's answer steers the next ones to the right queue again.
//!
//! The queue is bounded: further frames are lost, as in any full queue, and their sender retransmits them.

use brodo_core::link::RxMeta;
use brodo_core::stack::Resteer;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Most frames in the queue to the first worker.
pub(crate) const FRAMES_MAX: usize = 256;
/// UDP ports, one bit each.
const PORT_WORDS: usize = 1 << 10;

brodo_core::counters! {
    /// Frames of inbound flows that the kernel gave to another worker than the first.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct ResteerCounters named "frames_" {
        /// Frames re-steered to the first worker.
        resteered,
        /// Frames dropped because the queue to the first worker was full.
        resteered_lost,
    }
}

/// A frame on its way to the first worker.
#[derive(Debug)]
pub(crate) struct ResteeredFrame {
    pub(crate) meta: RxMeta,
    pub(crate) bytes: Box<[u8]>,
}

#[derive(Default)]
struct Queue {
    frames: Vec<ResteeredFrame>,
    counters: ResteerCounters,
}

/// Frames on their way to the first worker, and the criteria for such frames.
pub(crate) struct Resteering {
    /// Whether inbound flows are possible.
    inbound: AtomicBool,
    /// The guest's UDP ports that are published.
    datagram_ports: Box<[AtomicU64]>,
    queue: Mutex<Queue>,
}

impl Default for Resteering {
    fn default() -> Self {
        let datagram_ports = std::iter::repeat_with(AtomicU64::default).take(PORT_WORDS).collect();
        Self { inbound: AtomicBool::new(false), datagram_ports, queue: Mutex::default() }
    }
}

impl Resteering {
    /// Notes that inbound flows are possible from now on.
    pub(crate) fn expect_inbound(&self) {
        self.inbound.store(true, Ordering::Release);
    }

    /// Whether inbound flows are possible.
    pub(crate) fn expects_inbound(&self) -> bool {
        self.inbound.load(Ordering::Acquire)
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

    /// Whether a frame without a flow on its worker must be left with the first one.
    pub(crate) fn is_for_first(&self, frame: Resteer) -> bool {
        match frame {
            Resteer::Segment => true,
            Resteer::Datagram(port) => {
                self.datagram_ports[usize::from(port >> 6)].load(Ordering::Acquire) & 1 << (port & 63) != 0
            }
        }
    }

    /// Leaves a frame for the first worker, which must be woken then.
    pub(crate) fn put(&self, meta: RxMeta, frame: &[u8]) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.frames.len() < FRAMES_MAX {
            queue.frames.push(ResteeredFrame { meta, bytes: frame.into() });
            queue.counters.resteered += 1;
        } else {
            queue.counters.resteered_lost += 1;
        }
    }

    /// Takes all frames left here.
    pub(crate) fn take(&self) -> Vec<ResteeredFrame> {
        std::mem::take(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner).frames)
    }

    /// Sets a counter by its name, after a hand-over.
    pub(crate) fn set_counter(&self, name: &str, value: u64) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).counters.set(name, value);
    }

    /// Counters since the start.
    pub(crate) fn counters(&self) -> ResteerCounters {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).counters
    }
}
