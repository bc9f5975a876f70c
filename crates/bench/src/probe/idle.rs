//! Idle connections: opened, then without traffic, to measure their memory.

use super::connection::listen;
use super::many::raise_descriptor_limit;
use super::wait_for_end_of_input;
use serde_json::{Value, json};
use std::io;
use std::net::{SocketAddr, TcpStream};

/// Accepts connections and keeps them.
pub(super) fn accept(port: u16) -> io::Result<()> {
    raise_descriptor_limit()?;
    let kept: io::Result<Vec<TcpStream>> = listen(port)?.incoming().collect();
    kept.map(drop)
}

/// Opens `count` connections, prints a line, and keeps them until standard input ends.
pub(super) fn open(peer: SocketAddr, count: usize) -> io::Result<Value> {
    raise_descriptor_limit()?;
    let kept: Vec<TcpStream> = (0..count).map(|_| TcpStream::connect(peer)).collect::<io::Result<_>>()?;
    println!("{}", json!({ "open": kept.len() }));
    wait_for_end_of_input()?;
    Ok(Value::Null)
}
