//! Seeds survive their way to the agent, and no bytes make an impossible one.

use super::*;

fn seed(guest: &str, remote: &str) -> Seed {
    Seed {
        ends: Ends { guest: guest.parse().unwrap(), remote: remote.parse().unwrap() },
        snd_nxt: 0xffff_fff0,
        snd_wnd: 1 << 16,
        snd_wnd_max: 1 << 17,
        snd_wl1: 41,
        rcv_nxt: 77,
        rcv_wup: 70,
        rcv_wnd: 4096,
        mss: 1460,
        scales: Some(Scales { snd: 7, rcv: 8 }),
        sack: true,
    }
}

const V4: (&str, &str) = ("10.0.2.15:40000", "192.0.2.7:443");
const V6: (&str, &str) = ("[fd00::15]:40000", "[2001:db8::7]:443");

#[test]
fn a_seed_survives_the_way_to_the_agent() {
    for (guest, remote) in [V4, V6] {
        let whole = seed(guest, remote);
        assert_eq!(Seed::decode(&whole.encode()), Some(whole));
        let bare = Seed { scales: None, sack: false, snd_wnd: 1, snd_wnd_max: 65535, ..whole };
        assert_eq!(Seed::decode(&bare.encode()), Some(bare));
    }
}

#[test]
fn an_impossible_seed_is_refused() {
    let valid = seed(V4.0, V4.1);
    let ends = |guest: &str, remote: &str| Seed { ends: seed(guest, remote).ends, ..valid };
    for (what, refused) in [
        ("no address", ends("0.0.0.0:1", V4.1)),
        ("broadcast", ends(V4.0, "255.255.255.255:1")),
        ("multicast", ends(V6.0, "[ff02::1]:1")),
        ("no port", ends("10.0.2.15:0", V4.1)),
        ("no remote port", ends(V4.0, "192.0.2.7:0")),
        ("to itself", ends("10.0.2.15:1", "10.0.2.15:2")),
        ("segment", Seed { mss: 10, ..valid }),
        ("shift", Seed { scales: Some(Scales { snd: 15, rcv: 8 }), ..valid }),
        ("window beyond the largest", Seed { snd_wnd: valid.snd_wnd_max + 1, ..valid }),
        ("window beyond its scale", Seed { scales: None, ..valid }),
        ("window of ours beyond its scale", Seed { rcv_wnd: (65535 << 8) + 1, ..valid }),
        ("received beyond the window", Seed { rcv_nxt: valid.rcv_wup + valid.rcv_wnd + 1, ..valid }),
        ("received before the window", Seed { rcv_nxt: valid.rcv_wup - 1, ..valid }),
        ("segment from beyond the window", Seed { snd_wl1: valid.rcv_nxt + valid.rcv_wnd + 1, ..valid }),
    ] {
        assert_eq!(Seed::decode(&refused.encode()), None, "{what}");
    }
}
