//! Many connections: a thousand at once, or a hundred thousand one after the other.

use super::connection::PATIENCE;
use super::pattern::Pattern;
use super::{errno_name, round_trip, wait_for_end_of_input};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// A thousand connections need more descriptors than the 1,024 that programs start with.
pub(super) fn raise_descriptor_limit() -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard.min(65536), hard)?)
}

/// Opens `count` connections, then makes each of them echo its own bytes while all stay open; with `silent`
/// only after the end of input.
pub(super) fn hold(peer: SocketAddr, count: usize, silent: bool) -> io::Result<Value> {
    raise_descriptor_limit()?;
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count {
        let mut connection = TcpStream::connect(peer)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.write_all(b"echo\n")?;
        connections.push(connection);
    }
    if silent {
        eprintln!("open");
        wait_for_end_of_input()?;
    }
    // All connections send before any is read.
    for (number, connection) in connections.iter_mut().enumerate() {
        connection.write_all(&message(number))?;
    }
    let mut equal = 0;
    for (number, connection) in connections.iter_mut().enumerate() {
        let expected = message(number);
        let mut received = vec![0; expected.len()];
        connection.read_exact(&mut received)?;
        equal += usize::from(received == expected);
    }
    Ok(json!({ "equal": equal == count, "connections": equal }))
}

fn message(number: usize) -> Vec<u8> {
    let mut message = vec![0; 1000 + number % 1000];
    Pattern::new(number as u64).fill(&mut message);
    message
}

/// Opens `count` connections in `threads` threads, each for one byte there and back.
pub(super) fn short(peer: SocketAddr, ports: u16, count: usize, threads: usize) -> Value {
    let next = AtomicUsize::new(0);
    let start = Instant::now();
    let work = || {
        let mut errors = BTreeMap::<String, usize>::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return errors;
            }
            // Different ports, so that connections in TIME-WAIT do not use up the local ones.
            let port = peer.port() + (number % usize::from(ports)) as u16;
            if let Err(e) = round_trip::connect_request_response(SocketAddr::new(peer.ip(), port)) {
                *errors.entry(errno_name(&e)).or_default() += 1;
            }
        }
    };
    let mut errors = BTreeMap::<String, usize>::new();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            for (name, times) in worker.join().unwrap_or_default() {
                *errors.entry(name).or_default() += times;
            }
        }
    });
    json!({ "errors": errors, "connections": count, "seconds": start.elapsed().as_secs_f64() })
}
