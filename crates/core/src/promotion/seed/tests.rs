//! Seeds that no connection can have.

use super::{InvalidSeed, SeedFields, TcpSeed, WindowScales};

/// A change that makes a seed impossible.
type Change = fn(&mut SeedFields);

fn fields() -> SeedFields {
    SeedFields {
        guest: "10.0.2.15:40000".parse().expect("an address"),
        remote: "198.51.100.7:80".parse().expect("an address"),
        snd_una: u32::MAX - 1,
        snd_nxt: 3,
        snd_wnd: 1 << 20,
        wnd_max: 2 << 20,
        snd_wl1: 7,
        rcv_nxt: 5,
        rcv_wup: u32::MAX - 4,
        rcv_wnd: 100,
        mss: 1460,
        scales: Some(WindowScales { snd: 7, rcv: 7 }),
        sack: true,
    }
}

#[test]
fn numbers_wrap() {
    let seed = TcpSeed::new(fields()).expect("valid");
    assert_eq!((seed.fields().flight(), seed.window()), (5, 90));
}

#[test]
fn impossible_states_are_no_seeds() {
    let changes: [(&str, Change); 11] = [
        ("two families", |f| f.remote = "[2001:db8::7]:80".parse().expect("an address")),
        ("port 0 of the guest", |f| f.guest.set_port(0)),
        ("port 0 of the peer", |f| f.remote.set_port(0)),
        ("no MSS", |f| f.mss = 0),
        ("a shift of 15 of theirs", |f| f.scales = Some(WindowScales { snd: 15, rcv: 7 })),
        ("a shift of 15 of ours", |f| f.scales = Some(WindowScales { snd: 7, rcv: 15 })),
        ("SND.NXT before SND.UNA", |f| f.snd_nxt = f.snd_una - 1),
        ("a window larger than the largest", |f| f.snd_wnd = f.wnd_max + 1),
        ("a window that no field can say", |f| f.wnd_max = (65_535 << 7) + 1),
        ("a window of ours that no field can say", |f| f.rcv_wnd = (65_535 << 7) + 1),
        ("more received than the window had", |f| f.rcv_wnd = 9),
    ];
    for (name, change) in changes {
        let mut changed = fields();
        change(&mut changed);
        assert_eq!(TcpSeed::new(changed), Err(InvalidSeed), "{name}");
    }
    let unscaled = SeedFields { scales: None, ..fields() };
    assert_eq!(TcpSeed::new(unscaled), Err(InvalidSeed), "windows of a MiB without scaling");
}

#[test]
fn a_seed_continues_one_of_the_same_ends_and_options() {
    let seed = TcpSeed::new(fields()).expect("valid");
    let later = SeedFields { snd_una: 3, rcv_nxt: 60, ..fields() };
    assert!(TcpSeed::new(later).is_ok_and(|later| later.continues(&seed)));
    let changes: [Change; 5] = [
        |f| f.guest.set_port(1),
        |f| f.remote.set_port(1),
        |f| f.mss = 1400,
        |f| f.scales = Some(WindowScales { snd: 8, rcv: 7 }),
        |f| f.sack = false,
    ];
    for change in changes {
        let mut changed = fields();
        change(&mut changed);
        assert!(TcpSeed::new(changed).is_ok_and(|other| !other.continues(&seed)), "{changed:?}");
    }
}
