//! A hostile guest with state: TCP connections that complete the handshake and then violate the protocol.
//!
//! Mutated single frames hardly ever get past the handshake, as they cannot know the sequence numbers of the
//! other side. Here the answers are read and used: options are absurd, acknowledgements are right, repeated,
//! old, from the future or full of false SACK blocks, windows close and open at random, data overlaps itself,
//! comes twice or not at all.
//!
//! Connections are reset in the end, as a kernel does with segments of an unknown connection. Otherwise they
//! would stay, rightly, until the table is full, and no further one could open.
//!
//! The connections come from an IPv6 address of the guest's prefix that the guest's kernel does not have, as
//! the kernel would reset connections that are not its own. It is a legitimate address: a guest may choose
//! its own in the prefix.

use super::forge::{ICMPV6, TCP, ip_frame};
use super::frames::{Random, Wire};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::{MsgFlags, recv};
use serde_json::{Value, json};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// The server's port.
const PORT: u16 = 7000;
/// The first of the guest's ports; each connection has the next one.
const PORTS_FROM: u16 = 20_000;
/// Connections at a time: enough to reach limits, few enough for each to get answers.
const TALKING: usize = 64;
/// Frames answered before new connections are opened again.
const READS: usize = 256;

/// Silence that ends the attack, once every connection has been reset.
const QUIET: Duration = Duration::from_millis(300);
/// Longest wait for a frame before the next connection is opened. It ends with the first frame, so it passes
/// only where brodo has no processor time or nothing to send.
const PATIENCE_MS: u8 = 20;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// Commands of the server, and one line that is none.
const LINES: [&[u8]; 8] = [
    b"source 3000000 7\n",
    b"flood 200\n",
    b"echo\nand again, and again, and again\n",
    b"sink\nsomething to hash",
    b"drain\n",
    b"reset\n",
    b"hold\n",
    b"\0\xff\n",
];

/// State of one connection.
#[derive(Debug, Clone, Copy, Default)]
struct Talk {
    port: u16,
    /// Our next sequence number.
    next: u32,
    /// Next sequence number expected from the other side; none before its SYN.
    expected: Option<u32>,
}

/// Numbers of a segment.
struct Numbers {
    sequence: u32,
    acknowledged: u32,
}

impl Numbers {
    /// Without an acknowledgement.
    const fn at(sequence: u32) -> Self {
        Self { sequence, acknowledged: 0 }
    }
}

struct Party {
    wire: Wire,
    address: Ipv6Addr,
    server: Ipv6Addr,
    random: Random,
    talks: Vec<Talk>,
    buffer: Vec<u8>,
    ports: u16,
    opened: u64,
    established: u64,
    sent: u64,
}

/// Attacks until `count` connections have been established, without a time limit.
pub(super) fn hostile(count: u64, seed: u64) -> io::Result<Value> {
    let wire = Wire::open()?;
    let mut octets = wire.v6.octets();
    octets[15] = 0x77;
    let mut party = Party {
        wire,
        address: octets.into(),
        server: Ipv6Addr::new(0xfd00, 0x19, 0, 0, 0, 0, 0, 1),
        random: Random(seed),
        talks: vec![Talk::default(); TALKING],
        buffer: vec![0; 70_000],
        ports: 0,
        opened: 0,
        established: 0,
        sent: 0,
    };
    while party.established < count {
        party.open()?;
        poll(&mut [PollFd::new(party.wire.socket.as_fd(), PollFlags::POLLIN)], PATIENCE_MS)?;
        let mut received = 0;
        while received < READS && party.receive()? {
            received += 1;
        }
    }
    party.leave()?;
    let Party { opened, established, sent, .. } = party;
    Ok(json!({ "opened": opened, "established": established, "sent": sent, "seed": seed }))
}

