//! Bulk throughput: bytes in a given time, counted at the receiver.

use super::connection::CHUNK;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of one flow and the seconds in which its receiver got them.
struct Flow {
    bytes: u64,
    seconds: f64,
}

pub(super) fn up(peer: SocketAddr, flows: usize, duration: Duration) -> io::Result<Value> {
    measure(flows, |barrier| {
        let mut connection = TcpStream::connect(peer)?;
        connection.write_all(b"drain\n")?;
        let buffer = vec![0x55; CHUNK];
        barrier.wait();
        let end = Instant::now() + duration;
        while Instant::now() < end {
            connection.write_all(&buffer)?;
        }
        connection.shutdown(Shutdown::Write)?;
        let mut line = String::new();
        BufReader::new(connection).read_line(&mut line)?;
        let answer: Value = serde_json::from_str(&line)?;
        let seconds = answer["seconds"].as_f64().unwrap_or(f64::INFINITY);
        Ok(Flow { bytes: answer["bytes"].as_u64().unwrap_or(0), seconds })
    })
}

pub(super) fn down(peer: SocketAddr, flows: usize, duration: Duration) -> io::Result<Value> {
    measure(flows, |barrier| {
        let mut connection = TcpStream::connect(peer)?;
        let mut buffer = vec![0; CHUNK];
        barrier.wait();
        connection.write_all(format!("flood {}\n", duration.as_millis()).as_bytes())?;
        let mut start = None;
        let mut bytes = 0;
        loop {
            let length = connection.read(&mut buffer)?;
            let start = *start.get_or_insert_with(Instant::now);
            bytes += length as u64;
            if length == 0 {
                return Ok(Flow { bytes, seconds: start.elapsed().as_secs_f64() });
            }
        }
    })
}

fn measure(flows: usize, one: impl Fn(&Barrier) -> io::Result<Flow> + Sync) -> io::Result<Value> {
    let barrier = Barrier::new(flows);
    let flows: Vec<Flow> = thread::scope(|scope| {
        let workers: Vec<_> = (0..flows).map(|_| scope.spawn(|| one(&barrier))).collect();
        let ended = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())));
        ended.collect::<io::Result<_>>()
    })?;
    let bits_per_second: f64 = flows.iter().map(|flow| flow.bytes as f64 * 8.0 / flow.seconds).sum();
    Ok(json!({
        "bytes": flows.iter().map(|flow| flow.bytes).sum::<u64>(),
        "gbit_per_second": bits_per_second / 1e9,
    }))
}
