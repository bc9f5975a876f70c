//! A kernel socket that a process before has left.

use super::*;
use brodo_core::flow::Protocol;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::IntoRawFd;

const FLOW: FlowId = FlowId { index: 7, generation: 1 };

/// The record of a flow has the segments of its kernel socket, so that they are not counted again.
#[test]
fn segments_that_a_kernel_socket_has_counted_are_known() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut guest = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut kernel, _) = listener.accept().unwrap();
    guest.write_all(b"ping").unwrap();
    kernel.read_exact(&mut [0; 4]).unwrap();
    kernel.write_all(b"pong").unwrap();
    guest.read_exact(&mut [0; 4]).unwrap();
    let [ours, theirs] = [kernel.local_addr(), kernel.peer_addr()].map(Result::unwrap);
    let key = FlowKey { protocol: Protocol::Tcp, guest: theirs.into(), remote: ours.into() };
    let number = kernel.into_raw_fd().cast_unsigned();
    let mut inherited = Inherited::named([number], &[]);
    let record = PromotedRecord { kernel: number, pipes: [None; 2], unsettled: false };
    let taken = RecoveredPromotion::take(FLOW, &key, Initiator::Guest, &record, &mut inherited).unwrap();
    assert!(taken.counted.from_guest > 0 && taken.counted.to_guest > 0, "{:?}", taken.counted);
    assert_eq!(taken.counted, Segments::of(&TcpInfo::of(taken.kernel.as_fd()).unwrap()));
}
