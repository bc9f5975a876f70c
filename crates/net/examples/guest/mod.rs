//! The guest of the examples: smoltcp's TCP/IP, at 10.0.2.15, on the far end of a channel or on a driver of
//! rings. And the server on the host that it asks.
#![allow(dead_code, reason = "each example uses a part")]

use rustix::event::epoll;
use rustix::time::Timespec;
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::Device;
use smoltcp::socket::tcp::{ConnectError, RecvError, Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpCidr, Ipv4Address};
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::time::Duration;

/// The guest: the end of its link, its interface and its sockets.
pub(crate) struct Guest<D> {
    pub(crate) end: D,
    iface: Interface,
    sockets: SocketSet<'static>,
}

impl<D: Device> Guest<D> {
    /// A guest with an address and the default route, and without sockets.
    pub(crate) fn new(mut end: D) -> Self {
        let mac = EthernetAddress([2, 0, 0, 0, 0, 1]);
        let mut iface = Interface::new(Config::new(mac.into()), &mut end, Instant::now());
        iface.update_ip_addrs(|own| own.extend([IpCidr::new(Ipv4Address::new(10, 0, 2, 15).into(), 24)]));
        iface.routes_mut().add_default_ipv4_route(Ipv4Address::new(10, 0, 2, 2)).expect("room for one route");
        Self { end, iface, sockets: SocketSet::new(vec![]) }
    }

    /// Opens a connection, with room for `window` bytes received.
    pub(crate) fn connect(&mut self, to: Ipv4Addr, port: u16, window: usize) -> Result<(), ConnectError> {
        let buffer = |len| SocketBuffer::new(vec![0; len]);
        let mut socket = Socket::new(buffer(window), buffer(4096));
        let own_port = 49_152 + self.sockets.iter().count() as u16;
        socket.connect(self.iface.context(), (to, port), own_port)?;
        self.sockets.add(socket);
        Ok(())
    }

    /// Takes frames, sends what is due, and takes what connections have received; the number of its bytes.
    pub(crate) fn turn(&mut self) -> Result<usize, RecvError> {
        self.iface.poll(Instant::now(), &mut self.end, &mut self.sockets);
        let mut received = 0;
        for (_, socket) in self.sockets.iter_mut() {
            let smoltcp::socket::Socket::Tcp(socket) = socket else { continue };
            while socket.can_recv() {
                received += socket.recv(|data| (data.len(), data.len()))?;
            }
            if socket.may_send() && !socket.may_recv() {
                socket.close();
            }
        }
        Ok(received)
    }

    /// Time until the next turn is due, if no frame comes before.
    pub(crate) fn timeout(&mut self) -> Option<Duration> {
        self.iface.poll_delay(Instant::now(), &self.sockets).map(Duration::from)
    }
}

/// A server on the host's loopback that sends `len` bytes to its first client; its port.
pub(crate) fn server(len: usize) -> io::Result<u16> {
    let server = TcpListener::bind("127.0.0.1:0")?;
    let port = server.local_addr()?.port();
    std::thread::spawn(move || server.accept().and_then(|(mut to, _)| to.write_all(&vec![7; len])));
    Ok(port)
}

/// Sleeps until a descriptor of either side is ready, at most for `timeout`, rounded up to milliseconds by
/// the kernel's epoll_wait.
pub(crate) fn wait(epoll: impl AsFd, timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout
        .map(|timeout| Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() });
    let mut events = Vec::with_capacity(8);
    epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref())?;
    Ok(())
}
