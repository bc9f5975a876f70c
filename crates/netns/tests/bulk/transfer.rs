//! Transfers whose bytes follow from their number, so that each end checks them alone.

use crate::bed::{Bed, HOST, LIMIT};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// A transfer that lasts until the test has seen what it waits for.
pub(crate) const ENDLESS: u64 = u64::MAX;

/// The bytes of a transfer.
struct Pattern(u64);

impl Pattern {
    fn of(number: u64) -> Self {
        Self(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for eight in bytes.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            eight.copy_from_slice(&self.0.to_le_bytes()[..eight.len()]);
        }
    }
}

/// Bytes of one write or of one comparison; a multiple of eight.
const PIECE: usize = 64 << 10;

/// Sends so many bytes of a transfer; true if it was ended before.
pub(crate) fn send(stream: &mut TcpStream, number: u64, bytes: u64, stop: &AtomicBool) -> u64 {
    let (mut pattern, mut piece, mut left) = (Pattern::of(number), vec![0; PIECE], bytes);
    while left > 0 && !(bytes == ENDLESS && stop.load(Ordering::Relaxed)) {
        let len = left.min(PIECE as u64) as usize;
        pattern.fill(&mut piece[..len]);
        stream.write_all(&piece[..len]).expect("write");
        left -= len as u64;
    }
    bytes - left
}

/// Receives to the end of the stream; the number of bytes, all of them right.
pub(crate) fn receive(stream: &mut TcpStream, number: u64) -> u64 {
    let (mut pattern, mut expected, mut piece) = (Pattern::of(number), vec![0; PIECE], vec![0; PIECE]);
    let mut total = 0;
    loop {
        let mut filled = 0;
        while filled < PIECE {
            match stream.read(&mut piece[filled..]).expect("read") {
                0 => break,
                count => filled += count,
            }
        }
        pattern.fill(&mut expected[..filled]);
        assert!(piece[..filled] == expected[..filled], "transfer {number} differs behind {total} bytes");
        total += filled as u64;
        if filled < PIECE {
            return total;
        }
    }
}

/// First bytes of a connection: direction, number, bytes.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    pub(crate) upload: bool,
    pub(crate) number: u64,
    pub(crate) bytes: u64,
}

impl Head {
    pub(crate) const LEN: usize = 17;

    fn write(self, stream: &mut TcpStream) {
        let mut head = vec![u8::from(self.upload)];
        head.extend(self.number.to_le_bytes());
        head.extend(self.bytes.to_le_bytes());
        stream.write_all(&head).unwrap();
    }

    fn read(stream: &mut TcpStream) -> Option<Self> {
        let mut head = [0; Self::LEN];
        stream.read_exact(&mut head).ok()?;
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
        Some(Self { upload: head[0] == 1, number: number(1), bytes: number(9) })
    }
}

/// Servers on both loopbacks of the host: of an upload they say how many bytes have come.
pub(crate) struct Server {
    ports: [u16; 2],
    /// Ends downloads without a length.
    pub(crate) stop: Arc<AtomicBool>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let loopbacks = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let ports = loopbacks.map(|address| listen(address, stop.clone()).port());
        Self { ports, stop }
    }

    /// Serves at another address of the host's too.
    pub(crate) fn also_at(&self, address: Ipv4Addr) -> SocketAddr {
        listen(address.into(), self.stop.clone())
    }

    pub(crate) fn at(&self, v6: bool) -> SocketAddr {
        SocketAddr::new(HOST[usize::from(v6)], self.ports[usize::from(v6)])
    }
}

fn listen(address: IpAddr, stop: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, stop) = (stream.unwrap(), stop.clone());
            thread::spawn(move || serve(&mut stream, &stop));
        }
    });
    at
}

fn serve(stream: &mut TcpStream, stop: &AtomicBool) {
    let Some(Head { upload, number, bytes }) = Head::read(stream) else { return };
    if upload {
        let received = receive(stream, number);
        stream.write_all(&received.to_le_bytes()).unwrap();
    } else {
        send(stream, number, bytes, stop);
    }
}

/// Makes one transfer, in the guest; its bytes.
pub(crate) fn transfer(at: SocketAddr, head: Head, stop: &AtomicBool) -> u64 {
    let mut stream = TcpStream::connect_timeout(&at, LIMIT).expect("connect");
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    head.write(&mut stream);
    if !head.upload {
        return receive(&mut stream, head.number);
    }
    let sent = send(&mut stream, head.number, head.bytes, stop);
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).expect("the answer");
    assert_eq!(u64::from_le_bytes(answer), sent);
    assert_eq!(stream.read(&mut answer).expect("the end"), 0);
    sent
}

/// One upload and one download without a length, in the guest, while `meanwhile` runs; their bytes.
pub(crate) fn during_transfers(bed: &Bed, meanwhile: impl FnOnce()) -> [u64; 2] {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let both = scope.spawn(|| {
            bed.in_guest(|| {
                let run = |number: u64, upload: bool| {
                    let head = Head { upload, number, bytes: ENDLESS };
                    transfer(bed.server.at(upload), head, &stop)
                };
                thread::scope(|inner| {
                    // Threads of a thread are in its namespace.
                    let up = inner.spawn(|| run(1, true));
                    let down = run(2, false);
                    [up.join().unwrap(), down]
                })
            })
        });
        // The transfers end, whatever becomes of the test.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
        stop.store(true, Ordering::Relaxed);
        bed.server.stop.store(true, Ordering::Relaxed);
        let moved = both.join().unwrap();
        bed.server.stop.store(false, Ordering::Relaxed);
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        moved
    })
}

/// Sends bytes to the host's end and back.
pub(crate) fn there_and_back(guest: &mut TcpStream, host: &mut TcpStream, bytes: &mut [u8]) {
    let sent = bytes.to_vec();
    guest.write_all(bytes).unwrap();
    host.read_exact(bytes).unwrap();
    host.write_all(bytes).unwrap();
    guest.read_exact(bytes).unwrap();
    assert!(*bytes == sent[..], "other bytes");
}
