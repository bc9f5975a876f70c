//! Stress: transfers of every size with stalls at both ends, brodo stopped in the middle of transfers, a
//! thousand slow readers on a small budget. No loss, no needless retransmission, no starving flow.
//!
//! `BRODO_E2E_SHOW=1` prints the counters, among them all retransmissions.

use crate::Test;
use crate::bed::{Bed, LIMIT, Link, PORT, check, is_on_stream};
use brodo_bench::process::{Job, Result, wait_until};
use brodo_bench::procfs::net_counter;
use brodo_bench::world::{HOST_V4, HOST_V6, WORLD_V4, WORLD_V6};
use serde_json::Value;
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    Test::new("transfers of all sizes with stalls", transfers),
    Test::new("brodo is stopped for a while", stopped),
    Test::new("datagrams wait while brodo is stopped", datagrams_wait),
    Test::new("a thousand slow readers on the host", slow_peers).options(SMALL_BUDGET),
    Test::new("a thousand slow readers in the guest", slow_guests).options(SMALL_BUDGET),
];

/// Uploads, and as many downloads; `BRODO_E2E_SCALE` is a percentage of them.
const TRANSFERS: u64 = 200;
const AT_ONCE: &str = "6";
const BYTES_MAX: u64 = 64 << 20;

const SMALL_BUDGET: &[&str] = &["--memory", "8M"];
const BUDGET_KIB: u64 = 8 << 10;
/// Memory beside the budget: a thousand connections, tables, the program itself.
const OVERHEAD_KIB: u64 = 16 << 10;
/// Number of readers, and the rate of each in bytes per second: 1 MB/s together.
const READERS: &str = "1000";
const RATE: &str = "1000";
/// Bytes beyond all buffers on the way.
const BYTES_EACH: &str = "300000";
const SLOW_MS: &str = "6000";

