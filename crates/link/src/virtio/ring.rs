//! One split virtqueue, device side (virtio 1.3, 2.7).
//!
//! ```text
//! descriptors   size x { address u64, length u32, flags u16, next u16 }
//! available     { flags u16, index u16, size x head u16, used_event u16 }          written by the driver
//! used          { flags u16, index u16, size x { head u32, written u32 }, avail_event u16 }    written here
//! ```
//!
//! *Order of calls.* [`Ring::peek`] reads chains ahead without taking them; [`Ring::complete`] takes the
//! first of them and notes it as used; [`Ring::publish`] shows all used ones to the driver; then
//! [`Ring::needs_call`] says whether the driver wants to be notified. [`Ring::arm`] requests a notification
//! of the driver's and says whether it would come too late.
//!
//! *Memory order.* The available index is read with acquire and the used index written with release, so the
//! entries behind them are whole. Between publishing and reading the driver's event index, and between
//! writing our own and reading the available index again, stands a sequentially consistent fence, as on the
//! driver's side: one of the two always sees the other's write. `tests/notifications.rs` compiles this file
//! against a model checker, which tries all interleavings of both sides.

use super::memory::{GuestMemory, GuestSlice};
use crate::atomic::{Ordering, fence};
use std::fmt;

/// Most entries of a ring (virtio 1.3, 2.7).
pub const SIZE_MAX: u16 = 1 << 15;
/// Most descriptors of an indirect table: the longest chain of any driver, with room.
const INDIRECT_MAX: u32 = 1024;

/// Buffers of a chain are collected up to about this many bytes: more than any frame, so that the list of a
/// hostile chain stays short.
const COLLECTED_MAX: u64 = 128 << 10;

const DESCRIPTOR_LEN: usize = 16;
const USED_LEN: usize = 8;
/// Offset of the index in the available and in the used area; the flags stand before it.
const INDEX: usize = 2;
/// Offset of the entries in both.
const ENTRIES: usize = 4;

/// Descriptor flags.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Available flags: the driver wants no calls. Used flags: the device wants no kicks.
const NO_NOTIFICATION: u16 = 1;

/// Impossible content of a ring, by which it is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingError {
    /// An area of the ring is not in the guest's memory, or not aligned.
    Area,
    /// More chains are available than the ring has entries.
    Index,
    /// A chain begins or goes on with a descriptor that the ring does not have.
    Descriptor,
    /// A chain is longer than the ring or its table: it runs in a circle.
    Loop,
    /// A table of indirect descriptors is empty, too long, nested, not in memory, or was not negotiated.
    Indirect,
    /// A buffer is for the other direction.
    Direction,
    /// A buffer is not in the guest's memory.
    Buffer,
    /// Buffers for one frame have far more descriptors than bytes could need.
    Scattered,
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Area => "an area of the ring is outside of the guest's memory or not aligned",
            Self::Index => "the available index is ahead by more than the ring's size",
            Self::Descriptor => "a descriptor's number is beyond the ring's size",
            Self::Loop => "a chain of descriptors runs in a circle",
            Self::Indirect => "a table of indirect descriptors is malformed",
            Self::Direction => "a buffer is for the other direction",
            Self::Buffer => "a buffer is outside of the guest's memory",
            Self::Scattered => "the buffers for a frame have too many descriptors",
        })
    }
}

impl std::error::Error for RingError {}

/// Place and properties of a ring, as its driver has set it up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Number of entries: a power of two of at most [`SIZE_MAX`].
    pub size: u16,
    /// Address of the descriptors, as the monitor sees it, like the other two ([`GuestMemory::user`]).
    pub descriptors: u64,
    /// Address of the available area.
    pub available: u64,
    /// Address of the used area.
    pub used: u64,
    /// VIRTIO_F_INDIRECT_DESC was negotiated.
    pub indirect: bool,
    /// VIRTIO_F_EVENT_IDX was negotiated.
    pub event_index: bool,
    /// Guest-physical address of the used area, if writes to it are to be noted in the log of dirty pages.
    pub logged: Option<u64>,
}

/// The side that writes to the buffers of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filled {
    /// By the driver: frames of the guest.
    Driver,
    /// By the device: frames to the guest.
    Device,
    /// The first buffers of a chain by the driver, the rest by the device: commands and their answers.
    Both,
}

