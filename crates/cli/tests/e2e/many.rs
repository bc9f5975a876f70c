//! Many connections: at once, and one after the other without anything left behind.

use crate::Test;
use crate::bed::{Bed, LIMIT, Link, PORT, RESPOND_PORT, RESPOND_PORTS, check};
use brodo_bench::process::{Result, wait_until};
use brodo_bench::system::Guest;
use brodo_bench::world::{HOST_V4, HOST_V6, WORLD_V4};

pub(crate) const TESTS: &[Test] = &[
    Test::new("a thousand connections at once", thousand),
    Test::new("a hundred thousand short connections leave nothing behind", short).on(&[Link::LARGE]),
];

/// Connections in sequence; `BRODO_E2E_SCALE` is a percentage of them.
const SHORT_CONNECTIONS: u64 = 100_000;

/// Fluctuation of resident memory by the allocator, in KiB.
const MEMORY_SLACK_KIB: u64 = 2048;

fn thousand(bed: &Bed) -> Result<()> {
    let before = bed.guest(|guest| guest.fd_count())?;
    for server in [HOST_V4, HOST_V6, WORLD_V4] {
        let found = bed.probe(&["many", server, PORT, "1000"])?;
        check(found["equal"] == true, || format!("{server}: {found}"))?;
    }
    descriptors_return_to(bed, before)
}

/// Sockets are closed a moment after the guest has closed its end.
fn descriptors_return_to(bed: &Bed, before: usize) -> Result<()> {
    let count = || bed.guest(|guest| guest.fd_count());
    let returned = wait_until(LIMIT, || count().is_ok_and(|now| now <= before).then_some(()));
    let now = count()?;
    check(returned.is_some(), || format!("{before} descriptors before, {now} afterwards"))
}

fn short(bed: &Bed) -> Result<()> {
    bed.serve_respond()?;
    let scale = std::env::var("BRODO_E2E_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let descriptors = bed.guest(|guest| guest.fd_count())?;
    // Tables and pools grow to their working size once; afterwards nothing may grow.
    connections(bed, HOST_V4, 5_000)?;
    descriptors_return_to(bed, descriptors)?;
    let memory = bed.guest(|guest| guest.anonymous_kib())?;
    connections(bed, HOST_V4, SHORT_CONNECTIONS * scale / 100)?;
    connections(bed, HOST_V6, 10_000 * scale / 100)?;
    descriptors_return_to(bed, descriptors)?;
    let now = bed.guest(|guest| guest.anonymous_kib())?;
    check(now <= memory + MEMORY_SLACK_KIB, || format!("{memory} KiB resident before, {now} KiB after"))?;
    check(bed.guest(Guest::is_running)?, || "brodo is gone".into())
}

fn connections(bed: &Bed, server: &str, count: u64) -> Result<()> {
    let (port, ports) = (RESPOND_PORT.to_string(), RESPOND_PORTS.to_string());
    let mut job = bed.start_probe(&["short", server, &port, &ports, &count.to_string(), "4"])?;
    let found = job.wait(LIMIT * 5)?.success()?.json()?;
    let errors = found["errors"].as_object().map_or(1, serde_json::Map::len);
    check(errors == 0, || format!("{count} connections to {server}: {found}"))
}
