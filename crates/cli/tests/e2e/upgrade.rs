//! Upgrades in place under traffic: hashed transfers with stalls and half closes while the engine is
//! exchanged every 300 ms, and connections that are silent meanwhile.
//!
//! `BRODO_E2E_SHOW=1` prints the pauses, `BRODO_E2E_SCALE` is a percentage of transfers and connections.

use crate::Test;
use crate::bed::{Bed, LIMIT, Link, PORT, check};
use brodo_bench::process::{Job, Result, wait_until};
use brodo_bench::world::{HOST_V4, WORLD_V6};
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    Test::new("transfers while brodo is upgraded every 300 ms", transfers),
    Test::new("silent connections survive upgrades", silent).on(&[Link::LARGE]),
];

/// Transfers to each of two servers, half of them uploads.
const TRANSFERS: u64 = 100;
const AT_ONCE: &str = "6";
const BYTES_MAX: u64 = 16 << 20;
const INTERVAL: Duration = Duration::from_millis(300);
/// Connections that are silent, and upgrades meanwhile.
const SILENT: u64 = 2000;
const UPGRADES: usize = 5;

pub(crate) fn scaled(count: u64) -> u64 {
    let scale = std::env::var("BRODO_E2E_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    (count * scale / 100).max(1)
}

/// Asks brodo for an upgrade to its own program. One that is under way will do.
pub(crate) fn upgrade(bed: &Bed) -> Result<()> {
    let asked = bed.guest(|guest| guest.upgrade())?;
    check(asked, || "brodo is gone".to_owned())
}

/// Calls `test` on the first engine, on the one after a crash, and on the one after an upgrade, with words
/// for which one it is.
pub(crate) fn on_each_engine(bed: &Bed, mut test: impl FnMut(&str) -> Result<()>) -> Result<()> {
    test("at first")?;
    check(bed.guest(|guest| guest.kill_engine())?, || "no engine".to_owned())?;
    test("after a crash")?;
    upgrade(bed)?;
    let upgraded = || bed.guest(|guest| guest.stderr()).ok()?.contains("after a pause of").then_some(());
    check(wait_until(LIMIT, upgraded).is_some(), || "no upgrade".to_owned())?;
    test("after an upgrade")
}

/// Pauses in microseconds, from brodo's output at its end. No flow may be lost, and no upgrade have failed
/// but for want of processor time, after which the old engine goes on.
pub(crate) fn pauses(bed: &Bed) -> Result<Vec<u64>> {
    let said = bed.finish()?.stderr;
    let failed = ["upgrade failed", "could not go on", "goes on: ", "crashed"];
    let late = |line: &str| ["in time", "timed out"].iter().any(|word| line.contains(word));
    let failure = said.lines().find(|line| failed.iter().any(|word| line.contains(word)) && !late(line));
    check(failure.is_none(), || said.clone())?;
    let pause = |line: &str| line.split_once("after a pause of ")?.1.split_once(" us")?.0.parse().ok();
    let mut pauses: Vec<u64> = said.lines().filter_map(pause).collect();
    pauses.sort_unstable();
    if std::env::var_os("BRODO_E2E_SHOW").is_some()
        && let (Some(least), Some(most)) = (pauses.first(), pauses.last())
    {
        let (count, median) = (pauses.len(), pauses[pauses.len() / 2]);
        eprintln!("{} {count} pauses: least {least} us, median {median}, most {most}", bed.link.name());
    }
    Ok(pauses)
}

/// Every transfer is exact, and none is reset.
fn transfers(bed: &Bed) -> Result<()> {
    transfer(bed)?;
    let pauses = pauses(bed)?;
    check(!pauses.is_empty(), || "there was no upgrade".to_owned())
}

/// Transfers while brodo is upgraded.
pub(crate) fn transfer(bed: &Bed) -> Result<()> {
    let (count, most) = (scaled(TRANSFERS).to_string(), BYTES_MAX.to_string());
    let start = |(server, seed)| bed.start_probe(&["transfers", server, PORT, &count, AT_ONCE, &most, seed]);
    let mut jobs: Vec<Job> =
        [(HOST_V4, "1"), (WORLD_V6, "2")].into_iter().map(start).collect::<Result<_>>()?;
    while jobs.iter_mut().any(Job::is_running) {
        upgrade(bed)?;
        thread::sleep(INTERVAL);
    }
    for job in &mut jobs {
        let found = job.wait(LIMIT)?.success()?.json()?;
        check(found["failed"].as_array().is_some_and(Vec::is_empty), || found.to_string())?;
    }
    Ok(())
}

/// Each connection that was silent through several upgrades carries bytes both ways afterwards.
fn silent(bed: &Bed) -> Result<()> {
    let count = scaled(SILENT).to_string();
    let mut job = bed.start_probe(&["many", HOST_V4, PORT, &count, "--silent"])?;
    let open = wait_until(LIMIT, || job.stderr().contains("open").then_some(()));
    check(open.is_some(), || job.describe())?;
    for _ in 0..UPGRADES {
        upgrade(bed)?;
        thread::sleep(2 * INTERVAL);
    }
    job.close_stdin();
    let found = job.wait(LIMIT)?.success()?.json()?;
    check(found["equal"] == true, || found.to_string())?;
    let pauses = pauses(bed)?;
    check(!pauses.is_empty(), || "there was no upgrade".to_owned())
}
