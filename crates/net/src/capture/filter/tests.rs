//! Filters against frames, and invalid filters.
use super::*;

fn keeps(filter: &str, frame: &[u8]) -> bool {
    filter.parse::<Filter>().unwrap().matches(frame)
}

fn ethernet(kind: u16, packet: &[u8]) -> Vec<u8> {
    [&[0; 12], &kind.to_be_bytes()[..], packet].concat()
}

/// A packet from 10.0.2.15 to 192.0.2.7 with these ports.
fn v4(protocol: u8, fragment: u16, ports: [u16; 2]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 2, 15, 192, 0, 2, 7];
    packet[6..8].copy_from_slice(&fragment.to_be_bytes());
    packet.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
    ethernet(0x0800, &packet)
}

/// A TCP segment from fd00::15 to ::1 from port 9 to port 80 behind these extension headers.
fn v6(first: u8, extensions: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 20, first, 64];
    packet.extend("fd00::15".parse::<Ipv6Addr>().unwrap().octets());
    packet.extend(Ipv6Addr::LOCALHOST.octets());
    packet.extend(extensions);
    packet.extend([0, 9, 0, 80]);
    ethernet(0x86dd, &packet)
}

#[test]
fn each_word_means_what_it_says() {
    let segment = v4(TCP, 0, [40_000, 443]);
    for yes in
        ["", "tcp", "ip", "port 443", "port 40000", "host 192.0.2.7", "host 10.0.2.15", "net 192.0.2.0/29"]
    {
        assert!(keeps(yes, &segment), "{yes}");
        assert!(yes.is_empty() || !keeps(&format!("not {yes}"), &segment), "not {yes}");
    }
    for no in ["udp", "icmp", "arp", "ip6", "port 80", "host 192.0.2.8", "net 192.0.2.8/29", "host ::1"] {
        assert!(!keeps(no, &segment), "{no}");
        assert!(keeps(&format!("not {no}"), &segment), "not {no}");
    }
    assert!(keeps("tcp and port 443 and host 192.0.2.7 not udp", &segment));
    assert!(!keeps("tcp port 444", &segment));
    assert!(keeps("net 0.0.0.0/0", &segment) && keeps("net ::/0", &v6(TCP, &[])));
    assert!(keeps("arp", &ethernet(0x0806, &[])) && !keeps("ip", &ethernet(0x0806, &[])));
    assert!(keeps("icmp", &v4(ICMP, 0, [0, 0])) && keeps("icmp", &v6(ICMPV6, &[])));
}

#[test]
fn only_a_first_fragment_has_ports() {
    assert!(keeps("udp port 53", &v4(UDP, 0x2000, [9, 53])));
    assert!(!keeps("port 53", &v4(UDP, 0x2001, [9, 53])));
    assert!(keeps("udp", &v4(UDP, 0x2001, [9, 53])));
}

#[test]
fn extension_headers_are_passed_over() {
    let hop_by_hop = [TCP, 0, 0, 0, 0, 0, 0, 0];
    assert!(keeps("tcp port 80 host ::1", &v6(TCP, &[])));
    assert!(keeps("tcp port 80", &v6(0, &hop_by_hop)));
    assert!(keeps("tcp port 80", &v6(44, &[TCP, 0, 0, 1, 0, 0, 0, 0])));
    assert!(!keeps("port 80", &v6(44, &[TCP, 0, 0, 8, 0, 0, 0, 0])));
    assert!(!keeps("port 80", &v6(0, &[0; 64])), "a chain without end");
}

#[test]
fn short_frames_match_nothing_and_do_no_harm() {
    for frame in [v4(TCP, 0, [1, 2]), v6(0, &[TCP, 0, 0, 0, 0, 0, 0, 0])] {
        for len in 0..frame.len() - 4 {
            assert!(!keeps("port 80", &frame[..len]));
            assert!(keeps("not port 80", &frame[..len]));
        }
    }
}

#[test]
fn invalid_filters_are_refused_in_words() {
    for (wrong, says) in [
        ("tcpp", "`tcpp` is not known"),
        ("port", "nothing follows `port`"),
        ("port http", "`http` is no port"),
        ("host a", "`a` is no IP address"),
        ("net 10.0.0.0/33", "no network"),
        ("tcp and", "nothing follows `and`"),
        ("not", "nothing follows `not`"),
        ("and tcp", "`and` is not known"),
    ] {
        let error = wrong.parse::<Filter>().unwrap_err();
        assert!(error.contains(says), "{wrong}: {error}");
    }
    assert!("tcp ".repeat(17).parse::<Filter>().is_err());
}

#[test]
fn a_connection_matches_as_its_segments_do() {
    let (guest, remote) = ("10.0.2.15:40000".parse().unwrap(), "192.0.2.7:443".parse().unwrap());
    let segment = v4(TCP, 0, [40_000, 443]);
    for filter in ["", "tcp", "udp", "ip6", "port 443", "port 80", "host 192.0.2.7", "not net 10.0.0.0/8"] {
        let matches = filter.parse::<Filter>().unwrap().matches_tcp(guest, remote);
        assert_eq!(matches, keeps(filter, &segment), "{filter}");
    }
}
