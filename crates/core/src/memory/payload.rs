//! Payload memory that outlives the process, and a record of each chunk in it.
//!
//! The driver gives memory in two areas, for large and for small chunks, each as large as the whole budget: a
//! chunk's place never has to be found among others, and pages that were never used cost nothing. A record
//! tells which bytes of which stream a chunk has ([`Origin`]), so that another process finds them after a
//! crash ([`crate::journal`]):
//!
//! | word | content | written |
//! |---|---|---|
//! | flow | index and generation | when the chunk is taken |
//! | origin | stream, and the sequence number of the chunk's first place (not its first byte) | the same |
//! | extent | first and last place in use | with each change, after the bytes |
//!
//! *Reads from a host socket* go straight into chunks, and the kernel counts them as read before the process
//! knows their number. So the extent is written before the read as if all room were filled, and the kernel's
//! counter bounds it.
//!
//! *Order.* The origin's word says that there is a record. It is written after the flow's, and cleared before
//! a chunk's bytes are overwritten; each word holds by itself. Stores keep their order: the process ends by
//! itself, its memory does not.
//!
//! *Memory given back*: a page without a chunk in use or kept for reuse returns to the system
//! ([`Area::take_unused`]), in a call of the driver's.

use crate::key::FlowId;
use crate::memory::budget::READ_ROOM;
use crate::wire::tcp::Seq;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

/// Capacity of a small chunk in bytes.
pub const SMALL: usize = 2 << 10;
/// Capacity of a large chunk in bytes: one super-segment.
pub const LARGE: usize = READ_ROOM;
/// Unit in which memory is given back, bytes: a page of most kernels. Larger pages are kept.
const PAGE: usize = 4 << 10;

/// Words of a chunk's record.
const RECORD_WORDS: usize = 3;

/// Record of one chunk.
pub type ChunkRecord = [AtomicU64; RECORD_WORDS];

/// Index and generation of the flow.
const FLOW: usize = 0;
/// Flags and the sequence number of the first place.
const ORIGIN: usize = 1;
/// First place in use, and the one behind the last.
const EXTENT: usize = 2;

const IN_USE: u64 = 1 << 32;
const TO_GUEST: u64 = 1 << 33;

/// One of the two streams of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ByteStream {
    /// From the guest to the host socket.
    ToHost,
    /// From the host socket to the guest.
    ToGuest,
}

/// Origin of bytes: a place in one stream of one flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The flow.
    pub flow: FlowId,
    /// The stream.
    pub stream: ByteStream,
    /// Sequence number of the first byte.
    pub seq: Seq,
}

impl Origin {
    /// Origin of the byte `offset` bytes further.
    pub(crate) fn behind(self, offset: usize) -> Self {
        Self { seq: self.seq + offset as u32, ..self }
    }
}

/// A record as it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    /// Origin of the first byte.
    pub(super) origin: Origin,
    /// First place in use, and the one behind the last.
    pub(super) start: u32,
    pub(super) end: u32,
}

/// Sizes of the parts of a worker's payload memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadLayout {
    large: usize,
    small: usize,
}

impl PayloadLayout {
    /// Memory for a budget of `budget` bytes.
    pub const fn of(budget: usize) -> Self {
        Self { large: budget / LARGE, small: budget / SMALL }
    }

    /// Records: one for each chunk, and one for each area.
    pub const fn records(self) -> usize {
        self.large + self.small + 2
    }

    /// Size of the chunks together, bytes.
    pub const fn bytes(self) -> usize {
        self.large * LARGE + self.small * SMALL
    }
}

/// Memory of one worker's chunks, which outlives the process.
#[derive(Debug)]
pub struct PayloadMemory {
    large: Area,
    small: Area,
}

