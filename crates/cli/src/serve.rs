//! Service of a guest, for `run` and `attach`: properties of the host before, the workers during, the report
//! after.

use crate::args::NetworkOptions;
use crate::config::{HostFacts, Settings};
use crate::control::{Control, Controlled, FirstCapture, InstanceInfo, SocketPath};
use crate::descriptors;
use crate::event_bus::{EventBus, Item, Mailbox};
use crate::failure::Failure;
use crate::flow_log::{Files, FlowLog};
use crate::flow_messages::Bounds;
use crate::log;
use crate::metrics::{self, Metrics};
use crate::notices::Notices;
use crate::report;
use crate::unix_listener::PrivateListener;
use brodo_control::method::GuestNetwork;
use brodo_core::config::{BufferBounds, Config};
use brodo_link::FailedCall;
use brodo_link::tap::{Tap, TapLosses};
use brodo_net::capture::Capture;
use brodo_net::clock::Clock;
use brodo_net::descriptors::{Descriptors, Needs};
use brodo_net::driver::Worker;
use brodo_net::host_network::HostNetwork;
use brodo_net::resolv::ResolvConf;
use brodo_net::socket_broker::SocketBroker;
use brodo_net::sockets::raise_nofile;
use brodo_net::txqueuelen::TxQueueLenWatch;
use brodo_net::workers::Workers;
use brodo_net::{FlowRecords, Network, NetworkError, Recording, Wake};
use brodo_netns::namespace::{Made, leave_interface};
use brodo_netns::setup::SetupError;
use brodo_netns::{process, setup};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::process::{Resource, getrlimit};
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
    /// Command line of the guest, or the namespace.
    pub(crate) target: String,
}

