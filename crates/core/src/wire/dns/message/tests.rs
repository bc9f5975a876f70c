//! Queries, their cache keys, records, and locally made answers.

use super::*;
use crate::wire::dns::{AA, TC, encode_name};

/// A query with recursion desired, and an OPT record if `opt` gives its size, TTL field and options.
fn query(name: &str, kind: u16, opt: Option<(u16, u32, &[u8])>) -> Vec<u8> {
    let mut out = vec![0x12, 0x34, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, u8::from(opt.is_some())];
    let mut wire = [0; NAME_LEN_MAX];
    let len = encode_name(name, &mut wire).expect("a name");
    out.extend(&wire[..len]);
    out.extend(kind.to_be_bytes());
    out.extend([0, 1]);
    if let Some((size, ttl, options)) = opt {
        out.extend([0, 0, 41]);
        out.extend(size.to_be_bytes());
        out.extend(ttl.to_be_bytes());
        out.extend((options.len() as u16).to_be_bytes());
        out.extend(options);
    }
    out
}

fn key(message: &[u8]) -> Vec<u8> {
    let mut out = [0; KEY_LEN_MAX];
    let len = Query::parse(message).expect("a query").key(&mut out);
    out[..len].to_vec()
}

#[test]
fn queries_are_read_whole() {
    let plain = query("name.test", A, None);
    let parsed = Query::parse(&plain).unwrap();
    assert_eq!((parsed.opt, parsed.answer_len_max(), parsed.is_ordinary()), (None, 512, true));
    let edns = query("name.test", A, Some((4096, 0x8000, b"")));
    let parsed = Query::parse(&edns).unwrap();
    let opt = parsed.opt.unwrap();
    assert_eq!((opt.size, opt.dnssec_ok, opt.has_options, opt.version), (4096, true, false, 0));
    assert_eq!((parsed.answer_len_max(), parsed.is_ordinary()), (4096, true));
    let small = query("name.test", A, Some((100, 0, b"")));
    assert_eq!(Query::parse(&small).unwrap().answer_len_max(), 512, "the least that any client takes");
    // A cookie, another version of EDNS, ANY, a transfer, no recursion.
    let cookie = query("name.test", A, Some((1232, 0, &[0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8])));
    let mut directly = plain.clone();
    directly[2] = 0;
    for special in
        [cookie, query("a.test", A, Some((1232, 1 << 16, b""))), query("a.test", 255, None), directly]
    {
        assert!(!Query::parse(&special).unwrap().is_ordinary());
    }
}

#[test]
fn malformed_messages_are_no_queries() {
    let good = query("name.test", A, Some((1232, 0, b"")));
    for len in 0..good.len() {
        assert!(Query::parse(&good[..len]).is_err(), "{len} bytes");
    }
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut message = good.clone();
        change(&mut message);
        Query::parse(&message).is_ok()
    };
    assert!(with(&|_| ()));
    assert!(!with(&|m| m[2] |= 0x80), "a response");
    assert!(!with(&|m| m[5] = 2), "two questions");
    assert!(!with(&|m| m[5] = 0), "none");
    assert!(!with(&|m| m[12] = 0xc0), "a compressed name");
    let opt = good[good.len() - 11..].to_vec();
    let two = |m: &mut Vec<u8>| {
        m[11] = 2;
        m.extend(&opt);
    };
    assert!(!with(&two), "two OPT records");
    assert!(!with(&|m| (m[7], m[11]) = (1, 0)), "an OPT record as an answer");
    // Of an update only the zone is parsed.
    assert!(with(&|m| {
        m[2] = 0x28;
        m.truncate(27);
    }));
}

