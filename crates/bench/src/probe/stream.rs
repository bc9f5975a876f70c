//! Datagrams in one direction, as fast as possible or at a given rate, with the number that arrive.
//!
//! A TCP connection beside them carries the start and the number sent, so that losses are exact. Senders and
//! receivers work as ordinary programs do: one system call for each datagram, and the kernel's default
//! buffers. Each datagram has a number and a content that follows from its place, and is counted once: one
//! that was cut, joined, repeated or changed is *wrong*, and would otherwise stand for one that is lost.
//!
//! ```text
//!   datagrams-up     client                              server
//!                    "datagram-sink SIZE"     -->        binds a socket, "PORT"
//!                    datagrams                ==>        counts
//!                    end of the connection    -->        {"datagrams": ..., "wrong": ..., ...}
//!   datagrams-down   "datagram-source SIZE MS RATE" -->  binds a socket, "PORT"
//!                    a datagram of one byte, repeated --> learns where to send
//!                    counts                   <==        datagrams
//!                                             <--        {"sent": ...}, once queues have had time to empty
//! ```

use super::connection::PATIENCE;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

/// Wait for queued datagrams after the last one was sent.
const DRAIN: Duration = Duration::from_millis(100);
/// Longest wait for datagrams between checks of the clock and the connection.
const WAIT: Duration = Duration::from_millis(20);
/// Shortest sleep of a paced sender between bursts; at 100,000 datagrams per second ten are due
/// after it.
const PAUSE: Duration = Duration::from_micros(100);
/// Longest burst of a paced sender, in datagrams: a sender that did not run for a while does not catch up, as
/// that would measure the receiver's buffer and not the path.
const BURST_MAX: u32 = 64;

/// Datagrams to send.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream {
    /// Payload of each datagram, bytes.
    pub(super) size: usize,
    /// Duration of the stream.
    pub(super) duration: Duration,
    /// Datagrams per second; 0: as fast as they go.
    pub(super) rate: u64,
}

/// Bytes of a datagram's number, at its beginning.
const NUMBER: usize = size_of::<u64>();
/// Bound of numbers, so that a changed one cannot fill the memory: no stream has so many datagrams.
const NUMBERS_MAX: u64 = 1 << 30;

/// A datagram whose number is still to be put in.
fn datagram(size: usize) -> io::Result<Vec<u8>> {
    if size < NUMBER {
        return Err(io::Error::other(format!("a datagram has {NUMBER} bytes or more, for its number")));
    }
    // A prime number of values, so that content which has moved differs.
    Ok((0..size).map(|place| (place % 251) as u8).collect())
}

/// Datagrams that arrived.
#[derive(Debug)]
struct Arrived {
    /// The datagram expected, but for its number.
    expected: Vec<u8>,
    /// One bit for each number.
    seen: Vec<u64>,
    datagrams: u64,
    /// Arrivals that are not as sent, or had arrived before.
    wrong: u64,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Arrived {
    fn new(size: usize) -> io::Result<Self> {
        let (seen, first, last) = (Vec::new(), None, None);
        Ok(Self { expected: datagram(size)?, seen, datagrams: 0, wrong: 0, first, last })
    }

    fn add(&mut self, datagram: &[u8]) {
        if !self.is_right(datagram) {
            self.wrong += 1;
            return;
        }
        let now = Instant::now();
        self.first.get_or_insert(now);
        self.last = Some(now);
        self.datagrams += 1;
    }

    /// Whether it is as sent, and here for the first time.
    fn is_right(&mut self, datagram: &[u8]) -> bool {
        let Some((number, content)) = datagram.split_first_chunk() else { return false };
        let number = u64::from_be_bytes(*number);
        if content != &self.expected[NUMBER..] || number >= NUMBERS_MAX {
            return false;
        }
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        if self.seen.len() <= word {
            self.seen.resize(word + 1, 0);
        }
        let is_new = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        is_new
    }

    fn seconds(&self) -> f64 {
        self.first.zip(self.last).map_or(0.0, |(first, last)| (last - first).as_secs_f64())
    }

    fn json(&self) -> Value {
        json!({
            "datagrams": self.datagrams, "bytes": self.datagrams * self.expected.len() as u64,
            "seconds": self.seconds(), "wrong": self.wrong,
        })
    }
}

/// Figures from the counts of both ends. Rates are over the time the stream was to last, or over what the
/// receiver needed if that was longer.
fn figures(sent: u64, arrived: &Value, duration: Duration) -> Value {
    let number = |name: &str| arrived[name].as_f64().unwrap_or(0.0);
    let seconds = number("seconds").max(duration.as_secs_f64());
    json!({
        "sent": sent,
        "datagrams": arrived["datagrams"],
        "bytes": arrived["bytes"],
        "wrong": arrived["wrong"],
        "gbit_per_second": number("bytes") * 8.0 / seconds / 1e9,
        "datagrams_per_second": number("datagrams") / seconds,
        "loss_percent": 100.0 * (1.0 - number("datagrams") / (sent as f64).max(1.0)),
    })
}

fn bind(peer: SocketAddr) -> io::Result<UdpSocket> {
    match peer {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)),
    }
}

