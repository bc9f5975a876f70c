//! Memory of idle connections: the forwarder's resident set with none, a thousand and ten thousand open.
//!
//! The connections are opened by a probe in the guest and accepted by one in the host namespace; nothing is
//! ever sent on them. The first thousand also pay for what grows once (tables, the allocator's pages), so the
//! figure for one connection is the difference between the last two counts.

use crate::process::{Failure, Result, wait_until};
use crate::progress::Progress;
use crate::report::{Block, Document, Machine, Outputs, Table};
use crate::system::{Guest, Programs, System};
use crate::world::{HOST_V4, World};
use clap::Args;
use serde_json::{Value, json};
use std::time::Duration;

/// Connections open when memory is read.
pub const COUNTS: [usize; 3] = [0, 1000, 10_000];
/// Pause before memory is read: the forwarder frees the memory of the handshakes meanwhile.
pub const SETTLE: Duration = Duration::from_secs(2);
/// Limit of the memory per connection, bytes.
const BYTES_MAX: f64 = 1024.0;
const PORT: u16 = 7000;
/// Time limit of opening and checking connections.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);

/// Options of `brodo-bench idle`.
#[derive(Debug, Args)]
pub struct Options {
    /// Paths of the programs.
    #[command(flatten)]
    programs: Programs,
    /// Outputs of the results.
    #[command(flatten)]
    outputs: Outputs,
}

/// One forwarder's memory.
#[derive(Debug, Clone)]
pub struct Idle {
    /// The system measured.
    pub system: System,
    /// Number of connections.
    pub counts: [usize; 3],
    /// Resident KiB with each.
    pub rss_kib: [u64; 3],
}

impl Idle {
    /// Resident bytes per connection.
    pub fn bytes_each(&self) -> f64 {
        let more = self.rss_kib[2] as f64 - self.rss_kib[1] as f64;
        more * 1024.0 / (self.counts[2] - self.counts[1]) as f64
    }

    /// The sample as JSON.
    pub fn json(&self) -> Value {
        json!({
            "system": self.system.name(), "connections": self.counts, "rss_kib": self.rss_kib,
            "bytes_per_connection": self.bytes_each(),
        })
    }
}

/// `brodo-bench idle`: all installed forwarders. Fails if a connection of brodo takes more than
/// [`BYTES_MAX`].
pub fn run(options: &Options) -> Result<()> {
    let machine = Machine::now();
    eprintln!("{}", machine.text());
    let there = |system: &System| match options.programs.find(*system) {
        Ok(_) => true,
        Err(missing) => {
            eprintln!("left out: {missing}");
            false
        }
    };
    let forwarders = [System::Pasta, System::Slirp4netns, System::Brodo];
    let systems: Vec<System> = forwarders.into_iter().filter(there).collect();
    let mut progress = Progress::new(planned(DEPTH) * systems.len() as u32);
    let (found, failures) = measure(&systems, &options.programs, DEPTH, &mut progress);
    drop(progress);
    let machine = machine.at_end();
    let mut document = Document::new("Idle connections");
    document.blocks.extend(machine.blocks().chain([Block::Table(table(&found))]));
    document.blocks.extend(failures.iter().map(|failed| Block::Text(failed.why.first_line().into())));
    let samples: Vec<Value> = found.iter().map(Idle::json).collect();
    let samples = json!({ "machine": machine.json(), "idle": samples });
    options.outputs.write(&document, &document, &samples)?;
    if let Some(failed) = failures.into_iter().find(|failed| failed.system == System::Brodo) {
        return Err(failed.why);
    }
    match found.iter().find(|idle| idle.system == System::Brodo && idle.bytes_each() > BYTES_MAX) {
        None => Ok(()),
        Some(idle) => {
            let each = idle.bytes_each();
            Err(Failure(format!(
                "an idle connection of brodo takes {each:.0} bytes, not {BYTES_MAX} or less"
            )))
        }
    }
}

/// Depth of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Depth {
    /// Numbers of connections.
    pub counts: [usize; 3],
    /// Wait before memory is read.
    pub settle: Duration,
}

/// Depth of published figures.
pub const DEPTH: Depth = Depth { counts: COUNTS, settle: SETTLE };

/// Estimated duration for one forwarder.
pub fn planned(Depth { counts, settle }: Depth) -> Duration {
    // A connection takes about 100 us to open.
    (settle + Duration::from_millis(100)) * 3 + Duration::from_micros(100) * counts[2] as u32
}

/// A forwarder without a figure.
#[derive(Debug)]
pub struct Failed {
    /// The forwarder.
    pub system: System,
    /// The reason.
    pub why: Failure,
}

/// Measures forwarders one after the other. One that cannot hold so many connections does not void the other
/// figures.
pub fn measure(
    systems: &[System],
    programs: &Programs,
    depth: Depth,
    progress: &mut Progress,
) -> (Vec<Idle>, Vec<Failed>) {
    let (mut found, mut failures) = (Vec::new(), Vec::new());
    for &system in systems {
        let what = format!("idle {}", system.name());
        progress.begin(&what);
        let Depth { counts, settle } = depth;
        match memory(system, programs, counts, settle) {
            Ok(rss_kib) => {
                let idle = Idle { system, counts, rss_kib };
                let text = format!("{what}: {:.0} bytes per connection", idle.bytes_each());
                progress.done(planned(depth), &text);
                found.push(idle);
            }
            Err(e) => {
                let why = e.of(&what);
                progress.remark(&why.0);
                failures.push(Failed { system, why });
            }
        }
    }
    (found, failures)
}

/// Table of resident memory and bytes per connection.
pub fn table(found: &[Idle]) -> Table {
    let counts = found.first().map_or(COUNTS, |idle| idle.counts);
    let head = ["forwarder".to_owned()].into_iter().chain(counts.map(|count| format!("with {count}, KiB")));
    let head = head.chain(["bytes per connection".to_owned()]);
    let mut table = Table::new("Resident memory with idle connections", head);
    for idle in found {
        let cells =
            [idle.system.name().to_owned()].into_iter().chain(idle.rss_kib.map(|kib| kib.to_string()));
        table.row(cells.chain([format!("{:.0}", idle.bytes_each())]));
    }
    table
}

/// Resident memory of the forwarder with `counts` connections open, in KiB.
fn memory(system: System, programs: &Programs, counts: [usize; 3], settle: Duration) -> Result<[u64; 3]> {
    let world = World::new()?;
    let port = PORT.to_string();
    let words = world.probe();
    let accept = [words[0].as_str(), words[1].as_str(), "accept", &port];
    world.serve(&world.host, accept, PORT)?;
    let guest = Guest::start(&world, system, programs, 65_520, 1)?;
    let (mut rss, mut jobs, mut open) = ([0; 3], Vec::new(), 0);
    for (slot, count) in rss.iter_mut().zip(counts) {
        if count > open {
            let more = (count - open).to_string();
            let words = [words[0].as_str(), words[1].as_str(), "open", HOST_V4, &port, &more];
            let mut job = world.start(&guest.enter, words)?;
            let ready =
                wait_until(LIMIT, || (job.stdout().contains('\n') || !job.is_running()).then_some(()));
            if ready.is_none() || !job.is_running() {
                return Err(Failure(format!("{more} connections were not opened: {}", job.describe())));
            }
            jobs.push(job);
            open = count;
        }
        std::thread::sleep(settle);
        *slot = guest.rss_kib();
        guest.verify()?;
    }
    Ok(rss)
}
