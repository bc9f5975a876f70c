//! HTTP/1.1 for scrapers, with a bound on everything.
//!
//! One thread polls all connections at once and blocks on none. At most [`CLIENTS_MAX`] are open; a new one
//! replaces the oldest that has not sent its request, so clients that connect and stay silent cannot keep a
//! scraper out. Each has a few seconds from its first to its last byte and may send [`REQUEST_MAX`] bytes of
//! header. One request per connection: `GET` or `HEAD` of `/metrics`. Any other request gets its status and
//! is closed.
//!
//! Libraries weighed: hyper needs an async executor and its timer; tiny_http has a thread per busy connection
//! and no time-out for reading a request. Neither bounds the number of connections.
//!
//! System calls: poll, accept4, recvfrom, sendto.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};
use std::time::{Duration, Instant};

/// Connections at a time.
const CLIENTS_MAX: usize = 32;
/// Time-out of a connection from its first to its last byte, outside of tests.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Longest header of a request, in bytes.
const REQUEST_MAX: usize = 8 << 10;
/// Pause of accept after descriptors have run out.
const PAUSE: Duration = Duration::from_secs(1);

/// Content types: of the metrics in Prometheus' text format, and of errors.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// One connection.
struct Client {
    socket: OwnedFd,
    until: Instant,
    /// The request so far; once it is complete, the reply.
    bytes: Vec<u8>,
    /// Bytes of the reply sent so far; `None` while the request is read.
    sent: Option<usize>,
}

/// Serves the result of `text`, or 503 without one. Returns only if poll fails.
pub(super) fn serve(
    listener: BorrowedFd<'_>,
    patience: Duration,
    mut text: impl FnMut() -> Option<String>,
) -> Result<(), Errno> {
    // Clients in order of their arrival.
    let mut clients: Vec<Client> = Vec::with_capacity(CLIENTS_MAX);
    let mut accept_from = Instant::now();
    loop {
        let now = Instant::now();
        clients.retain(|client| client.until > now);
        let pause = accept_from.checked_duration_since(now).filter(|pause| !pause.is_zero());
        let deadline = clients.iter().map(|client| client.until - now).chain(pause).min();
        let accepts = pause.is_none();
        let ready = wait(listener, accepts, &clients, deadline)?;
        let mut events = ready.iter().copied();
        let arrived = events.next().unwrap_or(false) && accepts;
        clients.retain_mut(|client| !events.next().unwrap_or(false) || client.go_on(&mut text));
        // The wait may have been longer than the patience.
        let arrived_at = Instant::now();
        if arrived && !accept_all(listener, &mut clients, arrived_at + patience, &mut text) {
            accept_from = arrived_at + PAUSE;
        }
    }
}

/// Accepts pending connections, at most [`CLIENTS_MAX`] at a time, and answers those whose request has
/// arrived already, as it has when a scraper has connected. False if there are no descriptors for more.
fn accept_all(
    listener: BorrowedFd<'_>,
    clients: &mut Vec<Client>,
    until: Instant,
    text: &mut impl FnMut() -> Option<String>,
) -> bool {
    for _ in 0..CLIENTS_MAX {
        match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => {
                let mut client = Client { socket, until, bytes: Vec::new(), sent: None };
                if !client.go_on(text) {
                    continue;
                }
                if clients.len() == CLIENTS_MAX {
                    // The oldest without a request, else the oldest.
                    let oldest = clients.iter().position(|client| client.sent.is_none()).unwrap_or(0);
                    clients.remove(oldest);
                }
                clients.push(client);
            }
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(Errno::AGAIN) => return true,
            Err(_) => return false,
        }
    }
    true
}

/// Waits; returns readiness of the listener and of each client.
fn wait(
    listener: BorrowedFd<'_>,
    accepts: bool,
    clients: &[Client],
    deadline: Option<Duration>,
) -> Result<Vec<bool>, Errno> {
    let interest = if accepts { PollFlags::IN } else { PollFlags::empty() };
    let mut descriptors = vec![PollFd::from_borrowed_fd(listener, interest)];
    descriptors.extend(clients.iter().map(|client| {
        let interest = if client.sent.is_some() { PollFlags::OUT } else { PollFlags::IN };
        PollFd::new(&client.socket, interest)
    }));
    let deadline = deadline.map(|deadline| Timespec {
        tv_sec: deadline.as_secs() as i64,
        tv_nsec: i64::from(deadline.subsec_nanos()),
    });
    match poll(&mut descriptors, deadline.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno),
    }
    Ok(descriptors.iter().map(|descriptor| !descriptor.revents().is_empty()).collect())
}

impl Client {
    /// Reads or writes as far as possible; false if the connection is done.
    fn go_on(&mut self, text: &mut impl FnMut() -> Option<String>) -> bool {
        if self.sent.is_none() {
            let mut buffer = [0; 2048];
            match recv(&self.socket, &mut buffer, RecvFlags::empty()) {
                Ok((_, 0)) => return false,
                Ok((_, length)) => self.bytes.extend_from_slice(&buffer[..length]),
                Err(Errno::AGAIN | Errno::INTR) => return true,
                Err(_) => return false,
            }
            let Some(reply) = reply(&self.bytes, text) else { return true };
            self.bytes = reply;
            self.sent = Some(0);
        }
        let sent = self.sent.get_or_insert(0);
        match send(&self.socket, &self.bytes[*sent..], SendFlags::NOSIGNAL) {
            Ok(length) => {
                *sent += length;
                *sent < self.bytes.len()
            }
            Err(errno) => matches!(errno, Errno::AGAIN | Errno::INTR),
        }
    }
}

/// The reply to a request; `None` while that is incomplete.
fn reply(request: &[u8], text: &mut impl FnMut() -> Option<String>) -> Option<Vec<u8>> {
    let ends = [&b"\r\n\r\n"[..], b"\n\n"];
    let complete = ends.iter().any(|end| request.windows(end.len()).any(|window| window == *end));
    if !complete {
        let too_long = request.len() > REQUEST_MAX;
        return too_long.then(|| message("431 Request Header Fields Too Large", PLAIN, "too long\n", true));
    }
    let line = request.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let words: Vec<_> = str::from_utf8(line).unwrap_or_default().split_ascii_whitespace().collect();
    let [method, target, version] = words[..] else {
        return Some(message("400 Bad Request", PLAIN, "not a request\n", true));
    };
    let with_body = method != "HEAD";
    let path = target.split('?').next().unwrap_or_default();
    Some(match (method, path) {
        _ if !version.starts_with("HTTP/1.") => {
            message("505 HTTP Version Not Supported", PLAIN, "HTTP/1.1\n", true)
        }
        ("GET" | "HEAD", "/metrics") => match text() {
            Some(text) => message("200 OK", TEXT_FORMAT, &text, with_body),
            None => message("503 Service Unavailable", PLAIN, "the network has ended\n", with_body),
        },
        ("GET" | "HEAD", _) => message("404 Not Found", PLAIN, "look at /metrics\n", with_body),
        _ => message("405 Method Not Allowed\r\nAllow: GET, HEAD", PLAIN, "GET or HEAD\n", true),
    })
}

fn message(status: &str, kind: &str, body: &str, with_body: bool) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let body = if with_body { body } else { "" };
    [head.as_bytes(), body.as_bytes()].concat()
}

#[cfg(test)]
mod tests;