impl PayloadMemory {
    /// Memory of this layout; `None` if a part has another size.
    pub fn new(
        layout: PayloadLayout,
        bytes: &'static mut [u8],
        records: &'static [ChunkRecord],
    ) -> Option<Self> {
        if bytes.len() != layout.bytes() || records.len() != layout.records() {
            return None;
        }
        let (large, small) = bytes.split_at_mut(layout.large * LARGE);
        let (large_records, small_records) = records.split_at(layout.large + 1);
        let large = Area::new(LARGE, large, large_records);
        Some(Self { large, small: Area::new(SMALL, small, small_records) })
    }

    /// Memory of the chunks of `size` bytes.
    pub(super) fn area(&self, size: usize) -> &Area {
        if size == LARGE { &self.large } else { &self.small }
    }

    /// The same, to be changed.
    pub(super) fn area_mut(&mut self, size: usize) -> &mut Area {
        if size == LARGE { &mut self.large } else { &mut self.small }
    }

    /// Forgets the chunks of a pool that is gone; their records stay.
    pub(super) fn begin_again(&mut self) {
        self.large.begin_again();
        self.small.begin_again();
    }

    /// Hands out the pages that hold no chunk, since the last call.
    pub(super) fn take_unused(&mut self, mut give: impl FnMut(&mut [u8])) {
        self.large.take_unused(&mut give);
        self.small.take_unused(&mut give);
    }

    /// Whether [`PayloadMemory::take_unused`] would.
    pub(super) const fn has_unused(&self) -> bool {
        !self.large.unused.is_empty() || !self.small.unused.is_empty()
    }
}

/// Memory of all chunks of one size.
#[derive(Debug)]
pub(super) struct Area {
    size: usize,
    pages: Vec<Page>,
    /// Memory that was no page yet.
    rest: &'static mut [u8],
    records: &'static [ChunkRecord],
    /// Number of chunks that there ever were, in this process and before.
    watermark: Option<&'static AtomicU64>,
    /// Chunks made in this process.
    made: usize,
    /// Pages that may hold no chunk any more.
    unused: Vec<u32>,
}

/// Unit of memory given back: one large chunk or several small ones.
#[derive(Debug)]
pub(super) struct Page {
    bytes: &'static mut [u8],
    /// Chunks of it that are in use, or kept for reuse.
    held: u8,
}

impl Page {
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        self.bytes
    }
}

impl Area {
    fn new(size: usize, rest: &'static mut [u8], records: &'static [ChunkRecord]) -> Self {
        let (watermark, records) = match records.split_first() {
            Some((head, records)) => (head.first(), records),
            None => (None, records),
        };
        Self { size, pages: Vec::new(), rest, records, watermark, made: 0, unused: Vec::new() }
    }

    /// Chunks of a page.
    const fn each(&self) -> usize {
        if self.size < PAGE { PAGE / self.size } else { 1 }
    }

    /// Number of a chunk that there was not yet; `None` once there are as many as the budget has room for.
    pub(super) fn make(&mut self) -> Option<u32> {
        let at = self.made;
        if at >= self.records.len() {
            return None;
        }
        if at / self.each() >= self.pages.len() {
            let length = (self.each() * self.size).min(self.rest.len());
            let (bytes, rest) = std::mem::take(&mut self.rest).split_at_mut(length);
            self.rest = rest;
            self.pages.push(Page { bytes, held: 0 });
        }
        self.made += 1;
        if let Some(watermark) = self.watermark.filter(|it| it.load(Ordering::Relaxed) <= at as u64) {
            watermark.store(self.made as u64, Ordering::Release);
        }
        Some(at as u32)
    }

    /// Number of chunks that a process before has made.
    pub(super) fn made_before(&self) -> usize {
        // The word is not trusted.
        let before = self.watermark.map_or(0, |it| it.load(Ordering::Acquire));
        usize::try_from(before).unwrap_or(usize::MAX).min(self.records.len())
    }

    /// Bytes of a chunk.
    pub(super) fn bytes(&self, at: u32) -> &[u8] {
        let (page, place) = (at as usize / self.each(), at as usize % self.each() * self.size);
        &self.pages[page].bytes[place..place + self.size]
    }

