//! Promoted flows between two kernels: the guest's and the middle namespace's, with the real agent between
//! them. No stack has a part in it: the guest's end is made by TCP_REPAIR too, in the guest's namespace.
//!
//! A program of its own, because the agent is forked from a process with one thread: the sequential run of
//! one test, which `in_namespace` starts, is on the main thread.

use brodo_link::tap::Wanted;
use brodo_net::fd_passing;
use brodo_net::netlink::nftables::{Batch, Nftables};
use brodo_net::netlink::template::{InterfaceAddress, Route};
use brodo_net::promotion::client::{Answered, Outcome, PromotionAgent};
use brodo_net::promotion::read_out::{ReadOut, read_out};
use brodo_net::promotion::steering::STEERED_MAX;
use brodo_net::promotion::{
    FLOWS_MAX, Fins, OurFin, Refused, SeedFields, Stage, TcpSeed, WindowScales, repaired,
};
use brodo_netns::namespace::{Plan, Target, attach};
use brodo_netns::promotion::{Beside, inside};
use brodo_netns::setup::{Interface, Step};
use brodo_sandbox::Confinement;
use brodo_testns::in_namespace_with_tun;
use libtest_mimic::{Arguments, Trial};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

const ROUTER_MAC: [u8; 6] = [0x52, 0x55, 10, 0, 2, 2];
const V4: (&str, &str) = ("10.0.2.15:40000", "192.0.2.7:443");
const V6: (&str, &str) = ("[fd00::15]:40000", "[2001:db8::7]:443");
/// Longest wait for something that happens at once.
const AT_ONCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// Longest wait for anything else.
const LIMIT: Duration = Duration::from_secs(60);

const TESTS: [(&str, fn()); 12] = [
    ("data_crosses_beside_the_interface_both_ways", data_crosses_beside_the_interface_both_ways),
    (
        "a_frozen_socket_is_read_out_exactly_and_the_flow_goes_on",
        a_frozen_socket_is_read_out_exactly_and_the_flow_goes_on,
    ),
    (
        "a_frozen_socket_with_an_ended_stream_is_read_out_without_its_fin",
        a_frozen_socket_with_an_ended_stream_is_read_out_without_its_fin,
    ),
    ("the_agent_makes_and_touches_nothing_else", the_agent_makes_and_touches_nothing_else),
    (
        "a_socket_that_did_not_reach_its_client_loses_its_place",
        a_socket_that_did_not_reach_its_client_loses_its_place,
    ),
    (
        "a_released_connection_keeps_its_place_while_the_guest_answers",
        a_released_connection_keeps_its_place_while_the_guest_answers,
    ),
    (
        "a_socket_of_a_client_that_has_ended_goes_on_with_another",
        a_socket_of_a_client_that_has_ended_goes_on_with_another,
    ),
    ("datagrams_have_a_queue_of_their_own_for_a_while", datagrams_have_a_queue_of_their_own_for_a_while),
    (
        "datagrams_come_to_the_interface_again_without_an_agent",
        datagrams_come_to_the_interface_again_without_an_agent,
    ),
    (
        "a_client_that_takes_no_answers_does_not_keep_the_agent",
        a_client_that_takes_no_answers_does_not_keep_the_agent,
    ),
    (
        "a_guest_that_deletes_the_steering_gets_the_flow_at_its_interface",
        a_guest_that_deletes_the_steering_gets_the_flow_at_its_interface,
    ),
    (
        "a_place_that_cannot_be_made_says_which_step_failed",
        a_place_that_cannot_be_made_says_which_step_failed,
    ),
];

fn main() -> ExitCode {
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), TESTS.into_iter().map(trial).collect()).exit_code()
}

fn interface() -> Interface {
    Interface {
        name: "eth0".to_owned(),
        mac: [0x52, 0x55, 10, 0, 2, 15],
        mtu: 65520,
        tx_queue_len: 1000,
        addresses: vec![
            InterfaceAddress { address: [10, 0, 2, 15].into(), prefix_len: 24 },
            InterfaceAddress { address: "fd00::15".parse().unwrap(), prefix_len: 64 },
        ],
        routes: vec![
            Route::default_via([10, 0, 2, 2].into()),
            Route::default_via("fd00::2".parse().unwrap()),
        ],
        configured: true,
        best_effort: false,
    }
}

