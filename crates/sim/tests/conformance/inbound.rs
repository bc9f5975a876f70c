//! Inbound flows: the active open to the guest, the guest's answers, and their effect for the peer.

use brodo_core::config::HostLink;
use brodo_core::counters::DropReason;
use brodo_core::flow::owners::FlowOwners;
use brodo_core::host::{Close, HostError};
use brodo_core::link::{LinkCaps, NoCredit, RxFrame, RxMeta};
use brodo_core::memory::budget::Budget;
use brodo_core::stack::{Keys, Stack};
use brodo_core::wire::ethernet::MacAddr;
use brodo_sim::host::Call;
use brodo_sim::link::{GUEST_MAC, to_stack};
use brodo_sim::packet::{IcmpMessage, TcpSegment, flags, ip_frame};
use brodo_sim::script::{Script, Setup};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// The port that is published in the guest, and the peer's.
const PUBLISHED: u16 = 8080;
const PEER: u16 = 50_123;

/// Runs `body` over both families with a peer at a published port.
fn each(body: impl Fn(&mut Script)) {
    let mut setup = Setup::default();
    setup.config.guest_mac = Some(MacAddr(GUEST_MAC));
    Script::each_with(&setup, |t| {
        t.connection(PUBLISHED, PEER);
        body(t);
    });
}

/// The handshake.
fn established(t: &mut Script) {
    t.peer_connects().unwrap();
    t.expect("SYN seq=0");
    t.guest("SYN|ACK win=65535 mss=1460 wscale=7 sackok ack=1");
    t.expect("ACK seq=1 ack=1");
    t.expect_nothing();
}

#[test]
fn a_peer_that_connects_meets_the_guest_and_data_goes_both_ways() {
    each(|t| {
        t.peer_connects().unwrap();
        let mss = t.mss();
        t.expect(&format!("SYN seq=0 win>=1 mss={mss} wscale>=0 sackok"));
        t.guest("SYN|ACK win=65535 mss=1460 wscale=7 sackok ack=1");
        t.expect("ACK seq=1 ack=1 win>=65535");
        t.host_sends(500);
        t.expect("ACK|PSH seq=1 ack=1 data=500");
        t.guest("ACK|PSH data=1000");
        t.expect("ACK ack=1001");
        t.host_received(1000);
        t.host_eof();
        t.expect("FIN|ACK seq=501");
        t.guest("FIN|ACK");
        t.expect("ACK ack=1002");
        t.advance_ms(10_000);
        t.expect_nothing();
        t.expect_all_gone();
    });
}

#[test]
fn what_the_peer_sends_before_the_guest_has_accepted_waits() {
    each(|t| {
        t.peer_connects().unwrap();
        t.expect("SYN");
        t.host_sends(3000);
        t.expect_nothing();
        t.guest("SYN|ACK win=65535 mss=1000 ack=1");
        t.expect("ACK seq=1 ack=1 data=1000");
        t.expect("ACK seq=1001 data=1000");
        t.expect("ACK|PSH seq=2001 data=1000");
        t.guest("ACK");
        t.expect_nothing();
    });
}

#[test]
fn a_guest_where_nobody_listens_resets_the_peer() {
    each(|t| {
        t.peer_connects().unwrap();
        t.expect("SYN");
        t.guest("RST|ACK seq=0 ack=1");
        t.expect_nothing();
        t.host_closed(Some(Close::Reset));
        t.expect_all_gone();
    });
}

#[test]
fn a_reset_that_answers_nothing_of_ours_is_ignored() {
    each(|t| {
        t.peer_connects().unwrap();
        t.expect("SYN");
        t.guest("RST|ACK seq=0 ack=7");
        t.guest("RST seq=0");
        t.host_closed(None);
        t.guest("SYN|ACK seq=0 win=65535 mss=1460 ack=1");
        t.expect("ACK ack=1");
    });
}

#[test]
fn a_syn_that_is_lost_is_sent_again_and_a_silent_guest_ends_it() {
    each(|t| {
        t.peer_connects().unwrap();
        t.expect("SYN seq=0");
        for _ in 0..5 {
            t.expect_within_ms(60_000, "SYN seq=0 sackok");
        }
        t.advance_ms(120_000);
        t.expect_nothing();
        t.host_closed(Some(Close::Reset));
        t.expect_all_gone();
    });
}

