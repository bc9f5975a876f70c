//! Packet capture of the guest link, as a pcapng file.
//!
//! Frames are written as they cross the link, super-frames included, and with the checksums they have there
//! (which a guest with offloads leaves partial). Direction is the guest's: frames that it sent are outbound,
//! as in a capture on its own interface.
//!
//! A capture must never delay or end the data path: a write that fails ends the capture, and the error is
//! kept for the driver to report once. Blocks are collected in a buffer that is written when it is full, a
//! second after its first block at the latest, and when the last handle is dropped.
//!
//! Several workers write to one file: each has a handle ([`Capture::clone`]), and a lock is held for as long
//! as it takes to add one frame to the buffer. Frames stand in the order in which they were added; their
//! times, which are those of a turn's begin, may go back between workers by as long as a turn takes. Frames
//! of one connection are always in order.
//!
//! *Dates* are those of the wall clock as it stood when the capture began: one base for all its frames keeps
//! them in their order, whether the clock is set meanwhile or not.
//!
//! Format: one section header, one interface description (Ethernet, nanoseconds), then one enhanced packet
//! block per frame (draft-ietf-opsawg-pcapng), in the byte order of the machine.

mod filter;

use crate::clock::Clock;
use brodo_core::link::{FRAME_MAX, TxFrame};
use brodo_core::time::{Duration, Instant};
pub use filter::Filter;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Longest time of a captured frame in memory only.
const FLUSH_AFTER: Duration = Duration::from_secs(1);
/// Bytes collected per write to the file.
const BUFFER: usize = 256 << 10;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const LINKTYPE_ETHERNET: u16 = 1;
const OPT_END: u16 = 0;
const OPT_USER_APPLICATION: u16 = 4;
const OPT_IF_NAME: u16 = 2;
const OPT_IF_TSRESOL: u16 = 9;
const OPT_EPB_FLAGS: u16 = 2;

/// Direction of a frame, as seen from the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameDirection {
    /// To the guest.
    Inbound,
    /// From the guest.
    Outbound,
}

/// The file, and the buffer before it.
#[derive(Debug)]
struct Writer {
    out: BufWriter<File>,
    /// Ended by an error: no more is written.
    ended: bool,
    error: Option<io::Error>,
    written: Written,
}

/// Progress of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// Frames written so far.
    pub frames: u64,
    /// Bytes of those frames.
    pub bytes: u64,
}

impl Writer {
    fn note(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.ended = true;
            self.error = Some(error);
        }
    }
}

/// A worker's handle of an open capture file.
#[derive(Debug)]
pub struct Capture {
    writer: Arc<Mutex<Writer>>,
    filter: Option<Arc<Filter>>,
    /// Nanoseconds since 1970 at the clock's zero.
    zero_ns: u64,
    flush_at: Option<Instant>,
}

impl Clone for Capture {
    /// A handle for another worker.
    fn clone(&self) -> Self {
        Self {
            writer: self.writer.clone(),
            filter: self.filter.clone(),
            zero_ns: self.zero_ns,
            flush_at: None,
        }
    }
}

impl Capture {
    /// Makes (or replaces) the file and writes its headers; `interface` is the guest's interface name. A new
    /// file has mode 0600, because it holds payload; an existing one keeps its mode.
    ///
    /// # Errors
    /// The file cannot be made or written.
    pub fn create(path: &Path, interface: &str, clock: Clock) -> io::Result<Self> {
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        Self::new(file, interface, clock)
    }

