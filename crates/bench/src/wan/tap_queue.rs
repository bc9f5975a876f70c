//! Row 6: uploads over a real TAP whose transmit queue holds few packets. No path is emulated.
//!
//! The queue between the guest's kernel and brodo drops frames while it is full, and only a counter shows it.
//! brodo prevents drops: it always reads, and advertises windows that together fit into the queue. All
//! lengths are measured with one guest, as brodo follows a change of the length.
//!
//! Without promotion: a promoted upload passes the queue only in its first megabyte. And when it is aborted,
//! which is how a measurement ends, its steering ends before the guest's kernel has handled the reset: what
//! that sends meanwhile, to a connection that is gone, meets the queue without a window of brodo's (up to 15
//! packets in one of seven aborts, none before the abort).

use crate::process::{PATIENCE, Result};
use crate::procfs;
use crate::progress::Progress;
use crate::report::{Spread, Table};
use crate::system::Guest;
use crate::world::{HOST_V4, World};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Lengths of the queue, in packets.
pub const LENGTHS: [u32; 4] = [1, 10, 100, 1000];

/// Port of the probe's server.
const PORT: u16 = 7000;

/// A guest with a TAP of its own.
#[derive(Debug)]
pub struct TapQueue {
    guest: Guest,
    world: World,
}

/// One upload.
#[derive(Debug, Clone, Copy)]
pub struct Upload {
    /// Payload over the whole time.
    pub mbit: f64,
    /// Packets dropped at a full TAP queue.
    pub dropped: u64,
    /// Segments that the guest's kernel retransmitted.
    pub retransmitted: u64,
    /// Those of them that it sent because brodo did not get a processor for so long. Windows do not govern
    /// them, so each may explain a drop.
    pub impatient: u64,
}

impl TapQueue {
    /// Starts brodo, with further options, with a guest and a server on the host.
    pub fn new(program: &Path, options: &[&str], mtu: u32) -> Result<Self> {
        let world = World::new()?;
        world.serve_probe(&world.host, PORT)?;
        let program = world.install_program(program)?.to_string_lossy().into_owned();
        let mtu = mtu.to_string();
        let mut words = vec![&*program, "run", "--mtu", &mtu, "--bulk", "tap"];
        words.extend(options);
        words.push("--");
        let guest = Guest::forwarder(&world, &world.enter_host_as_user(), &words)?;
        guest.set(&[("ipv4/tcp_no_metrics_save", "1")])?;
        Ok(Self { guest, world })
    }

    /// Uploads for `seconds` through a queue of `length` packets.
    pub fn upload(&self, length: u32, seconds: u64) -> Result<Upload> {
        let limit = Duration::from_secs(seconds + 60);
        let set = ["ip", "link", "set", "eth0", "txqueuelen", &length.to_string()];
        self.world.run(&self.guest.enter_as_root, set, limit)?.success()?;
        let (dropped, resent, impatient) = (self.dropped()?, self.resent(), self.impatient());
        let [probe, name] = self.world.probe();
        let words = [probe, name, "timed-up".into(), HOST_V4.into(), PORT.to_string()];
        let words = words.into_iter().chain([(seconds * 1000).to_string(), "100".into()]);
        let found = self.world.run(&self.guest.enter, words, limit)?.success()?.json()?;
        self.guest.verify()?;
        Ok(Upload {
            mbit: found["mbit_per_second"].as_f64().unwrap_or(0.0),
            dropped: self.dropped()? - dropped,
            retransmitted: self.resent() - resent,
            impatient: self.impatient() - impatient,
        })
    }

    fn resent(&self) -> u64 {
        procfs::net_counter(self.guest.pid, "Tcp", "RetransSegs")
    }

    /// Loss probes and time-outs.
    fn impatient(&self) -> u64 {
        ["TCPLossProbes", "TCPTimeouts"]
            .map(|name| procfs::net_counter(self.guest.pid, "TcpExt", name))
            .iter()
            .sum()
    }

    fn dropped(&self) -> Result<u64> {
        let words = ["ip", "-json", "-statistics", "link", "show", "eth0"];
        let found: Value = self.world.run(&self.guest.enter_as_root, words, PATIENCE)?.success()?.json()?;
        Ok(found[0]["stats64"]["tx"]["dropped"].as_u64().unwrap_or(0))
    }
}

/// Estimated duration of one round.
pub(super) fn planned(seconds: u64) -> Duration {
    Duration::from_secs(seconds + 1) * LENGTHS.len() as u32
}

/// All lengths in turn, as a table.
pub(super) fn table(bed: &TapQueue, rounds: u32, seconds: u64, progress: &mut Progress) -> Result<Table> {
    let mut runs = vec![Vec::new(); LENGTHS.len()];
    for round in 1..=rounds {
        for (length, runs) in LENGTHS.into_iter().zip(&mut runs) {
            let what = format!("wan 6-{length}, round {round}/{rounds}");
            progress.begin(&what);
            let upload = bed.upload(length, seconds)?;
            progress.done(planned(seconds) / LENGTHS.len() as u32, &format!("{what}: {upload:?}"));
            runs.push(upload);
        }
    }
    let head = ["row", "expected", "upload, Mbit/s", "dropped by the TAP, packets", "sent again, segments"];
    let mut table = Table::new("Uploads through a short queue of the TAP", head);
    for (length, runs) in LENGTHS.into_iter().zip(&runs) {
        let column =
            |of: fn(&Upload) -> f64| Spread::of(runs.iter().map(of)).map_or_else(String::new, Spread::text);
        table.row([
            format!("6-{length}"),
            "none dropped, 90 % of the best from 10 on".to_owned(),
            column(|upload| upload.mbit),
            column(|upload| upload.dropped as f64),
            column(|upload| upload.retransmitted as f64),
        ]);
    }
    Ok(table)
}