impl Party {
    /// Resets one connection in any state, and opens another in its place.
    fn open(&mut self) -> io::Result<()> {
        self.ports = (self.ports + 1) % 40_000;
        let talk = Talk { port: PORTS_FROM + self.ports, next: self.random.next() as u32, expected: None };
        let slot = usize::from(self.ports) % TALKING;
        self.reset(slot)?;
        self.talks[slot] = talk;
        self.opened += 1;
        let options = self.options();
        // A SYN may carry data; a third of ours do.
        let data: &[u8] = if self.random.below(3) == 0 { LINES[0] } else { b"" };
        let window = self.window();
        self.send(talk, Numbers::at(talk.next), SYN, window, &options, data)
    }

    /// Resets a connection and drops its state. A challenge ACK to that is answered in [`Party::answer`].
    fn reset(&mut self, slot: usize) -> io::Result<()> {
        let talk = std::mem::take(&mut self.talks[slot]);
        if talk.port == 0 {
            return Ok(());
        }
        self.send(talk, Numbers::at(talk.next), RST, 0, &[], b"")
    }

    /// Resets all connections, and any that still sends afterwards.
    fn leave(&mut self) -> io::Result<()> {
        (0..TALKING).try_for_each(|slot| self.reset(slot))?;
        let mut last = Instant::now();
        while last.elapsed() < QUIET {
            if self.receive()? {
                last = Instant::now();
            }
        }
        Ok(())
    }

