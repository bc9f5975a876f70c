//! brodo: user-mode networking for containers, network namespaces and virtual machines.
//!
//! The command parses its line ([`args`]), completes and checks it ([`config`], [`network`]), makes a namespace or
//! enters one ([`run`], [`attach`]), and serves it ([`serve`]) with the stack of `brodo-core` on the descriptors of
//! `brodo-linux`. It says nothing unless asked to or unless it fails; then it says one sentence ([`failure`]).

mod args;
mod attach;
mod clients;
mod config;
mod control;
mod failure;
mod flow_log;
mod journal;
mod network;
mod pages;
mod report;
mod run;
mod serve;
mod timestamp;
mod value;
mod wording;
mod workers;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(options) => run::run(&options),
        Command::Attach(options) => attach::attach(&options),
        Command::Status(options) => clients::status(&options),
        Command::Flows(options) => clients::flows(&options),
        Command::Counters(options) => clients::counters(&options),
        Command::Events(options) => clients::events(&options),
        Command::Forward(options) => clients::forward(&options),
        Command::Capture(options) => clients::capture(&options),
        Command::Completions { shell } => pages::completions(shell),
        Command::Man { page } => pages::man(page.as_deref()),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            report::tell(&format!("brodo: {failure}\n"));
            ExitCode::from(failure.exit_status())
        }
    }
}
