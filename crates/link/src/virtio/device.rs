//! A network device: its rings, as one or several workers serve them.
//!
//! *Numbers* (virtio 1.3, 5.1.2). Rings 2n and 2n + 1 are queue pair n: frames to the guest, frames of the
//! guest. A control queue stands where the driver expects it.
//!
//! *Sharing.* Each ring stands behind a lock of its own, with all that is used with it: the guest's memory,
//! and the descriptors of its notifications. A worker locks a ring for one frame to the guest, or for a batch
//! of the guest's. Locks are not contended but in two cases: a worker whose own ring is disabled sends by
//! another one's, and a frame to the guest goes to the pair by which its flow has sent last. Set-up locks
//! what it changes, so once [`NetDevice::stop_ring`] or [`NetDevice::set_memory`] has returned, no worker
//! uses what was before, and once [`NetDevice::enable_ring`] has disabled a ring, none sends from its
//! buffers. That is what a reply to a monitor promises. A ring that is *lent*, because a worker sends from
//! its buffers ([`super::unread`]), is waited for: to the end of a batch, as its worker takes nothing from a
//! ring that set-up waits for.
//!
//! *Changes.* Links keep lists of the rings in service. [`NetDevice::announce`] has all of them
//! look again.

use super::RingError;
use super::control::ControlQueue;
use super::memory::GuestMemory;
use super::queues::{FrameFormat, FromGuest, ToGuest};
use super::ring::{Filled, Layout, Ring};
use super::signal::Signal;
use super::steering::Steering;
use brodo_core::link::LinkCaps;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Most queue pairs of a device: rings are numbered with 8 bits by vhost-user.
pub const PAIRS_MAX: usize = 127;

/// Purpose of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Frames to the guest.
    ToGuest,
    /// Frames of the guest.
    FromGuest,
    /// Commands of the driver.
    Control,
}

impl Role {
    /// Purpose of a ring of a pair.
    pub const fn of_pair(ring: usize) -> Self {
        if ring.is_multiple_of(2) { Self::ToGuest } else { Self::FromGuest }
    }
}

/// A ring in service.
#[derive(Debug)]
pub(super) enum Queue {
    ToGuest(ToGuest),
    FromGuest(FromGuest),
    Control(ControlQueue),
}

impl Queue {
    fn ring(&self) -> &Ring {
        match self {
            Self::ToGuest(queue) => queue.ring(),
            Self::FromGuest(queue) => queue.ring(),
            Self::Control(queue) => queue.ring(),
        }
    }

    pub(super) fn ring_mut(&mut self) -> &mut Ring {
        match self {
            Self::ToGuest(queue) => queue.ring_mut(),
            Self::FromGuest(queue) => queue.ring_mut(),
            Self::Control(queue) => queue.ring_mut(),
        }
    }
}

/// A ring and all that is used with it.
#[derive(Debug, Default)]
pub(super) struct RingSlot {
    pub(super) memory: Arc<GuestMemory>,
    /// In service.
    pub(super) queue: Option<Queue>,
    pub(super) enabled: bool,
    pub(super) kick: Option<Arc<OwnedFd>>,
    call: Option<Signal>,
    error: Option<Signal>,
    /// Index of the next chain of a ring that is broken.
    broken_at: Option<u16>,
    /// A worker sends from buffers of frames that it has taken.
    pub(super) lent: bool,
    /// Set-up waits for the ring, until it has it: it is not to be lent anew.
    pub(super) awaited: bool,
}

impl RingSlot {
    /// Notifies the driver.
    pub(super) fn call(&self) {
        if let Some(call) = &self.call {
            call.send();
        }
    }

    /// Takes the ring out of service for its impossible content.
    pub(super) fn break_ring(&mut self) {
        self.broken_at = self.queue.take().map(|queue| queue.ring().next());
        self.report_broken();
    }

    fn report_broken(&self) {
        if let Some(error) = &self.error {
            error.send();
        }
    }
}

/// A device.
#[derive(Debug)]
pub struct NetDevice {
    rings: Box<[Mutex<RingSlot>]>,
    /// One for each ring, notified when it is lent no more.
    given_back: Box<[Condvar]>,
    /// Pairs by which frames go to the guest, as far as their rings are enabled.
    pairs_in_use: AtomicUsize,
    resets: AtomicUsize,
    /// Flags, and [`PACKET_MAX`] bits above them the longest packet, 0 for none.
    caps: AtomicU32,
    pub(super) steering: Steering,
    /// One for each worker, written when rings have changed.
    announcements: Box<[OwnedFd]>,
}

/// Bits of [`LinkCaps`].
const CHECKSUM: u32 = 1;
const TSO: u32 = 2;
const USO: u32 = 4;
const PACKET_MAX: u32 = 16;

