//! The verbs for the host's side of a script: actions and observations of the peer behind the current
//! connection's socket.

use super::{
    Close, ConnectPlan, HostError, IcmpCause, IcmpReport, Instant, IpHeaderFields, Script, SocketId,
    UNLIMITED, packet,
};
use crate::host::{Call, SimHost};
use brodo_core::counters::DropReason;
use brodo_core::flow::{FlowKey, Protocol};
use brodo_core::link::NoCredit;
use brodo_core::stack::{Arrived, Stack};
use std::net::SocketAddr;

/// TLS alert by which a gate refuses a connection: fatal, access denied (RFC 8446, 6.2).
const ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];
/// Beginning of the answer by which a gate refuses a request of HTTP.
const FORBIDDEN: &[u8] = b"HTTP/1.1 403 Forbidden\r\n";

/// Whether a gate has said this: it is brodo's own, and no part of the peer's stream.
pub(super) fn is_said_by_gate(data: &[u8]) -> bool {
    *data == ACCESS_DENIED || data.starts_with(FORBIDDEN)
}

/// Verbs about the guest's device.
impl Script {
    /// The guest's network device was reset.
    pub fn guest_device_reset(&mut self) {
        self.note("link", "the guest's device is reset");
        let sent = self.driver.turn_with(self.now(), Stack::guest_reset);
        self.see_all(&sent);
    }
}

/// Verbs about connects.
impl Script {
    /// The socket that the current connection opened.
    ///
    /// # Panics
    /// If it opened none.
    pub fn socket(&self) -> SocketId {
        self.flow().socket.expect("the connection has opened a socket")
    }

    /// Whether the current connection has opened a socket.
    pub fn has_socket(&self) -> bool {
        self.flow().socket.is_some()
    }

    /// The next connect succeeds at once.
    pub fn host_connects_at_once(&mut self) {
        self.driver.host.plan_connect(ConnectPlan::Done);
    }

    /// The next connect fails at once.
    pub fn host_refuses_at_once(&mut self, error: HostError) {
        self.driver.host.plan_connect(ConnectPlan::Fail(error));
    }

    /// The pending connect succeeds.
    pub fn host_connected(&mut self) {
        self.note("peer", "accepts");
        self.driver.host.finish_connect(self.socket(), Ok(()));
        self.poll();
    }

    /// The pending connect fails.
    pub fn host_connect_fails(&mut self, error: HostError) {
        self.note("peer", &format!("connect fails: {error:?}"));
        self.driver.host.finish_connect(self.socket(), Err(error));
        self.poll();
    }

    /// The address to which the current socket was connected.
    pub fn host_connected_to(&self) -> SocketAddr {
        self.driver.host.peer(self.socket())
    }
}

/// Inbound flows.
impl Script {
    /// A published port has accepted a connection from the current conversation's peer, or the stack has
    /// refused it.
    pub fn peer_connects(&mut self) -> Result<(), DropReason> {
        self.note("peer", "connects to a published port");
        let (guest, remote) = self.endpoints();
        let mut result = Ok(());
        let sent = self.driver.turn_with(self.now(), |stack, io| {
            let key = FlowKey { protocol: Protocol::Tcp, guest: guest.into(), remote: remote.into() };
            let adopt = |host: &mut SimHost, flow| Ok(host.adopt_tcp(flow, remote));
            result = stack.inbound_tcp(io, key, adopt).map(|_| ());
        });
        self.flow_mut().inbound = true;
        self.see_all(&sent);
        result
    }

    /// A datagram of so many bytes from the current conversation's peer has come to a published port, or with
    /// `segment` several.
    pub fn peer_sends_first(&mut self, bytes: usize, segment: Option<u16>) -> Result<(), NoCredit> {
        self.note("peer", &format!("sends {bytes} to a published port"));
        let (guest, remote) = self.endpoints();
        let payload = self.down_pattern(self.current).bytes(self.flow().down_datagrams << 20, bytes);
        let mut result = Ok(());
        let sent = self.driver.turn_with(self.now(), |stack, io| {
            let key = FlowKey { protocol: Protocol::Udp, guest: guest.into(), remote: remote.into() };
            let arrived = Arrived { peer: remote, payload: &payload, segment, tos: 0 };
            let adopt = |host: &mut SimHost, flow, socket| Ok(host.adopt_udp(flow, remote, socket));
            result = stack.inbound_datagram(io, key, &arrived, adopt);
        });
        self.flow_mut().down_datagrams += u64::from(result.is_ok() && segment.is_none());
        self.see_all(&sent);
        result
    }
}

