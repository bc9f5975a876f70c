//! Multicast groups and broadcast addresses: the guest's datagrams leave, and any host may answer them.

use super::policy::deny;
use brodo_core::config::HostLink;
use brodo_core::counters::DropReason;
use brodo_core::host::SocketId;
use brodo_sim::host::Call;
use brodo_sim::packet::UdpDatagram;
use brodo_sim::script::{Script, Setup};
use std::net::SocketAddr;

/// Groups of discovery protocols: SSDP, DNS-SD, wake-on-LAN.
const GROUPS: [[&str; 3]; 2] = [
    ["239.255.255.250:1900", "224.0.0.251:5353", "255.255.255.255:9"],
    ["[ff02::c]:1900", "[ff02::fb]:5353", "[ff0e::1]:9"],
];

/// Hosts that answer.
const ANSWERING: [[&str; 2]; 2] =
    [["198.51.100.7:41000", "198.51.100.8:1900"], ["[2001:db8::7]:41000", "[2001:db8::8]:1900"]];

fn setup() -> Setup {
    let mut setup = Setup::default();
    setup.config.multicast = true;
    setup
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// A script whose guest has asked a group from port 5000; the group's socket.
fn asked(t: &mut Script, group: &str) -> SocketId {
    let guest = SocketAddr::new(t.addresses().0, 5000);
    t.connection_to(guest, address(group));
    t.guest("UDP data=100 ttl=4");
    let opened = t.host_calls(|call| *call == Call::GroupOpen(guest, address(group)));
    assert_eq!((opened, t.driver.host.open_sockets()), (1, 1), "{group}");
    t.socket()
}

/// The next frame is this answer of that host's.
fn expect_answer(t: &mut Script, from: &str, data: &[u8]) {
    let UdpDatagram { src, dst, data: got } = t.expect_datagram();
    assert_eq!((src, dst.port(), &*got), (address(from), 5000, data));
}

#[test]
fn a_group_is_asked_and_each_host_answers() {
    Script::each_with(&setup(), |t| {
        let family = usize::from(t.is_v6());
        for group in GROUPS[family] {
            let socket = asked(t, group);
            // As far as the guest says, and no hop less.
            let fields = t.driver.host.datagram_fields(socket).expect("sent");
            assert_eq!(fields.ttl.map(u8::from), Some(4), "{group}");
            t.host_got_datagram(100);
            for (from, data) in ANSWERING[family].into_iter().zip([b"one", b"two"]) {
                t.host_answers_group(address(from), data);
            }
            expect_answer(t, ANSWERING[family][0], b"one");
            expect_answer(t, ANSWERING[family][1], b"two");
            t.expect_nothing();
            assert_eq!(t.driver.stack.flows(), 1, "an answer is no flow");
            t.advance_ms(200_000);
            t.expect_all_gone();
        }
    });
}

#[test]
fn a_directed_broadcast_goes_as_far_as_the_guest_says() {
    let mut setup = setup();
    setup.config.host_link = Some(HostLink { scope_id: 2 });
    let mut t = Script::new(setup);
    let guest = SocketAddr::new(t.addresses().0, 5000);
    t.connection_to(guest, address("10.0.2.255:9"));
    for ttl in [1, 64] {
        t.guest(&format!("UDP data=100 ttl={ttl}"));
        let fields = t.host_datagram_fields().expect("sent");
        assert_eq!(fields.ttl.map(u8::from), Some(ttl));
        t.host_got_datagram(100);
    }
    assert_eq!(t.driver.stack.counters().drops().count(), 0);
}

#[test]
fn the_guest_goes_on_with_one_of_the_hosts() {
    Script::each_with(&setup(), |t| {
        let family = usize::from(t.is_v6());
        asked(t, GROUPS[family][0]);
        let guest = SocketAddr::new(t.addresses().0, 5000);
        let host = address(ANSWERING[family][0]);
        t.connection_to(guest, host);
        t.guest("UDP data=10");
        t.host_got_datagram(10);
        // From the same port of the host as the question.
        assert_eq!(t.host_calls(|call| *call == Call::UdpOpen(Some(guest), host)), 1);
        t.host_sends_datagram(20);
        t.expect("UDP data=20");
        assert_eq!(t.driver.stack.flows(), 2);
    });
}

#[test]
fn answers_wait_for_the_link_with_their_senders() {
    Script::each_with(&setup(), |t| {
        let family = usize::from(t.is_v6());
        asked(t, GROUPS[family][0]);
        t.link_credit(Some(0));
        for from in ANSWERING[family] {
            t.host_answers_group(address(from), b"answer");
        }
        t.expect_nothing();
        for from in ANSWERING[family] {
            t.link_credit(Some(1));
            expect_answer(t, from, b"answer");
            t.expect_nothing();
        }
    });
}

#[test]
fn a_refused_group_gets_no_icmp_error() {
    // RFC 1122, 3.2.2: no error in answer to a datagram for several hosts.
    let mut setup = setup();
    setup.config.rules.deny = vec![deny("0.0.0.0", 0, None), deny("::", 0, None)];
    Script::each_with(&setup, |t| {
        for group in GROUPS[usize::from(t.is_v6())] {
            let guest = SocketAddr::new(t.addresses().0, 5000);
            t.connection_to(guest, address(group));
            t.guest("UDP data=100");
            t.expect_nothing();
            assert!(!t.has_socket(), "{group}");
        }
        assert_eq!(t.driver.stack.counters().dropped(DropReason::Denied), 3);
    });
}

#[test]
fn an_answer_of_a_denied_host_is_dropped() {
    let mut setup = setup();
    setup.config.rules.deny = vec![deny("198.51.100.7", 32, None), deny("2001:db8::7", 128, None)];
    Script::each_with(&setup, |t| {
        let family = usize::from(t.is_v6());
        asked(t, GROUPS[family][0]);
        for from in ANSWERING[family] {
            t.host_answers_group(address(from), b"answer");
        }
        expect_answer(t, ANSWERING[family][1], b"answer");
        t.expect_nothing();
        assert_eq!(t.driver.stack.counters().dropped(DropReason::Denied), 1);
    });
}
