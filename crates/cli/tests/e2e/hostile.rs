//! Hostile guests: mutated frames and misbehaving connections neither end brodo nor grow it, fill its log or
//! block other guests' programs.

use crate::Test;
use crate::bed::{Bed, Link, PORT, SERVERS, check};
use brodo_bench::process::Result;
use brodo_bench::system::Guest;

/// Limit of flows: many mutants are correct enough to open one.
const OPTIONS: &[&str] = &["--max-flows", "512"];
/// Descriptors besides those of flows.
const DESCRIPTORS_BESIDES: usize = 64;
/// Resident memory that 512 half-open flows and all tables may take, in KiB.
const MEMORY_MAX_KIB: u64 = 48 << 10;
/// Log output of brodo meanwhile, in bytes.
const WORDS_MAX: usize = 4096;

pub(crate) const TESTS: &[Test] = &[
    Test::new("mutated frames", mutants).on(&Link::ALL).options(OPTIONS),
    Test::new("hostile conversations", conversations).on(&Link::ALL).options(OPTIONS),
];

fn mutants(bed: &Bed) -> Result<()> {
    survives(bed, &["hostile-frames", "200000"])
}

fn conversations(bed: &Bed) -> Result<()> {
    survives(bed, &["hostile-conversations", "500"])
}

/// An attack of a fixed amount of work, frames or established connections, from each of three seeds.
fn survives(bed: &Bed, attack: &[&str]) -> Result<()> {
    for seed in ["1", "2", "3"] {
        let found = bed.root_probe(&[attack, &[seed]].concat())?;
        check(bed.guest(Guest::is_running)?, || format!("brodo did not survive seed {seed}: {found}"))?;
        let descriptors = bed.guest(|guest| guest.fd_count())?;
        check(descriptors <= 512 + DESCRIPTORS_BESIDES, || {
            format!("{descriptors} descriptors after {found}")
        })?;
        let memory = bed.guest(|guest| guest.anonymous_kib())?;
        check(memory <= MEMORY_MAX_KIB, || format!("{memory} KiB resident after {found}"))?;
    }
    let said = bed.guest(|guest| guest.stderr())?;
    check(said.len() <= WORDS_MAX, || format!("{} bytes of log: {}", said.len(), &said[..WORDS_MAX]))?;
    for server in SERVERS {
        for direction in ["upload", "download"] {
            let found = bed.probe(&[direction, server, PORT, "3000000"])?;
            check(found["equal"] == true, || format!("{direction} {server}: {found}"))?;
        }
    }
    Ok(())
}
