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
//! [`WHOLE_MAX`] bytes whole or not at all, and longer ones happen only for a frame longer than that
//! ([`Stream::is_long`]). From the guest it is if the monitor writes frames whole too, as QEMU and libkrun
//! do up to the same length, for a read ends between two writes unless it fills the buffer. The first frame
//! has to prove it: its length has to agree with that of the packet inside, else the connection ends.
//! Frames that the crashed process had received or gathered are lost, as on any network.

mod proof;

use super::{FRAME_MIN, Lost, RX_META, Unsent, wait_after, write};
use crate::batch::Batch;
use crate::slices::gathered;
use crate::{CreditWait, Taken};
use brodo_core::link::{FRAME_MAX, TxFrame};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
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
/// Bytes that a Unix socket takes whole or not at all: one buffer of the kernel, 16 KiB without its
/// management and 32 KiB in pages of 4 KiB (unix_stream_sendmsg), if the send buffer has its default size.
/// The tests hold the running kernel to it.
const WHOLE_MAX: usize = 47 << 10;

/// A connection with a frame behind its length.
#[derive(Debug)]
pub(super) struct Stream {
    socket: OwnedFd,
    input: Input,
    output: Output,
}

/// Received bytes, of which those before `start` are done.
#[derive(Debug)]
struct Input {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// The next frame has to prove that it is one.
    unproven: bool,
}

/// Bytes to be written.
#[derive(Debug)]
struct Output {
    pending: Vec<u8>,
    /// The first of them may belong to a frame of which others are written.
    cut: bool,
    /// A frame was sent that the kernel may take in parts.
    long: bool,
    /// The socket was full: nothing is taken before this.
    blocked: Option<CreditWait>,
}

impl Stream {
    pub(super) fn new(socket: OwnedFd) -> Self {
        let buffer = vec![0; INPUT_LEN].into_boxed_slice();
        let pending = Vec::with_capacity(WHOLE_MAX + PREFIX + FRAME_MAX);
        let output = Output { pending, cut: false, long: false, blocked: None };
        Self { socket, input: Input { buffer, start: 0, end: 0, unproven: false }, output }
    }

    /// A stream between two frames, as far as is known.
    pub(super) fn after_a_crash(socket: OwnedFd) -> Self {
        let mut stream = Self::new(socket);
        stream.input.unproven = true;
        stream
    }

    /// Whether a process that crashes now, or any time before the next frame that [`Self::is_long`], leaves
    /// the socket between two frames.
    pub(super) fn is_whole(&self) -> bool {
        !self.output.cut && !self.output.long
    }

    /// Whether the kernel may take this frame in parts.
    pub(super) fn is_long(frame: &TxFrame<'_>) -> bool {
        PREFIX + frame.len() > WHOLE_MAX
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Position in both directions: the number of bytes received and not passed on as 32 bits, least
    /// significant first, these, and those to be written.
    pub(super) fn save(&self) -> Vec<u8> {
        let Input { buffer, start, end, .. } = &self.input;
        let received = &buffer[*start..*end];
        [&(received.len() as u32).to_le_bytes()[..], received, &self.output.pending].concat()
    }

    /// A stream at a saved position; `None` if none has it.
    pub(super) fn restore(socket: OwnedFd, saved: &[u8]) -> Option<Self> {
        let (len, rest) = saved.split_first_chunk()?;
        let (received, pending) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        let mut stream = Self::new(socket);
        if received.len() > INPUT_LEN || pending.len() > stream.output.pending.capacity() {
            return None;
        }
        stream.input.buffer[..received.len()].copy_from_slice(received);
        stream.input.end = received.len();
        stream.output.pending.extend_from_slice(pending);
        stream.output.cut = !pending.is_empty();
        stream.output.blocked = stream.output.cut.then_some(CreditWait::Event);
        Some(stream)
    }

    pub(super) fn take(&mut self, batch: &mut Batch<'_>, oversized: &mut u64) -> Result<Taken, Lost> {
        while let Some(room) = batch.room() {
            match self.input.next()? {
                Some(frame) if frame.len() <= FRAME_MAX => {
                    room[..frame.len()].copy_from_slice(frame);
                    let len = frame.len();
                    batch.push(RX_META, len);
                }
                Some(_) => *oversized += 1,
                None => match recv(&self.socket, self.input.room(), RecvFlags::DONTWAIT) {
                    Ok((0, _)) => return Err(Lost::Closed),
                    Ok((len, _)) => self.input.end += len,
                    Err(Errno::AGAIN) => return Ok(Taken::All),
                    Err(Errno::INTR) => {}
                    Err(_) => return Err(Lost::Closed),
                },
            }
        }
        Ok(Taken::Some)
    }

    pub(super) fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), Unsent> {
        let len = frame.len();
        let padded = len.max(FRAME_MIN);
        self.output.long |= Self::is_long(frame);
        if self.output.pending.len() + PREFIX + padded > WHOLE_MAX {
            self.flush().map_err(|_| Unsent::Closed)?;
        }
        if let Some(wait) = self.output.blocked {
            return Err(Unsent::Full(wait));
        }
        if len <= SMALL_MAX {
            self.output.append(frame, padded);
            return Ok(());
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
        let Self { socket, output, .. } = self;
        if output.blocked.is_some() || output.pending.is_empty() {
            return Ok(());
        }
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
    /// The next whole frame; none if the rest of it has not come.
    fn next(&mut self) -> Result<Option<&[u8]>, Lost> {
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
        (self.start, self.end) = (0, self.end - self.start);
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
