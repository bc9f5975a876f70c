//! One direction of a TCP connection between two Linux kernels: the writer's send buffer, the path, the
//! reader's receive buffer. Byte counts only; the caller moves the content.
//!
//! The speed of a relay on a long path depends on its use of the kernel's buffer autotuning, so that is
//! modelled exactly, and the rest as simply as possible:
//!
//! - *Send buffer* (`tcp_sndbuf_expand`, `sk_stream_write_space`): memory for twice the congestion window,
//!   grown only after a write has met the full buffer and only while the congestion window is not the
//!   limiting factor; 4 MiB at most. A writer that has met the full buffer is woken when a third of what is
//!   queued is free. Memory counts, not payload.
//! - *Congestion window* (RFC 6928, `tcp_is_cwnd_limited`, RFC 9438's factor): ten segments, doubled per
//!   round trip while it is used, until the first loss; then linear growth, and 0.7 of it after a loss. Not
//!   modelled: HyStart, CUBIC's curve, pacing, Nagle (brodo switches it off), the decay after idling.
//! - *Path*: a transmitter of limited rate behind a tail-drop queue, and a delay. Acknowledgements take the
//!   delay and are never lost. A loss is known one round trip after the segment would have been sent, as if
//!   detected by a later segment (RACK, or its tail loss probe), and repaired by selective retransmission.
//! - *Receive buffer* (`tcp_rcv_space_adjust`): the window is twice the bytes read in a round trip, 64 KiB at
//!   first; a read sends an update when it could at least double what is left of the window
//!   (`tcp_cleanup_rbuf`).

use brodo_core::time::{Duration, Instant};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// Segments in the initial congestion window (RFC 6928), and the least that a send buffer is made for.
const INITIAL_SEGMENTS: u64 = 10;
/// `tcp_wmem[2]`, bytes of memory.
const SEND_MEMORY_MAX: u64 = 4 << 20;
/// Memory that the kernel reserves for one segment of an Ethernet's size, when it sizes a send buffer:
/// payload and headers rounded up to a power of two, and the buffer's descriptor.
const SEGMENT_MEMORY: u64 = 4096 + 256;
/// Divisor of queued payload for the memory of descriptors of 64 KiB buffers.
const OVERHEAD_ONE_IN: u64 = 32;
/// Payload that one buffer takes; a write fills the last one though memory is then exceeded.
const BUFFER: u64 = 64 << 10;
/// Payload that the first window offers, and the largest: three quarters of `tcp_rmem[2]`, 6 MiB.
const WINDOW_INITIAL: u64 = 64 << 10;
const WINDOW_MAX: u64 = 9 << 19;

/// A path in one direction; the other direction has the same delay and no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wire {
    /// From one end to the other, without queueing.
    pub delay: Duration,
    /// Rate of the narrowest place.
    pub bits_per_s: u64,
    /// Capacity of its queue in bytes, beside the segment being sent.
    pub queue: u64,
    /// Payload of a segment, bytes.
    pub mss: u64,
}

impl Wire {
    /// A path of this round-trip time and rate whose queue holds one round trip's worth of bytes.
    pub fn new(rtt: Duration, bits_per_s: u64) -> Self {
        let bdp = u128::from(bits_per_s) * rtt.as_nanos() / 8_000_000_000;
        Self { delay: rtt / 2, bits_per_s, queue: (bdp as u64).max(64 << 10), mss: 1448 }
    }

    /// Round-trip time.
    pub fn rtt(&self) -> Duration {
        self.delay * 2
    }

    fn takes(&self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes * 8_000_000_000 / self.bits_per_s)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// A segment reaches the reader's kernel.
    Arrives { seq: u64, len: u64 },
    /// An acknowledgement reaches the writer's: of this many bytes, with what the reader has in order and its
    /// window.
    Acked { len: u64, in_order: u64, edge: u64 },
    /// The writer's kernel learns that a segment was lost.
    Lost { seq: u64, len: u64 },
    /// The end of the stream reaches the reader's.
    End,
}

