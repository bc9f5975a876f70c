//! Systems under test: the forwarder between a guest and the host, started with its defaults.
//!
//! Every forwarder runs as the ordinary user inside the host namespace, with its default settings except the
//! MTU. It starts `probe wait` as its guest (or is pointed at a namespace in which that already runs), and
//! from then on further programs enter the guest's namespaces by that process.

pub mod machine;
mod policy;

use crate::probe::{Carrier, MonitorKind, round_trip_ports};
use crate::process::{Failure, Job, PATIENCE, Result, find_program, wait_until};
use crate::procfs;
use crate::world::{HOST_V4, Netns, World, become_user, set_sysctls};
use clap::Args;
use machine::Machine;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

pub use policy::{SERVER_NAME, policy_options};

/// TCP and UDP port of the probe's server.
pub const SERVER_PORT: u16 = 7000;
/// The first of the ports that answer single bytes.
pub const RESPOND_PORT: u16 = 10_000;

/// The forwarder between guest and host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// No forwarder: the guest's programs run in the host namespace.
    HostDirect,
    /// The kernel alone: a veth pair into the guest's namespace, made by root.
    Veth,
    /// veth, with a process between guest and server that only copies; TCP alone.
    Relay,
    /// The same by splice(2).
    RelaySplice,
    /// The same by io_uring.
    RelayRing,
    /// The same by io_uring with a polling thread in the kernel.
    RelayPolledRing,
    /// Two TAPs in the place of veth, and a process that moves frames between them.
    Taps,
    /// The same with a queue and a thread for each processor.
    TapsQueues,
    /// The same as with one queue, by io_uring.
    TapsRing,
    /// The same by io_uring with a polling thread in the kernel.
    TapsPolledRing,
    /// pasta, of the passt project.
    Pasta,
    /// slirp4netns, on libslirp.
    Slirp4netns,
    /// brodo itself.
    Brodo,
    /// brodo with `--busy-poll 0`: it sleeps whenever it is idle.
    BrodoCalm,
    /// brodo with `--bulk tap`: every flow stays with the interface.
    BrodoTap,
    /// brodo with a policy of ten rules, of which two allow the server by its name ([`policy_options`]).
    BrodoRules10,
    /// The same with 16,384, as many as a policy may have.
    BrodoRules16384,
    /// brodo with as many, of which one opens the server behind a gate; HTTP requests alone.
    BrodoGate,
    /// Frames moved between a stream and an interface, and no more: the bound of a back end.
    BridgeStream,
    /// The same by vhost-user.
    BridgeVhostUser,
    /// gvproxy of gvisor-tap-vsock, with frames on a stream; IPv4 alone.
    Gvproxy,
    /// passt, with frames on a stream.
    PasstStream,
    /// passt by vhost-user.
    PasstVhostUser,
    /// `brodo vm --socket`, with the same frames on a stream.
    BrodoStream,
    /// `brodo vm --vhost-user`.
    BrodoVhostUser,
}

impl System {
    /// Every system, references first.
    pub const ALL: [Self; 25] = [
        Self::HostDirect,
        Self::Veth,
        Self::Relay,
        Self::RelaySplice,
        Self::RelayRing,
        Self::RelayPolledRing,
        Self::Taps,
        Self::TapsQueues,
        Self::TapsRing,
        Self::TapsPolledRing,
        Self::Pasta,
        Self::Slirp4netns,
        Self::Brodo,
        Self::BrodoCalm,
        Self::BrodoTap,
        Self::BrodoRules10,
        Self::BrodoRules16384,
        Self::BrodoGate,
        Self::BridgeStream,
        Self::BridgeVhostUser,
        Self::Gvproxy,
        Self::PasstStream,
        Self::PasstVhostUser,
        Self::BrodoStream,
        Self::BrodoVhostUser,
    ];

