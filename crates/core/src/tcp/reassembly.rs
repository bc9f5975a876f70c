//! Reassembly of payload that arrived ahead of a gap: sorted, disjoint ranges of sequence space, each a queue
//! of pooled bytes.
//!
//! A link that loses nothing never uses it. The number of ranges is bounded so that a hostile guest cannot
//! spread a window over thousands of one-byte islands; a segment that would add a range beyond the bound is
//! dropped and retransmitted by the guest.

use crate::flow::FlowId;
use crate::memory::chunk::{ByteQueue, Pool};
use crate::memory::payload::{ByteStream, Origin};
use crate::snapshot::saved::{Invalid, is_count, valid};
use crate::snapshot::v1::ReassembledV1;
use crate::wire::tcp::{SackBlock, SackBlocks, Seq};

/// Maximum of ranges of one connection.
const RANGES_MAX: usize = 32;

#[derive(Debug)]
struct Range {
    start: Seq,
    bytes: ByteQueue,
    /// Order of arrival of its newest segment: the higher, the later.
    touched: u64,
}

impl Range {
    fn end(&self) -> Seq {
        self.start + self.bytes.len()
    }
}

/// The ranges of one connection. Give their chunks back with [`Reassembly::clear`].
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    ranges: Vec<Range>,
}

/// No room: there are [`RANGES_MAX`] ranges already, or the memory budget is spent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Reassembly {
    /// Bytes held.
    pub(crate) fn len(&self) -> u32 {
        self.ranges.iter().map(|r| r.bytes.len()).sum()
    }

    /// Heap memory of the list of ranges, bytes.
    pub(crate) fn allocated(&self) -> usize {
        self.ranges.capacity() * size_of::<Range>()
    }

    /// Whether nothing is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether ranges are sorted and do not touch, and none is empty.
    fn is_consistent(&self) -> bool {
        let apart = self.ranges.windows(2).all(|pair| pair[0].end().lt(pair[1].start));
        apart && self.ranges.iter().all(|range| !range.bytes.is_empty())
    }

    /// Stores `data` from `origin` on; bytes that are held already are kept as they are.
    pub(crate) fn insert(&mut self, pool: &mut Pool, origin: Origin, mut data: &[u8]) -> Result<(), Full> {
        let mut seq = origin.seq;
        let newest = self.ranges.iter().map(|range| range.touched).max().unwrap_or(0) + 1;
        let mut i = 0;
        while !data.is_empty() {
            // Ranges that end before `seq` do not matter; one that ends exactly there is extended.
            while self.ranges.get(i).is_some_and(|r| r.end().lt(seq)) {
                i += 1;
            }
            if let Some(range) = self.ranges.get_mut(i).filter(|r| r.start.le(seq)) {
                range.touched = newest;
                let known = ((range.end() - seq) as usize).min(data.len());
                seq += known as u32;
                data = &data[known..];
                if data.is_empty() {
                    break;
                }
            }
            let gap = match self.ranges.get(i + usize::from(self.touches(i, seq))) {
                Some(next) => ((next.start - seq) as usize).min(data.len()),
                None => data.len(),
            };
            let (fresh, rest) = data.split_at(gap);
            if !self.touches(i, seq) {
                if self.ranges.len() == RANGES_MAX {
                    return Err(Full);
                }
                self.ranges.insert(i, Range { start: seq, bytes: ByteQueue::new(), touched: 0 });
            }
            let origin = Some(Origin { seq, ..origin });
            let stored = pool.push(&mut self.ranges[i].bytes, origin, fresh);
            self.ranges[i].touched = newest;
            seq += stored as u32;
            if stored < fresh.len() {
                if self.ranges[i].bytes.is_empty() {
                    self.ranges.remove(i);
                }
                return Err(Full);
            }
            data = rest;
            if self.ranges.get(i + 1).is_some_and(|next| next.start == seq) {
                let next = self.ranges.remove(i + 1);
                pool.append(&mut self.ranges[i].bytes, next.bytes);
            }
        }
        debug_assert!(self.is_consistent(), "ranges are disjoint and sorted: {:?}", self.ranges);
        Ok(())
    }

    /// First part between `start` and `end` that is held already, as a duplicate is reported (RFC 2883).
    pub(crate) fn held(&self, start: Seq, end: Seq) -> Option<SackBlock> {
        let range = self.ranges.iter().find(|r| r.start.lt(end) && r.end().gt(start))?;
        let left = if range.start.gt(start) { range.start } else { start };
        let right = if range.end().lt(end) { range.end() } else { end };
        Some(SackBlock { left, right })
    }

    /// SACK blocks of the ranges: at most `max`, and first "the segment which triggered this ACK" (RFC 2018,
    /// section 4).
    pub(crate) fn blocks(&self, max: usize) -> impl Iterator<Item = SackBlock> {
        let mut newest = [None::<&Range>; SackBlocks::MAX];
        for range in &self.ranges {
            let mut range = Some(range);
            for slot in &mut newest {
                if range.map(|r| r.touched) > slot.map(|r| r.touched) {
                    std::mem::swap(slot, &mut range);
                }
            }
        }
        newest
            .into_iter()
            .flatten()
            .take(max)
            .map(|range| SackBlock { left: range.start, right: range.end() })
    }

    /// Whether range `i` ends exactly at `seq`.
    fn touches(&self, i: usize, seq: Seq) -> bool {
        self.ranges.get(i).is_some_and(|r| r.end() == seq)
    }

    /// Bytes that are in order once everything before `nxt` has arrived; moved, not copied.
    pub(crate) fn take(&mut self, pool: &mut Pool, nxt: Seq) -> Option<ByteQueue> {
        while self.ranges.first().is_some_and(|r| r.start.le(nxt)) {
            let mut range = self.ranges.remove(0);
            if range.end().gt(nxt) {
                pool.consume(&mut range.bytes, (nxt - range.start) as u32);
                return Some(range.bytes);
            }
            pool.clear(&mut range.bytes);
        }
        None
    }

    /// Gives everything back.
    pub(crate) fn clear(&mut self, pool: &mut Pool) {
        for mut range in self.ranges.drain(..) {
            pool.clear(&mut range.bytes);
        }
        self.ranges.shrink_to_fit();
    }
}

