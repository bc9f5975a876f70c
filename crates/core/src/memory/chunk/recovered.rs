//! Chunks of a process that has crashed, claimed by the flows that go on.
//!
//! Payload memory stays where it is: a chunk that a flow claims is put into its queue without a copy, under
//! the record that it has. The content of records is not trusted: a place outside of a chunk, or bytes that
//! do not follow one another, is as if there were none. The flow that a record names cannot be checked; a
//! process that was taken over could have sent any bytes to any flow before.

use super::{ByteQueue, Chunk, LARGE, NONE, Pool, SMALL};
use crate::key::FlowId;
use crate::memory::payload::{self, ByteStream, Origin, PayloadMemory};
use crate::snapshot::saved::{Invalid, valid};
use crate::wire::tcp::Seq;

/// A chunk with bytes of a flow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inherited {
    origin: Origin,
    /// [`NONE`] once it was claimed.
    chunk: u32,
}

impl Inherited {
    /// Order in which those of one stream stand together.
    const fn stream(&self) -> (u32, u32, ByteStream) {
        stream(&self.origin)
    }
}

/// Key of a stream.
const fn stream(origin: &Origin) -> (u32, u32, ByteStream) {
    let FlowId { index, generation } = origin.flow;
    (index, generation, origin.stream)
}

impl Pool {
    /// Memory for all chunks from now on, before the first was taken. Its content is
    /// gone.
    pub(crate) fn use_memory(&mut self, memory: PayloadMemory) {
        self.inherit(memory);
        self.drop_inherited();
    }

    /// The same, with the chunks that a process before has left, until [`Pool::drop_inherited`].
    pub(crate) fn inherit(&mut self, mut memory: PayloadMemory) {
        debug_assert!(self.chunks.is_empty(), "all chunks are of one memory");
        memory.begin_again();
        self.memory = Some(memory);
        for size in [LARGE, SMALL] {
            let before = self.memory.as_ref().map_or(0, |memory| memory.area(size).made_before());
            for _ in 0..before {
                let Some(chunk) = self.make(size) else { break };
                self.inherit_chunk(chunk);
            }
        }
        self.inherited.sort_unstable_by_key(Inherited::stream);
    }

    fn inherit_chunk(&mut self, index: u32) {
        let Some(record) = self.record(index) else { return };
        let Chunk { at, size, .. } = self.chunks[index as usize];
        if let Some(memory) = &mut self.memory {
            memory.area_mut(size as usize).hold(at);
        }
        let Some(found) = payload::read(record, size as usize) else { return self.vacate(index) };
        let chunk = &mut self.chunks[index as usize];
        (chunk.start, chunk.end) = (found.start, found.end);
        self.inherited.push(Inherited { origin: found.origin, chunk: index });
    }

    /// Puts the bytes from `origin` on, up to `end`, into `queue`, which is empty.
    ///
    /// # Errors
    /// [`Invalid`] if not all of them are there, or the budget has no room for their chunks.
    pub(crate) fn claim(&mut self, queue: &mut ByteQueue, origin: Origin, end: Seq) -> Result<(), Invalid> {
        debug_assert!(queue.is_empty(), "a queue is recovered once");
        let wanted = stream(&origin);
        let first = self.inherited.partition_point(|it| it.stream() < wanted);
        let count = self.inherited[first..].partition_point(|it| it.stream() == wanted);
        let chunks = &mut self.inherited[first..first + count];
        chunks.sort_unstable_by_key(|it| it.origin.seq - origin.seq);
        let mut next = origin.seq;
        for place in first..first + count {
            if next == end {
                // Bytes on their way from one chunk to another at the crash are in both.
                break;
            }
            let Inherited { origin: Origin { seq, .. }, chunk: index } = self.inherited[place];
            let Some(&Chunk { start, end: last, size, .. }) = self.chunks.get(index as usize) else {
                continue;
            };
            let behind = seq + (last - start);
            if behind.le(next) || seq.ge(end) {
                continue;
            }
            valid(seq.le(next) && self.budget.take(size as usize))?;
            let unused = (behind - end).max(0) as u32;
            let chunk = &mut self.chunks[index as usize];
            chunk.start += (next - seq) as u32;
            chunk.end -= unused;
            let len = chunk.end - chunk.start;
            self.inherited[place].chunk = NONE;
            self.write_extent(index);
            self.link(queue, index);
            queue.len += len;
            next += len;
        }
        valid(next == end)
    }

    /// Memory of a pool that is gone.
    pub(crate) fn take_memory(&mut self) -> Option<PayloadMemory> {
        self.memory.take()
    }

    /// Gives back the chunks that no flow has claimed.
    pub(crate) fn drop_inherited(&mut self) {
        for Inherited { chunk, .. } in std::mem::take(&mut self.inherited) {
            if chunk != NONE {
                self.vacate(chunk);
            }
        }
    }
}
