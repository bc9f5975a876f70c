//! Descriptors by number, and shared memory, of a process that was there before.
//!
//! Numbers and content come from a process that may have been taken over. A number becomes a descriptor only
//! if it is open and no other owner in this process has it; memory is read as atomic words alone, of which
//! every content is valid.

use brodo_core::journal::Slot;
use rustix::io::{Errno, Result};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Takes the descriptor with this number, if it is open. `others` are all numbers that have an owner in this
/// process.
pub(crate) fn take(number: RawFd, others: &[RawFd]) -> Option<OwnedFd> {
    if number <= 2 || others.contains(&number) || !is_open(number) {
        return None;
    }
    // SAFETY: it is open, and by the caller's word has no other owner here.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Whether a number is that of an open descriptor.
pub(crate) fn is_open(number: RawFd) -> bool {
    // SAFETY: F_GETFD takes any number, and touches neither memory nor the descriptor.
    number >= 0 && unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0
}

/// Maps the whole of a memory file that no one can shrink, for as long as the process lives.
///
/// # Errors
/// `EINVAL` if it could be shrunk, or is empty. Any error of fstat and mmap.
pub(crate) fn map_slots(memory: BorrowedFd<'_>) -> Result<&'static [Slot]> {
    let seals = rustix::fs::fcntl_get_seals(memory)?;
    let length = usize::try_from(rustix::fs::fstat(memory)?.st_size).unwrap_or(0);
    let count = length / size_of::<Slot>();
    if !seals.contains(rustix::fs::SealFlags::SHRINK) || count == 0 {
        return Err(Errno::INVAL);
    }
    let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), length, access, shared, memory.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOMEM));
    }
    // SAFETY: the mapping has `length` bytes, which the seal keeps in the file, is aligned to a page, is
    // never unmapped, and is reached through these atomic words alone, of which any content is valid.
    Ok(unsafe { std::slice::from_raw_parts(at.cast::<Slot>(), count) })
}
