//! Names: dig in the guest, dnsmasq on the host's loopback and in the world, over UDP and TCP and both families.

use crate::Test;
use crate::bed::{Bed, check};
use brodo_bench::process::{Failure, Result, wait_until};
use brodo_bench::world::{Netns, WORLD_V4, WORLD_V6, World};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[Test::new("names", names).with(&["dig", "dnsmasq", "mount"])];

/// What the two resolvers answer for the same name, so that one sees which was asked.
const ON_LOOPBACK: [&str; 2] = ["192.0.2.53", "2001:db8::53"];
const IN_WORLD: [&str; 2] = ["192.0.2.99", "2001:db8::99"];

/// The DNS servers brodo plays.
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
    words.extend(answers.map(|address| format!("--host-record=name.test,{address}")));
    // Too much for a datagram of 1,232 bytes: the answer is truncated and asked for again over TCP.
    words.push(format!("--txt-record=long.test{}", format!(",{}", "x".repeat(250)).repeat(12)));
    world.serve(netns, words, 53).map(drop)
}

/// The host gets an `/etc` of its own, so that its resolv.conf can be replaced as real systems do: by renaming.
fn names(given: &Bed) -> Result<()> {
    let world = World::new()?;
    dnsmasq(&world, &world.host, &["127.0.0.53"], ON_LOOPBACK)?;
    dnsmasq(&world, &world.world, &[WORLD_V4, WORLD_V6], IN_WORLD)?;
    let etc = world.folder().join("etc");
    let copy = ["cp", "-a", "/etc", &etc.to_string_lossy()];
    world.run(&[], copy, Duration::from_secs(30))?.success()?;
    let resolv_conf = etc.join("resolv.conf");
    replace(&resolv_conf, "nameserver 127.0.0.53\n")?;
    let mut enter = world.host.enter();
    let script = format!("mount --bind {} /etc && exec \"$@\"", etc.display());
    enter.extend(["unshare", "--mount", "sh", "-c", &script, "sh"].map(str::to_owned));
    enter.extend(brodo_bench::world::become_user());
    let bed = Bed::start(world, &enter, given.link, &[])?;
    resolve(&bed, &resolv_conf).map_err(|failure| Failure(bed.explain(&failure)))
}

/// Replaces a file by another of the same name, never showing half of it.
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
    // As a program in the guest that only knows its resolv.conf.
    answers(bed, &[], ON_LOOPBACK)?;
    for server in OURS {
        let at = format!("@{server}");
        for how in ["+notcp", "+tcp"] {
            answers(bed, &[&at, how], ON_LOOPBACK)?;
        }
        let long = dig(bed, &[&at, "long.test", "TXT"])?;
        check(long.matches('x').count() == 12 * 250, || format!("{server}: long answer came as {long:?}"))?;
        let missing = bed.run(&["dig", &at, "absent.test"])?;
        // dnsmasq without upstream servers refuses what it does not know; that must come through as it is.
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
        // The guest keeps its own file, whatever becomes of the host's.
        noticed(bed, &[], expected, &text)?;
    }
    Ok(())
}

/// Waits until a change of resolv.conf shows. Each worker looks for itself, once a second.
fn noticed(bed: &Bed, words: &[&str], expected: [&str; 2], text: &str) -> Result<()> {
    let seen = wait_until(Duration::from_secs(10), || answers(bed, words, expected).ok());
    let seen = seen.map_or_else(|| answers(bed, words, expected), Ok);
    seen.map_err(|e| Failure(format!("{text:?} in resolv.conf was not noticed: {e}")))
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
