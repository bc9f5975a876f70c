//! Ends of frames that a link leaves unread: in memory of the guest's, which link and host share.
//!
//! Each byte may be taken once, because a guest that changes it meanwhile would mix two contents: a second
//! read panics.

use brodo_core::host::HostError;
use brodo_core::link::{Piece, RxChecksum, RxFrame, RxMeta, Unread};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The ends of the frames of one batch.
#[derive(Debug, Clone, Default)]
pub struct UnreadEnds(Arc<Mutex<Ends>>);

#[derive(Debug, Default)]
struct Ends {
    /// Bytes, and whether they were taken.
    frames: Vec<Vec<(u8, bool)>>,
    /// Bytes taken in all batches, by the host's sockets.
    sent: u64,
    /// The same, by the stack.
    read: u64,
}

impl UnreadEnds {
    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the frames of the batch before.
    pub(crate) fn clear(&self) {
        self.ends().frames.clear();
    }

    /// A frame as the link gives it: of a segment that has more than `begin` bytes those alone.
    pub(crate) fn frame<'a>(&self, meta: RxMeta, bytes: &'a [u8], begin: usize) -> RxFrame<'a> {
        let whole = RxFrame { meta, ..RxFrame::whole(bytes) };
        if bytes.len() <= begin || !whole.is_segment() {
            return whole;
        }
        let mut ends = self.ends();
        let (bytes, end) = bytes.split_at(begin);
        let unread = Unread { frame: ends.frames.len() as u32, start: 0, len: end.len() as u32 };
        ends.frames.push(end.iter().map(|&byte| (byte, false)).collect());
        RxFrame { meta: RxMeta { checksum: RxChecksum::Valid, ..meta }, bytes, unread }
    }

    fn take(&self, unread: Unread, into: &mut [u8]) -> usize {
        let part =
            &mut self.ends().frames[unread.frame as usize][unread.start as usize..][..unread.len as usize];
        let count = part.len().min(into.len());
        for ((byte, taken), place) in part.iter_mut().zip(into) {
            assert!(!std::mem::replace(taken, true), "a byte is read twice: {unread:?}");
            *place = *byte;
        }
        count
    }

    /// The stack reads a part.
    pub(crate) fn read(&self, unread: Unread, into: &mut [u8]) -> usize {
        let count = self.take(unread, into);
        self.ends().read += count as u64;
        count
    }

    /// Sends pieces by a socket's `send`, which gives the number of bytes that it has taken.
    pub(crate) fn send(
        &self,
        pieces: &[Piece<'_>],
        send: impl FnOnce(&[u8]) -> Result<usize, HostError>,
    ) -> Result<usize, HostError> {
        let bytes: Vec<u8> =
            pieces.iter().flat_map(|piece| [piece.bytes, &self.look(piece.unread)].concat()).collect();
        let taken = send(&bytes)?;
        let mut left = taken;
        for piece in pieces {
            let count = left.min(piece.len());
            left -= count;
            let unread = piece.unread.first(count.saturating_sub(piece.bytes.len()));
            let sent = self.take(unread, &mut vec![0; unread.len as usize]);
            self.ends().sent += sent as u64;
        }
        Ok(taken)
    }

    /// A part, not taken.
    fn look(&self, unread: Unread) -> Vec<u8> {
        let ends = self.ends();
        let end = ends.frames.get(unread.frame as usize).map_or(&[][..], Vec::as_slice);
        end[unread.start as usize..][..unread.len as usize].iter().map(|(byte, _)| *byte).collect()
    }

    /// Bytes that sockets have sent and that the stack has read, since the start.
    pub fn taken(&self) -> (u64, u64) {
        let ends = self.ends();
        (ends.sent, ends.read)
    }
}
