//! The host's sockets: [`Host`] on real descriptors, all non-blocking, all in one epoll instance.
//!
//! A socket is opened for one flow and registered, edge-triggered, with that flow's id as its event data;
//! closing the descriptor ends it. It reports input and errors. A stream reports room to write only from the
//! first time it had none, or while its connect is pending: otherwise each connection would begin with an
//! event that says nothing. A datagram socket reports it only while something waits for it ([`datagram`]).
//!
//! *Urgent data* of a peer stays in line (SO_OOBINLINE), as RFC 6093 asks. readv stops before the urgent mark
//! although bytes are queued behind it, so EPOLLPRI is reported and the stack then reads until EAGAIN. Toward
//! the guest, and from it, the bytes travel without the mark.
//!
//! A stream's buffer sizes are left to the kernel, which grows them as it needs (setting one switches that
//! off). Path MTU discovery of a stream is left to the host's kernel; that of datagrams is the guest's
//! ([`datagram`]). An ICMP error for a datagram comes back through the error queue (IP_RECVERR).
//!
//! | For | System calls |
//! |---|---|
//! | source | those of [`Outbound`] before connect, if one is wanted |
//! | open TCP | socket, setsockopt SO_OOBINLINE, connect, connect (completed?), epoll_ctl |
//! | to this host | getsockname (its own peer?) |
//! | no address or port | socket and connect of UDP, to tell the two apart |
//! | open UDP | as echo; also setsockopt IP_RECVTOS, SO_RXQ_OVFL, SO_RCVBUF, UDP_GRO |
//! | open UDP to a group | as UDP, without connect; setsockopt SO_BROADCAST, IP_MULTICAST_ALL |
//! | port of UDP | bind, getsockname, setsockopt SO_REUSEPORT, IPV6_V6ONLY ([`udp_ports`]) |
//! | open echo | socket, setsockopt IP_RECVERR, connect, epoll_ctl |
//! | stream | sendmsg (before the second setsockopt TCP_NODELAY; when full epoll_ctl), readv |
//! | published UDP | sendmsg with the peer's address and ours (IP_PKTINFO), epoll_ctl when full |
//! | datagrams out | sendmsg, several of one size with UDP_SEGMENT; epoll_ctl when full and when no longer |
//! | their IP header | setsockopt IP_TOS, IP_TTL or IP_MTU_DISCOVER when it changes |
//! | that to groups | setsockopt IP_MULTICAST_TTL too |
//! | datagrams in | recvmmsg with UDP_GRO, and with MSG_ERRQUEUE |
//! | end | shutdown, setsockopt SO_LINGER (reset only), close |
//! | host changed | getsockname |
//! | peer of a flow | getpeername, for a datagram to a published port |

mod datagram;
mod errors;
mod handover;
mod outbound;
mod published;
mod udp_ports;

pub use datagram::IPV6_MULTICAST_ALL;
pub(crate) use datagram::describe;
pub use outbound::{Outbound, Source};
pub use published::Published;
pub(crate) use published::Sharing;
pub use udp_ports::SourcePorts;
pub(crate) use udp_ports::{PublishedPort, UdpPorts};

use crate::promotion::requests::{Request, Requests};
use crate::slab::Slab;
use crate::stream_events::STREAM_EVENTS;
use crate::tcp_info::TcpInfo;
use crate::{connect, probes};
use brodo_core::flow::{FlowId, FlowKey};
use brodo_core::host::{
    Close, Connect, Host, HostError, IcmpReport, IpHeaderFields, Readiness, Received, SocketId,
};
use brodo_core::journal::carried::DriverJournal;
use brodo_core::link::Piece;
use brodo_core::promotion::{Refusal, SeedFields, TcpSeed};
use brodo_link::virtio::unread::UnreadFrames;
use datagram::Datagram;
pub(crate) use errors::{address_error, host_error};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, SocketType};
use std::collections::BTreeSet;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use udp_ports::Mapped;

