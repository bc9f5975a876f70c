//! Secrets of hashes and of numbers that others must not guess.
//!
//! System calls: getrandom.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// A fresh secret of 16 random bytes.
///
/// # Errors
/// getrandom.
pub fn secret() -> Result<[u8; 16], Errno> {
    let mut secret = [0; 16];
    // At most 256 bytes come whole or not at all (getrandom(2)).
    getrandom(&mut secret, GetRandomFlags::empty())?;
    Ok(secret)
}
