//! Reassembly of arbitrary sequences of fragments: each byte of the result was sent for its offset, and
//! memory stays bounded.
//!
//! An input is a series of six bytes each: identification, more fragments, version of the content and family
//! in the first; offset in units of eight bytes; length; and the time that has passed, in units of 300 ms.

use brodo_core::counters::Counters;
use brodo_core::fragments::{DATAGRAMS_MAX, Fragments, IpHeader};
use brodo_core::time::{Duration, Instant};
use brodo_core::wire::fragment::Fragment;
use brodo_core::wire::ipv4::Ipv4Header;
use brodo_core::wire::ipv6::Ipv6Header;
use brodo_core::wire::{ICMPV6, UDP};
use std::collections::BTreeMap;

/// Longest fragment of an input, bytes.
const LEN_MAX: usize = 2000;
/// Bound of the memory of all buffers and lists, bytes.
const MEMORY_MAX: usize = (DATAGRAMS_MAX + 1) * (70 << 10);

fn header(v6: bool, ident: u32) -> IpHeader {
    if v6 {
        let (src, dst) = (super::SRC_V6, super::SRC_V6);
        let (next_header, hop_limit, traffic_class, flow_label) = (ICMPV6, 9, ident as u8, 0);
        IpHeader::V6(Ipv6Header {
            src,
            dst,
            next_header,
            hop_limit,
            traffic_class,
            flow_label,
            payload_len: 0,
        })
    } else {
        let (src, dst) = ([10, 0, 2, 15].into(), [192, 0, 2, 1].into());
        let (protocol, ttl, dont_fragment, tos) = (UDP, 9, false, 0);
        let ident = ident as u16;
        IpHeader::V4(Ipv4Header { src, dst, protocol, ttl, ident, dont_fragment, tos, payload_len: 0 })
    }
}

/// Fragments that were sent: where each begins, and what it holds.
type Pieces = Vec<(usize, Vec<u8>)>;

/// Whether `content` consists of fragments sent, each at its offset.
fn is_made_of(content: &[u8], pieces: &[(usize, Vec<u8>)]) -> bool {
    let mut at = 0;
    while at < content.len() {
        let piece = pieces
            .iter()
            .rev()
            .find(|(start, data)| *start == at && content[at..].starts_with(data) && !data.is_empty());
        let Some((_, data)) = piece else { return false };
        at += data.len();
    }
    true
}

/// Plays one input.
pub fn run(input: &[u8]) {
    let (mut fragments, mut counters, mut now) = (Fragments::default(), Counters::default(), Instant::ZERO);
    let mut sent: BTreeMap<(bool, u32), Pieces> = BTreeMap::new();
    for op in input.chunks_exact(6) {
        let (ident, more, version, v6) =
            (u32::from(op[0] & 0xf), op[0] & 0x10 != 0, op[0] >> 5 & 1, op[0] & 0x40 != 0);
        let start = usize::from(u16::from_be_bytes([op[1], op[2]]) & 0x1fff) * 8;
        let len = usize::from(u16::from_be_bytes([op[3], op[4]])) % (LEN_MAX + 1);
        now = now + Duration::from_millis(300) * u32::from(op[5]);
        while let Some(given_up) = fragments.expire(&mut counters, now) {
            if let Some(whole) = given_up {
                fragments.give_back(whole);
            }
        }
        assert!(fragments.next_deadline().is_none_or(|at| at > now));
        let data: Vec<u8> = (start..start + len).map(|at| (at / 8) as u8 ^ version ^ ident as u8).collect();
        let fragment = Fragment { ident, offset: start as u16, more };
        let pieces = sent.entry((v6, ident)).or_default();
        pieces.push((start, data.clone()));
        match fragments.insert(&mut counters, now, header(v6, ident), fragment, &data) {
            Ok(Some(whole)) => {
                let content = match whole.header {
                    IpHeader::V4(_) => Ipv4Header::parse(whole.packet()).expect("IPv4").1,
                    IpHeader::V6(_) => &whole.packet()[Ipv6Header::LEN..],
                };
                assert!(is_made_of(content, pieces), "other content than was sent");
                fragments.give_back(whole);
            }
            Ok(None) => {}
            Err(_) => _ = pieces.pop(),
        }
        assert!(fragments.allocated() <= MEMORY_MAX);
    }
}