/// Data and its end.
impl Script {
    /// The socket takes this many bytes in all from now on, then blocks.
    pub fn host_accepts(&mut self, bytes: usize) {
        self.note("peer", &format!("room for {bytes}"));
        self.driver.host.set_space(self.socket(), bytes);
    }

    /// The send buffer gets room for more bytes (datagrams, on a datagram socket).
    pub fn host_accepts_more(&mut self, more: usize) {
        self.note("peer", &format!("room for {more} more"));
        self.driver.host.give_space(self.socket(), more);
        self.poll();
    }

    /// The socket's send buffer is unlimited from now on.
    pub fn host_accepts_all(&mut self) {
        self.host_accepts_more(UNLIMITED);
    }

    /// The socket has got exactly these many further bytes of the guest's stream.
    pub fn host_received(&mut self, bytes: usize) {
        let (socket, pattern, offset) = (self.socket(), self.up_pattern(), self.flow().up);
        let data = self.driver.host.peer_take(socket, usize::MAX);
        assert_eq!(data.len(), bytes, "bytes that the host received");
        assert_eq!(pattern.mismatch(offset, &data), None, "the guest's stream differs from this byte on");
        self.flow_mut().up += bytes as u64;
    }

    /// The peer sends the next bytes of its stream.
    pub fn host_sends(&mut self, bytes: usize) {
        self.note("peer", &format!("sends {bytes}"));
        let offset = self.flow().down;
        let data = self.down_pattern(self.current).bytes(offset, bytes);
        self.flow_mut().down += bytes as u64;
        self.driver.host.peer_send(self.socket(), &data);
        self.poll();
    }

    /// The peer sends bytes of which the one at `mark` is urgent.
    pub fn host_sends_urgent(&mut self, bytes: usize, mark: usize) {
        self.note("peer", &format!("sends {bytes}, of which byte {mark} is urgent"));
        let offset = self.flow().down;
        let data = self.down_pattern(self.current).bytes(offset, bytes);
        self.flow_mut().down += bytes as u64;
        self.driver.host.peer_send_urgent(self.socket(), &data, mark);
        self.poll();
    }

    /// The peer closes its direction.
    pub fn host_eof(&mut self) {
        self.note("peer", "closes its direction");
        self.driver.host.peer_fin(self.socket());
        self.poll();
    }

    /// The peer sends bytes and closes its direction before an event of either reaches the stack.
    pub fn host_sends_last(&mut self, bytes: usize) {
        self.note("peer", &format!("sends {bytes} and closes its direction"));
        let offset = self.flow().down;
        let data = self.down_pattern(self.current).bytes(offset, bytes);
        self.flow_mut().down += bytes as u64;
        self.driver.host.peer_send(self.socket(), &data);
        self.driver.host.peer_fin(self.socket());
        self.poll();
    }

    /// Whether the peer could still send or close.
    pub fn host_is_open(&self) -> bool {
        self.has_socket() && self.driver.host.peer_is_open(self.socket())
    }

    /// The socket has got any number of further bytes of the guest's stream, if it is open.
    pub fn host_received_some(&mut self) {
        if self.has_socket() {
            let unread = self.driver.host.unread(self.socket());
            self.host_received(unread);
        }
    }

    /// Every connection on the host's side fails, connecting or connected.
    pub fn host_loses_everything(&mut self) {
        self.note("peer", "everything times out");
        let host = &mut self.driver.host;
        let sockets: Vec<_> = host.all().filter(|&s| host.closed(s).is_none()).collect();
        for socket in sockets {
            if host.is_connecting(socket) {
                host.finish_connect(socket, Err(HostError::TimedOut));
            } else {
                host.peer_error(socket, HostError::TimedOut);
            }
        }
        self.poll();
    }