/// An open socket.
#[derive(Debug)]
struct Open {
    fd: OwnedFd,
    flow: FlowId,
    /// Whether room to write is reported.
    reports_room: bool,
    delays: Delays,
    datagram: Datagram,
    /// Its number, from 1, among the streams passed in advance of a hand-over ([`Sockets::pass_streams`]).
    passed: Option<NonZeroU32>,
    /// Its place among the guest's UDP ports.
    mapped: Option<Box<Mapped>>,
    /// Destination of its datagrams, if it is connected to none.
    group: Option<Box<SocketAddr>>,
    /// Whether it may linger: a process that was there before may have set it, and a close would wait.
    may_linger: bool,
}

/// Nagle's algorithm on a stream. The guest's own TCP has already decided the segments and their times, so
/// the kernel must not delay them (TCP_NODELAY). But the first write is never delayed: Nagle's rule as Linux
/// has it waits only behind a small segment in flight (Minshall). So the option is set before the second, and
/// a connection of one request saves the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delays {
    /// No write was made yet.
    NotYet,
    /// One write was made: TCP_NODELAY before the next.
    FromNowOn,
    /// TCP_NODELAY is set.
    Never,
}

/// Streams registered in one turn after a recovery: 150 us.
const REGISTERED_AT_ONCE: usize = 128;

/// Addresses at most that are kept in mind without being listed any more.
const GONE_MAX: usize = 256;

/// All host sockets of one worker, and the epoll instance they report to.
#[derive(Debug)]
pub struct Sockets {
    epoll: OwnedFd,
    /// By descriptor number: the kernel gives the lowest free one, so this stays dense.
    by_fd: Vec<Option<Open>>,
    open: usize,
    /// The host's addresses, sorted, if they are known.
    addresses: Option<Arc<[IpAddr]>>,
    /// Addresses that the last change has taken, sorted.
    lost: Box<[IpAddr]>,
    /// Flows that send through the socket of a published port.
    shared: Slab<published::Shared>,
    /// Requests about promotion.
    requests: Requests,
    journal: DriverJournal,
    /// Source of connections and datagrams.
    outbound: Outbound,
    /// Ports of the guest's UDP flows, of all workers.
    udp_ports: UdpPorts,
    /// Streams at rest of a recovery, which wait for their registration ([`Self::register_some`]).
    unregistered: Vec<(SocketId, FlowId)>,
    /// Frames of which parts are sent from the guest's memory.
    unread: Option<Arc<UnreadFrames>>,
}

