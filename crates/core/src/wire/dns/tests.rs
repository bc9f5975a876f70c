//! DNS questions and names, compressed, looping and too long; refusals; and names written from text.

use super::*;

/// A query for www.example.com, type A, as dig sends it: with an EDNS record behind the question.
fn query() -> Vec<u8> {
    let mut message = vec![0x12, 0x34, 0x01, 0x20, 0, 1, 0, 0, 0, 0, 0, 1];
    message.extend(b"\x03www\x07example\x03com\x00\x00\x01\x00\x01");
    message.extend([0, 0, 41, 4, 0xd0, 0, 0, 0, 0, 0, 0]);
    message
}

#[test]
fn header_and_question() {
    let query = query();
    let header = Header::parse(&query).unwrap();
    assert_eq!((header.id, header.questions, header.additionals, header.opcode()), (0x1234, 1, 1, 0));
    assert!(!header.is_response() && !header.is_truncated());
    let question = Question::parse(&query).unwrap();
    assert_eq!(question.name.to_string(), "www.example.com.");
    assert_eq!((question.qtype, question.qclass, question.end), (1, 1, 33));
    for len in 0..question.end {
        assert!(Question::parse(&query[..len]).is_none());
    }
    let mut out = [0; Header::LEN];
    header.emit(&mut out);
    assert_eq!(out, query[..12]);
}

/// A message, where a name begins in it, and the name's text and end.
type Row<'a> = (&'a [u8], usize, Option<(&'a str, usize)>);

#[test]
fn names() {
    let text = |message: &[u8], at| Name::parse(message, at).map(|(name, end)| (name.to_string(), end));
    let table: [Row<'_>; 14] = [
        (b"\x00", 0, Some((".", 1))),
        (b"\x01a\x00", 0, Some(("a.", 3))),
        (b"\x03a.\\\x02\x00\xff\x00", 0, Some(("a\\.\\\\.\\000\\255.", 8))),
        (b"\x01a\x00\x01b\xc0\x00", 3, Some(("b.a.", 7))),
        (b"\x01a\x00\xc0\x00\x01b\xc0\x03", 5, Some(("b.a.", 9))),
        (b"", 0, None),
        (b"\x01a", 0, None),
        (b"\x02a", 0, None),
        (b"\xc0\x00", 0, None),
        (b"\x01a\xc0\x00", 0, None),
        (b"\xc0\x02\x00", 0, None),
        (b"\xc0", 0, None),
        (b"\x40a\x00", 0, None),
        (b"\x00", 9, None),
    ];
    for (message, at, expected) in table {
        let expected = expected.map(|(name, end)| (name.to_owned(), end));
        assert_eq!(text(message, at), expected, "{message:?} at {at}");
    }
}

#[test]
fn names_are_bounded() {
    let label = |n: u8| [&[n][..], &vec![b'x'; usize::from(n)]].concat();
    let longest = [label(63), label(63), label(63), label(61), vec![0]].concat();
    assert_eq!(longest.len(), NAME_LEN_MAX);
    assert_eq!(Name::parse(&longest, 0).unwrap().1, NAME_LEN_MAX);
    let longer = [label(63), label(63), label(63), label(62), vec![0]].concat();
    assert!(Name::parse(&longer, 0).is_none());
    // Pointers, each to the one before it: as many as a name may have labels, and one more.
    let mut ladder = vec![0];
    for at in 0..128u16 {
        let target = if at == 0 { 0 } else { 2 * at - 1 };
        ladder.extend((0xc000 | target).to_be_bytes());
    }
    let last = ladder.len() - 2;
    assert!(Name::parse(&ladder, last).is_none());
    assert_eq!(Name::parse(&ladder, last - 2).unwrap().0.labels().count(), 0);
}

#[test]
fn error_replies() {
    let query = query();
    let mut out = [0; ERROR_REPLY_LEN_MAX];
    let len = error_reply(&query, Rcode::ServFail, &mut out).unwrap();
    assert_eq!(out[..12], [0x12, 0x34, 0x81, 0x82, 0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(out[12..len], query[12..33]);
    let reply = Header::parse(&out).unwrap();
    assert!(reply.is_response() && reply.rcode() == 2);

    assert!(error_reply(&out[..len], Rcode::Refused, &mut [0; ERROR_REPLY_LEN_MAX]).is_none());
    assert!(error_reply(&query[..11], Rcode::Refused, &mut out).is_none());
    let len = error_reply(&query[..20], Rcode::FormErr, &mut out).unwrap();
    assert_eq!(out[..len], [0x12, 0x34, 0x81, 0x81, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn encoded_names() {
    let mut out = [0xee; 300];
    assert_eq!(encode_name("lan.example", &mut out), Some(13));
    assert_eq!(out[..14], *b"\x03lan\x07example\x00\xee");
    assert_eq!(encode_name("_tcp.a-b.example.", &mut out), Some(18));
    for bad in ["", ".", "..", "a..b", ".a", "a b", "ä.example", &"a".repeat(64), &["a"; 128].join(".")] {
        assert_eq!(encode_name(bad, &mut out), None, "{bad}");
    }
    let longest = ["a"; 127].join(".");
    assert_eq!(encode_name(&longest, &mut out), Some(NAME_LEN_MAX));
    for len in 0..13 {
        assert_eq!(encode_name("lan.example", &mut out[..len]), None);
    }
}

#[test]
fn encoded_search() {
    let mut out = [0; SEARCH_LEN_MAX];
    let names = ["a.b".to_owned(), "no such name".to_owned(), "x".repeat(63), "c".to_owned()];
    let len = encode_search(&names, &mut out);
    assert_eq!(len, 5 + 65 + 3);
    assert_eq!(out[..5], *b"\x01a\x01b\x00");
    assert_eq!(out[70..len], *b"\x01c\x00");
    assert!(encode_search(&vec!["x".repeat(63); 9], &mut out) <= SEARCH_LEN_MAX);
    assert_eq!(encode_search(&[], &mut out), 0);
}
