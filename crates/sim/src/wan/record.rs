//! One transfer from beginning to end: a scenario, its run, and samples at regular times.

use super::bulk_host::SlowReader;
use super::{Path, Wan};
use crate::linux_guest::Options;
use brodo_core::config::{BufferBounds, Config, Tuning};
use brodo_core::tcp::info::TcpInfo;
use brodo_core::time::{Duration, Instant};
use std::ops::Range;

/// Direction of the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// Guest to host: the receive window bounds it.
    Up,
    /// Host to guest: the send limit bounds it.
    Down,
}

/// A bulk transfer over one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// Direction of the transfer.
    pub way: Way,
    /// Rule by which limits are sized.
    pub tuning: Tuning,
    /// The buffer of that way, bytes.
    pub bounds: BufferBounds,
    /// Path between guest and stack.
    pub path: Path,
    /// The guest's TCP.
    pub guest: Options,
    /// Time and pace of slow reads of the host's program; else it reads as fast as bytes come.
    pub slow: Option<(Range<Duration>, SlowReader)>,
    /// The rate, bytes per second, to which the guest's program limits itself: it reads all there is, then
    /// sleeps for as long as that takes at the rate, as `curl --limit-rate` does. `None` for one that reads
    /// what its TCP takes.
    pub paced: Option<u64>,
    /// Duration of the transfer.
    pub lasts: Duration,
}

/// The shortest sleep of a program that limits its rate.
const SLEEP_MIN: Duration = Duration::from_millis(1);

/// A program of the guest's that limits its own rate.
struct PacedReader {
    bytes_per_s: u64,
    bytes: u64,
    wakes_at: Instant,
}

impl PacedReader {
    /// Advances time to `until`; the program reads at each of its wake-ups.
    fn read_until(&mut self, wan: &mut Wan, flow: usize, until: Instant) {
        while self.wakes_at <= until {
            wan.run_until(self.wakes_at);
            self.bytes += wan.connections[flow].read(u64::MAX);
            wan.poll(flow);
            let due = u128::from(self.bytes) * 1_000_000_000 / u128::from(self.bytes_per_s);
            self.wakes_at = (Instant::ZERO + Duration::from_nanos(due as u64)).max(wan.now() + SLEEP_MIN);
        }
        wan.run_until(until);
    }
}

/// One sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Since the guest's SYN.
    pub at: Duration,
    /// Bytes that have reached the other end.
    pub bytes: u64,
    /// The automatic limit, bytes.
    pub limit: u32,
    /// Number of its increases and decreases.
    pub changes: u32,
    /// Sent and not acknowledged, bytes.
    pub in_flight: u64,
    /// Payload that the stack holds, bytes.
    pub held: u32,
}

/// Result of a run.
#[derive(Debug, Clone)]
pub struct Record {
    /// At regular times, first and last included.
    pub samples: Vec<Sample>,
    /// The stack's information on the connection at the end.
    pub last: TcpInfo,
    /// Frames that the guest's TUN device dropped.
    pub dropped: u64,
    /// Retransmissions of the guest or of the stack.
    pub retransmitted: u64,
}

/// Samples in a run.
const SAMPLES: u32 = 4000;

impl Transfer {
    /// Runs the transfer.
    ///
    /// # Panics
    /// If the connection is not open at the end, or a wrong byte is delivered.
    pub fn run(&self) -> Record {
        let mut config = Config { mtu: self.guest.mss + 40, tcp_tuning: self.tuning, ..Config::default() };
        match self.way {
            Way::Up => config.tcp_rx = self.bounds,
            Way::Down => config.tcp_tx = self.bounds,
        }
        let mut wan = Wan::new(&config, self.path, self.guest.burst, 1);
        let flow = wan.connect(self.guest);
        match self.way {
            Way::Up => wan.connections[flow].write(u64::MAX),
            Way::Down => wan.host.writes = u64::MAX,
        }
        let mut slow = false;
        let mut paced =
            self.paced.map(|bytes_per_s| PacedReader { bytes_per_s, bytes: 0, wakes_at: Instant::ZERO });
        let mut samples = Vec::with_capacity(SAMPLES as usize + 1);
        for i in 0..=SAMPLES {
            let at = self.lasts * i / SAMPLES;
            match &mut paced {
                Some(program) => program.read_until(&mut wan, flow, Instant::ZERO + at),
                None => wan.run_until(Instant::ZERO + at),
            }
            let reader = self.slow.as_ref().filter(|(when, _)| when.contains(&at)).map(|(_, reader)| *reader);
            if slow != reader.is_some() {
                slow = !slow;
                wan.host.set_reader(reader);
            }
            samples.push(self.sample(&mut wan, flow, at));
        }
        let last = wan.info(flow).expect("the connection is open");
        let dropped = wan.tun().map_or(0, super::tun::Tun::dropped);
        let retransmitted = match self.way {
            Way::Up => wan.connections[flow].retransmitted(),
            Way::Down => wan.retransmitted(),
        };
        Record { samples, last, dropped, retransmitted }
    }

    fn sample(&self, wan: &mut Wan, flow: usize, at: Duration) -> Sample {
        let info = wan.info(flow);
        let half = info.map(|info| if self.way == Way::Up { info.rx } else { info.tx });
        let connection = &mut wan.connections[flow];
        let (bytes, in_flight) = match self.way {
            Way::Up => (0, connection.in_flight()),
            Way::Down => (connection.received(), info.map_or(0, |info| info.in_flight.into())),
        };
        let bytes = if self.way == Way::Up { wan.host.got(Wan::server(flow)) } else { bytes };
        Sample {
            at,
            bytes,
            limit: half.map_or(self.bounds.initial, |half| half.limit),
            changes: half.map_or(0, |half| half.grows + half.shrinks),
            in_flight,
            held: half.map_or(0, |half| half.held),
        }
    }
}

impl Record {
    /// Changes of the limit between two times, as shares of the whole run.
    pub fn changes(&self, from: f64, to: f64) -> u32 {
        let last = self.samples.len() - 1;
        let at = |share: f64| self.samples[(share * last as f64) as usize].changes;
        at(to) - at(from)
    }

    /// Bytes per second between two times, as shares of the whole run.
    pub fn mean(&self, from: f64, to: f64) -> f64 {
        let last = self.samples.len() - 1;
        let at = |share: f64| self.samples[(share * last as f64) as usize];
        let (a, b) = (at(from), at(to));
        (b.bytes - a.bytes) as f64 / b.at.saturating_sub(a.at).as_secs_f64()
    }

    /// From the guest's first byte to the beginning of the first time as long as `over` that carries
    /// `bytes_per_s`; `None` if there is none.
    pub fn reaches(&self, bytes_per_s: f64, over: Duration) -> Option<Duration> {
        let begun = self.samples.iter().find(|s| s.in_flight > 0)?.at;
        let mut end = self.samples.iter().peekable();
        for from in &self.samples {
            while end.next_if(|s| s.at < from.at + over).is_some() {}
            let to = end.peek()?;
            let rate = (to.bytes - from.bytes) as f64 / to.at.saturating_sub(from.at).as_secs_f64();
            if rate >= bytes_per_s {
                return Some(from.at.saturating_sub(begun));
            }
        }
        None
    }
}