    /// The peer sends bytes and then the connection breaks, before an event of either reaches the stack.
    pub fn host_sends_and_breaks(&mut self, bytes: usize, error: HostError) {
        self.host_breaks_unnoticed(bytes, false, error);
        self.poll();
    }

    /// The peer sends bytes, then FIN if `fin` says so, and then the connection breaks; the stack gets the
    /// event in its next turn.
    pub fn host_breaks_unnoticed(&mut self, bytes: usize, fin: bool, error: HostError) {
        self.note("peer", &format!("sends {bytes}{}, then {error:?}", if fin { " and FIN" } else { "" }));
        let offset = self.flow().down;
        let data = self.down_pattern(self.current).bytes(offset, bytes);
        self.flow_mut().down += bytes as u64;
        self.driver.host.peer_send(self.socket(), &data);
        if fin {
            self.driver.host.peer_fin(self.socket());
        }
        self.driver.host.peer_error(self.socket(), error);
    }

    /// The connection behind the socket breaks.
    pub fn host_breaks(&mut self, error: HostError) {
        self.note("peer", &format!("{error:?}"));
        self.driver.host.peer_error(self.socket(), error);
        self.poll();
    }

    /// Asserts whether the peer, having taken all data, reads an end of stream.
    pub fn host_saw_fin(&self, saw: bool) {
        assert_eq!(self.driver.host.peer_sees_fin(self.socket()), saw, "the host saw the guest's FIN");
    }

    /// Asserts the kind of close of the socket, `None` if it is open.
    pub fn host_closed(&self, how: Option<Close>) {
        assert_eq!(self.driver.host.closed(self.socket()), how, "close of the host socket");
    }

    /// Bytes that the peer sent and the stack has left in the kernel.
    pub fn host_waiting(&self) -> usize {
        self.driver.host.waiting(self.socket())
    }

    /// Number of calls of the same kind that the stack has made on any socket.
    pub fn host_calls(&self, kind: impl Fn(&Call) -> bool) -> usize {
        self.driver.host.calls().iter().filter(|(_, call)| kind(call)).count()
    }

    /// No connection state remains: no socket, no flow, no payload memory, no timer.
    pub fn expect_all_gone(&self) {
        assert_eq!(self.driver.host.open_sockets(), 0, "sockets left open");
        assert_eq!(self.driver.stack.flows(), 0, "flows left open");
        assert_eq!(self.driver.stack.memory_used(), 0, "payload memory still in use");
        assert_eq!(self.driver.stack.memory_reserved(), 0, "window memory still reserved");
    }

    /// A wake-up by another worker: one turn without input.
    pub fn rung(&mut self) {
        self.turn(&[]);
    }

    /// Deadline of the stack's next turn.
    pub fn deadline(&self) -> Option<Instant> {
        self.driver.next_deadline()
    }
}

/// Verbs about datagrams.
impl Script {
    /// The socket has sent one datagram of the guest's, of this length.
    pub fn host_got_datagram(&mut self, bytes: usize) {
        let (socket, pattern, index) = (self.socket(), self.up_pattern(), self.flow().up);
        let (data, _) = self.driver.host.take_datagram(socket).expect("the host sent a datagram");
        assert_eq!(data.len(), bytes, "length of the datagram");
        assert_eq!(pattern.mismatch(index << 20, &data), None, "content of the datagram");
        self.flow_mut().up += 1;
    }

    /// The socket has sent nothing more.
    pub fn host_got_nothing(&mut self) {
        let socket = self.socket();
        let more = self.driver.host.take_datagram(socket);
        assert!(more.is_none(), "the host sent another datagram: {more:02x?}");
    }