/// Sends to the server.
pub(super) fn up(peer: SocketAddr, stream: Stream) -> io::Result<Value> {
    let mut control = TcpStream::connect(peer)?;
    writeln!(control, "datagram-sink {}", stream.size)?;
    let mut answers = BufReader::new(control.try_clone()?);
    let port = answer(&mut answers)?.as_u64().ok_or_else(no_port)?;
    let socket = bind(peer)?;
    socket.connect(SocketAddr::new(peer.ip(), port as u16))?;
    let sent = send(&socket, stream)?;
    thread::sleep(DRAIN);
    control.shutdown(Shutdown::Write)?;
    Ok(figures(sent, &answer(&mut answers)?, stream.duration))
}

/// The server's socket, at the address at which the client has found it; its port is sent to the client.
fn beside(control: &mut TcpStream) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(SocketAddr::new(control.local_addr()?.ip(), 0))?;
    writeln!(control, "{}", socket.local_addr()?.port())?;
    Ok(socket)
}

/// The server's side of [`up`].
pub(super) fn sink(control: &mut TcpStream, size: usize) -> io::Result<()> {
    let mut arrived = Arrived::new(size)?;
    let socket = beside(control)?;
    count(&socket, &mut arrived, || ended(control))?;
    writeln!(control, "{}", arrived.json())
}

/// Receives from the server.
pub(super) fn down(peer: SocketAddr, stream: Stream) -> io::Result<Value> {
    let mut control = TcpStream::connect(peer)?;
    writeln!(control, "datagram-source {} {} {}", stream.size, stream.duration.as_millis(), stream.rate)?;
    let mut answers = BufReader::new(control.try_clone()?);
    let port = answer(&mut answers)?.as_u64().ok_or_else(no_port)?;
    let socket = bind(peer)?;
    socket.connect(SocketAddr::new(peer.ip(), port as u16))?;
    // Datagrams that give the server our address; the first may be lost.
    let mut arrived = Arrived::new(stream.size)?;
    let mut buffer = vec![0; 65536];
    socket.set_read_timeout(Some(WAIT))?;
    let limit = Instant::now() + PATIENCE;
    while arrived.datagrams + arrived.wrong == 0 {
        if Instant::now() > limit {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no datagram came"));
        }
        socket.send(&[0])?;
        if let Ok(length) = socket.recv(&mut buffer) {
            arrived.add(&buffer[..length]);
        }
    }
    count(&socket, &mut arrived, || ended(&control))?;
    let sent = answer(&mut answers)?["sent"].as_u64().unwrap_or(0);
    Ok(figures(sent, &arrived.json(), stream.duration))
}

/// The server's side of [`down`].
pub(super) fn source(control: &mut TcpStream, stream: Stream) -> io::Result<()> {
    let socket = beside(control)?;
    let (_, client) = socket.recv_from(&mut [0; 16])?;
    socket.connect(client)?;
    let sent = send(&socket, stream)?;
    thread::sleep(DRAIN);
    writeln!(control, "{}", json!({ "sent": sent }))
}

