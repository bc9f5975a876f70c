//! A guest's namespace, the network that serves it, and the agent that makes kernel sockets for bulk flows.

use crate::transfer::{Server, there_and_back};
use brodo_core::config::{Bulk, BulkBounds, Config};
use brodo_core::counters::Counters;
use brodo_core::flow::end::{EndCause, FlowEnd};
use brodo_core::flow::info::Carrier;
use brodo_core::time::Duration as CoreDuration;
use brodo_core::wire::ethernet::MacAddr;
use brodo_link::tap::{Tap, Wanted};
use brodo_net::command::{FlowFilter, WorkerReport};
use brodo_net::netlink::template::{InterfaceAddress, Route};
use brodo_net::promotion::client::PromotionAgent;
use brodo_net::{Network, Recording, Running};
use brodo_netns::namespace::{Plan, Target, attach};
use brodo_netns::promotion::{Beside, inside};
use brodo_netns::setup::{Interface, SetupError};
use brodo_sandbox::Confinement;
use rustix::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const ROUTER_MAC: [u8; 6] = [0x52, 0x55, 10, 0, 2, 2];
/// The addresses that stand for the host's loopback.
pub(crate) const HOST: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 2, 4)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 4))];
/// Flows that a kernel socket moves.
pub(crate) const CARRIED: FlowFilter =
    FlowFilter { protocol: None, carrier: Some(Carrier::Kernel), address: None, port: None };
/// Longest wait for anything.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// Each connection that has moved 64 KiB is a candidate, again some milliseconds after a return.
pub(crate) fn eager() -> BulkBounds {
    let ms = CoreDuration::from_millis;
    BulkBounds { bytes: 64 << 10, rate: 0, period: ms(5), wait: ms(5), ..BulkBounds::default() }
}

/// Settings of a network, and circumstances of its agent.
pub(crate) struct Circumstances {
    pub(crate) mtu: u16,
    pub(crate) bulk_bounds: BulkBounds,
    pub(crate) workers: u32,
    /// Bytes of payload memory.
    pub(crate) memory: usize,
    /// Runs before there is an agent, with the process that keeps the guest's namespace.
    pub(crate) before: fn(u32),
    /// Says whether there is to be an agent.
    pub(crate) agent: fn(Result<PromotionAgent, SetupError>) -> Option<PromotionAgent>,
    /// The end of a channel that a worker gets, for that of the agent's.
    pub(crate) channel: Box<dyn Fn(OwnedFd) -> OwnedFd>,
}

impl Default for Circumstances {
    fn default() -> Self {
        Self {
            mtu: 65_520,
            bulk_bounds: eager(),
            workers: 1,
            memory: Config::default().memory,
            before: |_| {},
            agent: |agent| Some(agent.unwrap()),
            channel: Box::new(|channel| channel),
        }
    }
}

/// A guest's namespace, kept by a process that sleeps, and the network that serves it.
pub(crate) struct Bed {
    keeper: Child,
    pub(crate) agent: Option<PromotionAgent>,
    /// The workers' ends of their channels to it: copies, and the numbers of those in use.
    pub(crate) channels: Vec<(OwnedFd, RawFd)>,
    pub(crate) running: Running,
    pub(crate) server: Server,
    /// Flows that have ended.
    pub(crate) ended: Arc<Mutex<Vec<FlowEnd>>>,
}

impl Bed {
    pub(crate) fn new(mtu: u16, bulk_bounds: BulkBounds) -> Self {
        Self::under(Circumstances { mtu, bulk_bounds, ..Circumstances::default() })
    }

    pub(crate) fn under(circumstances: Circumstances) -> Self {
        let Circumstances { mtu, bulk_bounds, workers, memory, before, agent, channel } = circumstances;
        let keeper = namespace();
        let interface = interface(mtu);
        let target = Target::process(keeper.id().cast_signed()).unwrap();
        let plan = Plan { interface: interface.clone(), offload: Wanted::Everything, queues: workers };
        let made = attach(&plan, &target).unwrap();
        let place = Beside { interface: &interface, router_mac: ROUTER_MAC };
        before(keeper.id());
        let agent = agent(inside(&target, place, Confinement::ON).unwrap().wait());
        let another = |agent: &PromotionAgent| channel(agent.another().unwrap());
        let theirs = agent.iter().flat_map(|agent| (0..workers).map(|_| another(agent)));
        let (channels, clients): (Vec<_>, Vec<_>) = theirs.map(client).unzip();
        let tap = |queue| Tap::from_fd(queue, Wanted::Everything).unwrap();
        set_cubic();
        let defaults = Config::default();
        let mut config = Config {
            mac: MacAddr(ROUTER_MAC),
            guest_mac: Some(MacAddr(interface.mac)),
            mtu,
            bulk: Bulk::Kernel,
            bulk_bounds,
            memory,
            ..defaults
        };
        let [IpAddr::V4(v4), IpAddr::V6(v6)] = HOST else { unreachable!() };
        config.v4.as_mut().unwrap().host_loopback = Some(v4);
        config.v6.as_mut().unwrap().host_loopback = Some(v6);
        let ended = Arc::new(Mutex::new(Vec::new()));
        let (list, ends) = (ended.clone(), Recording { openings: false, ends: true });
        let network = Network::builder()
            .config(config)
            .promotion(clients)
            .on_flow_records(ends, move |records| {
                list.lock().unwrap().extend(records.ends);
            })
            .links(made.taps.into_iter().map(tap));
        let running = network.build().unwrap().spawn().unwrap();
        let bed = Self { keeper, agent, channels, running, server: Server::start(), ended };
        bed.in_guest(set_cubic);
        bed
    }

