//! Sockets that listen, in the host's namespace or the guest's, and why one could not be had.
//!
//! | For  | System calls |
//! |------|---------|
//! | both | socket (or one from the broker), setsockopt `IPV6_V6ONLY`, `SO_BINDTODEVICE`, bind |
//! | TCP  | setsockopt `SO_REUSEADDR` (connections of an earlier life may linger in `TIME_WAIT`), listen |
//! | UDP  | setsockopt `IP_PKTINFO`, `IP_RECVTOS`, `SO_RXQ_OVFL`, `SO_RCVBUF` and `UDP_GRO` |
//!
//! A UDP socket does not reuse its address: two programs would then share the port and one of them hear
//! nothing. It needs not, because nothing of it lingers.

use super::{Direction, Transport};
use crate::socket_broker::{Kind, SocketBroker};
use crate::sys;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{netdevice, sockopt};
use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// Connections that wait to be accepted; the kernel takes no more than net.core.somaxconn.
const BACKLOG: i32 = 4096;
/// Requested receive buffer of a UDP socket, bytes; see `sockets/datagram.rs`.
const RECEIVE_BUFFER: i32 = 1 << 20;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) direction: Direction,
    pub(super) transport: Transport,
    pub(super) address: IpAddr,
    pub(super) port: u16,
    pub(super) interface: Option<String>,
}

/// Why a forward is not there. `Display` gives one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForwardError {
    /// A socket could not be had: which of the options asked for it, where, and the system call that refused.
    Socket {
        /// Which way.
        direction: Direction,
        /// Of which protocol.
        transport: Transport,
        /// Address and port.
        at: SocketAddr,
        /// On this interface alone.
        interface: Option<String>,
        /// The system call.
        call: &'static str,
        /// Error of the kernel.
        errno: Errno,
    },
    /// It makes no sense, alone or beside the others.
    Invalid(String),
}

impl std::error::Error for ForwardError {}

impl fmt::Display for ForwardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (direction, transport, at, interface, call, errno) = match self {
            Self::Invalid(sentence) => return f.write_str(sentence),
            Self::Socket { direction, transport, at, interface, call, errno } => {
                (*direction, *transport, at, interface, call, *errno)
            }
        };
        let option = super::option(direction, transport);
        let words = std::io::Error::from(errno).to_string();
        let words = words.split(" (os error").next().unwrap_or_default();
        let side = if direction == Direction::Out { " in the guest" } else { "" };
        write!(f, "cannot listen on {transport} port {}{side} ({option}): {call} {at}", at.port())?;
        if let Some(interface) = interface {
            write!(f, " on {interface}")?;
        }
        write!(f, ": {words}")?;
        let letter = if transport == Transport::Tcp { 't' } else { 'u' };
        match (errno, direction) {
            (Errno::ACCESS | Errno::PERM, Direction::In) if at.port() < 1024 => write!(
                f,
                ": ports this low are not for every user: as root, sysctl net.ipv4.ip_unprivileged_port_start={}, or give \
                 brodo the right with setcap cap_net_bind_service+ep, or publish a higher port ({option} {}:{})",
                at.port(),
                u32::from(at.port()) + 8000,
                at.port()
            ),
            (Errno::ADDRINUSE, Direction::In) => {
                write!(
                    f,
                    ": another program has the port: ss -l{letter}np 'sport = :{}' tells which",
                    at.port()
                )
            }
            (Errno::ADDRINUSE, Direction::Out) => write!(f, ": a program of the guest has the port"),
            (Errno::ADDRNOTAVAIL, Direction::In) => write!(f, ": no interface of the host has this address"),
            (Errno::NODEV, _) => write!(f, ": there is no such interface"),
            (Errno::MFILE | Errno::NFILE, _) => {
                write!(f, ": raise the limit on open files (ulimit -Hn) or name fewer ports")
            }
            _ => Ok(()),
        }
    }
}

/// Opens a socket that listens. `broker` opens those of the guest's namespace.
pub(super) fn open(place: &Place, broker: Option<&mut SocketBroker>) -> Result<OwnedFd, ForwardError> {
    let Place { direction, transport, address, port, ref interface } = *place;
    let fail = |call| {
        let (at, interface) = (SocketAddr::new(address, port), interface.clone());
        move |errno| ForwardError::Socket { direction, transport, at, interface, call, errno }
    };
    let kind = Kind::of(transport == Transport::Tcp, address.is_ipv6());
    let fd = match (direction, broker) {
        (Direction::In, _) => kind.open(),
        (Direction::Out, Some(broker)) => broker.socket(kind),
        (Direction::Out, None) => Err(Errno::PIPE),
    }
    .map_err(fail("socket"))?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true).map_err(fail("setsockopt IPV6_V6ONLY"))?;
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
