//! In-process link: a guest inside the same process (a VMM's device model, a user-space stack, a test) and
//! brodo exchange frames through two bounded queues.
//!
//! Theory of operation. Each direction has a queue behind a mutex, filled by its producer, and a second one
//! that only its consumer owns. A consumer whose own queue is exhausted swaps the two under the lock, so the
//! lock is held for one copy of one frame (producer) or for one swap (consumer), and frames are lent to the
//! consumer as slices of its own queue. All memory is allocated with the link: two queues of
//! [`Options::queue_bytes`] per direction.
//!
//! Back pressure: a frame that finds the queue full is refused ([`NoCredit`] toward brodo's stack,
//! [`SendError::NoCredit`] toward the guest), nothing is taken, and the producer is notified when the
//! consumer has swapped. Nothing is ever dropped.
//!
//! Notification: each end has one eventfd, written when the queue toward it stops being empty, when room
//! comes back after a refusal, and when the other end is dropped. Both conditions are set and read under the
//! lock, so no wake-up is lost. An edge-triggered epoll instance need not read the eventfd;
//! [`GuestEnd::wait`] does.
//!
//! System calls: eventfd, read, write, poll.

use crate::batch::Batch;
use crate::poller::Poller;
use crate::{CreditWait, EventFlags, FailedCall, GuestLink, LinkReady, Taken};
use brodo_core::link::{FRAME_MAX, Gso, Link, LinkCaps, NoCredit, PartialChecksum, RxMeta, TxFrame};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Frames in one queue at most, however short they are.
const QUEUE_FRAMES_MAX: usize = 1024;

/// Shape of a channel link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Offloads of the guest: with [`LinkCaps::tso`] it must accept frames of up to [`FRAME_MAX`] bytes that
    /// carry a [`Gso`] size, with [`LinkCaps::checksum`] frames whose layer-4 checksum is partial.
    pub caps: LinkCaps,
    /// Capacity of each queue in bytes, at least [`FRAME_MAX`] (raised to it if less); default 1 MiB.
    pub queue_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { caps: LinkCaps::default(), queue_bytes: 1 << 20 }
    }
}

/// Offload metadata of a frame toward the guest, as virtio-net has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxMeta {
    /// Length of all headers in bytes: the part that segmentation repeats.
    pub header_len: usize,
    /// Checksum left to the guest, only with [`LinkCaps::checksum`].
    pub partial: Option<PartialChecksum>,
    /// Segmentation, only with [`LinkCaps::tso`] or [`LinkCaps::uso`].
    pub gso: Gso,
}

/// Reason why a frame of the guest was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendError {
    /// Queue full: the frame may be sent again after the next notification.
    NoCredit,
    /// Frame longer than [`FRAME_MAX`] bytes.
    TooLong,
    /// Network ended: nothing will be taken any more.
    Closed,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCredit => f.write_str("the queue toward brodo is full"),
            Self::TooLong => write!(f, "the frame is longer than {FRAME_MAX} bytes"),
            Self::Closed => f.write_str("the network has ended"),
        }
    }
}

impl std::error::Error for SendError {}

/// A connected pair: brodo's end, for the network, and the guest's.
///
/// # Errors
/// eventfd failed: no descriptors.
pub fn pair(options: Options) -> io::Result<(ChannelLink, GuestEnd)> {
    let capacity = options.queue_bytes.max(FRAME_MAX);
    let notify = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let shared = Arc::new(Shared {
        from_guest: Mutex::new(Filling::new(capacity)),
        to_guest: Mutex::new(Filling::new(capacity)),
        link_notify: notify()?,
        guest_notify: notify()?,
        closed: AtomicBool::new(false),
    });
    let link = ChannelLink {
        shared: Arc::clone(&shared),
        taken: Queue::new(capacity),
        caps: options.caps,
        refused: false,
    };
    Ok((link, GuestEnd { shared, taken: Queue::new(capacity) }))
}

/// Contiguous frames, each with its metadata and length.
#[derive(Debug)]
struct Queue<M> {
    bytes: Vec<u8>,
    frames: Vec<(M, usize)>,
    /// Frames already taken from the front, and their bytes.
    next: usize,
    offset: usize,
}

impl<M: Copy> Queue<M> {
    fn new(capacity: usize) -> Self {
        let frames = Vec::with_capacity(QUEUE_FRAMES_MAX);
        Self { bytes: Vec::with_capacity(capacity), frames, next: 0, offset: 0 }
    }

