//! Each allowed system call, and each allowed use of one, is needed: without it the process ends with SIGSYS
//! in the step that its role's list names, and with the whole lists none does.
//!
//! A step ends with its program. The process may have a call of that step still to make then, such as the one
//! that takes the next sockets from the broker: so its end may be seen in the step behind.

use crate::Test;
use crate::bed::{Bed, CLOSED_PORT, LIMIT, Link, PORT, check, workers};
use brodo_bench::process::{Failure, Job, Result, wait_until};
use brodo_bench::procfs;
use brodo_bench::world::{HOST_V4, HOST_V6, WORLD_V4, World};
use brodo_sandbox::SystemCall;
use std::iter;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};

/// The lists of the engine and of its keeper, which stand in a program.
#[path = "../../src/engine/system_calls/keeper.rs"]
mod keeper;
#[path = "../../src/engine/system_calls/serving.rs"]
mod serving;

/// Removes a call from the list of a role, in builds with assertions.
const WITHOUT: &str = "BRODO_SYSTEM_CALLS_WITHOUT";

/// A process of brodo's with a list of its own.
struct Role {
    /// Its name in [`WITHOUT`].
    name: &'static str,
    /// Its name as a process.
    process: &'static str,
    calls: &'static [SystemCall],
    options: &'static [&'static str],
    steps: &'static [Step],
}

const ROLES: [Role; 4] = [
    Role {
        name: "engine",
        process: "brodo-engine",
        calls: serving::CALLS,
        options: ENGINE_OPTIONS,
        steps: ENGINE_STEPS,
    },
    Role {
        name: "keeper",
        process: "brodo-keeper",
        calls: keeper::CALLS,
        options: ENGINE_OPTIONS,
        steps: KEEPER_STEPS,
    },
    Role {
        name: "broker",
        process: "brodo-broker",
        calls: brodo_netns::broker_process::system_calls::CALLS,
        options: ENGINE_OPTIONS,
        steps: START,
    },
    Role {
        name: "agent",
        process: "brodo-agent",
        calls: brodo_netns::promotion::system_calls::CALLS,
        options: &["--bulk", "kernel"],
        steps: AGENT_STEPS,
    },
];

