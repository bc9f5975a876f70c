//! What `run` and `attach` share: facts about the host before, the workers during, the report after.

use crate::args::NetworkOptions;
use crate::config::{HostFacts, Settings};
use crate::failure::Failure;
use crate::log;
use crate::metrics::{self, Metrics};
use crate::report;
use crate::workers::{self, Notices};
use brodo_core::budget::Budget;
use brodo_core::config::BufferBounds;
use brodo_core::link::Link;
use brodo_core::stack::{Keys, Stack};
use brodo_linux::capture::Capture;
use brodo_linux::clock::Clock;
use brodo_linux::crew::Crew;
use brodo_linux::driver::Worker;
use brodo_linux::link::GuestLink;
use brodo_linux::link::tap::{Tap, TapLosses};
use brodo_linux::namespace::{Made, leave_interface};
use brodo_linux::resolv::{ResolvConf, Watch};
use brodo_linux::ring::RingWatch;
use brodo_linux::sockets::{Sockets, raise_nofile};
use brodo_linux::{process, setup};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Descriptors that brodo needs for itself, besides one per flow; and those that each worker needs.
const DESCRIPTORS_RESERVED: u64 = 61;
const DESCRIPTORS_PER_WORKER: u64 = 4;

/// All that is checked and opened before anything is made.
pub(crate) struct Preparation {
    pub(crate) settings: Settings,
    ready: Option<OwnedFd>,
    capture: Option<Capture>,
    metrics: Option<Metrics>,
    clock: Clock,
}

impl Preparation {
    /// Checks the options and opens what they name.
    pub(crate) fn new(options: &NetworkOptions) -> Result<Self, Failure> {
        // First of all, while no descriptor but the inherited ones is open.
        let ready = options.ready_fd.map(|number| {
            process::inherited(number).map_err(|_| {
                Failure::Usage(format!("--ready-fd {number} is not a descriptor brodo was started with"))
            })
        });
        let ready = ready.transpose()?;
        let host = HostFacts {
            ipv6: setup::ipv6_available(),
            // Without a file there is no resolver to ask; everything else works.
            resolv_conf: ResolvConf::read(Path::new(RESOLV_CONF)).unwrap_or_default(),
        };
        let settings = Settings::new(options, &host).map_err(Failure::Usage)?;
        if let Some(path) = &options.config {
            log::info("read options from a file", &[("file", path.display().to_string().into())]);
        }
        let clock = Clock::start();
        let capture = options.pcap.as_deref().map(|path| {
            Capture::create(path, &options.ifname, clock)
                .map_err(Failure::io(format!("write the capture {}: open", path.display())))
        });
        let capture = capture.transpose()?;
        if let Some(path) = &options.pcap {
            log::info("every frame goes to a capture", &[("file", path.display().to_string().into())]);
        }
        let metrics = options.metrics.as_ref().map(Metrics::bind).transpose()?;
        Ok(Self { settings, ready, capture, metrics, clock })
    }

    /// A service for the interface that was made: a worker for each of its queues.
    pub(crate) fn serve(self, made: Made) -> Result<Service, Failure> {
        let Made { taps, watch } = made;
        let ring = RingWatch::new(watch, &self.settings.plan.interface.name)
            .map_err(|e| Failure::Io("watch the network interface: ioctl SIOCGIFINDEX".into(), e.into()))?;
        let ring = Arc::new(ring);
        let count = taps.len() as u32;
        let mut config = self.settings.stack.clone();
        let reserved = DESCRIPTORS_RESERVED + DESCRIPTORS_PER_WORKER * u64::from(count);
        let flows_max = usize::try_from(raise_nofile().saturating_sub(reserved)).unwrap_or(usize::MAX);
        config.max_flows = (config.max_flows.min(flows_max) / taps.len().max(1)).max(1);
        tell_of(&self.settings, config.max_flows * taps.len());
        let budget = Arc::new(Budget::new(config.memory));
        let crew = Arc::new(Crew::new(count).map_err(Failure::io("wake workers: eventfd"))?);
        let mut workers = Vec::with_capacity(taps.len());
        for (number, tap) in (0..).zip(taps) {
            let link = Tap::from_fd(tap, self.settings.plan.offload).map_err(Failure::Tap)?;
            let stack = Stack::sharing(config.clone(), keys()?, link.caps(), budget.clone(), number);
            let sockets = Sockets::new().map_err(Failure::io("wait for sockets: epoll_create1"))?;
            let epoll_ctl = || Failure::io("wait for the network interface: epoll_ctl");
            let mut worker = Worker::new(stack, link, sockets, self.clock).map_err(epoll_ctl())?;
            worker.busy_poll(self.settings.busy_poll);
            // The first one watches it for all.
            worker.follow_ring(ring.clone(), number == 0).map_err(epoll_ctl())?;
            worker.join(crew.clone(), number).map_err(epoll_ctl())?;
            if let Some(capture) = &self.capture {
                worker.capture(capture.clone());
            }
            if self.settings.follow_resolvers {
                worker.follow_resolvers(Watch::new(RESOLV_CONF.into()));
            }
            workers.push(worker);
        }
        let notices = Notices::default();
        Ok(Service { workers, crew, ring, notices, ready: self.ready, metrics: self.metrics, serving: None })
    }
}

