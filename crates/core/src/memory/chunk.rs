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

use crate::memory::budget::{Budget, Pressure, READ_ROOM};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// Capacity of a small chunk in bytes.
pub const SMALL: usize = 2 << 10;
/// Capacity of a large chunk in bytes: one super-segment.
pub const LARGE: usize = READ_ROOM;
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
    buf: Box<[u8]>,
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
    vacant: Vec<u32>,
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
            vacant: Vec::new(),
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

    /// Copies `data` to the end of `queue`; returns the number of bytes stored, fewer only if the budget is
    /// used up.
    pub fn push(&mut self, queue: &mut ByteQueue, mut data: &[u8]) -> usize {
        let total = data.len();
        while !data.is_empty() {
            if self.tail_room(queue) == 0 {
                let Some(chunk) = self.take(if data.len() > PACK_MAX { LARGE } else { SMALL }) else { break };
                self.link(queue, chunk);
            }
            let tail = &mut self.chunks[queue.tail as usize];
            let room = &mut tail.buf[tail.end as usize..];
            let n = room.len().min(data.len());
            room[..n].copy_from_slice(&data[..n]);
            tail.end += n as u32;
            queue.len += n as u32;
            data = &data[n..];
        }
        total - data.len()
    }

    /// Lets `read` fill up to `max` bytes at the end of `queue`, straight into chunk memory; at most
    /// [`FILL_CHUNKS`] large chunks are filled, and no more than the budget has. Without any, `read` is not
    /// called (`Ok(None)`).
    pub fn fill<E>(
        &mut self,
        queue: &mut ByteQueue,
        max: usize,
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<Option<Filled>, E> {
        let room =
            Some(self.tail_room(queue)).filter(|&room| room >= TAIL_ROOM_MIN).map_or(0, |r| r.min(max));
        // The fresh chunks' buffers are moved out for the call so that the tail can be borrowed beside them.
        let mut fresh = [NONE; FILL_CHUNKS];
        let mut buffers: [Box<[u8]>; FILL_CHUNKS] = Default::default();
        let mut taken = 0;
        while taken < (max - room).div_ceil(LARGE).clamp(1, FILL_CHUNKS) {
            let Some(chunk) = self.take(LARGE) else { break };
            fresh[taken] = chunk;
            buffers[taken] = std::mem::take(&mut self.chunks[chunk as usize].buf);
            taken += 1;
        }
        if taken == 0 {
            return Ok(None);
        }
        let mut slices = [const { None }; FILL_CHUNKS + 1];
        let mut offered = 0;
        if room > 0 {
            let tail = &mut self.chunks[queue.tail as usize];
            let at = tail.end as usize;
            slices[0] = Some(IoSliceMut::new(&mut tail.buf[at..at + room]));
            offered = room;
        }
        for (slice, buffer) in slices[1..].iter_mut().zip(&mut buffers[..taken]) {
            let len = (max - offered).min(LARGE);
            *slice = Some(IoSliceMut::new(&mut buffer[..len]));
            offered += len;
        }
        let mut slices = slices.map(|slice| slice.unwrap_or_else(|| IoSliceMut::new(&mut [])));
        let result = read(&mut slices[usize::from(room == 0)..=taken]);
        let n = result.as_ref().map_or(0, |&n| n.min(offered));
        if n > 0 && room > 0 {
            self.chunks[queue.tail as usize].end += n.min(room) as u32;
            queue.len += n.min(room) as u32;
        }
        let mut left = n - n.min(room);
        for (chunk, buffer) in fresh.into_iter().zip(buffers).take(taken) {
            let len = left.min(LARGE);
            left -= len;
            self.keep(queue, chunk, buffer, len);
        }
        result.map(|_| Some(Filled { bytes: n, whole: n == offered }))
    }

    /// Puts back the buffer of a chunk, with `len` bytes filled, and appends those bytes to `queue`.
    fn keep(&mut self, queue: &mut ByteQueue, chunk: u32, buffer: Box<[u8]>, len: usize) {
        if len > PACK_MAX {
            let filled = &mut self.chunks[chunk as usize];
            filled.buf = buffer;
            filled.end = len as u32;
            self.link(queue, chunk);
            queue.len += len as u32;
            return;
        }
        // Packing a few KiB costs less than holding 64 KiB for them until the guest has acknowledged. The
        // chunk's own reservation is used first, so that neither the budget nor another worker can block
        // bytes already read.
        self.precounted = LARGE;
        let stored = self.push(queue, &buffer[..len]);
        debug_assert_eq!(stored, len, "small chunks for at most {PACK_MAX} bytes fit where a large one did");
        self.chunks[chunk as usize].buf = buffer;
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
                return;
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
                out[count] = IoSlice::new(&chunk.buf[at.offset as usize..(at.offset + n) as usize]);
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
        tail.buf.len() - tail.end as usize
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
        let free = if size == LARGE { &mut self.free_large } else { &mut self.free_small };
        if let Some(index) = free.pop() {
            return Some(index);
        }
        let chunk = Chunk { buf: vec![0; size].into_boxed_slice(), start: 0, end: 0, next: NONE };
        if let Some(index) = self.vacant.pop() {
            self.chunks[index as usize] = chunk;
            Some(index)
        } else {
            self.chunks.push(chunk);
            Some(self.chunks.len() as u32 - 1)
        }
    }

    fn release(&mut self, index: u32) {
        let size = self.chunks[index as usize].buf.len();
        self.set_free(index);
        self.give_back(size);
    }

    fn give_back(&mut self, bytes: usize) {
        self.wakes |= self.budget.give_back(bytes);
    }

    /// Frees a chunk for reuse; its budget stays counted.
    fn set_free(&mut self, index: u32) {
        let chunk = &mut self.chunks[index as usize];
        let size = chunk.buf.len();
        debug_assert!(size == LARGE || size == SMALL, "a chunk is freed once, with its buffer");
        (chunk.start, chunk.end, chunk.next) = (0, 0, NONE);
        let (free, keep) = if size == LARGE {
            (&mut self.free_large, FREE_LARGE_MAX)
        } else {
            (&mut self.free_small, FREE_SMALL_MAX)
        };
        if free.len() < keep {
            free.push(index);
        } else {
            chunk.buf = Box::default();
            self.vacant.push(index);
        }
    }
}

mod snapshot;
#[cfg(test)]
mod tests;
