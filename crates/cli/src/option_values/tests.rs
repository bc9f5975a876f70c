//! Parsers of command line values, each with valid and invalid words.

use super::*;

/// Asserts that `parse` accepts and refuses these words.
fn check<T: fmt::Debug + PartialEq>(
    parse: impl Fn(&str) -> Result<T, String>,
    good: &[(&str, T)],
    bad: &[&str],
) {
    for (word, expected) in good {
        assert_eq!(parse(word).as_ref(), Ok(expected), "{word}");
    }
    for word in bad {
        let refusal = parse(word).expect_err(word);
        assert!(!refusal.contains('\n') && !refusal.ends_with('.'), "{refusal}");
    }
}

#[test]
fn host_names_and_the_cache() {
    let entry = |name: &str, ip: &str| Ok((name.to_owned(), ip.parse().unwrap()));
    assert_eq!(host_name("db.lan=192.0.2.7"), entry("db.lan", "192.0.2.7"));
    assert_eq!(host_name("_x.DB.=2001:db8::7"), entry("_x.DB", "2001:db8::7"));
    for bad in
        ["db.lan", "db.lan=", "=192.0.2.7", "db..lan=192.0.2.7", "db lan=192.0.2.7", "a=192.0.2.7:80", ""]
    {
        assert!(host_name(bad).is_err(), "{bad}");
    }
    assert_eq!(["0", "4K", "64M"].map(|word| dns_cache(word).ok()), [Some(0), Some(4096), Some(64 << 20)]);
    assert_eq!(["1", "4095", "65M", "-1", ""].map(|word| dns_cache(word).ok()), [None; 5]);
}

#[test]
fn networks() {
    let net = |address: &str, prefix_len| Cidr { address: address.parse().unwrap(), prefix_len };
    check(
        str::parse,
        &[
            ("192.168.7.5/24", net("192.168.7.5", 24)),
            ("10.0.0.1/32", net("10.0.0.1", 32)),
            ("10.0.0.1/0", net("10.0.0.1", 0)),
            ("fd01::5/64", net("fd01::5", 64)),
            ("fd01::5/128", net("fd01::5", 128)),
        ],
        &[
            "",
            "/",
            "10.0.0.1",
            "10.0.0.1/",
            "/24",
            "10.0.0/24",
            "10.0.0.1/33",
            "10.0.0.1/-1",
            "10.0.0.1/255.255.255.0",
            "fd01::5/129",
            "fd01::5%eth0/64",
            "10.0.0.1/24/24",
            "10.0.0.1/999",
        ],
    );
}

#[test]
fn sizes() {
    check(
        size,
        &[("0", 0), ("4096", 4096), ("64K", 64 << 10), ("64k", 64 << 10), ("4M", 4 << 20), ("1G", 1 << 30)],
        &[
            "",
            "K",
            "-1",
            "+1",
            "1.5M",
            "1T",
            "64KB",
            "64 K",
            "0x10",
            "99999999999999999999",
            "18446744073709551615K",
        ],
    );
    check(memory, &[("1M", 1 << 20), ("2G", 2 << 30)], &["1023K", "0", "x"]);
}

#[test]
fn buffer_bounds() {
    let pair = |initial, max| BufferBounds { initial, max };
    check(
        bounds,
        &[
            ("64K..4M", pair(64 << 10, 4 << 20)),
            ("4K..1048560K", pair(4 << 10, 65_535 << 14)),
            ("256K", pair(256 << 10, 256 << 10)),
            ("64K..64K", pair(64 << 10, 64 << 10)),
        ],
        &[
            "",
            "..",
            "64K..",
            "..4M",
            "4M..64K",
            "4095..4M",
            "64K..1G",
            "64K..1073725441",
            "0",
            "0..4M",
            "64K...4M",
            "64K-4M",
            "64K..4M..8M",
        ],
    );
}

#[test]
fn resolvers() {
    let at = |word: &str| word.parse().unwrap();
    check(
        resolver,
        &[
            ("1.1.1.1", at("1.1.1.1:53")),
            ("127.0.0.53", at("127.0.0.53:53")),
            ("127.0.0.1:5353", at("127.0.0.1:5353")),
            ("2606:4700::1111", at("[2606:4700::1111]:53")),
            ("[::1]:54", at("[::1]:54")),
        ],
        &["", "dns.example", "1.1.1.1:", "1.1.1.1:0", "1.1.1.1:65536", "0.0.0.0", "::", "[::1]", "224.0.0.1"],
    );
}