    /// A capture into an open file, such as a pipe to a program that shows it.
    ///
    /// # Errors
    /// The headers cannot be written.
    pub fn new(file: File, interface: &str, clock: Clock) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(BUFFER, file);
        let mut section = Vec::new();
        section.extend(BYTE_ORDER.to_ne_bytes());
        section.extend([1u16, 0].iter().flat_map(|v| v.to_ne_bytes()));
        // Length of the section: unknown.
        section.extend(u64::MAX.to_ne_bytes());
        option(&mut section, OPT_USER_APPLICATION, b"brodo");
        option(&mut section, OPT_END, &[]);
        block(&mut out, SECTION_HEADER, &section)?;
        let mut description = Vec::new();
        description.extend([LINKTYPE_ETHERNET, 0].iter().flat_map(|v| v.to_ne_bytes()));
        description.extend((FRAME_MAX as u32).to_ne_bytes());
        option(&mut description, OPT_IF_NAME, interface.as_bytes());
        option(&mut description, OPT_IF_TSRESOL, &[9]);
        option(&mut description, OPT_END, &[]);
        block(&mut out, INTERFACE_DESCRIPTION, &description)?;
        out.flush()?;
        Ok(Self::writing(out, clock))
    }

    /// Goes on with a capture of another process, whose file has its headers and only whole blocks. `file` is
    /// the same open file, whose offset is at the end; `clock` is that of the other process.
    pub fn resume(file: File, clock: Clock) -> Self {
        Self::writing(BufWriter::with_capacity(BUFFER, file), clock)
    }

    fn writing(out: BufWriter<File>, clock: Clock) -> Self {
        let writer = Writer { out, ended: false, error: None, written: Written::default() };
        let zero_ns = clock.date_ns(Instant::ZERO);
        Self { writer: Arc::new(Mutex::new(writer)), filter: None, zero_ns, flush_at: None }
    }

    /// Frames and bytes written so far, for a hand-over.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let Written { frames, bytes } = self.written();
        (frames, bytes)
    }

    /// Sets the counts of a capture that goes on.
    pub(crate) fn set_counts(&mut self, frames: u64, bytes: u64) {
        self.lock().written = Written { frames, bytes };
    }

    /// Restricts the capture to frames that match `filter`. To be called before handles are cloned.
    #[must_use]
    pub fn only(mut self, filter: Filter) -> Self {
        self.filter = Some(Arc::new(filter));
        self
    }

    /// Progress of all handles together.
    pub fn written(&self) -> Written {
        self.lock().written
    }

    /// Adds a frame from the guest.
    pub fn outbound(&mut self, now: Instant, frame: &[u8]) {
        if !self.keeps(frame) {
            return;
        }
        self.packet(now, FrameDirection::Outbound, frame.len(), |out| out.write_all(frame));
    }

    /// Adds a frame to the guest.
    pub fn inbound(&mut self, now: Instant, frame: &TxFrame<'_>) {
        if !self.keeps(frame.headers) {
            return;
        }
        self.packet(now, FrameDirection::Inbound, frame.len(), |out| {
            out.write_all(frame.headers)?;
            frame.payload.iter().try_for_each(|slice| out.write_all(slice))
        });
    }

    /// The flows that it may have frames of, without a hold on the file.
    pub(crate) fn scope(&self) -> Scope {
        Scope(self.filter.clone())
    }

    fn keeps(&self, headers: &[u8]) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.matches(headers))
    }

    /// Time at which [`Capture::flush`] is due, if the buffer is not empty.
    pub fn flush_at(&self) -> Option<Instant> {
        self.flush_at
    }

    /// Writes the buffer.
    pub fn flush(&mut self) {
        self.flush_at = None;
        let mut writer = self.lock();
        if !writer.ended {
            let flushed = writer.out.flush();
            writer.note(flushed);
        }
    }

    /// The error that has ended this capture, if any; reported to one of its handles. A capture with an error
    /// takes no more frames.
    pub fn take_error(&mut self) -> Option<io::Error> {
        self.lock().error.take()
    }

    /// Whether an error has ended it.
    pub fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// A worker that has panicked ends the program; until then the others may write.
    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes one enhanced packet block whose data is `len` bytes, written by `data`.
    fn packet(
        &mut self,
        now: Instant,
        direction: FrameDirection,
        len: usize,
        data: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) {
        let unix_ns = self.zero_ns.saturating_add(now.as_ns());
        let mut writer = self.lock();
        if writer.ended {
            return;
        }
        let written = writer.write_packet(unix_ns, direction, len, data);
        writer.note(written);
        drop(writer);
        self.flush_at.get_or_insert(now + FLUSH_AFTER);
    }
}

/// The flows that a capture is about.
#[derive(Debug, Clone)]
pub(crate) struct Scope(Option<Arc<Filter>>);

impl Scope {
    /// Whether frames of a TCP connection between these ends are captured.
    pub(crate) fn includes(&self, guest: SocketAddr, remote: SocketAddr) -> bool {
        self.0.as_ref().is_none_or(|filter| filter.matches_tcp(guest, remote))
    }
}

impl Writer {
    fn write_packet(
        &mut self,
        unix_ns: u64,
        direction: FrameDirection,
        len: usize,
        data: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> io::Result<()> {
        let padding = len.next_multiple_of(4) - len;
        // Type, length, five words, data, flags option (8), end of options (4), length again.
        let total = (28 + len + padding + 12 + 4) as u32;
        // Whole blocks alone reach the file, so that another process can go on behind them after a crash.
        if self.out.buffer().len() + total as usize > self.out.capacity() {
            self.out.flush()?;
        }
        let words =
            [ENHANCED_PACKET, total, 0, (unix_ns >> 32) as u32, unix_ns as u32, len as u32, len as u32];
        for word in words {
            self.out.write_all(&word.to_ne_bytes())?;
        }
        data(&mut self.out)?;
        self.out.write_all(&[0; 3][..padding])?;
        let flags: u32 = match direction {
            FrameDirection::Inbound => 1,
            FrameDirection::Outbound => 2,
        };
        self.out.write_all(&OPT_EPB_FLAGS.to_ne_bytes())?;
        self.out.write_all(&4u16.to_ne_bytes())?;
        self.out.write_all(&flags.to_ne_bytes())?;
        self.out.write_all(&[0; 4])?;
        self.out.write_all(&total.to_ne_bytes())?;
        self.written.frames += 1;
        self.written.bytes += len as u64;
        Ok(())
    }
}

/// Adds one option, padded to four bytes.
fn option(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    to.extend(code.to_ne_bytes());
    to.extend((value.len() as u16).to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// Writes one block around `body`, whose length is a multiple of four.
fn block(out: &mut impl Write, kind: u32, body: &[u8]) -> io::Result<()> {
    let total = (body.len() + 12) as u32;
    out.write_all(&kind.to_ne_bytes())?;
    out.write_all(&total.to_ne_bytes())?;
    out.write_all(body)?;
    out.write_all(&total.to_ne_bytes())
}

#[cfg(test)]
mod tests;
