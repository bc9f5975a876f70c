//! Zero copy: frames of the guest whose ends stay in its memory until they are sent from there.
//!
//! A link takes the beginning of a long segment, which has all headers, and notes where the rest is
//! ([`UnreadFrames::add`]). The stack names parts of it by number ([`Unread`]), and they are sent with the
//! bytes before them ([`UnreadFrames::send`]) or read ([`UnreadFrames::read`]). Most of a bulk transfer is
//! thus copied once, by the kernel, and not twice.
//!
//! *Life.* The notes hold the mappings of the memory, and the ring does not show the buffers as used until
//! the link forgets the notes, before it takes more frames: the guest's driver leaves them alone. One that
//! does not changes nothing but its own payload, which is no more read than once.
//!
//! *Bounds.* [`Unread`] comes from the stack: parts that no note has are empty.
//!
//! System calls: sendmsg.

use super::memory::{GuestMemory, GuestSlice};
use super::ring::Span;
use brodo_core::link::{Piece, Unread};
use rustix::io::Errno;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{io, mem, ptr};

/// Vectors of one sendmsg: those of some frames of 64 KiB in pages.
const VECTORS_MAX: usize = 128;

/// The frames of one link whose ends are unread.
#[derive(Debug, Default)]
pub struct UnreadFrames(Mutex<Notes>);

#[derive(Debug, Default)]
struct Notes {
    frames: Vec<Note>,
    /// Their buffers, one frame's behind the other's.
    spans: Vec<Span>,
}

#[derive(Debug)]
struct Note {
    memory: Arc<GuestMemory>,
    /// The frame's buffers end before this one.
    end: usize,
}

impl Notes {
    /// The bytes of a part, in pieces.
    fn slices(&self, unread: Unread) -> impl Iterator<Item = GuestSlice<'_>> {
        let number = unread.frame as usize;
        let note = self.frames.get(number);
        let begin =
            number.checked_sub(1).and_then(|before| self.frames.get(before)).map_or(0, |note| note.end);
        let spans = note.map_or(&[][..], |note| &self.spans[begin..note.end]);
        let (mut skipped, mut left) = (unread.start, unread.len);
        spans.iter().filter_map(move |span| {
            let skip = skipped.min(span.len);
            skipped -= skip;
            let len = left.min(span.len - skip);
            left -= len;
            let address = span.address + u64::from(skip);
            note.filter(|_| len > 0).and_then(|note| note.memory.guest(address, len as usize))
        })
    }
}

impl UnreadFrames {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a frame is unread from the byte `skip` of these buffers on, each of which is within one
    /// region of `memory`.
    pub(super) fn add(&self, memory: &Arc<GuestMemory>, spans: &[Span], mut skip: u32) -> Unread {
        let mut notes = self.notes();
        let mut len = 0;
        for span in spans {
            let skipped = skip.min(span.len);
            skip -= skipped;
            let rest = Span { address: span.address + u64::from(skipped), len: span.len - skipped, ..*span };
            len += rest.len;
            notes.spans.push(rest);
        }
        let (frame, end) = (notes.frames.len() as u32, notes.spans.len());
        notes.frames.push(Note { memory: memory.clone(), end });
        Unread { frame, start: 0, len }
    }

    /// Forgets all frames.
    pub(super) fn clear(&self) {
        let mut notes = self.notes();
        notes.frames.clear();
        notes.spans.clear();
    }

    /// Reads a part, as much as `into` has room for; the number of bytes.
    pub fn read(&self, unread: Unread, into: &mut [u8]) -> usize {
        let mut read = 0;
        for slice in self.notes().slices(unread) {
            read += slice.read(&mut into[read..]);
        }
        read
    }

    /// Sends pieces by a stream socket, without SIGPIPE; the number of bytes that it has taken.
    ///
    /// # Errors
    /// sendmsg, unless bytes were taken before.
    pub fn send(&self, socket: BorrowedFd<'_>, pieces: &[Piece<'_>]) -> Result<usize, Errno> {
        let notes = self.notes();
        let mut gather = Gather::new(socket);
        for piece in pieces {
            gather.bytes(piece.bytes)?;
            for slice in notes.slices(piece.unread) {
                gather.guest(slice)?;
            }
        }
        gather.send()?;
        Ok(gather.taken)
    }
}

/// Bytes for a socket, ours and the guest's, sent as often as the vectors are full.
struct Gather<'a> {
    socket: BorrowedFd<'a>,
    vectors: [libc::iovec; VECTORS_MAX],
    count: usize,
    /// Bytes of these vectors.
    offered: usize,
    /// Bytes that the socket has taken.
    taken: usize,
    /// The socket has taken less than it was offered: nothing more is.
    full: bool,
    /// The vectors' memory.
    sources: PhantomData<&'a [u8]>,
}

impl<'a> Gather<'a> {
    fn new(socket: BorrowedFd<'a>) -> Self {
        let none = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let vectors = [none; VECTORS_MAX];
        Self { socket, vectors, count: 0, offered: 0, taken: 0, full: false, sources: PhantomData }
    }

    fn bytes(&mut self, bytes: &'a [u8]) -> Result<(), Errno> {
        self.push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() })
    }

    fn guest(&mut self, slice: GuestSlice<'a>) -> Result<(), Errno> {
        self.push(libc::iovec { iov_base: slice.start().as_ptr().cast(), iov_len: slice.len() })
    }

    fn push(&mut self, vector: libc::iovec) -> Result<(), Errno> {
        if self.count == VECTORS_MAX {
            self.send()?;
        }
        self.vectors[self.count] = vector;
        self.count += 1;
        self.offered += vector.iov_len;
        Ok(())
    }

    /// Sends what is gathered.
    fn send(&mut self) -> Result<(), Errno> {
        let (count, offered) = (mem::take(&mut self.count), mem::take(&mut self.offered));
        if self.full || offered == 0 {
            return Ok(());
        }
        // SAFETY: all zeroes is a message without an address, without vectors and without control data.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = self.vectors.as_mut_ptr();
        message.msg_iovlen = count as _;
        // SAFETY: the kernel reads `count` vectors, and the memory that they name. This is either a slice or
        // mapped memory of the guest's, both borrowed for as long as `self` lives; that the guest writes to
        // its memory meanwhile concerns the copy alone, which no reference in this process is to.
        let sent = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        match usize::try_from(sent) {
            Ok(sent) => {
                self.taken += sent;
                self.full = sent < offered;
                Ok(())
            }
            // An error that lasts comes again with the next call.
            Err(_) if self.taken > 0 => {
                self.full = true;
                Ok(())
            }
            Err(_) => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    }
}

#[cfg(test)]
mod tests;