    /// Its name on command lines and in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HostDirect => "host-direct",
            Self::Veth => "veth",
            Self::Relay => "relay",
            Self::RelaySplice => "relay-splice",
            Self::RelayRing => "relay-ring",
            Self::RelayPolledRing => "relay-polled-ring",
            Self::Taps => "taps",
            Self::TapsQueues => "taps-queues",
            Self::TapsRing => "taps-ring",
            Self::TapsPolledRing => "taps-polled-ring",
            Self::Pasta => "pasta",
            Self::Slirp4netns => "slirp4netns",
            Self::Brodo => "brodo",
            Self::BrodoCalm => "brodo-calm",
            Self::BrodoTap => "brodo-tap",
            Self::BrodoRules10 => "brodo-rules-10",
            Self::BrodoRules16384 => "brodo-rules-16384",
            Self::BrodoGate => "brodo-gate",
            Self::BridgeStream => "bridge-stream",
            Self::BridgeVhostUser => "bridge-vhost-user",
            Self::Gvproxy => "gvproxy",
            Self::PasstStream => "passt-stream",
            Self::PasstVhostUser => "passt-vhost-user",
            Self::BrodoStream => "brodo-stream",
            Self::BrodoVhostUser => "brodo-vhost-user",
        }
    }

    /// The system of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|system| system.name() == name)
    }

    /// Whether it is brodo, with whatever options.
    pub const fn is_brodo(self) -> bool {
        self.is_variant() || matches!(self, Self::Brodo | Self::BrodoStream | Self::BrodoVhostUser)
    }

    /// Whether it is measured on request only, to be compared with brodo as it is by default.
    pub const fn is_variant(self) -> bool {
        matches!(self, Self::BrodoCalm | Self::BrodoTap) || self.has_policy()
    }

    /// Whether it is brodo with a policy.
    pub const fn has_policy(self) -> bool {
        matches!(self, Self::BrodoRules10 | Self::BrodoRules16384 | Self::BrodoGate)
    }

    /// Whether a process of its own forwards for the guest.
    pub const fn is_forwarder(self) -> bool {
        self.is_brodo()
            || self.is_passt()
            || self.is_bridge()
            || matches!(self, Self::Pasta | Self::Slirp4netns | Self::Gvproxy)
    }

    /// Whether a process carries its bytes, so that it has a processor time.
    pub const fn has_process(self) -> bool {
        !matches!(self, Self::HostDirect | Self::Veth)
    }

    /// Whether it is a program of this benchmark that moves frames alone.
    const fn is_bridge(self) -> bool {
        matches!(self, Self::BridgeStream | Self::BridgeVhostUser)
    }

    const fn is_passt(self) -> bool {
        matches!(self, Self::PasstStream | Self::PasstVhostUser)
    }

    /// The monitor of the virtual machine that it serves, if it serves one.
    pub const fn monitor(self) -> Option<MonitorKind> {
        match self {
            Self::BridgeStream | Self::Gvproxy | Self::PasstStream | Self::BrodoStream => {
                Some(MonitorKind::Stream)
            }
            Self::BridgeVhostUser | Self::PasstVhostUser | Self::BrodoVhostUser => {
                Some(MonitorKind::VhostUser)
            }
            _ => None,
        }
    }

    /// Whether the system runs the workload of this name.
    pub fn does(self, workload: &str) -> bool {
        match self {
            Self::Relay | Self::RelaySplice | Self::RelayRing | Self::RelayPolledRing => {
                matches!(workload, "up" | "down" | "crr" | "rr")
            }
            // Half-close: it ends both directions of a connection with the first, so no upload that is ended
            // so has its receipt.
            Self::Gvproxy => workload != "up",
            // Bytes that are no request do not pass its gate.
            Self::BrodoGate => workload == "http",
            _ => true,
        }
    }

    /// Whether a link with an MTU lies between guest and host.
    pub const fn has_mtu(self) -> bool {
        !matches!(self, Self::HostDirect)
    }
}

