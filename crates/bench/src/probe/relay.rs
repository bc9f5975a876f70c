//! A pure relay between two sockets: the minimal forwarder in user space, for comparison.
//!
//! It accepts connections that arrive by one device for a port, connects over loopback to the same address
//! and port, which is the server, and copies both ways: threads started beforehand, large buffers, blocking
//! calls, and both kernels' TCP at its ends. It has no frames, no checks, no stack of its own. Its throughput
//! bounds that of every forwarder that copies. [`Carrier`] has the other ways to move the same bytes.
//!
//! One thread with blocking writes to both sides would deadlock between two peers that both send and do not
//! read. The workloads have no such peers.

mod pipes;

use super::ring::{Ends, Ring};
use clap::ValueEnum;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, RawFd};
use std::thread;

/// Size of reads and writes: measured to be as fast as larger ones, and faster than smaller ones.
const CHUNK: usize = 256 << 10;

/// Buffers of a ring.
const BUFFERS: u16 = 8;

/// Way in which bytes are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Carrier {
    /// read(2) and write(2).
    Calls,
    /// splice(2) through a pipe.
    Splice,
    /// An io_uring of each thread's.
    Ring,
    /// io_uring with a polling thread in the kernel (SQPOLL).
    PolledRing,
}

impl Carrier {
    /// Its name on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Splice => "splice",
            Self::Ring => "ring",
            Self::PolledRing => "polled-ring",
        }
    }
}

/// Relays connections that arrive by `device` for `ports` ports from that of `address` on, `threads` of them
/// at a time for each port. Once ready it prints a line: a port that says so could be another relay's, or one
/// of the server's, whose connections it would take.
pub(super) fn relay(
    device: &str,
    address: SocketAddr,
    ports: u16,
    threads: u16,
    carrier: Carrier,
) -> io::Result<()> {
    let port = |number| listen(device, SocketAddr::new(address.ip(), address.port() + number));
    let listeners: Vec<TcpListener> = (0..ports).map(port).collect::<io::Result<_>>()?;
    println!("ready");
    // One polling thread in the kernel for all rings: that of the first.
    let polled = carrier == Carrier::PolledRing;
    let first = polled.then(|| Ring::new(BUFFERS, CHUNK, polled, None)).transpose()?;
    let beside = first.as_ref().map(Ring::as_raw_fd);
    thread::scope(|scope| {
        for listener in listeners.iter().flat_map(|one| std::iter::repeat_n(one, threads.into())) {
            scope.spawn(move || serve(listener, carrier, beside));
        }
    });
    Ok(())
}

/// Serves one connection after the other. Errors of a connection show at its ends.
fn serve(listener: &TcpListener, carrier: Carrier, beside: Option<RawFd>) -> io::Result<()> {
    let connections =
        || listener.incoming().flatten().filter_map(|guest| Some((connect(&guest).ok()?, guest)));
    match carrier {
        Carrier::Calls => {
            let mut buffer = vec![0; CHUNK];
            for (host, guest) in connections() {
                let _ = both_ways([&guest, &host], |from, to| copy(from, to, &mut buffer));
            }
        }
        Carrier::Splice => {
            let pipe = pipes::Pipe::new()?;
            for (host, guest) in connections() {
                let _ = both_ways([&guest, &host], |from, to| pipe.pass(from, to));
            }
        }
        Carrier::Ring | Carrier::PolledRing => {
            let mut ring = Ring::new(BUFFERS, CHUNK, beside.is_some(), beside)?;
            for (host, guest) in connections() {
                ring.pump([&guest, &host], Ends::Streams)?;
            }
        }
    }
    Ok(())
}

fn connect(guest: &TcpStream) -> io::Result<TcpStream> {
    let host = TcpStream::connect(guest.local_addr()?)?;
    guest.set_nodelay(true)?;
    host.set_nodelay(true)?;
    Ok(host)
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

/// Has `pass` move what has arrived, 0 bytes at the end of a stream, until both have ended.
fn both_ways(
    ends: [&TcpStream; 2],
    mut pass: impl FnMut(&TcpStream, &TcpStream) -> io::Result<usize>,
) -> io::Result<()> {
    let mut open = vec![0, 1];
    while !open.is_empty() {
        let watch = |&end: &usize| PollFd::new(ends[end].as_fd(), PollFlags::POLLIN);
        let mut ready: Vec<_> = open.iter().map(watch).collect();
        poll(&mut ready, PollTimeout::NONE)?;
        let ready: Vec<_> = ready.iter().map(|one| one.any() == Some(true)).collect();
        for (end, ready) in std::mem::take(&mut open).into_iter().zip(ready) {
            if ready && pass(ends[end], ends[1 - end])? == 0 {
                ends[1 - end].shutdown(Shutdown::Write)?;
            } else {
                open.push(end);
            }
        }
    }
    Ok(())
}

fn copy(mut from: &TcpStream, mut to: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    let length = from.read(buffer)?;
    to.write_all(&buffer[..length])?;
    Ok(length)
}
