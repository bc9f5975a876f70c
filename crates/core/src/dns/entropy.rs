//! Unpredictable queries: random ID and letter case against forged answers (RFC 5452; 0x20 encoding,
//! draft-vixie-dnsext-dns0x20).
//!
//! A forged answer must match ID, source port and letter case of a query. The port is the host kernel's
//! random choice; the rest is drawn here, never taken from the guest: a program in the guest that knew them
//! could have answers forged by an accomplice outside. Numbers are SipHash-1-3 of a counter under a key of
//! this instance, so the same key gives the same queries.

use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// Draws for the queries of one worker.
#[derive(Debug)]
pub(crate) struct QueryEntropy {
    key: [u8; 16],
    /// Numbers drawn so far.
    drawn: u64,
}

impl QueryEntropy {
    /// Draws under `key`, which must be secret.
    pub(crate) fn new(key: [u8; 16]) -> Self {
        Self { key, drawn: 0 }
    }

    /// Numbers drawn so far.
    pub(super) fn drawn(&self) -> u64 {
        self.drawn
    }

    /// Goes on behind so many numbers.
    pub(super) fn restore(&mut self, drawn: u64) {
        self.drawn = drawn;
    }

    /// Key of the draws.
    pub(super) fn key(&self) -> [u8; 16] {
        self.key
    }

    fn draw(&mut self) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hasher.write_u64(self.drawn);
        self.drawn += 1;
        hasher.finish()
    }

    /// Two different IDs.
    pub(crate) fn ids(&mut self) -> [u16; 2] {
        let bits = self.draw();
        let (one, other) = (bits as u16, (bits >> 16) as u16);
        [one, if other == one { !one } else { other }]
    }

    /// Gives each letter of an uncompressed name random case. Lengths of labels are below 64 and so are no
    /// letters.
    pub(crate) fn mix_case(&mut self, name: &mut [u8]) {
        let (mut bits, mut left) = (0, 0);
        for letter in name.iter_mut().filter(|byte| byte.is_ascii_alphabetic()) {
            if left == 0 {
                (bits, left) = (self.draw(), u64::BITS);
            }
            *letter ^= (bits as u8 & 1) << 5;
            bits >>= 1;
            left -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