#[test]
fn a_syn_ack_of_something_else_is_reset_and_the_call_stands() {
    each(|t| {
        t.peer_connects().unwrap();
        t.expect("SYN seq=0");
        t.guest("SYN|ACK seq=0 win=65535 ack=99");
        t.expect("RST seq=99");
        t.guest("ACK seq=1 ack=1");
        t.guest("SYN seq=0");
        t.expect_nothing();
        t.guest("SYN|ACK seq=0 win=65535 mss=1460 ack=1");
        t.expect("ACK seq=1 ack=1");
    });
}

#[test]
fn a_syn_ack_that_comes_again_is_acknowledged_again() {
    each(|t| {
        established(t);
        t.guest("SYN|ACK seq=0 ack=1");
        t.expect("ACK seq=1 ack=1");
        t.host_sends(10);
        t.expect("ACK|PSH seq=1 data=10");
    });
}

#[test]
fn a_guest_that_scales_no_windows_is_not_sent_scaled_ones() {
    each(|t| {
        t.peer_connects().unwrap();
        t.expect("SYN");
        // The script reads windows with the scale of our SYN; the guest has declined it.
        t.guest("SYN|ACK win=1000 mss=1460 ack=1");
        t.expect("ACK");
        t.host_sends(5000);
        t.expect("ACK|PSH seq=1 data=1000");
        t.expect_nothing();
    });
}

#[test]
fn without_credit_the_syn_goes_when_there_is_some() {
    each(|t| {
        t.link_credit(Some(0));
        t.peer_connects().unwrap();
        t.expect_nothing();
        t.link_credit(None);
        t.expect("SYN seq=0");
        t.guest("SYN|ACK win=65535 mss=1460 ack=1");
        t.expect("ACK");
    });
}

#[test]
fn two_connections_between_the_same_ends_are_refused_until_the_first_is_over() {
    each(|t| {
        established(t);
        assert_eq!(t.peer_connects(), Err(DropReason::EndsInUse));
        t.host_eof();
        t.expect("FIN|ACK seq=1");
        t.guest("FIN|ACK");
        t.expect("ACK ack=2");
        // In TIME-WAIT: a new one takes its place, with numbers that are higher.
        let before = t.stack_isn().unwrap();
        t.peer_connects().unwrap();
        t.expect("SYN seq=0");
        let ahead = t.stack_isn().unwrap().wrapping_sub(before);
        assert!((1..1 << 31).contains(&ahead), "{ahead}");
    });
}

/// RST, and a SYN from the same port before an event of either reaches brodo.
#[test]
fn a_peer_that_resets_and_connects_again_within_one_turn_is_not_refused() {
    each(|t| {
        established(t);
        t.host_breaks_unnoticed(100, false, HostError::Reset);
        let (before, first) = (t.stack_isn().unwrap(), t.socket());
        t.peer_connects().unwrap();
        t.expect("ACK|PSH seq=1 data=100");
        t.expect("RST|ACK seq=101");
        t.expect("SYN seq=0");
        let ahead = t.stack_isn().unwrap().wrapping_sub(before);
        assert!((101..1 << 31).contains(&ahead), "{ahead}");
        assert_eq!(t.driver.host.closed(first), Some(Close::Reset));
        assert_eq!(t.driver.stack.flows(), 1);
    });
}

#[test]
fn a_peer_that_resets_before_the_guest_has_answered_may_connect_again() {
    each(|t| {
        t.peer_connects().unwrap();
        t.expect("SYN seq=0");
        t.host_breaks_unnoticed(0, false, HostError::Reset);
        t.peer_connects().unwrap();
        t.expect("RST seq=1");
        t.expect("SYN seq=0");
        assert_eq!(t.driver.stack.flows(), 1);
    });
}

