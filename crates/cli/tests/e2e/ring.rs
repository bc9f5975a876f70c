//! The TAP's transmit queue: at any length all bytes arrive, and from ten frames on no frame is dropped.

use crate::Test;
use crate::bed::{Bed, LIMIT, Link, PORT, check};
use crate::stress::guest_counter;
use brodo_bench::process::{Failure, Result};
use brodo_bench::world::HOST_V4;
use serde_json::Value;

/// Frames of one segment fill a queue fastest.
const LINKS: &[Link] = &[Link::SMALL, Link { mtu: 1500, offload: false }];

pub(crate) const TESTS: &[Test] = &[
    Test::new("a transmit queue of any length", any_length).on(LINKS),
    Test::new("many uploads share a transmit queue", shared).on(LINKS),
    Test::new("--tx-queue-len", option).on(&[Link::SMALL]).options(&["--tx-queue-len", "10"]),
];

/// The length of the queue, and frames dropped so far.
fn queue(bed: &Bed) -> Result<(u64, u64)> {
    let found: Value = bed.run(&["ip", "-json", "-statistics", "link", "show", "eth0"])?.json()?;
    let numbers = (found[0]["txqlen"].as_u64(), found[0]["stats64"]["tx"]["dropped"].as_u64());
    numbers.0.zip(numbers.1).ok_or_else(|| Failure(format!("no such numbers: {found}")))
}

fn set_length(bed: &Bed, frames: u32) -> Result<()> {
    bed.run(&["ip", "link", "set", "eth0", "txqueuelen", &frames.to_string()]).map(drop)
}

/// Retransmissions of the guest's kernel because brodo did not get a processor for so long: windows
/// do not govern it.
fn impatience(bed: &Bed) -> Result<u64> {
    Ok(guest_counter(bed, "TcpExt", "TCPLossProbes")? + guest_counter(bed, "TcpExt", "TCPTimeouts")?)
}

/// Several transfers at once; gives the frames dropped meanwhile, less those that a busy machine explains.
fn transfer(bed: &Bed, direction: &str, number: u32, bytes: u32) -> Result<u64> {
    let (before, patient) = (queue(bed)?.1, impatience(bed)?);
    let words = [direction, HOST_V4, PORT, &bytes.to_string()];
    let jobs: Vec<_> = (0..number).map(|_| bed.start_probe(&words)).collect::<Result<_>>()?;
    for mut job in jobs {
        let found = job.wait(LIMIT)?.success()?.json()?;
        check(found["equal"] == true, || format!("{direction}: {found}"))?;
    }
    Ok((queue(bed)?.1 - before).saturating_sub(impatience(bed)? - patient))
}

/// brodo follows a length that changes while it runs. In a queue of one the last segment of a window and the
/// first of the next may collide.
fn any_length(bed: &Bed) -> Result<()> {
    for (frames, bytes) in [(1, 500_000), (10, 8_000_000), (100, 20_000_000), (1000, 20_000_000)] {
        set_length(bed, frames)?;
        for direction in ["upload", "download"] {
            let dropped = transfer(bed, direction, 1, bytes)?;
            check(dropped == 0 || frames == 1, || {
                format!("{direction}, {frames} frames: {dropped} dropped")
            })?;
        }
    }
    Ok(())
}

fn shared(bed: &Bed) -> Result<()> {
    for frames in [100, 1000] {
        set_length(bed, frames)?;
        for direction in ["upload", "download"] {
            let dropped = transfer(bed, direction, 8, 4_000_000)?;
            check(dropped == 0, || format!("{direction}, {frames} frames: {dropped} dropped"))?;
        }
    }
    Ok(())
}

/// The kernel has the length, and brodo prints its drops at the end.
fn option(bed: &Bed) -> Result<()> {
    let (length, before) = queue(bed)?;
    check(length == 10, || format!("{length} frames"))?;
    let dropped = transfer(bed, "upload", 1, 8_000_000)?;
    check(dropped == 0, || format!("{dropped} dropped"))?;
    let finished = bed.finish_whole()?;
    let reported = finished.stderr.lines().find_map(|line| line.strip_prefix("brodo: link_ring_dropped "));
    check(reported == Some(&before.to_string()), || finished.failure("expected link_ring_dropped").0)
}
