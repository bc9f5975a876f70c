//! Listening sockets are found with address, port and inode, and no others.

use super::*;
use crate::socket_broker::Kind;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

fn inode(file: &impl AsFd) -> u32 {
    rustix::fs::fstat(file).expect("fstat").st_ino as u32
}

#[test]
fn listening_sockets_are_found_and_others_are_not() {
    let diag = SockDiag::new(Kind::Diag.open().expect("socket"));
    let v4 = TcpListener::bind("127.0.0.1:0").expect("listen");
    let v6 = TcpListener::bind("[::]:0").expect("listen");
    crate::sys::set_socket_option(v6.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).expect("option");
    let client = TcpStream::connect(v4.local_addr().expect("address")).expect("connect");
    let found = diag.listeners(true).expect("dump");
    let of = |address: SocketAddr, inode: u32| {
        let is =
            |it: &&Listener| it.address == address.ip() && it.port == address.port() && it.inode == inode;
        found.iter().find(is).copied()
    };
    assert!(of(v4.local_addr().expect("address"), inode(&v4)).is_some(), "{found:?}");
    let v6 = of(v6.local_addr().expect("address"), inode(&v6)).expect("found");
    assert!(!v6.only_v6, "it takes IPv4 too");
    assert!(!found.iter().any(|it| it.inode == inode(&client)));
    assert!(client.as_raw_fd() > 0);
}

#[test]
fn datagram_sockets_count_until_they_are_connected() {
    let diag = SockDiag::new(Kind::Diag.open().expect("socket"));
    let bound = UdpSocket::bind("[::1]:0").expect("bind");
    let connected = UdpSocket::bind("127.0.0.1:0").expect("bind");
    connected.connect(connected.local_addr().expect("address")).expect("connect");
    let found = diag.listeners(false).expect("dump");
    let inodes: Vec<u32> = found.iter().map(|it| it.inode).collect();
    assert!(inodes.contains(&inode(&bound)) && !inodes.contains(&inode(&connected)), "{found:?}");
}
