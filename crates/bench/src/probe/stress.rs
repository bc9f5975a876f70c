//! Stress transfers: of all sizes, with stalls at either end, a thousand slow readers, flows monitored while
//! the forwarder is stopped or suspended.
//!
//! Content is compared byte by byte with the pattern that both ends compute, so that a failure names the
//! place. Stalls follow a random sequence from a seed.

use super::connection::{CHUNK, Input, PATIENCE, receive as receive_all};
use super::frames::Random;
use super::pattern::{Checker, Pattern};
use nix::sys::socket::{MsgFlags, recv};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Average number of reads or writes from stall to stall, and the longest stall.
const STALL_EVERY: usize = 40;
const STALL_MAX_MS: usize = 30;
/// Buffers of one of a thousand threads, and how often a slow reader reads.
const SMALL: usize = 16 << 10;
const SIP: Duration = Duration::from_millis(50);

fn connect(peer: SocketAddr, line: &str) -> io::Result<TcpStream> {
    let mut connection = TcpStream::connect(peer)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    writeln!(connection, "{line}")?;
    Ok(connection)
}

fn stall(random: &mut Random) {
    if random.below(STALL_EVERY) == 0 {
        thread::sleep(Duration::from_millis(random.below(STALL_MAX_MS) as u64));
    }
}

/// Sends `bytes` of the pattern in pieces of any size, with stalls, and ends the direction.
fn send(connection: &mut TcpStream, bytes: u64, seed: u64) -> io::Result<()> {
    let (mut random, mut pattern) = (Random(!seed), Pattern::new(seed));
    let mut buffer = vec![0; CHUNK.min(bytes.next_multiple_of(8) as usize)];
    let mut left = bytes;
    while left > 0 {
        let whole = (1 + random.below(CHUNK)).next_multiple_of(8).min(CHUNK);
        let piece = &mut buffer[..left.min(whole as u64) as usize];
        pattern.fill(piece);
        connection.write_all(piece)?;
        left -= piece.len() as u64;
        stall(&mut random);
    }
    connection.shutdown(Shutdown::Write)
}

/// Reads to the end with stalls, and compares.
fn receive(connection: &mut impl Read, mut checker: Checker, seed: u64) -> io::Result<Checker> {
    let mut random = Random(seed);
    let mut buffer = vec![0; CHUNK];
    loop {
        let piece = 1 + random.below(CHUNK);
        match connection.read(&mut buffer[..piece])? {
            0 => return Ok(checker),
            length => checker.check(&buffer[..length]),
        }
        stall(&mut random);
    }
}

/// The server's `restless-sink SEED`: reads with stalls, compares, and sends the result.
pub(super) fn sink(input: &mut Input, seed: u64) -> io::Result<()> {
    let mut checker = Checker::new(seed);
    checker.check(&input.early);
    let checker = receive(&mut input.connection, checker, seed)?;
    writeln!(input.connection, "{}", checker.json())
}

/// The server's `restless-source N SEED`.
pub(super) fn source(input: &mut Input, bytes: u64, seed: u64) -> io::Result<()> {
    send(&mut input.connection, bytes, seed)?;
    input.discard().map(drop)
}

/// The server's `slow-sink RATE MS SEED`: reads `rate` bytes per second for a time, then to the end.
pub(super) fn slow_sink(input: &mut Input, rate: u64, time: Duration, seed: u64) -> io::Result<()> {
    let mut checker = Checker::new(seed);
    checker.check(&input.early);
    let slow = read_slowly(&mut input.connection, &mut checker, rate, time)?;
    writeln!(input.connection, "{}", json!({ "slow": slow, "content": checker.json() }))
}