/// The guest's ICMP error of this type and code for the segment that brodo sent at `seq` beyond its first
/// sequence number.
fn rejection(t: &Script, (kind, code): (u8, u8), seq: u32) -> Vec<u8> {
    let (guest, remote) = t.endpoints();
    let seq = t.stack_isn().unwrap().wrapping_add(seq);
    let quoted = TcpSegment { flags: flags::SYN, seq, ..TcpSegment::new(remote, guest) };
    let mac = t.setup().config.mac.0;
    let body = quoted.to_frame(brodo_sim::packet::Macs { to: GUEST_MAC, from: mac }).split_off(14);
    let error = IcmpMessage { src: guest.ip(), dst: remote.ip(), kind, code, word: 0, body };
    error.to_frame(to_stack(mac))
}

fn guest_rejects(t: &mut Script, error: (u8, u8), seq: u32) {
    let frame = rejection(t, error, seq);
    t.guest_raw(&frame);
}

/// `nft ... reject` in the guest: destination unreachable for the SYN.
#[test]
fn a_hard_icmp_error_for_our_syn_refuses_the_peer() {
    each(|t| {
        let hard: &[(u8, u8)] =
            if t.is_v6() { &[(1, 1), (1, 4), (1, 6)] } else { &[(3, 2), (3, 3), (3, 9), (3, 10), (3, 13)] };
        for &error in hard {
            t.peer_connects().unwrap();
            t.expect("SYN seq=0");
            guest_rejects(t, error, 0);
            t.expect_nothing();
            t.host_closed(Some(Close::Reset));
            t.expect_all_gone();
        }
    });
}

/// A virtual machine that has not sent a frame yet: its MAC address is not known.
#[test]
fn a_guest_that_has_sent_nothing_is_asked_for_its_mac_address() {
    Script::each_with(&Setup::default(), |t| {
        t.connection(PUBLISHED, PEER);
        t.peer_connects().unwrap();
        // A neighbour solicitation is not IPv4 or a packet of a flow; the link has checked it.
        if !t.is_v6() {
            t.expect("ARP");
        }
        let seen = t.take_all();
        assert!(seen.iter().any(|line| line.to_string().starts_with("SYN seq=0")), "{seen:?}");
        let frames = t.driver.stack.counters().tx_frames;
        assert_eq!(frames, 2, "the question and the SYN");
        t.guest("SYN|ACK win=65535 mss=1460 wscale=7 sackok ack=1");
        t.expect("ACK seq=1 ack=1");
        t.expect_nothing();
        t.connection(PUBLISHED, PEER + 1);
        t.peer_connects().unwrap();
        t.expect("SYN seq=0");
    });
}

/// Several workers: the kernel steers the error by its own addresses, so any worker may get it.
#[test]
fn an_icmp_error_for_another_worker_s_syn_is_resteered() {
    each(|t| {
        let owners = Arc::new(FlowOwners::new([3; 16]));
        t.driver.handovers.switch_off();
        t.driver.stack.share_flows(owners.clone());
        t.peer_connects().unwrap();
        t.expect("SYN seq=0");
        let error = rejection(t, if t.is_v6() { (1, 4) } else { (3, 3) }, 0);
        assert_eq!(t.driver.stack.steer(&RxFrame::whole(&error), |_| false), None, "its own");
        let setup = t.setup();
        let keys = Keys { table: [1; 16], isn: [7; 16], dns: [3; 16] };
        let budget = Arc::new(Budget::new(1 << 20));
        let mut other = Stack::sharing(setup.config.clone(), keys, setup.caps, budget, 1);
        other.share_flows(owners);
        assert_eq!(other.steer(&RxFrame::whole(&error), |_| false), Some(0));
    });
}

