//! ICMP errors of a path: a datagram with a chosen hop limit and length, and the resulting entry of the
//! socket's error queue (IP_RECVERR), as read by traceroute or QUIC.

use super::errno_name;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{IpMtu, Ipv4RecvErr, Ipv6RecvErr};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, getsockopt, recvmsg, setsockopt};
use serde_json::{Value, json};
use socket2::SockRef;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

/// Milliseconds to wait for an answer or an error.
const PATIENCE_MS: u16 = 20_000;
/// Room for an entry of the error queue: an extended error and an address of IPv6, with its header.
const CONTROL: usize = 128;

/// Outcome of one datagram of `size` bytes with `ttl` hops to live (0 for the default).
pub(super) fn probe(peer: SocketAddr, ttl: u8, size: usize) -> io::Result<Value> {
    let socket = match peer {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?,
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?,
    };
    let options = SockRef::from(&socket);
    if peer.is_ipv4() {
        setsockopt(&socket, Ipv4RecvErr, &true)?;
    } else {
        setsockopt(&socket, Ipv6RecvErr, &true)?;
    }
    match peer {
        _ if ttl == 0 => {}
        SocketAddr::V4(_) => options.set_ttl_v4(ttl.into())?,
        SocketAddr::V6(_) => options.set_unicast_hops_v6(ttl.into())?,
    }
    socket.connect(peer)?;
    if let Err(e) = socket.send(&vec![0x55; size]) {
        return Ok(json!({ "outcome": errno_name(&e) }));
    }
    let mut ready = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    poll(&mut ready, PollTimeout::from(PATIENCE_MS))?;
    let happened = ready[0].revents().unwrap_or(PollFlags::empty());
    if happened.contains(PollFlags::POLLERR) {
        return first_error(&socket);
    }
    if happened.contains(PollFlags::POLLIN) {
        return Ok(json!({ "outcome": "answer", "size": socket.recv(&mut vec![0; 65536])? }));
    }
    Ok(json!({ "outcome": "nothing" }))
}

/// The first entry of the error queue.
fn first_error(socket: &UdpSocket) -> io::Result<Value> {
    let mut data = [0; 64];
    let mut slices = [IoSliceMut::new(&mut data)];
    let mut control = nix::cmsg_space!([u8; CONTROL]);
    let flags = MsgFlags::MSG_ERRQUEUE;
    let message = recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut slices, Some(&mut control), flags)?;
    for control in message.cmsgs()? {
        let (error, from) = match control {
            ControlMessageOwned::Ipv4RecvErr(error, from) => {
                (error, from.map(|a| IpAddr::from(a.sin_addr.s_addr.to_ne_bytes())))
            }
            ControlMessageOwned::Ipv6RecvErr(error, from) => {
                (error, from.map(|a| IpAddr::from(a.sin6_addr.s6_addr)))
            }
            _ => continue,
        };
        let mtu = getsockopt(socket, IpMtu).ok();
        return Ok(json!({
            "outcome": "error",
            "kind": error.ee_type,
            "code": error.ee_code,
            "info": error.ee_info,
            "from": from.map(|from| from.to_string()),
            "mtu": mtu,
        }));
    }
    Ok(json!({ "outcome": "an error without an entry in the error queue" }))
}
