//! Hash with a secret: the guest chooses much of what tables of the policy hold, and must not be able to aim
//! for equal hashes.

use siphasher::sip::SipHasher13;
use std::hash::{Hash, Hasher};

/// A secret of 16 random bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct SecretHash(pub(super) [u8; 16]);

impl SecretHash {
    /// Hash of this.
    pub(super) fn of(self, it: &impl Hash) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        it.hash(&mut hasher);
        hasher.finish()
    }
}
