//! Promoted flows: exact while they are taken back for every cause, listed and counted, ended by either side.

use crate::bed::{Bed, CARRIED, Circumstances, LIMIT, eager};
use crate::transfer::{Head, during_transfers, there_and_back, transfer};
use brodo_core::config::Bulk;
use brodo_core::counters::Counters;
use brodo_core::flow::end::{EndCause, FlowEnd};
use brodo_core::flow::info::{Carrier, FlowInfo, FlowState};
use brodo_core::flow::state::State;
use brodo_core::time::Duration as CoreDuration;
use brodo_net::capture::Capture;
use brodo_net::clock::Clock;
use brodo_net::command::Command as Order;
use brodo_net::promotion::client::PromotionAgent;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, sockopt};
use rustix::process::{Signal, kill_process};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Time without room at a host's socket after which all buffers behind it are full.
const STANDSTILL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

pub(crate) fn toggled() {
    many_transfers(Bed::new(65_520, eager()), 160);
}

pub(crate) fn toggled_at_a_small_mtu() {
    many_transfers(Bed::new(1500, eager()), 40);
}

pub(crate) fn toggled_with_several_workers() {
    many_transfers(Bed::under(Circumstances { workers: 2, ..Circumstances::default() }), 60);
}

/// Transfers, four at a time, while all flows are taken back every 50 ms and may leave again at once. On a
/// busy machine fewer flows leave within a transfer, so there are more of them until enough have left.
fn many_transfers(bed: Bed, count: u64) {
    let enough = |counters: &Counters| counters.promotions_made >= 20 && counters.promotions_returned >= 10;
    let (next, over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for bulk in [Bulk::Tap, Bulk::Kernel] {
                    assert_eq!(bed.running.handle().set_bulk(bulk), Ok(true));
                    thread::sleep(Duration::from_millis(25));
                }
            }
        });
        let in_guest = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            bed.in_guest(|| {
                thread::scope(|inner| {
                    let some = || loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= count && (enough(&bed.counters()) || number >= 20 * count) {
                            return;
                        }
                        // Odd lengths, to 16 MiB.
                        let bytes = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40 | 1;
                        let head = Head { upload: number % 2 == 0, number, bytes };
                        assert_eq!(
                            transfer(bed.server.at(number % 3 == 0), head, &AtomicBool::new(false)),
                            bytes
                        );
                    };
                    let threads: Vec<_> = (0..4).map(|_| inner.spawn(some)).collect();
                    for thread in threads {
                        thread.join().unwrap();
                    }
                });
            });
        }));
        over.store(true, Ordering::Relaxed);
        if in_guest.is_err() {
            eprintln!("{:?}\nends: {:?}", bed.counters(), bed.causes());
        }
        in_guest.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let counters = bed.counters();
    eprintln!(
        "{} tried, {} made, {} returned, {} given up, {} bytes",
        counters.promotions_tried,
        counters.promotions_made,
        counters.promotions_returned,
        counters.promotions_given_up,
        counters.promoted_bytes
    );
    assert!(enough(&counters), "{counters:?}");
    assert!(bed.causes().iter().all(|cause| *cause == EndCause::Finished));
    bed.end();
}

pub(crate) fn listed_and_counted() {
    let bed = Bed::new(65_520, eager());
    let [up, down] = during_transfers(&bed, || bed.until_carried(2));
    bed.until("the ends are recorded", |_| bed.causes().len() == 2);
    let counters = bed.counters();
    assert_eq!((counters.promotions_made, counters.promotions_returned), (2, 0));
    let of = |end: &FlowEnd| (end.info.carrier, end.info.from_guest.bytes, end.info.to_guest.bytes);
    let mut ended: Vec<_> = bed.ended.lock().unwrap().iter().map(of).collect();
    ended.sort_unstable_by_key(|(_, from_guest, _)| *from_guest);
    let head = Head::LEN as u64;
    // The answer to an upload is its length.
    assert_eq!(ended, [(Carrier::Kernel, head, down), (Carrier::Kernel, head + up, 8)]);
    assert_eq!(bed.report().promotion.map(|promotion| promotion.flows), Some(0));
    bed.end();
}

