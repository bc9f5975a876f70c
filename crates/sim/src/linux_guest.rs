//! A guest whose TCP behaves as Linux's: an independent implementation, written for simulation.
//!
//! smoltcp ([`crate::guest`]) proves interoperability with a foreign TCP; it has hardly any selective
//! acknowledgement, no tail loss probe, and copies its buffers. Figures need a guest that fills a long path
//! as a Linux guest does: initial window of ten segments, CUBIC, SACK with RACK-TLP and proportional rate
//! reduction, a 200 ms time-out, super-segments, window scaling, delayed and quick acknowledgements. This
//! module has them, and shares no code with the stack under test.
//!
//! A [`Connection`] is one TCP connection of the guest. Content comes from a [`Payload`] each way, so nothing
//! is stored: the sender generates it into the frame, the receiver compares and discards it. Closing is left
//! out: bulk transfers end with the simulation, and the conformance scripts and smoltcp cover all ways to
//! close.

pub mod congestion;
mod receiver;
mod rtt;
mod sender;
pub mod wire;

use crate::link::GUEST_MAC;
use crate::packet::{Macs, TcpSegment, flags};
use crate::payload::Payload;
use brodo_core::time::{Duration, Instant};
pub use congestion::Algorithm;
use receiver::Receiver;
use sender::{Outgoing, Sender};
use std::net::SocketAddr;
use std::rc::Rc;

/// Retransmission time-out of a SYN.
const SYN_AGAIN: Duration = Duration::from_secs(1);

/// Set-up of a guest's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Options {
    /// Largest payload of a segment, bytes, both ways.
    pub mss: u16,
    /// Segments per frame that the guest sends (TSO): 1 on a link without offloads.
    pub burst: u16,
    /// Payload that the send buffer holds, bytes.
    pub send_buffer: u64,
    /// The receive buffer, bytes; `None` for one that never fills.
    pub receive_buffer: Option<u64>,
    /// CUBIC instead of Reno.
    pub cubic: bool,
}

impl Default for Options {
    /// Ethernet's segments, eight to a frame; buffers that never fill.
    fn default() -> Self {
        Self { mss: 1460, burst: 8, send_buffer: 1 << 30, receive_buffer: None, cubic: true }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    SynSent { at: Instant, first: Instant },
    Open,
}

/// Payload of a connection, each way.
#[derive(Debug, Clone)]
pub struct Content {
    /// Guest to host.
    pub up: Rc<Payload>,
    /// Host to guest.
    pub down: Rc<Payload>,
}

/// One connection of the guest.
#[derive(Debug)]
pub struct Connection {
    options: Options,
    local: SocketAddr,
    remote: SocketAddr,
    stack_mac: [u8; 6],
    state: State,
    iss: u32,
    /// The stack's first sequence number, and the shift of its windows.
    irs: u32,
    peer_scale: u8,
    tx: Sender,
    rx: Receiver,
    content: Content,
}

impl Connection {
    /// A connection not yet opened.
    pub fn new(
        options: Options,
        local: SocketAddr,
        remote: SocketAddr,
        stack_mac: [u8; 6],
        iss: u32,
        content: Content,
    ) -> Self {
        let algorithm = if options.cubic { Algorithm::Cubic } else { Algorithm::Reno };
        Self {
            options,
            local,
            remote,
            stack_mac,
            state: State::Closed,
            iss,
            irs: 0,
            peer_scale: 0,
            tx: Sender::new(options.mss, options.burst, options.send_buffer, algorithm),
            rx: Receiver::new(options.receive_buffer, options.mss),
            content,
        }
    }

    /// Largest payload of a segment, bytes.
    pub const fn mss(&self) -> u16 {
        self.options.mss
    }

    /// The guest's end.
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// The application has `bytes` more to send.
    pub fn write(&mut self, bytes: u64) {
        self.tx.write(bytes);
    }

    /// The application reads up to `bytes`; returns the number read.
    pub fn read(&mut self, bytes: u64) -> u64 {
        self.rx.take(bytes)
    }

    /// Bytes that have arrived in order.
    pub const fn received(&self) -> u64 {
        self.rx.nxt()
    }

    /// Bytes that the stack has acknowledged.
    pub const fn acknowledged(&self) -> u64 {
        self.tx.una()
    }

    /// Bytes sent and not acknowledged.
    pub const fn in_flight(&self) -> u64 {
        self.tx.in_flight()
    }

    /// The congestion window, bytes.
    pub fn cwnd(&self) -> u64 {
        self.tx.cwnd()
    }

    /// Retransmitted segments.
    pub const fn retransmitted(&self) -> u64 {
        self.tx.retransmitted()
    }

    /// Whether the handshake is over.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Deadline of the next [`Connection::poll`] without an arrival.
    pub fn next_deadline(&self) -> Option<Instant> {
        match self.state {
            State::Closed => None,
            State::SynSent { at, .. } => Some(at + SYN_AGAIN),
            State::Open => [self.tx.deadline(), self.rx.deadline()].into_iter().flatten().min(),
        }
    }

    /// Opens the connection.
    pub fn connect(&mut self, now: Instant, out: &mut Vec<Vec<u8>>) {
        self.state = State::SynSent { at: now, first: now };
        out.push(self.syn());
    }

