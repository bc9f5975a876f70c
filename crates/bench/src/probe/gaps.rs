//! Gaps of service, as a guest sees them: one byte there and back without end, and the longest time between
//! two answers.
//!
//! Each line of standard input is answered by a line: the longest gap since the one before, in microseconds.
//! A gap that lasts is over before the answer, so none is divided between two.

use super::connection::PATIENCE;
use super::round_trip::request_response;
use serde_json::Value;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

/// Measures until the end of standard input.
pub(super) fn measure(peer: SocketAddr) -> io::Result<Value> {
    let (asks, asked) = mpsc::channel();
    thread::spawn(move || {
        let lines = io::stdin().lines().map_while(io::Result::ok);
        for _ in lines {
            if asks.send(()).is_err() {
                break;
            }
        }
    });
    let mut connection = TcpStream::connect(peer)?;
    connection.set_nodelay(true)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.write_all(b"echo\n")?;
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    loop {
        request_response(&mut connection)?;
        let now = Instant::now();
        longest = longest.max(now - last);
        last = now;
        match asked.try_recv() {
            Ok(()) => {
                println!("{}", longest.as_micros());
                longest = Duration::ZERO;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(Value::Null),
        }
    }
}
