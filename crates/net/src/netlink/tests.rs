//! Requests of rtnetlink, without a namespace of one's own; their effects are tested by the command's
//! namespace tests, which look at the outcome with other programs.

use super::*;

#[test]
fn the_broadcast_address_has_all_host_bits_set() {
    for (address, prefix_len, expected) in [
        ([10, 0, 2, 15], 24, [10, 0, 2, 255]),
        ([10, 0, 2, 15], 30, [10, 0, 2, 15]),
        ([172, 16, 1, 1], 12, [172, 31, 255, 255]),
        ([1, 2, 3, 4], 32, [1, 2, 3, 4]),
    ] {
        assert_eq!(
            broadcast(address.into(), prefix_len),
            Ipv4Addr::from(expected),
            "{address:?}/{prefix_len}"
        );
    }
}

#[test]
fn the_kernel_s_refusal_comes_back_as_its_error_number() {
    let netlink = Netlink::open().unwrap();
    assert_eq!(netlink.index_of("lo"), Ok(1));
    assert_eq!(netlink.index_of("no-such-link"), Err(Errno::NODEV));
    // Nothing exists at this index, so nothing can be changed by this request.
    assert!(matches!(netlink.set_up(0x7fff_fff0), Err(Errno::NODEV | Errno::PERM)));
}
