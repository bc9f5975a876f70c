//! Rows 1 to 5: flows bounded on the guest link, as for a remote guest or one attached by a VPN.
//!
//! The host sockets have no path behind them: the far end reads and writes at once. So a flow moves `limit /
//! RTT`, and the figures show only the adaptation of brodo's limit. Exception: row 4 shows the queue of the
//! guest's own TUN device.

use super::{Expected, Figure, Progress, Row, Unit};
use crate::linux_guest::Options;
use crate::wan::Path;
use crate::wan::record::{Record, Transfer, Way};
use crate::wan::tun::WhenFull;
use brodo_core::config::{BufferBounds, Tuning};
use brodo_core::time::Duration;

/// FreeBSD's step, bytes.
const STEP: u32 = 16 << 10;
/// The rules a row is measured under, ours first.
const TUNINGS: [Tuning; 4] = [Tuning::Rtt, Tuning::Step(STEP), Tuning::Pressure, Tuning::Fixed];

const KIB: u32 = 1 << 10;

/// Payload capacity of the guest's send buffer of 4 MiB, bytes. The kernel charges a buffer with the memory
/// of each packet: a segment of 1460 bytes, a packet of 1500, in 2304. The share lies between 0.634 and
/// 0.651.
const SEND_BUFFER: u64 = (4 << 20) * 64 / 100;

/// The rows.
pub(super) fn rows() -> Vec<Row> {
    let row = |id, title, setup, measure| Row { id, title, setup, measure };
    vec![
        row(
            "1",
            "Fixed send buffer on a long path",
            "Download, send limit fixed at 32 KiB, RTT 100 and 200 ms, unlimited rate. Segments of 1424 \
             bytes, a whole number of which fill 32 KiB and 256 KiB. Expected: 32 KiB per round trip.",
            fixed_send_buffer,
        ),
        row(
            "1b",
            "Automatic send buffer on a long path",
            "As row 1, send limit from 32 to 256 KiB. Expected: 256 KiB per round trip.",
            automatic_send_buffer,
        ),
        row(
            "1c",
            "Receive window at 35 ms",
            "Upload, receive window fixed at 64 KiB, then from 64 to 256 KiB, RTT 35 ms, unlimited rate. \
             Expected: the window per round trip (a field report has 1.6 and 5.7 MB/s).",
            receive_window,
        ),
        row(
            "2",
            "1 Gbit/s at 17 ms: fixed window",
            "Upload for 10 s, receive window fixed at 64 KiB. Expected: 64 KiB per round trip.",
            fixed_window,
        ),
        row(
            "2b",
            "1 Gbit/s at 17 ms: FreeBSD's rule",
            "As row 2, window from 64 KiB to 2 MiB. The judged rule is step:16384, 16 KiB more in every \
             round trip that filled the window; a field report has 80 MB/s. 1 Gbit/s of Ethernet carries \
             118.7 MB/s of payload. The time is from the guest's first byte to the beginning of the first \
             round trip that carries 95 % of that.",
            stepped_window,
        ),
        row(
            "2c",
            "1 Gbit/s at 17 ms: brodo's rule",
            "As row 2, window from 64 KiB to 16 MiB, so that the rule stops the growth. The \
             bandwidth-delay product is 2.13 MB. The last control is a window of 16 MiB from the \
             beginning: the limit is then the guest's own slow start.",
            tuned_window,
        ),
        row(
            "3",
            "9.94 Gbit/s at 388 us",
            "Upload for 0.5 s, window fixed at 256 KiB, then from 256 KiB to 4 MiB. Rates are of payload. \
             The bandwidth-delay product is 0.48 MB.",
            fast_path,
        ),
        row("3b", "5.21 Gbit/s at 543 us", "As row 3. The bandwidth-delay product is 0.35 MB.", slower_path),
        row(
            "4",
            "A bounded queue in the guest's TUN device",
            "Upload at 120 ms, a send buffer of 4 MiB (2.68 MB of payload), frames of 1500 bytes, a TUN \
             queue of Q frames. Tail drop is the control: expected is the lesser of Q frames and the send \
             buffer per round trip. Stop-wake: back pressure, a full queue stops the guest: expected is \
             the send buffer per round trip at every Q, and no retransmission. Known: tail drop, but brodo \
             knows the length of the queue, as of its own TAP: expected is one connection's share of the \
             TX queue budget, three quarters of four fifths of Q, and no drop.",
            bounded_queue,
        ),
        row(
            "5",
            "A sender limited by its buffer",
            "Upload, a send buffer of 4 MiB (2.68 MB of payload), 1 Gbit/s, RTT 10 to 120 ms, an unlimited \
             queue. Expected: the lesser of the rate and the send buffer per round trip.",
            limited_sender,
        ),
        row(
            "5b",
            "A guest's program that limits its own rate",
            "Download for 10 s on a link of 20 us, send limit from 64 KiB to 4 MiB, to a program that reads all \
             there is and then sleeps for as long as that takes at its rate (`curl --limit-rate`): it takes the \
             whole limit in one go, and a larger one brings nothing. Expected: the program's rate, and a limit \
             that stays but for three probes at most, tried and taken back, in the last five seconds.",
            paced_reader,
        ),
    ]
}

