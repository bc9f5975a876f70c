//! Rows 1 to 5: what bounds a flow lies on the guest link, as for a remote guest or one attached by a VPN.
//!
//! Behind the host sockets is nothing: the far end takes and gives at once. So a flow moves `limit / RTT`, and how
//! fast brodo's limit finds its size is all that there is to see. Row 4 is the exception: there it is the queue of the
//! guest's own TUN device.

use super::{Expected, Figure, Progress, Row, Unit};
use crate::linux_guest::Options;
use crate::wan::Path;
use crate::wan::record::{Record, Transfer, Way};
use brodo_core::config::{BufferBounds, Tuning};
use brodo_core::time::Duration;

/// FreeBSD's step, bytes.
const STEP: u32 = 16 << 10;
/// The rules a row is measured under, ours first.
const TUNINGS: [Tuning; 4] = [Tuning::Rtt, Tuning::Step(STEP), Tuning::Pressure, Tuning::Fixed];

const KIB: u32 = 1 << 10;

/// The rows.
pub(super) fn rows() -> Vec<Row> {
    vec![Row {
        id: "1",
        title: "Fixed send buffer on a long path",
        setup: "Download, send limit fixed at 32 KiB, RTT 100 and 200 ms, no limit of rate. Expected: 32 KiB per \
                round trip, whatever the rule, for a fixed buffer has none.",
        measure: fixed_send_buffer,
    }]
}

/// The name of a rule, as on the command line.
fn name(tuning: Tuning) -> String {
    match tuning {
        Tuning::Rtt => "rtt".to_owned(),
        Tuning::Step(bytes) => format!("step:{bytes}"),
        Tuning::Pressure => "pressure".to_owned(),
        Tuning::Fixed => "fixed".to_owned(),
    }
}

/// A transfer over a path that only delays, between an ordinary guest and an eager host.
fn transfer(way: Way, rtt: Duration, bounds: (u32, u32), lasts: Duration) -> Transfer {
    Transfer {
        way,
        tuning: Tuning::Rtt,
        bounds: BufferBounds { initial: bounds.0, max: bounds.1 },
        path: Path { rtt, bits_per_s: None, tun: None },
        guest: Options::default(),
        reader: None,
        then: None,
        lasts,
    }
}

/// Runs a transfer under every rule.
fn under_every_rule(progress: &mut Progress, case: &str, transfer: &Transfer) -> Vec<(Tuning, Record)> {
    TUNINGS
        .into_iter()
        .map(|tuning| {
            progress.run(&format!("{case}, {}", name(tuning)));
            (tuning, Transfer { tuning, ..*transfer }.run())
        })
        .collect()
}

/// A figure taken from each run; that of `judged` is ours, the others are controls.
fn figure(
    runs: &[(Tuning, Record)],
    judged: Tuning,
    (case, what, unit): (&str, &'static str, Unit),
    expected: Expected,
    measure: impl Fn(&Record) -> Option<f64>,
) -> Figure {
    let of = |tuning| runs.iter().find(|(t, _)| *t == tuning).and_then(|(_, record)| measure(record));
    Figure {
        case: case.to_owned(),
        what,
        unit,
        expected,
        value: of(judged).unwrap_or(f64::NAN),
        controls: runs.iter().map(|(t, record)| (name(*t), measure(record))).collect(),
    }
}

/// What moves in the second half, when every limit has found its size.
fn settled(record: &Record) -> Option<f64> {
    Some(record.mean(0.5, 1.0))
}

fn fixed_send_buffer(progress: &mut Progress) -> Vec<Figure> {
    [100, 200]
        .into_iter()
        .map(|ms| {
            let rtt = Duration::from_millis(ms);
            let case = format!("RTT {ms} ms");
            let runs = under_every_rule(
                progress,
                &case,
                &transfer(Way::Down, rtt, (32 * KIB, 32 * KIB), Duration::from_secs(10)),
            );
            let expected = Expected::About(f64::from(32 * KIB) / rtt.as_secs_f64(), 1.0);
            figure(&runs, Tuning::Rtt, (&case, "throughput", Unit::MegabitPerS), expected, settled)
        })
        .collect()
}
