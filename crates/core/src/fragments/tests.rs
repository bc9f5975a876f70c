//! Reassembly: any order, duplicates, overlaps, bounds and time.

use super::*;
use proptest::prelude::*;
use std::net::Ipv4Addr;

const NOW: Instant = Instant::from_ms(1000);

fn v4(ident: u16) -> IpHeader {
    IpHeader::V4(Ipv4Header {
        src: Ipv4Addr::new(10, 0, 2, 15),
        dst: Ipv4Addr::new(192, 0, 2, 1),
        protocol: 17,
        ttl: 64,
        ident,
        dont_fragment: false,
        tos: 0,
        payload_len: 0,
    })
}

fn v6() -> IpHeader {
    IpHeader::V6(Ipv6Header {
        src: "fd00::15".parse().unwrap(),
        dst: "2001:db8::1".parse().unwrap(),
        next_header: 17,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        payload_len: 0,
    })
}

/// Reassembly and its counters.
#[derive(Default)]
struct Bench {
    fragments: Fragments,
    counters: Counters,
}

impl Bench {
    fn insert(
        &mut self,
        now: Instant,
        header: IpHeader,
        (ident, offset, more): (u32, usize, bool),
        data: &[u8],
    ) -> Result<Option<Vec<u8>>, DropReason> {
        let fragment = Fragment { ident, offset: offset as u16, more };
        let whole = self.fragments.insert(&mut self.counters, now, header, fragment, data)?;
        Ok(whole.map(|whole| {
            let packet = whole.packet().to_vec();
            self.fragments.give_back(whole);
            packet
        }))
    }

    /// Expires until nothing is due; returns the packets to report.
    fn expire(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut given_up_packets = Vec::new();
        while let Some(given_up) = self.fragments.expire(&mut self.counters, now) {
            if let Some(whole) = given_up {
                given_up_packets.push(whole.packet().to_vec());
                self.fragments.give_back(whole);
            }
        }
        given_up_packets
    }