impl Sockets {
    /// No sockets, and an epoll instance of their own.
    ///
    /// # Errors
    /// epoll_create1 failed: no descriptor or no memory.
    pub fn new() -> io::Result<Self> {
        Ok(Self::on(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// No sockets yet, on an epoll instance where some may be registered.
    pub(crate) fn on(epoll: OwnedFd) -> Self {
        let (by_fd, shared, requests, journal, outbound, udp_ports) = Default::default();
        let unregistered = Vec::new();
        Self {
            epoll,
            by_fd,
            open: 0,
            addresses: None,
            lost: Box::default(),
            shared,
            requests,
            journal,
            outbound,
            udp_ports,
            unregistered,
            unread: None,
        }
    }

    /// Sends parts of frames that the guest's link leaves unread from where they are.
    pub(crate) fn send_unread(&mut self, frames: Option<Arc<UnreadFrames>>) {
        self.unread = frames;
    }

    /// Sends by a stream socket.
    fn send_stream(
        &mut self,
        socket: SocketId,
        offered: usize,
        send: impl FnOnce(BorrowedFd<'_>) -> Result<usize, Errno>,
    ) -> Result<usize, HostError> {
        let open = self.get_mut(socket)?;
        match open.delays {
            Delays::NotYet => open.delays = Delays::FromNowOn,
            Delays::FromNowOn => {
                sockopt::set_tcp_nodelay(&open.fd, true).map_err(host_error)?;
                open.delays = Delays::Never;
            }
            Delays::Never => {}
        }
        let sent = send(open.fd.as_fd());
        if sent == Err(Errno::AGAIN) || sent.is_ok_and(|taken| taken < offered) {
            self.report_room(socket)?;
        }
        sent.map_err(host_error)
    }

    /// The epoll instance. Events of sockets carry [`FlowId::to_bits`]; the driver adds its own descriptors.
    pub fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The round trip to the peer of a connected stream as the kernel estimates it.
    pub fn round_trip(&self, socket: SocketId) -> Option<Duration> {
        let rtt_us = TcpInfo::of(self.get(socket).ok()?.as_fd()).ok()?.rtt_us;
        (rtt_us > 0).then(|| Duration::from_micros(rtt_us.into()))
    }

    /// Whether a datagram socket sends to `peer`.
    pub fn sends_to(&self, socket: SocketId, peer: SocketAddr) -> bool {
        let connected = || rustix::net::getpeername(self.get(socket).ok()?).ok()??.try_into().ok();
        self.shared_peer(socket).or_else(connected) == Some(peer)
    }

    /// Number of open sockets.
    pub fn open(&self) -> usize {
        self.open
    }

    /// The same with a source for what leaves.
    #[must_use]
    pub fn leaving_from(self, outbound: Outbound) -> Self {
        Self { outbound, ..self }
    }

    /// The ports of the guest's UDP flows on the host, if those have its own.
    pub(crate) fn udp_ports(&self) -> Option<UdpPorts> {
        (self.outbound.ports == SourcePorts::Guest).then(|| self.udp_ports.clone())
    }

    /// The same with the ports of other workers.
    #[must_use]
    pub(crate) fn sharing_ports(self, udp_ports: UdpPorts) -> Self {
        Self { udp_ports, ..self }
    }

    /// Sets the host's addresses, sorted, from which the next change is counted.
    pub(crate) fn assume_addresses(&mut self, addresses: Arc<[IpAddr]>) {
        self.addresses = Some(addresses);
    }

    /// Sets the host's addresses, sorted, after a change: lost are those that were listed before it.
    ///
    /// An address that was never listed says nothing by its absence. All of 127/8 is local without being
    /// listed, and so is each prefix of a local route (AnyIP, `ip route add local 192.0.2.0/24 dev lo`).
    pub(crate) fn set_addresses(&mut self, addresses: Arc<[IpAddr]>) {
        let before = self.addresses.take().unwrap_or_default();
        let is_lost = |ip: &IpAddr| !ip.is_loopback() && addresses.binary_search(ip).is_err();
        let lost: Box<[IpAddr]> = before.iter().copied().filter(is_lost).collect();
        self.forget_sources(|address| lost.binary_search(&address).is_ok());
        (self.lost, self.addresses) = (lost, Some(addresses));
    }

    /// Adds addresses that came without a change of the network: link-local ones, which may be lost with the
    /// next change. Interfaces of containers come and go without any, so a few of those that are listed no
    /// more stay, or none.
    pub(crate) fn add_addresses(&mut self, listed: &Arc<[IpAddr]>) {
        let known = self.addresses.as_deref().unwrap_or_default();
        if listed.iter().all(|ip| known.binary_search(ip).is_ok()) {
            return;
        }
        let all: BTreeSet<IpAddr> = known.iter().chain(&**listed).copied().collect();
        let is_short = all.len() <= listed.len() + GONE_MAX;
        self.addresses = Some(if is_short { all.into_iter().collect() } else { listed.clone() });
    }

    /// Whether an address may be one of this host.
    fn may_be_own(&self, address: IpAddr) -> bool {
        let known = self.addresses.as_ref();
        address.is_loopback() || known.is_none_or(|known| known.binary_search(&address).is_ok())
    }

    /// Takes a connection accepted on a published port, for `flow`.
    ///
    /// # Errors
    /// It cannot be registered with epoll; it is closed with a reset.
    pub fn adopt(&mut self, flow: FlowId, accepted: OwnedFd) -> Result<SocketId, HostError> {
        // A reset if it is dropped below; switched off once it is registered.
        let _ = sockopt::set_socket_linger(&accepted, Some(Duration::ZERO));
        sockopt::set_socket_oobinline(&accepted, true).map_err(host_error)?;
        let socket = self.keep(flow, accepted, STREAM_EVENTS)?;
        sockopt::set_socket_linger(self.get(socket)?, None).map_err(host_error)?;
        Ok(socket)
    }

    /// Requests of the stack about promotion.
    pub(crate) fn requests(&mut self) -> &mut Requests {
        &mut self.requests
    }

    /// Whether there are such requests.
    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// The descriptor of an open socket.
    pub(crate) fn descriptor(&self, socket: SocketId) -> Option<BorrowedFd<'_>> {
        self.get(socket).ok().map(AsFd::as_fd)
    }

    /// The driver's part of the journal.
    pub(crate) fn journal(&self) -> DriverJournal {
        self.journal
    }

    /// A further descriptor of a stream, for a splice.
    ///
    /// # Errors
    /// It is not open, or there are no more descriptors.
    pub(crate) fn share_stream(&self, socket: SocketId) -> Result<OwnedFd, HostError> {
        rustix::io::fcntl_dupfd_cloexec(self.get(socket)?, 0).map_err(host_error)
    }

    /// Has a stream report its events, or only its failure. Readiness that exists by now is reported by the
    /// next wait.
    pub(crate) fn set_events(&self, socket: SocketId, on: bool) {
        let Some(Some(open)) = self.by_fd.get(socket.0 as usize) else { return };
        let room = if open.reports_room { EventFlags::OUT } else { EventFlags::empty() };
        let events = if on { STREAM_EVENTS | room } else { EventFlags::empty() };
        let data = EventData::new_u64(open.flow.to_bits());
        let set = epoll::modify(&self.epoll, &open.fd, data, events | EventFlags::ET);
        if set == Err(Errno::NOENT) {
            // One that a recovery was to register later.
            let _ = epoll::add(&self.epoll, &open.fd, data, events | EventFlags::ET);
        }
    }

    /// The descriptor behind an id. An id that is not open is a defect of the caller and reads as EBADF.
    fn get(&self, socket: SocketId) -> Result<&OwnedFd, HostError> {
        self.by_fd
            .get(socket.0 as usize)
            .and_then(Option::as_ref)
            .map(|open| &open.fd)
            .ok_or(HostError::Other(Errno::BADF.raw_os_error()))
    }

    /// The descriptor with its state; errors as of [`Self::get`].
    fn get_mut(&mut self, socket: SocketId) -> Result<&mut Open, HostError> {
        let open = self.by_fd.get_mut(socket.0 as usize).and_then(Option::as_mut);
        open.ok_or(HostError::Other(Errno::BADF.raw_os_error()))
    }

    /// Registers a socket for `flow` and keeps it. Earlier readiness is reported by the next wait.
    fn keep(&mut self, flow: FlowId, fd: OwnedFd, interest: EventFlags) -> Result<SocketId, HostError> {
        self.register(flow, &fd, interest).map_err(host_error)?;
        Ok(self.insert(flow, fd, interest))
    }

    fn register(&self, flow: FlowId, fd: &OwnedFd, interest: EventFlags) -> Result<(), Errno> {
        let data = EventData::new_u64(flow.to_bits());
        epoll::add(&self.epoll, fd, data, interest | EventFlags::ET)
    }

    /// Keeps a registered socket.
    fn insert(&mut self, flow: FlowId, fd: OwnedFd, interest: EventFlags) -> SocketId {
        let index = fd.as_raw_fd() as usize;
        if self.by_fd.len() <= index {
            self.by_fd.resize_with(index + 1, || None);
        }
        let reports_room = interest.contains(EventFlags::OUT);
        let (delays, datagram) = (Delays::NotYet, Datagram::default());
        let (passed, mapped, group, may_linger) = (None, None, None, false);
        self.by_fd[index] =
            Some(Open { fd, flow, reports_room, delays, datagram, passed, mapped, group, may_linger });
        self.open += 1;
        SocketId(index as u32)
    }

    /// Requests an event for room in a full stream. Room that exists by now is reported by the next wait.
    fn report_room(&mut self, socket: SocketId) -> Result<(), HostError> {
        if let Some(Some(open)) = self.by_fd.get_mut(socket.0 as usize)
            && !open.reports_room
        {
            let data = EventData::new_u64(open.flow.to_bits());
            let interest = STREAM_EVENTS | EventFlags::OUT | EventFlags::ET;
            let set = match epoll::modify(&self.epoll, &open.fd, data, interest) {
                Err(Errno::NOENT) => epoll::add(&self.epoll, &open.fd, data, interest),
                set => set,
            };
            set.map_err(host_error)?;
            open.reports_room = true;
        }
        Ok(())
    }
}

/// Readiness of a socket from the flags of its event.
pub fn readiness(flags: EventFlags) -> Readiness {
    Readiness {
        readable: flags.contains(EventFlags::IN),
        writable: flags.contains(EventFlags::OUT),
        read_closed: flags.intersects(EventFlags::RDHUP | EventFlags::HUP),
        error: flags.contains(EventFlags::ERR),
        urgent: flags.contains(EventFlags::PRI),
    }
}

/// Raises the soft limit on open descriptors to the hard one; returns the limit now in force, which is the
/// old one if it cannot be raised.
pub fn raise_nofile() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        // Refused only where the hard bound exceeds fs.nr_open; the soft bound then stays.
        let _ = setrlimit(Resource::Nofile, raised);
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    }
}

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

impl Host for Sockets {
    fn tcp_connect(&mut self, flow: FlowId, to: SocketAddr) -> Result<(SocketId, Connect), HostError> {
        let fd =
            rustix::net::socket_with(family(to.ip()), SocketType::STREAM, FLAGS, None).map_err(host_error)?;
        sockopt::set_socket_oobinline(&fd, true).map_err(host_error)?;
        self.outbound.apply(fd.as_fd(), to).map_err(address_error)?;
        probes::connect(flow, to);
        let connect = connect::connect(&fd, to).map_err(|errno| self.connect_error(errno, to))?;
        let room = match connect {
            Connect::Done => EventFlags::empty(),
            Connect::Pending => EventFlags::OUT,
        };
        Ok((self.keep(flow, fd, STREAM_EVENTS | room)?, connect))
    }