/// Paths of the forwarders' programs.
#[derive(Debug, Clone, Default, Args)]
pub struct Programs {
    /// The brodo to measure; default: the one beside this program, then PATH
    #[arg(long, value_name = "FILE")]
    pub brodo: Option<PathBuf>,
    /// Folder with pasta, passt, slirp4netns and gvproxy; default: $BRODO_PEERS, then PATH
    #[arg(long, value_name = "FOLDER")]
    pub peers: Option<PathBuf>,
    /// More options for brodo, separated by spaces
    #[arg(long, value_name = "OPTIONS", default_value = "", allow_hyphen_values = true)]
    pub options: String,
}

impl Programs {
    /// brodo's options as words.
    pub fn options(&self) -> impl Iterator<Item = &str> {
        self.options.split_whitespace()
    }

    /// The program of a system; the error names the places searched.
    pub fn find(&self, system: System) -> Result<PathBuf> {
        let name = if system.is_passt() { "passt" } else { system.name() };
        let missing = || Failure(format!("{name} is not installed"));
        if system.is_bridge() {
            return std::env::current_exe().map_err(|error| Failure(error.to_string()));
        }
        if system.is_brodo() {
            let name = System::Brodo.name();
            let missing = || Failure("brodo is not built (cargo build --release -p brodo)".into());
            let beside =
                || Some(std::env::current_exe().ok()?.parent()?.join(name)).filter(|file| file.is_file());
            return self.brodo.clone().or_else(beside).or_else(|| find_program(name)).ok_or_else(missing);
        }
        let variable = std::env::var_os("BRODO_PEERS").map(PathBuf::from);
        let folder = self.peers.clone().or(variable);
        let in_folder = folder.map(|folder| folder.join(name)).filter(|file| file.is_file());
        in_folder.or_else(|| find_program(name)).ok_or_else(missing)
    }

    /// Version of a system's program in its own words, on one line.
    pub fn version(&self, system: System) -> Option<String> {
        let program = self.find(system).ok().filter(|_| system.is_forwarder() && !system.is_bridge())?;
        let output = std::process::Command::new(program).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().next().map(str::to_owned)
    }
}

/// passt in the foreground, for a guest with the addresses of brodo's defaults.
const PASST: &str = "-f -q --no-map-gw -t none -u none -a 10.0.2.15 -n 24 -g 10.0.2.2 -a fd00::15 -g fd00::2";

/// gvproxy without its SSH forward.
const GVPROXY: &str = "-ssh-port -1 -mtu";
/// The router of its network, of which it has no option.
const GVPROXY_GATEWAY: &[&str] = &["--gateway", "192.168.127.1"];

/// A guest behind the monitor of a system.
fn machine(world: &World, system: System, mtu: u32, words: &[&str]) -> Result<Guest> {
    let kind = system.monitor().unwrap_or(MonitorKind::Stream);
    // passt by vhost-user knows neither indirect descriptors nor event indices, and takes neither checksums
    // nor segmentation from the guest.
    let own: &[_] = match system {
        System::PasstVhostUser => &["--without", "30000000"],
        System::Gvproxy => GVPROXY_GATEWAY,
        _ => &[],
    };
    let machine = Machine { kind, mtu, offload: system == System::BrodoVhostUser, words: own };
    let option: &[_] = match system {
        System::Gvproxy => &["-listen-qemu", "unix://"],
        System::PasstStream => &["--socket"],
        System::PasstVhostUser => &["--vhost-user", "--socket"],
        _ => &[kind.option()],
    };
    let words: Vec<_> = words.iter().chain(option).map(|word| (*word).to_owned()).collect();
    machine.start(world, &world.enter_host_as_user(), &words)
}

/// A guest behind a bridge.
fn bridge(world: &World, kind: MonitorKind, mtu: u32) -> Result<Guest> {
    let offload = kind == MonitorKind::VhostUser;
    let subnet: &[_] = if offload { &["--subnet", "4"] } else { &["--subnet", "3"] };
    let [probe, name] = world.probe();
    let mtu_text = mtu.to_string();
    let mut words = vec![&*probe, &*name, "bridge", "--mtu", &*mtu_text];
    words.extend(subnet);
    words.push(kind.name());
    let words: Vec<_> = words.into_iter().map(str::to_owned).collect();
    Machine { kind, mtu, offload, words: subnet }.start(world, &world.host.enter(), &words)
}

