//! A pure relay between two sockets: the minimal forwarder in user space, for comparison.
//!
//! It accepts connections that arrive by one device for a port, connects over loopback to the same address
//! and port, which is the server, and copies both ways: threads started beforehand, large buffers, blocking
//! calls, and both kernels' TCP at its ends. It has no frames, no checks, no stack of its own. Its throughput
//! bounds that of every forwarder that copies.
//!
//! One thread with blocking writes to both sides would deadlock between two peers that both send and do not
//! read. The workloads have no such peers.

use super::connection;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;

/// Size of reads and writes: measured to be as fast as larger ones, and faster than smaller ones.
const CHUNK: usize = 256 << 10;

/// Relays connections that arrive by `device` for `ports` ports from that of `address` on, `threads` of them
/// at a time for each port. Once ready it also listens on the port after them.
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

/// The kernel prefers listeners bound to the destination address, and gives a listener bound to a device only
/// connections that arrive by it. So the relay's own connections, over loopback, find the server.
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

/// Copies the bytes that have arrived; false at the end of the stream.
fn copy(mut from: &TcpStream, mut to: &TcpStream, buffer: &mut [u8]) -> io::Result<bool> {
    match from.read(buffer)? {
        0 => to.shutdown(Shutdown::Write).map(|()| false),
        length => to.write_all(&buffer[..length]).map(|()| true),
    }
}
