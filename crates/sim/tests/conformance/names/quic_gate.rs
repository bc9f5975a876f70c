//! Gates for QUIC: every Initial of a flow names the server. Numbers are those of the bypass attempts in the
//! guide's page on policies.

use super::gates::{Gated, NAME};
use super::policy_changes::Changing;
use super::under_policy::{Ruled, policy, under};
use super::*;
use brodo_core::policy::Ruleset;
use brodo_core::wire::quic::Version;
use brodo_sim::hello::client_hello;
use brodo_sim::quic::{Client, DATAGRAM_LEN, crypto};

const TO: &str = "203.0.113.5:443";
const FIRST: Client<'_> = Client::new(b"\x83\x94\xc8\xf0\x3e\x51\x57\x08");
const SECOND: Client<'_> = Client::new(b"another1");
/// Payload after the handshake: a short header.
const SHORT: [u8; 40] = [0x41; 40];

/// Steps of these tests.
trait Quic {
    /// The guest sends this datagram from port 6000, or another.
    fn quic(&mut self, datagram: &[u8]);
    fn quic_from(&mut self, port: u16, datagram: &[u8]);
    /// Datagrams that the server got of the one flow.
    fn server_gets(&mut self) -> Vec<Vec<u8>>;
    /// The guest gets an ICMP error, the flow is over, and the server got nothing more.
    fn expect_refusal(&mut self, reason: &str);
}

impl Quic for Script {
    fn quic(&mut self, datagram: &[u8]) {
        self.quic_from(6000, datagram);
    }

    fn quic_from(&mut self, port: u16, datagram: &[u8]) {
        let from = SocketAddr::new(self.addresses().0, port);
        self.connection_to(from, TO.parse().expect("an address"));
        self.guest_udp(TO.parse().expect("an address"), datagram);
    }

    fn server_gets(&mut self) -> Vec<Vec<u8>> {
        let to = TO.parse().expect("an address");
        let socket = self.driver.host.all().filter(|&socket| self.driver.host.peer(socket) == to).last();
        let socket = socket.expect("a socket to the server");
        let mut got = Vec::new();
        while let Some((datagram, _)) = self.driver.host.take_datagram(socket) {
            got.push(datagram);
        }
        got
    }

    fn expect_refusal(&mut self, reason: &str) {
        let message = self.expect_icmp();
        assert_eq!((message.kind, message.code), (3, 13), "administratively prohibited");
        assert_eq!(self.server_gets(), [[0; 0]; 0], "the server got nothing");
        assert_eq!(self.refused(), [(reason.to_owned(), 1)]);
        self.expect_all_gone();
    }
}

fn gated() -> Script {
    let rules = policy(&["quic://pkg.example.com", "quic://b.example"], &["quic://denied.example"]);
    let mut t = Script::new(under(rules));
    t.learns();
    t
}

fn hello(name: &str) -> Vec<u8> {
    client_hello(name.as_bytes(), &[(10, &[0, 2, 0, 29])])
}

/// The first datagram of a client that names this server.
fn first(name: &str) -> Vec<u8> {
    let hello = hello(name);
    FIRST.datagram(0, &crypto(&hello, 0, hello.len()))
}

#[test]
fn an_allowed_name_passes_unchanged_and_what_follows_as_well() {
    for version in [Version::V1, Version::V2] {
        let mut t = gated();
        let client = Client { version, ..FIRST };
        let hello = hello(NAME);
        let datagram = client.datagram(0, &crypto(&hello, 0, hello.len()));
        assert_eq!(datagram.len(), DATAGRAM_LEN);
        t.quic(&datagram);
        assert_eq!(t.server_gets(), [datagram]);
        // An acknowledgement to the connection ID of the server, under the keys of the first.
        let answer = Client { destination: b"srv", ..client };
        let ack = [answer.initial(1, &[2, 0, 0, 0, 0]), SHORT.to_vec()].concat();
        for datagram in [&ack[..], &SHORT] {
            t.quic(datagram);
            assert_eq!(t.server_gets(), [datagram]);
        }
        assert_eq!(t.refused(), []);
    }
}

