//! Ends of a TCP connection, for clients and servers: a listener, the pattern sent in chunks, reading to the
//! end.
//!
//! A stall is agreed and not timed: a sender counts as stuck once it could send nothing for [`STUCK`].

use super::pattern::{Pattern, Sum};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Time without progress after which a sender counts as stuck.
pub(super) const STUCK: Duration = Duration::from_millis(300);

/// Size of reads and writes.
pub(super) const CHUNK: usize = 128 * 1024;

/// Time-out of a single read, far beyond any legitimate pause.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// A listener on all addresses of both families with room for a thousand connections at once.
pub(super) fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_only_v6(false)?;
    socket.set_reuse_address(true)?;
    // A relay may listen on the same port of one address and device.
    socket.set_reuse_port(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    socket.listen(4096)?;
    Ok(socket.into())
}

/// Sends patterned bytes and calls `stuck` whenever nothing could be sent for [`STUCK`]; returns the hash of
/// the bytes sent.
pub(super) fn send_pattern(
    connection: &mut TcpStream,
    bytes: u64,
    seed: u64,
    stuck: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<String> {
    connection.set_write_timeout(Some(STUCK))?;
    let mut buffer = vec![0; CHUNK];
    let mut pattern = Pattern::new(seed);
    let mut sum = Sum::default();
    while sum.bytes < bytes {
        let length = (bytes - sum.bytes).min(CHUNK as u64) as usize;
        pattern.fill(&mut buffer[..length]);
        let mut rest = &buffer[..length];
        while !rest.is_empty() {
            match connection.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => rest = &rest[written..],
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => stuck(sum.bytes)?,
                Err(e) => return Err(e),
            }
        }
        sum.add(&buffer[..length]);
    }
    connection.set_write_timeout(None)?;
    Ok(sum.finish())
}

/// A connection, and the bytes read from it behind its first line.
pub(super) struct Input {
    pub(super) early: Vec<u8>,
    pub(super) connection: TcpStream,
}

impl Input {
    /// Reads to the end; bytes and hash.
    pub(super) fn sum(&mut self) -> io::Result<Value> {
        let mut sum = Sum::default();
        sum.add(&self.early);
        receive(&mut self.connection, |bytes| {
            sum.add(bytes);
            Ok(())
        })?;
        Ok(json!({ "bytes": sum.bytes, "sha256": sum.finish() }))
    }

    /// Reads to the end; bytes.
    pub(super) fn discard(&mut self) -> io::Result<u64> {
        let mut total = self.early.len() as u64;
        receive(&mut self.connection, |bytes| {
            total += bytes.len() as u64;
            Ok(())
        })?;
        Ok(total)
    }

    pub(super) fn echo(&mut self) -> io::Result<()> {
        self.connection.write_all(&self.early)?;
        // Small, as ten thousand of these may exist at once.
        let mut buffer = [0; 4096];
        loop {
            match self.connection.read(&mut buffer)? {
                0 => return Ok(()),
                length => self.connection.write_all(&buffer[..length])?,
            }
        }
    }
}

/// Reads to the end of a connection.
pub(super) fn receive(
    connection: &mut TcpStream,
    mut each: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        match connection.read(&mut buffer)? {
            0 => return Ok(()),
            length => each(&buffer[..length])?,
        }
    }
}
