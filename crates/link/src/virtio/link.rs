//! The link of one worker to a virtual machine: frames over the rings of a [`NetDevice`].
//!
//! *Division.* Of several workers, worker w takes the guest's frames of the pairs n with n mod workers = w.
//! Frames to the guest go to the pair by which their flow has sent last ([`super::steering`]), whosever it
//! is, and to some other enabled one if that pair carries none.
//!
//! *Notification.* Each ring has a *kick*, an eventfd that the guest's writes reach, and a *call*, by which
//! the driver is notified. Kicks are watched edge-triggered and never read. While the loop is awake none is
//! asked for, because rings are looked at in every turn; before it waits the rings of the guest's frames are
//! armed ([`GuestLink::has_frames`]). The ring of frames to the guest is armed when it has refused a frame;
//! any worker may have been refused by any, so all watch all kicks of those. Calls are made once per turn and
//! ring, and after each [`CALL_BYTES`] of a long turn.
//!
//! *Back pressure.* A ring without buffers is `NoCredit`, as is the time without a ring (firmware, reboot, a
//! machine that is paused): payload stays in the host's kernel. Frames of the guest that are not taken stay
//! in its ring. One ring of several that stays without buffers, because its processor of the guest's does not
//! run or its driver withholds them, holds the others up for a moment only: then it is *starved*, and its
//! flows' frames go to other rings until it has buffers again.
//!
//! *Zero copy.* Ends of long segments may stay in the guest's memory while a batch is handled
//! ([`super::unread`]). Their ring is *lent* meanwhile: its buffers are shown as used before the next batch
//! is taken, or at the end of the turn. While set-up waits for a ring nothing is taken from it, though it is
//! reported to have more: a ring that is given back and lent again in one call would be lent whenever the
//! waiting thread looks.
//!
//! *Hostile guest.* Impossible content of a ring takes that ring out of service and nothing else; it is
//! counted.
//!
//! System calls: write, sendto, epoll_ctl.

use super::device::{NetDevice, Queue, RingSlot};
use super::queues::Sent;
use super::unread::UnreadFrames;
use crate::batch::Batch;
use crate::poller::Poller;
use crate::{CreditWait, EventFlags, FailedCall, GuestLink, LinkLosses, LinkReady, Taken};
use brodo_core::link::{Link, LinkCaps, NoCredit, TxFrame, Unread};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::Arc;

/// Keys below this one are never used, so that a link around this one may have descriptors of its own.
pub const KEY_MIN: u32 = 2;
/// Key of the announcements of changes.
pub(crate) const CHANGES: u32 = KEY_MIN;
/// Key of the first ring's kick; that of ring `n` is `n` more.
pub(crate) const KICKS: u32 = CHANGES + 1;

/// Bytes to the guest after which it is called within a turn, so that it works while the turn goes on.
const CALL_BYTES: usize = 64 << 10;

/// A worker's link over the rings of a device.
#[derive(Debug)]
pub struct VirtioLink {
    device: Arc<NetDevice>,
    worker: usize,
    /// Rings in service as last looked at: those from which this worker takes, and those of frames to the
    /// guest that are enabled.
    from_guest: Vec<usize>,
    to_guest: Vec<usize>,
    /// Rings may have changed since.
    changed: bool,
    /// Watched kicks.
    watched: Vec<(usize, Arc<OwnedFd>)>,
    /// The ring to begin with.
    first: usize,
    /// Resets of the device that [`GuestLink::take_reset`] has reported.
    resets: usize,
    /// Frames of the last batch whose ends are unread, and the rings that they are from.
    unread: Arc<UnreadFrames>,
    lent: Vec<usize>,
    /// Rings used since their driver was last asked whether it wants a call.
    used: Vec<usize>,
    /// A frame was refused since the last accepted one.
    refused: bool,
    /// The ring without buffers that has refused it.
    refused_by: Option<usize>,
    /// Whether this was announced to the worker since, because no kick will.
    retried: bool,
    /// Rings of frames to the guest that have had no buffers for too long.
    starved: Vec<usize>,
    /// Bytes sent since the last call.
    uncalled: usize,
    losses: LinkLosses,
}