/// The writer's kernel. Positions count bytes from the start of the stream.
#[derive(Debug)]
struct Sending {
    written: u64,
    next: u64,
    una: u64,
    edge: u64,
    /// Bytes sent and neither acknowledged nor known to be lost.
    pipe: u64,
    lost: VecDeque<(u64, u64)>,
    retransmitted: u64,
    /// The limit of the send buffer, bytes of memory.
    memory: u64,
    /// A write met the full buffer (SOCK_NOSPACE).
    blocked: bool,
    window: CongestionWindow,
    finished: bool,
    end_sent: bool,
}

#[derive(Debug)]
struct CongestionWindow {
    bytes: u64,
    mss: u64,
    slow_start_below: u64,
    /// Bytes acknowledged that linear growth has not used yet.
    credit: u64,
    /// After a loss: the window does not grow until this is acknowledged.
    recover: u64,
    /// Whether the flow was window-limited, and its maximum in flight, in the round that ends at
    /// `usage_until`.
    limited: bool,
    most_in_flight: u64,
    usage_until: u64,
}

/// The reader's kernel.
#[derive(Debug)]
struct Receiving {
    in_order: u64,
    read: u64,
    ahead: BTreeMap<u64, u64>,
    window: u64,
    edge: u64,
    measured_from: Instant,
    copied: u64,
    /// The most that was read in a round trip.
    space: u64,
    end: bool,
}

/// One direction of a connection.
#[derive(Debug)]
pub struct KernelStream {
    wire: Wire,
    free_at: Instant,
    dropped: u64,
    under_way: BinaryHeap<Reverse<(Instant, u64, Happening)>>,
    order: u64,
    send: Sending,
    receive: Receiving,
}

impl KernelStream {
    /// A stream over an open connection.
    pub fn new(wire: Wire) -> Self {
        let window = CongestionWindow {
            bytes: INITIAL_SEGMENTS * wire.mss,
            mss: wire.mss,
            slow_start_below: u64::MAX,
            credit: 0,
            recover: 0,
            limited: false,
            most_in_flight: 0,
            usage_until: 0,
        };
        let send = Sending {
            written: 0,
            next: 0,
            una: 0,
            edge: WINDOW_INITIAL,
            pipe: 0,
            lost: VecDeque::new(),
            retransmitted: 0,
            memory: 2 * INITIAL_SEGMENTS * SEGMENT_MEMORY,
            blocked: false,
            window,
            finished: false,
            end_sent: false,
        };
        let receive = Receiving {
            in_order: 0,
            read: 0,
            ahead: BTreeMap::new(),
            window: WINDOW_INITIAL,
            edge: WINDOW_INITIAL,
            measured_from: Instant::ZERO,
            copied: 0,
            space: WINDOW_INITIAL / 4,
            end: false,
        };
        Self {
            wire,
            free_at: Instant::ZERO,
            dropped: 0,
            under_way: BinaryHeap::new(),
            order: 0,
            send,
            receive,
        }
    }

    /// Time of the next event of path or kernels, without either program.
    pub fn next(&self) -> Option<Instant> {
        self.under_way.peek().map(|Reverse((at, ..))| *at)
    }

    /// Processes all events up to `now`.
    pub fn advance(&mut self, now: Instant) {
        while self.next().is_some_and(|at| at <= now) {
            let Some(Reverse((at, _, what))) = self.under_way.pop() else { return };
            match what {
                Happening::Arrives { seq, len } => {
                    self.receive.arrives(seq, len);
                    let (in_order, edge) = (self.receive.in_order, self.receive.edge);
                    self.happens(at + self.wire.delay, Happening::Acked { len, in_order, edge });
                }
                Happening::Acked { len, in_order, edge } => {
                    self.send.acked(len, in_order, edge);
                    self.transmit(at);
                    self.send.make_room();
                }
                Happening::Lost { seq, len } => {
                    self.send.lost(seq, len);
                    self.transmit(at);
                }
                Happening::End => self.receive.end = true,
            }
        }
    }

    fn happens(&mut self, at: Instant, what: Happening) {
        self.under_way.push(Reverse((at, self.order, what)));
        self.order += 1;
    }

