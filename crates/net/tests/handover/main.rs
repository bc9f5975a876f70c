//! A network is handed over every few milliseconds, to another in the same process, while connections of
//! every kind are in full flow: all content arrives, and nothing is reset.
//!
//! Both networks hold the link and duplicates of all sockets, as two processes do. Now and then the new one
//! is dropped instead, and the old one goes on.

mod damage;
mod guest;
mod host;
mod idle;
mod link;
mod workers;

use brodo_core::counters::Counters;
use brodo_net::forward::{Forward, ForwardDirection, Transport};
use brodo_net::socket_broker::{self, SocketBroker};
use brodo_net::{Builder, Config, Network, TakenOver, Takeover, channel};
use brodo_testns::{in_namespace, ip};
use guest::{Guest, Script};
use link::SharedLink;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::time::Timespec;
use smoltcp::socket::tcp;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two hand-overs.
const EVERY: Duration = Duration::from_millis(5);
/// The hand-over that is kept, for the test of damaged ones.
const KEPT: u32 = 15;
/// Longest duration of the whole test.
const LIMIT: Duration = Duration::from_secs(180);
/// An address of the host that is no loopback.
const OUTSIDE: &str = "192.0.2.1";
/// Port at which the guest answers UDP.
const GUEST_ECHO: u16 = 9003;

/// Settings that both networks have.
struct Settings {
    link: SharedLink,
    forwards: Vec<Forward>,
    broker: Option<SocketBroker>,
}

/// A configuration with this MTU, in which 10.0.2.4 stands for the host's loopback.
fn config(mtu: u16) -> Config {
    let mut config = Config { mtu, ..Config::default() };
    config.v4.as_mut().expect("default").host_loopback = Some([10, 0, 2, 4].into());
    config
}

impl Settings {
    /// A builder, whose broker is another client of the same one.
    fn builder(&self) -> Builder<SharedLink> {
        let further = |broker: &SocketBroker| SocketBroker::on(broker.another().expect("a channel"));
        let broker = self.broker.as_ref().map(|broker| further(broker).expect("a client"));
        let builder = Network::builder().link(self.link.clone()).config(config(1500)).socket_broker(broker);
        builder.forwards(self.forwards.clone())
    }
}

/// One turn of a loop of the caller's.
fn turn(network: &mut Network<SharedLink>) {
    let most = Duration::from_millis(1);
    let sleep = network.timeout().map_or(most, |timeout| timeout.min(most));
    let sleep = Timespec { tv_sec: 0, tv_nsec: i64::from(sleep.subsec_nanos()) };
    poll(&mut [PollFd::new(&network.descriptor(), PollFlags::IN)], Some(&sleep)).expect("poll");
    let wake = network.turn().expect("turn");
    assert!(wake.is_none(), "{wake:?}");
}

/// Result of a network that was handed over again and again.
struct Outcome {
    counters: Counters,
    handovers: u32,
    /// One of the hand-overs, from the middle of it all.
    kept: Takeover,
}

/// Runs the network, handed over again and again, until `done`.
fn run(settings: &Settings, done: &AtomicBool) -> Outcome {
    let mut network = settings.builder().build().expect("network");
    let (mut handovers, mut last, mut kept) = (0, Instant::now(), Takeover::default());
    while !done.load(Ordering::Acquire) {
        turn(&mut network);
        if last.elapsed() < EVERY {
            continue;
        }
        let handover = network.save();
        if handovers == KEPT {
            kept = handover.duplicate().expect("descriptors");
        }
        let takeover = handover.duplicate().expect("descriptors");
        let restored = settings.builder().restore(takeover).expect("a whole hand-over");
        let TakenOver { network: other, lost, unclaimed, unused } = restored;
        assert_eq!((lost, unclaimed, unused), (0, 0, 0));
        handovers += 1;
        // Every fifth is thawed.
        if handovers % 5 != 0 {
            network = other;
        }
        last = Instant::now();
    }
    Outcome { counters: network.workers()[0].stack().counters().clone(), handovers, kept }
}