impl VirtioLink {
    /// The link of this worker of the device's.
    pub fn new(device: Arc<NetDevice>, worker: usize) -> Self {
        Self {
            resets: device.resets(),
            device,
            worker,
            from_guest: Vec::new(),
            to_guest: Vec::new(),
            changed: true,
            watched: Vec::new(),
            first: 0,
            unread: Arc::default(),
            lent: Vec::new(),
            used: Vec::new(),
            refused: false,
            refused_by: None,
            retried: false,
            starved: Vec::new(),
            uncalled: 0,
            losses: LinkLosses::default(),
        }
    }

    /// The links of all workers of a device.
    pub fn all(device: &Arc<NetDevice>) -> Vec<Self> {
        (0..device.workers()).map(|worker| Self::new(device.clone(), worker)).collect()
    }

    /// The device.
    pub fn device(&self) -> &Arc<NetDevice> {
        &self.device
    }

    /// Has the link look at rings and kicks at the end of this turn, without an announcement.
    pub(crate) fn note_change(&mut self) {
        self.changed = true;
    }

    /// Counts of what was lost, to add to.
    pub(crate) fn losses_mut(&mut self) -> &mut LinkLosses {
        &mut self.losses
    }

    /// Whether this worker takes what the driver puts into a ring.
    fn takes(&self, ring: usize) -> bool {
        ring / 2 % self.device.workers() == self.worker
    }

    /// Looks at the rings in service and their kicks.
    fn look(&mut self, poller: Poller<'_>) {
        self.changed = false;
        self.starved.clear();
        self.from_guest.clear();
        let before = std::mem::take(&mut self.to_guest);
        let watched = std::mem::take(&mut self.watched);
        let pairs = self.device.pairs_in_use();
        for number in 0..self.device.rings() {
            let takes = self.takes(number);
            let mut ring = self.device.ring(number);
            let is_used = match &ring.queue {
                Some(Queue::FromGuest(_) | Queue::Control(_)) if takes => {
                    self.from_guest.push(number);
                    true
                }
                Some(Queue::ToGuest(_)) if ring.enabled && number / 2 < pairs => {
                    self.to_guest.push(number);
                    true
                }
                _ => false,
            };
            let Some(kick) = ring.kick.clone().filter(|_| is_used) else { continue };
            let is_watched = watched.iter().any(|(_, other)| Arc::ptr_eq(other, &kick));
            let events = EventFlags::IN | EventFlags::ET;
            if is_watched || poller.add(&kick, KICKS + number as u32, events).is_ok() {
                self.watched.push((number, kick));
            } else {
                // No descriptor to wait for: it would serve until the loop first sleeps.
                ring.break_ring();
                self.losses.broken_rings += 1;
                self.changed = true;
            }
        }
        for (_, kick) in &watched {
            if !self.watched.iter().any(|(_, other)| Arc::ptr_eq(other, kick)) {
                // The monitor has a copy, so closing alone would not end the watch.
                let _ = poller.remove(kick);
            }
        }
        self.retry_elsewhere(&before);
    }

    /// Has a refused frame sent again, if no kick can report that it may be: a ring has been added to those
    /// of `before`, or the one that has refused it is used no more.
    fn retry_elsewhere(&mut self, before: &[usize]) {
        let is_added = self.to_guest.iter().any(|ring| !before.contains(ring));
        let is_gone = self.refused_by.is_none_or(|ring| !self.to_guest.contains(&ring));
        let is_gone = is_gone && !self.to_guest.is_empty() && !self.retried;
        if self.refused && (is_added || is_gone) {
            self.retried = true;
            self.device.announce_to(self.worker);
        }
    }

    /// Takes a ring out of service for its content.
    fn break_ring(&mut self, ring: usize) {
        self.losses.broken_rings += 1;
        self.device.ring(ring).break_ring();
        // Others may hold it for one in service, and have frames for it.
        self.device.announce();
        self.changed = true;
    }

    /// Notes that a ring was used, and that its driver may want a call.
    fn note_used(&mut self, ring: usize) {
        if !self.used.contains(&ring) {
            self.used.push(ring);
        }
    }

