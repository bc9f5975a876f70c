//! Datagrams with the addresses of both ends: for an unconnected socket with many peers.
//!
//! Received datagrams come with their source and destination addresses, and sent ones are given both, so that
//! an answer leaves from the address that the peer used.

use super::{CONTROL_LEN, SendControl, control_messages, recv_messages, send_message};
use brodo_core::host::IpHeaderFields;
use rustix::io::Result;
use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::BorrowedFd;

/// Length of `sockaddr_in6`, the larger of the two families' addresses.
const NAME_LEN: usize = size_of::<libc::sockaddr_in6>();
/// Room for the destination address of a datagram, 40 bytes with its header, beside the control messages of
/// connected sockets.
const ADDRESSED_CONTROL_LEN: usize = 40 + CONTROL_LEN;

/// A local address, and the interface of the datagram; 0 for any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source {
    /// The address.
    pub(crate) address: IpAddr,
    /// Index of the interface.
    pub(crate) interface: u32,
}

impl Source {
    /// The address, by whichever interface its datagrams go.
    pub(crate) const fn of(address: IpAddr) -> Self {
        Self { address, interface: 0 }
    }
}

/// A socket address in the kernel's format, and the number of bytes used.
fn to_name(address: SocketAddr) -> ([u8; NAME_LEN], usize) {
    let mut bytes = [0; NAME_LEN];
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u16;
    bytes[..2].copy_from_slice(&family.to_ne_bytes());
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(v4) => {
            bytes[4..8].copy_from_slice(&v4.ip().octets());
            (bytes, size_of::<libc::sockaddr_in>())
        }
        SocketAddr::V6(v6) => {
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            (bytes, NAME_LEN)
        }
    }
}

/// The reverse of [`to_name`]; `None` for another family.
fn from_name(bytes: &[u8]) -> Option<SocketAddr> {
    let family = c_int::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    match family {
        libc::AF_INET => {
            let octets: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
            Some(SocketAddrV4::new(octets.into(), port).into())
        }
        libc::AF_INET6 => {
            let octets: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
            let scope = u32::from_ne_bytes(*bytes.get(24..)?.first_chunk()?);
            Some(SocketAddrV6::new(octets.into(), port, 0, scope).into())
        }
        _ => None,
    }
}

/// recvmmsg with addresses: as [`super::recv_datagrams`]; `each` also gets the source.
pub(crate) fn recv_addressed(
    fd: BorrowedFd<'_>,
    into: &mut [IoSliceMut<'_>],
    mut each: impl FnMut(usize, usize, Option<SocketAddr>, &[u8]),
) -> Result<usize> {
    recv_messages::<NAME_LEN, ADDRESSED_CONTROL_LEN>(fd, into, 0, |i, len, name, control| {
        each(i, len, from_name(name), control);
    })
}

/// The local address to which a datagram was sent, from its control messages (`IP_PKTINFO`, `IPV6_PKTINFO`):
/// the source of its answers. `None` for a multicast group of IPv6, from which nothing can be sent (EINVAL);
/// the kernel then chooses one. For groups and broadcast of IPv4 the message has a local address.
pub(crate) fn sent_to(control: &[u8]) -> Option<Source> {
    control_messages(control).find_map(|(level, kind, data)| match (level, kind) {
        // in_pktinfo: interface, the local address, the one in the header (which may be a broadcast address).
        (libc::SOL_IP, libc::IP_PKTINFO) => {
            let interface = u32::from_ne_bytes(*data.first_chunk()?);
            let octets: [u8; 4] = *data.get(4..)?.first_chunk()?;
            Some(Source { address: Ipv4Addr::from(octets).into(), interface })
        }
        // in6_pktinfo: address, interface.
        (libc::SOL_IPV6, libc::IPV6_PKTINFO) => {
            let octets: [u8; 16] = *data.first_chunk()?;
            let interface = u32::from_ne_bytes(*data.get(16..)?.first_chunk()?);
            let address = Some(Ipv6Addr::from(octets)).filter(|address| !address.is_multicast())?;
            Some(Source { address: address.into(), interface })
        }
        _ => None,
    })
}

/// sendmsg to an address, with UDP_SEGMENT if `segment` is given. `from` is the source address, if it
/// matters; of `fields` all but "don't fragment", which no control message has. Returns the bytes sent, which
/// is all.
pub(crate) fn send_addressed(
    fd: BorrowedFd<'_>,
    data: &[IoSlice<'_>],
    to: SocketAddr,
    from: Option<Source>,
    segment: Option<u16>,
    fields: IpHeaderFields,
) -> Result<usize> {
    let (name, name_len) = to_name(to);
    let mut control = SendControl::new();
    match from {
        Some(Source { address: IpAddr::V4(address), interface }) => {
            let mut info = [0; 12];
            info[..4].copy_from_slice(&interface.to_ne_bytes());
            info[4..8].copy_from_slice(&address.octets());
            control.push(libc::SOL_IP, libc::IP_PKTINFO, &info);
        }
        Some(Source { address: IpAddr::V6(address), interface }) => {
            let mut info = [0; 20];
            info[..16].copy_from_slice(&address.octets());
            info[16..].copy_from_slice(&interface.to_ne_bytes());
            control.push(libc::SOL_IPV6, libc::IPV6_PKTINFO, &info);
        }
        None => {}
    }
    let (level, tos, ttl) = if to.is_ipv4() {
        (libc::SOL_IP, libc::IP_TOS, libc::IP_TTL)
    } else {
        (libc::SOL_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT)
    };
    if fields.tos != 0 {
        control.push(level, tos, &c_int::from(fields.tos).to_ne_bytes());
    }
    if let Some(hops) = fields.ttl {
        control.push(level, ttl, &c_int::from(hops.get()).to_ne_bytes());
    }
    control.push_segment(segment);
    send_message(fd, data, &name[..name_len], &control)
}

#[cfg(test)]
mod tests;