/// A part of a chain: guest-physical address and length in bytes. Both are checked again when it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Guest-physical address.
    pub address: u64,
    /// Length in bytes.
    pub len: u32,
    /// Whether the device fills it.
    pub writable: bool,
}

/// A chain of buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    /// Its first descriptor, by which the driver knows it.
    pub head: u16,
    /// Length of all its buffers, in bytes.
    pub len: u64,
    /// Number of its descriptors, also of empty ones.
    pub descriptors: u32,
}

/// The areas of a ring in the guest's memory.
struct Areas<'m> {
    descriptors: GuestSlice<'m>,
    available: GuestSlice<'m>,
    used: GuestSlice<'m>,
}

/// A ring in service.
#[derive(Debug)]
pub struct Ring {
    layout: Layout,
    filled: Filled,
    /// Index of the next chain to take; indices run freely, modulo 65,536.
    next: u16,
    /// The available index, as last read.
    available: u16,
    /// Index of the next used entry, and the one that the driver knows.
    used: u16,
    published: u16,
    /// Published index at the last look at the driver's wish for calls.
    called: u16,
    /// Without an event index: kicks were asked for.
    armed: bool,
    /// With an event index: the one that the driver was last given.
    event: Option<u16>,
}

impl Ring {
    /// Takes a ring into service. It goes on behind the last chain that the driver knows to be used, by the
    /// used index in memory: chains are used in their order, so that is where any device before has ended,
    /// however it did.
    ///
    /// # Errors
    /// [`RingError::Area`], also for a size that no ring has.
    pub fn start(layout: Layout, filled: Filled, memory: &GuestMemory) -> Result<Self, RingError> {
        if !layout.size.is_power_of_two() || layout.size > SIZE_MAX {
            return Err(RingError::Area);
        }
        let (next, available, used, published, called) = (0, 0, 0, 0, 0);
        let (armed, event) = (true, None);
        let mut ring = Self { layout, filled, next, available, used, published, called, armed, event };
        let used = ring.areas(memory)?.used.load(INDEX, Ordering::Acquire);
        (ring.next, ring.available) = (used, used);
        (ring.used, ring.published, ring.called) = (used, used, used);
        ring.disarm(memory)?;
        Ok(ring)
    }

    /// Number of entries.
    pub fn size(&self) -> u16 {
        self.layout.size
    }

    /// Index of the next chain to be taken.
    pub fn next(&self) -> u16 {
        self.next
    }

