//! Packets in flight: a first-in first-out store of records of any length in one piece of memory.
//!
//! A packet is read from a device straight into the free end and written to the other device from its
//! position. All memory is allocated at the start, and each record is contiguous: a record that does not fit
//! before the end of the memory is put at its beginning.

use std::collections::VecDeque;

#[derive(Debug, Clone, Copy)]
struct Record {
    start: usize,
    length: usize,
    due_ns: u64,
}

/// The ring buffer.
#[derive(Debug)]
pub(super) struct Ring {
    memory: Vec<u8>,
    records: VecDeque<Record>,
    /// Offset of the next record, if it fits there.
    end: usize,
}

impl Ring {
    /// A ring with room for `bytes`.
    pub(super) fn new(bytes: usize) -> Self {
        Self { memory: vec![0; bytes], records: VecDeque::with_capacity(bytes / 1024), end: 0 }
    }

    /// Room for a record of at most `length` bytes behind the last one, to be filled and then kept by
    /// [`Ring::push`].
    pub(super) fn room(&mut self, length: usize) -> Option<&mut [u8]> {
        let start = self.free(length)?;
        self.end = start;
        self.memory.get_mut(start..start + length)
    }

    fn free(&self, length: usize) -> Option<usize> {
        let Some(first) = self.records.front().map(|record| record.start) else {
            return (length <= self.memory.len()).then_some(0);
        };
        if self.end <= first {
            // Records lie up to the end of the memory and on from its beginning. One that ended exactly where
            // the first one begins would look like an empty store.
            return (self.end + length < first).then_some(self.end);
        }
        if self.end + length <= self.memory.len() {
            return Some(self.end);
        }
        (length < first).then_some(0)
    }

    /// Commits `length` bytes of the room that [`Ring::room`] gave last.
    pub(super) fn written(&self, length: usize) -> &[u8] {
        &self.memory[self.end..self.end + length]
    }

    /// Keeps the first `length` bytes of the room that [`Ring::room`] gave last.
    pub(super) fn push(&mut self, length: usize, due_ns: u64) {
        self.records.push_back(Record { start: self.end, length, due_ns });
        self.end += length;
    }

    /// Due time of the first record.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        self.records.front().map(|record| record.due_ns)
    }

    /// The first record.
    pub(super) fn front(&self) -> Option<&[u8]> {
        self.records.front().map(|record| &self.memory[record.start..record.start + record.length])
    }

    /// Removes the first record.
    pub(super) fn pop(&mut self) {
        self.records.pop_front();
    }
}

#[cfg(test)]
mod tests;
