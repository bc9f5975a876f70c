//! Source of connections and datagrams to the outside: an address, an interface, or both, of each family.
//!
//! | For | System calls |
//! |---|---|
//! | an interface | setsockopt SO_BINDTODEVICE, but for peers on the loopback |
//! | an address | setsockopt IP_BIND_ADDRESS_NO_PORT, bind with port 0 |
//!
//! IP_BIND_ADDRESS_NO_PORT leaves the port of TCP to connect, so connections to different peers may share it.

use crate::sys;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::net::{IpAddr, SocketAddr};

/// Sources of both families.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outbound {
    /// That of IPv4.
    pub v4: Source,
    /// That of IPv6.
    pub v6: Source,
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
        let source = if peer.is_ipv4() { &self.v4 } else { &self.v6 };
        if let Some(interface) = &source.interface
            && !peer.ip().is_loopback()
        {
            sys::bind_to_device(socket, interface)?;
        }
        let Some(address) = source.address else { return Ok(()) };
        // Refused by sockets other than TCP and UDP, whose port this does not concern.
        let _ = sys::set_socket_option(socket, libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
        rustix::net::bind(socket, &SocketAddr::new(address, 0))
    }
}
