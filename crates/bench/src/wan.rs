//! A wide-area network in user space: delay, rate, a bounded queue and loss between two network namespaces,
//! without netem.
//!
//! ```text
//!   namespace A                      this process                      namespace B
//!   device wan0 (TUN) --read--> queue, rate, delay, loss --write--> device wan0 (TUN)
//!                    <--write-- queue, rate, delay, loss <--read--
//! ```
//!
//! Each end is a TUN device with offloads, so one read and one write carry a super-packet of up to 64 KiB and
//! no checksum is computed; so 1 Gbit/s with tens of megabytes in flight costs little CPU. Rate, queue and
//! loss are nevertheless those of the segments a super-packet stands for, with their Ethernet framing: where
//! some of them are lost or would be late the super-packet is cut. Each direction is a thread ([`pump`]);
//! the fate of a segment is decided by arithmetic that reads no clock ([`shaper`]).
//!
//! Left out: reordering, duplication, jitter. The queue of the device itself, in front of
//! the emulated one, is long enough never to drop anything.

pub mod emulator;
pub mod measure;

mod pump;
mod ring;
pub mod rows;
mod segments;
mod shaper;
pub mod tap_queue;
pub mod testbed;

pub use pump::Counters;
pub use shaper::{Overflow, Path, Queue};

use crate::process::{Context, Failure, Result};
use crate::world::ip_batch;
use brodo_link::tun;
use nix::sched::{CloneFlags, setns};
use pump::Pump;
use std::fs::File;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The name of the device at either end.
pub const DEVICE: &str = "wan0";

/// Queue of the devices themselves, in packets: it fills only where the emulated queue makes senders wait. A
/// packet costs the kernel a pointer.
const DEVICE_QUEUE: u32 = 100_000;

/// One end of the path.
#[derive(Debug, Clone)]
pub struct End {
    /// The file of its network namespace: `/run/netns/NAME` or `/proc/PID/ns/net`.
    pub netns: PathBuf,
    /// Its address on the path.
    pub address: Ipv4Addr,
}

/// An emulated path, which exists as long as this value.
#[derive(Debug)]
pub struct Wan {
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// Traffic from the first end to the second.
    pub there: Arc<Counters>,
    /// Traffic from the second end to the first.
    pub back: Arc<Counters>,
}

impl Wan {
    /// Makes a device in both namespaces, with addresses that reach each other, and connects them. Needs
    /// root. `mtu` is that of the devices in bytes; without `offload` every packet is one segment.
    pub fn between(first: &End, second: &End, mtu: u32, [there, back]: [Path; 2]) -> Result<Self> {
        let a = Arc::new(device(first, second.address, mtu)?);
        let b = Arc::new(device(second, first.address, mtu)?);
        let end = Arc::new(AtomicBool::new(false));
        let mut wan = Self { end, threads: Vec::new(), there: Arc::default(), back: Arc::default() };
        let there = Pump::new(Arc::clone(&a), Arc::clone(&b), there, Arc::clone(&wan.there));
        let back = Pump::new(b, a, back, Arc::clone(&wan.back));
        for (name, pump) in [("wan-there", there), ("wan-back", back)] {
            let end = Arc::clone(&wan.end);
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || pump.run(&end));
            wan.threads.push(thread.context(|| "cannot start a thread for the emulated path".into())?);
        }
        Ok(wan)
    }

    /// Segments that were dropped, lost or refused so far, in both directions together.
    pub fn losses(&self) -> u64 {
        let of = |c: &Counters| [&c.dropped, &c.lost, &c.refused].map(|n| n.load(Ordering::Relaxed));
        of(&self.there).into_iter().chain(of(&self.back)).sum()
    }
}

impl Drop for Wan {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic has been printed by the thread itself.
            let _ = thread.join();
        }
    }
}

/// Makes one end's device, on a thread that enters the network namespace alone.
fn device(end: &End, peer: Ipv4Addr, mtu: u32) -> Result<File> {
    let make = || {
        let path = end.netns.display();
        let netns = File::open(&end.netns).context(|| format!("cannot open {path}"))?;
        setns(netns, CloneFlags::CLONE_NEWNET).context(|| format!("cannot enter {path} (setns)"))?;
        let fd = tun::create(DEVICE, true).context(|| format!("no device {DEVICE} in {path}"))?;
        ip_batch(
            &[],
            &format!(
                "link set {DEVICE} mtu {mtu} txqueuelen {DEVICE_QUEUE} up\n\
                 addr add {} peer {peer} dev {DEVICE}\n",
                end.address
            ),
        )?;
        Ok(File::from(fd))
    };
    let thread = std::thread::scope(|scope| scope.spawn(make).join());
    thread.unwrap_or_else(|_| Err(Failure("the thread that makes a device has panicked".into())))
}

#[cfg(test)]
mod tests;