#[test]
fn an_icmp_error_that_is_soft_or_quotes_nothing_in_flight_changes_nothing() {
    each(|t| {
        let (port, soft): ((u8, u8), &[(u8, u8)]) =
            if t.is_v6() { ((1, 4), &[(1, 0), (1, 3), (2, 0)]) } else { ((3, 3), &[(3, 0), (3, 1), (3, 4)]) };
        t.peer_connects().unwrap();
        t.expect("SYN seq=0");
        for &error in soft {
            guest_rejects(t, error, 0);
        }
        for seq in [1, 2, 1000, u32::MAX] {
            guest_rejects(t, port, seq);
        }
        t.host_closed(None);
        t.guest("SYN|ACK win=65535 mss=1460 wscale=7 sackok ack=1");
        t.expect("ACK seq=1 ack=1");
        // Synchronised: no error ends it, whatever it quotes (RFC 5927).
        t.host_sends(100);
        t.expect("ACK|PSH seq=1 data=100");
        for seq in [0, 1, 50] {
            guest_rejects(t, port, seq);
        }
        t.host_closed(None);
        t.guest("ACK");
        t.host_sends(10);
        t.expect("ACK|PSH seq=101 data=10");
    });
}

#[test]
fn a_full_table_refuses_and_counts() {
    let mut setup = Setup::default();
    setup.config.max_flows = 1;
    Script::each_with(&setup, |t| {
        t.establish();
        t.connection(PUBLISHED, PEER);
        assert_eq!(t.peer_connects(), Err(DropReason::FlowTableFull));
        assert_eq!(t.driver.stack.counters().dropped(DropReason::FlowTableFull), 1);
        t.expect_nothing();
    });
}

/// The nth of many peers outside, and its port: each in a network of its own.
fn outside(t: &Script, n: u16, port: u16) -> SocketAddr {
    let [high, low] = n.to_be_bytes();
    let address: IpAddr = if t.is_v6() {
        Ipv6Addr::new(0x2001, 0xdb8, 0xff, n, 0, 0, 0, 1).into()
    } else {
        Ipv4Addr::new(198, 18, high, low).into()
    };
    SocketAddr::new(address, port)
}

/// Runs `body` with a table of sixteen flows.
fn each_with_a_small_table(body: impl Fn(&mut Script)) {
    let mut setup = Setup::default();
    setup.config.guest_mac = Some(MacAddr(GUEST_MAC));
    setup.config.max_flows = 16;
    Script::each_with(&setup, body);
}

/// The nth peer connects, and the guest accepts.
fn connects(t: &mut Script, n: u16, port: u16) -> Result<usize, DropReason> {
    let (guest, peer) = (SocketAddr::new(t.addresses().0, PUBLISHED), outside(t, n, port));
    let connection = t.connection_to(guest, peer);
    t.peer_connects()?;
    t.expect("SYN seq=0");
    t.guest("SYN|ACK win=65535 mss=1460 wscale=7 sackok ack=1");
    t.expect("ACK seq=1 ack=1");
    Ok(connection)
}

#[test]
fn idle_connections_from_outside_leave_the_guest_its_quarter_of_the_table() {
    each_with_a_small_table(|t| {
        let accepted: Vec<_> = (0..16).filter_map(|n| connects(t, n, PEER).ok()).collect();
        assert_eq!(accepted.len(), 12);
        assert_eq!(t.driver.stack.counters().dropped(DropReason::InboundFlows), 4);
        for port in 4000..4004 {
            t.connection(port, 80);
            t.establish();
        }
        t.connection(4004, 80);
        t.guest("SYN win=65535 mss=1460");
        t.expect("RST|ACK ack=1");
        // The end of an inbound flow makes room for another.
        t.select(accepted[0]);
        t.host_breaks(HostError::Reset);
        t.expect("RST|ACK");
        connects(t, 99, PEER).unwrap();
    });
}

#[test]
fn datagrams_from_outside_evict_no_conversation_of_the_guests() {
    each_with_a_small_table(|t| {
        let mut own = Vec::new();
        for port in 4000..4014 {
            own.push(t.connection(port, 53));
            t.guest("UDP data=10");
            t.host_sends_datagram(20);
            t.expect("UDP data=20");
        }
        t.advance_ms(31_000);
        for n in 0..100 {
            let (guest, peer) = (SocketAddr::new(t.addresses().0, PUBLISHED), outside(t, n, PEER));
            t.connection_to(guest, peer);
            t.peer_sends_first(10, None).unwrap();
            t.expect("UDP data=10");
        }
        let counters = t.driver.stack.counters();
        assert_eq!((counters.flows_evicted, counters.udp_inbound, t.driver.stack.flows()), (98, 100, 16));
        for &flow in &own {
            t.select(flow);
            t.host_sends_datagram(30);
            t.expect("UDP data=30");
        }
        // The guest's next conversations replace inbound ones.
        for port in 5000..5002 {
            t.connection(port, 53);
            t.guest("UDP data=10");
            t.host_sends_datagram(20);
            t.expect("UDP data=20");
        }
        t.select(own[0]);
        t.host_sends_datagram(30);
        t.expect("UDP data=30");
    });
}

