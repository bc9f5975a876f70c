//! Network namespaces to run a forwarder in: a *host* where it runs, and a *world* behind a veth pair.
//!
//! Everything is made by the process that uses it, is named after that process, and is removed when the
//! [`World`] is dropped; leftovers of a killed process are removed by the next one. Nothing outside the
//! namespaces is changed, except what ordinary machines have anyway: `/dev/net/tun` is open to all, and cubic
//! is allowed in namespaces.
//!
//! The host has an address on the veth pair and, as some forwarders give the guest that very address, a
//! second one on its loopback interface. The world answers for a few prefixes with each kind of network
//! failure.

use crate::process::{Context, Failure, Finished, Job, PATIENCE, Result, find_program, wait_until};
use crate::procfs;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once};
use std::time::Duration;

/// The host's address on its loopback interface: servers that a guest reaches without leaving the host.
pub const HOST_V4: &str = "198.19.0.1";
/// The same over IPv6.
pub const HOST_V6: &str = "fd00:19::1";
/// The world's address, one hop from the host.
pub const WORLD_V4: &str = "198.18.0.2";
/// The same over IPv6.
pub const WORLD_V6: &str = "fd00:18::2";
/// Destinations for which the world answers "host unreachable".
pub const UNREACHABLE: [&str; 2] = ["198.18.201.1", "fd00:201::1"];
/// Destinations for which the world answers "administratively prohibited".
pub const PROHIBITED: [&str; 2] = ["198.18.202.1", "fd00:202::1"];
/// Destinations for which the world answers nothing.
pub const BLACKHOLE: [&str; 2] = ["198.18.203.1", "fd00:203::1"];
/// Destinations for which the host itself has no route.
pub const NO_ROUTE: [&str; 2] = ["198.18.204.1", "fd00:204::1"];

/// The ordinary user that forwarders and guests run as: `nobody`.
pub const USER: u32 = 65534;

/// Environment variable that marks every program started in a world, to find it at the end.
const MARK: &str = "BRODO_WORLD";

/// Links of the two namespaces; both ends of the veth pair are permanent neighbours: the kernel joins the
/// solicited-node group (RFC 4291, 2.7.1) of a new IPv6 address in a work item, and was seen to miss
/// solicitations for twenty seconds more.
const HOST_LINKS: &str = "
    link set lo up
    addr add 198.18.0.1/24 dev outside
    addr add fd00:18::1/64 dev outside nodad
    addr add 198.19.0.1/32 dev lo
    addr add fd00:19::1/128 dev lo
    link set outside up
    neigh add fd00:18::2 lladdr 02:00:00:18:00:02 dev outside nud permanent
    route add default via 198.18.0.2
    route add default via fd00:18::2
    route add unreachable 198.18.204.0/24
    route add unreachable fd00:204::/64
";

const WORLD_LINKS: &str = "
    link set lo up
    addr add 198.18.0.2/24 dev inside
    addr add fd00:18::2/64 dev inside nodad
    link set inside up
    neigh add fd00:18::1 lladdr 02:00:00:18:00:01 dev inside nud permanent
    route add unreachable 198.18.201.0/24
    route add unreachable fd00:201::/64
    route add prohibit 198.18.202.0/24
    route add prohibit fd00:202::/64
    route add blackhole 198.18.203.0/24
    route add blackhole fd00:203::/64
";

/// Sysctls of the host: the same congestion control on every machine, ICMP errors without a rate limit, as
/// tests need many, and ping sockets open to all groups.
///
/// TIME-WAIT: forwarders' sockets toward the server close first and keep their ports for a minute. All
/// systems of a measurement share the host's ports, and once half of them are taken connect(2) searches
/// thousands for each connection; so a port may be used anew after a second (tcp(7), `tcp_tw_reuse`).
const HOST_SYSCTLS: &[(&str, &str)] = &[
    ("ipv4/tcp_congestion_control", "cubic"),
    ("ipv4/ping_group_range", "0 2147483647"),
    ("ipv4/icmp_ratelimit", "0"),
    ("ipv6/icmp/ratelimit", "0"),
    // A connection to nowhere fails after three seconds instead of two minutes.
    ("ipv4/tcp_syn_retries", "1"),
    ("ipv4/tcp_tw_reuse", "1"),
];

