//! Names: dig in the guest, dnsmasq on the host's loopback and in the world, over UDP and TCP and both
//! families; resolvers that fail, and a host whose network comes late or goes.

use crate::Test;
use crate::bed::{Bed, LIMIT, Link, check, counters, with};
use crate::upgrade::on_each_engine;
use brodo_bench::process::{Failure, Result, wait_until};
use brodo_bench::world::{BLACKHOLE, Netns, WORLD_V4, WORLD_V6, World};
use std::fs;
use std::path::PathBuf;

const PROGRAMS: &[&str] = &["dig", "dnsmasq", "mount"];

pub(crate) const TESTS: &[Test] = &[
    Test::new("names", names).with(PROGRAMS),
    Test::new("changed resolvers stay after a crash and an upgrade", changed_resolvers)
        .with(PROGRAMS)
        .on(&[Link::SMALL]),
    Test::new("resolvers that fail", failing_resolvers).with(PROGRAMS).on(&[Link::SMALL]),
    Test::new("names of the host's own", own_names).with(&["dig"]).on(&[Link::SMALL]).options(&[
        "--map-host-loopback",
        "10.0.2.4",
        "--host-name",
        "db.lan=192.0.2.7",
        "--host-name",
        "DB.lan=2001:db8::7",
    ]),
    Test::new("answers come from the cache", cached)
        .with(&["dig", "dnsmasq", "mount", "getent"])
        .on(&[Link::SMALL]),
    Test::new("a network that comes late and goes", late_network)
        .with(&["dig", "dnsmasq", "mount", "bash"])
        .on(&[Link::SMALL]),
];

/// Answers of the two resolvers for the same name, which show the one that was asked.
const ON_LOOPBACK: [&str; 2] = ["192.0.2.53", "2001:db8::53"];
const IN_WORLD: [&str; 2] = ["192.0.2.99", "2001:db8::99"];

/// Addresses of brodo's DNS service.
const OURS: [&str; 2] = ["10.0.2.3", "fd00::3"];

fn dnsmasq(world: &World, netns: &Netns, listen: &[&str], answers: [&str; 2]) -> Result<()> {
    let mut words: Vec<String> =
        ["dnsmasq", "--keep-in-foreground", "--no-resolv", "--no-hosts", "--bind-interfaces"]
            .into_iter()
            .chain([
                "--conf-file=/dev/null",
                "--pid-file=",
                "--user=root",
                "--edns-packet-max=4096",
                "--except-interface=none",
            ])
            .map(str::to_owned)
            .collect();
    words.extend(listen.iter().map(|address| format!("--listen-address={address}")));
    // TTL of dnsmasq's own records, 0 unless set.
    words.push("--local-ttl=300".to_owned());
    words.extend(answers.map(|address| format!("--host-record=name.test,{address}")));
    // Too much for a datagram of 1,232 bytes: the answer is truncated, and the query repeated over TCP.
    words.push(format!("--txt-record=long.test{}", format!(",{}", "x".repeat(250)).repeat(12)));
    world.serve(netns, words, 53).map(drop)
}

/// The host gets an `/etc` of its own, so that its resolv.conf can be replaced as real systems do: by
/// renaming.
fn names(given: &Bed) -> Result<()> {
    let world = World::new()?;
    dnsmasq(&world, &world.host, &["127.0.0.53"], ON_LOOPBACK)?;
    dnsmasq(&world, &world.world, &[WORLD_V4, WORLD_V6], IN_WORLD)?;
    let (bed, resolv_conf) = stage(given, world, "nameserver 127.0.0.53\n")?;
    with(&bed, |bed| resolve(bed, &resolv_conf))
}

/// brodo on a host with this resolv.conf.
fn stage(given: &Bed, world: World, text: &str) -> Result<(Bed, PathBuf)> {
    let etc = world.folder().join("etc");
    let copy = ["cp", "-a", "/etc", &etc.to_string_lossy()];
    world.run(&[], copy, LIMIT)?.success()?;
    let resolv_conf = etc.join("resolv.conf");
    replace(&resolv_conf, text)?;
    let mut enter = world.host.enter();
    let script = format!("mount --bind {} /etc && exec \"$@\"", etc.display());
    enter.extend(["unshare", "--mount", "sh", "-c", &script, "sh"].map(str::to_owned));
    enter.extend(brodo_bench::world::become_user());
    Ok((Bed::start(world, &enter, given.link, &[])?, resolv_conf))
}

/// Replaces a file atomically.
fn replace(file: &PathBuf, text: &str) -> Result<()> {
    let new = file.with_extension("new");
    let result = fs::write(&new, text).and_then(|()| fs::rename(&new, file));
    result.map_err(|e| Failure(format!("{}: {e}", file.display())))
}

