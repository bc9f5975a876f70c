//! Each allowed system call, and each allowed use of one, is needed: without it the engine ends with SIGSYS
//! in the step that the list names (`src/engine/system_calls.rs`), and with the whole list it ends in none.
//!
//! A step ends with its program. The engine may have a call of that step still to make then, such as the one
//! that takes the next sockets from the broker: so its end may be seen in the step behind.

use crate::Test;
use crate::bed::{Bed, CLOSED_PORT, LIMIT, Link, PORT, check, workers};
use brodo_bench::process::{Failure, Finished, Job, Result, wait_until};
use brodo_bench::procfs;
use brodo_bench::world::{HOST_V4, HOST_V6, WORLD_V4, World};
use std::iter;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};

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
    "--bulk",
    "kernel",
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

/// Datagrams with values of their own in the fields of the IP header that brodo carries over.
const HEADER_FIELDS: &str = "import socket
for family, level, fields, to in [
    (socket.AF_INET, 0, [(1, 0x20), (2, 5), (10, 2)], '198.18.0.1'),
    (socket.AF_INET6, 41, [(67, 0x20), (16, 5), (23, 2)], '2001:2::1')]:
    for name, value in fields:
        with socket.socket(family, socket.SOCK_DGRAM) as datagram:
            datagram.setsockopt(level, name, value)
            datagram.sendto(b'x', (to, 7000))";

/// An idle connection whose kernel probes the peer after a second.
const KEEP_ALIVE: &str = "import socket, time
with socket.create_connection(('198.19.0.1', 7000)) as idle:
    idle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    time.sleep(1.5)";

/// The steps, in order.
const STEPS: &[(&str, Action)] = &[
    ("start", |bed| bed.start_probe(&["connect", HOST_V4, CLOSED_PORT])),
    ("a download", |bed| bed.start_probe(&["download", HOST_V4, PORT, "30000000"])),
    ("an upload", |bed| bed.start_probe(&["upload", HOST_V6, PORT, "30000000"])),
    ("a refusal by a remote host", |bed| bed.start_probe(&["connect", WORLD_V4, CLOSED_PORT])),
    ("many connections", |bed| bed.start_probe(&["many", HOST_V4, PORT, "400"])),
    ("a reset", |bed| bed.start_probe(&["abort", HOST_V4, PORT, "abort"])),
    ("datagrams", |bed| bed.start_probe(&["datagrams", HOST_V4, PORT, "0,1,100,1400"])),
    ("datagrams over IPv6", |bed| bed.start_probe(&["datagrams", HOST_V6, PORT, "0,1,100,1400"])),
    ("header fields of datagrams", |bed| bed.start_program(&["python3", "-c", HEADER_FIELDS])),
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
    ("datagrams of the host's loopback over IPv6", |bed| {
        bed.start_probe(&["datagrams", "::1", PORT, "0,100"])
    }),
    ("a keep-alive probe", |bed| bed.start_program(&["python3", "-c", KEEP_ALIVE])),
    ("a promoted download that comes back", promoted_download),
];

/// A download that gets a kernel socket and comes back, unless the engine ends meanwhile: then the next one
/// captures again, and promotes nothing.
fn promoted_download(bed: &Bed) -> Result<Job> {
    let first = engine(bed)?;
    let is_first = || engine(bed).is_ok_and(|now| now == first);
    let stopped = bed.client(&["capture", "stop"]).and_then(Finished::success);
    let mut download = bed.start_probe(&["download", HOST_V4, PORT, "100000000000"])?;
    let mut lasts = || is_first() && download.is_running();
    if stopped.is_ok() {
        // It fails with the engine.
        let _ = bed.promote_and_recall(&mut lasts);
    }
    drop(download);
    bed.start_program(&["true"])
}

/// Step of the allocator's calls, which it makes when its heap needs more or has too much.
const ANY_STEP: &str = "any step";

/// Step behind all others: brodo ends.
const THE_END: &str = "the end";

/// Engines tried at once: most of the time they wait for programs to start.
const AT_ONCE: usize = 3;

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

