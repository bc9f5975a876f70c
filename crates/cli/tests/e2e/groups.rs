//! Multicast groups and broadcast: a program of the guest asks all hosts of the host's network, as SSDP and
//! DNS-SD do, and hears each that answers, before and after a crash and an upgrade.

use crate::Test;
use crate::bed::{Bed, LIMIT, Link, check};
use crate::udp_ports::start;
use crate::upgrade::on_each_engine;
use brodo_bench::process::{Failure, Result, wait_until};
use brodo_bench::world::{WORLD_V4, WORLD_V6};
use serde_json::{Value, json};

pub(crate) const TESTS: &[Test] = &[
    Test::new("hosts answer a group", answered)
        .options(&["--multicast", "on"])
        .on(&[Link::SMALL])
        .with(&["python3"]),
    Test::new("a group is silent by default", silent).on(&[Link::SMALL]).with(&["python3"]),
];

const PORT: u16 = 7300;
/// Groups of both families, a broadcast address, and the address from which the world answers.
const GROUPS: [(&str, &str); 3] =
    [("239.255.255.250", WORLD_V4), ("ff02::c", WORLD_V6), ("255.255.255.255", WORLD_V4)];
/// Time to live of the questions.
const TTL: &str = "4";

/// Two hosts of the world in one: each question to port 7300 is answered from that port and from another,
/// with the time to live and the port of its sender that were seen.
const SERVERS: &str = "import select, socket, struct
all = {}
for family, any in [(socket.AF_INET, '0.0.0.0'), (socket.AF_INET6, '::')]:
    first, second = (socket.socket(family, socket.SOCK_DGRAM) for _ in range(2))
    if family == socket.AF_INET6:
        first.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        link = struct.pack('I', socket.if_nametoindex('inside'))
        group = socket.inet_pton(family, 'ff02::c') + link
        first.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
        first.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVHOPLIMIT, 1)
    else:
        group = socket.inet_aton('239.255.255.250') + socket.inet_aton('198.18.0.2')
        first.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
        first.setsockopt(socket.IPPROTO_IP, 12, 1)  # IP_RECVTTL
    first.bind((any, 7300))
    all[first] = second
while True:
    for server in select.select(list(all), [], [])[0]:
        data, control, _, client = server.recvmsg(100, 100)
        ttl = struct.unpack('i', control[0][2])[0]
        for answering in (server, all[server]):
            answering.sendto(b'%s %d %d' % (data, ttl, client[1]), client)";

/// Asks a group: the addresses of the answers, how many ports they had, and the time to live and the port of
/// the question as the servers have seen them.
const CLIENT: &str = "import json, socket, sys, time
group, ttl, patience = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
to = socket.getaddrinfo(group, 7300, type=socket.SOCK_DGRAM)[0]
client, to = socket.socket(to[0], socket.SOCK_DGRAM), to[4]
if len(to) == 4:
    link = next(index for index, name in socket.if_nameindex() if name != 'lo')
    to = to[:3] + (link,)
    client.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, ttl)
else:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    for option in (socket.IP_MULTICAST_TTL, socket.IP_TTL):
        client.setsockopt(socket.IPPROTO_IP, option, ttl)
client.bind(('', 5300))
client.settimeout(1)
question = b'%f' % time.monotonic()
servers, seen, end = set(), set(), time.monotonic() + patience
while len(servers) < 2 and time.monotonic() < end:
    client.sendto(question, to)
    try:
        while len(servers) < 2:
            data, server = client.recvfrom(100)
            data = data.split()
            if data[0] == question:
                servers.add(server[:2])
                seen.add((int(data[1]), int(data[2])))
    except TimeoutError:
        pass
hosts = {address for address, _ in servers}
print(json.dumps({'hosts': sorted(hosts), 'ports': len(servers), 'seen': sorted(seen)}))";

fn ask(bed: &Bed, group: &str, patience: &str) -> Result<Value> {
    bed.run(&["python3", "-c", CLIENT, group, TTL, patience])?.json()
}

/// Each group is answered by both servers; the questions come from the guest's port, as far as the guest
/// says.
fn all_answer(bed: &Bed) -> Result<()> {
    for (group, host) in GROUPS {
        let found = ask(bed, group, "60")?;
        let expected = json!({ "hosts": [host], "ports": 2, "seen": [[4, 5300]] });
        check(found == expected, || format!("{group}: {found}"))?;
    }
    Ok(())
}

/// Waits until the ends of the pair between host and world have link-local addresses, which hosts prefer for
/// groups of the link: after duplicate address detection, 2 s at most.
fn wait_for_link_local(bed: &Bed) -> Result<()> {
    let words = ["ip", "-6", "-oneline", "address", "show", "scope", "link", "-tentative"];
    for enter in [bed.world.host.enter(), bed.world.world.enter()] {
        let found = wait_until(LIMIT, || {
            let shown = bed.world.run(&enter, words, LIMIT).ok()?;
            shown.stdout.contains("fe80").then_some(())
        });
        found.ok_or_else(|| Failure("no link-local address".into()))?;
    }
    Ok(())
}

fn answered(bed: &Bed) -> Result<()> {
    wait_for_link_local(bed)?;
    let _servers = start(bed, &bed.world.world.enter(), SERVERS, PORT)?;
    on_each_engine(bed, |_| all_answer(bed))?;
    bed.finish().map(drop)
}

fn silent(bed: &Bed) -> Result<()> {
    let _servers = start(bed, &bed.world.world.enter(), SERVERS, PORT)?;
    for (group, _) in GROUPS {
        let found = ask(bed, group, "2")?;
        check(found["ports"] == 0, || format!("{group}: {found}"))?;
    }
    Ok(())
}
