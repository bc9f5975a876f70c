//! Virtual machines by sockets: the guest is a namespace whose interface a probe connects to `brodo vm`, as a
//! monitor would. Every test makes beds of its own; that of the test stays unused.

use crate::Test;
use crate::bed::{Bed, LIMIT, Link, PORT, SERVERS, WANDERING, check, counters, machine, with};
use crate::crash;
use crate::upgrade;
use brodo_bench::probe::Hostility;
use brodo_bench::process::{Failure, Result, wait_until};
use brodo_bench::system::Guest;
use brodo_bench::system::machine::{Machine, MonitorKind};
use brodo_bench::world::{HOST_V4, WORLD_V6};
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    Test::new("machines on sockets of all types", types).on(&[Link::LARGE]),
    Test::new("frames of a monitor that offloads and says nothing", offloads).on(&[Link::SMALL]),
    Test::new("a monitor whose lengths are impossible", impossible_lengths).on(&[Link::SMALL]),
    Test::new("connections survive an engine that is killed, and the monitor's", reconnects)
        .on(&[Link::SMALL]),
    Test::new("a published port of a machine", published).on(&[Link::SMALL]),
    Test::new("machines on shared rings with fewer features", rings).on(&[Link::LARGE]),
    Test::new("machines on short rings that are refilled late", short_rings).on(&[Link::LARGE]),
    Test::new("connections and sockets survive an engine that is killed", frames_go_on).on(&[Link::SMALL]),
    Test::new("connections and rings survive an engine that is killed", rings_go_on).on(&[Link::SMALL]),
    Test::new("bytes go from a machine's memory to sockets", zero_copy).on(&[Link::LARGE]),
    Test::new("machines with several queues and workers", queues).on(&[Link::LARGE]),
    Test::new("flows that move between queues", wandering).on(&[Link::SMALL]),
    Test::new("transfers of a machine while the engine is killed", killed).on(&[Link::SMALL]),
    Test::new("transfers of a machine while brodo is upgraded", upgraded).on(&[Link::SMALL]),
    Test::new("machines whose device is reset", resets).on(&[Link::SMALL]),
    Test::new("a monitor whose messages are none", bad_messages).on(&[Link::SMALL]),
    Test::new("machines that harass their network", harassed).on(&[Link::SMALL]).with(&["curl"]),
];

const BYTES: &str = "12345678";

/// The socket takes each frame whole.
const WHOLE_FRAMES: Link = Link { mtu: 1500, offload: false };
/// It takes frames of the guest in parts.
const LONG_FRAMES: Link = Link { mtu: 65_520, offload: false };

fn transfers(bed: &Bed) -> Result<()> {
    for server in SERVERS {
        bed.equal(&["upload", server, PORT, BYTES])?;
        bed.equal(&["download", server, PORT, BYTES])?;
        bed.equal(&["datagrams", server, PORT, "0,1,100,1400,9000"])?;
    }
    bed.equal(&["upload", HOST_V4, PORT, "50000000", "--stall", "vm"])?;
    bed.equal(&["download", WORLD_V6, PORT, "50000000", "--stall", "vm"])
}

fn types(_: &Bed) -> Result<()> {
    for kind in MonitorKind::ALL {
        for mtu in [1500, 65_520] {
            with(&Bed::machine(Link { mtu, offload: false }, kind, &[])?, transfers)
                .map_err(|e| Failure(format!("{} {mtu}: {e}", kind.name())))?;
        }
    }
    Ok(())
}

/// Frames of 64 KiB at MTU 1500, with the pseudo-header's sum alone.
fn offloads(_: &Bed) -> Result<()> {
    with(&Bed::machine(Link { mtu: 1500, offload: true }, MonitorKind::Stream, &[])?, transfers)
}

/// A second monitor waits until the first is gone; one that sends what is no frame is disconnected, and the
/// next is served.
fn impossible_lengths(_: &Bed) -> Result<()> {
    let bed = Bed::machine(LONG_FRAMES, MonitorKind::Stream, &[])?;
    with(&bed, |bed| {
        let path = bed.world.home().join("vm");
        let failed = |e: std::io::Error| Failure(e.to_string());
        let mut hostile: Vec<_> =
            (0..3).map(|_| UnixStream::connect(&path)).collect::<std::io::Result<_>>().map_err(failed)?;
        for (monitor, bytes) in hostile.iter_mut().zip([[0; 8], [0xff; 8], *b"GET / HT"]) {
            monitor.write_all(&bytes).map_err(failed)?;
        }
        bed.equal(&["download", HOST_V4, PORT, BYTES])?;
        // With the third crash the machine's connection ends too: the waiting ones come first.
        crash_cold(bed)?;
        hostile.iter_mut().try_for_each(disconnected)?;
        bed.equal(&["download", HOST_V4, PORT, BYTES])?;
        let said = bed.finish()?.stderr;
        let counted = counters(&said).any(|counter| counter == ("link_bad_lengths", 3));
        check(counted, || format!("bad lengths are not counted: {said}"))
    })
}

