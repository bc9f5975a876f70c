//! Bulk throughput: bytes in a given time, counted at the receiver.
//!
//! All flows share one interval: it begins when all are connected and ends when the last byte of the last
//! flow has arrived. Intervals of each flow's own would let a starved flow, which gets its few bytes within a
//! millisecond at the end, add tens of Gbit/s. Bytes that arrived are compared with bytes sent, as a
//! connection that is cut short ends no differently for its reader: uploads with the sender's count,
//! downloads with the number at the end of the flood ([`flood`]).

use super::connection::CHUNK;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of one flow, and when they were sent and had arrived.
struct Flow {
    bytes: u64,
    start: Instant,
    end: Instant,
}

pub(super) fn up(peer: SocketAddr, flows: usize, duration: Duration) -> io::Result<Value> {
    let connect = || {
        let mut connection = TcpStream::connect(peer)?;
        connection.write_all(b"drain\n")?;
        Ok(connection)
    };
    measure(flows, duration, connect, |mut connection| {
        let buffer = vec![0x55; CHUNK];
        let start = Instant::now();
        let mut sent = 0;
        while start.elapsed() < duration {
            connection.write_all(&buffer)?;
            sent += buffer.len() as u64;
        }
        connection.shutdown(Shutdown::Write)?;
        let mut line = String::new();
        BufReader::new(connection).read_line(&mut line)?;
        let end = Instant::now();
        let answer: Value = serde_json::from_str(&line)?;
        let bytes = whole(sent, answer["bytes"].as_u64())?;
        Ok(Flow { bytes, start, end })
    })
}

pub(super) fn down(peer: SocketAddr, flows: usize, duration: Duration) -> io::Result<Value> {
    measure(
        flows,
        duration,
        || TcpStream::connect(peer),
        |mut connection| {
            let mut buffer = vec![0; CHUNK];
            let start = Instant::now();
            connection.write_all(format!("flood {}\n", duration.as_millis()).as_bytes())?;
            let (mut bytes, mut tail) = (0, Tail::default());
            loop {
                let length = connection.read(&mut buffer)?;
                if length == 0 {
                    let end = Instant::now();
                    return Ok(Flow { bytes: whole(tail.number(), Some(bytes))?, start, end });
                }
                tail.add(&buffer[..length]);
                bytes += length as u64;
            }
        },
    )
}

/// The server's side of [`down`]: sends for `duration`, and at the end the number of all bytes, its own eight
/// included.
pub(super) fn flood(connection: &mut TcpStream, duration: Duration) -> io::Result<()> {
    let buffer = vec![0x55; CHUNK];
    let end = Instant::now() + duration;
    let mut sent = size_of::<u64>() as u64;
    while Instant::now() < end {
        connection.write_all(&buffer)?;
        sent += buffer.len() as u64;
    }
    connection.write_all(&sent.to_be_bytes())?;
    connection.shutdown(Shutdown::Write)
}

/// The last bytes of a stream.
#[derive(Default)]
struct Tail([u8; size_of::<u64>()]);

impl Tail {
    fn add(&mut self, bytes: &[u8]) {
        let kept = &bytes[bytes.len().saturating_sub(self.0.len())..];
        self.0.rotate_left(kept.len());
        let from = self.0.len() - kept.len();
        self.0[from..].copy_from_slice(kept);
    }

    fn number(&self) -> u64 {
        u64::from_be_bytes(self.0)
    }
}

/// The number of bytes, if all that were sent have arrived.
fn whole(sent: u64, arrived: Option<u64>) -> io::Result<u64> {
    match arrived {
        Some(arrived) if arrived == sent => Ok(sent),
        _ => {
            Err(io::Error::other(format!("the stream was cut short: {arrived:?} bytes arrived, {sent} sent")))
        }
    }
}

/// Connects all flows, and runs them from the same moment on.
fn measure<C>(
    flows: usize,
    duration: Duration,
    connect: impl Fn() -> io::Result<C> + Sync,
    run: impl Fn(C) -> io::Result<Flow> + Sync,
) -> io::Result<Value> {
    let barrier = Barrier::new(flows);
    let one = || {
        let connection = connect();
        // Also without a connection: the other flows wait here for this one.
        barrier.wait();
        run(connection?)
    };
    let flows: Vec<Flow> = thread::scope(|scope| {
        let workers: Vec<_> = (0..flows).map(|_| scope.spawn(one)).collect();
        let ended = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())));
        ended.collect::<io::Result<_>>()
    })?;
    let (bytes, seconds) = sum(&flows, duration);
    Ok(json!({ "bytes": bytes, "seconds": seconds, "gbit_per_second": bytes as f64 * 8.0 / seconds / 1e9 }))
}

/// Bytes of all flows, and the seconds from the first one's start to the last one's end, at least `duration`.
fn sum(flows: &[Flow], duration: Duration) -> (u64, f64) {
    let start = flows.iter().map(|flow| flow.start).min();
    let end = flows.iter().map(|flow| flow.end).max();
    let together = start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start);
    (flows.iter().map(|flow| flow.bytes).sum(), together.max(duration).as_secs_f64())
}

#[cfg(test)]
mod tests {
    //! The common interval, streams cut short, and flows without a connection.

    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn flows_share_one_interval() {
        let begin = Instant::now();
        let flow = |bytes, start_ms, end_ms| Flow {
            bytes,
            start: begin + Duration::from_millis(start_ms),
            end: begin + Duration::from_millis(end_ms),
        };
        // The second gets its bytes in the last millisecond.
        let flows = [flow(1_000_000, 0, 2000), flow(4_000_000, 1999, 2000)];
        assert_eq!(sum(&flows, Duration::from_secs(2)), (5_000_000, 2.0));
        assert_eq!(sum(&[flow(7, 0, 2500), flow(1, 10, 2100)], Duration::from_secs(2)), (8, 2.5));
        assert_eq!(sum(&[flow(7, 0, 100)], Duration::from_secs(2)), (7, 2.0));
    }

    #[test]
    fn a_stream_cut_short_is_an_error() {
        assert_eq!(whole(7, Some(7)).ok(), Some(7));
        assert!(whole(7, Some(6)).is_err() && whole(7, None).is_err());
        let tail = |parts: &[&[u8]]| {
            let mut tail = Tail::default();
            for part in parts {
                tail.add(part);
            }
            tail.number()
        };
        let number = 0x0102_0304_0506_0708_u64.to_be_bytes();
        assert_eq!(tail(&[&[0x55; 9], &number]), 0x0102_0304_0506_0708);
        assert_eq!(tail(&[&[0x55; 9], &number[..3], &number[3..]]), 0x0102_0304_0506_0708);
        assert_eq!(tail(&[&[0x55; 20]]), 0x5555_5555_5555_5555);
    }

    #[test]
    fn one_flow_without_a_connection_stops_none_of_the_others_for_ever() {
        let (number, ran) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let connect = || match number.fetch_add(1, Ordering::Relaxed) {
            1 => Err(io::ErrorKind::ConnectionRefused.into()),
            _ => Ok(()),
        };
        let run = |()| {
            ran.fetch_add(1, Ordering::Relaxed);
            let now = Instant::now();
            Ok(Flow { bytes: 1, start: now, end: now })
        };
        let error = measure(3, Duration::ZERO, connect, run).err().map(|error| error.kind());
        assert_eq!((error, ran.into_inner()), (Some(io::ErrorKind::ConnectionRefused), 2));
    }
}