fn dig(bed: &Bed, words: &[&str]) -> Result<String> {
    let mut all = vec!["dig", "+short", "+time=3", "+tries=2"];
    all.extend(words);
    Ok(bed.attempt(&all)?.stdout.trim().to_owned())
}

fn resolve(bed: &Bed, resolv_conf: &PathBuf) -> Result<()> {
    // By the guest's resolv.conf.
    answers(bed, &[], ON_LOOPBACK)?;
    for server in OURS {
        let at = format!("@{server}");
        for how in ["+notcp", "+tcp"] {
            answers(bed, &[&at, how], ON_LOOPBACK)?;
        }
        let long = dig(bed, &[&at, "long.test", "TXT"])?;
        check(long.matches('x').count() == 12 * 250, || format!("{server}: long answer came as {long:?}"))?;
        let missing = bed.run(&["dig", &at, "absent.test"])?;
        // REFUSED by dnsmasq, which has no upstream server, is passed on.
        check(missing.stdout.contains("status: REFUSED"), || missing.failure("wrong status").0)?;
    }
    // A resolver of the world, asked directly.
    for server in [WORLD_V4, WORLD_V6] {
        for how in ["+notcp", "+tcp"] {
            answers(bed, &[&format!("@{server}"), how], IN_WORLD)?;
        }
    }
    for (text, expected) in [
        (format!("nameserver {WORLD_V4}\n"), IN_WORLD),
        ("# comment\n\nnameserver 127.0.0.53\n".to_owned(), ON_LOOPBACK),
        (format!("search test\nnameserver {WORLD_V6}\noptions edns0\n"), IN_WORLD),
    ] {
        replace(resolv_conf, &text)?;
        for server in OURS {
            noticed(bed, &[&format!("@{server}")], expected, &text)?;
        }
        // The guest's own resolv.conf stays as it is.
        noticed(bed, &[], expected, &text)?;
    }
    Ok(())
}

/// Waits until the resolvers of the changed resolv.conf answer.
fn noticed(bed: &Bed, words: &[&str], expected: [&str; 2], text: &str) -> Result<()> {
    let seen = eventually(|| answers(bed, words, expected));
    seen.map_err(|e| Failure(format!("{text:?} in resolv.conf was not noticed: {e}")))
}

/// Waits for success; the last failure if none comes.
fn eventually(attempt: impl Fn() -> Result<()>) -> Result<()> {
    wait_until(LIMIT, || attempt().ok()).map_or_else(attempt, Ok)
}

/// Engines that start after a change of resolv.conf ask the resolvers of the change.
fn changed_resolvers(given: &Bed) -> Result<()> {
    let world = World::new()?;
    dnsmasq(&world, &world.host, &["127.0.0.53"], ON_LOOPBACK)?;
    dnsmasq(&world, &world.world, &[WORLD_V4, WORLD_V6], IN_WORLD)?;
    let (bed, resolv_conf) = stage(given, world, "nameserver 127.0.0.53\n")?;
    with(&bed, |bed| {
        answers(bed, &[], ON_LOOPBACK)?;
        replace(&resolv_conf, &format!("nameserver {WORLD_V4}\n"))?;
        on_each_engine(bed, |when| noticed(bed, &[], IN_WORLD, when))?;
        bed.finish().map(drop)
    })
}

/// RCODE of the answer to one question, asked once.
fn status(bed: &Bed, words: &[&str]) -> Result<String> {
    let all = [&["dig", "+time=9", "+tries=1"], words].concat();
    let said = bed.attempt(&all)?.stdout;
    let code = said.split_once("status: ").and_then(|(_, rest)| rest.split_once(','));
    Ok(code.map_or_else(|| said.clone(), |(code, _)| code.to_owned()))
}

/// The first of two resolvers is silent, then both are, then there is none.
fn failing_resolvers(given: &Bed) -> Result<()> {
    let world = World::new()?;
    dnsmasq(&world, &world.host, &["127.0.0.53"], ON_LOOPBACK)?;
    let text = format!("nameserver {}\nnameserver 127.0.0.53\n", BLACKHOLE[0]);
    let (bed, resolv_conf) = stage(given, world, &text)?;
    with(&bed, |bed| {
        for server in OURS {
            answers(bed, &[&format!("@{server}")], ON_LOOPBACK)?;
        }
        for text in [format!("nameserver {}\nnameserver {}\n", BLACKHOLE[0], BLACKHOLE[1]), String::new()] {
            replace(&resolv_conf, &text)?;
            for server in OURS {
                eventually(|| {
                    let code = status(bed, &[&format!("@{server}"), "name.test"])?;
                    check(code == "SERVFAIL", || format!("{text:?}: {server} said {code}"))
                })?;
            }
        }
        // A resolver that refuses: over TCP the next one is asked.
        replace(&resolv_conf, "nameserver 127.0.0.54\nnameserver 127.0.0.53\n")?;
        for how in ["+tcp", "+notcp"] {
            noticed(bed, &[how], ON_LOOPBACK, "two resolvers of which one refuses")?;
        }
        Ok(())
    })
}

