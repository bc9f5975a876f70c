//! Splices of a thread of their own: every byte is in a report or taken out, whatever the time of a pause.

use super::*;
use crate::splice::event_data;
use brodo_core::flow::FlowId;
use brodo_core::flow::end::EndCause;
use brodo_core::flow::info::Initiator;
use rustix::event::{PollFd, PollFlags};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

const FLOW: FlowId = FlowId { index: 7, generation: 1 };
const OTHER: FlowId = FlowId { index: 7, generation: 2 };

/// A thread, and the eventfd by which it reports.
fn started() -> (SpliceThread, Arc<OwnedFd>) {
    let news = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("eventfd"));
    (SpliceThread::start(Splices::new(4), news.clone()).expect("thread"), news)
}

fn start() -> SpliceThread {
    started().0
}

/// Two connections: the outer ends of both, sender and receiver, and those to be spliced.
pub(in crate::splice) fn two_connections() -> (TcpStream, TcpStream, [OwnedFd; 2]) {
    let connected = || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let client = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        (client, listener.accept().expect("accept").0)
    };
    let ((sender, near), (far, receiver)) = (connected(), connected());
    for end in [&near, &far] {
        end.set_nonblocking(true).expect("non-blocking");
    }
    (sender, receiver, [near.into(), far.into()])
}

/// A connection through the thread: the outer ends of both sockets, and the splice's number.
fn spliced(thread: &SpliceThread) -> (TcpStream, TcpStream, u32) {
    let (sender, receiver, ends) = two_connections();
    let joined =
        thread.with(|splices, epoll| splices.join_promoted(epoll, FLOW, Initiator::Guest, ends, event_data));
    (sender, receiver, joined.expect("room"))
}

fn collected(thread: &SpliceThread) -> Vec<SpliceReport> {
    let mut reports = Vec::new();
    thread.collect(&mut reports);
    reports
}

/// All reports until one satisfies `done`.
fn collect_until(
    thread: &SpliceThread,
    news: &OwnedFd,
    done: impl Fn(&SpliceReport) -> bool,
) -> Vec<SpliceReport> {
    let mut reports = Vec::new();
    while !reports.last().is_some_and(&done) {
        poll(&mut [PollFd::from_borrowed_fd(news.as_fd(), PollFlags::IN)], None).expect("poll");
        reports.extend(collected(thread));
    }
    reports
}

/// Writes until the connection is reset.
fn fill(to: &mut TcpStream) {
    let chunk = vec![7; 64 << 10];
    while to.write_all(&chunk).is_ok() {}
}

fn bytes(reports: &[SpliceReport]) -> u64 {
    reports.iter().map(|report| report.progress.from_initiator.bytes).sum()
}

#[test]
fn reports_are_exact_and_tell_the_end() {
    let (thread, news) = started();
    let (mut sender, mut receiver, _) = spliced(&thread);
    let sent = std::thread::spawn(move || {
        sender.write_all(&vec![7; 32 << 20]).expect("write");
        sender.shutdown(Shutdown::Write).expect("shutdown");
        sender
    });
    let mut received = Vec::new();
    receiver.read_to_end(&mut received).expect("read");
    assert_eq!(received.len(), 32 << 20);
    receiver.shutdown(Shutdown::Write).expect("shutdown");
    let reports = collect_until(&thread, &news, |report| report.end.is_some());
    assert_eq!(bytes(&reports), 32 << 20);
    assert_eq!(reports.last().expect("one").end, Some(EndCause::Finished));
    drop(sent.join());
}

#[test]
fn a_paused_connection_has_reported_all_that_is_not_taken_out_of_it() {
    for round in 0..20_u64 {
        let thread = start();
        let (mut sender, mut receiver, number) = spliced(&thread);
        let writer = std::thread::spawn(move || fill(&mut sender));
        let mut received = 0;
        let mut chunk = vec![0; 64 << 10];
        while received < (round << 18) + 1 {
            received += receiver.read(&mut chunk).expect("read") as u64;
        }
        thread.with(|splices, _| splices.pause(number, OTHER, true));
        assert!(thread.with(|splices, epoll| splices.take(epoll, number, OTHER)).is_none(), "another flow's");
        thread.with(|splices, _| splices.pause(number, FLOW, true));
        let reported = bytes(&collected(&thread));
        let taken = thread.with(|splices, epoll| splices.take(epoll, number, FLOW)).expect("whole");
        assert!(collected(&thread).is_empty(), "nothing moves while it is paused");
        let left = taken.from_initiator.len();
        receiver
            .read_to_end(&mut Vec::new())
            .map(|rest| received += rest as u64)
            .expect("closed with its pair");
        assert_eq!(received, reported, "round {round}, {left} bytes taken out");
        writer.join().expect("no panic");
    }
}

#[test]
fn a_worker_gets_the_splices_beside_a_thread_that_never_rests() {
    let thread = start();
    let (mut sender, mut receiver, number) = spliced(&thread);
    let writer = std::thread::spawn(move || fill(&mut sender));
    let reader = std::thread::spawn(move || io::copy(&mut receiver, &mut io::sink()));
    for _ in 0..1000 {
        thread.with(|splices, _| splices.has_room());
    }
    thread.with(|splices, epoll| splices.abort(epoll, number, FLOW));
    writer.join().expect("no panic");
    assert!(reader.join().expect("no panic").is_err(), "reset");
}
