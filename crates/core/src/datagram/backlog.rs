//! Datagrams of one flow queued for room in its host socket.
//!
//! A socket without room means a network on the host that is slower than the guest. Further datagrams are
//! queued, up to [`FLOW_BYTES`] for a flow and a quarter of the memory for all, and leave in order as soon as
//! the socket reports room; a datagram beyond the bound is dropped. CoDel keeps the wait short when this goes
//! on: see [`super::codel`]. With ECN a datagram is marked instead of dropped.
//!
//! Each datagram is one record in the pool's chunks, a small header and the payload, so nothing is allocated
//! for it. Neighbours of one size leave together, as one segmented send.

use super::codel::CoDel;
use crate::context::Shared;
use crate::counters::DropReason;
use crate::host::{Host, HostError, IpHeaderFields, SEGMENTS_MAX, SEND_BYTES_MAX, SocketId};
use crate::memory::budget::Pressure;
use crate::memory::chunk::{ByteQueue, Cursor, LARGE, Pool, SLICES_MAX, SMALL};
use crate::time::Instant;
use std::io::IoSlice;
use std::num::NonZeroU8;

/// Most bytes that one flow holds, headers of records included.
pub(super) const FLOW_BYTES: u32 = 256 << 10;
/// Part of the memory budget that the queues of one worker may hold; all workers together, as long as the
/// budget lasts.
const MEMORY_PART: usize = 4;
/// Slices of one send: one for each datagram, and one more for each border between two chunks. The run with
/// the most borders fills the largest send from the smallest chunks.
const SLICES: usize =
    SEGMENTS_MAX + (SEND_BYTES_MAX + SEGMENTS_MAX * Record::LEN as usize).div_ceil(SMALL) + 1;
/// ECN field of the traffic class byte (RFC 3168, section 5): zero for a sender without ECN, all ones for
/// "congestion experienced".
const ECN: u8 = 3;

/// Header of each payload in the queue. Its form is that of a snapshot too
/// ([`crate::snapshot::v1::BacklogV1`]).
#[derive(Debug, Clone, Copy)]
struct Record {
    len: u32,
    fields: IpHeaderFields,
    /// Time of arrival.
    at: Instant,
}

impl Record {
    const LEN: u32 = 16;

    fn to_bytes(self) -> [u8; Self::LEN as usize] {
        let mut bytes = [0; Self::LEN as usize];
        bytes[..4].copy_from_slice(&self.len.to_le_bytes());
        let IpHeaderFields { tos, ttl, dont_fragment } = self.fields;
        bytes[4..7].copy_from_slice(&[tos, ttl.map_or(0, NonZeroU8::get), dont_fragment.into()]);
        bytes[8..].copy_from_slice(&self.at.as_ns().to_le_bytes());
        bytes
    }

    fn from_bytes([a, b, c, d, tos, ttl, dont_fragment, _, at @ ..]: [u8; Self::LEN as usize]) -> Self {
        let len = u32::from_le_bytes([a, b, c, d]);
        let fields = IpHeaderFields { tos, ttl: NonZeroU8::new(ttl), dont_fragment: dont_fragment != 0 };
        Self { len, fields, at: Instant::from_ns(u64::from_le_bytes(at)) }
    }

    /// Bytes of the record in the queue.
    fn size(self) -> u32 {
        Self::LEN + self.len
    }
}