    fn areas<'m>(&self, memory: &'m GuestMemory) -> Result<Areas<'m>, RingError> {
        let Layout { size, descriptors, available, used, .. } = self.layout;
        let area = |address, entry: usize, alignment| {
            // The event index stands behind the entries of the available and the used area.
            let around = if entry == DESCRIPTOR_LEN { 0 } else { ENTRIES + 2 };
            let area = memory.user(address, around + entry * usize::from(size));
            area.filter(|area| area.is_aligned(alignment)).ok_or(RingError::Area)
        };
        Ok(Areas {
            descriptors: area(descriptors, DESCRIPTOR_LEN, 16)?,
            available: area(available, 2, 2)?,
            used: area(used, USED_LEN, 4)?,
        })
    }

    /// Whether all areas of the ring are in this memory.
    pub fn is_in(&self, memory: &GuestMemory) -> bool {
        self.areas(memory).is_ok()
    }

    /// Offset of entry number `index` of an area with entries of this length.
    fn entry(&self, index: u16, len: usize) -> usize {
        ENTRIES + usize::from(index % self.layout.size) * len
    }

    /// Number of chains available from `next` on, from memory.
    fn refresh(&mut self, areas: &Areas<'_>) -> Result<u16, RingError> {
        self.available = areas.available.load(INDEX, Ordering::Acquire);
        let count = self.available.wrapping_sub(self.next);
        if count > self.layout.size { Err(RingError::Index) } else { Ok(count) }
    }

    /// Reads the chain that is `ahead` chains behind the next one, and appends its buffers to `spans` (of a
    /// chain far longer than a frame only the first); `None` if it is not available.
    ///
    /// # Errors
    /// [`RingError`]: the ring is broken.
    pub fn peek(
        &mut self,
        memory: &GuestMemory,
        ahead: u16,
        spans: &mut Vec<Span>,
    ) -> Result<Option<Chain>, RingError> {
        let areas = self.areas(memory)?;
        if self.available.wrapping_sub(self.next) <= ahead && self.refresh(&areas)? <= ahead {
            return Ok(None);
        }
        let at = self.entry(self.next.wrapping_add(ahead), 2);
        let head = areas.available.load(at, Ordering::Relaxed);
        let (len, descriptors) = self.walk(memory, &areas, head, spans)?;
        Ok(Some(Chain { head, len, descriptors }))
    }

    /// Whether a chain is available.
    ///
    /// # Errors
    /// [`RingError::Area`], [`RingError::Index`].
    pub fn has_chains(&mut self, memory: &GuestMemory) -> Result<bool, RingError> {
        let areas = self.areas(memory)?;
        Ok(self.refresh(&areas)? > 0)
    }

    /// Collects the buffers of the chain that begins at `head`; returns their length, and the number of its
    /// descriptors.
    fn walk(
        &self,
        memory: &GuestMemory,
        areas: &Areas<'_>,
        head: u16,
        spans: &mut Vec<Span>,
    ) -> Result<(u64, u32), RingError> {
        let mut table = areas.descriptors;
        let mut entries = u32::from(self.layout.size);
        let mut descriptor = Descriptor::read(&table, u32::from(head), entries)?;
        let (mut left, mut is_indirect) = (entries, false);
        let (mut len, mut count) = (0, 0);
        while left > 0 {
            (left, count) = (left - 1, count + 1);
            if descriptor.flags & INDIRECT != 0 {
                // The last of the ring's own descriptors may be a table (2.7.5.3.2), one in a table may not.
                if is_indirect || !self.layout.indirect {
                    return Err(RingError::Indirect);
                }
                (table, entries) = descriptor.table(memory)?;
                descriptor = Descriptor::read(&table, 0, entries)?;
                (left, is_indirect) = (entries, true);
                continue;
            }
            let writable = descriptor.flags & WRITE != 0;
            let possible = match self.filled {
                Filled::Driver => !writable,
                Filled::Device => writable,
                Filled::Both => writable || spans.last().is_none_or(|before| !before.writable),
            };
            if !possible {
                return Err(RingError::Direction);
            }
            if len < COLLECTED_MAX {
                collect(memory, descriptor, spans)?;
            }
            len += u64::from(descriptor.len);
            if descriptor.flags & NEXT == 0 {
                return Ok((len, count));
            }
            descriptor = Descriptor::read(&table, u32::from(descriptor.next), entries)?;
        }
        Err(RingError::Loop)
    }

    /// Takes the next chain, which [`Ring::peek`] has read, and notes it as used, with `written` bytes in its
    /// buffers.
    ///
    /// # Errors
    /// [`RingError::Area`].
    pub fn complete(&mut self, memory: &GuestMemory, head: u16, written: u32) -> Result<(), RingError> {
        let areas = self.areas(memory)?;
        let mut entry = [0; USED_LEN];
        entry[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        entry[4..].copy_from_slice(&written.to_le_bytes());
        let at = self.entry(self.used, USED_LEN);
        areas.used.skip(at).write(&entry);
        self.log_used(memory, at, USED_LEN);
        self.next = self.next.wrapping_add(1);
        self.used = self.used.wrapping_add(1);
        Ok(())
    }

    /// Shows used chains to the driver.
    ///
    /// # Errors
    /// [`RingError::Area`].
    pub fn publish(&mut self, memory: &GuestMemory) -> Result<(), RingError> {
        if self.published != self.used {
            self.areas(memory)?.used.store(INDEX, self.used, Ordering::Release);
            self.published = self.used;
            self.log_used(memory, INDEX, 2);
            memory.notify_log();
        }
        Ok(())
    }

    /// Whether the driver wants to be called for the chains published since the last question.
    ///
    /// # Errors
    /// [`RingError::Area`].
    pub fn needs_call(&mut self, memory: &GuestMemory) -> Result<bool, RingError> {
        let before = std::mem::replace(&mut self.called, self.published);
        if before == self.published {
            return Ok(false);
        }
        let areas = self.areas(memory)?;
        fence(Ordering::SeqCst);
        if !self.layout.event_index {
            return Ok(areas.available.load(0, Ordering::Relaxed) & NO_NOTIFICATION == 0);
        }
        let event = areas.available.load(ENTRIES + 2 * usize::from(self.layout.size), Ordering::Relaxed);
        Ok(passes(event, before, self.published))
    }

    /// Asks the driver for a kick once `count` chains are available, at least 1; true if they are already, so
    /// that none may come.
    ///
    /// # Errors
    /// [`RingError::Area`], [`RingError::Index`].
    pub fn arm(&mut self, memory: &GuestMemory, count: u16) -> Result<bool, RingError> {
        debug_assert!(count > 0, "0 chains are always available");
        let areas = self.areas(memory)?;
        if self.layout.event_index {
            let event = self.next.wrapping_add(count).wrapping_sub(1);
            let at = ENTRIES + USED_LEN * usize::from(self.layout.size);
            areas.used.store(at, event, Ordering::Relaxed);
            self.log_used(memory, at, 2);
            self.event = Some(event);
        } else {
            areas.used.store(0, 0, Ordering::Relaxed);
            self.log_used(memory, 0, 2);
            self.armed = true;
        }
        fence(Ordering::SeqCst);
        Ok(self.refresh(&areas)? >= count)
    }

    /// Asks for a kick with the next chain, like [`Ring::arm`], of a ring that may be none any more: nothing
    /// is written to it if the driver knows that already.
    ///
    /// # Errors
    /// As of [`Ring::arm`].
    pub fn keep_armed(&mut self, memory: &GuestMemory) -> Result<bool, RingError> {
        let is_armed = if self.layout.event_index { self.event == Some(self.next) } else { self.armed };
        if is_armed { self.has_chains(memory) } else { self.arm(memory, 1) }
    }

    /// Asks for no kicks. With an event index nothing is to be done: the driver's index has passed it, and
    /// passes it again only after 65,536 chains.
    ///
    /// # Errors
    /// [`RingError::Area`].
    pub fn disarm(&mut self, memory: &GuestMemory) -> Result<(), RingError> {
        if std::mem::take(&mut self.armed) && !self.layout.event_index {
            self.areas(memory)?.used.store(0, NO_NOTIFICATION, Ordering::Relaxed);
            self.log_used(memory, 0, 2);
        }
        Ok(())
    }

    /// Notes a write of `len` bytes at an offset of the used area.
    fn log_used(&self, memory: &GuestMemory, at: usize, len: usize) {
        if let Some(used) = self.layout.logged {
            memory.mark_dirty(used.saturating_add(at as u64), len);
        }
    }
}

