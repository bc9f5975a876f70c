//! Bulk flows of a guest's kernel to the host's, through a network that gives them to kernel sockets and
//! takes them back: every byte arrives once and in order, despite all that happens meanwhile.
//!
//! A program of its own, for the reason of `promotion.rs`. Each test has a guest's namespace with a TAP, the
//! agent beside it, and a server on the host's loopback. The bytes of a transfer follow from its number, so
//! each end checks them alone.

use brodo_core::config::{Bulk, BulkBounds, Config};
use brodo_core::counters::Counters;
use brodo_core::flow::end::EndCause;
use brodo_core::flow::info::Carrier;
use brodo_core::time::Duration as CoreDuration;
use brodo_core::wire::ethernet::MacAddr;
use brodo_link::tap::{Tap, Wanted};
use brodo_net::capture::Capture;
use brodo_net::clock::Clock;
use brodo_net::command::{Command as Order, FlowFilter, WorkerReport};
use brodo_net::netlink::template::{InterfaceAddress, Route};
use brodo_net::promotion::client::PromotionAgent;
use brodo_net::{Network, Recording, Running};
use brodo_netns::namespace::{Plan, Target, attach};
use brodo_netns::promotion::{Beside, inside};
use brodo_netns::setup::Interface;
use brodo_sandbox::Confinement;
use brodo_testns::in_namespace_with_tun;
use libtest_mimic::{Arguments, Trial};
use rustix::fd::AsFd;
use rustix::net::{SendFlags, sockopt};
use rustix::process::{Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const ROUTER_MAC: [u8; 6] = [0x52, 0x55, 10, 0, 2, 2];
/// The addresses that stand for the host's loopback.
const HOST: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 2, 4)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 4))];
/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(60);
/// A transfer that lasts until the test has seen what it waits for.
const ENDLESS: u64 = u64::MAX;

const TESTS: [(&str, fn()); 8] = [
    ("bytes_are_exact_while_flows_are_promoted_and_taken_back", toggled),
    ("bytes_are_exact_at_a_small_mtu", toggled_at_a_small_mtu),
    ("a_promoted_flow_is_listed_and_counted", listed_and_counted),
    ("a_guest_that_deletes_the_steering_goes_on_by_its_interface", steering_deleted),
    ("flows_go_on_without_the_agent", agent_killed),
    ("a_capture_takes_its_flows_back", captured),
    ("a_freeze_takes_all_flows_back", frozen),
    ("ends_of_a_promoted_flow_pass_as_they_are", ends),
];