/// A running guest.
#[derive(Debug)]
pub struct Guest {
    /// Command prefix that runs a program in the guest as the guest's user.
    pub enter: Vec<String>,
    /// Command prefix that runs a program in the guest's network namespace with all rights over it.
    pub enter_as_root: Vec<String>,
    /// The waiting process in the guest.
    pub pid: u32,
    /// The forwarder's processes.
    pub forwarder: Vec<u32>,
    jobs: Vec<Job>,
    /// The forwarder outlives its guest, and ends by a signal.
    is_asked_to_end: bool,
}

impl Guest {
    /// Starts `system` with a link of `mtu` and waits until its guest has a network. A relay has the ports of
    /// `flows_max` flows of single bytes.
    pub fn start(
        world: &World,
        system: System,
        programs: &Programs,
        mtu: u32,
        flows_max: usize,
    ) -> Result<Self> {
        let (mtu_bytes, mtu) = (mtu, mtu.to_string());
        let path = |system| Ok(programs.find(system)?.to_string_lossy().into_owned());
        match system {
            System::HostDirect => Self::host_direct(world),
            System::Veth => Self::veth(world, &mtu).map(|(guest, _)| guest),
            System::Relay => Self::relay(world, &mtu, Carrier::Calls, flows_max),
            System::RelaySplice => Self::relay(world, &mtu, Carrier::Splice, flows_max),
            System::RelayRing => Self::relay(world, &mtu, Carrier::Ring, flows_max),
            System::RelayPolledRing => Self::relay(world, &mtu, Carrier::PolledRing, flows_max),
            System::Taps => Self::taps(world, &mtu, Carrier::Calls, 1),
            System::TapsQueues => {
                let queues = thread::available_parallelism().map_or(1, NonZero::get);
                Self::taps(world, &mtu, Carrier::Calls, queues)
            }
            System::TapsRing => Self::taps(world, &mtu, Carrier::Ring, 1),
            System::TapsPolledRing => Self::taps(world, &mtu, Carrier::PolledRing, 1),
            System::Slirp4netns => {
                Self::slirp4netns(world, &path(system)?, &mtu).map(Self::with_first_process_alone)
            }
            System::Pasta => {
                let program = path(system)?;
                let options = "--config-net --no-map-gw -t none -u none -T none -U none -q -m";
                let mut words: Vec<&str> =
                    std::iter::once(program.as_str()).chain(options.split(' ')).collect();
                words.extend([mtu.as_str(), "--"]);
                Self::forwarder(world, &world.enter_host_as_user(), &words)
                    .map(Self::with_first_process_alone)
            }
            System::Brodo
            | System::BrodoCalm
            | System::BrodoTap
            | System::BrodoRules10
            | System::BrodoRules16384
            | System::BrodoGate => {
                let program = world.install_program(&programs.find(system)?)?;
                let program = program.to_string_lossy();
                let mut words = vec![&*program, "run", "--mtu", &mtu];
                if system == System::BrodoCalm {
                    words.extend(["--busy-poll", "0"]);
                }
                if system == System::BrodoTap {
                    words.extend(["--bulk", "tap"]);
                }
                let policy = policy_options(world, system)?;
                words.extend(policy.iter().map(String::as_str));
                words.extend(programs.options());
                words.push("--");
                Self::forwarder(world, &world.enter_host_as_user(), &words)
            }
            System::BrodoStream | System::BrodoVhostUser => {
                let program = world.install_program(&programs.find(system)?)?;
                let program = program.to_string_lossy();
                let mut words = vec![&*program, "vm", "--mtu", &mtu];
                words.extend(programs.options());
                machine(world, system, mtu_bytes, &words)
            }
            System::BridgeStream => bridge(world, MonitorKind::Stream, mtu_bytes),
            System::BridgeVhostUser => bridge(world, MonitorKind::VhostUser, mtu_bytes),
            System::Gvproxy => {
                let program = path(system)?;
                let words = [program.as_str()].into_iter().chain(GVPROXY.split(' ')).chain([mtu.as_str()]);
                machine(world, system, mtu_bytes, &words.collect::<Vec<_>>())
            }
            System::PasstStream | System::PasstVhostUser => {
                let program = path(system)?;
                let mut words = vec![program.as_str(), "-m", &mtu];
                words.extend(PASST.split(' '));
                machine(world, system, mtu_bytes, &words)
            }
        }
    }

