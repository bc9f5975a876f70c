//! Ports of the guest's UDP on the host, as STUN sees them: a hundred servers of the world report from which
//! port the datagrams of one socket of the guest's come.

use crate::Test;
use crate::bed::{Bed, LIMIT, Link, check};
use crate::upgrade::on_each_engine;
use brodo_bench::process::{Failure, Job, Result, wait_until};
use brodo_bench::procfs;
use brodo_bench::world::{WORLD_V4, WORLD_V6};
use serde_json::{Value, json};

pub(crate) const TESTS: &[Test] = &[
    Test::new("servers see one port of a socket", one_port)
        .options(&["-u", "8000:5002"])
        .on(&[Link::SMALL])
        .with(&["python3"]),
    Test::new("servers see a port for each flow", any_port)
        .options(&["--udp-source-ports", "any"])
        .on(&[Link::SMALL])
        .with(&["python3"]),
];

/// Ports of the servers.
const FIRST: u16 = 7200;
const HALF: &str = "25";
const ALL: &str = "50";
/// A port of the guest's that is free on the host, and one that a program of the host has.
const FREE: u16 = 5000;
const TAKEN: u16 = 5001;
/// A port of the guest's and that of the host at which it is published.
const PUBLISHED: u16 = 5002;
const PUBLISHED_AT: u16 = 8000;

/// Servers on 50 ports of both families: each answers with the port of its client.
const SERVERS: &str = "import select, socket
all = []
for family, any in [(socket.AF_INET, '0.0.0.0'), (socket.AF_INET6, '::')]:
    for port in range(7200, 7250):
        server = socket.socket(family, socket.SOCK_DGRAM)
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        server.bind((any, port))
        all.append(server)
while True:
    for server in select.select(all, [], [])[0]:
        data, client = server.recvfrom(100)
        server.sendto(data + b' %d' % client[1], client)";

/// Asks so many servers at an address from one port: the ports that they have seen, and the number of answers
/// that came from the servers that were asked.
const CLIENT: &str = "import json, socket, sys, time
address, own, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
family = socket.AF_INET6 if ':' in address else socket.AF_INET
client = socket.socket(family, socket.SOCK_DGRAM)
client.bind(('', own))
client.settimeout(1)
ports, missing, end = set(), set(range(7200, 7200 + count)), time.monotonic() + 60
while missing and time.monotonic() < end:
    for port in missing:
        client.sendto(b'%d' % port, (address, port))
    try:
        while missing:
            data, server = client.recvfrom(100)
            asked, seen = data.split()
            if server[1] == int(asked):
                missing.discard(server[1])
                ports.add(int(seen))
    except TimeoutError:
        pass
print(json.dumps({'ports': sorted(ports), 'answers': count - len(missing)}))";

/// A program of the host with a port of both families.
const HOLDER: &str = "import socket, time
holder = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
holder.bind(('::', 5001))
time.sleep(1000)";

fn asked(bed: &Bed, address: &str, own: u16, count: &str) -> Result<Value> {
    bed.run(&["python3", "-c", CLIENT, address, &own.to_string(), count])?.json()
}

/// Starts a program in a namespace and waits for one of its ports.
pub(crate) fn start(bed: &Bed, enter: &[String], program: &str, port: u16) -> Result<Job> {
    let job = bed.world.start(enter, ["python3", "-c", program])?;
    let bound = || procfs::is_bound(job.pid(), port).then_some(());
    check(wait_until(LIMIT, bound).is_some(), || job.describe())?;
    Ok(job)
}

/// The port that `count` servers of a family see of one of the guest's, which must be one.
fn seen(bed: &Bed, address: &str, own: u16, count: &str) -> Result<u16> {
    let found = asked(bed, address, own, count)?;
    let is_exact = found["answers"].as_u64() == count.parse().ok();
    let port = found["ports"].as_array().filter(|ports| ports.len() == 1 && is_exact);
    let port = port.and_then(|ports| u16::try_from(ports[0].as_u64()?).ok());
    port.ok_or_else(|| Failure(format!("{address}, port {own}: {found}")))
}

/// The guest's own port where it is free, else one other, and of a published port that of the host; also for
/// servers that are asked only after a crash or an upgrade.
fn one_port(bed: &Bed) -> Result<()> {
    let _servers = start(bed, &bed.world.world.enter(), SERVERS, FIRST + 49)?;
    let _holder = start(bed, &bed.world.host.enter(), HOLDER, TAKEN)?;
    let ports = |count| -> Result<[u16; 6]> {
        Ok([
            seen(bed, WORLD_V4, FREE, count)?,
            seen(bed, WORLD_V6, FREE, count)?,
            seen(bed, WORLD_V4, PUBLISHED, count)?,
            seen(bed, WORLD_V6, PUBLISHED, count)?,
            seen(bed, WORLD_V4, TAKEN, count)?,
            seen(bed, WORLD_V6, TAKEN, count)?,
        ])
    };
    let expected = [FREE, FREE, PUBLISHED_AT, PUBLISHED_AT];
    let mut first = None;
    on_each_engine(bed, |when| {
        let found = ports(if first.is_none() { HALF } else { ALL })?;
        let before = *first.get_or_insert(found);
        check(found == before, || format!("{before:?}, and {when} {found:?}"))?;
        check(found[..4] == expected && !found[4..].contains(&TAKEN), || format!("{found:?}"))
    })?;
    bed.finish().map(drop)
}

fn any_port(bed: &Bed) -> Result<()> {
    let _servers = start(bed, &bed.world.world.enter(), SERVERS, FIRST + 49)?;
    let found = asked(bed, WORLD_V4, FREE, HALF)?;
    let ports = found["ports"].as_array().map_or(0, Vec::len);
    check(found["answers"] == json!(25) && ports > 1, || found.to_string())
}