/// For a snapshot.
impl Reassembly {
    /// Saved form, with slices of the pool's memory.
    pub(crate) fn save<'p>(&self, pool: &'p Pool) -> Vec<ReassembledV1<'p>> {
        let save = |Range { start, bytes, touched }: &Range| ReassembledV1 {
            start: start.0,
            bytes: pool.save(bytes),
            touched: *touched,
        };
        self.ranges.iter().map(save).collect()
    }

    /// Takes the ranges of a saved form of `flow`, which lie in the `window`, from RCV.NXT to its edge.
    ///
    /// # Errors
    /// [`Invalid`] if they do not, or memory does not suffice; some of them may be held then.
    pub(crate) fn restore(
        &mut self,
        pool: &mut Pool,
        flow: FlowId,
        window: std::ops::Range<Seq>,
        saved: &[ReassembledV1<'_>],
    ) -> Result<(), Invalid> {
        valid(saved.len() <= RANGES_MAX)?;
        let mut end = window.start;
        for ReassembledV1 { start, bytes, touched } in saved {
            let (start, len) = (Seq(*start), bytes.len());
            valid(
                start.gt(end) && len > 0 && len <= (window.end - start).max(0) as usize && is_count(*touched),
            )?;
            end = start + len as u32;
            self.ranges.push(Range { start, bytes: ByteQueue::new(), touched: *touched });
            let Some(range) = self.ranges.last_mut() else { return Err(Invalid) };
            let origin = Origin { flow, stream: ByteStream::ToHost, seq: start };
            pool.restore(&mut range.bytes, Some(origin), bytes)?;
        }
        debug_assert!(self.is_consistent(), "restored ranges are disjoint and sorted: {:?}", self.ranges);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
