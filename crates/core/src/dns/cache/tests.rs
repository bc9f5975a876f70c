//! Caching, expiry, and eviction.

use super::*;
use crate::dns::sample::query;
use crate::wire::dns::TC;
use crate::wire::dns::message::{A, CNAME, KEY_LEN_MAX, Query, Reply, SOA};

fn key(name: &str) -> Vec<u8> {
    let mut out = [0; KEY_LEN_MAX];
    let len = Query::parse(&query(name)).expect("a query").key(&mut out);
    out[..len].to_vec()
}

/// An answer with records of these types, TTLs and data.
fn answer(name: &str, flags: u16, records: &[(u16, u32, &[u8])]) -> Vec<u8> {
    let asked = query(name);
    let mut out = [0; 512];
    let mut reply = Reply::new(&Query::parse(&asked).expect("a query"), flags, &mut out);
    for &(kind, ttl, data) in records {
        assert!(reply.push(kind, ttl, data));
    }
    let len = reply.finish();
    out[..len].to_vec()
}

/// An answer with these records in the authority section.
fn negative(name: &str, flags: u16, ttl: u32, minimum: u32) -> Vec<u8> {
    let soa = [&b"\x00\x00"[..], &[0; 16], &minimum.to_be_bytes()].concat();
    let mut message = answer(name, flags, &[(SOA, ttl, &soa)]);
    (message[7], message[9]) = (0, 1);
    message
}

fn at(seconds: u64) -> Instant {
    Instant::from_ms(seconds * 1000)
}

/// TTLs of the cached records of `name`.
fn ttls(cache: &mut Cache, name: &str, now: Instant) -> Option<Vec<u32>> {
    let mut out = [0; 4096];
    let len = cache.get(&key(name), now, &mut out)?;
    let header = Header::parse(&out)?;
    let end = Question::parse(&out[..len])?.end;
    Some(Records::new(&out[..len], &header, end).map(|record| record.expect("a record").ttl).collect())
}

fn kept(message: &[u8]) -> bool {
    let mut cache = Cache::new(1 << 16);
    cache.put(&key("a.test"), at(0), message);
    ttls(&mut cache, "a.test", at(0)).is_some()
}

const ADDRESS: [u8; 4] = [192, 0, 2, 1];

#[test]
fn an_answer_holds_for_its_shortest_ttl_and_counts_down() {
    let mut cache = Cache::new(1 << 16);
    let message = answer("a.test", 0, &[(CNAME, 100, b"\x01b\xc0\x0c"), (A, 60, &ADDRESS)]);
    cache.put(&key("a.test"), at(10), &message);
    assert_eq!(ttls(&mut cache, "A.Test", at(10)), Some(vec![100, 60]));
    assert_eq!(ttls(&mut cache, "a.test", Instant::from_ms(69_999)), Some(vec![41, 1]));
    assert_eq!(ttls(&mut cache, "b.test", at(10)), None);
    assert_eq!(ttls(&mut cache, "a.test", at(70)), None);
    assert_eq!((cache.allocated(), cache.order.len()), (0, 0));
    let for_ever = answer("a.test", 0, &[(A, i32::MAX as u32, &ADDRESS)]);
    cache.put(&key("a.test"), at(0), &for_ever);
    assert!(ttls(&mut cache, "a.test", at(86_399)).is_some());
    assert_eq!(ttls(&mut cache, "a.test", at(86_400)), None);
}

#[test]
fn negative_answers_hold_as_long_as_the_authority_says() {
    let nx = Rcode::NxDomain as u16;
    for (flags, ttl, minimum, expected) in [(nx, 100, 30, 30), (0, 20, 30, 20), (nx, 90_000, 90_000, 300)] {
        let mut cache = Cache::new(1 << 16);
        cache.put(&key("a.test"), at(0), &negative("a.test", flags, ttl, minimum));
        assert!(ttls(&mut cache, "a.test", at(expected - 1)).is_some());
        assert!(ttls(&mut cache, "a.test", at(expected)).is_none());
    }
    // An alias without a target and without an SOA for its lifetime.
    assert!(!kept(&answer("a.test", nx, &[])));
    assert!(!kept(&answer("a.test", 0, &[(CNAME, 100, b"\x01b\xc0\x0c")])));
}

#[test]
fn volatile_answers_are_not_cached() {
    let records: &[(u16, u32, &[u8])] = &[(A, 60, &ADDRESS)];
    assert!(kept(&answer("a.test", 0, records)));
    for rcode in [1, 2, 4, 5, 9] {
        assert!(!kept(&answer("a.test", rcode, records)), "code {rcode}");
    }
    assert!(!kept(&answer("a.test", TC, records)), "cut");
    assert!(!kept(&answer("a.test", 0, &[(A, 0, &ADDRESS)])), "for no time");
    assert!(!kept(&answer("a.test", 0, &[(A, 1 << 31, &ADDRESS)])), "for a negative one");
    let whole = answer("a.test", 0, records);
    for cut in 0..whole.len() {
        assert!(!kept(&whole[..cut]), "{cut} bytes");
    }
    let mut extended = [&whole[..], &[0, 0, 41, 4, 208, 1, 0, 0, 0, 0, 0]].concat();
    extended[11] = 1;
    assert!(!kept(&extended), "an extended code");
    let at = extended.len() - 6;
    extended[at] = 0;
    assert!(kept(&extended));
}

#[test]
fn the_least_recently_used_answer_makes_room() {
    let message = |name: &str| answer(name, 0, &[(A, 60, &ADDRESS)]);
    let mut one = Cache::new(1 << 16);
    one.put(&key("a0"), at(0), &message("a0"));
    let cost = one.allocated();
    let mut cache = Cache::new(3 * cost);
    let names = ["a0", "a1", "a2", "a3"];
    for name in &names[..3] {
        cache.put(&key(name), at(0), &message(name));
    }
    assert!(ttls(&mut cache, "a0", at(1)).is_some());
    cache.put(&key("a3"), at(1), &message("a3"));
    let there = names.map(|name| ttls(&mut cache, name, at(1)).is_some());
    assert_eq!(there, [true, false, true, true]);
    assert_eq!((cache.allocated(), cache.order.len()), (3 * cost, 3));
    // Cached once more, it replaces itself.
    cache.put(&key("a3"), at(2), &message("a3"));
    assert_eq!((cache.allocated(), cache.order.len()), (3 * cost, 3));
    cache.flush();
    assert_eq!((cache.allocated(), cache.order.len(), cache.entries.len()), (0, 0, 0));
    let mut off = Cache::new(0);
    off.put(&key("a0"), at(0), &message("a0"));
    assert_eq!(off.allocated(), 0);
    let mut tiny = Cache::new(cost - 1);
    tiny.put(&key("a0"), at(0), &message("a0"));
    assert_eq!((tiny.allocated(), tiny.order.len()), (0, 0));
}
