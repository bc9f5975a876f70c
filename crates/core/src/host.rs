//! The host side of the stack: ordinary sockets, non-blocking, errors as values.
//!
//! Readiness is edge-triggered: the driver reports a socket readable or writable once, and the stack keeps
//! using it until a call answers [`HostError::WouldBlock`], or a write takes less than it was offered, or a
//! read gives less than it was asked for while no urgent mark is known of ([`Readiness::urgent`]). Bytes that
//! a socket refuses stay in the stack's chunks. Every socket is opened on behalf of one flow, whose id comes
//! back with its events.

use crate::flow::FlowId;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU8;

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

/// How a socket is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Close {
    /// As close(2) does: the kernel delivers what it has.
    Graceful,
    /// With a reset (SO_LINGER 0), because the guest reset its side.
    Reset,
}

/// Why a host operation did not succeed. All are ordinary events of a network, and each has a form in which
/// the guest is told of it.
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
    /// ENETUNREACH: no route.
    NetUnreachable,
    /// EHOSTUNREACH: no such host on its network.
    HostUnreachable,
    /// EACCES, EPERM: a firewall or a system policy said no.
    Prohibited,
    /// EMSGSIZE: larger than the path takes; its MTU in bytes if known (0 if not).
    TooBig(u32),
    /// EMFILE, ENFILE, ENOBUFS, ENOMEM, EADDRNOTAVAIL: the host is out of something.
    Exhausted,
    /// The host cannot do this at all (a closed ping_group_range, a missing address family).
    Unsupported,
    /// Anything else; the errno.
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
    /// Urgent data (RFC 9293, 3.8.5) waits in line. A read ends at its mark, so one that gives less than was
    /// asked for says nothing about what follows: only [`HostError::WouldBlock`] and the end of the stream
    /// do.
    pub urgent: bool,
    /// An error is pending: the next call says which, or the error queue holds an ICMP message.
    pub error: bool,
}

/// IP header fields of sent datagrams that are taken from the guest's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IpHeaderFields {
    /// Differentiated services and ECN, as one byte.
    pub tos: u8,
    /// Time to live or hop limit, 1 to 255; `None` for the host's own default.
    pub ttl: Option<NonZeroU8>,
    /// A datagram that the path does not take whole is refused ([`HostError::TooBig`]) instead of fragmented.
    pub dont_fragment: bool,
}

/// One datagram that was received, or several that the kernel has coalesced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Received {
    /// Bytes in the buffer.
    pub len: usize,
    /// Size at which these bytes were coalesced (UDP_GRO): datagrams of this size, the last may be shorter.
    pub segment: Option<u16>,
    /// Differentiated services and ECN of the packet, as one byte.
    pub tos: u8,
    /// Datagrams dropped by the host's kernel since the last report, because they were not read in time
    /// (SO_RXQ_OVFL).
    pub lost: u32,
}

/// An ICMP error that a datagram socket received for what it sent.
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
    /// Unreachable with this code of the flow's family, of which the variants above say less: RFC 1812
    /// section 5.2.7.1, RFC 4443 section 3.1.
    Unreachable(u8),
    /// Fragmentation needed or packet too big, with the next-hop MTU in bytes.
    TooBig(u32),
    /// Time to live exceeded in transit.
    TimeExceeded,
    /// Fragments were missing when the time for them had passed.
    ReassemblyTimeExceeded,
}

/// One entry of a socket's error queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcmpReport {
    /// Kind of error.
    pub cause: IcmpCause,
    /// The router or host that said so, where the kernel knows it.
    pub from: Option<IpAddr>,
    /// For a ping socket: the sequence number of the echo request that it is about, where the report quotes
    /// it.
    pub sequence: Option<u16>,
}

/// The host's sockets, all non-blocking.
pub trait Host {
    /// Opens a TCP socket for `flow` and starts to connect it. A connect that completes at once (loopback, a
    /// nearby host) is reported as [`Connect::Done`]; then no event follows for it.
    fn tcp_connect(&mut self, flow: FlowId, to: SocketAddr) -> Result<(SocketId, Connect), HostError>;

    /// After an event on a pending connect: whether it is done, still pending, or failed and why.
    fn tcp_connected(&mut self, socket: SocketId) -> Result<Connect, HostError>;

    /// Writes bytes in order; gives how many were taken (at least one).
    fn tcp_send(&mut self, socket: SocketId, data: &[IoSlice<'_>]) -> Result<usize, HostError>;

    /// Reads bytes into the buffers in order; 0 means end of stream.
    fn tcp_recv(&mut self, socket: SocketId, into: &mut [IoSliceMut<'_>]) -> Result<usize, HostError>;

    /// Takes the error that is pending on a connected socket (SO_ERROR). No read meets one that came after
    /// the peer's FIN: Linux gives the end of the stream from then on.
    fn tcp_error(&mut self, socket: SocketId) -> Option<HostError>;

    /// Sends FIN after what was written (SHUT_WR).
    fn tcp_shutdown(&mut self, socket: SocketId) -> Result<(), HostError>;

    /// Asks the host's kernel to probe the peer, because the guest probes us (SO_KEEPALIVE).
    fn tcp_keep_alive(&mut self, socket: SocketId);

    /// Opens a UDP socket for `flow`, connected to `to`.
    fn udp_open(&mut self, flow: FlowId, to: SocketAddr) -> Result<SocketId, HostError>;

    /// Opens an ICMP echo (ping) socket for `flow`, connected to `to`.
    /// [`HostError::Unsupported`] if ping_group_range forbids it.
    fn ping_open(&mut self, flow: FlowId, to: IpAddr) -> Result<SocketId, HostError>;

    /// Sends one datagram gathered from `data`, or with `segment` several of that size cut from it, the last
    /// of which may be shorter (UDP_SEGMENT), in packets with these `marks`. Gives the bytes taken: whole
    /// datagrams, in order, at least one. For a ping socket `data` is a whole ICMP echo message, whose
    /// identifier and checksum the kernel fills in.
    fn datagram_send(
        &mut self,
        socket: SocketId,
        data: &[IoSlice<'_>],
        segment: Option<u16>,
        marks: IpHeaderFields,
    ) -> Result<usize, HostError>;

    /// Receives datagrams, or coalesced ones, each into a buffer of its own, and describes them in
    /// `received`. Gives how many: fewer than there are buffers if there are no more now; then an event
    /// follows.
    fn datagram_recv(
        &mut self,
        socket: SocketId,
        into: &mut [IoSliceMut<'_>],
        received: &mut [Received],
    ) -> Result<usize, HostError>;

    /// Takes one entry of the socket's error queue (IP_RECVERR).
    fn datagram_error(&mut self, socket: SocketId) -> Option<IcmpReport>;

    /// Whether the socket's own address is one that the host does not have any more, so that no answer can
    /// reach it. Only asked when the host's network has changed; false unless overridden.
    fn is_stranded(&mut self, socket: SocketId) -> bool {
        let _ = socket;
        false
    }

    /// Closes a socket; its id is then free for another.
    fn close(&mut self, socket: SocketId, how: Close);
}