fn main() -> ExitCode {
    let trial = |(name, test): (&'static str, fn())| {
        Trial::test(name, move || {
            in_namespace_with_tun(name, test);
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), TESTS.into_iter().map(trial).collect()).exit_code()
}

/// Each connection that has moved 64 KiB is a candidate, again some milliseconds after a return.
fn eager() -> BulkBounds {
    let ms = CoreDuration::from_millis;
    BulkBounds { bytes: 64 << 10, rate: 0, period: ms(5), wait: ms(5), ..BulkBounds::default() }
}

/// A guest's namespace, kept by a process that sleeps, and the network that serves it.
struct Bed {
    keeper: std::process::Child,
    agent: Option<PromotionAgent>,
    running: Running,
    server: Server,
    /// Causes and bytes from the guest of flows that have ended.
    ended: Arc<Mutex<Vec<(EndCause, u64)>>>,
}

impl Bed {
    fn new(mtu: u16, bulk_bounds: BulkBounds) -> Self {
        // Without the test's output, which is read to its end.
        let mut keeper = Command::new("unshare");
        keeper.args(["-n", "sleep", "600"]).stdout(Stdio::null()).stderr(Stdio::null());
        let keeper = keeper.spawn().unwrap();
        let ours = std::fs::read_link("/proc/self/ns/net").unwrap();
        let theirs = format!("/proc/{}/ns/net", keeper.id());
        while std::fs::read_link(&theirs).is_ok_and(|net| net == ours) {
            thread::yield_now();
        }
        let interface = interface(mtu);
        let target = Target::process(keeper.id().cast_signed()).unwrap();
        let plan = Plan { interface: interface.clone(), offload: Wanted::Everything, queues: 1 };
        let mut made = attach(&plan, &target).unwrap();
        let place = Beside { interface: &interface, router_mac: ROUTER_MAC };
        let agent = inside(&target, place, Confinement::ON).unwrap();
        let client = PromotionAgent::on(agent.another().unwrap()).unwrap();
        set_cubic();
        let defaults = Config::default();
        let mut config = Config {
            mac: MacAddr(ROUTER_MAC),
            guest_mac: Some(MacAddr(interface.mac)),
            mtu,
            bulk: Bulk::Kernel,
            bulk_bounds,
            ..defaults
        };
        let [IpAddr::V4(v4), IpAddr::V6(v6)] = HOST else { unreachable!() };
        config.v4.as_mut().unwrap().host_loopback = Some(v4);
        config.v6.as_mut().unwrap().host_loopback = Some(v6);
        let ended = Arc::new(Mutex::new(Vec::new()));
        let (list, ends) = (ended.clone(), Recording { openings: false, ends: true });
        let network = Network::builder()
            .config(config)
            .promotion([client])
            .on_flow_records(ends, move |records| {
                let of = |end: &brodo_core::flow::end::FlowEnd| (end.cause, end.info.from_guest.bytes);
                list.lock().unwrap().extend(records.ends.iter().map(of));
            })
            .link(Tap::from_fd(made.taps.remove(0), Wanted::Everything).unwrap());
        let running = network.build().unwrap().spawn().unwrap();
        let bed = Self { keeper, agent: Some(agent), running, server: Server::start(), ended };
        bed.in_guest(set_cubic);
        bed
    }

    /// Runs a closure in the guest's network namespace.
    fn in_guest<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let net = File::open(format!("/proc/{}/ns/net", self.keeper.id())).unwrap();
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(net.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                body()
            });
            inside.join().unwrap()
        })
    }

    fn report(&self) -> WorkerReport {
        self.running.handle().reports().unwrap().remove(0)
    }

    fn counters(&self) -> Counters {
        self.report().counters
    }

    /// Waits until the counters are as wanted.
    fn until(&self, what: &str, is: impl Fn(&Counters) -> bool) {
        let until = Instant::now() + LIMIT;
        while !is(&self.counters()) {
            assert!(Instant::now() < until, "{what}: {:?}", self.report());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until a number of flows have a kernel socket.
    fn until_carried(&self, flows: usize) {
        let (until, filter) =
            (Instant::now() + LIMIT, FlowFilter { carrier: Some(Carrier::Kernel), ..FlowFilter::default() });
        loop {
            let carried = self.running.handle().flows(filter).unwrap();
            if carried.len() == flows {
                return;
            }
            assert!(Instant::now() < until, "{flows} flows are carried: {:?}", self.report());
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn end(mut self) {
        let Self { running, keeper, .. } = &mut self;
        assert_eq!(running.handle().reports().unwrap()[0].counters.promotions_broken, 0);
        running.handle().stop();
        let _ = keeper.kill();
        let _ = keeper.wait();
        self.agent = None;
    }
}

fn set_cubic() {
    // Of this thread's namespace. Without the module the default serves.
    let _ = std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "cubic");
}

fn interface(mtu: u16) -> Interface {
    let address = |text: &str, prefix_len| InterfaceAddress { address: text.parse().unwrap(), prefix_len };
    let (name, mac) = ("eth0".to_owned(), [0x52, 0x55, 10, 0, 2, 15]);
    Interface {
        name,
        mac,
        mtu,
        tx_queue_len: 1000,
        addresses: vec![address("10.0.2.15", 24), address("fd00::15", 64)],
        routes: ["10.0.2.2", "fd00::2"].map(|router| Route::default_via(router.parse().unwrap())).to_vec(),
        configured: true,
        best_effort: false,
    }
}

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
fn send(stream: &mut TcpStream, number: u64, bytes: u64, stop: &AtomicBool) -> u64 {
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
fn receive(stream: &mut TcpStream, number: u64) -> u64 {
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
struct Head {
    upload: bool,
    number: u64,
    bytes: u64,
}

impl Head {
    const LEN: usize = 17;

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
struct Server {
    ports: [u16; 2],
    /// Ends downloads without a length.
    stop: Arc<AtomicBool>,
}

impl Server {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ports = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)].map(|address| {
            let listener = TcpListener::bind((address, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            let stop = stop.clone();
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let (mut stream, stop) = (stream.unwrap(), stop.clone());
                    thread::spawn(move || serve(&mut stream, &stop));
                }
            });
            port
        });
        Self { ports, stop }
    }

    fn at(&self, v6: bool) -> SocketAddr {
        SocketAddr::new(HOST[usize::from(v6)], self.ports[usize::from(v6)])
    }
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
fn transfer(at: SocketAddr, head: Head, stop: &AtomicBool) -> u64 {
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

/// One upload and one download without a length, in the guest, while `meanwhile` runs.
fn during_transfers(bed: &Bed, meanwhile: impl FnOnce()) {
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
                    run(2, false);
                    up.join().unwrap();
                });
            });
        });
        // The transfers end, whatever becomes of the test.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
        stop.store(true, Ordering::Relaxed);
        bed.server.stop.store(true, Ordering::Relaxed);
        both.join().unwrap();
        bed.server.stop.store(false, Ordering::Relaxed);
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn toggled() {
    many_transfers(65_520, 160);
}