/// A monitor that loses its connection comes back.
fn reconnects(_: &Bed) -> Result<()> {
    let words = &["--lose-after", "1000"];
    let machine = Machine { words, ..machine(MonitorKind::Stream, LONG_FRAMES) };
    survive(&Bed::with_machine(machine, LONG_FRAMES, &[])?, true)
}

/// A connection of packets outlives crashes, and so does a stream, of the longest frames too.
fn frames_go_on(_: &Bed) -> Result<()> {
    survive(&Bed::machine(Link::SMALL, MonitorKind::Seqpacket, &["--one-off"])?, false)?;
    for link in [WHOLE_FRAMES, LONG_FRAMES, Link { mtu: 1500, offload: true }] {
        let bed = Bed::machine(link, MonitorKind::Stream, &["--one-off"])?;
        for words in [["download", HOST_V4, PORT, BYTES], ["upload", HOST_V4, PORT, BYTES]] {
            bed.equal(&words).map_err(|failure| Failure(bed.explain(&failure)))?;
        }
        survive(&bed, false)?;
    }
    Ok(())
}

/// The same by vhost-user: the next engine sets the rings up as the monitor has done.
fn rings_go_on(_: &Bed) -> Result<()> {
    survive(&Bed::machine(Link::SMALL, MonitorKind::VhostUser, &["--one-off"])?, false)
}

/// `lost` says whether the monitor loses its connection by itself. Else it survives two crashes, of which the
/// second comes while the next engine begins, also after an upgrade: then that engine has it from the program
/// that has taken the warden's place.
fn survive(bed: &Bed, lost: bool) -> Result<()> {
    with(bed, |bed| {
        let mut job = bed.start_probe(&["many", HOST_V4, PORT, "50", "--silent"])?;
        let open = wait_until(LIMIT, || job.stderr().contains("open").then_some(()));
        check(open.is_some(), || job.describe())?;
        let said = |word: &str| {
            let said = || bed.guest(|guest| guest.describe()).map(|said| said.contains(word));
            let said = wait_until(LIMIT, || said().unwrap_or(true).then_some(()));
            check(said.is_some(), || format!("no {word:?}"))
        };
        if lost {
            said("the connection is lost")?;
        } else {
            upgrade::upgrade(bed)?;
            said("after a pause of")?;
            // The engine passes its state on when it is asked.
            thread::sleep(Duration::from_secs(1));
            end_engine(bed, Guest::kill_engine)?;
            thread::sleep(Duration::from_millis(10));
        }
        end_engine(bed, Guest::kill_engine)?;
        thread::sleep(Duration::from_secs(1));
        job.close_stdin();
        let found = job.wait(LIMIT)?.success()?.json()?;
        check(found["equal"] == true, || found.to_string())?;
        let machine = bed.guest(|guest| guest.describe())?;
        check(lost == machine.contains("the connection is lost"), || machine)?;
        let said = bed.finish()?.stderr;
        check(said.contains("was started again: 50 flows go on"), || said)
    })
}