#[test]
fn keys_tell_apart_what_is_answered_differently() {
    let base = key(&query("name.test", A, None));
    assert_eq!(base, key(&query("NAME.Test", A, None)));
    let mut checking_disabled = query("name.test", A, None);
    checking_disabled[3] |= 0x10;
    let mut authentic = query("name.test", A, None);
    authentic[3] |= 0x20;
    let others = [
        query("name.test", AAAA, None),
        query("name.tess", A, None),
        query("name.test", A, Some((1232, 0, b""))),
        query("name.test", A, Some((1232, 0x8000, b""))),
        checking_disabled,
        authentic,
    ];
    let mut keys: Vec<_> = others.iter().map(|message| key(message)).chain([base]).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 7);
    // Its size does not matter: longer answers are truncated.
    assert_eq!(key(&query("a", A, Some((1232, 0, b"")))), key(&query("a", A, Some((4096, 0, b"")))));
}

#[test]
fn an_answer_is_known_by_identifier_and_question() {
    let asked = query("name.test", A, None);
    let parsed = Query::parse(&asked).unwrap();
    let mut answer = query("NaMe.test", A, None);
    answer[2] |= 0x80;
    let id = parsed.header.id;
    assert_eq!(parsed.fit(id, &answer), Fit::OtherCase);
    answer[12..].copy_from_slice(&asked[12..]);
    assert_eq!((parsed.fit(id, &answer), parsed.fit(!id, &answer)), (Fit::Yes, Fit::No));
    let changed = |at: usize, bits: u8| {
        let mut other = answer.clone();
        other[at] ^= bits;
        parsed.fit(id, &other)
    };
    // Identifier, response, operation, number of questions, a letter, the type (A and a differ by the bit of
    // case), the class.
    for (at, bits) in [(1, 1), (2, 0x80), (2, 0x08), (5, 1), (13, 1), (24, 0x20), (26, 2)] {
        assert_eq!(changed(at, bits), Fit::No, "byte {at}");
    }
    assert_eq!(parsed.fit(id, &answer[..20]), Fit::No);
}

#[test]
fn records_of_an_answer() {
    let asked = query("name.test", A, None);
    let parsed = Query::parse(&asked).unwrap();
    let mut out = [0; 512];
    let mut reply = Reply::new(&parsed, AA, &mut out);
    assert!(reply.push(CNAME, 60, b"\x05other\xc0\x11"));
    assert!(reply.push(A, 30, &[192, 0, 2, 1]));
    let len = reply.finish();
    let message = &out[..len];
    assert_eq!(parsed.fit(parsed.header.id, message), Fit::Yes);
    let header = Header::parse(message).unwrap();
    assert_eq!((header.answers, header.additionals, header.flags & AA), (2, 0, AA));
    let records: Vec<_> = Records::new(message, &header, parsed.question.end).map(Result::unwrap).collect();
    assert_eq!(records[0].target().unwrap().to_string(), "other.test.");
    assert_eq!(records[1].address(), Some("192.0.2.1".parse().unwrap()));
    assert!(records[1].name.is(&parsed.question.name));
    assert_eq!((records[1].ttl, records[1].section), (30, Section::Answer));
    // Cut anywhere, the walk ends with one error.
    for cut in parsed.question.end..len {
        let walked: Vec<_> = Records::new(&message[..cut], &header, parsed.question.end).collect();
        assert!(walked.last().is_some_and(Result::is_err) && walked.len() <= 2, "{cut} bytes");
    }
}

#[test]
fn lifetime_of_negative_answers() {
    let asked = query("name.test", A, None);
    let parsed = Query::parse(&asked).unwrap();
    let soa = |minimum: u32| [&b"\x02ns\xc0\x11\x01m\xc0\x11"[..], &[0; 16], &minimum.to_be_bytes()].concat();
    for (ttl, minimum, expected) in [(100, 30, 30), (20, 30, 20)] {
        let mut out = [0; 512];
        let mut reply = Reply::new(&parsed, 0, &mut out);
        assert!(reply.push(SOA, ttl, &soa(minimum)));
        let len = reply.finish();
        let header = Header::parse(&out).unwrap();
        let record = Records::new(&out[..len], &header, parsed.question.end).next().unwrap().unwrap();
        assert_eq!(record.negative_ttl(), Some(expected));
    }
    let mut out = [0; 512];
    let mut reply = Reply::new(&parsed, 0, &mut out);
    assert!(reply.push(SOA, 1, &soa(1)[1..]) && reply.push(A, 1, &[1; 16]) && reply.push(AAAA, 1, &[1; 4]));
    let len = reply.finish();
    let header = Header::parse(&out).unwrap();
    for record in Records::new(&out[..len], &header, parsed.question.end) {
        let record = record.unwrap();
        assert!(record.negative_ttl().is_none() && record.address().is_none() && record.target().is_none());
    }
}