/// The name of a rule, as on the command line.
pub(crate) fn name(tuning: Tuning) -> String {
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
        slow: None,
        paced: None,
        lasts,
    }
}

/// The same transfer under several rules: the name of each and its run.
pub(crate) type Runs = Vec<(String, Record)>;

/// Runs a transfer under every rule.
pub(crate) fn under_every_rule(progress: &mut Progress, case: &str, transfer: &Transfer) -> Runs {
    TUNINGS
        .into_iter()
        .map(|tuning| {
            progress.run(&format!("{case}, {}", name(tuning)));
            (name(tuning), Transfer { tuning, ..transfer.clone() }.run())
        })
        .collect()
}

/// Subject of a figure: the case, the figure in words, its unit.
struct Subject<'a>(&'a str, &'static str, Unit);

/// A figure taken from each run; that of `judged` is ours, the others are controls.
fn figure(
    runs: &Runs,
    judged: Tuning,
    Subject(case, what, unit): Subject<'_>,
    expected: Expected,
    measure: impl Fn(&Record) -> f64,
) -> Figure {
    let judged = name(judged);
    let ours = runs.iter().find(|(name, _)| *name == judged).map_or(f64::NAN, |(_, record)| measure(record));
    Figure {
        case: case.to_owned(),
        what,
        unit,
        expected,
        value: ours,
        controls: runs.iter().map(|(name, record)| (name.clone(), Some(measure(record)))).collect(),
    }
}

/// Throughput of the second half, when every limit has settled. Where a window crosses the path as one burst,
/// half a run is a whole number of round trips.
fn settled(record: &Record) -> f64 {
    record.mean(0.5, 1.0)
}

/// Row 1's guest: of its segments 32 KiB hold 23 and 256 KiB 184, with less than 20 bytes left.
const WHOLE: Options =
    Options { mss: 1424, burst: 8, send_buffer: 1 << 30, receive_buffer: None, cubic: true };

/// A download at 100 and at 200 ms with `expected` bytes per round trip.
fn send_buffer(progress: &mut Progress, bounds: (u32, u32), expected: u32) -> Vec<Figure> {
    let at = |ms| {
        let rtt = Duration::from_millis(ms);
        let case = format!("RTT {ms} ms");
        let lasts = Duration::from_secs(10);
        let transfer = Transfer { guest: WHOLE, ..transfer(Way::Down, rtt, bounds, lasts) };
        let runs = under_every_rule(progress, &case, &transfer);
        let expected = Expected::About(f64::from(expected) / rtt.as_secs_f64(), 1.0);
        figure(&runs, Tuning::Rtt, Subject(&case, "throughput", Unit::MegabitPerS), expected, settled)
    };
    [100, 200].map(at).into()
}

fn fixed_send_buffer(progress: &mut Progress) -> Vec<Figure> {
    send_buffer(progress, (32 * KIB, 32 * KIB), 32 * KIB)
}

