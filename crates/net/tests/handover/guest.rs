//! The guest: smoltcp at 10.0.2.15, with connections that each follow a script, and checks of their content.

use brodo_net::channel::GuestEnd;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::{tcp, udp};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpCidr, Ipv4Address};
use std::time::Duration;

/// The address that stands for the host's loopback.
const HOST: Ipv4Address = Ipv4Address::new(10, 0, 2, 4);
/// Longest sleep of the guest: scripts that stall go on by time.
const PAUSE: Duration = Duration::from_millis(2);

/// Byte of a stream at an offset: no part of it looks like another one.
pub(crate) fn byte(stream: u64, at: usize) -> u8 {
    let x = (at as u64 ^ (stream << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x >> 56) as u8
}

/// Bytes of a stream from an offset on.
pub(crate) fn content(stream: u64, from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|at| byte(stream, at)).collect()
}

/// Role of the guest in one connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Script {
    /// Port of the server on the host, or of the guest that listens.
    pub(crate) port: u16,
    /// Whether the guest waits for a connection.
    pub(crate) listens: bool,
    /// Number of the stream's content.
    pub(crate) stream: u64,
    /// Bytes that the guest sends before its FIN.
    pub(crate) sends: usize,
    /// Bytes that it expects before the other's.
    pub(crate) expects: usize,
    /// Whether it reads only now and then.
    pub(crate) stalls: bool,
}

struct Connection {
    handle: SocketHandle,
    script: Script,
    sent: usize,
    received: usize,
    closed: bool,
    ended: bool,
}

/// UDP conversation: a number is sent when the one before has come back.
struct Conversation {
    handle: SocketHandle,
    port: u16,
    rounds: u32,
    round: u32,
    waits: bool,
}

pub(crate) struct Guest {
    end: GuestEnd,
    iface: Interface,
    sockets: SocketSet<'static>,
    connections: Vec<Connection>,
    conversations: Vec<Conversation>,
    echo: SocketHandle,
    turns: u64,
}

impl Guest {
    /// A guest that answers UDP on port `echo`.
    pub(crate) fn new(mut end: GuestEnd, echo: u16) -> Self {
        let mac = EthernetAddress([2, 0, 0, 0, 0, 1]);
        let mut iface = Interface::new(Config::new(mac.into()), &mut end, Instant::now());
        iface.update_ip_addrs(|own| own.extend([IpCidr::new(Ipv4Address::new(10, 0, 2, 15).into(), 24)]));
        iface.routes_mut().add_default_ipv4_route(Ipv4Address::new(10, 0, 2, 2)).expect("one route");
        let mut sockets = SocketSet::new(vec![]);
        let echo = sockets.add(udp_socket(echo));
        let (connections, conversations) = Default::default();
        Self { end, iface, sockets, connections, conversations, echo, turns: 0 }
    }

    /// Begins a connection.
    pub(crate) fn begin(&mut self, script: Script) {
        // As much as is needed, for there may be thousands.
        let buffer = |bytes: usize| tcp::SocketBuffer::new(vec![0; bytes.clamp(64, 200_000)]);
        let mut socket = tcp::Socket::new(buffer(script.expects), buffer(script.sends));
        if script.listens {
            socket.listen(script.port).expect("a port");
        } else {
            let own = 20_000 + self.connections.len() as u16;
            socket.connect(self.iface.context(), (HOST, script.port), own).expect("connect");
        }
        let handle = self.sockets.add(socket);
        let (sent, received, closed, ended) = Default::default();
        self.connections.push(Connection { handle, script, sent, received, closed, ended });
    }

    /// Begins a UDP conversation with an echo server.
    pub(crate) fn converse(&mut self, port: u16, rounds: u32) {
        let own = 40_000 + self.conversations.len() as u16;
        let handle = self.sockets.add(udp_socket(own));
        self.conversations.push(Conversation { handle, port, rounds, round: 0, waits: false });
    }

    /// Whether all has been done.
    pub(crate) fn is_done(&self) -> bool {
        self.connections.iter().all(|it| it.ended)
            && self.conversations.iter().all(|it| it.round == it.rounds)
    }

