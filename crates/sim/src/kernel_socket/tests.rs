//! A host socket with a kernel and a path behind it, as the stack sees it.

use super::*;
use brodo_core::flow::FlowId;
use brodo_core::host::{Host, HostError, Readiness};
use brodo_core::time::Duration;
use std::io::{IoSlice, IoSliceMut};

const FLOW: FlowId = FlowId { index: 1, generation: 1 };

fn connected() -> (SimHost, SocketId, KernelSocket) {
    let mut host = SimHost::default();
    let to = "192.0.2.1:80".parse().expect("address");
    let (socket, _) = host.tcp_connect(FLOW, to).expect("planned to succeed");
    let wire = Wire::new(Duration::from_millis(20), 100_000_000);
    let kernel = KernelSocket::new(&mut host, socket, wire, wire);
    (host, socket, kernel)
}

fn write(host: &mut SimHost, socket: SocketId, bytes: usize) -> Result<usize, HostError> {
    host.tcp_send(socket, &[IoSlice::new(&vec![7; bytes])])
}

#[test]
fn a_refused_write_has_one_wake_up_when_a_third_is_free() {
    let (mut host, socket, mut kernel) = connected();
    let all = write(&mut host, socket, 1 << 20).expect("room for some");
    assert!((87_040..87_040 + (64 << 10)).contains(&all), "{all} bytes and the last buffer are taken");
    kernel.settle(&mut host, Instant::ZERO);
    let (mut now, mut edges) = (Instant::ZERO, Vec::new());
    while edges.is_empty() {
        assert_eq!(write(&mut host, socket, 1), Err(HostError::WouldBlock), "at {now:?}");
        kernel.settle(&mut host, now);
        now = kernel.next().expect("under way");
        kernel.advance(&mut host, now);
        edges = host.take_events();
    }
    assert_eq!(edges, [(FLOW, Readiness { writable: true, ..Readiness::default() })]);
    assert!(kernel.up().queued() * 3 <= kernel.up().send_memory() * 2);
    assert!(write(&mut host, socket, 1 << 20).expect("room again") >= kernel.up().send_memory() as usize / 4);
}

#[test]
fn bytes_of_the_peer_arrive_after_the_delay_and_their_end_after_them() {
    let (mut host, socket, mut kernel) = connected();
    kernel.peer_write(Instant::ZERO, b"abc");
    kernel.peer_close(Instant::ZERO);
    kernel.advance(&mut host, Instant::from_ms(9));
    assert!(!host.has_events());
    kernel.advance(&mut host, Instant::from_ms(11));
    let mut buf = [0; 8];
    assert_eq!(host.tcp_recv(socket, &mut [IoSliceMut::new(&mut buf)]), Ok(3));
    assert_eq!(&buf[..3], b"abc");
    assert_eq!(host.tcp_recv(socket, &mut [IoSliceMut::new(&mut buf)]), Ok(0));
    kernel.settle(&mut host, Instant::from_ms(11));
    host.tcp_shutdown(socket).expect("alive");
    kernel.settle(&mut host, Instant::from_ms(12));
    assert!(!kernel.peer_sees_end());
    kernel.advance(&mut host, Instant::from_ms(23));
    assert!(kernel.peer_sees_end());
}
