//! The socket broker: a process that opens sockets in the guest's network namespace and does nothing else,
//! and its client here.
//!
//! brodo stays in the host's namespaces, and a process may not change its user namespace once it has threads.
//! But a socket belongs to the namespace it was opened in for its life, whichever process holds it: bound,
//! listening or connected by brodo it acts in the guest's. So socket(2) is the only call to be made in there.
//! `brodo-netns` starts the process and confines it; both ends of its conversation over a socket pair are in
//! this file, [`SocketBroker`] and [`serve`]:
//!
//! ```text
//! brodo                                   broker
//! kind, number           -->
//!                        <-- kind, errno, descriptors
//! 255 and a channel      -->
//! ```
//!
//! *Several clients.* The first client may give the broker further channels ([`SocketBroker::another`]), each
//! for a process of its own: one binds and listens, another connects. A client on a further channel can ask
//! for sockets and for nothing else.
//!
//! *Trust.* A request is two bytes without room for misinterpretation. Received descriptors are checked
//! before use: each is a socket of the requested family and type. The broker does not wait for a client to
//! take an answer: a channel without room for one is closed. A client has one request for each kind under
//! way.
//!
//! *Pools.* A connection to the guest's loopback must not wait for another process, so brodo keeps some
//! unconnected sockets of each kind once requested, and has them replaced before they run out. At the start,
//! and when a forward is added, it waits for the answer instead ([`SocketBroker::socket`]), within
//! [`PATIENCE`].
//!
//! System calls: sendmsg, recvmsg, poll; those of [`helper_end`]; in the broker socket, recvfrom, sendmsg.

use crate::{fd_passing, helper_end};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, netlink, sockopt};
use rustix::process::{Pid, WaitStatus};
use std::time::{Duration, Instant};

/// Sockets of a kind kept in store, and requested at a time.
const STORE: usize = 32;
/// Number of remaining sockets below which more are requested.
const LOW: usize = 16;
/// First byte of the request that passes a further channel.
const CHANNEL: u8 = 255;
/// Most channels of a broker: that of the first client, and some whose ends it has yet to notice.
const CHANNELS_MAX: usize = 4;
/// Longest wait in [`SocketBroker::socket`]: the broker has to be given a processor.
const PATIENCE: Duration = Duration::from_secs(2);

/// Kinds of socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv4.
    Udp4,
    /// UDP over IPv6.
    Udp6,
    /// Netlink `SOCK_DIAG`, which lists sockets.
    Diag,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Tcp4, Self::Tcp6, Self::Udp4, Self::Udp6, Self::Diag];

    /// TCP or UDP of a family.
    pub fn of(stream: bool, ipv6: bool) -> Self {
        match (stream, ipv6) {
            (true, false) => Self::Tcp4,
            (true, true) => Self::Tcp6,
            (false, false) => Self::Udp4,
            (false, true) => Self::Udp6,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }

    fn domain(self) -> AddressFamily {
        match self {
            Self::Tcp4 | Self::Udp4 => AddressFamily::INET,
            Self::Tcp6 | Self::Udp6 => AddressFamily::INET6,
            Self::Diag => AddressFamily::NETLINK,
        }
    }

    fn socket_type(self) -> SocketType {
        match self {
            Self::Tcp4 | Self::Tcp6 => SocketType::STREAM,
            Self::Udp4 | Self::Udp6 => SocketType::DGRAM,
            Self::Diag => SocketType::RAW,
        }
    }

    /// Opens one in the namespace of the caller.
    pub fn open(self) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let protocol = (self == Self::Diag).then_some(netlink::SOCK_DIAG);
        rustix::net::socket_with(self.domain(), self.socket_type(), flags, protocol)
    }

    /// Whether a descriptor is of this kind.
    fn is(self, socket: &OwnedFd) -> bool {
        sockopt::socket_domain(socket) == Ok(self.domain())
            && sockopt::socket_type(socket) == Ok(self.socket_type())
    }
}

/// brodo's end.
#[derive(Debug)]
pub struct SocketBroker {
    /// The child to wait for at the end, of the first client.
    pid: Option<Pid>,
    channel: OwnedFd,
    stores: [Store; Kind::ALL.len()],
    gone: bool,
}

