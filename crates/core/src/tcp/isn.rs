//! Initial sequence numbers (RFC 6528): a keyed hash of the four-tuple plus a clock of 4 us per number.

use crate::flow::FlowKey;
use crate::time::Instant;
use crate::wire::tcp::Seq;
use siphasher::sip::SipHasher13;
use std::hash::{Hash, Hasher};

/// Secret key of this instance (RFC 6528, section 3).
#[derive(Debug, Clone, Copy)]
pub(crate) struct IsnKey(pub(crate) [u8; 16]);

impl IsnKey {
    /// Initial sequence number of a connection that starts now.
    pub(crate) fn isn(self, key: &FlowKey, now: Instant) -> Seq {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        key.hash(&mut hasher);
        Seq((hasher.finish() as u32).wrapping_add((now.as_ns() / 4000) as u32))
    }
}
