//! The peer's side of a TCP socket: the test's actions and observations.

use super::{Close, HostError, Kind, Readiness, SimHost, SocketId, State};

impl SimHost {
    /// Ends a pending connect.
    pub fn finish_connect(&mut self, socket: SocketId, result: Result<(), HostError>) {
        let tcp = self.tcp_of(socket);
        assert_eq!(tcp.state, State::Connecting, "{socket:?} is not connecting");
        match result {
            Ok(()) => {
                tcp.state = State::Open;
                self.raise(socket, Readiness { writable: true, ..Readiness::default() });
            }
            Err(e) => {
                tcp.state = State::Failed(e);
                let all = Readiness {
                    readable: true,
                    writable: true,
                    read_closed: true,
                    urgent: false,
                    error: true,
                };
                self.raise(socket, all);
            }
        }
    }

    /// Whether a connect is under way.
    pub fn is_connecting(&self, socket: SocketId) -> bool {
        self.tcp_ref(socket).state == State::Connecting && self.closed(socket).is_none()
    }

    /// Gives `more` bytes of room in the send buffer (datagrams for a datagram socket).
    pub fn give_space(&mut self, socket: SocketId, more: usize) {
        let chatty = self.chatty;
        let s = self.get_mut(socket);
        let space = match &mut s.kind {
            Kind::Tcp(t) => &mut t.space,
            Kind::Datagram(d) => &mut d.space,
        };
        *space = space.saturating_add(more);
        if *space > 0 && (std::mem::take(&mut s.write_armed) || chatty) {
            self.raise(socket, Readiness { writable: true, ..Readiness::default() });
        }
    }

    /// Sets the room in the send buffer without an event; for a test that begins with a full buffer.
    pub fn set_space(&mut self, socket: SocketId, space: usize) {
        match &mut self.get_mut(socket).kind {
            Kind::Tcp(t) => t.space = space,
            Kind::Datagram(d) => d.space = space,
        }
    }

    /// Room left in the send buffer, bytes.
    pub fn space(&self, socket: SocketId) -> usize {
        self.tcp_ref(socket).space
    }

    /// Whether the stack met a full send buffer and waits for the writable edge.
    pub fn is_refused(&self, socket: SocketId) -> bool {
        self.get(socket).write_armed
    }

    /// Whether the stack has shut down its direction.
    pub fn is_shut(&self, socket: SocketId) -> bool {
        self.tcp_ref(socket).shut
    }

    /// Bytes written by the stack that the peer has not taken.
    pub fn unread(&self, socket: SocketId) -> usize {
        self.tcp_ref(socket).outbox.len()
    }

    /// The peer takes up to `max` bytes. This gives no room by itself, see [`SimHost::give_space`].
    pub fn peer_take(&mut self, socket: SocketId, max: usize) -> Vec<u8> {
        let outbox = &mut self.tcp_of(socket).outbox;
        let n = max.min(outbox.len());
        outbox.drain(..n).collect()
    }

    /// Whether the peer, having taken all data, reads an end of stream.
    pub fn peer_sees_fin(&self, socket: SocketId) -> bool {
        let tcp = self.tcp_ref(socket);
        tcp.outbox.is_empty() && (tcp.shut || self.closed(socket) == Some(Close::Graceful))
    }

    /// Bytes sent by the peer and not read by the stack: the fill of the kernel's receive buffer.
    pub fn waiting(&self, socket: SocketId) -> usize {
        self.tcp_ref(socket).inbox.len()
    }

    /// Whether keep-alive was enabled for the guest's probe.
    pub fn keep_alive(&self, socket: SocketId) -> bool {
        self.tcp_ref(socket).keep_alive
    }

    /// Whether the peer could still send or close: connected, not closed by either side, not broken.
    pub fn peer_is_open(&self, socket: SocketId) -> bool {
        let tcp = self.tcp_ref(socket);
        self.closed(socket).is_none() && tcp.state == State::Open && !tcp.peer_fin && !tcp.dead
    }

    /// The peer sends. Bytes that arrive after the stack has closed go nowhere.
    pub fn peer_send(&mut self, socket: SocketId, data: &[u8]) {
        if self.closed(socket).is_some() || data.is_empty() {
            return;
        }
        let tcp = self.tcp_of(socket);
        assert!(!tcp.peer_fin && !tcp.dead, "the peer of {socket:?} has already closed");
        tcp.inbox.extend(data);
        self.raise_readable(socket);
    }

    /// The peer sends `data`, whose byte at `mark` is urgent (send(2) with MSG_OOB, read with SO_OOBINLINE).
    pub fn peer_send_urgent(&mut self, socket: SocketId, data: &[u8], mark: usize) {
        assert!(mark < data.len(), "the urgent byte is one of these");
        let tcp = self.tcp_of(socket);
        tcp.mark = Some(tcp.inbox.len() + mark);
        tcp.inbox.extend(data);
        self.raise(socket, Readiness { readable: true, urgent: true, ..Readiness::default() });
    }

    /// Whether the peer has closed its direction. Linux tells it in the error of a reset behind it (EPIPE).
    pub(crate) fn has_peer_fin(&self, socket: SocketId) -> bool {
        self.tcp_ref(socket).peer_fin
    }

    /// Whether the connection was reset, or has failed otherwise.
    pub(crate) fn has_failed(&self, socket: SocketId) -> bool {
        self.tcp_ref(socket).dead
    }

    /// The peer closes its direction.
    pub fn peer_fin(&mut self, socket: SocketId) {
        if self.closed(socket).is_some() {
            return;
        }
        self.tcp_of(socket).peer_fin = true;
        self.raise(socket, Readiness { readable: true, read_closed: true, ..Readiness::default() });
    }

    /// The next call on the socket fails, without an event before it.
    pub fn break_silently(&mut self, socket: SocketId, error: HostError) {
        let tcp = self.tcp_of(socket);
        tcp.error = Some(error);
        tcp.dead = true;
    }

    /// The connection breaks: a reset of the peer, or a time-out. Data already received can still be read.
    pub fn peer_error(&mut self, socket: SocketId, error: HostError) {
        if self.closed(socket).is_some() {
            return;
        }
        let tcp = self.tcp_of(socket);
        tcp.error = Some(error);
        tcp.dead = true;
        self.raise(
            socket,
            Readiness { readable: true, writable: true, read_closed: true, urgent: false, error: true },
        );
    }
}