/// Tells what was made and what it is served with.
fn tell_of(settings: &Settings, max_flows: usize) {
    let texts = |list: Vec<String>| Value::from(list);
    let (stack, interface) = (&settings.stack, &settings.plan.interface);
    let v4 = stack.v4.map(|net| (format!("{}/{}", net.guest, net.prefix_len), net.gateway.to_string()));
    let v6 = stack.v6.map(|net| (format!("{}/{}", net.guest, net.prefix_len), net.gateway.to_string()));
    let (addresses, gateways) = v4.into_iter().chain(v6).unzip();
    log::info(
        "made the guest's interface",
        &[
            ("interface", interface.name.as_str().into()),
            ("addresses", texts(addresses)),
            ("gateways", texts(gateways)),
            ("mtu", interface.mtu.into()),
        ],
    );
    log::info(
        "answering for names",
        &[
            ("at", texts(settings.dns.iter().map(ToString::to_string).collect())),
            ("resolvers", texts(stack.resolvers.iter().map(ToString::to_string).collect())),
            ("search", texts(stack.search.clone())),
        ],
    );
    log::info(
        "serving the network",
        &[
            ("flows at most", max_flows.into()),
            ("bytes of memory", stack.memory.into()),
            ("workers", settings.plan.queues.into()),
        ],
    );
    let mac = |octets: [u8; 6]| octets.map(|octet| format!("{octet:02x}")).join(":");
    let bounds = |bounds: BufferBounds| format!("{}..{}", bounds.initial, bounds.max);
    log::debug(
        "details of these",
        &[
            ("guest's mac", mac(interface.mac).into()),
            ("brodo's mac", mac(stack.mac.0).into()),
            ("tx-queue-len", interface.tx_queue_len.into()),
            ("offload", format!("{:?}", settings.plan.offload).into()),
            ("tcp-rx-buffer", bounds(stack.tcp_rx).into()),
            ("tcp-tx-buffer", bounds(stack.tcp_tx).into()),
            ("tcp-tuning", format!("{:?}", stack.tcp_tuning).into()),
            ("resolvers are followed", settings.follow_resolvers.into()),
        ],
    );
}

/// Fresh keys for the flow table and for sequence numbers.
fn keys() -> Result<Keys, Failure> {
    let mut keys = Keys { table: [0; 16], isn: [0; 16] };
    for key in [&mut keys.table, &mut keys.isn] {
        // At most 256 bytes are given whole or not at all.
        getrandom(&mut key[..], GetRandomFlags::empty())
            .map_err(|errno| Failure::Io("draw random keys: getrandom".into(), errno.into()))?;
    }
    Ok(keys)
}

/// A network that is being served.
pub(crate) struct Service {
    workers: Vec<Worker<Tap>>,
    crew: Arc<Crew>,
    ring: Arc<RingWatch>,
    notices: Notices,
    ready: Option<OwnedFd>,
    metrics: Option<Metrics>,
    serving: Option<metrics::Serving>,
}

impl Service {
    /// Asks to be called back by [`Service::run`] when `descriptor` is readable.
    pub(crate) fn watch(&mut self, descriptor: BorrowedFd<'_>) -> Result<(), Failure> {
        let watched = self.workers.first_mut().map_or(Ok(()), |worker| worker.watch(descriptor.as_fd(), 0));
        watched.map_err(Failure::io("wait for the guest: epoll_ctl"))
    }

    /// Tells whoever waits for it that the network is there.
    pub(crate) fn announce(&mut self) {
        if let Some(ready) = self.ready.take() {
            // If nobody listens any more nobody needs to know.
            let _ = rustix::io::write(ready, b"\n");
            log::debug("told the given descriptor that the network is there", &[]);
        }
    }

    /// Serves until `check` breaks, which is asked whenever a watched descriptor is readable, or until the guest's
    /// interface is gone (`None`).
    pub(crate) fn run<T>(
        &mut self,
        check: impl FnMut() -> Result<ControlFlow<T>, Failure>,
    ) -> Result<Option<T>, Failure> {
        // Not before: who forks must be alone.
        if let Some(metrics) = self.metrics.take() {
            self.serving = Some(metrics.start(self.crew.clone(), self.ring.clone())?);
        }
        workers::run(&mut self.workers, &self.crew, &self.notices, check)
    }

    /// To be called when the command is done whose namespace was made for this service.
    pub(crate) fn leave_interface(&self) {
        if let Some(worker) = self.workers.first() {
            leave_interface(worker.link().descriptor());
        }
    }
}

impl Drop for Service {
    /// Prints the counters if they were asked for, however the service ended.
    fn drop(&mut self) {
        let mut losses = TapLosses::default();
        self.workers.iter().for_each(|worker| losses.add(worker.link().losses()));
        let link = [("link_down", losses.down), ("link_refused", losses.refused)];
        let counters: Vec<_> = self.workers.iter().map(|worker| worker.stack().counters()).collect();
        self.ring.look();
        let dropped = self.ring.dropped();
        let text = || report::report_all(&counters, dropped, &link);
        log::report("what was counted", text, || report::fields(&counters, dropped, &link));
    }
}
