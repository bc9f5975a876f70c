//! Listening sockets of a network namespace, as its kernel lists them (sock_diag(7)).
//!
//! A `SOCK_DIAG` socket lists the namespace that it was made in. Requested are only sockets that can be
//! reached: listening TCP sockets, and UDP sockets that are bound but not connected. The kernel answers
//! within the calls, so they do not block.
//!
//! The envelope, its attributes and the dump are `netlink-packet-core`'s and [`crate::netlink::socket`]'s.
//! The two structures inside, of which four fields are used, are read here: `netlink-packet-sock-diag` needs
//! another version of `netlink-packet-core` than `netlink-packet-route` does, and parses every attribute of
//! every socket into a vector.
//!
//! System calls: getsockname, sendto, recvfrom (netlink).

use crate::netlink::socket::NetlinkSocket;
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NlasIterator};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `SOCK_DIAG_BY_FAMILY` of linux/sock_diag.h.
const BY_FAMILY: u16 = 20;
/// `TCP_CLOSE`, which a UDP socket is in until it is connected, and `TCP_LISTEN`, as bits.
const CLOSED: u32 = 1 << 7;
const LISTENING: u32 = 1 << 10;
/// `INET_DIAG_SKV6ONLY` of linux/inet_diag.h.
const ONLY_V6: u16 = 11;
/// Bytes of `struct nlmsghdr`.
const HEADER_LEN: usize = 16;
/// Bytes of `struct inet_diag_req_v2`.
const REQUEST_LEN: usize = 56;
/// Bytes of `struct inet_diag_msg`, which attributes follow.
const MESSAGE_LEN: usize = 72;
/// Most sockets of a protocol and family that are listed; a guest may have any number.
pub(crate) const LISTENERS_MAX: usize = 4096;

/// A socket that can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listener {
    /// The address it is bound to.
    pub(crate) address: IpAddr,
    /// Its port.
    pub(crate) port: u16,
    /// Whether a socket bound to the unspecified address of IPv6 refuses IPv4.
    pub(crate) only_v6: bool,
    /// Its inode number.
    pub(crate) inode: u32,
}

/// A netlink socket that lists the sockets of its namespace.
#[derive(Debug)]
pub(crate) struct SockDiag {
    socket: NetlinkSocket,
}

impl SockDiag {
    /// For a netlink socket of the protocol `NETLINK_SOCK_DIAG`.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket: NetlinkSocket::adopt(socket) }
    }

    /// All listeners of TCP, or of UDP, of both families.
    ///
    /// # Errors
    /// The kernel does not list sockets of this kind (`ENOENT`: the module is missing).
    pub(crate) fn listeners(&self, tcp: bool) -> Result<Vec<Listener>, Errno> {
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let request = |sequence| request(family as u8, tcp, sequence);
            let parse = |_, payload: &[u8]| parse(payload);
            found.append(&mut self.socket.dump(request, LISTENERS_MAX, parse)?);
        }
        Ok(found)
    }
}

/// `nlmsghdr`, and `inet_diag_req_v2`: family, protocol, and socket states; zero for the rest is "any".
fn request(family: u8, tcp: bool, sequence: u32) -> Vec<u8> {
    let mut request = vec![0; HEADER_LEN + REQUEST_LEN];
    let mut header = NetlinkBuffer::new(&mut request[..]);
    header.set_length((HEADER_LEN + REQUEST_LEN) as u32);
    header.set_message_type(BY_FAMILY);
    header.set_flags(NLM_F_REQUEST | NLM_F_DUMP);
    header.set_sequence_number(sequence);
    let (protocol, states) = if tcp { (libc::IPPROTO_TCP, LISTENING) } else { (libc::IPPROTO_UDP, CLOSED) };
    request[HEADER_LEN] = family;
    request[HEADER_LEN + 1] = protocol as u8;
    request[HEADER_LEN + 4..][..4].copy_from_slice(&states.to_ne_bytes());
    request
}

/// `inet_diag_msg`: family, state, timer, retransmissions; ports and addresses of both ends; and, last of it,
/// the inode.
fn parse(message: &[u8]) -> Option<Listener> {
    let attributes = message.get(MESSAGE_LEN..)?;
    let port = u16::from_be_bytes(*message.get(4..)?.first_chunk()?);
    let address = match i32::from(message[0]) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(*message.get(8..)?.first_chunk::<4>()?)),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(*message.get(8..)?.first_chunk::<16>()?)),
        _ => return None,
    };
    let inode = u32::from_ne_bytes(*message.get(68..)?.first_chunk()?);
    Some(Listener { address, port, only_v6: has_only_v6(attributes), inode }).filter(|found| found.port != 0)
}

/// Whether a socket bound to the unspecified address of IPv6 refuses IPv4.
fn has_only_v6(attributes: &[u8]) -> bool {
    let mut attributes = NlasIterator::new(attributes).map_while(Result::ok);
    let only_v6 = attributes.find(|attribute| attribute.kind() == ONLY_V6);
    only_v6.is_some_and(|attribute| attribute.value().first().is_some_and(|&value| value != 0))
}

#[cfg(test)]
mod tests;
