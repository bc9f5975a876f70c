//! Payload of bulk transfers: generated with a memory copy, verified with a comparison.
//!
//! A [`Payload`] is a periodic repetition of one period of [`Pattern`]. As in the pattern itself the byte at
//! an offset is a function of the offset, so neither end stores bytes, and out-of-order data can be verified
//! at once. The period is a prime number of bytes: a shift by any multiple of a segment, a chunk or a window
//! is detected.

use crate::rng::Pattern;

/// Period in bytes: a prime, and longer than any frame.
const PERIOD: usize = 1_048_573;

/// Payload of one direction of a stream.
#[derive(Debug, Clone)]
pub struct Payload(Vec<u8>);

impl Payload {
    /// Payload whose first period is that of `pattern`.
    pub fn new(pattern: Pattern) -> Self {
        Self(pattern.bytes(0, PERIOD))
    }

    /// Fills `into` with the bytes from stream offset `offset` on.
    pub fn fill(&self, offset: u64, into: &mut [u8]) {
        let mut at = (offset % PERIOD as u64) as usize;
        let mut rest = into;
        while !rest.is_empty() {
            let (now, later) = rest.split_at_mut(rest.len().min(PERIOD - at));
            now.copy_from_slice(&self.0[at..at + now.len()]);
            (at, rest) = (0, later);
        }
    }

    /// Stream offset of the first wrong byte of `data`, received at `offset`.
    pub fn mismatch(&self, offset: u64, data: &[u8]) -> Option<u64> {
        let mut done = 0;
        while done < data.len() {
            let at = ((offset + done as u64) % PERIOD as u64) as usize;
            let n = (data.len() - done).min(PERIOD - at);
            let (got, want) = (&data[done..done + n], &self.0[at..at + n]);
            if got != want {
                let first = got.iter().zip(want).take_while(|(g, w)| g == w).count();
                return Some(offset + (done + first) as u64);
            }
            done += n;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    //! Payload across the end of a period.

    use super::*;

    #[test]
    fn own_bytes_match_and_every_shift_is_a_mismatch() {
        let payload = Payload::new(Pattern(7));
        let offset = 5 * PERIOD as u64 - 100;
        let mut data = vec![0; 4096];
        payload.fill(offset, &mut data);
        assert_eq!(payload.mismatch(offset, &data), None);
        assert_eq!(payload.mismatch(offset + 1460, &data), Some(offset + 1460));
        data[300] ^= 1;
        assert_eq!(payload.mismatch(offset, &data), Some(offset + 300));
    }
}
