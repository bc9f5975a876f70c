//! Names learnt from answers, and forged answers that teach none.

use super::*;
use crate::dns::sample::query;
use crate::wire::dns::encode_name;
use crate::wire::dns::message::{A, CNAME, Query, Reply};

/// An answer to a question about `name` with these records: owner, type, data.
fn answer(name: &str, records: &[(&str, u16, Vec<u8>)]) -> Vec<u8> {
    let asked = query(name);
    let mut out = [0; Reply::EMPTY_LEN_MAX];
    let len = Reply::new(&Query::parse(&asked).expect("a query"), 0, &mut out).finish();
    let mut message = out[..len].to_vec();
    message[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
    for (owner, kind, data) in records {
        message.extend(wire(owner));
        message.extend(kind.to_be_bytes());
        message.extend([0, 1, 0, 0, 0, 60]);
        message.extend((data.len() as u16).to_be_bytes());
        message.extend(data);
    }
    message
}

fn wire(name: &str) -> Vec<u8> {
    let mut out = [0; 255];
    let len = encode_name(name, &mut out).expect("a name");
    out[..len].to_vec()
}

fn ip(last: u8) -> IpAddr {
    [192, 0, 2, last].into()
}

#[test]
fn addresses_are_known_by_the_name_that_was_asked_for() {
    let mut learnt = Learnt::default();
    let address = |last: u8| vec![192, 0, 2, last];
    learnt.learn(&answer(
        "www.test",
        &[
            ("edge.cdn", A, address(1)),
            ("WWW.test", CNAME, wire("www.cdn")),
            ("www.cdn", CNAME, wire("edge.cdn")),
            ("edge.cdn", A, address(2)),
            ("bank.test", A, address(3)),
        ],
    ));
    assert_eq!([1, 2, 3].map(|last| learnt.name_of(ip(last))), [Some("www.test"), Some("www.test"), None]);
    // The latest answer counts.
    learnt.learn(&answer("other.test", &[("other.test", A, address(1))]));
    assert_eq!([1, 2].map(|last| learnt.name_of(ip(last))), [Some("other.test"), Some("www.test")]);
    assert_eq!((learnt.order.len(), learnt.bytes), (2, 18));
}

#[test]
fn aliases_in_a_circle_end() {
    let mut learnt = Learnt::default();
    learnt.learn(&answer("a", &[("a", CNAME, wire("b")), ("b", CNAME, wire("a")), ("c", A, vec![1; 4])]));
    learnt.learn(&answer("a", &[])[..15]);
    assert!(learnt.names.is_empty());
}

#[test]
fn few_thousand_addresses_are_remembered() {
    let mut learnt = Learnt::default();
    for i in 0..ADDRESSES_MAX as u32 + 10 {
        learnt.learn(&answer("a.test", &[("a.test", A, i.to_be_bytes().to_vec())]));
    }
    assert_eq!(
        (learnt.names.len(), learnt.order.len(), learnt.bytes),
        (ADDRESSES_MAX, ADDRESSES_MAX, 6 * ADDRESSES_MAX)
    );
    assert_eq!(learnt.name_of(IpAddr::from([0, 0, 0, 9])), None);
    assert_eq!(learnt.name_of(IpAddr::from([0, 0, 0, 10])), Some("a.test"));
    let crowd: Vec<_> = (0..70).map(|i| ("b.test", A, vec![9, 9, 9, i])).collect();
    learnt.learn(&answer("b.test", &crowd));
    assert_eq!(learnt.name_of(IpAddr::from([9, 9, 9, 63])), Some("b.test"));
    assert_eq!(learnt.name_of(IpAddr::from([9, 9, 9, 64])), None);
}