impl NetDevice {
    /// A device of so many rings, none of which is in service, for so many workers.
    ///
    /// # Errors
    /// eventfd.
    pub fn new(rings: usize, workers: usize) -> io::Result<Arc<Self>> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let announcements = (0..workers).map(|_| eventfd(0, flags)).collect::<Result<_, _>>()?;
        Ok(Arc::new(Self {
            rings: std::iter::repeat_with(Mutex::default).take(rings).collect(),
            given_back: std::iter::repeat_with(Condvar::new).take(rings).collect(),
            pairs_in_use: AtomicUsize::new(PAIRS_MAX),
            resets: AtomicUsize::new(0),
            caps: AtomicU32::new(0),
            steering: Steering::default(),
            announcements,
        }))
    }

    /// Number of rings, in service or not.
    pub fn rings(&self) -> usize {
        self.rings.len()
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.announcements.len()
    }

    /// The eventfd of a worker.
    pub(super) fn announcement(&self, worker: usize) -> &OwnedFd {
        &self.announcements[worker]
    }

    /// A ring, which has to exist.
    pub(super) fn ring(&self, ring: usize) -> MutexGuard<'_, RingSlot> {
        self.rings[ring].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ring that is not lent.
    fn ring_at_rest(&self, ring: usize) -> MutexGuard<'_, RingSlot> {
        self.rest(ring, self.ring(ring))
    }

    /// Waits until a ring, which is locked, is not lent.
    fn rest<'a>(&'a self, ring: usize, mut slot: MutexGuard<'a, RingSlot>) -> MutexGuard<'a, RingSlot> {
        while slot.lent {
            slot.awaited = true;
            slot = self.given_back[ring].wait(slot).unwrap_or_else(PoisonError::into_inner);
        }
        // Of several that wait, the others note it again if they find the ring lent.
        slot.awaited = false;
        slot
    }

    /// Notes that a ring, which is locked, is lent no more.
    pub(super) fn give_back(&self, ring: usize, slot: &mut RingSlot) {
        slot.lent = false;
        if slot.awaited {
            self.given_back[ring].notify_all();
        }
    }

    /// Has the links of all workers look at rings, kicks and capabilities anew.
    pub fn announce(&self) {
        for worker in 0..self.workers() {
            self.announce_to(worker);
        }
    }

    /// Has the link of one worker look, and try again what was refused.
    pub(super) fn announce_to(&self, worker: usize) {
        // Full after 2^64 writes.
        let _ = rustix::io::write(&self.announcements[worker], &1_u64.to_ne_bytes());
    }

    /// Gives all rings this memory in the place of that which they have had. Rings that are not in it are
    /// taken out of service, and are not broken: their numbers, each with the index of its next chain.
    pub fn set_memory(&self, memory: &Arc<GuestMemory>) -> Vec<(usize, u16)> {
        let mut outside = Vec::new();
        for ring in 0..self.rings() {
            let mut slot = self.ring_at_rest(ring);
            slot.memory = memory.clone();
            let queue = slot.queue.take_if(|queue| !queue.ring().is_in(memory));
            outside.extend(queue.map(|queue| (ring, queue.ring().next())));
        }
        outside
    }

    /// Takes a ring into service; it goes on at its used index in the guest's memory. Its driver is called at
    /// once: of chains that were published before, by this worker or another, the call may be outstanding.
    ///
    /// # Errors
    /// [`RingError::Area`]: no such ring, or not in the guest's memory.
    pub fn start_ring(
        &self,
        ring: usize,
        role: Role,
        layout: Layout,
        format: FrameFormat,
    ) -> Result<(), RingError> {
        if ring >= self.rings() {
            return Err(RingError::Area);
        }
        let mut slot = self.ring_at_rest(ring);
        let filled = match role {
            Role::ToGuest => Filled::Device,
            Role::FromGuest => Filled::Driver,
            Role::Control => Filled::Both,
        };
        let started = Ring::start(layout, filled, &slot.memory)?;
        slot.queue = Some(match role {
            Role::ToGuest => Queue::ToGuest(ToGuest::new(started, format)),
            Role::FromGuest => Queue::FromGuest(FromGuest::new(started, format)),
            // The pairs before it.
            Role::Control => Queue::Control(ControlQueue::new(started, (ring / 2).max(1) as u16)),
        });
        slot.call();
        Ok(())
    }

    /// Takes a ring out of service; the index of its next chain, if it was in service or broken.
    pub fn stop_ring(&self, ring: usize) -> Option<u16> {
        let mut slot = self.ring_at_rest(ring);
        let broken_at = slot.broken_at.take();
        slot.queue.take().map(|queue| queue.ring().next()).or(broken_at)
    }

    /// Index of the next chain of a ring in service.
    pub fn position(&self, ring: usize) -> Option<u16> {
        self.ring(ring).queue.as_ref().map(|queue| queue.ring().next())
    }

    /// Whether a ring is in service.
    pub fn serves(&self, ring: usize) -> bool {
        self.ring(ring).queue.is_some()
    }

    /// Whether a ring in service carries frames: one of the guest's that does not loses them. Nothing is
    /// written any more to such a ring, unless its driver puts chains into it: it is armed beforehand.
    pub fn enable_ring(&self, ring: usize, enabled: bool) {
        let mut slot = self.ring(ring);
        if slot.enabled && !enabled {
            slot = self.rest(ring, slot);
            let RingSlot { memory, queue, .. } = &mut *slot;
            if let Some(Queue::FromGuest(queue)) = queue {
                // A ring that is broken is found by its worker.
                let _ = queue.ring_mut().arm(memory, 1);
            }
        }
        slot.enabled = enabled;
    }

    /// Whether [`NetDevice::enable_ring`] has enabled a ring.
    pub fn is_enabled(&self, ring: usize) -> bool {
        self.ring(ring).enabled
    }

    /// Descriptor by which the driver reports new chains. It is watched edge-triggered and never read.
    pub fn set_kick(&self, ring: usize, kick: Option<Arc<OwnedFd>>) {
        self.ring(ring).kick = kick;
    }

    /// Descriptor by which the driver is notified of used chains. It is notified at once, because a call by
    /// the descriptor before may have been lost with that.
    pub fn set_call(&self, ring: usize, call: Option<Arc<OwnedFd>>) {
        let mut slot = self.ring(ring);
        slot.call = call.map(Signal::new);
        slot.call();
    }

    /// Descriptor by which the monitor is notified that a ring is broken.
    pub fn set_error(&self, ring: usize, error: Option<Arc<OwnedFd>>) {
        self.ring(ring).error = error.map(Signal::new);
    }

    /// Notifies the monitor of a ring that is broken, one that cannot be taken into service.
    pub fn report_broken(&self, ring: usize) {
        self.ring(ring).report_broken();
    }

    /// Number of entries of the smallest ring of frames to the guest in service.
    pub fn least_ring_to_guest(&self) -> Option<u16> {
        let size = |ring| match &self.ring(ring).queue {
            Some(Queue::ToGuest(queue)) => Some(queue.ring().size()),
            _ => None,
        };
        (0..self.rings()).step_by(2).filter_map(size).min()
    }

    /// Number of pairs by which frames go to the guest; all of them at first. Of the rest only frames of the
    /// guest are taken.
    pub fn use_pairs(&self, pairs: usize) {
        self.pairs_in_use.store(pairs, Ordering::Relaxed);
    }

    /// Number of pairs by which frames go to the guest.
    pub fn pairs_in_use(&self) -> usize {
        self.pairs_in_use.load(Ordering::Relaxed)
    }

    /// Notes that the driver has reset the device, as another kernel does that begins, and one that loads its
    /// driver again or has slept. All workers learn of it with the next [`NetDevice::announce`].
    pub fn note_reset(&self) {
        self.resets.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of resets.
    pub fn resets(&self) -> usize {
        self.resets.load(Ordering::Relaxed)
    }

    /// Capabilities of the driver.
    pub fn set_caps(&self, LinkCaps { checksum, tso, uso, packet_max }: LinkCaps) {
        let bit = |has, bit| if has { bit } else { 0 };
        let flags = bit(checksum, CHECKSUM) | bit(tso, TSO) | bit(uso, USO);
        let packet_max = u32::from(packet_max.unwrap_or(0)) << PACKET_MAX;
        self.caps.store(flags | packet_max, Ordering::Relaxed);
    }

    /// Capabilities of the driver.
    pub fn caps(&self) -> LinkCaps {
        let caps = self.caps.load(Ordering::Relaxed);
        let has = |bit| caps & bit != 0;
        let packet_max = Some((caps >> PACKET_MAX) as u16).filter(|most| *most > 0);
        LinkCaps { checksum: has(CHECKSUM), tso: has(TSO), uso: has(USO), packet_max }
    }

    /// As at the begin: no ring is in service or has descriptors, and there is no memory.
    pub fn clear(&self) {
        for ring in 0..self.rings() {
            *self.ring_at_rest(ring) = RingSlot::default();
        }
        self.use_pairs(PAIRS_MAX);
        self.set_caps(LinkCaps::default());
        self.announce();
    }
}

#[cfg(test)]
mod tests;