    /// Starts a forwarder, behind words that enter its namespace, whose command line ends where the guest's
    /// begins.
    pub fn forwarder(world: &World, enter: &[String], words: &[&str]) -> Result<Self> {
        let waiter = waiter(world);
        let all: Vec<&str> = words.iter().copied().chain(waiter.iter().map(String::as_str)).collect();
        let mut job = world.start(enter, &all)?;
        let pid = wait_for_guest(&waiter, &mut job)?;
        // Wrappers exec the forwarder; some forwarders consist of several processes.
        let program = procfs::program(job.pid());
        let mut forwarder = vec![job.pid()];
        forwarder.extend(
            procfs::descendants(job.pid()).into_iter().filter(|pid| procfs::program(*pid) == program),
        );
        Self::in_namespaces_of(pid, forwarder, vec![job])
    }

    fn slirp4netns(world: &World, program: &str, mtu: &str) -> Result<Self> {
        let mtu = format!("--mtu={mtu}");
        let words = [program, "--configure", "--disable-host-loopback", &mtu];
        Self::attached(world, |pid| words.into_iter().chain([pid, "tap0"]).map(str::to_owned).collect())
    }

    /// The same guest, whose forwarder is its first process: further ones set the interface up and end.
    fn with_first_process_alone(mut self) -> Self {
        self.forwarder.truncate(1);
        self
    }

    /// Starts the guest in namespaces of its own and then a forwarder that gets its process id.
    pub fn attached(world: &World, words: impl FnOnce(&str) -> Vec<String>) -> Result<Self> {
        let mut guest = Self::alone(world)?;
        let mut job = world.start(&world.enter_host_as_user(), words(&guest.pid.to_string()))?;
        wait_for_route(guest.pid, &mut job)?;
        guest.forwarder = family(&job);
        guest.jobs.insert(0, job);
        Ok(guest)
    }

    /// Starts a guest in namespaces of its own, without a network.
    pub fn alone(world: &World) -> Result<Self> {
        let waiter = waiter(world);
        let mut all: Vec<&str> = "unshare --user --map-root-user --net --mount".split(' ').collect();
        all.extend(waiter.iter().map(String::as_str));
        let mut guest = world.start(&world.enter_host_as_user(), &all)?;
        let pid = wait_for_pid(&waiter, &mut guest)?;
        Self::in_namespaces_of(pid, Vec::new(), vec![guest])
    }

    /// Waits until `machine` has given the guest a network, which `forwarder` serves until it is asked to
    /// end.
    pub fn serve_by(&mut self, forwarder: Job, mut machine: Job) -> Result<()> {
        wait_for_route(self.pid, &mut machine)?;
        self.forwarder = family(&forwarder);
        self.jobs.splice(0..0, [forwarder, machine]);
        self.is_asked_to_end = true;
        Ok(())
    }

    /// A guest behind a veth pair, and the name of the pair's device on the host.
    fn veth(world: &World, mtu: &str) -> Result<(Self, String)> {
        let beside = Beside::new(world)?;
        let (device, name) = (&beside.device, beside.netns.name());
        world.host.ip(&format!("link add {device} type veth peer name eth0 netns {name}\n"))?;
        beside.configure(world, mtu)?;
        Ok((Self::without_forwarder(world, beside.netns.enter())?, beside.device))
    }

