//! Gates: TLS connections that name their server before anything leaves. Numbers are those of the bypass
//! attempts in the guide's page on policies.

use super::under_policy::{ALLOWED, Ruled, policy, under};
use super::*;
use brodo_sim::hello::{client_hello, record};

/// Another allowed name's address, and one for everything else.
pub(super) const OTHER: [u8; 4] = [203, 0, 113, 6];
const TO: &str = "203.0.113.5:443";
pub(super) const NAME: &str = "pkg.example.com";

pub(super) fn hello_with(name: &[u8], further: &[(u16, &[u8])]) -> Vec<u8> {
    record(22, &client_hello(name, further))
}

pub(super) fn hello(name: &str) -> Vec<u8> {
    hello_with(name.as_bytes(), &[(10, &[0, 2, 0, 29])])
}

/// Steps of these tests.
pub(super) trait Gated {
    /// The guest is given [`ALLOWED`] for [`NAME`], and [`OTHER`] for another allowed name.
    fn learns(&mut self);
    /// The guest's connection behind a gate at port 443, after the handshake; to an address it was given.
    fn behind_gate(&mut self) {
        self.behind_gate_to(TO);
    }
    /// The same at another destination.
    fn behind_gate_to(&mut self, to: &str);
    /// The guest sends these bytes in one segment.
    fn sends(&mut self, bytes: &[u8]);
    /// Everything that the host's peer got since the last time.
    fn peer_gets(&mut self) -> Vec<u8>;
    /// The guest gets the alert and the end of the stream, and the peer is reset without a byte.
    fn expect_alert(&mut self, reason: &str);
}

impl Gated for Script {
    fn learns(&mut self) {
        self.resolves(&question(1, NAME, A), &[(600, &ALLOWED)]);
        self.resolves(&question(2, "b.example", A), &[(600, &OTHER)]);
    }

    fn behind_gate_to(&mut self, to: &str) {
        self.learns();
        let from = SocketAddr::new(self.addresses().0, 6000);
        self.connection_to(from, to.parse().expect("an address"));
        self.establish();
    }

    fn sends(&mut self, bytes: &[u8]) {
        self.guest_sends(bytes);
    }

    fn peer_gets(&mut self) -> Vec<u8> {
        let socket = self.socket();
        self.driver.host.peer_take(socket, usize::MAX)
    }

    fn expect_alert(&mut self, reason: &str) {
        let lines: Vec<String> = self.take_all().iter().map(ToString::to_string).collect();
        assert!(lines.iter().any(|line| line.contains("data=7")), "no alert: {lines:?}");
        assert!(lines.iter().any(|line| line.contains("FIN")), "no end: {lines:?}");
        self.host_closed(Some(Close::Reset));
        assert_eq!(self.peer_gets(), [0; 0], "the server got no byte");
        self.guest("ACK");
        self.advance_ms(5000);
        self.expect_all_gone();
        assert_eq!(self.refused(), [(reason.to_owned(), 1)]);
    }
}

fn gated() -> Script {
    Script::new(setup_with_gates())
}

fn setup_with_gates() -> Setup {
    under(policy(&[NAME, "b.example", "tls://other.example:8443"], &["https://denied.example"]))
}

#[test]
fn an_allowed_name_passes_unchanged_and_the_rest_is_as_without_a_gate() {
    let mut t = gated();
    t.behind_gate();
    let first = hello(NAME);
    t.sends(&first);
    t.take_all();
    assert_eq!(t.peer_gets(), first);
    t.host_sends(1000);
    t.expect("ACK|PSH data=1000");
    // The next flight of TLS 1.3, after which nothing looks any more.
    let flight = [record(20, &[1]), record(23, &[9; 60])].concat();
    t.sends(&flight);
    assert_eq!(t.peer_gets(), flight);
    t.take_all();
    for _ in 0..3 {
        t.sends(&[5; 1400]);
        assert_eq!(t.peer_gets(), [5; 1400]);
    }
    assert_eq!(t.refused(), []);
}

