//! The server: one thread per connection, each obeying its first line, a command of the list in [`super`].
//!
//! Stalls are not timed but agreed: a sender that has been stuck for [`STUCK`](super::connection::STUCK) says
//! so over a second connection, and only then does the other side begin to read. So a stall always fills
//! every buffer on the way, on any machine.

use super::connection::{Input, listen, send_pattern};
use super::stream::Stream;
use super::stress;
use super::timed::Span;
use serde_json::{Value, json};
use socket2::SockRef;
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv6Addr, Shutdown, TcpStream, UdpSocket};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Results that one connection leaves for another, by token.
static BOARD: Mutex<Option<HashMap<String, Value>>> = Mutex::new(None);
static NEWS: Condvar = Condvar::new();

fn post(token: &str, value: Value) {
    let mut board = BOARD.lock().unwrap_or_else(PoisonError::into_inner);
    board.get_or_insert_default().insert(token.to_owned(), value);
    NEWS.notify_all();
}

fn await_post(token: &str) -> Value {
    let mut board = BOARD.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(value) = board.get_or_insert_default().remove(token) {
            return value;
        }
        board = NEWS.wait(board).unwrap_or_else(PoisonError::into_inner);
    }
}

pub(super) fn serve(port: u16) -> io::Result<()> {
    super::many::raise_descriptor_limit()?;
    // Bound before the TCP listener, because a client that connects expects both.
    let datagrams = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))?;
    thread::spawn(move || super::datagram::echo_back(&datagrams));
    for connection in listen(port)?.incoming() {
        let connection = connection?;
        thread::Builder::new().stack_size(64 * 1024).spawn(move || {
            // An error of one client concerns its connection only.
            let _ = obey(connection);
        })?;
    }
    Ok(())
}

fn obey(connection: TcpStream) -> io::Result<()> {
    let mut line = String::new();
    // A copy of the descriptor that is closed again: there may be ten thousand connections.
    let mut reader = BufReader::with_capacity(256, connection.try_clone()?);
    reader.by_ref().take(200).read_line(&mut line)?;
    let early = reader.buffer().to_vec();
    drop(reader);
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |text: &str| text.parse::<u64>().map_err(|e| io::Error::other(format!("{text}: {e}")));
    let mut input = Input { early, connection };
    match words[..] {
        ["sink"] => sink(&mut input),
        ["stalled-sink", token] => {
            await_post(token);
            sink(&mut input)
        }
        ["go", token] => {
            post(token, Value::Null);
            Ok(())
        }
        ["source", bytes, seed] => {
            send(&mut input.connection, number(bytes)?, number(seed)?, None)?;
            input.connection.shutdown(Shutdown::Write)?;
            input.discard().map(drop)
        }
        ["stalled-source", token, bytes, seed] => {
            send(&mut input.connection, number(bytes)?, number(seed)?, Some(token))?;
            input.connection.shutdown(Shutdown::Write)?;
            input.discard().map(drop)
        }
        ["blocked" | "result", token] => writeln!(input.connection, "{}", await_post(token)),
        ["fin-first", token, bytes, seed] => {
            send(&mut input.connection, number(bytes)?, number(seed)?, None)?;
            input.connection.shutdown(Shutdown::Write)?;
            let result = input.sum()?;
            post(token, result);
            Ok(())
        }
        ["witness", token] => {
            writeln!(input.connection, "watching")?;
            // The end of the connection, as this side sees it, is the result.
            let end = input.discard().map(|bytes| format!("the end after {bytes} bytes"));
            post(token, json!(end.unwrap_or_else(|e| super::errno_name(&e))));
            Ok(())
        }
        ["drain"] => {
            let bytes = input.discard()?;
            writeln!(input.connection, "{}", json!({ "bytes": bytes }))
        }
        ["drain-for", duration_ms, bucket_ms, token] => {
            let span = Span::from_ms(number(duration_ms)?, number(bucket_ms)?);
            let early = input.early.len();
            let result = super::timed::drain(&mut input.connection, early, span);
            post(token, result.unwrap_or_else(|e| json!({ "error": super::errno_name(&e) })));
            Ok(())
        }
        ["flood", ms] => {
            super::bulk::flood(&mut input.connection, Duration::from_millis(number(ms)?))?;
            input.discard().map(drop)
        }
        ["datagram-sink", size] => super::stream::sink(&mut input.connection, number(size)? as usize),
        ["datagram-source", size, ms, rate] => {
            let duration = Duration::from_millis(number(ms)?);
            let stream = Stream { size: number(size)? as usize, duration, rate: number(rate)? };
            super::stream::source(&mut input.connection, stream)
        }
        ["who"] => who(&mut input.connection),
        ["echo"] => input.echo(),
        ["restless-sink", seed] => stress::sink(&mut input, number(seed)?),
        ["restless-source", bytes, seed] => stress::source(&mut input, number(bytes)?, number(seed)?),
        ["slow-sink", rate, ms, seed] => {
            stress::slow_sink(&mut input, number(rate)?, Duration::from_millis(number(ms)?), number(seed)?)
        }
        ["swift-sink", seed] => stress::swift_sink(&mut input, number(seed)?),
        ["half-closed-sink", seed, token] => half_closed_sink(&mut input, number(seed)?, token),
        ["swift-source", seed] => stress::swift_source(&mut input, number(seed)?),
        ["reset"] => {
            writeln!(input.connection, "about to be reset")?;
            // Reset only once the client has confirmed the line: a reset may overtake data.
            input.connection.read_exact(&mut [0])?;
            SockRef::from(&input.connection).set_linger(Some(Duration::ZERO))
        }
        ["hold"] => loop {
            thread::park();
        },
        _ => writeln!(input.connection, "not understood: {line}"),
    }
}

/// Reads to the end, posts the outcome, and meanwhile ends its half when it may.
fn half_closed_sink(input: &mut Input, seed: u64, token: &str) -> io::Result<()> {
    let (output, go) = (input.connection.try_clone()?, format!("{token}-end"));
    thread::spawn(move || {
        await_post(&go);
        output.shutdown(Shutdown::Write)
    });
    post(token, stress::checked(input, seed)?);
    Ok(())
}

/// Sends the client its address as the server sees it.
fn who(connection: &mut TcpStream) -> io::Result<()> {
    let peer = connection.peer_addr()?.ip().to_canonical();
    writeln!(connection, "{}", json!({ "peer": peer.to_string() }))
}

fn sink(input: &mut Input) -> io::Result<()> {
    let result = input.sum()?;
    writeln!(input.connection, "{result}")
}

/// Sends patterned bytes; once stuck, posts that under `token`.
fn send(connection: &mut TcpStream, bytes: u64, seed: u64, token: Option<&str>) -> io::Result<()> {
    let mut stuck = |sent: u64| {
        if let Some(token) = token {
            post(token, json!({ "blocked_after": sent }));
        }
        Ok(())
    };
    send_pattern(connection, bytes, seed, &mut stuck).map(drop)
}