#[test]
fn replies_keep_within_their_room() {
    let asked = query(&["a"; 127].join("."), A, Some((1232, 0x8000, b"")));
    let parsed = Query::parse(&asked).unwrap();
    let mut out = [0; Reply::EMPTY_LEN_MAX];
    let mut reply = Reply::new(&parsed, TC, &mut out);
    assert!(!reply.push(A, 1, &[1; 4]), "there is room for nothing but the OPT record");
    let len = reply.finish();
    assert_eq!(len, Reply::EMPTY_LEN_MAX);
    let header = Header::parse(&out).unwrap();
    assert!(header.is_truncated());
    let opt = Records::new(&out[..len], &header, parsed.question.end).next().unwrap().unwrap();
    assert_eq!((opt.kind, opt.class, opt.ttl), (OPT, OPT_SIZE, 0x8000));
}

#[test]
fn an_answer_is_made_anothers() {
    let asked = query("name.test", A, None);
    let mut out = [0; 512];
    let mut reply = Reply::new(&Query::parse(&asked).unwrap(), AA, &mut out);
    assert!(reply.push(A, 30, &[192, 0, 2, 1]));
    let len = reply.finish();
    let mut other = query("Name.TEST", A, None);
    (other[0], other[1]) = (0xab, 0xcd);
    let other = Query::parse(&other).unwrap();
    other.adopt(&mut out[..len]);
    assert_eq!(other.fit(0xabcd, &out[..len]), Fit::Yes);
    assert_eq!(out[..2], [0xab, 0xcd]);
    assert_eq!(Header::parse(&out).unwrap().flags & AA, 0);
    assert_eq!(out[12..22], other.message[12..22], "with the letters of who asks");
}

#[test]
fn names_of_addresses() {
    let reverse = |text: &str| {
        let mut wire = [0; NAME_LEN_MAX];
        let len = encode_name(text, &mut wire).expect("a name");
        Name::parse(&wire[..len], 0).unwrap().0.reverse()
    };
    assert_eq!(reverse("4.2.0.10.in-addr.ARPA"), Some("10.0.2.4".parse().unwrap()));
    let zeros = ["0"; 29].join(".");
    assert_eq!(reverse(&format!("F.{zeros}.d.f.ip6.arpa")), Some("fd00::f".parse().unwrap()));
    assert_eq!(reverse(&format!("{zeros}.d.f.ip6.arpa")), None, "31 digits");
    assert_eq!(reverse(&format!("10.{zeros}.d.f.ip6.arpa")), None, "two digits in one");
    assert_eq!(reverse(&format!("0.{zeros}.0.0.d.f.ip6.arpa")), None, "too many");
    assert_eq!(reverse(&format!("0f.{zeros}.d.f.ip6.arpa")), None, "a zero before a digit");
    for bad in [
        "2.0.10.in-addr.arpa",
        "1.4.2.0.10.in-addr.arpa",
        "256.2.0.10.in-addr.arpa",
        "04.2.0.10.in-addr.arpa",
        "4.2.00.10.in-addr.arpa",
        "4.2.0.00000000010.in-addr.arpa",
        "in-addr.arpa",
        "arpa",
    ] {
        assert_eq!(reverse(bad), None, "{bad}");
    }
}
