//! Memory of a guest, mapped: the only pointers into it.
//!
//! A [`Region`] is a part of a file (memfd, hugetlbfs) that the guest's machine uses as physical memory. It
//! has two addresses: the guest's, by which drivers name buffers, and the monitor's own, by which vhost-user
//! names rings. [`GuestMemory`] finds the bytes behind either, and gives [`GuestSlice`], by which bytes are
//! copied and 16-bit fields read and written.
//!
//! *Soundness.* A slice borrows the memory, so it cannot outlive the mapping. The guest writes to the same
//! bytes at any time, as another process does: so there is no `&[u8]` to them, single fields are atomic,
//! small structures are read volatile, and payload is copied by memcpy with a compiler fence behind it, so
//! that no later read of the copy is turned into a second read of the original. A copy may be torn; it is
//! checked after it was made. Several threads of this process may hold slices of the same bytes, if the guest
//! names them twice: for each of them the others are like the guest.
//!
//! *SIGBUS.* A file that is shortened after it was mapped ends the engine at the next access. Only the
//! machine's monitor can do that, which loses its network by it; its guest cannot.
//!
//! System calls: fstat, mmap, munmap, madvise.

use super::signal::Signal;
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering, compiler_fence};

/// Most regions of one memory: as many as vhost-user allows (509 slots).
pub const REGIONS_MAX: usize = 509;

/// Place of a region; all in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionPlace {
    /// Guest-physical address of its first byte.
    pub guest: u64,
    /// Length, not 0.
    pub size: u64,
    /// Address of the first byte in the monitor's own memory.
    pub user: u64,
    /// Offset of the first byte in the file.
    pub offset: u64,
}

/// Reason why a region cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionError {
    /// Its size is 0, or one of its ends is beyond all addresses.
    Range,
    /// The file is shorter than the region.
    ShortFile,
    /// Its guest-physical addresses are those of another region too.
    Overlap,
    /// More than [`REGIONS_MAX`] regions.
    TooMany,
    /// fstat or mmap failed.
    Call(Errno),
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range => f.write_str("a memory region is empty or ends beyond all addresses"),
            Self::ShortFile => f.write_str("a memory region is longer than its file"),
            Self::Overlap => f.write_str("two memory regions overlap"),
            Self::TooMany => write!(f, "more than {REGIONS_MAX} memory regions"),
            Self::Call(errno) => write!(f, "a memory region cannot be mapped: {errno}"),
        }
    }
}

impl std::error::Error for RegionError {}

/// Bytes of a page of the log of dirty pages, whatever the machine's are.
const PAGE: u64 = 4096;

/// A mapping of a file.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// For another process that goes on with the memory.
    file: OwnedFd,
}

// SAFETY: nothing about a mapping belongs to a thread.
unsafe impl Send for Mapping {}
// SAFETY: of a mapping shared by threads only its place is read; see `Region` for the bytes.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and every region in it holds it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A mapped region. Clones share the mapping, which ends with the last of them.
#[derive(Debug, Clone)]
pub struct Region {
    place: RegionPlace,
    /// The region's first byte, in the mapping.
    start: NonNull<u8>,
    mapping: Arc<Mapping>,
}

// SAFETY: `start` is within a mapping that the region holds, and that belongs to no thread.
unsafe impl Send for Region {}
// SAFETY: threads that share a region copy bytes from and to it at the same time as the guest does; no
// reference to these bytes exists in any of them, see "Soundness" above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps a region of `file`, of which it keeps a duplicate.
    ///
    /// The mapping begins with the file: hugetlbfs wants offsets of whole pages, which the region's need not
    /// be.
    ///
    /// # Errors
    /// [`RegionError`], but for overlaps.
    pub fn map(file: impl AsFd, place: RegionPlace) -> Result<Self, RegionError> {
        let end = place.offset.checked_add(place.size).ok_or(RegionError::Range)?;
        let ends = [place.guest.checked_add(place.size), place.user.checked_add(place.size)];
        if place.size == 0 || ends.contains(&None) {
            return Err(RegionError::Range);
        }
        let status = fstat(&file).map_err(RegionError::Call)?;
        if u64::try_from(status.st_size).unwrap_or(0) < end {
            return Err(RegionError::ShortFile);
        }
        let kept = file.as_fd().try_clone_to_owned();
        let kept =
            kept.map_err(|error| RegionError::Call(Errno::from_io_error(&error).unwrap_or(Errno::MFILE)))?;
        // Whole pages, which munmap of hugetlbfs insists on; there they are the blocks of the file.
        let block = u64::try_from(status.st_blksize).unwrap_or(0).max(1);
        let len = end.checked_next_multiple_of(block).and_then(|len| isize::try_from(len).ok());
        let len = len.ok_or(RegionError::Range)?.unsigned_abs();
        let offset = usize::try_from(place.offset).map_err(|_| RegionError::Range)?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of this process.
        let base = unsafe { mmap(ptr::null_mut(), len, access, flags, file, 0) };
        let base = NonNull::new(base.map_err(RegionError::Call)?.cast());
        let mapping = Mapping { base: base.ok_or(RegionError::Call(Errno::NOMEM))?, len, file: kept };
        // SAFETY: the advice concerns core dumps only, for the mapping just made. A refusal changes nothing.
        let _ = unsafe { madvise(mapping.base.as_ptr().cast(), len, Advice::LinuxDontDump) };
        // SAFETY: the offset is at most `end`, which is at most the length of the mapping.
        let start = unsafe { mapping.base.add(offset) };
        Ok(Self { place, start, mapping: Arc::new(mapping) })
    }

    /// The bytes from the offset `at` of the region, at most `len`.
    fn slice(&self, at: u64, len: usize) -> GuestSlice<'_> {
        let rest = self.place.size.saturating_sub(at);
        let len = usize::try_from(rest).map_or(len, |rest| rest.min(len));
        let at = usize::try_from(at.min(self.place.size)).unwrap_or(0);
        debug_assert!(at + len <= self.mapping.len, "{at} + {len} in {}", self.mapping.len);
        // SAFETY: the region is within its mapping, and `at` at most its size.
        let start = unsafe { self.start.add(at) };
        GuestSlice { start, len, memory: PhantomData }
    }
}

