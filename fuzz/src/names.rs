//! The DNS service as a whole: arbitrary queries of a guest, arbitrary messages of resolvers, time, errors,
//! changes.
//!
//! An input is a series of steps, each two bytes (what happens, and a number) and, for messages, as many
//! bytes as the number says. After each step the frames to the guest must be responses, no longer than a
//! packet and no more of them than questions; at the end the remaining state is within the bounds.

use brodo_core::config::Config;
use brodo_core::host::{HostError, IcmpCause, IcmpReport, SocketId};
use brodo_core::link::{LinkCaps, RxMeta};
use brodo_core::stack::{Io, Stack};
use brodo_core::time::{Duration, Instant};
use brodo_core::wire::dns::Header;
use brodo_sim::driver::{SimDriver, Simulated};
use brodo_sim::link::to_stack;
use brodo_sim::packet::{self, ParsedFrame, UdpDatagram};
use std::net::{Ipv4Addr, SocketAddr};

/// Most steps of an input; further ones are ignored.
const STEPS_MAX: usize = 200;

struct Play {
    driver: SimDriver,
    now: Instant,
    dns: SocketAddr,
    guest: Ipv4Addr,
    asked: usize,
    answered: usize,
}

impl Play {
    fn new() -> Self {
        let resolvers = Self::resolvers(2);
        let host_names = vec![("db.lan".to_owned(), Ipv4Addr::new(192, 0, 2, 7).into())];
        let config = Config { mtu: 1500, resolvers, host_names, dns_cache: 8 << 10, ..Config::default() };
        let net = config.v4.expect("IPv4");
        let mut driver = SimDriver::new(config, LinkCaps::default(), 1);
        driver.host.set_record(false);
        let dns = SocketAddr::new(net.dns.expect("DNS").into(), 53);
        let now = Instant::from_ms(1);
        Self { driver, now, dns, guest: net.guest, asked: 0, answered: 0 }
    }

    fn resolvers(count: u8) -> Vec<SocketAddr> {
        (1..=count).map(|n| SocketAddr::from(([192, 0, 2, n], 53))).collect()
    }

    /// The open socket of that number, counted around.
    fn socket(&self, number: u8) -> Option<SocketId> {
        let host = &self.driver.host;
        let open: Vec<_> = host.all().filter(|&socket| host.closed(socket).is_none()).collect();
        open.get(usize::from(number) % open.len().max(1)).copied()
    }

    fn turn(&mut self, frames: &[(RxMeta, Vec<u8>)]) {
        for sent in self.driver.turn(self.now, frames) {
            for piece in sent.cut() {
                let Ok(ParsedFrame::Udp(datagram)) = packet::parse(&piece) else {
                    panic!("something else was sent")
                };
                assert_eq!((datagram.src, datagram.dst.ip()), (self.dns, self.guest.into()));
                assert!(datagram.data.len() <= 1472);
                assert!(Header::parse(&datagram.data).is_some_and(|header| header.is_response()));
                self.answered += 1;
            }
        }
        assert!(self.answered <= self.asked, "{} answers to {} questions", self.answered, self.asked);
        let _ = self.driver.stack.name_of(Ipv4Addr::new(192, 0, 2, 1).into());
    }

    fn call(&mut self, call: impl FnOnce(&mut Stack, &mut Io<'_, Simulated>)) {
        self.driver.io(call);
    }

    /// A resolver's message, in the shape of an answer to the last query on its socket if `fitting`: with the
    /// ID and the letters that brodo drew.
    fn says(&mut self, number: u8, fitting: bool, bytes: &[u8]) {
        let Some(socket) = self.socket(number) else { return };
        let query = self.driver.host.sent_datagrams(socket).last().map(<[u8]>::to_vec).unwrap_or_default();
        let message = if fitting && query.len() >= Header::LEN && bytes.len() >= 4 {
            let mut message = query;
            (message[2], message[3]) = (0x80 | message[2] & 0x79 | bytes[0] & 2, bytes[1]);
            (message[7], message[9], message[11]) = (bytes[2] & 7, bytes[2] >> 3 & 7, bytes[3] & 3);
            message.extend(&bytes[4..]);
            message
        } else {
            bytes.to_vec()
        };
        let segment = (number & 0x80 != 0).then_some(40).filter(|_| message.len() > 40);
        self.driver.host.peer_datagram(socket, &message, segment);
    }

    fn steps(&mut self, mut data: &[u8]) {
        for _ in 0..STEPS_MAX {
            let [kind, number, rest @ ..] = data else { break };
            let len = if kind % 10 < 5 { usize::from(*number).min(rest.len()) } else { 0 };
            let (bytes, after) = rest.split_at(len);
            self.step(*kind, *number, bytes);
            data = after;
        }
    }

    fn step(&mut self, kind: u8, number: u8, bytes: &[u8]) {
        let mut frames = Vec::new();
        match kind % 10 {
            0 | 1 => {
                let src = SocketAddr::new(self.guest.into(), 5000 + u16::from(kind / 10 % 4));
                let frame = UdpDatagram { src, dst: self.dns, data: bytes.to_vec() };
                frames.push((RxMeta::default(), frame.to_frame(to_stack(Config::default().mac.0))));
                self.asked += 1;
            }
            2 | 3 => self.says(kind / 10, true, bytes),
            4 => self.says(kind / 10, false, bytes),
            5 => self.now = self.now + Duration::from_millis(u64::from(number) * 20),
            6 => {
                if let Some(socket) = self.socket(number) {
                    let cause =
                        [IcmpCause::PortUnreachable, IcmpCause::TimeExceeded][usize::from(kind / 10 % 2)];
                    self.driver.host.peer_icmp(socket, IcmpReport { cause, from: None, sequence: None });
                }
            }
            7 => {
                let error = [HostError::Exhausted, HostError::NetUnreachable][usize::from(kind / 10 % 2)];
                self.driver.host.refuse_next_open(error);
            }
            8 => self.call(|stack, _| stack.set_resolvers(Self::resolvers(number % 10))),
            _ => self.call(Stack::network_changed),
        }
        self.turn(&frames);
    }
}

/// Steps as the module says.
pub fn run(data: &[u8]) {
    let mut play = Play::new();
    play.steps(data);
    for _ in 0..8 {
        play.now = play.now + Duration::from_secs(1);
        play.turn(&[]);
    }
    assert_eq!((play.driver.stack.flows(), play.driver.host.open_sockets()), (0, 0), "something is left");
}

#[cfg(test)]
mod tests;