/// Unanswered datagrams are the first to go in favour of the guest's own flows, and still not of a peer's.
#[test]
fn a_table_full_of_the_guest_s_least_useful_flows_has_no_place_for_a_peer() {
    each_with_a_small_table(|t| {
        for port in 4000..4016 {
            t.connection(port, 53);
            t.guest("UDP data=10");
        }
        assert_eq!(connects(t, 1, PEER), Err(DropReason::FlowTableFull));
        let (guest, peer) = (SocketAddr::new(t.addresses().0, PUBLISHED), outside(t, 2, PEER));
        t.connection_to(guest, peer);
        t.peer_sends_first(10, None).unwrap();
        t.expect_nothing();
        let counters = t.driver.stack.counters();
        assert_eq!((counters.flows_evicted, counters.dropped(DropReason::FlowTableFull)), (0, 2));
    });
}

/// The guest's unanswered datagrams rank below conversations that a peer has begun and the guest has
/// answered, and still these go first.
#[test]
fn a_new_flow_of_the_guest_replaces_a_peer_s_before_its_own() {
    each_with_a_small_table(|t| {
        let mut own = Vec::new();
        for port in 4000..4004 {
            own.push(t.connection(port, 53));
            t.guest("UDP data=10");
        }
        for n in 0..12 {
            let (guest, peer) = (SocketAddr::new(t.addresses().0, PUBLISHED), outside(t, n, PEER));
            t.connection_to(guest, peer);
            t.peer_sends_first(10, None).unwrap();
            t.expect("UDP data=10");
            t.guest("UDP data=20");
        }
        own.push(t.connection(4004, 53));
        t.guest("UDP data=10");
        assert_eq!(t.driver.stack.counters().flows_evicted, 1);
        for &flow in &own {
            t.select(flow);
            t.host_sends_datagram(30);
            t.expect("UDP data=30");
        }
    });
}

#[test]
fn one_peer_outside_holds_an_eighth_of_the_table() {
    each_with_a_small_table(|t| {
        for port in 1..=2 {
            connects(t, 7, port).unwrap();
        }
        assert_eq!(connects(t, 7, 3), Err(DropReason::FlowsPerPeer));
        connects(t, 8, 3).unwrap();
        // Its datagrams replace its own conversations, and no others.
        for port in 1..=20 {
            let (guest, peer) = (SocketAddr::new(t.addresses().0, PUBLISHED), outside(t, 9, port));
            t.connection_to(guest, peer);
            t.peer_sends_first(10, None).unwrap();
            t.expect("UDP data=10");
        }
        assert_eq!((t.driver.stack.flows(), t.driver.stack.counters().flows_evicted), (5, 18));
    });
}

#[test]
fn a_network_of_ipv6_is_one_peer() {
    let mut setup = Setup { v6: true, ..Setup::default() };
    setup.config.guest_mac = Some(MacAddr(GUEST_MAC));
    setup.config.max_flows = 16;
    let mut t = Script::new(setup);
    for host in 1..=5 {
        let peer = SocketAddr::new(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host).into(), PEER);
        t.connection_to(SocketAddr::new(t.addresses().0, PUBLISHED), peer);
        t.peer_connects().unwrap();
        t.expect("SYN seq=0");
    }
    // Eviction among the connections that the guest has not accepted.
    assert_eq!((t.driver.stack.flows(), t.driver.stack.counters().flows_evicted), (2, 3));
}

