//! The path behind the host as the guest sees it: hops, MTU, fragments; the path behind a guest that is a
//! router; and destinations refused by `--deny`.
//!
//! The world is a router here, and a further namespace lies behind a link of 1300 bytes:
//!
//! ```text
//! guest --- brodo, host --- world (router) --- far
//!   1500 or 65520     1500             1300
//! ```

use crate::Test;
use crate::bed::{Bed, CLOSED_PORT, LIMIT, Link, PORT, SERVERS, check, counters};
use brodo_bench::process::Result;
use brodo_bench::world::{HOST_V4, HOST_V6, Netns, WORLD_V4, WORLD_V6};
use serde_json::Value;

pub(crate) const TESTS: &[Test] = &[
    Test::new("each hop of the path answers", hops).on(&[Link::SMALL]),
    Test::new("ping shows hops and MTU of the path", ping).on(&[Link::SMALL]).with(&["ping"]),
    Test::new("the MTU of the path is found", mtu),
    Test::new("datagrams larger than the path arrive", large).on(&Link::ALL),
    Test::new("links behind the guest are narrower", behind).on(&WIDE).with(&["ping", "nft"]),
    Test::new("denied destinations are refused at once", denied)
        .on(&[Link::SMALL])
        .with(&["ping"])
        .options(&["--deny", "198.18.0.0/24", "--deny", "fd00:18::/64", "--deny", "198.19.0.1:7999"]),
];

/// Links wider than those behind the guest, with offloads and without.
const WIDE: [Link; 2] = [Link::LARGE, Link { mtu: 65520, offload: false }];

const FAR: [&str; 2] = ["198.20.0.2", "fd00:20::2"];
/// Router addresses of brodo.
const ROUTERS: [&str; 2] = ["10.0.2.2", "fd00::2"];
const WORLD: [&str; 2] = [WORLD_V4, WORLD_V6];

