//! Wire forms, by their bytes.

use super::*;

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[test]
fn headers_of_other_versions_replies_and_giants_are_refused() {
    let header = |words: [u32; 3]| Header::read(bytes(&words).first_chunk().expect("12 bytes"));
    assert_eq!(header([18, 9, 8]), Some(Header { request: 18, needs_reply: true, size: 8 }));
    assert_eq!(header([1, 1, 0]), Some(Header { request: 1, needs_reply: false, size: 0 }));
    for words in [[1, 0, 0], [1, 2, 0], [1, 5, 0], [1, 1, PAYLOAD_MAX as u32 + 1], [1, 1, u32::MAX]] {
        assert_eq!(header(words), None, "{words:?}");
    }
}

#[test]
fn requests_are_read_from_their_payload() {
    let place = RegionPlace { guest: 1, size: 2, user: 3, offset: 4 };
    let region = bytes(&[1, 0, 2, 0, 3, 0, 4, 0]);
    // UML sends room for two regions with one.
    let table = [bytes(&[1, 0]), region.clone(), vec![0; 32]].concat();
    assert_eq!(Request::read(5, &table), Some(Request::SetMemoryTable(vec![place])));
    let single = [bytes(&[0, 0]), region].concat();
    assert_eq!(Request::read(37, &single), Some(Request::AddMemoryRegion(place)));
    assert_eq!(Request::read(38, &single), Some(Request::RemoveMemoryRegion(place)));
    let kick = |word| Request::read(12, &bytes(&[word, 0]));
    let expected = |ring, present| Request::SetRingDescriptor { kind: Descriptor::Kick, ring, present };
    assert_eq!(kick(1), Some(expected(1, true)));
    assert_eq!(kick(0x101), Some(expected(1, false)));
    for (flags, used, logged) in [(0, 0, None), (1, 8, Some(8))] {
        let addresses = bytes(&[1, flags, 5, 0, 6, 0, 7, 0, used, 0]);
        let expected = RingAddresses { ring: 1, descriptors: 5, used: 6, available: 7, logged };
        assert_eq!(Request::read(9, &addresses), Some(Request::SetRingAddresses(expected)));
        assert_eq!(Request::SetRingAddresses(expected).message().expect("a message")[12..], addresses);
    }
    let log = Request::SetLog { size: 1, offset: 2 };
    assert_eq!(Request::read(6, &bytes(&[1, 0, 2, 0])), Some(log));
    assert_eq!(Request::read(99, &[]), Some(Request::Unknown));
}

#[test]
fn short_payloads_and_long_tables_are_refused() {
    for (number, len) in
        [(2, 8), (6, 16), (8, 8), (9, 40), (10, 8), (11, 4), (12, 8), (18, 8), (24, 12), (37, 40)]
    {
        let payload = vec![0; len];
        assert!(Request::read(number, &payload).is_some(), "{number}");
        assert_eq!(Request::read(number, &payload[..len - 1]), None, "{number}");
    }
    assert_eq!(Request::read(5, &[bytes(&[1, 0]), vec![0; 31]].concat()), None);
    assert_eq!(Request::read(5, &[bytes(&[33, 0]), vec![0; 33 * 32]].concat()), None);
    assert_eq!(Request::read(5, &[bytes(&[u32::MAX, 0]), vec![0; 32]].concat()), None);
}

#[test]
fn replies_repeat_the_request() {
    assert_eq!(Reply::Number(7).message(1), bytes(&[1, 5, 8, 7, 0]));
    assert_eq!(Reply::RingBase { ring: 1, base: 9 }.message(11), bytes(&[11, 5, 8, 1, 9]));
    let config = Reply::Config { offset: 2, flags: 3, bytes: vec![0xaa; 4] };
    assert_eq!(config.message(24), bytes(&[24, 5, 16, 2, 4, 3, 0xaaaa_aaaa]));
}
