//! The peer's side of a datagram socket: it takes what the stack sent, answers, and lets ICMP errors arrive.

use super::{SimHost, error_of};
use brodo_core::host::{HostError, IcmpReport, Readiness, SocketId};

/// The peer's side of a datagram socket.
impl SimHost {
    /// Takes the oldest datagram that the stack sent, with its segment size.
    pub fn take_datagram(&mut self, socket: SocketId) -> Option<(Vec<u8>, Option<u16>)> {
        self.datagram_of(socket).outbox.pop_front()
    }

    /// A datagram arrives, or several coalesced ones of `segment` bytes.
    pub fn peer_datagram(&mut self, socket: SocketId, data: &[u8], segment: Option<u16>) {
        if self.closed(socket).is_none() {
            self.datagram_of(socket).inbox.push_back((data.to_vec(), segment));
            self.raise_readable(socket);
        }
    }

    /// An ICMP error arrives for something this socket sent. As on Linux the next call fails, unless the error queue
    /// has been emptied before (`sock_dequeue_err_skb`).
    pub fn peer_icmp(&mut self, socket: SocketId, report: IcmpReport) {
        if self.closed(socket).is_some() {
            return;
        }
        let d = self.datagram_of(socket);
        d.reports.push_back(report);
        d.error = Some(error_of(report.cause));
        self.raise(socket, Readiness { error: true, ..Readiness::default() });
    }

    /// The next send or receive on a datagram socket fails.
    pub fn fail_next(&mut self, socket: SocketId, error: HostError) {
        self.datagram_of(socket).error = Some(error);
    }
}
