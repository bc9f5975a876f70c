//! A relay that does nothing but copy: what any forwarder in user space does at least, for comparison.
//!
//! It accepts what comes in by one device for a port, connects to the same address and port itself, which by loopback is the
//! server, and copies both ways: one thread per direction, large buffers, blocking calls, and both kernels' TCP at its ends.
//! It has no frames, no checks, no stack of its own. What it does not reach, nobody reaches who copies.

use super::server;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;

/// Size of reads and writes: measured to be as fast as larger ones, and faster than smaller ones.
const CHUNK: usize = 256 << 10;

/// Relays what comes in by `device` for `port`. Listens on the port after it too, once it is ready.
pub(super) fn relay(device: &str, port: u16) -> io::Result<()> {
    let listener = server::listen_on(port, Some(device))?;
    let _ready = server::listen(port + 1)?;
    for guest in listener.incoming() {
        let guest = guest?;
        thread::spawn(move || both_ways(&guest));
    }
    Ok(())
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
