//! Fragments both ways: reassembly of the guest's fragments, fragmentation of datagrams above the link's MTU.

use brodo_core::counters::DropReason;
use brodo_core::fragments::DATAGRAMS_MAX;
use brodo_core::link::LinkCaps;
use brodo_sim::fragments::cut;
use brodo_sim::packet::UdpDatagram;
use brodo_sim::rng::Rng;
use brodo_sim::script::{Script, Setup};

fn dropped(t: &Script, reason: DropReason) -> u64 {
    t.driver.stack.counters().dropped(reason)
}

/// The fragments of a line of the guest's on a link of 1500 bytes.
fn pieces(t: &mut Script, line: &str, ident: u32) -> Vec<Vec<u8>> {
    let frame = t.frame(line);
    cut(&frame, 1448, ident)
}

#[test]
fn a_large_datagram_leaves_whole() {
    Script::each(|t| {
        t.connection(5000, 4433);
        for (ident, len) in [(1, 1500), (2, 8000), (3, 65_000)] {
            let frames = pieces(t, &format!("UDP data={len}"), ident);
            t.guest_raw_batch(&frames);
            let fields = t.host_datagram_fields().expect("sent");
            assert!(!fields.dont_fragment, "the host's kernel may do what the guest's did");
            t.host_got_datagram(len);
        }
        // The flow is that of small ones.
        t.guest("UDP data=100");
        t.host_got_datagram(100);
        assert_eq!(t.driver.stack.flows(), 1);
        assert_eq!(t.driver.stack.counters().drops().count(), 0);
    });
}

#[test]
fn in_any_order_and_mixed_with_another() {
    Script::each(|t| {
        t.connection(5000, 4433);
        let mut rng = Rng::new(7);
        for round in 0..20u32 {
            let one = pieces(t, "UDP data=6000", 2 * round);
            let other = pieces(t, "UDP data=4000", 2 * round + 1);
            let mut frames = [one, other].concat();
            for i in (1..frames.len()).rev() {
                frames.swap(i, (rng.next() % (i as u64 + 1)) as usize);
            }
            t.guest_raw_batch(&frames);
            let mut lens = [t.host_takes_datagram().0.len(), t.host_takes_datagram().0.len()];
            lens.sort_unstable();
            assert_eq!(lens, [4000, 6000]);
        }
        assert_eq!(t.driver.stack.counters().drops().count(), 0);
    });
}

#[test]
fn a_large_echo_there_and_back() {
    Script::each(|t| {
        let frames = pieces(t, "ICMP echo-request id=7 seq=1 data=8000", 1);
        t.guest_raw_batch(&frames);
        t.host_answers_echo();
        t.expect("ICMP echo-reply id=7 seq=1 data=8000");
        t.expect_nothing();
    });
}

#[test]
fn a_datagram_above_the_mtu_reaches_the_guest_in_fragments() {
    Script::each(|t| {
        t.connection(5000, 4433);
        t.guest("UDP data=1");
        let max = if t.is_v6() { 1452 } else { 1472 };
        // The link's end joins them and compares.
        for len in [max, max + 1, 1480, 2900, 8000, 65_000] {
            t.host_sends_datagram(len);
            t.expect(&format!("UDP data={len} gso=none"));
        }
        // Coalesced ones too large for the link, the last of which is not.
        t.host_sends_raw(&[7; 4100], Some(2000));
        for len in [2000, 2000, 100] {
            t.expect(&format!("UDP data={len}"));
        }
        t.expect_nothing();
        assert_eq!(t.driver.stack.counters().drops().count(), 0);
    });
}

/// A link of 65,520 bytes, wider than a bridge behind it in the guest.
fn wide(caps: LinkCaps) -> Setup {
    let mut setup = Setup { caps, ..Setup::default() };
    setup.config.mtu = 65_520;
    setup
}

#[test]
fn a_guest_gets_no_longer_packets_than_it_has_buffers_for() {
    let caps = LinkCaps { packet_max: Some(1504), ..LinkCaps::default() };
    Script::each_with(&wide(caps), |t| {
        t.connection(5000, 4433);
        t.guest("UDP data=1");
        assert_eq!(frames_of(t, "UDP data=4000", |t| t.host_sends_datagram(4000)), 3);
        // Its own frames may be longer.
        let echo = |t: &mut Script| {
            t.guest("ICMP echo-request id=7 seq=1 data=4000");
            t.host_answers_echo();
        };
        assert_eq!(frames_of(t, "ICMP echo-reply id=7 seq=1 data=4000", echo), 3);
        for (port, mss) in [(5001, 65_000), (5002, 1400)] {
            t.connection(port, 80);
            t.establish_with(&format!("win=65535 mss={mss}"));
            t.host_sends(3000);
            let most = mss.min(if t.is_v6() { 1444 } else { 1464 });
            t.expect(&format!("ACK seq=1 data={most}"));
            t.expect(&format!("ACK seq={} data={most}", 1 + most));
            t.expect(&format!("ACK|PSH seq={} data={}", 1 + 2 * most, 3000 - 2 * most));
            t.expect_nothing();
        }
    });
}