/// A guest's namespace, kept by a process that sleeps, with its interface, and the agent beside it.
struct Bed {
    keeper: std::process::Child,
    tap: OwnedFd,
    agent: Option<PromotionAgent>,
    /// A client as an engine is one.
    client: PromotionAgent,
}

impl Bed {
    fn new() -> Self {
        let keeper = Command::new("unshare").args(["-n", "sleep", "60"]).spawn().unwrap();
        let ours = std::fs::read_link("/proc/self/ns/net").unwrap();
        let theirs = format!("/proc/{}/ns/net", keeper.id());
        while std::fs::read_link(&theirs).is_ok_and(|net| net == ours) {
            std::thread::yield_now();
        }
        let target = Target::process(keeper.id().cast_signed()).unwrap();
        let interface = interface();
        let plan = Plan { interface: interface.clone(), offload: Wanted::Everything, queues: 1 };
        let mut made = attach(&plan, &target).unwrap();
        rustix::io::ioctl_fionbio(&made.taps[0], true).unwrap();
        let place = Beside { interface: &interface, router_mac: ROUTER_MAC };
        // The router is there, as far as the guest knows.
        let agent = inside(&target, place, Confinement::ON).unwrap().wait().unwrap();
        let client = PromotionAgent::on(agent.another().unwrap()).unwrap();
        let bed = Self { keeper, tap: made.taps.remove(0), agent: Some(agent), client };
        bed.in_guest(|| {
            for address in ["10.0.2.2", "fd00::2"] {
                brodo_testns::ip(&format!(
                    "neigh add {address} lladdr 52:55:0a:00:02:02 dev eth0 nud permanent"
                ));
            }
        });
        bed
    }

