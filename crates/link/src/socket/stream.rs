//! A frame behind its length: SOCK_STREAM.
//!
//! *From the guest.* One read takes as much as the buffer has room for, and all whole frames in it are passed
//! on before the next; the rest, less than one frame, moves to the front. A length of 0 or beyond
//! [`LENGTH_MAX`] means that the position in the stream is lost, and ends the connection. A length between
//! [`FRAME_MAX`] and that is a frame with a VLAN tag, which is skipped.
//!
//! *To the guest.* Small frames are gathered and written together, at the turn's end or when there are enough
//! of them; a large frame is written from where it lies, behind those gathered. The part that the socket did
//! not take is kept and written first, as soon as there is room; until then no frame is taken. Memory is
//! bounded by the gathered frames and one frame more.
//!
//! *After a crash* another process goes on with the socket alone ([`Stream::after_a_crash`]), which has to
//! be between two frames both ways. Toward the guest it is: the kernel takes a write of at most
//! [`WHOLE_MAX`] bytes whole or not at all, and a longer one too if there is room for it before
//! ([`Stream::has_room`]), unless it is short of memory. From the guest, the number of bytes that the
//! last read has left of a frame stands in memory that outlives the process ([`Position`]), and the next
//! one skips them. If it was killed in the midst of a read, that is not known. Then the stream may still be
//! between two frames, as far as the monitor writes them whole, for a read ends between two writes unless it
//! fills the buffer; QEMU and libkrun do up to [`WHOLE_MAX`]. The first frame has to prove it: its length has
//! to agree with that of the packet inside, else the connection ends. Frames that the crashed process had
//! received or gathered are lost, as on any network.

mod proof;

use super::{FRAME_MIN, Lost, Position, RX_META, SKIPPED_MAX, Unsent, wait_after, write};
use crate::batch::Batch;
use crate::slices::gathered;
use crate::sys::unread_memory;
use crate::{CreditWait, Taken};
use brodo_core::link::{FRAME_MAX, TxFrame};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv, sockopt};
use std::io::IoSlice;

/// Bytes of the length in front of a frame.
const PREFIX: usize = 4;
/// Longest frame that a monitor may announce, in bytes: the largest packet behind an Ethernet header with a
/// VLAN tag.
pub(super) const LENGTH_MAX: usize = FRAME_MAX + 4;
/// Room for received bytes: several of the largest frames, so that the rest that moves is small beside them.
const INPUT_LEN: usize = 256 << 10;
/// Frames of at most this many bytes are gathered: the copy costs less than a system call.
const SMALL_MAX: usize = 4096;
/// Bit of a saved position: bytes are to be skipped.
const SKIP: u32 = 1 << 31;
/// Most bytes that are gathered for one write.
const GATHERED_MAX: usize = 47 << 10;
/// Bytes that a Unix socket takes whole or not at all: one buffer of the kernel, of some 36 KiB
/// (unix_stream_sendmsg).
const WHOLE_MAX: usize = 35 << 10;
/// Most memory of one such buffer, with its management, in bytes. A write goes on as long as less than the
/// send buffer is in use before each of its buffers. The tests hold the running kernel to both.
const BUFFER_MAX: usize = 48 << 10;

/// A connection with a frame behind its length.
#[derive(Debug)]
pub(super) struct Stream {
    socket: OwnedFd,
    input: Input,
    output: Output,
    /// Memory in use below which the kernel takes the longest write whole; none if the send buffer is so
    /// small that it may not take shorter ones whole either.
    whole_below: Option<usize>,
}

/// Received bytes, of which those before `start` are done.
#[derive(Debug)]
struct Input {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Where the frame in progress ends in the buffer, perhaps behind `end`.
    next: usize,
    /// Bytes of a frame whose begin was lost.
    skip: usize,
    /// The next frame has to prove that it is one.
    unproven: bool,
    /// Notes `next` for another process.
    position: Position,
}

/// Bytes to be written.
#[derive(Debug)]
struct Output {
    pending: Vec<u8>,
    /// The first of them may belong to a frame of which others are written.
    cut: bool,
    /// The socket was full: nothing is taken before this.
    blocked: Option<CreditWait>,
}

impl Stream {
    pub(super) fn new(socket: OwnedFd, position: Position) -> Self {
        position.note(Some(0));
        let buffer = vec![0; INPUT_LEN].into_boxed_slice();
        let input = Input { buffer, start: 0, end: 0, next: 0, skip: 0, unproven: false, position };
        let pending = Vec::with_capacity(GATHERED_MAX + PREFIX + FRAME_MAX);
        let output = Output { pending, cut: false, blocked: None };
        // In the kernel's measure, of which half is for its management.
        let room = sockopt::socket_send_buffer_size(&socket).unwrap_or_default();
        let whole_below = (room >= 2 * BUFFER_MAX).then(|| room - BUFFER_MAX);
        Self { socket, input, output, whole_below }
    }