/// Bytes and packets that have crossed the way beside the guest's interface, from the guest and to it, as
/// the kernel counts them.
fn crossed(bed: &Bed) -> [[u64; 2]; 2] {
    let devices = bed.in_guest(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap());
    let counts = devices.lines().find_map(|line| line.trim_start().strip_prefix("eth0-bulk:")).unwrap();
    let counts: Vec<u64> = counts.split_whitespace().map(|count| count.parse().unwrap()).collect();
    [[counts[8], counts[9]], [counts[0], counts[1]]]
}

/// Requests and answers of one segment each. The statistics of the interface have headers and
/// acknowledgements beside them, so that segments are compared with the requests, and bytes with what the
/// headers leave.
pub(crate) fn counted_as_by_the_kernel() {
    const EXCHANGES: u64 = 50;
    const LEN: u64 = 1000;
    // Ethernet, IPv4 and TCP, without options: there are no timestamps, and nothing is lost.
    const HEADERS: u64 = 14 + 20 + 20;
    let bed = Bed::new(65_520, eager());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut guest, mut host) = bed.pair(&listener);
    let mut total = bed.promote(&mut guest, &mut host);
    bed.until("it is carried", |counters| counters.promotions_made > 0);
    let (before, crossed_before) = (carried(&bed).unwrap(), crossed(&bed));
    for _ in 0..EXCHANGES {
        there_and_back(&mut guest, &mut host, &mut [7; LEN as usize]);
    }
    total += EXCHANGES * LEN;
    let (after, crossed_after) = (carried(&bed).unwrap(), crossed(&bed));
    let packets = |info: &FlowInfo| [info.from_guest.packets, info.to_guest.packets];
    let ([up, down], [up_before, down_before]) = (packets(&after), packets(&before));
    assert_eq!([up - up_before, down - down_before], [EXCHANGES; 2]);
    for ([bytes, packets], [bytes_before, packets_before]) in crossed_after.into_iter().zip(crossed_before) {
        let (bytes, packets) = (bytes - bytes_before, packets - packets_before);
        assert_eq!(bytes - HEADERS * packets, EXCHANGES * LEN, "{packets} packets");
    }
    assert!(after.rtt.is_some_and(|rtt| rtt > CoreDuration::ZERO), "{after:?}");
    let moved = |info: &FlowInfo| [info.from_guest.bytes, info.to_guest.bytes];
    bed.until("all is reported", |_| carried(&bed).is_some_and(|info| moved(&info) == [total; 2]));
    drop((guest, host));
    bed.until("the end is recorded", |_| bed.causes().len() == 1);
    let ended = bed.ended.lock().unwrap()[0].info;
    assert_eq!((ended.carrier, moved(&ended), packets(&ended)), (Carrier::Kernel, [total; 2], [up, down]));
    bed.end();
}

pub(crate) fn agent_killed() {
    let bed = Bed::new(65_520, eager());
    during_transfers(&bed, || {
        bed.until_carried(2);
        let pid = bed.agent.as_ref().and_then(PromotionAgent::process).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        let gone = || bed.report().promotion.is_some_and(|promotion| promotion.agent_gone);
        bed.until("the end of the agent is seen", |_| gone());
        let moved = bed.counters().promoted_bytes;
        bed.until("both flows go on", |counters| counters.promoted_bytes > moved + (8 << 20));
        // One that cannot come back stays.
        assert_eq!(bed.running.handle().set_bulk(Bulk::Tap), Ok(true));
        assert_eq!(bed.running.handle().set_bulk(Bulk::Kernel), Ok(true));
        let moved = bed.counters().promoted_bytes;
        bed.until("both flows go on", |counters| counters.promoted_bytes > moved + (8 << 20));
    });
    let made = bed.counters().promotions_made;
    during_transfers(&bed, || {
        bed.until("further ones are refused", |counters| counters.promotions_refused_broker > 0);
    });
    assert_eq!(bed.counters().promotions_made, made);
    bed.end();
}

