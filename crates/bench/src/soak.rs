//! Endurance test: one brodo under all kinds of load for long, checked for growth, drops and corruption.
//!
//! Each [`LOADS`] line is a program of the guest that is started again as soon as it has ended: content in
//! both directions, compared by hash; the same with stalls that fill every buffer on the way; connections
//! that last a millisecond; datagrams in streams, as echoes, and as single questions on sockets of their own.
//! Meanwhile memory, descriptors and threads are read every few seconds. A first while fills tables and pools
//! and lasts until as many flows end as begin ([`WARM_UP`]); of the time after it, the median of neither
//! memory nor descriptors may be higher in the second half than in the first by more than a little. When the
//! load has ended every flow has to end too. A process of brodo's that ended meanwhile is a fault, also where
//! another has taken its place.

use crate::probe::round_trip_ports;
use crate::process::{Context, Failure, Result, wait_until};
use crate::procfs;
use crate::report::{Machine, Spread, number};
use crate::system::{Guest, Programs, RESPOND_PORT, SERVER_PORT, System, crashes};
use crate::world::{HOST_V4, HOST_V6, World};
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Interval between samples of brodo's process.
const INTERVAL: Duration = Duration::from_secs(5);
/// Readings per line of output.
const SAMPLES_PER_LINE: usize = 12;
/// Time limit of one program of the load, even on a busy machine.
const LIMIT: Duration = Duration::from_mins(2);
/// Twice the longest time that a flow without traffic is kept; the double is for a busy machine.
const FLOWS_END: Duration = Duration::from_mins(6);
/// Warm-up: a UDP flow is kept for three minutes after its last datagram, so only then as many end as begin.
const WARM_UP: Duration = Duration::from_secs(200);
/// Bound of growth: the median of the second half over that of the first.
const GROWTH_MAX: f64 = 1.1;
const GROWTH_KIB_MAX: f64 = 512.0;
const GROWTH_DESCRIPTORS_MAX: f64 = 30.0;
/// Loss of paced datagrams. A receiver that twenty other programs keep from its processor loses what comes in
/// more than 20 ms: its kernel's default buffer holds about a hundred datagrams.
const LOSS_PERCENT_MAX: f64 = 5.0;

/// Options of `brodo-bench soak`.
#[derive(Debug, Args)]
pub struct Options {
    /// Duration in minutes, after a warm-up of three and a half
    #[arg(long, value_name = "MINUTES", default_value_t = 20.0)]
    minutes: f64,
    /// MTU of the guest's link, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 65520,
        value_parser = clap::value_parser!(u32).range(1280..=65520))]
    mtu: u32,
    /// Path of brodo.
    #[command(flatten)]
    programs: Programs,
    /// Write all samples to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A program of the guest, run repeatedly.
struct Load {
    name: &'static str,
    /// Arguments of the probe, with `{}` for values known only at the run.
    probe: &'static str,
    /// Pause before the next.
    pause: Duration,
    /// Whether its output is correct.
    is_right: fn(&Value) -> bool,
}

const fn load(name: &'static str, probe: &'static str, pause_ms: u64, is_right: fn(&Value) -> bool) -> Load {
    Load { name, probe, pause: Duration::from_millis(pause_ms), is_right }
}

fn equal(found: &Value) -> bool {
    found["equal"] == true
}

/// Single bytes, of which the probe itself compares each.
fn some(found: &Value) -> bool {
    found["count"].as_f64().is_some_and(|count| count > 0.0)
}

/// Datagrams as they were sent, and nearly all of them.
fn nearly_all(found: &Value) -> bool {
    found["wrong"] == 0 && found["loss_percent"].as_f64().is_some_and(|loss| loss <= LOSS_PERCENT_MAX)
}

