//! An independent TCP/IP as the guest: smoltcp behind a virtual network card.
//!
//! It resolves its neighbours, routes through the gateway and has an implementation of TCP of its own, so
//! that the stack is not only tested against itself. Frames go in with [`Guest::receive`] and come out of
//! [`Guest::poll`]; smoltcp counts microseconds, so its deadlines are rounded up to the next one.

use crate::link::GUEST_MAC;
use brodo_core::config::Config;
use brodo_core::time::{Duration, Instant};
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::wire::{EthernetAddress, IpCidr};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// The virtual network card: two queues of frames.
struct Card {
    mtu: usize,
    received: VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
}

struct Received(Vec<u8>);

struct Sending<'a>(&'a mut Vec<Vec<u8>>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.push(frame);
        result
    }
}

impl Device for Card {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Received, Sending<'_>)> {
        let frame = self.received.pop_front()?;
        Some((Received(frame), Sending(&mut self.sent)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Sending<'_>> {
        Some(Sending(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ethernet;
        caps.max_transmission_unit = self.mtu + 14;
        caps
    }
}

/// The guest.
pub struct Guest {
    card: Card,
    interface: Interface,
    sockets: SocketSet<'static>,
}

fn micros(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros((now.as_ns() / 1000) as i64)
}

impl Guest {
    /// A guest with the addresses and routes of `config`, and random numbers from `seed`.
    pub fn new(config: &Config, seed: u64) -> Self {
        let mut card = Card { mtu: config.mtu.into(), received: VecDeque::new(), sent: Vec::new() };
        let mut setup = smoltcp::iface::Config::new(EthernetAddress(GUEST_MAC).into());
        setup.random_seed = seed;
        let mut interface = Interface::new(setup, &mut card, micros(Instant::ZERO));
        interface.update_ip_addrs(|addresses| {
            let v4 = config.v4.map(|n| IpCidr::new(n.guest.into(), n.prefix_len));
            let v6 = config.v6.map(|n| IpCidr::new(n.guest.into(), n.prefix_len));
            v4.into_iter().chain(v6).for_each(|a| addresses.push(a).expect("room for two addresses"));
        });
        let routes = interface.routes_mut();
        if let Some(n) = config.v4 {
            routes.add_default_ipv4_route(n.gateway).expect("room for a route");
        }
        if let Some(n) = config.v6 {
            routes.add_default_ipv6_route(n.gateway).expect("room for a route");
        }
        Self { card, interface, sockets: SocketSet::new(Vec::new()) }
    }

    /// Opens a connection from a port of ours; buffers in bytes.
    pub fn connect(
        &mut self,
        to: SocketAddr,
        port: u16,
        receive_buffer: usize,
        send_buffer: usize,
    ) -> SocketHandle {
        let mut socket = tcp::Socket::new(
            tcp::SocketBuffer::new(vec![0; receive_buffer]),
            tcp::SocketBuffer::new(vec![0; send_buffer]),
        );
        socket.connect(self.interface.context(), to, port).expect("a new socket and a free port");
        self.sockets.add(socket)
    }

    /// A connection's socket.
    pub fn tcp(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Removes an ended connection.
    pub fn forget(&mut self, handle: SocketHandle) {
        self.sockets.remove(handle);
    }

    /// A frame arrives.
    pub fn receive(&mut self, frame: Vec<u8>) {
        self.card.received.push_back(frame);
    }

    /// Runs the guest at `now`; returns the frames it sends.
    pub fn poll(&mut self, now: Instant) -> Vec<Vec<u8>> {
        self.interface.poll(micros(now), &mut self.card, &mut self.sockets);
        std::mem::take(&mut self.card.sent)
    }

    /// The guest's next deadline, after `now`.
    pub fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        let at = self.interface.poll_at(micros(now), &self.sockets)?;
        let at = Instant::from_ns(u64::try_from(at.total_micros()).unwrap_or(0) * 1000);
        Some(at.max(now + Duration::from_micros(1)))
    }
}
