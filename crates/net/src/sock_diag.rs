//! Who listens: the sockets of a network namespace as its kernel lists them (sock_diag(7)).
//!
//! A `SOCK_DIAG` socket lists the namespace that it was made in. Only those that can be reached are asked for: listening TCP sockets,
//! and UDP sockets that are bound but not connected. The kernel answers within the calls, so nothing is waited for.
//!
//! System calls: sendto, recvfrom (netlink).

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `SOCK_DIAG_BY_FAMILY` of linux/sock_diag.h.
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST` and `NLM_F_DUMP`.
const FLAGS: u16 = 0x1 | 0x300;
/// `TCP_CLOSE`, which a UDP socket is in until it is connected, and `TCP_LISTEN`, as bits.
const CLOSED: u32 = 1 << 7;
const LISTENING: u32 = 1 << 10;
/// `INET_DIAG_SKV6ONLY` of linux/inet_diag.h.
const ONLY_V6: u16 = 11;
const HEADER_LEN: usize = 16;
const MESSAGE_LEN: usize = 72;
/// The kernel cuts its answer into pieces that fit.
const BUFFER_LEN: usize = 32 << 10;
/// Most sockets that are looked at; a guest may have any number.
pub const LISTENERS_MAX: usize = 4096;

/// A socket that somebody may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    /// The address it is bound to.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Bound to the unspecified address of IPv6, it does not take IPv4.
    pub only_v6: bool,
    /// Its number among all files.
    pub inode: u32,
}

/// All listeners of TCP, or of UDP, in the namespace of `socket`.
///
/// # Errors
/// The kernel does not list sockets of this kind (`ENOENT`: the module is missing).
pub fn listeners(socket: &OwnedFd, tcp: bool) -> Result<Vec<Listener>, Errno> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        dump(socket, family as u8, tcp, &mut found)?;
    }
    Ok(found)
}

fn dump(socket: &OwnedFd, family: u8, tcp: bool, found: &mut Vec<Listener>) -> Result<(), Errno> {
    let mut buffer = vec![0; BUFFER_LEN];
    // Of an answer that was given up half-way something may be left.
    while rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty()).is_ok() {}
    rustix::net::send(socket.as_fd(), &request(family, tcp), SendFlags::empty())?;
    loop {
        let (len, _) = match rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty()) {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        let mut rest = &buffer[..len];
        while let Some((kind, payload)) = next_message(&mut rest) {
            match i32::from(kind) {
                libc::NLMSG_DONE => return Ok(()),
                libc::NLMSG_ERROR => {
                    let code = payload.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                    return Err(if code < 0 { Errno::from_raw_os_error(-code) } else { Errno::BADMSG });
                }
                _ if found.len() < LISTENERS_MAX => found.extend(parse(payload)),
                _ => {}
            }
        }
    }
}

fn request(family: u8, tcp: bool) -> [u8; HEADER_LEN + 56] {
    let mut request = [0; HEADER_LEN + 56];
    let len = request.len() as u32;
    request[..4].copy_from_slice(&len.to_ne_bytes());
    request[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&FLAGS.to_ne_bytes());
    let (protocol, states) = if tcp { (libc::IPPROTO_TCP, LISTENING) } else { (libc::IPPROTO_UDP, CLOSED) };
    request[16] = family;
    request[17] = protocol as u8;
    request[20..24].copy_from_slice(&states.to_ne_bytes());
    request
}

/// Kind and content of the first message in `rest`, which is taken from it.
fn next_message<'a>(rest: &mut &'a [u8]) -> Option<(u16, &'a [u8])> {
    let len = u32::from_ne_bytes(*rest.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*rest.get(4..)?.first_chunk()?);
    let payload = rest.get(HEADER_LEN..len)?;
    *rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    Some((kind, payload))
}

/// `inet_diag_msg`: family, state, timer, retransmissions; ports and addresses of both ends; and, last of it, the inode.
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

fn has_only_v6(mut attributes: &[u8]) -> bool {
    while let (Some(len), Some(kind)) =
        (attributes.first_chunk(), attributes.get(2..).and_then(|rest| rest.first_chunk()))
    {
        let (len, kind) = (usize::from(u16::from_ne_bytes(*len)), u16::from_ne_bytes(*kind));
        if kind == ONLY_V6 {
            return attributes.get(4).is_some_and(|&value| value != 0);
        }
        match attributes.get(len.next_multiple_of(4).max(4)..) {
            Some(rest) => attributes = rest,
            None => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests;