/// The namespace behind the world, with a server in it. Both ends of the link are permanent neighbours: on a
/// machine with every processor busy the kernel may miss solicitations for an address for twenty seconds
/// after it was added, though it has joined the group by then.
fn far(bed: &Bed) -> Result<()> {
    let far = bed.world.add_namespace("far")?;
    far.set(&[("ipv4/icmp_ratelimit", "0"), ("ipv6/icmp/ratelimit", "0")])?;
    bed.world.world.ip(&format!(
        "link add below mtu 1300 address 02:00:00:20:00:01 type veth peer name above netns {}
        addr add 198.20.0.1/24 dev below
        addr add fd00:20::1/64 dev below nodad
        link set below up
        neigh add fd00:20::2 lladdr 02:00:00:20:00:02 dev below nud permanent
        ",
        far.name()
    ))?;
    far.ip("link set lo up
        link set above mtu 1300 address 02:00:00:20:00:02
        addr add 198.20.0.2/24 dev above
        addr add fd00:20::2/64 dev above nodad
        link set above up
        neigh add fd00:20::1 lladdr 02:00:00:20:00:01 dev above nud permanent
        route add default via 198.20.0.1
        route add default via fd00:20::1
        ")?;
    far.await_local(&[FAR[1]])?;
    bed.world.world.await_local(&["fd00:20::1"])?;
    bed.world.serve_probe(&far, 7000).map(drop)
}

/// Outcome of one datagram.
fn probe(bed: &Bed, server: &str, port: &str, (ttl, size): (u8, usize)) -> Result<Value> {
    bed.probe(&["path", server, port, &ttl.to_string(), &size.to_string()])
}

fn is_error(found: &Value, (kind, code): (u8, u8), from: &str) -> bool {
    found["outcome"] == "error" && found["kind"] == kind && found["code"] == code && found["from"] == from
}

fn hops(bed: &Bed) -> Result<()> {
    far(bed)?;
    for family in 0..2 {
        let (exceeded, closed) = [((11, 0), (3, 3)), ((3, 0), (1, 4))][family];
        let path = [
            (1, exceeded, ROUTERS[family]),
            (2, exceeded, WORLD[family]),
            (3, closed, FAR[family]),
            (64, closed, FAR[family]),
        ];
        for (ttl, what, from) in path {
            let found = probe(bed, FAR[family], CLOSED_PORT, (ttl, 32))?;
            check(is_error(&found, what, from), || format!("{} {ttl}: {found}", FAR[family]))?;
        }
        let found = probe(bed, FAR[family], PORT, (3, 32))?;
        check(found["outcome"] == "answer", || format!("{} 3: {found}", FAR[family]))?;
    }
    Ok(())
}

fn ping(bed: &Bed) -> Result<()> {
    far(bed)?;
    for family in 0..2 {
        let try_once = |options: &[&str]| -> Result<String> {
            let words = [&["ping", "-n", "-c", "1", "-W", "5"], options, &[FAR[family]]].concat();
            let finished = bed.attempt(&words)?;
            Ok(finished.stdout + &finished.stderr)
        };
        for (hops, router) in [("1", ROUTERS[family]), ("2", WORLD[family])] {
            let said = try_once(&["-t", hops])?;
            let reported = said.contains(&format!("From {router}")) && said.contains("icmp_seq=1");
            check(reported && said.contains("exceeded"), || said)?;
        }
        let said = try_once(&["-t", "3"])?;
        check(said.contains("1 received"), || said)?;
        let said = try_once(&["-M", "do", "-s", "1400"])?;
        check(said.contains("1300"), || said)?;
        // Without DF all datagrams are fragmented, and reassembled on both sides; IPv6 has just learnt the
        // MTU.
        let said = try_once(&["-M", "dont", "-s", "5000"])?;
        check(said.contains("1 received"), || said)?;
    }
    Ok(())
}

fn mtu(bed: &Bed) -> Result<()> {
    far(bed)?;
    for family in 0..2 {
        let headers = [28, 48][family];
        let too_big = [(3, 4), (2, 0)][family];
        // The world's ICMP error reaches the guest's kernel, which keeps the MTU; the host's kernel keeps it
        // too.
        let found = probe(bed, FAR[family], PORT, (0, 1400))?;
        let reported = is_error(&found, too_big, WORLD[family]) && found["info"] == 1300;
        check(reported, || format!("{}: {found}", FAR[family]))?;
        if family == 0 {
            check(found["mtu"] == 1300, || format!("{}: {found}", FAR[family]))?;
        }
        let found = probe(bed, FAR[family], PORT, (0, 1300 - headers))?;
        check(found["outcome"] == "answer", || format!("{}: {found}", FAR[family]))?;
        // A datagram longer than any path probe is fragmented by the host.
        if bed.link.mtu > 1500 {
            let found = probe(bed, WORLD[family], PORT, (0, 9000))?;
            check(found["outcome"] == "answer", || format!("{}: {found}", WORLD[family]))?;
        }
    }
    Ok(())
}

/// Both ways: the server echoes.
fn large(bed: &Bed) -> Result<()> {
    far(bed)?;
    for server in FAR.into_iter().chain(SERVERS) {
        // The longest last: the length of an IPv4 packet counts its header, that of IPv6 does not.
        let longest = if server.contains(':') { 65_535 - 8 } else { 65_535 - 20 - 8 };
        let sizes = format!("1400,8000,100,60000,8000,{longest}");
        let found = bed.probe(&["datagrams", server, PORT, &sizes])?;
        check(found["equal"] == true, || format!("{server}: {found}"))?;
    }
    Ok(())
}

/// Two namespaces behind the guest, as containers behind a tunnel have them; the last one is returned.
///
/// ```text
/// brodo --- guest (router, masquerading) --- tunnel (router) --- container
///     65520                             1400                1500
/// ```
fn container(bed: &Bed) -> Result<Netns> {
    let (tunnel, container) = (bed.world.add_namespace("tunnel")?, bed.world.add_namespace("container")?);
    // A router takes no default route from advertisements, but for this value.
    bed.guest(|guest| {
        guest.set(&[
            ("ipv4/ip_forward", "1"),
            ("ipv4/icmp_ratelimit", "0"),
            ("ipv6/icmp/ratelimit", "0"),
            ("ipv6/conf/all/accept_ra", "2"),
            ("ipv6/conf/default/accept_ra", "2"),
            ("ipv6/conf/all/forwarding", "1"),
        ])
    })??;
    tunnel.set(&[
        ("ipv4/ip_forward", "1"),
        ("ipv4/icmp_ratelimit", "0"),
        ("ipv6/icmp/ratelimit", "0"),
        ("ipv6/conf/all/forwarding", "1"),
    ])?;
    let script = format!(
        "set -e
        ip link add below mtu 1400 type veth peer name above mtu 1400 netns {}
        ip addr add 192.168.77.1/24 dev below
        ip addr add fd77::1/64 dev below nodad
        ip link set below up
        ip route add 192.168.78.0/24 via 192.168.77.2
        ip route add fd78::/64 via fd77::2
        nft 'add table inet t'
        nft 'add chain inet t out {{ type nat hook postrouting priority 100; }}'
        nft 'add rule inet t out oifname != below masquerade'",
        tunnel.name()
    );
    bed.root_run(&["sh", "-c", &script])?;
    tunnel.ip(&format!(
        "link add below type veth peer name above netns {}
        addr add 192.168.77.2/24 dev above
        addr add fd77::2/64 dev above nodad
        link set above up
        addr add 192.168.78.1/24 dev below
        addr add fd78::1/64 dev below nodad
        link set below up
        route add default via 192.168.77.1
        route add default via fd77::1
        ",
        container.name()
    ))?;
    container.ip("link set lo up
        addr add 192.168.78.2/24 dev above
        addr add fd78::2/64 dev above nodad
        link set above up
        route add default via 192.168.78.1
        route add default via fd78::1
        ")?;
    tunnel.await_local(&["fd77::2", "fd78::1"])?;
    container.await_local(&["fd78::2"])?;
    Ok(container)
}

/// Replies of 4000 bytes, and segments as long as both ends of a connection take them.
fn behind(bed: &Bed) -> Result<()> {
    let enter = container(bed)?.enter();
    for server in SERVERS {
        // Over IPv6 each path is found by the loss of a packet: that of the requests, and that of the
        // replies.
        let words = ["ping", "-n", "-c", "8", "-i", "0.2", "-W", "5", "-s", "4000", server];
        let finished = bed.world.run(&enter, words, LIMIT)?.success()?;
        let all = server.contains(':') || finished.stdout.contains("8 received");
        check(all, || finished.failure("replies are missing").0)?;
        for words in [["datagrams", server, PORT, "4000,1372,60000"], ["download", server, PORT, "1000000"]] {
            let words = bed.probe_words(&words);
            let found = bed.world.run(&enter, words, LIMIT)?.success()?.json()?;
            check(found["equal"] == true, || format!("{server}: {found}"))?;
        }
    }
    Ok(())
}

fn denied(bed: &Bed) -> Result<()> {
    for (family, server) in WORLD.into_iter().enumerate() {
        let found = bed.probe(&["connect", server, PORT])?;
        let outcome = ["ECONNREFUSED", "EACCES"][family];
        check(found["outcome"] == outcome, || format!("{server}: {found}"))?;
        let found = probe(bed, server, PORT, (0, 32))?;
        let prohibited = [(3, 13), (1, 1)][family];
        check(is_error(&found, prohibited, ROUTERS[family]), || format!("{server}: {found}"))?;
        let finished = bed.attempt(&["ping", "-n", "-c", "1", "-W", "5", server])?;
        let reported = finished.stdout.contains(&format!("From {}", ROUTERS[family]));
        check(reported, || finished.failure("ping was not reported").0)?;
    }
    let found = probe(bed, HOST_V4, CLOSED_PORT, (0, 32))?;
    check(is_error(&found, (3, 13), ROUTERS[0]), || format!("{HOST_V4}: {found}"))?;
    for server in [HOST_V4, HOST_V6] {
        let found = bed.probe(&["download", server, PORT, "1000"])?;
        check(found["equal"] == true, || format!("{server}: {found}"))?;
    }
    let said = bed.finish_whole()?.stderr;
    for (rule, least) in [("198.18.0.0/24", 3), ("fd00:18::/64", 3), ("198.19.0.1/32:7999", 1)] {
        let name = format!("refused by deny {rule}");
        let counted = counters(&said).any(|(found, count)| found == name && count >= least);
        check(counted, || format!("{name} is not among\n{said}"))?;
    }
    Ok(())
}