/// Host entries, and the mapped loopback.
fn own_names(bed: &Bed) -> Result<()> {
    for server in OURS {
        let at = format!("@{server}");
        for (words, expected) in [
            (&["host.brodo.internal"][..], "10.0.2.4"),
            (&["Host.Brodo.Internal", "AAAA"], ""),
            (&["db.lan"], "192.0.2.7"),
            (&["db.LAN", "AAAA"], "2001:db8::7"),
            (&["-x", "192.0.2.7"], "db.lan."),
            (&["-x", "2001:db8::7"], "DB.lan."),
            (&["-x", "10.0.2.4"], "host.brodo.internal."),
        ] {
            let found = dig(bed, &[&[at.as_str()], words].concat())?;
            check(found == expected, || format!("{words:?}: {found:?} instead of {expected:?}"))?;
        }
        let code = status(bed, &[&at, "db.lan", "MX"])?;
        check(code == "NOERROR", || format!("mail: {code}"))?;
    }
    Ok(())
}

/// Cache: questions of a stub resolver are answered from it, until the resolvers change.
fn cached(given: &Bed) -> Result<()> {
    let world = World::new()?;
    dnsmasq(&world, &world.host, &["127.0.0.53"], ON_LOOPBACK)?;
    dnsmasq(&world, &world.world, &[WORLD_V4, WORLD_V6], IN_WORLD)?;
    let (bed, resolv_conf) = stage(given, world, "nameserver 127.0.0.53\n")?;
    with(&bed, |bed| {
        let look_up = |expected: [&str; 2]| {
            let found = bed.run(&["getent", "ahosts", "name.test"])?.stdout;
            let all = expected.iter().all(|address| found.contains(address));
            check(all, || format!("{found:?} instead of {expected:?}"))
        };
        for _ in 0..10 {
            look_up(ON_LOOPBACK)?;
        }
        replace(&resolv_conf, &format!("nameserver {WORLD_V4}\n"))?;
        eventually(|| look_up(IN_WORLD))?;
        let said = bed.finish_whole()?.stderr;
        let again = counters(&said).find(|(name, _)| *name == "dns_cached").map_or(0, |(_, count)| count);
        // Each worker has sent one question of either type.
        check(again >= 10, || format!("{again} answers were given again: {said}"))
    })
}

/// brodo starts without a network, which comes later, and goes while a connection is open.
fn late_network(given: &Bed) -> Result<()> {
    let world = World::new()?;
    dnsmasq(&world, &world.world, &[WORLD_V4, WORLD_V6], IN_WORLD)?;
    world.host.ip("link set outside down")?;
    let (bed, _) = stage(given, world, &format!("nameserver {WORLD_V4}\nnameserver {WORLD_V6}\n"))?;
    with(&bed, |bed| {
        let code = status(bed, &["name.test"])?;
        check(code == "SERVFAIL", || format!("without a network: {code}"))?;
        bed.world.host.ip("link set outside up
            addr add fd00:18::1/64 dev outside nodad
            route add default via 198.18.0.2
            route add default via fd00:18::2")?;
        // The link takes a moment, and neighbours have to be found.
        let alive = || answers(bed, &[], IN_WORLD).and_then(|()| answers(bed, &["+tcp"], IN_WORLD));
        eventually(alive)?;
        let hold = format!("exec 3<>/dev/tcp/{WORLD_V4}/53 && echo connected && cat <&3");
        let mut held = bed.start_program(&["bash", "-c", &hold])?;
        eventually(|| check(held.stdout().contains("connected"), || held.describe()))?;
        bed.world.host.ip("addr del 198.18.0.1/24 dev outside")?;
        let ended = held.wait(LIMIT)?;
        check(ended.stderr.contains("reset"), || ended.failure("the connection was not reset").0)
    })
}

fn answers(bed: &Bed, words: &[&str], expected: [&str; 2]) -> Result<()> {
    for (kind, expected) in [("A", expected[0]), ("AAAA", expected[1])] {
        let found = dig(bed, &[words, &["name.test", kind]].concat())?;
        check(found == expected, || {
            format!("dig {} {kind}: {found:?} instead of {expected}", words.join(" "))
        })?;
    }
    Ok(())
}
