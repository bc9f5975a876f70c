//! A relay that does nothing but copy: what any forwarder in user space does at least, for comparison.
//!
//! It accepts what comes in by one device for a port, connects to the same address and port itself, which by loopback is the
//! server, and copies both ways: one thread per direction, large buffers, blocking calls, and both kernels' TCP at its ends.
//! It has no frames, no checks, no stack of its own. What it does not reach, nobody reaches who copies.

use super::server;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Size of reads and writes: measured to be as fast as larger ones, and faster than smaller ones.
const CHUNK: usize = 256 << 10;

/// Relays what comes in by `device` for `address`. Listens on the port after it too, once it is ready.
pub(super) fn relay(device: &str, address: SocketAddr) -> io::Result<()> {
    let listener = listen(device, address)?;
    let _ready = server::listen(address.port() + 1)?;
    for guest in listener.incoming() {
        let guest = guest?;
        thread::spawn(move || both_ways(&guest));
    }
    Ok(())
}

/// Of all sockets that listen on a port the kernel looks first at those bound to the address that was asked for, and of a device
/// only at what comes in by it: the relay's own connections, by loopback, find the server.
fn listen(device: &str, address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind_device(Some(device.as_bytes()))?;
    socket.bind(&address.into())?;
    socket.listen(4096)?;
    Ok(socket.into())
}

/// What goes wrong is the business of those at the ends, who notice.
fn both_ways(guest: &TcpStream) -> io::Result<()> {
    let host = TcpStream::connect(guest.local_addr()?)?;
    guest.set_nodelay(true)?;
    host.set_nodelay(true)?;
    let (from, to) = (host.try_clone()?, guest.try_clone()?);
    thread::spawn(move || copy(&from, &to));
    copy(guest, &host)
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        match from.read(&mut buffer)? {
            0 => return to.shutdown(Shutdown::Write),
            length => to.write_all(&buffer[..length])?,
        }
    }
}
