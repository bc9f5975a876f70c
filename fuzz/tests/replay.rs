//! Runs every fuzz body without a fuzzer: over its committed corpus, and over a fixed series of mutations of
//! it. A failure names the target and prints the input in hexadecimal, to be added to the corpus.

use brodo_fuzz::TARGETS;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::thread;

/// Mutations per target.
const MUTATIONS: usize = 20_000;
/// Mutations of each of the [`CONVERSATIONS`].
const STACK_MUTATIONS: usize = 5000;
/// Targets where each input is a conversation.
const CONVERSATIONS: [&str; 6] = ["stack", "names", "restore", "recover", "promotion", "rings"];
/// Longest input tried, in bytes.
const LEN_MAX: usize = 2048;

/// SplitMix64, for a reproducible series.
struct Series(u64);

impl Series {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Changes `data` a little, sometimes with a piece of `other`.
    fn mutate(&mut self, data: &mut Vec<u8>, other: &[u8]) {
        for _ in 0..=self.below(4) {
            let at = self.below(data.len());
            match self.below(7) {
                0 => data.truncate(at),
                1 => data.extend(self.next().to_le_bytes()),
                2 => {
                    let from = self.below(other.len());
                    let piece = &other[from..(from + self.below(32)).min(other.len())];
                    data.splice(at..at, piece.iter().copied());
                }
                3 if !data.is_empty() => _ = data.remove(at),
                4 if !data.is_empty() => data[at] = [0, 1, 2, 7, 8, 0x7f, 0x80, 0xfe, 0xff][self.below(9)],
                5 if !data.is_empty() => data[at] = self.next() as u8,
                _ if !data.is_empty() => data[at] ^= 1 << self.below(8),
                _ => data.push(self.next() as u8),
            }
        }
        data.truncate(LEN_MAX);
    }
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let entries = fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} has no seeds", directory.display());
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn run(target: &str, body: fn(&[u8]), data: &[u8]) {
    let ran = catch_unwind(AssertUnwindSafe(|| body(data)));
    assert!(ran.is_ok(), "fuzz target {target} failed on {data:02x?}");
}

/// Runs `body` over the corpus of `target` and over its mutations.
fn replay(target: &str, body: fn(&[u8])) {
    let seeds = corpus(target);
    run(target, body, &[]);
    for seed in &seeds {
        run(target, body, seed);
    }
    let mut series = Series(0x6272_6f64_6f00 + target.len() as u64);
    let mutations = if CONVERSATIONS.contains(&target) { STACK_MUTATIONS } else { MUTATIONS };
    for _ in 0..mutations {
        let mut data = seeds[series.below(seeds.len())].clone();
        let other = &seeds[series.below(seeds.len())];
        series.mutate(&mut data, other);
        run(target, body, &data);
    }
}

#[test]
fn corpus_and_mutations() {
    let targets = Mutex::new(TARGETS.iter());
    let replay_the_rest = || {
        loop {
            let next = targets.lock().unwrap().next();
            let Some(&(target, body)) = next else { return };
            replay(target, body);
        }
    };
    // One target per processor at a time: they share nothing. A failure is that of its thread.
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(replay_the_rest);
        }
    });
}
