//! Seeds survive their way to the agent, and no bytes make an impossible one.

use super::*;

fn fields(guest: &str, remote: &str) -> SeedFields {
    SeedFields {
        guest: guest.parse().unwrap(),
        remote: remote.parse().unwrap(),
        snd_una: 0xffff_fff0,
        snd_nxt: 0xffff_fff0,
        snd_wnd: 1 << 16,
        wnd_max: 1 << 17,
        snd_wl1: 41,
        rcv_nxt: 77,
        rcv_wup: 70,
        rcv_wnd: 4096,
        mss: 1460,
        scales: Some(WindowScales { snd: 7, rcv: 8 }),
        sack: true,
    }
}

const V4: (&str, &str) = ("10.0.2.15:40000", "192.0.2.7:443");
const V6: (&str, &str) = ("[fd00::15]:40000", "[2001:db8::7]:443");

#[test]
fn a_seed_survives_the_way_to_the_agent() {
    for (guest, remote) in [V4, V6] {
        let whole = fields(guest, remote);
        let bare = SeedFields { scales: None, sack: false, snd_wnd: 1, wnd_max: 65535, ..whole };
        for fields in [whole, bare] {
            let seed = TcpSeed::new(fields).unwrap();
            assert_eq!(decode(&encode(&seed)), Some(seed));
        }
    }
}

#[test]
fn an_impossible_seed_is_refused() {
    let valid = fields(V4.0, V4.1);
    for (what, refused) in [
        ("no address", fields("0.0.0.0:1", V4.1)),
        ("broadcast", fields(V4.0, "255.255.255.255:1")),
        ("multicast", fields(V6.0, "[ff02::1]:1")),
        ("to itself", fields("10.0.2.15:1", "10.0.2.15:2")),
        ("segment", SeedFields { mss: 10, ..valid }),
        ("segment from beyond", SeedFields { snd_wl1: valid.rcv_nxt + valid.rcv_wnd + 1, ..valid }),
    ] {
        assert_eq!(decode(&encode(&TcpSeed::new(refused).unwrap())), None, "{what}");
    }
    let bytes = encode(&TcpSeed::new(valid).unwrap());
    // Each of these makes it one that no connection can have: a port, a shift, a window beyond its largest.
    for (at, value) in [(20, 0), (1, 15), (LEN - 22, 0xff)] {
        let mut changed = bytes;
        changed[at] = value;
        changed[at + 1] = if at == 20 { 0 } else { changed[at + 1] };
        assert_eq!(decode(&changed), None, "byte {at}");
    }
}