/// Name of the left-out entry and step of each call in the list, and of each alternative.
fn listed() -> Vec<(String, &'static str)> {
    let source = include_str!("../../src/engine/system_calls.rs");
    let entry = |line: &'static str| {
        let (kind, rest) = line.trim().split_once('!')?;
        let step = rest.rsplit('"').nth(1)?;
        let mut words = rest.strip_prefix('(')?.split(", ");
        let (first, second) = (words.next()?, words.next()?);
        let entry = match kind {
            "call" => first.to_owned(),
            "option" => format!("SYS_setsockopt {second}"),
            "socket" => format!("SYS_socket {first} {second}"),
            "when" if first == "1" && second.starts_with("F_") => format!("SYS_fcntl {second}"),
            "when" if first == "1" => format!("SYS_ioctl {second}"),
            "request" => format!("SYS_ioctl {}", first.trim_matches('"')),
            _ => return None,
        };
        Some((entry, step))
    };
    source.lines().filter_map(entry).collect()
}

fn needed(_: &Bed) -> Result<()> {
    // The list is the same for any number of workers.
    if workers().is_some() {
        return Ok(());
    }
    let mut calls = listed();
    // The standard library checks descriptors in builds with assertions, at the first that is closed.
    calls.iter_mut().filter(|(name, _)| name == "SYS_fcntl").for_each(|(_, step)| *step = "start");
    check(calls.len() > 60, || format!("the list was not found: {calls:?}"))?;
    calls.retain(|(_, step)| !ELSEWHERE.contains(step));
    let next = AtomicUsize::new(0);
    let check_rest = || -> Result<Vec<String>> {
        let entries = iter::from_fn(|| calls.get(next.fetch_add(1, Ordering::Relaxed)));
        entries.filter_map(|(name, step)| compared(name, Some(step)).transpose()).collect()
    };
    let mut wrong: Vec<_> = compared("none", None)?.into_iter().collect();
    let found: Result<Vec<_>> = thread::scope(|scope| {
        let threads: Vec<_> = iter::repeat_with(|| scope.spawn(check_rest)).take(AT_ONCE).collect();
        let join = |it: ScopedJoinHandle<'_, _>| it.join().map_err(|_| Failure("a check panicked".into()))?;
        threads.into_iter().map(join).collect()
    });
    wrong.extend(found?.into_iter().flatten());
    check(wrong.is_empty(), || wrong.join("\n"))
}

/// A sentence about an engine without this entry that does not end in the expected step.
fn compared(name: &str, expected: Option<&str>) -> Result<Option<String>> {
    let found = ends_in(name)?;
    let fits = match (expected, found) {
        (Some(ANY_STEP), found) => found.is_some(),
        (Some(expected), Some(found)) => expected == found || is_behind(expected, found),
        (expected, found) => expected == found,
    };
    let words = |step: Option<&str>| step.map_or("no SIGSYS".to_owned(), |step| format!("SIGSYS in {step}"));
    Ok((!fits).then(|| format!("without {name}: {}, expected: {}", words(found), words(expected))))
}

/// Whether one step is next after another.
fn is_behind(first: &str, next: &str) -> bool {
    let mut steps = STEPS.iter().map(|(step, _)| *step).chain([THE_END]);
    steps.find(|step| *step == first).and_then(|_| steps.next()) == Some(next)
}

/// The step in which an engine without this call ends with SIGSYS.
fn ends_in(name: &str) -> Result<Option<&'static str>> {
    let world = World::new()?;
    let enter = world.enter_host_as_user();
    let enter = [enter, vec!["env".into(), format!("{WITHOUT}={name}"), "BRODO_BULK_RATE=0".into()]].concat();
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
    Ok(finished.stderr.contains("SIGSYS").then_some(THE_END))
}

/// Process id of the engine that runs now.
fn engine(bed: &Bed) -> Result<Option<u32>> {
    let brodo = bed.guest(|guest| guest.forwarder[0])?;
    let name = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Ok(procfs::descendants(brodo).into_iter().find(|pid| name(pid) == "brodo-engine\n"))
}
