//! Service of a guest, for `run`, `attach` and `vm`: properties of the host before, warden and engine during,
//! the report after. A service may also go on with that of another program in the same process
//! ([`upgrade`]).

mod describe;
mod upgrade;

use crate::args::NetworkOptions;
use crate::config::{HostFacts, Settings};
use crate::control::{Control, Controlled, InstanceInfo, SocketPath};
use crate::control_group;
use crate::conversation::message::Recorded;
use crate::descriptors;
use crate::dialect::Dialect;
use crate::engine::launch::{Attached, GuestSide, Launch};
use crate::event_bus::{EventBus, Events, Watches};
use crate::failure::{Failure, plain};
use crate::flow_log::{FlowLog, Kind};
use crate::forward_sockets::{self, ForwardSockets};
use crate::host;
use crate::learnt_policy::learner::Learner;
use crate::log;
use crate::mailbox::Mailbox;
use crate::metrics::{self, Metrics};
use crate::option_values::{BulkOption, Confine, ReadyFd};
use crate::pid_file::PidFile;
use crate::policy_change::ChangeRecord;
use crate::policy_fail::Unlisted;
use crate::policy_file;
use crate::policy_in_force::PolicyInForce;
use crate::report::Report;
use crate::resume::descriptor::Keep;
use crate::resume::state::{SavedGuest, SavedLogs, SavedOrigin};
use crate::rotated::Rotated;
use crate::run_as::RunAs;
use crate::statistics;
use crate::store::Store;
use crate::systemd;
use crate::unix_listener::PrivateListener;
use crate::upgrades::{History, Upgrades, Wish};
use crate::warden::desired::{Desired, DesiredCapture};
use crate::warden::enforcement;
use crate::warden::forwarding::Forwarding;
use crate::warden::resume::Facts;
use crate::warden::{Served, Warden};
use brodo_control::event::Level;
use brodo_core::config::Bulk;
use brodo_net::clock::Clock;
use brodo_net::descriptors::{Descriptors, Needs};
use brodo_net::netlink::Netlink;
use brodo_net::netlink::template::Template;
use brodo_net::promotion::client::PromotionAgent;
use brodo_net::resolv::ResolvConf;
use brodo_net::socket_broker::SocketBroker;
use brodo_net::sockets::{Outbound, Source, raise_nofile};
use brodo_netns::namespace::leave_interface;
use brodo_netns::process::Signals;
use brodo_netns::promotion::{Beside, Starting};
use brodo_netns::setup::SetupError;
use brodo_netns::{process, setup};
use brodo_sandbox::Confinement;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::ffi::OsString;
use std::fs::File;
use std::net::UdpSocket;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Folders that a process with `--sandbox` has: the resolver's files, sockets of services, and processes, by
/// which clients of the control socket are identified.
const SANDBOX_FOLDERS: [&str; 3] = ["/etc", "/run", "/proc"];

/// Options checked and files opened, before namespaces and interfaces are made.
pub(crate) struct Preparation {
    pub(crate) settings: Settings,
    /// Origin of the settings.
    origin: SavedOrigin,
    ready: Option<(OwnedFd, String)>,
    pid_file: Option<PidFile>,
    capture: Option<DesiredCapture>,
    flow_log: Option<Rotated>,
    audit: Option<Rotated>,
    is_audit_required: bool,
    watches: Watches,
    metrics: Option<Metrics>,
    control: SocketPath,
    forward_sockets: Vec<(Dialect, PathBuf)>,
    /// Whether kernel sockets for bulk flows were asked for, not only taken where they can be had.
    wants_promotion: bool,
    confine: Confine,
    renounced: Renounced,
    /// Folders that it keeps under `--sandbox`.
    kept: Vec<PathBuf>,
    stats: Option<Duration>,
    clock: Clock,
}

/// The promotion agent that is being started, or the refusal, if one was asked for.
#[derive(Default)]
pub(crate) struct Promotion(Option<Result<Starting, SetupError>>);