fn scale() -> u64 {
    std::env::var("BRODO_E2E_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(100)
}

fn show(bed: &Bed, what: impl FnOnce() -> String) {
    if std::env::var_os("BRODO_E2E_SHOW").is_some() {
        eprintln!("{} {}", bed.link.name(), what());
    }
}

/// A counter of the guest's kernel.
pub(crate) fn guest_counter(bed: &Bed, group: &str, name: &str) -> Result<u64> {
    bed.guest(|guest| net_counter(guest.pid, group, name))
}

/// Frames dropped by the guest's interface because its ring was full.
pub(crate) fn ring_drops(bed: &Bed) -> Result<u64> {
    let finished = bed.run(&["ip", "-s", "-j", "link", "show", "up"])?;
    let links = finished.json()?;
    let dropped = |link: &Value| link["stats64"]["tx"]["dropped"].as_u64().unwrap_or(0);
    Ok(links.as_array().map_or(0, |links| links.iter().map(dropped).sum()))
}

/// Counters from brodo's output at its end; construction ends brodo.
pub(crate) struct Counted(String);

impl Counted {
    pub(crate) fn of(bed: &Bed) -> Result<Self> {
        Ok(Self(bed.finish_whole()?.stderr))
    }

    pub(crate) fn get(&self, name: &str) -> u64 {
        let line = format!("brodo: {name} ");
        self.0.lines().find_map(|found| found.strip_prefix(&line)?.parse().ok()).unwrap_or(0)
    }
}

/// All transfers are correct, no frame is dropped on either side, and retransmissions come from expired
/// timers alone: a kernel or a brodo without a processor acknowledges late, over any link. The interface of a
/// machine on a stream may drop frames, of which its guest then sends a second copy.
fn transfers(bed: &Bed) -> Result<()> {
    let count = (TRANSFERS * scale() / 100).max(1) / 2;
    for (server, seed) in [(HOST_V4, "1"), (WORLD_V6, "2")] {
        let words = ["transfers", server, PORT, &count.to_string(), AT_ONCE, &BYTES_MAX.to_string(), seed];
        let found = bed.start_probe(&words)?.wait(3 * LIMIT)?.success()?.json()?;
        check(found["failed"].as_array().is_some_and(Vec::is_empty), || {
            format!("{}: {found}", words.join(" "))
        })?;
    }
    let kernel = |name| guest_counter(bed, "TcpExt", name);
    let [probes, timeouts, resent] =
        [kernel("TCPLossProbes")?, kernel("TCPTimeouts")?, guest_counter(bed, "Tcp", "RetransSegs")?];
    let dropped = ring_drops(bed)?;
    let counted = Counted::of(bed)?;
    let text = || {
        format!(
            "the guest resent {resent}, probed {probes}, {timeouts} time-outs, {dropped} ring drops\n{}",
            counted.0
        )
    };
    show(bed, text);
    let is_lossy = dropped > 0 && is_on_stream();
    check(is_lossy || (dropped == 0 && (resent == 0 || probes + timeouts > 0)), text)?;
    let [retransmitted, tail, timeouts] =
        ["tcp_retransmissions", "tcp_tail_probes", "tcp_timeouts"].map(|name| counted.get(name));
    check(retransmitted == 0 || tail + timeouts > 0, text)?;
    check(counted.get("drop OutOfWindow") <= resent, text)?;
    check(!counted.0.lines().any(|line| line.contains(" drop ") && !line.contains("OutOfWindow")), text)
}

const STOP: Duration = Duration::from_millis(300);
const STOPS: u64 = 2;
/// Rounds of transfer that every flow of a watched probe has completed.
fn rounds(job: &Job) -> usize {
    job.stderr().lines().filter(|line| line.starts_with("round ")).count()
}

/// Waits until every flow has completed a round that began after the call.
fn progress(jobs: &mut [Job]) -> Result<()> {
    let before: Vec<usize> = jobs.iter().map(rounds).collect();
    for (job, before) in jobs.iter_mut().zip(before) {
        let moved = wait_until(LIMIT, || (rounds(job) >= before + 2).then_some(()));
        check(moved.is_some(), || format!("a flow stands still: {}", job.describe()))?;
    }
    Ok(())
}

/// Flows in both directions while brodo stands still now and then: each goes on afterwards, and nothing is
/// lost.
fn stopped(bed: &Bed) -> Result<()> {
    for direction in ["up", "down"] {
        let start = |server| bed.start_probe(&["watch", direction, server, PORT, "3"]);
        let mut jobs: Vec<Job> = [HOST_V4, WORLD_V6].into_iter().map(start).collect::<Result<_>>()?;
        progress(&mut jobs)?;
        for _ in 0..STOPS {
            bed.guest(|guest| guest.stop())?;
            thread::sleep(STOP);
            bed.guest(|guest| guest.resume())?;
            progress(&mut jobs)?;
        }
        for job in &mut jobs {
            job.close_stdin();
            let found = job.wait(LIMIT)?.success()?.json()?;
            check(found["equal"] == true, || format!("{direction}: {found}"))?;
        }
    }
    let dropped = ring_drops(bed)?;
    check(dropped == 0, || format!("{dropped} frames dropped by the ring"))
}

/// Datagrams per second: as many as come in a pause fit the buffers that programs have unless they ask for
/// more.
const DATAGRAM_RATE: &str = "100";

/// Datagrams in both directions while brodo stands still now and then: those from the guest wait in its
/// interface, those to it in the host's kernel, and all arrive.
fn datagrams_wait(bed: &Bed) -> Result<()> {
    for server in [HOST_V4, WORLD_V6] {
        for direction in ["datagrams-up", "datagrams-down"] {
            let mut job = bed.start_probe(&[direction, server, PORT, "1400", "3", DATAGRAM_RATE])?;
            for _ in 0..STOPS {
                thread::sleep(Duration::from_millis(700));
                bed.guest(|guest| guest.stop())?;
                thread::sleep(STOP);
                bed.guest(|guest| guest.resume())?;
            }
            let found = job.wait(LIMIT)?.success()?.json()?;
            let arrived = found["datagrams"].as_u64().unwrap_or(0);
            check(found["loss_percent"] == 0.0 && arrived > 100, || {
                format!("{direction} {server}: {found}")
            })?;
        }
    }
    Ok(())
}

fn slow_peers(bed: &Bed) -> Result<()> {
    slow_readers(bed, "up")
}

fn slow_guests(bed: &Bed) -> Result<()> {
    slow_readers(bed, "down")
}

/// A thousand slow readers: each gets its rate, memory stays within the budget, and no segment is dropped for
/// want of it.
fn slow_readers(bed: &Bed, direction: &str) -> Result<()> {
    // Small socket buffers, as the kernel would otherwise hold all the data.
    bed.world.host.set(&[("ipv4/tcp_wmem", "4096 16384 65536")])?;
    let mut most_kib = 0;
    for server in [if bed.link == Link::SMALL { WORLD_V4 } else { HOST_V6 }] {
        let words = ["slow", direction, server, PORT, READERS, BYTES_EACH, RATE, SLOW_MS];
        let mut job = bed.start_probe(&words)?;
        while job.is_running() {
            most_kib = most_kib.max(bed.guest(|guest| guest.anonymous_kib())?);
            thread::sleep(Duration::from_millis(50));
        }
        let found = job.wait(LIMIT)?.success()?.json()?;
        show(bed, || format!("{direction} {server}: {found}, {most_kib} KiB"));
        check(found["failed"].as_array().is_some_and(Vec::is_empty), || {
            format!("{}: {found}", words.join(" "))
        })?;
        check(found["worst"].as_u64().is_some_and(|worst| worst > 0), || {
            format!("a reader starves: {found}")
        })?;
    }
    check(most_kib <= BUDGET_KIB + OVERHEAD_KIB, || format!("{most_kib} KiB resident"))?;
    let counted = Counted::of(bed)?;
    show(bed, || format!("{direction}: {}", counted.0));
    check(counted.get("drop MemoryBudget") == 0, || counted.0.clone())
}
