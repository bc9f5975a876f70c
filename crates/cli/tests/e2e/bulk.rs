//! Bulk flows with kernel sockets under traffic: hashed transfers with stalls and half closes, while every
//! flow is taken back again and again.
//!
//! `BRODO_E2E_SCALE` is a percentage of transfers.

use crate::Test;
use crate::bed::{Bed, LIMIT, PORT, check, counters};
use brodo_bench::process::{Job, Result};
use brodo_bench::world::{HOST_V4, WORLD_V6, World};
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] =
    &[Test::new("transfers while bulk flows are promoted and taken back", transfers)];

/// Transfers to each of two servers, half of them uploads.
const TRANSFERS: u64 = 60;
const AT_ONCE: &str = "3";
const BYTES_MAX: u64 = 48 << 20;

fn scaled(count: u64) -> u64 {
    let scale = std::env::var("BRODO_E2E_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    (count * scale / 100).max(4)
}

/// A bed in which each connection that has moved 4 MiB is bulk, whatever the machine's speed.
fn eager(bed: &Bed) -> Result<Bed> {
    let world = World::new()?;
    let enter = [world.enter_host_as_user(), vec!["env".into(), "BRODO_BULK_RATE=0".into()]].concat();
    Bed::start(world, &enter, bed.link, &["--bulk", "kernel"])
}

/// Runs transfers, with `meanwhile` again and again; each is exact. The counters at the end.
fn run(bed: &Bed, meanwhile: impl Fn() -> Result<()>) -> Result<Vec<(String, u64)>> {
    let (count, most) = (scaled(TRANSFERS).to_string(), BYTES_MAX.to_string());
    let start = |(server, seed)| bed.start_probe(&["transfers", server, PORT, &count, AT_ONCE, &most, seed]);
    let mut jobs: Vec<Job> =
        [(HOST_V4, "1"), (WORLD_V6, "2")].into_iter().map(start).collect::<Result<_>>()?;
    while jobs.iter_mut().any(Job::is_running) {
        meanwhile()?;
    }
    for job in &mut jobs {
        let found = job.wait(LIMIT)?.success()?.json()?;
        check(found["failed"].as_array().is_some_and(Vec::is_empty), || found.to_string())?;
    }
    // On a busy machine no transfer may have lasted from one recall to the next.
    let mut download = bed.start_probe(&["download", HOST_V4, PORT, "100000000000"])?;
    bed.promote_and_recall(|| download.is_running())?;
    drop(download);
    let said = bed.finish()?.stderr;
    check(!said.contains("crashed"), || said.clone())?;
    Ok(counters(&said).map(|(name, count)| (name.to_owned(), count)).collect())
}

/// A counter above zero is printed.
fn count(counters: &[(String, u64)], wanted: &str) -> u64 {
    counters.iter().find(|(name, _)| name == wanted).map_or(0, |(_, count)| *count)
}

fn transfers(bed: &Bed) -> Result<()> {
    let bed = eager(bed)?;
    let counters = run(&bed, || {
        bed.client(&["bulk", "tap"])?.success()?;
        bed.client(&["bulk", "kernel"])?.success()?;
        thread::sleep(Duration::from_millis(150));
        Ok(())
    })?;
    check(count(&counters, "promotions_made") > 0, || format!("{counters:?}"))?;
    check(count(&counters, "promotions_returned") > 0, || format!("{counters:?}"))?;
    check(count(&counters, "promotions_broken") == 0, || format!("{counters:?}"))
}
