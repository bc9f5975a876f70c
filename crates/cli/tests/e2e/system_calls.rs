//! Each allowed system call is needed: without it the engine ends with SIGSYS in the step that the list names
//! (`src/engine/system_calls.rs`), and with the whole list it ends in none.

use crate::Test;
use crate::bed::{Bed, CLOSED_PORT, LIMIT, Link, PORT, check, workers};
use brodo_bench::process::{Failure, Job, Result, wait_until};
use brodo_bench::procfs;
use brodo_bench::world::{HOST_V4, HOST_V6, WORLD_V4, World};

/// Removes a call from the list, in builds with assertions.
const WITHOUT: &str = "BRODO_ENGINE_WITHOUT";
const OPTIONS: &[&str] = &[
    "-t",
    "7100",
    "-t",
    "auto",
    "-u",
    "7100",
    "-T",
    "7000",
    "-U",
    "7000",
    "--resolver",
    "192.0.2.1",
    "--workers",
    "2",
    "--pcap",
    "/dev/null",
];
const GUEST_PORT: u16 = 7100;
/// A port that only `auto` publishes.
const AUTO_PORT: u16 = 7300;
const OUTSIDE: &str = "198.18.0.1";

/// Root of the guest joins the interface with a queue of its own and lengthens the header of all queues.
const SET_HEADER_LEN: &str = "import fcntl, struct; tun = open('/dev/net/tun', 'r+b', buffering=0); \
    fcntl.ioctl(tun, 0x400454ca, struct.pack('16sH22x', b'eth0', 0x0002 | 0x1000 | 0x4000 | 0x0100)); \
    fcntl.ioctl(tun, 0x400454d8, struct.pack('i', 1 << 20))";

/// Starts a program whose end closes the step.
type Action = fn(&Bed) -> Result<Job>;

/// The steps, in order.
const STEPS: &[(&str, Action)] = &[
    ("start", |bed| bed.start_probe(&["connect", HOST_V4, CLOSED_PORT])),
    ("a download", |bed| bed.start_probe(&["download", HOST_V4, PORT, "30000000"])),
    ("an upload", |bed| bed.start_probe(&["upload", HOST_V6, PORT, "30000000"])),
    ("a refusal by a remote host", |bed| bed.start_probe(&["connect", WORLD_V4, CLOSED_PORT])),
    ("many connections", |bed| bed.start_probe(&["many", HOST_V4, PORT, "400"])),
    ("a reset", |bed| bed.start_probe(&["abort", HOST_V4, PORT, "abort"])),
    ("datagrams", |bed| bed.start_probe(&["datagrams", HOST_V4, PORT, "0,1,100,1400"])),
    ("a question", |bed| bed.start_program(&["getent", "hosts", "a.test"])),
    ("a new listener", |bed| bed.start_program(&["sleep", "1"])),
    ("a published port", |bed| bed.start_host_probe(&["download", OUTSIDE, "7100", "3000000"])),
    ("published datagrams", |bed| bed.start_host_probe(&["datagrams", OUTSIDE, "7100", "0,100"])),
    ("a port of the guest's loopback", |bed| {
        bed.start_host_probe(&["download", "127.0.0.1", "7100", "3000000"])
    }),
    ("a port of the host's loopback", |bed| bed.start_probe(&["download", "127.0.0.1", PORT, "3000000"])),
    ("a header length set by the guest", |bed| {
        bed.root_run(&["python3", "-c", SET_HEADER_LEN])?;
        bed.start_probe(&["download", HOST_V4, PORT, "3000000"])
    }),
    ("datagrams of the host's loopback", |bed| bed.start_probe(&["datagrams", "127.0.0.1", PORT, "0,100"])),
];

/// Causes that the test's kernel and machine do not have, that take too long, or that other tests have: those
/// end with SIGSYS as any test in which an engine crashes fails.
const ELSEWHERE: [&str; 6] = [
    "the tests `wan`",
    "the test `a network that comes late and goes`",
    "a kernel before 5.11",
    "a machine without a clock in the vDSO",
    "a process that is stopped and continued",
    "tables of many thousand flows",
];

pub(crate) const TESTS: &[Test] = &[Test::new("each allowed system call is needed", needed)
    .on(&[Link::SMALL])
    .with(&["getent", "python3"])];

/// Name and step of each call in the list.
fn listed() -> Vec<(&'static str, &'static str)> {
    let source = include_str!("../../src/engine/system_calls.rs");
    let call = |line: &'static str| {
        let (name, rest) = line.trim().strip_prefix("call!(SYS_")?.split_once(',')?;
        Some((name, rest.split('"').nth(1)?))
    };
    source.lines().filter_map(call).collect()
}

fn needed(_: &Bed) -> Result<()> {
    // The list is the same for any number of workers.
    if workers().is_some() {
        return Ok(());
    }
    let mut calls = listed();
    // The standard library checks descriptors in builds with assertions, at the first that is closed.
    calls.iter_mut().filter(|(name, _)| *name == "fcntl").for_each(|(_, step)| *step = "start");
    check(calls.len() > 30, || format!("the list was not found: {calls:?}"))?;
    let mut wrong = Vec::new();
    if let Some(step) = ends_in("none")? {
        wrong.push(format!("with the whole list: {step}"));
    }
    for (name, expected) in calls.into_iter().filter(|(_, step)| !ELSEWHERE.contains(step)) {
        let found = ends_in(&format!("SYS_{name}"))?;
        if found != Some(expected) {
            wrong.push(format!("{name}: {}, expected: {expected}", found.unwrap_or("no SIGSYS")));
        }
    }
    check(wrong.is_empty(), || wrong.join("\n"))
}

/// The step in which an engine without this call ends with SIGSYS.
fn ends_in(name: &str) -> Result<Option<&'static str>> {
    let world = World::new()?;
    let enter = world.enter_host_as_user();
    let enter = [enter, vec!["env".to_owned(), format!("{WITHOUT}={name}")]].concat();
    // Many engines may have ended before the guest runs.
    let bed = match Bed::start(world, &enter, Link::SMALL, OPTIONS) {
        Err(failure) if failure.0.contains("SIGSYS") => return Ok(Some("start")),
        started => started?,
    };
    let first = engine(&bed)?;
    for (step, action) in STEPS {
        if *step == "a new listener" {
            bed.serve_in_guest(GUEST_PORT)?;
            bed.serve_in_guest(AUTO_PORT)?;
        }
        let mut job = action(&bed)?;
        // Without any engine brodo has ended: six have crashed.
        let replaced = || engine(&bed).ok().flatten().is_none_or(|now| Some(now) != first);
        wait_until(LIMIT, || (replaced() || !job.is_running()).then_some(()))
            .ok_or_else(|| Failure(format!("{name}: {step} does not end")))?;
        if replaced() {
            // The next engine serves before the warden says so.
            let said = || bed.guest(|guest| guest.stderr()).is_ok_and(|said| said.contains("SIGSYS"));
            return Ok(wait_until(LIMIT, || said().then_some(*step)));
        }
    }
    let finished = bed.finish()?;
    Ok(finished.stderr.contains("SIGSYS").then_some("the end"))
}

/// Process id of the engine that runs now.
fn engine(bed: &Bed) -> Result<Option<u32>> {
    let brodo = bed.guest(|guest| guest.forwarder[0])?;
    let name = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Ok(procfs::descendants(brodo).into_iter().find(|pid| name(pid) == "brodo-engine\n"))
}
