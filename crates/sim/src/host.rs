//! Simulated host sockets: bounded kernel buffers, edge-triggered readiness, and a peer under the test's
//! control.
//!
//! The stack sees [`Host`]; the test sees the other side of each socket: it lets a connect succeed or fail,
//! gives room in the send buffer, reads the stack's bytes, sends, closes, resets, or delivers datagrams and
//! ICMP errors. Queued data, errors and ends of stream are reported in the order of Linux (`tcp_recvmsg`:
//! data, then end of stream after a FIN, else the error once and then end of stream; `tcp_sendmsg`: the error
//! once, then EPIPE).
//!
//! Readiness is as strict as the contract allows: an edge is reported once, and the next one only after a
//! call has met the end (`WouldBlock`, or less than was asked; a read that stops at an urgent mark has not).
//! A stack that loses an edge therefore stalls here, where epoll might hide the fault. Ends of stream and
//! errors are always new edges. A *chatty* host is the other extreme: every change is an event, and every
//! event has the complete readiness, as with epoll.
//!
//! Every call is recorded. Invalid calls (on a closed or unknown socket, an empty send, a send after shutdown
//! or before the connection) panic. Ids are never reused, so that a stale one is always detected.

use crate::crash_point;
use crate::unread::UnreadEnds;
use brodo_core::flow::{FlowId, FlowKey};
use brodo_core::host::{
    Close, Connect, Host, HostError, IcmpCause, IcmpReport, IpHeaderFields, Readiness, Received, SocketId,
};
use brodo_core::journal::Progress;
use brodo_core::link::Piece;
use brodo_core::promotion::{Refusal, TcpSeed};
use brodo_core::stack::SocketKind;
use datagrams::DatagramSocket;
use promotions::{Request, Requests};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};

/// Outcome of the next connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectPlan {
    /// Connected at once.
    Done,
    /// Under way until [`SimHost::finish_connect`].
    Pending,
    /// Fails at once.
    Fail(HostError),
}

/// One call of the stack, without payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// `tcp_connect` to this address.
    Connect(SocketAddr, Result<Connect, HostError>),
    /// `tcp_connected` and its answer.
    Connected(Result<Connect, HostError>),
    /// `tcp_send`: bytes offered and taken.
    Send(usize, Result<usize, HostError>),
    /// `tcp_recv`: bytes asked for and given.
    Recv(usize, Result<usize, HostError>),
    /// `tcp_error` and its answer.
    Error(Option<HostError>),
    /// `tcp_shutdown`, SHUT_WR.
    Shutdown,
    /// `tcp_keep_alive`, SO_KEEPALIVE.
    KeepAlive,
    /// `udp_open` for this address and port of the guest's to that address.
    UdpOpen(Option<SocketAddr>, SocketAddr),
    /// `group_open` for this address and port of the guest's to that group.
    GroupOpen(SocketAddr, SocketAddr),
    /// `ping_open` to this address.
    PingOpen(IpAddr),
    /// A datagram to a published port opened a flow with this socket, or was delivered to it.
    Adopt,
    /// `datagram_send`: bytes offered, segment size, bytes taken.
    DatagramSend(usize, Option<u16>, Result<usize, HostError>),
    /// `datagram_recv`: datagrams asked for and given.
    DatagramRecv(usize, Result<usize, HostError>),
    /// `close`, gracefully or with a reset.
    Close(Close),
}

/// Room in a send buffer that is never used up.
pub const UNLIMITED: usize = usize::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Connecting,
    Failed(HostError),
    Open,
}

#[derive(Debug)]
struct TcpSocket {
    state: State,
    /// Written by the stack, not yet taken by the peer.
    outbox: VecDeque<u8>,
    /// Room left in the send buffer, bytes.
    space: usize,
    /// Sent by the peer, not yet read by the stack.
    inbox: VecDeque<u8>,
    /// Bytes of the inbox before the urgent byte, if one waits.
    mark: Option<usize>,
    peer_fin: bool,
    error: Option<HostError>,
    /// After an error nothing can be sent any more.
    dead: bool,
    shut: bool,
    keep_alive: bool,
    /// Bytes written by the stack, and read.
    written: u64,
    read: u64,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpSocket),
    Datagram(DatagramSocket),
}

