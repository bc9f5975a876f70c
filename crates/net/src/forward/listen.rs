//! Listening sockets in the host's namespace or the guest's, and failures to open one.
//!
//! | For  | System calls |
//! |------|---------|
//! | both | socket (or one from the broker), setsockopt `IPV6_V6ONLY`, `SO_BINDTODEVICE`, bind |
//! | TCP  | setsockopt `SO_REUSEADDR` (connections of an earlier life may linger in `TIME_WAIT`), listen |
//! | UDP  | setsockopt `IP_PKTINFO`, `IP_RECVTOS`, `SO_RXQ_OVFL`, `SO_RCVBUF` and `UDP_GRO` |
//!
//! A UDP socket does not reuse its address: two programs would then share the port and one of them hear
//! nothing. It needs not, because nothing of it lingers. It shares its port only with connected sockets, for
//! which SO_REUSEPORT is set when it has the port for itself, or before if some of these have it
//! ([`PortSharing`]).

use super::{Forward, ForwardDirection, Transport};
use crate::socket_broker::{Kind, SocketBroker};
use crate::sys;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{netdevice, sockopt};
use rustix::process::Uid;
use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// Connections that wait to be accepted; the kernel takes no more than net.core.somaxconn.
const BACKLOG: i32 = 4096;
/// Requested receive buffer of a UDP socket, bytes; see `sockets/datagram.rs`.
const RECEIVE_BUFFER: i32 = 1 << 20;

/// One socket to open: direction, transport, address, port and interface to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenSpec {
    /// Namespace: [`ForwardDirection::In`] the host's, [`ForwardDirection::Out`] the guest's.
    pub direction: ForwardDirection,
    /// Protocol of the socket.
    pub transport: Transport,
    /// Address to bind.
    pub address: IpAddr,
    /// Port to bind.
    pub port: u16,
    /// The only interface to listen on.
    pub interface: Option<String>,
    /// Sockets with which it shares the port.
    pub shared: PortSharing,
}

/// Sockets that share the port of a listening UDP socket: those of flows that the guest begins from its
/// published port ([`crate::sockets`]), and no other user's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PortSharing {
    /// No other socket has it.
    #[default]
    None,
    /// Flows to come; none has the port now.
    Later,
    /// Also flows that have the port by now.
    Now,
}

/// Permissions and owner of listening sockets.
#[derive(Debug, Clone, Copy, Default)]
pub struct Opening {
    /// They may be bound to addresses that the host does not have.
    pub freebind: bool,
    /// Their user, if that is not the process's own: that of the flows with which they share a port.
    pub owner: Option<u32>,
}

/// Source of listening sockets other than this process: [`open`] in a process that may bind where this one
/// may not. Called at each start of a forward, and for `auto` with each change; it may wait.
pub type Opener = Box<dyn FnMut(&ListenSpec) -> Result<OwnedFd, ForwardError> + Send>;

impl Forward {
    /// Whether the forward can lead to a socket at `place`, whatever the host and the guest look like. For a
    /// process that opens sockets on behalf of another one.
    pub fn may_listen(&self, place: &ListenSpec) -> bool {
        let Self { direction, transport, spec } = self;
        (*direction, *transport) == (place.direction, place.transport)
            && spec.interface == place.interface
            && spec.address.is_none_or(|address| address == place.address)
            && spec.covers(place.port)
    }
}

/// Failure of a forward. `Display` gives one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForwardError {
    /// A socket could not be opened: its option, address, and the system call that failed.
    Socket {
        /// ForwardDirection of the forward.
        direction: ForwardDirection,
        /// Protocol of the socket.
        transport: Transport,
        /// Address and port.
        at: SocketAddr,
        /// On this interface alone.
        interface: Option<String>,
        /// The system call.
        call: Cow<'static, str>,
        /// Error of the kernel.
        errno: Errno,
    },
    /// A contradiction in itself or to other forwards.
    Invalid(String),
}

impl std::error::Error for ForwardError {}

impl ForwardError {
    /// Whether the address of the socket does not exist, as where a host is without one of the families.
    pub(super) fn is_absence(&self) -> bool {
        matches!(self, Self::Socket { errno: Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT, .. })
    }
}

