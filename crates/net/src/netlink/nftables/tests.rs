//! Messages of nf_tables: their form; the kernel's answers in a namespace of the test.

use super::*;
use brodo_testns::{in_namespace, ip};

#[test]
fn attributes_are_padded_and_nested_ones_flagged() {
    let inner = Attributes::default().text(1, "abc").number(2, 5);
    let bytes = Attributes::default().nested(3, &inner).0;
    let head = |length: u16, kind: u16| [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    let expected =
        [head(20, 3 | NESTED), head(8, 1), b"abc\0".to_vec(), head(8, 2), vec![0, 0, 0, 5]].concat();
    assert_eq!(bytes, expected);
}

#[test]
fn the_kernel_takes_a_batch_or_nothing_of_it() {
    in_namespace("netlink::nftables::tests::the_kernel_takes_a_batch_or_nothing_of_it", || {
        ip("link add v0 type veth peer name v1");
        let nftables = Nftables::open().unwrap();
        let table = || Batch::new("t");
        let parts = [KeyPart::IPV4, KeyPart::PORT];
        nftables.commit(table().wake_table().add_set("s", &parts, 2, 1)).unwrap();
        let key = |last| [10, 0, 0, last, 0, 80, 0, 0];
        nftables.commit(table().add_element("s", &key(1))).unwrap();
        // The second of these is not there, so the first stays.
        let both = table().delete_element("s", &key(1)).delete_element("s", &key(2));
        assert_eq!(nftables.commit(both), Err(Errno::NOENT));
        nftables.commit(table().delete_element("s", &key(1))).unwrap();
        // The set has room for two.
        let three = (1..4).fold(table(), |batch, last| batch.add_element("s", &key(last)));
        assert_eq!(nftables.commit(three), Err(Errno::NFILE));
        assert_eq!(nftables.commit(table().add_rule("c", &[Expression::Forward(1)])), Err(Errno::NOENT));
        nftables.commit(table().add_chain("c", Hook::Egress, "v0")).unwrap();
        nftables.commit(table().add_rule("c", &[Expression::Forward(1)])).unwrap();
        nftables.commit(table().delete_table()).unwrap();
        assert_eq!(nftables.commit(table().delete_table()), Err(Errno::NOENT));
    });
}
