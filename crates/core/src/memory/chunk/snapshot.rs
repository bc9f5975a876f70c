//! Queues of payload in a snapshot: saved as they lie in the chunks, and put into chunks of the same sizes.
//!
//! The layout in chunks is no matter of correctness, but decides how much of the budget bytes take and how
//! many slices a send has. A capacity that no chunk has here belongs to another version: then the bytes are
//! packed anew.

use super::{ByteQueue, LARGE, NONE, Origin, Pool, SMALL};
use crate::snapshot::saved::{Invalid, valid};
use crate::snapshot::v1::{Bytes, ChunkV1, QueueV1};

impl Pool {
    /// Saved form of a queue, with slices of the chunks' memory.
    pub(crate) fn save(&self, queue: &ByteQueue) -> QueueV1<'_> {
        let mut chunks = Vec::new();
        let mut at = queue.head;
        while at != NONE {
            let chunk = &self.chunks[at as usize];
            chunks.push(ChunkV1 {
                room: chunk.size,
                start: chunk.start,
                bytes: Bytes(&self.bytes(at)[chunk.start as usize..chunk.end as usize]),
            });
            at = chunk.next;
        }
        QueueV1 { chunks }
    }

    /// Workers to wake that no call has taken yet, one bit each.
    pub(crate) const fn wakes(&self) -> u64 {
        self.wakes
    }

    /// Notes workers to wake.
    pub(crate) const fn add_wakes(&mut self, workers: u64) {
        self.wakes |= workers;
    }

    /// Puts the bytes of a saved queue into `queue`, which is empty; `origin` as in [`Pool::push`].
    ///
    /// # Errors
    /// [`Invalid`] if the budget has no room for them, or a chunk contradicts itself; some of them may be in
    /// the queue then.
    pub(crate) fn restore(
        &mut self,
        queue: &mut ByteQueue,
        origin: Option<Origin>,
        saved: &QueueV1<'_>,
    ) -> Result<(), Invalid> {
        debug_assert!(queue.is_empty(), "a queue is restored once");
        for ChunkV1 { room, start, bytes } in &saved.chunks {
            let (room, start) = (*room as usize, *start as usize);
            valid(!bytes.0.is_empty())?;
            let origin = origin.map(|origin| origin.behind(queue.len() as usize));
            if room != SMALL && room != LARGE {
                valid(self.push(queue, origin, bytes.0) == bytes.0.len())?;
                continue;
            }
            valid(start + bytes.0.len() <= room)?;
            let index = self.take(room).ok_or(Invalid)?;
            self.begin_record(
                index,
                origin.map(|origin| Origin { seq: origin.seq - start as u32, ..origin }),
            );
            let end = start + bytes.0.len();
            self.bytes_mut(index)[start..end].copy_from_slice(bytes.0);
            let chunk = &mut self.chunks[index as usize];
            (chunk.start, chunk.end) = (start as u32, end as u32);
            self.write_extent(index);
            self.link(queue, index);
            queue.len += bytes.0.len() as u32;
        }
        Ok(())
    }
}
