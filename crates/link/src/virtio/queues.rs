//! Frames over the two rings of a queue pair (virtio 1.3, 5.1.6), each behind its virtio-net header.
//!
//! *From the guest* ([`FromGuest`]). A chain is one frame. Not taking it is the back pressure: the driver
//! stops its queue, and nothing is lost. Of a segment of [`UNREAD_MIN`] bytes or more, without a checksum to
//! be verified or completed, the end may stay where it is ([`super::unread`]).
//!
//! *To the guest* ([`ToGuest`]). A frame takes one chain, or, with mergeable buffers, as many as it needs; if
//! they are not there, none is taken, and the driver is asked for a kick when the rest has been posted, but
//! at the latest when half of the ring has: drivers refill a ring in one burst. A frame that the whole ring
//! cannot hold is lost.
//!
//! *Calls.* Each frame to the guest is published at once: the driver works on it while the next is copied,
//! and a frame that was sent has arrived, whatever becomes of this process; the recovery from a crash counts
//! on that for resets. [`Ring::needs_call`] says whether the driver is to be called.

use super::memory::{GuestMemory, GuestSlice};
use super::ring::{Chain, Ring, RingError, Span};
use super::unread::UnreadFrames;
use crate::Taken;
use crate::batch::Batch;
use crate::vnet::{self, HEADER_LEN};
use brodo_core::link::{FRAME_MAX, RxChecksum, RxFrame, TxFrame};
use std::io::IoSlice;
use std::sync::Arc;

/// Chains without a frame that are passed over in one call, so that a driver which goes on with them does not
/// keep the loop; the next turn has more.
const SKIPPED_MAX: u32 = 64;

/// Descriptors that may be read for one frame to the guest, whatever the size of its ring; beyond this and
/// four for each entry of the ring it is broken. A frame needs no more than one for each buffer, but empty
/// ones hold nothing: as many chains as the ring has entries, each as long, would be a billion.
const DESCRIPTORS_MAX: u32 = 4096;

/// Length of a segment, in bytes, from which its end may stay unread: below, a copy is cheaper than a note.
const UNREAD_MIN: usize = 4096;
/// Bytes that are read of it in any case: all its headers, which are 134 bytes at most, and some more.
const BEGIN: usize = 256;
/// Most buffers of a frame whose end is unread. A Linux guest has 18.
const UNREAD_SPANS_MAX: usize = 64;

/// Form of a frame in a ring, as negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameFormat {
    /// VIRTIO_F_VERSION_1: without it the header has 10 bytes, unless buffers are mergeable.
    pub modern: bool,
    /// VIRTIO_NET_F_MRG_RXBUF: a frame may take several chains.
    pub mergeable: bool,
}

impl FrameFormat {
    /// Length of the header before each frame: drivers before virtio 1.0 know no `num_buffers` unless they
    /// merge buffers.
    pub const fn header_len(self) -> usize {
        if self.modern || self.mergeable { HEADER_LEN } else { HEADER_LEN - 2 }
    }
}

/// Frames of the guest.
#[derive(Debug)]
pub struct FromGuest {
    ring: Ring,
    /// Length of the header before a frame.
    front: usize,
    spans: Vec<Span>,
}

impl FromGuest {
    /// Frames from this ring, whose buffers the driver fills.
    pub fn new(ring: Ring, format: FrameFormat) -> Self {
        Self { ring, front: format.header_len(), spans: Vec::new() }
    }

    /// The ring.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The ring, to arm it or to ask for a call.
    pub fn ring_mut(&mut self) -> &mut Ring {
        &mut self.ring
    }

    /// Takes frames into the batch, or discards some if there is none; if the batch allows it, ends of frames
    /// are left unread, with a note in `unread`. Chains of impossible length are counted in `misfits`. The
    /// driver gets the buffers back by [`FromGuest::release`].
    ///
    /// # Errors
    /// The ring is broken; frames before that are in the batch.
    pub fn take(
        &mut self,
        memory: &Arc<GuestMemory>,
        batch: Option<&mut Batch<'_>>,
        unread: &UnreadFrames,
        misfits: &mut u64,
    ) -> Result<Taken, RingError> {
        match batch {
            Some(batch) => {
                self.ring.disarm(memory)?;
                self.fill(memory, batch, unread, misfits)
            }
            None => self.discard(memory),
        }
    }

    /// Shows the driver the buffers of all frames taken as used: none of them is unread any more.
    ///
    /// # Errors
    /// The ring is broken.
    pub fn release(&mut self, memory: &GuestMemory) -> Result<(), RingError> {
        self.ring.publish(memory)
    }