    fn tcp_connected(&mut self, socket: SocketId) -> Result<Connect, HostError> {
        connect::connected(self.get(socket)?, |peer| self.may_be_own(peer)).map_err(host_error)
    }

    fn tcp_send(&mut self, socket: SocketId, data: &[IoSlice<'_>]) -> Result<usize, HostError> {
        let offered = data.iter().map(|slice| slice.len()).sum();
        self.send_stream(socket, offered, |fd| {
            rustix::net::sendmsg(fd, data, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
        })
    }

    fn sends_unread(&self) -> bool {
        self.unread.is_some()
    }

    fn tcp_send_pieces(&mut self, socket: SocketId, pieces: &[Piece<'_>]) -> Result<usize, HostError> {
        let frames = self.unread.clone().ok_or(HostError::Unsupported)?;
        let offered = pieces.iter().map(Piece::len).sum();
        self.send_stream(socket, offered, |fd| frames.send(fd, pieces))
    }

    fn tcp_recv(&mut self, socket: SocketId, into: &mut [IoSliceMut<'_>]) -> Result<usize, HostError> {
        rustix::io::readv(self.get(socket)?, into).map_err(host_error)
    }

    fn tcp_error(&mut self, socket: SocketId) -> Option<HostError> {
        let fd = self.get(socket).ok()?;
        sockopt::socket_error(fd).unwrap_or_else(Err).err().map(host_error)
    }

    fn tcp_shutdown(&mut self, socket: SocketId) -> Result<(), HostError> {
        rustix::net::shutdown(self.get(socket)?, Shutdown::Write).map_err(host_error)
    }

    fn tcp_keep_alive(&mut self, socket: SocketId) {
        if let Ok(fd) = self.get(socket) {
            // A socket in any state takes this option.
            let _ = sockopt::set_socket_keepalive(fd, true);
        }
    }

    fn udp_open(
        &mut self,
        flow: FlowId,
        guest: Option<SocketAddr>,
        to: SocketAddr,
    ) -> Result<SocketId, HostError> {
        self.open_udp(flow, guest, to)
    }

    fn group_open(
        &mut self,
        flow: FlowId,
        guest: SocketAddr,
        group: SocketAddr,
    ) -> Result<SocketId, HostError> {
        self.open_group(flow, guest, group)
    }

    fn ping_open(&mut self, flow: FlowId, to: IpAddr) -> Result<SocketId, HostError> {
        self.open_ping(flow, to)
    }

    fn datagram_send(
        &mut self,
        socket: SocketId,
        data: &[IoSlice<'_>],
        segment: Option<u16>,
        fields: IpHeaderFields,
    ) -> Result<usize, HostError> {
        match self.shared(socket) {
            Some(shared) => shared.send(data, segment, fields),
            None => self.send_datagrams(socket, data, segment, fields),
        }
    }

    fn datagram_recv(
        &mut self,
        socket: SocketId,
        into: &mut [IoSliceMut<'_>],
        received: &mut [Received],
    ) -> Result<usize, HostError> {
        // Datagrams to a published port come by way of its listener.
        if self.shared(socket).is_some() {
            return Err(HostError::WouldBlock);
        }
        self.recv_datagrams(socket, into, received)
    }

    fn datagram_error(&mut self, socket: SocketId) -> Option<IcmpReport> {
        if self.shared(socket).is_some() {
            return None;
        }
        self.recv_error(socket)
    }

    fn is_stranded(&mut self, socket: SocketId) -> bool {
        if self.lost.is_empty() {
            return false;
        }
        let own = self.get(socket).ok().and_then(|fd| rustix::net::getsockname(fd).ok());
        let own = own.and_then(|own| SocketAddr::try_from(own).ok()).map(|own| own.ip().to_canonical());
        own.is_some_and(|own| self.lost.binary_search(&own).is_ok())
    }

    fn may_promote(&mut self, _: FlowId, key: &FlowKey) -> Result<(), Refusal> {
        self.requests.may_promote(key)
    }

    fn promote(&mut self, flow: FlowId, socket: SocketId, seed: &TcpSeed) -> Result<(), Refusal> {
        let SeedFields { guest, remote, .. } = *seed.fields();
        self.requests.may_promote_between(guest, remote)?;
        self.requests.push(Request::Promote { flow, socket, seed: Box::new(*seed) });
        Ok(())
    }

    fn carry(&mut self, flow: FlowId) {
        self.requests.push(Request::Carry(flow));
    }

    fn recall(&mut self, flow: FlowId) {
        self.requests.push(Request::Recall(flow));
    }

    fn close(&mut self, socket: SocketId, how: Close) {
        if published::is_shared(socket) {
            return self.leave(socket);
        }
        let Some(Open { fd, mapped, may_linger, .. }) =
            self.by_fd.get_mut(socket.0 as usize).and_then(Option::take)
        else {
            return;
        };
        if how == Close::Reset {
            // Any socket takes this option; only a stream's close makes a reset of it.
            let _ = sockopt::set_socket_linger(&fd, Some(Duration::ZERO));
        } else if may_linger {
            let _ = sockopt::set_socket_linger(&fd, None);
        }
        drop(fd);
        if let Some(mapped) = mapped {
            self.udp_ports.release(&mapped);
        }
        self.open -= 1;
    }
}

#[cfg(test)]
mod tests;
