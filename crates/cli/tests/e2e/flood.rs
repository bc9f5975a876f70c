//! A flood of the guest's datagrams: they get a queue of their own, and all else goes on as without it.

use crate::Test;
use crate::bed::{Bed, LIMIT, Link, PORT, check, counters};
use crate::upgrade::on_each_engine;
use brodo_bench::process::{Result, wait_until};
use brodo_bench::world::{HOST_V4, HOST_V6};

pub(crate) const TESTS: &[Test] = &[
    Test::new("connections beside a flood of datagrams", beside).options(&["--bulk", "kernel"]),
    Test::new("a flood of datagrams and an engine that is killed", killed)
        .on(&[Link::SMALL])
        .options(&["--bulk", "kernel"]),
];

/// Whether a full transmit queue stops the guest's interface (Linux 7.3): no flood overflows it then.
fn has_back_pressure() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(7), Some(3))
}

/// New connections, both ways.
fn transfers(bed: &Bed, server: &str) -> Result<()> {
    for direction in ["download", "upload"] {
        bed.equal(&[direction, server, PORT, "20000000"])?;
    }
    Ok(())
}

/// Datagrams are answered, once those of the flood have left the queue.
fn echoed(bed: &Bed, server: &str) -> Result<()> {
    let echo = || bed.equal(&["queries", server, PORT, "0.5", "1000"]).ok();
    check(wait_until(LIMIT, echo).is_some(), || "no datagram is answered".to_owned())
}

fn beside(bed: &Bed) -> Result<()> {
    if has_back_pressure() {
        return Ok(());
    }
    for server in [HOST_V4, HOST_V6] {
        let flood = bed.start_flood(server, || true)?;
        transfers(bed, server)?;
        drop(flood);
        echoed(bed, server)?;
    }
    let said = bed.finish()?.stderr;
    let dropped = counters(&said).any(|(name, count)| name == "link_diverted_dropped" && count > 0);
    check(dropped && !said.contains("crashed"), || said.clone())
}

/// Engines end while datagrams have a queue; the next one gets them at the interface, and in a queue again.
fn killed(bed: &Bed) -> Result<()> {
    if has_back_pressure() {
        return Ok(());
    }
    let mut floods = Vec::new();
    on_each_engine(bed, |_| {
        floods.push(bed.start_flood(HOST_V4, || true)?);
        transfers(bed, HOST_V4)
    })?;
    drop(floods);
    echoed(bed, HOST_V4)?;
    bed.finish().map(drop)
}