#[test]
fn a_datagram_to_a_published_port_reaches_the_guest_and_its_answer_the_peer() {
    each(|t| {
        t.peer_sends_first(100, None).unwrap();
        t.expect(&format!("UDP sport={PEER} dport={PUBLISHED} data=100"));
        t.guest("UDP data=30");
        t.host_got_datagram(30);
        t.peer_sends_first(200, None).unwrap();
        t.expect("UDP data=200");
        assert_eq!(t.driver.stack.flows(), 1);
        assert_eq!(t.driver.stack.counters().udp_inbound, 1);
        // Answered, so it has the time-out of a conversation, and then ends.
        t.advance_ms(31_000);
        assert_eq!(t.driver.stack.flows(), 1);
        t.advance_ms(180_000);
        t.expect_all_gone();
    });
}

/// A peer that has sent to another port or address meanwhile.
#[test]
fn each_datagram_tells_anew_where_answers_leave_from() {
    each(|t| {
        let adopted = |t: &Script| t.host_calls(|call| matches!(call, Call::Adopt));
        for datagrams in 1..=3 {
            t.peer_sends_first(10, None).unwrap();
            t.expect("UDP data=10");
            assert_eq!((adopted(t), t.driver.stack.flows()), (datagrams, 1));
        }
        t.connection(PUBLISHED, PEER + 1);
        t.guest("UDP data=5");
        t.peer_sends_first(10, None).unwrap();
        t.expect("UDP data=10");
        assert_eq!(adopted(t), 3, "a flow of the guest keeps its socket");
    });
}

#[test]
fn datagrams_wait_outside_while_the_link_has_no_credit() {
    let caps = LinkCaps { checksum: true, uso: true, ..LinkCaps::default() };
    let mut setup = Setup { caps, ..Setup::default() };
    setup.config.guest_mac = Some(MacAddr(GUEST_MAC));
    let mut t = Script::new(setup);
    t.connection(PUBLISHED, PEER);
    t.link_credit(Some(0));
    t.peer_sends_first(3000, Some(1000)).unwrap();
    t.expect_nothing();
    assert!(!t.driver.stack.takes_datagrams());
    assert_eq!(t.peer_sends_first(10, None), Err(NoCredit));
    t.link_credit(None);
    t.expect("UDP data=3000 gso=1000");
    assert!(t.driver.stack.takes_datagrams());
    t.peer_sends_first(10, None).unwrap();
    t.expect("UDP data=10");
}

#[test]
fn a_peer_that_the_guest_cannot_answer_is_seen_at_the_router() {
    let t = Script::v4();
    let seen = |peer: &str| t.driver.stack.translate_source(peer.parse().unwrap()).unwrap().to_string();
    for peer in
        ["127.0.0.1:5", "10.0.2.15:5", "10.0.2.2:5", "10.0.2.99:5", "169.254.1.1:5", "[::ffff:127.0.0.1]:5"]
    {
        assert_eq!(seen(peer), "10.0.2.2:5", "{peer}");
    }
    for peer in ["[::1]:5", "[fd00::15]:5", "[fd00::77]:5", "[fe80::1]:5"] {
        assert_eq!(seen(peer), "[fd00::2]:5", "{peer}");
    }
    for peer in ["198.51.100.7:5", "10.0.3.1:5", "[2001:db8::1]:5"] {
        assert_eq!(seen(peer), peer);
    }
    assert_eq!(seen("[::ffff:198.51.100.7]:5"), "198.51.100.7:5");
}

#[test]
fn in_a_copy_of_the_hosts_network_its_hosts_are_seen_as_themselves() {
    let mut setup = Setup::default();
    setup.config.host_link = Some(HostLink { scope_id: 2 });
    setup.config.more_addresses = vec![IpAddr::from([10, 0, 2, 16])];
    let t = Script::new(setup.clone());
    let seen =
        |t: &Script, peer: &str| t.driver.stack.translate_source(peer.parse().unwrap()).unwrap().to_string();
    for peer in
        ["10.0.2.99:5", "10.0.2.2:5", "169.254.7.7:5", "[fd00::77]:5", "[fe80::1]:5", "198.51.100.7:5"]
    {
        assert_eq!(seen(&t, peer), peer);
    }
    // The host by its loopback, and by the addresses that the guest has too.
    for peer in ["127.0.0.1:5", "10.0.2.15:5", "10.0.2.16:5"] {
        assert_eq!(seen(&t, peer), "10.0.2.2:5", "{peer}");
    }
    setup.config.v4.as_mut().unwrap().host_address = Some(Ipv4Addr::new(169, 254, 1, 2));
    let t = Script::new(setup);
    assert_eq!(seen(&t, "127.0.0.1:5"), "10.0.2.2:5");
    assert_eq!(seen(&t, "10.0.2.15:5"), "169.254.1.2:5");
    // It belongs to brodo now, whichever host has it.
    assert_eq!(seen(&t, "169.254.1.2:5"), "10.0.2.2:5");
}

