//! The window of a socket that is read out.

use super::advertised;
use brodo_core::promotion::{SeedFields, TcpSeed, WindowScales};

/// A seed whose windows to the guest are scaled by seven.
fn seed() -> TcpSeed {
    let fields = SeedFields {
        guest: "10.0.2.15:40000".parse().unwrap(),
        remote: "192.0.2.1:443".parse().unwrap(),
        snd_una: 1,
        snd_nxt: 1,
        snd_wnd: 65_536,
        wnd_max: 65_536,
        snd_wl1: 1,
        rcv_nxt: 1000,
        rcv_wup: 1000,
        rcv_wnd: 65_535,
        mss: 1460,
        scales: Some(WindowScales { snd: 10, rcv: 7 }),
        sack: true,
    };
    TcpSeed::new(fields).unwrap()
}

const MOST: u32 = 65_535 << 7;

#[test]
fn a_window_larger_than_its_field_is_the_one_that_was_advertised() {
    assert_eq!(advertised(&seed(), 1100, 1000, MOST), (1000, MOST));
    assert_eq!(advertised(&seed(), 1100, 1000, 25_779_968), (1000, MOST));
    let wrapped = u32::MAX - 99;
    assert_eq!(advertised(&seed(), 900, wrapped, 25_779_968), (wrapped, MOST));
}

#[test]
fn bytes_beyond_the_advertised_window_leave_none() {
    assert_eq!(advertised(&seed(), MOST + 1000, 1000, 25_779_968), (1000, MOST));
    assert_eq!(advertised(&seed(), MOST + 1001, 1000, 25_779_968), (MOST + 1001, 0));
}