/// The identification of the next frame, which routers may fragment.
fn fragmentable(t: &Script) -> u16 {
    let (dont_fragment, ident) = t.next_ident().expect("IPv4");
    assert!(!dont_fragment, "ident {ident}");
    ident
}

#[test]
fn a_router_in_the_guest_may_fragment_long_datagrams() {
    Script::each_with(&wide(LinkCaps::default()), |t| {
        let short = (!t.is_v6()).then_some((true, 0));
        t.connection(5000, 4433);
        t.guest("UDP data=1");
        t.host_sends_datagram(548);
        assert_eq!(t.next_ident(), short);
        t.expect("UDP data=548");
        let mut idents = Vec::new();
        for len in [549, 4000, 4000, 65_000] {
            t.host_sends_datagram(len);
            idents.extend((!t.is_v6()).then(|| fragmentable(t)));
            t.expect(&format!("UDP data={len}"));
        }
        for (data, long) in [(548, false), (549, true), (4000, true)] {
            t.guest(&format!("ICMP echo-request id=7 seq=1 data={data}"));
            t.host_answers_echo();
            if long && !t.is_v6() {
                idents.push(fragmentable(t));
            } else {
                assert_eq!(t.next_ident(), short);
            }
            t.expect(&format!("ICMP echo-reply id=7 seq=1 data={data}"));
        }
        assert!(idents.windows(2).all(|two| two[1] == two[0] + 1), "{idents:?}");
        // TCP measures the path.
        t.connection(5001, 80);
        t.establish_with("win=65535 mss=40000");
        t.host_sends(5000);
        assert_eq!(t.next_ident(), short);
        t.expect("ACK data=5000");
    });
}

#[test]
fn each_datagram_of_a_super_datagram_has_an_identification() {
    let mut t = Script::new(wide(LinkCaps { checksum: true, tso: true, uso: true, packet_max: None }));
    t.connection(5000, 4433);
    t.guest("UDP data=1");
    // Seven of one frame, then three; the guest numbers them from the first of each on.
    t.host_sends_raw(&[7; 7 * 1000 - 1], Some(1000));
    let first = fragmentable(&t);
    t.expect("UDP data=6999 gso=1000");
    t.host_sends_raw(&[7; 3000], Some(1000));
    assert_eq!(fragmentable(&t), first + 7);
    t.expect("UDP data=3000 gso=1000");
    t.host_sends_datagram(1000);
    assert_eq!(fragmentable(&t), first + 10);
    t.expect("UDP data=1000");
    // Short ones in a long frame.
    t.host_sends_raw(&[7; 3000], Some(500));
    assert_eq!(t.next_ident(), Some((true, 0)));
    t.expect("UDP data=3000 gso=500");
}

/// Frames in which the answer of `send` reaches the guest, as the line `expected`.
fn frames_of(t: &mut Script, expected: &str, send: impl Fn(&mut Script)) -> usize {
    t.link_credit(Some(0));
    send(t);
    t.expect_nothing();
    let frames = (1..100).find(|_| {
        t.link_credit(Some(1));
        t.has_frames()
    });
    t.link_credit(None);
    t.expect(expected);
    t.expect_nothing();
    frames.expect("the answer arrives")
}

#[test]
fn a_narrow_link_in_the_guest_gets_what_it_carries() {
    Script::each_with(&wide(LinkCaps::default()), |t| {
        let other = t.connection(5001, 4433);
        t.guest("UDP data=1");
        t.connection(5000, 4433);
        t.guest("UDP data=1");
        let datagram = |t: &mut Script| t.host_sends_datagram(4000);
        datagram(t);
        let got = t.expect_datagram();
        let frame = got.to_frame(t.macs_to_guest());
        let unknown = UdpDatagram { dst: t.endpoints().1, ..got.clone() }.to_frame(t.macs_to_guest());
        // IPv4 is fragmented by the router. No path of IPv6 has less than 1280 bytes, and none gets wider.
        let v6 = t.is_v6();
        let reports = [(&unknown, 1500, 1), (&frame, 1279, 1), (&frame, 1500, 3), (&frame, 9000, 3)];
        for (quoted, mtu, frames) in reports {
            t.guest_reports_too_big(quoted, mtu);
            let frames = if v6 { frames } else { 1 };
            assert_eq!(frames_of(t, "UDP data=4000", datagram), frames, "{mtu}");
        }
        // A fragment is too big for a link further on: the first one names the flow.
        for (nth, mtu, frames) in [(1, 1280, 3), (0, 1400, 3), (0, 1280, 4)] {
            if v6 {
                t.guest_reports_too_big(&cut(&frame, 1448, 1)[nth], mtu);
                assert_eq!(frames_of(t, "UDP data=4000", datagram), frames, "{mtu}");
            }
        }
        // The next question of a program comes from another port.
        t.select(other);
        assert_eq!(frames_of(t, "UDP data=4000", datagram), if v6 { 4 } else { 1 });
        assert_eq!(t.driver.stack.counters().dropped(DropReason::UnknownIcmp), u64::from(v6));
        assert_eq!(t.driver.stack.flows(), 2, "no flow has ended");
        // The path may have changed.
        t.advance_ms(600_000);
        t.guest("UDP data=1");
        assert_eq!(frames_of(t, "UDP data=4000", datagram), 1);
    });
}

