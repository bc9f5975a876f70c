//! HMAC-SHA-256 (RFC 2104) of messages of one block, over the hash's compression function: the keys of one
//! Initial take 14 compressions, a third of the time that a general HKDF takes for its copies of states and
//! buffers.

use sha2::block_api::compress256;

/// Length of a code, in bytes.
pub(super) const CODE_LEN: usize = 32;
const BLOCK_LEN: usize = 64;
/// Longest message that is hashed in one block: behind it are a bit and its length in bits.
const MESSAGE_LEN_MAX: usize = BLOCK_LEN - 1 - 8;
const INNER_PAD: u8 = 0x36;
const OUTER_PAD: u8 = 0x5c;
/// Initial state of SHA-256 (FIPS 180-4, 5.3.3).
const INITIAL: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// A key: the states of both hashes behind it.
pub(super) struct HmacKey {
    inner: [u32; 8],
    outer: [u32; 8],
}

impl HmacKey {
    /// A key of a block's length at most.
    pub(super) fn new(key: &[u8]) -> Self {
        debug_assert!(key.len() <= BLOCK_LEN, "longer keys are hashed first");
        let state = |pad: u8| {
            let mut block = [pad; BLOCK_LEN];
            for (byte, of_key) in block.iter_mut().zip(key) {
                *byte ^= of_key;
            }
            let mut state = INITIAL;
            compress256(&mut state, &[block]);
            state
        };
        Self { inner: state(INNER_PAD), outer: state(OUTER_PAD) }
    }

    /// Code of a message.
    pub(super) fn code(&self, message: &Message) -> [u8; CODE_LEN] {
        hash(self.outer, &Message::new(&[&hash(self.inner, message)]))
    }
}

/// A message: its block, as it is hashed behind the block of a key.
pub(super) struct Message([u8; BLOCK_LEN]);

impl Message {
    /// A message in several parts.
    pub(super) const fn new(parts: &[&[u8]]) -> Self {
        let (mut block, mut len, mut n) = ([0; BLOCK_LEN], 0, 0);
        while n < parts.len() {
            let (_, rest) = block.split_at_mut(len);
            rest.split_at_mut(parts[n].len()).0.copy_from_slice(parts[n]);
            len += parts[n].len();
            n += 1;
        }
        debug_assert!(len <= MESSAGE_LEN_MAX, "one block");
        block[len] = 0x80;
        [block[BLOCK_LEN - 2], block[BLOCK_LEN - 1]] = (8 * (BLOCK_LEN + len) as u16).to_be_bytes();
        Self(block)
    }
}

/// Hash of a message behind the block of a key, which has led to `state`.
fn hash(mut state: [u32; 8], message: &Message) -> [u8; CODE_LEN] {
    compress256(&mut state, std::slice::from_ref(&message.0));
    let mut code = [0; CODE_LEN];
    for (bytes, word) in code.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_of_rfc_4231() {
        // Test cases 1 and 3.
        for (key, message, code) in [
            (
                &[0x0b; 20],
                &[&b"Hi "[..], b"There"],
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
            ),
            (
                &[0xaa; 20],
                &[&[0xdd; 20][..], &[0xdd; 30]],
                "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe",
            ),
        ] {
            let hex = |code: [u8; CODE_LEN]| code.map(|byte| format!("{byte:02x}")).concat();
            assert_eq!(hex(HmacKey::new(key).code(&Message::new(message))), code);
        }
    }
}
