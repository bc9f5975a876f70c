//! The matrix of workloads and systems, round after round.
//!
//! The server is in the host namespace, so that the path is host-direct's loopback plus exactly what the
//! system under test adds. Payload is counted where it arrives, retransmissions by the kernel that sends (the
//! guest's for uploads, the host's for downloads, as iperf3 does), the forwarder's CPU by the scheduler. So
//! the retransmissions of a download are those of the server's hop to the forwarder: a forwarder's own TCP
//! toward the guest is not the host's kernel. A relay's is, with both of its hops.

use super::Options;
use super::results::{Footprint, Results, Sample};
use super::workload::{Metric, Outcome, Sender, Workload};
use crate::probe::round_trip_ports;
use crate::process::{Failure, Result};
use crate::procfs;
use crate::progress::Progress;
use crate::report::number;
use crate::system::{Guest, Programs, RESPOND_PORT, SERVER_PORT, System};
use crate::world::{HOST_V4, World};
use std::fmt::Write as _;
use std::time::Duration;

/// Overhead of one run: programs start, connections open and close, queues empty.
const AROUND: Duration = Duration::from_millis(200);

/// Estimated duration of all rounds.
pub(super) fn planned(options: &Options, results: &Results) -> Duration {
    let runs = results.workloads.len() * results.systems.len() * results.mtus.len();
    one(options) * (runs as u32 * options.rounds)
}

fn one(options: &Options) -> Duration {
    Duration::from_secs_f64(options.seconds) + AROUND
}

/// Starts the servers in the host namespace; returns the process id of the bulk server.
pub(super) fn serve(world: &World, flows_max: usize) -> Result<u32> {
    let server = world.serve_probe(&world.host, SERVER_PORT)?;
    let ports = round_trip_ports(flows_max);
    let [probe, name] = world.probe();
    let words = [probe, name, "respond".into(), RESPOND_PORT.to_string(), ports.to_string()];
    world.serve(&world.host, words, RESPOND_PORT + ports - 1)?;
    Ok(server)
}

/// Most flows of a workload.
fn flows_max(results: &Results) -> usize {
    results.workloads.iter().map(|workload| workload.flows).max().unwrap_or(1)
}

/// Runs everything.
pub(super) fn run(
    options: &Options,
    answers_min: u64,
    results: &mut Results,
    progress: &mut Progress,
) -> Result<()> {
    let world = World::new()?;
    let server = serve(&world, flows_max(results))?;
    for mtu in results.mtus.clone() {
        let link = Link { world: &world, mtu, server, answers_min };
        one_mtu(options, link, results, progress);
    }
    Ok(())
}

/// Surroundings of the runs of one MTU.
#[derive(Clone, Copy)]
struct Link<'a> {
    world: &'a World,
    mtu: u32,
    /// Process of the server.
    server: u32,
    /// Fewest answers of a run whose latencies are figures.
    answers_min: u64,
}

/// Whether two systems run the same program, whose pages they share.
fn shares_program(programs: &Programs, systems: [System; 2]) -> bool {
    let [first, second] = systems.map(|system| programs.find(system).ok());
    first.is_some() && first == second
}

fn one_mtu(options: &Options, link: Link<'_>, results: &mut Results, progress: &mut Progress) {
    let Link { world, mtu, .. } = link;
    let mut guests: Vec<(System, Guest, Footprint)> = Vec::new();
    for system in results.systems.clone() {
        let guest = match Guest::start(world, system, &options.programs, mtu, flows_max(results)) {
            Ok(guest) => guest,
            Err(e) => {
                let why = e.of(&format!("{} at MTU {mtu} did not start", system.name()));
                progress.remark(&why.0);
                results.fail(why);
                continue;
            }
        };
        let is_first = !guests.iter().any(|(other, ..)| shares_program(&options.programs, [*other, system]));
        let footprint = Footprint {
            mtu,
            system,
            rss_start_kib: guest.rss_kib(),
            pss_start_kib: is_first.then(|| guest.pss_kib()),
            rss_end_kib: 0,
        };
        guests.push((system, guest, footprint));
    }
    for round in 1..=options.rounds {
        for workload in results.workloads.clone() {
            let rate = match pace(workload, mtu, results) {
                Ok(rate) => rate,
                Err(remark) => {
                    if !results.remarks.contains(&remark) {
                        results.remarks.push(remark);
                    }
                    continue;
                }
            };
            for (system, guest, _) in guests.iter().filter(|(system, ..)| system.does(workload.kind.name)) {
                let run = Run { link, guest, workload, system: *system, round, rate };
                let what = format!("MTU {mtu}, round {round}/{}", options.rounds);
                progress.begin(&format!("{what}: {workload} {}", system.name()));
                match run.measure(options.seconds) {
                    Ok((sample, remark)) => {
                        progress.done(one(options), &format!("{what}: {}", line(&sample)));
                        results.samples.push(sample);
                        if let Some(remark) = remark {
                            progress.remark(&remark);
                            results.fail_of(*system, Failure(remark));
                        }
                    }
                    Err(e) => {
                        let remark = format!("{workload} on {} at MTU {mtu} failed", system.name());
                        progress.remark(&format!("{remark}: {e}\n{}", guest.describe()));
                        results.fail_of(*system, Failure(remark));
                    }
                }
            }
        }
    }
    for (system, guest, mut footprint) in guests.into_iter().filter(|(system, ..)| system.is_forwarder()) {
        footprint.rss_end_kib = guest.rss_kib();
        match guest.verify() {
            Ok(()) => results.footprints.push(footprint),
            Err(why) => {
                let why = why.of(&format!("memory of {} at MTU {mtu}", system.name()));
                progress.remark(&why.0);
                results.fail_of(system, why);
            }
        }
    }
}

