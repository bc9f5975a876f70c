//! Ids, generations and eviction.

use super::*;

fn key(port: u16) -> FlowKey {
    FlowKey {
        protocol: Protocol::Tcp,
        guest: SocketAddr::from(([10, 0, 2, 15], port)),
        remote: SocketAddr::from(([192, 0, 2, 1], 80)),
    }
}

/// Something with a key.
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
    let a = table.insert(|_| Named(key(1), "a"));
    let b = table.insert(|_| Named(key(2), "b"));
    assert_eq!((table.find(&key(1)), table.find(&key(2)), table.find(&key(3))), (Some(a), Some(b), None));
    assert_eq!(table.remove(a), Some(Named(key(1), "a")));
    assert_eq!((table.get(a), table.find(&key(1)), table.len()), (None, None, 1));
    let c = table.insert(|_| Named(key(3), "c"));
    assert_eq!(c.index, a.index, "the slot is used again");
    assert_ne!(c, a, "under another generation");
    assert_eq!((table.get(a), table.get(c)), (None, Some(&Named(key(3), "c"))));
    assert_eq!(table.remove(a), None);
}

#[test]
fn families_with_the_same_bytes_differ() {
    let mut table = FlowTable::new([1; 16]);
    let v4 = FlowKey { guest: "1.2.3.4:5".parse().unwrap(), remote: "1.2.3.4:5".parse().unwrap(), ..key(1) };
    let v6 = FlowKey {
        guest: "[102:304::]:5".parse().unwrap(),
        remote: "[102:304::]:5".parse().unwrap(),
        protocol: Protocol::Tcp,
    };
    table.insert(|_| Named(v4, 4));
    assert_eq!(table.find(&v6), None);
}

#[test]
fn victim_is_bounded_and_ranked() {
    let mut table = FlowTable::new([1; 16]);
    let ids: Vec<_> = (0..100).map(|i| table.insert(|_| Named(key(i), u64::from(i)))).collect();
    assert_eq!(table.victim(100, |f| (f.1 < 50).then_some(f.1)), Some(ids[49]));
    assert_eq!(table.victim(100, |_| None), None);
    let first = table.victim(10, |f| Some(f.1)).unwrap();
    let second = table.victim(10, |f| Some(f.1)).unwrap();
    assert_ne!(first, second, "the sweep moves on");
}
