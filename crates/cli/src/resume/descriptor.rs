//! Descriptors that pass from one program of a process to the next, by number.

use brodo_netns::process;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};
use std::io;

/// Number of a descriptor in a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Descriptor(i32);

impl Descriptor {
    /// Takes it over; it is close-on-exec again.
    ///
    /// # Errors
    /// There is none of this number, or it was taken already.
    pub(crate) fn take(self) -> io::Result<OwnedFd> {
        inherited(self.0)
    }
}

/// Takes a descriptor that this program was started with.
pub(super) fn inherited(number: i32) -> io::Result<OwnedFd> {
    Ok(process::inherited(number)?)
}

/// Descriptors that stand in a state.
#[derive(Debug, Default)]
pub(crate) struct Keep<'a>(Vec<BorrowedFd<'a>>);

impl<'a> Keep<'a> {
    /// Adds a descriptor, and returns it as it stands in the state.
    pub(crate) fn note(&mut self, descriptor: BorrowedFd<'a>) -> Descriptor {
        self.0.push(descriptor);
        Descriptor(descriptor.as_raw_fd())
    }

    /// Does `step`, an execve or the start of a program, without close-on-exec on these descriptors and on
    /// `also`. No other program is to be started by other threads meanwhile.
    ///
    /// # Errors
    /// Those of fcntl; none is known on Linux.
    pub(crate) fn across_execve<T>(
        &self,
        also: &[BorrowedFd<'_>],
        step: impl FnOnce() -> T,
    ) -> io::Result<T> {
        let set = |flags| {
            let mut all = self.0.iter().chain(also);
            all.try_for_each(|&descriptor| fcntl_setfd(descriptor, flags))
        };
        set(FdFlags::empty())?;
        let done = step();
        set(FdFlags::CLOEXEC)?;
        Ok(done)
    }
}
