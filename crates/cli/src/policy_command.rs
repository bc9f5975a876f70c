//! `brodo policy`: policy files checked, and destinations tried against them, without a running brodo; and
//! the policy of a running one, shown and changed ([`clients::policy`]).

use crate::clients;
use crate::clients::args::{InstanceOptions, RunningPolicy};
use crate::failure::Failure;
use crate::policy_file::{self, OnLine, Policy, PolicyFiles, Trial, trial};
use crate::policy_learn;
use brodo_core::policy::{Effect, Ruleset};
use clap::{Args, Subcommand, ValueHint};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;

/// Exit status if a destination is denied, or a test fails.
const DENIED: u8 = 1;

#[derive(Debug, Args)]
pub(crate) struct PolicyOptions {
    #[command(flatten)]
    instance: InstanceOptions,

    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    /// Check policy files together, and run their tests
    Check {
        /// The files
        #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,
    },
    /// Print for each destination whether a policy allows it, and by which rule
    Test {
        /// The file
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Destinations, such as `tcp://github.com:22` or `https://example.com/path`
        #[arg(required = true, value_name = "URL")]
        urls: Vec<String>,
    },
    /// Print a policy that allows what flow logs, or a running brodo with `--learn`, have reached
    Learn {
        /// Flow logs (`--flow-log`); without, a running brodo is asked
        #[arg(value_name = "FLOWLOG", value_hint = ValueHint::FilePath)]
        logs: Vec<PathBuf>,
        /// Make one rule of so many names below one, such as `*.cdn.example.com`; never below a public suffix
        #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(2..))]
        wildcards: Option<u32>,
    },
    /// List the policies that come with brodo, or print one
    ///
    /// They are used by `--policy @NAME`, or `use = ["@NAME"]` in a file.
    Presets {
        /// The name, such as browser
        name: Option<String>,
    },
    #[command(flatten)]
    Running(RunningPolicy),
}

/// Runs the command.
pub(crate) fn policy(options: &PolicyOptions) -> Result<u8, Failure> {
    match &options.command {
        PolicyCommand::Check { files } => check(files),
        PolicyCommand::Test { file, urls } => test(file, urls),
        PolicyCommand::Learn { logs, wildcards } => {
            let wildcards = wildcards.map(|names| names as usize);
            let text = match logs.as_slice() {
                [] => clients::learned_policy(&options.instance, wildcards)?,
                logs => policy_learn::policy_of(logs, wildcards)?,
            };
            print(&text).map(|()| 0)
        }
        PolicyCommand::Presets { name } => {
            let text = match name {
                Some(name) => policy_file::presets::text(name.trim_start_matches('@'))?.to_owned(),
                None => policy_file::presets::list(),
            };
            print(&text).map(|()| 0)
        }
        PolicyCommand::Running(command) => clients::policy(&options.instance, command),
    }
}

/// Files with the rules that they make together.
struct Loaded {
    files: PolicyFiles,
    rules: Ruleset,
}

fn load(files: &[PathBuf]) -> Result<Loaded, Failure> {
    let files = policy_file::read(files)?;
    let rules = Policy::unite(&files.policies, &OnLine::default()).unwrap_or_default();
    let rules = Ruleset::new(rules).map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(Loaded { files, rules })
}

fn check(files: &[PathBuf]) -> Result<u8, Failure> {
    let Loaded { files, rules } = load(files)?;
    let (mut text, mut failed) = (String::new(), 0);
    for warning in policy_file::repeated(&files).into_iter().chain(policy_file::warnings(rules.source())) {
        let _ = writeln!(text, "warning: {warning}");
    }
    let mut count = 0;
    for expected in files.policies.iter().flat_map(|policy| &policy.tests) {
        count += 1;
        let Trial { effect, by } = trial(&rules, &expected.url)
            .map_err(|why| Failure::Usage(format!("{}: {why}", expected.place)))?;
        if effect != expected.effect {
            failed += 1;
            let _ = writeln!(text, "{}: {} is {}: {by}", expected.place, expected.url, word(effect));
        }
    }
    let source = rules.source();
    let (allow, deny) = (source.allow.len(), source.deny.len());
    let _ = writeln!(text, "{allow} allow rules, {deny} deny rules; {count} tests, {failed} failed");
    print(&text)?;
    Ok(if failed > 0 { DENIED } else { 0 })
}

fn test(file: &PathBuf, urls: &[String]) -> Result<u8, Failure> {
    let Loaded { rules, .. } = load(std::slice::from_ref(file))?;
    let (mut text, mut status) = (String::new(), 0);
    for url in urls {
        let Trial { effect, by } =
            trial(&rules, url).map_err(|why| Failure::Usage(format!("{url}: {why}")))?;
        if effect == Effect::Deny {
            status = DENIED;
        }
        let _ = writeln!(text, "{:<7} {url}  {by}", word(effect));
    }
    print(&text)?;
    Ok(status)
}

const fn word(effect: Effect) -> &'static str {
    match effect {
        Effect::Allow => "allowed",
        Effect::Deny => "denied",
    }
}

fn print(text: &str) -> Result<(), Failure> {
    io::stdout().write_all(text.as_bytes()).map_err(Failure::io("write to standard output"))
}