    /// Reads one frame and answers it; whether there was one.
    fn receive(&mut self) -> io::Result<bool> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let received = match recv(self.wire.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(length) => self.consider(&buffer[..length]).map(|()| true),
            Err(Errno::EAGAIN) => Ok(false),
            Err(e) => Err(e.into()),
        };
        self.buffer = buffer;
        received
    }

    fn consider(&mut self, frame: &[u8]) -> io::Result<()> {
        // Ethernet, IPv6 and the fixed header behind it; from the router only.
        if frame.len() < 74 || frame[6..12] != self.wire.gateway_mac || frame[12..14] != [0x86, 0xdd] {
            return Ok(());
        }
        match frame[20] {
            ICMPV6 if frame[54] == 135 && frame[62..78] == self.address.octets() => {
                let mut from = [0; 16];
                from.copy_from_slice(&frame[22..38]);
                self.advertise(from.into())?;
            }
            TCP if frame[38..54] == self.address.octets() => self.answer(&frame[54..])?,
            _ => {}
        }
        Ok(())
    }

    /// Answers a neighbour solicitation for the address that the kernel does not have.
    fn advertise(&mut self, to: Ipv6Addr) -> io::Result<()> {
        let mut body = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
        body.extend(self.address.octets());
        body.extend([2, 1]);
        body.extend(self.wire.mac);
        let addresses = (IpAddr::V6(self.address), IpAddr::V6(to));
        let frame = ip_frame(self.wire.gateway_mac, self.wire.mac, addresses, ICMPV6, &body);
        self.wire.send(&frame).map(drop)
    }

    /// Answers a segment, now and then correctly.
    fn answer(&mut self, segment: &[u8]) -> io::Result<()> {
        let number =
            |at: usize| u32::from_be_bytes([segment[at], segment[at + 1], segment[at + 2], segment[at + 3]]);
        let port = u16::from_be_bytes([segment[2], segment[3]]);
        let slot = usize::from(port.wrapping_sub(PORTS_FROM)) % TALKING;
        let mut talk = self.talks[slot];
        if talk.port != port {
            // RFC 9293, 3.10.7.1: a segment of an unknown connection is reset with an acceptable number.
            let unknown = Talk { port, ..Talk::default() };
            let reset = segment[13] & RST == 0;
            return if reset { self.send(unknown, Numbers::at(number(8)), RST, 0, &[], b"") } else { Ok(()) };
        }
        let (sequence, flags) = (number(4), segment[13]);
        let header = usize::from(segment[12] >> 4) * 4;
        let length = segment.len().saturating_sub(header) as u32;
        let mut data: &[u8] = b"";
        if flags & SYN != 0 && talk.expected.is_none() {
            self.established += 1;
            talk.next = talk.next.wrapping_add(1);
            talk.expected = Some(sequence.wrapping_add(1));
            data = LINES[self.random.below(LINES.len())];
        } else if talk.expected == Some(sequence) {
            talk.expected = Some(sequence.wrapping_add(length).wrapping_add(u32::from(flags & FIN)));
        }
        let Some(expected) = talk.expected else { return Ok(()) };
        for _ in 0..=self.random.below(3) {
            let numbers = self.numbers(talk.next, expected);
            let flags = [ACK, ACK, ACK, ACK, ACK | 8, ACK | FIN, ACK | RST, ACK | 0x20, ACK | SYN, 0];
            // Mostly valid segments, which keep the connection going.
            let flags = if self.random.below(8) < 7 { ACK } else { flags[self.random.below(flags.len())] };
            let window = self.window();
            let options = if self.random.below(4) == 0 { self.options() } else { Vec::new() };
            self.send(talk, numbers, flags, window, &options, data)?;
        }
        talk.next = talk.next.wrapping_add(data.len() as u32);
        self.talks[slot] = talk;
        Ok(())
    }

    /// A sequence and an acknowledgement number: right in three cases of four.
    fn numbers(&mut self, next: u32, expected: u32) -> Numbers {
        let mut about = |right: u32| match self.random.below(16) {
            0 => right.wrapping_add(1),
            1 => right.wrapping_sub(1 + self.random.below(70_000) as u32),
            2 => right.wrapping_add(self.random.below(1 << 30) as u32),
            3 => self.random.next() as u32,
            _ => right,
        };
        Numbers { sequence: about(next), acknowledged: about(expected) }
    }

    fn window(&mut self) -> u16 {
        [0, 1, 2, 535, 1460, 0x7fff, 0xffff, 0xffff][self.random.below(8)]
    }

    /// Options between correct and absurd, padded to whole words.
    fn options(&mut self) -> Vec<u8> {
        let size =
            [0_u16, 1, 7, 47, 88, 536, 1220, 1440, 0x7fff, 0xffff][self.random.below(10)].to_be_bytes();
        let scale = [0, 1, 7, 14, 15, 255][self.random.below(6)];
        let mut options = match self.random.below(6) {
            0 => Vec::new(),
            1 => vec![2, 4, size[0], size[1]],
            2 => vec![2, 4, size[0], size[1], 3, 3, scale],
            3 => vec![4, 2, 3, 3, scale, 2, 4, size[0], size[1], 8, 10, 0, 0, 0, 1, 0, 0, 0, 0],
            4 => [vec![5, 18], (0..16).map(|_| self.random.next() as u8).collect()].concat(),
            _ => (0..self.random.below(40)).map(|_| self.random.next() as u8).collect(),
        };
        options.resize(options.len().next_multiple_of(4), 1);
        options
    }

    fn send(
        &mut self,
        talk: Talk,
        Numbers { sequence, acknowledged }: Numbers,
        flags: u8,
        window: u16,
        options: &[u8],
        data: &[u8],
    ) -> io::Result<()> {
        let mut body = [talk.port, PORT].map(u16::to_be_bytes).concat();
        body.extend(sequence.to_be_bytes());
        body.extend(acknowledged.to_be_bytes());
        body.extend([(((20 + options.len()) / 4) << 4) as u8, flags]);
        body.extend(window.to_be_bytes());
        body.extend([0; 4]);
        body.extend(options);
        body.extend(data);
        let addresses = (IpAddr::V6(self.address), IpAddr::V6(self.server));
        let frame = ip_frame(self.wire.gateway_mac, self.wire.mac, addresses, TCP, &body);
        self.sent += u64::from(self.wire.send(&frame)?);
        Ok(())
    }
}
