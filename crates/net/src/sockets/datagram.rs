//! UDP and ping sockets: several datagrams per call, both ways.
//!
//! *Out.* Datagrams of one size leave with one call (UDP_SEGMENT), gathered from wherever they are. Where the
//! route does not take that (segments above its MTU, which one by one are fragmented; a device that computes
//! no checksums) they leave one by one, and this is noted for the socket. Room to write is reported only from
//! a send that found none to the next that finds some: the kernel raises "writable" after each datagram it
//! has sent, which would wake the loop once per datagram for nothing.
//!
//! *In.* One call takes as many datagrams as there are buffers, each perhaps several that the kernel
//! coalesced (UDP_GRO). With each come the byte of differentiated services and ECN, and, once the kernel has
//! had to drop some, how many.
//!
//! *IP header fields* are options of the socket, set when a datagram differs from the
//! one before: differentiated services and time to live in most conversations never, "do not fragment" once.
//! (A control message with each datagram would cost more and also switches off the kernel's cached route.)
//!
//! "Do not fragment" makes a difference only to a datagram that is longer than some path takes, so that short
//! ones ([`ANY_PATH_V4`]) leave the option as it is. With it (IP_PMTUDISC_DO) a datagram longer than the path
//! MTU that the kernel knows is refused, and IP_MTU tells the MTU; without it (IP_PMTUDISC_DONT) the kernel
//! and every router may fragment. A new socket is between the two (IP_PMTUDISC_WANT): the kernel fragments,
//! routers may not.

use super::errors::{address_error, host_error, icmp_report};
use super::udp_ports::{Mapped, SourcePorts};
use super::{FLAGS, Open, Sockets, family};
use crate::sys;
use crate::sys::addressed::{recv_addressed, send_addressed};
use brodo_core::flow::FlowId;
use brodo_core::host::{
    Close, Host, HostError, IcmpReport, IpHeaderFields, Received, SEGMENTS_MAX, SocketId,
};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketType, ipproto, sockopt};
use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU8;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Most slices of one call in which the caller's are cut anew.
const SLICES_MAX: usize = 128;

/// SO_RCVBUF of a UDP socket, bytes; the kernel gives no more than net.core.rmem_max, and counts twice as
/// much for its own structures. It does not grow by itself as a stream's does, and its default is 90
/// datagrams of an ordinary path: at full speed less than the time for which this process may have to wait
/// for a processor.
const RECEIVE_BUFFER: c_int = 1 << 20;

/// Largest payload that fits every path unfragmented, bytes: IPv4's 576 (RFC 791) and IPv6's 1280 (RFC 8200),
/// less the headers.
const ANY_PATH_V4: usize = 576 - 28;
const ANY_PATH_V6: usize = 1280 - 48;
/// Calls to receive of a new socket that look for datagrams of others: such are queued before all but the
/// first of the peer's.
const YOUNG: u8 = 16;
/// Value of IP_TTL and IPV6_UNICAST_HOPS for the host's default.
const HOPS_DEFAULT: c_int = -1;
/// The scope of a group that reaches everywhere (RFC 4291, 2.7).
const GLOBAL_SCOPE: u16 = 0xe;
/// Number of the option (linux/in6.h), which the libc crate lacks.
pub const IPV6_MULTICAST_ALL: c_int = 29;

/// State of a datagram socket.
#[derive(Debug, Clone, Copy)]
pub(super) struct Datagram {
    pub(super) v6: bool,
    /// Whether it is a ping socket.
    pub(super) ping: bool,
    /// Its IP_TOS or IPV6_TCLASS.
    pub(super) tos: u8,
    /// Its IP_TTL or IPV6_UNICAST_HOPS; `None` for the host's default.
    pub(super) ttl: Option<NonZeroU8>,
    /// Its IP_MTU_DISCOVER or IPV6_MTU_DISCOVER, once set.
    pub(super) dont_fragment: Option<bool>,
    /// Largest segments with which UDP_SEGMENT may work, bytes.
    pub(super) segment_max: u16,
    /// Datagrams dropped by the kernel since the socket was opened, as last reported.
    pub(super) overflows: u32,
    /// Calls to receive in which a datagram may come that is not the peer's ([`recv_of_peer`]).
    pub(super) young: u8,
}