    /// Runs a closure in the guest's network namespace.
    fn in_guest<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let net = File::open(format!("/proc/{}/ns/net", self.keeper.id())).unwrap();
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(net.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                body()
            });
            inside.join().unwrap()
        })
    }

    /// The answer to the last request.
    fn answer(&mut self) -> Outcome {
        loop {
            if let Some(Answered { outcome, .. }) = self.client.receive() {
                return outcome;
            }
            assert!(!self.client.is_gone(), "the agent has ended");
            let ready = poll(&mut [PollFd::new(&self.client.descriptor(), PollFlags::IN)], Some(&AT_ONCE));
            assert_eq!(ready, Ok(1), "the agent answers");
        }
    }

    /// A socket that is started.
    fn make(&mut self, seed: &TcpSeed) -> Result<OwnedFd, Refused> {
        let socket = self.make_only(seed)?;
        self.start(&socket).map(|()| socket)
    }

    fn make_only(&mut self, seed: &TcpSeed) -> Result<OwnedFd, Refused> {
        self.client.make(1, seed).unwrap();
        match self.answer() {
            Outcome::Made(made) => made,
            other => panic!("{other:?}"),
        }
    }

    fn start(&mut self, socket: &OwnedFd) -> Result<(), Refused> {
        self.client.start(4, socket.as_fd()).unwrap();
        match self.answer() {
            Outcome::Started(started) => started,
            other => panic!("{other:?}"),
        }
    }

    /// Another client takes the place of this one, which has ended.
    fn next_client(&mut self) {
        let further = self.agent.as_ref().unwrap().another().unwrap();
        self.client = PromotionAgent::on(further).unwrap();
    }

    fn freeze(&mut self, socket: &OwnedFd) -> Result<(), Refused> {
        self.client.freeze(2, socket.as_fd()).unwrap();
        match self.answer() {
            Outcome::Frozen(frozen) => frozen,
            other => panic!("{other:?}"),
        }
    }

    fn thaw(&mut self, socket: &OwnedFd) -> Result<(), Refused> {
        self.client.thaw(3, socket.as_fd()).unwrap();
        match self.answer() {
            Outcome::Thawed(thawed) => thawed,
            other => panic!("{other:?}"),
        }
    }

    /// The queue of datagrams.
    fn divert(&mut self) -> Result<Option<OwnedFd>, Refused> {
        self.client.divert().unwrap();
        match self.answer() {
            Outcome::Diverted { queue, .. } => queue,
            other => panic!("{other:?}"),
        }
    }

    /// The queue of datagrams, which are steered there by now: the agent has answered another question since.
    fn diverted(&mut self) -> OwnedFd {
        let queue = loop {
            match self.divert() {
                Ok(queue) => break queue.expect("a queue"),
                Err(refused) => assert_eq!(refused.errno, Errno::BUSY),
            }
        };
        assert!(self.divert().unwrap().is_none(), "this client has it");
        queue
    }

    /// Protocols of the IP packets to the two peers that a datagram and a segment of the guest's make, at the
    /// interface and in the queue.
    fn ways(&self, queue: &OwnedFd) -> [Vec<u8>; 2] {
        self.in_guest(|| {
            for remote in [V4.1, V6.1] {
                let remote: SocketAddr = remote.parse().unwrap();
                let any = if remote.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                // One packet, and two fragments.
                for len in [100, 65_507] {
                    UdpSocket::bind(any).unwrap().send_to(&vec![7; len], remote).unwrap();
                }
                let _ = TcpStream::connect_timeout(&remote, Duration::from_millis(20));
            }
        });
        [&self.tap, queue].map(protocols)
    }

    /// A connection of the guest's and its promoted end.
    fn pair(&mut self, seed: &TcpSeed) -> Pair {
        let guest = self.in_guest(|| repaired::make(&mirrored(seed)).unwrap());
        let kernel = self.make(seed).unwrap();
        // Started last: its probe finds the other end.
        repaired::start(guest.as_fd()).unwrap();
        Pair { guest: stream(guest), kernel: stream(kernel) }
    }

    /// State of a socket of [`Bed::pair`] once it has these FINs; it goes on as if nothing had been.
    fn read_out_with(&mut self, fins: Fins, kernel: &TcpStream, made: &TcpSeed) -> ReadOut {
        let socket = kernel.as_fd().try_clone_to_owned().unwrap();
        loop {
            self.freeze(&socket).unwrap();
            let out = read_out(socket.as_fd(), made).unwrap();
            self.thaw(&socket).unwrap();
            if out.fins == fins {
                return out;
            }
            // A frozen socket receives nothing, and what it missed is sent again after 200 ms and more.
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// TCP segments that have reached the TAP and were not read yet.
    fn segments_at_tap(&self) -> usize {
        protocols(&self.tap).into_iter().filter(|protocol| *protocol == 6).count()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// Protocols of the datagrams and segments that wait at a TAP.
fn protocols(tap: &OwnedFd) -> Vec<u8> {
    let mut frame = vec![0; 70_000];
    let mut found = Vec::new();
    while let Ok(length) = rustix::io::read(tap, &mut frame[..]) {
        // Behind the virtio-net header (12 bytes) and the Ethernet header.
        let packet = &frame[12 + 14..length];
        found.push(match (packet[0] >> 4, packet[6]) {
            (4, _) => packet[9],
            (_, 44) => packet[40],
            (_, next) => next,
        });
    }
    found.retain(|protocol| [6, 17].contains(protocol));
    found
}

struct Pair {
    guest: TcpStream,
    kernel: TcpStream,
}

fn stream(socket: OwnedFd) -> TcpStream {
    rustix::io::ioctl_fionbio(&socket, false).unwrap();
    socket.into()
}

fn seed((guest, remote): (&str, &str)) -> TcpSeed {
    let fields = SeedFields {
        guest: guest.parse().unwrap(),
        remote: remote.parse().unwrap(),
        // Both run over the end of their space soon.
        snd_una: 0xffff_0000,
        snd_nxt: 0xffff_0000,
        snd_wnd: 64 << 10,
        wnd_max: 64 << 10,
        snd_wl1: 0xfffe_0000,
        rcv_nxt: 0xfffe_0000,
        rcv_wup: 0xfffe_0000,
        rcv_wnd: 64 << 10,
        mss: 1460,
        scales: Some(WindowScales { snd: 7, rcv: 8 }),
        sack: true,
    };
    TcpSeed::new(fields).unwrap()
}

/// A seed with some fields changed.
fn changed(seed: &TcpSeed, change: impl FnOnce(&mut SeedFields)) -> TcpSeed {
    let mut fields = *seed.fields();
    change(&mut fields);
    TcpSeed::new(fields).unwrap()
}

/// The same connection as its other end has it.
fn mirrored(seed: &TcpSeed) -> TcpSeed {
    let of = *seed.fields();
    changed(seed, |fields| {
        (fields.guest, fields.remote) = (of.remote, of.guest);
        (fields.snd_una, fields.snd_nxt, fields.snd_wl1) = (of.rcv_nxt, of.rcv_nxt, of.snd_nxt);
        (fields.rcv_nxt, fields.rcv_wup) = (of.snd_nxt, of.snd_nxt);
        fields.scales = of.scales.map(|WindowScales { snd, rcv }| WindowScales { snd: rcv, rcv: snd });
    })
}

/// Bytes that differ at every offset where a shift could go unnoticed.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// Sends all of `bytes` from one end to the other, which reads them.
fn transfer(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8]) {
    std::thread::scope(|scope| {
        scope.spawn(|| from.write_all(bytes).unwrap());
        let mut got = vec![0; bytes.len()];
        to.read_exact(&mut got).unwrap();
        assert!(got == bytes, "the bytes differ");
    });
}

fn data_crosses_beside_the_interface_both_ways() {
    in_namespace_with_tun("data_crosses_beside_the_interface_both_ways", || {
        let mut bed = Bed::new();
        let bytes = pattern(8 << 20);
        let bare = ("10.0.2.15:40001", V4.1);
        let unscaled = changed(&seed(bare), |fields| {
            fields.scales = None;
            (fields.snd_wnd, fields.wnd_max, fields.rcv_wnd) = (65_535, 65_535, 65_535);
        });
        for (ends, seed) in [(V4, seed(V4)), (V6, seed(V6)), (bare, unscaled)] {
            let Pair { mut guest, mut kernel } = bed.pair(&seed);
            assert_eq!(guest.local_addr().unwrap(), ends.0.parse::<SocketAddr>().unwrap());
            transfer(&mut guest, &mut kernel, &bytes);
            transfer(&mut kernel, &mut guest, &bytes);
            assert_eq!(bed.segments_at_tap(), 0, "{ends:?}");
            // The peer's address and port are taken in the middle namespace, not in the guest's.
            bed.in_guest(|| TcpListener::bind("[::]:443").map(drop)).unwrap();

            // Its last bytes and its end reach the guest after the release.
            kernel.write_all(&bytes[..100_000]).unwrap();
            kernel.shutdown(Shutdown::Write).unwrap();
            bed.client.release(kernel.into());
            let mut rest = Vec::new();
            guest.read_to_end(&mut rest).unwrap();
            assert!(rest == bytes[..100_000]);
            drop(guest);
        }
        bed.agent = None;
        assert!(bed.client.receive().is_none() && bed.client.is_gone());
    });
}

fn datagrams_have_a_queue_of_their_own_for_a_while() {
    const UDP: [u8; 6] = [17; 6];
    const TCP: [u8; 2] = [6; 2];
    in_namespace_with_tun("datagrams_have_a_queue_of_their_own_for_a_while", || {
        let mut bed = Bed::new();
        let queue = bed.diverted();
        assert_eq!(bed.ways(&queue), [TCP.to_vec(), UDP.to_vec()]);

        // Promoted flows are steered besides.
        let Pair { mut guest, mut kernel } = bed.pair(&seed(V4));
        transfer(&mut guest, &mut kernel, &pattern(1 << 20));
        assert_eq!(bed.ways(&queue), [TCP.to_vec(), UDP.to_vec()]);

        // One client has it at a time, and loses it with its end.
        let mut other = PromotionAgent::on(bed.agent.as_ref().unwrap().another().unwrap()).unwrap();
        std::mem::swap(&mut bed.client, &mut other);
        assert_eq!(bed.divert().map_err(|refused| refused.errno).err(), Some(Errno::BUSY));
        drop(other);
        let queue = bed.diverted();
        assert_eq!(bed.ways(&queue), [TCP.to_vec(), UDP.to_vec()]);
        bed.client.rejoin().unwrap();
        assert!(matches!(bed.answer(), Outcome::Rejoined { dropped: 0 }));
        let [at_tap, in_queue] = bed.ways(&queue);
        assert_eq!((at_tap.len(), in_queue.len()), (TCP.len() + UDP.len(), 0));

        // A full queue drops, and counts its drops.
        let queue = bed.diverted();
        bed.in_guest(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            (0..1007).for_each(|_| drop(socket.send_to(b"x", V4.1)));
        });
        bed.client.rejoin().unwrap();
        let Outcome::Rejoined { dropped } = bed.answer() else { panic!("not the answer") };
        // A ring that was read has a few places that are not free yet.
        assert!((7..50).contains(&dropped), "{dropped}");
        assert_eq!(protocols(&queue).len() as u64, 1007 - dropped);
    });
}

fn datagrams_come_to_the_interface_again_without_an_agent() {
    in_namespace_with_tun("datagrams_come_to_the_interface_again_without_an_agent", || {
        let mut bed = Bed::new();
        let queue = bed.diverted();
        let is_diverted = |bed: &Bed| {
            let [at_tap, in_queue] = bed.ways(&queue).map(|way| way.contains(&17));
            assert!(at_tap || in_queue, "datagrams are lost");
            in_queue
        };
        let begun = Instant::now();
        while begun.elapsed() < STEERED_MAX + Duration::from_secs(1) {
            assert!(is_diverted(&bed), "the agent renews the steering");
        }
        kill_process(bed.agent.as_ref().unwrap().process().unwrap(), Signal::KILL).unwrap();
        while is_diverted(&bed) {
            assert!(begun.elapsed() < LIMIT, "they are steered for ever");
        }
    });
}

fn a_frozen_socket_is_read_out_exactly_and_the_flow_goes_on() {
    in_namespace_with_tun("a_frozen_socket_is_read_out_exactly_and_the_flow_goes_on", || {
        let mut bed = Bed::new();
        let first = seed(V4);
        let Pair { mut guest, mut kernel } = bed.pair(&first);
        let bytes = pattern(32 << 20);
        // Until the guest's buffer and the sender's are full.
        kernel.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while let Ok(count) = kernel.write(&bytes[sent..]) {
            sent += count;
        }
        guest.write_all(b"hello to the middle").unwrap();
        kernel.set_nonblocking(false).unwrap();
        kernel.read_exact(&mut [0; 6]).unwrap();
        while rustix::io::ioctl_fionread(&kernel) != Ok(13) {
            std::thread::yield_now();
        }
        let kernel = OwnedFd::from(kernel);

        bed.freeze(&kernel).unwrap();
        let out = read_out(kernel.as_fd(), &first).unwrap();
        let (began, stands) = (*first.fields(), *out.seed.fields());
        assert_eq!(out.from_guest, b"to the middle");
        assert_eq!(stands.rcv_nxt, began.rcv_nxt.wrapping_add(19));
        let acknowledged = stands.snd_una.wrapping_sub(began.snd_nxt) as usize;
        assert!(acknowledged < sent, "the guest's buffer is full");
        assert!(out.to_guest == bytes[acknowledged..sent], "every byte that the guest lacks");

        // A frozen socket receives nothing, and the guest's segments come to the TAP again.
        bed.segments_at_tap();
        guest.write_all(b"!").unwrap();
        assert_eq!(poll(&mut [PollFd::new(&bed.tap, PollFlags::IN)], Some(&AT_ONCE)), Ok(1));
        assert!(bed.segments_at_tap() > 0);
        assert_eq!(read_out(kernel.as_fd(), &first).unwrap(), out);

        // The last acknowledgements may have been refused; nothing sent was not.
        let received = rustix::io::ioctl_fionread(&guest).unwrap() as usize;
        let in_flight = stands.flight() as usize;
        assert!((acknowledged..=acknowledged + in_flight).contains(&received));

        // Closed in repair mode it sends nothing: the guest is connected, with the next socket.
        bed.client.release(kernel);
        let next = changed(&out.seed, |fields| {
            fields.snd_nxt = began.snd_nxt.wrapping_add(received as u32);
            fields.snd_una = fields.snd_nxt;
        });
        let mut kernel = stream(bed.make(&next).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                kernel.write_all(&bytes[received..sent]).unwrap();
                let mut mark = [0; 1];
                kernel.read_exact(&mut mark).unwrap();
                assert_eq!(mark, *b"!");
            });
            let mut got = vec![0; sent];
            guest.read_exact(&mut got).unwrap();
            assert!(got == bytes[..sent], "nothing lost, nothing twice");
        });

        // Frozen and thawed it goes on as if nothing had been.
        let frozen = OwnedFd::from(kernel);
        bed.freeze(&frozen).unwrap();
        bed.thaw(&frozen).unwrap();
        let mut kernel = TcpStream::from(frozen);
        transfer(&mut guest, &mut kernel, &bytes[..1 << 20]);
        transfer(&mut kernel, &mut guest, &bytes[..1 << 20]);
    });
}