#[test]
fn echo_replies_and_answers_of_the_gateway_fit_a_narrow_link_too() {
    Script::each_with(&wide(LinkCaps::default()), |t| {
        let (guest, remote) = t.endpoints();
        let gateway = if t.is_v6() { "[fd00::2]:7" } else { "10.0.2.2:7" };
        let gateway = t.connection_to(guest, gateway.parse().expect("an address"));
        let own = |t: &mut Script| t.guest("ICMP echo-request id=7 seq=1 data=4000");
        let echo = |t: &mut Script| {
            own(t);
            t.host_answers_echo();
        };
        let (reply, frames) = ("ICMP echo-reply data=4000", if t.is_v6() { 3 } else { 1 });
        own(t);
        let frame = t.expect_icmp().to_frame(t.macs_to_guest());
        t.guest_reports_too_big(&frame, 1500);
        t.connection_to(guest, remote);
        assert_eq!(frames_of(t, reply, echo), frames);
        t.advance_ms(600_000);
        echo(t);
        let frame = t.expect_icmp().to_frame(t.macs_to_guest());
        t.guest_reports_too_big(&frame, 1500);
        assert_eq!(frames_of(t, reply, echo), frames);
        t.select(gateway);
        t.link_credit(Some(frames));
        own(t);
        t.expect(reply);
    });
}

#[test]
fn a_narrow_link_before_a_published_port_gets_what_it_carries() {
    Script::each_with(&wide(LinkCaps::default()), |t| {
        t.guest("UDP data=1");
        t.connection(5000, 4433);
        t.peer_sends_first(4000, None).expect("taken");
        let frame = t.expect_datagram().to_frame(t.macs_to_guest());
        t.link_credit(Some(1));
        t.peer_sends_first(4000, None).expect("taken");
        t.expect("UDP data=4000");
        // Reported between two datagrams of which the second waits, and in the middle of one.
        t.peer_sends_first(4000, None).expect("taken");
        t.expect_nothing();
        for mtu in [1500, 1280] {
            t.guest_reports_too_big(&frame, mtu);
            t.link_credit(Some(1));
        }
        if t.is_v6() {
            // 1448 and 1232 bytes are there, of 4008.
            t.expect_nothing();
            t.link_credit(Some(2));
        }
        t.expect("UDP data=4000");
        t.expect_nothing();
    });
}

#[test]
fn without_credit_the_next_fragment_waits() {
    Script::each(|t| {
        t.connection(5000, 4433);
        t.guest("UDP data=1");
        t.link_credit(Some(0));
        t.host_sends_datagram(5000);
        t.host_sends_datagram(10);
        for _ in 0..3 {
            t.link_credit(Some(1));
            t.expect_nothing();
        }
        t.link_credit(Some(1));
        t.expect("UDP data=5000");
        t.expect_nothing();
        t.link_credit(None);
        t.expect("UDP data=10");
        // The same for an echo.
        let frames = pieces(t, "ICMP echo-request id=7 seq=1 data=3000", 1);
        t.guest_raw_batch(&frames);
        t.link_credit(Some(0));
        t.host_answers_echo();
        t.link_credit(Some(2));
        t.expect_nothing();
        t.link_credit(Some(1));
        t.expect("ICMP echo-reply id=7 seq=1 data=3000");
        assert_eq!(t.driver.stack.counters().drops().count(), 0);
    });
}

#[test]
fn incomplete_datagrams_expire_with_an_icmp_error() {
    Script::each(|t| {
        t.connection(5000, 4433);
        let frames = pieces(t, "UDP data=4000", 1);
        t.guest_raw_batch(&frames[..2]);
        let other = pieces(t, "UDP data=4000", 2);
        t.guest_raw_batch(&other[1..]);
        t.advance_ms(29_000);
        t.expect_nothing();
        t.advance_ms(32_000);
        // Only a packet whose first fragment has arrived can be quoted.
        t.expect("ICMP reassembly-time-exceeded");
        t.expect_nothing();
        assert_eq!(dropped(t, DropReason::FragmentTimeout), 2);
        t.guest_raw_batch(&frames[2..]);
        assert!(!t.has_socket());
    });
}