/// All memory of a guest. Clones share the mappings.
#[derive(Debug, Clone, Default)]
pub struct GuestMemory {
    /// In the order of guest addresses, without overlaps.
    regions: Vec<Region>,
    /// For pages that the device writes to, while the machine is moved to another host.
    log: Option<Arc<DirtyLog>>,
}

impl GuestMemory {
    /// Adds a region.
    ///
    /// # Errors
    /// [`RegionError::Overlap`], [`RegionError::TooMany`].
    pub fn add(&mut self, region: Region) -> Result<(), RegionError> {
        if self.regions.len() >= REGIONS_MAX {
            return Err(RegionError::TooMany);
        }
        let at = self.regions.partition_point(|other| other.place.guest < region.place.guest);
        let overlaps = |low: &Region, high: &Region| high.place.guest - low.place.guest < low.place.size;
        let before = at.checked_sub(1).and_then(|index| self.regions.get(index));
        if before.is_some_and(|before| overlaps(before, &region))
            || self.regions.get(at).is_some_and(|after| overlaps(&region, after))
        {
            return Err(RegionError::Overlap);
        }
        self.regions.insert(at, region);
        Ok(())
    }

    /// The regions' places and files, in the order of guest addresses.
    pub fn regions(&self) -> impl Iterator<Item = (RegionPlace, BorrowedFd<'_>)> {
        self.regions.iter().map(|region| (region.place, region.mapping.file.as_fd()))
    }

    /// Removes the region with these addresses and this size, whatever its offset; false if there is none.
    pub fn remove(&mut self, place: RegionPlace) -> bool {
        let before = self.regions.len();
        self.regions.retain(|region| RegionPlace { offset: place.offset, ..region.place } != place);
        self.regions.len() < before
    }

    /// Sets the log of pages that are written to.
    pub fn set_log(&mut self, log: Option<Arc<DirtyLog>>) {
        self.log = log;
    }

    /// Notes that `len` bytes at a guest-physical address were written.
    pub fn mark_dirty(&self, address: u64, len: usize) {
        if let Some(log) = &self.log {
            log.mark(address, len);
        }
    }

    /// Notifies the monitor of what was noted.
    pub fn notify_log(&self) {
        if let Some(log) = &self.log {
            log.notify();
        }
    }

    /// The bytes at a guest-physical address: at most `len`, fewer if the region ends before; none if there
    /// is no such memory.
    pub fn guest(&self, address: u64, len: usize) -> Option<GuestSlice<'_>> {
        let behind = self.regions.partition_point(|region| region.place.guest <= address);
        let region = self.regions.get(behind.checked_sub(1)?)?;
        let at = address - region.place.guest;
        (at < region.place.size).then(|| region.slice(at, len))
    }

    /// All `len` bytes at an address of the monitor's; none if they are not in one region.
    pub fn user(&self, address: u64, len: usize) -> Option<GuestSlice<'_>> {
        let within = |region: &&Region| {
            address.checked_sub(region.place.user).is_some_and(|at| at < region.place.size)
        };
        let region = self.regions.iter().find(within)?;
        let slice = region.slice(address - region.place.user, len);
        (slice.len == len).then_some(slice)
    }
}

/// A log of dirty pages: those that the device has written to, for a monitor that moves the machine to
/// another host while it runs.
///
/// One bit for each page of 4 KiB, at the number of its guest-physical address, in a file that the monitor
/// reads and clears at the same time (vhost-user, "Migration"). A page is marked after it was written to, so
/// that a monitor which has cleared the bit before copies what was written.
#[derive(Debug)]
pub struct DirtyLog {
    bits: Region,
    /// Notified of marks.
    signal: Option<Signal>,
}

