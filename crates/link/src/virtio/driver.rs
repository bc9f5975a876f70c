//! The driver's side of a split virtqueue: a guest's, for tests and for the benchmark's machine.
//!
//! It keeps to the rules, but trusts the device as little as that trusts it. Buffers are fixed slots of the
//! memory behind the ring, one for each entry; a chain is one slot, in one piece or in several.

use super::memory::{GuestMemory, Region, RegionPlace};
use super::ring::Layout;
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::sync::atomic::{Ordering, fence};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Descriptors of a slot's indirect table.
const TABLE: usize = 16;

/// Properties of a ring and its slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Entries: a power of two.
    pub size: u16,
    /// Bytes of a slot.
    pub slot: u32,
    /// Longest descriptor, in bytes: slots are offered in such pieces, by an indirect table (at most 16).
    /// None: in one piece, without a table.
    pub piece: Option<u32>,
    /// Whether VIRTIO_F_EVENT_IDX is negotiated.
    pub event_index: bool,
}

/// A ring and its slots in one region of memory.
#[derive(Debug)]
pub struct DriverRing {
    shape: Shape,
    /// Address of the ring, as the monitor sees it.
    base: u64,
    /// Distance from such an address to the guest's, modulo 2^64.
    guest: u64,
    /// Slots that are not offered.
    free: Vec<u16>,
    /// Index of the next entry to offer, and of the one offered before the last kick.
    available: u16,
    kicked: u16,
    /// Index of the next used entry.
    used: u16,
}

impl DriverRing {
    /// Bytes that a ring of this shape takes.
    pub fn bytes(shape: Shape) -> u64 {
        Self::slots(shape) + u64::from(shape.size) * u64::from(shape.slot)
    }

    /// A ring at this address of the monitor's, a multiple of 4096, whose bytes are zero; `guest` is the
    /// distance from there to the guest's address, modulo 2^64.
    pub fn new(shape: Shape, base: u64, guest: u64) -> Self {
        Self { shape, base, guest, free: (0..shape.size).rev().collect(), available: 0, kicked: 0, used: 0 }
    }

    /// Place and properties of the ring, as a device is given them.
    pub fn layout(&self) -> Layout {
        Layout {
            size: self.shape.size,
            descriptors: self.descriptors(),
            available: self.available_area(),
            used: self.used_area(),
            indirect: self.shape.piece.is_some(),
            event_index: self.shape.event_index,
            logged: None,
        }
    }

    /// Number of entries.
    pub fn size(&self) -> u16 {
        self.shape.size
    }

    /// The used index: where a device goes on after a change of its back-end.
    pub fn used_index(&self, memory: &GuestMemory) -> u16 {
        load(memory, self.used_area() + 2)
    }

    /// Address of the descriptors.
    pub fn descriptors(&self) -> u64 {
        self.base
    }

    /// Address of the available area.
    pub fn available_area(&self) -> u64 {
        self.base + 16 * u64::from(self.shape.size)
    }

    /// Address of the used area.
    pub fn used_area(&self) -> u64 {
        // 6 bytes and 2 for each entry before it.
        (self.available_area() + 6 + 2 * u64::from(self.shape.size)).next_multiple_of(64)
    }

    fn guest_address(&self, address: u64) -> u64 {
        address.wrapping_add(self.guest)
    }

    fn tables(shape: Shape) -> u64 {
        (26 * u64::from(shape.size) + 128).next_multiple_of(4096)
    }

    fn slots(shape: Shape) -> u64 {
        (Self::tables(shape) + 16 * TABLE as u64 * u64::from(shape.size)).next_multiple_of(4096)
    }

    /// Address of a slot, as the monitor sees it, like those of the areas.
    pub fn slot(&self, slot: u16) -> u64 {
        self.base + Self::slots(self.shape) + u64::from(slot) * u64::from(self.shape.slot)
    }