/// | 20 to 23 | another name in the ClientHello, one that is pinned elsewhere, none, an address | alert;
/// the server gets no byte |
#[test]
fn attempt_20_to_23_other_names_and_none() {
    for (name, reason) in [
        ("b.example", "policy name-elsewhere"),
        ("evil.example", "policy name"),
        ("other.example", "policy name"),
        ("denied.example", "deny https://denied.example"),
        ("x.pkg.example.com", "policy name"),
        ("203.0.113.5", "policy name"),
        ("", "policy no-name"),
    ] {
        let mut t = gated();
        t.behind_gate();
        t.sends(&hello(name));
        t.expect_alert(reason);
    }
    // An address that DNS gave for nothing is refused before any gate.
    let mut t = gated();
    assert!(!t.connects(6000, TO));
}

#[test]
fn attempt_24_pieces_are_judged_as_a_whole() {
    let mut t = gated();
    t.behind_gate();
    let whole = hello(NAME);
    for (n, byte) in whole.iter().enumerate() {
        assert_eq!(t.peer_gets(), [0; 0], "byte {n} waits");
        t.sends(&[*byte]);
    }
    assert_eq!(t.peer_gets(), whole);
    let mut t = gated();
    t.behind_gate();
    t.sends(&hello("evil.example")[..20]);
    t.take_all();
    t.sends(&hello("evil.example")[20..]);
    t.expect_alert("policy name");
}

/// | 27 | NUL, upper case and final dot, blanks, full-width dot, homograph | refused, but for case and
/// final dot |
#[test]
fn attempt_27_names_that_are_read_in_two_ways() {
    for (name, reason) in [
        (&b"pkg.example.com\0.evil.example"[..], Some("policy name")),
        (b"evil.example\0.pkg.example.com", Some("policy name")),
        (b"PKG.EXAMPLE.COM.", None),
        (b" pkg.example.com", Some("policy name")),
        ("pkg\u{ff0e}example.com".as_bytes(), Some("policy name")),
        (b"xn--pkg-9ia.example.com", Some("policy name")),
    ] {
        let mut t = gated();
        t.behind_gate();
        let bytes = hello_with(name, &[]);
        t.sends(&bytes);
        match reason {
            Some(reason) => t.expect_alert(reason),
            None => assert_eq!(t.peer_gets(), bytes),
        }
    }
}

/// | 28 | repeated segments with other content | the first copy is judged and sent |
#[test]
fn attempt_28_the_first_copy_of_a_byte_is_judged_and_sent() {
    let mut t = gated();
    t.behind_gate();
    let good = hello(NAME);
    t.sends(&good[..30]);
    // The same bytes again with another content.
    t.guest("ACK seq=1 data=30");
    t.take_all();
    t.sends(&good[30..]);
    assert_eq!(t.peer_gets(), good);
    // The same ahead of a gap, which closes last.
    let evil = hello(&"x".repeat(NAME.len()));
    for (first, later, passes) in [(&good, &evil, true), (&evil, &good, false)] {
        let mut t = gated();
        t.behind_gate();
        t.guest_sends_at(31, &first[30..]);
        t.guest_sends_at(31, &later[30..]);
        t.guest_sends_at(1, &good[..30]);
        if passes {
            assert_eq!(t.peer_gets(), good);
        } else {
            t.host_closed(Some(Close::Reset));
            assert_eq!(t.peer_gets(), [0; 0], "the server got no byte");
        }
    }
}

/// | 29 | a second ClientHello with another name, also behind early data | reset |
#[test]
fn attempt_29_a_second_hello_names_the_same_server() {
    let second = |name: &str| [record(20, &[1]), hello(name)].concat();
    let mut t = gated();
    t.behind_gate();
    t.sends(&hello(NAME));
    t.peer_gets();
    t.sends(&second(NAME));
    assert_eq!(t.peer_gets(), second(NAME));
    let mut t = gated();
    t.behind_gate();
    t.sends(&hello(NAME));
    t.peer_gets();
    t.take_all();
    t.sends(&second("b.example"));
    let lines: Vec<String> = t.take_all().iter().map(ToString::to_string).collect();
    assert!(lines.iter().any(|line| line.contains("RST")), "{lines:?}");
    t.host_closed(Some(Close::Reset));
    assert_eq!(t.refused(), [("policy name-changed".to_owned(), 1)]);
    t.expect_all_gone();
}