    fn fill(
        &mut self,
        memory: &Arc<GuestMemory>,
        batch: &mut Batch<'_>,
        unread: &UnreadFrames,
        misfits: &mut u64,
    ) -> Result<Taken, RingError> {
        let mut skipped = 0;
        let allows_unread = batch.allows_unread();
        while let Some(room) = batch.room() {
            self.spans.clear();
            let Some(chain) = self.ring.peek(memory, 0, &mut self.spans)? else { return Ok(Taken::All) };
            let mut header = [0; HEADER_LEN];
            let front = self.front;
            let len = usize::try_from(chain.len).unwrap_or(usize::MAX).saturating_sub(front);
            let is_long = len >= UNREAD_MIN && self.spans.len() <= UNREAD_SPANS_MAX;
            if allows_unread && is_long && len <= FRAME_MAX && self.begin(memory, &mut header, room)? {
                let left = unread.add(memory, &self.spans, (front + BEGIN) as u32);
                batch.push_begin(vnet::parse(&header), BEGIN, left);
            } else if (1..=FRAME_MAX).contains(&len) {
                copy_out(memory, &self.spans, [&mut header[..front], &mut room[..len]])?;
                let meta = vnet::complete(&header, &mut room[..len]);
                batch.push(meta, len);
            } else {
                *misfits += 1;
                skipped += 1;
            }
            self.ring.complete(memory, chain.head, 0)?;
            if skipped >= SKIPPED_MAX {
                return Ok(Taken::All);
            }
        }
        Ok(Taken::Some)
    }

    /// Copies the beginning of a frame; whether the rest may stay unread.
    fn begin(
        &self,
        memory: &GuestMemory,
        header: &mut [u8; HEADER_LEN],
        room: &mut [u8],
    ) -> Result<bool, RingError> {
        let bytes = &mut room[..BEGIN];
        copy_out(memory, &self.spans, [&mut header[..self.front], &mut *bytes])?;
        let frame = RxFrame { meta: vnet::parse(header), ..RxFrame::whole(bytes) };
        let is_checked = frame.meta.checksum == RxChecksum::Valid && !vnet::needs_completion(header, bytes);
        Ok(is_checked && frame.is_segment())
    }

    /// Uses chains up, of a ring that is disabled, and that stays armed ([`Ring::keep_armed`]).
    fn discard(&mut self, memory: &GuestMemory) -> Result<Taken, RingError> {
        for _ in 0..SKIPPED_MAX {
            self.spans.clear();
            let Some(chain) = self.ring.peek(memory, 0, &mut self.spans)? else { break };
            self.ring.complete(memory, chain.head, 0)?;
        }
        Ok(Taken::All)
    }
}

/// Result of [`ToGuest::send`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// The frame is in the guest's buffers.
    Whole,
    /// Too few buffers: nothing was taken, and a kick will come.
    NoBuffers,
    /// The ring cannot hold the frame, however many buffers are posted; it is lost.
    TooLong,
}

/// Frames to the guest.
#[derive(Debug)]
pub struct ToGuest {
    ring: Ring,
    format: FrameFormat,
    spans: Vec<Span>,
    chains: Vec<Chain>,
    /// Workers that wait for buffers, one bit each: as long as there are some the ring stays armed.
    waiting: u64,
}

impl ToGuest {
    /// Frames into this ring, whose buffers the device fills.
    pub fn new(ring: Ring, format: FrameFormat) -> Self {
        Self { ring, format, spans: Vec::new(), chains: Vec::new(), waiting: 0 }
    }

    /// The ring.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The ring, to arm it or to ask for a call.
    pub fn ring_mut(&mut self) -> &mut Ring {
        &mut self.ring
    }

    /// Sends one frame of a worker's, whole or not at all. Without buffers the ring is armed, until this
    /// worker has sent a frame.
    ///
    /// # Errors
    /// The ring is broken.
    pub fn send(
        &mut self,
        memory: &GuestMemory,
        frame: &TxFrame<'_>,
        worker: usize,
    ) -> Result<Sent, RingError> {
        let front = self.format.header_len();
        let len = front + frame.len();
        self.spans.clear();
        self.chains.clear();
        let refused = self.gather(memory, len as u64)?;
        let bit = 1 << (worker % u64::BITS as usize);
        if let Some(refused) = refused {
            self.waiting |= if refused == Sent::NoBuffers { bit } else { 0 };
            return Ok(refused);
        }
        self.waiting &= !bit;
        if self.waiting == 0 {
            self.ring.disarm(memory)?;
        }
        let mut header = vnet::build(frame);
        // `num_buffers`; a header of 10 bytes ends before it.
        header[10..].copy_from_slice(&(self.chains.len() as u16).to_le_bytes());
        copy_in(memory, &self.spans, [&header[..front], frame.headers], frame.payload)?;
        let mut rest = len as u64;
        for chain in &self.chains {
            let written = chain.len.min(rest);
            // At most `len`, less than 2^32.
            self.ring.complete(memory, chain.head, written as u32)?;
            rest -= written;
        }
        self.ring.publish(memory)?;
        Ok(Sent::Whole)
    }