impl Default for Datagram {
    fn default() -> Self {
        Self {
            v6: false,
            ping: false,
            tos: 0,
            ttl: None,
            dont_fragment: None,
            segment_max: u16::MAX,
            overflows: 0,
            young: 0,
        }
    }
}

/// Events of a datagram socket.
pub(super) const EVENTS: EventFlags = EventFlags::IN.union(EventFlags::ET);

impl Sockets {
    /// A UDP socket for datagrams to and from `to`, with its options and its interface, not bound yet.
    fn udp_socket(&self, to: SocketAddr) -> Result<OwnedFd, HostError> {
        let fd =
            rustix::net::socket_with(family(to.ip()), SocketType::DGRAM, FLAGS, None).map_err(host_error)?;
        let (level, option) = match to {
            SocketAddr::V4(_) => (libc::SOL_IP, libc::IP_RECVTOS),
            SocketAddr::V6(_) => (libc::SOL_IPV6, libc::IPV6_RECVTCLASS),
        };
        let options = [
            (libc::SOL_UDP, libc::UDP_GRO, 1),
            (level, option, 1),
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1),
            (libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BUFFER),
        ];
        for (level, option, value) in options {
            // UDP_GRO is Linux 5.0 and later; without it datagrams come one by one. The others are older than
            // brodo's oldest kernel.
            let _ = sys::set_socket_option(fd.as_fd(), level, option, value);
        }
        report_errors(&fd, to)?;
        self.outbound.choose_interface(fd.as_fd(), to).map_err(host_error)?;
        Ok(fd)
    }

    /// Opens a UDP socket, for an address and port of the guest's or for brodo.
    pub(super) fn open_udp(
        &mut self,
        flow: FlowId,
        guest: Option<SocketAddr>,
        to: SocketAddr,
    ) -> Result<SocketId, HostError> {
        let fd = self.udp_socket(to)?;
        let mapped = guest.filter(|_| self.outbound.ports == SourcePorts::Guest);
        let mapped = mapped.map(|guest| Mapped { guest, peer: to });
        let port = match mapped {
            Some(mapped) => self.udp_ports.bind(fd.as_fd(), mapped, self.outbound.address(to)),
            None => Ok(None),
        };
        let Some((port, mapped)) = port.map_err(address_error)?.zip(mapped) else {
            self.outbound.choose_address(fd.as_fd(), to).map_err(address_error)?;
            return self.connect_datagram(flow, fd, to);
        };
        let opened = self.connect_datagram(flow, fd, to);
        match opened {
            // No other socket has this port: it would answer itself.
            Ok(socket) if port == to.port() && self.own_address(socket) == Some(to) => {
                self.close(socket, Close::Graceful);
                self.udp_ports.release(&mapped);
                self.open_udp(flow, None, to)
            }
            Ok(socket) => {
                let open = self.get_mut(socket)?;
                (open.mapped, open.datagram.young) = (Some(Box::new(mapped)), YOUNG);
                opened
            }
            Err(_) => {
                self.udp_ports.release(&mapped);
                opened
            }
        }
    }

    /// Opens a UDP socket for an address and port of the guest's that sends to a group and hears every host.
    ///
    /// Multicast itself it does not hear (IP_MULTICAST_ALL off): as it has joined no group, Linux would give
    /// it what other programs of the host have joined. Its address is one with which hosts answer from
    /// addresses that the guest can tell apart ([`Self::source_to_group`]).
    pub(super) fn open_group(
        &mut self,
        flow: FlowId,
        guest: SocketAddr,
        group: SocketAddr,
    ) -> Result<SocketId, HostError> {
        let fd = self.udp_socket(group)?;
        let (level, all) = match group {
            SocketAddr::V4(_) => (libc::SOL_IP, libc::IP_MULTICAST_ALL),
            SocketAddr::V6(_) => (libc::SOL_IPV6, IPV6_MULTICAST_ALL),
        };
        for (level, option, value) in [(level, all, 0), (libc::SOL_SOCKET, libc::SO_BROADCAST, 1)] {
            // IPV6_MULTICAST_ALL is Linux 4.20 and later.
            let _ = sys::set_socket_option(fd.as_fd(), level, option, value);
        }
        let source = self.source_to_group(group);
        let mapped = Mapped { guest, peer: group };
        let port = match self.outbound.ports {
            SourcePorts::Guest => self.udp_ports.bind(fd.as_fd(), mapped, source),
            SourcePorts::Any => Ok(None),
        };
        let is_mapped = port.map_err(address_error)?.is_some();
        if !is_mapped {
            rustix::net::bind(&fd, &SocketAddr::new(source, 0)).map_err(address_error)?;
        }
        let kept = self.keep(flow, fd, EVENTS);
        let Ok(socket) = kept else {
            if is_mapped {
                self.udp_ports.release(&mapped);
            }
            return kept;
        };
        let open = self.get_mut(socket)?;
        open.datagram.v6 = group.is_ipv6();
        open.mapped = is_mapped.then(|| Box::new(mapped));
        open.group = Some(Box::new(group));
        kept
    }

    /// The address from which datagrams to a group leave: unspecified if it is the kernel's choice.
    ///
    /// For an IPv6 group of link-local scope that is the host's link-local address (RFC 6724, 5, rule 2), and
    /// hosts answer it from theirs, which in a network of brodo's own all stand behind the router's. So there
    /// it is the address for a group of global scope by the same route, if the host has one. In a copy of the
    /// host's network (a group with a scope) the guest sees link-local addresses as they are.
    fn source_to_group(&self, group: SocketAddr) -> IpAddr {
        let chosen = self.outbound.address(group);
        match group {
            SocketAddr::V6(v6) if chosen.is_unspecified() && v6.scope_id() == 0 => {
                self.source_to_global_group(v6).map_or(chosen, IpAddr::from)
            }
            _ => chosen,
        }
    }

    /// The host's address for the group of the same number and global scope, if that is not link-local too.
    fn source_to_global_group(&self, group: SocketAddrV6) -> Option<Ipv6Addr> {
        let mut segments = group.ip().segments();
        segments[0] = segments[0] & !0xf | GLOBAL_SCOPE;
        let fd = self.udp_socket(group.into()).ok()?;
        rustix::net::connect(&fd, &SocketAddrV6::new(segments.into(), group.port(), 0, 0)).ok()?;
        let own = SocketAddrV6::try_from(rustix::net::getsockname(fd).ok()?).ok()?;
        Some(*own.ip()).filter(|ip| !ip.is_unicast_link_local())
    }

    /// Error of a stream's connect to `to`. EADDRNOTAVAIL says that no port is left, or that the host has no
    /// address for that destination; connect of a datagram socket, which sends nothing, tells the two apart.
    pub(super) fn connect_error(&self, errno: Errno, to: SocketAddr) -> HostError {
        let has_address = || {
            let fd = rustix::net::socket_with(family(to.ip()), SocketType::DGRAM, FLAGS, None)?;
            self.outbound.apply(fd.as_fd(), to)?;
            rustix::net::connect(&fd, &to)
        };
        match errno {
            Errno::ADDRNOTAVAIL if has_address() == Err(errno) => HostError::NetUnreachable,
            _ => host_error(errno),
        }
    }

    /// Address of an open socket.
    fn own_address(&self, socket: SocketId) -> Option<SocketAddr> {
        rustix::net::getsockname(self.get(socket).ok()?).ok()?.try_into().ok()
    }

    /// Takes the place of a restored socket among the guest's UDP ports.
    pub(super) fn adopt_mapped(
        &self,
        fd: BorrowedFd<'_>,
        guest: SocketAddr,
        group: Option<SocketAddr>,
    ) -> Option<Mapped> {
        let own = SocketAddr::try_from(rustix::net::getsockname(fd).ok()?).ok()?;
        let connected = || SocketAddr::try_from(rustix::net::getpeername(fd).ok()??).ok();
        let peer = group.or_else(connected)?;
        let mapped = Mapped { guest, peer };
        let keeps = self.outbound.ports == SourcePorts::Guest;
        (keeps && self.udp_ports.adopt(fd, mapped, own.port()).ok()?).then_some(mapped)
    }

    /// Opens a ping socket.
    pub(super) fn open_ping(&mut self, flow: FlowId, to: IpAddr) -> Result<SocketId, HostError> {
        let protocol = if to.is_ipv4() { ipproto::ICMP } else { ipproto::ICMPV6 };
        let fd = match rustix::net::socket_with(family(to), SocketType::DGRAM, FLAGS, Some(protocol)) {
            // net.ipv4.ping_group_range does not include us.
            Err(Errno::ACCESS | Errno::PERM) => return Err(HostError::Unsupported),
            other => other.map_err(host_error)?,
        };
        let to = SocketAddr::new(to, 0);
        report_errors(&fd, to)?;
        self.outbound.apply(fd.as_fd(), to).map_err(address_error)?;
        let socket = self.connect_datagram(flow, fd, to)?;
        self.get_mut(socket)?.datagram.ping = true;
        Ok(socket)
    }

    /// Connects a datagram socket and keeps it.
    fn connect_datagram(&mut self, flow: FlowId, fd: OwnedFd, to: SocketAddr) -> Result<SocketId, HostError> {
        rustix::net::connect(&fd, &to).map_err(address_error)?;
        let socket = self.keep(flow, fd, EventFlags::IN)?;
        self.get_mut(socket)?.datagram.v6 = to.is_ipv6();
        Ok(socket)
    }

    /// Sends one datagram, or several of `segment` bytes.
    pub(super) fn send_datagrams(
        &mut self,
        socket: SocketId,
        data: &[IoSlice<'_>],
        segment: Option<u16>,
        fields: IpHeaderFields,
    ) -> Result<usize, HostError> {
        let open = self.get_mut(socket)?;
        let len: usize = data.iter().map(|slice| slice.len()).sum();
        open.set_header_fields(fields, segment.map_or(len, |size| len.min(size.into())));
        let sent = match segment.map(usize::from) {
            Some(size) if size > 0 && len > size => open.send_many(data, len, size),
            _ => open.outgoing().send_one(data).map(|()| len),
        };
        let full = sent == Err(Errno::AGAIN) || sent.is_ok_and(|taken| taken < len);
        if full != open.reports_room {
            self.report_datagram_room(socket, full)?;
        }
        sent.map_err(|e| match e {
            Errno::MSGSIZE => HostError::TooBig(self.get(socket).map_or(0, path_mtu)),
            e => address_error(e),
        })
    }

    /// Starts or stops events for room to write. Room that exists by now is reported by the next wait.
    fn report_datagram_room(&mut self, socket: SocketId, on: bool) -> Result<(), HostError> {
        let Self { epoll, by_fd, .. } = self;
        if let Some(Some(open)) = by_fd.get_mut(socket.0 as usize) {
            let data = EventData::new_u64(open.flow.to_bits());
            let interest = if on { EVENTS | EventFlags::OUT } else { EVENTS };
            epoll::modify(&*epoll, &open.fd, data, interest).map_err(host_error)?;
            open.reports_room = on;
        }
        Ok(())
    }

    /// Receives datagrams, each into a buffer of its own.
    pub(super) fn recv_datagrams(
        &mut self,
        socket: SocketId,
        into: &mut [IoSliceMut<'_>],
        received: &mut [Received],
    ) -> Result<usize, HostError> {
        let Open { fd, datagram, group, mapped, .. } = self.get_mut(socket)?;
        let (fd, mapped) = (fd.as_fd(), mapped.as_deref().filter(|_| datagram.young > 0));
        let received = match (group, mapped) {
            (Some(_), _) => past_pending_error(|| {
                recv_addressed(fd, into, |i, len, from, control| {
                    received[i] = Received { from, ..describe(len, control, &mut datagram.overflows) };
                })
            }),
            (None, Some(Mapped { peer, .. })) => recv_of_peer(fd, datagram, *peer, into, received),
            (None, None) => past_pending_error(|| {
                sys::recv_datagrams(fd, into, |i, len, control| {
                    received[i] = describe(len, control, &mut datagram.overflows);
                })
            }),
        };
        received.map_err(host_error)
    }

    /// Takes one entry of the error queue.
    pub(super) fn recv_error(&mut self, socket: SocketId) -> Option<IcmpReport> {
        let open = self.get_mut(socket).ok()?;
        let (fd, ping) = (open.fd.as_fd(), open.datagram.ping);
        loop {
            match sys::recv_error(fd) {
                // Bounded: the kernel limits the queue.
                Ok(entry) => {
                    if let Some(report) = icmp_report(&entry, ping) {
                        return Some(report);
                    }
                }
                Err(Errno::PROTO) => {}
                Err(_) => return None,
            }
        }
    }
}

/// Receives datagrams of a new socket, one by one, and drops those that are not the peer's. Between bind(2)
/// and connect(2) the kernel takes those of every host to the port, and one that was on its way into the
/// socket then is queued somewhat later. They count as dropped by the socket's queue.
///
/// # Errors
/// That of the first call; `AGAIN` if none of the peer's is there.
fn recv_of_peer(
    fd: BorrowedFd<'_>,
    datagram: &mut Datagram,
    peer: SocketAddr,
    into: &mut [IoSliceMut<'_>],
    received: &mut [Received],
) -> rustix::io::Result<usize> {
    datagram.young -= 1;
    let (mut count, mut foreign) = (0, 0);
    while count < into.len() {
        let mut from = None;
        let slot = &mut into[count..=count];
        let called = past_pending_error(|| {
            recv_addressed(fd, slot, |_, len, name, control| {
                (from, received[count]) = (name, describe(len, control, &mut datagram.overflows));
            })
        });
        match called {
            Ok(_) if from.is_some_and(|from| (from.ip(), from.port()) == (peer.ip(), peer.port())) => {
                received[count].lost += std::mem::take(&mut foreign);
                count += 1;
            }
            Ok(_) => foreign += received[count].lost + 1,
            Err(error) if count == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(count)
}

/// Has ICMP errors reported through the error queue of a datagram socket that will be connected.
fn report_errors(fd: &OwnedFd, to: SocketAddr) -> Result<(), HostError> {
    let (level, option) = match to {
        SocketAddr::V4(_) => (libc::SOL_IP, libc::IP_RECVERR),
        SocketAddr::V6(_) => (libc::SOL_IPV6, libc::IPV6_RECVERR),
    };
    sys::set_socket_option(fd.as_fd(), level, option, 1).map_err(host_error)
}

impl Open {
    /// Sets the IP header fields of sent datagrams; the longest one has `len` bytes of payload.
    fn set_header_fields(&mut self, IpHeaderFields { tos, ttl, dont_fragment }: IpHeaderFields, len: usize) {
        let Datagram { v6, .. } = self.datagram;
        let set = |(v4_option, v6_option), value| {
            let (level, option) = if v6 { (libc::SOL_IPV6, v6_option) } else { (libc::SOL_IP, v4_option) };
            // Unmarked where a policy forbids it.
            let _ = sys::set_socket_option(self.fd.as_fd(), level, option, value);
        };
        if self.datagram.tos != tos {
            set((libc::IP_TOS, libc::IPV6_TCLASS), tos.into());
            self.datagram.tos = tos;
        }
        if self.datagram.ttl != ttl {
            let hops = ttl.map_or(HOPS_DEFAULT, |ttl| ttl.get().into());
            set((libc::IP_TTL, libc::IPV6_UNICAST_HOPS), hops);
            if self.group.is_some() {
                set((libc::IP_MULTICAST_TTL, libc::IPV6_MULTICAST_HOPS), hops);
            }
            self.datagram.ttl = ttl;
        }
        let matters = len > if v6 { ANY_PATH_V6 } else { ANY_PATH_V4 };
        if matters && self.datagram.dont_fragment != Some(dont_fragment) {
            let value = match (dont_fragment, v6) {
                (true, false) => libc::IP_PMTUDISC_DO,
                (true, true) => libc::IPV6_PMTUDISC_DO,
                (false, false) => libc::IP_PMTUDISC_DONT,
                // Routers do not fragment IPv6; the kernel does, to the MTU that it knows.
                (false, true) => libc::IPV6_PMTUDISC_WANT,
            };
            set((libc::IP_MTU_DISCOVER, libc::IPV6_MTU_DISCOVER), value);
            self.datagram.dont_fragment = Some(dont_fragment);
        }
    }

    /// Sends datagrams of `size` bytes, `len` bytes in all, in as few calls as the kernel allows. Returns the
    /// bytes sent; an error only if that is none.
    fn send_many(&mut self, data: &[IoSlice<'_>], len: usize, size: usize) -> rustix::io::Result<usize> {
        let outgoing = self.outgoing();
        let segmented =
            |data: &[IoSlice<'_>]| past_pending_error(|| outgoing.send(data, Some(size as u16))).map(drop);
        let refused = |sent| matches!(sent, Err(Errno::INVAL | Errno::IO | Errno::MSGSIZE));
        if size <= usize::from(self.datagram.segment_max) {
            let sent = if len <= size * SEGMENTS_MAX {
                segmented(data).map(|()| len)
            } else {
                each_piece(data, size * SEGMENTS_MAX, segmented)
            };
            if !refused(sent) {
                return sent;
            }
            self.datagram.segment_max = size as u16 - 1;
        }
        each_piece(data, size, |datagram| self.outgoing().send_one(datagram))
    }

    fn outgoing(&self) -> Outgoing<'_> {
        Outgoing { fd: self.fd.as_fd(), to: self.group.as_deref().copied() }
    }
}

/// A datagram socket to send with, and the destination if it is connected to none.
#[derive(Clone, Copy)]
struct Outgoing<'a> {
    fd: BorrowedFd<'a>,
    to: Option<SocketAddr>,
}

impl Outgoing<'_> {
    /// Sends one datagram, or several of `segment` bytes.
    fn send(self, data: &[IoSlice<'_>], segment: Option<u16>) -> rustix::io::Result<usize> {
        match self.to {
            // IP header fields are options of the socket.
            Some(to) => send_addressed(self.fd, data, to, None, segment, IpHeaderFields::default()),
            None => sys::send_datagrams(self.fd, data, segment),
        }
    }

    fn send_one(self, data: &[IoSlice<'_>]) -> rustix::io::Result<()> {
        past_pending_error(|| self.send(data, None)).map(drop)
    }
}

/// Cuts `data` into pieces of `size` bytes, of which the last may be shorter, and passes each to `send` until
/// it fails. Returns the bytes of the successful ones; the error only if that is none.
fn each_piece(
    data: &[IoSlice<'_>],
    size: usize,
    send: impl Fn(&[IoSlice<'_>]) -> rustix::io::Result<()>,
) -> rustix::io::Result<usize> {
    let (mut done, mut index, mut offset) = (0, 0, 0);
    while index < data.len() {
        let mut piece = [IoSlice::new(&[]); SLICES_MAX];
        let (mut count, mut bytes) = (0, 0);
        while bytes < size && index < data.len() && count < SLICES_MAX {
            let rest = &data[index][offset..];
            let taken = &rest[..rest.len().min(size - bytes)];
            piece[count] = IoSlice::new(taken);
            (count, bytes, offset) = (count + 1, bytes + taken.len(), offset + taken.len());
            if taken.len() == rest.len() {
                (index, offset) = (index + 1, 0);
            }
        }
        match send(&piece[..count]) {
            Ok(()) => done += bytes,
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Repeats a call once if its error may belong to an earlier datagram: the kernel keeps an ICMP error for the
/// next call of any kind, and then clears it (it stays in the error queue). A full queue is no such error.
fn past_pending_error<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    match call() {
        Err(e) if !matches!(e, Errno::AGAIN | Errno::NOBUFS) => call(),
        other => other,
    }
}

/// The path MTU the kernel knows for a connected socket, 0 if none.
fn path_mtu(fd: &OwnedFd) -> u32 {
    sockopt::ip_mtu(fd).or_else(|_| sockopt::ipv6_mtu(fd)).unwrap_or(0)
}

/// Description of a received datagram, from its length and control messages; `overflows` is the count of the
/// socket's losses so far.
pub(crate) fn describe(len: usize, control: &[u8], overflows: &mut u32) -> Received {
    let mut received = Received { len, ..Received::default() };
    for (level, kind, data) in sys::control_messages(control) {
        let word = data.first_chunk::<4>();
        match (level, kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let size = word.and_then(|w| u16::try_from(c_int::from_ne_bytes(*w)).ok());
                received.segment = size.filter(|&size| size > 0);
            }
            // A byte.
            (libc::SOL_IP, libc::IP_TOS) => received.tos = data.first().copied().unwrap_or(0),
            // An integer.
            (libc::SOL_IPV6, libc::IPV6_TCLASS) => {
                received.tos = word.map_or(0, |w| c_int::from_ne_bytes(*w) as u8);
            }
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                let total = word.map_or(*overflows, |w| u32::from_ne_bytes(*w));
                received.lost = total.wrapping_sub(*overflows);
                *overflows = total;
            }
            _ => {}
        }
    }
    received
}