fn forward(transport: Transport, spec: &str) -> Forward {
    Forward { direction: ForwardDirection::In, transport, spec: spec.parse().expect("a spec") }
}

/// A broker on a thread of this process.
fn broker() -> SocketBroker {
    let (ours, theirs): (OwnedFd, OwnedFd) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("pair");
    thread::spawn(move || socket_broker::serve(theirs));
    SocketBroker::on(ours).expect("a client")
}

/// Connections of the guest with servers on the host: both ways, one way, stalled.
fn scripts() -> Vec<Script> {
    let shapes = [
        (2_000_000, 3_000_000, false),
        (0, 4_000_000, false),
        (3_000_000, 0, false),
        (400_000, 600_000, true),
    ];
    let script = |(stream, (sends, expects, stalls))| Script {
        port: 0,
        listens: false,
        stream,
        sends,
        expects,
        stalls,
    };
    (0..12).zip(shapes.into_iter().cycle()).map(script).collect()
}

#[test]
fn everything_goes_on_over_hundreds_of_handovers() {
    in_namespace("everything_goes_on_over_hundreds_of_handovers", || {
        ip(&format!("addr add {OUTSIDE}/32 dev lo"));
        let (link, end) = channel::pair(channel::Options::default()).expect("eventfd");
        let near = Script {
            port: 7001,
            listens: false,
            stream: 77,
            sends: 5_000_000,
            expects: 6_000_000,
            stalls: false,
        };
        let (server, near_server) = host::serve(near);
        let settings = Arc::new(Settings {
            link: SharedLink::new(link),
            forwards: vec![
                forward(Transport::Tcp, "7000"),
                forward(Transport::Tcp, &format!("127.0.0.1/7001:127.0.0.1/{server}")),
                forward(Transport::Udp, &GUEST_ECHO.to_string()),
                forward(Transport::Udp, &format!("127.0.0.1/9001:127.0.0.1/{}", host::echo())),
            ],
            broker: Some(broker()),
        });
        let done = Arc::new(AtomicBool::new(false));
        let serving = thread::spawn({
            let done = done.clone();
            let settings = settings.clone();
            move || run(&settings, &done)
        });

        let mut guest = Guest::new(end, GUEST_ECHO);
        let mut peers = vec![near_server];
        for script in scripts() {
            let (port, server) = host::serve(script);
            guest.begin(Script { port, ..script });
            peers.push(server);
        }
        let published = Script {
            port: 7000,
            listens: true,
            stream: 99,
            sends: 2_000_000,
            expects: 1_000_000,
            stalls: false,
        };
        guest.begin(published);
        guest.converse(host::echo(), 300);
        let at = |port: u16| -> SocketAddr { format!("{OUTSIDE}:{port}").parse().expect("an address") };
        let begin = Instant::now();
        // A network that has opened a connection listens, and knows the guest.
        while guest.in_state(tcp::State::Established).is_empty() {
            guest.turn();
            assert!(begin.elapsed() < LIMIT && !serving.is_finished(), "{:#?}", guest.pending());
        }
        peers.push(host::call(at(7000), published));
        peers.push(host::converse(at(GUEST_ECHO), 300));
        peers.push(host::converse("127.0.0.1:9001".parse().expect("an address"), 300));
        let mirrored = Script { stream: !near.stream, sends: near.expects, expects: near.sends, ..near };
        peers.push(host::call("127.0.0.1:7001".parse().expect("an address"), mirrored));

        while !(guest.is_done() && peers.iter().all(thread::JoinHandle::is_finished)) {
            guest.turn();
            assert!(begin.elapsed() < LIMIT && !serving.is_finished(), "{:#?}", guest.pending());
        }
        for peer in peers {
            peer.join().expect("the peer was content");
        }
        done.store(true, Ordering::Release);
        let Outcome { counters, handovers, kept } = serving.join().expect("the network was content");
        assert_eq!(counters.tcp_resets_sent, 0);
        assert!(handovers >= 20, "{handovers} hand-overs in {:?}", begin.elapsed());
        println!("{handovers} hand-overs in {:?}", begin.elapsed());
        damage::of_every_kind(&settings, &kept);
    });
}
