//! Queued datagrams in a snapshot: the records as they lie in the queue, and the decision about the first.
//!
//! A run of datagrams is gathered into a fixed number of slices, which suffices because chunks are filled
//! before the next is begun, and a datagram has a longest length. Both are checked.

use super::{Backlog, CoDel, FLOW_BYTES};
use crate::context::Shared;
use crate::memory::chunk::{ByteQueue, Cursor, LARGE, Pool, SMALL};
use crate::snapshot::saved::{Invalid, Saved, valid};
use crate::snapshot::v1::{BacklogV1, QueueV1};

/// Longest datagram, bytes.
const DATAGRAM_MAX: u32 = u16::MAX as u32;

impl Backlog {
    /// Saved form, with slices of the pool's memory.
    pub(in crate::datagram) fn save<'p>(&self, pool: &'p Pool) -> BacklogV1<'p> {
        let Self { records, codel, head } = self;
        let head = head.map(|record| record.fields.tos);
        BacklogV1 { records: pool.save(records), codel: codel.save(), head }
    }

    /// Queue of a saved form.
    ///
    /// # Errors
    /// [`Invalid`] if its records contradict themselves, or memory does not suffice: then it holds none.
    pub(in crate::datagram) fn restore(shared: &mut Shared, saved: &BacklogV1<'_>) -> Result<Self, Invalid> {
        valid(saved.records.len() <= FLOW_BYTES as usize && is_packed(&saved.records))?;
        let mut backlog = Self { records: ByteQueue::new(), codel: CoDel::restore(saved.codel)?, head: None };
        let pool = &mut shared.memory.pool;
        let stored = pool.restore(&mut backlog.records, None, &saved.records);
        if stored.and_then(|()| backlog.check_records(pool)).is_err() {
            pool.clear(&mut backlog.records);
            return Err(Invalid);
        }
        if let (Some(tos), Some((mut first, _))) = (saved.head, backlog.peek(pool, Cursor::FRONT)) {
            first.fields.tos = tos;
            backlog.head = Some(first);
        }
        shared.datagrams_held += backlog.records.len() as usize;
        Ok(backlog)
    }

    /// Whether the queue is a row of whole records.
    fn check_records(&self, pool: &Pool) -> Result<(), Invalid> {
        let mut at = 0;
        while at < self.records.len() {
            let (record, _) = self.peek(pool, pool.seek(&self.records, at)).ok_or(Invalid)?;
            valid(record.len <= DATAGRAM_MAX && record.size() <= self.records.len() - at)?;
            at += record.size();
        }
        Ok(())
    }
}

/// Whether every chunk but the last is filled, and every one but the first from its beginning.
fn is_packed(queue: &QueueV1<'_>) -> bool {
    let last = queue.chunks.len().saturating_sub(1);
    queue.chunks.iter().enumerate().all(|(i, chunk)| {
        let (room, end) = (chunk.room as usize, chunk.start as usize + chunk.bytes.0.len());
        (room == SMALL || room == LARGE) && (i == last || end == room) && (i == 0 || chunk.start == 0)
    })
}
