//! Heap allocations of brodo, counted at the interface of the C library's allocator in the released program.
//!
//! A small library in C ([`SOURCE`]), built here and preloaded (`LD_PRELOAD`), counts in a mapped file. A
//! first run fills pools and tables; the second is reported. A run lasts seconds: a connection's promotion to
//! a kernel socket takes some hundred allocations in four processes, however much it moves afterwards.

use super::results::{Allocations, Results};
use super::workload::Workload;
use super::{Options, Part, matrix};
use crate::process::{Context, Failure, PATIENCE, Result, find_program};
use crate::progress::Progress;
use crate::system::{Guest, System};
use crate::world::World;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

/// The library.
const SOURCE: &str = include_str!("count.c");
/// Workloads during the count.
const WORKLOADS: [&str; 3] = ["up1", "down1", "crr1"];
/// Seconds of each of its two runs.
pub(super) const SECONDS: f64 = 4.0;

/// Estimated duration of the part, with runs of so many seconds.
pub(super) fn planned(seconds: f64) -> Duration {
    Duration::from_secs_f64(4.0 + seconds * 2.0 * WORKLOADS.len() as f64)
}

/// Counts allocations. A missing program becomes a remark in `results`, a count that failed a failure.
pub(super) fn run(options: &Options, seconds: f64, results: &mut Results, progress: &mut Progress) {
    const WHAT: &str = "Allocations were not measured";
    progress.begin(Part::Allocations.name());
    let missing = if !results.systems.contains(&System::Brodo) {
        Some("brodo is left out")
    } else if find_program("cc").is_none() {
        Some("there is no C compiler (cc)")
    } else {
        None
    };
    if let Some(why) = missing {
        progress.remark(&format!("{WHAT}: {why}"));
        results.remarks.push(format!("{WHAT}: {why}"));
    } else {
        match count(options, seconds) {
            Ok(found) => results.allocations = found,
            Err(why) => {
                let why = why.of(WHAT);
                progress.remark(&why.0);
                results.fail(why);
            }
        }
    }
    progress.done(planned(seconds), "alloc: done");
}

fn count(options: &Options, seconds: f64) -> Result<Vec<Allocations>> {
    let world = World::new()?;
    matrix::serve(&world, 1)?;
    let library = build(&world)?;
    let file = world.home().join("allocations");
    fs::write(&file, [0; 8])
        .and_then(|()| fs::set_permissions(&file, Permissions::from_mode(0o666)))
        .context(|| format!("cannot make {}", file.display()))?;
    let program = world.install_program(&options.programs.find(System::Brodo)?)?;
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let variables = [
        format!("LD_PRELOAD={library}"),
        format!("BRODO_ALLOCATIONS={}", file.display()),
        // `--brodo FILE` may have any name.
        format!("BRODO_ALLOCATIONS_OF={name}"),
    ];
    let program = program.to_string_lossy();
    let mut words = vec!["env"];
    words.extend(variables.iter().map(String::as_str));
    words.extend([&*program, "run"]);
    words.extend(options.programs.options());
    words.push("--");
    let guest = Guest::forwarder(&world, &world.enter_host_as_user(), &words)?;
    if read(&file)? == 0 {
        return Err(Failure(
            "the library counts nothing: brodo is linked statically, or has an allocator of its own".into(),
        ));
    }
    let mut found = Vec::new();
    for name in WORKLOADS {
        let workload: Workload = name.parse().map_err(Failure)?;
        let mut last = None;
        for _ in 0..2 {
            let before = read(&file)?;
            let words = matrix::words(&world, workload, seconds, 0);
            let done = world.run(&guest.enter, words, PATIENCE)?.success()?.json()?;
            guest.verify()?;
            let gib = done["bytes"].as_f64().map(|bytes| bytes / f64::from(1 << 30));
            let work = gib.or_else(|| done["count"].as_f64()).unwrap_or(0.0);
            last = Some(Allocations { workload, count: read(&file)? - before, work });
        }
        found.extend(last);
    }
    Ok(found)
}

/// Builds the library; its path.
fn build(world: &World) -> Result<String> {
    let (source, library) = (world.folder().join("count.c"), world.folder().join("count.so"));
    fs::write(&source, SOURCE).context(|| format!("cannot write {}", source.display()))?;
    let library = library.to_string_lossy().into_owned();
    let words = ["cc", "-O2", "-shared", "-fPIC", "-o", &library, &source.to_string_lossy()];
    world.run(&[], words, PATIENCE)?.success()?;
    Ok(library)
}

fn read(file: &Path) -> Result<u64> {
    let bytes = fs::read(file).context(|| format!("cannot read {}", file.display()))?;
    bytes.try_into().map(u64::from_ne_bytes).map_err(|_| Failure("the count is not a number".into()))
}
