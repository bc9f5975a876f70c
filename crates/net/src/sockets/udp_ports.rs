//! UDP ports of the guest on the host: endpoint-independent mapping (RFC 4787, 4.1) with port preservation
//! (4.2).
//!
//! All datagrams of one address and port of the guest leave from one port of the host, whatever their
//! destination: a peer can tell another at which address the guest is reached (STUN, WireGuard). It is the
//! guest's own port where that is free on the host, else one of the kernel's choice.
//!
//! Each flow keeps a connected socket of its own, with its own errors, buffer and header fields; those of one
//! port of the guest's are bound to the same port of the host. The kernel gives a datagram to the socket that
//! is connected to its source, and refuses those of other peers. So filtering stays address- and
//! port-dependent (RFC 4787, 5): peers that the guest has not addressed reach it by published ports alone.
//!
//! *Binding.* The first flow of a port binds it without SO_REUSEPORT, which fails if any other socket has it,
//! one of another brodo too. Then the option is set, with which further sockets join, of the same user alone.
//! A socket that may not join has a port of its own, and so has a second one to the same peer (the guest may
//! know two addresses of it): the kernel could not tell the two apart.
//!
//! *Published ports.* Datagrams that the guest sends from a published port leave from the port of the host
//! that leads there: their flows join the listening socket, which gets those of other peers. A port that is
//! published while flows have it joins them ([`crate::forward::PortSharing`]).
//!
//! A mapping lasts as long as one of its flows. Bounds are those of the flows: [`crate::ephemeral_ports`].

use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseport};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ports of the host on which UDP flows of the guest leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SourcePorts {
    /// One for each of the guest's, of the same number where it is free.
    #[default]
    Guest,
    /// One of the kernel's choice for each flow.
    Any,
}

/// A flow between a port of the guest and a peer as the host knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mapped {
    pub(super) guest: SocketAddr,
    pub(super) peer: SocketAddr,
}

/// The port for a further flow.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    /// The guest's port has none yet.
    First,
    /// That of the other flows.
    Joined(u16),
    /// That at which the guest's port is published.
    Published(u16),
    /// One of its own.
    Apart,
}

/// A UDP port of the guest and the place on the host at which it is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PublishedPort {
    pub(crate) v6: bool,
    pub(crate) guest_port: u16,
    pub(crate) at: (IpAddr, u16),
}

/// Ports of the host in use.
#[derive(Debug, Default)]
struct Table {
    flows: BTreeMap<Mapped, u16>,
    published: BTreeSet<PublishedPort>,
}

impl Table {
    fn choose(&self, flow: &Mapped) -> Choice {
        const LEAST: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
        if self.flows.contains_key(flow) {
            return Choice::Apart;
        }
        let next = self.flows.range(Mapped { peer: LEAST, ..*flow }..).next();
        match next.filter(|(other, _)| other.guest == flow.guest) {
            Some((_, port)) => Choice::Joined(*port),
            None => self.published_at(flow.guest).map_or(Choice::First, Choice::Published),
        }
    }

    /// The port of the host that leads to one of the guest's: the same number rather than another.
    fn published_at(&self, guest: SocketAddr) -> Option<u16> {
        let (v6, guest_port) = (guest.is_ipv6(), guest.port());
        let least = PublishedPort { v6, guest_port, at: (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0) };
        let its = self.published.range(least..).take_while(|it| (it.v6, it.guest_port) == (v6, guest_port));
        let mut ports = its.map(|it| it.at.1);
        let first = ports.next()?;
        Some(if ports.any(|port| port == guest_port) { guest_port } else { first })
    }
}

/// The table, for all workers.
#[derive(Debug, Clone, Default)]
pub(crate) struct UdpPorts(Arc<Mutex<Table>>);

impl UdpPorts {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds the socket of a flow to the port of its guest's port at `address`, and returns that; `None` if
    /// the flow is to have one of its own.
    ///
    /// # Errors
    /// The host has no such address, or no port is left.
    pub(super) fn bind(
        &self,
        socket: BorrowedFd<'_>,
        flow: Mapped,
        address: IpAddr,
    ) -> Result<Option<u16>, Errno> {
        let mut table = self.table();
        let port = match table.choose(&flow) {
            Choice::Joined(port) | Choice::Published(port) if join(socket, address, port)? => port,
            Choice::Published(_) | Choice::First => bind_first(socket, address, flow.guest.port())?,
            Choice::Joined(_) | Choice::Apart => return Ok(None),
        };
        table.flows.insert(flow, port);
        Ok(Some(port))
    }

    /// Takes a flow with a socket of another process, which has a port.
    pub(super) fn adopt(&self, socket: BorrowedFd<'_>, flow: Mapped, port: u16) -> Result<bool, Errno> {
        let mut table = self.table();
        if table.choose(&flow) == Choice::Apart {
            return Ok(false);
        }
        set_socket_reuseport(socket, true)?;
        table.flows.insert(flow, port);
        Ok(true)
    }

    /// The flow has ended; its socket may still be open.
    pub(super) fn release(&self, flow: &Mapped) {
        self.table().flows.remove(flow);
    }

    /// A socket listens for datagrams to a port of the guest's.
    pub(crate) fn publish(&self, port: PublishedPort) {
        self.table().published.insert(port);
    }

    /// It listens no more.
    pub(crate) fn withdraw(&self, port: &PublishedPort) {
        self.table().published.remove(port);
    }

    /// Whether a flow of this family has this port of the host.
    pub(crate) fn has(&self, v6: bool, port: u16) -> bool {
        self.table().flows.iter().any(|(flow, its)| *its == port && flow.guest.is_ipv6() == v6)
    }
}

/// Binds to a port that other sockets have; false if these do not share it.
fn join(socket: BorrowedFd<'_>, address: IpAddr, port: u16) -> Result<bool, Errno> {
    set_socket_reuseport(socket, true)?;
    let joined = bind(socket, address, port).is_ok();
    if !joined {
        // With the option it could get a port that another socket has.
        set_socket_reuseport(socket, false)?;
    }
    Ok(joined)
}

/// Binds to a port that no other socket has: `preferred`, else one of the kernel's choice.
fn bind_first(socket: BorrowedFd<'_>, address: IpAddr, preferred: u16) -> Result<u16, Errno> {
    match bind(socket, address, preferred) {
        // Taken, or privileged.
        Err(Errno::ADDRINUSE | Errno::ACCESS | Errno::PERM) => bind(socket, address, 0)?,
        other => other?,
    }
    let bound: SocketAddr = rustix::net::getsockname(socket)?.try_into()?;
    set_socket_reuseport(socket, true)?;
    Ok(bound.port())
}

fn bind(socket: BorrowedFd<'_>, address: IpAddr, port: u16) -> Result<(), Errno> {
    if address.is_ipv6() {
        // IPv4 has the same port for itself.
        set_ipv6_v6only(socket, true)?;
    }
    rustix::net::bind(socket, &SocketAddr::new(address, port))
}

#[cfg(test)]
mod kernel_tests;
#[cfg(test)]
mod tests;