#[rustfmt::skip]
const LOADS: [Load; 11] = [
    load("upload", "upload {v4} {bulk} 50000000", 0, equal),
    load("download", "download {v4} {bulk} 50000000", 0, equal),
    load("download over IPv6", "download {v6} {bulk} 20000000", 200, equal),
    load("stalled upload", "upload {v4} {bulk} 30000000 --stall {token}", 500, equal),
    load("stalled download", "download {v6} {bulk} 30000000 --stall {token}", 500, equal),
    load("connections", "crr {v4} {respond} 2 5 --pause-us 2000", 0, some),
    load("single bytes", "rr {v4} {respond1} 2 5 --pause-us 500", 0, some),
    load("datagrams up", "datagrams-up {v4} {bulk} 1400 5 5000", 5000, nearly_all),
    load("datagrams down", "datagrams-down {v4} {bulk} 1400 5 5000", 5000, nearly_all),
    load("datagrams echoed", "datagrams {v6} {bulk} 1,64,512,1200", 5000, equal),
    load("questions", "queries {v4} {bulk} 5 50000", 0, equal),
];

/// Legitimate drops: late segments of closed connections, probes of a closed window, unsolicited multicast,
/// segments that come by the link after a connection has left it, and that the guest sends again.
/// Every other drop is a fault.
const HARMLESS: [&str; 6] =
    ["NoConnection", "OutOfWindow", "BadDestination", "UnknownIcmp", "UnknownProtocol", "Promoted"];

/// One sample of process, interfaces and retransmissions.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at_s: f64,
    rss_kib: u64,
    pss_kib: u64,
    descriptors: usize,
    threads: usize,
    moved_bytes: u64,
    tap_dropped: u64,
    resent_guest: u64,
    resent_host: u64,
}

impl Sample {
    fn take(start: Instant, guest: &Guest, server: u32) -> Self {
        let counters = procfs::interface(guest.pid, "eth0");
        Self {
            at_s: start.elapsed().as_secs_f64(),
            rss_kib: guest.rss_kib(),
            pss_kib: guest.pss_kib(),
            descriptors: guest.fd_count(),
            threads: guest.forwarder.iter().map(|pid| procfs::thread_count(*pid)).sum(),
            moved_bytes: counters.rx_bytes + counters.tx_bytes,
            tap_dropped: counters.tx_dropped,
            resent_guest: procfs::net_counter(guest.pid, "Tcp", "RetransSegs"),
            resent_host: procfs::net_counter(server, "Tcp", "RetransSegs"),
        }
    }

    fn line(&self, runs: u64, faults: usize) -> String {
        format!(
            "{:5.1} min: {:.1} MiB resident ({:.1} proportional), {} descriptors, {} threads; {} GiB moved in {runs} programs; \
             retransmissions: guest {}, host {}; dropped by the TAP {}; faults {faults}",
            self.at_s / 60.0,
            self.rss_kib as f64 / 1024.0,
            self.pss_kib as f64 / 1024.0,
            self.descriptors,
            self.threads,
            number(self.moved_bytes as f64 / f64::from(1 << 30)),
            self.resent_guest,
            self.resent_host,
            self.tap_dropped,
        )
    }

    fn json(&self) -> Value {
        json!({
            "seconds": self.at_s, "rss_kib": self.rss_kib, "pss_kib": self.pss_kib, "descriptors": self.descriptors,
            "threads": self.threads, "moved_bytes": self.moved_bytes, "tap_dropped": self.tap_dropped,
            "retransmissions_guest": self.resent_guest, "retransmissions_host": self.resent_host,
        })
    }
}