#[derive(Debug)]
struct Socket {
    flow: FlowId,
    to: SocketAddr,
    closed: Option<Close>,
    /// Whether the next data to arrive is a new edge.
    read_armed: bool,
    /// Whether the next room is a new edge.
    write_armed: bool,
    kind: Kind,
}

/// The simulated host.
#[derive(Debug)]
pub struct SimHost {
    sockets: BTreeMap<u32, Socket>,
    opened: u32,
    plans: VecDeque<ConnectPlan>,
    default_plan: ConnectPlan,
    default_space: usize,
    send_at_most: usize,
    refuse_open: VecDeque<HostError>,
    /// Sockets whose address is gone.
    stranded: BTreeSet<u32>,
    ping_supported: bool,
    calls: Vec<(SocketId, Call)>,
    calls_made: u64,
    /// Sockets called on since the last [`SimHost::take_called`].
    called: BTreeSet<u32>,
    record: bool,
    chatty: bool,
    ready: Vec<(SocketId, FlowId, Readiness)>,
    promotions: Requests,
    /// Ends of the guest's frames that are sent from where they are.
    pub(crate) unread: Option<UnreadEnds>,
}

impl Default for SimHost {
    fn default() -> Self {
        Self {
            sockets: BTreeMap::new(),
            opened: 0,
            plans: VecDeque::new(),
            default_plan: ConnectPlan::Done,
            default_space: UNLIMITED,
            send_at_most: usize::MAX,
            refuse_open: VecDeque::new(),
            stranded: BTreeSet::new(),
            ping_supported: true,
            calls: Vec::new(),
            calls_made: 0,
            called: BTreeSet::new(),
            record: true,
            chatty: false,
            ready: Vec::new(),
            promotions: Requests::default(),
            unread: None,
        }
    }
}

/// Set-up and inspection.
impl SimHost {
    /// Outcome of connects without a plan of their own; [`ConnectPlan::Done`] by default.
    pub fn set_default_connect(&mut self, plan: ConnectPlan) {
        self.default_plan = plan;
    }

    /// Plans the next connect; several plans are used in order.
    pub fn plan_connect(&mut self, plan: ConnectPlan) {
        self.plans.push_back(plan);
    }

    /// Room in the send buffer of sockets opened from now on: bytes for TCP, datagrams otherwise.
    pub fn set_default_space(&mut self, space: usize) {
        self.default_space = space;
    }

    /// No single send takes more than this many bytes, even if there is room (a partial write).
    pub fn set_send_at_most(&mut self, bytes: usize) {
        self.send_at_most = bytes;
    }

    /// The next attempt to open a socket of any kind fails.
    pub fn refuse_next_open(&mut self, error: HostError) {
        self.refuse_open.push_back(error);
    }

    /// The host loses the address that a socket is bound to.
    pub fn strand(&mut self, socket: SocketId) {
        self.stranded.insert(socket.0);
    }

    /// Whether ping sockets exist here.
    pub fn set_ping_supported(&mut self, supported: bool) {
        self.ping_supported = supported;
    }

    /// Chatty mode: every change is an event with the complete readiness, instead of new edges only.
    pub fn set_chatty(&mut self, chatty: bool) {
        self.chatty = chatty;
    }

    /// Whether calls are recorded; switched off for long runs.
    pub fn set_record(&mut self, record: bool) {
        self.record = record;
    }

    /// All calls so far, with the socket each was for.
    pub fn calls(&self) -> &[(SocketId, Call)] {
        &self.calls
    }

    /// Whether calls are recorded.
    pub(crate) fn records(&self) -> bool {
        self.record
    }