/// A client with a session to resume sends its first request at once (`SSL_write_early_data` of OpenSSL).
#[test]
fn early_data_in_the_segment_of_the_hello_passes_and_hides_nothing() {
    let first = hello_with(NAME.as_bytes(), &[(42, &[])]);
    let early = [first, record(20, &[1]), record(23, &[7; 300])].concat();
    let mut t = gated();
    t.behind_gate();
    t.sends(&early);
    assert_eq!(t.peer_gets(), early);
    assert_eq!(t.refused(), []);
    t.take_all();
    t.sends(&hello("b.example"));
    assert_eq!(t.refused(), [("policy name-changed".to_owned(), 1)]);
    // A second hello in the same segment is the second one, and a record that is cut waits for its rest.
    let mut t = gated();
    t.behind_gate();
    t.sends(&[&early[..], &hello("b.example")].concat());
    t.expect_alert("policy name-changed");
    let mut t = gated();
    t.behind_gate();
    let (start, rest) = early.split_at(early.len() - 303);
    t.sends(start);
    t.sends(rest);
    assert_eq!(t.peer_gets(), early);
}

#[test]
fn attempt_29_early_data_before_the_second_hello_hides_nothing() {
    let mut t = gated();
    t.behind_gate();
    t.sends(&hello_with(NAME.as_bytes(), &[(42, &[])]));
    t.sends(&record(23, &[1; 1000]));
    assert!(!t.peer_gets().is_empty());
    t.take_all();
    t.sends(&hello("b.example"));
    assert_eq!(t.peer_gets(), [0; 0]);
    assert_eq!(t.refused(), [("policy name-changed".to_owned(), 1)]);
}

/// Records between the two that a server reads past, or refuses with the connection.
#[test]
fn attempt_29_alerts_and_empty_records_before_the_second_hello_hide_nothing() {
    let user_canceled = record(21, &[1, 90]);
    let two = user_canceled.repeat(2);
    for (between, reason) in [
        (&user_canceled, "policy name-changed"),
        (&[record(20, &[1]), two].concat(), "policy name-changed"),
        (&user_canceled.repeat(6), "policy hello"),
        (&[22, 3, 3, 0, 0, 2], "policy hello"),
        (&[22, 3, 3, 0, 0], "policy hello"),
    ] as [(&[u8], _); 5]
    {
        for apart in [false, true] {
            let mut t = gated();
            t.behind_gate();
            t.sends(&hello(NAME));
            t.peer_gets();
            t.take_all();
            if apart {
                t.sends(between);
                t.sends(&hello("b.example"));
            } else {
                t.sends(&[between, &hello("b.example")].concat());
            }
            assert_eq!(t.refused(), [(reason.to_owned(), 1)], "{between:?}");
            let gone = t.peer_gets();
            assert!(between.starts_with(&gone), "{gone:?}");
        }
    }
    // An alert alone passes, and so does the handshake behind it.
    let mut t = gated();
    t.behind_gate();
    t.sends(&hello(NAME));
    t.peer_gets();
    let rest = [user_canceled, record(20, &[1]), hello(NAME)].concat();
    t.sends(&rest);
    assert_eq!(t.peer_gets(), rest);
    assert_eq!(t.refused(), []);
}