impl fmt::Display for ForwardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (direction, transport, at, interface, call, errno) = match self {
            Self::Invalid(sentence) => return f.write_str(sentence),
            Self::Socket { direction, transport, at, interface, call, errno } => {
                (*direction, *transport, at, interface, &**call, *errno)
            }
        };
        let option = super::option(direction, transport);
        let words = std::io::Error::from(errno).to_string();
        let words = words.split(" (os error").next().unwrap_or_default();
        let side = if direction == ForwardDirection::Out { " in the guest" } else { "" };
        write!(f, "cannot listen on {transport} port {}{side} ({option}): {call} {at}", at.port())?;
        if let Some(interface) = interface {
            write!(f, " on {interface}")?;
        }
        write!(f, ": {words}")?;
        let letter = if transport == Transport::Tcp { 't' } else { 'u' };
        match (errno, direction) {
            (Errno::ACCESS | Errno::PERM, ForwardDirection::In) if at.port() < 1024 => write!(
                f,
                ": a privileged port: as root, sysctl net.ipv4.ip_unprivileged_port_start={}, or setcap \
                 cap_net_bind_service+ep on brodo, or publish a higher port ({option} {}:{})",
                at.port(),
                u32::from(at.port()) + 8000,
                at.port()
            ),
            (Errno::ADDRINUSE, ForwardDirection::In) => {
                write!(f, ": another program has the port: ss -l{letter}np 'sport = :{}' shows it", at.port())
            }
            (Errno::ADDRINUSE, ForwardDirection::Out) => write!(f, ": a program of the guest has the port"),
            (Errno::ADDRNOTAVAIL, ForwardDirection::In) => {
                write!(f, ": no interface of the host has this address")
            }
            (Errno::NODEV, _) => write!(f, ": there is no such interface"),
            (Errno::MFILE | Errno::NFILE, _) => {
                write!(f, ": raise the limit on open files (ulimit -Hn) or name fewer ports")
            }
            _ => Ok(()),
        }
    }
}

/// Opens a socket that listens. `broker` opens those of the guest's namespace.
///
/// # Errors
/// [`ForwardError::Socket`].
pub fn open(
    place: &ListenSpec,
    Opening { freebind, owner }: Opening,
    broker: Option<&mut SocketBroker>,
) -> Result<OwnedFd, ForwardError> {
    let ListenSpec { direction, transport, address, port, ref interface, shared } = *place;
    let fail = |call: &'static str| {
        let (at, interface, call) = (SocketAddr::new(address, port), interface.clone(), call.into());
        move |errno| ForwardError::Socket { direction, transport, at, interface, call, errno }
    };
    let kind = Kind::of(transport == Transport::Tcp, address.is_ipv6());
    let fd = match (direction, broker) {
        (ForwardDirection::In, _) => kind.open(),
        (ForwardDirection::Out, Some(broker)) => broker.socket(kind),
        (ForwardDirection::Out, None) => Err(Errno::PIPE),
    }
    .map_err(fail("socket"))?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true).map_err(fail("setsockopt IPV6_V6ONLY"))?;
    }
    if freebind {
        let (level, option) = if address.is_ipv6() {
            (libc::SOL_IPV6, libc::IPV6_FREEBIND)
        } else {
            (libc::SOL_IP, libc::IP_FREEBIND)
        };
        sys::set_socket_option(fd.as_fd(), level, option, 1).map_err(fail("setsockopt IP_FREEBIND"))?;
    }
    if let Some(name) = interface {
        sys::bind_to_device(fd.as_fd(), name).map_err(fail("setsockopt SO_BINDTODEVICE"))?;
    }
    match transport {
        Transport::Tcp => {
            sockopt::set_socket_reuseaddr(&fd, true).map_err(fail("setsockopt SO_REUSEADDR"))?;
        }
        Transport::Udp => datagram_options(&fd, address.is_ipv6()),
    }
    if shared != PortSharing::None
        && let Some(owner) = owner
    {
        // Without it flows of the guest's leave from other ports.
        let _ = rustix::fs::fchown(&fd, Some(Uid::from_raw(owner)), None);
    }
    if shared == PortSharing::Now {
        sockopt::set_socket_reuseport(&fd, true).map_err(fail("setsockopt SO_REUSEPORT"))?;
    }
    let at = match (address, interface) {
        (IpAddr::V6(v6), Some(name)) if v6.is_unicast_link_local() => {
            let index = netdevice::name_to_index(&fd, name).map_err(fail("ioctl SIOCGIFINDEX"))?;
            SocketAddrV6::new(v6, port, 0, index).into()
        }
        _ => SocketAddr::new(address, port),
    };
    rustix::net::bind(&fd, &at).map_err(fail("bind"))?;
    if transport == Transport::Tcp {
        rustix::net::listen(&fd, BACKLOG).map_err(fail("listen"))?;
    }
    if shared == PortSharing::Later {
        sockopt::set_socket_reuseport(&fd, true).map_err(fail("setsockopt SO_REUSEPORT"))?;
    }
    Ok(fd)
}

/// Ancillary data of each received datagram.
pub(super) fn datagram_options(fd: &OwnedFd, ipv6: bool) {
    let (level, address, tos) = if ipv6 {
        (libc::SOL_IPV6, libc::IPV6_RECVPKTINFO, libc::IPV6_RECVTCLASS)
    } else {
        (libc::SOL_IP, libc::IP_PKTINFO, libc::IP_RECVTOS)
    };
    let options = [
        (level, address, 1),
        (level, tos, 1),
        (libc::SOL_UDP, libc::UDP_GRO, 1),
        (libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1),
        (libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BUFFER),
    ];
    for (level, option, value) in options {
        // UDP_GRO is Linux 5.0 and later; the others are older than brodo's oldest kernel.
        let _ = sys::set_socket_option(fd.as_fd(), level, option, value);
    }
}
