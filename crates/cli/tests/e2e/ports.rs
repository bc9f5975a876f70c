//! Published ports: the peer that the guest sees, content, ends of connections, ports that cannot be
//! published.

use crate::Test;
use crate::bed::{Bed, LIMIT, Link, check, counters, with};
use brodo_bench::process::{Result, wait_until};
use brodo_bench::world::{WORLD_V4, WORLD_V6};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// The host's addresses as the world has them.
const HOST_OUTSIDE: [&str; 2] = ["198.18.0.1", "fd00:18::1"];
const LOOPBACK: [&str; 2] = ["127.0.0.1", "::1"];
/// The server in the guest, and the same under another port of the host.
const GUEST_PORT: u16 = 7100;
const PUBLISHED: &str = "8100";
/// A published port without a listener in the guest.
const UNSERVED: &str = "7101";

const OPTIONS: &[&str] = &["-t", "7100,7101,8100:7100", "-u", "7100,8100:7100"];

pub(crate) const TESTS: &[Test] = &[
    Test::new("published TCP ports keep the peer's address", outside).options(OPTIONS),
    Test::new("published UDP ports answer from where they were asked", datagrams).options(OPTIONS),
    Test::new("a published port without a listener", no_listener).options(OPTIONS).on(&[Link::SMALL]),
    Test::new("a published port that the guest's firewall rejects", rejected)
        .options(OPTIONS)
        .on(&[Link::SMALL])
        .with(&["nft"]),
    Test::new("published ports with several workers", several_workers).with(&["socat"]).options(&[
        "-t",
        "7100,8100:7100,7110",
        "-u",
        "7100,8100:7100,7111",
        "--workers",
        "4",
    ]),
    Test::new("loopbacks are joined inward", inward).options(OPTIONS).on(&[Link::SMALL]),
    Test::new("loopbacks are joined outward", outward)
        .options(&["-T", "7000,7900:7000,7998", "-U", "7000,7900:7000"])
        .on(&[Link::SMALL]),
    Test::new("auto follows the listeners", auto)
        .options(&["-t", "auto", "-u", "auto", "-T", "auto,~7000", "-U", "auto"])
        .on(&[Link::SMALL]),
    Test::new("ports of an existing namespace are published", attach).on(&[Link::SMALL]),
    Test::new("ports are free again at once", again).on(&[Link::SMALL]).with(&["socat"]),
    Test::new("a port in use stops the start", refused).on(&[Link::SMALL]),
    Test::new("all free ports are published", all)
        .options(&["-t", "127.0.0.1/~1-6989,~7010-29989,~30010-65535"])
        .on(&[Link::SMALL]),
];

fn equal(words: &[&str], found: &Value) -> Result<()> {
    check(found["equal"] == true, || format!("{}: {found}", words.join(" ")))
}

/// From the outside, by the TAP.
fn outside(bed: &Bed) -> Result<()> {
    bed.serve_in_guest(GUEST_PORT)?;
    let bytes = (24 * MIB + 321).to_string();
    for (host, world) in HOST_OUTSIDE.into_iter().zip([WORLD_V4, WORLD_V6]) {
        let who = bed.world_probe(&["who", host, PUBLISHED])?;
        check(who["peer"] == world, || format!("{world} is seen as {who}"))?;
        for words in [
            &["upload", host, PUBLISHED, &bytes][..],
            &["download", host, PUBLISHED, &bytes],
            &["download", host, "7100", "0"],
            &["fin-first", host, "7100", &bytes, "half"],
        ] {
            equal(words, &bed.world_probe(words)?)?;
        }
        let reset = bed.world_probe(&["reset", host, "7100"])?;
        check(reset["outcome"] == "ECONNRESET", || format!("a reset by the guest: {reset}"))?;
        let abort = bed.world_probe(&["abort", host, "7100", "abort"])?;
        check(abort["outcome"] == "ECONNRESET", || format!("a reset by the peer: {abort}"))?;
    }
    Ok(())
}

/// The client's socket is connected, so it takes answers only from the published port. The host's loopback
/// appears as the router.
fn datagrams(bed: &Bed) -> Result<()> {
    bed.serve_in_guest(GUEST_PORT)?;
    let sizes = "0,1,100,1400,1472,8000";
    let fits = if bed.link.mtu == 1500 { "0,1,100,1400" } else { sizes };
    for host in HOST_OUTSIDE {
        for port in ["7100", PUBLISHED] {
            let words = ["datagrams", host, port, fits];
            equal(&words, &bed.world_probe(&words)?)?;
        }
    }
    for host in LOOPBACK.into_iter().chain(HOST_OUTSIDE).chain(["127.0.0.9"]) {
        let words = ["datagrams", host, PUBLISHED, fits];
        equal(&words, &bed.host_probe(&words)?)?;
    }
    Ok(())
}

