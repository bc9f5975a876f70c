//! Host sockets for bulk transfers: the far end is right behind them, so that the guest link alone shapes a
//! flow.
//!
//! Every connect succeeds at once. A socket compares the bytes written by the stack with the expected
//! [`Payload`](crate::payload::Payload) and discards them; its program reads as fast as bytes come, or at a
//! rate from a buffer of bounded size. Toward the guest it generates payload, as much as its program has
//! written. Readiness is edge-triggered, as in [`crate::host`].

use crate::linux_guest::Content;
use brodo_core::flow::FlowId;
use brodo_core::host::{
    Close, Connect, Host, HostError, IcmpReport, IpHeaderFields, Readiness, Received, SocketId,
};
use brodo_core::time::{Duration, Instant};
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};

/// A program that reads slowly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlowReader {
    /// The socket's send buffer toward it, bytes.
    pub buffer: u64,
    /// Rate of its reads, bytes per second.
    pub bytes_per_s: u64,
}

/// One host socket and the program behind it.
#[derive(Debug)]
struct Socket {
    flow: FlowId,
    to: SocketAddr,
    content: Content,
    /// Bytes taken from the stack.
    got: u64,
    reader: Option<SlowReader>,
    /// Bytes in the send buffer, at a time.
    held: u64,
    held_at: Instant,
    /// Time of the writable edge for a stack that met a full buffer.
    room_at: Option<Instant>,
    /// Bytes given to the stack, and as many as the program has written.
    given: u64,
    written: u64,
    read_armed: bool,
    closed: bool,
}

/// All host sockets.
#[derive(Debug)]
pub struct BulkHost {
    content: Content,
    /// Bytes written at once by the program behind each new socket.
    pub writes: u64,
    /// Pace of the reading programs.
    reader: Option<SlowReader>,
    sockets: Vec<Socket>,
    ready: Vec<(FlowId, Readiness)>,
    now: Instant,
}

impl BulkHost {
    /// A host without sockets; `content` is the payload of all future ones.
    pub fn new(content: Content) -> Self {
        Self { content, writes: 0, reader: None, sockets: Vec::new(), ready: Vec::new(), now: Instant::ZERO }
    }

    /// Time moves on: buffers drain.
    pub fn advance(&mut self, now: Instant) {
        self.now = now;
        for s in &mut self.sockets {
            if s.room_at.is_some_and(|at| at <= now) {
                s.room_at = None;
                self.ready.push((s.flow, Readiness { writable: true, ..Readiness::default() }));
            }
        }
    }

    /// Deadline of the next [`BulkHost::advance`].
    pub fn next(&self) -> Option<Instant> {
        self.sockets.iter().filter_map(|s| s.room_at).min()
    }

    /// Readiness since the last call.
    pub fn take_events(&mut self) -> Vec<(FlowId, Readiness)> {
        std::mem::take(&mut self.ready)
    }

    /// Whether [`BulkHost::take_events`] has events.
    pub fn has_events(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Bytes that the socket connected to `to` has taken from the stack; 0 if there is none.
    pub fn got(&self, to: SocketAddr) -> u64 {
        self.sockets.iter().filter(|s| s.to == to).map(|s| s.got).sum()
    }

    /// The program behind the socket connected to `to` writes `bytes` more.
    ///
    /// # Panics
    /// If there is no such socket.
    pub fn write(&mut self, to: SocketAddr, bytes: u64) {
        let s = self.sockets.iter_mut().find(|s| s.to == to && !s.closed).expect("connected");
        s.written = s.written.saturating_add(bytes);
        if std::mem::take(&mut s.read_armed) {
            self.ready.push((s.flow, Readiness { readable: true, ..Readiness::default() }));
        }
    }

    /// From now on programs read like this; `None` for as fast as bytes come.
    pub fn set_reader(&mut self, reader: Option<SlowReader>) {
        self.reader = reader;
        for s in &mut self.sockets {
            s.drain(self.now);
            s.reader = reader;
            if let Some(at) = &mut s.room_at {
                *at = self.now;
            }
        }
    }

    fn socket(&mut self, socket: SocketId) -> &mut Socket {
        let s = &mut self.sockets[socket.0 as usize];
        assert!(!s.closed, "{socket:?} is closed");
        s
    }
}

impl Socket {
    /// The program has read since the last time.
    fn drain(&mut self, now: Instant) {
        let Some(reader) = self.reader else {
            (self.held, self.held_at) = (0, now);
            return;
        };
        let ns = (now - self.held_at).as_nanos();
        let read = (ns * u128::from(reader.bytes_per_s) / 1_000_000_000) as u64;
        if read >= self.held {
            (self.held, self.held_at) = (0, now);
        } else if read > 0 {
            self.held -= read;
            self.held_at = now;
        }
    }