    /// The calls on one socket.
    pub fn calls_on(&self, socket: SocketId) -> impl Iterator<Item = Call> {
        self.calls.iter().filter(move |(s, _)| *s == socket).map(|&(_, c)| c)
    }

    /// Sockets that were opened and not closed.
    pub fn open_sockets(&self) -> usize {
        self.sockets.values().filter(|s| s.closed.is_none()).count()
    }

    /// Every socket ever opened, in order.
    pub fn all(&self) -> impl Iterator<Item = SocketId> {
        self.sockets.keys().map(|&id| SocketId(id))
    }

    /// The socket opened last.
    pub fn last(&self) -> Option<SocketId> {
        self.sockets.keys().next_back().map(|&id| SocketId(id))
    }

    /// Whether this is a TCP socket.
    pub fn is_tcp(&self, socket: SocketId) -> bool {
        matches!(self.get(socket).kind, Kind::Tcp(_))
    }

    /// The sockets opened after the first `count`, in order.
    pub fn opened_after(&self, count: u32) -> impl Iterator<Item = SocketId> {
        self.sockets.range(count + 1..).map(|(&id, _)| SocketId(id))
    }

    /// Sockets opened so far.
    pub fn opened(&self) -> u32 {
        self.opened
    }

    /// Calls made so far, recorded or not: the number of system calls on a real host.
    pub fn calls_made(&self) -> u64 {
        self.calls_made
    }

    /// Sockets with calls since the last time, in order.
    pub fn take_called(&mut self) -> impl Iterator<Item = SocketId> {
        std::mem::take(&mut self.called).into_iter().map(SocketId)
    }

    /// Address to which a socket is connected.
    pub fn peer(&self, socket: SocketId) -> SocketAddr {
        self.get(socket).to
    }

    /// Kind of close of a socket, if it was closed.
    pub fn closed(&self, socket: SocketId) -> Option<Close> {
        self.get(socket).closed
    }

    /// Whether an open socket is that of a flow, and of this kind.
    pub fn is_socket_of(&self, socket: SocketId, flow: FlowId, kind: SocketKind) -> bool {
        let own = self.get(socket);
        let is_kind = match (&own.kind, kind) {
            // Connected perhaps since the stack has asked.
            (Kind::Tcp(_), SocketKind::Connecting) => true,
            (Kind::Tcp(tcp), SocketKind::Stream) => tcp.state == State::Open,
            (Kind::Datagram(datagram), SocketKind::Echo) => datagram.is_ping(),
            (Kind::Datagram(datagram), SocketKind::Group(_, group)) => datagram.is_group() && own.to == group,
            (Kind::Datagram(datagram), SocketKind::Udp(_) | SocketKind::PublishedUdp) => {
                !datagram.is_ping() && !datagram.is_group()
            }
            _ => false,
        };
        own.flow == flow && own.closed.is_none() && is_kind
    }

    /// Progress of an open stream, as its kernel counts it; `None` after an error.
    pub(crate) fn progress(&self, socket: SocketId) -> Option<Progress> {
        let tcp = self.tcp_ref(socket);
        let (written, read) = (tcp.written, tcp.read);
        let progress = Progress { written, read, shut: tcp.shut, peer_closed: tcp.peer_fin };
        (tcp.state == State::Open && !tcp.dead).then_some(progress)
    }

    /// Closes all sockets but these with a reset: those of flows that were lost in a crash.
    pub(crate) fn reset_all_but(&mut self, kept: &BTreeSet<u32>) {
        for (number, socket) in &mut self.sockets {
            if socket.closed.is_none() && !kept.contains(number) {
                socket.closed = Some(Close::Reset);
                self.called.insert(*number);
            }
        }
        self.ready.retain(|(socket, ..)| kept.contains(&socket.0));
    }

    /// Removes a closed socket with its queued data.
    pub fn forget(&mut self, socket: SocketId) {
        assert!(self.closed(socket).is_some(), "{socket:?} is open");
        self.sockets.remove(&socket.0);
    }

