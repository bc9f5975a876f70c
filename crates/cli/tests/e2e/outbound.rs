//! `--outbound`: address and interface of what leaves the host. The world answers nothing that comes from the
//! host's usual address, so that every answer proves the wanted source.

use crate::Test;
use crate::bed::{Bed, Link, PORT, check, crashes, with};
use crate::upgrade::on_each_engine;
use brodo_bench::process::Result;
use brodo_bench::world::{WORLD_V4, WORLD_V6, World};

pub(crate) const TESTS: &[Test] = &[
    Test::new("flows leave from the wanted address", address).on(&[Link::SMALL]).with(&["ping"]),
    Test::new("flows leave by the wanted interface", interface).on(&[Link::SMALL]).with(&["ping"]),
];

const DESTINATIONS: [&str; 2] = [WORLD_V4, WORLD_V6];

/// Further addresses of the host, two of them on an interface that leads to the world by a worse route.
const MORE_OF_HOST: &str = "
    addr add 198.18.0.9/24 dev outside
    addr add fd00:18::9/64 dev outside nodad
    addr add 198.20.0.1/24 dev other
    addr add fd00:20::1/64 dev other nodad
    link set other up
    route add default via 198.20.0.2 metric 4000
    route add default via fd00:20::2 metric 4000
";

/// Its answers have the address that was asked, whatever link they take.
const MORE_OF_WORLD: &str = "
    addr add 198.20.0.2/24 dev beyond
    addr add fd00:20::2/64 dev beyond nodad
    link set beyond up
    route replace 198.20.0.0/24 dev beyond src 198.18.0.2
    route add fd00:20::/64 dev beyond src fd00:18::2 metric 1
    route add blackhole 198.18.0.1/32
    route add blackhole fd00:18::1/128
";

fn address(_: &Bed) -> Result<()> {
    every_kind(&["--outbound", "198.18.0.9", "--outbound", "fd00:18::9"])
}

fn interface(_: &Bed) -> Result<()> {
    every_kind(&["--outbound", "%other"])
}

/// Every kind of flow has an answer at first, after a crash of the engine, and after an upgrade.
fn every_kind(options: &[&str]) -> Result<()> {
    let world = World::new()?;
    world.host.ip(&format!("link add other type veth peer name beyond netns {}\n", world.world.name()))?;
    world.host.ip(MORE_OF_HOST)?;
    world.world.ip(MORE_OF_WORLD)?;
    world.host.await_local(&["fd00:18::9", "fd00:20::1"])?;
    world.world.await_local(&["fd00:20::2"])?;
    let enter = world.enter_host_as_user();
    with(&Bed::start(world, &enter, Link::SMALL, options)?, answered_always)
}

fn answered_always(bed: &Bed) -> Result<()> {
    on_each_engine(bed, |_| answered(bed))?;
    let said = bed.finish()?.stderr;
    check(crashes(&said) == 1, || format!("not the engine that was killed alone: {said}"))
}

fn answered(bed: &Bed) -> Result<()> {
    for destination in DESTINATIONS {
        let connected = bed.probe(&["connect", destination, PORT])?;
        check(connected["outcome"] == "ok", || format!("{destination}: {connected}"))?;
        let datagrams = bed.probe(&["datagrams", destination, PORT, "100"])?;
        check(datagrams["equal"] == true, || format!("{destination}: {datagrams}"))?;
        bed.run(&["ping", "-n", "-c", "1", "-W", "20", destination])?;
    }
    Ok(())
}
