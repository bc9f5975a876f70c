//! Bulk flows with kernel sockets under traffic: hashed transfers with stalls and half closes, while every
//! flow is taken back again and again.
//!
//! `BRODO_E2E_SCALE` is a percentage of transfers.

use crate::Test;
use crate::bed::{Bed, LIMIT, Link, PORT, check, counters};
use brodo_bench::process::{Failure, Job, Result, wait_until};
use brodo_bench::world::{HOST_V4, WORLD_V6, World};
use serde_json::Value;
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    Test::new("transfers while bulk flows are promoted and taken back", transfers),
    Test::new("promoted flows survive an engine that is killed", killed),
    Test::new("half closed promoted flows come back, and survive an upgrade", half_closed),
    Test::new("transfers while bulk flows are promoted and the engine is killed", transfers_killed)
        .on(&[Link::SMALL]),
    Test::new("transfers while bulk flows are taken back and the engine is killed", recalls_killed)
        .on(&[Link::SMALL]),
];

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

/// Runs transfers, with `meanwhile` again and again; those that are not exact.
fn run(bed: &Bed, mut meanwhile: impl FnMut() -> Result<()>) -> Result<Vec<Value>> {
    let (count, most) = (scaled(TRANSFERS).to_string(), BYTES_MAX.to_string());
    let start = |(server, seed)| bed.start_probe(&["transfers", server, PORT, &count, AT_ONCE, &most, seed]);
    let mut jobs: Vec<Job> =
        [(HOST_V4, "1"), (WORLD_V6, "2")].into_iter().map(start).collect::<Result<_>>()?;
    while jobs.iter_mut().any(Job::is_running) {
        meanwhile()?;
    }
    let mut failed = Vec::new();
    for job in &mut jobs {
        let found = job.wait(LIMIT)?.success()?.json()?;
        let listed = found["failed"].as_array().cloned();
        failed.extend(listed.ok_or_else(|| Failure(found.to_string()))?);
    }
    Ok(failed)
}

/// Ends brodo; its counters.
fn end(bed: &Bed) -> Result<Vec<(String, u64)>> {
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
    let failed = run(&bed, || {
        bed.client(&["bulk", "tap"])?.success()?;
        bed.client(&["bulk", "kernel"])?.success()?;
        thread::sleep(Duration::from_millis(150));
        Ok(())
    })?;
    check(failed.is_empty(), || format!("{failed:?}"))?;
    let counters = end(&bed)?;
    check(count(&counters, "promotions_made") > 0, || format!("{counters:?}"))?;
    check(count(&counters, "promotions_returned") > 0, || format!("{counters:?}"))?;
    check(count(&counters, "promotions_broken") == 0, || format!("{counters:?}"))
}

/// Engines that are killed beneath one promoted flow.
const KILLS: usize = 2;

/// An upload, a download, and an upload behind the server's FIN: each goes on with its kernel socket in the
/// next engine, and is exact.
fn killed(bed: &Bed) -> Result<()> {
    let bed = eager(bed)?;
    kill_beneath(&bed).map_err(|failure| Failure(bed.explain(&failure)))
}

fn kill_beneath(bed: &Bed) -> Result<()> {
    // They last until their input ends: on a busy machine an engine takes longer than any fixed transfer.
    let jobs: [(&[&str], bool); 3] = [
        (&["watch", "up", HOST_V4, PORT, "1"], false),
        (&["watch", "down", WORLD_V6, PORT, "1"], false),
        (&["watch", "up", HOST_V4, PORT, "1", "--half-closed"], true),
    ];
    for (words, half_closed) in jobs {
        let mut job = bed.start_probe(words)?;
        if half_closed {
            // Only a flow whose streams are both open is promoted.
            wait_carried(bed, &mut job, |_| true)?;
            job.write_line("end")?;
        }
        for _ in 0..KILLS {
            let before = wait_carried(bed, &mut job, |flow| (flow["state"] != "established") == half_closed)?;
            check(bed.guest(|guest| guest.kill_engine())?, || "no engine was killed".to_owned())?;
            wait_carried(bed, &mut job, |flow| flow["id"] == before["id"] && moved(flow) > moved(&before))?;
        }
        job.close_stdin();
        let finished = job.wait(LIMIT)?.success()?;
        check(finished.json()?["equal"] == true, || finished.failure("not equal").0)?;
    }
    let said = bed.finish()?.stderr;
    let lost = said.lines().any(|line| line.contains("started again") && line.contains("reset"));
    check(!lost, || said)
}

/// Uploads behind the server's FIN, with a kernel socket: one is called back, another meets an upgrade. Both
/// go on with brodo's own TCP, and are exact.
fn half_closed(bed: &Bed) -> Result<()> {
    let bed = eager(bed)?;
    let result = ["bulk", "upgrade"].into_iter().try_for_each(|by| call_back(&bed, by));
    result.and_then(|()| end_whole(&bed)).map_err(|failure| Failure(bed.explain(&failure)))
}