/// A session of TLS 1.2 that is resumed: the client's next record is encrypted, and may begin as a
/// ClientHello does. One that a server could read as such is judged, however it is cut.
#[test]
fn an_encrypted_finished_that_begins_as_a_hello_passes() {
    let change = record(20, &[1]);
    let encrypted = |start: &[u8]| {
        let mut message = vec![0x77; 40];
        message[..start.len()].copy_from_slice(start);
        message
    };
    for start in [[1_u8, 0x9a, 3, 3, 3], [1, 3, 0, 0, 3], [1, 255, 255, 255, 0x55]] {
        for apart in [false, true] {
            let mut t = gated();
            t.behind_gate();
            t.sends(&hello(NAME));
            t.peer_gets();
            let rest = [change.clone(), record(22, &encrypted(&start)), record(23, b"data")].concat();
            if apart {
                for byte in &rest {
                    t.sends(&[*byte]);
                }
            } else {
                t.sends(&rest);
            }
            assert_eq!(t.peer_gets(), rest, "{start:?}");
            assert_eq!(t.refused(), []);
        }
    }
    for cut in 1..8 {
        let mut t = gated();
        t.behind_gate();
        t.sends(&hello(NAME));
        t.peer_gets();
        let whole = hello("b.example");
        let message = &whole[5..];
        t.sends(&[change.clone(), record(22, &message[..cut]), record(22, &message[cut..])].concat());
        assert_eq!(t.refused(), [("policy name-changed".to_owned(), 1)], "{cut}");
    }
    // Servers do not look at the version of one with supported_versions.
    let mut t = gated();
    t.behind_gate();
    t.sends(&hello(NAME));
    t.peer_gets();
    let mut whole = hello("b.example");
    whole[9] = 4;
    t.sends(&[change, whole].concat());
    assert_eq!(t.refused(), [("policy hello".to_owned(), 1)]);
}

/// | 30 to 32 | ECH, ESNI, SSH, HTTP and others on 443 | refused |
#[test]
fn attempt_30_and_31_encrypted_names() {
    for kind in [0xfe0d, 0xffce] {
        let mut t = gated();
        t.behind_gate();
        t.sends(&hello_with(NAME.as_bytes(), &[(kind, &[1, 2, 3])]));
        t.expect_alert("policy ech");
    }
}

#[test]
fn attempt_30_an_encrypted_second_hello_is_judged() {
    let ech = hello_with(NAME.as_bytes(), &[(0xfe0d, &[1, 2, 3])]);
    for (outer, first) in [(false, hello(NAME)), (true, hello(NAME)), (true, ech.clone())] {
        let mut rules = policy(&[NAME, "b.example"], &[]);
        rules.allow[0].ech_outer = outer;
        let mut t = Script::new(under(rules));
        t.behind_gate();
        t.sends(&first);
        assert_eq!(t.peer_gets(), first);
        let second = [record(20, &[1]), ech.clone()].concat();
        t.sends(&second);
        if outer {
            assert_eq!(t.peer_gets(), second);
            assert_eq!(t.refused(), []);
        } else {
            assert_eq!(t.peer_gets(), [0; 0]);
            assert_eq!(t.refused(), [("policy ech".to_owned(), 1)]);
        }
    }
}

#[test]
fn attempt_32_other_protocols() {
    for first in
        [&b"SSH-2.0-OpenSSH_9.9\r\n"[..], b"GET / HTTP/1.1\r\nHost: pkg.example.com\r\n\r\n", &[1, 0, 0, 0]]
    {
        let mut t = gated();
        t.behind_gate();
        t.sends(first);
        t.expect_alert("policy not-tls");
    }
}

/// | 33, 34 | silence, a byte now and then, FIN in the midst, a server that speaks first | refused after
/// five seconds in all; refused; nothing is passed on |
#[test]
fn attempt_33_silence_slowness_and_half_a_hello() {
    // Silence, and a byte every 900 ms: refused after five seconds in all.
    for slow in [false, true] {
        let mut t = gated();
        t.behind_gate();
        for byte in &hello(NAME)[..5] {
            t.advance_ms(900);
            if slow {
                t.sends(&[*byte]);
            }
        }
        t.take_all();
        assert_eq!(t.refused(), []);
        t.advance_ms(600);
        t.expect_alert("policy timeout");
    }
    let mut t = gated();
    t.behind_gate();
    t.sends(&hello(NAME)[..40]);
    t.take_all();
    t.guest("FIN|ACK");
    t.expect_alert("policy hello");
    let mut t = gated();
    t.behind_gate();
    t.sends(&hello(NAME)[..40]);
    t.take_all();
    t.guest("RST|ACK");
    t.host_closed(Some(Close::Reset));
    t.expect_all_gone();
    assert_eq!(t.peer_gets(), [0; 0]);
}

