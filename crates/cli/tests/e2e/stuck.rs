//! Programs that never read: only their own connections stop, and memory stays within its budget.

use crate::Test;
use crate::bed::{Bed, LIMIT, PORT, check};
use brodo_bench::process::{Job, Result, wait_until};
use brodo_bench::world::{HOST_V4, HOST_V6, WORLD_V4, WORLD_V6};

/// The memory budget given to brodo and what it may take besides, in KiB.
const BUDGET_KIB: u64 = 32 << 10;
const OVERHEAD_KIB: u64 = 16 << 10;
const OPTIONS: &[&str] = &["--memory", "32M"];

/// Number of stuck connections: 4 MiB for each would be twice the budget.
const STUCK_CONNECTIONS: usize = 16;

pub(crate) const TESTS: &[Test] = &[
    Test::new("a host program never reads", host_program).options(OPTIONS),
    Test::new("a guest program never reads", guest_program).options(OPTIONS),
];

fn host_program(bed: &Bed) -> Result<()> {
    others_are_unaffected_by(bed, "stuff")
}

fn guest_program(bed: &Bed) -> Result<()> {
    others_are_unaffected_by(bed, "ignore")
}

fn others_are_unaffected_by(bed: &Bed, what: &str) -> Result<()> {
    let servers = [HOST_V4, HOST_V6, WORLD_V4, WORLD_V6].into_iter().cycle();
    let start = |server| bed.start_probe(&[what, server, PORT]);
    let mut jobs: Vec<Job> = servers.take(STUCK_CONNECTIONS).map(start).collect::<Result<_>>()?;
    for job in &mut jobs {
        // Each prints a line once nothing moves any more.
        let stuck = wait_until(LIMIT, || (!job.stdout().is_empty()).then_some(()));
        check(stuck.is_some() && job.is_running(), || format!("did not get stuck: {}", job.describe()))?;
    }
    let bytes = (16 << 20).to_string();
    for direction in ["upload", "download"] {
        for server in [HOST_V4, WORLD_V6] {
            let found = bed.probe(&[direction, server, PORT, &bytes])?;
            check(found["equal"] == true, || format!("{direction} {server}: {found}"))?;
        }
    }
    let resident = bed.guest(|guest| guest.anonymous_kib())?;
    check(resident <= BUDGET_KIB + OVERHEAD_KIB, || {
        format!("{resident} KiB resident of a budget of {BUDGET_KIB}")
    })?;
    for job in &mut jobs {
        check(job.is_running(), || format!("was cut off: {}", job.describe()))?;
    }
    Ok(())
}
