//! Ids, generations and eviction.

use super::*;
use crate::flow::{Endpoint, Protocol};
use std::net::SocketAddr;

fn key(port: u16) -> FlowKey {
    FlowKey {
        protocol: Protocol::Tcp,
        guest: Endpoint::new([10, 0, 2, 15].into(), port),
        remote: Endpoint::new([192, 0, 2, 1].into(), 80),
    }
}

/// A table entry with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Named<T>(FlowKey, T);

impl<T> Keyed for Named<T> {
    fn key(&self) -> &FlowKey {
        &self.0
    }
}

#[test]
fn finds_by_key_and_by_id_until_removed() {
    let mut table = FlowTable::new([1; 16]);
    let a = table.insert(0, Instant::ZERO, |_| Named(key(1), "a"));
    let b = table.insert(0, Instant::ZERO, |_| Named(key(2), "b"));
    assert_eq!((table.find(&key(1)), table.find(&key(2)), table.find(&key(3))), (Some(a), Some(b), None));
    assert_eq!(table.remove(a), Some(Named(key(1), "a")));
    assert_eq!((table.get(a), table.find(&key(1)), table.len()), (None, None, 1));
    let c = table.insert(0, Instant::ZERO, |_| Named(key(3), "c"));
    assert_eq!(c.index, a.index, "the slot is used again");
    assert_ne!(c, a, "under another generation");
    assert_eq!((table.get(a), table.get(c)), (None, Some(&Named(key(3), "c"))));
    assert_eq!(table.remove(a), None);
}

#[test]
fn families_with_the_same_bytes_differ() {
    let mut table = FlowTable::new([1; 16]);
    let v4 = FlowKey {
        guest: "1.2.3.4:5".parse::<SocketAddr>().unwrap().into(),
        remote: "1.2.3.4:5".parse::<SocketAddr>().unwrap().into(),
        ..key(1)
    };
    let v6 = FlowKey {
        guest: "[102:304::]:5".parse::<SocketAddr>().unwrap().into(),
        remote: "[102:304::]:5".parse::<SocketAddr>().unwrap().into(),
        protocol: Protocol::Tcp,
    };
    table.insert(0, Instant::ZERO, |_| Named(v4, 4));
    assert_eq!(table.find(&v6), None);
}

#[test]
fn the_victim_is_the_worst_of_those_unused_longest() {
    let at = Instant::from_ms;
    let mut table = FlowTable::new([1; 16]);
    let ids: Vec<_> =
        (0..100).map(|i| table.insert(usize::from(i) % 2, at(i.into()), |_| Named(key(i), i))).collect();
    let oldest = |table: &FlowTable<Named<u16>>, now| table.victim(at(now), 1, |_, idle| Some(idle));
    assert_eq!(oldest(&table, 200), Some(ids[0]));
    assert_eq!(table.victim(at(200), 1, |f, idle| Some((f.1 % 2, idle))), Some(ids[1]), "the rank decides");
    assert_eq!(table.victim(at(200), 1, |f, idle| (f.1 % 2 == 1).then_some(idle)), Some(ids[1]));
    assert_eq!(table.victim(at(200), 1, |_, _| None::<u64>), None);
    // Touched, and of another list by now.
    table.touch(ids[0], 0, at(300));
    table.touch(ids[1], 3, at(301));
    assert_eq!(oldest(&table, 400), Some(ids[2]));
    assert_eq!(table.victim(at(400), 1, |f, _| (f.1 < 2).then_some(f.1)), Some(ids[1]));
    // Victims come in the order of last use, whatever is removed in between.
    table.remove(ids[4]);
    table.remove(ids[99]);
    table.touch(ids[99], 0, at(500));
    let mut order = Vec::new();
    while let Some(id) = oldest(&table, 1000) {
        order.push(table.remove(id).expect("there").1);
    }
    let expected: Vec<_> = (2..99).filter(|&i| i != 4).chain([0, 1]).collect();
    assert_eq!(order, expected);
}

#[test]
fn a_flow_without_index_is_found_by_its_id_alone() {
    let mut table = FlowTable::new([1; 16]);
    let indexed = table.insert(0, Instant::ZERO, |_| Named(key(1), "indexed"));
    let twins = [0, 1].map(|_| table.insert_unindexed(1, Instant::ZERO, |_| Named(key(1), "carried")));
    assert_eq!((table.len(), table.find(&key(1))), (3, Some(indexed)));
    assert_eq!(table.remove(twins[0]), Some(Named(key(1), "carried")));
    assert_eq!((table.len(), table.find(&key(1))), (2, Some(indexed)));
    assert_eq!(table.remove(indexed), Some(Named(key(1), "indexed")));
    assert_eq!((table.find(&key(1)), table.get(twins[1])), (None, Some(&Named(key(1), "carried"))));
}