    /// Collects chains that hold `len` bytes; otherwise the result of the sending.
    fn gather(&mut self, memory: &GuestMemory, len: u64) -> Result<Option<Sent>, RingError> {
        let (mut room, mut descriptors) = (0, 0);
        let descriptors_max = DESCRIPTORS_MAX.max(4 * u32::from(self.ring.size()));
        loop {
            // At most the ring's size, as more are never available.
            let count = self.chains.len() as u16;
            let Some(chain) = self.ring.peek(memory, count, &mut self.spans)? else {
                let size = self.ring.size();
                if count >= size {
                    return Ok(Some(Sent::TooLong));
                }
                if self.ring.arm(memory, wanted(len, room, count, size))? {
                    continue;
                }
                return Ok(Some(Sent::NoBuffers));
            };
            (room, descriptors) = (room + chain.len, descriptors + chain.descriptors);
            if descriptors > descriptors_max {
                return Err(RingError::Scattered);
            }
            self.chains.push(chain);
            if room >= len {
                return Ok(None);
            }
            if !self.format.mergeable {
                return Ok(Some(Sent::TooLong));
            }
        }
    }
}

/// Chains after which a kick is wanted, for a frame of `len` bytes of which `count` chains hold `room`: as
/// many as are needed if all are alike, more than are there, and not more than half of the ring, unless more
/// are there already.
fn wanted(len: u64, room: u64, count: u16, size: u16) -> u16 {
    let needed = if room == 0 { 1 } else { (len * u64::from(count)).div_ceil(room) };
    let needed = u16::try_from(needed).unwrap_or(u16::MAX);
    needed.min(size / 2).max(count.saturating_add(1))
}

/// Copies from the buffers of a chain to `pieces`, in order.
fn copy_out<const N: usize>(
    memory: &GuestMemory,
    spans: &[Span],
    pieces: [&mut [u8]; N],
) -> Result<(), RingError> {
    let mut source = Buffers { memory, spans: spans.iter(), rest: None };
    for piece in pieces {
        let mut done = 0;
        while done < piece.len() {
            let slice = source.next()?;
            let copied = slice.read(&mut piece[done..]);
            source.rest = Some(slice.skip(copied)).filter(|rest| rest.len() > 0);
            done += copied;
        }
    }
    Ok(())
}

/// Copies `front` and `payload` to the buffers of chains, in order.
fn copy_in(
    memory: &GuestMemory,
    spans: &[Span],
    front: [&[u8]; 2],
    payload: &[IoSlice<'_>],
) -> Result<(), RingError> {
    let mut target = Buffers { memory, spans: spans.iter(), rest: None };
    for mut piece in front.into_iter().chain(payload.iter().map(|piece| &**piece)) {
        while !piece.is_empty() {
            let slice = target.next()?;
            let copied = slice.write(piece);
            target.rest = Some(slice.skip(copied)).filter(|rest| rest.len() > 0);
            piece = &piece[copied..];
        }
    }
    let len = front[0].len() + front[1].len() + payload.iter().map(|piece| piece.len()).sum::<usize>();
    mark_dirty(memory, spans, len);
    Ok(())
}

/// Notes that the first `len` bytes of buffers were written.
fn mark_dirty(memory: &GuestMemory, spans: &[Span], mut len: usize) {
    for span in spans {
        let written = len.min(span.len as usize);
        memory.mark_dirty(span.address, written);
        len -= written;
    }
}

/// Buffers, one after another.
struct Buffers<'m, 's> {
    memory: &'m GuestMemory,
    spans: std::slice::Iter<'s, Span>,
    rest: Option<GuestSlice<'m>>,
}

impl<'m> Buffers<'m, '_> {
    /// The next bytes, at least one.
    fn next(&mut self) -> Result<GuestSlice<'m>, RingError> {
        if let Some(rest) = self.rest.take() {
            return Ok(rest);
        }
        let span = self.spans.next().ok_or(RingError::Buffer)?;
        self.memory.guest(span.address, span.len as usize).ok_or(RingError::Buffer)
    }
}

#[cfg(test)]
mod tests;
