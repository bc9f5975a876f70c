//! Admission of the guest's flows: deny rules, the rate of new flows, flows per destination. Every refusal is
//! immediate and counted, by reason and by rule.

use brodo_core::counters::DropReason;
use brodo_core::policy::{Deny, FlowRate};
use brodo_core::port_range::PortRange;
use brodo_core::wire::ethernet::MacAddr;
use brodo_sim::link::GUEST_MAC;
use brodo_sim::script::{Script, Setup};
use std::net::{IpAddr, SocketAddr};

const SYN: &str = "SYN win=65535 mss=1460";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

pub(crate) fn deny(address: &str, prefix_len: u8, ports: Option<PortRange>) -> Deny {
    Deny::new(ip(address), prefix_len, ports).expect("a rule")
}

fn dropped(t: &Script, reason: DropReason) -> u64 {
    t.driver.stack.counters().dropped(reason)
}

/// Refusals by rule, above zero.
fn refused(t: &Script) -> Vec<(String, u64)> {
    let rules = t.driver.stack.rules().filter(|(_, count)| *count > 0);
    rules.map(|(text, count)| (text.to_owned(), count)).collect()
}

#[test]
fn a_denied_destination_is_refused_at_once() {
    let mut setup = Setup::default();
    setup.config.rules.deny = vec![
        deny("198.51.100.0", 24, Some(PortRange { first: 80, last: 99 })),
        deny("2001:db8::", 32, Some(PortRange { first: 80, last: 99 })),
    ];
    Script::each_with(&setup, |t| {
        for port in [80, 99] {
            t.connection(5000, port);
            t.guest(SYN);
            t.expect_denied();
            t.guest("UDP data=100");
            t.expect("ICMP prohibited");
        }
        t.expect_all_gone();
        // Other ports, and echo, which has none.
        for port in [79, 100] {
            t.connection(5001, port);
            t.establish();
        }
        t.guest("ICMP echo-request id=80 seq=1 data=56");
        t.host_answers_echo();
        t.expect("ICMP echo-reply id=80 seq=1 data=56");
        assert_eq!(dropped(t, DropReason::Denied), 4);
        let rule = if t.is_v6() { "deny [2001:db8::]/32:80-99" } else { "deny 198.51.100.0/24:80-99" };
        assert_eq!(refused(t), [(rule.to_owned(), 4)]);
    });
}

#[test]
fn a_denied_network_is_refused_to_everything() {
    let mut setup = Setup::default();
    setup.config.rules.deny = vec![deny("0.0.0.0", 0, None), deny("::", 0, None)];
    setup.config.resolvers = vec!["192.0.2.53:53".parse().expect("an address")];
    Script::each_with(&setup, |t| {
        t.guest(SYN);
        t.expect_denied();
        t.guest("UDP data=1");
        t.expect("ICMP prohibited");
        t.guest("ICMP echo-request id=7 seq=1 data=56");
        t.expect("ICMP prohibited");
        assert_eq!(dropped(t, DropReason::Denied), 3);
        t.expect_all_gone();
        // brodo's own services are no destinations.
        let config = &t.setup().config;
        let dns: IpAddr = if t.is_v6() {
            config.v6.expect("configured").dns.expect("DNS").into()
        } else {
            config.v4.expect("configured").dns.expect("DNS").into()
        };
        let guest = SocketAddr::new(t.addresses().0, 5000);
        t.connection_to(guest, SocketAddr::new(dns, 53));
        t.establish();
        t.connection_to(SocketAddr::new(guest.ip(), 7), SocketAddr::new(dns, 7));
        t.guest("ICMP echo-request id=7 seq=9 data=56");
        t.expect("ICMP echo-reply id=7 seq=9 data=56");
    });
}

#[test]
fn new_flows_come_in_a_burst_and_then_at_a_rate() {
    let mut setup = Setup::default();
    setup.config.rules.new_flows = Some(FlowRate { per_second: 10, burst: 3 });
    Script::each_with(&setup, |t| {
        t.connection(4000, 80);
        t.establish();
        t.connection(4001, 80);
        t.guest("UDP data=1");
        t.guest("ICMP echo-request id=7 seq=1 data=0");
        t.expect_nothing();
        // The three that are open go on; a fourth of any kind is refused.
        t.connection(4002, 80);
        t.guest(SYN);
        t.expect("RST|ACK ack=1");
        t.guest("UDP data=1");
        t.expect("ICMP prohibited");
        t.guest("ICMP echo-request id=8 seq=1 data=0");
        t.expect("ICMP prohibited");
        t.select(1);
        t.guest("ACK data=10");
        t.expect("ACK ack=11");
        t.advance_ms(100);
        t.connection(4003, 80);
        t.establish();
        t.connection(4004, 80);
        t.guest(SYN);
        t.expect("RST|ACK ack=1");
        assert_eq!(dropped(t, DropReason::NewFlowRate), 4);
        assert_eq!(refused(t), [("max-new-flows 10/s:3".to_owned(), 4)]);
    });
}