fn automatic_send_buffer(progress: &mut Progress) -> Vec<Figure> {
    send_buffer(progress, (32 * KIB, 256 * KIB), 256 * KIB)
}

fn receive_window(progress: &mut Progress) -> Vec<Figure> {
    let rtt = Duration::from_millis(35);
    let (low, high) = (64 * KIB, 256 * KIB);
    let runs = under_every_rule(
        progress,
        "35 ms",
        &transfer(Way::Up, rtt, (low, high), Duration::from_millis(4200)),
    );
    let per_rtt = |bytes: u32| Expected::About(f64::from(bytes) / rtt.as_secs_f64(), 1.0);
    let what = ("throughput", Unit::MegabytePerS);
    vec![
        figure(&runs, Tuning::Fixed, Subject("fixed 64 KiB", what.0, what.1), per_rtt(low), settled),
        figure(&runs, Tuning::Rtt, Subject("64 to 256 KiB", what.0, what.1), per_rtt(high), settled),
    ]
}

/// 1 Gbit/s at 17 ms.
pub(crate) fn gigabit(high: u32) -> Transfer {
    let rtt = Duration::from_millis(17);
    let path = Path { rtt, bits_per_s: Some(1_000_000_000), tun: None };
    Transfer { path, ..transfer(Way::Up, rtt, (64 * KIB, high), Duration::from_secs(10)) }
}

/// Payload rate of 1 Gbit/s Ethernet, bytes per second.
const GIGABIT_PAYLOAD: f64 = 125e6 * 1460.0 / 1538.0;

/// Time until 95 % of the path's payload rate, over one round trip, seconds.
fn to_95_percent(record: &Record) -> f64 {
    let reached = record.reaches(0.95 * GIGABIT_PAYLOAD, Duration::from_millis(17));
    reached.map_or(f64::INFINITY, |t| t.as_secs_f64())
}

fn whole_mean(record: &Record) -> f64 {
    record.mean(0.0, 1.0)
}

fn final_limit(record: &Record) -> f64 {
    record.samples.last().map_or(0.0, |s| f64::from(s.limit))
}

fn fixed_window(progress: &mut Progress) -> Vec<Figure> {
    progress.run("fixed");
    let runs = vec![(name(Tuning::Fixed), Transfer { tuning: Tuning::Fixed, ..gigabit(64 * KIB) }.run())];
    let expected = Expected::About(f64::from(64 * KIB) / 0.017, 2.0);
    vec![figure(&runs, Tuning::Fixed, Subject("", "10 s mean", Unit::MegabytePerS), expected, whole_mean)]
}

fn stepped_window(progress: &mut Progress) -> Vec<Figure> {
    let runs = under_every_rule(progress, "64 KiB to 2 MiB", &gigabit(2 << 20));
    let judged = Tuning::Step(STEP);
    vec![
        figure(
            &runs,
            judged,
            Subject("", "95 % after", Unit::Second),
            Expected::About(1.97, 5.0),
            to_95_percent,
        ),
        figure(
            &runs,
            judged,
            Subject("", "10 s mean", Unit::MegabytePerS),
            Expected::About(105.8e6, 5.0),
            whole_mean,
        ),
    ]
}

fn tuned_window(progress: &mut Progress) -> Vec<Figure> {
    let high = 16 << 20;
    let mut runs = under_every_rule(progress, "64 KiB to 16 MiB", &gigabit(high));
    progress.run("16 MiB");
    let bounds = BufferBounds { initial: high, max: high };
    runs.push(("16 MiB".to_owned(), Transfer { bounds, ..gigabit(high) }.run()));
    let bdp = 125e6 * 0.017;
    let limit = Expected::AtMost(2.0 * bdp, 5.0);
    vec![
        figure(
            &runs,
            Tuning::Rtt,
            Subject("", "95 % after", Unit::Second),
            Expected::AtMost(0.16, 5.0),
            to_95_percent,
        ),
        figure(
            &runs,
            Tuning::Rtt,
            Subject("", "10 s mean", Unit::MegabytePerS),
            Expected::AtLeast(116e6, 5.0),
            whole_mean,
        ),
        figure(&runs, Tuning::Rtt, Subject("", "final limit", Unit::Megabyte), limit, final_limit),
    ]
}

