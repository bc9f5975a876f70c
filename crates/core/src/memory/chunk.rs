//! Chunk pool: payload memory in fixed chunks of two sizes, and byte queues made of them.
//!
//! A connection's buffer is not an allocation but a number (its limit); bytes actually held are in chunks,
//! taken from the pool when bytes arrive and freed when they are consumed. An idle connection holds none.
//! Free chunks are handed out last-in first-out, so that the same ones stay in the L2 cache. Few bytes go to
//! small chunks and bulk to large ones, so that ten thousand connections with one byte in flight do not hold
//! ten thousand large chunks.
//!
//! A [`ByteQueue`] is a list of chunks linked through the pool: moving bytes from one queue to the end of
//! another copies nothing, and no operation allocates once the pool has grown to the load.
//!
//! # What memory allows
//!
//! Window reservation: bytes that a guest may still send into an advertised window are committed memory.
//! Accepted by the host socket they take no chunk; refused, they must be buffered. So windows count against
//! the budget beside the bytes held ([`Pool::reserve_window`]), except for a 4096th of it ([`first_window`];
//! 64 KiB by default) in each window whose host socket takes everything: ten thousand idle connections
//! reserve nothing. Reservations come out of the first half of the budget ([`Pool::receive_cap`]); the other
//! half is for the uncounted 4096ths, and for the minimum window of a connection when the first half is used
//! up. So two thousand connections find room for their whole windows, even if all their host sockets block at
//! once; with more, some segments would have to be retransmitted.

pub use super::payload::{LARGE, SMALL};

use crate::memory::budget::{Budget, Pressure};
use crate::memory::payload::{self, ChunkRecord, Origin, PayloadMemory};
use recovered::Inherited;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Deref;
use std::sync::Arc;

/// Most free large chunks kept for reuse; further ones return to the allocator.
const FREE_LARGE_MAX: usize = 64;
/// Most free small chunks kept for reuse.
const FREE_SMALL_MAX: usize = 1024;
/// Most large chunks that one [`Pool::fill`] fills: as much as stays in the cache between the read and the
/// write.
pub const FILL_CHUNKS: usize = 4;
/// Most slices that [`Pool::slices`] returns at a time.
pub const SLICES_MAX: usize = 8;
/// Up to this many bytes are packed into small chunks after a read; more stay in the large chunk they were
/// read into.
const PACK_MAX: usize = 4 * SMALL;
/// Room at the end of a queue worth a slice of its own in a read.
const TAIL_ROOM_MIN: usize = SMALL;

const NONE: u32 = u32::MAX;

/// Result of [`Pool::fill`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filled {
    /// Bytes read.
    pub bytes: usize,
    /// Whether they took all room that was offered, which may be less than was asked for: if not, there is
    /// nothing more to read.
    pub whole: bool,
}

#[derive(Debug)]
struct Chunk {
    /// Bytes of a pool without payload memory.
    heap: Box<[u8]>,
    /// Number among the chunks of its size, in a pool with payload memory.
    at: u32,
    /// Capacity, bytes; 0 without memory.
    size: u32,
    start: u32,
    end: u32,
    next: u32,
}

/// A FIFO of bytes held in chunks. Release it with [`Pool::clear`]; dropping it leaks its chunks.
#[derive(Debug)]
pub struct ByteQueue {
    head: u32,
    tail: u32,
    len: u32,
}

impl Default for ByteQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl ByteQueue {
    /// An empty queue; holds no chunk.
    pub const fn new() -> Self {
        Self { head: NONE, tail: NONE, len: 0 }
    }

    /// Bytes in the queue.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether the queue is empty.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A position in a queue, so that a sender need not walk from the front. Valid until bytes before it are
/// consumed beyond it or the queue is cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    chunk: u32,
    offset: u32,
}

impl Cursor {
    /// The front of any queue.
    pub const FRONT: Self = Self { chunk: NONE, offset: 0 };
}

/// Segments that a connection may hold when memory is short.
const SEGMENTS_WHEN_SHORT: u32 = 4;
/// Minimum window of a connection with a blocked host socket, at any memory pressure: a small chunk.
const WINDOW_MIN: u32 = SMALL as u32;