/// Runs the test; the error lists all faults.
pub fn run(options: &Options) -> Result<()> {
    println!("{}", Machine::now().text());
    let seconds = options.minutes * 60.0 + WARM_UP.as_secs_f64();
    println!(
        "This takes about {:.0} minutes, and up to three more until the last flow has ended.",
        seconds / 60.0
    );
    let world = World::new()?;
    let server = world.serve_probe(&world.host, SERVER_PORT)?;
    let ports = round_trip_ports(8);
    let [probe, name] = world.probe();
    let words = [probe, name, "respond".into(), RESPOND_PORT.to_string(), ports.to_string()];
    world.serve(&world.host, words, RESPOND_PORT + ports - 1)?;
    let program = world.install_program(&options.programs.find(System::Brodo)?)?;
    let (program, mtu) = (program.to_string_lossy(), options.mtu.to_string());
    let mut words = vec![&*program, "run", "-v", "--mtu", &mtu];
    words.extend(options.programs.options());
    words.push("--");
    let guest = Guest::forwarder(&world, &world.enter_host_as_user(), &words)?;

    let start = Instant::now();
    let before = Sample::take(start, &guest, server);
    println!("{}", before.line(0, 0));
    let bed = Bed { world: &world, guest: &guest, server, start };
    let (samples, mut faults) = bed.work(WARM_UP + Duration::from_secs_f64(options.minutes * 60.0));
    faults.extend(growth(&samples));
    println!("The load has ended; waiting for the last flow to end.");
    let ended = wait_until(FLOWS_END, || (guest.fd_count() <= before.descriptors).then_some(()));
    let after = Sample::take(start, &guest, server);
    println!("{}", after.line(0, faults.len()));
    if after.tap_dropped > before.tap_dropped {
        faults.push("the TAP has dropped packets of the guest".into());
    }
    if ended.is_none() {
        faults.push(format!(
            "{} descriptors remain, {} there were at the start",
            after.descriptors, before.descriptors
        ));
    }
    faults.extend(guest.verify().err().map(|why| why.first_line().to_owned()));
    let counted = guest.finish(Duration::from_secs(10))?.success()?.stderr;
    print!("{counted}");
    faults.extend(drops(&counted));
    faults.extend(crashes(&counted).into_iter().map(|line| format!("said: {line}")));
    if let Some(path) = &options.json {
        let samples: Vec<Value> = samples.iter().map(Sample::json).collect();
        let text =
            json!({ "samples": samples, "after": after.json(), "faults": faults, "counters": counted });
        std::fs::write(path, text.to_string()).context(|| format!("cannot write {}", path.display()))?;
    }
    if faults.is_empty() {
        println!("No growth, no drops, no corruption.");
        Ok(())
    } else {
        Err(Failure(format!("the soak found:\n{}", faults.join("\n"))))
    }
}

/// World, guest and servers under the load.
struct Bed<'a> {
    world: &'a World,
    guest: &'a Guest,
    server: u32,
    start: Instant,
}

impl Bed<'_> {
    /// Runs every load for `duration`; returns the samples and the failures.
    fn work(&self, duration: Duration) -> (Vec<Sample>, Vec<String>) {
        let (stop, runs) = (AtomicBool::new(false), AtomicU64::new(0));
        let faults = Mutex::new(Vec::new());
        let mut samples = Vec::new();
        thread::scope(|scope| {
            for load in &LOADS {
                let (stop, runs, faults) = (&stop, &runs, &faults);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let token = format!("soak-{}", runs.fetch_add(1, Ordering::Relaxed));
                        if let (Err(e), Ok(mut faults)) = (self.once(load, &token), faults.lock()) {
                            println!("{}: {e}", load.name);
                            faults.push(format!("{}: {e}", load.name));
                        }
                        sleep(load.pause, stop);
                    }
                });
            }
            while self.start.elapsed() < duration {
                thread::sleep(INTERVAL);
                let sample = Sample::take(self.start, self.guest, self.server);
                if samples.len() % SAMPLES_PER_LINE == SAMPLES_PER_LINE - 1 {
                    let faults = faults.lock().map_or(0, |faults| faults.len());
                    println!("{}", sample.line(runs.load(Ordering::Relaxed), faults));
                }
                samples.push(sample);
            }
            stop.store(true, Ordering::Relaxed);
        });
        (samples, faults.into_inner().unwrap_or_default())
    }

    fn once(&self, load: &Load, token: &str) -> Result<()> {
        let word = |word: &str| match word {
            "{v4}" => HOST_V4.to_owned(),
            "{v6}" => HOST_V6.to_owned(),
            "{bulk}" => SERVER_PORT.to_string(),
            "{respond}" => RESPOND_PORT.to_string(),
            // Servers of their own, as each serves one connection at a time.
            "{respond1}" => (RESPOND_PORT + round_trip_ports(4)).to_string(),
            "{token}" => token.to_owned(),
            other => other.to_owned(),
        };
        let words = self.world.probe().into_iter().chain(load.probe.split(' ').map(word));
        let finished = self.world.run(&self.guest.enter, words, LIMIT)?.success()?;
        if (load.is_right)(&finished.json()?) {
            Ok(())
        } else {
            Err(finished.failure("unexpected output of the probe"))
        }
    }
}

