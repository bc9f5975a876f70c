//! Integrity: bytes arrive as they were sent, both ways, with slow readers on either side and either side
//! closing first.

use crate::Test;
use crate::bed::{Bed, Link, PORT, SERVERS, check, with};
use brodo_bench::process::Result;
use brodo_bench::world::{HOST_V4, HOST_V6, WORLD_V4, WORLD_V6};

const MIB: u64 = 1 << 20;

pub(crate) const TESTS: &[Test] = &[
    Test::new("content arrives unchanged", unchanged).on(&Link::ALL),
    Test::new("readers on the host stall", host_stalls).on(&Link::ALL),
    Test::new("readers in the guest stall", guest_stalls).on(&Link::ALL),
    Test::new("the server closes its half first", server_first).on(&Link::ALL),
    Test::new("several connections at once", several),
    Test::new("an existing namespace is served", attach).on(&[Link::SMALL]),
];

/// Half close by the guest: every upload ends with one, and the answer comes after it.
fn unchanged(bed: &Bed) -> Result<()> {
    let bytes = (if bed.link.offload { 24 * MIB } else { 8 * MIB } + 12_345).to_string();
    for server in SERVERS {
        bed.equal(&["upload", server, PORT, &bytes])?;
        bed.equal(&["download", server, PORT, &bytes])?;
        // Small and empty transfers.
        for few in ["0", "1", "1461"] {
            bed.equal(&["upload", server, PORT, few])?;
            bed.equal(&["download", server, PORT, few])?;
        }
    }
    Ok(())
}

/// Bytes beyond all buffers on the way, so that a stalled reader stalls its sender.
const MORE_THAN_BUFFERS: u64 = 48 * MIB;

fn host_stalls(bed: &Bed) -> Result<()> {
    stalls(bed, "upload", |found| &found["blocked_after"])
}

fn guest_stalls(bed: &Bed) -> Result<()> {
    stalls(bed, "download", |found| &found["more"]["stalled"]["blocked_after"])
}

fn stalls(
    bed: &Bed,
    direction: &str,
    stall: impl Fn(&serde_json::Value) -> &serde_json::Value,
) -> Result<()> {
    for (number, server) in [HOST_V4, WORLD_V6].into_iter().enumerate() {
        let token = format!("{direction}-{number}");
        let words = [direction, server, PORT, &MORE_THAN_BUFFERS.to_string(), "--stall", &token];
        let found = bed.probe(&words)?;
        check(found["equal"] == true, || format!("{}: {found}", words.join(" ")))?;
        check(stall(&found).is_u64(), || format!("never stalled: {found}"))?;
    }
    Ok(())
}

fn server_first(bed: &Bed) -> Result<()> {
    let bytes = (2 * MIB + 77).to_string();
    for server in SERVERS {
        bed.equal(&["fin-first", server, PORT, &bytes, "half"])?;
        bed.equal(&["fin-first", server, PORT, "1", "half"])?;
    }
    Ok(())
}

/// Eight concurrent connections in both directions, one of them stalled.
fn several(bed: &Bed) -> Result<()> {
    let bytes = (16 * MIB).to_string();
    let more = MORE_THAN_BUFFERS.to_string();
    let mut jobs = vec![bed.start_probe(&["download", HOST_V4, PORT, &more, "--stall", "several"])?];
    for server in [HOST_V4, HOST_V6, WORLD_V4, WORLD_V6] {
        for direction in ["upload", "download"] {
            jobs.push(bed.start_probe(&[direction, server, PORT, &bytes])?);
        }
    }
    for mut job in jobs {
        let finished = job.wait(crate::bed::LIMIT)?.success()?;
        check(finished.json()?["equal"] == true, || finished.failure("not equal").0)?;
    }
    Ok(())
}

/// `brodo attach` to an existing namespace; the bed of the test stays unused.
fn attach(_: &Bed) -> Result<()> {
    with(&Bed::attached(Link::LARGE, &[])?, unchanged)
}