/// Part of a window that is not counted against a budget of `budget` bytes while the host socket takes
/// everything, bytes.
pub fn first_window(budget: usize) -> u32 {
    u32::try_from(budget / 4096).unwrap_or(u32::MAX).clamp(WINDOW_MIN, LARGE as u32)
}

/// The chunks of one worker, out of the shared budget.
#[derive(Debug)]
pub struct Pool {
    chunks: Vec<Chunk>,
    free_small: Vec<u32>,
    free_large: Vec<u32>,
    /// Chunks without memory of their own, by size.
    vacant_small: Vec<u32>,
    vacant_large: Vec<u32>,
    /// Memory that outlives the process; without it chunks are allocated.
    memory: Option<PayloadMemory>,
    /// Chunks of a process before, while flows claim them.
    inherited: Vec<Inherited>,
    budget: Arc<Budget>,
    /// Bytes already counted as used, for small chunks that take the place of a large one.
    precounted: usize,
    /// Workers to wake because memory was freed, one bit each.
    wakes: u64,
}

impl Pool {
    /// A pool whose chunks in use, with those of all other pools of this budget, never exceed it.
    pub const fn new(budget: Arc<Budget>) -> Self {
        Self {
            chunks: Vec::new(),
            free_small: Vec::new(),
            free_large: Vec::new(),
            vacant_small: Vec::new(),
            vacant_large: Vec::new(),
            memory: None,
            inherited: Vec::new(),
            budget,
            precounted: 0,
            wakes: 0,
        }
    }

    /// The budget of its chunks.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Takes the workers to wake since the last call, one bit each.
    pub const fn take_wakes(&mut self) -> u64 {
        std::mem::replace(&mut self.wakes, 0)
    }

    /// Whether [`Pool::take_unused`] has something to do.
    pub const fn has_unused(&self) -> bool {
        match &self.memory {
            None => false,
            Some(memory) => memory.has_unused(),
        }
    }

    /// Whether no chunk is in use, and some are kept for reuse.
    pub const fn has_spare(&self) -> bool {
        let kept = self.free_small.len() + self.free_large.len();
        kept > 0 && kept + self.vacant_small.len() + self.vacant_large.len() == self.chunks.len()
    }

    /// Keeps none for reuse any more: for times in which nothing is sent.
    pub fn give_up_spare(&mut self) {
        for size in [SMALL, LARGE] {
            for index in std::mem::take(self.free(size)) {
                self.vacate(index);
            }
        }
    }

    /// Hands out the pages of payload memory that have become unused, to be given back to the system. Their
    /// content does not matter any more.
    pub fn take_unused(&mut self, give: impl FnMut(&mut [u8])) {
        if let Some(memory) = &mut self.memory {
            memory.take_unused(give);
        }
    }

    /// The present memory pressure.
    pub fn pressure(&self) -> Pressure {
        self.budget.pressure()
    }

    /// Memory cap of one flow for bytes from the host to a guest with segments of `mss` bytes, in bytes.
    pub fn send_cap(&self, mss: u16) -> u32 {
        let bytes = |bytes| u32::try_from(bytes).unwrap_or(u32::MAX);
        let (free, few) = (bytes(self.budget.available()), SEGMENTS_WHEN_SHORT * u32::from(mss));
        let unreserved = bytes(self.budget.available().saturating_sub(self.budget.reserved()));
        match self.pressure() {
            Pressure::None => unreserved.max(free.min(few)),
            Pressure::Short | Pressure::Spent => free.min(few),
        }
    }

    /// Memory cap of one connection for bytes of its guest, held or reserved by its window, in bytes.
    /// `blocked`: its host socket refuses bytes.
    pub fn receive_cap(&self, blocked: bool) -> u32 {
        if self.pressure() == Pressure::Spent {
            return 0;
        }
        let (total, taken) = (self.budget.total(), self.budget.used() + self.budget.reserved());
        let least = if blocked { WINDOW_MIN } else { first_window(total) };
        u32::try_from((total / 2).saturating_sub(taken)).unwrap_or(u32::MAX).max(least)
    }

    /// Counted part of a window of `window` bytes while the host socket takes everything.
    pub fn counted(&self, window: u32) -> u32 {
        window.saturating_sub(first_window(self.budget.total()))
    }

