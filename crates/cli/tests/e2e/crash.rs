//! Crashes of the engine under traffic: it is killed every 300 ms. Connections that are silent go on, and
//! each hashed transfer is exact.
//!
//! `BRODO_E2E_SHOW=1` prints how many engines were killed, `BRODO_E2E_SCALE` is a percentage of transfers and
//! connections.

use crate::Test;
use crate::bed::{Bed, LIMIT, Link, PORT, check, counters};
use crate::ports::brokers;
use crate::upgrade::scaled;
use brodo_bench::process::{Failure, Job, Result, wait_until};
use brodo_bench::procfs;
use brodo_bench::world::{HOST_V4, WORLD_V6};
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    Test::new("transfers while the engine is killed every 300 ms", transfers),
    Test::new("silent connections survive an engine that is killed", silent).on(&[Link::LARGE]),
    Test::new("spliced transfers while the engine is killed every 300 ms", spliced)
        .options(&["-T", "7900:7000", "-t", "%lo/8100:7100"])
        .on(&[Link::SMALL]),
    Test::new("datagrams of ports survive an engine that is killed", datagrams)
        .options(&["-U", "7900:7111", "-u", "%lo/8100:7112"])
        .on(&[Link::SMALL]),
    Test::new("a crash after the end of the socket broker", without_broker)
        .options(&["-T", "7900:7000", "-t", "8100:7100"])
        .on(&[Link::SMALL]),
];

/// Transfers to each of two servers, half of them uploads.
const TRANSFERS: u64 = 100;
const AT_ONCE: &str = "6";
const BYTES_MAX: u64 = 16 << 20;
const INTERVAL: Duration = Duration::from_millis(300);
/// Time from the start of transfers to the first: a fast machine needs little more for a few of them.
const FIRST: Duration = Duration::from_millis(50);
/// Engines killed during the transfers: on a busy machine each new one has little time before the next.
const KILLS_MAX: usize = 40;
/// Least of them: transfers begin again until there were so many.
const KILLS_MIN: usize = 2;
/// Connections that are silent, and crashes meanwhile.
const SILENT: u64 = 2000;
const CRASHES: usize = 5;

/// Kills the engine; one that is not there yet will do.
fn kill(bed: &Bed) -> Result<usize> {
    bed.guest(|guest| usize::from(guest.kill_engine()))
}

/// Runs transfers while engines are killed, again until some have been killed in the midst of them: on a fast
/// machine all of them are over soon after the first kill. All are exact.
fn kill_during(bed: &Bed, start: impl Fn() -> Result<Vec<Job>>) -> Result<()> {
    let mut kills = 0;
    while kills < KILLS_MIN {
        let (mut jobs, mut pause) = (start()?, FIRST);
        while jobs.iter_mut().any(Job::is_running) {
            thread::sleep(pause);
            pause = INTERVAL;
            if kills < KILLS_MAX && jobs.iter_mut().any(Job::is_running) {
                kills += kill(bed)?;
            }
        }
        for job in &mut jobs {
            let found = job.wait(LIMIT)?.success()?.json()?;
            let is_exact = found["failed"].as_array().is_some_and(Vec::is_empty);
            check(is_exact, || format!("not exact after {kills} kills: {found}"))?;
        }
    }
    if std::env::var_os("BRODO_E2E_SHOW").is_some() {
        eprintln!("{} {kills} engines killed in the midst of transfers", bed.link.name());
    }
    Ok(())
}

pub(crate) fn transfers(bed: &Bed) -> Result<()> {
    let (count, most) = (scaled(TRANSFERS).to_string(), BYTES_MAX.to_string());
    let start = |(server, seed)| bed.start_probe(&["transfers", server, PORT, &count, AT_ONCE, &most, seed]);
    kill_during(bed, || [(HOST_V4, "1"), (WORLD_V6, "2")].into_iter().map(start).collect())?;
    bed.finish().map(drop)
}

/// Transfers between the loopbacks in both directions: all are exact, and none is reset. Bytes are in pipes
/// and sockets, which outlive the engine, and connections that it had only accepted begin again.
fn spliced(bed: &Bed) -> Result<()> {
    bed.serve_in_guest(7100)?;
    let (count, most) = (scaled(TRANSFERS).to_string(), BYTES_MAX.to_string());
    let words = |server, port, seed| ["transfers", server, port, &count, AT_ONCE, &most, seed];
    kill_during(bed, || {
        let outward = bed.start_probe(&words("127.0.0.1", "7900", "1"))?;
        Ok(vec![outward, bed.start_host_probe(&words("::1", "8100", "2"))?])
    })?;
    let said = bed.finish()?.stderr;
    check(said.contains("go on"), || said.clone())?;
    let lost = said.lines().any(|line| line.contains("started again") && line.contains("reset"));
    check(!lost, || said)
}