/// Nothing was lost on the way back.
fn end_whole(bed: &Bed) -> Result<()> {
    let said = bed.finish_whole()?.stderr;
    let broken = counters(&said).any(|(name, count)| name == "promotions_broken" && count > 0);
    check(!broken, || said.clone())
}

fn call_back(bed: &Bed, by: &str) -> Result<()> {
    let mut job = bed.start_probe(&["watch", "up", HOST_V4, PORT, "1", "--half-closed"])?;
    // Only a flow whose streams are both open is promoted.
    wait_carried(bed, &mut job, |_| true)?;
    job.write_line("end")?;
    let before = wait_flow(bed, &mut job, "kernel", |flow| flow["state"] == "fin-wait-2")?;
    match by {
        "bulk" => _ = bed.client(&["bulk", "tap"])?.success()?,
        _ => _ = bed.client(&["upgrade"])?.success()?,
    }
    wait_flow(bed, &mut job, "stack", |flow| flow["id"] == before["id"] && moved(flow) > moved(&before))?;
    bed.client(&["bulk", "kernel"])?.success()?;
    job.close_stdin();
    let finished = job.wait(LIMIT)?.success()?;
    check(finished.json()?["equal"] == true, || finished.failure("not equal").0)
}

/// Bytes of a listed flow in both directions.
fn moved(flow: &Value) -> u64 {
    let bytes = |direction: &str| flow[direction]["bytes"].as_u64().unwrap_or(0);
    bytes("from_guest") + bytes("to_guest")
}

/// Waits, while a transfer lasts, for a flow with a kernel socket of which something holds.
fn wait_carried(bed: &Bed, job: &mut Job, holds: impl Fn(&Value) -> bool) -> Result<Value> {
    wait_flow(bed, job, "kernel", holds)
}

/// Waits, while a transfer lasts, for a flow with this carrier of which something holds.
fn wait_flow(bed: &Bed, job: &mut Job, carrier: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
    let found = || {
        // Between two engines there is no answer.
        let listed = bed.client(&["flows", "--carrier", carrier, "--json"]).ok()?;
        let flows = listed.stdout.lines().filter_map(|line| serde_json::from_str(line).ok());
        flows.into_iter().find(&holds)
    };
    let ended = wait_until(LIMIT, || match found() {
        None if job.is_running() => None,
        ended => Some(ended),
    });
    let missing = || Failure(format!("no such flow with the carrier {carrier}: {}", job.describe()));
    ended.flatten().ok_or_else(missing)
}

/// Engines killed during short transfers: each new one has little time before the next.
const KILLS_MAX: usize = 40;

/// Transfers with stalls and half closes, of which some are promoted, while the engine is killed.
fn transfers_killed(bed: &Bed) -> Result<()> {
    let bed = eager(bed)?;
    run_and_kill(&bed, false).map_err(|failure| Failure(bed.explain(&failure)))
}

/// The same while flows are taken back. One whose bytes the engine was just reading out is reset, and brodo
/// says so.
fn recalls_killed(bed: &Bed) -> Result<()> {
    let bed = eager(bed)?;
    run_and_kill(&bed, true).map_err(|failure| Failure(bed.explain(&failure)))
}

fn run_and_kill(bed: &Bed, recall: bool) -> Result<()> {
    let mut kills = 0;
    let failed = run(bed, || {
        thread::sleep(Duration::from_millis(if recall { 120 } else { 300 }));
        if recall {
            // Between two engines there is no answer.
            let _ = bed.client(&["bulk", "tap"])?;
        }
        if kills < KILLS_MAX {
            kills += usize::from(bed.guest(|guest| guest.kill_engine())?);
        }
        if recall {
            thread::sleep(Duration::from_millis(180));
            let _ = bed.client(&["bulk", "kernel"])?;
        }
        Ok(())
    })?;
    check(kills > 0, || "no engine was killed".to_owned())?;
    let said = bed.finish()?.stderr;
    let announced: usize = said.lines().filter_map(resets).sum();
    let is_reset = |failed: &Value| failed["found"]["error"].as_str().is_some_and(|e| e.contains("reset"));
    let allowed = if recall { announced } else { 0 };
    let clean = failed.iter().all(is_reset) && failed.len() <= allowed;
    check(clean, || format!("after {kills} kills: {failed:?}\n{said}"))
}

/// Flows that were reset by a crash, from brodo's sentence about it.
fn resets(line: &str) -> Option<usize> {
    let (_, end) = line.split_once("started again: ")?.1.split_once(", ")?;
    end.split_whitespace().next()?.parse().ok()
}
