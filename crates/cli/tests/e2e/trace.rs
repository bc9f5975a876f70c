//! The scripts of `tools/trace` on a running brodo: bpftrace attaches to its probes, and what the scripts
//! print is about the connections that are made meanwhile.
//!
//! bpftrace brings a compiler of 140 MB along, so `make setup` does not install it, and few containers may
//! load BPF programs: where it is missing or refused the test is skipped with a message, under CI too.
//! `tests/probes.rs` checks everywhere that the binary has the probes of the scripts.

use crate::Test;
use crate::bed::{Bed, LIMIT, Link, PORT, check};
use brodo_bench::process::{Job, Result, find_program, wait_until};
use brodo_bench::world::HOST_V4;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[Test::new("trace scripts", scripts).on(&[Link::LARGE])];

/// The destination as the scripts print it.
const DESTINATION: &str = "198.19.0.1:7000";

/// Bytes beyond all buffers on the way, so that a stalled reader closes the window.
const STALLING_BYTES: &str = "50331648";

/// While a download runs the guest's acknowledgements are lost for longer than the first time-outs.
const LOSE_ACKS: &str =
    "sleep 0.5; ip route add blackhole 198.19.0.1; sleep 1; ip route del blackhole 198.19.0.1";

fn scripts(bed: &Bed) -> Result<()> {
    if let Some(why) = obstacle(bed)? {
        bed.skip(why);
        return Ok(());
    }
    let [mut limited, mut tuning, mut windows, mut retransmissions] = [
        start(bed, "limited")?,
        start(bed, "tuning")?,
        start(bed, "windows")?,
        start(bed, "retransmissions")?,
    ];
    for script in [&mut limited, &mut tuning, &mut windows, &mut retransmissions] {
        let begun = wait_until(LIMIT, || script.stdout().contains("flow").then_some(()));
        check(begun.is_some() && script.is_running(), || script.describe())?;
    }

    // The first lines come before the probes are attached, so the first connections may pass unseen.
    until(&limited, DESTINATION, || bed.probe(&["download", HOST_V4, PORT, "1000000"]).map(drop))?;
    until(&tuning, DESTINATION, || bed.probe(&["download", HOST_V4, PORT, STALLING_BYTES]).map(drop))?;
    let mut stall = 0;
    until(&windows, DESTINATION, || {
        stall += 1;
        let token = format!("trace-{stall}");
        bed.probe(&["upload", HOST_V4, PORT, STALLING_BYTES, "--stall", &token]).map(drop)
    })?;
    until(&retransmissions, "timeout", || {
        let mut download = bed.start_probe(&["down", HOST_V4, PORT, "1", "2"])?;
        bed.run(&["sh", "-c", LOSE_ACKS])?;
        download.wait(LIMIT)?.success().map(drop)
    })?;

    for (script, expected) in [
        (&mut limited, ", tx, loss]: "),
        (&mut tuning, "@decisions["),
        (&mut windows, "@windows"),
        (&mut retransmissions, "@segments[timeout]: "),
    ] {
        let summary = end(bed, script)?;
        check(summary.contains(expected), || format!("no {expected} in\n{summary}"))?;
    }
    Ok(())
}

/// Reason why bpftrace cannot trace here.
fn obstacle(bed: &Bed) -> Result<Option<String>> {
    if find_program("bpftrace").is_none() {
        return Ok(Some("bpftrace is not installed".into()));
    }
    let script =
        format!("uprobe:{}:main {{ }} BEGIN {{ printf(\"works\\n\"); exit(); }}", program(bed)?.display());
    let tried = bed.world.run(&[], ["bpftrace", "-e", &script], LIMIT)?;
    let works = tried.stdout.contains("works");
    Ok((!works).then(|| tried.failure("bpftrace is not allowed to trace here").0))
}

/// Path of the brodo under test.
fn program(bed: &Bed) -> Result<PathBuf> {
    bed.world.install_program(Path::new(env!("CARGO_BIN_EXE_brodo")))
}

fn start(bed: &Bed, name: &str) -> Result<Job> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tools/trace/{name}.bt"));
    bed.world.start(&[], [Path::new("bpftrace"), &script, &program(bed)?])
}

/// Repeats `provoke` until `script` has printed `expected`.
fn until(script: &Job, expected: &str, mut provoke: impl FnMut() -> Result<()>) -> Result<()> {
    let mut seen = false;
    for _ in 0..10 {
        provoke()?;
        let found = || script.stdout().contains(expected).then_some(());
        seen = wait_until(Duration::from_secs(1), found).is_some();
        if seen {
            break;
        }
    }
    check(seen, || format!("{expected} was never printed: {}", script.describe()))
}

/// Ends a script as Ctrl-C does; all it has printed.
fn end(bed: &Bed, script: &mut Job) -> Result<String> {
    let interrupt = format!("kill -INT {}", script.pid());
    bed.world.run(&[], ["sh", "-c", &interrupt], LIMIT)?.success()?;
    // Its probes are taken out one by one, and each waits for all processors.
    Ok(script.wait(3 * LIMIT)?.stdout)
}
