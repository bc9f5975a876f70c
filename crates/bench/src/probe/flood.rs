//! Floods of a hostile guest, at a steady rate: datagrams to where none may go, connections that say half a
//! name, and questions for the names of one zone. [`resolve`] answers the last.
//!
//! A flood waits for nothing: what the link or the kernel does not take at once is lost, and counted.

use clap::ValueEnum;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use socket2::{Domain, SockAddr, Socket, Type};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

/// Pause between bursts.
const BURST_EVERY: Duration = Duration::from_millis(1);
/// Front of a record with a ClientHello of 512 bytes: the rest never comes.
const HALF_HELLO: [u8; 11] = [22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
/// Header of a question and its length (RFC 1035, 4.1.1): recursion desired, one question.
const HEADER_LEN: usize = 12;
const ASKED: [u8; HEADER_LEN - 2] = [1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
/// Response, recursion available, one answer.
const ANSWERED: [u8; HEADER_LEN - 2] = [0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0];
/// Type A, class IN; in front of an answer a pointer to the question's name, behind it a time to live of a
/// minute and four bytes of data.
const A_IN: [u8; 4] = [0, 1, 0, 1];
const NAME_POINTER: [u8; 2] = [0xc0, HEADER_LEN as u8];
const TTL_AND_LENGTH: [u8; 6] = [0, 0, 0, 60, 0, 4];
/// Address of all names: none of a private range.
const ADDRESS: [u8; 4] = [203, 0, 113, 7];

/// Kind of flood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Flood {
    /// Datagrams to all ports of 250 addresses from the peer's on.
    Datagrams,
    /// Connections to the peer that say half a ClientHello and hold.
    HalfHellos,
    /// Questions to the peer for `nN.zone.example`.
    Questions,
}

/// Sends `count` of them in `duration`.
pub(super) fn flood(kind: Flood, peer: SocketAddr, count: u64, duration: Duration) -> io::Result<Value> {
    match kind {
        Flood::Datagrams => datagrams(peer, count, duration),
        Flood::HalfHellos => half_hellos(peer, count, duration),
        Flood::Questions => questions(peer, count, duration),
    }
}

/// Calls `send` with the numbers below `count`, evenly over `duration`, and `rest` after each burst.
fn pace<T>(state: &mut T, count: u64, duration: Duration, send: fn(&mut T, u64), rest: fn(&mut T)) {
    let (start, mut done) = (Instant::now(), 0);
    while done < count {
        let due = (start.elapsed().as_secs_f64() / duration.as_secs_f64() * count as f64) as u64;
        for number in done..due.min(count) {
            send(state, number);
        }
        done = due.min(count);
        rest(state);
        thread::sleep(BURST_EVERY);
    }
}

fn datagrams(peer: SocketAddr, count: u64, duration: Duration) -> io::Result<Value> {
    let IpAddr::V4(first) = peer.ip() else { return Err(ErrorKind::Unsupported.into()) };
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_nonblocking(true)?;
    let mut state = (socket, u32::from(first), 0u64);
    pace(
        &mut state,
        count,
        duration,
        |(socket, first, sent), number| {
            let to = Ipv4Addr::from(*first + (number % 250) as u32);
            *sent += u64::from(socket.send_to(b"x", (to, 1024 + (number % 60_000) as u16)).is_ok());
        },
        |_| {},
    );
    Ok(json!({ "sent": state.2 }))
}

/// Connections of [`Flood::HalfHellos`].
#[derive(Debug)]
struct HalfHellos {
    peer: SockAddr,
    /// Under way.
    pending: VecDeque<Socket>,
    /// Connections that have said half a name.
    held: Vec<Socket>,
    refused: u64,
    /// Without a port or descriptor.
    failed: u64,
}

fn half_hellos(peer: SocketAddr, count: u64, duration: Duration) -> io::Result<Value> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let (pending, held, refused, failed) = Default::default();
    let mut state = HalfHellos { peer: peer.into(), pending, held, refused, failed };
    pace(&mut state, count, duration, |state, _| state.connect(), HalfHellos::speak);
    thread::sleep(Duration::from_millis(100));
    state.speak();
    Ok(json!({ "held": state.held.len(), "refused": state.refused, "failed": state.failed }))
}

impl HalfHellos {
    fn connect(&mut self) {
        let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None);
        match socket.map(|socket| (socket.connect(&self.peer), socket)) {
            Ok((Ok(()), socket)) => self.pending.push_back(socket),
            Ok((Err(error), socket)) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
                self.pending.push_back(socket);
            }
            Ok(_) | Err(_) => self.failed += 1,
        }
    }

    /// Lets the connections speak that are open, and drops those that are refused.
    fn speak(&mut self) {
        for _ in 0..self.pending.len() {
            let Some(socket) = self.pending.pop_front() else { return };
            match socket.send(&HALF_HELLO) {
                Ok(_) => self.held.push(socket),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.pending.push_back(socket),
                Err(_) => self.refused += 1,
            }
        }
    }
}

fn questions(peer: SocketAddr, count: u64, duration: Duration) -> io::Result<Value> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(peer)?;
    socket.set_nonblocking(true)?;
    let mut state = (socket, 0u64, 0u64);
    let read = |(socket, answered, named): &mut (UdpSocket, u64, u64)| {
        let mut buffer = [0; 512];
        while let Ok(length) = socket.recv(&mut buffer) {
            *answered += 1;
            *named += u64::from(length > HEADER_LEN && buffer[7] > 0);
        }
    };
    pace(
        &mut state,
        count,
        duration,
        |(socket, ..), number| {
            let label = format!("n{number}");
            let labels = [label.as_bytes(), b"zone", b"example"].map(|it| [&[it.len() as u8], it].concat());
            let id = (number as u16).to_be_bytes();
            // A question without an answer is one less answer.
            let _ = socket.send(&[&id[..], &ASKED, &labels.concat(), &[0], &A_IN].concat());
        },
        read,
    );
    thread::sleep(Duration::from_millis(100));
    read(&mut state);
    Ok(json!({ "answered": state.1, "with_address": state.2 }))
}

/// Answers every question at a port with one address, for ever.
pub(super) fn resolve(port: u16) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
    let mut buffer = [0; 512];
    loop {
        let (length, from) = socket.recv_from(&mut buffer)?;
        let question = buffer.get(HEADER_LEN..length).unwrap_or_default();
        // Labels of a question hold no zero; type and class are behind them.
        let Some(end) = question.iter().position(|byte| *byte == 0) else { continue };
        let Some(question) = question.get(..end + 1 + A_IN.len()) else { continue };
        let answer = [&buffer[..2], &ANSWERED, question, &NAME_POINTER, &A_IN, &TTL_AND_LENGTH, &ADDRESS];
        // A client that is gone gets none.
        let _ = socket.send_to(&answer.concat(), from);
    }
}