/// The waiting datagrams of one flow.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    records: ByteQueue,
    codel: CoDel,
    /// The first record, once CoDel has decided that it will be sent, perhaps marked.
    head: Option<Record>,
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Queues one datagram, or counts its drop.
    pub(super) fn push(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        datagram: &[u8],
        fields: IpHeaderFields,
    ) {
        let record = Record { len: datagram.len() as u32, fields, at: now };
        let size = record.size();
        let all = shared.datagrams_held + size as usize;
        if self.records.len() + size > FLOW_BYTES || all > shared.config.memory / MEMORY_PART {
            return shared.counters.drop(DropReason::HostSocketFull);
        }
        // A record needs at most its own size rounded up to chunks: a large one, or small ones.
        let room = datagram.len() + LARGE + 2 * SMALL;
        if shared.memory.pool.pressure() == Pressure::Spent || shared.memory.pool.budget().available() < room
        {
            return shared.counters.drop(DropReason::MemoryBudget);
        }
        let stored = shared.memory.pool.push(&mut self.records, None, &record.to_bytes())
            + shared.memory.pool.push(&mut self.records, None, datagram);
        shared.datagrams_held += stored;
        if stored < size as usize {
            // Memory taken by other flows meanwhile, and half a record is of no use: begin again.
            shared.counters.drop(DropReason::MemoryBudget);
            return self.clear(shared);
        }
        shared.counters.udp_held += 1;
    }

    /// Sends as much as the socket takes. `Ok` when the queue is empty; an error concerns the first datagram,
    /// which stays.
    pub(super) fn send<H: Host>(
        &mut self,
        shared: &mut Shared,
        host: &mut H,
        socket: SocketId,
        now: Instant,
    ) -> Result<(), HostError> {
        while let Some(head) = self.head(shared, now) {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let run = self.gather(&shared.memory.pool, head, &mut slices);
            let segment = (run.datagrams > 1).then_some(head.len as u16);
            let taken = host.datagram_send(socket, &slices[..run.slices], segment, head.fields)?;
            let datagrams = if run.datagrams > 1 { (taken as u32).div_ceil(head.len) } else { 1 };
            self.consume(shared, taken as u32 + datagrams * Record::LEN);
            if datagrams == run.datagrams {
                self.codel.observe(now, now - run.last_at, self.records.len());
            }
        }
        Ok(())
    }

    /// Drops the first datagram after the host's refusal to send it; false if there is none.
    pub(super) fn drop_first(&mut self, shared: &mut Shared) -> bool {
        let Some(record) =
            self.head.or_else(|| self.peek(&shared.memory.pool, Cursor::FRONT).map(|(r, _)| r))
        else {
            return false;
        };
        self.consume(shared, record.size());
        true
    }

    /// Empties the queue and returns its memory.
    pub(super) fn clear(&mut self, shared: &mut Shared) {
        self.consume(shared, self.records.len());
    }

    fn consume(&mut self, shared: &mut Shared, bytes: u32) {
        shared.datagrams_held -= bytes as usize;
        shared.memory.pool.consume(&mut self.records, bytes);
        self.head = None;
        if self.records.is_empty() {
            self.codel.emptied();
        }
    }

    /// The first datagram to be sent, after the drops of CoDel.
    fn head(&mut self, shared: &mut Shared, now: Instant) -> Option<Record> {
        while self.head.is_none() {
            let (mut record, _) = self.peek(&shared.memory.pool, Cursor::FRONT)?;
            if self.codel.must_drop(now, now - record.at, self.records.len()) {
                if record.fields.tos & ECN == 0 {
                    shared.counters.drop(DropReason::HostQueueDelay);
                    self.consume(shared, record.size());
                    continue;
                }
                record.fields.tos |= ECN;
                shared.counters.udp_marked += 1;
            }
            self.head = Some(record);
        }
        self.head
    }

    /// The record at `cursor` and the cursor of its payload.
    fn peek(&self, pool: &Pool, cursor: Cursor) -> Option<(Record, Cursor)> {
        if self.records.is_empty() {
            return None;
        }
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let (count, bytes, behind) = pool.slices(&self.records, cursor, Record::LEN, &mut slices);
        let mut header = [0; Record::LEN as usize];
        let mut at = 0;
        for slice in &slices[..count] {
            header[at..at + slice.len()].copy_from_slice(slice);
            at += slice.len();
        }
        (bytes == Record::LEN).then(|| (Record::from_bytes(header), behind))
    }

    /// The payloads of the first datagrams that leave together: `head`, and those behind it with its size and
    /// header fields, of which the last may be shorter.
    fn gather<'a>(&self, pool: &'a Pool, head: Record, slices: &mut [IoSlice<'a>; SLICES]) -> Run {
        let mut run = Run { slices: 0, datagrams: 0, last_at: head.at };
        let (mut bytes, mut cursor) = (0, Cursor::FRONT);
        while let Some((record, payload)) = self.peek(pool, cursor) {
            let record = if run.datagrams == 0 { head } else { record };
            bytes += record.len;
            let fits = bytes as usize <= SEND_BYTES_MAX && (run.datagrams as usize) < SEGMENTS_MAX;
            let alike = record.fields == head.fields && (1..=head.len).contains(&record.len);
            if run.datagrams > 0 && !(fits && alike) {
                break;
            }
            cursor = payload;
            let mut left = record.len;
            while left > 0 {
                let mut some = [IoSlice::new(&[]); SLICES_MAX];
                let (count, n, behind) = pool.slices(&self.records, cursor, left, &mut some);
                slices[run.slices..run.slices + count].copy_from_slice(&some[..count]);
                run.slices += count;
                cursor = behind;
                left -= n;
            }
            run.datagrams += 1;
            run.last_at = record.at;
            if record.len < head.len || self.codel.is_dropping() {
                break;
            }
        }
        run
    }
}

/// Datagrams that leave together.
struct Run {
    slices: usize,
    datagrams: u32,
    /// Time of arrival of the last of them.
    last_at: Instant,
}

mod snapshot;
#[cfg(test)]
mod tests;