const ENGINE_OPTIONS: &[&str] = &[
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
    "--multicast",
    "on",
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

/// Datagrams to a group of each family.
const TO_GROUPS: &str = "import socket
for group in ['239.255.255.250', 'ff0e::c']:
    family = socket.AF_INET6 if ':' in group else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as datagram:
        datagram.sendto(b'x', (group, 1900))";

/// An idle connection whose kernel probes the peer after a second.
const KEEP_ALIVE: &str = "import socket, time
with socket.create_connection(('198.19.0.1', 7000)) as idle:
    idle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    time.sleep(1.5)";

/// A step by its name.
type Step = (&'static str, Action);

/// The step of a process that makes all its calls at once.
const START: &[Step] = &[("start", |bed| bed.start_probe(&["connect", HOST_V4, CLOSED_PORT]))];

/// The steps of a keeper, in order.
const KEEPER_STEPS: &[Step] = &[
    START[0],
    ("an engine that is killed", |bed| {
        bed.guest(|guest| guest.kill_engine())?;
        bed.start_probe(&["connect", HOST_V4, CLOSED_PORT])
    }),
];

/// The steps of an agent, in order.
const AGENT_STEPS: &[Step] = &[
    START[0],
    ("a promoted download that comes back", |bed| promoted_download(bed, HOST_V4)),
    ("a promoted download over IPv6", |bed| promoted_download(bed, HOST_V6)),
    ("a flood of datagrams", flood),
];

/// The steps of an engine, in order.
const ENGINE_STEPS: &[Step] = &[
    ("start", |bed| bed.start_probe(&["connect", HOST_V4, CLOSED_PORT])),
    ("a download", |bed| bed.start_probe(&["download", HOST_V4, PORT, "30000000"])),
    ("an upload", |bed| bed.start_probe(&["upload", HOST_V6, PORT, "30000000"])),
    ("a refusal by a remote host", |bed| bed.start_probe(&["connect", WORLD_V4, CLOSED_PORT])),
    ("many connections", |bed| bed.start_probe(&["many", HOST_V4, PORT, "400"])),
    ("a reset", |bed| bed.start_probe(&["abort", HOST_V4, PORT, "abort"])),
    ("datagrams", |bed| bed.start_probe(&["datagrams", HOST_V4, PORT, "0,1,100,1400"])),
    ("datagrams over IPv6", |bed| bed.start_probe(&["datagrams", HOST_V6, PORT, "0,1,100,1400"])),
    ("a ping", |bed| bed.start_program(&["ping", "-n", "-c", "1", "-W", "1", HOST_V4])),
    ("a ping over IPv6", |bed| bed.start_program(&["ping", "-n", "-c", "1", "-W", "1", HOST_V6])),
    ("header fields of datagrams", |bed| bed.start_program(&["python3", "-c", HEADER_FIELDS])),
    ("datagrams to groups", |bed| bed.start_program(&["python3", "-c", TO_GROUPS])),
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
    (KEEP_ALIVE_STEP, |bed| bed.start_program(&["python3", "-c", KEEP_ALIVE])),
    ("a promoted download that comes back", |bed| promoted_download(bed, HOST_V4)),
    ("a flood of datagrams", flood),
];

/// Processes that a promotion and a queue of datagrams take.
fn processes(bed: &Bed) -> Result<[Option<u32>; 2]> {
    Ok([process(bed, "brodo-engine")?, process(bed, "brodo-agent")?])
}

/// Datagrams that get a queue of their own, unless engine or agent end meanwhile.
fn flood(bed: &Bed) -> Result<Job> {
    let first = processes(bed)?;
    let _ = bed.start_flood(HOST_V4, || processes(bed).is_ok_and(|now| now == first));
    bed.start_program(&["true"])
}

/// A download that gets a kernel socket and comes back, unless engine or agent end meanwhile: then the next
/// engine captures again, and promotes nothing, or none is promoted any more.
fn promoted_download(bed: &Bed, server: &str) -> Result<Job> {
    let first = processes(bed)?;
    let is_first = || processes(bed).is_ok_and(|now| now == first);
    // In the steps of an engine it captures.
    let _ = bed.client(&["capture", "stop"]);
    bed.client(&["bulk", "kernel"])?.success()?;
    let mut download = bed.start_probe(&["download", server, PORT, "100000000000"])?;
    let mut lasts = || is_first() && download.is_running();
    // It fails with the engine, and without an agent.
    let _ = bed.promote_and_recall(&mut lasts);
    drop(download);
    bed.start_program(&["true"])
}

/// Step of the allocator's calls, which it makes when its heap needs more or has too much.
const ANY_STEP: &str = "any step";

/// Step of a keep-alive probe. On a busy machine an earlier one may have its call: a guest whose window stays
/// closed for a time-out probes that by the same segment (RFC 9293, 3.8.6.1).
const KEEP_ALIVE_STEP: &str = "a keep-alive probe";

/// Step behind all others: brodo ends.
const THE_END: &str = "the end";

/// Engines tried at once: most of the time they wait for programs to start.
const AT_ONCE: usize = 5;

/// Causes that the test's kernel and machine do not have, that take too long, or that other tests have: those
/// end with SIGSYS as any test in which a process crashes fails.
const ELSEWHERE: [&str; 9] = [
    "the tests `killed`",
    "the tests `wan`",
    "the test `a network that comes late and goes`",
    "the test `a frozen socket is read out exactly and the flow goes on`",
    "a kernel before 5.11",
    "a machine without a clock in the vDSO",
    "a process that is stopped and continued",
    "a heap without room",
    "tables of many thousand flows",
];

pub(crate) const TESTS: &[Test] = &[Test::new("each allowed system call is needed", needed)
    .on(&[Link::SMALL])
    .with(&["getent", "ping", "python3"])];

/// An entry of a list, with the step that needs it.
struct Entry {
    role: &'static Role,
    name: String,
    needed_by: &'static str,
}

/// Each call of a role, and each alternative of one.
fn listed(role: &'static Role) -> Vec<Entry> {
    let entry = |name, needed_by| Entry { role, name, needed_by };
    let of_call = |call: &'static SystemCall| {
        let uses = call.alternatives.iter();
        // A call fails with its first use.
        let steps = || role.steps.iter().map(|(step, _)| *step);
        let first = steps().find(|step| uses.clone().any(|it| it.needed_by == *step));
        let whole = entry(call.name.to_owned(), first.unwrap_or(call.needed_by));
        let uses = uses.map(move |it| entry(format!("{} {}", call.name, it.name), it.needed_by));
        iter::once(whole).chain(uses)
    };
    role.calls.iter().flat_map(of_call).collect()
}

fn needed(_: &Bed) -> Result<()> {
    // The list is the same for any number of workers.
    if workers().is_some() {
        return Ok(());
    }
    let mut entries: Vec<_> = ROLES.iter().flat_map(listed).collect();
    entries.retain(|entry| !ELSEWHERE.contains(&entry.needed_by));
    let next = AtomicUsize::new(0);
    let check_rest = || -> Result<Vec<String>> {
        let entries = iter::from_fn(|| entries.get(next.fetch_add(1, Ordering::Relaxed)));
        entries
            .filter_map(|Entry { role, name, needed_by }| compared(role, name, Some(needed_by)).transpose())
            .collect()
    };
    let whole = ROLES.iter().filter_map(|role| compared(role, "none", None).transpose());
    let mut wrong: Vec<String> = whole.collect::<Result<_>>()?;
    let found: Result<Vec<_>> = thread::scope(|scope| {
        let threads: Vec<_> = iter::repeat_with(|| scope.spawn(check_rest)).take(AT_ONCE).collect();
        let join = |it: ScopedJoinHandle<'_, _>| it.join().map_err(|_| Failure("a check panicked".into()))?;
        threads.into_iter().map(join).collect()
    });
    wrong.extend(found?.into_iter().flatten());
    check(wrong.is_empty(), || wrong.join("\n"))
}

/// A sentence about a process without this entry that does not end in the expected step.
fn compared(role: &Role, name: &str, expected: Option<&str>) -> Result<Option<String>> {
    let found = ends_in(role, name)?;
    let fits = match (expected, found) {
        (Some(ANY_STEP | KEEP_ALIVE_STEP), found) => found.is_some(),
        (Some(expected), Some(found)) => expected == found || is_behind(role, expected, found),
        (expected, found) => expected == found,
    };
    let words = |step: Option<&str>| step.map_or("no SIGSYS".to_owned(), |step| format!("SIGSYS in {step}"));
    let role = role.name;
    Ok((!fits).then(|| format!("{role} without {name}: {}, expected: {}", words(found), words(expected))))
}

/// Whether one step is next after another.
fn is_behind(role: &Role, first: &str, next: &str) -> bool {
    let mut steps = role.steps.iter().map(|(step, _)| *step).chain([THE_END]);
    steps.find(|step| *step == first).and_then(|_| steps.next()) == Some(next)
}

/// Whether brodo's words tell of a process that was killed by SIGSYS, or that ended before it could serve.
fn tells(said: &str) -> bool {
    said.contains("SIGSYS") || said.contains("as the process in it has ended")
}

/// The step in which a process without this call ends with SIGSYS.
fn ends_in(role: &Role, name: &str) -> Result<Option<&'static str>> {
    let world = World::new()?;
    let left_out = format!("{WITHOUT}={} {name}", role.name);
    let enter = world.enter_host_as_user();
    let enter = [enter, vec!["env".into(), left_out, "BRODO_BULK_RATE=0".into()]].concat();
    // Many engines may have ended before the guest runs.
    let bed = match Bed::start(world, &enter, Link::SMALL, role.options) {
        Err(failure) if tells(&failure.0) => return Ok(Some("start")),
        started => started?,
    };
    let said = || bed.guest(|guest| guest.stderr()).is_ok_and(|said| tells(&said));
    // Another engine serves before the warden says so; of other processes it tells at its end.
    let is_reported = || match role.name {
        "engine" => Ok(wait_until(LIMIT, || said().then_some(())).is_some()),
        _ => Ok::<_, Failure>(tells(&bed.end()?.stderr)),
    };
    let first = process(&bed, role.process)?;
    if first.is_none() {
        return Ok(is_reported()?.then_some("start"));
    }
    for (step, action) in role.steps {
        if *step == "a new listener" {
            bed.serve_in_guest(GUEST_PORT)?;
            bed.serve_in_guest(AUTO_PORT)?;
        }
        let mut job = action(&bed)?;
        // Without any engine brodo has ended: six have crashed.
        let replaced = || process(&bed, role.process).ok().flatten().is_none_or(|now| Some(now) != first);
        wait_until(LIMIT, || (replaced() || !job.is_running()).then_some(()))
            .ok_or_else(|| Failure(format!("{name}: {step} does not end")))?;
        if replaced() {
            drop(job);
            return Ok(is_reported()?.then_some(*step));
        }
    }
    let finished = bed.end()?;
    Ok(tells(&finished.stderr).then_some(THE_END))
}

/// Process id of brodo's process of this name that runs now.
fn process(bed: &Bed, name: &str) -> Result<Option<u32>> {
    let brodo = bed.guest(|guest| guest.forwarder[0])?;
    let is_it = |pid: &u32| procfs::name(*pid) == name && procfs::is_alive(*pid);
    Ok(procfs::descendants(brodo).into_iter().find(is_it))
}