    /// Progress of what is not done, for a failure.
    pub(crate) fn pending(&self) -> Vec<String> {
        let open = self.connections.iter().filter(|it| !it.ended).map(|it| {
            let state = self.sockets.get::<tcp::Socket<'_>>(it.handle).state();
            format!("{:?} {state}: sent {}, received {}", it.script, it.sent, it.received)
        });
        let talks = self.conversations.iter().filter(|it| it.round < it.rounds);
        open.chain(talks.map(|it| format!("UDP to {}: round {} of {}", it.port, it.round, it.rounds)))
            .collect()
    }

    /// Takes and sends frames; connections only open and close by it.
    pub(crate) fn poll(&mut self) {
        self.iface.poll(Instant::now(), &mut self.end, &mut self.sockets);
    }

    /// Numbers of connections in a state.
    pub(crate) fn in_state(&self, state: tcp::State) -> Vec<usize> {
        let is_in = |it: &Connection| self.sockets.get::<tcp::Socket<'_>>(it.handle).state() == state;
        (0..).zip(&self.connections).filter(|(_, it)| is_in(it)).map(|(number, _)| number).collect()
    }

    /// Expects no more of a connection.
    pub(crate) fn give_up(&mut self, number: usize) {
        self.connections[number].ended = true;
    }

    /// One turn, and a short sleep.
    pub(crate) fn turn(&mut self) {
        self.turns += 1;
        self.iface.poll(Instant::now(), &mut self.end, &mut self.sockets);
        for connection in self.connections.iter_mut().filter(|it| !it.ended) {
            let socket = self.sockets.get_mut::<tcp::Socket<'_>>(connection.handle);
            connection.turn(socket, self.turns);
        }
        for conversation in &mut self.conversations {
            conversation.turn(self.sockets.get_mut::<udp::Socket<'_>>(conversation.handle));
        }
        let echo = self.sockets.get_mut::<udp::Socket<'_>>(self.echo);
        while let Ok((data, meta)) = echo.recv() {
            let data = data.to_vec();
            let _ = echo.send_slice(&data, meta.endpoint);
        }
        self.iface.poll(Instant::now(), &mut self.end, &mut self.sockets);
        self.end.wait(Some(PAUSE)).expect("wait");
    }
}

fn udp_socket(port: u16) -> udp::Socket<'static> {
    let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 64], vec![0; 64 << 10]);
    let mut socket = udp::Socket::new(buffer(), buffer());
    socket.bind(port).expect("a port");
    socket
}

impl Connection {
    fn turn(&mut self, socket: &mut tcp::Socket<'_>, turns: u64) {
        let Script { stream, sends, expects, stalls, .. } = self.script;
        if matches!(socket.state(), tcp::State::Listen | tcp::State::SynSent | tcp::State::SynReceived) {
            return;
        }
        while self.sent < sends && socket.can_send() {
            let piece = content(stream, self.sent, (sends - self.sent).min(16 << 10));
            self.sent += socket.send_slice(&piece).expect("open");
        }
        if self.sent == sends && !self.closed {
            socket.close();
            self.closed = true;
        }
        // Some read a little now and then, so that windows close.
        let reads = !stalls || turns % 7 == stream % 7;
        while reads && socket.can_recv() {
            let at = self.received;
            let taken = socket.recv(|data| {
                let taken = data.len().min(30_000);
                let wrong = (0..taken).find(|&i| data[i] != byte(!stream, at + i));
                assert_eq!(wrong, None, "{:?} after {at}", self.script);
                (taken, taken)
            });
            self.received += taken.expect("open");
            if stalls {
                break;
            }
        }
        let over = !socket.may_recv() && !socket.can_recv();
        if over {
            assert_eq!(self.received, expects, "{:?} in {}, sent {}", self.script, socket.state(), self.sent);
            let acknowledged = !matches!(socket.state(), tcp::State::LastAck | tcp::State::Closing);
            self.ended = self.closed && acknowledged;
        }
    }
}

impl Conversation {
    fn turn(&mut self, socket: &mut udp::Socket<'_>) {
        if let Ok((data, _)) = socket.recv() {
            assert_eq!(data, self.round.to_be_bytes(), "port {}", self.port);
            (self.round, self.waits) = (self.round + 1, false);
        }
        if !self.waits && self.round < self.rounds {
            socket.send_slice(&self.round.to_be_bytes(), (HOST, self.port)).expect("room");
            self.waits = true;
        }
    }
}
