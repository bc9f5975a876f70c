//! A guest's memory of the model checker's atomic integers, in the place of `src/virtio/memory.rs`.

use super::atomic::Ordering;
use loom::sync::atomic::AtomicU16;

/// Memory whose addresses are those of the guest and of the monitor.
pub struct GuestMemory(Vec<AtomicU16>);

impl GuestMemory {
    pub fn new(bytes: usize) -> Self {
        Self((0..bytes.div_ceil(2)).map(|_| AtomicU16::new(0)).collect())
    }

    pub fn user(&self, address: u64, len: usize) -> Option<GuestSlice<'_>> {
        let (start, bytes) = (address as usize, 2 * self.0.len());
        (start + len <= bytes).then_some(GuestSlice { cells: &self.0, start, len })
    }

    #[allow(clippy::unused_self, reason = "the original has a log")]
    pub fn mark_dirty(&self, _address: u64, _len: usize) {}

    #[allow(clippy::unused_self, reason = "the original has a log")]
    pub fn notify_log(&self) {}

    pub fn guest(&self, address: u64, len: usize) -> Option<GuestSlice<'_>> {
        self.user(address, len)
    }
}

#[derive(Clone, Copy)]
pub struct GuestSlice<'m> {
    cells: &'m [AtomicU16],
    start: usize,
    len: usize,
}

impl GuestSlice<'_> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_aligned(&self, alignment: usize) -> bool {
        self.start.is_multiple_of(alignment)
    }

    pub fn skip(self, count: usize) -> Self {
        Self { start: self.start + count, len: self.len - count, ..self }
    }

    fn cell(&self, at: usize) -> &AtomicU16 {
        let at = self.start + at;
        &self.cells[at / 2]
    }

    pub fn load(&self, at: usize, order: Ordering) -> u16 {
        self.cell(at).load(order)
    }

    pub fn store(&self, at: usize, value: u16, order: Ordering) {
        self.cell(at).store(value, order);
    }

    pub fn structure<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        for (offset, pair) in bytes.chunks_mut(2).enumerate() {
            pair.copy_from_slice(&self.load(at + 2 * offset, Ordering::Relaxed).to_le_bytes());
        }
        bytes
    }

    pub fn write(&self, from: &[u8]) -> usize {
        for (offset, pair) in from.chunks(2).enumerate() {
            let value = u16::from_le_bytes([pair[0], pair[1]]);
            self.store(2 * offset, value, Ordering::Relaxed);
        }
        from.len()
    }
}
