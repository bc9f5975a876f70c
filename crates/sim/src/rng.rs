//! Seeded random numbers: SplitMix64 (Steele, Lea, Flood 2014).
//!
//! Written here because a simulation must give the same run for the same seed with every version of every
//! library; the generators of the `rand` family promise that only within one major version.

/// A generator; the same seed gives the same numbers for ever.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A generator for `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, which is not 0. The bias of the reduction is below 2^-32 for the bounds used
    /// here.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub const fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True with a probability of `per_mille` / 1000.
    pub const fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < per_mille as u64
    }

    /// One of the given values.
    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }

    #[must_use]
    /// An independent generator, so that one part's draws do not shift another's.
    pub const fn fork(&mut self) -> Self {
        Self(self.next())
    }
}

const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A byte stream whose content is a function of the offset, so that sender and receiver need no copy of it
/// and any shift, loss or repetition of even one byte shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern(pub u64);

impl Pattern {
    /// The byte at `offset`.
    pub const fn byte(self, offset: u64) -> u8 {
        self.word(offset)[(offset & 7) as usize]
    }

    /// The eight aligned bytes around `offset`.
    const fn word(self, offset: u64) -> [u8; 8] {
        mix(self.0 ^ (offset >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()
    }

    /// `len` bytes from `offset` on.
    pub fn bytes(self, offset: u64, len: usize) -> Vec<u8> {
        let skip = (offset & 7) as usize;
        let words = (skip + len).div_ceil(8) as u64;
        let mut bytes = Vec::with_capacity(words as usize * 8);
        (0..words).for_each(|w| bytes.extend_from_slice(&self.word(offset + w * 8)));
        bytes.drain(..skip);
        bytes.truncate(len);
        bytes
    }

    /// Stream offset of the first wrong byte of `data`, received at `offset`.
    pub fn mismatch(self, offset: u64, data: &[u8]) -> Option<u64> {
        let expected = self.bytes(offset, data.len());
        if expected == data {
            return None;
        }
        (offset..).zip(data.iter().zip(&expected)).find(|(_, (a, b))| a != b).map(|(o, _)| o)
    }
}

#[cfg(test)]
mod tests;
