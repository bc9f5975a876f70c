//! Latency: one byte there and one back, on a fresh connection each time (CRR) or on an open one (RR); or a
//! request of HTTP and its answer on a fresh connection, for forwarders that let nothing else pass.
//!
//! Every flow is a process of its own, as separate programs would be, and has its own server threads, so that
//! flows share nothing but the path. The server's threads serve one connection at a time and block: the
//! shortest way a server can answer.

use super::connection::{PATIENCE, listen};
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Each flow cycles through this many ports: a client that closes first leaves its port in TIME-WAIT for a
/// minute, and 28,000 ports towards one destination are used up within two seconds.
const PORTS_PER_FLOW: u16 = 16;

/// Request of HTTP for the server by its name ([`crate::system::SERVER_NAME`]), and its answer.
const REQUEST: &[u8] =
    b"GET / HTTP/1.1\r\nHost: server.example\r\nUser-Agent: brodo-bench\r\nAccept: */*\r\n\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nB";
/// Byte of a request that is no HTTP.
const BYTE: u8 = 0x42;

/// Number of consecutive ports that the server of `flows` flows uses.
pub fn ports(flows: usize) -> u16 {
    flows as u16 * PORTS_PER_FLOW
}

/// Answers single bytes, and requests of HTTP, on `count` ports from `port` on.
pub(super) fn respond(port: u16, count: u16) -> io::Result<()> {
    let listeners: Vec<TcpListener> = (port..port + count).map(listen).collect::<io::Result<_>>()?;
    thread::scope(|scope| {
        for listener in &listeners {
            scope.spawn(|| {
                for connection in listener.incoming().flatten() {
                    // An error of one client ends its connection, not the server.
                    let _ = answer(connection);
                }
            });
        }
    });
    Ok(())
}

fn answer(mut connection: TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    // A silent connection must not block the others for ever.
    connection.set_read_timeout(Some(PATIENCE))?;
    let mut byte = [0];
    while connection.read(&mut byte)? == 1 {
        if byte[0] == REQUEST[0] {
            connection.read_exact(&mut [0; REQUEST.len() - 1])?;
            connection.write_all(RESPONSE)?;
        } else {
            connection.write_all(&byte)?;
        }
    }
    Ok(())
}

/// One connection for one byte there and one back.
pub(super) fn connect_request_response(peer: SocketAddr) -> io::Result<()> {
    request_response(&mut connected(peer)?)
}

fn connected(peer: SocketAddr) -> io::Result<TcpStream> {
    let connection = TcpStream::connect(peer)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    Ok(connection)
}

pub(super) fn request_response(connection: &mut TcpStream) -> io::Result<()> {
    ask(connection, &[BYTE], &[BYTE])
}

/// Sends a request, and reads what is to be its answer.
fn ask(connection: &mut TcpStream, request: &[u8], expected: &[u8]) -> io::Result<()> {
    let mut answer = [0; RESPONSE.len()];
    let answer = &mut answer[..expected.len()];
    connection.write_all(request)?;
    connection.read_exact(answer)?;
    if answer == expected {
        return Ok(());
    }
    Err(io::Error::other(format!("the answer to {} is {}", request.escape_ascii(), answer.escape_ascii())))
}

/// Shape of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExchangeShape {
    /// One byte on an open connection.
    Rr,
    /// One byte, on a connection of its own.
    Crr,
    /// A request of HTTP, likewise.
    Http,
}

impl ExchangeShape {
    /// The probe's command.
    const fn command(self) -> &'static str {
        match self {
            Self::Rr => "rr",
            Self::Crr => "crr",
            Self::Http => "http",
        }
    }
}

/// Exchange of one flow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Exchange {
    /// Request and connection of each.
    pub(super) shape: ExchangeShape,
    /// Duration in all.
    pub(super) duration: Duration,
    /// Pause after each byte that came back.
    pub(super) pause: Duration,
}