/// Sysctls of the world: as the host's, and it forwards, because only routers report a missing route.
const WORLD_SYSCTLS: &[(&str, &str)] = &[
    ("ipv4/tcp_congestion_control", "cubic"),
    ("ipv4/icmp_ratelimit", "0"),
    ("ipv6/icmp/ratelimit", "0"),
    ("ipv4/ip_forward", "1"),
    ("ipv6/conf/all/forwarding", "1"),
];

/// A network namespace by name.
#[derive(Debug, Clone)]
pub struct Netns(String);

impl Netns {
    /// Command prefix that runs a program in this namespace, as root.
    pub fn enter(&self) -> Vec<String> {
        ["ip", "netns", "exec", &self.0].map(str::to_owned).to_vec()
    }

    /// Its name, as `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Sets parameters below `/proc/sys/net`.
    pub fn set(&self, parameters: &[(&str, &str)]) -> Result<()> {
        set_sysctls(&self.enter(), parameters)
    }

    /// File of the namespace, for setns(2).
    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.0)
    }

    /// Runs lines of `ip -batch` in this namespace.
    pub fn ip(&self, lines: &str) -> Result<()> {
        ip_batch(&["-n", &self.0], lines)
    }

    /// Waits until the namespace takes packets for these IPv6 addresses, whose links have a carrier.
    pub fn await_local(&self, addresses: &[&str]) -> Result<()> {
        await_local(&["-n", &self.0], addresses)
    }
}

/// Namespaces, a folder for files, and the programs that run in them.
#[derive(Debug)]
pub struct World {
    id: String,
    folder: PathBuf,
    probe: PathBuf,
    /// The namespace of the forwarder.
    pub host: Netns,
    /// The namespace beyond the host.
    pub world: Netns,
    more: Mutex<Vec<Netns>>,
    services: Mutex<Vec<Job>>,
}

