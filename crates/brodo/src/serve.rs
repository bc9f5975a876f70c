//! What `run` and `attach` share: facts about the host before, the workers during, the report after.

use crate::args::NetworkOptions;
use crate::config::{HostFacts, Settings};
use crate::failure::Failure;
use crate::workers::{self, Notices};
use brodo_core::budget::Budget;
use brodo_core::link::Link;
use brodo_core::stack::{Keys, Stack};
use brodo_linux::agent::Agent;
use brodo_linux::capture::Capture;
use brodo_linux::clock::Clock;
use brodo_linux::crew::Crew;
use brodo_linux::driver::Worker;
use brodo_linux::forward::Forwards;
use brodo_linux::host_network::HostNetwork;
use brodo_linux::link::GuestLink;
use brodo_linux::link::tap::{Tap, TapLosses};
use brodo_linux::namespace::{Made, leave_interface};
use brodo_linux::resolv::ResolvConf;
use brodo_linux::ring::RingWatch;
use brodo_linux::setup::SetupError;
use brodo_linux::sockets::{Sockets, raise_nofile};
use brodo_linux::{process, setup};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::rand::{GetRandomFlags, getrandom};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Descriptors that brodo needs for itself, besides one per flow; and those that each worker needs.
const DESCRIPTORS_RESERVED: u64 = 64;
const DESCRIPTORS_PER_WORKER: u64 = 4;

/// Most connections between loopbacks at a time, and the part of all descriptors that they may have: two each, and pipes.
const SPLICES_MAX: u64 = 16_384;
const SPLICES_SHARE: u64 = 16;

/// All that is checked and opened before anything is made.
pub(crate) struct Preparation {
    pub(crate) settings: Settings,
    host: Arc<HostNetwork>,
    ready: Option<OwnedFd>,
    capture: Option<Capture>,
    clock: Clock,
    report: bool,
    quiet: bool,
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
        let network = HostNetwork::new(RESOLV_CONF.into(), host.resolv_conf)
            .map_err(|e| Failure::Io("follow the host's network: rtnetlink".into(), e.into()))?;
        let host = Arc::new(network);
        let clock = Clock::start();
        let capture = options.pcap.as_deref().map(|path| {
            Capture::create(path, &options.ifname, clock)
                .map_err(Failure::io(format!("write the capture {}: open", path.display())))
        });
        let capture = capture.transpose()?;
        Ok(Self { settings, host, ready, capture, clock, report: options.verbose, quiet: options.quiet })
    }

    /// Starts an agent in the guest's namespace, if ports are forwarded. Before there are threads.
    pub(crate) fn agent(
        &self,
        start: impl FnOnce() -> Result<Agent, SetupError>,
    ) -> Result<Option<Agent>, Failure> {
        let wanted = !self.settings.forwards.is_empty();
        Ok(if wanted { Some(start()?) } else { None })
    }

    /// A service for the interface that was made: a worker for each of its queues.
    pub(crate) fn serve(self, made: Made, agent: Option<Agent>) -> Result<Service, Failure> {
        let (guest, forwards) = (self.settings.guest(), self.settings.forwards.clone());
        let Made { taps, watch } = made;
        let ring = RingWatch::new(watch, &self.settings.plan.interface.name)
            .map_err(|e| Failure::Io("watch the network interface: ioctl SIOCGIFINDEX".into(), e.into()))?;
        let ring = Arc::new(ring);
        let count = taps.len() as u32;
        let mut config = self.settings.stack;
        let reserved = DESCRIPTORS_RESERVED + DESCRIPTORS_PER_WORKER * u64::from(count);
        let descriptors = raise_nofile();
        let splices_max = (descriptors / SPLICES_SHARE).min(SPLICES_MAX);
        let for_splices = if forwards.is_empty() { 0 } else { splices_max * 4 };
        let flows_max =
            usize::try_from(descriptors.saturating_sub(reserved + for_splices)).unwrap_or(usize::MAX);
        config.max_flows = (config.max_flows.min(flows_max) / taps.len().max(1)).max(1);
        config.dns_cache /= taps.len().max(1);
        config.rules.workers = count;
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
            worker.follow_host(self.host.clone(), self.settings.follow, number == 0).map_err(epoll_ctl())?;
            workers.push(worker);
        }
        if let Some(first) = workers.first_mut() {
            let bounds = (usize::try_from(descriptors).unwrap_or(usize::MAX), splices_max as usize);
            let ports = Forwards::new(guest, agent, first.sockets(), bounds);
            let mut ports = ports.map_err(Failure::io("wait for ports: epoll_ctl"))?;
            for forward in forwards {
                ports.add(forward).map_err(Failure::Forward)?;
            }
            first.forward(ports);
        }
        let notices = Notices::new(self.quiet, self.report);
        Ok(Service { workers, crew, ring, notices, ready: self.ready, report: self.report })
    }
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
    report: bool,
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
        }
    }

    /// Serves until `check` breaks, which is asked whenever a watched descriptor is readable, or until the guest's
    /// interface is gone (`None`).
    pub(crate) fn run<T>(
        &mut self,
        check: impl FnMut() -> Result<ControlFlow<T>, Failure>,
    ) -> Result<Option<T>, Failure> {
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
        if self.report {
            let mut losses = TapLosses::default();
            self.workers.iter().for_each(|worker| losses.add(worker.link().losses()));
            let mut link = vec![("link_down", losses.down), ("link_refused", losses.refused)];
            let forwards = self.workers.iter().filter_map(Worker::forwards);
            link.extend(forwards.flat_map(|forwards| forwards.counters().named()));
            let (passed, lost) = self.crew.handed_over();
            link.extend([("frames_handed_over", passed), ("frames_handed_lost", lost)]);
            let counters: Vec<_> = self.workers.iter().map(|worker| worker.stack().counters()).collect();
            self.ring.look();
            crate::report::tell(&crate::report::report_all(&counters, self.ring.dropped(), &link));
            let rules = self.workers.iter().map(|worker| worker.stack().rules());
            crate::report::tell(&crate::report::refusals(rules));
        }
    }
}
