//! Failures: the guest's connections fail with the same error numbers as connections of the host itself.

use crate::Test;
use crate::bed::{Bed, CLOSED_PORT, LIMIT, PORT, SERVERS, check};
use brodo_bench::process::Result;
use brodo_bench::world::{BLACKHOLE, NO_ROUTE, PROHIBITED, UNREACHABLE};

pub(crate) const TESTS: &[Test] = &[
    Test::new("refused, unreachable and timed-out connections look as on the host", connects),
    Test::new("a reset by the server is a reset", resets),
    Test::new("a reset by the guest is a reset", aborts),
    Test::new("datagrams to a closed port are refused", datagrams),
];

/// Source address of connections to the prohibited prefix. A Linux router reports at most five missing IPv4
/// routes at once to a source, and one a second then (`error_burst` and `error_cost` of `net.ipv4.route`,
/// which namespaces do not have). A connection over veth needs two: the first error arrives while connect(2)
/// still holds its socket's lock, and is dropped. So the two kinds of errors have sources of their own.
const SECOND_SOURCE: &str = "
    addr add 198.18.0.3/32 dev outside
    route add 198.18.202.0/24 via 198.18.0.2 src 198.18.0.3
";

/// Runs the probe on both sides at once for each of the word lists; the outcomes must agree, and only the
/// black hole may end in time-outs.
fn agree(bed: &Bed, calls: &[Vec<&str>]) -> Result<()> {
    let start = |call: &Vec<&str>| Ok((bed.start_host_probe(call)?, bed.start_probe(call)?));
    let jobs: Vec<_> = calls.iter().map(start).collect::<Result<_>>()?;
    let mut wrong = Vec::new();
    for (call, (mut host, mut guest)) in calls.iter().zip(jobs) {
        let host = host.wait(LIMIT)?.success()?.json()?["outcome"].clone();
        let guest = guest.wait(LIMIT)?.success()?.json()?["outcome"].clone();
        let is_silent = call.iter().any(|word| BLACKHOLE.contains(word));
        if host != guest || (host == "ETIMEDOUT") != is_silent {
            wrong.push(format!("{}: {host} on the host, {guest} in the guest", call.join(" ")));
        }
    }
    check(wrong.is_empty(), || wrong.join("\n"))
}

fn connects(bed: &Bed) -> Result<()> {
    // The guest retries for longer than the host, so that brodo's reaction to the time-out comes first.
    bed.guest(|guest| guest.set(&[("ipv4/tcp_syn_retries", "2")]))??;
    bed.world.host.ip(SECOND_SOURCE)?;
    let mut calls = Vec::new();
    for server in SERVERS {
        calls.push(vec!["connect", server, PORT]);
        calls.push(vec!["connect", server, CLOSED_PORT]);
    }
    for server in [UNREACHABLE, PROHIBITED, NO_ROUTE, BLACKHOLE].concat() {
        calls.push(vec!["connect", server, PORT]);
    }
    agree(bed, &calls)
}

fn resets(bed: &Bed) -> Result<()> {
    let calls: Vec<_> = SERVERS.map(|server| vec!["reset", server, PORT]).to_vec();
    agree(bed, &calls)
}

/// Abort by the host's program, then by the guest's: the server sees the same.
fn aborts(bed: &Bed) -> Result<()> {
    for server in SERVERS {
        let words = ["abort", server, PORT, "abort"];
        let host = bed.start_host_probe(&words)?.wait(LIMIT)?.success()?.json()?["outcome"].clone();
        let guest = bed.probe(&words)?["outcome"].clone();
        check(host == guest, || format!("{server}: {host} if the host does it, {guest} if the guest does"))?;
        check(guest == "ECONNRESET", || format!("{server}: {guest}"))?;
    }
    Ok(())
}

fn datagrams(bed: &Bed) -> Result<()> {
    let calls: Vec<_> = SERVERS.map(|server| vec!["datagram-refused", server, CLOSED_PORT]).to_vec();
    agree(bed, &calls)
}