    /// Changes the reservation of one connection from `before` to `now` counted bytes.
    pub fn reserve_window(&mut self, before: u32, now: u32) {
        self.budget.reserve_window(before as usize, now as usize);
    }

    /// Free bytes of the queue's last chunk, which take no more memory.
    pub fn room(&self, queue: &ByteQueue) -> u32 {
        self.tail_room(queue) as u32
    }

    /// Memory that [`Pool::push`] takes for so many bytes in an empty queue, in bytes.
    pub const fn memory_for(bytes: usize) -> usize {
        let (whole, rest) = (bytes / LARGE * LARGE, bytes % LARGE);
        whole + if rest > PACK_MAX { LARGE } else { rest.div_ceil(SMALL) * SMALL }
    }

    /// Copies `data` to the end of `queue`; returns the number of bytes stored, fewer only if the budget is
    /// used up. `origin` is that of the first byte, if it is to be found after a crash.
    pub fn push(&mut self, queue: &mut ByteQueue, origin: Option<Origin>, mut data: &[u8]) -> usize {
        let total = data.len();
        while !data.is_empty() {
            if self.tail_room(queue) == 0 {
                let Some(chunk) = self.take(if data.len() > PACK_MAX { LARGE } else { SMALL }) else { break };
                self.begin_record(chunk, origin.map(|origin| origin.behind(total - data.len())));
                self.link(queue, chunk);
            }
            let (tail, end) = (queue.tail, self.chunks[queue.tail as usize].end);
            let room = &mut self.bytes_mut(tail)[end as usize..];
            let n = room.len().min(data.len());
            room[..n].copy_from_slice(&data[..n]);
            self.chunks[tail as usize].end += n as u32;
            self.write_extent(tail);
            queue.len += n as u32;
            data = &data[n..];
        }
        total - data.len()
    }