    fn taps(world: &World, mtu: &str, carrier: Carrier, queues: usize) -> Result<Self> {
        let beside = Beside::new(world)?;
        let (path, queues) = (beside.netns.path(), queues.to_string());
        let words = ["taps", carrier.name(), &queues, &beside.device, &path.to_string_lossy()];
        let words = words.map(str::to_owned);
        let mut job = world.start(&world.host.enter(), world.probe().into_iter().chain(words))?;
        let mut guest = Self::without_forwarder(world, beside.netns.enter())?;
        // The process makes the guest's interface last.
        wait_for(&mut job, "its guest got no interface", || beside.netns.ip("link show eth0\n").ok())?;
        beside.configure(world, mtu)?;
        guest.forwarder = vec![job.pid()];
        guest.jobs.push(job);
        Ok(guest)
    }

    fn relay(world: &World, mtu: &str, carrier: Carrier, flows_max: usize) -> Result<Self> {
        let (guest, device) = Self::veth(world, mtu)?;
        let relay = |port: u16, ports: u16, threads: u16| {
            let [probe, name] = world.probe();
            let words = [probe, name, "relay".into(), device.clone(), HOST_V4.into()];
            let words = words.into_iter().chain([port, ports, threads].map(|number| number.to_string()));
            world.serve_with_line(&world.host.enter(), words.chain([carrier.name().to_owned()]))
        };
        // As many as the server of single bytes: a connection to another one would pass the relay by.
        let forwarder =
            vec![relay(SERVER_PORT, 1, 64)?, relay(RESPOND_PORT, round_trip_ports(flows_max), 1)?];
        Ok(Self { forwarder, ..guest })
    }

    fn host_direct(world: &World) -> Result<Self> {
        Self::without_forwarder(world, world.host.enter())
    }

    fn without_forwarder(world: &World, enter: Vec<String>) -> Result<Self> {
        let waiter = waiter(world);
        let mut job = world.start(&enter, &waiter)?;
        let pid = wait_for_pid(&waiter, &mut job)?;
        let enter_as_root = enter.clone();
        let (forwarder, is_asked_to_end) = (Vec::new(), false);
        Ok(Self { enter, enter_as_root, pid, forwarder, jobs: vec![job], is_asked_to_end })
    }

    fn in_namespaces_of(pid: u32, forwarder: Vec<u32>, jobs: Vec<Job>) -> Result<Self> {
        let target = pid.to_string();
        let words = |words: &[&str]| -> Vec<String> { words.iter().map(|word| (*word).to_owned()).collect() };
        let mut enter = become_user();
        enter.extend(words(&["nsenter", "-t", &target, "-U", "-n", "-m", "--preserve-credentials"]));
        let enter_as_root = words(&["nsenter", "-t", &target, "-n"]);
        // A new namespace inherits the machine's congestion control, not its parent's.
        let parameters = [("ipv4/tcp_congestion_control", "cubic")];
        let set = set_sysctls(&words(&["nsenter", "-t", &target, "-n"]), &parameters);
        // A guest that is gone: the forwarder says why.
        let words_of = || jobs.iter().map(Job::describe).collect::<Vec<_>>().join("\n");
        set.map_err(|Failure(why)| Failure(format!("{why}\n{}", words_of())))?;
        Ok(Self { enter, enter_as_root, pid, forwarder, jobs, is_asked_to_end: false })
    }

    /// Sets parameters below `/proc/sys/net` in the guest.
    pub fn set(&self, parameters: &[(&str, &str)]) -> Result<()> {
        set_sysctls(&self.enter_as_root, parameters)
    }

    /// Keeps the forwarder from running until [`Guest::resume`].
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets the forwarder run again.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Asks brodo for an upgrade in place; false if it is gone.
    pub fn upgrade(&self) -> bool {
        // The first of its processes; the others are replaced.
        let brodo = self.forwarder.first();
        brodo.is_some_and(|pid| kill(Pid::from_raw(*pid as i32), Signal::SIGUSR2).is_ok())
    }

    /// Kills brodo's engine (SIGKILL); false if there is none at this moment.
    pub fn kill_engine(&self) -> bool {
        self.forwarder.first().is_some_and(|brodo| kill_engine(*brodo))
    }