/// Forwards that need the broker are out of force after a crash, and the rest goes on.
fn without_broker(bed: &Bed) -> Result<()> {
    bed.serve_in_guest(7100)?;
    let brokers = brokers(bed);
    let [broker] = brokers[..] else { return Err(Failure(format!("brokers: {brokers:?}"))) };
    brodo_bench::system::kill_process(broker);
    check(wait_until(LIMIT, || (!procfs::is_alive(broker)).then_some(())).is_some(), || "it lives".into())?;
    check(kill(bed)? == 1, || "no engine".to_owned())?;
    for job in [
        bed.start_probe(&["upload", HOST_V4, PORT, "1000000"])?,
        bed.start_host_probe(&["upload", "127.0.0.1", "8100", "1000000"])?,
    ] {
        let mut job = job;
        let found = job.wait(LIMIT)?.success()?.json()?;
        check(found["equal"] == true, || found.to_string())?;
    }
    let said = bed.finish()?.stderr;
    check(said.contains("after the crash a forward is not in force: -T 7900:7000"), || said)
}

/// Answers that come after a crash reach the peers that asked before it, by a published port and by a relay:
/// nothing is sent meanwhile from which a flow could begin anew.
fn datagrams(bed: &Bed) -> Result<()> {
    // Longer than the crash and what comes before it takes, beside load.
    const PAUSE_MS: &str = "10000";
    let [probe, name] = bed.world.probe();
    let late = |port: u16| [probe.clone(), name.clone(), "late".into(), port.to_string(), PAUSE_MS.into()];
    let on_host = bed.world.start(&bed.world.host.enter(), late(7111))?;
    let in_guest = bed.start_program(&late(7112).each_ref().map(String::as_str))?;
    for (server, port) in [(&on_host, 7111), (&in_guest, 7112)] {
        let bound = || procfs::is_bound(server.pid(), port).then_some(());
        check(wait_until(LIMIT, bound).is_some(), || server.describe())?;
    }
    let outward = bed.start_probe(&["datagrams", "127.0.0.1", "7900", "100"])?;
    let published = bed.start_host_probe(&["datagrams", "127.0.0.9", "8100", "100"])?;
    let has_both = || bed.client(&["flows", "--json"]).is_ok_and(|all| all.stdout.lines().count() == 2);
    check(wait_until(LIMIT, || has_both().then_some(())).is_some(), || "not two flows".to_owned())?;
    check(kill(bed)? == 1, || "no engine".to_owned())?;
    for mut job in [outward, published] {
        let finished = job.wait(LIMIT)?.success()?;
        check(finished.json()?["equal"] == true, || finished.failure("no answer").0)?;
    }
    let said = bed.finish()?.stderr;
    check(said.contains("was started again: 2 flows go on\n"), || said)
}

/// Engines that were started again after a crash, as brodo says.
fn started_again(said: &str) -> usize {
    said.lines().filter(|line| line.contains("was started again")).count()
}

/// Each connection that was silent through several crashes carries bytes both ways afterwards.
fn silent(bed: &Bed) -> Result<()> {
    let count = scaled(SILENT).to_string();
    let mut job = bed.start_probe(&["many", HOST_V4, PORT, &count, "--silent"])?;
    let open = wait_until(LIMIT, || job.stderr().contains("open").then_some(()));
    check(open.is_some(), || job.describe())?;
    for kills in 1..=CRASHES {
        // Totals are recorded now and then.
        thread::sleep(2 * INTERVAL);
        let killed = || kill(bed).ok().filter(|killed| *killed > 0);
        check(wait_until(LIMIT, killed).is_some(), || format!("no engine after {kills} crashes"))?;
        // The sentence about a crash comes when another engine serves, and one that is killed before that has
        // none.
        let again = || bed.guest(|guest| started_again(&guest.stderr())).ok() == Some(kills);
        let again = wait_until(LIMIT, || again().then_some(()));
        check(again.is_some(), || format!("not started again after {kills} crashes"))?;
    }
    job.close_stdin();
    let found = job.wait(LIMIT)?.success()?.json()?;
    check(found["equal"] == true, || found.to_string())?;
    let said = bed.finish()?.stderr;
    let whole = format!("was started again: {count} flows go on");
    let all = said.lines().filter(|line| line.ends_with(&whole)).count();
    check(all == CRASHES, || said.clone())?;
    // Totals go on, as those of connections that were opened long before.
    let opened = counters(&said).find(|(name, _)| *name == "tcp_opened").map_or(0, |(_, count)| count);
    check(opened == scaled(SILENT), || format!("{opened} connections are counted: {said}"))
}