    /// The same, to be written.
    pub(super) fn bytes_mut(&mut self, at: u32) -> &mut [u8] {
        let (page, place) = (at as usize / self.each(), at as usize % self.each() * self.size);
        &mut self.pages[page].bytes[place..place + self.size]
    }

    /// Record of a chunk.
    pub(super) fn record(&self, at: u32) -> &'static ChunkRecord {
        &self.records[at as usize]
    }

    /// Takes the bytes of a page with a single chunk; [`Area::put_page`] brings them back.
    pub(super) fn take_page(&mut self, at: u32) -> &'static mut [u8] {
        debug_assert!(self.each() == 1, "a page of one chunk");
        std::mem::take(&mut self.pages[at as usize].bytes)
    }

    /// Puts them back.
    pub(super) fn put_page(&mut self, at: u32, bytes: &'static mut [u8]) {
        self.pages[at as usize].bytes = bytes;
    }

    /// All pages; one of large chunks is one chunk.
    pub(super) fn pages(&mut self) -> &mut [Page] {
        &mut self.pages
    }

    /// Forgets all chunks that were made.
    fn begin_again(&mut self) {
        (self.made, self.unused) = (0, Vec::new());
        self.pages.iter_mut().for_each(|page| page.held = 0);
    }

    /// Notes that a chunk is used from now on.
    pub(super) fn hold(&mut self, at: u32) {
        let page = at as usize / self.each();
        self.pages[page].held += 1;
    }

    /// Notes that a chunk is neither used nor kept for reuse.
    pub(super) fn let_go(&mut self, at: u32) {
        let page = at as usize / self.each();
        let held = &mut self.pages[page].held;
        debug_assert!(*held > 0, "a chunk is let go once");
        *held -= 1;
        if *held == 0 {
            self.unused.push(page as u32);
        }
    }

    fn take_unused(&mut self, give: &mut impl FnMut(&mut [u8])) {
        for page in self.unused.drain(..) {
            let page = &mut self.pages[page as usize];
            if page.held == 0 {
                give(page.bytes);
            }
        }
    }
}

/// Begins the record of a chunk that holds nothing yet: its first place is that of `origin`.
pub(super) fn begin(record: &ChunkRecord, origin: Origin) {
    put(record, ORIGIN, 0);
    put(record, EXTENT, 0);
    put(record, FLOW, u64::from(origin.flow.index) << 32 | u64::from(origin.flow.generation));
    let stream = if origin.stream == ByteStream::ToGuest { TO_GUEST } else { 0 };
    put(record, ORIGIN, u64::from(origin.seq.0) | stream | IN_USE);
}

/// Writes the places in use of a chunk.
pub(super) fn set_extent(record: &ChunkRecord, start: u32, end: u32) {
    put(record, EXTENT, u64::from(start) << 32 | u64::from(end));
}

/// Ends the record of a chunk, before its bytes are overwritten.
pub(super) fn end(record: &ChunkRecord) {
    put(record, ORIGIN, 0);
}

/// The record of a chunk of `size` bytes, if it has one that holds bytes.
pub(super) fn read(record: &ChunkRecord, size: usize) -> Option<Found> {
    let [flow, origin, extent] = record.each_ref().map(|word| word.load(Ordering::Acquire));
    let (start, end) = ((extent >> 32) as u32, extent as u32);
    if origin & IN_USE == 0 || start >= end || end as usize > size {
        return None;
    }
    let stream = if origin & TO_GUEST == 0 { ByteStream::ToHost } else { ByteStream::ToGuest };
    let flow = FlowId { index: (flow >> 32) as u32, generation: flow as u32 };
    let origin = Origin { flow, stream, seq: Seq(origin as u32) };
    Some(Found { origin: origin.behind(start as usize), start, end })
}

fn put(record: &ChunkRecord, at: usize, word: u64) {
    record[at].store(word, Ordering::Release);
    // Later stores to the chunk's bytes stay behind this one.
    compiler_fence(Ordering::SeqCst);
}