/// Each FIN that a kernel socket can have while the other stream is open: its numbers are those of the bytes.
fn a_frozen_socket_with_an_ended_stream_is_read_out_without_its_fin() {
    in_namespace_with_tun("a_frozen_socket_with_an_ended_stream_is_read_out_without_its_fin", || {
        let mut bed = Bed::new();
        let ours = |ours| Fins { guest: false, ours };
        let guests = Fins { guest: true, ours: OurFin::None };

        // The guest's, behind bytes that were not read, and read to the end.
        let first = seed(V4);
        let Pair { mut guest, mut kernel } = bed.pair(&first);
        guest.write_all(b"the end").unwrap();
        guest.shutdown(Shutdown::Write).unwrap();
        kernel.read_exact(&mut [0; 4]).unwrap();
        let out = bed.read_out_with(guests, &kernel, &first);
        assert_eq!((&out.from_guest[..], out.to_guest.len()), (&b"end"[..], 0));
        assert_eq!(out.seed.fields().rcv_nxt, first.fields().rcv_nxt.wrapping_add(7));
        let mut rest = Vec::new();
        kernel.read_to_end(&mut rest).unwrap();
        let out = bed.read_out_with(guests, &kernel, &first);
        assert_eq!((rest, out.from_guest.len()), (b"end".to_vec(), 0));
        assert_eq!(out.seed.fields().rcv_nxt, first.fields().rcv_nxt.wrapping_add(7));
        // It goes on with the other stream, whose end is the end.
        kernel.write_all(b"answer").unwrap();
        kernel.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        guest.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"answer");
        let kernel = OwnedFd::from(kernel);
        bed.freeze(&kernel).unwrap();
        assert_eq!(read_out(kernel.as_fd(), &first).unwrap_err(), Errno::NOTCONN);
        bed.thaw(&kernel).unwrap();

        // Ours, acknowledged.
        let first = seed(V6);
        let Pair { mut guest, mut kernel } = bed.pair(&first);
        kernel.write_all(b"all").unwrap();
        kernel.shutdown(Shutdown::Write).unwrap();
        guest.read_to_end(&mut Vec::new()).unwrap();
        let out = bed.read_out_with(ours(OurFin::Acknowledged), &kernel, &first);
        assert_eq!(out.to_guest.len(), 0);
        let sent = first.fields().snd_nxt.wrapping_add(3);
        assert_eq!((out.seed.fields().snd_una, out.seed.fields().snd_nxt), (sent, sent));
        transfer(&mut guest, &mut kernel, b"and the guest's goes on");

        // Behind bytes for which the guest's window has no room.
        let first = changed(&seed(V6), |fields| fields.guest.set_port(40_001));
        let Pair { guest: _guest, mut kernel } = bed.pair(&first);
        kernel.set_nonblocking(true).unwrap();
        let (bytes, mut written) = (pattern(32 << 20), 0);
        while let Ok(count) = kernel.write(&bytes[written..]) {
            written += count;
        }
        kernel.shutdown(Shutdown::Write).unwrap();
        let out = bed.read_out_with(ours(OurFin::Unsent), &kernel, &first);
        let (una, begin) = (out.seed.fields().snd_una, first.fields().snd_nxt);
        let acknowledged = una.wrapping_sub(begin) as usize;
        assert_eq!(acknowledged + out.to_guest.len(), written);
        assert!(out.to_guest == bytes[acknowledged..written], "every byte that the guest lacks");

        // On its way to a guest that does not get it.
        let first = changed(&seed(V4), |fields| fields.guest.set_port(40_001));
        let Pair { guest: _guest, mut kernel } = bed.pair(&first);
        bed.in_guest(|| {
            let down = Command::new("ip").args(["link", "set", "eth0", "down"]).status();
            assert!(down.unwrap().success());
        });
        kernel.write_all(b"lost").unwrap();
        kernel.shutdown(Shutdown::Write).unwrap();
        let out = bed.read_out_with(ours(OurFin::Sent), &kernel, &first);
        assert_eq!(out.to_guest, b"lost");
        assert_eq!((out.seed.fields().snd_una, out.seed.fields().flight()), (first.fields().snd_nxt, 4));
    });
}