impl Promotion {
    /// Waits for the agent; the reason why there is none, if one was asked for, and of which the user is
    /// warned if `is_wanted`.
    fn agent(self, is_wanted: bool) -> (Option<PromotionAgent>, Option<String>) {
        match self.0.map(|starting| starting.and_then(Starting::wait)) {
            None => (None, None),
            Some(Ok(agent)) => (Some(agent), None),
            Some(Err(error)) => {
                let why = error.to_string();
                let log = if is_wanted { log::warn } else { log::info };
                log("bulk flows stay with the interface", &[("error", why.clone().into())]);
                (None, Some(why))
            }
        }
    }
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
        Self::with_pid_file(options, words, options.pid_file.as_deref())
    }

    /// The same for a process whose parent writes the PID file.
    pub(crate) fn without_pid_file(options: &NetworkOptions, words: Vec<OsString>) -> Result<Self, Failure> {
        Self::with_pid_file(options, words, None)
    }

    fn with_pid_file(
        options: &NetworkOptions,
        words: Vec<OsString>,
        pid_file: Option<&Path>,
    ) -> Result<Self, Failure> {
        // First of all, while no descriptor but the inherited ones is open.
        let ready = options.ready_fd.as_ref().map(|ReadyFd { number, text }| {
            Ok::<_, Failure>((inherited("--ready-fd", *number)?, text.clone()))
        });
        let ready = ready.transpose()?;
        // Before the first write.
        process::block_file_size_signal()?;
        let host = host_facts(options)?;
        let settings = Settings::new(options, &host).map_err(Failure::Usage)?;
        check_outbound(&settings.outbound)?;
        // The hard limit: raised only after the start of the command, which must have its own.
        let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let needs = Needs {
            workers: settings.plan.queues.into(),
            clients: 0,
            forwards: !settings.forwards.is_empty(),
            promotion: settings.stack.bulk == Bulk::Kernel,
        };
        descriptors::check(Descriptors::divide(limit, needs), needs.workers, options.limits.flows)?;
        if let Some(path) = &options.config {
            log::info("read options from a file", &[("file", path.display().to_string().into())]);
        }
        let pid_file = pid_file.map(PidFile::open).transpose()?;
        let clock = Clock::start();
        let capture = options.pcap.as_deref().map(|path| {
            let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
            let file = file.map_err(Failure::io(format!("write the capture {}: open", path.display())))?;
            let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
            Ok::<_, Failure>(DesiredCapture { path, filter: None, file })
        });
        let capture = capture.transpose()?;
        let log_files = |what: &str, path: Option<&Path>| {
            let Some(path) = path else { return Ok(None) };
            // The working directory of a brodo in the background becomes another.
            let path = &std::path::absolute(path).unwrap_or_else(|_| path.into());
            let opened = Rotated::open(path, options.flow_log_size(), options.flow_log_keep());
            opened.map(Some).map_err(Failure::io(format!("write the {what} {}: open", path.display())))
        };
        let flow_log = log_files("flow log", options.flow_log.as_deref())?;
        let audit = log_files("audit log", options.audit.as_deref())?;
        let learner = options.learn.as_deref();
        let learner =
            learner.map(|path| Learner::open(path, &options.policy, &settings.stack)).transpose()?;
        let unlisted = options.policy_fail.map(Unlisted::new).map(Arc::new);
        let watches = Watches { unlisted, learner: learner.map(Arc::new) };
        let metrics = options.metrics.as_ref().map(Metrics::bind).transpose()?;
        let files =
            [("capture", &options.pcap), ("flow log", &options.flow_log), ("audit log", &options.audit)];
        for (what, path) in files.iter().filter_map(|(what, path)| Some((what, path.as_ref()?))) {
            log::info(&format!("writing a {what}"), &[("file", path.display().to_string().into())]);
        }
        let control = SocketPath::of(options.control.as_deref());
        let HostFacts { ipv6, resolv_conf, policy, template } = host;
        let (names, policy, directory) = (resolv_conf.into(), policy.sources, std::env::current_dir().ok());
        let origin = SavedOrigin { words, directory, ipv6, names, policy, template };
        let confine = options.confine;
        let forward_sockets = forward_sockets::wanted(options);
        // The parser of options needs ten times as much as all that follows, and four processes come of this
        // one.
        brodo_sandbox::release_free_memory();
        Ok(Self {
            settings,
            origin,
            ready,
            pid_file,
            capture,
            flow_log,
            audit,
            is_audit_required: options.audit_required,
            watches,
            metrics,
            control,
            forward_sockets,
            wants_promotion: options.bulk == BulkOption::Kernel,
            confine,
            renounced: Renounced { sandbox: options.sandbox, run_as: None },
            kept: Vec::new(),
            stats: options.stats,
            clock,
        })
    }

    /// The same, which keeps a folder under `--sandbox`.
    pub(crate) fn keeping(mut self, folder: Option<PathBuf>) -> Self {
        self.kept.extend(folder);
        self
    }

    /// The same, which becomes another user.
    pub(crate) fn becoming(mut self, user: Option<RunAs>) -> Self {
        self.renounced.run_as = user;
        self
    }

    /// Starts a broker in the guest's namespace, if ports are forwarded now or may be later. Before there are
    /// threads.
    pub(crate) fn broker(
        &self,
        start: impl FnOnce(Confinement) -> Result<SocketBroker, SetupError>,
    ) -> Result<Option<SocketBroker>, Failure> {
        let confinement = self.confine.into();
        if !self.settings.forwards.is_empty() {
            return Ok(Some(start(confinement)?));
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
        Ok(start(confinement).map_err(unneeded).ok())
    }

    /// Starts the promotion agent beside the guest's interface, if bulk flows are to get kernel sockets.
    /// Where that is not possible all stays with the interface. Before there are threads.
    pub(crate) fn promotion(
        &self,
        start: impl FnOnce(Beside<'_>, Confinement) -> Result<Starting, SetupError>,
    ) -> Promotion {
        let Settings { stack, plan, .. } = &self.settings;
        let place = Beside { interface: &plan.interface, router_mac: stack.mac.0 };
        Promotion((stack.bulk != Bulk::Tap).then(|| start(place, self.confine.into())))
    }

    /// A service for a guest: a worker for each link to it.
    pub(crate) fn serve(
        self,
        side: impl Into<GuestSide>,
        broker: Option<SocketBroker>,
        promotion: Promotion,
        purpose: Purpose,
    ) -> Result<Service, Failure> {
        let listener = self.listen()?;
        let forward_sockets = self.listen_for_others()?;
        let (flows, audit) = (self.flow_log.is_some(), self.audit.is_some());
        let is_audit_required = self.is_audit_required;
        let logs = Logs { flows, audit, is_audit_required, watches: self.watches.clone(), before: None };
        let around = Surroundings::new(self.clock, logs, listener.is_some(), History::default())?;
        for forward in &self.settings.forwards {
            let option = brodo_net::forward::option(forward.direction, forward.transport);
            log::info("forwarding ports", &[(option, forward.spec.to_string().into())]);
        }
        let attached = self.attached(side.into())?;
        let launch = host::launch_of(&self.settings, self.confine, self.clock, attached);
        let desired = Desired {
            forwards: self.settings.forwards.clone(),
            opening: host::opening_of(&self.settings, self.confine),
            record: Recorded { ends: around.bus.needs_ends(), ..Recorded::default() },
            capture: self.capture,
            bulk: None,
            policy: self.settings.stack.rules.shared.as_ref().map(|policy| PolicyInForce::new(policy)),
            unreviewed: false,
        };
        let (resolv_conf, conf) = (Path::new(RESOLV_CONF), self.origin.names.clone().into());
        let (bus, upgrades) = (around.bus.clone(), around.upgrades.clone());
        let mut warden = Warden::new(&launch, desired, broker, bus, upgrades, resolv_conf, conf)?;
        // Not earlier: its place is made beside all of this.
        let (agent, unavailable) = promotion.agent(self.wants_promotion);
        let ready = warden.start(agent)?;
        // The command must have its own limit, and has it by now; here clients take descriptors.
        raise_nofile();
        let confinement = describe::confinement(self.confine, &ready)?;
        describe::log_setup(&self.settings, &launch.attached.side, ready.flows_max);
        log::info("confined the engine", &[("confinement", confinement.clone().into())]);
        let facts = Facts { flows_max: ready.flows_max, confinement, no_promotion: unavailable };
        let Launch { attached, interface, config, .. } = launch;
        let info = describe::instance_info(purpose, interface, &config, facts.clone());
        self.renounced.apply(listener.as_ref(), &forward_sockets, &self.kept)?;
        let parts = Parts { warden, attached, origin: self.origin, confine: self.confine, facts, info };
        let (flow_log, audit, metrics) = (self.flow_log, self.audit, self.metrics);
        let stats = self.stats;
        let files = Files { flow_log, audit, listener, forward_sockets, metrics, stats };
        let readiness = Readiness { descriptor: self.ready, pid_file: self.pid_file };
        Service::of(parts, around, files, readiness, Instant::now())
    }

    /// The way to the guest, with the sockets that are not to be published by `auto`.
    fn attached(&self, side: GuestSide) -> Result<Attached, Failure> {
        let own = self.metrics.iter().map(|metrics| brodo_net::forward::inode(metrics.as_fd()));
        let own_sockets = own.collect::<Result<_, _>>().map_err(Failure::io("wait for ports: fstat"))?;
        Ok(Attached { side, own_sockets })
    }

    /// The sockets on which other programs change forwards.
    fn listen_for_others(&self) -> Result<Vec<(Dialect, PrivateListener)>, Failure> {
        let listen = |(dialect, path): &(Dialect, PathBuf)| {
            let failed = format!("listen on {} {}: bind", dialect.option(), path.display());
            Ok((*dialect, PrivateListener::bind(path).map_err(Failure::io(failed))?))
        };
        self.forward_sockets.iter().map(listen).collect()
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

/// Rights that this process gives up once all is open: folders by `--sandbox`, its user by `--run-as`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Renounced {
    pub(crate) sandbox: bool,
    pub(crate) run_as: Option<RunAs>,
}

impl Renounced {
    /// Gives them up. Only while there is one thread.
    fn apply(
        self,
        control: Option<&PrivateListener>,
        others: &[(Dialect, PrivateListener)],
        further: &[PathBuf],
    ) -> Result<(), Failure> {
        match (self.sandbox, self.run_as) {
            (true, user) => narrow(control, others, further, user),
            (false, user) => user.map_or(Ok(()), RunAs::apply),
        }
    }
}

/// Leaves this process with few folders, among them those of its sockets, and two capabilities, as that user
/// if there is one. Only while there is one thread.
fn narrow(
    control: Option<&PrivateListener>,
    others: &[(Dialect, PrivateListener)],
    further: &[PathBuf],
    user: Option<RunAs>,
) -> Result<(), Failure> {
    let sockets = control.into_iter().chain(others.iter().map(|(_, listener)| listener));
    let folders = sockets.filter_map(|listener| listener.path().parent());
    let further = further.iter().map(PathBuf::as_path);
    let kept: Vec<_> = SANDBOX_FOLDERS.iter().map(Path::new).chain(folders).chain(further).collect();
    let what = "--sandbox: unshare, mount, pivot_root, setresuid";
    brodo_sandbox::narrow(&kept, user.and_then(RunAs::other)).map_err(Failure::io(what))
}

/// A descriptor that brodo was started with, of the three standard ones a duplicate: they stay open. To be
/// asked for before any other is opened.
///
/// # Errors
/// There is none of this number; the sentence names the option.
pub(crate) fn inherited(option: &str, number: i32) -> Result<OwnedFd, Failure> {
    let duplicate = |standard: BorrowedFd<'static>| rustix::io::fcntl_dupfd_cloexec(standard, 3);
    let taken = match number {
        0 => duplicate(rustix::stdio::stdin()),
        1 => duplicate(rustix::stdio::stdout()),
        2 => duplicate(rustix::stdio::stderr()),
        number => process::inherited(number),
    };
    taken.map_err(|_| Failure::Usage(format!("{option} {number} is not a descriptor brodo was started with")))
}

/// Properties of the host that complete `options`.
pub(crate) fn host_facts(options: &NetworkOptions) -> Result<HostFacts, Failure> {
    Ok(HostFacts {
        ipv6: setup::ipv6_available(),
        // Without the file there is no resolver; everything else works.
        resolv_conf: ResolvConf::read(Path::new(RESOLV_CONF)).unwrap_or_default(),
        policy: policy_file::read(&options.policy)?,
        template: options.copy_host.as_deref().map(template).transpose()?,
    })
}

/// Whether the host has the wanted sources now.
fn check_outbound(Outbound { v4, v6, .. }: &Outbound) -> Result<(), Failure> {
    for Source { address, interface } in [v4, v6] {
        if let Some(name) = interface
            && Netlink::open().and_then(|netlink| netlink.index_of(name)) == Err(Errno::NODEV)
        {
            let why = format!("--outbound %{name}: the host has no such interface: ip link shows them");
            return Err(Failure::Usage(why));
        }
        if let Some(address) = address
            && let Err(error) = UdpSocket::bind((*address, 0))
        {
            let why = format!("--outbound {address}: {}: ip addr shows the host's addresses", plain(&error));
            return Err(Failure::Usage(why));
        }
    }
    Ok(())
}

/// The host's network to copy, of the interface with this name if it is not empty.
fn template(interface: &str) -> Result<Template, Failure> {
    let name = Some(interface).filter(|name| !name.is_empty());
    let read = || Netlink::open()?.template(name);
    read().map_err(|errno| match (errno, name) {
        (Errno::NODEV, Some(name)) => {
            Failure::Usage(format!("--copy-host={name}: the host has no such interface: ip link shows them"))
        }
        _ => Failure::Io("copy the host's network: rtnetlink".to_owned(), errno.into()),
    })
}

/// Readers of events in brodo itself.
#[derive(Debug, Clone)]
struct Logs {
    flows: bool,
    audit: bool,
    /// Everything is refused if the audit log ends.
    is_audit_required: bool,
    watches: Watches,
    /// Records missing in those of a program that this one goes on for.
    before: Option<SavedLogs>,
}

/// Readers of events, and those who ask for upgrades.
struct Surroundings {
    clock: Clock,
    bus: Arc<EventBus>,
    /// Events for the flow log.
    log: Option<Arc<Events>>,
    /// Events for the audit log.
    audit: Option<Arc<Events>>,
    is_audit_required: bool,
    watches: Watches,
    before: Option<SavedLogs>,
    /// Events for clients.
    clients: Option<Arc<Events>>,
    upgrades: Arc<Upgrades>,
}

impl Surroundings {
    fn new(clock: Clock, logs: Logs, has_control: bool, history: History) -> Result<Self, Failure> {
        let failed = || Failure::io("serve the control socket: eventfd");
        let clients = has_control.then(Mailbox::with_waker).transpose().map_err(failed())?.map(Arc::new);
        let log = logs.flows.then(|| Arc::new(Mailbox::new()));
        let audit = logs.audit.then(|| Arc::new(Mailbox::new()));
        let bus = EventBus::new(clock).with_log(log.clone()).with_audit(audit.clone());
        let bus = bus.with_watches(logs.watches.clone()).with_clients(clients.clone());
        let bus = Arc::new(bus.with_audit_lost(logs.before.unwrap_or_default().audit_lost));
        let upgrades = Arc::new(Upgrades::new(history).map_err(failed())?);
        let Logs { is_audit_required, watches, before, .. } = logs;
        Ok(Self { clock, bus, log, audit, is_audit_required, watches, before, clients, upgrades })
    }

    /// Reaction to the end of the audit log: everything is refused if it is required.
    fn unaudited(&self, warden: &Warden) -> impl FnOnce() + Send + 'static {
        let (engine, desired, bus) = (warden.engine().clone(), warden.desired().clone(), self.bus.clone());
        let (is_required, upgrades) = (self.is_audit_required, self.upgrades.clone());
        move || {
            if !is_required {
                return;
            }
            let record = ChangeRecord { bus: &bus, what: "lockdown", by: None };
            let text = match enforcement::change(&engine, &desired, &record, PolicyInForce::lock_unaudited) {
                Ok(_) => "everything is refused: the audit log is required".to_owned(),
                Err(error) => format!("everything is to be refused: {error}"),
            };
            bus.notify(Level::Warn, &text);
            // Without the gate: an upgrade holds it while it waits for this thread to have written the log.
            upgrades.state_changed();
        }
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
    flow_log: Option<Rotated>,
    audit: Option<Rotated>,
    listener: Option<PrivateListener>,
    forward_sockets: Vec<(Dialect, PrivateListener)>,
    metrics: Option<Metrics>,
    /// Interval of counters in the log.
    stats: Option<Duration>,
}

/// Places where readiness is to be noted.
#[derive(Debug, Default)]
struct Readiness {
    descriptor: Option<(OwnedFd, String)>,
    pid_file: Option<PidFile>,
}

/// A network in service.
pub(crate) struct Service {
    warden: Warden,
    attached: Attached,
    origin: SavedOrigin,
    confine: Confine,
    facts: Facts,
    around: Surroundings,
    readiness: Readiness,
    metrics: Option<Metrics>,
    /// Interval of counters in the log.
    stats: Option<Duration>,
    serving: Option<metrics::Serving>,
    control: Option<Control>,
    forward_sockets: Option<ForwardSockets>,
    flow_log: Option<FlowLog>,
    audit: Option<FlowLog>,
    /// Line for the service manager.
    status: String,
    /// State that the service manager keeps, if it does.
    store: Option<Store>,
    /// The report of an engine that has ended before the guest.
    report: Option<Report>,
}

impl Service {
    /// Starts the observers of a warden.
    fn of(
        parts: Parts,
        around: Surroundings,
        files: Files,
        readiness: Readiness,
        started: Instant,
    ) -> Result<Self, Failure> {
        let Parts { warden, attached, origin, confine, facts, info } = parts;
        let Files { flow_log, audit, listener, forward_sockets, metrics, stats } = files;
        let status = format!("Serving {} of {}", info.interface, info.target);
        let flow_log = flow_log.zip(around.log.clone());
        let bus = || around.bus.clone();
        let SavedLogs { flows_missing, audit_missing, .. } = around.before.unwrap_or_default();
        let start = |(files, log)| FlowLog::start(Kind::Flows, files, log, bus(), flows_missing, || {});
        let flow_log = flow_log.map(start).transpose();
        let flow_log = flow_log.map_err(Failure::io("write the flow log: clone"))?;
        let unaudited = around.unaudited(&warden);
        let audit = if let Some((files, log)) = audit.zip(around.audit.clone()) {
            FlowLog::start(Kind::Audit, files, log, bus(), audit_missing, unaudited).map(Some)
        } else {
            // One that could not be opened again, or none at all.
            unaudited();
            Ok(None)
        };
        let audit = audit.map_err(Failure::io("write the audit log: clone"))?;
        let forwarding = Forwarding::new(warden.engine().clone(), warden.desired().clone());
        let upgrades = around.upgrades.clone();
        let forward_sockets = ForwardSockets::start(forward_sockets, forwarding, info.guest(), upgrades);
        let forward_sockets = forward_sockets.map_err(Failure::io("serve other programs: thread"))?;
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
            readiness,
            metrics,
            stats,
            serving: None,
            control,
            forward_sockets,
            flow_log,
            audit,
            status,
            store: None,
            report: None,
        })
    }

    /// Has the service manager keep the state of this service from now on, if it does so.
    pub(crate) fn with_store(mut self) -> Self {
        self.store = Store::of_manager();
        if self.store.is_some() {
            self.around.upgrades.report_requests();
        }
        self
    }

    /// Has the engine and the helpers follow this process into another control group, if `is_wanted`. Its
    /// descendants are these alone.
    ///
    /// # Errors
    /// No thread can be made.
    pub(crate) fn following(self, is_wanted: bool) -> Result<Self, Failure> {
        if is_wanted {
            control_group::start(self.warden.engine().clone())
                .map_err(Failure::io("follow the control group: clone"))?;
        }
        Ok(self)
    }

    /// Registers `descriptor`: [`Service::run`] calls back when it is readable.
    pub(crate) fn watch(&mut self, descriptor: BorrowedFd<'_>) -> Result<(), Failure> {
        self.warden.watch(descriptor).map_err(Failure::io("wait for the guest: epoll_ctl"))
    }

    /// Writes the PID file, unless it is written.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write_pid_file(&mut self) -> Result<(), Failure> {
        let pid_file = self.readiness.pid_file.take();
        pid_file.map_or(Ok(()), |pid_file| pid_file.write(rustix::process::getpid().as_raw_pid()))
    }

    /// Readiness: writes the PID file and to `--ready-fd`, and notifies the service manager.
    ///
    /// # Errors
    /// The PID file cannot be written.
    pub(crate) fn announce(&mut self) -> Result<(), Failure> {
        self.write_pid_file()?;
        systemd::ready(&self.status);
        if let Some((ready, text)) = self.readiness.descriptor.take() {
            // An error: the reader has gone.
            let _ = rustix::io::write(ready, text.as_bytes());
            log::debug("wrote to the readiness descriptor", &[]);
        }
        Ok(())
    }

    /// Serves `guest` until its end, or until its interface is gone (`None`).
    pub(crate) fn run<G: Guest>(&mut self, guest: &mut G) -> Result<Option<G::End>, Failure> {
        if let Some(interval) = self.stats.take() {
            let goes_on = self.around.before.is_some();
            statistics::start(interval, self.warden.engine().clone(), goes_on)
                .map_err(Failure::io("log counters: clone"))?;
        }
        if let Some(metrics) = self.metrics.take() {
            let (upgrades, bus) = (self.around.upgrades.clone(), self.around.bus.clone());
            self.serving = Some(metrics.start(self.warden.engine().clone(), upgrades, bus)?);
        }
        let upgrades = self.around.upgrades.clone();
        brodo_sandbox::release_program_pages();
        loop {
            self.keep_state(guest);
            let served = self.warden.run(|| {
                let end = guest.check()?;
                if guest.signals().take_upgrade() {
                    // One that is under way will do.
                    let _ = upgrades.ask(Wish::default());
                }
                Ok(end)
            })?;
            match served {
                Served::Ended(end) => return Ok(end),
                Served::Wish(wish) => self.begin_upgrade(guest, wish),
                Served::Tried(outcome) => self.finish_upgrade(guest, outcome),
                Served::Changed => {}
            }
        }
    }

    /// Ends the network of a guest that has none any more and goes on: clients learn that at once.
    pub(crate) fn end_network(&mut self) {
        self.report = self.warden.stop();
        self.warden.engine().disconnect();
        let why = "brodo serves no network any more";
        if self.around.upgrades.close(why) {
            self.upgrade_failed(why.to_owned());
        }
    }

    /// Ends the service of a guest that has ended; the exit status, which is `status` unless the policy has
    /// another (`--policy-fail`).
    pub(crate) fn end(self, status: u8) -> u8 {
        let (unlisted, engine) = (self.around.watches.unlisted.clone(), self.warden.engine().clone());
        // The last decisions come with the end of the engine.
        drop(self);
        unlisted.map_or(status, |unlisted| unlisted.status(status, engine.crashes()))
    }

    /// Leaves the interface to the end of its namespace; to be called after the end of the command.
    pub(crate) fn leave_interface(&self) {
        if let GuestSide::Interface { taps, .. } = &self.attached.side
            && let Some(tap) = taps.first()
        {
            leave_interface(tap);
        }
    }
}

impl Drop for Service {
    /// Ends the parts of the service, after success or failure: the engine, which writes its capture to the
    /// end; the logs and the policy that was learnt; the counters if requested.
    fn drop(&mut self) {
        systemd::stopping();
        if let Some(store) = &mut self.store {
            store.empty();
        }
        drop(self.control.take());
        drop(self.forward_sockets.take());
        let report = self.warden.stop().or_else(|| self.report.take());
        for log in [self.flow_log.take(), self.audit.take()].into_iter().flatten() {
            log.finish();
        }
        if let Some(learner) = &self.around.watches.learner {
            learner.write();
        }
        if let Some(report) = report {
            log::report("counters", || report.text(), || report.fields());
        }
    }
}