/// Reads `rate` bytes per second for `time` and then to the end; returns the least and the sum of the bytes
/// per second, without the first second.
fn read_slowly(
    connection: &mut TcpStream,
    checker: &mut Checker,
    rate: u64,
    time: Duration,
) -> io::Result<Value> {
    let mut buffer = vec![0; SMALL];
    let sip = (rate as u128 * SIP.as_millis() / 1000).clamp(1, SMALL as u128) as usize;
    let start = Instant::now();
    let mut seconds = vec![0_u64; time.as_secs() as usize + 1];
    connection.set_nonblocking(true)?;
    while start.elapsed() < time {
        match connection.read(&mut buffer[..sip]) {
            Ok(0) => break,
            Ok(length) => {
                checker.check(&buffer[..length]);
                seconds[start.elapsed().as_secs().min(time.as_secs()) as usize] += length as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
        thread::sleep(SIP);
    }
    connection.set_nonblocking(false)?;
    loop {
        match connection.read(&mut buffer)? {
            0 => break,
            length => checker.check(&buffer[..length]),
        }
    }
    let whole = &seconds[1..time.as_secs() as usize];
    Ok(json!({ "least": whole.iter().min(), "bytes": whole.iter().sum::<u64>() }))
}

fn answer(connection: TcpStream) -> io::Result<Value> {
    let mut line = String::new();
    BufReader::new(connection).read_line(&mut line)?;
    serde_json::from_str(&line).map_err(|e| io::Error::other(format!("answer {line:?}: {e}")))
}

fn one(peer: SocketAddr, up: bool, bytes: u64, seed: u64) -> io::Result<Value> {
    if up {
        let mut connection = connect(peer, &format!("restless-sink {seed}"))?;
        send(&mut connection, bytes, seed)?;
        answer(connection)
    } else {
        let mut connection = connect(peer, &format!("restless-source {bytes} {seed}"))?;
        Ok(receive(&mut connection, Checker::new(seed), seed)?.json())
    }
}

/// `count` uploads and as many downloads in random order, `at_once` at a time, of 1 byte to `bytes_max`; the
/// logarithm of their sizes is evenly spread.
pub(super) fn transfers(peer: SocketAddr, count: usize, at_once: usize, bytes_max: u64, seed: u64) -> Value {
    let (next, total) = (AtomicUsize::new(0), AtomicU64::new(0));
    let failed = Mutex::new(Vec::new());
    let start = Instant::now();
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= 2 * count {
                return;
            }
            let mut random = Random(seed ^ ((number as u64) << 32));
            let share = random.below(1 << 20) as f64 / f64::from(1 << 20);
            let bytes = (bytes_max as f64).powf(share).round() as u64;
            let up = number % 2 == 0;
            let found =
                one(peer, up, bytes, random.next()).unwrap_or_else(|e| json!({ "error": e.to_string() }));
            total.fetch_add(bytes, Ordering::Relaxed);
            if found["differs_at"] != Value::Null || found["bytes"] != bytes {
                let what = json!({ "number": number, "up": up, "bytes": bytes, "found": found });
                failed.lock().unwrap_or_else(PoisonError::into_inner).push(what);
            }
        }
    };
    thread::scope(|scope| (0..at_once).for_each(|_| drop(scope.spawn(work))));
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let seconds = start.elapsed().as_secs_f64();
    json!({ "failed": failed, "bytes": total.into_inner(), "seconds": seconds, "seed": seed })
}

/// Task of the slow readers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slow {
    pub(super) count: usize,
    pub(super) bytes: u64,
    /// Rate of each connection, in bytes per second.
    pub(super) rate: u64,
    /// Duration of the slow reading.
    pub(super) time: Duration,
}

/// Many concurrent connections whose readers are slow for a time: at the server if `up`, else here. Prints a
/// line when all are connected; the result has the figures of the slowest reader.
pub(super) fn slow(peer: SocketAddr, up: bool, slow: Slow) -> io::Result<Value> {
    super::many::raise_descriptor_limit()?;
    let Slow { count, bytes, rate, time } = slow;
    let line = |seed| {
        if up {
            format!("slow-sink {rate} {} {seed}", time.as_millis())
        } else {
            format!("source {bytes} {seed}")
        }
    };
    let mut connections = Vec::with_capacity(count);
    for seed in 0..count as u64 {
        connections.push(connect(peer, &line(seed))?);
    }
    let one = |mut connection: TcpStream, seed: u64| -> io::Result<Value> {
        connection.set_write_timeout(Some(time + PATIENCE))?;
        connection.set_read_timeout(Some(time + PATIENCE))?;
        if up {
            let mut buffer = vec![0; SMALL];
            let mut pattern = Pattern::new(seed);
            let mut left = bytes;
            while left > 0 {
                let piece = &mut buffer[..left.min(SMALL as u64) as usize];
                pattern.fill(piece);
                connection.write_all(piece)?;
                left -= piece.len() as u64;
            }
            connection.shutdown(Shutdown::Write)?;
            return answer(connection);
        }
        let mut checker = Checker::new(seed);
        let slow = read_slowly(&mut connection, &mut checker, rate, time)?;
        Ok(json!({ "slow": slow, "content": checker.json() }))
    };
    let (mut failed, mut least, mut by_reader) = (Vec::new(), u64::MAX, Vec::new());
    thread::scope(|scope| -> io::Result<()> {
        let mut threads = Vec::with_capacity(count);
        for (seed, connection) in connections.into_iter().enumerate() {
            let small = thread::Builder::new().stack_size(128 << 10);
            threads.push(small.spawn_scoped(scope, move || one(connection, seed as u64))?);
        }
        for (number, thread) in threads.into_iter().enumerate() {
            let found = thread.join().map_err(|_| io::Error::other("a thread has panicked"))?;
            let found = found.unwrap_or_else(|e| json!({ "error": e.to_string() }));
            let content = &found["content"];
            if content["differs_at"] != Value::Null || content["bytes"] != bytes {
                failed.push(json!({ "number": number, "found": found }));
            }
            least = least.min(found["slow"]["least"].as_u64().unwrap_or(0));
            by_reader.push(found["slow"]["bytes"].as_u64().unwrap_or(0));
        }
        Ok(())
    })?;
    let (worst, best) = (by_reader.iter().min(), by_reader.iter().max());
    let total: u64 = by_reader.iter().sum();
    failed.truncate(5);
    Ok(json!({
        "failed": failed, "least_in_a_second": least, "worst": worst, "best": best, "total": total,
    }))
}