/// A frame by which a guest shows that it takes `address`: an announcement (RFC 5227), or a probe for
/// duplicates (RFC 4862).
fn taking(t: &Script, address: IpAddr) -> Vec<u8> {
    let macs = to_stack(t.setup().config.mac.0);
    match address {
        IpAddr::V4(address) => {
            let mut frame = [[0xff; 6], GUEST_MAC].concat();
            frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
            frame.extend(GUEST_MAC);
            frame.extend(address.octets());
            frame.extend([0; 6]);
            frame.extend(address.octets());
            frame
        }
        IpAddr::V6(address) => {
            let [.., a, b, c] = address.octets();
            let group =
                Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
            let message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &address.octets()].concat();
            ip_frame(macs, Ipv6Addr::UNSPECIFIED.into(), group.into(), 58, message)
        }
    }
}

/// A virtual machine, or a namespace with an interface that others configure.
#[test]
fn a_guest_that_configures_itself_is_met_at_the_address_that_it_has_used_last() {
    for self_configured in [false, true] {
        let mut setup = Setup::default();
        setup.config.self_configured = self_configured;
        setup.config.more_addresses = vec![Ipv4Addr::new(10, 0, 2, 100).into()];
        Script::each_with(&setup, |t| {
            let first = t.driver.stack.guest_address(t.is_v6()).unwrap();
            let (other, foreign, router): (IpAddr, IpAddr, IpAddr) = if t.is_v6() {
                let ip = |text: &str| text.parse::<IpAddr>().unwrap();
                (ip("fd00::5055:ff:fe00:1"), ip("2001:db8::7"), ip("fd00::2"))
            } else {
                (
                    Ipv4Addr::new(10, 0, 2, 100).into(),
                    Ipv4Addr::new(10, 0, 2, 77).into(),
                    Ipv4Addr::new(10, 0, 2, 2).into(),
                )
            };
            for (address, met) in [(foreign, first), (other, other), (router, other), (foreign, other)] {
                let frame = taking(t, address);
                let now = t.now();
                t.driver.turn(now, &[(RxMeta::default(), frame)]);
                let met = if self_configured { met } else { first };
                assert_eq!(t.driver.stack.guest_address(t.is_v6()), Some(met), "{address}");
            }
            // A flow from the first address.
            t.connection_to(SocketAddr::new(first, 6000), SocketAddr::new(foreign, 80));
            t.guest("SYN win=65535 mss=1460");
            assert_eq!(t.driver.stack.guest_address(t.is_v6()), Some(first));
        });
    }
}

/// A virtual machine on a host without IPv6: it has made its link-local address itself.
#[test]
fn a_guest_with_link_local_addresses_alone_is_met_at_the_one_that_it_has_used_last() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let mut setup = Setup::default();
    setup.config.self_configured = true;
    let v6 = setup.config.v6.as_mut().unwrap();
    v6.guest = "fe80::2".parse().unwrap();
    (v6.gateway, v6.gateway_link_local) = ("fe80::1".parse().unwrap(), "fe80::1".parse().unwrap());
    Script::each_with(&setup, |t| {
        if !t.is_v6() {
            return;
        }
        let own = "fe80::5055:ff:fe00:1";
        for (address, met) in [("2001:db8::7", "fe80::2"), (own, own), ("fe80::1", own)] {
            let frame = taking(t, ip(address));
            let now = t.now();
            t.driver.turn(now, &[(RxMeta::default(), frame)]);
            assert_eq!(t.driver.stack.guest_address(true), Some(ip(met)), "{address}");
        }
    });
}
