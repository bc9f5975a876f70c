//! Start-up time of a fresh namespace: to the end of a command in it, and to the first byte of a download.

use super::matrix;
use super::results::{Results, StartUp};
use super::{Options, Part};
use crate::process::{Failure, PATIENCE, Result};
use crate::progress::Progress;
use crate::system::{SERVER_PORT, System, policy_options};
use crate::world::{HOST_V4, World};
use std::time::Duration;

/// Estimated duration of one round.
pub(super) const PLANNED: Duration = Duration::from_millis(200);

/// Times the systems that can start a command, in turn.
pub(super) fn run(
    options: &Options,
    rounds: usize,
    results: &mut Results,
    progress: &mut Progress,
) -> Result<()> {
    let world = World::new()?;
    matrix::serve(&world, 1)?;
    progress.begin(Part::Start.name());
    let [probe, name] = world.probe();
    let first_byte = [probe, name, "first-byte".into(), HOST_V4.into(), SERVER_PORT.to_string()].to_vec();
    for _ in 0..rounds {
        for system in results.systems.clone() {
            let before = match command(options, &world, system) {
                Ok(Some(before)) => before,
                Ok(None) => continue,
                Err(e) => {
                    fail(system, "a command", &e, results, progress);
                    continue;
                }
            };
            for (what, guest) in
                [(StartUp::True, &vec!["true".to_owned()]), (StartUp::FirstByte, &first_byte)]
            {
                let words = before.iter().chain(guest);
                let started = world.start(&world.enter_host_as_user(), words);
                match started.and_then(|mut job| job.wait(PATIENCE)?.success()) {
                    Ok(ended) => {
                        let elapsed_ms = ended.elapsed.as_secs_f64() * 1e3;
                        results.starts_ms.push((system, what, elapsed_ms));
                    }
                    Err(e) => fail(system, what.key(), &e, results, progress),
                }
            }
        }
    }
    progress.done(PLANNED * rounds as u32, "start: done");
    Ok(())
}

/// A start that failed.
fn fail(system: System, what: &str, why: &Failure, results: &mut Results, progress: &Progress) {
    let remark = format!("{}: {what} failed in a fresh namespace", system.name());
    progress.remark(&format!("{remark}: {why}"));
    results.fail_of(system, Failure(remark));
}

/// Prefix of a command that runs it in a fresh namespace of this system; none for host-direct, which times
/// the harness.
fn command(options: &Options, world: &World, system: System) -> Result<Option<Vec<String>>> {
    let words = match system {
        System::HostDirect => return Ok(Some(Vec::new())),
        System::Pasta => "--config-net --no-map-gw -t none -u none -T none -U none -q --",
        System::Brodo | System::BrodoRules10 | System::BrodoRules16384 => {
            let policy = policy_options(world, system)?.join(" ");
            &format!("run {policy} {} --", options.programs.options)
        }
        // slirp4netns and those for machines cannot start a command, veth starts none, and neither polling
        // nor the carrier affects the start.
        _ => return Ok(None),
    };
    let mut program = options.programs.find(system)?;
    if system.is_brodo() {
        program = world.install_program(&program)?;
    }
    let program = program.to_string_lossy().into_owned();
    Ok(Some(std::iter::once(program).chain(words.split_whitespace().map(str::to_owned)).collect()))
}