#[test]
fn attempt_34_a_server_that_speaks_first_says_nothing_to_the_guest() {
    let mut t = gated();
    t.behind_gate();
    t.host_sends(100);
    t.advance_ms(1000);
    t.expect_nothing();
    t.advance_ms(4100);
    t.expect_alert("policy timeout");
}

#[test]
fn a_server_that_resets_a_closed_gate_resets_the_guest() {
    let mut t = gated();
    t.behind_gate();
    t.sends(&hello(NAME)[..20]);
    t.take_all();
    t.host_breaks(HostError::Reset);
    t.expect("RST|ACK seq=1 ack=21");
    t.expect_all_gone();
}

/// | 49 | 1,100 half-open gates | 1,024, others are refused |
#[test]
fn attempt_49_closed_gates_are_bounded() {
    let mut t = gated();
    t.behind_gate();
    for port in 0..1100u16 {
        let from = SocketAddr::new(t.addresses().0, 10_000 + port);
        t.connection_to(from, TO.parse().expect("an address"));
        t.guest(SYN);
        t.take_all();
    }
    assert_eq!(t.refused(), [("policy gate-overload".to_owned(), 77)]);
    // A gate that opens makes room, and so does one that times out.
    t.advance_ms(6000);
    t.take_all();
    t.advance_ms(60_000);
    t.take_all();
    assert!(t.connects(7000, TO));
}

/// A hostile guest: one connection with half a ClientHello, and 65,535 that say nothing.
/// Each holds nearly as much as is read of a hello, together more than there is memory.
#[test]
fn closed_gates_hold_no_more_than_the_memory() {
    let mut setup = setup_with_gates();
    setup.config.memory = 8 << 20;
    let mut t = Script::new(setup);
    t.driver.handovers.switch_off();
    t.learns();
    let begin = [22, 3, 1, 0x3f, 0xff, 1, 0, 0x3f, 0xfb];
    let part = [&begin[..], &[0; 1391]].concat();
    for port in 0..1024 {
        let from = SocketAddr::new(t.addresses().0, 10_000 + port);
        t.connection_to(from, TO.parse().expect("an address"));
        t.establish();
        t.sends(&part);
        (0..9).for_each(|_| t.sends(&[0; 1400]));
        t.take_all();
        let (used, budget) = (t.driver.stack.memory_used(), t.driver.stack.memory_budget());
        assert!(used <= budget, "{used} of {budget} with {port} gates");
    }
    let used = t.driver.stack.memory_used();
    assert!(used > 4 << 20, "{used}: little was held");
}

#[test]
fn closed_gates_are_bounded_under_65_536_connections() {
    const CONNECTIONS: u32 = 65_536;
    let mut t = gated();
    t.driver.handovers.switch_off();
    t.behind_gate();
    let hello = hello(NAME);
    t.sends(&hello[..hello.len() / 2]);
    t.take_all();
    let from = t.addresses().0;
    let other = SocketAddr::from((OTHER, 443));
    for n in 1..CONNECTIONS {
        let to = if n % 2 == 0 { TO.parse().expect("an address") } else { other };
        t.connection_to(SocketAddr::new(from, 10_000 + (n / 2) as u16), to);
        t.guest(SYN);
        t.take_all();
    }
    assert_eq!(t.refused(), [("policy gate-overload".to_owned(), u64::from(CONNECTIONS) - 1024)]);
    assert_eq!(t.driver.stack.flow_details(0, t.now()).count(), 1024, "no flow without a gate");
}