/// Whether an index that moves from `before` to `after` passes `event` (`vring_need_event` of virtio 1.3,
/// 2.7.10).
fn passes(event: u16, before: u16, after: u16) -> bool {
    after.wrapping_sub(event).wrapping_sub(1) < after.wrapping_sub(before)
}

/// A descriptor, as read once.
#[derive(Debug, Clone, Copy)]
struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    /// Reads number `index` of a table with `entries`.
    fn read(table: &GuestSlice<'_>, index: u32, entries: u32) -> Result<Self, RingError> {
        if index >= entries {
            return Err(RingError::Descriptor);
        }
        let bytes: [u8; DESCRIPTOR_LEN] = table.structure(index as usize * DESCRIPTOR_LEN);
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, f0, f1, n0, n1] = bytes;
        Ok(Self {
            address: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        })
    }

    /// The table of an indirect descriptor, and the number of its entries.
    fn table<'m>(&self, memory: &'m GuestMemory) -> Result<(GuestSlice<'m>, u32), RingError> {
        let (entries, rest) = (self.len / DESCRIPTOR_LEN as u32, self.len % DESCRIPTOR_LEN as u32);
        if !(1..=INDIRECT_MAX).contains(&entries) || rest != 0 || self.flags & NEXT != 0 {
            return Err(RingError::Indirect);
        }
        let found = memory.guest(self.address, self.len as usize);
        let whole = found.filter(|table| table.len() == self.len as usize);
        Ok((whole.ok_or(RingError::Indirect)?, entries))
    }
}

/// Appends a descriptor's buffer, in as many parts as it has regions.
fn collect(memory: &GuestMemory, descriptor: Descriptor, spans: &mut Vec<Span>) -> Result<(), RingError> {
    let Descriptor { mut address, mut len, .. } = descriptor;
    while len > 0 {
        let part = memory.guest(address, len as usize).ok_or(RingError::Buffer)?.len() as u32;
        spans.push(Span { address, len: part, writable: descriptor.flags & WRITE != 0 });
        // Within a region, whose end is an address; a part is never empty.
        (address, len) = (address + u64::from(part), len - part);
    }
    Ok(())
}