    /// Lets `read` fill up to `max` bytes at the end of `queue`, straight into chunk memory; at most
    /// [`FILL_CHUNKS`] large chunks are filled, and no more than the budget has. Without any, `read` is not
    /// called (`Ok(None)`). `origin` as in [`Pool::push`].
    pub fn fill<E>(
        &mut self,
        queue: &mut ByteQueue,
        origin: Option<Origin>,
        max: usize,
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<Option<Filled>, E> {
        let room = Some(self.tail_room(queue))
            .filter(|&room| room >= TAIL_ROOM_MIN && self.is_large(queue.tail))
            .map_or(0, |room| room.min(max));
        let mut fresh = [NONE; FILL_CHUNKS];
        let mut taken = 0;
        while taken < (max - room).div_ceil(LARGE).clamp(1, FILL_CHUNKS) {
            let Some(chunk) = self.take(LARGE) else { break };
            fresh[taken] = chunk;
            taken += 1;
        }
        if taken == 0 {
            return Ok(None);
        }
        let mut spans = [Span::default(); FILL_CHUNKS + 1];
        let mut count = 0;
        if room > 0 {
            spans[0] = Span { chunk: queue.tail, at: self.chunks[queue.tail as usize].end, len: room as u32 };
            count = 1;
        }
        let mut offered = room;
        for &chunk in &fresh[..taken] {
            let len = (max - offered).min(LARGE);
            self.begin_record(chunk, origin.map(|origin| origin.behind(offered)));
            spans[count] = Span { chunk, at: 0, len: len as u32 };
            offered += len;
            count += 1;
        }
        let spans = &spans[..count];
        let result = self.read_into(spans, read);
        let n = result.as_ref().map_or(0, |&n| n.min(offered));
        let mut left = n;
        for (nth, span) in spans.iter().enumerate() {
            let len = left.min(span.len as usize);
            left -= len;
            if nth == 0 && room > 0 {
                self.chunks[span.chunk as usize].end += len as u32;
                self.write_extent(span.chunk);
                queue.len += len as u32;
            } else {
                self.keep(queue, origin.map(|origin| origin.behind(n - left - len)), span.chunk, len);
            }
        }
        result.map(|_| Some(Filled { bytes: n, whole: n == offered }))
    }

    /// Calls `read` with the memory of `spans`, each of another large chunk. Their records count it as filled
    /// already.
    fn read_into<E>(
        &mut self,
        spans: &[Span],
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let mut places = [0; FILL_CHUNKS + 1];
        for (place, span) in places.iter_mut().zip(spans) {
            let Chunk { at, start, .. } = self.chunks[span.chunk as usize];
            *place = if self.memory.is_some() { at as usize } else { span.chunk as usize };
            if let Some(record) = self.record(span.chunk) {
                payload::set_extent(record, start, span.at + span.len);
            }
        }
        let places = &places[..spans.len()];
        let mut slices = [const { None }; FILL_CHUNKS + 1];
        match &mut self.memory {
            None => each_mut(&mut self.chunks, places, |nth, chunk| {
                slices[nth] = Some(spans[nth].of(&mut chunk.heap));
            }),
            Some(memory) => each_mut(memory.area_mut(LARGE).pages(), places, |nth, page| {
                slices[nth] = Some(spans[nth].of(page.bytes()));
            }),
        }
        let mut slices = slices.map(|slice| slice.unwrap_or_else(|| IoSliceMut::new(&mut [])));
        read(&mut slices[..spans.len()])
    }

    /// Appends a fresh chunk with `len` bytes to `queue`.
    fn keep(&mut self, queue: &mut ByteQueue, origin: Option<Origin>, chunk: u32, len: usize) {
        if len > PACK_MAX {
            self.chunks[chunk as usize].end = len as u32;
            self.write_extent(chunk);
            self.link(queue, chunk);
            queue.len += len as u32;
            return;
        }
        // Packing a few KiB costs less than holding 64 KiB for them until the guest has acknowledged. The
        // chunk's own reservation is used first, so that neither the budget nor another worker can block
        // bytes already read.
        self.precounted = LARGE;
        let filled = self.take_bytes(chunk);
        let stored = self.push(queue, origin, &filled[..len]);
        debug_assert_eq!(stored, len, "small chunks for at most {PACK_MAX} bytes fit where a large one did");
        self.put_bytes(chunk, filled);
        self.set_free(chunk);
        let unused = std::mem::take(&mut self.precounted);
        self.give_back(unused);
    }

    /// Removes `n` bytes from the front; emptied chunks return to the pool.
    pub fn consume(&mut self, queue: &mut ByteQueue, mut n: u32) {
        debug_assert!(n <= queue.len, "consumes more than the queue holds");
        queue.len -= n;
        while n > 0 {
            let head = queue.head;
            let chunk = &mut self.chunks[head as usize];
            let here = chunk.end - chunk.start;
            if n < here {
                chunk.start += n;
                return self.write_extent(head);
            }
            n -= here;
            queue.head = chunk.next;
            self.release(head);
        }
        if queue.len == 0 {
            self.clear(queue);
        }
    }

    /// Empties the queue and returns its chunks.
    pub fn clear(&mut self, queue: &mut ByteQueue) {
        let mut at = queue.head;
        while at != NONE {
            let next = self.chunks[at as usize].next;
            self.release(at);
            at = next;
        }
        *queue = ByteQueue::new();
    }

    /// Moves all of `other` to the end of `queue` without copying.
    #[allow(clippy::needless_pass_by_value, reason = "its chunks belong to `queue` from now on")]
    pub fn append(&mut self, queue: &mut ByteQueue, other: ByteQueue) {
        if other.head == NONE {
            return;
        }
        if queue.head == NONE {
            queue.head = other.head;
        } else {
            self.chunks[queue.tail as usize].next = other.head;
        }
        queue.tail = other.tail;
        queue.len += other.len;
    }

    /// The cursor `offset` bytes from the front.
    pub fn seek(&self, queue: &ByteQueue, mut offset: u32) -> Cursor {
        debug_assert!(offset <= queue.len, "a cursor behind the end of the queue");
        let mut at = queue.head;
        while at != NONE {
            let chunk = &self.chunks[at as usize];
            let here = chunk.end - chunk.start;
            if offset < here || chunk.next == NONE {
                return Cursor { chunk: at, offset: chunk.start + offset };
            }
            offset -= here;
            at = chunk.next;
        }
        Cursor::FRONT
    }

    /// Up to `max` bytes from `cursor` on as slices in `out`: number of slices, number of bytes, and the
    /// cursor behind them.
    pub fn slices<'a>(
        &'a self,
        queue: &ByteQueue,
        cursor: Cursor,
        max: u32,
        out: &mut [IoSlice<'a>; SLICES_MAX],
    ) -> (usize, u32, Cursor) {
        let mut at = cursor;
        if at.chunk == NONE {
            at = match queue.head {
                NONE => return (0, 0, Cursor::FRONT),
                head => Cursor { chunk: head, offset: self.chunks[head as usize].start },
            };
        }
        let (mut count, mut bytes) = (0, 0);
        while count < SLICES_MAX && bytes < max {
            let chunk = &self.chunks[at.chunk as usize];
            let n = (chunk.end - at.offset).min(max - bytes);
            if n > 0 {
                let memory = self.bytes(at.chunk);
                out[count] = IoSlice::new(&memory[at.offset as usize..(at.offset + n) as usize]);
                count += 1;
                bytes += n;
                at.offset += n;
            }
            if at.offset == chunk.end {
                if chunk.next == NONE {
                    break;
                }
                at = Cursor { chunk: chunk.next, offset: self.chunks[chunk.next as usize].start };
            }
        }
        (count, bytes, at)
    }

    fn tail_room(&self, queue: &ByteQueue) -> usize {
        if queue.tail == NONE {
            return 0;
        }
        let tail = &self.chunks[queue.tail as usize];
        (tail.size - tail.end) as usize
    }

    fn link(&mut self, queue: &mut ByteQueue, chunk: u32) {
        if queue.tail == NONE {
            queue.head = chunk;
        } else {
            self.chunks[queue.tail as usize].next = chunk;
        }
        queue.tail = chunk;
    }

    fn take(&mut self, size: usize) -> Option<u32> {
        if self.precounted >= size {
            self.precounted -= size;
        } else if !self.budget.take(size) {
            return None;
        }
        if let Some(index) = self.free(size).pop() {
            return Some(index);
        }
        let index = self.vacant(size).pop().or_else(|| self.make(size))?;
        let chunk = &mut self.chunks[index as usize];
        match &mut self.memory {
            None => chunk.heap = vec![0; size].into_boxed_slice(),
            Some(memory) => memory.area_mut(size).hold(chunk.at),
        }
        Some(index)
    }

    /// A further chunk, without memory of its own yet.
    fn make(&mut self, size: usize) -> Option<u32> {
        let at = match &mut self.memory {
            None => 0,
            Some(memory) => memory.area_mut(size).make()?,
        };
        self.chunks.push(Chunk { heap: Box::default(), at, size: size as u32, start: 0, end: 0, next: NONE });
        Some(self.chunks.len() as u32 - 1)
    }

    /// Chunks of this size kept for reuse.
    fn free(&mut self, size: usize) -> &mut Vec<u32> {
        if size == LARGE { &mut self.free_large } else { &mut self.free_small }
    }

    /// Chunks of this size without memory of their own.
    fn vacant(&mut self, size: usize) -> &mut Vec<u32> {
        if size == LARGE { &mut self.vacant_large } else { &mut self.vacant_small }
    }

    fn release(&mut self, index: u32) {
        let size = self.chunks[index as usize].size as usize;
        self.set_free(index);
        self.give_back(size);
    }

    fn give_back(&mut self, bytes: usize) {
        self.wakes |= self.budget.give_back(bytes);
    }

    /// Frees a chunk for reuse; its budget stays counted.
    fn set_free(&mut self, index: u32) {
        let size = self.chunks[index as usize].size as usize;
        let keep = if size == LARGE { FREE_LARGE_MAX } else { FREE_SMALL_MAX };
        if self.free(size).len() >= keep {
            return self.vacate(index);
        }
        self.empty(index);
        self.free(size).push(index);
    }

    /// Frees a chunk and its memory.
    fn vacate(&mut self, index: u32) {
        self.empty(index);
        let chunk = &mut self.chunks[index as usize];
        let size = chunk.size as usize;
        match &mut self.memory {
            None => chunk.heap = Box::default(),
            Some(memory) => memory.area_mut(size).let_go(chunk.at),
        }
        self.vacant(size).push(index);
    }

    /// Leaves nothing in a chunk.
    fn empty(&mut self, index: u32) {
        if let Some(record) = self.record(index) {
            payload::end(record);
        }
        let has_memory = self.memory.is_some();
        let chunk = &mut self.chunks[index as usize];
        debug_assert!(has_memory || chunk.heap.len() == chunk.size as usize, "freed with its buffer, once");
        (chunk.start, chunk.end, chunk.next) = (0, 0, NONE);
    }

    /// Whether there is such a chunk, and it is large.
    fn is_large(&self, index: u32) -> bool {
        self.chunks.get(index as usize).is_some_and(|chunk| chunk.size as usize == LARGE)
    }

    /// Memory of a chunk.
    fn bytes(&self, index: u32) -> &[u8] {
        let chunk = &self.chunks[index as usize];
        match &self.memory {
            None => &chunk.heap,
            Some(memory) => memory.area(chunk.size as usize).bytes(chunk.at),
        }
    }

    /// The same, to be written.
    fn bytes_mut(&mut self, index: u32) -> &mut [u8] {
        let chunk = &mut self.chunks[index as usize];
        match &mut self.memory {
            None => &mut chunk.heap,
            Some(memory) => memory.area_mut(chunk.size as usize).bytes_mut(chunk.at),
        }
    }

    /// Takes the memory of a large chunk, to copy from it to others.
    fn take_bytes(&mut self, index: u32) -> Bytes {
        let chunk = &mut self.chunks[index as usize];
        match &mut self.memory {
            None => Bytes::Heap(std::mem::take(&mut chunk.heap)),
            Some(memory) => Bytes::Shared(memory.area_mut(LARGE).take_page(chunk.at)),
        }
    }

    /// Puts it back.
    fn put_bytes(&mut self, index: u32, bytes: Bytes) {
        let chunk = &mut self.chunks[index as usize];
        match (bytes, &mut self.memory) {
            (Bytes::Heap(heap), _) => chunk.heap = heap,
            (Bytes::Shared(bytes), Some(memory)) => memory.area_mut(LARGE).put_page(chunk.at, bytes),
            (Bytes::Shared(_), None) => debug_assert!(false, "taken from payload memory"),
        }
    }

    /// Record of a chunk, for a process that comes after a crash.
    fn record(&self, index: u32) -> Option<&'static ChunkRecord> {
        let chunk = &self.chunks[index as usize];
        self.memory.as_ref().map(|memory| memory.area(chunk.size as usize).record(chunk.at))
    }

