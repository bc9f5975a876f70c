//! Rows of the measurement over the emulated path, one for each question that a buffer of the wrong size
//! answers badly.
//!
//! Each row is a path, a place for it, options for brodo and a direction. The expected figure follows from
//! the path and the buffer alone, window per round-trip time or the rate of the link, and stands beside the
//! one that is measured.

use super::testbed::Placement;
use super::{Overflow, Path, Queue};
use crate::probe::BulkDirection;
use std::time::Duration;

/// One row: path, placement, options and expectation.
#[derive(Debug, Clone)]
pub struct Row {
    /// Short name, by which the row is chosen.
    pub name: String,
    /// Position of the path.
    pub placement: Placement,
    /// Round-trip time without queues, in milliseconds.
    pub rtt_ms: u64,
    /// Rate of the link in both directions, in wire bits per second.
    pub rate_bit: u64,
    /// Queue in front of the link, in both directions.
    pub queue: Queue,
    /// Behaviour of a full queue.
    pub overflow: Overflow,
    /// Probability that a segment is lost on the way to brodo or the guest, whichever receives.
    pub loss: f64,
    /// Options of brodo.
    pub options: &'static [&'static str],
    /// Direction of the bulk.
    pub direction: BulkDirection,
    /// Dwell time of received bytes in the guest before they are read, in milliseconds; downloads only.
    pub dwell_ms: u64,
    /// Duration of a measurement, in seconds.
    pub seconds: u64,
    /// Expected rate of brodo, in Mbit/s of payload, where it follows from the set-up.
    pub expected_mbit: Option<f64>,
    /// The expectation in words.
    pub expected: &'static str,
}

impl Row {
    fn new(name: impl Into<String>, placement: Placement, direction: BulkDirection, rtt_ms: u64) -> Self {
        Self {
            name: name.into(),
            placement,
            rtt_ms,
            rate_bit: 1_000_000_000,
            // Twice what the longest of these paths holds: nothing is dropped by the path.
            queue: Queue::Bytes(50_000_000),
            overflow: Overflow::Drop,
            loss: 0.0,
            options: &[],
            direction,
            dwell_ms: 0,
            seconds: 5,
            expected_mbit: None,
            expected: "",
        }
    }

    fn options(mut self, options: &'static [&'static str]) -> Self {
        self.options = options;
        self
    }

    fn expects(mut self, mbit: f64, words: &'static str) -> Self {
        self.expected_mbit = Some(mbit);
        self.expected = words;
        self
    }

    fn expects_words(mut self, words: &'static str) -> Self {
        self.expected = words;
        self
    }

    /// The path from client to server and back.
    pub fn paths(&self) -> [Path; 2] {
        let path = Path {
            delay: Duration::from_millis(self.rtt_ms) / 2,
            rate_bit: Some(self.rate_bit),
            queue: self.queue,
            overflow: self.overflow,
            loss: 0.0,
            seed: 1,
        };
        let bulk = Path { loss: self.loss, ..path };
        match self.direction {
            BulkDirection::Up => [bulk, path],
            BulkDirection::Down => [path, bulk],
        }
    }
}

/// The rows, in order.
pub fn all() -> Vec<Row> {
    use BulkDirection::{Down, Up};
    use Placement::{BehindHost, OnGuestLink};
    let mut rows = vec![
        Row::new("1-100", OnGuestLink, Down, 100)
            .options(&["--tcp-tx-buffer", "32K"])
            .expects(2.62, "32 KiB per round trip"),
        Row::new("1-200", OnGuestLink, Down, 200)
            .options(&["--tcp-tx-buffer", "32K"])
            .expects(1.31, "32 KiB per round trip"),
        Row::new("1b-100", OnGuestLink, Down, 100)
            .options(&["--tcp-tx-buffer", "32K..256K"])
            .expects(20.97, "256 KiB per round trip"),
        Row::new("1b-200", OnGuestLink, Down, 200)
            .options(&["--tcp-tx-buffer", "32K..256K"])
            .expects(10.49, "256 KiB per round trip"),
        Row::new("2-down", OnGuestLink, Down, 17)
            .options(&["--tcp-tx-buffer", "64K"])
            .expects(30.8, "64 KiB per round trip"),
        Row::new("2-up", OnGuestLink, Up, 17)
            .options(&["--tcp-rx-buffer", "64K"])
            .expects(30.8, "64 KiB per round trip"),
    ];
    for (name, direction) in [("2c-down", Down), ("2c-up", Up)] {
        let row = Row::new(name, OnGuestLink, direction, 17);
        rows.push(Row { seconds: 10, ..row }.expects(928.0, "116 MB/s, 95 % of direct"));
    }
    for packets in [10, 50, 100, 500, 1000, 5000] {
        let row = Row::new(format!("4-drop-{packets}"), OnGuestLink, Up, 120);
        rows.push(
            Row { queue: Queue::Packets(packets), ..row }
                .expects_words("as direct: the guest's loss recovery"),
        );
    }
    for packets in [10, 50, 100, 500, 1000, 5000] {
        let row = Row::new(format!("4-wait-{packets}"), OnGuestLink, Up, 120);
        let row = Row { queue: Queue::Packets(packets), overflow: Overflow::Wait, ..row };
        rows.push(row.expects(178.9, "the guest's send buffer per round trip, at every length"));
    }
    for (name, loss) in [("loss-0.01", 1e-4), ("loss-0.1", 1e-3)] {
        let row = Row::new(format!("{name}%-down"), OnGuestLink, Down, 17);
        rows.push(Row { loss, ..row }.expects_words("as direct: our loss recovery"));
    }
    rows.push(Row::new("8", BehindHost, Up, 50).expects_words("95 % of direct"));
    for dwell_ms in [0, 10, 40] {
        let row = Row::new(format!("9-{dwell_ms}"), BehindHost, Down, 50);
        rows.push(Row { dwell_ms, ..row }.expects_words("95 % of direct"));
    }
    rows
}
