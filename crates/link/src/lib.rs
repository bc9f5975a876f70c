//! brodo-link: links toward a guest, one file each.
//!
//! A link for the loop is a [`brodo_core::link::Link`] (send one frame or say "no credit") and besides a
//! [`GuestLink`]: it has a descriptor to wait on, gives one frame at a time, and says when its guest has
//! gone. [`tap`] is the one for namespaces. `unsafe` stands in `sys.rs` alone.

mod sys;
pub mod tap;
pub mod tun;
pub mod vnet;

use brodo_core::link::{Link, RxMeta};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

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

/// What to wait for after a link has refused a frame ([`brodo_core::link::NoCredit`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreditWait {
    /// The descriptor becomes writable: wait for that event.
    Event,
    /// No event will come (the kernel was out of memory): try again after a short while.
    Timer,
}

/// A link as the driver sees it.
///
/// A second kind of link is one file in this crate that implements this trait and passes the tests of
/// `brodo-net`'s loop.
pub trait GuestLink: Link {
    /// The descriptor that becomes readable when the guest has sent something; edge-triggered use is allowed,
    /// so the driver reads until [`GuestLink::recv`] gives `None`.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Takes one frame: what the link knows of it and its length at the start of `buf`, or `None` if there is
    /// none now. `buf` holds at least [`brodo_core::link::FRAME_MAX`] bytes.
    ///
    /// # Errors
    /// The link is broken for good. That the guest has gone is not an error, see [`GuestLink::gone`].
    fn recv(&mut self, buf: &mut [u8]) -> Result<Option<(RxMeta, usize)>, FailedCall>;

    /// What to wait for, if a frame was refused since the last accepted one or [`GuestLink::forget_refusal`].
    fn credit_wait(&self) -> Option<CreditWait>;

    /// The wait is over: [`GuestLink::credit_wait`] gives `None` until a frame is refused again.
    fn forget_refusal(&mut self);

    /// Whether frames from the guest wait in a ring which loses those that find it full.
    fn has_lossy_ring(&self) -> bool {
        false
    }

    /// True once the guest's side is known to exist no longer; it stays so.
    fn gone(&self) -> bool;
}
