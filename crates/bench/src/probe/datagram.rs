//! UDP: an echo with comparison, the error of a closed port, and arrivals with their sources.

use super::errno_name;
use super::pattern::Pattern;
use nix::errno::Errno;
use serde_json::{Value, json};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for an answer, on links that lose nothing.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends back every datagram, for ever.
pub(super) fn echo_back(socket: &UdpSocket) -> io::Result<()> {
    let mut buffer = vec![0; 65536];
    loop {
        let (length, from) = socket.recv_from(&mut buffer)?;
        // A client that is gone refuses its answer; the others still get theirs.
        let _ = socket.send_to(&buffer[..length], from);
    }
}

/// Sends back every datagram after a pause, for ever.
pub(super) fn late(port: u16, pause: Duration) -> io::Result<()> {
    let socket = Arc::new(UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))?);
    let mut buffer = vec![0; 65536];
    loop {
        let (length, from) = socket.recv_from(&mut buffer)?;
        let (socket, datagram) = (socket.clone(), buffer[..length].to_vec());
        std::thread::spawn(move || {
            std::thread::sleep(pause);
            let _ = socket.send_to(&datagram, from);
        });
    }
}

fn socket(peer: SocketAddr) -> io::Result<UdpSocket> {
    let socket = match peer {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?,
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?,
    };
    socket.connect(peer)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// Attempts with one datagram: one, and one more for each router that reports it too long for the next link.
const ATTEMPTS: usize = 3;

/// Echoes one datagram of each size and compares; lists the sizes that did not come back as they went.
pub(super) fn echo(peer: SocketAddr, sizes: &[usize]) -> io::Result<Value> {
    let socket = socket(peer)?;
    let mut buffer = vec![0; 65536];
    let mut failed = Vec::new();
    for &size in sizes {
        let mut sent = vec![0; size];
        Pattern::new(size as u64).fill(&mut sent);
        let (mut result, mut attempts) = (Ok(0), 0);
        while attempts < ATTEMPTS {
            attempts += 1;
            result = socket.send(&sent).and_then(|_| socket.recv(&mut buffer));
            // The path MTU is smaller than the link's; the kernel has learnt that, and fragments.
            if !result.as_ref().is_err_and(|e| e.raw_os_error() == Some(Errno::EMSGSIZE as i32)) {
                break;
            }
        }
        match result {
            Ok(length) if buffer[..length] == sent => {}
            Ok(length) => failed.push(json!({ "size": size, "came_back": length })),
            Err(e) => {
                failed.push(json!({ "size": size, "error": errno_name(&e), "attempts": attempts }));
            }
        }
    }
    Ok(json!({ "equal": failed.is_empty(), "failed": failed }))
}

/// Exchanges datagrams for `duration`, each on a new socket and with a payload of its own, and compares the
/// answers.
pub(super) fn queries(peer: SocketAddr, duration: Duration, pause: Duration) -> io::Result<Value> {
    const QUERY: usize = 40;
    let start = Instant::now();
    let (mut asked, mut unanswered, mut wrong) = (0_u64, 0, 0);
    let mut buffer = [0; 2 * QUERY];
    while start.elapsed() < duration {
        asked += 1;
        let mut query = [0; QUERY];
        Pattern::new(asked).fill(&mut query);
        let socket = socket(peer)?;
        socket.send(&query)?;
        match socket.recv(&mut buffer) {
            Ok(length) if buffer[..length] == query => {}
            Ok(_) => wrong += 1,
            Err(_) => unanswered += 1,
        }
        std::thread::sleep(pause);
    }
    Ok(
        json!({ "equal": wrong == 0 && unanswered == 0, "asked": asked, "unanswered": unanswered, "wrong": wrong }),
    )
}

/// A datagram to a closed port makes the next call on a connected socket fail.
pub(super) fn refused(peer: SocketAddr) -> io::Result<Value> {
    let socket = socket(peer)?;
    socket.send(b"anybody there?")?;
    let result = socket.recv(&mut [0; 16]);
    Ok(json!({ "outcome": result.map_or_else(|e| errno_name(&e), |length| format!("{length} bytes")) }))
}

/// Prints one line of JSON for every datagram that arrives: its source and its text.
pub(super) fn collect(port: u16) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))?;
    let mut buffer = [0; 2048];
    loop {
        let (length, from) = socket.recv_from(&mut buffer)?;
        let text = String::from_utf8_lossy(&buffer[..length]);
        println!("{}", json!({ "from": from.ip().to_canonical().to_string(), "text": text }));
    }
}
