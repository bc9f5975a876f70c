//! Requests, right ones and hostile ones, over real sockets.

use super::*;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;

/// A server of this text, for as long as the test program runs.
fn server(text: Option<&'static str>) -> SocketAddr {
    patient_server(PATIENCE, text)
}

fn patient_server(patience: Duration, text: Option<&'static str>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("a socket");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || serve(listener.as_fd(), patience, || text.map(str::to_owned)));
    address
}

/// All that comes back.
fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    // A server that has read enough may have closed.
    let _ = stream.write_all(request);
    let mut reply = Vec::new();
    match stream.read_to_end(&mut reply) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => String::from_utf8(reply).expect("text"),
    }
}

#[test]
fn the_text_is_served_and_nothing_else() {
    let address = server(Some("x 1\n"));
    let found = ask(address, b"GET /metrics?x=y HTTP/1.1\r\nHost: x\r\n\r\n");
    let expected = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
        Content-Length: 4\r\nConnection: close\r\n\r\nx 1\n";
    assert_eq!(found, expected);
    assert!(
        ask(address, b"HEAD /metrics HTTP/1.0\n\n")
            .ends_with("Content-Length: 4\r\nConnection: close\r\n\r\n")
    );
    for (request, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "404 "),
        (b"GET /metrics/x HTTP/1.1\r\n\r\n", "404 "),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "405 "),
        (b"GET /metrics HTTP/2.0\r\n\r\n", "505 "),
        (b"GET /metrics\r\n\r\n", "400 "),
        (b"\r\n\r\n", "400 "),
        (b"\xff\x00 \xfe x\n\n", "400 "),
        (&[b'x'; REQUEST_MAX + 2048], "431 "),
    ] {
        let reply = ask(address, request);
        assert_eq!(reply.get(9..13), Some(status), "{} {reply}", String::from_utf8_lossy(request));
    }
    assert!(ask(server(None), b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 503 "));
}

#[test]
fn a_request_may_come_in_pieces_and_a_reply_may_be_long() {
    let long: &'static str = Box::leak("y 1\n".repeat(1 << 20).into_boxed_str());
    let address = server(Some(long));
    let mut stream = TcpStream::connect(address).expect("it listens");
    for piece in b"GET /metrics HTTP/1.1\r\nA: b\r\n\r\n".chunks(1) {
        stream.write_all(piece).expect("it reads");
    }
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("text");
    assert!(reply.ends_with(long) && reply.len() < long.len() + 200);
}

/// A connection that sends `request` and then neither sends nor reads.
fn stalled(address: SocketAddr, request: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(request).expect("it reads");
    stream
}

const SCRAPE: &[u8] = b"GET /metrics HTTP/1.1\r\n\r\n";

fn assert_is_answered(mut scraper: TcpStream, text: &str) {
    scraper.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
    let mut reply = String::new();
    scraper.read_to_string(&mut reply).expect("an answer");
    assert!(reply.ends_with(text), "{} of {}", reply.len(), text.len());
}

#[test]
fn silent_clients_keep_no_scraper_waiting() {
    // More than there is room for: silent, and in the middle of a request. None ever times out.
    let address = patient_server(Duration::from_secs(1 << 20), Some("y 1\n"));
    for request in [&b""[..], b"GET /metr"] {
        let held: Vec<_> = (0..CLIENTS_MAX + 8).map(|_| stalled(address, request)).collect();
        let mut scraper = stalled(address, b"");
        let later = stalled(address, request);
        // Connections are accepted in their order: after this answer the scraper has a place.
        assert_is_answered(stalled(address, SCRAPE), "y 1\n");
        scraper.write_all(SCRAPE).expect("it reads");
        assert_is_answered(scraper, "y 1\n");
        drop((held, later));
    }
}

#[test]
fn clients_that_do_not_read_keep_no_scraper_waiting() {
    // A reply longer than the buffers of both sockets.
    let long: &'static str = Box::leak("y 1\n".repeat(1 << 20).into_boxed_str());
    let address = patient_server(Duration::from_secs(1 << 20), Some(long));
    let held: Vec<_> = (0..CLIENTS_MAX + 8).map(|_| stalled(address, SCRAPE)).collect();
    assert_is_answered(stalled(address, SCRAPE), long);
    drop(held);
}

#[test]
fn a_client_has_its_time_from_its_arrival_on() {
    let patience = Duration::from_secs(2);
    let address = patient_server(patience, Some("x 1\n"));
    // The server waits for longer than that, and the request comes after the connection.
    thread::sleep(patience + Duration::from_millis(100));
    let mut scraper = TcpStream::connect(address).expect("it listens");
    thread::sleep(Duration::from_millis(50));
    scraper.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("it reads");
    assert_is_answered(scraper, "x 1\n");
}

#[test]
fn a_silent_client_is_closed_in_the_end() {
    let mut silent = stalled(patient_server(Duration::from_millis(100), Some("x 1\n")), b"GET");
    assert_eq!(silent.read(&mut [0; 16]).expect("closed"), 0);
}
