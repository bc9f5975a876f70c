//! A real driver, Linux's virtio_net, in User-Mode Linux: a kernel as an ordinary process, which needs no
//! support of the processor. Its root is the machine's own files, so the probe runs in it.
//!
//! The guest's first process is `uml/init.sh`. Its lines on the console are the result, one for each
//! transfer.
//!
//! Processors with AMX: the state of their registers is larger than UML's buffer for it (2,696 bytes in 6.1),
//! so UML cannot start a process there, says so ([`NO_PROCESS`]) and panics. The tests are skipped then,
//! under CI too, and count as ignored. A kernel or its modules that are missing are a failure under CI.

use crate::Test;
use crate::bed::{Bed, LIMIT, Link, SERVERS, check, counters, crashes};
use brodo_bench::process::{Failure, Job, Result, wait_until};
use brodo_bench::system::kill_engine;
use brodo_bench::world::World;
use std::fs;
use std::path::Path;

/// There is no User-Mode Linux for other processors.
pub(crate) const TESTS: &[Test] = if cfg!(target_arch = "x86_64") { ALL } else { &[] };

const ALL: &[Test] = &[
    Test::new("Linux's driver of shared rings", rings).on(&[Link::LARGE]).with(PROGRAMS),
    Test::new("Linux's driver of packets", packets).on(&[Link::LARGE]).with(PROGRAMS),
];

const PROGRAMS: &[&str] = &["linux.uml", "busybox", "ethtool"];
const INIT: &str = include_str!("uml/init.sh");
const BYTES: &str = "12345678";
/// Line of the console of a machine that cannot set the registers of its first process.
const NO_PROCESS: &str = "ptrace set fp regs failed";

/// A machine and its brodo.
struct Uml {
    world: World,
    brodo: Job,
    machine: Option<Job>,
    device: String,
}

impl Uml {
    /// Starts brodo with `option` for the socket, whose machine is to have the device `device` of it.
    fn start(option: &str, device: fn(&str) -> String) -> Result<Self> {
        let world = World::new()?;
        world.serve_probe(&world.host, 7000)?;
        world.serve_probe(&world.world, 7000)?;
        let program = world.install_program(Path::new(env!("CARGO_BIN_EXE_brodo")))?;
        let socket = world.home().join("vm");
        let path = socket.to_string_lossy().into_owned();
        let words = [&*program.to_string_lossy(), "vm", "-v", option, &path].map(str::to_owned);
        let mut brodo = world.start(&world.enter_host_as_user(), words)?;
        let bound = wait_until(LIMIT, || (socket.exists() || !brodo.is_running()).then_some(()));
        check(bound.is_some() && socket.exists(), || brodo.describe())?;
        Ok(Self { world, brodo, machine: None, device: device(&path) })
    }

    /// Boots the machine, which runs `script` and ends.
    fn boot(&mut self, script: &str) -> Result<()> {
        let home = self.world.home();
        let write = |name: &str, text: &str| -> Result<String> {
            let file = self.world.folder().join(name);
            fs::write(&file, text).map_err(|e| Failure(format!("{}: {e}", file.display())))?;
            Ok(file.to_string_lossy().into_owned())
        };
        // A shell reads it, because only root could make it executable for the machine's user.
        let (init, script) = (write("init.sh", INIT)?, write("script.sh", script)?);
        let [probe, _] = self.world.probe();
        let words = [
            "linux.uml".to_owned(),
            "mem=256M".to_owned(),
            "root=/dev/root rootfstype=hostfs rw quiet".to_owned(),
            format!("uml_dir={}/", home.display()),
            "con=null con0=null,fd:1 ssl=null".to_owned(),
            self.device.clone(),
            format!("init=/bin/sh PROBE={probe} SCRIPT={script} HOME={} -- {init}", home.display()),
        ];
        let words = words.iter().flat_map(|words| words.split(' '));
        self.machine = Some(self.world.start(&self.world.enter_host_as_user(), words)?);
        Ok(())
    }

    fn machine(&mut self) -> Result<&mut Job> {
        self.machine.as_mut().ok_or_else(|| Failure("no machine".into()))
    }