/// Measures with `flows` processes; times in microseconds.
pub(super) fn measure(peer: SocketAddr, flows: usize, exchange: Exchange) -> io::Result<Value> {
    if flows == 1 {
        let (times, at, seconds) = one_flow(peer, exchange)?;
        let mut value = summary(&times, seconds);
        value["times_ns"] = times.into();
        if !exchange.pause.is_zero() {
            value["at_ns"] = at.into();
        }
        return Ok(value);
    }
    // One process per flow, each with its own ports; their times are merged.
    let start = |flow: usize| flow_process(SocketAddr::new(peer.ip(), peer.port() + ports(flow)), exchange);
    let children: Vec<_> = (0..flows).map(start).collect::<io::Result<_>>()?;
    let mut times = Vec::new();
    let mut rate = 0.0;
    for child in children {
        let value = flow_result(child)?;
        rate += value["per_second"].as_f64().unwrap_or(0.0);
        times.extend(value["times_ns"].as_array().into_iter().flatten().filter_map(Value::as_u64));
    }
    let seconds = times.len() as f64 / rate;
    Ok(summary(&times, seconds))
}

/// Starts one flow as a process of its own.
pub(super) fn flow_process(peer: SocketAddr, exchange: Exchange) -> io::Result<Child> {
    // Not `current_exe`: where a forwarder has given its guest another view of processes, /proc does not show
    // us.
    let program = std::env::args_os().next().ok_or_else(|| io::Error::other("started without a name"))?;
    Command::new(&program)
        .args(["probe", exchange.shape.command(), &peer.ip().to_string(), &peer.port().to_string(), "1"])
        .arg(exchange.duration.as_secs_f64().to_string())
        .args(["--pause-us", &exchange.pause.as_micros().to_string()])
        .stdout(Stdio::piped())
        .spawn()
}

/// Result of a flow's process.
pub(super) fn flow_result(child: Child) -> io::Result<Value> {
    Ok(serde_json::from_slice(&child.wait_with_output()?.stdout)?)
}

/// The times in order, when each of them ended, and the seconds of all together.
fn one_flow(peer: SocketAddr, exchange: Exchange) -> io::Result<(Vec<u64>, Vec<u64>, f64)> {
    let (mut times, mut at) = (Vec::with_capacity(1 << 16), Vec::new());
    let mut connection = TcpStream::connect(peer)?;
    connection.set_nodelay(true)?;
    // The first port is held by the connection above, which a gate resets in time without it being used.
    let next = |number: u16| SocketAddr::new(peer.ip(), peer.port() + number.max(1));
    let begin = Instant::now();
    let mut last = begin;
    let mut number = 0;
    while last - begin < exchange.duration {
        number = (number + 1) % PORTS_PER_FLOW;
        match exchange.shape {
            ExchangeShape::Rr => request_response(&mut connection)?,
            ExchangeShape::Crr => connect_request_response(next(number))?,
            ExchangeShape::Http => ask(&mut connected(next(number))?, REQUEST, RESPONSE)?,
        }
        let now = Instant::now();
        times.push((now - last).as_nanos() as u64);
        last = now;
        if !exchange.pause.is_zero() {
            at.push((now - begin).as_nanos() as u64);
            thread::sleep(exchange.pause);
            last = Instant::now();
        }
    }
    Ok((times, at, (last - begin).as_secs_f64()))
}

fn summary(times: &[u64], seconds: f64) -> Value {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let percentile =
        |percent: usize| sorted.get(sorted.len() * percent / 100).map_or(0.0, |ns| *ns as f64 / 1e3);
    json!({
        "count": times.len(),
        "per_second": times.len() as f64 / seconds,
        "p50_us": percentile(50),
        "p99_us": percentile(99),
    })
}

#[cfg(test)]
mod tests {
    //! Both kinds of requests, against the server.

    use super::*;

    #[test]
    fn the_server_answers_bytes_and_requests_by_turns() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bound");
        let peer = listener.local_addr().expect("an address");
        let server = thread::spawn(move || answer(listener.accept()?.0));
        let mut connection = connected(peer).expect("connected");
        for _ in 0..2 {
            request_response(&mut connection).expect("a byte");
            ask(&mut connection, REQUEST, RESPONSE).expect("a response");
        }
        let wrong = ask(&mut connection, &[BYTE], b"A").expect_err("another byte");
        assert_eq!(wrong.to_string(), "the answer to B is B");
        drop(connection);
        server.join().expect("no panic").expect("served to the end");
    }

    #[test]
    fn requests_name_the_server_of_policies() {
        let head = str::from_utf8(REQUEST).expect("text");
        assert!(head.contains(&format!("\r\nHost: {}\r\n", crate::system::SERVER_NAME)), "{head}");
        assert!(head.ends_with("\r\n\r\n") && REQUEST[0] != BYTE);
    }
}
