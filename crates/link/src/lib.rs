//! brodo-link: links toward a guest, one file each.
//!
//! A link for the loop implements [`brodo_core::link::Link`] (send one frame or return "no credit") and
//! [`GuestLink`]: it registers its descriptors with the loop ([`poller`]), takes frames by batches
//! ([`batch`]), and reports the end of its guest. [`tap`] is the one for namespaces, [`socket`] and
//! [`vhost_user`] are those for virtual machines, [`channel`] is the one for a guest in the same process.
//! [`virtio`] has the rings of virtual machines, for any VMM. `unsafe` stands in `sys.rs` and in
//! `virtio/memory.rs` alone.

/// Named so that a model checker can put its own in their place (`tests/notifications.rs`).
mod atomic {
    pub(crate) use std::sync::atomic::{Ordering, fence};
}
pub mod batch;
pub mod channel;
pub mod connections;
pub mod poller;
mod slices;
pub mod socket;
pub mod spoken;
mod sys;
pub mod tap;
pub mod tun;
pub mod vhost_user;
pub mod virtio;
pub mod vnet;

use batch::Batch;
use brodo_core::link::Link;
use poller::Poller;
pub use rustix::event::epoll::EventFlags;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::fmt;
use std::io;
use std::sync::Arc;
use virtio::unread::UnreadFrames;

/// A system call that failed for good, by its name.
#[derive(Debug)]
pub struct FailedCall {
    /// Name of the call, or of the request of an ioctl.
    pub call: &'static str,
    /// Its error.
    pub error: io::Error,
}

impl FailedCall {
    /// For the error of `call`, in a `map_err`.
    pub fn of<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self { call, error: error.into() }
    }
}

impl fmt::Display for FailedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.error)
    }
}

impl std::error::Error for FailedCall {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Event to wait for after a link has refused a frame ([`brodo_core::link::NoCredit`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreditWait {
    /// Event of a descriptor: [`GuestLink::await_credit`].
    Event,
    /// Timer: no event will come (the kernel was out of memory), so try again after a short while.
    Timer,
    /// Event of a descriptor, for a short while at most: then the link has another way for the frame
    /// ([`GuestLink::wait_overdue`]).
    EventAtFirst,
}

/// Meaning of an event of a link's descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkReady {
    /// The guest may have sent frames.
    pub frames: bool,
    /// The link may have credit again.
    pub credit: bool,
}

/// Result of [`GuestLink::take`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The link was read empty.
    All,
    /// The batch is full: more frames may be waiting.
    Some,
}

brodo_core::counters! {
    /// Frames lost between the stack and the guest, in either direction, and their causes, since the start.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct LinkLosses named "link_" {
        /// Frames to the guest lost because its interface was down (EIO) or deleted (EBADFD), or because the
        /// connection to its virtual machine ended.
        down,
        /// Frames that the kernel refused (EINVAL and the like): a defect of ours, or an interface whose
        /// features changed.
        refused,
        /// Datagrams of the guest that found the queue of their own full.
        diverted_dropped,
        /// Frames of the guest longer than [`FRAME_MAX`](brodo_core::link::FRAME_MAX), or empty.
        oversized,
        /// Connections of a virtual machine ended for an impossible frame length: the borders of the frames
        /// in them are lost.
        bad_lengths,
        /// Connections of a virtual machine's monitor ended for a message that is not vhost-user's.
        bad_messages,
        /// Rings of a virtual machine taken out of service for content that no driver writes.
        broken_rings,
    }
}

/// State of a link for another process ([`GuestLink::save`]).
#[derive(Debug, Default)]
pub struct SavedLink<'a> {
    /// In a form of the link's own.
    pub bytes: Vec<u8>,
    /// Descriptors, in an order of the link's own.
    pub descriptors: Vec<BorrowedFd<'a>>,
}

/// A link as the loop sees it.
///
/// A second kind of link is one file in this crate that implements this trait and passes the tests of
/// `brodo-net`'s loop. In every turn the loop passes on events ([`GuestLink::ready`]), takes batches while
/// there are frames, sends, and calls [`GuestLink::flush`]; then it asks for a wait if a frame was refused.
pub trait GuestLink: Link {
    /// Registers the link's descriptors, edge-triggered, under keys of its choice. Frames that are already
    /// waiting need no event: the loop takes them in its first turn.
    ///
    /// # Errors
    /// epoll_ctl failed.
    fn register(&mut self, poller: Poller<'_>) -> io::Result<()>;

    /// Meaning of an event of the descriptor registered under `key`. By default every event may mean frames,
    /// and writability credit.
    fn ready(&mut self, key: u32, events: EventFlags) -> LinkReady {
        let _ = key;
        LinkReady { frames: true, credit: events.contains(EventFlags::OUT) }
    }

    /// Takes frames until the batch has no room ([`Batch::room`]) or the link is empty.
    ///
    /// # Errors
    /// The link is broken for good. The end of the guest is not an error, see [`GuestLink::gone`].
    fn take(&mut self, batch: &mut Batch<'_>) -> Result<Taken, FailedCall>;

    /// The frames whose ends the link leaves unread in a batch that allows it ([`Batch::allow_unread`]), to
    /// send from ([`UnreadFrames::send`]). By default it leaves none.
    fn unread(&self) -> Option<Arc<UnreadFrames>> {
        None
    }

    /// Sends frames gathered in this turn, at its end, and registers descriptors that have come since. By
    /// default there are none.
    fn flush(&mut self, poller: Poller<'_>) {
        let _ = poller;
    }

    /// Whether frames wait that no event has reported, at the end of a turn. With `arm` the loop is about to
    /// wait: if there are none, the next one is to have an event. By default every frame has one.
    fn has_frames(&mut self, arm: bool) -> bool {
        let _ = arm;
        false
    }

    /// Kind of wait, if a frame was refused since the last accepted one or [`GuestLink::forget_refusal`].
    fn credit_wait(&self) -> Option<CreditWait>;

    /// Requests an event for credit, or cancels the request. A repeated request asks for a new event.
    ///
    /// # Errors
    /// epoll_ctl failed.
    fn await_credit(&mut self, poller: Poller<'_>, awaited: bool) -> io::Result<()>;

    /// Notes that a wait of the kind [`CreditWait::EventAtFirst`] has lasted too long; its end follows. By
    /// default there is none.
    fn wait_overdue(&mut self) {}

    /// Ends the wait: [`GuestLink::credit_wait`] returns `None` until a frame is refused again.
    fn forget_refusal(&mut self);

    /// Whether frames from the guest wait in a ring that drops frames when it is full.
    fn has_lossy_ring(&self) -> bool {
        false
    }

    /// Whether the guest's network device was reset since the last call: its kernel may be another one. By
    /// default it is never known to be.
    fn take_reset(&mut self) -> bool {
        false
    }

    /// Whether the guest's side is known to exist no longer; it stays so.
    fn gone(&self) -> bool;

    /// State by which a link of another process goes on with this one's frames, between two turns. By
    /// default there is none: the other process has the descriptors anyway, as those of a TAP.
    fn save(&self) -> Option<SavedLink<'_>> {
        None
    }

    /// Goes on where a link of the same kind was saved; called before [`GuestLink::register`]. Neither bytes
    /// nor descriptors are trusted: without valid ones the link begins as a new one.
    fn restore(&mut self, bytes: &[u8], descriptors: Vec<OwnedFd>) {
        let _ = (bytes, descriptors);
    }

    /// Frames accepted by [`Link::send`] that did not reach the guest. By default there are none.
    fn losses(&self) -> LinkLosses {
        LinkLosses::default()
    }
}
