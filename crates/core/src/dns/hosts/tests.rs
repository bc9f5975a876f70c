//! Names, addresses, and queries without a local answer.

use super::*;
use crate::wire::dns::message::{Fit, Records};
use crate::wire::dns::{Header, Question};

fn hosts(names: &[(&str, &str)], mapped: bool) -> Hosts {
    let host_names =
        names.iter().map(|&(name, ip)| (name.to_owned(), ip.parse().expect("an address"))).collect();
    let mut config = Config { host_names, ..Config::default() };
    if mapped {
        config.v4.as_mut().expect("IPv4").host_loopback = Some("10.0.2.4".parse().expect("an address"));
    }
    Hosts::new(&config)
}

/// Type and content of the records in the answer, as text; None if there is no answer.
fn ask(hosts: &Hosts, name: &str, kind: u16, room: usize) -> Option<Vec<String>> {
    let mut asked = vec![0x12, 0x34, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
    let mut wire = [0; 255];
    let len = encode_name(name, &mut wire).expect("a name");
    asked.extend(&wire[..len]);
    asked.extend(kind.to_be_bytes());
    asked.extend([0, 1]);
    let query = Query::parse(&asked).expect("a query");
    let mut out = vec![0; room];
    let len = hosts.answer(&query, &mut out)?;
    assert_eq!(query.fit(query.header.id, &out[..len]), Fit::Yes);
    let header = Header::parse(&out).expect("a header");
    assert_eq!((header.rcode(), header.flags & AA), (0, AA));
    let end = Question::parse(&out[..len]).expect("a question").end;
    let text = |record: crate::wire::dns::message::Record<'_>| {
        let address = record.address().map(|address| address.to_string());
        address.or(record.target().map(|name| name.to_string())).expect("an address or a name")
    };
    Some(Records::new(&out[..len], &header, end).map(|record| text(record.expect("a record"))).collect())
}

#[test]
fn names_have_addresses_and_addresses_names() {
    let hosts = hosts(
        &[("DB.lan", "192.0.2.7"), ("db.lan.", "192.0.2.8"), ("db.lan", "2001:db8::7"), ("a", "192.0.2.7")],
        false,
    );
    let list = |texts: &[&str]| Some(texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>());
    assert_eq!(ask(&hosts, "db.LAN", A, 512), list(&["192.0.2.7", "192.0.2.8"]));
    assert_eq!(ask(&hosts, "db.lan", AAAA, 512), list(&["2001:db8::7"]));
    assert_eq!(ask(&hosts, "db.lan", ANY, 512).map(|all| all.len()), Some(3));
    assert_eq!(ask(&hosts, "a", AAAA, 512), list(&[]));
    assert_eq!(ask(&hosts, "db.lan", 15, 512), list(&[]), "no mail is taken");
    assert_eq!(ask(&hosts, "7.2.0.192.in-addr.arpa", PTR, 512), list(&["DB.lan.", "a."]));
    assert_eq!(ask(&hosts, "7.2.0.192.in-addr.arpa", A, 512), list(&[]));
    for other in ["lan", "x.db.lan", "9.2.0.192.in-addr.arpa", "host.brodo.internal"] {
        assert_eq!(ask(&hosts, other, A, 512), None, "{other}");
    }
}

#[test]
fn the_mapped_loopback_has_a_name() {
    let list = |text: &str| Some(vec![text.to_owned()]);
    let own = hosts(&[], true);
    assert_eq!(ask(&own, "Host.Brodo.Internal", A, 512), list("10.0.2.4"));
    assert_eq!(ask(&own, HOST, AAAA, 512), Some(vec![]));
    assert_eq!(ask(&own, "4.2.0.10.in-addr.arpa", PTR, 512), list("host.brodo.internal."));
    let given = hosts(&[("HOST.brodo.internal.", "192.0.2.1")], true);
    assert_eq!(ask(&given, HOST, A, 512), list("192.0.2.1"));
}

#[test]
fn an_answer_has_what_there_is_room_for() {
    let many: Vec<(&str, &str)> = (0..60).map(|_| ("a", "192.0.2.1")).collect();
    let answer = ask(&hosts(&many, false), "a", A, 512).expect("an answer");
    assert_eq!(answer.len(), (512 - 12 - 7) / 16);
}
