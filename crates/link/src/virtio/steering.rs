//! The queue pair of a flow: frames to the guest go to the pair by which its last frame came (virtio 1.3,
//! 5.1.6.5.6), because the thread that waits for them runs there.
//!
//! A table of 65,536 bytes by a hash that is the same for both directions of a flow. Flows that share a place
//! share a pair; that costs speed, never order within a turn's frames of one flow. The hash has no secret: a
//! guest that aims for collisions chooses a queue of its own, which it may do anyway.

use std::sync::atomic::{AtomicU8, Ordering};

const PLACES: usize = 1 << 16;

/// Offsets in an Ethernet frame, and values there.
const ETHER_TYPE: usize = 12;
const NETWORK: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const TCP: u8 = 6;
const UDP: u8 = 17;

/// The pair of each flow.
#[derive(Debug)]
pub(super) struct Steering {
    pairs: Box<[AtomicU8]>,
}

impl Default for Steering {
    fn default() -> Self {
        Self { pairs: std::iter::repeat_with(AtomicU8::default).take(PLACES).collect() }
    }
}

impl Steering {
    /// Notes that a frame of the guest came by `pair`.
    pub(super) fn note(&self, frame: &[u8], pair: usize) {
        let place = &self.pairs[usize::from(hash(frame))];
        let pair = pair as u8;
        if place.load(Ordering::Relaxed) != pair {
            place.store(pair, Ordering::Relaxed);
        }
    }

    /// The pair for a frame to the guest that begins with these headers; the first one for a flow that has
    /// sent nothing yet.
    pub(super) fn pair(&self, headers: &[u8]) -> usize {
        self.pairs[usize::from(hash(headers))].load(Ordering::Relaxed).into()
    }
}

/// Hash of the flow to which a frame belongs, the same in both directions: of its addresses, and of its ports
/// if there are any.
fn hash(frame: &[u8]) -> u16 {
    let field = |at: usize, len: usize| {
        let bytes = frame.get(at..at + len).unwrap_or_default();
        bytes.chunks(8).fold(0_u64, |sum, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            sum.rotate_left(7) ^ u64::from_le_bytes(word)
        })
    };
    let (addresses, len, protocol, transport) = match frame.get(ETHER_TYPE..NETWORK) {
        Some(kind) if kind == IPV4 => {
            let words = frame.get(NETWORK).map_or(5, |first| usize::from(first & 15));
            // Of a fragment only the first has ports.
            let whole = frame.get(NETWORK + 6..NETWORK + 8).is_some_and(|bits| bits[0] & 0x3f | bits[1] == 0);
            let protocol = frame.get(NETWORK + 9).copied().filter(|_| whole).unwrap_or(0);
            (NETWORK + 12, 4, protocol, NETWORK + 4 * words)
        }
        Some(kind) if kind == IPV6 => {
            (NETWORK + 8, 16, frame.get(NETWORK + 6).copied().unwrap_or(0), NETWORK + 40)
        }
        _ => return 0,
    };
    let mut sum = field(addresses, len) ^ field(addresses + len, len);
    if protocol == TCP || protocol == UDP {
        sum ^= (field(transport, 2) ^ field(transport + 2, 2)) << 32;
        // A flow between equal ports is not that between other equal ports.
        sum = sum.wrapping_add(field(transport, 2).wrapping_mul(field(transport + 2, 2)));
    }
    (sum.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A frame with addresses that end in these bytes.
    fn frame(ipv6: bool, from: (u8, u16), to: (u8, u16)) -> Vec<u8> {
        let mut bytes = vec![7; 12];
        if ipv6 {
            bytes.extend(IPV6);
            bytes.extend([0x60, 0, 0, 0, 0, 20, TCP, 64]);
            for (end, _) in [from, to] {
                bytes.extend([&[0xfd; 15][..], &[end]].concat());
            }
        } else {
            bytes.extend(IPV4);
            bytes.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, TCP, 0, 0]);
            for (end, _) in [from, to] {
                bytes.extend([10, 0, 2, end]);
            }
        }
        for (_, port) in [from, to] {
            bytes.extend(port.to_be_bytes());
        }
        bytes
    }

    #[test]
    fn answers_go_to_the_pair_of_the_last_frame() {
        for ipv6 in [false, true] {
            let steering = Steering::default();
            let (guest, remote) = ((15, 40_000), (1, 443));
            let answer = frame(ipv6, remote, guest);
            assert_eq!(steering.pair(&answer), 0, "nothing was sent");
            for pair in [3, 1] {
                steering.note(&frame(ipv6, guest, remote), pair);
                assert_eq!(steering.pair(&answer), pair);
            }
        }
    }

    #[test]
    fn flows_are_spread_over_the_table() {
        for ipv6 in [false, true] {
            let hashes = |ports: fn(u16) -> (u16, u16)| {
                let hash = |n| {
                    let (guest, remote) = ports(n);
                    hash(&frame(ipv6, (15, guest), (1, remote)))
                };
                (0..4096).map(hash).collect::<BTreeSet<_>>().len()
            };
            for spread in [hashes(|n| (32_768 + n, 80)), hashes(|n| (50_000, 1000 + n)), hashes(|n| (n, n))] {
                assert!(spread > 3000, "{spread} places for 4096 flows");
            }
        }
    }

    #[test]
    fn frames_of_any_length_have_a_hash() {
        for ipv6 in [false, true] {
            let whole = frame(ipv6, (15, 1), (1, 2));
            for len in 0..whole.len() {
                hash(&whole[..len]);
            }
        }
        assert_eq!(hash(&[0xff; 60]), 0, "of no flow");
    }
}
