//! Service of a guest, for `run` and `attach`: properties of the host before, the workers during, the report
//! after.

use crate::args::NetworkOptions;
use crate::config::{HostFacts, Settings};
use crate::control::{Control, Controlled, FirstCapture, InstanceInfo, SocketPath};
use crate::descriptors::{Descriptors, Needs};
use crate::event_bus::{Batch, EventBus, Item, Mailbox};
use crate::failure::Failure;
use crate::flow_log::{Files, FlowLog};
use crate::flow_messages::Bounds;
use crate::log;
use crate::metrics::{self, Metrics};
use crate::report;
use crate::unix_listener::PrivateListener;
use crate::workers::{self, Notices};
use brodo_control::method::GuestNetwork;
use brodo_core::config::{BufferBounds, Config};
use brodo_core::link::Link;
use brodo_core::memory::budget::Budget;
use brodo_core::stack::{Keys, Stack};
use brodo_link::tap::{Tap, TapLosses};
use brodo_net::capture::Capture;
use brodo_net::clock::Clock;
use brodo_net::driver::{Parts, Worker};
use brodo_net::forward::Forwards;
use brodo_net::host_network::HostNetwork;
use brodo_net::resolv::ResolvConf;
use brodo_net::socket_broker::SocketBroker;
use brodo_net::sockets::{Sockets, raise_nofile};
use brodo_net::txqueuelen::TxQueueLenWatch;
use brodo_net::workers::{WorkerHandle, Workers};
use brodo_netns::namespace::{Made, leave_interface};
use brodo_netns::setup::SetupError;
use brodo_netns::{process, setup};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Resource, getrlimit};
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Options checked and files opened, before namespaces and interfaces are made.
pub(crate) struct Preparation {
    pub(crate) settings: Settings,
    host: Arc<HostNetwork>,
    ready: Option<OwnedFd>,
    capture: Option<FirstCapture>,
    flow_log: Option<Files>,
    metrics: Option<Metrics>,
    control: SocketPath,
    needs: Needs,
    clock: Clock,
}