/// Begins a capture of the packets that a filter lets through.
pub(crate) fn capture(bed: &Bed, filter: &str) {
    let file = File::options().write(true).open("/dev/null").unwrap();
    let capture = Capture::new(file, "eth0", Clock::start()).unwrap().only(filter.parse().unwrap());
    let start = |reply| Order::StartCapture { capture, reply };
    bed.running.handle().workers().ask(0, start).wait(LIMIT).unwrap();
}

pub(crate) fn captured() {
    let bed = Bed::new(65_520, eager());
    let capture = |filter| capture(&bed, filter);
    during_transfers(&bed, || {
        bed.until_carried(2);
        capture("udp");
        bed.until_carried(2);
        // One of the two transfers.
        capture("ip");
        bed.until_carried(1);
        assert_eq!(bed.counters().promotions_recalled_capture, 1);
        capture("tcp");
        bed.until_carried(0);
        bed.until("they are refused", |counters| counters.promotions_refused_captured > 0);
        let stop = |reply| Order::StopCapture { reply };
        bed.running.handle().workers().ask(0, stop).wait(LIMIT).unwrap();
        bed.until_carried(2);
    });
    bed.end();
}

/// A guest that reads nothing leaves more bytes in its kernel socket and a pipe than brodo's memory takes.
pub(crate) fn short_of_memory() {
    let bed = Bed::under(Circumstances { memory: 1 << 20, ..Circumstances::default() });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut guest, mut host) = bed.promoted_pair(&listener);
    let mut sent = 0;
    host.set_nonblocking(true).unwrap();
    while poll(&mut [PollFd::new(&host, PollFlags::OUT)], Some(&STANDSTILL)) == Ok(1) {
        sent += host.write(&[7; 16 << 10]).unwrap_or(0);
    }
    capture(&bed, "tcp");
    bed.until("it is asked for again", |counters| counters.promotions_recalled_capture > 2);
    bed.until_carried(1);
    let counters = bed.counters();
    assert_eq!((counters.promotions_returned, counters.promotions_broken), (0, 0));
    let mut got = vec![0; sent];
    guest.read_exact(&mut got).unwrap();
    assert!(got.iter().all(|byte| *byte == 7), "other bytes");
    bed.until("it comes back", |counters| counters.promotions_returned == 1);
    host.set_nonblocking(false).unwrap();
    there_and_back(&mut guest, &mut host, &mut [7; 5]);
    drop((guest, host));
    bed.end();
}

pub(crate) fn frozen() {
    let bed = Bed::new(65_520, eager());
    during_transfers(&bed, || {
        for _ in 0..5 {
            bed.until_carried(2);
            let before = bed.counters().promotions_recalled_hand_over;
            // A request while another freeze lasts has no effect, and one that comes too early ends attempts.
            bed.until("they come back", |counters| {
                bed.running.handle().freeze();
                thread::sleep(Duration::from_millis(200));
                counters.promotions_recalled_hand_over >= before + 2
            });
        }
        bed.until_carried(2);
    });
    bed.end();
}

