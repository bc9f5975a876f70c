//! Datagrams with the addresses of both ends: for a socket that is not connected and has many peers.
//!
//! What was received says who sent it and which of our addresses it was sent to; what is sent says the same the other way round, so
//! that an answer leaves from the address that was asked.

use super::{Control, check, control_messages};
use brodo_core::host::Marks;
use rustix::io::Result;
use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Most datagrams that [`recv_addressed`] takes.
pub const ADDRESSED_MAX: usize = super::DATAGRAMS_MAX;

/// `sockaddr_in6`, the larger of the two.
const NAME_LEN: usize = size_of::<libc::sockaddr_in6>();
/// Room for an address (40 with its header) and three words.
const CONTROL_LEN: usize = 40 + 3 * 24 - size_of::<libc::cmsghdr>();

/// One of our own addresses, and the interface by which it was or is to be used; 0: whichever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// The address.
    pub address: IpAddr,
    /// Index of the interface.
    pub interface: u32,
}

/// A socket address as bytes, aligned for the kernel.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Name([u8; NAME_LEN]);

impl Name {
    /// The bytes of an address, and how many they are.
    fn of(address: SocketAddr) -> (Self, usize) {
        let mut bytes = [0; NAME_LEN];
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u16;
        bytes[..2].copy_from_slice(&family.to_ne_bytes());
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address {
            SocketAddr::V4(v4) => {
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                (Self(bytes), size_of::<libc::sockaddr_in>())
            }
            SocketAddr::V6(v6) => {
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                (Self(bytes), NAME_LEN)
            }
        }
    }

    /// The address in the first `len` bytes.
    fn read(&self, len: usize) -> Option<SocketAddr> {
        let bytes = self.0.get(..len)?;
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
}

/// recvmmsg with addresses: as [`super::recv_datagrams`]; `each` is also told who has sent it.
pub fn recv_addressed(
    fd: BorrowedFd<'_>,
    into: &mut [IoSliceMut<'_>],
    mut each: impl FnMut(usize, usize, Option<SocketAddr>, &[u8]),
) -> Result<usize> {
    let wanted = into.len().min(ADDRESSED_MAX);
    let mut names = [Name([0; NAME_LEN]); ADDRESSED_MAX];
    let mut controls = [const { MaybeUninit::<Control<CONTROL_LEN>>::uninit() }; ADDRESSED_MAX];
    let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; ADDRESSED_MAX];
    let parts = into.iter_mut().zip(&mut controls).zip(&mut names).zip(&mut messages);
    for (((buffer, control), name), message) in parts {
        // SAFETY: msghdr is integers and pointers; null pointers with zero lengths mean "none".
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        // An IoSliceMut has the layout of an iovec (std promises it on Unix).
        header.msg_iov = std::ptr::from_mut(buffer).cast();
        header.msg_iovlen = 1;
        header.msg_name = std::ptr::from_mut(name).cast();
        header.msg_namelen = NAME_LEN as _;
        header.msg_control = std::ptr::from_mut(control.write(Control::zeroed())).cast();
        header.msg_controllen = size_of::<Control<CONTROL_LEN>>() as _;
        message.write(libc::mmsghdr { msg_hdr: header, msg_len: 0 });
    }
    let first = messages.as_mut_ptr().cast::<libc::mmsghdr>();
    // SAFETY: the first `wanted` messages are initialised, and every pointer in them is to a buffer of `into` or to one
    // of the locals, with its true length; nothing else refers to these during the call.
    let count = check(
        unsafe { libc::recvmmsg(fd.as_raw_fd(), first, wanted as _, 0, std::ptr::null_mut()) } as isize,
    )?;
    for i in 0..count.min(wanted) {
        // SAFETY: the first `wanted` were initialised before the call.
        let message = unsafe { messages[i].assume_init_ref() };
        // SAFETY: as above.
        let control = unsafe { controls[i].assume_init_ref() };
        let name = names[i].read(message.msg_hdr.msg_namelen as usize);
        each(i, message.msg_len as usize, name, control.bytes(message.msg_hdr.msg_controllen));
    }
    Ok(count)
}

/// The address to which a datagram was sent, from its control messages (`IP_PKTINFO`, `IPV6_PKTINFO`).
pub fn sent_to(control: &[u8]) -> Option<Source> {
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
            Some(Source { address: Ipv6Addr::from(octets).into(), interface })
        }
        _ => None,
    })
}

/// Control messages to send, one behind the other.
#[repr(C, align(8))]
struct Messages {
    bytes: [u8; 128],
    len: usize,
}

impl Messages {
    fn push(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        const HEADER: usize = size_of::<libc::cmsghdr>();
        let end = self.len + HEADER + data.len();
        let (Some(space), padded) = (self.bytes.get_mut(self.len..end), end.next_multiple_of(8)) else {
            return;
        };
        // cmsg_len is a word on every target of the GNU library; level and kind are the last two integers of the header.
        space[..size_of::<usize>()].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        space[HEADER - 8..HEADER - 4].copy_from_slice(&level.to_ne_bytes());
        space[HEADER - 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        space[HEADER..].copy_from_slice(data);
        self.len = padded;
    }
}

/// sendmsg to an address, with UDP_SEGMENT if `segment` is given. `from` is the address it leaves from, if it matters; of `marks` all but
/// "don't fragment", which no message can say. Gives the bytes sent, which is all.
pub fn send_addressed(
    fd: BorrowedFd<'_>,
    data: &[IoSlice<'_>],
    (to, from): (SocketAddr, Option<Source>),
    segment: Option<u16>,
    marks: Marks,
) -> Result<usize> {
    let (name, name_len) = Name::of(to);
    let mut control = Messages { bytes: [0; 128], len: 0 };
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
    if marks.tos != 0 {
        control.push(level, tos, &c_int::from(marks.tos).to_ne_bytes());
    }
    if let Some(hops) = marks.ttl {
        control.push(level, ttl, &c_int::from(hops.get()).to_ne_bytes());
    }
    if let Some(segment) = segment {
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
    }
    // SAFETY: msghdr is integers and pointers; null pointers with zero lengths mean "none".
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw const name).cast_mut().cast();
    message.msg_namelen = name_len as _;
    // An IoSlice has the layout of an iovec (std promises it on Unix).
    message.msg_iov = data.as_ptr().cast_mut().cast();
    message.msg_iovlen = data.len() as _;
    if control.len > 0 {
        message.msg_control = (&raw mut control.bytes).cast();
        message.msg_controllen = control.len as _;
    }
    // SAFETY: every pointer in `message` is to a local or to `data`, with its true length, and sendmsg only reads.
    check(unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) })
}

#[cfg(test)]
mod tests;