    /// Sends as much as the windows allow.
    fn transmit(&mut self, now: Instant) {
        while let Some((seq, len)) = self.send.next_segment() {
            let waits = self.free_at - now;
            let round = waits + self.wire.rtt();
            if waits > self.wire.takes(self.wire.queue) {
                self.dropped += 1;
                self.happens(now + round, Happening::Lost { seq, len });
                continue;
            }
            self.free_at = now.max(self.free_at) + self.wire.takes(len);
            let at = self.free_at + self.wire.delay;
            self.happens(at, Happening::Arrives { seq, len });
        }
        if self.send.finished && !self.send.end_sent && self.send.next == self.send.written {
            self.send.end_sent = true;
            self.happens(now.max(self.free_at) + self.wire.delay, Happening::End);
        }
    }
}

/// The writing program's side.
impl KernelStream {
    /// Bytes accepted by a write now.
    pub fn room(&self) -> usize {
        self.send.room() as usize
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.send.written
    }

    /// The program writes at most as many bytes as have room, before it has closed.
    pub fn write(&mut self, now: Instant, bytes: usize) {
        assert!(bytes as u64 <= self.send.room() && !self.send.finished, "write of {bytes} bytes");
        self.send.written += bytes as u64;
        self.transmit(now);
    }

    /// The program met a full buffer, and waits to be woken.
    pub fn block(&mut self) {
        self.send.blocked = true;
    }

    /// Whether the program still waits.
    pub fn is_blocked(&self) -> bool {
        self.send.blocked
    }

    /// The program closes this direction.
    pub fn finish(&mut self, now: Instant) {
        self.send.finished = true;
        self.transmit(now);
    }

    /// Bytes of memory that queued bytes take.
    pub fn queued(&self) -> u64 {
        self.send.queued()
    }

    /// Bytes of memory that the send buffer may take now.
    pub fn send_memory(&self) -> u64 {
        self.send.memory
    }

    /// The congestion window, bytes.
    pub fn congestion_window(&self) -> u64 {
        self.send.window.bytes
    }

    /// Segments dropped by the queue and retransmitted.
    pub fn losses(&self) -> (u64, u64) {
        (self.dropped, self.send.retransmitted)
    }
}

/// The reading program's side.
impl KernelStream {
    /// Bytes that can be read now.
    pub fn readable(&self) -> usize {
        (self.receive.in_order - self.receive.read) as usize
    }

    /// Whether the end of the stream follows what can be read.
    pub fn has_ended(&self) -> bool {
        self.receive.end && self.receive.in_order == self.send.written
    }

    /// The program reads at most the bytes that have arrived.
    pub fn read(&mut self, now: Instant, bytes: usize) {
        assert!(bytes <= self.readable(), "read of {bytes} bytes");
        if self.receive.read(now, bytes as u64, self.wire) {
            let (in_order, edge) = (self.receive.in_order, self.receive.edge);
            self.happens(now + self.wire.delay, Happening::Acked { len: 0, in_order, edge });
        }
    }

    /// The largest window that is offered now, bytes.
    pub fn receive_window(&self) -> u64 {
        self.receive.window
    }
}

impl Sending {
    /// Memory that the queued bytes take.
    fn queued(&self) -> u64 {
        let bytes = self.written - self.una;
        bytes + bytes / OVERHEAD_ONE_IN
    }

    fn room(&self) -> u64 {
        let free = self.memory.saturating_sub(self.queued());
        (free - free / OVERHEAD_ONE_IN).next_multiple_of(BUFFER)
    }

    /// The next segment to send, if the windows allow one.
    fn next_segment(&mut self) -> Option<(u64, u64)> {
        let mss = self.window.mss;
        let lost = self.lost.front().copied();
        let open = self.edge.saturating_sub(self.next);
        let waiting = self.written - self.next;
        let len = lost.map_or(mss.min(waiting).min(open), |(_, len)| len);
        let sliver = lost.is_none() && len < mss && open < waiting && self.pipe > 0;
        let limited = len > 0 && !sliver && self.pipe > 0 && self.pipe + len > self.window.bytes;
        self.window.note_usage(limited, self.pipe, self.una, self.next);
        if len == 0 || sliver || limited {
            return None;
        }
        self.pipe += len;
        if let Some(segment) = lost {
            self.lost.pop_front();
            self.retransmitted += 1;
            return Some(segment);
        }
        self.next += len;
        Some((self.next - len, len))
    }

