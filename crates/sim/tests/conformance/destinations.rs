//! Destinations of packets: brodo's own addresses, the DNS address, the mapped loopback, and refusals.

use brodo_core::config::{ClosedPorts, HostLink};
use brodo_core::counters::DropReason;
use brodo_core::left_out::Part;
use brodo_core::link::RxMeta;
use brodo_sim::link::to_stack;
use brodo_sim::packet;
use brodo_sim::script::{Script, Setup};
use std::net::{IpAddr, SocketAddr};

const SYN: &str = "SYN win=65535 mss=1460";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn setup() -> Setup {
    let mut setup = Setup::default();
    setup.config.resolvers =
        vec!["192.0.2.53:53".parse().expect("an address"), "127.0.0.53:5353".parse().expect("an address")];
    setup
}

/// The gateway's and the DNS address.
fn ours(t: &Script) -> (IpAddr, IpAddr) {
    let config = &t.setup().config;
    if t.is_v6() {
        let n = config.v6.expect("configured");
        (n.gateway.into(), n.dns.expect("DNS").into())
    } else {
        let n = config.v4.expect("configured");
        (n.gateway.into(), n.dns.expect("DNS").into())
    }
}

fn from(t: &Script, port: u16) -> SocketAddr {
    SocketAddr::new(t.addresses().0, port)
}

#[test]
fn dns_over_tcp_goes_to_the_hosts_resolver() {
    Script::each_with(&setup(), |t| {
        let dns = SocketAddr::new(ours(t).1, 53);
        t.connection_to(from(t, 5000), dns);
        t.establish();
        assert_eq!(t.host_connected_to(), t.setup().config.resolvers[0]);
    });
}

#[test]
fn our_own_addresses_offer_nothing_else() {
    Script::each_with(&setup(), |t| {
        let (gateway, dns) = ours(t);
        for to in [SocketAddr::new(gateway, 80), SocketAddr::new(gateway, 53), SocketAddr::new(dns, 80)] {
            t.connection_to(from(t, 6000), to);
            t.guest(SYN);
            t.expect("RST|ACK ack=1");
            t.guest_udp(to, b"x");
            t.expect("ICMP port-unreachable");
        }
        t.expect_nothing();
        t.expect_all_gone();
    });
}

#[test]
fn closed_ports_are_unreachable_if_that_is_configured() {
    let mut setup = Setup::default();
    setup.config.closed_ports = ClosedPorts::Unreachable;
    Script::each_with(&setup, |t| {
        let to = SocketAddr::new(ours(t).0, 80);
        t.connection_to(from(t, 6000), to);
        t.guest(SYN);
        t.expect("ICMP net-unreachable");
        t.guest_udp(to, b"x");
        t.expect("ICMP net-unreachable");
        t.expect_all_gone();
    });
}

#[test]
fn dns_over_tcp_that_is_left_out_is_silent() {
    let mut setup = setup();
    setup.config.without = [Part::Dns].into_iter().collect();
    Script::each_with(&setup, |t| {
        t.connection_to(from(t, 5000), SocketAddr::new(ours(t).1, 53));
        t.guest(SYN);
        t.expect_nothing();
        assert_eq!(t.driver.stack.counters().dropped(DropReason::LeftOut), 1);
    });
}

#[test]
fn our_own_addresses_answer_echo_themselves() {
    Script::each_with(&setup(), |t| {
        let (gateway, dns) = ours(t);
        for to in [gateway, dns] {
            t.connection_to(from(t, 7), SocketAddr::new(to, 7));
            t.guest("ICMP echo-request id=7 seq=9 data=56");
            t.expect("ICMP echo-reply id=7 seq=9 data=56");
        }
        t.expect_all_gone();
    });
}

