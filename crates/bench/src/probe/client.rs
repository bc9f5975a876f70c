//! Clients for one connection: content in either direction, half closes, stalls, and how connections fail.

use super::connection::{CHUNK, PATIENCE, receive, send_pattern};
use super::pattern::Sum;
use super::{errno_name, outcome, wait_for_end_of_input};
use serde_json::{Value, json};
use socket2::SockRef;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// Seeds of the two directions, so that they carry different bytes.
const UP_SEED: u64 = 0x0075_7000;
const DOWN_SEED: u64 = 0xd0_0770;

fn open(peer: SocketAddr, line: &str) -> io::Result<TcpStream> {
    let mut connection = TcpStream::connect(peer)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    writeln!(connection, "{line}")?;
    Ok(connection)
}

/// Sends `line` on a connection of its own; returns the answer, or null without one.
pub(super) fn ask(peer: SocketAddr, line: &str) -> io::Result<Value> {
    let mut answer = String::new();
    BufReader::new(open(peer, line)?).read_line(&mut answer)?;
    if answer.is_empty() { Ok(Value::Null) } else { parse(&answer) }
}

fn parse(line: &str) -> io::Result<Value> {
    serde_json::from_str(line).map_err(|e| io::Error::other(format!("answer {line:?}: {e}")))
}

/// Sends, shuts down the sending half, and only then reads the server's answer.
pub(super) fn upload(peer: SocketAddr, bytes: u64, stall: Option<&str>) -> io::Result<Value> {
    let line = stall.map_or_else(|| "sink".to_owned(), |token| format!("stalled-sink {token}"));
    let mut connection = open(peer, &line)?;
    let mut blocked_after = None;
    let sent = send_pattern(&mut connection, bytes, UP_SEED, &mut |sent| {
        if let (Some(token), None) = (stall, blocked_after) {
            blocked_after = Some(sent);
            ask(peer, &format!("go {token}"))?;
        }
        Ok(())
    })?;
    connection.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    BufReader::new(connection).read_line(&mut answer)?;
    let received = parse(&answer)?;
    Ok(json!({
        "equal": received["sha256"] == sent.as_str() && received["bytes"] == bytes,
        "received": received,
        "sent_sha256": sent,
        "blocked_after": blocked_after,
    }))
}

/// Receives to the end and compares with the server's pattern.
pub(super) fn download(peer: SocketAddr, bytes: u64, stall: Option<&str>) -> io::Result<Value> {
    let line = stall.map_or_else(|| "source".to_owned(), |token| format!("stalled-source {token}"));
    let mut connection = open(peer, &format!("{line} {bytes} {DOWN_SEED}"))?;
    let blocked = stall.map(|token| ask(peer, &format!("blocked {token}"))).transpose()?;
    compare(&mut connection, bytes, DOWN_SEED, &json!({ "stalled": blocked }))
}

fn compare(connection: &mut TcpStream, bytes: u64, seed: u64, more: &Value) -> io::Result<Value> {
    let mut received = Sum::default();
    receive(connection, |bytes| {
        received.add(bytes);
        Ok(())
    })?;
    let received_bytes = received.bytes;
    let received = received.finish();
    let sent = expected(bytes, seed);
    Ok(json!({
        "equal": received == sent && received_bytes == bytes,
        "bytes": received_bytes,
        "sha256": received,
        "sent_sha256": sent,
        "more": more,
    }))
}

fn expected(bytes: u64, seed: u64) -> String {
    let mut pattern = super::pattern::Pattern::new(seed);
    let mut buffer = vec![0; CHUNK];
    let mut sum = Sum::default();
    while sum.bytes < bytes {
        let length = (bytes - sum.bytes).min(CHUNK as u64) as usize;
        pattern.fill(&mut buffer[..length]);
        sum.add(&buffer[..length]);
    }
    sum.finish()
}

/// Half close by the server first; bytes sent afterwards must still arrive.
pub(super) fn fin_first(peer: SocketAddr, bytes: u64, token: &str) -> io::Result<Value> {
    let mut connection = open(peer, &format!("fin-first {token} {bytes} {DOWN_SEED}"))?;
    let down = compare(&mut connection, bytes, DOWN_SEED, &Value::Null)?;
    let sent = send_pattern(&mut connection, bytes, UP_SEED, &mut |_| Ok(()))?;
    drop(connection);
    let received = ask(peer, &format!("result {token}"))?;
    let up = received["sha256"] == sent.as_str() && received["bytes"] == bytes;
    Ok(json!({ "equal": up && down["equal"] == true, "down": down, "up": received }))
}

/// The first byte of a download, and no more.
pub(super) fn first_byte(peer: SocketAddr) -> io::Result<()> {
    open(peer, &format!("source 1 {DOWN_SEED}"))?.read_exact(&mut [0])
}

/// Our address as the server sees it.
pub(super) fn who(peer: SocketAddr) -> io::Result<Value> {
    ask(peer, "who")
}

/// Outcome of an attempt to connect.
pub(super) fn connect(peer: SocketAddr) -> Value {
    outcome(&TcpStream::connect(peer))
}

/// Reset by the server: first data, then an error.
pub(super) fn reset(peer: SocketAddr) -> io::Result<Value> {
    let connection = open(peer, "reset")?;
    let mut input = BufReader::new(&connection);
    let mut line = String::new();
    input.read_line(&mut line)?;
    (&connection).write_all(b"!")?;
    let end = input.read(&mut [0]);
    let outcome = end.map_or_else(|e| errno_name(&e), |bytes| format!("read {bytes} bytes"));
    Ok(json!({ "line": line.trim(), "outcome": outcome }))
}

/// Sends a few bytes, resets the connection, and fetches the outcome at the server.
pub(super) fn abort(peer: SocketAddr, token: &str) -> io::Result<Value> {
    let mut connection = open(peer, &format!("witness {token}"))?;
    // A reset may overtake data, so the server confirms the command first.
    BufReader::new(connection.try_clone()?).read_line(&mut String::new())?;
    connection.write_all(b"a few bytes that the server may or may not read")?;
    SockRef::from(&connection).set_linger(Some(Duration::ZERO))?;
    drop(connection);
    Ok(json!({ "outcome": ask(peer, &format!("result {token}"))? }))
}

/// Fills every buffer towards a server that never reads, prints the bytes, and stays.
pub(super) fn stuff(peer: SocketAddr) -> io::Result<Value> {
    let mut connection = open(peer, "hold")?;
    let mut filled = 0;
    // More than any sum of buffers; the error of the stuck callback ends it.
    let end = send_pattern(&mut connection, 1 << 40, UP_SEED, &mut |sent| {
        filled = sent;
        Err(io::Error::other("stuck"))
    });
    if filled == 0 {
        end?;
    }
    println!("{}", json!({ "filled": filled }));
    wait_for_end_of_input()?;
    Ok(Value::Null)
}

/// Makes the server send and never reads, prints the bytes once the server is stuck, and stays.
pub(super) fn ignore(peer: SocketAddr) -> io::Result<Value> {
    let token = format!("ignore-{}", std::process::id());
    let connection = open(peer, &format!("stalled-source {token} {} {DOWN_SEED}", 1_u64 << 40))?;
    let filled = ask(peer, &format!("blocked {token}"))?;
    println!("{filled}");
    wait_for_end_of_input()?;
    drop(connection);
    Ok(Value::Null)
}