#[test]
fn names_are_judged_as_by_tls() {
    for (name, reason) in [
        ("b.example", "policy name-elsewhere"),
        ("evil.example", "policy name"),
        ("denied.example", "deny quic://denied.example"),
        ("", "policy no-name"),
    ] {
        let mut t = gated();
        t.quic(&first(name));
        t.expect_refusal(reason);
    }
    let mut t = gated();
    let ech = client_hello(NAME.as_bytes(), &[(0xfe0d, &[1])]);
    t.quic(&FIRST.datagram(0, &crypto(&ech, 0, ech.len())));
    t.expect_refusal("policy ech");
}

/// | 41 | QUIC: the ClientHello in pieces over three Initials, out of order; again with other content |
/// judged as a whole; refused |
#[test]
fn attempt_41_pieces_in_any_order() {
    let mut t = gated();
    let hello = hello(NAME);
    let (third, two_thirds) = (hello.len() / 3, hello.len() / 3 * 2);
    let datagrams = [
        FIRST.datagram(0, &crypto(&hello, two_thirds, hello.len())),
        FIRST.datagram(1, &[crypto(&hello, third, third + 9), vec![1, 0, 0]].concat()),
        FIRST.datagram(2, &[crypto(&hello, third + 4, two_thirds), crypto(&hello, 0, third)].concat()),
    ];
    for datagram in &datagrams[..2] {
        t.quic(datagram);
        assert_eq!(t.server_gets(), [[0; 0]; 0]);
    }
    t.quic(&datagrams[2]);
    assert_eq!(t.server_gets(), datagrams);
    // Bytes that come again with another content, also after the pass.
    for pieces in [1, 2] {
        let mut t = gated();
        t.quic(&FIRST.datagram(0, &crypto(&hello, 0, if pieces == 1 { hello.len() } else { 60 })));
        t.server_gets();
        let mut other = hello.clone();
        other[50] ^= 1;
        t.quic(&FIRST.datagram(1, &crypto(&other, 40, other.len())));
        t.expect_refusal("policy hello");
    }
}

/// | 42, 43 | QUIC: a bad tag; a second connection in the flow; Retry; short headers, other versions,
/// DTLS, DNS | refused; the same name, or refused; judged anew; refused |
#[test]
fn attempt_42_tags_and_connection_ids() {
    // A bad tag with an allowed name.
    let mut t = gated();
    let mut bad = first(NAME);
    bad[100] ^= 1;
    t.quic(&bad);
    t.expect_refusal("policy hello");
    // A second connection with another name in the same flow, also in one datagram with the first.
    let evil = hello("evil.example");
    let evil = SECOND.datagram(0, &crypto(&evil, 0, evil.len()));
    let mut t = gated();
    t.quic(&first(NAME));
    t.server_gets();
    t.quic(&evil);
    t.expect_refusal("policy name-changed");
    let mut t = gated();
    t.quic(&[first(NAME), evil].concat());
    t.expect_refusal("policy name-changed");
    // A part of one is held, and what belongs to the first passes.
    let mut t = gated();
    t.quic(&first(NAME));
    t.server_gets();
    let again = hello(NAME);
    let parts =
        [SECOND.datagram(0, &crypto(&again, 0, 30)), SECOND.datagram(1, &crypto(&again, 30, again.len()))];
    t.quic(&parts[0]);
    t.quic(&SHORT);
    assert_eq!(t.server_gets(), [SHORT.to_vec()]);
    // After a Retry the client says the same under the keys of the new connection ID.
    t.quic(&parts[1]);
    assert_eq!(t.server_gets(), parts);
    assert_eq!(t.refused(), []);
}

/// Half a ClientHello waits for the other half, which a lockdown does not let pass, neither after open flows
/// were looked at nor before.
#[test]
fn a_closed_gate_ends_in_a_lockdown() {
    let hello = hello(NAME);
    let parts =
        [FIRST.datagram(0, &crypto(&hello, 0, 60)), FIRST.datagram(1, &crypto(&hello, 60, hello.len()))];
    for reviewed in [true, false] {
        let mut t = gated();
        t.quic(&parts[0]);
        let shared = t.setup().config.rules.shared.clone().expect("a policy");
        let rules = shared.rules().source().clone();
        if reviewed {
            t.changes(rules, true, 256);
            assert_eq!(t.open_flows().len(), 0);
        } else {
            shared.set(t.now(), Ruleset::new(rules).expect("few rules"), true);
        }
        t.quic(&parts[1]);
        t.expect_refusal("policy lockdown");
    }
}

