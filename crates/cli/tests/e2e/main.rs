//! End-to-end tests: the real program, real programs inside and outside, in namespaces that each test makes
//! itself.
//!
//! Every test has a [`Bed`]: a host namespace with brodo in it, running as an ordinary user, a world behind
//! it, a server in both, and a guest. Most tests run on links of both MTUs, some also without offloads, and
//! all cover IPv4 and IPv6. Content is compared by SHA-256, failures of connections with those on the host
//! itself. A failed test shows its commands, their output, brodo's counters, and last its reason in one line;
//! all reasons stand once more at the very end ([`reasons`]).
//!
//! Needs root for the namespaces (`make e2e` uses sudo). Under `CI=true` a missing program is a failure;
//! elsewhere the tests that need it are skipped, with a message. A test that the processor or the kernel of
//! this machine cannot run skips itself ([`Bed::skip`]), and counts as ignored. `BRODO_E2E_SYSTEM=pasta` runs
//! the suite on another forwarder instead, which tells a wrong test from a wrong brodo, `brodo-stream` and
//! `brodo-vhost-user` on guests of `brodo vm`, and `BRODO_WORKERS=4` on a brodo with so many workers.

mod bed;
mod bulk;
mod content;
mod crash;
mod failures;
mod flood;
mod groups;
mod hostile;
mod link;
mod losses;
mod many;
mod names;
mod outbound;
mod path;
mod ping;
mod ports;
mod programs;
mod reasons;
mod ring;
mod stress;
mod stuck;
mod system_calls;
mod trace;
mod udp_ports;
mod uml;
mod upgrade;
mod vm;
mod wan;
mod workers;

use bed::{Bed, Link};
use brodo_bench::process::{Failure, Result};
use brodo_bench::world::missing_programs;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

/// Programs of the harness itself.
const HARNESS_PROGRAMS: [&str; 5] = ["ip", "nsenter", "setpriv", "sh", "unshare"];

/// A test on one kind of link, with a bed of its own.
struct Test {
    name: &'static str,
    links: &'static [Link],
    programs: &'static [&'static str],
    run: fn(&Bed) -> Result<()>,
    options: &'static [&'static str],
}

impl Test {
    /// On links of both MTUs, with default options.
    const fn new(name: &'static str, run: fn(&Bed) -> Result<()>) -> Self {
        Self { name, links: &Link::BOTH, programs: &[], run, options: &[] }
    }

    const fn on(mut self, links: &'static [Link]) -> Self {
        self.links = links;
        self
    }

    /// Needs these programs.
    const fn with(mut self, programs: &'static [&'static str]) -> Self {
        self.programs = programs;
        self
    }

    /// brodo gets these options.
    const fn options(mut self, options: &'static [&'static str]) -> Self {
        self.options = options;
        self
    }
}

fn main() -> ExitCode {
    if let Some(code) = brodo_bench::probe::main() {
        return code;
    }
    let arguments = Arguments::from_args();
    let tests = [
        bulk::TESTS,
        content::TESTS,
        failures::TESTS,
        flood::TESTS,
        groups::TESTS,
        hostile::TESTS,
        link::TESTS,
        many::TESTS,
        names::TESTS,
        outbound::TESTS,
        path::TESTS,
        ping::TESTS,
        ports::TESTS,
        programs::TESTS,
        ring::TESTS,
        stress::TESTS,
        stuck::TESTS,
        system_calls::TESTS,
        trace::TESTS,
        upgrade::TESTS,
        crash::TESTS,
        udp_ports::TESTS,
        uml::TESTS,
        vm::TESTS,
        wan::TESTS,
        workers::TESTS,
    ];
    let trials = tests.into_iter().flatten().flat_map(trials).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    reasons::print();
    conclusion.exit_code()
}

/// Links that the test runs on. With several workers one of its links, by their number another: a link's MTU
/// and offloads do not depend on workers.
fn links(test: &'static Test) -> &'static [Link] {
    let workers = std::env::var("BRODO_WORKERS").ok().and_then(|number| number.parse::<usize>().ok());
    match workers {
        None | Some(0 | 1) => test.links,
        Some(workers) => {
            let at = workers / 2 % test.links.len();
            &test.links[at..=at]
        }
    }
}

fn trials(test: &'static Test) -> impl Iterator<Item = Trial> {
    let wanted: Vec<&str> = HARNESS_PROGRAMS.iter().chain(test.programs).copied().collect();
    let mut missing = missing_programs(&wanted);
    if !brodo_bench::world::is_root() {
        missing.push("root");
    }
    let strict = std::env::var_os("CI").is_some_and(|value| value == "true");
    if !missing.is_empty() && !strict {
        eprintln!("SKIPPED {}: it needs {} (make setup)", test.name, missing.join(", "));
    }
    links(test).iter().map(move |link| {
        let missing = missing.clone();
        let name = format!("{} {}", test.name, link.name());
        let shown = name.clone();
        let skip = !missing.is_empty() && !strict;
        let run = move || {
            let attempt = if missing.is_empty() { attempt(test, *link) } else { Err(needs(&missing)) };
            attempt.map_err(|failure| Failed::from(reasons::record(&shown, &failure)))
        };
        Trial::ignorable_test(name, run).with_ignored_flag(skip)
    })
}

fn needs(missing: &[&str]) -> Failure {
    Failure(format!("it needs {}", missing.join(", ")))
}

/// One run of a test in a bed of its own; a failure, also a panic, is explained by the output of the bed.
fn attempt(test: &Test, link: Link) -> Result<Completion> {
    let bed = Bed::new(link, test.options)?;
    let run = || (test.run)(&bed).and_then(|()| bed.close());
    let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(reasons::of_panic(&*panic)));
    result.map_err(|failure| Failure(bed.explain(&failure)))?;
    Ok(bed.skipped().map_or(Completion::Completed, Completion::ignored_with))
}