#[test]
fn an_overlap_costs_the_datagram() {
    Script::each(|t| {
        t.connection(5000, 4433);
        let frames = pieces(t, "UDP data=4000", 1);
        let mut evil = frames[1].clone();
        *evil.last_mut().expect("not empty") ^= 1;
        t.guest_raw_batch(&[frames[0].clone(), frames[1].clone(), evil, frames[2].clone()]);
        assert!(!t.has_socket());
        assert_eq!(dropped(t, DropReason::FragmentOverlap), 2);
        t.advance_ms(70_000);
        t.expect_nothing();
        assert_eq!(dropped(t, DropReason::FragmentTimeout), 0, "counted already");
    });
}

#[test]
fn too_many_at_a_time_push_out_the_oldest() {
    Script::each(|t| {
        t.connection(5000, 4433);
        let all: Vec<_> = (0..40).map(|ident| pieces(t, "UDP data=2000", ident)).collect();
        for frames in &all {
            t.guest_raw(&frames[0]);
            t.advance_ms(1);
        }
        assert_eq!(dropped(t, DropReason::FragmentEvicted), 40 - DATAGRAMS_MAX as u64);
        t.guest_raw(&all[39][1]);
        assert_eq!(t.host_takes_datagram().0.len(), 2000);
        assert_eq!(t.driver.stack.memory_used(), 0);
    });
}

#[test]
fn fragments_of_others_are_refused() {
    Script::each(|t| {
        let syn = t.frame("SYN win=65535 mss=1460");
        for frame in cut(&syn, 8, 1) {
            t.guest_raw(&frame);
        }
        assert_eq!(dropped(t, DropReason::Fragment), 3);
        let (mut guest, remote) = t.endpoints();
        guest.set_ip(if t.is_v6() {
            "2001:db8:ffff::1".parse().expect("an address")
        } else {
            "10.0.2.99".parse().expect("an address")
        });
        t.connection_to(guest, remote);
        let frames = pieces(t, "UDP data=3000", 2);
        t.guest_raw_batch(&frames);
        assert_eq!(dropped(t, DropReason::SpoofedSource), 3);
        t.expect_nothing();
    });
}

/// Fragments of an IPv6 frame whose fragmentable part begins with destination options (RFC 8200, section
/// 4.5), as Linux sends them for a socket with IPV6_DSTOPTS.
fn pieces_with_options(frame: &[u8], piece: usize, ident: u32) -> Vec<Vec<u8>> {
    let mut whole = [&frame[..54], &[frame[20], 0, 1, 4, 0, 0, 0, 0], &frame[54..]].concat();
    whole[20] = 60;
    let len = (whole.len() - 54) as u16;
    whole[18..20].copy_from_slice(&len.to_be_bytes());
    cut(&whole, piece, ident)
}

#[test]
fn destination_options_may_stand_before_the_protocol() {
    let mut t = Script::v6();
    for (ident, line) in [(1, "ICMP echo-request id=7 seq=1 data=3000"), (2, "UDP data=3000")] {
        t.connection(5000, 4433);
        let frame = t.frame(line);
        t.guest_raw_batch(&pieces_with_options(&frame, 1448, ident));
        assert!(!t.host_takes_datagram().0.is_empty());
    }
    assert_eq!(t.driver.stack.counters().drops().count(), 0);
    // No other protocol hides behind them; and the memory is there for the next.
    let syn = t.frame("SYN win=65535 mss=1460");
    for ident in 3..40 {
        t.guest_raw_batch(&pieces_with_options(&syn, 8, ident));
    }
    assert_eq!(dropped(&t, DropReason::Fragment), 37);
    assert_eq!(t.driver.stack.counters().drops().count(), 1);
    assert!(t.take_all().is_empty());
    let frame = t.frame("UDP data=3000");
    t.guest_raw_batch(&pieces_with_options(&frame, 1448, 40));
    assert_eq!(t.host_takes_datagram().0.len(), 3000);
}

#[test]
fn a_spoilt_one_is_found_by_its_checksum() {
    Script::each(|t| {
        t.connection(5000, 4433);
        let mut frames = pieces(t, "UDP data=3000", 1);
        *frames[1].last_mut().expect("not empty") ^= 1;
        t.guest_raw_batch(&frames);
        assert!(!t.has_socket());
        assert_eq!(dropped(t, DropReason::UdpChecksum), 1);
    });
}