#[test]
fn a_second_hello_names_the_same_server() {
    for (name, reason) in [(NAME, None), ("b.example", Some("policy name-changed"))] {
        let mut t = gated();
        t.quic(&first(NAME));
        t.server_gets();
        let both = [hello(NAME), hello(name)].concat();
        let answer = Client { destination: b"srv", ..FIRST };
        let datagram = answer.datagram(1, &crypto(&both, hello(NAME).len(), both.len()));
        t.quic(&datagram);
        match reason {
            None => assert_eq!(t.server_gets(), [datagram]),
            Some(reason) => t.expect_refusal(reason),
        }
    }
}

/// An encrypted ClientHello behind one that was not, in a connection of its own or the same: its server may
/// be another one than the outer name says.
#[test]
fn an_encrypted_hello_behind_a_plain_one_is_judged() {
    let ech = client_hello(NAME.as_bytes(), &[(0xfe0d, &[1])]);
    let both = [hello(NAME), ech.clone()].concat();
    let answer = Client { destination: b"srv", ..FIRST };
    let of_its_own = SECOND.datagram(0, &crypto(&ech, 0, ech.len()));
    let of_the_same = answer.datagram(1, &crypto(&both, hello(NAME).len(), both.len()));
    for outer in [false, true] {
        for datagram in [&of_its_own, &of_the_same] {
            let mut rules = policy(&["quic://pkg.example.com", "b.example"], &[]);
            rules.allow[0].ech_outer = outer;
            let mut t = Script::new(under(rules));
            t.learns();
            t.quic(&first(NAME));
            t.server_gets();
            t.quic(datagram);
            if outer {
                assert_eq!(&t.server_gets()[..], std::slice::from_ref(datagram));
            } else {
                t.expect_refusal("policy ech");
            }
        }
    }
}

#[test]
fn attempt_43_other_protocols() {
    for other in [
        &SHORT[..],
        &[0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 1, 9, 0, 0, 0],
        &[0xc0, 0, 0, 0, 0, 1, 9, 0],
        // A handshake packet, DTLS, DNS, and a Retry behind an Initial.
        &[0xe0, 0, 0, 0, 1, 1, 9, 0, 1, 7],
        &[22, 0xfe, 0xfd, 0, 0],
        &question(1, "evil.example", A),
        &[first(NAME), vec![0xf0, 0, 0, 0, 1, 1, 9, 0, 7]].concat(),
    ] {
        let mut t = gated();
        t.quic(other);
        t.expect_refusal("policy not-quic");
    }
}

#[test]
fn attempt_33_and_49_datagrams_held_are_bounded() {
    let hello = hello(NAME);
    let part = |n: u32| FIRST.datagram(n, &crypto(&hello, 0, 20));
    let mut t = gated();
    (0..4).for_each(|n| t.quic(&part(n)));
    t.expect_nothing();
    t.quic(&part(4));
    t.expect_refusal("policy hello");
    // No whole ClientHello in three seconds.
    let mut t = gated();
    t.quic(&part(0));
    t.advance_ms(2900);
    assert_eq!(t.refused(), []);
    t.advance_ms(200);
    assert_eq!(t.refused(), [("policy timeout".to_owned(), 1)]);
    assert_eq!(t.server_gets(), [[0; 0]; 0]);
    t.expect_all_gone();
    // Bytes of the stream.
    let mut t = gated();
    let far = vec![0; 9000];
    t.quic(&FIRST.datagram(0, &crypto(&far, 8190, 8200)));
    t.expect_refusal("policy hello");
    // Flows behind gates.
    let mut t = gated();
    for port in 0..1030u16 {
        t.quic_from(10_000 + port, &part(0));
        t.take_all();
    }
    assert_eq!(t.refused(), [("policy gate-overload".to_owned(), 6)]);
}
