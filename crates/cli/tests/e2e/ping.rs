//! Ping, with and without the host's permission; datagrams of all sizes.

use crate::Test;
use crate::bed::{Bed, Link, PORT, SERVERS, check, with};
use brodo_bench::process::{Finished, Result};
use brodo_bench::world::{HOST_V4, World};

pub(crate) const TESTS: &[Test] = &[
    Test::new("ping", ping).with(&["ping"]),
    Test::new("ping is forbidden on the host", forbidden).on(&[Link::SMALL]).with(&["ping"]),
    Test::new("datagrams of all sizes", datagrams).on(&Link::ALL),
];

/// Router addresses of brodo.
const ROUTERS: [&str; 2] = ["10.0.2.2", "fd00::2"];

/// Three echoes of `size` bytes.
fn echo(bed: &Bed, destination: &str, size: &str) -> Result<Finished> {
    bed.attempt(&["ping", "-n", "-c", "3", "-i", "0.2", "-W", "3", "-s", size, destination])
}

fn ping_once(bed: &Bed, destination: &str, size: &str) -> Result<()> {
    let finished = echo(bed, destination, size)?.success()?;
    check(finished.stdout.contains("3 received"), || finished.failure("echoes are missing").0)
}

fn ping(bed: &Bed) -> Result<()> {
    for destination in SERVERS.into_iter().chain(ROUTERS) {
        ping_once(bed, destination, "56")?;
        ping_once(bed, destination, "1400")?;
    }
    Ok(())
}

/// The parameter must be set before brodo starts, so this test makes its own bed.
fn forbidden(_: &Bed) -> Result<()> {
    let world = World::new()?;
    world.host.set(&[("ipv4/ping_group_range", "1 0")])?;
    let enter = world.enter_host_as_user();
    with(&Bed::start(world, &enter, Link::LARGE, &[])?, without_ping)
}

fn without_ping(bed: &Bed) -> Result<()> {
    for router in ROUTERS {
        ping_once(bed, router, "56")?;
    }
    for _ in 0..2 {
        let finished = echo(bed, HOST_V4, "56")?;
        check(finished.code != Some(0), || finished.failure("answered although forbidden").0)?;
    }
    // One warning, at the first ping.
    let said = bed.guest(|guest| guest.stderr())?;
    let sentences = said.lines().filter(|line| line.contains("ping_group_range")).count();
    check(sentences == 1, || format!("wanted one sentence about ping_group_range, got {sentences}: {said}"))?;
    for server in SERVERS {
        let found = bed.probe(&["download", server, PORT, "100000"])?;
        check(found["equal"] == true, || format!("{server}: {found}"))?;
        let found = bed.probe(&["datagrams", server, PORT, "100"])?;
        check(found["equal"] == true, || format!("{server}: {found}"))?;
    }
    Ok(())
}

/// Up to the largest that needs no fragments on the guest's link.
fn datagrams(bed: &Bed) -> Result<()> {
    for server in SERVERS {
        let headers = if server.contains(':') { 48 } else { 28 };
        let largest = (bed.link.mtu - headers).to_string();
        let sizes = match bed.link.mtu {
            1500 => format!("0,1,7,512,1280,1400,{largest},1"),
            _ => format!("0,1,7,512,1400,1473,9000,40001,{largest},1"),
        };
        let found = bed.probe(&["datagrams", server, PORT, &sizes])?;
        check(found["equal"] == true, || format!("{server}: {found}"))?;
    }
    Ok(())
}