    /// Readiness since the last call, in the order in which it arose.
    pub fn take_events(&mut self) -> Vec<(FlowId, Readiness)> {
        self.ready.drain(..).map(|(_, flow, ready)| (flow, ready)).collect()
    }

    /// Reports the readiness of every open socket, as a new registration with epoll does.
    pub fn report_all(&mut self) {
        self.report_all_but_room_of(&BTreeSet::new());
    }

    /// The same without the room of these.
    pub(crate) fn report_all_but_room_of(&mut self, quiet: &BTreeSet<u32>) {
        let open: Vec<SocketId> = self.all().filter(|&socket| self.closed(socket).is_none()).collect();
        for socket in open {
            let ready = match &self.get(socket).kind {
                Kind::Tcp(tcp) if quiet.contains(&socket.0) => {
                    Readiness { writable: false, ..tcp.registered() }
                }
                Kind::Tcp(tcp) => tcp.registered(),
                Kind::Datagram(d) => {
                    let (readable, writable) = (!d.inbox.is_empty(), d.space > 0);
                    Readiness { readable, writable, ..Readiness::default() }
                }
            };
            if ready != Readiness::default() {
                self.raise(socket, ready);
            }
        }
    }

    /// Which flows may be promoted, and the stack's wishes.
    pub fn promotions(&mut self) -> &mut Requests {
        &mut self.promotions
    }

    /// Whether [`SimHost::take_events`] has events.
    pub fn has_events(&self) -> bool {
        !self.ready.is_empty()
    }
}

/// Inbound connections and datagrams, as from a driver with published ports.
impl SimHost {
    /// A connection from `peer` that was accepted, for a flow.
    pub fn adopt_tcp(&mut self, flow: FlowId, peer: SocketAddr) -> SocketId {
        self.open_tcp(flow, peer, State::Open)
    }

    /// The socket that sends to `peer` from a published port: the flow's own, or a new one.
    pub fn adopt_udp(&mut self, flow: FlowId, peer: SocketAddr, socket: Option<SocketId>) -> SocketId {
        let socket = socket.unwrap_or_else(|| {
            let kind = DatagramSocket::new(false, self.default_space);
            self.open(flow, peer, Kind::Datagram(kind))
        });
        assert_eq!((self.get(socket).flow, self.peer(socket)), (flow, peer), "{socket:?} is another's");
        self.note(socket, Call::Adopt);
        socket
    }

    fn open_tcp(&mut self, flow: FlowId, peer: SocketAddr, state: State) -> SocketId {
        let tcp = TcpSocket {
            state,
            outbox: VecDeque::new(),
            space: self.default_space,
            inbox: VecDeque::new(),
            mark: None,
            peer_fin: false,
            error: None,
            dead: false,
            shut: false,
            keep_alive: false,
            written: 0,
            read: 0,
        };
        self.open(flow, peer, Kind::Tcp(tcp))
    }
}

/// Internals of the host.
impl SimHost {
    fn get(&self, socket: SocketId) -> &Socket {
        self.sockets.get(&socket.0).unwrap_or_else(|| panic!("{socket:?} was never opened"))
    }

    fn get_mut(&mut self, socket: SocketId) -> &mut Socket {
        self.sockets.get_mut(&socket.0).unwrap_or_else(|| panic!("{socket:?} was never opened"))
    }

    fn tcp_ref(&self, socket: SocketId) -> &TcpSocket {
        match &self.get(socket).kind {
            Kind::Tcp(t) => t,
            Kind::Datagram(_) => panic!("{socket:?} is a datagram socket"),
        }
    }

    fn tcp_of(&mut self, socket: SocketId) -> &mut TcpSocket {
        match &mut self.get_mut(socket).kind {
            Kind::Tcp(t) => t,
            Kind::Datagram(_) => panic!("{socket:?} is a datagram socket"),
        }
    }

