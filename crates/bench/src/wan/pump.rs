//! One direction of the path, as a thread: packets read from one device, written to the other when they are
//! due.
//!
//! The thread sleeps until a packet comes or one is due, with the kernel's timer slack at its least and ahead
//! of ordinary programs, as a wire would not wait for them; the worst lateness is counted. A packet is copied
//! twice, out of the one kernel and into the other, unless it has to be cut.
//!
//! System calls: read, write, ppoll, prctl (PR_SET_TIMERSLACK).

use super::ring::Ring;
use super::segments::Segments;
use super::shaper::{Overflow, Path, Piece, Queue, Shaper};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::unistd::gettid;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The longest packet with its header: the payload of IPv6 has at most 65,535 bytes.
const PACKET_MAX: usize = 12 + 40 + 65_535;
/// Packets taken in a row before due packets get their turn.
const BATCH: usize = 16;
/// Interval at which an idle thread checks for the end.
const IDLE_CHECK: Duration = Duration::from_millis(50);
/// Room for packets in flight on a link without a rate.
const UNBOUNDED_BYTES: usize = 64 << 20;
/// Room beyond the capacity of the link, in bytes.
const SPARE_BYTES: usize = 4 << 20;

/// Counters of one direction since the start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads from the device: packets and super-packets.
    pub packets: AtomicU64,
    /// Segments in these packets.
    pub segments: AtomicU64,
    /// Bytes on the wire, with those dropped and lost.
    pub wire_bytes: AtomicU64,
    /// Segments that found the queue full.
    pub dropped: AtomicU64,
    /// Segments lost by chance.
    pub lost: AtomicU64,
    /// Packets that the other end's kernel did not take.
    pub refused: AtomicU64,
    /// Worst lateness of a packet at the other end, in nanoseconds.
    pub late_ns_max: AtomicU64,
}

impl Counters {
    fn add(counter: &AtomicU64, count: u64) {
        // One writer only, so load and store need not be one atomic operation.
        counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }
}

/// One direction, before its thread runs.
#[derive(Debug)]
pub(super) struct Pump {
    from: Arc<File>,
    to: Arc<File>,
    shaper: Shaper,
    ring: Ring,
    counters: Arc<Counters>,
    start: Instant,
    pieces: Vec<Piece>,
    whole: Vec<u8>,
    part: Vec<u8>,
}

/// Reason why reading from the device stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// Limit of one turn; more packets may wait.
    More,
    /// The device is empty.
    All,
    /// The emulated queue is full until this time.
    FullUntil(u64),
}

impl Pump {
    pub(super) fn new(from: Arc<File>, to: Arc<File>, path: Path, counters: Arc<Counters>) -> Self {
        let ring = Ring::new(capacity(&path));
        Self {
            from,
            to,
            shaper: Shaper::new(path),
            ring,
            counters,
            start: Instant::now(),
            pieces: Vec::with_capacity(64),
            whole: Vec::with_capacity(PACKET_MAX),
            part: Vec::with_capacity(PACKET_MAX),
        }
    }

    /// Runs until `end` is set.
    pub(super) fn run(mut self, end: &AtomicBool) {
        // Without these privileges packets are later, which the lateness counter shows; the emulator runs all
        // the same.
        let _ = nix::sys::prctl::set_timerslack(1);
        let _ = prefer_this_thread();
        while !end.load(Ordering::Relaxed) {
            self.deliver();
            match self.take() {
                Taken::More => {}
                Taken::All => self.sleep(None),
                Taken::FullUntil(until_ns) => self.sleep(Some(until_ns)),
            }
        }
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Writes the packets that are due.
    fn deliver(&mut self) {
        while let Some(due_ns) = self.ring.next_due_ns() {
            let late_ns = self.now_ns().checked_sub(due_ns);
            let (Some(late_ns), Some(packet)) = (late_ns, self.ring.front()) else { return };
            self.counters.late_ns_max.fetch_max(late_ns, Ordering::Relaxed);
            if (&*self.to).write(packet).is_err() {
                Counters::add(&self.counters.refused, 1);
            }
            self.ring.pop();
        }
    }

    fn take(&mut self) -> Taken {
        for _ in 0..BATCH {
            let now_ns = self.now_ns();
            if let Some(until_ns) = self.shaper.full_until_ns(now_ns) {
                return Taken::FullUntil(until_ns);
            }
            let Some(room) = self.ring.room(PACKET_MAX) else {
                return Taken::FullUntil(self.ring.next_due_ns().unwrap_or(now_ns));
            };
            // No packet, or a removed device, which the owner of this thread notices itself.
            let Ok(length) = (&*self.from).read(room) else { return Taken::All };
            self.accept(length);
        }
        Taken::More
    }

    /// Passes the packet just read over the link.
    fn accept(&mut self, length: usize) {
        let now_ns = self.now_ns();
        let packet = self.ring.written(length);
        let segments = Segments::of(packet);
        let all = 0..segments.count();
        let losses = self.shaper.pass(now_ns, &segments, &mut self.pieces);
        Counters::add(&self.counters.packets, 1);
        Counters::add(&self.counters.segments, u64::from(all.end));
        Counters::add(&self.counters.wire_bytes, segments.wire_bytes(&all));
        Counters::add(&self.counters.dropped, u64::from(losses.dropped));
        Counters::add(&self.counters.lost, u64::from(losses.lost));
        if let [piece] = &self.pieces[..]
            && piece.range == all
        {
            self.ring.push(length, piece.due_ns);
            return;
        }
        self.whole.clear();
        self.whole.extend_from_slice(packet);
        for piece in &self.pieces {
            segments.cut(&self.whole, &piece.range, &mut self.part);
            let Some(room) = self.ring.room(self.part.len()) else {
                Counters::add(&self.counters.refused, 1);
                continue;
            };
            room.copy_from_slice(&self.part);
            self.ring.push(self.part.len(), piece.due_ns);
        }
    }

    /// Sleeps until a packet comes, unless it could not be taken until `full_until_ns`, or one is due.
    fn sleep(&self, full_until_ns: Option<u64>) {
        let now_ns = self.now_ns();
        let wake_ns = [self.ring.next_due_ns(), full_until_ns].into_iter().flatten().min();
        let wait =
            wake_ns.map_or(IDLE_CHECK, |at| Duration::from_nanos(at.saturating_sub(now_ns)).min(IDLE_CHECK));
        let mut polled = [PollFd::new(self.from.as_fd(), PollFlags::POLLIN)];
        let polled = if full_until_ns.is_some() { &mut polled[..0] } else { &mut polled[..] };
        // A signal only makes the next turn come sooner.
        let _ = ppoll(polled, Some(TimeSpec::from_duration(wait)), None);
    }
}

/// Raises the priority of the calling thread above ordinary programs (nice -15).
fn prefer_this_thread() -> std::io::Result<Output> {
    Command::new("renice").args(["-n", "-15", "-p", &gettid().to_string()]).output()
}

/// Bytes that can be in flight and in the queue, as an upper bound: memory holds no framing.
fn capacity(path: &Path) -> usize {
    let Some(rate) = path.rate_bit else { return UNBOUNDED_BYTES };
    let flight = path.delay.as_nanos() * u128::from(rate) / 8_000_000_000;
    let queue = match path.queue {
        Queue::Bytes(bytes) => bytes as usize,
        Queue::Packets(packets) => packets as usize * 2048,
    };
    // The last packet accepted by a queue with back pressure may be a super-packet.
    let overshoot = if path.overflow == Overflow::Wait { PACKET_MAX } else { 0 };
    flight as usize + queue + overshoot + SPARE_BYTES
}