#[test]
fn the_mapped_loopback_is_the_hosts_and_nothing_is_without_the_map() {
    let mut mapped = Setup::default();
    if let Some(n) = &mut mapped.config.v4 {
        n.host_loopback = Some("10.0.2.4".parse().expect("an address"));
    }
    if let Some(n) = &mut mapped.config.v6 {
        n.host_loopback = Some("fd00::4".parse().expect("an address"));
    }
    let loopback = |t: &Script| if t.is_v6() { ip("fd00::4") } else { ip("10.0.2.4") };
    Script::each_with(&mapped, |t| {
        let to = SocketAddr::new(loopback(t), 8080);
        t.connection_to(from(t, 6000), to);
        t.establish();
        let host = if t.is_v6() { ip("::1") } else { ip("127.0.0.1") };
        assert_eq!(t.host_connected_to(), SocketAddr::new(host, 8080));
        t.guest("ACK data=10");
        t.expect("ACK ack=11");
        t.guest_udp(to, b"x");
        assert_eq!(t.host_connected_to(), SocketAddr::new(host, 8080));
    });
    Script::each(|t| {
        let direct = if t.is_v6() { ip("::1") } else { ip("127.0.0.1") };
        t.connection_to(from(t, 6000), SocketAddr::new(direct, 8080));
        t.guest(SYN);
        t.expect("RST|ACK ack=1");
        t.guest_udp(SocketAddr::new(direct, 8080), b"x");
        t.expect("ICMP prohibited");
        assert!(!t.has_socket());
        assert_eq!(t.driver.stack.counters().dropped(DropReason::Refused), 2);
    });
}

/// In a copy of the host's network a guest sends to its neighbours directly: no router is between them, and
/// no hop is counted. Peers of BGP use a time to live of 1.
#[test]
fn a_neighbour_in_a_copied_network_is_no_hop_away() {
    let mut setup = setup();
    setup.config.host_link = Some(HostLink { scope_id: 2 });
    Script::each_with(&setup, |t| {
        let guest = from(t, 6000);
        let neighbour = if t.is_v6() { ip("fd00::77") } else { ip("10.0.2.77") };
        t.connection_to(guest, SocketAddr::new(neighbour, 179));
        t.guest("SYN win=65535 mss=1460 ttl=1");
        t.host_connected();
        t.expect("SYN|ACK seq=0 ack=1");
        let flows = ["UDP data=32", "ICMP echo-request id=7 seq=1 data=32"]
            .map(|line| (line, t.connection_to(guest, SocketAddr::new(neighbour, 179))));
        for (ttl, sent) in [(1, Some(1)), (7, Some(7)), (64, None), (255, Some(255))] {
            for (line, flow) in flows {
                t.select(flow);
                t.guest(&format!("{line} ttl={ttl}"));
                let fields = t.host_datagram_fields().expect("sent");
                assert_eq!(fields.ttl.map(u8::from), sent, "{line} {ttl}");
                t.host_takes_datagram();
            }
        }
        t.expect_nothing();
        // No packet leaves a host with 0.
        t.guest("UDP data=32 ttl=0");
        t.expect("ICMP time-exceeded");
        // Other hosts are behind the router.
        t.connection_to(guest, SocketAddr::new(t.addresses().1, 179));
        t.guest("SYN win=65535 mss=1460 ttl=1");
        t.expect("ICMP time-exceeded");
        t.guest("UDP data=32 ttl=7");
        assert_eq!(t.host_datagram_fields().and_then(|fields| fields.ttl).map(u8::from), Some(6));
        assert_eq!(t.driver.stack.counters().dropped(DropReason::TtlExpired), 2);
    });
}

#[test]
fn metadata_services_are_refused() {
    Script::each(|t| {
        let targets: &[&str] = if t.is_v6() {
            &["fe80::1234", "fd00:ec2::254"]
        } else {
            &["169.254.169.254", "100.100.100.200"]
        };
        for target in targets {
            let to = SocketAddr::new(ip(target), 80);
            t.connection_to(from(t, 6000), to);
            t.guest(SYN);
            t.expect("RST|ACK ack=1");
            t.guest_udp(to, b"x");
            t.expect("ICMP prohibited");
            assert!(!t.has_socket());
        }
        assert_eq!(t.driver.stack.counters().dropped(DropReason::Refused), 4);
    });
}

#[test]
fn addresses_that_no_host_can_have_are_dropped() {
    Script::each(|t| {
        let targets: &[&str] = if t.is_v6() {
            &["::", "ff02::1", "ff0e::1", "::ffff:10.0.0.1", "fd00::15"]
        } else {
            &["0.0.0.0", "0.1.2.3", "224.0.0.1", "255.255.255.255", "240.0.0.1", "10.0.2.15"]
        };
        for target in targets {
            let to = SocketAddr::new(ip(target), 80);
            t.connection_to(from(t, 6000), to);
            t.guest(SYN);
            t.guest_udp(to, b"x");
            t.expect_nothing();
            assert!(!t.has_socket(), "{target}");
        }
    });
}

/// A router or neighbour solicitation for the gateway.
fn solicitation(t: &Script, part: Part) -> Vec<u8> {
    let kind = if part == Part::Ra { 133 } else { 135 };
    let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    if part == Part::Ndp {
        message.extend(t.setup().config.v6.expect("configured").gateway.octets());
    }
    let macs = to_stack(t.setup().config.mac.0);
    packet::ip_frame(macs, ip("fe80::1234"), ip("ff02::1"), 58, message)
}

