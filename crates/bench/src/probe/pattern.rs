//! Content of transfers: a pattern that both ends compute, and its SHA-256.
//!
//! The pattern has no period, so that any byte lost, repeated or moved changes the hash, and it does not
//! depend on how the bytes are cut into reads and writes.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// An endless sequence of bytes, given by its seed.
#[derive(Debug, Clone)]
pub(super) struct Pattern {
    seed: u64,
    word: u64,
}

impl Pattern {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, word: 0 }
    }

    /// Fills a buffer with the next bytes; all buffers but the last have a length that is a multiple of
    /// eight.
    pub(super) fn fill(&mut self, buffer: &mut [u8]) {
        for bytes in buffer.chunks_mut(8) {
            bytes.copy_from_slice(&mix(self.seed ^ self.word).to_le_bytes()[..bytes.len()]);
            self.word += 1;
        }
    }
}

/// Comparison of received bytes with the pattern.
#[derive(Debug)]
pub(super) struct Checker {
    seed: u64,
    bytes: u64,
    differs_at: Option<u64>,
}

impl Checker {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, bytes: 0, differs_at: None }
    }

    /// Number of bytes so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the next bytes, in pieces of any length.
    pub(super) fn check(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let at = (self.bytes % 8) as usize;
            let n = bytes.len().min(8 - at);
            let word = mix(self.seed ^ (self.bytes / 8)).to_le_bytes();
            if word[at..at + n] != bytes[..n] {
                self.differs_at.get_or_insert(self.bytes);
            }
            self.bytes += n as u64;
            bytes = &bytes[n..];
        }
    }

    /// `{"bytes": 1234, "differs_at": null}`: the offset is that of the first word with a wrong byte.
    pub(super) fn json(&self) -> Value {
        json!({ "bytes": self.bytes, "differs_at": self.differs_at })
    }
}

/// The finishing step of SplitMix64: one to one, every output bit depends on every input bit.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Bytes counted and hashed as they pass.
#[derive(Debug, Default)]
pub(super) struct Sum {
    hash: Sha256,
    /// Number of bytes so far.
    pub(super) bytes: u64,
}

impl Sum {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// The SHA-256 in hexadecimal.
    pub(super) fn finish(self) -> String {
        let mut text = String::new();
        for byte in self.hash.finalize() {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}
