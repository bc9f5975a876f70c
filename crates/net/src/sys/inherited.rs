//! Descriptors by number, and shared memory, of a process that was there before.
//!
//! Numbers and content come from a process that may have been taken over. A number becomes a descriptor only
//! if it is open and no other owner in this process has it; memory is read as atomic words or as bytes, of
//! which every content is valid.

use brodo_core::journal::Slot;
use brodo_core::memory::payload::ChunkRecord;
use rustix::fs::SealFlags;
use rustix::io::{Errno, Result};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// A descriptor that was taken by its number.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) fd: OwnedFd,
    /// Whether calls on it may wait, for want of O_NONBLOCK.
    pub(crate) blocks: bool,
}

/// Takes the descriptor with this number, if it is open. `others` are all numbers that have an owner in this
/// process.
pub(crate) fn take(number: RawFd, others: &[RawFd]) -> Option<Taken> {
    if number <= 2 || others.contains(&number) {
        return None;
    }
    let blocks = flags(number)? & libc::O_NONBLOCK == 0;
    // SAFETY: it is open, and by the caller's word has no other owner here.
    Some(Taken { fd: unsafe { OwnedFd::from_raw_fd(number) }, blocks })
}

/// Whether a number is that of an open descriptor.
pub(crate) fn is_open(number: RawFd) -> bool {
    flags(number).is_some()
}

/// Status flags of an open descriptor.
fn flags(number: RawFd) -> Option<libc::c_int> {
    // SAFETY: F_GETFL takes any number, and touches neither memory nor the descriptor.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFL) };
    (flags >= 0).then_some(flags)
}

/// Sizes of the parts of a memory file, which follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Slots of flows.
    pub(crate) slots: usize,
    /// Records of chunks.
    pub(crate) records: usize,
    /// Bytes of chunks, from the next multiple of [`Parts::ALIGNMENT`] on.
    pub(crate) bytes: usize,
}

impl Parts {
    /// Alignment of the bytes: the largest page of any kernel.
    const ALIGNMENT: usize = 64 << 10;

    fn words(self) -> Option<usize> {
        let slots = self.slots.checked_mul(size_of::<Slot>())?;
        self.records.checked_mul(size_of::<ChunkRecord>())?.checked_add(slots)
    }

    /// Where the bytes lie in the file; `None` if they are more than can be addressed.
    pub(crate) fn place_of_bytes(self) -> Option<Range<usize>> {
        let begin = self.words()?.checked_next_multiple_of(Self::ALIGNMENT)?;
        Some(begin..begin.checked_add(self.bytes)?)
    }
}

/// Parts of a mapped memory file.
#[derive(Debug)]
pub(crate) struct Mapped {
    pub(crate) slots: &'static [Slot],
    pub(crate) records: &'static [ChunkRecord],
    pub(crate) bytes: &'static mut [u8],
}

/// Maps a memory file of these parts that no process can shrink, for as long as this one lives. To be called
/// once in a process for each file.
///
/// # Errors
/// `EINVAL` if it could be shrunk, is smaller, or has no slot. Any error of fstat and mmap.
pub(crate) fn map(memory: BorrowedFd<'_>, parts: Parts) -> Result<Mapped> {
    let place = parts.place_of_bytes().ok_or(Errno::INVAL)?;
    let seals = rustix::fs::fcntl_get_seals(memory)?;
    let length = usize::try_from(rustix::fs::fstat(memory)?.st_size).unwrap_or(0);
    if !seals.contains(SealFlags::SHRINK) || parts.slots == 0 || length < place.end {
        return Err(Errno::INVAL);
    }
    let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), place.end, access, shared, memory.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOMEM));
    }
    let slots = at.cast::<Slot>();
    // SAFETY: `records` lie behind `slots` in the mapping, aligned as they are: both are words of 64 bits.
    let records = unsafe { slots.add(parts.slots) }.cast::<ChunkRecord>();
    // SAFETY: `place.end` bytes are mapped, and `place.start` is below that.
    let bytes = unsafe { at.cast::<u8>().add(place.start) };
    // Of all three: the mapping has these bytes, which the seal keeps in the file, is aligned to a
    // page, and is never unmapped. Slots and records are reached as atomic words alone. The three do not
    // overlap, and the bytes are mapped in no other place of this process: the process that had them before
    // has ended, and the keeper, which starts both, maps none of it.
    // SAFETY: the mapping has all of them, for ever, and any word is valid; see above.
    let slots = unsafe { std::slice::from_raw_parts(slots, parts.slots) };
    // SAFETY: as the slots.
    let records = unsafe { std::slice::from_raw_parts(records, parts.records) };
    // SAFETY: the mapping has all of them, for ever, any byte is valid, and there is no other reference; see
    // above.
    let bytes = unsafe { std::slice::from_raw_parts_mut(bytes, parts.bytes) };
    Ok(Mapped { slots, records, bytes })
}

/// Gives the memory of whole pages of a mapped file back to the system; they are zero afterwards. A failure
/// changes nothing: the memory stays taken.
pub(crate) fn give_back(pages: &mut [u8]) {
    // SAFETY: the pages are borrowed exclusively, and any content is valid. The kernel refuses a range that
    // is no multiple of its pages.
    let _ = unsafe { libc::madvise(pages.as_mut_ptr().cast(), pages.len(), libc::MADV_REMOVE) };
}
