//! Service of a guest, for `run` and `attach`: properties of the host before, warden and engine during, the
//! report after. A service may also go on with that of another program in the same process ([`upgrade`]).

mod describe;
mod upgrade;

use crate::args::NetworkOptions;
use crate::config::{HostFacts, Settings};
use crate::control::{Control, Controlled, InstanceInfo, SocketPath};
use crate::conversation::message::Recorded;
use crate::descriptors;
use crate::engine::launch::{Attached, Launch};
use crate::event_bus::{EventBus, Events};
use crate::failure::Failure;
use crate::flow_log::{Files as LogFiles, FlowLog};
use crate::host;
use crate::log;
use crate::mailbox::Mailbox;
use crate::metrics::{self, Metrics};
use crate::option_values::Confine;
use crate::resume::descriptor::Keep;
use crate::resume::state::{SavedGuest, SavedOrigin};
use crate::systemd;
use crate::unix_listener::PrivateListener;
use crate::upgrades::{History, Upgrades, Wish};
use crate::warden::desired::{Desired, DesiredCapture};
use crate::warden::resume::Facts;
use crate::warden::{Served, Warden};
use brodo_net::clock::Clock;
use brodo_net::descriptors::{Descriptors, Needs};
use brodo_net::resolv::ResolvConf;
use brodo_net::socket_broker::SocketBroker;
use brodo_net::sockets::raise_nofile;
use brodo_netns::namespace::{Made, leave_interface};
use brodo_netns::process::Signals;
use brodo_netns::setup::SetupError;
use brodo_netns::{process, setup};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Resource, getrlimit};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Options checked and files opened, before namespaces and interfaces are made.
pub(crate) struct Preparation {
    pub(crate) settings: Settings,
    /// Origin of the settings.
    origin: SavedOrigin,
    ready: Option<OwnedFd>,
    capture: Option<DesiredCapture>,
    flow_log: Option<LogFiles>,
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

/// A guest, as the command of brodo that serves it sees it.
pub(crate) trait Guest {
    /// Result of its end.
    type End;
    /// Looks whether it has ended, when one of its descriptors is readable.
    fn check(&mut self) -> Result<Option<Self::End>, Failure>;
    /// Signals to brodo.
    fn signals(&self) -> &Signals;
    /// The guest in a state for another program, with its descriptors noted in `kept`.
    fn save<'a>(&'a self, kept: &mut Keep<'a>) -> SavedGuest;
    /// Its process, if it is a child.
    fn child(&self) -> Option<i32>;
}

impl Preparation {
    /// Checks the options and opens their files.
    pub(crate) fn new(options: &NetworkOptions, words: Vec<OsString>) -> Result<Self, Failure> {
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
            LogFiles::open(path, options.flow_log_size(), options.flow_log_keep())
                .map_err(Failure::io(format!("write the flow log {}: open", path.display())))
        });
        let flow_log = flow_log.transpose()?;
        let metrics = options.metrics.as_ref().map(Metrics::bind).transpose()?;
        let files = [("capture", &options.pcap), ("flow log", &options.flow_log)];
        for (what, path) in files.iter().filter_map(|(what, path)| Some((what, path.as_ref()?))) {
            log::info(&format!("writing a {what}"), &[("file", path.display().to_string().into())]);
        }
        let control = SocketPath::of(options.control.as_deref());
        let origin = SavedOrigin { words, ipv6: host.ipv6, names: host.resolv_conf.into() };
        let confine = options.confine;
        Ok(Self { settings, origin, ready, capture, flow_log, metrics, control, confine, clock })
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
        let listener = self.listen()?;
        let (has_log, has_control) = (self.flow_log.is_some(), listener.is_some());
        let around = Surroundings::new(self.clock, has_log, has_control, History::default())?;
        for forward in &self.settings.forwards {
            let option = brodo_net::forward::option(forward.direction, forward.transport);
            log::info("forwarding ports", &[(option, forward.spec.to_string().into())]);
        }
        let attached = self.attached(made)?;
        let launch = host::launch_of(&self.settings, self.confine, self.clock, attached);
        let desired = Desired {
            forwards: self.settings.forwards.clone(),
            record: Recorded { ends: around.bus.keeps_log(), ..Recorded::default() },
            capture: self.capture,
        };
        let names = (Path::new(RESOLV_CONF), self.origin.names.clone().into());
        let (bus, upgrades) = (around.bus.clone(), around.upgrades.clone());
        let (warden, ready) = Warden::start(&launch, desired, broker, bus, upgrades, names)?;
        // The command must have its own limit, and has it by now; here clients take descriptors.
        raise_nofile();
        let confinement = describe::confinement(self.confine, &ready)?;
        describe::log_setup(&self.settings, ready.flows_max);
        log::info("confined the engine", &[("confinement", confinement.clone().into())]);
        let facts = Facts { flows_max: ready.flows_max, confinement };
        let Launch { attached, interface, config, .. } = launch;
        let info = describe::instance_info(purpose, interface, &config, facts.clone());
        let parts = Parts { warden, attached, origin: self.origin, confine: self.confine, facts, info };
        let files = Files { flow_log: self.flow_log, listener, metrics: self.metrics };
        Service::of(parts, around, files, self.ready, Instant::now())
    }

    /// The interface, with the sockets that are not to be published by `auto`.
    fn attached(&self, Made { taps, watch }: Made) -> Result<Attached, Failure> {
        let own = self.metrics.iter().map(|metrics| brodo_net::forward::inode(metrics.as_fd()));
        let own_sockets = own.collect::<Result<_, _>>().map_err(Failure::io("wait for ports: fstat"))?;
        Ok(Attached { taps, watch, own_sockets })
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

/// Readers of events, and those who ask for upgrades.
struct Surroundings {
    clock: Clock,
    bus: Arc<EventBus>,
    /// Events for the flow log.
    log: Option<Arc<Events>>,
    /// Events for clients.
    clients: Option<Arc<Events>>,
    upgrades: Arc<Upgrades>,
}

impl Surroundings {
    fn new(clock: Clock, has_log: bool, has_control: bool, history: History) -> Result<Self, Failure> {
        let failed = || Failure::io("serve the control socket: eventfd");
        let clients = has_control.then(Mailbox::with_waker).transpose().map_err(failed())?.map(Arc::new);
        let log = has_log.then(|| Arc::new(Mailbox::new()));
        let bus = EventBus::new(clock).with_log(log.clone()).with_clients(clients.clone());
        let upgrades = Arc::new(Upgrades::new(history).map_err(failed())?);
        Ok(Self { clock, bus: Arc::new(bus), log, clients, upgrades })
    }
}

/// Warden and engine with what is known of them.
struct Parts {
    warden: Warden,
    attached: Attached,
    origin: SavedOrigin,
    confine: Confine,
    facts: Facts,
    info: InstanceInfo,
}

/// Files and listening sockets of observers.
struct Files {
    flow_log: Option<LogFiles>,
    listener: Option<PrivateListener>,
    metrics: Option<Metrics>,
}

/// A network in service.
pub(crate) struct Service {
    warden: Warden,
    attached: Attached,
    origin: SavedOrigin,
    confine: Confine,
    facts: Facts,
    around: Surroundings,
    ready: Option<OwnedFd>,
    metrics: Option<Metrics>,
    serving: Option<metrics::Serving>,
    control: Option<Control>,
    flow_log: Option<FlowLog>,
    /// Line for the service manager.
    status: String,
}

impl Service {
    /// Starts the observers of a warden.
    fn of(
        parts: Parts,
        around: Surroundings,
        files: Files,
        ready: Option<OwnedFd>,
        started: Instant,
    ) -> Result<Self, Failure> {
        let Parts { warden, attached, origin, confine, facts, info } = parts;
        let Files { flow_log, listener, metrics } = files;
        let status = format!("Serving {} of {}", info.interface, info.target);
        let flow_log = flow_log.zip(around.log.clone());
        let flow_log = flow_log.map(|(files, log)| FlowLog::start(files, log, around.bus.clone()));
        let flow_log = flow_log.transpose().map_err(Failure::io("write the flow log: clone"))?;
        let control = listener.zip(around.clients.clone()).map(|(listener, mailbox)| {
            let controlled = Controlled {
                engine: warden.engine().clone(),
                desired: warden.desired().clone(),
                bus: around.bus.clone(),
                mailbox,
                upgrades: around.upgrades.clone(),
                info,
                started,
            };
            Control::start(listener, controlled)
        });
        let control = control.transpose().map_err(Failure::io("serve the control socket: clone"))?;
        Ok(Self {
            warden,
            attached,
            origin,
            confine,
            facts,
            around,
            ready,
            metrics,
            serving: None,
            control,
            flow_log,
            status,
        })
    }

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

    /// Serves `guest` until its end, or until its interface is gone (`None`).
    pub(crate) fn run<G: Guest>(&mut self, guest: &mut G) -> Result<Option<G::End>, Failure> {
        if let Some(metrics) = self.metrics.take() {
            self.serving = Some(metrics.start(self.warden.engine().clone(), self.around.upgrades.clone())?);
        }
        let upgrades = self.around.upgrades.clone();
        loop {
            let served = self.warden.run(|| {
                let end = guest.check()?;
                if guest.signals().take_upgrade() {
                    // One that is under way will do.
                    upgrades.ask(Wish::default());
                }
                Ok(end)
            })?;
            match served {
                Served::Ended(end) => return Ok(end),
                Served::Wish(wish) => self.begin_upgrade(guest, wish),
                Served::Tried(outcome) => self.finish_upgrade(guest, outcome),
            }
        }
    }

    /// Leaves the interface to the end of its namespace; to be called after the end of the command.
    pub(crate) fn leave_interface(&self) {
        if let Some(tap) = self.attached.taps.first() {
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
