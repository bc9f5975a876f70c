//! Payload for bulk transfers: content that costs a copy to make and a comparison to check.
//!
//! A [`Tape`] is a stretch of [`Pattern`] played round and round. As with the pattern itself the byte at an offset is
//! a function of the offset, so neither end stores anything, and what arrives out of order can be checked at once.
//! The stretch is a prime number of bytes long: a shift by any multiple of a segment, a chunk or a window shows.

use crate::rng::Pattern;

/// Bytes until the tape repeats: a prime, and longer than any frame.
const PERIOD: usize = 1_048_573;

/// The content of one stream.
#[derive(Debug, Clone)]
pub struct Tape(Vec<u8>);

impl Tape {
    /// The tape that begins as `pattern` does.
    pub fn new(pattern: Pattern) -> Self {
        Self(pattern.bytes(0, PERIOD))
    }

    /// Writes the bytes from `offset` on.
    pub fn play(&self, offset: u64, into: &mut [u8]) {
        let mut at = (offset % PERIOD as u64) as usize;
        let mut rest = into;
        while !rest.is_empty() {
            let (now, later) = rest.split_at_mut(rest.len().min(PERIOD - at));
            now.copy_from_slice(&self.0[at..at + now.len()]);
            (at, rest) = (0, later);
        }
    }

    /// Where `data`, which should stand at `offset`, first differs.
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
    //! The tape across its seam.

    use super::*;

    #[test]
    fn what_is_played_is_found_right_and_any_shift_is_found_wrong() {
        let tape = Tape::new(Pattern(7));
        let offset = 5 * PERIOD as u64 - 100;
        let mut data = vec![0; 4096];
        tape.play(offset, &mut data);
        assert_eq!(tape.mismatch(offset, &data), None);
        assert_eq!(tape.mismatch(offset + 1460, &data), Some(offset + 1460));
        data[300] ^= 1;
        assert_eq!(tape.mismatch(offset, &data), Some(offset + 300));
    }
}
