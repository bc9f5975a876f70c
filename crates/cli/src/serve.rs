//! Service of a guest, for `run` and `attach`: properties of the host before, warden and engine during, the
//! report after.

use crate::args::NetworkOptions;
use crate::config::{HostFacts, Settings};
use crate::control::{Control, Controlled, InstanceInfo, SocketPath};
use crate::conversation::message::{Ready, Recorded};
use crate::descriptors;
use crate::engine::launch::Launch;
use crate::event_bus::EventBus;
use crate::failure::Failure;
use crate::flow_log::{Files, FlowLog};
use crate::log;
use crate::mailbox::Mailbox;
use crate::metrics::{self, Metrics};
use crate::option_values::Confine;
use crate::systemd;
use crate::unix_listener::PrivateListener;
use crate::warden::Warden;
use crate::warden::desired::{Desired, DesiredCapture};
use brodo_control::method::GuestNetwork;
use brodo_core::config::{BufferBounds, Config};
use brodo_net::clock::Clock;
use brodo_net::descriptors::{Descriptors, Needs};
use brodo_net::ephemeral_ports::ephemeral_ports;
use brodo_net::resolv::ResolvConf;
use brodo_net::socket_broker::SocketBroker;
use brodo_net::sockets::raise_nofile;
use brodo_netns::namespace::{Made, leave_interface};
use brodo_netns::setup::SetupError;
use brodo_netns::{process, setup};
use brodo_sandbox::{OnViolation, Stages};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Resource, getrlimit};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Options checked and files opened, before namespaces and interfaces are made.
pub(crate) struct Preparation {
    pub(crate) settings: Settings,
    /// Content of resolv.conf.
    conf: ResolvConf,
    ready: Option<OwnedFd>,
    capture: Option<DesiredCapture>,
    flow_log: Option<Files>,
    metrics: Option<Metrics>,
    control: SocketPath,
    confine: Confine,
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
            clients: 0,
            forwards: !settings.forwards.is_empty(),
        };
        descriptors::check(Descriptors::divide(limit, needs), needs.workers, options.max_flows)?;
        if let Some(path) = &options.config {
            log::info("read options from a file", &[("file", path.display().to_string().into())]);
        }
        let clock = Clock::start();
        let capture = options.pcap.as_deref().map(|path| {
            let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
            let file = file.map_err(Failure::io(format!("write the capture {}: open", path.display())))?;
            let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
            Ok::<_, Failure>(DesiredCapture { path, filter: None, file })
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
        let (conf, confine) = (host.resolv_conf, options.confine);
        Ok(Self { settings, conf, ready, capture, flow_log, metrics, control, confine, clock })
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
        let tap = taps.first().map(OwnedFd::try_clone).transpose();
        let tap = tap.map_err(Failure::io("serve the network interface: dup"))?;
        let clients = listener.is_some().then(Mailbox::with_waker).transpose();
        let clients = clients.map_err(Failure::io("serve the control socket: eventfd"))?.map(Arc::new);
        let log = self.flow_log.is_some().then(|| Arc::new(Mailbox::new()));
        let bus = EventBus::new(self.clock).with_log(log.clone()).with_clients(clients.clone());
        let bus = Arc::new(bus);
        for forward in &self.settings.forwards {
            let option = brodo_net::forward::option(forward.direction, forward.transport);
            log::info("forwarding ports", &[(option, forward.spec.to_string().into())]);
        }
        let launch = self.launch(taps, watch)?;
        let desired = Desired {
            forwards: self.settings.forwards.clone(),
            record: Recorded { ends: bus.keeps_log(), ..Recorded::default() },
            capture: self.capture,
        };
        let names = (Path::new(RESOLV_CONF), self.conf);
        let (warden, ready) = Warden::start(&launch, desired, broker, bus.clone(), names)?;
        // The command must have its own limit, and has it by now; here clients take descriptors.
        raise_nofile();
        let confinement = confinement(self.confine, &ready)?;
        log_setup(&self.settings, ready.flows_max);
        log::info("confined the engine", &[("confinement", confinement.clone().into())]);
        let interface = launch.interface.clone();
        let status = format!("Serving {interface} of {}", purpose.target);
        let info = instance_info(purpose, interface, &launch.config, ready.flows_max, confinement);
        let flow_log = self.flow_log.zip(log).map(|(files, log)| FlowLog::start(files, log, bus.clone()));
        let flow_log = flow_log.transpose().map_err(Failure::io("write the flow log: clone"))?;
        let control = listener.zip(clients).map(|(listener, mailbox)| {
            let controlled = Controlled {
                engine: warden.engine().clone(),
                desired: warden.desired().clone(),
                bus: bus.clone(),
                mailbox,
                info,
                started: Instant::now(),
            };
            Control::start(listener, controlled)
        });
        let control = control.transpose().map_err(Failure::io("serve the control socket: clone"))?;
        let Self { ready, metrics, .. } = self;
        Ok(Service { warden, tap, ready, metrics, serving: None, control, flow_log, status })
    }

    /// Settings and descriptors for engines.
    fn launch(&self, taps: Vec<OwnedFd>, watch: OwnedFd) -> Result<Launch, Failure> {
        let own = self.metrics.iter().map(|metrics| brodo_net::forward::inode(metrics.as_fd()));
        let own_sockets = own.collect::<Result<_, _>>().map_err(Failure::io("wait for ports: fstat"))?;
        let stages = if self.confine == Confine::Off { Stages::NONE } else { Stages::ALL };
        let on_violation = if self.confine == Confine::Log { OnViolation::Log } else { OnViolation::Kill };
        Ok(Launch {
            config: self.settings.stack.clone(),
            clock: self.clock,
            busy_poll: self.settings.busy_poll,
            follow: self.settings.follow,
            ephemeral_ports: ephemeral_ports(),
            interface: self.settings.plan.interface.name.clone(),
            offload: self.settings.plan.offload,
            taps,
            watch,
            own_sockets,
            stages,
            on_violation,
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
fn instance_info(
    purpose: Purpose,
    interface: String,
    config: &Config,
    flows_max: u64,
    confinement: String,
) -> InstanceInfo {
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
        flows_max,
        confinement,
    }
}

/// Logs the set-up.
fn log_setup(settings: &Settings, max_flows: u64) {
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

/// The confinement of the engine in words.
///
/// # Errors
/// It is not full, and `--confine required`.
fn confinement(wanted: Confine, ready: &Ready) -> Result<String, Failure> {
    if wanted == Confine::Off {
        return Ok("off".to_owned());
    }
    let gaps: Vec<_> = ready.gaps.iter().map(|(stage, reason)| format!("{stage}: {reason}")).collect();
    match (gaps.is_empty(), wanted) {
        (true, Confine::Log) => Ok("full, but a system call that is not allowed is only logged".to_owned()),
        (true, _) => Ok("full".to_owned()),
        (false, Confine::Required) => Err(Failure::Limit(format!(
            "--confine required: this system does not allow full confinement ({})",
            gaps.join("; ")
        ))),
        (false, _) => Ok(format!("partial ({})", gaps.join("; "))),
    }
}

/// A network in service.
pub(crate) struct Service {
    warden: Warden,
    /// A queue of the interface, to leave it at the end.
    tap: Option<OwnedFd>,
    ready: Option<OwnedFd>,
    metrics: Option<Metrics>,
    serving: Option<metrics::Serving>,
    control: Option<Control>,
    flow_log: Option<FlowLog>,
    /// Line for the service manager.
    status: String,
}

impl Service {
    /// Registers `descriptor`: [`Service::run`] calls back when it is readable.
    pub(crate) fn watch(&mut self, descriptor: BorrowedFd<'_>) -> Result<(), Failure> {
        self.warden.watch(descriptor).map_err(Failure::io("wait for the guest: epoll_ctl"))
    }

    /// Readiness: writes to `--ready-fd`, and notifies the service manager.
    pub(crate) fn announce(&mut self) {
        systemd::ready(&self.status);
        if let Some(ready) = self.ready.take() {
            // An error: the reader has gone.
            let _ = rustix::io::write(ready, b"\n");
            log::debug("wrote to the readiness descriptor", &[]);
        }
    }

    /// Serves until `check` returns a value, which is called whenever a watched descriptor is readable, or
    /// until the guest's interface is gone (`None`).
    pub(crate) fn run<T>(
        &mut self,
        check: impl FnMut() -> Result<Option<T>, Failure>,
    ) -> Result<Option<T>, Failure> {
        if let Some(metrics) = self.metrics.take() {
            self.serving = Some(metrics.start(self.warden.engine().clone())?);
        }
        self.warden.run(check)
    }

    /// Leaves the interface to the end of its namespace; to be called after the end of the command.
    pub(crate) fn leave_interface(&self) {
        if let Some(tap) = &self.tap {
            leave_interface(tap);
        }
    }
}

impl Drop for Service {
    /// Ends the parts of the service, after success or failure: the engine, which writes its capture to the
    /// end; the flow log; the counters if requested.
    fn drop(&mut self) {
        systemd::stopping();
        drop(self.control.take());
        let report = self.warden.stop();
        if let Some(log) = self.flow_log.take() {
            log.finish();
        }
        if let Some(report) = report {
            log::report("counters", || report.text(), || report.fields());
        }
    }
}
