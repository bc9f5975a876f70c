//! `brodo-bench`: measures brodo against the direct path, a veth pair and its peers; `brodo-bench demo` shows it at work.
//!
//! It builds network namespaces and therefore wants root; what it measures runs as an ordinary user.

use brodo_bench::bench::{Options, Workload};
use brodo_bench::system::{Programs, System};
use brodo_bench::wan::{emulator, measure};
use brodo_bench::{bench, probe};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures brodo and its peers, interleaved, and prints medians and ratios as Markdown.
#[derive(Debug, Parser)]
#[command(name = "brodo-bench", version, args_conflicts_with_subcommands = true)]
struct CommandLine {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    measure: Measure,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Watch brodo work: downloads through it, checked and timed
    Demo {
        /// The brodo to show; default: the one beside this program
        #[arg(long, value_name = "FILE")]
        brodo: Option<PathBuf>,
    },
    /// Measure what idle connections cost: memory with none, a thousand and ten thousand of them
    Idle {
        /// The brodo to measure; default: the one beside this program
        #[arg(long, value_name = "FILE")]
        brodo: Option<PathBuf>,
        /// Folder with pasta and slirp4netns; default: $BRODO_PEERS, then PATH
        #[arg(long, value_name = "FOLDER")]
        peers: Option<PathBuf>,
    },
    /// Connect two network namespaces by a long path with a bottleneck, until killed; prints what passes every second
    WanEmulator(emulator::Emulator),
    /// Measure over emulated long paths, through brodo and directly, and print both as Markdown
    Wan(measure::Options),
}

#[derive(Debug, Args)]
struct Measure {
    /// What to measure: up, down (bulk), crr (connect-request-response), rr, each with a number of flows
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "up1,down1,crr1,rr1")]
    workloads: Vec<Workload>,
    /// MTUs of the guest's link, in bytes
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1500,65520",
        value_parser = clap::value_parser!(u32).range(1280..=65520))]
    mtu: Vec<u32>,
    /// How often each is run
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// How long each run lasts, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    seconds: f64,
    /// Systems to measure; those not installed are named and left out
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = system,
        default_value = "host-direct,veth,pasta,slirp4netns,brodo")]
    against: Vec<System>,
    /// Write every sample to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The brodo to measure; default: the one beside this program
    #[arg(long, value_name = "FILE")]
    brodo: Option<PathBuf>,
    /// Folder with pasta and slirp4netns; default: $BRODO_PEERS, then PATH
    #[arg(long, value_name = "FOLDER")]
    peers: Option<PathBuf>,
}

fn system(name: &str) -> Result<System, String> {
    System::from_name(name).ok_or_else(|| format!("not one of {}", System::ALL.map(System::name).join(", ")))
}

/// Under `cargo run`, builds the brodo beside this program, so that what is measured is never missing or older than its
/// source. Started by itself this program takes what is there.
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
        Some(Command::Demo { brodo }) => brodo_bench::demo::run(&Programs { brodo, peers: None }),
        Some(Command::Idle { brodo, peers }) => brodo_bench::idle::run(&Programs { brodo, peers }),
        Some(Command::WanEmulator(emulator)) => emulator::run(&emulator),
        Some(Command::Wan(options)) => measure::run(&options),
        None => bench::run(&Options {
            workloads: line.measure.workloads,
            mtus: line.measure.mtu,
            rounds: line.measure.rounds as usize,
            seconds: line.measure.seconds,
            systems: line.measure.against,
            programs: Programs { brodo: line.measure.brodo, peers: line.measure.peers },
            json: line.measure.json,
        }),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("brodo-bench: {e}");
            ExitCode::FAILURE
        }
    }
}
