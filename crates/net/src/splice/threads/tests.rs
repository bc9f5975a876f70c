//! Threads that share the splices of a worker: connections go to that with the fewest, and reports of all
//! come by one descriptor.

use super::*;
use crate::splice::event_data;
use crate::splice::thread::tests::two_connections;
use brodo_core::flow::FlowId;
use brodo_core::flow::end::EndCause;
use brodo_core::flow::info::Initiator;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread::{JoinHandle, spawn};

const THREADS: usize = 3;

/// Begins a connection; the outer ends of both sockets, and its place.
fn spliced(threads: &SpliceThreads, index: u32) -> (TcpStream, TcpStream, Spliced) {
    let (sender, receiver, ends) = two_connections();
    let joined = threads
        .join(|splices, epoll| splices.join_promoted(epoll, flow(index), Initiator::Guest, ends, event_data));
    (sender, receiver, joined.expect("room"))
}

fn flow(index: u32) -> FlowId {
    FlowId { index, generation: 1 }
}

fn start() -> SpliceThreads {
    SpliceThreads::start((0..THREADS).map(|_| Splices::sharing(8, THREADS))).expect("threads")
}

/// Sends so many bytes and the end of the stream, receives that of the other side.
fn transfer(mut sender: TcpStream, mut receiver: TcpStream, length: usize) -> JoinHandle<usize> {
    let sent = spawn(move || {
        sender.write_all(&vec![7; length]).expect("write");
        sender.shutdown(Shutdown::Write).expect("shutdown");
        sender.read_to_end(&mut Vec::new()).expect("end");
    });
    spawn(move || {
        let mut received = Vec::new();
        receiver.read_to_end(&mut received).expect("read");
        receiver.shutdown(Shutdown::Write).expect("shutdown");
        sent.join().expect("no panic");
        received.len()
    })
}

#[test]
fn connections_are_spread_and_all_of_them_reported() {
    const LENGTH: usize = 3 << 20;
    let threads = start();
    let all: Vec<_> = (0..6).map(|index| spliced(&threads, index)).collect();
    for thread in 0..THREADS {
        let here = all.iter().filter(|(.., place)| place.thread == thread).count();
        assert_eq!(here, 2, "thread {thread}");
    }
    let transfers: Vec<_> =
        all.into_iter().map(|(sender, receiver, _)| transfer(sender, receiver, LENGTH)).collect();
    let (mut bytes, mut ended, mut reports) = ([0; 6], 0, Vec::new());
    while ended < 6 {
        poll(&mut [PollFd::from_borrowed_fd(threads.news(), PollFlags::IN)], None).expect("poll");
        threads.collect(&mut reports);
        for report in &reports {
            bytes[report.flow.index as usize] += report.progress.from_initiator.bytes;
            ended += usize::from(report.end == Some(EndCause::Finished));
        }
    }
    assert_eq!(bytes, [LENGTH as u64; 6]);
    assert!(transfers.into_iter().all(|transfer| transfer.join().expect("no panic") == LENGTH));
}

#[test]
fn the_thread_that_loses_a_connection_gets_the_next_one() {
    let threads = start();
    let all: Vec<_> = (0..3).map(|index| spliced(&threads, index)).collect();
    let (.., gone) = all[1];
    threads.with(gone, |splices, epoll| splices.abort(epoll, gone.number, flow(1)));
    let (.., place) = spliced(&threads, 3);
    assert_eq!(place.thread, gone.thread);
}
