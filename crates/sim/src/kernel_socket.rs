//! A host socket with Linux's own buffers behind it, and at the far end of a path a peer program's socket.
//!
//! [`SimHost`] remains the interface of the stack: it holds the bytes and gives the edges, strictly. This
//! layer decides the room of its send buffer and the arrivals in its receive buffer by two [`KernelStream`]s.
//! Around every turn of the driver: [`KernelSocket::advance`] before it (arrivals from the path),
//! [`KernelSocket::settle`] after it (the stack's writes and reads). The peer program reads and writes in
//! between.

use crate::host::SimHost;
use crate::kernel_stream::{KernelStream, Wire};
use brodo_core::host::{Close, SocketId};
use brodo_core::time::Instant;
use std::collections::VecDeque;

/// One host socket, the path behind it, and the peer's socket.
#[derive(Debug)]
pub struct KernelSocket {
    socket: SocketId,
    up: KernelStream,
    down: KernelStream,
    /// Bytes that the peer program has read.
    taken: u64,
    /// Written by the peer program and not yet in the host's receive buffer.
    under_way: VecDeque<u8>,
    shut: bool,
    end_reported: bool,
}

impl KernelSocket {
    /// A socket whose connection has just opened; each direction has a path of its own.
    pub fn new(host: &mut SimHost, socket: SocketId, up: Wire, down: Wire) -> Self {
        let up = KernelStream::new(up);
        host.set_space(socket, up.room());
        Self {
            socket,
            up,
            down: KernelStream::new(down),
            taken: 0,
            under_way: VecDeque::new(),
            shut: false,
            end_reported: false,
        }
    }

    /// Time of the next event of path or kernels.
    pub fn next(&self) -> Option<Instant> {
        [self.up.next(), self.down.next()].into_iter().flatten().min()
    }

    /// The direction from guest to peer.
    pub fn up(&self) -> &KernelStream {
        &self.up
    }

    /// The direction from peer to guest.
    pub fn down(&self) -> &KernelStream {
        &self.down
    }

    /// Advances both directions to `now` and updates the host's socket.
    pub fn advance(&mut self, host: &mut SimHost, now: Instant) {
        self.up.advance(now);
        self.down.advance(now);
        if host.closed(self.socket).is_some() {
            return;
        }
        let arrived = self.down.readable() - host.waiting(self.socket);
        if arrived > 0 {
            let bytes: Vec<u8> = self.under_way.drain(..arrived).collect();
            host.peer_send(self.socket, &bytes);
        }
        if self.down.has_ended() && !self.end_reported {
            self.end_reported = true;
            host.peer_fin(self.socket);
        }
        self.offer_room(host);
    }

    /// Takes over the stack's operations on the host's socket in a turn.
    pub fn settle(&mut self, host: &mut SimHost, now: Instant) {
        let written = self.taken + host.unread(self.socket) as u64 - self.up.written();
        if written > 0 {
            self.up.write(now, written as usize);
        }
        let closed = host.closed(self.socket);
        if (host.is_shut(self.socket) || closed == Some(Close::Graceful)) && !self.shut {
            self.shut = true;
            self.up.finish(now);
        }
        if closed.is_none() {
            let read = self.down.readable() - host.waiting(self.socket);
            if read > 0 {
                self.down.read(now, read);
            }
            if host.is_refused(self.socket) && self.up.room() == 0 {
                self.up.block();
            }
            self.offer_room(host);
        }
    }

    /// A writer that waits for room gets the writable edge only when the kernel would wake it.
    fn offer_room(&mut self, host: &mut SimHost) {
        if self.up.is_blocked() {
            return;
        }
        let (room, space) = (self.up.room(), host.space(self.socket));
        if room > space {
            host.give_space(self.socket, room - space);
        } else {
            host.set_space(self.socket, room);
        }
    }
}

/// The peer program's side.
impl KernelSocket {
    /// Reads up to `max` bytes.
    pub fn peer_read(&mut self, host: &mut SimHost, now: Instant, max: usize) -> Vec<u8> {
        let bytes = max.min(self.up.readable());
        if bytes == 0 {
            return Vec::new();
        }
        self.taken += bytes as u64;
        self.up.read(now, bytes);
        host.peer_take(self.socket, bytes)
    }

    /// Whether the peer program, having read everything, reads the end of the stream.
    pub fn peer_sees_end(&self) -> bool {
        self.up.has_ended() && self.up.readable() == 0
    }

    /// Bytes accepted by a write now; none while the program waits to be woken.
    pub fn peer_room(&self) -> usize {
        if self.down.is_blocked() { 0 } else { self.down.room() }
    }

    /// Writes no more than there is room for; a program that has more to write then waits to be woken.
    pub fn peer_write(&mut self, now: Instant, data: &[u8]) {
        self.under_way.extend(data);
        self.down.write(now, data.len());
        if self.down.room() == 0 {
            self.down.block();
        }
    }

    /// Closes the peer's direction.
    pub fn peer_close(&mut self, now: Instant) {
        self.down.finish(now);
    }
}

#[cfg(test)]
mod tests;