fn the_agent_makes_and_touches_nothing_else() {
    in_namespace_with_tun("the_agent_makes_and_touches_nothing_else", || {
        let mut bed = Bed::new();
        let refused = |stage, errno| Err(Refused { stage, errno });
        let foreign = bed.make(&seed(("10.0.2.16:40000", V4.1)));
        assert_eq!(foreign.map(drop), refused(Stage::Request, Errno::ADDRNOTAVAIL));
        let invalid = bed.make(&changed(&seed(V4), |fields| fields.mss = 1));
        assert_eq!(invalid.map(drop), refused(Stage::Request, Errno::INVAL));

        let port = |port: usize| changed(&seed(V4), |fields| fields.guest.set_port(port as u16));
        let pairs: Vec<_> = (0..FLOWS_MAX).map(|n| bed.pair(&port(1024 + n))).collect();
        assert_eq!(bed.make(&port(999)).map(drop), refused(Stage::Number, Errno::NOSPC));
        assert_eq!(bed.freeze(&bed.tap.try_clone().unwrap()), refused(Stage::Request, Errno::NOTSOCK));
        let other = OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap());
        assert_eq!(bed.freeze(&other), refused(Stage::Request, Errno::NOTSOCK));

        // The end of a client frees its 4-tuples, and those alone.
        bed.next_client();
        drop(pairs);
        let Pair { mut guest, mut kernel } = bed.pair(&seed(V4));
        transfer(&mut guest, &mut kernel, &pattern(1 << 20));
    });
}