    /// Makes brodo's engine crash (SIGABRT); false if there is none at this moment.
    pub fn crash_engine(&self) -> bool {
        self.forwarder.first().is_some_and(|brodo| signal_engine(*brodo, Signal::SIGABRT))
    }

    fn signal(&self, signal: Signal) {
        for pid in &self.forwarder {
            // It may have ended already: then there is nothing to signal.
            let _ = kill(Pid::from_raw(*pid as i32), signal);
        }
    }

    /// Process time of the forwarder so far, in milliseconds.
    pub fn cpu_ms(&self) -> f64 {
        self.forwarder.iter().map(|pid| procfs::cpu_ms(*pid)).sum()
    }

    /// The forwarder's resident memory in KiB, file pages that its processes share once.
    pub fn rss_kib(&self) -> u64 {
        procfs::rss_kib(&self.forwarder)
    }

    /// The forwarder's resident memory in KiB that no file backs.
    pub fn anonymous_kib(&self) -> u64 {
        self.forwarder.iter().map(|pid| procfs::anonymous_kib(*pid)).sum()
    }

    /// The forwarder's resident memory in KiB, its share of shared pages only.
    pub fn pss_kib(&self) -> u64 {
        self.forwarder.iter().map(|pid| procfs::pss_kib(*pid)).sum()
    }

    /// Open descriptors of the forwarder's process that has most: brodo's keeper and engine have one table.
    pub fn fd_count(&self) -> usize {
        self.forwarder.iter().map(|pid| procfs::fd_count(*pid)).max().unwrap_or(0)
    }

    /// Processes of the forwarder that have ended.
    pub fn gone(&self) -> Vec<u32> {
        self.forwarder.iter().copied().filter(|pid| !procfs::is_alive(*pid)).collect()
    }

    /// Fails if a process of the forwarder has ended. brodo replaces an engine that crashes and goes on, but
    /// a process that has ended has neither processor time nor memory: figures would lack its share.
    pub fn verify(&self) -> Result<()> {
        let gone = self.gone();
        if gone.is_empty() {
            return Ok(());
        }
        Err(Failure(format!("processes of the forwarder have ended: {gone:?}\n{}", self.describe())))
    }

    /// Whether the forwarder still runs.
    pub fn is_running(&mut self) -> bool {
        self.jobs.iter_mut().all(Job::is_running)
    }

    /// Ends the guest by closing its input and waits for the forwarder to follow; the forwarder's exit and
    /// last words.
    pub fn finish(mut self, limit: Duration) -> Result<crate::process::Finished> {
        for job in &mut self.jobs {
            job.close_stdin();
        }
        if self.is_asked_to_end {
            self.jobs[0].ask_to_end();
        }
        self.jobs[0].wait(limit)
    }

    /// Standard error of the forwarder so far.
    pub fn stderr(&self) -> String {
        self.jobs[0].stderr()
    }

    /// Command lines and outputs of the forwarder and its guest.
    pub fn describe(&self) -> String {
        self.jobs.iter().map(Job::describe).collect::<Vec<_>>().join("\n")
    }
}

/// A namespace beside the host's for a guest, whose eth0 and the host's `device` are two ends of one link.
struct Beside {
    netns: Netns,
    device: String,
    number: u32,
}

impl Beside {
    /// The namespace, without an interface as yet.
    fn new(world: &World) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // A number in name and address: interface names have at most 15 letters, and each guest needs an
        // address of its own.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let netns = world.add_namespace(&format!("guest{number}"))?;
        Ok(Self { netns, device: format!("guest{number}"), number })
    }

    /// Brings both ends up, with addresses and the guest's route.
    fn configure(&self, world: &World, mtu: &str) -> Result<()> {
        let Self { netns, device, number } = self;
        world
            .host
            .ip(&format!("addr add 10.99.{number}.1/24 dev {device}\nlink set {device} mtu {mtu} up\n"))?;
        netns.ip(&format!(
            "link set lo up\naddr add 10.99.{number}.2/24 dev eth0\nlink set eth0 mtu {mtu} up\nroute add default via 10.99.{number}.1\n"
        ))
    }
}