    fn datagram_of(&mut self, socket: SocketId) -> &mut DatagramSocket {
        match &mut self.get_mut(socket).kind {
            Kind::Datagram(d) => d,
            Kind::Tcp(_) => panic!("{socket:?} is a TCP socket"),
        }
    }

    /// For calls of the stack: the socket must be open.
    fn used(&mut self, socket: SocketId, call: &str) -> &mut Socket {
        let s = self.get_mut(socket);
        assert!(s.closed.is_none(), "{call} on {socket:?}, which is closed");
        s
    }

    fn open(&mut self, flow: FlowId, to: SocketAddr, kind: Kind) -> SocketId {
        self.opened += 1;
        let socket = Socket { flow, to, closed: None, read_armed: true, write_armed: false, kind };
        self.sockets.insert(self.opened, socket);
        SocketId(self.opened)
    }

    fn note(&mut self, socket: SocketId, call: Call) {
        self.calls_made += 1;
        self.called.insert(socket.0);
        if self.record {
            self.calls.push((socket, call));
        }
        crash_point::point();
    }

    fn raise_readable(&mut self, socket: SocketId) {
        if std::mem::take(&mut self.get_mut(socket).read_armed) || self.chatty {
            self.raise(socket, Readiness { readable: true, ..Readiness::default() });
        }
    }

    fn raise(&mut self, socket: SocketId, mut ready: Readiness) {
        let flow = self.get(socket).flow;
        if self.closed(socket).is_some() {
            return;
        }
        if self.chatty {
            let now = match &self.get(socket).kind {
                Kind::Tcp(t) if t.state == State::Connecting => Readiness::default(),
                Kind::Tcp(t) => Readiness {
                    readable: !t.inbox.is_empty() || t.peer_fin,
                    writable: t.space > 0,
                    read_closed: t.peer_fin,
                    urgent: t.mark.is_some(),
                    error: false,
                },
                Kind::Datagram(d) => {
                    let (readable, writable) = (!d.inbox.is_empty(), d.space > 0);
                    Readiness { readable, writable, ..Readiness::default() }
                }
            };
            merge(&mut ready, now);
        }
        if let Some((_, _, old)) = self.ready.iter_mut().find(|(s, ..)| *s == socket) {
            merge(old, ready);
        } else {
            self.ready.push((socket, flow, ready));
        }
    }

    fn tcp_used(&mut self, socket: SocketId, call: &str) -> &mut TcpSocket {
        match &mut self.used(socket, call).kind {
            Kind::Tcp(t) => t,
            Kind::Datagram(_) => panic!("{call} on {socket:?}, a datagram socket"),
        }
    }

    fn datagram_used(&mut self, socket: SocketId, call: &str) -> &mut DatagramSocket {
        match &mut self.used(socket, call).kind {
            Kind::Datagram(d) => d,
            Kind::Tcp(_) => panic!("{call} on {socket:?}, a TCP socket"),
        }
    }
}

/// Union of two readiness events.
fn merge(into: &mut Readiness, more: Readiness) {
    into.readable |= more.readable;
    into.writable |= more.writable;
    into.read_closed |= more.read_closed;
    into.urgent |= more.urgent;
    into.error |= more.error;
}

/// Linux's errno for an ICMP error.
fn error_of(cause: IcmpCause) -> HostError {
    match cause {
        IcmpCause::PortUnreachable => HostError::Refused,
        IcmpCause::TooBig(mtu) => HostError::TooBig(mtu),
        IcmpCause::NetUnreachable => HostError::NetUnreachable,
        IcmpCause::HostUnreachable
        | IcmpCause::Unreachable(_)
        | IcmpCause::TimeExceeded
        | IcmpCause::ReassemblyTimeExceeded => HostError::HostUnreachable,
        // ENOPROTOOPT
        IcmpCause::ProtocolUnreachable => HostError::Other(92),
        IcmpCause::Prohibited => HostError::Prohibited,
    }
}

