//! Host side of the stack: ordinary sockets, non-blocking, errors as values.
//!
//! Readiness is edge-triggered: the driver reports a socket readable or writable once, and the stack keeps
//! using it until a call answers [`HostError::WouldBlock`], a write takes less than it was offered, or a read
//! returns less than it was asked for without a known urgent mark ([`Readiness::urgent`]). Bytes that a
//! socket refuses stay in the stack's chunks. Every socket is opened for one flow, whose id comes back with
//! its events.

use crate::flow::{FlowId, FlowKey};
use crate::link::Piece;
use crate::promotion::{Refusal, TcpSeed};
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU8;

/// Most datagrams in one segmented send (UDP_SEGMENT): the kernel's bound before Linux 6.8
/// (UDP_MAX_SEGMENTS).
pub const SEGMENTS_MAX: usize = 64;
/// Most bytes of payload in one segmented send: the payload of an IPv6 packet of the largest frame.
pub const SEND_BYTES_MAX: usize = 65_535 - 40 - 8;

/// One open host socket. Valid until [`Host::close`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SocketId(pub u32);

/// Progress of a connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connect {
    /// Connected: data may flow.
    Done,
    /// Under way: a writable or error event follows.
    Pending,
}

/// Way of closing a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Close {
    /// As close(2): the kernel delivers buffered data.
    Graceful,
    /// With a reset (SO_LINGER 0), because the guest reset its side.
    Reset,
}

/// Error of a host operation. All are ordinary events of a network, and each has a form in which the guest
/// gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostError {
    /// Not now; an event follows.
    WouldBlock,
    /// ECONNREFUSED: TCP reset, or ICMP port unreachable.
    Refused,
    /// ECONNRESET, EPIPE, ECONNABORTED.
    Reset,
    /// ETIMEDOUT: no answer.
    TimedOut,
    /// ENETUNREACH, EADDRNOTAVAIL for want of an address: no route.
    NetUnreachable,
    /// EHOSTUNREACH: no such host on its network.
    HostUnreachable,
    /// EACCES, EPERM: refused by a firewall or a system policy.
    Prohibited,
    /// EMSGSIZE: larger than the path MTU, which follows in bytes if known (0 if not).
    TooBig(u32),
    /// EMFILE, ENFILE, ENOBUFS, ENOMEM, EADDRNOTAVAIL for want of a port: a resource of the host is used up.
    Exhausted,
    /// Not available on the host (a closed ping_group_range, a missing address family).
    Unsupported,
    /// Any other errno.
    Other(i32),
}

/// Readiness of a host socket, as an event reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Readiness {
    /// Data or end of stream may be read.
    pub readable: bool,
    /// Space to write, or a connect has ended.
    pub writable: bool,
    /// The peer has closed its direction: a read after the data gives 0.
    pub read_closed: bool,
    /// Urgent data (RFC 9293, 3.8.5) is pending. A read ends at its mark, so a short read does not mean that
    /// the socket is empty: only [`HostError::WouldBlock`] and the end of the stream do.
    pub urgent: bool,
    /// A pending error: the next call returns it, or the error queue holds an ICMP message.
    pub error: bool,
}

/// IP header fields of a sent datagram, taken from the guest's packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IpHeaderFields {
    /// DSCP and ECN, as one byte.
    pub tos: u8,
    /// Time to live or hop limit, 1 to 255; `None` for the host's own default.
    pub ttl: Option<NonZeroU8>,
    /// Refuse a datagram longer than the path MTU ([`HostError::TooBig`]) instead of fragmenting it.
    pub dont_fragment: bool,
}

/// One received datagram, or several coalesced by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Received {
    /// Bytes in the buffer.
    pub len: usize,
    /// Size at which these bytes were coalesced (UDP_GRO): datagrams of this size, the last may be shorter.
    pub segment: Option<u16>,
    /// DSCP and ECN of the packet, as one byte.
    pub tos: u8,
    /// Datagrams dropped by the host's kernel since the last report, for lack of room in the socket's buffer
    /// (SO_RXQ_OVFL).
    pub lost: u32,
    /// The sender, of a socket that is connected to none.
    pub from: Option<SocketAddr>,
}

/// Kind of an ICMP error that a datagram socket received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IcmpCause {
    /// Port unreachable.
    PortUnreachable,
    /// Network unreachable, or no route.
    NetUnreachable,
    /// Host or address unreachable.
    HostUnreachable,
    /// Protocol unreachable; over IPv6 an unrecognised next header (a parameter problem).
    ProtocolUnreachable,
    /// Administratively prohibited.
    Prohibited,
    /// Unreachable with this code of the flow's family, which is more specific than the variants above: RFC
    /// 1812 section 5.2.7.1, RFC 4443 section 3.1.
    Unreachable(u8),
    /// Fragmentation needed or packet too big, with the next-hop MTU in bytes.
    TooBig(u32),
    /// Time to live exceeded in transit.
    TimeExceeded,
    /// Fragment reassembly time exceeded.
    ReassemblyTimeExceeded,
}

/// One entry of a socket's error queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcmpReport {
    /// Kind of error.
    pub cause: IcmpCause,
    /// Router or host that sent the error, if the kernel knows it.
    pub from: Option<IpAddr>,
    /// For a ping socket: sequence number of the echo request that the report quotes, if it does.
    pub sequence: Option<u16>,
}

/// The host's sockets, all non-blocking.
pub trait Host {
    /// Opens a TCP socket for `flow` and starts to connect it. A connect that completes at once (loopback, a
    /// nearby host) is reported as [`Connect::Done`]; then no event follows for it.
    fn tcp_connect(&mut self, flow: FlowId, to: SocketAddr) -> Result<(SocketId, Connect), HostError>;