    /// A stream at the position that is noted; if none is, between two frames, as far as is known. `None` for
    /// a position that no stream has.
    pub(super) fn after_a_crash(socket: OwnedFd, position: Position) -> Option<Self> {
        let missing = position.missing();
        let mut stream = Self::new(socket, position);
        stream.input.unproven = missing.is_none();
        stream.skip(missing.unwrap_or_default()).then_some(stream)
    }

    /// Skips bytes of a frame; false if none has so many.
    fn skip(&mut self, bytes: usize) -> bool {
        (self.input.skip, self.input.next) = (bytes, bytes);
        self.input.note();
        bytes <= LENGTH_MAX
    }

    /// Whether a process that crashes now or later leaves the socket between two frames.
    pub(super) fn is_whole(&self) -> bool {
        !self.output.cut && self.whole_below.is_some()
    }

    /// Whether the kernel takes a write of so many bytes whole if it takes any of it. If it does not, so much
    /// is unread that there will be an event.
    fn has_room(&self, len: usize) -> bool {
        let in_use = || unread_memory(&self.socket).unwrap_or_default();
        len <= WHOLE_MAX || self.whole_below.is_none_or(|most| in_use() < most)
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Position in both directions: the number of bytes received and not passed on as 32 bits, least
    /// significant first, these, and those to be written. With [`SKIP`] it is the number of bytes to skip.
    pub(super) fn save(&self) -> Vec<u8> {
        let Input { buffer, start, end, skip, .. } = &self.input;
        let received = &buffer[*start..*end];
        // Nothing is received behind what is to be skipped.
        let number = if *skip > 0 { *skip as u32 | SKIP } else { received.len() as u32 };
        [&number.to_le_bytes()[..], received, &self.output.pending].concat()
    }

    /// A stream at a saved position; `None` if none has it.
    pub(super) fn restore(socket: OwnedFd, saved: &[u8], position: Position) -> Option<Self> {
        let (number, rest) = saved.split_first_chunk()?;
        let number = u32::from_le_bytes(*number);
        let (len, skip) = if number & SKIP == 0 { (number, 0) } else { (0, number & !SKIP) };
        let (received, pending) = rest.split_at_checked(len as usize)?;
        let mut stream = Self::new(socket, position);
        let is_bounded = received.len() <= INPUT_LEN && pending.len() <= stream.output.pending.capacity();
        if !is_bounded || !stream.skip(skip as usize) {
            return None;
        }
        stream.input.buffer[..received.len()].copy_from_slice(received);
        stream.input.end = received.len();
        stream.input.note();
        stream.output.pending.extend_from_slice(pending);
        stream.output.cut = !pending.is_empty();
        stream.output.blocked = stream.output.cut.then_some(CreditWait::Event);
        Some(stream)
    }

    pub(super) fn take(&mut self, batch: &mut Batch<'_>, oversized: &mut u64) -> Result<Taken, Lost> {
        let mut skipped = 0;
        while skipped < SKIPPED_MAX
            && let Some(room) = batch.room()
        {
            match self.input.next()? {
                Some(frame) if frame.len() <= FRAME_MAX => {
                    room[..frame.len()].copy_from_slice(frame);
                    let len = frame.len();
                    batch.push(RX_META, len);
                }
                Some(_) => {
                    *oversized += 1;
                    skipped += 1;
                }
                None => match self.input.receive(&self.socket) {
                    Ok(0) => return Err(Lost::Closed),
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => return Ok(Taken::All),
                    Err(_) => return Err(Lost::Closed),
                },
            }
        }
        Ok(Taken::Some)
    }

    pub(super) fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), Unsent> {
        let len = frame.len();
        let padded = len.max(FRAME_MIN);
        if self.output.pending.len() + PREFIX + padded > GATHERED_MAX {
            self.flush().map_err(|_| Unsent::Closed)?;
        }
        if let Some(wait) = self.output.blocked {
            return Err(Unsent::Full(wait));
        }
        if len <= SMALL_MAX {
            self.output.append(frame, padded);
            return Ok(());
        }
        if !self.has_room(self.output.pending.len() + PREFIX + len) {
            return Err(Unsent::Full(CreditWait::Event));
        }
        self.write_large(frame)
    }