impl Host for SimHost {
    fn tcp_connect(&mut self, flow: FlowId, to: SocketAddr) -> Result<(SocketId, Connect), HostError> {
        let plan = match self.refuse_open.pop_front() {
            Some(e) => ConnectPlan::Fail(e),
            None => self.plans.pop_front().unwrap_or(self.default_plan),
        };
        let (state, progress) = match plan {
            ConnectPlan::Done => (State::Open, Connect::Done),
            ConnectPlan::Pending => (State::Connecting, Connect::Pending),
            ConnectPlan::Fail(e) => {
                self.note(SocketId(0), Call::Connect(to, Err(e)));
                return Err(e);
            }
        };
        let id = self.open_tcp(flow, to, state);
        self.note(id, Call::Connect(to, Ok(progress)));
        Ok((id, progress))
    }

    fn tcp_connected(&mut self, socket: SocketId) -> Result<Connect, HostError> {
        let result = match self.tcp_used(socket, "tcp_connected").state {
            State::Connecting => Ok(Connect::Pending),
            State::Failed(e) => Err(e),
            State::Open => Ok(Connect::Done),
        };
        self.note(socket, Call::Connected(result));
        result
    }

    fn tcp_send(&mut self, socket: SocketId, data: &[IoSlice<'_>]) -> Result<usize, HostError> {
        crash_point::point();
        let at_most = self.send_at_most;
        let offered = data.iter().map(|d| d.len()).sum();
        let tcp = self.tcp_used(socket, "tcp_send");
        assert_eq!(tcp.state, State::Open, "tcp_send on {socket:?}");
        assert!(!tcp.shut, "tcp_send on {socket:?} after tcp_shutdown");
        assert!(offered > 0, "empty tcp_send on {socket:?}");
        let result = tcp.send(data, at_most);
        let space = tcp.space;
        let blocked = match result {
            Ok(n) => n < offered,
            Err(e) => e == HostError::WouldBlock,
        };
        if blocked {
            self.get_mut(socket).write_armed = true;
            if space > 0 {
                self.give_space(socket, 0);
            }
        }
        self.note(socket, Call::Send(offered, result));
        result
    }

    fn sends_unread(&self) -> bool {
        self.unread.is_some()
    }

    fn tcp_send_pieces(&mut self, socket: SocketId, pieces: &[Piece<'_>]) -> Result<usize, HostError> {
        let ends = self.unread.clone().unwrap_or_default();
        ends.send(pieces, |bytes| self.tcp_send(socket, &[IoSlice::new(bytes)]))
    }

    fn tcp_recv(&mut self, socket: SocketId, into: &mut [IoSliceMut<'_>]) -> Result<usize, HostError> {
        crash_point::point();
        let asked = into.iter().map(|d| d.len()).sum();
        let tcp = self.tcp_used(socket, "tcp_recv");
        assert_eq!(tcp.state, State::Open, "tcp_recv on {socket:?}");
        assert!(asked > 0, "empty tcp_recv on {socket:?}");
        let result = tcp.recv(into);
        let at_mark = tcp.mark == Some(0);
        if result == Err(HostError::WouldBlock) || (result.is_ok_and(|n| n < asked) && !at_mark) {
            self.get_mut(socket).read_armed = true;
        }
        self.note(socket, Call::Recv(asked, result));
        result
    }

    fn tcp_error(&mut self, socket: SocketId) -> Option<HostError> {
        let tcp = self.tcp_used(socket, "tcp_error");
        assert_eq!(tcp.state, State::Open, "tcp_error on {socket:?}");
        let error = tcp.error.take();
        self.note(socket, Call::Error(error));
        error
    }

    fn tcp_shutdown(&mut self, socket: SocketId) -> Result<(), HostError> {
        crash_point::point();
        let tcp = self.tcp_used(socket, "tcp_shutdown");
        assert_eq!(tcp.state, State::Open, "tcp_shutdown on {socket:?}");
        assert!(!std::mem::replace(&mut tcp.shut, true), "second tcp_shutdown on {socket:?}");
        let result = if tcp.dead { Err(HostError::Reset) } else { Ok(()) };
        self.note(socket, Call::Shutdown);
        result
    }

    fn tcp_keep_alive(&mut self, socket: SocketId) {
        self.tcp_used(socket, "tcp_keep_alive").keep_alive = true;
        self.note(socket, Call::KeepAlive);
    }

    fn udp_open(
        &mut self,
        flow: FlowId,
        guest: Option<SocketAddr>,
        to: SocketAddr,
    ) -> Result<SocketId, HostError> {
        let socket = DatagramSocket::new(false, self.default_space);
        self.open_datagram(flow, to, socket, Call::UdpOpen(guest, to))
    }

    fn group_open(
        &mut self,
        flow: FlowId,
        guest: SocketAddr,
        group: SocketAddr,
    ) -> Result<SocketId, HostError> {
        let socket = DatagramSocket::group(self.default_space);
        self.open_datagram(flow, group, socket, Call::GroupOpen(guest, group))
    }

    fn ping_open(&mut self, flow: FlowId, to: IpAddr) -> Result<SocketId, HostError> {
        if self.refuse_open.is_empty() && !self.ping_supported {
            return Err(HostError::Unsupported);
        }
        let socket = DatagramSocket::new(true, self.default_space);
        self.open_datagram(flow, SocketAddr::new(to, 0), socket, Call::PingOpen(to))
    }

    fn datagram_send(
        &mut self,
        socket: SocketId,
        data: &[IoSlice<'_>],
        segment: Option<u16>,
        fields: IpHeaderFields,
    ) -> Result<usize, HostError> {
        let data: Vec<u8> = data.iter().flat_map(|slice| slice.iter().copied()).collect();
        let (offered, result) =
            (data.len(), self.datagram_used(socket, "datagram_send").send(data, segment, fields));
        if result == Err(HostError::WouldBlock) || result.is_ok_and(|taken| taken < offered) {
            self.get_mut(socket).write_armed = true;
        }
        self.note(socket, Call::DatagramSend(offered, segment, result));
        result
    }

    fn datagram_recv(
        &mut self,
        socket: SocketId,
        into: &mut [IoSliceMut<'_>],
        received: &mut [Received],
    ) -> Result<usize, HostError> {
        assert!(!into.is_empty() && into.len() == received.len(), "{} buffers", into.len());
        let result = self.datagram_used(socket, "datagram_recv").recv(into, received);
        if result.is_err_and(|e| e == HostError::WouldBlock) || result.is_ok_and(|n| n < into.len()) {
            self.get_mut(socket).read_armed = true;
        }
        self.note(socket, Call::DatagramRecv(into.len(), result));
        result
    }

    fn datagram_error(&mut self, socket: SocketId) -> Option<IcmpReport> {
        self.datagram_used(socket, "datagram_error").report()
    }

    fn may_promote(&mut self, _: FlowId, key: &FlowKey) -> Result<(), Refusal> {
        self.promotions.may(key)
    }

    fn promote(&mut self, flow: FlowId, socket: SocketId, seed: &TcpSeed) -> Result<(), Refusal> {
        self.promotions.push(Request::Promote { flow, socket, seed: Box::new(*seed) });
        Ok(())
    }

    fn carry(&mut self, flow: FlowId) {
        self.promotions.push(Request::Carry(flow));
    }

    fn recall(&mut self, flow: FlowId) {
        self.promotions.push(Request::Recall(flow));
    }

    fn is_stranded(&mut self, socket: SocketId) -> bool {
        self.stranded.contains(&socket.0)
    }

    fn close(&mut self, socket: SocketId, how: Close) {
        crash_point::point();
        self.used(socket, "close").closed = Some(how);
        self.ready.retain(|(s, ..)| *s != socket);
        self.note(socket, Call::Close(how));
    }
}

mod datagrams;
mod peer;
pub mod promotions;
mod stream;
#[cfg(test)]
mod tests;