/// The purpose of the instance, for its status.
pub(crate) struct Purpose {
    /// The name of the command.
    pub(crate) command: &'static str,
    /// The command line that runs, or the namespace.
    pub(crate) target: String,
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
        // Before anything is written.
        process::block_file_size_signal()?;
        let host = HostFacts {
            ipv6: setup::ipv6_available(),
            // Without a file there is no resolver to ask; everything else works.
            resolv_conf: ResolvConf::read(Path::new(RESOLV_CONF)).unwrap_or_default(),
        };
        let settings = Settings::new(options, &host).map_err(Failure::Usage)?;
        // The hard limit: raised only when the command has been started, which is to have its own.
        let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let needs = Needs {
            workers: settings.plan.queues.into(),
            metrics_clients: if options.metrics.is_some() { metrics::CLIENTS_MAX as u64 } else { 0 },
            forwards: !settings.forwards.is_empty(),
        };
        Descriptors::divide(limit, needs).check(needs.workers, options.max_flows)?;
        if let Some(path) = &options.config {
            log::info("read options from a file", &[("file", path.display().to_string().into())]);
        }
        let network = HostNetwork::new(RESOLV_CONF.into(), host.resolv_conf)
            .map_err(|e| Failure::Io("follow the host's network: rtnetlink".into(), e.into()))?;
        let host = Arc::new(network);
        let clock = Clock::start();
        let capture = options.pcap.as_deref().map(|path| {
            let capture = Capture::create(path, &options.ifname, clock)
                .map_err(Failure::io(format!("write the capture {}: open", path.display())))?;
            let file = std::path::absolute(path).unwrap_or_else(|_| path.into());
            Ok::<_, Failure>(FirstCapture { file, capture })
        });
        let capture = capture.transpose()?;
        let flow_log = options.flow_log.as_deref().map(|path| {
            Files::open(path, options.flow_log_size(), options.flow_log_keep())
                .map_err(Failure::io(format!("write the flow log {}: open", path.display())))
        });
        let flow_log = flow_log.transpose()?;
        let metrics = options.metrics.as_ref().map(Metrics::bind).transpose()?;
        let files = [("capture", &options.pcap), ("flow log", &options.flow_log)];
        for (what, path) in files.iter().filter_map(|(what, path)| Some((what, path.as_ref()?))) {
            log::info(&format!("writing a {what}"), &[("file", path.display().to_string().into())]);
        }
        let control = SocketPath::of(options.control.as_deref());
        Ok(Self { settings, host, ready, capture, flow_log, metrics, control, needs, clock })
    }

    /// Starts a broker in the guest's namespace, if ports are forwarded now or may be later. Before there are
    /// threads.
    pub(crate) fn broker(
        &self,
        start: impl FnOnce() -> Result<SocketBroker, SetupError>,
    ) -> Result<Option<SocketBroker>, Failure> {
        if !self.settings.forwards.is_empty() {
            return Ok(Some(start()?));
        }
        if self.control == SocketPath::None {
            return Ok(None);
        }
        let unneeded = |error: SetupError| {
            log::info(
                "no sockets can be opened in the guest's namespace",
                &[("error", error.to_string().into())],
            );
        };
        Ok(start().map_err(unneeded).ok())
    }

    /// A service for the interface that was made: a worker for each of its queues.
    pub(crate) fn serve(
        self,
        made: Made,
        mut broker: Option<SocketBroker>,
        purpose: Purpose,
    ) -> Result<Service, Failure> {
        let Made { taps, watch } = made;
        let listener = self.listen()?;
        let clients = listener.is_some().then(Mailbox::with_waker).transpose();
        let clients = clients.map_err(Failure::io("serve the control socket: eventfd"))?.map(Arc::new);
        let log = self.flow_log.is_some().then(|| Arc::new(Mailbox::new()));
        let bus = EventBus::new(self.clock).with_log(log.clone()).with_clients(clients.clone());
        let bus = Arc::new(bus);
        let ring = TxQueueLenWatch::new(watch, &self.settings.plan.interface.name)
            .map_err(|e| Failure::Io("watch the network interface: ioctl SIOCGIFINDEX".into(), e.into()))?;
        let ring = Arc::new(ring);
        let count = taps.len() as u32;
        let mut config = self.settings.stack.clone();
        let interface = self.settings.plan.interface.name.clone();
        let descriptors = Descriptors::divide(raise_nofile(), self.needs);
        let splices_max = descriptors.splices_max;
        let flows_max = usize::try_from(descriptors.flows_max).unwrap_or(usize::MAX);
        config.max_flows = (config.max_flows.min(flows_max) / taps.len().max(1)).max(1);
        config.dns_cache /= taps.len().max(1);
        config.rules.workers = count;
        log_setup(&self.settings, config.max_flows * taps.len());
        let budget = Arc::new(Budget::new(config.memory));
        let workers = Arc::new(Workers::new(count).map_err(Failure::io("wake workers: eventfd"))?);
        let mut loops = Vec::with_capacity(taps.len());
        for (number, tap) in (0..).zip(taps) {
            let link = Tap::from_fd(tap, self.settings.plan.offload).map_err(Failure::Tap)?;
            let mut stack = Stack::sharing(config.clone(), keys()?, link.caps(), budget.clone(), number);
            stack.record_ends(bus.keeps_log());
            let sockets = Sockets::new().map_err(Failure::io("wait for sockets: epoll_create1"))?;
            let handle = WorkerHandle::new(workers.clone(), number).map_err(Failure::io("start a worker"))?;
            let mut parts = Parts::new(stack, link, sockets, self.clock, handle);
            parts.busy_poll = self.settings.busy_poll;
            parts.txqueuelen = Some(ring.clone());
            parts.capture = self.capture.as_ref().map(|first| first.capture.clone());
            parts.host_network = Some((self.host.clone(), self.settings.follow));
            let to = bus.clone();
            parts.listener = Some(Box::new(move |stack| to.take(number, stack)));
            if number == 0 {
                let limit = usize::try_from(descriptors.limit).unwrap_or(usize::MAX);
                let bounds = (limit, splices_max as usize);
                parts.forwards = Some(self.forwards(broker.take(), &parts.sockets, bounds)?);
            }
            loops.push(Worker::new(parts).map_err(Failure::io("wait for the network interface: epoll_ctl"))?);
        }
        let flow_log = self.flow_log.zip(log).map(|(files, log)| FlowLog::start(files, log, bus.clone()));
        let flow_log = flow_log.transpose().map_err(Failure::io("write the flow log: clone"))?;
        let control = listener.zip(clients).map(|(listener, mailbox)| {
            let controlled = Controlled {
                workers: workers.clone(),
                ring: Some(ring.clone()),
                bus: bus.clone(),
                mailbox,
                info: instance_info(purpose, interface, &config, count),
                started: Instant::now(),
                capture: self.capture,
            };
            Control::start(listener, controlled)
        });
        let control = control.transpose().map_err(Failure::io("serve the control socket: clone"))?;
        let notices = Notices::new(bus.clone());
        let Self { ready, metrics, clock, .. } = self;
        Ok(Service { loops, workers, ring, notices, ready, metrics, serving: None, control, flow_log, clock })
    }

    /// The forwarded ports, for the worker that has these sockets. `bounds` are descriptors and splices.
    fn forwards(
        &self,
        broker: Option<SocketBroker>,
        sockets: &Sockets,
        bounds: (usize, usize),
    ) -> Result<Forwards, Failure> {
        let forwards = Forwards::new(self.settings.guest(), broker, sockets, bounds);
        let mut forwards = forwards.map_err(Failure::io("wait for ports: epoll_ctl"))?;
        if let Some(metrics) = &self.metrics {
            forwards.leave_out(metrics);
        }
        for forward in self.settings.forwards.clone() {
            let option = brodo_net::forward::option(forward.direction, forward.transport);
            log::info("forwarding ports", &[(option, forward.spec.to_string().into())]);
            forwards.add(forward).map_err(Failure::Forward)?;
        }
        Ok(forwards)
    }

    /// The control socket. Without `--control PATH` a failure is only logged.
    fn listen(&self) -> Result<Option<PrivateListener>, Failure> {
        match (self.control.listen(), &self.control) {
            (Ok(listener), _) => Ok(listener),
            (Err(error), SocketPath::Given(path)) => {
                Err(Failure::Io(format!("listen on the control socket {}: bind", path.display()), error))
            }
            (Err(error), _) => {
                log::info(&format!("there is no control socket: {error}"), &[]);
                Ok(None)
            }
        }
    }
}

