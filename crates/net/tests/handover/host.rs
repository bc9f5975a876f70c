//! Servers and peers on the host, each on a thread: they send their part of a stream, and check the guest's.

use crate::guest::{Script, byte, content};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Wait before the first datagram of a conversation is sent again: less than between two hand-overs, for each
/// network has to ask the broker for sockets first.
const AGAIN: Duration = Duration::from_millis(1);
/// Longest wait of a peer.
const LIMIT: Duration = Duration::from_secs(180);

/// Reads a stream to its end and checks it.
fn check(mut from: &TcpStream, script: Script) {
    let (mut at, mut buffer) = (0, vec![0; 64 << 10]);
    loop {
        let len = from.read(&mut buffer).unwrap_or_else(|error| panic!("{script:?} after {at}: {error}"));
        if len == 0 {
            break;
        }
        let wrong = (0..len).find(|&i| buffer[i] != byte(script.stream, at + i));
        assert_eq!(wrong, None, "{script:?} after {at}");
        at += len;
        if script.stalls && at % 5 == 0 {
            thread::sleep(Duration::from_millis(3));
        }
    }
    assert_eq!(at, script.sends, "{script:?}");
}

/// Sends the host's part of a stream and its end.
fn feed(mut to: &TcpStream, script: Script) {
    let mut at = 0;
    while at < script.expects {
        let piece = content(!script.stream, at, (script.expects - at).min(50_000));
        to.write_all(&piece).unwrap_or_else(|error| panic!("{script:?} after {at}: {error}"));
        at += piece.len();
    }
    to.shutdown(Shutdown::Write).unwrap_or_else(|error| panic!("{script:?}: {error}"));
}

/// The host's part of a connection.
pub(crate) fn both(stream: &TcpStream, script: Script) {
    stream.set_read_timeout(Some(LIMIT)).expect("limit");
    stream.set_write_timeout(Some(LIMIT)).expect("limit");
    thread::scope(|scope| {
        scope.spawn(|| feed(stream, script));
        check(stream, script);
    });
}

/// A server for one connection of the guest's; its port.
pub(crate) fn serve(script: Script) -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("address").port();
    (port, thread::spawn(move || both(&listener.accept().expect("accept").0, script)))
}

/// A peer that connects, with the guest's part as its own.
pub(crate) fn call(to: SocketAddr, script: Script) -> JoinHandle<()> {
    thread::spawn(move || both(&TcpStream::connect(to).expect("connect"), script))
}

/// A UDP echo server; its port.
pub(crate) fn echo() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let port = socket.local_addr().expect("address").port();
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..len], from);
        }
    });
    port
}

/// A peer that sends numbers to a published port and expects each back.
pub(crate) fn converse(to: SocketAddr, rounds: u32) -> JoinHandle<()> {
    thread::spawn(move || {
        let socket = UdpSocket::bind((to.ip(), 0)).expect("bind");
        socket.connect(to).expect("connect");
        for round in 0..rounds {
            let mut back = [0; 8];
            // The first of all is lost while the broker opens sockets.
            socket.set_read_timeout(Some(if round == 0 { AGAIN } else { LIMIT })).expect("limit");
            socket.send(&round.to_be_bytes()).expect("send");
            let len = loop {
                match socket.recv(&mut back) {
                    Err(error) if round == 0 && error.kind() == ErrorKind::WouldBlock => {
                        socket.send(&round.to_be_bytes()).expect("send");
                    }
                    // It came late, and was sent twice.
                    Ok(4) if round > 0 && back[..4] == [0; 4] => {}
                    received => break received.expect("answer"),
                }
            };
            assert_eq!(back[..len], round.to_be_bytes());
        }
    })
}