    /// Calls the guest for rings that were used, if it wants that.
    fn call(&mut self) {
        self.uncalled = 0;
        while let Some(number) = self.used.pop() {
            let mut ring = self.device.ring(number);
            let RingSlot { memory, queue: Some(queue), .. } = &mut *ring else { continue };
            match queue.ring_mut().needs_call(memory) {
                Ok(true) => ring.call(),
                Ok(false) => {}
                Err(_) => {
                    drop(ring);
                    self.break_ring(number);
                }
            }
        }
    }

    /// Gives the guest's driver the buffers of the last batch back.
    pub(crate) fn release(&mut self) {
        if self.lent.is_empty() {
            return;
        }
        self.unread.clear();
        while let Some(number) = self.lent.pop() {
            let mut ring = self.device.ring(number);
            let RingSlot { memory, queue, .. } = &mut *ring;
            let released = match queue {
                Some(Queue::FromGuest(queue)) => queue.release(memory),
                _ => Ok(()),
            };
            self.device.give_back(number, &mut ring);
            drop(ring);
            match released {
                Ok(()) => self.note_used(number),
                Err(_) => self.break_ring(number),
            }
        }
    }

    /// The ring for a frame to the guest.
    fn ring_for(&self, frame: &TxFrame<'_>) -> Option<usize> {
        match self.to_guest.as_slice() {
            [] => None,
            [only] => Some(*only),
            several => {
                let pair = self.device.steering.pair(frame.headers);
                let found = several.binary_search(&(2 * pair));
                let own = found.unwrap_or(pair % several.len());
                let from_own = several[own..].iter().chain(&several[..own]);
                let fed = from_own.copied().find(|ring| !self.starved.contains(ring));
                Some(fed.unwrap_or(several[own]))
            }
        }
    }

    /// Takes frames from one ring.
    fn take_from(&mut self, number: usize, batch: &mut Batch<'_>) -> Taken {
        let several = self.to_guest.len() > 1;
        let before = batch.frames().len();
        let mut ring = self.device.ring(number);
        if ring.awaited {
            // Its lock is left to set-up, whose thread is about to run; the next turn has its frames.
            return Taken::Some;
        }
        let RingSlot { memory, queue, enabled, lent, .. } = &mut *ring;
        let taken = match queue {
            Some(Queue::FromGuest(queue)) => {
                let into = enabled.then_some(&mut *batch);
                let taken = queue.take(memory, into, &self.unread, &mut self.losses.oversized);
                *lent = batch.frames()[before..].iter().any(|frame| frame.unread.len > 0);
                if *lent {
                    self.lent.push(number);
                    taken
                } else {
                    taken.and_then(|taken| queue.release(memory).map(|()| taken))
                }
            }
            Some(Queue::Control(queue)) => queue.serve(memory).map(|pairs| {
                if let Some(pairs) = pairs {
                    self.device.use_pairs(pairs.into());
                    self.device.announce();
                    self.changed = true;
                }
                Taken::All
            }),
            _ => return Taken::All,
        };
        drop(ring);
        if several {
            for frame in &batch.frames()[before..] {
                self.device.steering.note(frame.bytes, number / 2);
            }
        }
        self.note_used(number);
        taken.unwrap_or_else(|_| {
            self.break_ring(number);
            Taken::All
        })
    }
}

impl Drop for VirtioLink {
    fn drop(&mut self) {
        self.release();
    }
}

impl Link for VirtioLink {
    fn caps(&self) -> LinkCaps {
        self.device.caps()
    }

    fn read(&self, unread: Unread, into: &mut [u8]) -> usize {
        self.unread.read(unread, into)
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), NoCredit> {
        (self.refused, self.refused_by, self.retried) = (true, None, false);
        let number = self.ring_for(frame).ok_or(NoCredit)?;
        let mut ring = self.device.ring(number);
        let RingSlot { memory, queue: Some(Queue::ToGuest(queue)), enabled: true, .. } = &mut *ring else {
            // It has changed, which will be announced.
            return Err(NoCredit);
        };
        match queue.send(memory, frame, self.worker) {
            Ok(Sent::Whole) => self.uncalled += frame.len(),
            Ok(Sent::TooLong) => self.losses.refused += 1,
            Ok(Sent::NoBuffers) => {
                self.refused_by = Some(number);
                return Err(NoCredit);
            }
            Err(_) => {
                drop(ring);
                self.break_ring(number);
                return Err(NoCredit);
            }
        }
        drop(ring);
        self.refused = false;
        self.note_used(number);
        if self.uncalled >= CALL_BYTES {
            self.call();
        }
        Ok(())
    }
}