    fn is_exhausted(&self) -> bool {
        self.next == self.frames.len()
    }

    fn has_room(&self, len: usize) -> bool {
        self.bytes.len() + len <= self.bytes.capacity() && self.frames.len() < QUEUE_FRAMES_MAX
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.frames.clear();
        (self.next, self.offset) = (0, 0);
    }

    /// Appends one frame of `len` bytes gathered from `head` and `rest`; false, and nothing is taken, if it
    /// would exceed the capacity.
    fn push(&mut self, meta: M, len: usize, head: &[u8], rest: &[impl Deref<Target = [u8]>]) -> bool {
        if !self.has_room(len) {
            return false;
        }
        let before = self.bytes.len();
        self.bytes.extend_from_slice(head);
        for part in rest {
            self.bytes.extend_from_slice(part);
        }
        debug_assert_eq!(self.bytes.len() - before, len, "the length counts all parts");
        self.frames.push((meta, len));
        true
    }

    fn pop(&mut self) -> Option<(M, &[u8])> {
        let (meta, len) = *self.frames.get(self.next)?;
        let start = self.offset;
        self.next += 1;
        self.offset += len;
        Some((meta, &self.bytes[start..start + len]))
    }
}

/// The queue that a producer fills.
#[derive(Debug)]
struct Filling<M> {
    queue: Queue<M>,
    /// Whether a frame was refused since the last swap: the producer must be notified.
    starved: bool,
}

impl<M: Copy> Filling<M> {
    fn new(capacity: usize) -> Self {
        Self { queue: Queue::new(capacity), starved: false }
    }
}

#[derive(Debug)]
struct Shared {
    from_guest: Mutex<Filling<RxMeta>>,
    to_guest: Mutex<Filling<TxMeta>>,
    link_notify: OwnedFd,
    guest_notify: OwnedFd,
    closed: AtomicBool,
}

impl Shared {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        notify(&self.link_notify);
        notify(&self.guest_notify);
    }
}

fn lock<M>(filling: &Mutex<Filling<M>>) -> MutexGuard<'_, Filling<M>> {
    filling.lock().unwrap_or_else(PoisonError::into_inner)
}