/// Sleeps for `pause`, or until `stop`.
fn sleep(pause: Duration, stop: &AtomicBool) {
    let end = Instant::now() + pause;
    while Instant::now() < end && !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(50).min(pause));
    }
}

/// Growth from the first half to the second, after the warm-up.
fn growth(samples: &[Sample]) -> Vec<String> {
    type Quantity = (&'static str, fn(&Sample) -> f64, f64);
    let begin = samples.partition_point(|sample| sample.at_s < WARM_UP.as_secs_f64());
    let (first, second) = samples[begin..].split_at((samples.len() - begin) / 2);
    let quantities: [Quantity; 4] = [
        ("resident memory, KiB", |sample| sample.rss_kib as f64, GROWTH_KIB_MAX),
        ("proportional set size, KiB", |sample| sample.pss_kib as f64, GROWTH_KIB_MAX),
        ("descriptors", |sample| sample.descriptors as f64, GROWTH_DESCRIPTORS_MAX),
        ("threads", |sample| sample.threads as f64, 0.0),
    ];
    let mut faults = Vec::new();
    for (name, of, more_max) in quantities {
        let median = |samples: &[Sample]| Spread::of(samples.iter().map(of)).map(|spread| spread.median);
        let (Some(first), Some(second)) = (median(first), median(second)) else {
            faults.push("too short to tell whether anything grows".into());
            break;
        };
        println!("{name}: {first:.0} in the first half, {second:.0} in the second");
        if second > first * GROWTH_MAX + more_max {
            faults.push(format!("{name} grew from {first:.0} to {second:.0}"));
        }
    }
    faults
}

/// Drops that the load does not explain.
fn drops(counted: &str) -> Vec<String> {
    let line = |line: &str| {
        let what = line.strip_prefix("brodo: ")?;
        let harmless =
            what.strip_prefix("drop ").is_some_and(|drop| HARMLESS.iter().any(|name| drop.starts_with(name)));
        let lost = what.starts_with("drop ") || what.starts_with("link_");
        (lost && !harmless && !what.ends_with(" 0")).then(|| format!("counted: {what}"))
    };
    counted.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    //! Tests of the rules for growth and losses.

    use super::*;

    fn samples(rss_kib: impl Fn(u64) -> u64) -> Vec<Sample> {
        let sample = |i| Sample {
            at_s: 5.0 * i as f64,
            rss_kib: rss_kib(i),
            pss_kib: 1000,
            descriptors: 100,
            threads: 1,
            moved_bytes: 0,
            tap_dropped: 0,
            resent_guest: 0,
            resent_host: 0,
        };
        (0..100).map(sample).collect()
    }

    #[test]
    fn a_leak_is_growth_and_peaks_are_not() {
        assert_eq!(growth(&samples(|i| if i % 5 == 0 { 50_000 } else { 4000 })), Vec::<String>::new());
        assert_eq!(growth(&samples(|i| 4000 + 100 * i.min(40))), Vec::<String>::new());
        assert_eq!(growth(&samples(|i| 4000 + 100 * i)).len(), 1);
        assert_eq!(growth(&[]).len(), 1);
    }

    #[test]
    fn only_what_may_not_be_dropped_is_a_fault() {
        let counted =
            "brodo: rx_frames 7\nbrodo: drop OutOfWindow 3\nbrodo: drop LinkFull 2\nbrodo: link_refused 1\n";
        assert_eq!(drops(counted), ["counted: drop LinkFull 2", "counted: link_refused 1"]);
    }

    #[test]
    fn datagrams_that_are_lost_or_wrong_are_a_fault() {
        let found = |wrong, loss: f64| json!({ "datagrams": 24_000, "wrong": wrong, "loss_percent": loss });
        assert!(nearly_all(&found(0, 0.0)) && nearly_all(&found(0, 1.0)));
        assert!(!nearly_all(&found(1, 0.0)) && !nearly_all(&found(0, 50.0)) && !nearly_all(&json!({})));
    }
}
