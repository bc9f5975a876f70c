//! Bytes moved both ways between two descriptors by io_uring: multishot reads into memory that the kernel
//! knows, and writes from the same memory.
//!
//! ```text
//! first  --> multishot read --> buffer of the ring --> write --> second      a read is armed again when it
//! second --> multishot read --> buffer of the ring --> write --> first       ends; a buffer goes back when
//!                                                                            its write is complete
//! ```
//!
//! One system call (`io_uring_enter`) hands over all new writes and waits for completions; with a polling
//! thread in the kernel (SQPOLL) none hands over. A stream has one write under way per direction, because
//! writes of one descriptor may overtake each other; an interface takes each write at once and in order.
//! Without a buffer a multishot read ends (`ENOBUFS`), and begins again when one is back: that is the back
//! pressure.

use io_uring::types::{BufRingEntry, Fd};
use io_uring::{IoUring, cqueue, opcode, squeue};
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

/// Operations that may wait to be handed over.
const ENTRIES: u32 = 256;
/// The group of the buffers: a ring has one.
const GROUP: u16 = 0;
/// Idle time after which the kernel's polling thread sleeps, in milliseconds.
const POLLING_MS: u32 = 100;
/// Alignment of the list of buffers: a page.
const PAGE: usize = 4096;

/// Kind of the two descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    /// Sockets of streams, of which each end is passed on.
    Streams,
    /// Interfaces, which have no end.
    Interfaces,
}

/// A ring with its buffers.
pub(super) struct Ring {
    uring: IoUring,
    /// The list of free buffers, which the kernel reads: `count` entries on a page of their own.
    list: NonNull<BufRingEntry>,
    count: u16,
    tail: u16,
    memory: Vec<u8>,
    buffer_len: usize,
}

/// One direction.
struct Flow<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    /// Buffers that wait to be written, with their lengths.
    filled: VecDeque<(u16, u32)>,
    writing: usize,
    reading: bool,
    ended: bool,
    /// The end was passed on.
    closed: bool,
}

/// Kinds of operations, in the upper half of their number; below it direction and buffer.
const READ: u64 = 0;
const WRITE: u64 = 1;

fn number(kind: u64, flow: usize, buffer: u16) -> u64 {
    kind << 32 | (flow as u64) << 16 | u64::from(buffer)
}

