//! Virtqueues of a network device, device side: frames in memory that a virtual machine shares with brodo.
//!
//! *Parts.* [`memory`] has the guest's memory and the only pointers into it. [`ring`] is one split virtqueue
//! (virtio 1.3, 2.7): chains of buffers that the driver offers, and the list of those used. [`queues`] moves
//! frames, each behind a virtio-net header ([`crate::vnet`]), over one ring; [`control`] answers the driver's
//! commands. [`device`] has all rings of a device, and [`link`] is the loop's way to them, one for each
//! worker. None of them knows how the rings were set up: [`crate::vhost_user`] does it by messages of a
//! monitor, a VMM in the same process does it by itself.
//!
//! *Hostile guest.* All of this memory may change while it is read. Every index, descriptor and header is
//! copied once and checked in the copy; no reference into guest memory ever exists. A ring with impossible
//! content ([`RingError`]) is broken: it serves no more until the driver sets it up again, and nothing else
//! is affected.
//!
//! *Copies.* Frames of the guest are copied into the batch's arena, but for the ends of long segments
//! ([`unread`]), and their buffers are shown as used when the batch has been handled. Frames to the guest are
//! copied from where they lie into the buffers it has posted. So nothing is in flight after a turn, buffers
//! are used in the order in which they were offered (VIRTIO_F_IN_ORDER), and a ring can be taken over at its
//! used index. After a crash in the midst of a batch its frames may be taken again.

pub mod control;
pub mod device;
#[cfg(any(test, feature = "driver"))]
pub mod driver;
pub mod link;
pub mod memory;
pub mod queues;
pub mod ring;
/// Beside the file of rings, which a model checker compiles too.
#[cfg(test)]
mod ring_tests;
pub mod signal;
mod steering;
pub mod unread;

pub use ring::RingError;