    /// Room in the send buffer, bytes.
    fn room(&self) -> u64 {
        self.reader.map_or(u64::MAX, |reader| reader.buffer.saturating_sub(self.held))
    }

    /// As sk_stream_is_writable: there is room when a third of the buffer is free.
    fn wait_for_room(&mut self, now: Instant) {
        let Some(reader) = self.reader else { return };
        let excess = self.held.saturating_sub(reader.buffer * 2 / 3);
        self.room_at = Some(now + Duration::from_nanos(excess * 1_000_000_000 / reader.bytes_per_s + 1));
    }
}

impl Host for BulkHost {
    fn tcp_connect(&mut self, flow: FlowId, to: SocketAddr) -> Result<(SocketId, Connect), HostError> {
        self.sockets.push(Socket {
            flow,
            to,
            content: self.content.clone(),
            got: 0,
            reader: self.reader,
            held: 0,
            held_at: self.now,
            room_at: None,
            given: 0,
            written: self.writes,
            read_armed: self.writes == 0,
            closed: false,
        });
        if self.writes > 0 {
            self.ready.push((flow, Readiness { readable: true, ..Readiness::default() }));
        }
        Ok((SocketId(self.sockets.len() as u32 - 1), Connect::Done))
    }

    fn tcp_connected(&mut self, _: SocketId) -> Result<Connect, HostError> {
        Ok(Connect::Done)
    }

    fn tcp_error(&mut self, _: SocketId) -> Option<HostError> {
        None
    }

    fn tcp_send(&mut self, socket: SocketId, data: &[IoSlice<'_>]) -> Result<usize, HostError> {
        let now = self.now;
        let s = self.socket(socket);
        s.drain(now);
        let offered: usize = data.iter().map(|d| d.len()).sum();
        let mut room = s.room().min(offered as u64) as usize;
        if room < offered {
            s.wait_for_room(now);
        }
        if room == 0 {
            return Err(HostError::WouldBlock);
        }
        let taken = room;
        for piece in data {
            let piece = &piece[..piece.len().min(room)];
            if let Some(wrong) = s.content.up.mismatch(s.got, piece) {
                panic!("the host got a wrong byte at {wrong} of the stream");
            }
            s.got += piece.len() as u64;
            room -= piece.len();
        }
        s.held += if s.reader.is_some() { taken as u64 } else { 0 };
        Ok(taken)
    }

    fn tcp_recv(&mut self, socket: SocketId, into: &mut [IoSliceMut<'_>]) -> Result<usize, HostError> {
        let s = self.socket(socket);
        let mut given = 0;
        for piece in into {
            let n = (s.written - s.given).min(piece.len() as u64) as usize;
            s.content.down.fill(s.given, &mut piece[..n]);
            s.given += n as u64;
            given += n;
            if n < piece.len() {
                s.read_armed = true;
                break;
            }
        }
        if given == 0 { Err(HostError::WouldBlock) } else { Ok(given) }
    }

    fn tcp_shutdown(&mut self, _: SocketId) -> Result<(), HostError> {
        Ok(())
    }

    fn tcp_keep_alive(&mut self, _: SocketId) {}

    fn udp_open(&mut self, _: FlowId, _: Option<SocketAddr>, _: SocketAddr) -> Result<SocketId, HostError> {
        Err(HostError::Unsupported)
    }

    fn ping_open(&mut self, _: FlowId, _: IpAddr) -> Result<SocketId, HostError> {
        Err(HostError::Unsupported)
    }

    fn datagram_send(
        &mut self,
        _: SocketId,
        _: &[IoSlice<'_>],
        _: Option<u16>,
        _: IpHeaderFields,
    ) -> Result<usize, HostError> {
        Err(HostError::Unsupported)
    }

    fn datagram_recv(
        &mut self,
        _: SocketId,
        _: &mut [IoSliceMut<'_>],
        _: &mut [Received],
    ) -> Result<usize, HostError> {
        Err(HostError::Unsupported)
    }

    fn datagram_error(&mut self, _: SocketId) -> Option<IcmpReport> {
        None
    }

    fn close(&mut self, socket: SocketId, _: Close) {
        self.socket(socket).closed = true;
    }
}