impl Ring {
    /// A ring with `count` buffers (a power of two) of `buffer_len` bytes. `polled`: by a thread in the
    /// kernel, which is that of the ring `beside`, if there is one.
    pub(super) fn new(
        count: u16,
        buffer_len: usize,
        polled: bool,
        beside: Option<RawFd>,
    ) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        if polled {
            builder.setup_sqpoll(POLLING_MS);
            if let Some(ring) = beside {
                builder.setup_attach_wq(ring);
            }
        } else {
            builder.setup_single_issuer().setup_defer_taskrun();
        }
        let uring = builder.build(ENTRIES)?;
        let layout = Layout::array::<BufRingEntry>(count.into()).and_then(|layout| layout.align_to(PAGE));
        let layout = layout.map_err(io::Error::other)?;
        // SAFETY: the size is not 0, because a count of 0 makes no ring.
        let list = unsafe { alloc_zeroed(layout) }.cast();
        let list = NonNull::new(list).unwrap_or_else(|| handle_alloc_error(layout));
        let memory = vec![0; usize::from(count) * buffer_len];
        let mut ring = Self { uring, list, count, tail: 0, memory, buffer_len };
        // SAFETY: list and buffers are never freed: programs that have rings keep them to their end.
        unsafe {
            ring.uring.submitter().register_buf_ring_with_flags(list.as_ptr() as u64, count, GROUP, 0)?;
        }
        let memory = libc::iovec { iov_base: ring.memory.as_mut_ptr().cast(), iov_len: ring.memory.len() };
        // SAFETY: as above.
        unsafe { ring.uring.submitter().register_buffers(&[memory])? };
        (0..count).for_each(|buffer| ring.give(buffer));
        Ok(ring)
    }

    /// Its descriptor, for rings that share its polling thread.
    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.uring.as_raw_fd()
    }

    /// Gives a buffer back to the kernel.
    fn give(&mut self, buffer: u16) {
        let at = self.tail & (self.count - 1);
        // SAFETY: the index is below the number of entries.
        let mut entry = unsafe { self.list.add(at.into()) };
        // SAFETY: the entry is this program's until the tail says otherwise.
        let entry = unsafe { entry.as_mut() };
        entry.set_addr(self.memory[usize::from(buffer) * self.buffer_len..].as_ptr() as u64);
        entry.set_len(self.buffer_len as u32);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the list is a registered one, whose first entry has the tail in a field of its own.
        let tail = unsafe { BufRingEntry::tail(self.list.as_ptr()) };
        // SAFETY: it is aligned and valid, and the kernel only reads it.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    /// Moves bytes both ways until both streams have ended; between interfaces without end.
    pub(super) fn pump(&mut self, ends: [&dyn AsFd; 2], kind: Ends) -> io::Result<()> {
        let flow = |from: usize, to: usize| Flow {
            from: ends[from].as_fd(),
            to: ends[to].as_fd(),
            filled: VecDeque::new(),
            writing: 0,
            reading: false,
            ended: false,
            closed: false,
        };
        let mut flows = [flow(0, 1), flow(1, 0)];
        loop {
            for (index, flow) in flows.iter_mut().enumerate() {
                self.advance(index, flow, kind)?;
            }
            if flows.iter().all(|flow| flow.closed) {
                return Ok(());
            }
            self.uring.submit_and_wait(1)?;
            let done: Vec<_> = self.uring.completion().collect();
            for done in &done {
                self.complete(done, &mut flows);
            }
        }
    }

    /// Starts what a direction can do.
    fn advance(&mut self, index: usize, flow: &mut Flow<'_>, kind: Ends) -> io::Result<()> {
        while kind == Ends::Interfaces || flow.writing == 0 {
            let Some((buffer, len)) = flow.filled.pop_front() else { break };
            let bytes = self.memory[usize::from(buffer) * self.buffer_len..].as_ptr();
            let to = Fd(flow.to.as_raw_fd());
            let write = match kind {
                Ends::Streams => opcode::Send::new(to, bytes, len).flags(WAIT_ALL).build(),
                Ends::Interfaces => opcode::WriteFixed::new(to, bytes, len, 0).build(),
            };
            self.push(&write.user_data(number(WRITE, index, buffer)))?;
            flow.writing += 1;
        }
        if !flow.reading && !flow.ended {
            let from = Fd(flow.from.as_raw_fd());
            let read = match kind {
                Ends::Streams => opcode::RecvMulti::new(from, GROUP).build(),
                Ends::Interfaces => opcode::ReadMulti::new(from, 0, GROUP).build(),
            };
            self.push(&read.user_data(number(READ, index, 0)))?;
            flow.reading = true;
        }
        if flow.ended && !flow.reading && flow.writing == 0 && flow.filled.is_empty() && !flow.closed {
            flow.closed = true;
            // The other side may be gone already.
            let _ = rustix::net::shutdown(flow.to, rustix::net::Shutdown::Write);
        }
        Ok(())
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: its descriptor is open and its memory is this ring's until it completes: `pump` returns
        // when nothing is under way, or ends the program's interest in the ring with an error.
        while unsafe { self.uring.submission().push(entry) }.is_err() {
            self.uring.submit()?;
        }
        Ok(())
    }

    fn complete(&mut self, done: &cqueue::Entry, flows: &mut [Flow<'_>; 2]) {
        let (number, result) = (done.user_data(), done.result());
        let (index, buffer) = ((number >> 16) as usize & 1, number as u16);
        let flow = &mut flows[index];
        if number >> 32 == WRITE {
            self.give(buffer);
            flow.writing -= 1;
            if result < 0 {
                // A read without a reader at the other end is ended too.
                let _ = rustix::net::shutdown(flow.from, rustix::net::Shutdown::Read);
            }
            return;
        }
        flow.reading = cqueue::more(done.flags());
        match (result, cqueue::buffer_select(done.flags())) {
            (1.., Some(buffer)) => flow.filled.push_back((buffer, result as u32)),
            (code, buffer) => {
                if let Some(buffer) = buffer {
                    self.give(buffer);
                }
                flow.ended = code != -rustix::io::Errno::NOBUFS.raw_os_error();
            }
        }
    }
}

/// `MSG_WAITALL`: a write completes when all of it is written.
const WAIT_ALL: i32 = rustix::net::RecvFlags::WAITALL.bits() as i32;