/// The kernel closes a descriptor that its receiver has no room for.
fn a_socket_that_did_not_reach_its_client_loses_its_place() {
    in_namespace_with_tun("a_socket_that_did_not_reach_its_client_loses_its_place", || {
        let mut bed = Bed::new();
        let port = |port: usize| changed(&seed(V4), |fields| fields.guest.set_port(port as u16));
        let lowest_free = bed.tap.try_clone().unwrap().as_raw_fd();
        let limit = getrlimit(Resource::Nofile);
        let none_left = Rlimit { current: u64::try_from(lowest_free).ok(), ..limit };
        setrlimit(Resource::Nofile, none_left).unwrap();
        for n in 0..FLOWS_MAX {
            let lost = bed.make_only(&port(1024 + n)).map(drop);
            assert_eq!(lost, Err(Refused { stage: Stage::Socket, errno: Errno::MFILE }));
        }
        setrlimit(Resource::Nofile, limit).unwrap();
        let until = Instant::now() + LIMIT;
        while let Err(refused) = bed.make_only(&port(999)) {
            assert_eq!(refused, Refused { stage: Stage::Number, errno: Errno::NOSPC });
            assert!(Instant::now() < until, "no place is free again");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

/// A guest that reads slowly gets all that was sent to it, however many connections want its place.
fn a_released_connection_keeps_its_place_while_the_guest_answers() {
    in_namespace_with_tun("a_released_connection_keeps_its_place_while_the_guest_answers", || {
        let mut bed = Bed::new();
        let port = |port: usize| changed(&seed(V4), |fields| fields.guest.set_port(port as u16));
        let bytes = pattern(32 << 20);
        let slow = [0, 1].map(|n| {
            let Pair { guest, mut kernel } = bed.pair(&port(1024 + n));
            kernel.set_nonblocking(true).unwrap();
            let mut sent = 0;
            while let Ok(count) = kernel.write(&bytes[sent..]) {
                sent += count;
            }
            kernel.shutdown(Shutdown::Write).unwrap();
            bed.client.release(kernel.into());
            (guest, sent)
        });
        let _others: Vec<_> = (2..FLOWS_MAX).map(|n| bed.pair(&port(1024 + n))).collect();
        let full = Err(Refused { stage: Stage::Number, errno: Errno::NOSPC });
        assert_eq!(bed.make(&port(999)).map(drop), full);
        for (mut guest, sent) in slow {
            let mut got = Vec::new();
            guest.read_to_end(&mut got).unwrap();
            assert!(got == bytes[..sent], "other bytes");
        }
        let until = Instant::now() + LIMIT;
        while bed.make(&port(999)).map(drop) == full {
            assert!(Instant::now() < until, "no place is free again");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

/// A crash of a client: the next one goes on with its sockets, in whichever state.
fn a_socket_of_a_client_that_has_ended_goes_on_with_another() {
    in_namespace_with_tun("a_socket_of_a_client_that_has_ended_goes_on_with_another", || {
        let mut bed = Bed::new();
        let Pair { mut guest, mut kernel } = bed.pair(&seed(V4));
        transfer(&mut guest, &mut kernel, &pattern(1000));
        let unstarted = bed.make_only(&seed(V6)).unwrap();
        bed.next_client();
        bed.client.adopt(kernel.as_fd()).unwrap();
        transfer(&mut guest, &mut kernel, &pattern(1 << 20));
        transfer(&mut kernel, &mut guest, &pattern(1 << 20));
        assert_eq!(bed.segments_at_tap(), 0, "it is steered");

        // One that was not started yet has the state of its seed, and cannot be started behind the freeze.
        bed.freeze(&unstarted).unwrap();
        assert_eq!(read_out(unstarted.as_fd(), &seed(V6)).unwrap().seed, seed(V6));
        let refused = |errno| Err(Refused { stage: Stage::Request, errno });
        assert_eq!(bed.start(&unstarted), refused(Errno::ALREADY));
        bed.client.release(unstarted);
        let kernel = OwnedFd::from(kernel);
        assert_eq!(bed.start(&kernel), refused(Errno::ALREADY));
        bed.freeze(&kernel).unwrap();
        let out = read_out(kernel.as_fd(), &seed(V4)).unwrap();
        assert_eq!(out.seed.fields().rcv_nxt, seed(V4).fields().rcv_nxt.wrapping_add(1000 + (1 << 20)));
    });
}

/// The bytes of a request to thaw a socket.
fn thaw_request() -> Vec<u8> {
    let (client, agent) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    PromotionAgent::on(client).unwrap().thaw(1, agent.as_fd()).unwrap();
    let mut bytes = vec![0; 4096];
    let (length, _) =
        rustix::net::recv(&agent, &mut *bytes, rustix::net::RecvFlags::empty()).expect("a request");
    bytes.truncate(length);
    bytes
}

/// Each request has a copy of the client's own end of the channel: the copies that lie in the channel outlive
/// the client.
fn a_client_that_takes_no_answers_does_not_keep_the_agent() {
    in_namespace_with_tun("a_client_that_takes_no_answers_does_not_keep_the_agent", || {
        let mut bed = Bed::new();
        let channel = bed.agent.as_ref().unwrap().another().unwrap();
        rustix::io::ioctl_fionbio(&channel, true).unwrap();
        let request = thaw_request();
        let mut full = 0;
        // Until the channel is closed, or full for good.
        while full < 1000 {
            match fd_passing::send(&channel, &request, &[channel.as_fd()], SendFlags::empty()) {
                Ok(_) => full = 0,
                Err(Errno::AGAIN) => {
                    full += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(_) => break,
            }
        }
        drop(channel);
        // Another client is served as before.
        bed.make(&seed(V4)).expect("a socket");
        let end = bed.agent.take().unwrap().end().expect("a child that has ended");
        assert_eq!(end.exit_status(), Some(0), "not killed: {end:?}");
    });
}

fn a_guest_that_deletes_the_steering_gets_the_flow_at_its_interface() {
    in_namespace_with_tun("a_guest_that_deletes_the_steering_gets_the_flow_at_its_interface", || {
        let mut bed = Bed::new();
        let first = seed(V4);
        let Pair { mut guest, mut kernel } = bed.pair(&first);
        transfer(&mut guest, &mut kernel, b"steered");
        assert_eq!(bed.segments_at_tap(), 0);
        bed.in_guest(|| {
            Nftables::open().unwrap().commit(Batch::new("eth0-bulk").delete_table()).unwrap();
        });
        guest.write_all(b"not any more").unwrap();
        assert_eq!(poll(&mut [PollFd::new(&bed.tap, PollFlags::IN)], Some(&AT_ONCE)), Ok(1));
        assert!(bed.segments_at_tap() > 0);

        // It comes back as any other, and no further one is made.
        let kernel = OwnedFd::from(kernel);
        bed.freeze(&kernel).unwrap();
        let out = read_out(kernel.as_fd(), &first).unwrap();
        assert_eq!(out.seed.fields().rcv_nxt, first.fields().rcv_nxt.wrapping_add(7));
        bed.client.release(kernel);
        let next = bed.make(&seed(V6)).map(drop);
        assert_eq!(next, Err(Refused { stage: Stage::Steering, errno: Errno::NOENT }));
    });
}

fn a_place_that_cannot_be_made_says_which_step_failed() {
    in_namespace_with_tun("a_place_that_cannot_be_made_says_which_step_failed", || {
        let bed = Bed::new();
        let target = Target::process(bed.keeper.id().cast_signed()).unwrap();
        let missing = Interface { name: "eth1".to_owned(), ..interface() };
        let place = Beside { interface: &missing, router_mac: ROUTER_MAC };
        let error = inside(&target, place, Confinement::ON).unwrap().wait().unwrap_err();
        assert_eq!((error.step, error.errno), (Step::Redirect, Errno::NODEV));
        assert_eq!(
            error.to_string(),
            "cannot let eth1 receive frames from beside it (clsact, u32, mirred): sendto RTM_NEWTFILTER: \
             No such device"
        );
    });
}
