//! Source of connections and datagrams to the outside: an address, an interface, or both, of each family.
//!
//! | For | System calls |
//! |---|---|
//! | an interface | setsockopt SO_BINDTODEVICE, but for peers on the loopback |
//! | an address | bind with port 0; for TCP before it setsockopt IP_BIND_ADDRESS_NO_PORT, so that connect chooses the port and connections to different peers may share it |

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
    /// Whether every source is the kernel's choice.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
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