/// Properties of the instance for the control socket.
fn instance_info(purpose: Purpose, interface: String, config: &Config, workers: u32) -> InstanceInfo {
    let v4 = config.v4.map(|net| GuestNetwork {
        address: net.guest.into(),
        prefix_len: net.prefix_len,
        gateway: net.gateway.into(),
        dns: net.dns.into(),
        host_loopback: net.host_loopback.map(Into::into),
    });
    let v6 = config.v6.map(|net| GuestNetwork {
        address: net.guest.into(),
        prefix_len: net.prefix_len,
        gateway: net.gateway.into(),
        dns: net.dns.into(),
        host_loopback: net.host_loopback.map(Into::into),
    });
    InstanceInfo {
        command: purpose.command,
        target: purpose.target,
        interface,
        mtu: config.mtu,
        networks: v4.into_iter().chain(v6).collect(),
        memory: config.memory,
        flows_max: config.max_flows as u64 * u64::from(workers),
        bounds: Bounds::of(config),
    }
}

/// Logs the set-up.
fn log_setup(settings: &Settings, max_flows: usize) {
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
        "serving DNS",
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
        "details of the set-up",
        &[
            ("guest's mac", mac(interface.mac).into()),
            ("brodo's mac", mac(stack.mac.0).into()),
            ("tx-queue-len", interface.tx_queue_len.into()),
            ("offload", format!("{:?}", settings.plan.offload).into()),
            ("tcp-rx-buffer", bounds(stack.tcp_rx).into()),
            ("tcp-tx-buffer", bounds(stack.tcp_tx).into()),
            ("resolvers are followed", settings.follow.resolvers.into()),
        ],
    );
}