#[test]
fn flows_to_one_destination_are_bounded_and_their_end_makes_room() {
    let mut setup = Setup::default();
    setup.config.rules.flows_per_destination = Some(2);
    Script::each_with(&setup, |t| {
        t.connection(4000, 80);
        t.establish();
        t.connection(4001, 53);
        t.guest("UDP data=1");
        t.connection(4002, 443);
        t.guest(SYN);
        t.expect("RST|ACK ack=1");
        t.guest("UDP data=1");
        t.expect("ICMP prohibited");
        // Another destination has its own.
        let other = if t.is_v6() { ip("2001:db8::99") } else { ip("203.0.113.9") };
        t.connection_to(SocketAddr::new(t.addresses().0, 4003), SocketAddr::new(other, 80));
        t.establish();
        // The question without an answer ends.
        t.advance_ms(35_000);
        t.connection(4004, 443);
        t.establish();
        assert_eq!(dropped(t, DropReason::FlowsPerDestination), 2);
        assert_eq!(refused(t), [("max-flows-per-destination 2".to_owned(), 2)]);
    });
}

#[test]
fn a_full_table_is_counted_with_the_rules() {
    let mut setup = Setup::default();
    setup.config.max_flows = 1;
    Script::each_with(&setup, |t| {
        t.establish();
        t.connection(4001, 53);
        t.guest("UDP data=1");
        t.expect("ICMP prohibited");
        assert_eq!(refused(t), [("max-flows".to_owned(), 1)]);
        assert_eq!(dropped(t, DropReason::FlowTableFull), 1);
    });
}

#[test]
fn the_floor_is_counted_by_rule() {
    Script::each(|t| {
        let targets: [&str; 3] = if t.is_v6() {
            ["::1", "fe80::9", "fd00:ec2::254"]
        } else {
            ["127.0.0.1", "169.254.169.254", "100.100.100.200"]
        };
        for target in targets {
            let from = SocketAddr::new(t.addresses().0, 4000);
            t.connection_to(from, SocketAddr::new(ip(target), 80));
            t.guest(SYN);
            t.expect("RST|ACK ack=1");
        }
        let counts = ["floor host-loopback", "floor link-local", "floor cloud-metadata"];
        assert_eq!(refused(t), counts.map(|text| (text.to_owned(), 1)));
        assert_eq!(dropped(t, DropReason::Refused), 3);
    });
}

/// The guest's SYN to each target is answered with a reset.
fn refuses(t: &mut Script, targets: &[&str]) {
    for target in targets {
        knock(t, target);
        t.expect("RST|ACK ack=1");
    }
}

/// The guest sends a SYN to the target.
fn knock(t: &mut Script, target: &str) {
    let from = SocketAddr::new(t.addresses().0, 4000);
    t.connection_to(from, SocketAddr::new(ip(target), 80));
    t.guest(SYN);
}

#[test]
fn metadata_services_of_every_cloud_are_out_of_reach() {
    Script::each(|t| {
        let targets: &[&str] = if t.is_v6() {
            &[
                "fd00:ec2::23",
                "fd00:ec2::253",
                "fd20:ce::254",
                "fd00:c1::a9fe:a9fe",
                "fd00:42::42",
                "fd00:100::100:200",
                "fd00:a9fe:a9fe::1",
            ]
        } else {
            &["168.63.129.16", "192.0.0.192"]
        };
        refuses(t, targets);
        assert_eq!(refused(t), [("floor cloud-metadata".to_owned(), targets.len() as u64)]);
    });
}

