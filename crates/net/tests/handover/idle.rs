//! Many idle connections are handed over, and each goes on.

use crate::guest::{Guest, Script, byte};
use crate::link::SharedLink;
use crate::{GUEST_ECHO, Settings, turn};
use brodo_net::sockets::raise_nofile;
use brodo_net::{TakenOver, channel};
use brodo_testns::in_namespace;
use rustix::time::{ClockId, clock_gettime};
use smoltcp::socket::tcp::State;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Connections. Each takes three descriptors here: both networks have one, and the server.
const IDLE: usize = 1000;
/// Connections that are opened at a time.
const AT_A_TIME: usize = 50;

/// Processor time of this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn idle_connections_go_on() {
    in_namespace("idle::idle_connections_go_on", || {
        raise_nofile();
        let (link, end) = channel::pair(channel::Options::default()).expect("eventfd");
        let settings = Settings { link: SharedLink::new(link), forwards: Vec::new(), broker: None };
        let mut network = settings.builder().build().expect("network");
        let mut guest = Guest::new(end, GUEST_ECHO);
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("address").port();
        let mut accepted: Vec<TcpStream> = Vec::new();
        for number in 0..IDLE {
            guest.begin(Script { port, listens: false, stream: 1, sends: 0, expects: 1, stalls: false });
            if (number + 1) % AT_A_TIME == 0 {
                while guest.in_state(State::Established).len() <= number {
                    guest.poll();
                    turn(&mut network);
                }
                accepted.extend((accepted.len()..=number).map(|_| listener.accept().expect("accept").0));
            }
        }

        let begin = processor_time();
        let handover = network.save();
        let saved = processor_time().saturating_sub(begin);
        let (bytes, descriptors) = (handover.bytes.len(), handover.descriptors.len());
        let takeover = handover.duplicate().expect("descriptors");
        let begin = processor_time();
        let restored = settings.builder().restore(takeover).expect("a whole hand-over");
        let restoring = processor_time().saturating_sub(begin);
        println!("{descriptors} descriptors, {bytes} bytes, {saved:?} to save, {restoring:?} to restore");
        drop(network);
        let TakenOver { network: mut other, lost, unclaimed, unused } = restored;
        assert_eq!((descriptors, lost, unclaimed, unused), (IDLE, 0, 0, 0));

        for mut stream in accepted {
            stream.write_all(&[byte(!1, 0)]).expect("open");
        }
        while !guest.is_done() {
            guest.turn();
            turn(&mut other);
        }
        assert_eq!(other.workers()[0].stack().counters().tcp_resets_sent, 0);
    });
}