#[test]
fn mac_addresses() {
    check(
        mac,
        &[
            ("52:55:0a:00:02:0f", MacAddr([0x52, 0x55, 10, 0, 2, 15])),
            ("52-55-0A-00-02-0F", MacAddr([0x52, 0x55, 10, 0, 2, 15])),
        ],
        &[
            "",
            "52:55:0a:00:02",
            "52:55:0a:00:02:0f:00",
            "5:55:0a:00:02:0f0",
            "52:55:0a:00:02:0g",
            "53:55:0a:00:02:0f",
            "ff:ff:ff:ff:ff:ff",
            "00:00:00:00:00:00",
            "+2:55:0a:00:02:0f",
        ],
    );
}

#[test]
fn names_and_numbers() {
    check(
        search_name,
        &[
            ("example.org", "example.org".into()),
            ("lan.", "lan".into()),
            ("_x.a-b", "_x.a-b".into()),
            (".", String::new()),
        ],
        &["", "..", "a..b", ".a", "a b", "a\nnameserver 6.6.6.6", &"a".repeat(64)],
    );
    check(descriptor, &[("3", 3), ("200", 200)], &["", "0", "2", "-1", "x", "99999999999"]);
    check(any_descriptor, &[("0", 0), ("2", 2), ("200", 200)], &["", "-1", "x", "99999999999"]);
    let ms = Duration::from_millis;
    check(
        interval,
        &[("1", ms(1000)), ("0.1", ms(100)), ("3600", ms(3_600_000))],
        &["", "0", "0.09", "3601", "-1", "NaN", "inf", "1s"],
    );
    check(interface_name, &[("eth0", "eth0".into())], &["", "lo", "a/b", "eth%d", "0123456789abcdef"]);
}

#[test]
fn deny_rules() {
    let rule =
        |address: &str, prefix_len, ports| Deny::new(address.parse().unwrap(), prefix_len, ports).unwrap();
    check(
        deny_address,
        &[
            ("10.0.0.0/8", rule("10.0.0.0", 8, None)),
            ("0.0.0.0/0", rule("0.0.0.0", 0, None)),
            ("192.0.2.1", rule("192.0.2.1", 32, None)),
            ("192.0.2.1:25", rule("192.0.2.1", 32, Some(PortRange::one(25)))),
            ("192.0.2.0/24:80-90", rule("192.0.2.0", 24, Some(PortRange { first: 80, last: 90 }))),
            ("2001:db8::/32", rule("2001:db8::", 32, None)),
            ("2001:db8::1", rule("2001:db8::1", 128, None)),
            ("[2001:db8::]/32:443", rule("2001:db8::", 32, Some(PortRange::one(443)))),
            ("[2001:db8::1]:443", rule("2001:db8::1", 128, Some(PortRange::one(443)))),
            ("[2001:db8::1]", rule("2001:db8::1", 128, None)),
            ("::/0", rule("::", 0, None)),
            ("::", rule("::", 128, None)),
            ("host", Deny::host(None).unwrap()),
            ("host:22", Deny::host(Some(PortRange::one(22))).unwrap()),
            ("private", Deny::private(None).unwrap()),
            ("private:445", Deny::private(Some(PortRange::one(445))).unwrap()),
            ("host:1-1023", Deny::host(Some(PortRange { first: 1, last: 1023 })).unwrap()),
        ],
        &[
            "",
            "host:",
            "host:0",
            "host/8",
            "hosts",
            "private/8",
            "private.example",
            "HOST",
            "10.0.0.0/33",
            "10.0.0.1/8",
            "10.0.0.0/8:",
            "10.0.0.0/8:0",
            "10.0.0.0/8:90-80",
            "10.0.0.0/8:65536",
            "10.0.0.0/8:+1",
            "10.0.0.0/8:80:90",
            "10.0.0/8",
            "2001:db8::/32:443",
            "2001:db8::1/129",
            "[2001:db8::1/64]:443",
            "[10.0.0.1]:80",
            "[2001:db8::1",
            "[2001:db8::1]443",
            "example.org",
            "*:25",
        ],
    );
    assert_eq!(
        deny_address("10.1.0.0/8").unwrap_err(),
        "10.1.0.0 has bits behind its prefix; the network is 10.0.0.0/8"
    );
}

#[test]
fn readiness_has_a_descriptor_and_a_text() {
    let ready = |number, text: &str| ReadyFd { number, text: text.to_owned() };
    check(
        ready_fd,
        &[("0", ready(0, "\n")), ("1:1", ready(1, "1")), ("5:", ready(5, "")), ("6:a:b", ready(6, "a:b"))],
        &["", "x", ":1", "-3:1"],
    );
}

#[test]
fn flow_rates() {
    check(
        flow_rate,
        &[
            ("100/s", FlowRate { per_second: 100, burst: 100 }),
            ("1/s", FlowRate { per_second: 1, burst: 1 }),
            ("100/s:500", FlowRate { per_second: 100, burst: 500 }),
        ],
        &["", "100", "0/s", "/s", "100/m", "100/s:", "100/s:0", "+1/s", "100/s500", "9999999/s", "1.5/s"],
    );
}
