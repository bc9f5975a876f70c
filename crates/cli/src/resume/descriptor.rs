//! Descriptors that pass from one program of a process to the next, by number.

use brodo_netns::process;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of a descriptor in a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Descriptor(i32);

impl Descriptor {
    /// Takes it over; it is close-on-exec again.
    ///
    /// # Errors
    /// There is none of this number, or it was taken already.
    pub(crate) fn take(self) -> io::Result<OwnedFd> {
        let mut came = came();
        match &mut *came {
            Some(came) => came.remove(&self.0).ok_or_else(|| io::ErrorKind::NotFound.into()),
            None => inherited(self.0),
        }
    }
}

/// The descriptor that stands in a state, if one does and has come.
pub(crate) fn taken(saved: Option<Descriptor>) -> Option<OwnedFd> {
    saved.and_then(|descriptor| descriptor.take().ok())
}

/// Descriptors of a state that came from elsewhere than from this process, by the numbers in the state; none
/// in a program that was executed in place.
static CAME: Mutex<Option<BTreeMap<i32, OwnedFd>>> = Mutex::new(None);

fn came() -> MutexGuard<'static, Option<BTreeMap<i32, OwnedFd>>> {
    CAME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on descriptors of a state are these, by their numbers in it.
pub(crate) fn take_from(descriptors: BTreeMap<i32, OwnedFd>) {
    *came() = Some(descriptors);
}

/// Closes those that the state has no place for.
pub(crate) fn close_rest() {
    *came() = None;
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

    /// All of them.
    pub(crate) fn descriptors(&self) -> &[BorrowedFd<'a>] {
        &self.0
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