/// Late answers: the kernel forgets a flow's queue after three seconds. These servers answer later than
/// that, and the hash says another queue for most.
fn several_workers(bed: &Bed) -> Result<()> {
    outside(bed)?;
    let sizes = if bed.link.mtu == 1500 { "0,1,100,1400" } else { "0,1,100,1400,8000" };
    for host in HOST_OUTSIDE {
        let words = ["datagrams", host, PUBLISHED, sizes];
        equal(&words, &bed.world_probe(&words)?)?;
    }
    let socat = "socat TCP6-LISTEN:7110,ipv6only=0,reuseaddr,fork SYSTEM:'sleep 4; echo late'";
    let late = bed.world.probe().join(" ");
    bed.serve_words_in_guest(&["sh", "-c", &format!("exec {socat}")], 7110)?;
    let datagrams = bed.start_program(&["sh", "-c", &format!("exec {late} late 7111 4000")])?;
    soon("the late server's port is bound", || brodo_bench::procfs::is_bound(datagrams.pid(), 7111))?;
    let host = HOST_OUTSIDE[0];
    let clients = [
        (format!("socat -u TCP:{host}:7110 -"), "late"),
        (format!("{late} datagrams {host} 7111 10"), "true"),
    ];
    let mut jobs = Vec::new();
    for (client, expected) in clients.iter().cycle().take(16) {
        jobs.push((bed.world.start(&bed.world.world.enter(), ["sh", "-c", client])?, expected));
    }
    for (mut job, expected) in jobs {
        let finished = job.wait(LIMIT)?.success()?;
        check(finished.stdout.contains(expected), || finished.failure("no late answer").0)?;
    }
    let said = bed.finish_whole()?.stderr;
    let resteered = counters(&said).any(|(name, count)| name == "frames_resteered" && count > 0);
    check(resteered, || format!("no frame went to another worker first: {said}"))
}

fn no_listener(bed: &Bed) -> Result<()> {
    for host in HOST_OUTSIDE {
        let found = bed.world_probe(&["first-byte", host, UNSERVED]);
        check(found.is_err(), || format!("{found:?}"))?;
    }
    for host in LOOPBACK {
        let mut job = bed.start_host_probe(&["first-byte", host, UNSERVED])?;
        let finished = job.wait(LIMIT)?;
        check(finished.stderr.contains("ECONNRESET"), || finished.failure("no reset").0)?;
    }
    Ok(())
}

/// `reject` of nftables in the guest, by ICMP port unreachable or by a reset: the peer's connection is reset
/// at the first SYN. A SYN that is retransmitted would be counted by the rule too.
fn rejected(bed: &Bed) -> Result<()> {
    bed.serve_in_guest(GUEST_PORT)?;
    bed.root_run(&[
        "nft",
        "add table inet t; add chain inet t input { type filter hook input priority 0; }",
    ])?;
    for how in ["reject", "reject with icmpx admin-prohibited", "reject with tcp reset"] {
        let rule =
            format!("flush chain inet t input; add rule inet t input tcp dport {GUEST_PORT} counter {how}");
        bed.root_run(&["nft", &rule])?;
        for host in HOST_OUTSIDE {
            let words = ["first-byte", host, PUBLISHED];
            let client = bed.world.probe().into_iter().chain(words.map(str::to_owned));
            let finished = bed.world.run(&bed.world.world.enter(), client, LIMIT)?;
            check(finished.stderr.contains("ECONNRESET"), || finished.failure(how).0)?;
        }
        let rules = bed.root_run(&["nft", "list", "chain", "inet", "t", "input"])?.stdout;
        check(rules.contains("counter packets 2 "), || format!("{how}: more than one SYN of each: {rules}"))?;
    }
    bed.root_run(&["nft", "flush chain inet t input"])?;
    let words = ["download", HOST_OUTSIDE[0], PUBLISHED, "100000"];
    equal(&words, &bed.world_probe(&words)?)
}

/// Properties of any connection, between two ends that `probe` reaches.
fn as_direct(probe: impl Fn(&[&str]) -> Result<Value>, address: &str, port: &str, large: u64) -> Result<()> {
    let (large, small) = (large.to_string(), (3 * MIB + 7).to_string());
    for words in [
        &["upload", address, port, &large][..],
        &["download", address, port, &large],
        &["upload", address, port, "0"],
        &["download", address, port, "1"],
        &["fin-first", address, port, &small, "half"],
    ] {
        equal(words, &probe(words)?)?;
    }
    let reset = probe(&["reset", address, port])?;
    check(reset["outcome"] == "ECONNRESET", || format!("a reset by the server: {reset}"))?;
    let abort = probe(&["abort", address, port, "abort"])?;
    check(abort["outcome"] == "ECONNRESET", || format!("a reset by the client: {abort}"))
}