    fn acked(&mut self, len: u64, in_order: u64, edge: u64) {
        self.pipe -= len;
        self.una = self.una.max(in_order);
        self.edge = self.edge.max(edge);
        if len > 0 {
            self.window.acked(len, self.una);
        }
    }

    fn lost(&mut self, seq: u64, len: u64) {
        self.pipe -= len;
        self.lost.push_back((seq, len));
        self.window.lost(seq, self.next);
    }

    /// After an acknowledgement and the segments it released (`tcp_check_space`): a larger buffer for a
    /// waiting writer, and its wake-up.
    fn make_room(&mut self) {
        if !self.blocked {
            return;
        }
        if self.pipe < self.window.bytes {
            let segments = (self.window.bytes / self.window.mss).max(INITIAL_SEGMENTS);
            self.memory = self.memory.max((2 * segments * SEGMENT_MEMORY).min(SEND_MEMORY_MAX));
        }
        if self.memory.saturating_sub(self.queued()) >= self.queued() / 2 {
            self.blocked = false;
        }
    }
}

impl CongestionWindow {
    /// Records whether the congestion window is the limiting factor (`tcp_cwnd_validate`).
    fn note_usage(&mut self, limited: bool, in_flight: u64, una: u64, next: u64) {
        if una >= self.usage_until || limited || (!self.limited && in_flight > self.most_in_flight) {
            (self.limited, self.most_in_flight, self.usage_until) = (limited, in_flight, next);
        }
    }

    fn acked(&mut self, len: u64, una: u64) {
        let slow_start = self.bytes < self.slow_start_below;
        let used = self.limited || (slow_start && self.bytes < 2 * self.most_in_flight);
        if una < self.recover || !used {
            return;
        }
        if slow_start {
            self.bytes += len;
            return;
        }
        self.credit += len;
        if self.credit >= self.bytes {
            self.credit -= self.bytes;
            self.bytes += self.mss;
        }
    }

    fn lost(&mut self, seq: u64, next: u64) {
        if seq >= self.recover {
            self.bytes = (self.bytes * 7 / 10).max(2 * self.mss);
            self.slow_start_below = self.bytes;
            self.recover = next;
        }
    }
}

impl Receiving {
    fn arrives(&mut self, seq: u64, len: u64) {
        if seq > self.in_order {
            self.ahead.insert(seq, len);
        } else {
            self.in_order = self.in_order.max(seq + len);
        }
        while let Some(next) = self.ahead.first_entry().filter(|e| *e.key() <= self.in_order) {
            let (seq, len) = next.remove_entry();
            self.in_order = self.in_order.max(seq + len);
        }
        self.open();
    }

    fn open(&mut self) {
        self.edge = self.edge.max(self.read + self.window);
    }

    /// Whether a window update is due.
    fn read(&mut self, now: Instant, bytes: u64, wire: Wire) -> bool {
        self.read += bytes;
        self.copied += bytes;
        if now - self.measured_from >= wire.rtt() {
            if self.copied > self.space {
                let wanted = 2 * self.copied + 16 * wire.mss;
                let growth = wanted * (self.copied - self.space) / self.space;
                self.window = self.window.max((wanted + 2 * growth).min(WINDOW_MAX));
                self.space = self.copied;
            }
            (self.measured_from, self.copied) = (now, 0);
        }
        let (left, possible) = (self.edge - self.in_order, self.read + self.window - self.in_order);
        let tell = 2 * left <= self.window && possible >= (2 * left).max(wire.mss.min(self.window / 2));
        if tell {
            self.open();
        }
        tell
    }
}

#[cfg(test)]
mod tests;