impl World {
    /// Builds the namespaces. Needs root.
    pub fn new() -> Result<Self> {
        static SWEEP: Once = Once::new();
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        SWEEP.call_once(sweep);
        if !is_root() {
            return Err(Failure("namespaces for tests can only be made by root: run this with sudo".into()));
        }
        open_tun()?;
        allow_cubic()?;
        let id = format!("brodo-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(&id);
        let world = Self {
            host: Netns(format!("{id}-host")),
            world: Netns(format!("{id}-world")),
            probe: folder.join("probe"),
            folder,
            id,
            more: Mutex::default(),
            services: Mutex::default(),
        };
        world.build()?;
        Ok(world)
    }

    fn build(&self) -> Result<()> {
        let folder = &self.folder;
        fs::create_dir_all(folder).context(|| format!("cannot create {}", folder.display()))?;
        let home = self.home();
        fs::create_dir_all(&home).context(|| format!("cannot create {}", home.display()))?;
        chown(&home, Some(USER), Some(USER)).context(|| format!("cannot give away {}", home.display()))?;
        for path in [folder, &home] {
            fs::set_permissions(path, Permissions::from_mode(0o755))
                .context(|| "cannot open a folder".into())?;
        }
        let this = std::env::current_exe().context(|| "cannot find this program".into())?;
        self.install(&this, &self.probe)?;

        let (host, world) = (&self.host, &self.world);
        ip_batch(&[], &format!("netns add {}\nnetns add {}\n", host.0, world.0))?;
        // Sysctls before any link comes up, so that their defaults apply to all links.
        host.set(HOST_SYSCTLS)?;
        world.set(WORLD_SYSCTLS)?;
        host.ip(&format!(
            "link add outside address 02:00:00:18:00:01 type veth \
             peer name inside address 02:00:00:18:00:02 netns {}\n",
            world.0
        ))?;
        world.ip(WORLD_LINKS)?;
        host.ip(HOST_LINKS)?;
        world.await_local(&["fd00:18::2"])?;
        host.await_local(&["fd00:18::1", HOST_V6])
    }

    /// Copies a program into a folder that the ordinary user may enter: a checkout may lie in a private one.
    fn install(&self, from: &Path, to: &Path) -> Result<()> {
        let link = fs::hard_link(from, to);
        if link.is_err() {
            fs::copy(from, to)
                .context(|| format!("cannot copy {} to {}", from.display(), self.folder.display()))?;
        }
        Ok(())
    }

    /// Copies a program into the world's folder under its own name; its path there.
    pub fn install_program(&self, program: &Path) -> Result<PathBuf> {
        let to = self.folder.join(program.file_name().unwrap_or_default());
        if !to.exists() {
            self.install(program, &to)?;
        }
        Ok(to)
    }

    /// A folder for files of this world; only root writes here.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A folder the ordinary user may write to: its home.
    pub fn home(&self) -> PathBuf {
        self.folder.join("home")
    }

    /// Command line of the probe, without its arguments.
    pub fn probe(&self) -> [String; 2] {
        [self.probe.to_string_lossy().into_owned(), "probe".to_owned()]
    }

    /// A further namespace, without links.
    pub fn add_namespace(&self, suffix: &str) -> Result<Netns> {
        let netns = Netns(format!("{}-{suffix}", self.id));
        ip_batch(&[], &format!("netns add {}\n", netns.0))?;
        if let Ok(mut more) = self.more.lock() {
            more.push(netns.clone());
        }
        netns.set(&[("ipv4/tcp_congestion_control", "cubic")])?;
        Ok(netns)
    }

    /// All namespaces of this world: the host's, the world's, and the further ones.
    pub fn namespaces(&self) -> Vec<Netns> {
        let more = self.more.lock().map(|more| more.clone()).unwrap_or_default();
        [self.host.clone(), self.world.clone()].into_iter().chain(more).collect()
    }

    /// A command behind `enter`, marked as belonging to this world.
    pub fn command<S: AsRef<OsStr>>(&self, enter: &[String], words: impl IntoIterator<Item = S>) -> Command {
        let words: Vec<_> = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
        let mut line = enter.iter().map(AsRef::as_ref).chain(words.iter().map(AsRef::as_ref));
        let mut command = Command::new::<&OsStr>(line.next().unwrap_or(OsStr::new("true")));
        command.args(line).env(MARK, &self.id).env("HOME", self.home()).current_dir(self.home());
        command.env_remove("XDG_RUNTIME_DIR").stdin(Stdio::null());
        command
    }

    /// Command prefix that runs a program in the host namespace as the ordinary user.
    pub fn enter_host_as_user(&self) -> Vec<String> {
        let mut words = self.host.enter();
        words.extend(become_user());
        words
    }

    /// Starts a command behind `enter`.
    pub fn start<S: AsRef<OsStr>>(
        &self,
        enter: &[String],
        words: impl IntoIterator<Item = S>,
    ) -> Result<Job> {
        Job::start(self.command(enter, words), &self.folder)
    }

    /// Runs a command behind `enter` to its end.
    pub fn run<S: AsRef<OsStr>>(
        &self,
        enter: &[String],
        words: impl IntoIterator<Item = S>,
        limit: Duration,
    ) -> Result<Finished> {
        self.start(enter, words)?.wait(limit)
    }

    /// Starts a server that lives as long as the world, and waits until it listens on `port`.
    pub fn serve<S: AsRef<OsStr>>(
        &self,
        netns: &Netns,
        words: impl IntoIterator<Item = S>,
        port: u16,
    ) -> Result<u32> {
        self.serve_behind(&netns.enter(), words, port)
    }

    /// Starts a server behind `enter`, any command prefix, as [`World::serve`] does.
    pub fn serve_behind<S: AsRef<OsStr>>(
        &self,
        enter: &[String],
        words: impl IntoIterator<Item = S>,
        port: u16,
    ) -> Result<u32> {
        let job = self.start_server(enter, words, port)?;
        let pid = job.pid();
        self.keep(job);
        Ok(pid)
    }

    /// Starts a server behind `enter` that the caller ends, and waits until it listens on `port`.
    pub fn start_server<S: AsRef<OsStr>>(
        &self,
        enter: &[String],
        words: impl IntoIterator<Item = S>,
        port: u16,
    ) -> Result<Job> {
        let mut job = self.start(enter, words)?;
        let ready = wait_until(PATIENCE, || {
            if procfs::is_listening(job.pid(), port) {
                Some(true)
            } else {
                (!job.is_running()).then_some(false)
            }
        });
        if ready == Some(true) {
            Ok(job)
        } else {
            Err(Failure(format!("nothing listens on port {port}: {}", job.describe())))
        }
    }

    /// Starts a server behind `enter` that lives as long as the world, and waits until it prints a line.
    pub fn serve_with_line<S: AsRef<OsStr>>(
        &self,
        enter: &[String],
        words: impl IntoIterator<Item = S>,
    ) -> Result<u32> {
        let mut job = self.start(enter, words)?;
        let ready = wait_until(PATIENCE, || {
            let has_line = job.stdout().contains('\n');
            (has_line || !job.is_running()).then_some(has_line)
        });
        if ready != Some(true) {
            return Err(Failure(format!("a server is not ready: {}", job.describe())));
        }
        let pid = job.pid();
        self.keep(job);
        Ok(pid)
    }

    /// Keeps a job running as long as the world exists.
    pub fn keep(&self, job: Job) {
        if let Ok(mut services) = self.services.lock() {
            services.push(job);
        }
    }

    /// Starts the probe's TCP and UDP server on `port`.
    pub fn serve_probe(&self, netns: &Netns, port: u16) -> Result<u32> {
        self.serve_probe_behind(&netns.enter(), port)
    }

    /// Starts the probe's server behind `enter`, any command prefix.
    pub fn serve_probe_behind(&self, enter: &[String], port: u16) -> Result<u32> {
        let [probe, name] = self.probe();
        self.serve_behind(enter, [probe, name, "serve".into(), port.to_string()], port)
    }

    /// Command lines and outputs of all servers so far.
    pub fn describe(&self) -> String {
        let services = self.services.lock().map(|jobs| jobs.iter().map(Job::describe).collect::<Vec<_>>());
        services.unwrap_or_default().join("\n")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Ok(mut services) = self.services.lock() {
            services.clear();
        }
        // Confined processes of brodo have no environment.
        let programs = procfs::pids_of_programs_in(&self.folder);
        for pid in procfs::pids_with_variable(MARK, &self.id).into_iter().chain(programs) {
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        }
        if let Ok(more) = self.more.lock() {
            for netns in more.iter() {
                remove_namespace(&netns.0);
            }
        }
        remove_namespace(&self.host.0);
        remove_namespace(&self.world.0);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Command prefix that runs a program as the ordinary user.
pub fn become_user() -> Vec<String> {
    let user = format!("--reuid={USER}");
    let group = format!("--regid={USER}");
    ["setpriv", &user, &group, "--clear-groups"].map(str::to_owned).to_vec()
}

/// Sets parameters below `/proc/sys/net` of the namespace that `enter` enters.
pub fn set_sysctls(enter: &[String], parameters: &[(&str, &str)]) -> Result<()> {
    let mut script = String::from("set -e;");
    for (name, value) in parameters {
        let _ = write!(script, " echo {value} > /proc/sys/net/{name};");
    }
    let mut words = enter.iter().map(String::as_str).chain(["sh", "-c", &script]);
    let output = Command::new(words.next().unwrap_or("true"))
        .args(words)
        .output()
        .context(|| format!("cannot run {}", enter.join(" ")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure(format!("cannot set {parameters:?}: {}", String::from_utf8_lossy(&output.stderr))))
}

pub(crate) fn ip_batch(arguments: &[&str], lines: &str) -> Result<()> {
    let mut child = Command::new("ip")
        .args(arguments)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context(|| "cannot start ip (package iproute2)".into())?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(lines.as_bytes()).context(|| "cannot write to ip".into())?;
    }
    let output = child.wait_with_output().context(|| "cannot wait for ip".into())?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure(format!("ip {arguments:?} failed: {}{lines}", String::from_utf8_lossy(&output.stderr))))
}

/// Waits until the kernel takes packets for IPv6 addresses of the namespace that `arguments` of `ip` select.
/// It adds the local route of a new address in a work item, without duplicate address detection too: packets
/// that come before are dropped without an ICMP error (`Ip6InAddrErrors`).
pub(crate) fn await_local(arguments: &[&str], addresses: &[&str]) -> Result<()> {
    let mut listed = String::new();
    let is_there = || {
        let shown =
            Command::new("ip").args(arguments).args(["-6", "route", "show", "table", "local"]).output();
        listed = String::from_utf8_lossy(&shown.ok()?.stdout).into_owned();
        let has = |address: &&str| listed.contains(&format!("local {address} dev "));
        addresses.iter().all(has).then_some(())
    };
    let there = wait_until(PATIENCE, is_there);
    there.ok_or_else(|| Failure(format!("{addresses:?} are not all local: {listed}")))
}

fn remove_namespace(name: &str) {
    let _ = Command::new("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
    let _ = fs::remove_dir_all(Path::new("/etc/netns").join(name));
}

/// Some build machines have `/dev/net/tun` for root only; udev's rule everywhere else is 0666.
fn open_tun() -> Result<()> {
    let tun = Path::new("/dev/net/tun");
    let metadata = fs::metadata(tun).context(|| "/dev/net/tun is missing (modprobe tun)".into())?;
    if metadata.permissions().mode() & 0o666 != 0o666 {
        fs::set_permissions(tun, Permissions::from_mode(0o666))
            .context(|| "cannot open /dev/net/tun to all".into())?;
    }
    Ok(())
}

/// A namespace may only choose a congestion control that the machine allows to all; cubic usually is, as the
/// default.
fn allow_cubic() -> Result<()> {
    let path = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
    let allowed = fs::read_to_string(path).context(|| format!("cannot read {path}"))?;
    if !allowed.split_whitespace().any(|name| name == "cubic") {
        fs::write(path, format!("{} cubic", allowed.trim()))
            .context(|| format!("cannot add cubic to {path}"))?;
    }
    Ok(())
}

/// Removes what processes that no longer exist have left behind.
fn sweep() {
    let owner = |name: &str| -> Option<u32> { name.strip_prefix("brodo-")?.split('-').next()?.parse().ok() };
    let gone = |name: &str| owner(name).is_some_and(|pid| !procfs::is_alive(pid));
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let netns = Path::new("/run/netns");
    for name in names(netns).iter().filter(|name| gone(name)) {
        remove_namespace(name);
    }
    let temporary = std::env::temp_dir();
    for name in names(&temporary).iter().filter(|name| gone(name)) {
        for pid in procfs::pids_with_variable(MARK, name) {
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        }
        let _ = fs::remove_dir_all(temporary.join(name));
    }
}

/// Whether namespaces can be made.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Which of these programs are missing.
pub fn missing_programs<'a>(programs: &[&'a str]) -> Vec<&'a str> {
    programs.iter().copied().filter(|program| find_program(program).is_none()).collect()
}
