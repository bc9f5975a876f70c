//! Source of connections and datagrams to the outside: an address, an interface, or both, of each family; the
//! ports of UDP ([`super::udp_ports`]).
//!
//! | For | System calls |
//! |---|---|
//! | an interface | setsockopt SO_BINDTODEVICE, but for peers on the loopback |
//! | an address | setsockopt IP_BIND_ADDRESS_NO_PORT, bind with port 0 |
//!
//! IP_BIND_ADDRESS_NO_PORT leaves the port of TCP to connect, so connections to different peers may share it.

use super::udp_ports::SourcePorts;
use crate::sys;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Sources of both families.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outbound {
    /// That of IPv4.
    pub v4: Source,
    /// That of IPv6.
    pub v6: Source,
    /// Ports of UDP.
    pub ports: SourcePorts,
}

/// Source of one family; by default the kernel's choice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// Address of the host's.
    pub address: Option<IpAddr>,
    /// Name of an interface of the host's.
    pub interface: Option<String>,
}

impl Outbound {
    /// Whether sockets of a family leave from an address.
    pub fn binds(&self) -> bool {
        self.v4.address.is_some() || self.v6.address.is_some()
    }

    /// Whether sockets of a family leave by an interface.
    pub fn names_interface(&self) -> bool {
        self.v4.interface.is_some() || self.v6.interface.is_some()
    }

    /// Gives `socket` its source before it is connected to `peer`.
    ///
    /// # Errors
    /// The host has no such address (`EADDRNOTAVAIL`) or interface (`ENODEV`) any more.
    pub(super) fn apply(&self, socket: BorrowedFd<'_>, peer: SocketAddr) -> Result<(), Errno> {
        self.choose_interface(socket, peer)?;
        self.choose_address(socket, peer)
    }

    /// The part of [`Self::apply`] about the interface.
    ///
    /// # Errors
    /// The host has no such interface any more.
    pub(super) fn choose_interface(&self, socket: BorrowedFd<'_>, peer: SocketAddr) -> Result<(), Errno> {
        match &self.source(peer).interface {
            Some(interface) if !peer.ip().is_loopback() => sys::bind_to_device(socket, interface),
            _ => Ok(()),
        }
    }

    /// The part of [`Self::apply`] about the address.
    ///
    /// # Errors
    /// The host has no such address any more.
    pub(super) fn choose_address(&self, socket: BorrowedFd<'_>, peer: SocketAddr) -> Result<(), Errno> {
        let Some(address) = self.source(peer).address else { return Ok(()) };
        // Refused by sockets other than TCP and UDP, whose port this does not concern.
        let _ = sys::set_socket_option(socket, libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
        rustix::net::bind(socket, &SocketAddr::new(address, 0))
    }

    /// The address to bind a socket to that is connected to `peer`: unspecified if it is the kernel's choice.
    pub(super) fn address(&self, peer: SocketAddr) -> IpAddr {
        let any: IpAddr =
            if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        self.source(peer).address.unwrap_or(any)
    }

    fn source(&self, peer: SocketAddr) -> &Source {
        if peer.is_ipv4() { &self.v4 } else { &self.v6 }
    }
}
