//! `brodo-bench wan-emulator`: an emulated path between two existing namespaces.

use super::{Counters, DEVICE, End, Overflow, Path, Queue, Wan};
use crate::process::Result;
use clap::Args;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// The path, the same in both directions.
#[derive(Debug, Args)]
pub struct Emulator {
    /// Network namespace of one end: a name of `ip netns`, a process id, or a file
    first: String,
    /// Network namespace of the other end
    second: String,
    /// Address of the first end
    #[arg(long, value_name = "IP", default_value = "198.18.77.1")]
    first_address: Ipv4Addr,
    /// Address of the second end
    #[arg(long, value_name = "IP", default_value = "198.18.77.2")]
    second_address: Ipv4Addr,
    /// Round-trip time, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 17.0)]
    rtt_ms: f64,
    /// Rate of each direction in Mbit/s with Ethernet framing; 0 for none
    #[arg(long, value_name = "MBIT", default_value_t = 1000.0)]
    rate: f64,
    /// Queue of each direction: bytes, or packets as in 500p
    #[arg(long, value_name = "LENGTH", default_value = "5000000")]
    queue: Queue,
    /// Packets that find the queue full wait in the sender's device instead of being dropped
    #[arg(long)]
    wait: bool,
    /// Probability that a segment is lost, 0 to 1
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    loss: f64,
    /// Seed of the losses
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// MTU of the devices in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u32,
    /// End after SECONDS instead of running until killed
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
}

/// Makes the path and reports on it once a second.
pub fn run(emulator: &Emulator) -> Result<()> {
    let path = Path {
        delay: Duration::from_secs_f64(emulator.rtt_ms.max(0.0) / 2e3),
        rate_bit: (emulator.rate > 0.0).then_some((emulator.rate * 1e6) as u64),
        queue: emulator.queue,
        overflow: if emulator.wait { Overflow::Wait } else { Overflow::Drop },
        loss: emulator.loss,
        seed: emulator.seed,
    };
    let first = End { netns: netns(&emulator.first), address: emulator.first_address };
    let second = End { netns: netns(&emulator.second), address: emulator.second_address };
    let back = Path { seed: !path.seed, ..path };
    let wan = Wan::between(&first, &second, emulator.mtu, [path, back])?;
    println!(
        "{DEVICE} in {} is {}, in {} {}",
        emulator.first, first.address, emulator.second, second.address
    );
    let mut before = [0; 2];
    for _ in 0..emulator.seconds.unwrap_or(u64::MAX) {
        thread::sleep(Duration::from_secs(1));
        for ((name, counters), before) in [("->", &wan.there), ("<-", &wan.back)].into_iter().zip(&mut before)
        {
            report(name, counters, before);
        }
    }
    Ok(())
}

/// One line of figures, if any packet has passed since the last one.
fn report(name: &str, counters: &Counters, before: &mut u64) {
    let bytes = counters.wire_bytes.load(Ordering::Relaxed);
    if bytes == *before {
        return;
    }
    let mbit = (bytes - *before) as f64 * 8.0 / 1e6;
    *before = bytes;
    let [packets, segments, dropped, lost, refused, late_ns] = [
        &counters.packets,
        &counters.segments,
        &counters.dropped,
        &counters.lost,
        &counters.refused,
        &counters.late_ns_max,
    ]
    .map(|counter| counter.load(Ordering::Relaxed));
    println!(
        "{name} {mbit:8.1} Mbit/s; in all {packets} packets for {segments} segments, {dropped} dropped, {lost} lost, \
         {refused} refused, {} us late at most",
        late_ns / 1000
    );
}

/// A namespace's file: of a process, of a name, or as given.
fn netns(text: &str) -> PathBuf {
    if text.bytes().all(|b| b.is_ascii_digit()) {
        return PathBuf::from(format!("/proc/{text}/ns/net"));
    }
    if text.contains('/') { PathBuf::from(text) } else { PathBuf::from("/run/netns").join(text) }
}