/// Crashes of the engine after which it begins without flows, and without the machine's connection.
fn crash_cold(bed: &Bed) -> Result<()> {
    for _ in 0..3 {
        end_engine(bed, Guest::crash_engine)?;
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Ends the engine by `end`, once there is one.
fn end_engine(bed: &Bed, end: fn(&Guest) -> bool) -> Result<()> {
    let killed = wait_until(LIMIT, || match bed.guest(|guest| end(guest)) {
        Ok(false) => None,
        killed => Some(killed),
    });
    check(matches!(killed, Some(Ok(true))), || "no engine".to_owned())
}

/// The connection to the monitor goes on with the next engine, in the midst of a frame.
fn upgraded(_: &Bed) -> Result<()> {
    let several = Machine { words: WANDERING, ..machine(MonitorKind::VhostUser, Link::SMALL) };
    let beds = [
        Bed::machine(Link::SMALL, MonitorKind::Stream, &[])?,
        Bed::machine(Link::SMALL, MonitorKind::Seqpacket, &[])?,
        Bed::with_machine(several, Link::SMALL, &["--queues", "3", "--workers", "2"])?,
    ];
    for bed in beds {
        with(&bed, |bed| {
            upgrade::transfer(bed)?;
            let said = bed.guest(|guest| guest.describe())?;
            check(!said.contains("the connection is lost"), || said)?;
            let pauses = upgrade::pauses(bed)?;
            check(!pauses.is_empty(), || "there was no upgrade".to_owned())
        })?;
    }
    Ok(())
}

/// The guest's MAC address is its own, and its link is not served for a time after each crash.
fn killed(_: &Bed) -> Result<()> {
    with(&Bed::machine(Link::SMALL, MonitorKind::VhostUser, &[])?, crash::transfers)?;
    with(&Bed::machine(WHOLE_FRAMES, MonitorKind::Stream, &[])?, crash::transfers)?;
    with(&Bed::machine(LONG_FRAMES, MonitorKind::Stream, &[])?, crash::transfers)
}

fn published(_: &Bed) -> Result<()> {
    let bed = Bed::machine(Link::SMALL, MonitorKind::Stream, &["-t", "7100", "-u", "7100"])?;
    with(&bed, |bed| {
        bed.serve_in_guest(7100)?;
        for words in [["download", "198.18.0.1", "7100", BYTES], ["datagrams", "198.18.0.1", "7100", "0,100"]]
        {
            let found = bed.world_probe(&words)?;
            check(found["equal"] == true, || found.to_string())?;
        }
        Ok(())
    })
}

/// Feature bits that a driver may do without: mergeable buffers, indirect descriptors, event indices; in
/// order; all of them; super-datagrams both ways; segments with ECN; commands; and a ring too small for
/// super-frames.
const DRIVERS: &[&[&str]] = &[
    &["--without", "8000"],
    &["--without", "10000000"],
    &["--without", "20000000"],
    &["--without", "800000000"],
    &["--without", "830008000"],
    &["--without", "1c0000000000000"],
    &["--without", "2000"],
    &["--without", "20000"],
    &["--ring-size", "64"],
    &["--ring-size", "1024"],
];

fn rings(_: &Bed) -> Result<()> {
    for &words in DRIVERS {
        let link = Link { mtu: 1500, offload: true };
        let machine = Machine { words, ..machine(MonitorKind::VhostUser, link) };
        with(&Bed::with_machine(machine, link, &[])?, |bed| {
            bed.equal(&["upload", HOST_V4, PORT, BYTES])?;
            bed.equal(&["download", WORLD_V6, PORT, BYTES])?;
            bed.equal(&["datagrams", HOST_V4, PORT, "0,1,100,1400,9000"])?;
            bed.equal(&["download", HOST_V4, PORT, "50000000", "--stall", "vm"])
        })
        .map_err(|e| Failure(format!("{}: {e}", words.join(" "))))?;
    }
    Ok(())
}

/// Packets of the default MTU take more buffers of Linux's than half of these rings, which is when it refills
/// them: it would not, and no longer one would ever arrive.
fn short_rings(_: &Bed) -> Result<()> {
    const RINGS: [[&str; 3]; 3] = [
        ["--late-refill", "--ring-size", "64"],
        ["--late-refill", "--ring-size", "32"],
        ["--late-refill", "--ring-size", "256"],
    ];
    for words in &RINGS {
        let machine = Machine { words, ..machine(MonitorKind::VhostUser, Link::LARGE) };
        with(&Bed::with_machine(machine, Link::LARGE, &[])?, |bed| {
            bed.equal(&["upload", HOST_V4, PORT, BYTES])?;
            bed.equal(&["download", WORLD_V6, PORT, BYTES])?;
            bed.equal(&["datagrams", HOST_V4, PORT, "0,1,1400,9000,40000,65000"])?;
            bed.equal(&["download", HOST_V4, PORT, BYTES])
        })
        .map_err(|e| Failure(format!("{}: {e}", words.join(" "))))?;
    }
    Ok(())
}

/// Most of an upload is not copied, also of one whose reader stalls.
fn zero_copy(_: &Bed) -> Result<()> {
    for (link, workers) in [(Link::SMALL, "1"), (Link::LARGE, "1"), (Link::SMALL, "2")] {
        let machine = machine(MonitorKind::VhostUser, link);
        with(&Bed::with_machine(machine, link, &["--workers", workers])?, |bed| {
            for server in SERVERS {
                bed.equal(&["upload", server, PORT, BYTES])?;
                bed.equal(&["upload", server, PORT, "50000000", "--stall", server])?;
            }
            let sent = bed.counter("tcp_zero_copy_bytes")?;
            check(sent > 20_000_000 * SERVERS.len() as u64, || {
                format!("{sent} bytes of {} uploads", SERVERS.len())
            })
        })
        .map_err(|e| Failure(format!("{link:?}, {workers} workers: {e}")))?;
    }
    Ok(())
}

/// Queue pairs of the machine, and workers: more than pairs too.
const QUEUES: &[(&[&str], &str)] = &[
    (&["--queues", "4"], "1"),
    (&["--queues", "2"], "2"),
    (&["--queues", "3"], "2"),
    (&[], "2"),
    (&["--queues", "4"], "4"),
];

fn queues(_: &Bed) -> Result<()> {
    for &(words, workers) in QUEUES {
        let link = Link { mtu: 1500, offload: true };
        let machine = Machine { words, ..machine(MonitorKind::VhostUser, link) };
        let options = ["--workers", workers, "-t", "7100", "-u", "7100"];
        with(&Bed::with_machine(machine, link, &options)?, |bed| {
            bed.equal(&["upload", HOST_V4, PORT, BYTES])?;
            bed.equal(&["download", WORLD_V6, PORT, BYTES])?;
            bed.equal(&["many", HOST_V4, PORT, "100"])?;
            bed.equal(&["datagrams", HOST_V4, PORT, "0,1,100,1400,9000"])?;
            bed.serve_in_guest(7100)?;
            for words in
                [["upload", "198.18.0.1", "7100", BYTES], ["datagrams", "198.18.0.1", "7100", "0,100"]]
            {
                let found = bed.world_probe(&words)?;
                check(found["equal"] == true, || found.to_string())?;
            }
            Ok(())
        })
        .map_err(|e| Failure(format!("{words:?}, {workers} workers: {e}")))?;
    }
    Ok(())
}

/// A thread that moves between processors takes its flows along to other queues, and so to other workers,
/// which pass their frames on; none is lost.
fn wandering(_: &Bed) -> Result<()> {
    for workers in ["1", "2", "3"] {
        let link = Link { mtu: 1500, offload: true };
        let machine = Machine { words: WANDERING, ..machine(MonitorKind::VhostUser, link) };
        with(&Bed::with_machine(machine, link, &["--workers", workers])?, |bed| {
            for server in SERVERS {
                bed.equal(&["upload", server, PORT, BYTES])?;
                bed.equal(&["download", server, PORT, BYTES])?;
            }
            bed.equal(&["many", HOST_V4, PORT, "200"])?;
            bed.equal(&["datagrams", HOST_V4, PORT, "0,1,100,1400,9000"])?;
            bed.equal(&["upload", HOST_V4, PORT, "200000000"])?;
            bed.equal(&["download", WORLD_V6, PORT, "50000000", "--stall", "vm"])?;
            let said = bed.finish_whole()?.stderr;
            let count = |name| counters(&said).find(|(other, _)| *other == name).map_or(0, |found| found.1);
            let (resteered, lost) = (count("frames_resteered"), count("frames_resteered_lost"));
            check((resteered > 0) == (workers != "1") && lost == 0, || said.clone())
        })
        .map_err(|e| Failure(format!("{workers} workers: {e}")))?;
    }
    Ok(())
}

/// A driver that is loaded again, or a machine that sleeps and wakes, keeps its connections: its kernel knows
/// them. All workers ask it.
fn resets(_: &Bed) -> Result<()> {
    for workers in ["1", "2"] {
        let words = &["--queues", "2", "--reset-every", "300"];
        let machine = Machine { words, ..machine(MonitorKind::VhostUser, Link::SMALL) };
        with(&Bed::with_machine(machine, Link::SMALL, &["--workers", workers])?, |bed| {
            let mut job = bed.start_probe(&["many", HOST_V4, PORT, "50", "--silent"])?;
            let open = wait_until(LIMIT, || job.stderr().contains("open").then_some(()));
            check(open.is_some(), || job.describe())?;
            let before = bed.counter("tcp_doubted")?;
            bed.equal(&["upload", HOST_V4, PORT, "50000000"])?;
            bed.equal(&["download", WORLD_V6, PORT, "50000000"])?;
            let asked = || bed.counter("tcp_doubted").ok().filter(|now| *now >= before + 50);
            check(wait_until(LIMIT, asked).is_some(), || "connections are not probed".to_owned())?;
            job.close_stdin();
            let found = job.wait(LIMIT)?.success()?.json()?;
            check(found["equal"] == true, || found.to_string())
        })
        .map_err(|e| Failure(format!("{workers} workers: {e}")))?;
    }
    Ok(())
}

/// Waits for the end of a connection; with bytes that brodo has not read the kernel makes a reset of it.
fn disconnected(monitor: &mut UnixStream) -> Result<()> {
    monitor.set_read_timeout(Some(LIMIT)).map_err(|e| Failure(e.to_string()))?;
    match std::io::Read::read(monitor, &mut [0; 8]) {
        Ok(0) => Ok(()),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
        other => Err(Failure(format!("a hostile monitor is still connected: {other:?}"))),
    }
}

/// Monitors that do not speak vhost-user are disconnected, and the next one is served.
fn bad_messages(_: &Bed) -> Result<()> {
    let bed = Bed::machine(Link::SMALL, MonitorKind::VhostUser, &[])?;
    with(&bed, |bed| {
        let path = bed.world.home().join("vm");
        let failed = |e: std::io::Error| Failure(e.to_string());
        // A request of another version; one with a payload of 2 GiB; one without the payload it must have.
        let header = |words: [u32; 3]| words.map(u32::to_ne_bytes).concat();
        let messages = [header([1, 0, 0]), header([1, 1, 1 << 31]), header([2, 1, 0])];
        let mut hostile: Vec<_> =
            (0..3).map(|_| UnixStream::connect(&path)).collect::<std::io::Result<_>>().map_err(failed)?;
        for (monitor, bytes) in hostile.iter_mut().zip(messages) {
            monitor.write_all(&bytes).map_err(failed)?;
        }
        // The machine's connection ends, and the waiting ones come first.
        crash_cold(bed)?;
        hostile.iter_mut().try_for_each(disconnected)?;
        bed.equal(&["download", HOST_V4, PORT, BYTES])?;
        let said = bed.finish()?.stderr;
        let counted = counters(&said).any(|counter| counter == ("link_bad_messages", 3));
        check(counted, || format!("bad messages are not counted: {said}"))
    })
}

/// Address of the metrics, in the host namespace of each bed.
const METRICS: &str = "127.0.0.1:9100";

/// A sum of the metrics, once there is one.
fn metric(bed: &Bed, name: &str) -> Option<u64> {
    let words = ["curl", "-s", &format!("{METRICS}/metrics")];
    let page = bed.world.run(&bed.world.host.enter(), words, LIMIT).ok()?.stdout;
    let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    let values = page.lines().filter(of_name).map(|line| line.rsplit(' ').next()?.parse().ok());
    values.collect::<Option<Vec<u64>>>().filter(|values| !values.is_empty()).map(|all| all.iter().sum())
}

/// Rests of the worker: a machine that harasses has not a whole processor for it. Nothing ends but the
/// machine.
fn harassed(_: &Bed) -> Result<()> {
    for way in Hostility::ALL {
        let words = way.words();
        let machine = Machine { words, ..machine(MonitorKind::VhostUser, Link::SMALL) };
        with(&Bed::with_machine(machine, Link::SMALL, &["--metrics", METRICS])?, |bed| {
            if way == Hostility::Stalled {
                return sleeps(bed);
            }
            let rested = || metric(bed, "brodo_worker_rests_total").filter(|rests| *rests > 10);
            check(wait_until(LIMIT, rested).is_some(), || "no rest".to_owned())
        })
        .map_err(|e| Failure(format!("{words:?}: {e}")))?;
    }
    Ok(())
}

/// Most turns of the loop in a second for a machine that gives no buffers back: those of its further SYNs,
/// of timers and of the metrics. A loop that looks for buffers instead of waiting makes a thousand times as
/// many.
const TURNS_MAX: u64 = 1000;

/// Downloads of a machine without buffers wait in the host's kernel, and brodo sleeps.
fn sleeps(bed: &Bed) -> Result<()> {
    let stalled = || metric(bed, "brodo_link_stalls_total").filter(|stalls| *stalls > 0);
    check(wait_until(LIMIT, stalled).is_some(), || "the link has had credit throughout".to_owned())?;
    // Frames that were on their way when the buffers ran out.
    thread::sleep(Duration::from_secs(1));
    let turns = || metric(bed, "brodo_worker_turns_total").ok_or_else(|| Failure("no metrics".into()));
    let before = turns()?;
    thread::sleep(Duration::from_secs(1));
    let made = turns()? - before;
    check(made < TURNS_MAX, || format!("{made} turns in a second without buffers"))?;
    let (used, opened) = (metric(bed, "brodo_memory_used_bytes"), metric(bed, "brodo_tcp_opened_total"));
    let is_small = used.is_some_and(|used| used < 16 << 20);
    check(is_small && opened >= Some(16), || format!("{used:?} bytes, {opened:?} connections"))
}