/// Bounds of the window on a fast path, bytes.
const FAST_BOUNDS: (u32, u32) = (256 * KIB, 4 << 20);

/// A fast path whose payload rate is given.
pub(crate) fn fast(gigabits_per_s: f64, rtt: Duration, lasts: Duration) -> Transfer {
    // Four segments at most travel as one, so that transmission adds little to the round trip.
    let guest = Options { burst: 4, ..Options::default() };
    let bits_per_s = Some((gigabits_per_s * 1e9 * 1538.0 / 1460.0) as u64);
    let path = Path { rtt, bits_per_s, tun: None };
    Transfer { path, guest, ..transfer(Way::Up, rtt, FAST_BOUNDS, lasts) }
}

/// The figures of a fast path, of which the least throughput under our rule is given.
fn fast_figures(progress: &mut Progress, gigabits_per_s: f64, rtt: Duration, at_least: f64) -> Vec<Figure> {
    let transfer = fast(gigabits_per_s, rtt, Duration::from_millis(500));
    let runs = under_every_rule(progress, "256 KiB to 4 MiB", &transfer);
    let (payload, bounds) = (gigabits_per_s / 8e-9, FAST_BOUNDS);
    let fixed = Expected::About(f64::from(bounds.0) / rtt.as_secs_f64(), 3.0);
    let bdp = payload * rtt.as_secs_f64();
    let unit = Unit::GigabitPerS;
    vec![
        figure(&runs, Tuning::Fixed, Subject("fixed 256 KiB", "throughput", unit), fixed, settled),
        figure(
            &runs,
            Tuning::Rtt,
            Subject("256 KiB to 4 MiB", "throughput", unit),
            Expected::AtLeast(at_least / 8e-9, 3.0),
            whole_mean,
        ),
        figure(
            &runs,
            Tuning::Rtt,
            Subject("256 KiB to 4 MiB", "final limit", Unit::Megabyte),
            Expected::Between(bdp, 2.6 * bdp),
            final_limit,
        ),
    ]
}

fn fast_path(progress: &mut Progress) -> Vec<Figure> {
    fast_figures(progress, 9.94, Duration::from_micros(388), 9.64)
}

fn slower_path(progress: &mut Progress) -> Vec<Figure> {
    fast_figures(progress, 5.21, Duration::from_micros(543), 5.05)
}

/// Row 4's transfer: a guest without offloads behind a queue of `frames`.
pub(crate) fn behind_queue(frames: usize, when_full: WhenFull, lasts: Duration) -> Transfer {
    let rtt = Duration::from_millis(120);
    let guest = Options { burst: 1, send_buffer: SEND_BUFFER, ..Options::default() };
    let path = Path { rtt, bits_per_s: None, tun: Some((frames, when_full)) };
    Transfer { path, guest, ..transfer(Way::Up, rtt, (64 * KIB, 4 << 20), lasts) }
}

/// Queue lengths of row 4, frames.
pub(crate) const QUEUES: [usize; 6] = [10, 50, 100, 500, 1000, 5000];

/// Duration of row 4 with tail drop: loss and recovery take many round trips to average out.
pub(crate) const TAIL_DROP_LASTS: Duration = Duration::from_secs(40);
/// Duration of row 4 without drops: a window takes few round trips to grow.
pub(crate) const STOP_WAKE_LASTS: Duration = Duration::from_millis(9600);

/// Throughput of one connection's share of a TX queue of `frames`, bytes per second: the TX queue budget of
/// `brodo-core`.
fn share_expected(frames: usize) -> f64 {
    let budget = frames * 4 / 5;
    ((budget - budget.div_ceil(4)) as u64 * 1460).min(SEND_BUFFER) as f64 / 0.12
}

/// Throughput of a tail-drop queue of `frames`, bytes per second: see [`crate::wan::tun`].
pub(crate) fn tail_drop_expected(frames: usize) -> f64 {
    (frames as u64 * 1460).min(SEND_BUFFER) as f64 / 0.12
}