/// Sends for the given time; returns the number of datagrams.
fn send(socket: &UdpSocket, stream: Stream) -> io::Result<u64> {
    let mut buffer = datagram(stream.size)?;
    let interval = Duration::from_secs_f64(1.0 / stream.rate.max(1) as f64);
    let mut due = Instant::now();
    let end = due + stream.duration;
    let mut sent = 0_u64;
    loop {
        let now = Instant::now();
        if now >= end {
            return Ok(sent);
        }
        if stream.rate > 0 {
            if due > now {
                thread::sleep(PAUSE);
                continue;
            }
            let late = now.duration_since(due);
            due += interval.max(late.saturating_sub(interval * BURST_MAX));
        }
        buffer[..NUMBER].copy_from_slice(&sent.to_be_bytes());
        match socket.send(&buffer) {
            // ENOBUFS: the sender's own kernel had no room, so the datagram does not count as sent.
            Err(e) if e.raw_os_error() == Some(nix::errno::Errno::ENOBUFS as i32) => {}
            other => {
                other?;
                sent += 1;
            }
        }
    }
}

/// Counts what arrives until `over`, and then until nothing comes any more.
fn count(
    socket: &UdpSocket,
    arrived: &mut Arrived,
    mut over: impl FnMut() -> io::Result<bool>,
) -> io::Result<()> {
    let mut buffer = vec![0; 65536];
    socket.set_read_timeout(Some(WAIT))?;
    loop {
        match socket.recv(&mut buffer) {
            Ok(length) => arrived.add(&buffer[..length]),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                if over()? {
                    return Ok(());
                }
            }
            Err(e) => return Err(e),
        }
    }
}

/// Whether the other side has sent bytes or ended its half, without reading any.
fn ended(control: &TcpStream) -> io::Result<bool> {
    control.set_nonblocking(true)?;
    let seen = control.peek(&mut [0]);
    control.set_nonblocking(false)?;
    match seen {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(e) => Err(e),
    }
}

fn answer(input: &mut impl BufRead) -> io::Result<Value> {
    let mut line = String::new();
    input.by_ref().take(1000).read_line(&mut line)?;
    serde_json::from_str(&line).map_err(|e| io::Error::other(format!("answer {line:?}: {e}")))
}

fn no_port() -> io::Error {
    io::Error::other("the server named no port")
}

#[cfg(test)]
mod tests {
    //! Counts of datagrams that are as sent, and of others.

    use super::*;

    fn numbered(size: usize, number: u64) -> Vec<u8> {
        let mut bytes = datagram(size).expect("room for a number");
        bytes[..NUMBER].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    #[test]
    fn each_datagram_counts_once_and_as_it_was_sent() {
        let mut arrived = Arrived::new(100).expect("room for a number");
        for number in [0, 1, 200, 1, 63, 64] {
            arrived.add(&numbered(100, number));
        }
        assert_eq!((arrived.datagrams, arrived.wrong), (5, 1));
        let mut changed = numbered(100, 2);
        changed[99] ^= 1;
        let halves = numbered(100, 3);
        for wrong in
            [&changed, &halves[..50], &halves[50..], &[], &numbered(101, 4), &numbered(100, u64::MAX)]
        {
            arrived.add(wrong);
        }
        assert_eq!((arrived.datagrams, arrived.wrong), (5, 7));
        assert_eq!(arrived.json()["bytes"], 500);
    }

    #[test]
    fn datagrams_cut_in_two_are_lost_and_wrong() {
        let mut arrived = Arrived::new(1400).expect("room for a number");
        for number in 0..10 {
            let whole = numbered(1400, number);
            arrived.add(&whole[..700]);
            arrived.add(&whole[700..]);
        }
        let figures = figures(10, &arrived.json(), Duration::from_secs(1));
        assert_eq!((&figures["loss_percent"], &figures["wrong"]), (&json!(100.0), &json!(20)));
    }
}