/// Datagrams per second for a workload that has a rate: half of what veth has delivered so far in this run.
fn pace(workload: Workload, mtu: u32, results: &Results) -> std::result::Result<u64, String> {
    let Some(name) = workload.kind.half_of else { return Ok(0) };
    let other = name.parse().ok();
    let rate = other.and_then(|other| results.median(mtu, other, System::Veth, Metric::DatagramRate));
    rate.map(|rate| (rate / 2.0) as u64).filter(|rate| *rate > 0).ok_or_else(|| {
        format!(
            "{workload} is not measured: its rate is half of what veth delivers of {name}, which is not known"
        )
    })
}

/// One sample as a line of progress.
fn line(sample: &Sample) -> String {
    let mut text = format!("{:10} {:11}", sample.workload.to_string(), sample.system.name());
    for (metric, value) in &sample.figures {
        let _ = write!(text, "  {} {}", number(*value), metric.key());
    }
    text
}

/// One workload on one system, about to run.
struct Run<'a> {
    link: Link<'a>,
    guest: &'a Guest,
    workload: Workload,
    system: System,
    round: u32,
    /// Datagrams per second.
    rate: u64,
}

impl Run<'_> {
    /// The run's figures, and a remark on those that it does not have.
    fn measure(&self, seconds: f64) -> Result<(Sample, Option<String>)> {
        let Link { world, mtu, server, answers_min } = self.link;
        let sender = if self.workload.kind.sender == Sender::Guest { self.guest.pid } else { server };
        let resent = || procfs::net_counter(sender, "Tcp", "RetransSegs");
        let (resent_before, cpu_before) = (resent(), self.guest.cpu_ms());
        let limit = Duration::from_secs_f64(seconds + 30.0);
        let words = words(world, self.workload, seconds, self.rate);
        let finished = world.run(&self.guest.enter, words, limit)?.success()?;
        let found = finished.json()?;
        if found["wrong"].as_u64().is_some_and(|wrong| wrong > 0) {
            return Err(finished.failure("datagrams arrived that are not as sent"));
        }
        let cpu_ms = self.guest.cpu_ms() - cpu_before;
        self.guest.verify()?;
        let outcome = Outcome {
            found,
            cpu_ms: (!self.guest.forwarder.is_empty()).then_some(cpu_ms),
            retransmissions: resent().saturating_sub(resent_before),
        };
        let Self { workload, system, round, .. } = *self;
        let few = outcome.few_answers(answers_min);
        let metrics = workload.kind.metrics.iter().filter(|metric| few.is_none() || !metric.is_latency());
        let figures = metrics.filter_map(|metric| Some((*metric, metric.of(&outcome)?))).collect();
        let remark = few.map(|count| {
            format!(
                "{workload} on {} at MTU {mtu}, round {round}: no latency, because the request was answered \
                 {count} times in {seconds} s",
                system.name()
            )
        });
        Ok((Sample { mtu, workload, system, round, figures }, remark))
    }
}

/// The probe's command line.
pub(super) fn words(world: &World, workload: Workload, seconds: f64, rate: u64) -> Vec<String> {
    let word = |word: &str| match word {
        "{host}" => HOST_V4.to_owned(),
        "{bulk}" => SERVER_PORT.to_string(),
        "{respond}" => RESPOND_PORT.to_string(),
        "{flows}" => workload.flows.to_string(),
        "{seconds}" => seconds.to_string(),
        "{rate}" => rate.to_string(),
        other => other.to_owned(),
    };
    world.probe().into_iter().chain(workload.kind.probe.split(' ').map(word)).collect()
}

#[cfg(test)]
mod tests {
    //! Programs that systems share.

    use super::*;

    #[test]
    fn systems_of_one_program_share_its_pages() {
        let programs = Programs { brodo: Some("/opt/brodo".into()), ..Programs::default() };
        let shares = |systems| shares_program(&programs, systems);
        assert!(shares([System::Brodo, System::BrodoTap]));
        assert!(shares([System::BrodoStream, System::Brodo]));
        assert!(shares([System::BridgeStream, System::BridgeVhostUser]));
        assert!(!shares([System::Brodo, System::BridgeStream]));
        assert!(!shares([System::HostDirect, System::Veth]), "neither has a program");
    }
}