    fn dropped(&self) -> Vec<(DropReason, u64)> {
        self.counters.drops().collect()
    }
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn in_order_and_in_reverse_over_both_families() {
    let data = content(4000);
    for header in [v4(9), v6()] {
        let mut parts: Vec<(usize, &[u8])> =
            data.chunks(1480).enumerate().map(|(i, c)| (i * 1480, c)).collect();
        for _ in 0..2 {
            let mut bench = Bench::default();
            for (n, (offset, part)) in parts.iter().enumerate() {
                let more = offset + part.len() < data.len();
                let got = bench.insert(NOW, header, (9, *offset, more), part).unwrap();
                let Some(packet) = got else {
                    assert!(n + 1 < parts.len());
                    continue;
                };
                assert_eq!(n + 1, parts.len());
                let payload = match header {
                    IpHeader::V4(_) => Ipv4Header::parse(&packet).unwrap().1,
                    IpHeader::V6(_) => Ipv6Header::parse(&packet).unwrap().1,
                };
                assert_eq!(payload, data);
            }
            assert_eq!(bench.fragments.next_deadline(), None);
            parts.reverse();
        }
    }
}

#[test]
fn malformed_fragments() {
    let mut bench = Bench::default();
    let table: [(usize, bool, usize); 6] =
        [(0, true, 0), (8, false, 0), (0, true, 7), (8, true, 12), (65_512, false, 9), (65_528, true, 8)];
    for (offset, more, len) in table {
        let got = bench.insert(NOW, v4(1), (1, offset, more), &vec![0; len]);
        assert_eq!(got, Err(DropReason::FragmentMalformed), "{offset} {more} {len}");
    }
    assert_eq!(bench.fragments.allocated(), 0, "nothing was kept");
    assert_eq!(bench.insert(NOW, v4(1), (1, 65_512, false), &[0; 3]), Ok(None), "the very end");
    assert_eq!(bench.insert(NOW, v6(), (1, 65_528, false), &[0; 8]), Err(DropReason::FragmentMalformed));
    assert_eq!(bench.insert(NOW, v6(), (1, 65_528, false), &[0; 7]), Ok(None), "the very end of IPv6");
}

#[test]
fn an_overlap_condemns_the_packet_and_what_follows() {
    let data = content(64);
    // Every way to contradict the fragment from 16 to 32, or the end at 40.
    let table: [(usize, bool, usize); 7] = [
        (16, true, 8),
        (24, true, 16),
        (8, true, 16),
        (0, true, 40),
        (24, false, 8),
        (40, true, 8),
        (40, false, 8),
    ];
    for (offset, more, len) in table {
        let mut bench = Bench::default();
        assert_eq!(bench.insert(NOW, v4(1), (1, 16, true), &data[16..32]), Ok(None));
        assert_eq!(bench.insert(NOW, v4(1), (1, 32, false), &data[32..40]), Ok(None));
        let other = vec![0xee; len];
        let got = bench.insert(NOW, v4(1), (1, offset, more), &other);
        assert_eq!(got, Err(DropReason::FragmentOverlap), "{offset} {more} {len}");
        let got = bench.insert(NOW, v4(1), (1, 0, true), &data[..16]);
        assert_eq!(got, Err(DropReason::FragmentOverlap), "condemned");
        // Another packet is not concerned, and a new one with its name may come later.
        assert_eq!(bench.insert(NOW, v4(2), (2, 0, true), &data[..16]), Ok(None));
        let later = NOW + LIFETIME_V4;
        assert_eq!(bench.expire(later).len(), 1);
        assert_eq!(bench.insert(later, v4(1), (1, 0, true), &data[..16]), Ok(None));
        assert!(bench.insert(later, v4(1), (1, 16, false), &data[16..40]).unwrap().is_some());
        assert_eq!(bench.dropped(), [(DropReason::FragmentTimeout, 1)]);
    }
}

#[test]
fn the_same_again_does_no_harm() {
    let data = content(40);
    let mut bench = Bench::default();
    for _ in 0..2 {
        let first = bench.insert(NOW, v4(1), (1, 0, true), &data[..24]);
        assert!(matches!(first, Ok(None) | Err(DropReason::FragmentDuplicate)), "{first:?}");
    }
    assert_eq!(bench.insert(NOW, v4(1), (1, 8, true), &data[8..16]), Err(DropReason::FragmentDuplicate));
    assert!(bench.insert(NOW, v4(1), (1, 24, false), &data[24..]).unwrap().is_some());
}

#[test]
fn the_oldest_goes_and_memory_is_bounded() {
    let mut bench = Bench::default();
    let at = |n: u64| NOW + Duration::from_millis(n);
    for n in 0..100u64 {
        assert_eq!(bench.insert(at(n), v4(n as u16), (n as u32, 0, true), &content(800)), Ok(None));
    }
    assert_eq!(bench.dropped(), [(DropReason::FragmentEvicted, 100 - DATAGRAMS_MAX as u64)]);
    let most = DATAGRAMS_MAX * (65_535 + 40 + size_of::<Partial>());
    assert!(bench.fragments.allocated() <= most, "{}", bench.fragments.allocated());
    let newest = bench.insert(at(100), v4(99), (99, 800, false), &[1]).unwrap();
    assert_eq!(newest.map(|packet| packet.len()), Some(821));
    assert_eq!(bench.insert(at(100), v4(0), (0, 800, false), &[1]), Ok(None), "forgotten");
    assert!(bench.fragments.allocated() <= most);
}

#[test]
fn time_is_over_and_the_beginning_is_quoted() {
    for (header, lifetime) in [(v4(1), LIFETIME_V4), (v6(), LIFETIME_V6)] {
        let mut bench = Bench::default();
        let data = content(100);
        assert_eq!(bench.insert(NOW, header, (1, 0, true), &data[..24]), Ok(None));
        assert_eq!(bench.insert(NOW, header, (1, 32, true), &data[32..40]), Ok(None));
        // Without its first fragment no error is due.
        assert_eq!(bench.insert(NOW, header, (2, 8, true), &data[8..24]), Ok(None));
        let end = NOW + lifetime;
        assert_eq!(bench.fragments.next_deadline(), Some(end));
        assert_eq!(bench.expire(Instant::from_ns(end.as_ns() - 1)), Vec::<Vec<u8>>::new());
        let given_up_packets = bench.expire(end);
        assert_eq!(given_up_packets.len(), 1);
        assert_eq!(given_up_packets[0][header.len()..], data[..24]);
        assert_eq!(bench.dropped(), [(DropReason::FragmentTimeout, 2)]);
        assert_eq!(bench.fragments.next_deadline(), None);
    }
}

#[test]
fn congestion_of_one_is_congestion_of_all() {
    let IpHeader::V4(ip) = v4(1) else { unreachable!() };
    let marked = |tos| IpHeader::V4(Ipv4Header { tos, ..ip });
    let mut bench = Bench::default();
    assert_eq!(bench.insert(NOW, marked(0xb8 | 2), (1, 0, true), &[1; 8]), Ok(None));
    let packet = bench.insert(NOW, marked(3), (1, 8, false), &[1; 8]).unwrap().unwrap();
    assert_eq!(Ipv4Header::parse(&packet).unwrap().0.tos, 0xb8 | 3);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Cut anywhere, in any order, some twice, with another packet in between: the content is
    /// that which was cut.
    #[test]
    fn any_cut_in_any_order(
        len in 9usize..20_000,
        cuts in proptest::collection::vec(1usize..2500, 0..20),
        order in proptest::collection::vec(any::<u32>(), 42),
        v6_family in any::<bool>(),
    ) {
        let header = if v6_family { v6() } else { v4(7) };
        let data = content(len);
        let mut borders: Vec<usize> = cuts.iter().map(|cut| cut * 8).filter(|&at| at < len).collect();
        borders.extend([0, len]);
        borders.sort_unstable();
        borders.dedup();
        let mut parts: Vec<(u32, usize, usize)> = borders.windows(2).map(|w| (0, w[0], w[1])).collect();
        parts.extend(parts.clone().iter().step_by(3));
        parts.iter_mut().zip(&order).for_each(|(part, key)| part.0 = *key);
        parts.sort_unstable();
        let mut bench = Bench::default();
        let mut got = Vec::new();
        for (_, from, to) in parts {
            if let Ok(Some(packet)) = bench.insert(NOW, header, (7, from, to < len), &data[from..to]) {
                got.push(packet[header.len()..].to_vec());
            }
            bench.insert(NOW, header, (8, from, true), &[0xee; 8]).ok();
        }
        prop_assert!(!got.is_empty() && got.iter().all(|packet| *packet == data));
    }

    /// Arbitrary fragments: no panic, memory within its bound, and every reassembled packet is complete.
    #[test]
    fn anything_at_all(
        pieces in proptest::collection::vec(
            (0u32..20, 0u16..600, any::<bool>(), 0usize..200, 0u64..40_000),
            1..200,
        ),
    ) {
        let mut bench = Bench::default();
        let mut now = NOW;
        for (ident, offset, more, len, pause) in pieces {
            now = now + Duration::from_millis(pause / 100);
            let data = vec![ident as u8; len];
            let got = bench.insert(now, v4(ident as u16), (ident, usize::from(offset & !7), more), &data);
            if let Ok(Some(packet)) = got {
                prop_assert!(packet[20..].iter().all(|&byte| byte == ident as u8));
            }
            bench.expire(now);
            prop_assert!(bench.fragments.partial.len() + bench.fragments.spare.len() <= DATAGRAMS_MAX);
        }
    }
}