    /// Waits for a line of the console that has this text.
    fn wait_for(&mut self, text: &str) -> Result<()> {
        let machine = self.machine()?;
        let said = wait_until(LIMIT, || {
            let said = machine.stdout().contains(text);
            (said || !machine.is_running()).then_some(said)
        });
        check(said == Some(true), || format!("the machine has not said {text}: {}", machine.describe()))
    }

    /// Waits for the machine's end; an error unless it has made so many transfers, all equal at both ends.
    fn transfers(&mut self, count: usize) -> Result<String> {
        let said = self.machine()?.wait(LIMIT)?.success()?.stdout;
        let transfers: Vec<_> = said.lines().filter(|line| line.starts_with("TRANSFER")).collect();
        let all_equal = transfers.iter().all(|line| line.contains("\"equal\":true"));
        check(transfers.len() == count && all_equal, || format!("not {count} transfers, all equal: {said}"))?;
        Ok(said)
    }

    /// Ends brodo; its last words.
    fn finish(&mut self) -> Result<String> {
        self.brodo.ask_to_end();
        Ok(self.brodo.wait(LIMIT)?.success()?.stderr)
    }

    fn explain(&self, failure: &Failure) -> Failure {
        let machine = self.machine.as_ref().map(Job::describe).unwrap_or_default();
        Failure(format!("{failure}\n--- brodo\n{}\n--- machine\n{machine}", self.brodo.describe()))
    }
}

/// Runs a test on a machine, whose output explains a failure; it is skipped on a processor on which no such
/// machine runs.
fn with(bed: &Bed, uml: Uml, test: impl FnOnce(&mut Uml) -> Result<()>) -> Result<()> {
    let mut uml = uml;
    test(&mut uml).or_else(|failure| {
        let said = uml.machine.as_ref().map(Job::stdout).unwrap_or_default();
        if said.contains(NO_PROCESS) {
            bed.skip(format!("User-Mode Linux does not run on this processor ({NO_PROCESS})"));
            return Ok(());
        }
        Err(uml.explain(&failure))
    })
}

/// Lines of a script: transfers of all kinds with all servers.
fn all_transfers() -> String {
    let lines = |server| {
        format!(
            "transfer upload {server} 7000 {BYTES}\ntransfer download {server} 7000 {BYTES}\n\
                 transfer datagrams {server} 7000 0,1,100,1400,9000\n"
        )
    };
    SERVERS.map(lines).concat()
}

/// Several pairs, whose number the guest changes, and a second machine after the first. The engine is killed
/// under a transfer, and the guest notices nothing.
fn rings(bed: &Bed) -> Result<()> {
    let uml = Uml::start("--vhost-user", |path| format!("virtio_uml.device={path}:1"))?;
    with(bed, uml, |uml| {
        let transfers = all_transfers();
        let (fewer, more) = ("ethtool -L eth0 combined 1", "ethtool -L eth0 combined 4");
        uml.boot(&format!(
            "network eth0\n{more} || echo FAILED\n{transfers}{fewer} || echo FAILED\n{transfers}"
        ))?;
        let said = uml.transfers(24)?;
        check(!said.contains("FAILED"), || said)?;
        uml.boot(&format!("network eth0\necho LOADED; transfer upload {} 7000 200000000\n", SERVERS[0]))?;
        uml.wait_for("LOADED")?;
        check(kill_engine(uml.brodo.pid()), || "no engine".to_owned())?;
        let said = uml.transfers(1)?;
        check(said.contains("LEASE 10.0.2.15 65520 10.0.2.3"), || said)?;
        let said = uml.finish()?;
        let broken = counters(&said).any(|(name, count)| name == "link_broken_rings" && count > 0);
        let killed_alone = crashes(&said) == 1 && said.contains("was started again");
        check(!broken && killed_alone, || said)
    })
}

/// The transport that UML has had for longer, a packet for each frame.
fn packets(bed: &Bed) -> Result<()> {
    let uml = Uml::start("--seqpacket", |path| format!("vec0:transport=bess,dst={path},depth=128,gro=1"))?;
    with(bed, uml, |uml| {
        uml.boot(&format!("network vec0\n{}", all_transfers()))?;
        let said = uml.transfers(12)?;
        check(said.contains("LEASE 10.0.2.15 "), || said)?;
        let said = uml.finish()?;
        check(crashes(&said) == 0, || said)
    })
}
