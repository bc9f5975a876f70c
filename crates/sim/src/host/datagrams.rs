//! Datagram sockets. The peer's side reads the stack's datagrams, answers, and delivers ICMP errors; the
//! kernel's side sends and receives several datagrams at a time.

use super::{Call, Kind, SimHost, UNLIMITED, error_of};
use brodo_core::flow::FlowId;
use brodo_core::host::{HostError, IcmpReport, IpHeaderFields, Readiness, Received, SEGMENTS_MAX, SocketId};
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::net::SocketAddr;

/// One datagram, or several of one size.
#[derive(Debug)]
pub(super) struct Message {
    data: Vec<u8>,
    segment: Option<u16>,
    fields: IpHeaderFields,
    /// Its sender, for a socket that is connected to none.
    from: Option<SocketAddr>,
}

/// A UDP or ping socket.
#[derive(Debug, Default)]
pub(super) struct DatagramSocket {
    ping: bool,
    /// Whether it sends to a group.
    group: bool,
    /// Sent by the stack.
    outbox: VecDeque<Message>,
    /// Room left in the send buffer, datagrams.
    pub(super) space: usize,
    pub(super) inbox: VecDeque<Message>,
    /// Drops for lack of room in the receive buffer, not yet reported.
    lost: u32,
    reports: VecDeque<IcmpReport>,
    error: Option<HostError>,
}

/// The kernel's side.
impl DatagramSocket {
    /// A socket with room for so many datagrams.
    pub(super) fn new(ping: bool, space: usize) -> Self {
        Self { ping, space, ..Self::default() }
    }

    /// A socket for a group.
    pub(super) fn group(space: usize) -> Self {
        Self { group: true, ..Self::new(false, space) }
    }

    /// Whether it sends to a group.
    pub(super) fn is_group(&self) -> bool {
        self.group
    }

    /// Whether it is a ping socket.
    pub(super) fn is_ping(&self) -> bool {
        self.ping
    }

    /// Sends as many datagrams as there is room for.
    pub(super) fn send(
        &mut self,
        mut data: Vec<u8>,
        segment: Option<u16>,
        fields: IpHeaderFields,
    ) -> Result<usize, HostError> {
        let size = segment.map_or(data.len(), usize::from).max(1);
        let datagrams = data.len().div_ceil(size).max(1);
        let most = if self.ping { 65_515 } else { 65_507 };
        assert!(data.len() <= most, "a datagram of {} bytes", data.len());
        assert!(
            segment != Some(0) && datagrams <= SEGMENTS_MAX,
            "{datagrams} datagrams of {segment:?} bytes"
        );
        if self.ping {
            let echo = data.len() >= 8 && matches!(data[0], 8 | 128) && data[1] == 0;
            assert!(echo, "not an echo request: {data:02x?}");
        }
        if let Some(e) = self.error.take() {
            return Err(e);
        }
        if self.space == 0 {
            return Err(HostError::WouldBlock);
        }
        let taken = datagrams.min(self.space);
        if self.space != UNLIMITED {
            self.space -= taken;
        }
        data.truncate(taken * size);
        let bytes = data.len();
        self.outbox.push_back(Message { data, segment, fields, from: None });
        Ok(bytes)
    }

    /// Receives into one buffer after the other.
    pub(super) fn recv(
        &mut self,
        into: &mut [IoSliceMut<'_>],
        received: &mut [Received],
    ) -> Result<usize, HostError> {
        if let Some(e) = self.error.take() {
            return Err(e);
        }
        let mut count = 0;
        for (buffer, received) in into.iter_mut().zip(received) {
            let Some(Message { data, segment, fields, from }) = self.inbox.pop_front() else { break };
            assert!(data.len() <= buffer.len(), "{} bytes cut off", data.len() - buffer.len());
            buffer[..data.len()].copy_from_slice(&data);
            let lost = std::mem::take(&mut self.lost);
            *received = Received { len: data.len(), segment, tos: fields.tos, lost, from };
            count += 1;
        }
        if count == 0 { Err(HostError::WouldBlock) } else { Ok(count) }
    }

    /// Takes one entry of the error queue.
    pub(super) fn report(&mut self) -> Option<IcmpReport> {
        let report = self.reports.pop_front();
        if report.is_some() {
            self.error = self.reports.front().map(|next| error_of(next.cause));
        }
        report
    }
}

impl SimHost {
    /// Opens a datagram socket, unless the test has it fail.
    pub(super) fn open_datagram(
        &mut self,
        flow: FlowId,
        to: SocketAddr,
        socket: DatagramSocket,
        call: Call,
    ) -> Result<SocketId, HostError> {
        if let Some(e) = self.refuse_open.pop_front() {
            return Err(e);
        }
        let id = self.open(flow, to, Kind::Datagram(socket));
        self.note(id, call);
        Ok(id)
    }
}

/// The peer's side of a datagram socket.
impl SimHost {
    /// Takes the oldest datagram that the stack sent, with its segment size.
    pub fn take_datagram(&mut self, socket: SocketId) -> Option<(Vec<u8>, Option<u16>)> {
        self.datagram_of(socket).outbox.pop_front().map(|message| (message.data, message.segment))
    }

    /// Datagrams sent by the stack and not taken yet, oldest first.
    pub fn sent_datagrams(&mut self, socket: SocketId) -> impl Iterator<Item = &[u8]> {
        self.datagram_of(socket).outbox.iter().map(|message| &*message.data)
    }

    /// IP header fields of the oldest datagram sent by the stack.
    pub fn datagram_fields(&mut self, socket: SocketId) -> Option<IpHeaderFields> {
        self.datagram_of(socket).outbox.front().map(|message| message.fields)
    }

    /// A datagram arrives, or several coalesced ones of `segment` bytes.
    pub fn peer_datagram(&mut self, socket: SocketId, data: &[u8], segment: Option<u16>) {
        self.peer_datagram_unnoticed(socket, data, segment, 0);
        if self.closed(socket).is_none() {
            self.raise_readable(socket);
        }
    }

    /// A host answers a datagram to a group.
    pub fn group_answer(&mut self, socket: SocketId, from: SocketAddr, data: &[u8]) {
        if self.closed(socket).is_none() {
            let message = Message {
                data: data.to_vec(),
                segment: None,
                fields: IpHeaderFields::default(),
                from: Some(from),
            };
            let group = self.datagram_of(socket);
            assert!(group.is_group(), "an answer of {from} to {socket:?}");
            group.inbox.push_back(message);
            self.raise_readable(socket);
        }
    }

    /// Arrival of a datagram with a DSCP and ECN byte, without an event.
    pub fn peer_datagram_unnoticed(&mut self, socket: SocketId, data: &[u8], segment: Option<u16>, tos: u8) {
        if self.closed(socket).is_none() {
            let fields = IpHeaderFields { tos, ..IpHeaderFields::default() };
            let message = Message { data: data.to_vec(), segment, fields, from: None };
            self.datagram_of(socket).inbox.push_back(message);
        }
    }

    /// The event for datagrams that arrived without one.
    pub fn peer_datagrams_noticed(&mut self, socket: SocketId) {
        if self.closed(socket).is_none() {
            self.raise_readable(socket);
        }
    }

    /// The kernel has dropped datagrams for which there was no room.
    pub fn peer_overflow(&mut self, socket: SocketId, datagrams: u32) {
        self.datagram_of(socket).lost += datagrams;
    }

    /// An ICMP error arrives for a datagram of this socket. As on Linux the next call fails, unless the error
    /// queue has been emptied before (`sock_dequeue_err_skb`).
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
