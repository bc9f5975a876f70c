//! Bulk throughput over time: bytes by interval, counted at the receiver.
//!
//! Unlike in [`super::bulk`] bytes still in flight at the end of the time are not awaited: on a slow path
//! they could exceed the measured ones. The connection is aborted, and the server's figures are fetched over
//! another one.

use super::client::ask;
use super::connection::CHUNK;
use serde_json::{Value, json};
use socket2::SockRef;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Longest blocking wait before the clock is read.
const WAIT: Duration = Duration::from_millis(20);

/// Duration and interval of a measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    /// Duration from the first byte on.
    pub(super) duration: Duration,
    /// Length of an interval.
    pub(super) bucket: Duration,
}

impl Span {
    pub(super) fn from_ms(duration_ms: u64, bucket_ms: u64) -> Self {
        Self { duration: Duration::from_millis(duration_ms), bucket: Duration::from_millis(bucket_ms.max(1)) }
    }
}

/// Sends for the time given by the server.
pub(super) fn up(peer: SocketAddr, span: Span) -> io::Result<Value> {
    let token = format!("timed-{}", std::process::id());
    let mut connection = TcpStream::connect(peer)?;
    let (duration_ms, bucket_ms) = (span.duration.as_millis(), span.bucket.as_millis());
    writeln!(connection, "drain-for {duration_ms} {bucket_ms} {token}")?;
    // A writer that blocks without a time limit, as ordinary programs do: one that woke in between would keep
    // its send buffer fuller than the kernel's wake-ups do.
    let writer = connection.try_clone()?;
    let writer = std::thread::spawn(move || write_all(writer));
    // The server's time began one way later than ours.
    std::thread::sleep(span.duration + 2 * WAIT);
    SockRef::from(&connection).set_linger(Some(Duration::ZERO))?;
    // Wakes the writer.
    let _ = connection.shutdown(Shutdown::Both);
    drop(connection);
    let _ = writer.join();
    ask(peer, &format!("result {token}"))
}

/// Sends until the connection ends.
fn write_all(mut connection: TcpStream) {
    let buffer = vec![0x55; CHUNK];
    while connection.write_all(&buffer).is_ok() {}
}

/// The server's side of [`up`].
pub(super) fn drain(connection: &mut TcpStream, early: usize, span: Span) -> io::Result<Value> {
    let mut series = Series::new(span);
    if early > 0 {
        series.add(early);
    }
    receive(connection, &mut series, Duration::ZERO)?;
    Ok(series.json())
}

/// Receives for the given time, with received bytes left in the socket for `dwell` before each read.
pub(super) fn down(peer: SocketAddr, span: Span, dwell: Duration) -> io::Result<Value> {
    let mut connection = TcpStream::connect(peer)?;
    // Longer than any measurement; the flood ends with the connection.
    let flood = span.duration + Duration::from_mins(1);
    writeln!(connection, "flood {}", flood.as_millis())?;
    let mut series = Series::new(span);
    receive(&mut connection, &mut series, dwell)?;
    cut(connection)?;
    Ok(series.json())
}

/// Reads until the time of `series` is over, or to the end.
fn receive(connection: &mut TcpStream, series: &mut Series, dwell: Duration) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    if !dwell.is_zero() {
        connection.set_nonblocking(true)?;
    }
    connection.set_read_timeout(Some(WAIT))?;
    while !series.is_over() {
        match connection.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => series.add(length),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(dwell),
            // The sender's time ended before ours.
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => break,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Ends a connection without waiting for anything.
fn cut(connection: TcpStream) -> io::Result<()> {
    SockRef::from(&connection).set_linger(Some(Duration::ZERO))?;
    drop(connection);
    Ok(())
}

/// Bytes by interval since the first one.
#[derive(Debug)]
struct Series {
    span: Span,
    start: Option<Instant>,
    buckets: Vec<u64>,
}

impl Series {
    fn new(span: Span) -> Self {
        Self { span, start: None, buckets: Vec::new() }
    }

    fn add(&mut self, length: usize) {
        let start = *self.start.get_or_insert_with(Instant::now);
        let elapsed = start.elapsed();
        if elapsed >= self.span.duration {
            return;
        }
        let bucket = (elapsed.as_nanos() / self.span.bucket.as_nanos()) as usize;
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += length as u64;
    }

    fn is_over(&self) -> bool {
        self.start.is_some_and(|start| start.elapsed() >= self.span.duration)
    }

    /// The figures; intervals after the last byte are empty ones, so that a stall until the end shows.
    fn json(mut self) -> Value {
        let intervals = self.span.duration.as_nanos().div_ceil(self.span.bucket.as_nanos());
        self.buckets.resize(intervals as usize, 0);
        let bytes: u64 = self.buckets.iter().sum();
        json!({
            "bytes": bytes,
            "mbit_per_second": bytes as f64 * 8.0 / self.span.duration.as_secs_f64() / 1e6,
            "bucket_ms": self.span.bucket.as_millis() as u64,
            "buckets": self.buckets,
        })
    }
}

#[cfg(test)]
mod tests {
    //! Intervals of a transfer that stalls.

    use super::*;

    #[test]
    fn a_stall_until_the_end_is_empty_intervals() {
        let mut series = Series::new(Span::from_ms(60_000, 7));
        series.add(1000);
        let found = series.json();
        let buckets = found["buckets"].as_array().expect("a list");
        assert_eq!(buckets.len(), 8572, "the last one is shorter");
        assert_eq!(buckets.iter().filter_map(Value::as_u64).sum::<u64>(), 1000);
        assert_eq!((&buckets[8571], &found["bytes"]), (&json!(0), &json!(1000)));
        assert_eq!(Series::new(Span::from_ms(1000, 100)).json()["buckets"], json!(vec![0; 10]));
    }
}