impl GuestLink for VirtioLink {
    fn register(&mut self, poller: Poller<'_>) -> io::Result<()> {
        let changes = self.device.announcement(self.worker);
        Ok(poller.add(changes, CHANGES, EventFlags::IN | EventFlags::ET)?)
    }

    fn ready(&mut self, key: u32, _events: EventFlags) -> LinkReady {
        let Some(ring) = key.checked_sub(KICKS) else {
            self.changed = true;
            return LinkReady { frames: true, credit: true };
        };
        let ring = ring as usize;
        let is_to_guest = self.to_guest.binary_search(&ring).is_ok();
        let starved = self.starved.iter().position(|other| *other == ring);
        let was_starved = starved.map(|at| self.starved.swap_remove(at)).is_some();
        // Of a ring that has not refused anything it is another worker's event.
        let is_awaited = self.refused_by.is_none_or(|awaited| awaited == ring) || was_starved;
        LinkReady { frames: !is_to_guest, credit: is_to_guest && is_awaited }
    }

    fn take(&mut self, batch: &mut Batch<'_>) -> Result<Taken, FailedCall> {
        self.release();
        let count = self.from_guest.len();
        self.first = (self.first + 1) % count.max(1);
        let mut all = Taken::All;
        for at in 0..count {
            let ring = self.from_guest[(self.first + at) % count];
            if self.take_from(ring, batch) == Taken::Some {
                all = Taken::Some;
                if batch.room().is_none() {
                    break;
                }
            }
        }
        Ok(all)
    }

    fn has_frames(&mut self, arm: bool) -> bool {
        let mut has = false;
        for at in 0..self.from_guest.len() {
            let number = self.from_guest[at];
            let mut ring = self.device.ring(number);
            let RingSlot { memory, queue, enabled, .. } = &mut *ring;
            let found = match queue {
                None | Some(Queue::ToGuest(_)) => Ok(false),
                Some(Queue::FromGuest(queue)) if arm && !*enabled => queue.ring_mut().keep_armed(memory),
                Some(queue) if arm => queue.ring_mut().arm(memory, 1),
                Some(queue) => queue.ring_mut().has_chains(memory),
            };
            drop(ring);
            match found {
                Ok(found) => has |= found,
                Err(_) => self.break_ring(number),
            }
        }
        has
    }

    fn unread(&self) -> Option<Arc<UnreadFrames>> {
        Some(self.unread.clone())
    }

    fn flush(&mut self, poller: Poller<'_>) {
        self.release();
        self.call();
        if self.changed {
            self.look(poller);
        }
    }

    fn credit_wait(&self) -> Option<CreditWait> {
        let fed = |ring: &usize| Some(*ring) != self.refused_by && !self.starved.contains(ring);
        let has_other = self.refused_by.is_some() && self.to_guest.iter().any(fed);
        let wait = if has_other { CreditWait::EventAtFirst } else { CreditWait::Event };
        self.refused.then_some(wait)
    }

    /// The ring was armed when it refused.
    fn await_credit(&mut self, _poller: Poller<'_>, _awaited: bool) -> io::Result<()> {
        Ok(())
    }

    fn wait_overdue(&mut self) {
        self.starved.extend(self.refused_by);
    }

    fn forget_refusal(&mut self) {
        self.refused = false;
    }

    fn take_reset(&mut self) -> bool {
        let before = std::mem::replace(&mut self.resets, self.device.resets());
        before != self.resets
    }

    fn gone(&self) -> bool {
        false
    }

    fn losses(&self) -> LinkLosses {
        self.losses
    }
}

#[cfg(test)]
mod tests;