#[derive(Debug, Default)]
struct Store {
    sockets: Vec<OwnedFd>,
    asked: bool,
    /// Error of the last answer without a socket.
    refusal: Option<Errno>,
}

impl SocketBroker {
    /// The client of the child `pid`, which runs [`serve`] on the other end of `channel`.
    ///
    /// # Errors
    /// The descriptor cannot be made non-blocking.
    pub fn new(pid: Pid, channel: OwnedFd) -> Result<Self, Errno> {
        let mut broker = Self::on(channel)?;
        broker.pid = Some(pid);
        Ok(broker)
    }

    /// The process of the broker, of its first client.
    pub fn process(&self) -> Option<Pid> {
        self.pid
    }

    /// Ends the broker, if this is its first client, without a wait for its end, which is that of `drop`.
    pub fn shut_down(&self) {
        if self.pid.is_some() {
            let _ = rustix::net::shutdown(&self.channel, Shutdown::Both);
        }
    }

    /// Ends the broker and waits for that, if this is its first client and parent; its end. One that goes on
    /// for five seconds is killed; `None` if it may not be.
    pub fn end(&mut self) -> Option<WaitStatus> {
        self.shut_down();
        helper_end::await_end(self.pid.take()?)
    }

    /// The client at the end of a further channel ([`SocketBroker::another`]).
    ///
    /// # Errors
    /// The descriptor cannot be made non-blocking.
    pub fn on(channel: OwnedFd) -> Result<Self, Errno> {
        rustix::io::ioctl_fionbio(&channel, true)?;
        Ok(Self { pid: None, channel, stores: Default::default(), gone: false })
    }

    /// A further channel to the same broker, for a client in another process: [`SocketBroker::on`].
    ///
    /// # Errors
    /// No descriptors are left, or the broker has ended.
    pub fn another(&self) -> Result<OwnedFd, Errno> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // A kernel before 6.16 cannot.
        let _ = fd_passing::refuse(&theirs);
        fd_passing::send(&self.channel, &[CHANNEL, 0], &[theirs.as_fd()], SendFlags::empty())?;
        Ok(ours)
    }

    /// Readable when [`SocketBroker::receive`] has something to do.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Whether it has ended, for example killed by a signal.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Requests sockets of a kind that will be taken from the store.
    pub fn prepare(&mut self, kind: Kind) {
        if self.stores[kind as usize].sockets.len() < LOW {
            self.ask(kind, STORE);
        }
    }

    /// A socket from the store, if there is one now; more come soon ([`SocketBroker::receive`]).
    ///
    /// # Errors
    /// `AGAIN`: try again after the broker's answer. Otherwise the broker's failure.
    pub fn take(&mut self, kind: Kind) -> Result<OwnedFd, Errno> {
        let store = &mut self.stores[kind as usize];
        let socket = store.sockets.pop();
        let refusal = store.refusal.take();
        self.prepare(kind);
        match (socket, refusal) {
            (Some(socket), _) => Ok(socket),
            (None, Some(errno)) => Err(errno),
            (None, None) if self.gone => Err(Errno::PIPE),
            (None, None) => Err(Errno::AGAIN),
        }
    }

    /// A socket, after a wait if need be.
    ///
    /// # Errors
    /// The kernel refused it in there, or the broker does not answer in time.
    pub fn socket(&mut self, kind: Kind) -> Result<OwnedFd, Errno> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.take(kind) {
                Err(Errno::AGAIN) => {}
                other => return other,
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Errno::TIMEDOUT);
            }
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.channel, PollFlags::IN)], Some(&left)) {
                Ok(_) | Err(Errno::INTR) => self.receive(),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn ask(&mut self, kind: Kind, count: usize) {
        let store = &mut self.stores[kind as usize];
        if store.asked || self.gone {
            return;
        }
        let request = [kind as u8, count as u8];
        match rustix::net::send(&self.channel, &request, SendFlags::NOSIGNAL) {
            Ok(_) => store.asked = true,
            // Several requests are pending; the next time then.
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => {}
            Err(_) => self.gone = true,
        }
    }

    /// Puts answered sockets into the store.
    pub fn receive(&mut self) {
        loop {
            match receive(&self.channel) {
                Ok(Some(Opened { kind, refusal, sockets })) => {
                    let store = &mut self.stores[kind as usize];
                    store.asked = false;
                    // The kernel omits a descriptor that cannot be received, for want of descriptors.
                    store.sockets.extend(sockets.into_iter().filter(|socket| kind.is(socket)));
                    store.refusal = refusal.or(store.sockets.is_empty().then_some(Errno::MFILE));
                }
                Err(Errno::AGAIN) => return,
                Ok(None) | Err(_) => {
                    self.gone = true;
                    return;
                }
            }
        }
    }
}