/// Sends one packet for `part`: the number of answers, and whether it was dropped as left out.
fn asked(t: &mut Script, part: Part) -> (usize, bool) {
    let (gateway, _) = ours(t);
    let to = |port| SocketAddr::new(gateway, port);
    let before = t.driver.stack.counters().dropped(DropReason::LeftOut);
    let mut answers = 0;
    match part {
        Part::Tcp => {
            t.connection_to(from(t, 6000), to(80));
            t.guest(SYN);
        }
        Part::Udp => t.guest_udp(to(80), b"x"),
        Part::Dns => t.guest_udp(SocketAddr::new(ours(t).1, 53), b"x"),
        Part::Ping => t.guest("ICMP echo-request id=7 seq=9 data=56"),
        Part::Dhcp => t.guest_udp(to(67), b"x"),
        Part::Dhcpv6 => t.guest_udp(SocketAddr::new(ip("ff02::1:2"), 547), b"x"),
        Part::Ndp | Part::Ra => {
            let frame = solicitation(t, part);
            let now = t.now();
            answers = t.driver.turn(now, &[(RxMeta::default(), frame)]).len();
        }
    }
    answers += t.take_all().len();
    (answers, t.driver.stack.counters().dropped(DropReason::LeftOut) > before)
}

#[test]
fn parts_that_are_left_out_are_silent() {
    for v6 in [false, true] {
        let not_here = if v6 { Part::Dhcp } else { Part::Dhcpv6 };
        let parts = Part::ALL.into_iter().filter(|&part| part != not_here);
        let with = |left_out: &[Part], part| {
            let mut setup = Setup { v6, ..setup() };
            setup.config.without = left_out.iter().copied().collect();
            let mut t = Script::new(setup);
            t.connection_to(from(&t, 6000), SocketAddr::new(ours(&t).0, 80));
            asked(&mut t, part)
        };
        for part in parts {
            let usual = with(&[], part);
            assert!(!usual.1, "{part}: {usual:?}");
            for left_out in Part::ALL {
                let also = [(Part::Ndp, Part::Ra), (Part::Udp, Part::Dns)];
                let silent = part == left_out || also.contains(&(left_out, part));
                let expected = if silent { (0, true) } else { usual };
                assert_eq!(with(&[left_out], part), expected, "{part} without {left_out}");
            }
        }
    }
}

/// A guest that was moved here with a lease of another network (RFC 2131, 4.3.2).
#[test]
fn a_dhcp_client_with_an_address_of_another_network_is_refused_it() {
    let mut t = Script::new(Setup::default());
    let (macs, now) = (to_stack(t.setup().config.mac.0), t.now());
    let (old, all) = (ip("192.168.77.5"), ip("255.255.255.255"));
    let mut rebinding = vec![0; 240];
    rebinding[..4].copy_from_slice(&[1, 1, 6, 0]);
    rebinding[12..16].copy_from_slice(&[192, 168, 77, 5]);
    rebinding[28..34].copy_from_slice(&macs.from);
    rebinding[236..].copy_from_slice(&[99, 130, 83, 99]);
    rebinding.extend([53, 1, 3, 255]);
    let mut send = |from: IpAddr, to: IpAddr, port: u16, data: &[u8]| {
        let (src, dst) = (SocketAddr::new(from, 68), SocketAddr::new(to, port));
        let frame = packet::UdpDatagram { src, dst, data: data.to_vec() }.to_frame(macs);
        t.driver.turn(now, &[(RxMeta::default(), frame)])
    };
    let refused = send(old, all, 67, &rebinding);
    let is_nak = |frame: &[u8]| frame.windows(3).any(|option| option == [53, 1, 6]);
    assert!(refused.len() == 1 && refused[0].cut().iter().any(|frame| is_nak(frame)), "{refused:?}");
    // No other datagram passes, and no other message.
    assert!(send(old, all, 69, &rebinding).is_empty());
    assert!(send(old, ip("10.0.2.2"), 67, &rebinding).is_empty());
    assert!(send(old, all, 67, b"no message").is_empty());
    assert_eq!(t.driver.stack.counters().dropped(DropReason::SpoofedSource), 2);
    assert_eq!(t.driver.stack.counters().dropped(DropReason::MalformedDhcpv4), 1);
    t.expect_all_gone();
}
