//! Several workers behind one interface: connections spread over all of them, each stays where it is, memory
//! is shared.
//!
//! Every other test runs with several workers too (`make e2e`).

use crate::Test;
use crate::bed::{Bed, LIMIT, Link, PORT, check, counters};
use brodo_bench::process::{Finished, Job, Result, wait_until};
use brodo_bench::world::{HOST_V4, HOST_V6, WORLD_V4};

pub(crate) const TESTS: &[Test] = &[
    Test::new("connections spread over four workers", spread).options(&["--workers", "4"]),
    Test::new("sixty-four workers", sixty_four).on(&[Link::LARGE]).options(&["--workers", "64"]),
    Test::new("four workers share one memory", memory).options(&["--workers", "4", "--memory", "32M"]),
    Test::new("an interface that is deleted ends all workers", deleted)
        .on(&[Link::LARGE])
        .options(&["--workers", "4"]),
];

const WORKERS: usize = 4;
/// Concurrent connections; fewer than a tenth of them at a worker means that it is left out.
const CONNECTIONS: u64 = 200;

fn named(finished: &Finished, name: &str) -> u64 {
    counters(&finished.stderr).find(|(found, _)| *found == name).map_or(0, |(_, count)| count)
}

fn spread(bed: &Bed) -> Result<()> {
    // A connection that moved to another worker would be reset, as unknown there.
    for server in [HOST_V4, HOST_V6] {
        let found = bed.probe(&["many", server, PORT, &CONNECTIONS.to_string()])?;
        check(found["equal"] == true, || format!("{server}: {found}"))?;
    }
    for direction in ["upload", "download"] {
        let found = bed.probe(&[direction, WORLD_V4, PORT, "50000000"])?;
        check(found["equal"] == true, || format!("{direction}: {found}"))?;
    }
    let finished = bed.finish_whole()?;
    let each: Vec<u64> =
        (1..=WORKERS).map(|worker| named(&finished, &format!("worker {worker}: tcp_opened"))).collect();
    let report = || finished.failure(&format!("connections per worker: {each:?}")).0;
    check(each.iter().all(|&count| count >= CONNECTIONS / 10), report)?;
    check(each.iter().sum::<u64>() == named(&finished, "tcp_opened"), report)?;
    for never in ["drop NoConnection", "tcp_resets_sent", "lost_wakeups"] {
        check(named(&finished, never) == 0, || finished.failure(&format!("{never} above zero")).0)?;
    }
    Ok(())
}

fn sixty_four(bed: &Bed) -> Result<()> {
    let found = bed.probe(&["many", HOST_V4, PORT, &CONNECTIONS.to_string()])?;
    check(found["equal"] == true, || format!("{found}"))?;
    let finished = bed.finish_whole()?;
    let idle = (1..=64).filter(|n| named(&finished, &format!("worker {n}: tcp_opened")) == 0).count();
    check(idle <= 16, || finished.failure(&format!("{idle} workers have had no connection")).0)
}

/// Eight connections that are stuck hold eight ninths of the memory, as it is shared. The rest serves
/// connections of any worker, and their memory does once they have gone.
fn memory(bed: &Bed) -> Result<()> {
    let mut jobs: Vec<Job> =
        (0..8).map(|_| bed.start_probe(&["stuff", HOST_V4, PORT])).collect::<Result<_>>()?;
    for job in &mut jobs {
        let stuck = wait_until(LIMIT, || (!job.stdout().is_empty()).then_some(()));
        check(stuck.is_some() && job.is_running(), || format!("did not get stuck: {}", job.describe()))?;
    }
    for _ in 0..2 {
        for direction in ["upload", "download"] {
            let found = bed.probe(&[direction, HOST_V6, PORT, "16777216"])?;
            check(found["equal"] == true, || format!("{direction}: {found}"))?;
        }
        // Once with the remaining memory, once with all of it.
        jobs.clear();
    }
    Ok(())
}

fn deleted(bed: &Bed) -> Result<()> {
    let found = bed.probe(&["many", HOST_V4, PORT, "40"])?;
    check(found["equal"] == true, || format!("{found}"))?;
    // The first worker is the engine's main thread.
    let threads = |bed: &Bed| {
        let pids = bed.guest(|guest| guest.forwarder.clone())?;
        let named = |task: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
        };
        let tasks =
            pids.iter().filter_map(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).ok()).flatten();
        Ok(tasks.filter_map(named).filter(|name| name.starts_with("worker")).count())
    };
    let before: usize = threads(bed)?;
    check(before + 1 == WORKERS, || format!("{before} threads of workers"))?;
    bed.root_run(&["ip", "link", "del", "eth0"])?;
    // The command continues, as with one worker, and the rest of brodo waits for its end.
    let ended = wait_until(LIMIT, || (threads(bed).ok()? == 0).then_some(()));
    check(ended.is_some(), || "threads are left".into())
}
