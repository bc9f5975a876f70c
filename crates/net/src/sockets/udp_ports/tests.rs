//! Choice of ports, without sockets.

use super::*;

fn flow(guest: &str, peer: &str) -> Mapped {
    let address = |word: &str| word.parse().expect("an address with a port");
    Mapped { guest: address(guest), peer: address(peer) }
}

const GUEST: &str = "10.0.2.15:51820";

#[test]
fn all_flows_of_a_port_join_the_first() {
    let mut table = Table::default();
    let flows = [flow(GUEST, "192.0.2.1:3478"), flow(GUEST, "192.0.2.2:3478"), flow(GUEST, "192.0.2.1:3479")];
    assert_eq!(table.choose(&flows[0]), Choice::First);
    table.flows.insert(flows[0], 40_000);
    for flow in &flows[1..] {
        assert_eq!(table.choose(flow), Choice::Joined(40_000));
        table.flows.insert(*flow, 40_000);
    }
    table.flows.remove(&flows[0]);
    assert_eq!(table.choose(&flows[0]), Choice::Joined(40_000), "others go on");
    table.flows.clear();
    assert_eq!(table.choose(&flows[0]), Choice::First);
}

#[test]
fn a_second_flow_to_a_peer_has_a_port_of_its_own() {
    let mut table = Table::default();
    let same = flow(GUEST, "127.0.0.1:53");
    table.flows.insert(same, 51_820);
    assert_eq!(table.choose(&same), Choice::Apart);
}

#[test]
fn each_port_and_address_of_the_guest_has_a_mapping_of_its_own() {
    let mut table = Table::default();
    table.flows.insert(flow(GUEST, "192.0.2.1:1"), 51_820);
    for other in ["10.0.2.15:51819", "10.0.2.15:51821", "10.0.2.14:51820", "10.0.2.16:51820"] {
        assert_eq!(table.choose(&flow(other, "192.0.2.1:1")), Choice::First, "{other}");
    }
    let v6 = |peer| flow("[fd00::15]:51820", peer);
    assert_eq!(table.choose(&v6("[2001:db8::1]:1")), Choice::First);
    table.flows.insert(v6("[2001:db8::1]:1"), 51_821);
    assert_eq!(table.choose(&v6("[::]:1")), Choice::Joined(51_821));
    assert_eq!(table.choose(&v6("[ffff::]:1")), Choice::Joined(51_821));
}

#[test]
fn a_published_port_of_the_guest_s_leaves_from_that_of_the_host() {
    let mut table = Table::default();
    let published = |guest_port, address: &str, port| {
        let address: IpAddr = address.parse().expect("an address");
        PublishedPort { v6: address.is_ipv6(), guest_port, at: (address, port) }
    };
    let flow = flow(GUEST, "192.0.2.1:1");
    table.published.extend([
        published(51_819, "0.0.0.0", 1),
        published(51_820, "0.0.0.0", 8000),
        published(51_820, "::", 9000),
        published(51_821, "0.0.0.0", 2),
    ]);
    assert_eq!(table.choose(&flow), Choice::Published(8000));
    let v6 = self::flow("[fd00::15]:51820", "[2001:db8::1]:1");
    assert_eq!(table.choose(&v6), Choice::Published(9000));
    // The same number rather than another.
    table.published.insert(published(51_820, "192.0.2.9", 51_820));
    assert_eq!(table.choose(&flow), Choice::Published(51_820));
    // A mapping that there is stays.
    table.flows.insert(flow, 40_000);
    assert_eq!(table.choose(&self::flow(GUEST, "192.0.2.1:2")), Choice::Joined(40_000));
}
