//! Long paths with a bottleneck, between brodo and its guest or behind the host's sockets: buffers find their
//! size there, and what is lost is sent again.
//!
//! The path is emulated by this process on a machine that may be busy with anything, so a bound is an order
//! of magnitude or holds by the laws of the set-up: a window cannot pass more often than once per round trip,
//! and a queue that makes its senders wait loses nothing. `brodo-bench wan` prints the same rows with their
//! figures.

use crate::Test;
use crate::bed::{Bed, Link, check};
use brodo_bench::process::{Failure, Result};
use brodo_bench::wan::measure::{Sample, transfer};
use brodo_bench::wan::place::{Place, Placement};
use brodo_bench::wan::rows::{self, Row};
use brodo_bench::wan::tap_queue::TapQueue;
use brodo_bench::wan::{Overflow, Path, Queue};
use std::path::Path as FilePath;
use std::time::Duration;

/// These make places of their own; the bed a test gets stays unused.
const ONE: &[Link] = &[Link::SMALL];

pub(crate) const TESTS: &[Test] = &[
    Test::new("wan 1b, 2: a fixed buffer per round trip", fixed_buffers).on(ONE),
    Test::new("wan 2c: downloads fill a gigabit at 17 ms", download_fills).on(ONE),
    Test::new("wan 2c: uploads fill a gigabit at 17 ms", upload_fills).on(ONE),
    Test::new("wan 4: short queues, tail drop or wait", short_queues).on(ONE),
    Test::new("wan 6: a short transmit queue of the TAP", tap_queues).on(ONE),
    Test::new("wan 8: uploads over 50 ms behind the host", upload_behind_host).on(ONE),
    Test::new("wan 9: downloads over 50 ms, read late", late_reader).on(ONE),
    Test::new("wan: content arrives over a lossy path", lossy).on(ONE),
];

const PROGRAM: &str = env!("CARGO_BIN_EXE_brodo");

/// The least share of the direct connection's throughput, on a machine that runs other tests at the same
/// time.
const SHARE_MIN: f64 = 0.3;

fn place(row: &Row) -> Result<Place> {
    Place::new(row.placement, FilePath::new(PROGRAM), row.options, 1500, row.paths())
}

/// The row called `name`, for `seconds`.
fn row(name: &str, seconds: u64) -> Result<Row> {
    let row = rows::all().into_iter().find(|row| row.name == name);
    row.map(|row| Row { seconds, ..row }).ok_or_else(|| Failure(format!("there is no row {name}")))
}

/// Ends brodo, and shows what it counted if `result` is a failure.
fn conclude(place: Place, result: Result<()>) -> Result<()> {
    let counted = place.finish();
    result.map_err(|failure| Failure(format!("{failure}\n--- brodo\n{counted:?}")))
}

/// A window's worth of bytes per round trip: never much more, and not far less.
fn fixed_buffers(_: &Bed) -> Result<()> {
    for name in ["1b-100", "2-down", "2-up"] {
        let row = row(name, 2)?;
        let place = place(&row)?;
        let expected = row.expected_mbit.unwrap_or(f64::NAN);
        let result = transfer(&row, &place, &place.through).and_then(|sample| {
            let bounds = expected * SHARE_MIN..expected * 1.1;
            check(bounds.contains(&sample.level_mbit), || {
                format!("{name}: {bounds:?} Mbit/s, but {sample:?}")
            })
        });
        conclude(place, result)?;
    }
    Ok(())
}

/// Through brodo and directly over the same path.
fn both(row: &Row, place: &Place) -> Result<[Sample; 2]> {
    Ok([transfer(row, place, &place.through)?, transfer(row, place, &place.direct)?])
}

/// At least a good share of what two kernels reach without brodo, and nothing lost on the way. That the
/// kernels reach something, and no more than the link's rate, tests the path itself.
fn fills(name: &str) -> Result<()> {
    let row = row(name, 3)?;
    let place = place(&row)?;
    let result = both(&row, &place).and_then(|[through, direct]| {
        let text = || format!("{name}: {through:?} beside {direct:?}");
        check(through.mbit >= SHARE_MIN * direct.mbit, text)?;
        check(direct.mbit > 50.0 && direct.mbit <= row.rate_bit as f64 / 1e6, text)?;
        check(through.path_losses == 0, text)
    });
    conclude(place, result)
}

fn download_fills(_: &Bed) -> Result<()> {
    fills("2c-down")
}

fn upload_fills(_: &Bed) -> Result<()> {
    fills("2c-up")
}

fn upload_behind_host(_: &Bed) -> Result<()> {
    fills("8")
}

fn late_reader(_: &Bed) -> Result<()> {
    fills("9-0")?;
    fills("9-40")
}

/// A queue of ten packets costs nearly everything if it drops, with or without brodo, and nothing if it
/// waits.
fn short_queues(_: &Bed) -> Result<()> {
    let (waits, drops) = (row("4-wait-10", 4)?, row("4-drop-10", 4)?);
    let waiting = place(&waits)?;
    let waited = both(&waits, &waiting);
    let dropping = place(&drops)?;
    let dropped = both(&drops, &dropping);
    dropping.finish()?;
    let result = waited.and_then(|[through, direct]| {
        let text = || format!("{through:?} beside {direct:?}");
        check(through.path_losses == 0 && direct.path_losses == 0, text)?;
        check(through.mbit >= SHARE_MIN * direct.mbit, text)?;
        for sample in dropped? {
            let text = || format!("dropping: {sample:?}; waiting: {direct:?}");
            check(sample.path_losses > 0, text)?;
            check(sample.mbit > 0.0 && sample.mbit < direct.mbit / 4.0, text)?;
        }
        Ok(())
    });
    conclude(waiting, result)
}

/// A ring of ten packets or more drops nothing; its speed is a matter of the machine.
fn tap_queues(_: &Bed) -> Result<()> {
    let bed = TapQueue::new(FilePath::new(PROGRAM))?;
    let [short, long] = [bed.upload(10, 2)?, bed.upload(1000, 2)?];
    check(long.dropped == 0 && long.mbit > 100.0, || format!("of 1000: {long:?}"))?;
    check(short.dropped == 0 && short.mbit > 0.1, || format!("of 10: {short:?}"))
}

/// One segment in a hundred is lost, in both directions, wherever the path lies.
fn lossy(_: &Bed) -> Result<()> {
    const BYTES: &str = "3000000";
    for placement in [Placement::OnGuestLink, Placement::BehindHost] {
        let path = |seed| Path {
            delay: Duration::from_millis(10),
            rate_bit: Some(100_000_000),
            queue: Queue::Packets(200),
            overflow: Overflow::Drop,
            loss: 0.01,
            seed,
        };
        let place = Place::new(placement, FilePath::new(PROGRAM), &[], 1500, [path(1), path(2)])?;
        let content = |direction| -> Result<()> {
            let found = place.probe(&place.through, direction, &[BYTES], crate::bed::LIMIT)?;
            check(found["equal"] == true, || format!("{direction}, {placement:?}: {found}"))
        };
        let result = content("upload")
            .and_then(|()| content("download"))
            .and_then(|()| check(place.wan.losses() > 0, || "nothing was lost: this tested nothing".into()));
        conclude(place, result)?;
    }
    Ok(())
}
