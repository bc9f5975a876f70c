//! The host's stream toward the guest, as readiness events and reads of its socket describe it.
//!
//! Host sockets are registered edge-triggered: an event says once that something may be read, and that holds
//! until a read finds the socket empty. A short read means an empty socket, with two exceptions: recvmsg
//! stops at an urgent mark, also in line, and an end of stream known to follow is read at once, so that FIN
//! goes out with the last bytes.

use crate::host::Readiness;
use crate::snapshot::saved::saved_struct;
use crate::snapshot::v1::HostStreamV1;

/// Readiness of one host socket for reading.
#[derive(Debug, Default)]
pub(crate) struct HostStream {
    /// Bytes, an end or an error may be read.
    readable: bool,
    /// FIN of the host's peer: behind the bytes comes the end.
    peer_closed: bool,
    /// Urgent mark ahead in the socket's bytes: a short read may have stopped there.
    urgent: bool,
    /// Error pending on the host socket, by an event.
    error: bool,
    /// End of the stream, already read.
    ended: bool,
}

impl HostStream {
    /// Readiness event of the socket.
    pub(crate) fn event(&mut self, ready: Readiness) {
        self.readable |= ready.readable || ready.read_closed || ready.urgent || ready.error;
        self.peer_closed |= ready.read_closed;
        self.urgent |= ready.urgent;
        self.error |= ready.error;
    }

    /// Whether a read may give something.
    pub(crate) fn can_read(&self) -> bool {
        self.readable && !self.ended
    }

    /// Whether the end of the stream was read, or nothing more is wanted of it.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Successful read; `whole` if it filled all room that was offered.
    pub(crate) fn was_read(&mut self, whole: bool) {
        debug_assert!(!self.ended, "no read after the end of the stream");
        self.readable = whole || self.peer_closed || self.urgent;
    }

    /// Empty socket: the next event says when there is more.
    pub(crate) fn was_empty(&mut self) {
        (self.readable, self.urgent) = (false, false);
    }

    /// End of the stream, by a read of no bytes. With `failed`, after an error that a write has met, it is no
    /// end: no FIN may say that this was all.
    pub(crate) fn was_at_end(&mut self, failed: bool) {
        debug_assert!(!self.ended, "the end of the stream is read once");
        (self.ended, self.readable) = (!failed, false);
    }

    /// Failure of the socket on a write: bytes received before it are still to be read.
    pub(crate) fn read_rest(&mut self) {
        self.readable = true;
    }

    /// Nothing more is wanted of the stream.
    pub(crate) fn abandon(&mut self) {
        (self.ended, self.readable) = (true, false);
    }

    /// Error behind the end of the stream, which no read meets: a peer's reset after its FIN. Reported once.
    pub(crate) fn take_error_behind_end(&mut self) -> bool {
        let found = self.error && self.ended;
        self.error &= !found;
        found
    }
}
saved_struct!(HostStream as HostStreamV1 { readable, peer_closed, urgent, error, ended });
