//! The grammar: every form of the table with its meaning, and texts that are refused with the form to write.

use super::*;

fn allow(text: &str) -> Rule {
    Rule::parse(text, Effect::Allow).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn name(text: &str) -> DomainName {
    DomainName::parse(text.as_bytes()).expect("a name")
}

fn net(address: &str, prefix_len: u8) -> RuleTarget {
    RuleTarget::Network(Cidr::new(address.parse().expect("an address"), prefix_len).expect("a network"))
}

#[expect(clippy::unnecessary_wraps, reason = "the form in which a rule has it")]
fn range(first: u16, last: u16) -> Option<PortRange> {
    Some(PortRange { first, last })
}

#[test]
fn forms() {
    use RuleTarget::{AnyName, Below, Host, Name};
    use Scheme::{Http, Ping, Quic, Tcp, Tls, Udp};
    for (text, scheme, target, ports) in [
        ("Example.com.", Some(Tls), Name(name("example.com")), range(443, 443)),
        ("example.com:8443", Some(Tls), Name(name("example.com")), range(8443, 8443)),
        ("https://*.example.com", Some(Tls), Below(name("example.com")), range(443, 443)),
        ("https://*", Some(Tls), AnyName, range(443, 443)),
        ("*", Some(Tls), AnyName, range(443, 443)),
        ("tls://db.example:5432-5433", Some(Tls), Name(name("db.example")), range(5432, 5433)),
        ("http://mirror.example.net", Some(Http), Name(name("mirror.example.net")), range(80, 80)),
        ("quic://*.example.com", Some(Quic), Below(name("example.com")), range(443, 443)),
        ("tcp://github.com:22", Some(Tcp), Name(name("github.com")), range(22, 22)),
        ("udp://*.stun.example:3478", Some(Udp), Below(name("stun.example")), range(3478, 3478)),
        ("ping://example.com", Some(Ping), Name(name("example.com")), None),
        ("ping://192.0.2.0/24", Some(Ping), net("192.0.2.0", 24), None),
        ("10.20.0.0/16:5432", None, net("10.20.0.0", 16), range(5432, 5432)),
        ("192.0.2.1", None, net("192.0.2.1", 32), None),
        ("2001:db8::/32", None, net("2001:db8::", 32), None),
        ("[2001:db8::]/32:443", None, net("2001:db8::", 32), range(443, 443)),
        ("[2001:db8::/32]:1-2", None, net("2001:db8::", 32), range(1, 2)),
        ("tcp://[2001:db8::1]:22", Some(Tcp), net("2001:db8::1", 128), range(22, 22)),
        ("0.0.0.0/0", None, net("0.0.0.0", 0), None),
        ("host:631", None, Host, range(631, 631)),
        ("tcp://host:22", Some(Tcp), Host, range(22, 22)),
    ] {
        let expected = Rule { scheme, target, ports, text: text.into() };
        assert_eq!(allow(text), expected);
        assert_eq!(expected.to_string(), text);
    }
}

#[test]
fn a_denied_name_is_denied_as_a_whole() {
    let deny = |text| Rule::parse(text, Effect::Deny);
    let whole = deny("evil.example").expect("a rule");
    assert_eq!((whole.scheme, whole.ports), (None, None));
    assert_eq!(deny("https://evil.example").expect("a rule").scheme, Some(Scheme::Tls));
    let error = deny("evil.example:443").expect_err("ambiguous").to_string();
    assert!(error.ends_with("write https://evil.example:443"), "{error}");
    // The floor may be denied once more: harmless, and as it was.
    assert!(deny("127.0.0.0/8").is_ok());
    assert_eq!(deny("*"), Err(RuleError::Everything));
}

#[test]
fn refusals_say_what_to_write() {
    for (text, hint) in [
        ("", "one word"),
        ("a b", "one word"),
        ("ssh://github.com:22", "tcp://NAME:PORT"),
        ("https://example.com/v1", "write https://example.com"),
        ("example.com/", "write example.com"),
        ("https://example.com?x", "write https://example.com"),
        ("https://user@example.com", "leave out"),
        ("*example.com", "write *.example.com"),
        ("a.*.example.com", "write *.example.com"),
        ("example.*", "write *.example.com"),
        ("*.*.example.com", "write *.example.com"),
        ("*.com", "*.example.com"),
        ("tcp://*:22", "0.0.0.0/0:PORT"),
        ("https://10.0.0.0/8", "tcp://10.0.0.0/8:PORT"),
        ("https://[2001:db8::]/32", "tcp://[2001:db8::]/32:PORT"),
        ("tcp://example.com", "write tcp://example.com:PORT"),
        ("tls://example.com", "write tls://example.com:PORT"),
        ("ping://example.com:7", "ping has no port"),
        ("example.com:0", "port 0"),
        ("example.com:70000", "70000"),
        ("example.com:", "expected PORT"),
        ("example.com:9-8", "ends before"),
        ("10.0.0.0/33", "0 to 32"),
        ("10.0.0.0/", "0 to 32"),
        ("2001:db8::/129", "0 to 128"),
        ("[2001:db8::]/129:1", "0 to 128"),
        ("10.0.0.1/8", "the network is 10.0.0.0/8"),
        ("2001:db8::/32:443", "write [2001:db8::/32]:PORT"),
        ("1.2.3", "neither a name nor a network"),
        ("b\u{fc}cher.example", "neither a name nor a network"),
        ("[10.0.0.0]:80", "neither a name nor a network"),
        ("[::1", "neither a name nor a network"),
        ("127.0.0.1:80", "--map-host-loopback"),
        ("169.254.169.254", "link-local"),
        ("fe80::/64", "link-local"),
        ("fd00:ec2::254", "cloud-metadata"),
        ("64:ff9b::7f00:1", "host-loopback"),
    ] {
        let error = Rule::parse(text, Effect::Allow).expect_err(text).to_string();
        assert!(error.contains(hint), "{text}: {error}");
    }
}

#[test]
fn no_text_makes_it_panic() {
    // All strings of up to four characters of the grammar's own.
    let alphabet = ["", "*", ".", ":", "/", "[", "]", "a", "1", "::", "://", "tcp", "-"];
    let mut texts = vec![String::new()];
    for _ in 0..4 {
        texts = texts.iter().flat_map(|t| alphabet.map(|a| format!("{t}{a}"))).collect();
    }
    for text in &texts {
        for effect in [Effect::Allow, Effect::Deny] {
            if let Err(error) = Rule::parse(text, effect) {
                assert!(!error.to_string().is_empty());
            }
        }
    }
}
