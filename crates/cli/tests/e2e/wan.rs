//! Long paths with a bottleneck, between brodo and its guest or behind the host's sockets: growth of buffers,
//! and retransmission of lost segments.
//!
//! The path is emulated by this process on a machine that may be busy with anything, so no figure of
//! throughput is judged: `brodo-bench wan` prints those, and the simulator's tables hold them exactly, in
//! virtual time. Judged are the laws of the set-up, which hold however late its parts run: a window passes
//! at most once per round trip, a buffer that is the bottleneck grows, and a queue that makes its senders
//! wait loses nothing.

use crate::Test;
use crate::bed::{Bed, Link, check, counters, crashes};
use brodo_bench::process::{Failure, Result};
use brodo_bench::wan::measure::{Sample, transfer};
use brodo_bench::wan::rows::{self, Row};
use brodo_bench::wan::tap_queue::TapQueue;
use brodo_bench::wan::testbed::{Placement, Testbed};
use brodo_bench::wan::{Overflow, Path, Queue};
use std::path::Path as FilePath;
use std::time::Duration;

/// One link: these tests make testbeds of their own.
const ONE: &[Link] = &[Link::SMALL];

pub(crate) const TESTS: &[Test] = &[
    Test::new("wan 1b, 2: a fixed buffer per round trip", fixed_buffers).on(ONE),
    Test::new("wan 2c: the send limit grows at 17 ms", download_fills).on(ONE),
    Test::new("wan 2c: the receive limit grows at 17 ms", upload_fills).on(ONE),
    Test::new("wan 4: short queues, tail drop or wait", short_queues).on(ONE),
    Test::new("wan 6: a short transmit queue of the TAP", tap_queues).on(ONE),
    Test::new("wan 8: uploads over 50 ms behind the host", upload_behind_host).on(ONE),
    Test::new("wan 9: downloads over 50 ms, read late", late_reader).on(ONE),
    Test::new("wan: content arrives over a lossy path", lossy).on(ONE),
];

const PROGRAM: &str = env!("CARGO_BIN_EXE_brodo");

fn testbed(row: &Row) -> Result<Testbed> {
    Testbed::new(row.placement, FilePath::new(PROGRAM), row.options, 1500, row.paths())
}

/// The row called `name`, for `seconds`.
fn row(name: &str, seconds: u64) -> Result<Row> {
    let row = rows::all().into_iter().find(|row| row.name == name);
    row.map(|row| Row { seconds, ..row }).ok_or_else(|| Failure(format!("there is no row {name}")))
}

/// Ends brodo, which has not crashed; returns its counters, which go into the message if `result` is a
/// failure.
fn conclude(testbed: Testbed, result: Result<()>) -> Result<String> {
    let counted = testbed.finish()?;
    let result = result.and_then(|()| check(crashes(&counted) == 0, || "brodo crashed".to_owned()));
    result.map_err(|failure| Failure(format!("{failure}\n--- brodo\n{counted}")))?;
    Ok(counted)
}

/// A window's worth of bytes per round trip, and one for the round trip in which the clock starts: never
/// more.
fn fixed_buffers(_: &Bed) -> Result<()> {
    for name in ["1b-100", "2-down", "2-up"] {
        let row = row(name, 2)?;
        let testbed = testbed(&row)?;
        let expected = row.expected_mbit.unwrap_or(f64::NAN);
        let result = transfer(&row, &testbed, &testbed.through).and_then(|sample| {
            check(sample.mbit > 0.0 && sample.mbit < expected * 1.1, || {
                format!("{name}: expected {expected} Mbit/s at most: {sample:?}")
            })
        });
        conclude(testbed, result)?;
    }
    Ok(())
}

/// Transfers through brodo and directly over the same path.
fn both(row: &Row, testbed: &Testbed) -> Result<[Sample; 2]> {
    Ok([transfer(row, testbed, &testbed.through)?, transfer(row, testbed, &testbed.direct)?])
}

/// Both ways move bytes, none faster than the link, and the path loses nothing of brodo's. Gives brodo's
/// counted.
fn fills(name: &str) -> Result<String> {
    let row = row(name, 3)?;
    let testbed = testbed(&row)?;
    let result = both(&row, &testbed).and_then(|[through, direct]| {
        let text = || format!("{name}: {through:?} beside {direct:?}");
        for sample in [&through, &direct] {
            check(sample.mbit > 0.0 && sample.mbit <= row.rate_bit as f64 / 1e6, text)?;
        }
        check(through.path_losses == 0, text)
    });
    conclude(testbed, result)
}

/// The buffer named by its counter, 64 KiB at first, is what holds a gigabit back at 17 ms.
fn grows(name: &str, counter: &str) -> Result<()> {
    let said = fills(name)?;
    let grown = counters(&said).any(|(found, count)| found == counter && count > 0);
    check(grown, || format!("{name}: {counter} is 0\n{said}"))
}

fn download_fills(_: &Bed) -> Result<()> {
    grows("2c-down", "tx_buffer_grows")
}

fn upload_fills(_: &Bed) -> Result<()> {
    grows("2c-up", "rx_buffer_grows")
}

fn upload_behind_host(_: &Bed) -> Result<()> {
    fills("8").map(drop)
}

fn late_reader(_: &Bed) -> Result<()> {
    fills("9-0")?;
    fills("9-40").map(drop)
}

/// A queue of ten packets loses segments if it drops, with or without brodo, and none if it makes senders
/// waits.
fn short_queues(_: &Bed) -> Result<()> {
    let (waits, drops) = (row("4-wait-10", 4)?, row("4-drop-10", 4)?);
    let waiting = testbed(&waits)?;
    let waited = both(&waits, &waiting);
    let dropping = testbed(&drops)?;
    let dropped = both(&drops, &dropping);
    let waited = waited.and_then(|samples| {
        samples.iter().try_for_each(|sample| {
            check(sample.path_losses == 0 && sample.mbit > 0.0, || format!("waiting: {sample:?}"))
        })
    });
    let dropped = dropped.and_then(|samples| {
        samples.iter().try_for_each(|sample| {
            check(sample.path_losses > 0 && sample.mbit > 0.0, || format!("dropping: {sample:?}"))
        })
    });
    conclude(dropping, dropped).and(conclude(waiting, waited)).map(drop)
}

/// A ring of ten packets or more drops nothing.
fn tap_queues(_: &Bed) -> Result<()> {
    let bed = TapQueue::new(FilePath::new(PROGRAM), &[], 1500)?;
    // All lengths before a judgement of one.
    let uploads = [1000, 10].map(|length| (length, bed.upload(length, 2)));
    for (length, upload) in uploads {
        let upload = upload?;
        let explained = upload.dropped <= upload.impatient;
        check(explained && upload.mbit > 0.0, || format!("of {length}: {upload:?}"))?;
    }
    Ok(())
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
        let testbed = Testbed::new(placement, FilePath::new(PROGRAM), &[], 1500, [path(1), path(2)])?;
        let content = |direction| -> Result<()> {
            let found = testbed.probe(&testbed.through, direction, &[BYTES], crate::bed::LIMIT)?;
            check(found["equal"] == true, || format!("{direction}, {placement:?}: {found}"))
        };
        let result = content("upload").and_then(|()| content("download")).and_then(|()| {
            check(testbed.wan.losses() > 0, || "nothing was lost: this tested nothing".into())
        });
        conclude(testbed, result)?;
    }
    Ok(())
}