    /// The peer sends a datagram.
    pub fn host_sends_datagram(&mut self, bytes: usize) {
        self.note("peer", &format!("sends a datagram of {bytes}"));
        let index = self.flow().down_datagrams;
        let data = self.down_pattern(self.current).bytes(index << 20, bytes);
        self.flow_mut().down_datagrams += 1;
        self.driver.host.peer_datagram(self.socket(), &data, None);
        self.poll();
    }

    /// A host answers the datagram to the current flow's group.
    pub fn host_answers_group(&mut self, from: SocketAddr, data: &[u8]) {
        self.note("peer", &format!("{from} answers with {} bytes", data.len()));
        self.driver.host.group_answer(self.socket(), from, data);
        self.poll();
    }

    /// The peer sends any bytes as one datagram, or several coalesced ones of `segment` bytes.
    pub fn host_sends_raw(&mut self, data: &[u8], segment: Option<u16>) {
        self.note("peer", &format!("sends {} bytes, segments of {segment:?}", data.len()));
        self.driver.host.peer_datagram(self.socket(), data, segment);
        self.poll();
    }

    /// The peer sends datagrams of these lengths and DSCP and ECN bytes, all before the event of the first.
    pub fn host_sends_burst(&mut self, datagrams: &[(usize, u8)]) {
        self.note("peer", &format!("sends {datagrams:?}"));
        let socket = self.socket();
        for (n, &(len, tos)) in datagrams.iter().enumerate() {
            self.driver.host.peer_datagram_unnoticed(socket, &vec![n as u8; len], None, tos);
        }
        self.driver.host.peer_datagrams_noticed(socket);
        self.poll();
    }

    /// The DSCP and ECN byte of the oldest datagram that the socket has sent.
    pub fn host_datagram_tos(&mut self) -> Option<u8> {
        let socket = self.socket();
        self.driver.host.datagram_fields(socket).map(|fields| fields.tos)
    }

    /// IP header fields of the oldest datagram sent by the socket.
    pub fn host_datagram_fields(&mut self) -> Option<IpHeaderFields> {
        let socket = self.socket();
        self.driver.host.datagram_fields(socket)
    }

    /// The bytes of the oldest datagram that the socket has sent, and the size at which it was to be cut.
    pub fn host_takes_datagram(&mut self) -> (Vec<u8>, Option<u16>) {
        let socket = self.socket();
        self.driver.host.take_datagram(socket).expect("the host sent a datagram")
    }

    /// An ICMP error arrives for a datagram of the socket.
    pub fn host_gets_icmp(&mut self, cause: IcmpCause) {
        self.note("peer", &format!("ICMP {cause:?}"));
        self.driver.host.peer_icmp(self.socket(), IcmpReport { cause, from: None, sequence: None });
        self.poll();
    }

    /// An ICMP error arrives with the complete report of the host's kernel.
    pub fn host_gets_icmp_report(&mut self, report: IcmpReport) {
        self.note("peer", &format!("{report:?}"));
        self.driver.host.peer_icmp(self.socket(), report);
        self.poll();
    }

    /// An ICMP error arrives, but the guest's next datagram comes before its event.
    pub fn host_gets_icmp_unnoticed(&mut self, cause: IcmpCause) {
        self.note("peer", &format!("ICMP {cause:?}, not noticed yet"));
        self.driver.host.peer_icmp(self.socket(), IcmpReport { cause, from: None, sequence: None });
    }

    /// The peer answers the oldest echo request, as the kernel hands it to a ping socket: with the identifier
    /// that the kernel chose. Gives the request.
    pub fn host_answers_echo(&mut self) -> Vec<u8> {
        let (request, _) = self.host_takes_datagram();
        let (guest, remote) = self.endpoints();
        let mut reply = request.clone();
        reply[0] = if remote.is_ipv4() { 0 } else { 129 };
        reply[2..4].fill(0);
        reply[4..6].copy_from_slice(&0x7777_u16.to_be_bytes());
        let protocol = if remote.is_ipv4() { 1 } else { 58 };
        let sum = !packet::l4_sum(remote.ip(), guest.ip(), protocol, &reply);
        reply[2..4].copy_from_slice(&sum.to_be_bytes());
        self.host_sends_raw(&reply, None);
        request
    }
}
