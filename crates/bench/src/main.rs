//! `brodo-bench`: brodo measured against the direct path, a veth pair and other forwarders; `brodo-bench
//! demo` is a guided download.
//!
//! Building network namespaces takes root; the measured programs run as an ordinary user.

use brodo_bench::system::Programs;
use brodo_bench::wan::{emulator, measure};
use brodo_bench::{bench, delay, demo, floods, idle, neighbour, pauses, policy_set, probe, smoke, soak};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Measures brodo and other forwarders, interleaved, and prints medians, ratios and goals as Markdown.
#[derive(Debug, Parser)]
#[command(name = "brodo-bench", version, args_conflicts_with_subcommands = true, max_term_width = 110)]
struct CommandLine {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    measure: bench::Options,
    /// Run all of it as briefly as possible, overriding other options, as a test of the benchmark: the
    /// figures are meaningless
    #[arg(long)]
    smoke: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Demonstration: downloads through brodo, checked and timed
    Demo(Programs),
    /// Measure the memory of idle connections: none, a thousand and ten thousand of them
    Idle(idle::Options),
    /// Measure pauses of service by crashes of the engine and upgrades, with ten thousand idle connections
    Pauses(pauses::Options),
    /// Measure the delay of a request over time, with bulk beside it for a while, and draw it
    Delay(delay::Options),
    /// Measure a neighbour's round trips and the throughput of bulk beside floods that a policy refuses
    Floods(floods::Options),
    /// Measure a change of policy with connections open: until it is in force, and until the refused ones
    /// have ended
    PolicySet(policy_set::Options),
    /// Measure a virtual machine's round trips beside one that harasses its own brodo
    Neighbour(neighbour::Options),
    /// Endurance test: all kinds of load on one brodo for long; fails if it grows, drops or corrupts anything
    Soak(soak::Options),
    /// Connect two network namespaces by a long path with a bottleneck, until killed; prints its traffic
    /// every second
    WanEmulator(emulator::Emulator),
    /// Measure over emulated long paths, through brodo and directly, and print both as Markdown
    Wan(measure::Options),
}

/// Under `cargo run`, builds the brodo beside this program, so that it is never missing or older than its
/// source. Started directly, this program measures the brodo that is there.
fn build_brodo() -> Result<(), String> {
    let (Some(cargo), Some(manifest)) = (std::env::var_os("CARGO"), std::env::var_os("CARGO_MANIFEST_PATH"))
    else {
        return Ok(());
    };
    let mut build = std::process::Command::new(cargo);
    build.args(["build", "--quiet", "-p", "brodo", "--manifest-path"]).arg(manifest);
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    match build.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("cannot build brodo: {status}")),
        Err(e) => Err(format!("cannot build brodo: {e}")),
    }
}

fn main() -> ExitCode {
    if let Some(code) = probe::main() {
        return code;
    }
    let line = CommandLine::parse();
    let needs_brodo = !matches!(line.command, Some(Command::WanEmulator(_)));
    if needs_brodo && let Err(e) = build_brodo() {
        eprintln!("brodo-bench: {e}");
        return ExitCode::FAILURE;
    }
    let result = match line.command {
        Some(Command::Demo(programs)) => demo::run(&programs),
        Some(Command::Idle(options)) => idle::run(&options),
        Some(Command::Pauses(options)) => pauses::run(&options),
        Some(Command::Delay(options)) => delay::run(&options),
        Some(Command::Floods(options)) => floods::run(&options),
        Some(Command::PolicySet(options)) => policy_set::run(&options),
        Some(Command::Neighbour(options)) => neighbour::run(&options),
        Some(Command::Soak(options)) => soak::run(&options),
        Some(Command::WanEmulator(emulator)) => emulator::run(&emulator),
        Some(Command::Wan(options)) => measure::run(&options),
        None if line.smoke => smoke::run(line.measure),
        None => bench::run(&line.measure),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("brodo-bench: {e}");
            ExitCode::FAILURE
        }
    }
}