    /// State of a pending connect after an event: done, still pending, or failed.
    fn tcp_connected(&mut self, socket: SocketId) -> Result<Connect, HostError>;

    /// Writes bytes in order; returns the number taken (at least one).
    fn tcp_send(&mut self, socket: SocketId, data: &[IoSlice<'_>]) -> Result<usize, HostError>;

    /// Whether bytes that the link has left unread can be sent from where they are
    /// ([`Host::tcp_send_pieces`]). If not, the stack reads them.
    fn sends_unread(&self) -> bool {
        false
    }

    /// Writes pieces in order, of which bytes may be unread in the guest's memory; returns the number taken
    /// (at least one). [`HostError::Unsupported`] unless overridden, with [`Host::sends_unread`].
    fn tcp_send_pieces(&mut self, socket: SocketId, pieces: &[Piece<'_>]) -> Result<usize, HostError> {
        let _ = (socket, pieces);
        Err(HostError::Unsupported)
    }

    /// Reads bytes into the buffers in order; 0 means end of stream.
    fn tcp_recv(&mut self, socket: SocketId, into: &mut [IoSliceMut<'_>]) -> Result<usize, HostError>;

    /// Takes the pending error of a connected socket (SO_ERROR). A read does not return an error that came
    /// after the peer's FIN: Linux answers with the end of the stream from then on.
    fn tcp_error(&mut self, socket: SocketId) -> Option<HostError>;

    /// Sends FIN after the written bytes (SHUT_WR).
    fn tcp_shutdown(&mut self, socket: SocketId) -> Result<(), HostError>;

    /// Enables keep-alive probes of the host's kernel to the peer, because the guest probes us
    /// (SO_KEEPALIVE).
    fn tcp_keep_alive(&mut self, socket: SocketId);

    /// Opens a UDP socket for `flow`, connected to `to`. All flows of one address and port of the guest's,
    /// `guest`, leave from one port of the host; a query of brodo's own has none and a port that is not
    /// foreseeable.
    fn udp_open(
        &mut self,
        flow: FlowId,
        guest: Option<SocketAddr>,
        to: SocketAddr,
    ) -> Result<SocketId, HostError>;

    /// Opens a UDP socket for `flow` that sends to `group`, a multicast group or broadcast address, and
    /// receives from every host that answers ([`Received::from`]). It leaves from the port of the other flows
    /// of `guest`, the guest's address and port. [`HostError::Unsupported`] unless overridden.
    fn group_open(
        &mut self,
        flow: FlowId,
        guest: SocketAddr,
        group: SocketAddr,
    ) -> Result<SocketId, HostError> {
        let _ = (flow, guest, group);
        Err(HostError::Unsupported)
    }

    /// Opens an ICMP echo (ping) socket for `flow`, connected to `to`.
    /// [`HostError::Unsupported`] if ping_group_range forbids it.
    fn ping_open(&mut self, flow: FlowId, to: IpAddr) -> Result<SocketId, HostError>;

    /// Sends one datagram gathered from `data`, or with `segment` several of that size cut from it, the last
    /// of which may be shorter (UDP_SEGMENT), in packets with the IP header fields `fields`. Returns the
    /// bytes taken: whole datagrams, in order, at least one. For a ping socket `data` is a whole ICMP echo
    /// message, whose identifier and checksum the kernel fills in.
    fn datagram_send(
        &mut self,
        socket: SocketId,
        data: &[IoSlice<'_>],
        segment: Option<u16>,
        fields: IpHeaderFields,
    ) -> Result<usize, HostError>;

    /// Receives datagrams, or coalesced ones, each into a buffer of its own, and describes them in
    /// `received`. Returns their number: fewer than there are buffers if there are no more now; then an event
    /// follows.
    fn datagram_recv(
        &mut self,
        socket: SocketId,
        into: &mut [IoSliceMut<'_>],
        received: &mut [Received],
    ) -> Result<usize, HostError>;

    /// Takes one entry of the socket's error queue (IP_RECVERR).
    fn datagram_error(&mut self, socket: SocketId) -> Option<IcmpReport>;

    /// Whether the host has lost the socket's own address, so that no answer can reach it. Only called after
    /// a change of the host's network; false unless overridden.
    fn is_stranded(&mut self, socket: SocketId) -> bool {
        let _ = socket;
        false
    }

    /// Whether a TCP flow may be promoted now ([`crate::promotion`]). Never unless overridden.
    ///
    /// # Errors
    /// The reason against it.
    fn may_promote(&mut self, flow: FlowId, key: &FlowKey) -> Result<(), Refusal> {
        let _ = (flow, key);
        Err(Refusal::Unsupported)
    }

    /// Begins to make a kernel socket that goes on with `flow` as the seed says; `socket` is the flow's own.
    /// The driver answers later ([`crate::stack::Stack::promotion`]), not inside this call.
    ///
    /// # Errors
    /// The reason for which it is not even begun.
    fn promote(&mut self, flow: FlowId, socket: SocketId, seed: &TcpSeed) -> Result<(), Refusal> {
        let _ = (flow, socket, seed);
        Err(Refusal::Unsupported)
    }

    /// Begins to splice between the flow's socket and its kernel socket.
    fn carry(&mut self, flow: FlowId) {
        let _ = flow;
    }

    /// Asks for a promoted flow back. The driver answers later ([`crate::stack::Stack::returned`],
    /// [`crate::stack::Stack::recall_refused`] or [`crate::stack::Stack::close_carried`]), not inside this
    /// call.
    fn recall(&mut self, flow: FlowId) {
        let _ = flow;
    }

    /// Closes a socket; its id may then be reused.
    fn close(&mut self, socket: SocketId, how: Close);
}