impl Preparation {
    /// Checks the options and opens their files.
    pub(crate) fn new(options: &NetworkOptions) -> Result<Self, Failure> {
        // First of all, while no descriptor but the inherited ones is open.
        let ready = options.ready_fd.map(|number| {
            process::inherited(number).map_err(|_| {
                Failure::Usage(format!("--ready-fd {number} is not a descriptor brodo was started with"))
            })
        });
        let ready = ready.transpose()?;
        // Before the first write.
        process::block_file_size_signal()?;
        let host = HostFacts {
            ipv6: setup::ipv6_available(),
            // Without the file there is no resolver; everything else works.
            resolv_conf: ResolvConf::read(Path::new(RESOLV_CONF)).unwrap_or_default(),
        };
        let settings = Settings::new(options, &host).map_err(Failure::Usage)?;
        // The hard limit: raised only after the start of the command, which must have its own.
        let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let needs = Needs {
            workers: settings.plan.queues.into(),
            clients: if options.metrics.is_some() { metrics::CLIENTS_MAX as u64 } else { 0 },
            forwards: !settings.forwards.is_empty(),
        };
        descriptors::check(Descriptors::divide(limit, needs), needs.workers, options.max_flows)?;
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

    /// A service for an interface: a worker for each of its queues.
    pub(crate) fn serve(
        self,
        made: Made,
        broker: Option<SocketBroker>,
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
        let config = self.settings.stack.clone();
        let interface = self.settings.plan.interface.name.clone();
        let to = bus.clone();
        let mut builder = Network::builder()
            .config(config.clone())
            .clock(self.clock)
            .descriptors(raise_nofile())
            .clients(self.needs.clients)
            .busy_poll(self.settings.busy_poll)
            .socket_broker(broker)
            .forwards(self.settings.forwards.clone())
            .host_network(self.host.clone(), self.settings.follow)
            .tx_queue_len(ring.clone())
            .capture(self.capture.as_ref().map(|first| first.capture.clone()))
            .on_flow_records(Recording { ends: bus.keeps_log(), ..Recording::default() }, move |records| {
                to.take(records);
            });
        if let Some(metrics) = &self.metrics {
            builder = builder.leave_out(metrics).map_err(Failure::io("wait for ports: dup"))?;
        }
        for forward in &self.settings.forwards {
            let option = brodo_net::forward::option(forward.direction, forward.transport);
            log::info("forwarding ports", &[(option, forward.spec.to_string().into())]);
        }
        let links = taps.into_iter().map(|tap| Tap::from_fd(tap, self.settings.plan.offload));
        let links = links.collect::<Result<Vec<_>, _>>().map_err(Failure::Tap)?;
        let network = builder.links(links).build().map_err(network_failure)?;
        let workers = network.handle().workers().clone();
        log_setup(&self.settings, network.flows_max());
        let info = instance_info(purpose, interface, &config, network.flows_max());
        let flow_log = self.flow_log.zip(log).map(|(files, log)| FlowLog::start(files, log, bus.clone()));
        let flow_log = flow_log.transpose().map_err(Failure::io("write the flow log: clone"))?;
        let control = listener.zip(clients).map(|(listener, mailbox)| {
            let controlled = Controlled {
                workers: workers.clone(),
                ring: Some(ring.clone()),
                bus: bus.clone(),
                mailbox,
                info,
                started: Instant::now(),
                capture: self.capture,
            };
            Control::start(listener, controlled)
        });
        let control = control.transpose().map_err(Failure::io("serve the control socket: clone"))?;
        let notices = Notices::new(bus.clone());
        let Self { ready, metrics, clock, .. } = self;
        Ok(Service {
            network,
            workers,
            ring,
            notices,
            ready,
            metrics,
            serving: None,
            control,
            flow_log,
            clock,
        })
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

/// Constant properties of an instance, for the control socket.
fn instance_info(purpose: Purpose, interface: String, config: &Config, flows_max: usize) -> InstanceInfo {
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
        flows_max: flows_max as u64,
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

/// The failure of a network in terms of the options.
fn network_failure(error: NetworkError) -> Failure {
    match error {
        NetworkError::Forward(error) => Failure::Forward(error),
        NetworkError::Io { call, error } => Failure::Io(call.to_owned(), error),
        NetworkError::Failed(FailedCall { call, error }) => {
            Failure::Io(format!("serve the network interface: {call}"), error)
        }
        other => Failure::Usage(other.to_string()),
    }
}

/// A network in service.
pub(crate) struct Service {
    network: Network<Tap>,
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
    /// Registers `descriptor`: [`Service::run`] calls back when it is readable.
    pub(crate) fn watch(&mut self, descriptor: BorrowedFd<'_>) -> Result<(), Failure> {
        self.network.watch(descriptor, 0).map_err(Failure::io("wait for the guest: epoll_ctl"))
    }

    /// Readiness: writes to `--ready-fd`.
    pub(crate) fn announce(&mut self) {
        if let Some(ready) = self.ready.take() {
            // An error: the reader has gone.
            let _ = rustix::io::write(ready, b"\n");
            log::debug("wrote to the readiness descriptor", &[]);
        }
    }

    /// Serves until `check` breaks, which is called whenever a watched descriptor is readable, or until the
    /// guest's interface is gone (`None`).
    pub(crate) fn run<T>(
        &mut self,
        mut check: impl FnMut() -> Result<ControlFlow<T>, Failure>,
    ) -> Result<Option<T>, Failure> {
        // Not before the last fork, which needs a process of one thread.
        if let Some(metrics) = self.metrics.take() {
            self.serving = Some(metrics.start(self.workers.clone(), self.ring.clone())?);
        }
        let notices = &self.notices;
        let on_wake = |wake| match wake {
            Wake::Extra(_) => match check() {
                Ok(ControlFlow::Continue(())) => ControlFlow::Continue(()),
                Ok(ControlFlow::Break(value)) => ControlFlow::Break(Ok(value)),
                Err(failure) => ControlFlow::Break(Err(failure)),
            },
            notice => {
                notices.publish(&notice);
                ControlFlow::Continue(())
            }
        };
        let ended = self.network.run(on_wake, &|wake| notices.publish(&wake)).map_err(network_failure)?;
        ended.transpose()
    }

    /// Leaves the interface to the end of its namespace; to be called after the end of the command.
    pub(crate) fn leave_interface(&self) {
        if let Some(worker) = self.network.workers().first() {
            leave_interface(worker.link());
        }
    }
}

impl Service {
    /// Records of all flows that are still open.
    fn last_ends(&self) -> Vec<Item> {
        let now = self.clock.now();
        let of_worker = |(worker, of): (u32, &Worker<Tap>)| {
            let ends = of.stack().ends_at_shutdown(now).collect();
            Item::Batch(Arc::new(FlowRecords { worker, ends, ..FlowRecords::default() }))
        };
        (0..).zip(self.network.workers()).map(of_worker).collect()
    }
}

impl Drop for Service {
    /// Ends the parts of the service, after success or failure: writes capture and flow log to their ends,
    /// and prints the counters if requested.
    fn drop(&mut self) {
        drop(self.control.take());
        for error in self.network.workers_mut().iter_mut().filter_map(Worker::finish_capture) {
            self.notices.capture_failed(&error);
        }
        if let Some(log) = self.flow_log.take() {
            log.finish(self.last_ends());
        }
        let mut losses = TapLosses::default();
        self.network.workers().iter().for_each(|worker| losses.add(worker.link().losses()));
        let mut link = vec![("link_down", losses.down), ("link_refused", losses.refused)];
        let forwards = self.network.workers().iter().filter_map(Worker::forwards);
        link.extend(forwards.flat_map(|forwards| forwards.counters().named()));
        let (passed, lost) = self.workers.resteered();
        link.extend([("frames_resteered", passed), ("frames_resteered_lost", lost)]);
        let counters: Vec<_> =
            self.network.workers().iter().map(|worker| worker.stack().counters()).collect();
        self.ring.look();
        let dropped = self.ring.dropped();
        let refusals = report::refusals(self.network.workers().iter().map(|worker| worker.stack().rules()));
        let text = || report::report_all(&counters, dropped, &link, &refusals);
        log::report("counters", text, || report::fields(&counters, dropped, &link, &refusals));
    }
}