    /// Writes a frame from where it lies, behind those gathered.
    fn write_large(&mut self, frame: &TxFrame<'_>) -> Result<(), Unsent> {
        let Self { socket, output, .. } = self;
        let prefix = prefix(frame.len());
        let gathered_len = output.pending.len();
        let front = [IoSlice::new(&output.pending), IoSlice::new(&prefix), IoSlice::new(frame.headers)];
        let (written, wait) = match gathered(&front, frame.payload, |slices| write(socket, slices)) {
            Ok(written) => (written, CreditWait::Event),
            Err(errno) => (0, wait_after(errno).ok_or(Unsent::Closed)?),
        };
        output.blocked = (written < gathered_len + PREFIX + frame.len()).then_some(wait);
        output.cut = output.blocked.is_some() && (output.cut || written > 0);
        output.pending.drain(..written.min(gathered_len));
        if written <= gathered_len {
            return Err(Unsent::Full(wait));
        }
        let mut done = written - gathered_len;
        for part in [&prefix[..], frame.headers].into_iter().chain(frame.payload.iter().map(|part| &**part)) {
            let skipped = done.min(part.len());
            output.pending.extend_from_slice(&part[skipped..]);
            done -= skipped;
        }
        Ok(())
    }

    /// Writes what is gathered, unless it waits for room.
    pub(super) fn flush(&mut self) -> Result<(), Lost> {
        if self.output.blocked.is_some() || self.output.pending.is_empty() {
            return Ok(());
        }
        if !self.has_room(self.output.pending.len()) {
            self.output.blocked = Some(CreditWait::Event);
            return Ok(());
        }
        let Self { socket, output, .. } = self;
        let wait = match write(socket, &[IoSlice::new(&output.pending)]) {
            Ok(written) => {
                output.pending.drain(..written);
                output.cut = !output.pending.is_empty();
                CreditWait::Event
            }
            Err(errno) => wait_after(errno).ok_or(Lost::Closed)?,
        };
        output.blocked = (!output.pending.is_empty()).then_some(wait);
        Ok(())
    }

    /// Writes what has waited for room.
    pub(super) fn go_on(&mut self) -> Result<(), Lost> {
        self.output.blocked = None;
        self.flush()
    }

    /// Wait of the bytes under way, if there is no room for them.
    pub(super) fn blocked(&self) -> Option<CreditWait> {
        self.output.blocked
    }
}

impl Input {
    /// Receives what there is room for; the number of bytes.
    fn receive(&mut self, socket: &OwnedFd) -> Result<usize, Errno> {
        self.position.note(None);
        let received = recv(socket, self.room(), RecvFlags::DONTWAIT).map(|(len, _)| len);
        self.end += received.unwrap_or_default();
        self.note();
        received
    }

    /// Notes the position behind the bytes that have come, before anything else is done with them.
    fn note(&mut self) {
        while let Some(prefix) = self.buffer[..self.end].get(self.next..).and_then(<[u8]>::first_chunk) {
            // An impossible length ends the connection later.
            self.next += PREFIX + (u32::from_be_bytes(*prefix) as usize).min(LENGTH_MAX);
        }
        self.position.note(self.next.checked_sub(self.end));
    }

    /// The next whole frame; none if the rest of it has not come.
    fn next(&mut self) -> Result<Option<&[u8]>, Lost> {
        let skipped = self.skip.min(self.end - self.start);
        (self.skip, self.start) = (self.skip - skipped, self.start + skipped);
        if self.skip > 0 {
            return Ok(None);
        }
        let Some((prefix, rest)) = self.buffer[self.start..self.end].split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let len = u32::from_be_bytes(*prefix) as usize;
        if !(1..=LENGTH_MAX).contains(&len) {
            return Err(Lost::BadLength);
        }
        if rest.len() < len {
            return Ok(None);
        }
        if std::mem::take(&mut self.unproven) && !proof::is_frame(&rest[..len]) {
            return Err(Lost::BadLength);
        }
        let from = self.start + PREFIX;
        self.start = from + len;
        Ok(Some(&self.buffer[from..from + len]))
    }

    /// Room behind the rest, which is less than one frame and moves to the front.
    fn room(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end, self.next) = (0, self.end - self.start, self.next - self.start);
        &mut self.buffer[self.end..]
    }
}

impl Output {
    /// Appends a frame, with zeros up to the length `padded`.
    fn append(&mut self, frame: &TxFrame<'_>, padded: usize) {
        self.pending.extend_from_slice(&prefix(padded));
        let begin = self.pending.len();
        self.pending.extend_from_slice(frame.headers);
        for part in frame.payload {
            self.pending.extend_from_slice(part);
        }
        self.pending.resize(begin + padded, 0);
    }
}

/// The length in front of a frame.
fn prefix(len: usize) -> [u8; PREFIX] {
    // At most LENGTH_MAX.
    (len as u32).to_be_bytes()
}
