//! Crashes of the engine under traffic: it is killed every 300 ms. Connections that are silent go on; of
//! hashed transfers each is exact or reset, and none ends early as if that were all.
//!
//! `BRODO_E2E_SHOW=1` prints how many transfers were reset, `BRODO_E2E_SCALE` is a percentage of transfers
//! and connections.

use crate::Test;
use crate::bed::{Bed, LIMIT, Link, PORT, check};
use crate::upgrade::scaled;
use brodo_bench::process::{Job, Result, wait_until};
use brodo_bench::world::{HOST_V4, WORLD_V6};
use serde_json::Value;
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    Test::new("transfers while the engine is killed every 300 ms", transfers),
    Test::new("silent connections survive an engine that is killed", silent).on(&[Link::LARGE]),
];

/// Transfers to each of two servers, half of them uploads.
const TRANSFERS: u64 = 100;
const AT_ONCE: &str = "6";
const BYTES_MAX: u64 = 16 << 20;
const INTERVAL: Duration = Duration::from_millis(300);
/// Engines killed during the transfers: on a busy machine each new one has little time before the next.
const KILLS_MAX: usize = 40;
/// Connections that are silent, and crashes meanwhile.
const SILENT: u64 = 2000;
const CRASHES: usize = 5;

/// Kills the engine; one that is not there yet will do.
fn kill(bed: &Bed) -> Result<usize> {
    bed.guest(|guest| usize::from(guest.kill_engine()))
}

/// Whether a failed transfer was reset, or refused while no engine was there, as its program sees it.
fn is_reset(failed: &Value) -> bool {
    let error = failed["found"]["error"].as_str().unwrap_or_default();
    ["reset by peer", "Broken pipe", "Connection refused"].iter().any(|known| error.contains(known))
}

pub(crate) fn transfers(bed: &Bed) -> Result<()> {
    let (count, most) = (scaled(TRANSFERS).to_string(), BYTES_MAX.to_string());
    let start = |(server, seed)| bed.start_probe(&["transfers", server, PORT, &count, AT_ONCE, &most, seed]);
    let mut jobs: Vec<Job> =
        [(HOST_V4, "1"), (WORLD_V6, "2")].into_iter().map(start).collect::<Result<_>>()?;
    let mut kills = 0;
    while jobs.iter_mut().any(Job::is_running) {
        thread::sleep(INTERVAL);
        if kills < KILLS_MAX {
            kills += kill(bed)?;
        }
    }
    check(kills > 0, || "no engine was killed".to_owned())?;
    let mut resets = 0;
    for job in &mut jobs {
        let found = job.wait(LIMIT)?.success()?.json()?;
        let failed = found["failed"].as_array().cloned().unwrap_or_default();
        let wrong: Vec<&Value> = failed.iter().filter(|failed| !is_reset(failed)).collect();
        check(wrong.is_empty(), || format!("neither exact nor reset: {wrong:?}"))?;
        resets += failed.len();
    }
    if std::env::var_os("BRODO_E2E_SHOW").is_some() {
        let all = 4 * scaled(TRANSFERS);
        eprintln!("{} {kills} engines killed; of {all} transfers {resets} were reset", bed.link.name());
    }
    bed.finish().map(drop)
}

/// Each connection that was silent through several crashes carries bytes both ways afterwards.
fn silent(bed: &Bed) -> Result<()> {
    let count = scaled(SILENT).to_string();
    let mut job = bed.start_probe(&["many", HOST_V4, PORT, &count, "--silent"])?;
    let open = wait_until(LIMIT, || job.stderr().contains("open").then_some(()));
    check(open.is_some(), || job.describe())?;
    let mut kills = 0;
    while kills < CRASHES {
        thread::sleep(2 * INTERVAL);
        kills += kill(bed)?;
    }
    thread::sleep(2 * INTERVAL);
    job.close_stdin();
    let found = job.wait(LIMIT)?.success()?.json()?;
    check(found["equal"] == true, || found.to_string())?;
    let said = bed.finish()?.stderr;
    let whole = format!("was started again: {count} flows go on");
    let all = said.lines().filter(|line| line.ends_with(&whole)).count();
    check(all == CRASHES, || said)
}