fn bounded_queue(progress: &mut Progress) -> Vec<Figure> {
    let mut figures = Vec::new();
    for frames in QUEUES {
        let case = format!("Q = {frames}");
        progress.run(&format!("{case}, tail drop"));
        let drop = behind_queue(frames, WhenFull::Drop, TAIL_DROP_LASTS).run();
        progress.run(&format!("{case}, stop-wake"));
        let stop = behind_queue(frames, WhenFull::Stop, STOP_WAKE_LASTS).run();
        progress.run(&format!("{case}, known"));
        let known = behind_queue(frames, WhenFull::DropKnown, STOP_WAKE_LASTS).run();
        let alone = |what, unit, expected, value| Figure {
            case: case.clone(),
            what,
            unit,
            expected,
            value,
            controls: Vec::new(),
        };
        let unit = Unit::MegabitPerS;
        figures.extend([
            alone("tail drop", unit, Expected::Factor(tail_drop_expected(frames), 2.5), drop.mean(0.5, 1.0)),
            alone("dropped", Unit::Count, Expected::Shown, drop.dropped as f64),
            alone("stop-wake", unit, Expected::About(SEND_BUFFER as f64 / 0.12, 1.0), stop.mean(0.5, 1.0)),
            alone("retransmissions", Unit::Count, Expected::AtMost(0.0, 0.0), stop.retransmitted as f64),
            alone("known", unit, Expected::About(share_expected(frames), 5.0), known.mean(0.5, 1.0)),
            alone("known, dropped", Unit::Count, Expected::AtMost(0.0, 0.0), known.dropped as f64),
        ]);
    }
    figures
}

fn limited_sender(progress: &mut Progress) -> Vec<Figure> {
    let mut figures = Vec::new();
    for ms in [10, 20, 40, 80, 120] {
        let rtt = Duration::from_millis(ms);
        let case = format!("RTT {ms} ms");
        let guest = Options { send_buffer: SEND_BUFFER, ..Options::default() };
        let path = Path { rtt, bits_per_s: Some(1_000_000_000), tun: None };
        let base = transfer(Way::Up, rtt, (64 * KIB, 4 << 20), Duration::from_millis(4800));
        let runs = under_every_rule(progress, &case, &Transfer { path, guest, ..base });
        let expected = (SEND_BUFFER as f64 / rtt.as_secs_f64()).min(GIGABIT_PAYLOAD);
        let what = Subject(&case, "throughput", Unit::MegabitPerS);
        figures.push(figure(&runs, Tuning::Rtt, what, Expected::About(expected, 5.0), settled));
    }
    figures
}

/// A guest's receive buffer as Linux tunes it, bytes.
const GUEST_BUFFER: u64 = 6 << 20;

fn paced_reader(progress: &mut Progress) -> Vec<Figure> {
    let mut figures = Vec::new();
    for rate in [5_000_000, 20_000_000, 80_000_000] {
        let case = format!("{} MB/s", rate / 1_000_000);
        let guest = Options { receive_buffer: Some(GUEST_BUFFER), ..Options::default() };
        let bounds = (64 * KIB, 4 << 20);
        let near = transfer(Way::Down, Duration::from_micros(20), bounds, Duration::from_secs(10));
        let runs = under_every_rule(progress, &case, &Transfer { guest, paced: Some(rate), ..near });
        let of = |what, unit, expected, measure: fn(&Record) -> f64| {
            figure(&runs, Tuning::Rtt, Subject(&case, what, unit), expected, measure)
        };
        let throughput = Expected::AtLeast(0.97 * rate as f64, 0.0);
        figures.push(of("throughput", Unit::MegabytePerS, throughput, settled));
        figures.push(of("final limit", Unit::Kibibyte, Expected::AtMost(3_145_728.0, 0.0), final_limit));
        figures.push(of("changes after 5 s", Unit::Count, Expected::AtMost(6.0, 0.0), |record| {
            f64::from(record.changes(0.5, 1.0))
        }));
    }
    figures
}