    /// Runs a closure in the guest's network namespace.
    pub(crate) fn in_guest<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        inside_of(self.keeper.id(), body)
    }

    /// Report of the first worker.
    pub(crate) fn report(&self) -> WorkerReport {
        self.running.handle().reports().unwrap().remove(0)
    }

    /// Counters of all workers.
    pub(crate) fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.running.handle().reports().unwrap().iter().for_each(|report| sum.add(&report.counters));
        sum
    }

    /// Causes of the ends of all flows that have ended.
    pub(crate) fn causes(&self) -> Vec<EndCause> {
        self.ended.lock().unwrap().iter().map(|end| end.cause).collect()
    }

    /// A connection of the guest's to a host's program, and its other end.
    pub(crate) fn pair(&self, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let at = SocketAddr::new(HOST[0], listener.local_addr().unwrap().port());
        let guest = self.in_guest(|| TcpStream::connect_timeout(&at, LIMIT).unwrap());
        let (host, _) = listener.accept().unwrap();
        for stream in [&guest, &host] {
            stream.set_read_timeout(Some(LIMIT)).unwrap();
        }
        (guest, host)
    }

    /// The same, which a kernel socket moves.
    pub(crate) fn promoted_pair(&self, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let (mut guest, mut host) = self.pair(listener);
        self.promote(&mut guest, &mut host);
        (guest, host)
    }

    /// Sends bytes both ways until a kernel socket moves the connection; their number, of each way.
    pub(crate) fn promote(&self, guest: &mut TcpStream, host: &mut TcpStream) -> u64 {
        // Enough for a candidate, over more than a period.
        let until = Instant::now() + LIMIT;
        let (mut bytes, mut moved) = (vec![7; 64 << 10], 0);
        while self.running.handle().flows(CARRIED).unwrap().is_empty() {
            assert!(Instant::now() < until, "{:?}", self.report());
            there_and_back(guest, host, &mut bytes);
            moved += bytes.len() as u64;
        }
        moved
    }

    /// Waits until the counters are as wanted.
    pub(crate) fn until(&self, what: &str, is: impl Fn(&Counters) -> bool) {
        let until = Instant::now() + LIMIT;
        while !is(&self.counters()) {
            assert!(Instant::now() < until, "{what}: {:?}", self.report());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until a number of flows have a kernel socket.
    pub(crate) fn until_carried(&self, flows: usize) {
        let until = Instant::now() + LIMIT;
        loop {
            let carried = self.running.handle().flows(CARRIED).unwrap();
            if carried.len() == flows {
                return;
            }
            assert!(Instant::now() < until, "{flows} flows are carried: {:?}", self.report());
            thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn end(mut self) {
        let Self { running, keeper, .. } = &mut self;
        let reports = running.handle().reports().unwrap();
        assert!(reports.iter().all(|report| report.counters.promotions_broken == 0), "{reports:?}");
        running.handle().stop();
        let _ = keeper.kill();
        let _ = keeper.wait();
        self.agent = None;
    }
}

/// A worker's client of the agent, and what a test keeps of its channel.
fn client(channel: OwnedFd) -> ((OwnedFd, RawFd), PromotionAgent) {
    let copy = channel.try_clone().unwrap();
    let client = PromotionAgent::on(channel).unwrap();
    let number = client.descriptor().as_raw_fd();
    ((copy, number), client)
}

/// A process that sleeps in a network namespace of its own.
pub(crate) fn namespace() -> Child {
    // Without the test's output, which is read to its end.
    let mut keeper = Command::new("unshare");
    keeper.args(["-n", "sleep", "600"]).stdout(Stdio::null()).stderr(Stdio::null());
    let keeper = keeper.spawn().unwrap();
    let ours = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let theirs = format!("/proc/{}/ns/net", keeper.id());
    while std::fs::read_link(&theirs).is_ok_and(|net| net == ours) {
        thread::yield_now();
    }
    keeper
}

/// Runs a closure in the network namespace of a process.
pub(crate) fn inside_of<T: Send>(process: u32, body: impl FnOnce() -> T + Send) -> T {
    let net = File::open(format!("/proc/{process}/ns/net")).unwrap();
    thread::scope(|scope| {
        let inside = scope.spawn(|| {
            move_into_link_name_space(net.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            body()
        });
        inside.join().unwrap()
    })
}

pub(crate) fn set_cubic() {
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
