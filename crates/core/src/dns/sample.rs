//! Sample queries, which the tests of cache and learnt names share: the DNS message of one question, as a
//! program in the guest sends it.

use crate::wire::dns::encode_name;
use crate::wire::dns::message::A;

/// A query for the IPv4 address of `name`.
pub(super) fn query(name: &str) -> Vec<u8> {
    let mut out = vec![0x12, 0x34, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
    let mut wire = [0; 255];
    let len = encode_name(name, &mut wire).expect("a name");
    out.extend(&wire[..len]);
    out.extend([0, A as u8, 0, 1]);
    out
}
