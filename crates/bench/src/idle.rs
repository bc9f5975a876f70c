//! What idle connections cost: the forwarder's resident memory with none, a thousand and ten thousand of them open.
//!
//! The connections are opened by a probe in the guest and accepted by one in the host namespace; nothing is ever sent on
//! them. The first thousand also pay for what grows once (tables, the allocator's pages), so the figure for one
//! connection is the difference between the last two counts.

use crate::process::{Context, Failure, Result, wait_until};
use crate::report;
use crate::system::{Guest, Programs, System};
use crate::world::{HOST_V4, World};
use std::time::Duration;

/// Connections open when memory is read.
const COUNTS: [usize; 3] = [0, 1000, 10_000];
/// What one may cost, bytes.
const BYTES_MAX: f64 = 1024.0;
const PORT: u16 = 7000;
const LIMIT: Duration = Duration::from_mins(1);

/// Measures every forwarder that is installed and prints a table; fails if brodo's connections cost too much.
pub fn run(programs: &Programs) -> Result<()> {
    println!("{}\n", report::machine());
    println!("| | RSS with 0, KiB | 1,000 | 10,000 | bytes per connection |\n|---|---:|---:|---:|---:|");
    let mut brodo = f64::NAN;
    for system in System::ALL.into_iter().filter(|system| system.is_forwarder()) {
        if let Err(missing) = programs.find(system) {
            eprintln!("left out: {missing}");
            continue;
        }
        let rss = measure(system, programs).context(|| system.name().to_owned())?;
        let each = (rss[2] as f64 - rss[1] as f64) * 1024.0 / (COUNTS[2] - COUNTS[1]) as f64;
        println!("| {} | {} | {} | {} | {each:.0} |", system.name(), rss[0], rss[1], rss[2]);
        if system == System::Brodo {
            brodo = each;
        }
    }
    if brodo <= BYTES_MAX {
        Ok(())
    } else {
        Err(Failure(format!("an idle connection of brodo takes {brodo:.0} bytes, not {BYTES_MAX} or less")))
    }
}

/// The forwarder's resident memory in KiB with each of [`COUNTS`] connections.
fn measure(system: System, programs: &Programs) -> Result<[u64; 3]> {
    let world = World::new()?;
    let port = PORT.to_string();
    let words = world.probe();
    let accept = [words[0].as_str(), words[1].as_str(), "accept", &port];
    world.serve(&world.host, accept, PORT)?;
    let guest = Guest::start(&world, system, programs, 65_520)?;
    let (mut rss, mut jobs, mut open) = ([0; 3], Vec::new(), 0);
    for (slot, count) in rss.iter_mut().zip(COUNTS) {
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
        // Whatever the handshakes needed has been given back by then.
        std::thread::sleep(Duration::from_secs(2));
        *slot = guest.rss_kib();
    }
    Ok(rss)
}