    /// A free slot, to be filled and offered.
    pub fn take_free(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// Offers the first `len` bytes of a slot: filled ones, or (`writable`) for the device to fill.
    pub fn offer(&mut self, memory: &GuestMemory, slot: u16, len: u32, writable: bool) {
        let write = if writable { WRITE } else { 0 };
        let own = self.descriptors() + 16 * u64::from(slot);
        if let Some(piece) = self.shape.piece {
            let table = self.base + Self::tables(self.shape) + 16 * TABLE as u64 * u64::from(slot);
            let count = len.div_ceil(piece).clamp(1, TABLE as u32);
            for index in 0..count {
                let offset = index * piece;
                let last = index + 1 == count;
                let part = if last { len - offset } else { piece };
                let (flags, next) = if last { (write, 0) } else { (write | NEXT, index as u16 + 1) };
                let place = table + 16 * u64::from(index);
                let address = self.guest_address(self.slot(slot) + u64::from(offset));
                describe(memory, place, address, part, flags, next);
            }
            describe(memory, own, self.guest_address(table), 16 * count, INDIRECT, 0);
        } else {
            describe(memory, own, self.guest_address(self.slot(slot)), len, write, 0);
        }
        let entry = 4 + 2 * u64::from(self.available % self.shape.size);
        store(memory, self.available_area() + entry, slot);
        self.available = self.available.wrapping_add(1);
        store(memory, self.available_area() + 2, self.available);
    }

    /// Whether the device wants a kick for what was offered since the last question.
    pub fn needs_kick(&mut self, memory: &GuestMemory) -> bool {
        fence(Ordering::SeqCst);
        let before = std::mem::replace(&mut self.kicked, self.available);
        if before == self.available {
            return false;
        }
        if !self.shape.event_index {
            return load(memory, self.used_area()) & 1 == 0;
        }
        let event = load(memory, self.used_area() + 4 + 8 * u64::from(self.shape.size));
        self.available.wrapping_sub(event).wrapping_sub(1) < self.available.wrapping_sub(before)
    }

    /// The next used slot, and the bytes that the device has written to it. The slot is the caller's, to be
    /// offered again or given back.
    pub fn take_used(&mut self, memory: &GuestMemory) -> Option<(u16, u32)> {
        if load(memory, self.used_area() + 2) == self.used {
            return None;
        }
        let entry = self.used_area() + 4 + 8 * u64::from(self.used % self.shape.size);
        self.used = self.used.wrapping_add(1);
        let [s0, s1, _, _, l0, l1, l2, l3] = memory.user(entry, 8)?.structure(0);
        Some((u16::from_le_bytes([s0, s1]) % self.shape.size, u32::from_le_bytes([l0, l1, l2, l3])))
    }

    /// Gives a used slot back.
    pub fn give_back(&mut self, slot: u16) {
        self.free.push(slot);
    }

    /// Asks for a call with the next used slot; true if there is one already. While `wanted` is false none is
    /// asked for.
    pub fn arm(&mut self, memory: &GuestMemory, wanted: bool) -> bool {
        if self.shape.event_index {
            let event = if wanted { self.used } else { self.used.wrapping_sub(1) };
            store(memory, self.available_area() + 4 + 2 * u64::from(self.shape.size), event);
        } else {
            store(memory, self.available_area(), u16::from(!wanted));
        }
        fence(Ordering::SeqCst);
        load(memory, self.used_area() + 2) != self.used
    }
}

fn load(memory: &GuestMemory, address: u64) -> u16 {
    memory.user(address, 2).map_or(0, |field| field.load(0, Ordering::Acquire))
}

fn store(memory: &GuestMemory, address: u64, value: u16) {
    if let Some(field) = memory.user(address, 2) {
        field.store(0, value, Ordering::Release);
    }
}

/// Writes one descriptor.
pub fn describe(memory: &GuestMemory, place: u64, address: u64, len: u32, flags: u16, next: u16) {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    if let Some(field) = memory.user(place, 16) {
        field.write(&bytes);
    }
}

/// A memfd of this many bytes.
///
/// # Panics
/// The kernel has no memory or no descriptors.
pub fn memfd(size: u64) -> OwnedFd {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memfd_create");
    ftruncate(&file, size).expect("ftruncate");
    file
}

/// Memory of one region.
///
/// # Panics
/// The file is shorter than the region, or cannot be mapped.
pub fn mapped(file: &OwnedFd, place: RegionPlace) -> GuestMemory {
    let mut memory = GuestMemory::default();
    memory.add(Region::map(file, place).expect("a region maps")).expect("one region overlaps nothing");
    memory
}
