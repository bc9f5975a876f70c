//! `brodo policy`: policy files checked, and destinations tried against them, without a running brodo; and
//! the policy of a running one, shown and changed ([`clients::policy`]).

use crate::clients;
use crate::clients::args::{InstanceOptions, RunningPolicy};
use crate::escape;
use crate::failure::Failure;
use crate::policy_file::{self, OnLine, Policy, PolicyFiles, Trial, trial};
use crate::policy_learn;
use crate::standard_output::print;
use brodo_control::instance::Which;
use brodo_control::policy::Verdict;
use brodo_core::policy::{Effect, Ruleset};
use clap::{Args, Subcommand, ValueHint};
use serde::Serialize;
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

/// `--instance` of commands without a running brodo: it is neither offered nor taken.
#[derive(Debug, Args)]
struct Apart {
    #[arg(long, hide = true, value_name = "PID|PATH")]
    instance: Option<Which>,
}

/// `--json` of commands that print policy files, likewise.
#[derive(Debug, Args)]
struct AsFile {
    #[arg(long, hide = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    /// Check policy files together, and run their tests
    Check {
        /// The files
        #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        apart: Apart,
    },
    /// Print for each destination whether a policy allows it, and by which rule
    Test {
        /// The file
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Destinations, such as `tcp://github.com:22` or `https://example.com/path`
        #[arg(required = true, value_name = "URL")]
        urls: Vec<String>,
        #[command(flatten)]
        apart: Apart,
    },
    /// Print a policy that allows what flow logs, or a running brodo with `--learn`, have reached
    Learn {
        /// Flow logs (`--flow-log`); without, a running brodo is asked
        #[arg(value_name = "FLOWLOG", value_hint = ValueHint::FilePath)]
        logs: Vec<PathBuf>,
        /// Make one rule of so many names below one, such as `*.cdn.example.com`; never below a public suffix
        #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(2..))]
        wildcards: Option<u32>,
        #[command(flatten)]
        as_file: AsFile,
    },
    /// List the policies that come with brodo, or print one
    ///
    /// They are used by `--policy @NAME`, or `use = ["@NAME"]` in a file.
    Presets {
        /// The name, such as browser
        name: Option<String>,
        #[command(flatten)]
        apart: Apart,
        #[command(flatten)]
        as_file: AsFile,
    },
    #[command(flatten)]
    Running(RunningPolicy),
}

/// Runs the command.
pub(crate) fn policy(options: &PolicyOptions) -> Result<u8, Failure> {
    let InstanceOptions { instance, json } = &options.instance;
    match &options.command {
        PolicyCommand::Check { files, apart } => apart.check("check").and_then(|()| check(files, *json)),
        PolicyCommand::Test { file, urls, apart } => {
            apart.check("test").and_then(|()| test(file, urls, *json))
        }
        PolicyCommand::Learn { logs, wildcards, as_file } => {
            as_file.check("learn")?;
            if let (Some(_), [_, ..]) = (instance, logs.as_slice()) {
                return Err(no("--instance", "learn with logs"));
            }
            let wildcards = wildcards.map(|names| names as usize);
            let text = match logs.as_slice() {
                [] => clients::learned_policy(&options.instance, wildcards)?,
                logs => policy_learn::policy_of(logs, wildcards)?,
            };
            print(&text).map(|_| 0)
        }
        PolicyCommand::Presets { name, apart, as_file } => {
            apart.check("presets")?;
            as_file.check("presets")?;
            let text = match name {
                Some(name) => policy_file::presets::text(name.trim_start_matches('@'))?.to_owned(),
                None => policy_file::presets::list(),
            };
            print(&text).map(|_| 0)
        }
        PolicyCommand::Running(command) => clients::policy(&options.instance, command),
    }
}

impl Apart {
    fn check(&self, command: &str) -> Result<(), Failure> {
        self.instance.as_ref().map_or(Ok(()), |_| Err(no("--instance", command)))
    }
}

impl AsFile {
    fn check(&self, command: &str) -> Result<(), Failure> {
        if self.json { Err(no("--json", command)) } else { Ok(()) }
    }
}

/// The error of an option without a meaning.
fn no(option: &str, command: &str) -> Failure {
    Failure::Usage(format!("{option} has no meaning for brodo policy {command}"))
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

/// A line of `check` and `test` with `--json`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Line<'a> {
    /// A warning about the rules.
    Warning { warning: &'a str },
    /// A destination; `place` is that of a test that has failed.
    Tried {
        #[serde(skip_serializing_if = "Option::is_none")]
        place: Option<&'a str>,
        url: &'a str,
        verdict: Verdict,
        by: &'a str,
    },
    /// Numbers of rules and of tests.
    Checked { allow: usize, deny: usize, tests: usize, failed: usize },
}

impl Line<'_> {
    fn print(&self, json: bool) -> Result<(), Failure> {
        if json {
            // Infallible: string keys only.
            return print(&(escape::json(serde_json::to_string(self).unwrap_or_default()) + "\n")).map(drop);
        }
        // Lines that have no reader any more change nothing of the verdict, which is the exit status.
        print(&match self {
            Self::Warning { warning } => format!("warning: {warning}\n"),
            Self::Tried { place: Some(place), url, verdict, by } => {
                format!("{place}: {url} is {}: {by}\n", word(*verdict))
            }
            Self::Tried { place: None, url, verdict, by } => format!("{:<7} {url}  {by}\n", word(*verdict)),
            Self::Checked { allow, deny, tests, failed } => {
                let [allow, deny] = [(*allow, "allow rule"), (*deny, "deny rule")].map(counted);
                format!("{allow}, {deny}; {}, {failed} failed\n", counted((*tests, "test")))
            }
        })
        .map(drop)
    }
}

fn counted(counted: (usize, &str)) -> String {
    let (number, one) = counted;
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

fn check(files: &[PathBuf], json: bool) -> Result<u8, Failure> {
    let Loaded { files, rules } = load(files)?;
    for warning in policy_file::repeated(&files).into_iter().chain(policy_file::warnings(rules.source())) {
        Line::Warning { warning: &warning }.print(json)?;
    }
    let (mut tests, mut failed) = (0, 0);
    for expected in files.policies.iter().flat_map(|policy| &policy.tests) {
        tests += 1;
        let Trial { effect, by } = trial(&rules, &expected.url)
            .map_err(|why| Failure::Usage(format!("{}: {}: {why}", expected.place, expected.url)))?;
        if effect != expected.effect {
            failed += 1;
            let place = Some(expected.place.as_str());
            Line::Tried { place, url: &expected.url, verdict: verdict(effect), by: &by }.print(json)?;
        }
    }
    let source = rules.source();
    Line::Checked { allow: source.allow.len(), deny: source.deny.len(), tests, failed }.print(json)?;
    Ok(if failed > 0 { DENIED } else { 0 })
}

fn test(file: &PathBuf, urls: &[String], json: bool) -> Result<u8, Failure> {
    let Loaded { rules, .. } = load(std::slice::from_ref(file))?;
    let mut status = 0;
    for url in urls {
        let Trial { effect, by } =
            trial(&rules, url).map_err(|why| Failure::Usage(format!("{url}: {why}")))?;
        if effect == Effect::Deny {
            status = DENIED;
        }
        Line::Tried { place: None, url, verdict: verdict(effect), by: &by }.print(json)?;
    }
    Ok(status)
}

const fn verdict(effect: Effect) -> Verdict {
    match effect {
        Effect::Allow => Verdict::Allow,
        Effect::Deny => Verdict::Deny,
    }
}

const fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allowed",
        Verdict::Deny => "denied",
    }
}