fn notify(fd: &OwnedFd) {
    // EAGAIN needs 2^64 - 2 notifications that were never read, and the event is there even then.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Fills a queue; notifies `consumer` if it was empty. False if there is no room.
fn produce<M: Copy>(
    filling: &Mutex<Filling<M>>,
    consumer: &OwnedFd,
    meta: M,
    len: usize,
    head: &[u8],
    rest: &[impl Deref<Target = [u8]>],
) -> bool {
    let mut guard = lock(filling);
    let was_empty = guard.queue.frames.is_empty();
    let taken = guard.queue.push(meta, len, head, rest);
    guard.starved |= !taken;
    drop(guard);
    if taken && was_empty {
        notify(consumer);
    }
    taken
}

/// Refills an exhausted `taken` by swapping; notifies `producer` if it was refused room meanwhile.
fn refill<M: Copy>(filling: &Mutex<Filling<M>>, taken: &mut Queue<M>, producer: &OwnedFd) {
    if !taken.is_exhausted() {
        return;
    }
    taken.clear();
    let mut guard = lock(filling);
    if guard.queue.frames.is_empty() {
        return;
    }
    std::mem::swap(&mut guard.queue, taken);
    let starved = std::mem::take(&mut guard.starved);
    drop(guard);
    if starved {
        notify(producer);
    }
}

/// Brodo's end of a channel.
#[derive(Debug)]
pub struct ChannelLink {
    shared: Arc<Shared>,
    taken: Queue<RxMeta>,
    caps: LinkCaps,
    /// Whether the last frame was refused.
    refused: bool,
}

impl Link for ChannelLink {
    fn caps(&self) -> LinkCaps {
        self.caps
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), NoCredit> {
        if self.shared.is_closed() {
            return Ok(());
        }
        let meta = TxMeta { header_len: frame.headers.len(), partial: frame.partial, gso: frame.gso };
        let (head, rest) = (frame.headers, frame.payload);
        let sent = produce(&self.shared.to_guest, &self.shared.guest_notify, meta, frame.len(), head, rest);
        self.refused = !sent;
        if sent { Ok(()) } else { Err(NoCredit) }
    }
}

impl GuestLink for ChannelLink {
    fn register(&mut self, poller: Poller<'_>) -> io::Result<()> {
        Ok(poller.add(&self.shared.link_notify, 0, EventFlags::IN | EventFlags::ET)?)
    }

    /// One notification may mean both: frames, and room after a refusal.
    fn ready(&mut self, _key: u32, _events: EventFlags) -> LinkReady {
        LinkReady { frames: true, credit: self.refused }
    }

    fn take(&mut self, batch: &mut Batch<'_>) -> Result<Taken, FailedCall> {
        while let Some(room) = batch.room() {
            refill(&self.shared.from_guest, &mut self.taken, &self.shared.guest_notify);
            let Some((meta, frame)) = self.taken.pop() else { return Ok(Taken::All) };
            room[..frame.len()].copy_from_slice(frame);
            batch.push(meta, frame.len());
        }
        Ok(Taken::Some)
    }

    fn credit_wait(&self) -> Option<CreditWait> {
        self.refused.then_some(CreditWait::Event)
    }

    /// Already requested: the refusal itself requests a notification.
    fn await_credit(&mut self, _poller: Poller<'_>, _awaited: bool) -> io::Result<()> {
        Ok(())
    }

    fn forget_refusal(&mut self) {
        self.refused = false;
    }

    /// Gone only after the guest's last frames were taken.
    fn gone(&self) -> bool {
        self.shared.is_closed()
            && self.taken.is_exhausted()
            && lock(&self.shared.from_guest).queue.frames.is_empty()
    }
}

impl Drop for ChannelLink {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// The guest's end of a channel.
#[derive(Debug)]
pub struct GuestEnd {
    shared: Arc<Shared>,
    taken: Queue<TxMeta>,
}

impl GuestEnd {
    /// Sends one Ethernet frame whose checksums are complete, whole or not at all.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send(&mut self, frame: &[u8]) -> Result<(), SendError> {
        self.send_parts(RxMeta::default(), &[frame])
    }

    /// Sends one frame gathered from `parts` (descriptors of a virtio ring), with its offload metadata.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send_parts(&mut self, meta: RxMeta, parts: &[&[u8]]) -> Result<(), SendError> {
        let len = parts.iter().map(|part| part.len()).sum();
        if self.shared.is_closed() {
            return Err(SendError::Closed);
        }
        if len > FRAME_MAX {
            return Err(SendError::TooLong);
        }
        let sent = produce(&self.shared.from_guest, &self.shared.link_notify, meta, len, &[], parts);
        if sent { Ok(()) } else { Err(SendError::NoCredit) }
    }

    /// Whether a frame of `len` bytes would be taken now. If not, a notification comes when there is room
    /// again, as after a refusal.
    pub fn has_room(&mut self, len: usize) -> bool {
        let mut filling = lock(&self.shared.from_guest);
        let has_room = filling.queue.has_room(len);
        filling.starved |= !has_room;
        has_room
    }

    /// Takes the next frame, lent until the next call; `None` if there is none now.
    pub fn recv(&mut self) -> Option<(TxMeta, &[u8])> {
        refill(&self.shared.to_guest, &mut self.taken, &self.shared.link_notify);
        self.taken.pop()
    }

    /// Readable after a notification: frames to take, room to send, or the end of the network. For an epoll
    /// instance of the caller's, edge-triggered; after each event call [`GuestEnd::recv`] until `None`, and
    /// send refused frames again.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.guest_notify.as_fd()
    }

    /// Sleeps until the next notification, at most for `timeout`. A notification since the last call ends it
    /// at once.
    ///
    /// # Errors
    /// poll failed.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        match poll(&mut [PollFd::new(&self.shared.guest_notify, PollFlags::IN)], timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // EAGAIN after a time-out: nothing to reset.
        let _ = rustix::io::read(&self.shared.guest_notify, &mut [0; 8][..]);
        Ok(())
    }

    /// Whether the network has ended and no frame of it is left.
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
            && self.taken.is_exhausted()
            && lock(&self.shared.to_guest).queue.frames.is_empty()
    }
}

impl Drop for GuestEnd {
    fn drop(&mut self) {
        self.shared.close();
    }
}

#[cfg(feature = "smoltcp")]
mod smoltcp;
#[cfg(test)]
mod tests;
