//! The fast sum against RFC 1071's definition word by word: every length and alignment, pieces, and no
//! overflow.

use super::*;

/// RFC 1071's definition, word by word.
fn slow(data: &[u8]) -> u16 {
    let mut total = 0u64;
    for pair in data.chunks(2) {
        total += u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
    }
    while total >> 16 != 0 {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

#[test]
fn example_of_rfc_1071() {
    let data = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(fold(sum(&data, 0)), 0xddf2);
    assert_eq!(finish(sum(&data, 0)), !0xddf2);
}

#[test]
fn every_length_and_alignment() {
    let data: Vec<u8> = (0..200u32).map(|i| (i * 73 + 11) as u8).collect();
    for start in 0..9 {
        for end in start..data.len() {
            assert_eq!(fold(sum(&data[start..end], 0)), slow(&data[start..end]), "{start}..{end}");
        }
    }
}

#[test]
fn nothing_overflows() {
    let ones = vec![0xff; 65_536 + 7];
    assert_eq!(fold(sum(&ones, u32::MAX)), slow(&[&ones[..], &[0]].concat()));
    let mut total = u32::MAX;
    for _ in 0..100_000 {
        total = sum(&ones[..2], total);
    }
    assert_eq!(fold(total), 0xffff);
    assert_eq!(fold(sum(&[0; 64], 0)), 0);
    assert_eq!(fold(u32::MAX), 0xffff);
}

#[test]
fn pieces_are_as_the_whole() {
    let data: Vec<u8> = (0..255).collect();
    for cut in (0..data.len()).step_by(2) {
        let (a, b) = data.split_at(cut);
        assert_eq!(fold(sum(b, sum(a, 0))), slow(&data));
    }
}

#[test]
fn pseudo_headers() {
    let v4 = [10, 0, 2, 15, 10, 0, 2, 2, 0, 6, 0x12, 0x34];
    let (src, dst) = ("10.0.2.15".parse().unwrap(), "10.0.2.2".parse().unwrap());
    assert_eq!(fold(pseudo_header(src, dst, 6, 0x1234)), slow(&v4));
    let (src, dst) = ("fd00::15", "fe80::2");
    let mut v6 = Vec::new();
    v6.extend(src.parse::<std::net::Ipv6Addr>().unwrap().octets());
    v6.extend(dst.parse::<std::net::Ipv6Addr>().unwrap().octets());
    v6.extend([0, 1, 0x23, 0x45, 0, 0, 0, 17]);
    assert_eq!(fold(pseudo_header(src.parse().unwrap(), dst.parse().unwrap(), 17, 0x1_2345)), slow(&v6));
}