/// Kills the engine of a brodo (SIGKILL), whose first process is this one; false if there is none at this
/// moment.
pub fn kill_engine(brodo: u32) -> bool {
    signal_engine(brodo, Signal::SIGKILL)
}

fn signal_engine(brodo: u32, signal: Signal) -> bool {
    let is_engine = |pid: &u32| procfs::name(*pid) == "brodo-engine" && procfs::is_alive(*pid);
    let Some(engine) = procfs::descendants(brodo).into_iter().find(is_engine) else { return false };
    // Until it has ended: the next signal is for the next engine. An abort of a large process takes its time.
    kill(Pid::from_raw(engine as i32), signal).is_ok()
        && wait_until(PATIENCE, || (!procfs::is_alive(engine)).then_some(())).is_some()
}

/// Kills a process, if it has not ended.
pub fn kill_process(pid: u32) {
    let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
}

/// Lines of brodo's standard error about crashes that it has survived.
pub fn crashes(said: &str) -> Vec<&str> {
    said.lines().filter(|line| line.contains(" crashed (")).collect()
}

/// The process of a job, and all that it has started and that run: passt leaves a zombie of its start-up.
fn family(job: &Job) -> Vec<u32> {
    let started = procfs::descendants(job.pid()).into_iter().filter(|pid| procfs::is_alive(*pid));
    std::iter::once(job.pid()).chain(started).collect()
}

/// The command line of a process that waits in the guest, unlike any other.
fn waiter(world: &World) -> Vec<String> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let mut words = world.probe().to_vec();
    words.extend(["wait".to_owned(), format!("{}", NUMBER.fetch_add(1, Ordering::Relaxed))]);
    words
}

fn wait_for_guest(waiter: &[String], job: &mut Job) -> Result<u32> {
    let pid = wait_for_pid(waiter, job)?;
    wait_for_route(pid, job)?;
    Ok(pid)
}

fn wait_for_pid(waiter: &[String], job: &mut Job) -> Result<u32> {
    let words: Vec<&str> = waiter.iter().map(String::as_str).collect();
    wait_for(job, "its guest did not start", || procfs::pid_of(&words))
}

fn wait_for_route(pid: u32, job: &mut Job) -> Result<()> {
    wait_for(job, "its guest got no default route", || procfs::has_default_route(pid).then_some(()))
}

/// Waits for a condition that the forwarder brings about; fails early if the forwarder ends.
fn wait_for<T>(job: &mut Job, failure: &str, mut condition: impl FnMut() -> Option<T>) -> Result<T> {
    let found = wait_until(PATIENCE, || match condition() {
        Some(value) => Some(Some(value)),
        None => (!job.is_running()).then_some(None),
    });
    found.flatten().ok_or_else(|| Failure(format!("{failure}: {}", job.describe())))
}

#[cfg(test)]
mod tests {
    //! Forwarders whose processes end.

    use super::*;

    #[test]
    fn a_forwarder_is_whole_until_one_of_its_processes_ends() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("started");
        let guest = Guest {
            enter: Vec::new(),
            enter_as_root: Vec::new(),
            pid: 0,
            forwarder: vec![std::process::id(), child.id()],
            jobs: Vec::new(),
            is_asked_to_end: false,
        };
        assert!(guest.verify().is_ok());
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert_eq!(guest.gone(), [child.id()]);
        let why = guest.verify().expect_err("a process has ended");
        assert!(why.0.contains(&child.id().to_string()), "{why}");
    }

    #[test]
    fn crashes_are_found_in_standard_error() {
        let said =
            "brodo: rx_frames 7\nbrodo: the engine crashed (by signal 6 (SIGABRT)) and was started again\n";
        assert_eq!(crashes(said).len(), 1);
        assert_eq!(crashes("brodo: rx_frames 7\n"), Vec::<&str>::new());
    }
}