/// A translator on the host's network turns such addresses into those of IPv4 that they contain.
#[test]
fn the_floor_holds_for_an_ipv4_address_inside_one_of_ipv6() {
    let mut t = Script::v6();
    refuses(
        &mut t,
        &[
            "64:ff9b::7f00:1",
            "64:ff9b:1:7f00:0:100::",
            "64:ff9b:1::7f00:1",
            "2002:7f00:1::1",
            "2001:0:c000:201::80ff:fffe",
            "::ffff:0:127.0.0.1",
            "2001:db8::5efe:7f00:1",
            "2001:db8::200:5efe:7f00:1",
        ],
    );
    assert_eq!(refused(&t), [("floor host-loopback".to_owned(), 8)]);
    refuses(&mut t, &["64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "2001:0:a9fe:a9fe::1"]);
    refuses(&mut t, &["64:ff9b::100.100.100.200", "2002:a83f:8110::1"]);
    let counts = [("floor host-loopback", 8), ("floor link-local", 3), ("floor cloud-metadata", 2)];
    assert_eq!(refused(&t), counts.map(|(text, count)| (text.to_owned(), count)));
}

#[test]
fn a_deny_rule_for_ipv4_is_about_every_form_of_its_addresses() {
    let mut setup = Setup::default();
    setup.config.rules.deny = vec![deny("10.0.0.0", 8, Some(PortRange::one(80)))];
    let mut t = Script::new(Setup { v6: true, ..setup });
    for target in ["64:ff9b::10.1.2.3", "64:ff9b:1:a01:2:300::", "2002:a01:203::1", "2001:0:a01:203::1"] {
        knock(&mut t, target);
        t.expect_denied();
    }
    assert_eq!(refused(&t), [("deny 10.0.0.0/8:80".to_owned(), 4)]);
    // Its other ports, and other addresses in the same form.
    for (target, port) in [("64:ff9b::10.1.2.3", 81), ("64:ff9b::192.0.2.1", 80), ("2002:c000:201::1", 80)] {
        let from = SocketAddr::new(t.addresses().0, 4001);
        t.connection_to(from, SocketAddr::new(ip(target), port));
        t.establish();
    }
}

/// Datagrams of a denied peer to a published port: a flow for them would open the guest a way to a denied
/// destination, and the source address may be forged. TCP connections of the same peer have completed a
/// handshake.
#[test]
fn a_datagram_of_a_denied_peer_begins_no_conversation() {
    let mut setup = Setup::default();
    setup.config.guest_mac = Some(MacAddr(GUEST_MAC));
    setup.config.rules.deny = vec![deny("198.51.100.0", 24, None), deny("2001:db8::", 32, None)];
    setup.config.rules.flows_per_destination = Some(1);
    Script::each_with(&setup, |t| {
        t.connection(8080, 4433);
        for _ in 0..2 {
            t.peer_sends_first(10, None).expect("credit");
            t.expect_nothing();
        }
        t.guest("UDP data=10");
        t.expect("ICMP prohibited");
        t.expect_all_gone();
        assert_eq!(dropped(t, DropReason::Denied), 3);
        let rule = if t.is_v6() { "deny 2001:db8::/32" } else { "deny 198.51.100.0/24" };
        assert_eq!(refused(t), [(rule.to_owned(), 3)]);
        t.peer_connects().expect("a connection of the same peer");
        t.expect("SYN seq=0");
    });
}

/// The router's link-local address leads where its other one does, if that stands for the host's loopback.
#[test]
fn rules_about_a_mapped_gateway_hold_for_its_link_local_address() {
    for named in [0, 1] {
        check_both_ways_to_the_router(named);
    }
}

fn check_both_ways_to_the_router(named: usize) {
    let mut setup = Setup { v6: true, ..Setup::default() };
    let net = setup.config.v6.as_mut().expect("configured");
    net.host_loopback = Some(net.gateway);
    let ways = [net.gateway, net.gateway_link_local].map(IpAddr::from);
    setup.config.rules.deny = vec![deny(&ways[named].to_string(), 128, Some(PortRange::one(8080)))];
    setup.config.rules.flows_per_destination = Some(2);
    let mut t = Script::new(setup);
    let from = |t: &Script, port| SocketAddr::new(t.addresses().0, port);
    for way in ways {
        let to = SocketAddr::new(way, 8080);
        t.connection_to(from(&t, 6000), to);
        t.guest(SYN);
        t.expect_denied();
        t.guest_udp(to, b"x");
        t.expect("ICMP prohibited");
    }
    assert_eq!(dropped(&t, DropReason::Denied), 4);
    // One destination to the limit on flows too.
    for (port, way) in [(6001, ways[1]), (6002, ways[0])] {
        t.connection_to(from(&t, port), SocketAddr::new(way, 8081));
        t.establish();
    }
    for way in ways {
        t.connection_to(from(&t, 6003), SocketAddr::new(way, 8081));
        t.guest(SYN);
        t.take_all();
        assert_eq!(t.driver.stack.flows(), 2, "{way}");
    }
    assert_eq!(dropped(&t, DropReason::FlowsPerDestination), 2);
}