fn toggled_at_a_small_mtu() {
    many_transfers(1500, 40);
}

/// Transfers, four at a time, while all flows are taken back every 50 ms and may leave again at once. On a
/// busy machine fewer flows leave within a transfer, so there are more of them until enough have left.
fn many_transfers(mtu: u16, count: u64) {
    let bed = Bed::new(mtu, eager());
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
    assert!(bed.ended.lock().unwrap().iter().all(|(cause, _)| *cause == EndCause::Finished));
    bed.end();
}

fn listed_and_counted() {
    let bed = Bed::new(65_520, eager());
    during_transfers(&bed, || bed.until_carried(2));
    bed.until("the ends are recorded", |_| bed.ended.lock().unwrap().len() == 2);
    let counters = bed.counters();
    assert_eq!((counters.promotions_made, counters.promotions_returned), (2, 0));
    let ended = bed.ended.lock().unwrap().clone();
    let from_guest = ended.iter().map(|(_, bytes)| bytes).sum::<u64>();
    assert!(from_guest > 64 << 10, "{ended:?}");
    assert_eq!(bed.report().promotion.map(|promotion| promotion.flows), Some(0));
    bed.end();
}

fn steering_deleted() {
    let bed = Bed::new(65_520, eager());
    during_transfers(&bed, || {
        bed.until_carried(2);
        bed.in_guest(|| {
            use brodo_net::netlink::nftables::{Batch, Nftables};
            Nftables::open().unwrap().commit(Batch::new("eth0-bulk").delete_table()).unwrap();
        });
        bed.until("both come back", |counters| counters.promotions_returned == 2);
        bed.until("a further attempt is refused", |counters| counters.promotions_refused_steering > 0);
    });
    assert!(bed.counters().promotions_recalled_stray > 0);
    bed.end();
}

fn agent_killed() {
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

fn captured() {
    let bed = Bed::new(65_520, eager());
    let capture = |filter: &str| {
        let file = File::options().write(true).open("/dev/null").unwrap();
        let capture = Capture::new(file, "eth0", Clock::start()).unwrap().only(filter.parse().unwrap());
        let start = |reply| Order::StartCapture { capture, reply };
        bed.running.handle().workers().ask(0, start).wait(LIMIT).unwrap();
    };
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

fn frozen() {
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
fn ends() {
    let bed = Bed::new(65_520, eager());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = SocketAddr::new(HOST[0], listener.local_addr().unwrap().port());
    let pair = || {
        let mut guest = bed.in_guest(|| TcpStream::connect_timeout(&at, LIMIT).unwrap());
        let (mut host, _) = listener.accept().unwrap();
        for stream in [&guest, &host] {
            stream.set_read_timeout(Some(LIMIT)).unwrap();
        }
        // Enough for a candidate, over more than a period.
        let until = Instant::now() + LIMIT;
        let carried = FlowFilter { carrier: Some(Carrier::Kernel), ..FlowFilter::default() };
        let mut bytes = vec![7; 64 << 10];
        while bed.running.handle().flows(carried).unwrap().is_empty() {
            assert!(Instant::now() < until, "{:?}", bed.report());
            host.write_all(&bytes).unwrap();
            guest.read_exact(&mut bytes).unwrap();
            guest.write_all(&bytes).unwrap();
            host.read_exact(&mut bytes).unwrap();
        }
        (guest, host)
    };

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
    bed.until("all have ended", |_| bed.ended.lock().unwrap().len() == 4);
    let causes: Vec<_> = bed.ended.lock().unwrap().iter().map(|(cause, _)| *cause).collect();
    assert!(
        causes.contains(&EndCause::ResetByGuest) && causes.contains(&EndCause::ResetByHost),
        "{causes:?}"
    );
    bed.end();
}
