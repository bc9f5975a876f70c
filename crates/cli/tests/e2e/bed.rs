//! The bed of every test: a world, brodo with a guest in it, and a server on either side of the veth pair.

use brodo_bench::process::{Failure, Finished, Job, Result, wait_until};
use brodo_bench::system::machine::{Machine, MonitorKind};
use brodo_bench::system::{Guest, Programs, System};
use brodo_bench::world::{self, World};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// TCP and UDP port of the probe's servers.
pub(crate) const PORT: &str = "7000";
/// A port without a listener.
pub(crate) const CLOSED_PORT: &str = "7999";
/// First port of the server for single bytes, in the host namespace.
pub(crate) const RESPOND_PORT: u16 = 10_000;
/// Number of ports of that server.
pub(crate) const RESPOND_PORTS: u16 = 16;

/// Addresses of the servers: on brodo's own machine and one hop away, in both families.
pub(crate) const SERVERS: [&str; 4] = [world::HOST_V4, world::HOST_V6, world::WORLD_V4, world::WORLD_V6];

/// Deadline of every program and event of a test, unless it names another. Some hundred times the duration on
/// an idle machine: it ends hanging tests and judges no speed.
pub(crate) const LIMIT: Duration = Duration::from_mins(3);

/// Words for a machine with several queue pairs, between which flows move as if their threads moved between
/// processors.
pub(crate) const WANDERING: &[&str] = &["--queues", "3", "--wander", "16"];

/// The link between guest and brodo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) mtu: u32,
    pub(crate) offload: bool,
}

impl Link {
    pub(crate) const SMALL: Self = Self { mtu: 1500, offload: true };
    pub(crate) const LARGE: Self = Self { mtu: 65520, offload: true };
    /// Both MTUs.
    pub(crate) const BOTH: [Self; 2] = [Self::SMALL, Self::LARGE];
    /// Both MTUs, with and without offloads.
    pub(crate) const ALL: [Self; 4] =
        [Self::SMALL, Self::LARGE, Self { mtu: 1500, offload: false }, Self { mtu: 65520, offload: false }];

    pub(crate) fn name(self) -> String {
        format!("[mtu {}{}]", self.mtu, if self.offload { "" } else { ", no offload" })
    }
}

/// A world with a guest.
pub(crate) struct Bed {
    pub(crate) world: World,
    pub(crate) link: Link,
    guest: Mutex<Option<Guest>>,
    enter: Vec<String>,
    enter_as_root: Vec<String>,
    skipped: Mutex<Option<String>>,
}

impl Bed {
    pub(crate) fn new(link: Link, options: &[&str]) -> Result<Self> {
        let world = World::new()?;
        let enter = world.enter_host_as_user();
        Self::start(world, &enter, link, options)
    }

    /// A bed whose brodo is started behind the words `enter`.
    pub(crate) fn start(world: World, enter: &[String], link: Link, options: &[&str]) -> Result<Self> {
        world.serve_probe(&world.host, 7000)?;
        world.serve_probe(&world.world, 7000)?;
        let system = std::env::var("BRODO_E2E_SYSTEM").unwrap_or_else(|_| System::Brodo.name().to_owned());
        let chosen = System::from_name(&system);
        check(chosen.is_some(), || format!("BRODO_E2E_SYSTEM: there is no system {system}"))?;
        let guest = match chosen {
            Some(System::BrodoStream) => {
                let machine = machine(MonitorKind::Stream, link);
                machine.start(&world, enter, &vm(&world, machine, options)?)?
            }
            // With several workers the guest's frames move between its queues.
            Some(System::BrodoVhostUser) => {
                let mut machine = machine(MonitorKind::VhostUser, link);
                let workers = workers().filter(|_| !options.contains(&"--workers"));
                let mut options = options.to_vec();
                if let Some(workers) = &workers {
                    machine.words = WANDERING;
                    options.extend(["--workers", workers]);
                }
                machine.start(&world, enter, &vm(&world, machine, &options)?)?
            }
            Some(peer) if peer != System::Brodo => {
                Guest::start(&world, peer, &Programs::default(), link.mtu, 1)?
            }
            _ => {
                let words = brodo(&world, "run", link, options)?;
                let words: Vec<&str> = words.iter().map(String::as_str).chain(["--"]).collect();
                Guest::forwarder(&world, enter, &words)?
            }
        };
        Ok(Self::with(world, link, guest))
    }

    /// A bed whose guest is older than brodo (`brodo attach`).
    pub(crate) fn attached(link: Link, options: &[&str]) -> Result<Self> {
        let world = World::new()?;
        world.serve_probe(&world.host, 7000)?;
        world.serve_probe(&world.world, 7000)?;
        let mut words = brodo(&world, "attach", link, options)?;
        let guest = Guest::attached(&world, |pid| {
            words.push(pid.to_owned());
            words
        })?;
        Ok(Self::with(world, link, guest))
    }