impl Drop for SocketBroker {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// One answer of the broker.
struct Opened {
    kind: Kind,
    /// Error of the socket call that ended the answer early, if one did.
    refusal: Option<Errno>,
    sockets: Vec<OwnedFd>,
}

/// Reads one answer; `None` at the end of the conversation.
fn receive(channel: &OwnedFd) -> Result<Option<Opened>, Errno> {
    let mut bytes = [0; 5];
    let fd_passing::Received { length, descriptors: sockets } =
        fd_passing::receive(channel, &mut bytes, STORE, RecvFlags::empty())?;
    let [kind, e0, e1, e2, e3] = bytes;
    match Kind::from_byte(kind) {
        _ if length == 0 => Ok(None),
        Some(kind) if length == bytes.len() => {
            let errno = i32::from_ne_bytes([e0, e1, e2, e3]);
            let refusal = (errno > 0).then(|| Errno::from_raw_os_error(errno));
            Ok(Some(Opened { kind, refusal, sockets }))
        }
        _ => Err(Errno::BADMSG),
    }
}

/// In the broker: answers requests of all channels until the first client has closed its own.
pub fn serve(channel: OwnedFd) {
    let mut channels = vec![channel];
    loop {
        let mut ready: Vec<PollFd<'_>> =
            channels.iter().map(|channel| PollFd::new(channel, PollFlags::IN)).collect();
        match poll(&mut ready, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return,
        }
        let ready: Vec<usize> =
            (0..ready.len()).filter(|&index| !ready[index].revents().is_empty()).collect();
        for index in ready.into_iter().rev() {
            match serve_one(&channels[index]) {
                Ok(Some(further)) if index == 0 && channels.len() < CHANNELS_MAX => channels.push(further),
                Ok(_) => {}
                Err(Ended) if index == 0 => return,
                Err(Ended) => drop(channels.remove(index)),
            }
        }
    }
}

/// The other end of a channel is closed, or does not keep to the conversation.
struct Ended;

/// Answers one request; a further channel is returned.
fn serve_one(channel: &OwnedFd) -> Result<Option<OwnedFd>, Ended> {
    let mut request = [0; 2];
    let received = fd_passing::receive(channel, &mut request, 1, RecvFlags::empty());
    let received = received.ok().filter(|received| received.length == request.len()).ok_or(Ended)?;
    let [kind, count] = request;
    if kind == CHANNEL {
        return Ok(received.descriptors.into_iter().next());
    }
    let kind = Kind::from_byte(kind).ok_or(Ended)?;
    let mut sockets = Vec::with_capacity(STORE);
    let mut refusal = 0;
    while sockets.len() < usize::from(count).min(STORE) {
        match kind.open() {
            Ok(socket) => sockets.push(socket),
            Err(errno) => {
                refusal = errno.raw_os_error();
                break;
            }
        }
    }
    let mut answer = [0; 5];
    answer[0] = kind as u8;
    if sockets.is_empty() {
        answer[1..].copy_from_slice(&refusal.to_ne_bytes());
    }
    let descriptors: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    match fd_passing::send(channel, &answer, &descriptors, SendFlags::DONTWAIT) {
        Ok(_) => Ok(None),
        Err(_) => Err(Ended),
    }
}

#[cfg(test)]
mod tests;
