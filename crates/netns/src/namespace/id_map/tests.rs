//! Maps as in /proc and their evaluation: the whole map kept, the range for ping.

use super::*;

#[test]
fn the_whole_map_is_kept() {
    assert_eq!(identity_of("         0          0 4294967295\n"), "0 0 4294967295\n");
    assert_eq!(identity_of("0 1000 1\n1 100000 65536\n"), "0 0 1\n1 1 65536\n");
}

#[test]
fn ping_is_for_every_group_there_is() {
    for (map, min, max) in [
        ("0 1000 1\n", 0, 0),
        ("1000 1000 1\n", 1000, 1000),
        ("0 0 4294967295\n", 0, i32::MAX as u32),
        ("0 1000 1\n1 100000 65536\n", 0, 65536),
        ("", 0, 0),
    ] {
        assert_eq!(groups_of(map), GroupRange { min, max }, "{map}");
    }
}
