//! A pure relay between two sockets: the minimal forwarder in user space, for comparison.
//!
//! It accepts what comes in by one device for a port, connects to the same address and port itself, which by
//! loopback is the server, and copies both ways: a thread for each connection that was there before it, large
//! buffers, blocking calls, and both kernels' TCP at its ends. It has no frames, no checks, no stack of its
//! own. Its throughput bounds that of every forwarder that copies.
//!
//! Blocking writes of one thread to both sides would stand still between two peers who both send and do not
//! read. The workloads' do not.

use super::connection;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;

/// Size of reads and writes: measured to be as fast as larger ones, and faster than smaller ones.
const CHUNK: usize = 256 << 10;

/// Relays what comes in by `device` for `ports` ports of `address` from its own on, as many connections to
/// each at a time as there are threads. Listens on the port after them too, once it is ready.
pub(super) fn relay(device: &str, address: SocketAddr, ports: u16, threads: u16) -> io::Result<()> {
    let port = |number| listen(device, SocketAddr::new(address.ip(), address.port() + number));
    let listeners: Vec<TcpListener> = (0..ports).map(port).collect::<io::Result<_>>()?;
    let _ready = connection::listen(address.port() + ports)?;
    thread::scope(|scope| {
        for listener in listeners.iter().flat_map(|one| std::iter::repeat_n(one, threads.into())) {
            scope.spawn(|| {
                let mut buffer = vec![0; CHUNK];
                for guest in listener.incoming() {
                    // Errors show at the ends of the connection.
                    let _ = guest.and_then(|guest| both_ways(&guest, &mut buffer));
                }
            });
        }
    });
    Ok(())
}

/// Of all sockets that listen on a port the kernel looks first at those bound to the address that was asked
/// for, and of a device only at what comes in by it: the relay's own connections, by loopback, find the
/// server.
fn listen(device: &str, address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind_device(Some(device.as_bytes()))?;
    socket.bind(&address.into())?;
    socket.listen(4096)?;
    Ok(socket.into())
}

fn both_ways(guest: &TcpStream, buffer: &mut [u8]) -> io::Result<()> {
    let host = TcpStream::connect(guest.local_addr()?)?;
    guest.set_nodelay(true)?;
    host.set_nodelay(true)?;
    let ends = [guest, &host];
    let mut open = vec![0, 1];
    while !open.is_empty() {
        let watch = |&end: &usize| PollFd::new(ends[end].as_fd(), PollFlags::POLLIN);
        let mut ready: Vec<_> = open.iter().map(watch).collect();
        poll(&mut ready, PollTimeout::NONE)?;
        let ready: Vec<_> = ready.iter().map(|one| one.any() == Some(true)).collect();
        for (end, ready) in std::mem::take(&mut open).into_iter().zip(ready) {
            if !ready || copy(ends[end], ends[1 - end], buffer)? {
                open.push(end);
            }
        }
    }
    Ok(())
}

/// Passes on what has come; false if that was the end.
fn copy(mut from: &TcpStream, mut to: &TcpStream, buffer: &mut [u8]) -> io::Result<bool> {
    match from.read(buffer)? {
        0 => to.shutdown(Shutdown::Write).map(|()| false),
        length => to.write_all(&buffer[..length]).map(|()| true),
    }
}
