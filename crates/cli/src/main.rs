//! brodo: user-mode networking for network namespaces and containers.
//!
//! The command parses its line ([`args`]) and the file that it may name ([`config_file`]), completes and
//! checks it ([`config`], [`guest_network`]), makes a namespace, enters one or awaits a virtual machine
//! ([`run`], [`attach`], [`vm`]), and serves it ([`serve`]) with the stack of `brodo-core` on the descriptors
//! of `brodo-net`. The log ([`log`]) is silent by default; a failure is one sentence ([`failure`]). A program
//! that takes the place of another brodo in the same process has a state instead of a command line
//! ([`resume`]).

// They abort the process if the output has no reader, or its disk is full ([`standard_output`]).
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod alike;
mod args;
mod attach;
mod clients;
mod config;
mod config_file;
mod control;
mod control_group;
mod conversation;
mod daemon;
mod descriptors;
mod dialect;
mod engine;
mod escape;
mod event_bus;
mod failure;
mod flow_log;
mod flow_messages;
mod flow_report;
mod forward_sockets;
mod guest_network;
mod host;
mod learnt_policy;
mod log;
mod mailbox;
mod manual;
mod metrics;
mod option_values;
mod own_process;
mod personality;
mod pesto;
mod pid_file;
mod plugin;
mod policy_change;
mod policy_command;
mod policy_fail;
mod policy_file;
mod policy_in_force;
mod policy_learn;
mod policy_option;
mod prometheus;
mod refusal_reason;
mod report;
mod resume;
mod rotated;
mod run;
mod run_as;
mod serve;
mod socket_file;
mod standard_output;
mod statistics;
mod store;
mod successor;
mod suggested_rule;
mod systemd;
mod timestamp;
mod top;
mod units;
mod unix_listener;
mod unmet;
mod upgrades;
mod vm;
mod warden;

use args::{Cli, Command};
use clap::CommandFactory;
use config_file::{Parsed, Refusal};
use failure::Failure;
use personality::{Outcome, Personality};
use plugin::Plugin;
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    if let Some(number) = std::env::var_os(resume::VARIABLE) {
        return go_on(&words, &number.to_string_lossy());
    }
    if let Some((personality, words)) = Personality::of(&words) {
        return in_place_of(personality, words);
    }
    if let Some((plugin, words)) = Plugin::of(&words) {
        return plugin.execute(words);
    }
    let failure = match config_file::parse(&words) {
        Ok(parsed) => match execute(parsed) {
            Ok(status) => return ExitCode::from(status),
            Err(failure) => failure,
        },
        Err(refusal) => {
            log::set_format(asked_format(&words));
            match refusal {
                // Requested help, or an explanation for people.
                Refusal::Line(error) if !error.use_stderr() || !log::is_json() => error.exit(),
                Refusal::Line(error) => Failure::Usage(config_file::sentence(&error)),
                Refusal::File(failure) => failure,
            }
        }
    };
    log::error(&failure.to_string());
    ExitCode::from(failure.exit_status())
}

/// Goes on with the work of another brodo, in its process or beside it.
fn go_on(words: &[OsString], number: &str) -> ExitCode {
    let state = resume::read(number);
    if words.get(1).is_some_and(|word| word == resume::HOST) {
        return ExitCode::from(host::host(state));
    }
    match state.and_then(|state| successor::go_on(&state)) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            log::error(&failure.to_string());
            ExitCode::from(failure.exit_status())
        }
    }
}

/// Does the work of another program, by its command line.
fn in_place_of(personality: Personality, words: &[OsString]) -> ExitCode {
    let outcome = personality::parse(personality, words);
    let done = outcome.and_then(|outcome| match outcome {
        Outcome::Done => Ok(0),
        Outcome::Parsed(parsed) => execute(*parsed),
    });
    match done {
        Ok(status) => return ExitCode::from(status),
        Err(Failure::Foreign(text)) => personality::complain(&text),
        Err(failure) => log::error(&failure.to_string()),
    }
    ExitCode::from(personality.exit_status())
}

/// Executes the command line.
fn execute(Parsed { cli, words }: Parsed) -> Result<u8, Failure> {
    if let Command::Run(args::Run { network, .. })
    | Command::Attach(args::Attach { network, .. })
    | Command::Vm(args::Vm { network, .. }) = &cli.command
    {
        log::set_format(network.log);
        log::set_level(log::asked(network.quiet, network.verbose));
        if network.syslog {
            log::open_syslog();
        }
        if let Some(path) = &network.log_file {
            let open = if network.log_file_new { log::open_new_file } else { log::open_file };
            let opened = open(path, network.log_file_size());
            opened.map_err(Failure::io(format!("write the log {}: open", path.display())))?;
        }
    }
    match cli.command {
        Command::Run(options) => run::run(&options, words.clone())
            .map_err(|failure| failure.of_command(|| args::joined::advice(&words, &options.command))),
        Command::Attach(options) => match store::take()? {
            Some(state) => successor::go_on_elsewhere(&state),
            None => attach::attach(&options, words),
        },
        Command::Vm(options) => vm::vm(&options, words),
        Command::Top(options) => top::top(&options),
        Command::Status(options) => clients::status(&options),
        Command::Flows(options) => clients::flows(&options),
        Command::Counters(options) => clients::counters(&options),
        Command::Events(options) => clients::events(&options),
        Command::Forward(options) => clients::forward(&options),
        Command::Capture(options) => clients::capture(&options),
        Command::Bulk(options) => clients::bulk(&options),
        Command::Upgrade(options) => clients::upgrade(&options),
        Command::Policy(options) => policy_command::policy(&options),
        Command::Report(options) => flow_report::report(&options),
        Command::As { program, .. } => {
            Err(Failure::Usage(format!("write brodo as {program} before any option")))
        }
        Command::Completions { shell, program } => manual::completions(shell, program.as_deref()),
        Command::Man { page } => manual::man(page.as_deref()),
    }
}

/// The log format of an invalid command line, as far as it can be parsed.
fn asked_format(words: &[OsString]) -> log::Format {
    let lenient = Cli::command().ignore_errors(true).try_get_matches_from(words).ok();
    let format = lenient.as_ref().and_then(|matches| matches.subcommand());
    let format =
        format.and_then(|(_, given)| given.try_get_one::<log::Format>("log").ok().flatten().copied());
    format.unwrap_or_default()
}