    /// Begins the record of a chunk that holds nothing yet.
    fn begin_record(&self, index: u32, origin: Option<Origin>) {
        if let (Some(record), Some(origin)) = (self.record(index), origin) {
            payload::begin(record, origin);
        }
    }

    /// Writes into its record what a chunk holds.
    fn write_extent(&self, index: u32) {
        if let Some(record) = self.record(index) {
            let Chunk { start, end, .. } = self.chunks[index as usize];
            payload::set_extent(record, start, end);
        }
    }
}

/// Memory of a large chunk.
enum Bytes {
    Heap(Box<[u8]>),
    Shared(&'static mut [u8]),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(heap) => heap,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// Part of a chunk's memory, offered to a read.
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    chunk: u32,
    at: u32,
    len: u32,
}

impl Span {
    fn of(self, memory: &mut [u8]) -> IoSliceMut<'_> {
        IoSliceMut::new(&mut memory[self.at as usize..(self.at + self.len) as usize])
    }
}

/// Borrows the elements at `places`, all of them different, at once: calls `take` with the position of each
/// among the places.
fn each_mut<'a, T>(all: &'a mut [T], places: &[usize], mut take: impl FnMut(usize, &'a mut T)) {
    let mut order = [0; FILL_CHUNKS + 1];
    let order = &mut order[..places.len()];
    order.iter_mut().zip(0..).for_each(|(nth, at)| *nth = at);
    order.sort_unstable_by_key(|&nth| places[nth]);
    let (mut rest, mut begin) = (all, 0);
    for &nth in &*order {
        let Some((element, behind)) = rest.split_at_mut(places[nth] - begin).1.split_first_mut() else {
            break;
        };
        take(nth, element);
        (rest, begin) = (behind, places[nth] + 1);
    }
}

mod recovered;
mod snapshot;
#[cfg(test)]
mod tests;
