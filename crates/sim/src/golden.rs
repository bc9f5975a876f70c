//! Golden traces: a hash of all frames, host calls and deadlines of each driver of the conformance
//! tests.
//!
//! A refactoring must not change a byte of the stack's frames, their times, its calls on host sockets,
//! or its deadlines. A [`Trace`] hashes these for one [`crate::driver::SimDriver`]; at the end of the
//! driver the hash is compared with the one on record for this test: `tests/conformance/traces.txt`, one
//! line per test, one word for each of its first [`DRIVERS_MAX`] drivers in the order in which they were
//! made.
//!
//! The test program `handover` runs the same tests with another stack after every event, and is held to the
//! same record ([`crate::handover`]).
//!
//! A test without a line fails. After an intended change of behaviour, and for new tests, this command
//! records the traces anew; the file belongs to the commit of the change:
//!
//! `BRODO_BLESS=1 cargo test -p brodo-sim --test conformance`

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

/// Drivers of one test whose traces are on record.
const DRIVERS_MAX: usize = 64;

/// Hashes by test, in the order in which its drivers were made. `None`: not known.
type Record = BTreeMap<String, Vec<Option<u32>>>;

thread_local! {
    /// Drivers that this test has made.
    static MADE: Cell<usize> = const { Cell::new(0) };
}

/// Hash over the behaviour of one driver.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    /// Place among the drivers of its test.
    driver: usize,
}

impl Trace {
    /// Trace of a driver without turns.
    pub(crate) fn new() -> Self {
        let driver = MADE.replace(MADE.get() + 1);
        Self { hash: 0xcbf2_9ce4_8422_2325, driver }
    }

    /// Adds bytes (FNV-1a).
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let thread = std::thread::current();
        let Some(test) = thread.name().filter(|name| name.contains("::")) else { return };
        // The tests of `handover` are those of `conformance`, one module further down.
        let test = test.strip_prefix("conformance::").unwrap_or(test);
        if std::thread::panicking() || self.driver >= DRIVERS_MAX || !applies() {
            return;
        }
        let hash = (self.hash ^ (self.hash >> 32)) as u32;
        let mut record = record().lock().expect("no test panics while it holds the record");
        if std::env::var_os("BRODO_BLESS").is_some() && !crate::handover::is_on() {
            note(&mut record, test, self.driver, hash);
            return;
        }
        let line = record.get(test).cloned();
        drop(record);
        let Some(line) = line else {
            panic!("{test} has no golden trace in {}; BRODO_BLESS=1 records it", file().display());
        };
        let known = line.get(self.driver).copied().flatten();
        assert!(
            known.is_none_or(|known| known == hash),
            "driver {} of {test} differs from its golden trace in {}; after an intended change, BRODO_BLESS=1 records it anew",
            self.driver,
            file().display(),
        );
    }
}

/// Whether traces are compared here: in the conformance tests and with hand-overs, with the seeds that are on
/// record.
fn applies() -> bool {
    static APPLIES: OnceLock<bool> = OnceLock::new();
    *APPLIES.get_or_init(|| {
        let program = std::env::current_exe().ok();
        let name = program.as_ref().and_then(|path| path.file_name()?.to_str());
        let drawn = ["BRODO_SIM_SEED", "BRODO_SIM_RUNS"].iter().any(|name| std::env::var_os(name).is_some());
        let tests = ["conformance-", "handover-"];
        name.is_some_and(|name| tests.iter().any(|test| name.starts_with(test))) && !drawn
    })
}

fn file() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance/traces.txt"))
}

/// The record, read once.
fn record() -> &'static Mutex<Record> {
    static RECORD: OnceLock<Mutex<Record>> = OnceLock::new();
    RECORD.get_or_init(|| {
        let text = std::fs::read_to_string(file()).unwrap_or_default();
        let line = |line: &str| {
            let mut words = line.split(' ');
            let test = words.next()?.to_owned();
            Some((test, words.map(|word| u32::from_str_radix(word, 16).ok()).collect()))
        };
        Mutex::new(text.lines().filter_map(line).collect())
    })
}

/// Records a hash and writes the file anew.
fn note(record: &mut Record, test: &str, driver: usize, hash: u32) {
    let line = record.entry(test.to_owned()).or_default();
    if line.len() <= driver {
        line.resize(driver + 1, None);
    }
    line[driver] = Some(hash);
    let mut text = String::new();
    for (test, line) in record {
        text.push_str(test);
        for hash in line {
            _ = match hash {
                Some(hash) => write!(text, " {hash:08x}"),
                None => write!(text, " -"),
            };
        }
        text.push('\n');
    }
    std::fs::write(file(), text).unwrap_or_else(|e| panic!("{}: {e}", file().display()));
}