/// From the host's loopback to the guest's, past the TAP.
fn inward(bed: &Bed) -> Result<()> {
    bed.serve_in_guest(GUEST_PORT)?;
    for (number, host) in LOOPBACK.into_iter().enumerate() {
        let who = bed.host_probe(&["who", host, PUBLISHED])?;
        check(who["peer"] == host, || format!("{host} is seen as {who}"))?;
        as_direct(
            |words| bed.host_probe(words),
            host,
            PUBLISHED,
            if number == 0 { 200 * MIB } else { 20 * MIB },
        )?;
        let words = ["upload", host, PUBLISHED, &(48 * MIB).to_string(), "--stall", "inward"];
        equal(&words, &bed.host_probe(&words)?)?;
    }
    let jobs: Result<Vec<_>> =
        (0..32).map(|_| bed.start_host_probe(&["download", LOOPBACK[0], PUBLISHED, "1000000"])).collect();
    for mut job in jobs? {
        let finished = job.wait(LIMIT)?.success()?;
        check(finished.json()?["equal"] == true, || finished.failure("one of many").0)?;
    }
    let said = bed.finish_whole()?.stderr;
    let count = |name: &str| counters(&said).find(|(found, _)| *found == name).map_or(0, |(_, count)| count);
    check(count("splice_bytes") > 400 * MIB, || format!("not by splice: {said}"))?;
    check(count("tcp_inbound") == 0, || format!("by the TAP: {said}"))
}

/// From the guest's loopback to the host's.
fn outward(bed: &Bed) -> Result<()> {
    for (number, host) in LOOPBACK.into_iter().enumerate() {
        let who = bed.probe(&["who", host, "7900"])?;
        check(who["peer"] == host, || format!("{host} is seen as {who}"))?;
        as_direct(|words| bed.probe(words), host, "7900", if number == 0 { 200 * MIB } else { 20 * MIB })?;
        for port in ["7000", "7900"] {
            let words = ["datagrams", host, port, "0,1,100,1472,8000,60000"];
            equal(&words, &bed.probe(&words)?)?;
        }
        let mut job = bed.start_probe(&["first-byte", host, "7998"])?;
        let finished = job.wait(LIMIT)?;
        check(finished.stderr.contains("ECONNRESET"), || finished.failure("no reset").0)?;
    }
    Ok(())
}

/// Waits until the condition holds.
fn soon(event: &str, condition: impl Fn() -> bool) -> Result<()> {
    let found = wait_until(LIMIT, || condition().then_some(()));
    check(found.is_some(), || format!("{event}: not within {LIMIT:?}"))
}

fn auto(bed: &Bed) -> Result<()> {
    let connects =
        |address: &str| bed.host_probe(&["who", address, "7100"]).is_ok_and(|who| who["peer"].is_string());
    let outside =
        || bed.world_probe(&["who", HOST_OUTSIDE[0], "7100"]).is_ok_and(|who| who["peer"] == WORLD_V4);
    let refused = |address: &str| {
        bed.host_probe(&["connect", address, "7100"]).is_ok_and(|found| found["outcome"] == "ECONNREFUSED")
    };
    check(refused(LOOPBACK[0]), || "something listens before its time".to_owned())?;
    let server = bed.serve_in_guest(GUEST_PORT)?;
    soon("it appears", || connects(LOOPBACK[0]) && connects(LOOPBACK[1]) && outside())?;
    let words = ["datagrams", HOST_OUTSIDE[0], "7100", "1,1000"];
    soon("its datagrams too", || bed.world_probe(&words).is_ok_and(|found| found["equal"] == true))?;
    let _ = bed.world.run(&[], ["kill", "-9", &server.to_string()], LIMIT)?;
    soon("it disappears", || refused(LOOPBACK[0]) && refused(LOOPBACK[1]))?;

    // Ports of the guest's loopback are not offered to the world.
    let listen = "TCP4-LISTEN:7102,bind=127.0.0.1,reuseaddr,fork";
    if brodo_bench::world::missing_programs(&["socat"]).is_empty() {
        bed.serve_words_in_guest(&["socat", listen, "EXEC:echo here"], 7102)?;
        let connect = |address: &str| {
            bed.host_probe(&["connect", address, "7102"]).map(|found| found["outcome"].clone())
        };
        soon("a loopback's", || connect(LOOPBACK[0]).is_ok_and(|outcome| outcome == "ok"))?;
        let udp = ["ss", "-H", "-u", "-l", "-n", "src", "127.0.0.1:7102"];
        let lists = || bed.world.run(&bed.world.host.enter(), udp, LIMIT);
        soon("UDP of the same number", || {
            lists().is_ok_and(|found| found.stdout.contains("127.0.0.1:7102"))
        })?;
        let found = connect(HOST_OUTSIDE[0])?;
        check(found == "ECONNREFUSED", || format!("it is offered to everybody: {found}"))?;
    }

    // Outward: a port of the host appears in the guest, and an excluded one does not.
    bed.world.serve_probe(&bed.world.host, 7200)?;
    soon("the host's", || {
        bed.probe(&["who", LOOPBACK[0], "7200"]).is_ok_and(|who| who["peer"] == LOOPBACK[0])
    })?;
    let found = bed.probe(&["connect", LOOPBACK[0], "7000"])?;
    check(found["outcome"] == "ECONNREFUSED", || format!("it is excluded: {found}"))
}