    fn syn(&self) -> Vec<u8> {
        let syn = TcpSegment {
            flags: flags::SYN,
            seq: self.iss,
            window: self.rx.syn_window(),
            mss: Some(self.options.mss),
            wscale: Some(self.rx.scale()),
            sack_ok: true,
            ..TcpSegment::new(self.local, self.remote)
        };
        wire::frame(&syn, Macs { to: self.stack_mac, from: GUEST_MAC }, 0, |_| {})
    }

    /// Processes a segment of this connection.
    ///
    /// # Panics
    /// If the stack resets the connection or sends other bytes than the host did: no figure is valid then.
    pub fn receive(&mut self, now: Instant, segment: &TcpSegment, payload: &[u8]) {
        assert!(segment.flags & flags::RST == 0, "the stack reset {}", self.local);
        match self.state {
            State::Closed => {}
            State::SynSent { first, .. } => {
                if segment.has(flags::SYN | flags::ACK) {
                    self.established(now, first, segment);
                }
            }
            State::Open => self.data(now, segment, payload),
        }
    }

    fn established(&mut self, now: Instant, first: Instant, segment: &TcpSegment) {
        self.irs = segment.seq;
        self.peer_scale = segment.wscale.unwrap_or(0);
        let mss = self.options.mss.min(segment.mss.unwrap_or(536));
        // The window in a SYN is not scaled (RFC 7323, 2.2).
        self.tx.open(now - first, mss, segment.window.into());
        self.state = State::Open;
        self.rx.acknowledge_now();
    }

    fn data(&mut self, now: Instant, segment: &TcpSegment, payload: &[u8]) {
        let ack = self.up_offset(segment.ack);
        let window = u64::from(segment.window) << self.peer_scale;
        let blocks: Vec<(u64, u64)> =
            segment.sack.iter().map(|&(l, r)| (self.up_offset(l), self.up_offset(r))).collect();
        self.tx.acknowledge(now, ack, window, &blocks);
        let Some(start) = self.down_offset(segment.seq).filter(|_| !segment.has(flags::SYN)) else {
            // A retransmitted SYN-ACK, or a probe before the first byte.
            return self.rx.acknowledge_now();
        };
        if payload.is_empty() {
            if start < self.rx.nxt() {
                self.rx.acknowledge_now();
            }
            return;
        }
        if let Some(wrong) = self.content.down.mismatch(start, payload) {
            panic!("the guest got a wrong byte at {wrong} of the stream");
        }
        self.rx.segment(now, start, start + payload.len() as u64);
    }

    /// The offset in the guest's stream of a sequence number near what it has acknowledged.
    fn up_offset(&self, seq: u32) -> u64 {
        let una = self.iss.wrapping_add(1).wrapping_add(self.tx.una() as u32);
        let from_una = i64::from(seq.wrapping_sub(una) as i32);
        self.tx.una().saturating_add_signed(from_una)
    }

    /// The offset in the host's stream of a sequence number near the next one expected; `None` before the
    /// first byte.
    fn down_offset(&self, seq: u32) -> Option<u64> {
        let nxt = self.irs.wrapping_add(1).wrapping_add(self.rx.nxt() as u32);
        self.rx.nxt().checked_add_signed(i64::from(seq.wrapping_sub(nxt) as i32))
    }

    /// Expires timers, then sends as far as the windows allow.
    pub fn poll(&mut self, now: Instant, out: &mut Vec<Vec<u8>>) {
        match self.state {
            State::Closed => return,
            State::SynSent { at, first } => {
                if at + SYN_AGAIN <= now {
                    self.state = State::SynSent { at: now, first };
                    out.push(self.syn());
                }
                return;
            }
            State::Open => {}
        }
        if let Some(probe) = self.tx.expire(now) {
            out.push(self.frame(probe));
        }
        while let Some(stretch) = self.tx.next(now) {
            out.push(self.frame(stretch));
        }
        if self.rx.ack_due(now) {
            let nxt = self.tx.nxt();
            out.push(self.frame(Outgoing { start: nxt, end: nxt }));
        }
    }

    /// A frame with these bytes; every one acknowledges.
    fn frame(&mut self, bytes: Outgoing) -> Vec<u8> {
        let (window, blocks) = self.rx.acknowledge();
        let down = self.irs.wrapping_add(1);
        let seq = self.iss.wrapping_add(1).wrapping_add(bytes.start as u32);
        let len = (bytes.end - bytes.start) as usize;
        let header = TcpSegment {
            flags: flags::ACK | if len > 0 { flags::PSH } else { 0 },
            seq,
            ack: down.wrapping_add(self.rx.nxt() as u32),
            window,
            sack: blocks
                .into_iter()
                .map(|(l, r)| (down.wrapping_add(l as u32), down.wrapping_add(r as u32)))
                .collect(),
            ..TcpSegment::new(self.local, self.remote)
        };
        let up = &self.content.up;
        wire::frame(&header, Macs { to: self.stack_mac, from: GUEST_MAC }, len, |into| {
            up.fill(bytes.start, into);
        })
    }
}

#[cfg(test)]
mod tests;