    /// A bed whose guest is behind the socket of a virtual machine's monitor (`brodo vm`).
    pub(crate) fn machine(link: Link, kind: MonitorKind, options: &[&str]) -> Result<Self> {
        Self::with_machine(machine(kind, link), link, options)
    }

    /// A bed whose guest is this machine.
    pub(crate) fn with_machine(machine: Machine, link: Link, options: &[&str]) -> Result<Self> {
        let world = World::new()?;
        world.serve_probe(&world.host, 7000)?;
        world.serve_probe(&world.world, 7000)?;
        let words = vm(&world, machine, options)?;
        let guest = machine.start(&world, &world.enter_host_as_user(), &words)?;
        Ok(Self::with(world, link, guest))
    }

    fn with(world: World, link: Link, guest: Guest) -> Self {
        let (enter, enter_as_root) = (guest.enter.clone(), guest.enter_as_root.clone());
        Self { world, link, guest: Mutex::new(Some(guest)), enter, enter_as_root, skipped: Mutex::default() }
    }

    /// Has the test of this bed count as ignored, because the machine cannot run it; it is to end without an
    /// error.
    pub(crate) fn skip(&self, why: String) {
        *self.skipped.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    /// The reason for which the test was skipped.
    pub(crate) fn skipped(&self) -> Option<String> {
        self.skipped.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Calls `ask` with the guest's handle; an error once brodo has been ended.
    pub(crate) fn guest<T>(&self, ask: impl FnOnce(&mut Guest) -> T) -> Result<T> {
        let mut guest = self.guest.lock().map_err(|e| Failure(e.to_string()))?;
        guest.as_mut().map(ask).ok_or_else(|| Failure("brodo has been ended".into()))
    }

    /// Starts the server for single bytes in the host namespace.
    pub(crate) fn serve_respond(&self) -> Result<u32> {
        let [probe, name] = self.world.probe();
        let words = [probe, name, "respond".into(), RESPOND_PORT.to_string(), RESPOND_PORTS.to_string()];
        self.world.serve(&self.world.host, words, RESPOND_PORT + RESPOND_PORTS - 1)
    }

    /// Starts the probe's TCP and UDP server in the guest.
    pub(crate) fn serve_in_guest(&self, port: u16) -> Result<u32> {
        self.world.serve_probe_behind(&self.enter, port)
    }

    /// Starts any server in the guest, and waits until it listens.
    pub(crate) fn serve_words_in_guest(&self, words: &[&str], port: u16) -> Result<u32> {
        self.world.serve_behind(&self.enter, words, port)
    }

    /// Runs the probe in the world: a client from outside.
    pub(crate) fn world_probe(&self, words: &[&str]) -> Result<Value> {
        self.world.run(&self.world.world.enter(), self.probe_words(words), LIMIT)?.success()?.json()
    }

    /// Runs the probe on the host: a client of its loopback, or of other addresses.
    pub(crate) fn host_probe(&self, words: &[&str]) -> Result<Value> {
        self.start_host_probe(words)?.wait(LIMIT)?.success()?.json()
    }

    /// Runs the probe in the guest.
    pub(crate) fn probe(&self, words: &[&str]) -> Result<Value> {
        self.start_probe(words)?.wait(LIMIT)?.success()?.json()
    }

    /// Runs a probe in the guest whose transfers must be equal at both ends.
    pub(crate) fn equal(&self, words: &[&str]) -> Result<()> {
        let found = self.probe(words)?;
        check(found["equal"] == true, || format!("{}: {found}", words.join(" ")))
    }

    /// Starts the probe in the guest.
    pub(crate) fn start_probe(&self, words: &[&str]) -> Result<Job> {
        self.world.start(&self.enter, self.probe_words(words))
    }

    /// Starts the probe on the host: its results are those expected in the guest.
    pub(crate) fn start_host_probe(&self, words: &[&str]) -> Result<Job> {
        self.world.start(&self.world.enter_host_as_user(), self.probe_words(words))
    }

    /// Runs the probe in the guest's network namespace with all rights over it.
    pub(crate) fn root_probe(&self, words: &[&str]) -> Result<Value> {
        self.world.run(&self.enter_as_root, self.probe_words(words), LIMIT)?.success()?.json()
    }

    /// The probe's command line.
    pub(crate) fn probe_words(&self, words: &[&str]) -> Vec<String> {
        self.world.probe().into_iter().chain(words.iter().map(|word| (*word).to_owned())).collect()
    }

    /// Runs any program in the guest; an error unless it succeeds.
    pub(crate) fn run(&self, words: &[&str]) -> Result<Finished> {
        self.attempt(words)?.success()
    }

    /// Runs any program in the guest, whether it succeeds or not.
    pub(crate) fn attempt(&self, words: &[&str]) -> Result<Finished> {
        self.world.run(&self.enter, words, LIMIT)
    }

    /// Starts any program in the guest.
    pub(crate) fn start_program(&self, words: &[&str]) -> Result<Job> {
        self.world.start(&self.enter, words)
    }

    /// Runs any program in the guest's network namespace with all rights over it; an error unless it
    /// succeeds.
    pub(crate) fn root_run(&self, words: &[&str]) -> Result<Finished> {
        self.world.run(&self.enter_as_root, words, LIMIT)?.success()
    }

    /// Runs a client of brodo's control socket, such as `bulk tap`, as brodo's user.
    pub(crate) fn client(&self, words: &[&str]) -> Result<Finished> {
        let pid = self.guest(|guest| guest.forwarder[0])?.to_string();
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).map_err(|e| Failure(e.to_string()))?;
        let program = program.to_string_lossy().into_owned();
        let words = [&[program.as_str()], words, &["--instance", &pid]].concat();
        self.world.run(&self.world.enter_host_as_user(), words, LIMIT)
    }

    /// Waits until a bulk flow has a kernel socket, while `lasts`.
    pub(crate) fn wait_promoted(&self, mut lasts: impl FnMut() -> bool) -> Result<()> {
        let is_promoted = || -> Result<bool> {
            Ok(self.client(&["bulk", "--json"])?.success()?.json()?["promoted"].as_u64() > Some(0))
        };
        let ended = wait_until(LIMIT, || match is_promoted() {
            Ok(false) if lasts() => None,
            ended => Some(ended),
        });
        match ended {
            Some(Ok(true)) => Ok(()),
            Some(Err(failure)) => Err(failure),
            Some(Ok(false)) | None => Err(Failure("no flow has got a kernel socket".into())),
        }
    }

    /// Has a bulk flow get a kernel socket and come back, while `lasts`.
    pub(crate) fn promote_and_recall(&self, mut lasts: impl FnMut() -> bool) -> Result<()> {
        self.wait_promoted(&mut lasts)?;
        self.client(&["bulk", "tap"])?.success()?;
        let carried = ["flows", "--carrier", "kernel", "--json"];
        let back = || self.client(&carried).is_ok_and(|it| it.code == Some(0) && it.stdout.is_empty());
        let ended = wait_until(LIMIT, || (back() || !lasts()).then_some(()));
        ended.ok_or_else(|| Failure("no flow has come back".into()))
    }

    /// Sends datagrams from the guest as fast as they go until a queue of their own drops some, or `lasts` is
    /// false, and on until the job is dropped. A minute is longer than that takes.
    pub(crate) fn start_flood(&self, server: &str, mut lasts: impl FnMut() -> bool) -> Result<Job> {
        const DROPPED: &str = "link_diverted_dropped";
        let before = self.counter(DROPPED).unwrap_or(0);
        let flood = self.start_probe(&["datagrams-up", server, PORT, "9000", "60"])?;
        let diverted = || self.counter(DROPPED).is_ok_and(|count| count > before);
        let ended = wait_until(LIMIT, || (diverted() || !lasts()).then_some(()));
        ended.map(|()| flood).ok_or_else(|| Failure("datagrams have got no queue of their own".into()))
    }

    /// One of brodo's counters; 0 if it is not printed.
    pub(crate) fn counter(&self, name: &str) -> Result<u64> {
        let found = self.client(&["counters", "--json"])?.success()?.json()?;
        Ok(found["counters"][name].as_u64().unwrap_or(0))
    }

    /// Ends the guest; returns brodo's final output, however it ended.
    pub(crate) fn end(&self) -> Result<Finished> {
        let guest = self.guest.lock().map_err(|e| Failure(e.to_string()))?.take();
        guest.ok_or_else(|| Failure("brodo has been ended".into()))?.finish(LIMIT)
    }

    /// Ends brodo after a test in which its processes may have been killed; its final output.
    pub(crate) fn finish(&self) -> Result<Finished> {
        let finished = self.end()?;
        // Other forwarders may have another status when their guest ends.
        if is_brodo() { finished.success() } else { Ok(finished) }
    }

    /// Ends brodo after a test in which nothing was killed, and checks that nothing crashed and its counter
    /// of lost wake-ups; its final output.
    pub(crate) fn finish_whole(&self) -> Result<Finished> {
        let finished = self.finish()?;
        // Other forwarders have no such counter.
        let forgotten = counters(&finished.stderr).any(|(name, count)| name == "lost_wakeups" && count > 0);
        check(!forgotten, || finished.failure("a flow waited for memory and was forgotten").0)?;
        // A crash is survived, and would not show otherwise.
        check(crashes(&finished.stderr) == 0, || finished.failure("a process of brodo's crashed").0)?;
        Ok(finished)
    }

    /// Ends brodo after a test that has passed, if it still runs, as [`Bed::finish_whole`] does.
    pub(crate) fn close(&self) -> Result<()> {
        if self.guest.lock().is_ok_and(|guest| guest.is_none()) {
            return Ok(());
        }
        self.finish_whole().map(drop)
    }

    /// The failure with the output of brodo and all servers, and what the kernel lost.
    pub(crate) fn explain(&self, failure: &Failure) -> String {
        let alive = self.guest(Guest::is_running).unwrap_or(false);
        let losses = crate::losses::describe(self);
        let end = match self.end() {
            Ok(finished) => finished.failure(if alive { "brodo lived" } else { "brodo had ended" }),
            Err(e) => e,
        };
        let servers = self.world.describe();
        format!("{failure}\n--- brodo\n{end}\n--- servers\n{servers}\n--- lost by the kernel\n{losses}\n")
    }
}

/// Runs a test in a bed of its own, which is closed after it, and whose output explains a failure.
pub(crate) fn with(bed: &Bed, test: impl FnOnce(&Bed) -> Result<()>) -> Result<()> {
    let result = test(bed).and_then(|()| bed.close());
    result.map_err(|failure| Failure(bed.explain(&failure)))
}

/// The system on which the suite runs, if it is not that of the default.
fn chosen_system() -> Option<System> {
    System::from_name(&std::env::var("BRODO_E2E_SYSTEM").unwrap_or_default())
}

/// Whether the suite's guests are machines on a stream. The interface of such a guest is a TAP in the place
/// of the machine's ring, and drops frames that its monitor does not read in time.
pub(crate) fn is_on_stream() -> bool {
    chosen_system() == Some(System::BrodoStream)
}

/// Whether the suite runs on brodo, and on no other forwarder.
fn is_brodo() -> bool {
    chosen_system()
        .is_none_or(|system| matches!(system, System::Brodo | System::BrodoStream | System::BrodoVhostUser))
}

/// A machine with the link's properties.
pub(crate) fn machine(kind: MonitorKind, link: Link) -> Machine {
    Machine { kind, mtu: link.mtu, offload: link.offload, words: &[] }
}

/// The command line of brodo up to its last option; `-v` prints its counters at the end.
fn brodo(world: &World, command: &str, link: Link, options: &[&str]) -> Result<Vec<String>> {
    let program = world.install_program(&PathBuf::from(env!("CARGO_BIN_EXE_brodo")))?;
    let mut words = vec![program.to_string_lossy().into_owned(), command.to_owned(), "-v".to_owned()];
    words.extend(["--mtu".to_owned(), link.mtu.to_string()]);
    if !link.offload {
        words.push("--no-offload".to_owned());
    }
    // A machine's socket is served by one worker.
    if let Some(workers) = workers()
        && command != "vm"
        && !options.contains(&"--workers")
    {
        words.extend(["--workers".to_owned(), workers]);
    }
    // Kernel sockets for bulk flows are the default; these tests are about brodo's own TCP.
    if !options.contains(&"--bulk") {
        words.extend(["--bulk", "tap"].map(str::to_owned));
    }
    words.extend(options.iter().map(|option| (*option).to_owned()));
    Ok(words)
}

/// The command line of `brodo vm` up to the path of its socket.
fn vm(world: &World, machine: Machine, options: &[&str]) -> Result<Vec<String>> {
    let link = Link { mtu: machine.mtu, offload: machine.offload };
    let mut words = brodo(world, "vm", link, options)?;
    words.push(machine.kind.option().to_owned());
    Ok(words)
}

/// Number of workers, from `BRODO_WORKERS`.
pub(crate) fn workers() -> Option<String> {
    std::env::var("BRODO_WORKERS").ok().filter(|workers| !workers.is_empty())
}

/// Counters by name, from brodo's output at its end.
pub(crate) fn counters(said: &str) -> impl Iterator<Item = (&str, u64)> {
    said.lines().filter_map(|line| {
        let (name, count) = line.strip_prefix("brodo: ")?.rsplit_once(' ')?;
        Some((name, count.parse().ok()?))
    })
}

/// Processes of brodo's that have crashed, from its output.
pub(crate) fn crashes(said: &str) -> usize {
    said.lines().filter(|line| line.contains(" crashed (") || line.contains(" crashed at its end (")).count()
}

/// An error unless the condition holds.
pub(crate) fn check(condition: bool, what: impl FnOnce() -> String) -> Result<()> {
    if condition { Ok(()) } else { Err(Failure(what())) }
}