/// Bytes of one flow that make a round of [`watch`].
const ROUND: u64 = 4 << 20;

/// Bytes each flow has moved; a line on standard error for each round that all of them have completed.
struct Rounds(Mutex<(Vec<u64>, u64)>);

impl Rounds {
    fn advance(&self, flow: usize, bytes: usize) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (moved, rounds) = &mut *state;
        moved[flow] += bytes as u64;
        while moved.iter().all(|&moved| moved >= (*rounds + 1) * ROUND) {
            *rounds += 1;
            eprintln!("round {rounds}");
        }
    }
}

/// Name of a flow's result at a server that ends its half.
fn token(flow: usize) -> String {
    format!("watch-{}-{flow}", std::process::id())
}

/// Flows in one direction until standard input ends. Progress is reported by [`Rounds`]; content is compared
/// at the end. `half_closed`: after a line of standard input the server ends its half of each upload.
pub(super) fn watch(peer: SocketAddr, up: bool, flows: usize, half_closed: bool) -> io::Result<Value> {
    let (rounds, end) = (Rounds(Mutex::new((vec![0; flows], 0))), AtomicBool::new(false));
    let upload = |flow: usize, mut connection: TcpStream| -> io::Result<bool> {
        let (mut pattern, mut buffer, mut sent) = (Pattern::new(flow as u64), vec![0; CHUNK], 0);
        while !end.load(Ordering::Relaxed) {
            pattern.fill(&mut buffer);
            connection.write_all(&buffer)?;
            rounds.advance(flow, CHUNK);
            sent += CHUNK as u64;
        }
        connection.shutdown(Shutdown::Write)?;
        let found = if half_closed {
            super::client::ask(peer, &format!("result {}", token(flow)))?
        } else {
            answer(connection)?
        };
        Ok(found["bytes"] == sent && found["differs_at"] == Value::Null)
    };
    let download = |flow: usize, mut connection: TcpStream| -> io::Result<bool> {
        let (mut checker, mut buffer) = (Checker::new(flow as u64), vec![0; CHUNK]);
        loop {
            match connection.read(&mut buffer)? {
                0 => break,
                length => {
                    rounds.advance(flow, length);
                    checker.check(&buffer[..length]);
                }
            }
        }
        Ok(checker.bytes().is_multiple_of(CHUNK as u64) && checker.json()["differs_at"] == Value::Null)
    };
    let line = |flow: usize| match (up, half_closed) {
        (true, true) => format!("half-closed-sink {flow} {}", token(flow)),
        (true, false) => format!("swift-sink {flow}"),
        (false, _) => format!("swift-source {flow}"),
    };
    let connections: Vec<TcpStream> =
        (0..flows).map(|flow| connect(peer, &line(flow))).collect::<io::Result<_>>()?;
    let results = thread::scope(|scope| -> io::Result<Vec<Value>> {
        let mut threads = Vec::new();
        for (flow, connection) in connections.iter().enumerate() {
            let connection = connection.try_clone()?;
            let (upload, download) = (&upload, &download);
            threads.push(
                scope.spawn(move || if up { upload(flow, connection) } else { download(flow, connection) }),
            );
        }
        if half_closed && io::stdin().lock().read_line(&mut String::new())? > 0 {
            for flow in 0..flows {
                super::client::ask(peer, &format!("go {}-end", token(flow)))?;
            }
        }
        super::wait_for_end_of_input()?;
        end.store(true, Ordering::Relaxed);
        if !up {
            // The source ends with the client's half; one that has failed is reported by its thread.
            for connection in &connections {
                let _ = connection.shutdown(Shutdown::Write);
            }
        }
        let result =
            |equal: io::Result<bool>| equal.map_or_else(|e| json!(e.to_string()), |equal| json!(equal));
        Ok(threads.into_iter().map(|thread| thread.join().map_or(Value::Null, result)).collect())
    })?;
    Ok(json!({ "equal": results.iter().all(|result| *result == true), "flows": results }))
}

/// The server's `swift-sink SEED`: as `restless-sink` without stalls.
pub(super) fn swift_sink(input: &mut Input, seed: u64) -> io::Result<()> {
    let result = checked(input, seed)?;
    writeln!(input.connection, "{result}")
}

/// Reads to the end and compares with the pattern.
pub(super) fn checked(input: &mut Input, seed: u64) -> io::Result<Value> {
    let mut checker = Checker::new(seed);
    checker.check(&input.early);
    receive_all(&mut input.connection, |bytes| {
        checker.check(bytes);
        Ok(())
    })?;
    Ok(checker.json())
}

/// The server's `swift-source SEED`: whole chunks of the pattern until the client ends its half.
pub(super) fn swift_source(input: &mut Input, seed: u64) -> io::Result<()> {
    let mut pattern = Pattern::new(seed);
    let mut buffer = vec![0; CHUNK];
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    while recv(input.connection.as_raw_fd(), &mut [0], flags) != Ok(0) {
        pattern.fill(&mut buffer);
        input.connection.write_all(&buffer)?;
    }
    input.connection.shutdown(Shutdown::Write)
}