/// A bed of its own; the one given stays unused.
fn attach(_: &Bed) -> Result<()> {
    with(&Bed::attached(Link::LARGE, OPTIONS)?, |bed| {
        outside(bed)?;
        let words = ["download", LOOPBACK[0], PUBLISHED, "10000000"];
        equal(&words, &bed.host_probe(&words)?)
    })
}

/// brodo as a user of the bed's host, for as long as `sleep` takes.
fn brodo(bed: &Bed, options: &[&str], command: &str) -> Result<brodo_bench::process::Job> {
    let program = bed.world.install_program(&std::path::PathBuf::from(env!("CARGO_BIN_EXE_brodo")))?;
    let program = program.to_string_lossy().into_owned();
    let words: Vec<&str> = [&[program.as_str(), "run"], options, &["--", "sh", "-c", command]].concat();
    bed.world.start(&bed.world.enter_host_as_user(), words)
}

/// TIME_WAIT of connections that brodo closed first does not keep the port from the next brodo.
fn again(bed: &Bed) -> Result<()> {
    // The socket broker of the bed's own brodo.
    let before = brokers(bed).len();
    for round in 0..3 {
        let script =
            "socat -T5 TCP6-LISTEN:7300,ipv6only=0,reuseaddr,fork EXEC:'echo here' & echo ready; sleep 60";
        let mut job = brodo(bed, &["-t", "7300", "-u", "7300"], script)?;
        soon("it answers", || {
            [LOOPBACK[0], HOST_OUTSIDE[0]].iter().all(|host| {
                let mut words = vec!["socat".to_owned(), "-u".to_owned()];
                words.extend([format!("TCP:{host}:7300"), "-".to_owned()]);
                bed.world
                    .run(&bed.world.host.enter(), words, LIMIT)
                    .is_ok_and(|found| found.stdout.contains("here"))
            })
        })?;
        check(brokers(bed).len() == before + 1, || "there is no broker".to_owned())?;
        check(job.is_running(), || format!("round {round}: {}", job.describe()))?;
        let _ = bed.world.run(&[], ["kill", "-9", &job.pid().to_string()], LIMIT)?;
        job.wait(LIMIT)?;
        soon("nothing is left of it", || brokers(bed).len() == before)?;
    }
    Ok(())
}

/// This test's socket brokers.
pub(crate) fn brokers(bed: &Bed) -> Vec<u32> {
    let is_broker = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "brodo-broker")
    };
    brodo_bench::procfs::pids_of_programs_in(bed.world.folder()).into_iter().filter(is_broker).collect()
}

fn refused(bed: &Bed) -> Result<()> {
    for (options, expected) in [
        (&["-t", "7000"][..], "another program has the port: ss -ltnp 'sport = :7000' shows it"),
        (&["-u", "7000"], "another program has the port: ss -lunp"),
        (&["-t", "80"], "sysctl net.ipv4.ip_unprivileged_port_start=80"),
        (&["-t", "192.0.2.7/7300"], "no interface of the host has this address"),
        (&["-t", "%nosuch0/7300"], "there is no such interface"),
        (&["-t", "7300", "-t", "7300:1"], "port 7300 is given twice"),
        (&["-t", "7300:192.0.2.7/80"], "neither an address of the guest nor its loopback"),
    ] {
        let finished = brodo(bed, options, "echo it runs")?.wait(LIMIT)?;
        let said = finished.stderr.trim();
        let one = said.starts_with("brodo: ") && said.lines().count() == 1 && said.contains(expected);
        check(one && finished.stdout.is_empty(), || finished.failure(&format!("expected {expected}")).0)?;
    }
    Ok(())
}

/// Ports of the host's own servers, which `all` skips.
fn all(bed: &Bed) -> Result<()> {
    bed.serve_in_guest(30_000)?;
    bed.serve_in_guest(7000)?;
    let words = ["download", LOOPBACK[0], "30000", "100000"];
    equal(&words, &bed.host_probe(&words)?)?;
    let who = bed.host_probe(&["who", LOOPBACK[0], "7000"])?;
    check(who["peer"] == LOOPBACK[0], || format!("the host's own server answers: {who}"))
}