/// Fresh keys for the flow table, for sequence numbers and for DNS queries.
fn keys() -> Result<Keys, Failure> {
    let mut keys = Keys { table: [0; 16], isn: [0; 16], dns: [0; 16] };
    for key in [&mut keys.table, &mut keys.isn, &mut keys.dns] {
        // At most 256 bytes are given whole or not at all.
        getrandom(&mut key[..], GetRandomFlags::empty())
            .map_err(|errno| Failure::Io("draw random keys: getrandom".into(), errno.into()))?;
    }
    Ok(keys)
}

/// A network that is being served.
pub(crate) struct Service {
    loops: Vec<Worker<Tap>>,
    workers: Arc<Workers>,
    ring: Arc<TxQueueLenWatch>,
    notices: Notices,
    ready: Option<OwnedFd>,
    metrics: Option<Metrics>,
    serving: Option<metrics::Serving>,
    control: Option<Control>,
    flow_log: Option<FlowLog>,
    clock: Clock,
}

impl Service {
    /// Asks to be called back by [`Service::run`] when `descriptor` is readable.
    pub(crate) fn watch(&mut self, descriptor: BorrowedFd<'_>) -> Result<(), Failure> {
        let watched = self.loops.first_mut().map_or(Ok(()), |worker| worker.watch(descriptor.as_fd(), 0));
        watched.map_err(Failure::io("wait for the guest: epoll_ctl"))
    }

    /// Readiness: writes to `--ready-fd`.
    pub(crate) fn announce(&mut self) {
        if let Some(ready) = self.ready.take() {
            // An error: the reader has gone.
            let _ = rustix::io::write(ready, b"\n");
            log::debug("wrote to the readiness descriptor", &[]);
        }
    }

    /// Serves until `check` breaks, which is asked whenever a watched descriptor is readable, or until the
    /// guest's interface is gone (`None`).
    pub(crate) fn run<T>(
        &mut self,
        check: impl FnMut() -> Result<ControlFlow<T>, Failure>,
    ) -> Result<Option<T>, Failure> {
        // Not before the last fork, which needs a process of one thread.
        if let Some(metrics) = self.metrics.take() {
            self.serving = Some(metrics.start(self.workers.clone(), self.ring.clone())?);
        }
        workers::run(&mut self.loops, &self.workers, &self.notices, check)
    }

    /// To be called when the command is done whose namespace was made for this service.
    pub(crate) fn leave_interface(&self) {
        if let Some(worker) = self.loops.first() {
            leave_interface(worker.link());
        }
    }
}

impl Service {
    /// The ends of all flows that are still open.
    fn last_ends(&self) -> Vec<Item> {
        let now = self.clock.now();
        let of_worker = |(worker, of): (u32, &Worker<Tap>)| {
            let ends = of.stack().ends_at_shutdown(now).collect();
            Item::Batch(Arc::new(Batch { worker, ends, ..Batch::default() }))
        };
        (0..).zip(&self.loops).map(of_worker).collect()
    }
}

impl Drop for Service {
    /// Ends what goes with the service, however it ended: writes capture and flow log to their ends, and
    /// prints the counters if they were asked for.
    fn drop(&mut self) {
        drop(self.control.take());
        for error in self.loops.iter_mut().filter_map(Worker::finish_capture) {
            self.notices.capture_failed(&error);
        }
        if let Some(log) = self.flow_log.take() {
            log.finish(self.last_ends());
        }
        let mut losses = TapLosses::default();
        self.loops.iter().for_each(|worker| losses.add(worker.link().losses()));
        let mut link = vec![("link_down", losses.down), ("link_refused", losses.refused)];
        let forwards = self.loops.iter().filter_map(Worker::forwards);
        link.extend(forwards.flat_map(|forwards| forwards.counters().named()));
        let (passed, lost) = self.workers.resteered();
        link.extend([("frames_resteered", passed), ("frames_resteered_lost", lost)]);
        let counters: Vec<_> = self.loops.iter().map(|worker| worker.stack().counters()).collect();
        self.ring.look();
        let dropped = self.ring.dropped();
        let refusals = report::refusals(self.loops.iter().map(|worker| worker.stack().rules()));
        let text = || report::report_all(&counters, dropped, &link, &refusals);
        log::report("counters", text, || report::fields(&counters, dropped, &link, &refusals));
    }
}