impl DirtyLog {
    /// The log in `size` bytes of a file from an offset on.
    ///
    /// # Errors
    /// [`RegionError`]: it cannot be mapped.
    pub fn map(file: impl AsFd, size: u64, offset: u64, signal: Option<Signal>) -> Result<Self, RegionError> {
        let bits = Region::map(file, RegionPlace { guest: 0, size, user: 0, offset })?;
        Ok(Self { bits, signal })
    }

    /// Its place in its file, and the file.
    pub fn place(&self) -> (RegionPlace, BorrowedFd<'_>) {
        (self.bits.place, self.bits.mapping.file.as_fd())
    }

    /// Marks the pages of `len` bytes at a guest-physical address. Pages beyond the log are the monitor's
    /// mistake.
    pub fn mark(&self, address: u64, len: usize) {
        let Some(last) = (len as u64).checked_sub(1).and_then(|last| address.checked_add(last)) else {
            return;
        };
        for page in address / PAGE..=last / PAGE {
            self.bits.slice(page / 8, 1).set_bits(0, 1 << (page % 8));
        }
    }

    /// Notifies the monitor, if it wants that.
    pub fn notify(&self) {
        if let Some(signal) = &self.signal {
            signal.send();
        }
    }
}

/// Bytes of guest memory, which the guest may change at any time.
#[derive(Debug, Clone, Copy)]
pub struct GuestSlice<'m> {
    start: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'m GuestMemory>,
}

impl GuestSlice<'_> {
    /// Length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "an empty slice is as good as any other")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The first byte, for a system call.
    pub(super) const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Copies bytes from the start; returns their number, that of the shorter side.
    pub fn read(&self, to: &mut [u8]) -> usize {
        let len = to.len().min(self.len);
        // SAFETY: `len` bytes are within the mapping and within `to`, which is memory of this process and
        // thus does not overlap with it.
        unsafe { ptr::copy_nonoverlapping(self.start.as_ptr(), to.as_mut_ptr(), len) };
        compiler_fence(Ordering::SeqCst);
        len
    }

    /// Copies bytes to the start; returns their number, that of the shorter side.
    pub fn write(&self, from: &[u8]) -> usize {
        let len = from.len().min(self.len);
        // SAFETY: as in `read`, in the other direction.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.start.as_ptr(), len) };
        len
    }

    /// The slice without its first `count` bytes.
    #[must_use]
    pub fn skip(self, count: usize) -> Self {
        let count = count.min(self.len);
        // SAFETY: at most the length is added, which stays within the mapping or at its end.
        Self { start: unsafe { self.start.add(count) }, len: self.len - count, ..self }
    }

    /// A structure of `N` bytes at the offset `at`, read exactly once; zeros if it is not within the slice.
    pub fn structure<const N: usize>(&self, at: usize) -> [u8; N] {
        match self.within(at, N) {
            // SAFETY: the bytes are within the mapping, and an array of bytes needs no alignment.
            Some(start) => unsafe { start.cast::<[u8; N]>().read_volatile() },
            None => [0; N],
        }
    }

    /// The 16-bit field at the offset `at`; 0 if it is not within the slice or not aligned.
    pub fn load(&self, at: usize, order: Ordering) -> u16 {
        self.field(at).map_or(0, |field| u16::from_le(field.load(order)))
    }

    /// Stores the 16-bit field at the offset `at`, unless it is not within the slice or not aligned.
    pub fn store(&self, at: usize, value: u16, order: Ordering) {
        if let Some(field) = self.field(at) {
            field.store(value.to_le(), order);
        }
    }

    /// Sets bits of the byte at the offset `at`, unless it is not within the slice.
    pub fn set_bits(&self, at: usize, bits: u8) {
        if let Some(byte) = self.within(at, 1) {
            // SAFETY: the byte is within the mapping for as long as `self` borrows it. Others may write to it
            // at the same time, as to any atomic.
            unsafe { AtomicU8::from_ptr(byte.as_ptr()) }.fetch_or(bits, Ordering::SeqCst);
        }
    }

    /// Whether the first byte has an address of this alignment, a power of two.
    pub fn is_aligned(&self, alignment: usize) -> bool {
        self.start.addr().get().is_multiple_of(alignment)
    }

    fn field(&self, at: usize) -> Option<&AtomicU16> {
        let start = self.within(at, 2)?.cast::<u16>();
        debug_assert!(start.is_aligned(), "checked with the ring");
        // SAFETY: the field is within the mapping for as long as `self` borrows it, and aligned. The guest
        // may write to it at the same time, as to any atomic.
        start.is_aligned().then(|| unsafe { AtomicU16::from_ptr(start.as_ptr()) })
    }

    /// Address of `len` bytes at the offset `at`, if they are within the slice.
    fn within(&self, at: usize, len: usize) -> Option<NonNull<u8>> {
        let fits = at.checked_add(len).is_some_and(|end| end <= self.len);
        // SAFETY: less than the length is added.
        fits.then(|| unsafe { self.start.add(at) })
    }
}

#[cfg(test)]
mod tests;