/// Half closes, urgent data, and resets by either side, of promoted flows.
pub(crate) fn ends() {
    let bed = Bed::new(65_520, eager());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pair = || bed.promoted_pair(&listener);

    // Each direction ends by itself, and what follows it still arrives.
    let (mut guest, mut host) = pair();
    guest.shutdown(Shutdown::Write).unwrap();
    assert_eq!(host.read(&mut [0]).unwrap(), 0);
    host.write_all(b"behind your end").unwrap();
    let mut said = [0; 15];
    guest.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"behind your end");
    host.shutdown(Shutdown::Write).unwrap();
    assert_eq!(guest.read(&mut said).unwrap(), 0);
    drop((guest, host));

    // Urgent data stands in its place, also when the flow goes back with it.
    let (mut guest, mut host) = pair();
    guest.write_all(b"ab").unwrap();
    assert_eq!(rustix::net::send(&guest, b"!", SendFlags::OOB), Ok(1));
    guest.write_all(b"cd").unwrap();
    assert_eq!(bed.running.handle().set_bulk(Bulk::Tap), Ok(true));
    let mut said = [0; 5];
    host.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"ab!cd");
    host.write_all(b"x").unwrap();
    guest.read_exact(&mut said[..1]).unwrap();
    bed.until_carried(0);
    assert_eq!(bed.running.handle().set_bulk(Bulk::Kernel), Ok(true));
    drop((guest, host));

    let reset = |stream: TcpStream| {
        sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        drop(stream);
    };
    let (guest, mut host) = pair();
    reset(guest);
    assert_eq!(host.read(&mut [0]).map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
    let (mut guest, host) = pair();
    reset(host);
    assert_eq!(guest.read(&mut [0]).map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
    bed.until("all have ended", |_| bed.causes().len() == 4);
    let causes = bed.causes();
    assert!(
        causes.contains(&EndCause::ResetByGuest) && causes.contains(&EndCause::ResetByHost),
        "{causes:?}"
    );
    bed.end();
}

/// A program sends all it has and exits; its kernel answers what comes later with a reset. All of it arrives,
/// also if the flow is to come back meanwhile.
pub(crate) fn left() {
    let bed = Bed::new(65_520, eager());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for (guest_leaves, recalled) in [(true, false), (true, true), (false, false), (false, true)] {
        let (guest, host) = bed.promoted_pair(&listener);
        let (mut leaving, mut staying) = if guest_leaves { (guest, host) } else { (host, guest) };
        let data: Vec<u8> = (0..16_u32 << 20).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
        let mut got = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                leaving.write_all(&data).unwrap();
                leaving.shutdown(Shutdown::Write).unwrap();
            });
            // The rest then stands in the sender's buffer toward the reader, and in the reader's.
            let mut some = [0; 16 << 10];
            while !is_half_closed(&bed) {
                let count = staying.read(&mut some).unwrap();
                got.extend(&some[..count]);
            }
        });
        drop(leaving);
        let late = |bed: &Bed| {
            let info = carried(bed);
            info.map(|info| if guest_leaves { info.to_guest.bytes } else { info.from_guest.bytes })
        };
        let before = late(&bed);
        staying.write_all(b"!").unwrap();
        bed.until("the late byte is passed on", |_| late(&bed) != before);
        if recalled {
            assert_eq!(bed.running.handle().set_bulk(Bulk::Tap), Ok(true));
        }
        // Further ones may meet the end.
        let _ = staying.write_all(b"!");
        if let Err(error) = staying.read_to_end(&mut got) {
            panic!("{error} behind {} bytes", got.len());
        }
        assert!(got == data, "{} bytes of {}", got.len(), data.len());
        bed.until_carried(0);
        assert_eq!(bed.running.handle().set_bulk(Bulk::Kernel), Ok(true));
    }
    bed.end();
}

/// The only flow that a kernel socket moves.
fn carried(bed: &Bed) -> Option<FlowInfo> {
    bed.running.handle().flows(CARRIED).unwrap().pop().map(|flow| flow.detail.info)
}

fn is_half_closed(bed: &Bed) -> bool {
    let half_closed = [State::CloseWait, State::FinWait2].map(FlowState::Tcp);
    carried(bed).is_some_and(|info| half_closed.contains(&info.state))
}

/// Keep-alive of both ends' kernels, answered by the kernel sockets between them; with the second unanswered
/// probe a connection would end.
pub(crate) fn kept_alive() {
    let bed = Bed::new(65_520, eager());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut guest, mut host) = bed.promoted_pair(&listener);
    for stream in [&guest, &host] {
        sockopt::set_socket_keepalive(stream, true).unwrap();
        sockopt::set_tcp_keepidle(stream, Duration::from_secs(1)).unwrap();
        sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1)).unwrap();
        sockopt::set_tcp_keepcnt(stream, 2).unwrap();
    }
    thread::sleep(Duration::from_secs(5));
    bed.until_carried(1);
    there_and_back(&mut guest, &mut host, &mut [7; 5]);
    drop((guest, host));
    bed.end();
}
